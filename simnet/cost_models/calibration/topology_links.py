"""The network of a calibration: nodes of the ranks, and the links that a simulation of the same system takes.

A topology given by name gets latencies and bandwidths from the step model: the latency is the cost of one more step of
a ring at the smallest measured size, the bandwidth that of the protocol for large messages. Launch and reducing are no
properties of links.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import networkx as nx
import pandas as pd

from simnet.base.errors import InputError, suggest_names
from simnet.cost_models.calibration.curves import Curve, Setting
from simnet.cost_models.calibration.step_counts import count_steps
from simnet.cost_models.calibration.step_model import PARAMETERS, StepModel, undetermined_parameters
from simnet.interchange import kind_of, read_network

LINK_FAMILIES = ("star", "multi_gpu_nodes")
"""Topologies whose links a calibration describes; others come as files."""

MAX_PER_NODE = 4096
"""The most ranks on a node."""

_INNER_KINDS = frozenset({"intra", "nvlink", "pci", "sys"})


class Placement(NamedTuple):
    """A topology as given: one of `LINK_FAMILIES` or a file, and the ranks per node, None if it does not say."""

    name: str
    each: int | None


class FittedLinks(NamedTuple):
    """Arguments of a builder in `simnet.topologies` by its name [s], [byte/s], and parameters that data leave open."""

    parameters: dict[str, dict[str, int | float]]
    undetermined: tuple[str, ...]


def place_ranks(given: str, overrides: Sequence[str] = ()) -> Placement:
    """Return a topology given by name, with ``gpus_per_node=N`` where wanted, or by a file.

    In a file, ranks that links of a node (NVLink, PCIe, ``intra``) join are on one node; all others are alone.
    """
    each: int | None = None
    for one in overrides:
        name, _, value = one.partition("=")
        if given != "multi_gpu_nodes" or name != "gpus_per_node":
            raise InputError(f"{one[:60]!r} is not for --network {given}; allowed: gpus_per_node=N of multi_gpu_nodes",
                             file="--network")  # fmt: skip
        if not (value.isascii() and value.isdigit() and len(value) < 6 and 1 <= int(value) <= MAX_PER_NODE):
            raise InputError(
                f"must be a whole number in 1..{MAX_PER_NODE}, got {value[:40]!r}", file="--network", field=name
            )
        each = int(value)
    if given in LINK_FAMILIES:
        return Placement(given, 1 if given == "star" else each)
    try:
        there = Path(given).exists() or bool(Path(given).suffix)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise InputError(f"{given}: cannot be read: {error.strerror}", file="--network") from None
        there = False
    if not there:
        raise InputError(f"there is no topology and no file {given[:200]!r}; {suggest_names(given, LINK_FAMILIES)}",
                         file="--network")  # fmt: skip
    return Placement(given, _hosts_of_node(given))


def fill_nodes_of(rows: pd.DataFrame, place: Placement) -> pd.DataFrame:
    """Return rows with the nodes that a topology gives their ranks, where the logs do not say them."""
    if place.each is None:
        return rows
    counted = -(-rows["ranks"] // place.each)
    each = rows["ranks"].clip(upper=place.each)
    return rows.assign(
        nodes=rows["nodes"].fillna(counted),
        ranks_per_node=rows["ranks_per_node"].fillna(each.where(rows["nodes"].isna())),
    )


def fit_topology_links(place: Placement, steps: StepModel | None, curves: Sequence[Curve]) -> FittedLinks | None:
    """Return the links of a topology given by its name; None for one from a file, which has its own.

    Raises InputError if no step model could be fitted, or nothing says how many ranks are on a node.
    """
    if place.name not in LINK_FAMILIES:
        return None
    where = f"--network {place.name}"
    if steps is None:
        raise InputError("needs measurements of a collective whose algorithms are known", file=where)
    largest = max((one.setting for one in curves), key=lambda one: (one.ranks, one.nodes))
    if place.each is None and not largest.nodes:
        raise InputError("the logs do not say how many ranks are on a node; --set gpus_per_node=8 does", file=where)
    smallest = min(float(one.sizes[0]) for one in curves)
    value = dict(zip(PARAMETERS, steps.values, strict=True))
    inside, between = ("inner_latency", "inner_seconds_per_byte"), ("outer_latency", "outer_seconds_per_byte")
    if place.name == "star":
        alone = all(one.setting.nodes == 1 for one in curves)
        used: tuple[str, ...] = inside if alone else between
        made: dict[str, int | float] = {
            "hosts": largest.ranks,
            "latency": _step_latency(steps, smallest, alone),
            "bandwidth": 1 / value[used[1]],
        }
    else:
        # Ranks may send over one card together or each over its own; the card of a node in a simulation is all of them.
        nodes = largest.nodes or -(-largest.ranks // cast(int, place.each))
        used = (*inside, *between)
        out = _out_of_a_node(steps, max((one.setting for one in curves), key=lambda one: one.nodes))
        made = {
            "nodes": nodes,
            "gpus_per_node": -(-largest.ranks // nodes),
            "intra_latency": _step_latency(steps, smallest, alone=True),
            # A message between nodes passes a link inside each, which must not be its bottleneck.
            "intra_bandwidth": max(1 / value["inner_seconds_per_byte"], out / value["outer_seconds_per_byte"]),
            "nic_latency": max(
                _step_latency(steps, smallest, alone=False) - _step_latency(steps, smallest, alone=True), 0.0
            ),
            "nic_bandwidth": out / value["outer_seconds_per_byte"],
        }
    unknown = undetermined_parameters(steps)
    return FittedLinks({place.name: made}, tuple(name for name in used if name in unknown))


def _step_latency(steps: StepModel, size: float, alone: bool) -> float:
    """Return the cost of one more step of a ring inside a node (`alone`) or between nodes, without its bytes [s]."""
    few, many = (Setting("all_reduce", ranks, 1 if alone else ranks, "ring") for ranks in (4, 8))
    seconds, counted, moved = [], [], []
    per_byte = dict(zip(PARAMETERS, steps.values, strict=True))
    for one in (few, many):
        (cost, *_), found = count_steps(one, steps.nccl), steps.at(one, [size])
        assert found is not None
        seconds.append(found.item())
        counted.append(cost.inner + cost.outer)
        slopes = per_byte["inner_seconds_per_byte"], per_byte["outer_seconds_per_byte"]
        moved.append(size * (cost.inner_bytes * slopes[0] + cost.outer_bytes * slopes[1]))
    more = seconds[1] - moved[1] - seconds[0] + moved[0]
    return max(more / (counted[1] - counted[0]), 0.0)


def _out_of_a_node(steps: StepModel, setting: Setting) -> float:
    """Return the bytes out of a node in a ring over those that are counted: 1, or its number of cards."""
    if setting.nodes < 2:
        return 1.0
    (ring,) = count_steps(Setting("all_reduce", setting.ranks, setting.nodes, "ring"), steps.nccl, cards=steps.cards)
    return 2 * (setting.ranks - 1) / setting.ranks / ring.outer_bytes


def _hosts_of_node(file: str) -> int:
    """Return the hosts of a node in a topology from a file."""
    try:
        latency = 0.0 if kind_of(file) == "nccl" else None
        graph: nx.DiGraph[Any] = read_network(file, latency=latency).graph
    except ValueError as error:
        raise InputError(str(error), file="--network") from None
    inside: nx.Graph[Any] = nx.Graph()
    inside.add_nodes_from(range(graph.graph["hosts"]))
    inside.add_edges_from((a, b) for a, b, facts in graph.edges(data=True) if facts.get("kind") in _INNER_KINDS)
    sizes = Counter(sum(isinstance(one, int) for one in part) for part in nx.connected_components(inside))
    del sizes[0]
    if len(sizes) > 1:
        found = ", ".join(map(str, sorted(sizes)))
        raise InputError(f"has nodes of {found} hosts, so that ranks per node are not told", file=file)
    return next(iter(sizes))
