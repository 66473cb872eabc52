"""NCCL channels: a collective runs in several orders of ranks at once, and each order uses another network card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simnet.base.arrays import Ranks
from simnet.base.errors import InputError
from simnet.cost_models.calibration.node_links import MAX_DEVICES, pack_links
from simnet.schedule import Round, Schedule

if TYPE_CHECKING:
    from simnet.network import Network
    from simnet.studies.timing import Timed

MAX_CHANNELS = 64
"""The most channels of a collective; NCCL has as many."""


def card_users(network: Network) -> list[int]:
    """Return a GPU of the first node for each network card that this node uses; empty unless nodes have GPUs."""
    routes, each = network.routes, int(network.graph.graph.get("gpus_per_node", 0))
    if not each or each >= routes.n_hosts:
        return []
    found: dict[int, int] = {}
    for gpu in range(each):
        for link in _cards_on(network, routes.route(gpu, each))[:1]:
            found.setdefault(link, gpu)
    return list(found.values())


def channel_orders(network: Network, channels: object, ranks: int) -> list[tuple[Ranks, float]]:
    """Return each channel's order of ranks and share of the data. Channels leave nodes by different network cards.

    Raises InputError if `channels` is no number of channels, or the network has no nodes with GPUs.
    """
    if type(channels) is not int or not 1 <= channels <= MAX_CHANNELS:
        raise InputError(f"channels must be a whole number in 1..{MAX_CHANNELS}, got {channels!r:.40}")
    each = int(network.graph.graph.get("gpus_per_node", 0))
    if not each:
        raise InputError("channels go over the cards of an NCCL topology, which this network is not")
    last = card_users(network) or range(each)
    local = [(last[number % len(last)] + 1 + np.arange(each)) % each for number in range(channels)]
    flat = [(np.arange(0, ranks, each)[:, None] + one).ravel() for one in local]
    return [(one[one < ranks], 1 / channels) for one in flat]


def linked_orders(network: Network, ranks: int) -> list[tuple[Ranks, float]]:
    """Return orders of ranks along the direct links inside nodes, each order with its share of the data.

    They are the best rings inside a node, or the best chains through whole nodes. Empty where there are none, nodes are
    used in part, or too many or too few ranks are on one.
    """
    graph = network.graph
    each = int(graph.graph.get("gpus_per_node", 0))
    some = min(ranks, each)
    if not 2 < some <= MAX_DEVICES or ranks % some:
        return []
    rates = np.array(
        [[graph.edges[a, b]["bandwidth"] if graph.has_edge(a, b) else 0.0 for b in range(some)] for a in range(some)]
    )
    least = rates[rates > 0].min(initial=np.inf)
    links = tuple(tuple(row) for row in np.rint(rates / least).astype(int).tolist())
    ways = pack_links(links, closed=ranks == some)
    total = 2 * sum(count for _, count in ways)
    starts = np.arange(0, ranks, each)[:, None]
    return [((starts + np.array(way[:some])[::turn]).ravel(), count / total) for way, count in ways for turn in (1, -1)]


def in_channels(whole: Schedule, orders: Sequence[tuple[Ranks, float]]) -> Schedule:
    """Return a schedule that runs in several orders of ranks at once, each with a share of every message."""
    made: dict[int, Round] = {}
    for one in whole.rounds:
        if id(one) not in made:
            src, dst = (np.concatenate([order[side] for order, _ in orders]) for side in (one.src, one.dst))
            nbytes = np.concatenate([share * one.nbytes for _, share in orders])
            made[id(one)] = Round(src, dst, nbytes, one.compute, one.phase)
    return Schedule(whole.n_ranks, [made[id(one)] for one in whole.rounds])


def cards_used(timed: Timed) -> str:
    """Return a text on how many network cards a schedule uses; empty if the schedule uses none."""
    graph, routes = timed.network.graph, timed.network.routes
    if graph.graph.get("name") != "nccl" or not graph.has_node("fabric"):
        return ""
    pairs = {pair for one in timed.schedule.rounds for pair in zip(one.src.tolist(), one.dst.tolist(), strict=True)}
    used = {
        card
        for src, dst in pairs
        for card in _cards_on(timed.network, routes.route(timed.hosts[src], timed.hosts[dst]))
    }
    return f"over {len(used):,} of {graph.in_degree('fabric'):,} network cards" if used else ""


def _cards_on(network: Network, route: Sequence[int]) -> list[int]:
    """Return the links on a route that connect a network card to the fabric."""
    return [link for link in route if network.routes.links[link][1] == "fabric"]
