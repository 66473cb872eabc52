"""Training steps read from Chakra execution traces: compute, messages, collectives and their dependencies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.collectives.registry import Operation
from simnet.interchange.chakra import MAX_BYTES, TraceNode, read_traces
from simnet.interchange.operations import match_in_order
from simnet.training.parallel.graph import COMPUTE, CollectiveCall, ComputePart, Groups, HeldMemory, StepGraph, StepNode

if TYPE_CHECKING:
    import networkx as nx

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
    """Key of a node in the traces: its rank, and its number in the trace of that rank."""

    rank: int
    number: int


# Trace nodes of several ranks that form one call or message, or a single node.
_Members: TypeAlias = tuple[_RankNode, ...]


@dataclass(frozen=True, repr=False)
class TracedStep:
    """Training step read from execution traces: task graph, compute seconds of each node and rank, and notes."""

    graph: StepGraph
    traced: Floats
    notes: tuple[str, ...] = ()

    def seconds(self, factor: ArrayLike = 1.0) -> Floats:
        """Return the compute seconds of each node, shape (nodes, P), times a factor per rank."""
        return np.asarray(self.traced * np.asarray(factor))


class _Traces(dict[_RankNode, TraceNode]):
    """Trace nodes of all ranks in file order, and the paths of the files for error messages."""

    def __init__(self, prefix: str | Path, largest: int) -> None:
        super().__init__()
        self.notes: list[str] = []
        traces = read_traces(prefix, largest, self.notes)
        self.paths = [path for path, _ in traces]
        for rank, (_, nodes) in enumerate(traces):
            self.update((_RankNode(rank, number), node) for number, node in nodes.items())

    def of_kinds(self, *kinds: str) -> Iterator[_RankNode]:
        """Yield the keys of all nodes of the given kinds."""
        return (at for at, one in self.items() if one.kind in kinds)

    def refuse(self, at: _RankNode, why: str) -> NoReturn:
        """Raise InputError with the file and the number of a trace node, and the reason `why`."""
        raise InputError(why, file=str(self.paths[at.rank]), field=f"node {at.number}")


def read_traced_step(prefix: str | Path, *, largest: int = MAX_BYTES, eager_limit: float = math.inf) -> TracedStep:
    """Read the step in Chakra execution traces ``PREFIX.0.et``, ``PREFIX.1.et`` and so on, one file per rank.

    The k-th collective of a rank group is one call. Calls of a group keep their order, as do messages between two
    ranks; those of more than `eager_limit` bytes wait for their receives, others only for what their send waits for.
    All other nodes with a duration are compute. Raises InputError for an invalid trace, or if ranks disagree or wait
    for each other in a circle.
    """
    traces = _Traces(prefix, largest)
    joint = _joint_calls(traces) | _joint_messages(traces)
    layout, calls = _trace_calls(traces, dict.fromkeys(joint.values()))
    waits, order = _topological_order(traces, joint, eager_limit)
    numbers = {members: number for number, members in enumerate(order)}
    nodes: list[StepNode] = []
    seconds = np.zeros((len(order), len(traces.paths)))
    for number, members in enumerate(order):
        ranks = tuple(sorted(at.rank for at in members))
        before = tuple(sorted(numbers[one] for one in waits[members]))
        if (call := calls.get(members)) is not None:
            nodes.append(StepNode(call, call.group, before, ranks))
            continue
        one = traces[members[0]]
        micros = one.micros if one.kind == "other" else 0
        seconds[number, ranks[0]] = micros * 1e-6
        nodes.append(StepNode(ComputePart(one.name, "forward", 0, micros), COMPUTE, before, ranks))
    graph = StepGraph(tuple(nodes), len(traces.paths), 1, HeldMemory(0, 0, 0), layout=layout)
    return TracedStep(graph, seconds, tuple(traces.notes))


def _joint_calls(traces: _Traces) -> dict[_RankNode, _Members]:
    """Match the collective calls of each group across ranks; return, for each node, all nodes of its call."""
    groups: dict[str, dict[int, list[_RankNode]]] = defaultdict(lambda: defaultdict(list))
    for at in traces.of_kinds("collective"):
        groups[traces[at].group][at.rank].append(at)
    found: dict[_RankNode, _Members] = {}
    for name, by_rank in groups.items():
        few, many = min(by_rank.values(), key=len), max(by_rank.values(), key=len)
        if len(few) < len(many):
            why = f"is call {len(few) + 1} of group {name!r}, of which rank {few[0].rank} has {len(few)}"
            traces.refuse(many[len(few)], why)
        for members in zip(*by_rank.values(), strict=True):
            found |= dict.fromkeys(members, members)
    return found


def _joint_messages(traces: _Traces) -> dict[_RankNode, _Members]:
    """Match sends with receives; return the (send, receive) pair of each of these nodes."""
    last = len(traces.paths) - 1
    for at in traces.of_kinds("send", "recv"):
        if not 0 <= traces[at].peer <= last or traces[at].peer == at.rank:
            traces.refuse(at, f"there is no other rank {traces[at].peer}; traces are of 0..{last}")
    sends = (((at.rank, traces[at].peer, traces[at].tag), at) for at in traces.of_kinds("send"))
    receives = (((traces[at].peer, at.rank, traces[at].tag), at) for at in traces.of_kinds("recv"))
    pairs, unreceived, unsent = match_in_order(sends, receives)
    for at, other in [*((at, "receive") for at in unreceived), *((at, "send") for at in unsent)]:
        traces.refuse(at, f"rank {traces[at].peer} has no {other} for this message of tag {traces[at].tag}")
    return {end: (send, receive) for receive, send in pairs.items() for end in (send, receive)}


def _trace_calls(
    traces: _Traces, together: Iterable[_Members]
) -> tuple[dict[str, Groups], dict[_Members, CollectiveCall]]:
    """Return process groups by name, and by trace nodes their collective calls; a message is a broadcast to one."""
    layout: dict[str, Groups] = {}
    calls: dict[_Members, CollectiveCall] = {}
    for members in together:
        first, ranks = traces[members[0]], tuple(at.rank for at in members)
        if len(ranks) == 1:
            # There is nobody to send to.
            continue
        operation: Operation = "broadcast"
        group = f"rank {ranks[0]} to {ranks[1]}"
        if first.kind == "collective":
            if first.collective not in _OPERATIONS:
                allowed = ", ".join(_OPERATIONS)
                traces.refuse(
                    members[0], f"is a collective of kind {first.collective or 'unknown'}; allowed: {allowed}"
                )
            operation, group = _OPERATIONS[first.collective], f"group {first.group or 'of all'}"
        for at in members:
            one = traces[at]
            if one.nbytes < 0:
                traces.refuse(at, "needs a comm_size >= 0")
            if (one.collective, one.nbytes) != (first.collective, first.nbytes):
                own, other = (f"{its.collective or 'a message'} of {its.nbytes} bytes" for its in (one, first))
                traces.refuse(at, f"is {own}, which is {other} at rank {ranks[0]}")
        layout[group] = (ranks,)
        given = first.nbytes
        had = {"all_gather": given * len(ranks), "reduce_scatter": -(-given // len(ranks))}.get(operation, given)
        calls[members] = CollectiveCall(operation, first.name, group, len(ranks), given, had, "uint8", "forward", 0, 0)
    return layout, calls


def _topological_order(
    traces: _Traces, joint: Mapping[_RankNode, _Members], eager_limit: float
) -> tuple[dict[_Members, set[_Members]], list[_Members]]:
    """Return the predecessors of each operation (given as its trace nodes), and the operations in topological order."""
    import networkx as nx

    place = {at: number for number, at in enumerate(traces)}
    members_of = {at: joint.get(at, (at,)) for at in traces}
    waits = _waits(traces, members_of, eager_limit)
    graph: nx.DiGraph[_Members] = nx.DiGraph()
    graph.add_nodes_from(waits)
    graph.add_edges_from((before, members) for members, several in waits.items() for before in several)
    # Calls of a group, and messages between two ranks, keep their order.
    last: dict[object, _Members] = {}
    for members in waits:
        if members[0] in joint:
            node = traces[members[0]]
            queue = node.group if node.kind == "collective" else tuple(at.rank for at in members)
            if queue in last:
                graph.add_edge(last[queue], members)
            last[queue] = members
    first_ready = nx.lexicographical_topological_sort(graph, lambda one: (max(place[at] for at in one), one))
    try:
        return waits, list(first_ready)
    except nx.NetworkXUnfeasible:
        circle = [members for members, _ in reversed(nx.find_cycle(graph))]
        named = ", ".join(" with ".join(f"node {at.number} of rank {at.rank}" for at in one) for one in circle[:8])
        more = f", and {len(circle) - 8} more" if len(circle) > 8 else ""
        traces.refuse(min(circle[0]), f"deadlock, nodes wait for each other in a circle: {named}{more}")


def _waits(
    traces: _Traces, members_of: Mapping[_RankNode, _Members], eager_limit: float
) -> dict[_Members, set[_Members]]:
    """Return for each operation (given as its trace nodes) the operations that must complete before it starts."""
    # What waits for the receive of an eager message waits for the message and for what the receive waits for.
    found: dict[_Members, set[_Members]] = {members: set() for members in members_of.values()}
    completed: dict[_RankNode, set[_Members]] = {}
    needs = {at: [at._replace(number=need) for need in node.needs] for at, node in traces.items()}
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle = ", ".join(f"node {at.number}" for at in error.args[1][:8])
        traces.refuse(error.args[1][0], f"waits for itself: {circle}")
    for at in order:
        own = set().union(*(completed[need] for need in needs[at]))
        is_eager = traces[at].kind == "recv" and traces[at].nbytes <= eager_limit
        completed[at] = {members_of[at]} | (own if is_eager else set())
        if not is_eager:
            found[members_of[at]] |= own
    return found
