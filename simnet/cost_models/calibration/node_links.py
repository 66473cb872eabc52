"""Bandwidths inside a node whose devices are linked in pairs, computed from the best rings and chains of links.

A ring, or a chain, takes a link in each direction between neighbours; as many run at once as links are there for.
"""

# References: NVIDIA, NCCL, ``src/graph/search.cc``: rings and chains through all devices of a node, else over PCI.
# G. Wang et al., "Blink: Fast and Generic Collectives for Distributed ML", MLSys 2020: which GPUs of a DGX-1 have
# rings.

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise, permutations
from typing import NamedTuple, TypeAlias

import numpy as np

Links: TypeAlias = tuple[tuple[int, ...], ...]
"""Number of links between each two devices of a node, symmetric."""

MAX_DEVICES = 8
"""The most devices whose links are given pair by pair."""

CUBE_MESH: Links = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
"""The hybrid cube mesh of eight V100, as ``nvidia-smi topo -m`` shows it on a DGX-1 and on AWS p3.16xlarge."""


class InsideRates(NamedTuple):
    """Bandwidths among devices of a node by traffic pattern [byte/s]; `ring` is what each device sends, over all rings.

    `tree` is the size over the time of an all-reduce along chains, `peers` what each sends in an all-to-all, `next`
    from each to the next. Each can send at `least` so much, in the `mean` so much.
    """

    ring: float
    tree: float
    peers: float
    next: float
    least: float
    mean: float


def mesh_rates(ranks: int, pair: float) -> InsideRates:
    """Return the bandwidths among `ranks` fully meshed devices, each pair joined at the rate `pair` [byte/s]."""
    each = (ranks - 1) * pair
    return InsideRates(each, ranks * pair / 2, each, pair, each, each)


@cache
def linked_rates(links: Links, ranks: int, link: float, otherwise: float) -> tuple[InsideRates, InsideRates]:
    """Return the bandwidths among the first `ranks` devices of a node, and the best among any `ranks` devices of it.

    `link` is the rate of a link, `otherwise` of devices without one, through PCI [byte/s].
    """
    places = combinations(range(len(links)), ranks)
    found = [_rates_of(tuple(tuple(links[a][b] for b in some) for a in some), link, otherwise) for some in places]
    return found[0], InsideRates(*(max(each) for each in zip(*found, strict=True)))


@cache
def _rates_of(links: Links, link: float, otherwise: float) -> InsideRates:
    """Return bandwidths among devices [byte/s] from link counts of pairs, a link's rate, and the rate without links."""
    many = len(links)
    rates = np.array(links) * link
    between = np.where(rates > 0, rates, otherwise) + np.diag(np.full(many, np.inf))
    # Those without a link share the way through PCI.
    missing = max(row.count(0) - 1 for row in links)
    peers = (many - 1) * (min(float(between.min()), otherwise / missing) if missing else float(between.min()))
    around = float(min(between[rank, (rank + 1) % many] for rank in range(many)))
    sums = [float(one) or otherwise for one in rates.sum(axis=1)]
    chains = link * sum(count for _, count in pack_links(links, closed=False))
    rings = link * sum(count for _, count in pack_links(links, closed=True)) if many > 2 else chains
    # Of three or more, each ring runs both ways.
    ring = max((2 if many > 2 else 1) * rings, otherwise)
    return InsideRates(ring, max(chains, otherwise / 2), peers, around, min(sums), float(np.mean(sums)))


def pack_links(links: Links, *, closed: bool) -> list[tuple[tuple[int, ...], float]]:
    """Fit as many chains (rings if `closed`) of all devices as possible on the links; return each with its count."""
    # It takes long to import.
    from scipy.optimize import linprog

    many = len(links)
    orders = permutations(range(1, many)) if closed else permutations(range(many))
    ways = [(0, *one, 0) if closed else one for one in orders if one[0] < one[-1]]
    pairs = [(a, b) for a, b in combinations(range(many), 2) if links[a][b]]
    uses = [(way, {(min(step), max(step)) for step in pairwise(way)}) for way in ways]
    possible = [(way, used) for way, used in uses if used.issubset(pairs)]
    if not possible:
        return []
    taken = [[float(pair in used) for _, used in possible] for pair in pairs]
    found = linprog(-np.ones(len(possible)), A_ub=taken, b_ub=[links[a][b] for a, b in pairs])
    return [(way, count) for (way, _), count in zip(possible, np.asarray(found.x).tolist(), strict=True) if count > 0]
