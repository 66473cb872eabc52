"""Steps as Chakra execution traces have them: what every rank computed, sent and called, and what that waited for.

Where a schedule of simnet has sends and receives in rounds, a step has collectives, which go by algorithms of simnet's
own, and computing beside them.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.collectives.registry import Operation
from simnet.interchange.chakra import MAX_BYTES, TraceNode, read_nodes, trace_paths
from simnet.network import Network
from simnet.parallel.graph import COMPUTE, CollectiveCall, ComputePart, Groups, HeldMemory, StepGraph, StepNode
from simnet.parallel.timing import PlacedStep, StepTiming

_OPERATIONS: Mapping[str, Operation] = {
    "ALL_REDUCE": "all_reduce",
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "REDUCE_SCATTER_BLOCK": "reduce_scatter",
    "BROADCAST": "broadcast",
    "REDUCE": "reduce",
    "ALL_TO_ALL": "alltoall",
}


class _RankNode(NamedTuple):
    """A node of a trace, and its rank."""

    rank: int
    number: int


@dataclass(frozen=True, repr=False)
class TracedStep:
    """A step of execution traces: its graph, with bytes as elements, and the seconds of computing, shape (nodes, P)."""

    graph: StepGraph
    seconds: Floats


def read_traced_step(prefix: str | Path, *, largest: int = MAX_BYTES) -> TracedStep:
    """Read a step of Chakra execution traces ``PREFIX.0.et``, ``PREFIX.1.et``, ..., collectives included.

    The k-th collective of a group of ranks is one call; a group is the ranks whose traces name it. Calls of a group
    follow each other, as do messages between two ranks. Everything else that takes time is computing, one thing at a
    time, in the order of the trace. The network decides the durations of collectives and messages. A trace has at most
    `largest` bytes, unpacked.

    Raises InputError if a file is no such trace, a node is repeated or missing, ranks of a group disagree, a message
    has no partner, a collective is unknown, or nodes wait for each other in a circle.
    """
    paths = trace_paths(prefix)
    traces = [_read_trace(path, largest) for path in paths]
    joint = _join_nodes(traces, paths)
    layout, what = _trace_calls(traces, paths, joint)
    order, after = _topological_order(traces, paths, joint)
    numbers = {members: number for number, members in enumerate(order)}
    nodes: list[StepNode] = []
    seconds = np.zeros((len(order), len(traces)))
    for number, members in enumerate(order):
        ranks = tuple(at.rank for at in members)
        before = tuple(sorted({numbers[one] for one in after[members]}))
        if (call := what.get(members)) is not None:
            nodes.append(StepNode(call, call.group, before, tuple(sorted(ranks))))
            continue
        (at,) = members
        one = traces[at.rank][at.number]
        micros = one.micros if one.kind == "other" else 0
        seconds[number, at.rank] = micros * 1e-6
        nodes.append(StepNode(ComputePart(one.name, "forward", 0, micros), COMPUTE, before, ranks))
    graph = StepGraph(tuple(nodes), len(traces), 1, HeldMemory(0, 0, 0), layout=layout)
    return TracedStep(graph, seconds)


def time_traced(
    step: TracedStep,
    network: Network,
    *,
    algorithms: Mapping[str, str] | None = None,
    placement: ArrayLike | None = None,
    start: float = 0.0,
    iteration: int = 0,
) -> StepTiming:
    """Time a step of execution traces on a network; arguments and errors are those of `simnet.parallel.time_step`."""
    return PlacedStep(step.graph, network, algorithms, placement).time(step.seconds, start, iteration)


def _refuse_node(path: Path, node: TraceNode, message: str) -> NoReturn:
    raise InputError(message, file=str(path), field=f"node {node.number}")


def _read_trace(path: Path, largest: int) -> dict[int, TraceNode]:
    """Return the nodes of a trace by their numbers, in its order."""
    found: dict[int, TraceNode] = {}
    for node in read_nodes(path, largest):
        if node.number in found:
            _refuse_node(path, node, "stands twice")
        found[node.number] = node
    for node in found.values():
        for need in node.needs:
            if need not in found:
                _refuse_node(path, node, f"depends on node {need}, which is not there")
    return found


def _join_nodes(
    traces: Sequence[Mapping[int, TraceNode]], paths: Sequence[Path]
) -> dict[_RankNode, tuple[_RankNode, ...]]:
    """Return of each node those that are one call or message together, itself included."""
    of_group: dict[str, list[list[_RankNode]]] = defaultdict(list)
    waiting: dict[tuple[int, int, int], list[_RankNode]] = defaultdict(list)
    for rank, trace in enumerate(traces):
        mine: dict[str, list[_RankNode]] = defaultdict(list)
        for node in trace.values():
            if node.kind == "collective":
                mine[node.group].append(_RankNode(rank, node.number))
            elif node.kind in ("send", "recv"):
                if not 0 <= node.peer < len(traces) or node.peer == rank:
                    _refuse_node(
                        paths[rank], node, f"there is no other rank {node.peer}; traces are of 0..{len(traces) - 1}"
                    )
                if node.kind == "recv":
                    waiting[node.peer, rank, node.tag].append(_RankNode(rank, node.number))
        for name, own in mine.items():
            of_group[name].append(own)
    found: dict[_RankNode, tuple[_RankNode, ...]] = {}
    for by_rank in of_group.values():
        few, many = min(by_rank, key=len), max(by_rank, key=len)
        if len(few) < len(many):
            at = many[len(few)]
            node = traces[at.rank][at.number]
            what = f"is call {len(few) + 1} of group {node.group!r}, of which rank {few[0].rank} has {len(few)}"
            _refuse_node(paths[at.rank], node, what)
        for members in zip(*by_rank, strict=True):
            found |= dict.fromkeys(members, members)
    for rank, trace in enumerate(traces):
        for node in trace.values():
            if node.kind == "send":
                partners = waiting[rank, node.peer, node.tag]
                if not partners:
                    _refuse_node(
                        paths[rank], node, f"rank {node.peer} has no receive for this message of tag {node.tag}"
                    )
                pair = (_RankNode(rank, node.number), partners.pop(0))
                found |= dict.fromkeys(pair, pair)
    for left in waiting.values():
        for at in left:
            node = traces[at.rank][at.number]
            _refuse_node(paths[at.rank], node, f"rank {node.peer} has no send for this message of tag {node.tag}")
    return found


def _trace_calls(
    traces: Sequence[Mapping[int, TraceNode]], paths: Sequence[Path], joint: Mapping[_RankNode, tuple[_RankNode, ...]]
) -> tuple[dict[str, Groups], dict[tuple[_RankNode, ...], CollectiveCall]]:
    """Return the groups, and the call of the nodes that are one together."""
    layout: dict[str, Groups] = {}
    what: dict[tuple[_RankNode, ...], CollectiveCall] = {}
    for members in dict.fromkeys(joint.values()):
        own = [traces[at.rank][at.number] for at in members]
        first, ranks = own[0], tuple(at.rank for at in members)
        if len(ranks) == 1:
            # There is nobody to send to.
            continue
        if first.kind == "collective":
            if first.collective not in _OPERATIONS:
                known = ", ".join(_OPERATIONS)
                _refuse_node(
                    paths[ranks[0]], first, f"is a collective of kind {first.collective or 'unknown'}; allowed: {known}"
                )
            operation, group = _OPERATIONS[first.collective], f"group {first.group or 'of all'}"
        else:
            operation, group = "broadcast", f"rank {ranks[0]} to {ranks[1]}"
        for at, one in zip(members, own, strict=True):
            if one.nbytes < 0:
                _refuse_node(paths[at.rank], one, "needs a comm_size >= 0")
            if (one.collective, one.nbytes) != (first.collective, first.nbytes):
                told, other = (f"{its.collective or 'a message'} of {its.nbytes} bytes" for its in (one, first))
                _refuse_node(paths[at.rank], one, f"is {told}, which is {other} at rank {ranks[0]}")
        layout[group] = (ranks,)
        given = first.nbytes
        had = given * len(ranks) if operation == "all_gather" else given
        had = -(-given // len(ranks)) if operation == "reduce_scatter" else had
        what[members] = CollectiveCall(operation, first.name, group, len(ranks), given, had, "uint8", "forward", 0, 0)
    return layout, what


def _topological_order(
    traces: Sequence[Mapping[int, TraceNode]], paths: Sequence[Path], joint: Mapping[_RankNode, tuple[_RankNode, ...]]
) -> tuple[list[tuple[_RankNode, ...]], dict[tuple[_RankNode, ...], set[tuple[_RankNode, ...]]]]:
    """Return all nodes, those that are one together once, behind what they wait for, and what each waits for."""
    place = {
        _RankNode(rank, number): position for rank, trace in enumerate(traces) for position, number in enumerate(trace)
    }
    of = {at: joint.get(at, (at,)) for at in place}
    after: dict[tuple[_RankNode, ...], set[tuple[_RankNode, ...]]] = {members: set() for members in of.values()}
    behind: dict[tuple[_RankNode, ...], list[tuple[_RankNode, ...]]] = defaultdict(list)
    for at, members in of.items():
        after[members] |= {of[_RankNode(at.rank, need)] for need in traces[at.rank][at.number].needs}
    last: dict[object, tuple[_RankNode, ...]] = {}
    # Calls of a group, and messages between two ranks, keep their order.
    waits = {members: set(before) for members, before in after.items()}
    for members in after:
        if len(members) > 1 or members[0] in joint:
            node = traces[members[0].rank][members[0].number]
            queue = node.group if node.kind == "collective" else tuple(at.rank for at in members)
            if queue in last:
                waits[members].add(last[queue])
            last[queue] = members
    missing = {members: len(before) for members, before in waits.items()}
    for members, before in waits.items():
        for one in before:
            behind[one].append(members)
    ripe = [(max(place[at] for at in members), members) for members, count in missing.items() if not count]
    heapq.heapify(ripe)
    order = []
    while ripe:
        _, members = heapq.heappop(ripe)
        order.append(members)
        for later in behind[members]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ripe, (max(place[at] for at in later), later))
    if len(order) < len(after):
        at = min(at for members, count in missing.items() if count for at in members)
        _refuse_node(
            paths[at.rank], traces[at.rank][at.number], "waits for itself, through other nodes or calls of its group"
        )
    return order, after
