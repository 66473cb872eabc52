"""Graphs of sends, receives and work from other tools, converted to rounds.

Operations of a rank wait for the completion or the start of others. The level of an operation is the length of the
longest chain of messages of its rank before it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from simnet.base.errors import InputError
from simnet.base.quantities import Seconds, Size, bounds_error
from simnet.interchange.rank_operations import RankWork, RoundMessages, assemble_schedule
from simnet.schedule import Schedule

if TYPE_CHECKING:
    import networkx as nx


@dataclass(eq=False)
class Operation:
    """A send, receive or computation of a rank; `place` and `line` say where it is in its file."""

    rank: int
    line: int
    kind: str
    label: str
    # Bytes of a message, or work in the unit of the file.
    size: int
    # The other rank of a message, and the tag that matches it.
    peer: int = -1
    tag: int = 0
    # Work on one cpu is done in sequence.
    cpu: int = 0
    # Operations that must be completed, or must have started, before.
    requires: list[Operation] = field(default_factory=list)
    starts_after: list[Operation] = field(default_factory=list)
    # Set by `set_levels`.
    level: int = 0
    place: str = "line"

    @property
    def is_message(self) -> bool:
        """Whether the operation is a send or a receive."""
        return self.kind != "calc"

    def __str__(self) -> str:
        return f"{self.label or self.kind} ({self.place} {self.line})"


@dataclass
class RankOperations:
    """The operations of each rank in a file, with their dependencies."""

    name: str
    n_ranks: int
    ranks: dict[int, list[Operation]]

    def refuse(self, line: int, message: str) -> NoReturn:
        """Raise InputError with `message`, the file's name and the line number `line`."""
        raise InputError(message, file=self.name, line=line)

    def refuse_at(self, op: Operation, message: str) -> NoReturn:
        """Raise InputError with the position of an operation in its file."""
        if op.place == "line":
            self.refuse(op.line, message)
        raise InputError(message, file=f"{self.name}.{op.rank}.et", field=f"{op.place} {op.line}")


# The round of each operation.
Placed = dict[Operation, int]
Pairs = list[tuple[Operation, Operation]]


def rounds_of_program(file: RankOperations, strict: bool, per_second: float) -> Schedule:
    """Return the operations of a file as a schedule; `per_second` converts units of work to seconds.

    With `strict`, InputError if an operation waits for less than rounds would make it wait for.
    """
    for ops in file.ranks.values():
        for op in ops:
            if op.is_message and (op.peer == op.rank or not 0 <= op.peer < file.n_ranks):
                file.refuse_at(op, f"there is no other rank {op.peer}; traces are of ranks 0..{file.n_ranks - 1}")
    messages = match_messages(file)
    for ops in file.ranks.values():
        set_levels(file, ops)
        if strict:
            check_levels(file, ops)
    return build_schedule(file, messages, rounds_of_levels(file, messages), per_second)


def match_messages(file: RankOperations) -> Pairs:
    """Return pairs of a send and its receive, in the order of the sends; InputError if one has no partner."""
    waiting: dict[tuple[int, int, int], deque[Operation]] = defaultdict(deque)
    ops = [op for one in file.ranks.values() for op in one]
    for op in ops:
        if op.kind == "recv":
            waiting[op.peer, op.rank, op.tag].append(op)
    pairs = []
    for op in ops:
        if op.kind == "send":
            partners = waiting[op.rank, op.peer, op.tag]
            if not partners:
                file.refuse_at(op, f"rank {op.peer} has no recv for this send of rank {op.rank} with tag {op.tag}")
            partner = partners.popleft()
            if partner.size != op.size:
                file.refuse_at(partner, f"receives {partner.size} bytes, but {op.place} {op.line} sends {op.size}")
            pairs.append((op, partner))
    for partners in waiting.values():
        for op in partners:
            file.refuse_at(op, f"rank {op.peer} has no send for this recv of rank {op.rank} with tag {op.tag}")
    return pairs


def set_levels(file: RankOperations, ops: list[Operation]) -> None:
    """Set each operation's level, the messages in its longest chain of dependencies, and sort a rank's operations."""
    try:
        order = list(TopologicalSorter({op: op.requires + op.starts_after for op in ops}).static_order())
    except CycleError as error:
        cycle: list[Operation] = error.args[1]
        file.refuse_at(cycle[0], f"operations wait for each other in a circle: {', '.join(map(str, cycle[:6]))}")
    for op in order:
        done = [before.level + before.is_message for before in op.requires]
        op.level = max(done + [before.level for before in op.starts_after], default=0)
    ops[:] = order


def check_levels(file: RankOperations, ops: list[Operation]) -> None:
    """Raise InputError if executing a rank's operations in rounds would add dependencies."""
    sent: dict[int, set[Operation]] = defaultdict(set)
    worked: dict[int, set[Operation]] = defaultdict(set)
    for op in ops:
        if op.is_message:
            sent[op.level].add(op)
        elif op.size:
            worked[op.level].add(op)
    # Dependencies of each operation: messages of the previous level, and work of its own level.
    behind: dict[Operation, set[Operation]] = {}
    for op in ops:
        own = behind[op] = set()
        for before in op.requires + op.starts_after:
            if before.level == op.level:
                own |= behind[before]
        own.update(before for before in op.requires if before.size or before.is_message)
        wanted = sent[op.level - 1]
        if op.is_message:
            wanted = wanted | worked[op.level]
        elif not op.size:
            continue
        own &= sent[op.level - 1] | worked[op.level]
        for other in sorted(wanted - own, key=lambda op: op.line)[:1]:
            file.refuse_at(
                op,
                f"does not wait for {other}, which rounds would make it wait for; strict=False accepts that, as an "
                "upper bound",
            )
    for level, works in worked.items():
        if len({op.cpu for op in works}) > 1:
            ranked = sorted(works, key=lambda op: (len(behind[op] & works), op.line))
            for number, op in enumerate(ranked):
                if len(behind[op] & works) != number:
                    file.refuse_at(op, f"works on another cpu beside {ranked[0]}; rounds have one (level {level})")


def rounds_of_levels(file: RankOperations, messages: Pairs) -> Placed:
    """Return the earliest round of each operation that keeps the order of levels on every rank.

    Sends of a rank at one level are of one round. Receives may come later, as nothing waits for them before the next
    level. The unknowns are the rounds of all (sender, level), with differences of at least 0 or 1 between them.
    """
    import networkx as nx

    graph: nx.DiGraph[tuple[int, int, str]] = nx.DiGraph()
    of_rank: dict[int, dict[int, list[Operation]]] = defaultdict(lambda: defaultdict(list))
    group: dict[Operation, tuple[int, int, str]] = {}
    for send, recv in messages:
        group[send] = group[recv] = (send.rank, send.level, "sends")
        graph.add_node(group[send])
        for op in (send, recv):
            of_rank[op.rank][op.level].append(op)
    for rank, levels in of_rank.items():
        for level, ops in levels.items():
            for node in {group[op] for op in ops}:
                graph.add_edge(node, (rank, level, "done"), apart=0)
                if level:
                    graph.add_edge((rank, level - 1, "done"), node, apart=1)
                if (rank, level, "sends") in graph and node != (rank, level, "sends"):
                    graph.add_edge((rank, level, "sends"), node, apart=0)
    together: nx.DiGraph[Any] = nx.condensation(graph)
    part: dict[tuple[int, int, str], int] = together.graph["mapping"]
    rounds: dict[int, int] = {}
    apart_of: dict[tuple[int, int], int] = {}
    for u, v, apart in graph.edges.data("apart", 0):
        pair = part[u], part[v]
        if apart and pair[0] == pair[1]:
            op = next(op for op in of_rank[v[0]][v[1]] if group[op] == v)
            file.refuse_at(op, "ranks wait for each other in a circle, or would if they waited for whole rounds")
        apart_of[pair] = max(apart_of.get(pair, 0), apart)
    for node in nx.topological_sort(together):
        rounds[node] = max(
            (rounds[before] + apart_of[before, node] for before in together.predecessors(node)), default=0
        )

    placed = {op: rounds[part[node]] for op, node in group.items()}
    for rank, ops in file.ranks.items():
        levels = of_rank.get(rank, {})
        first = {level: min(placed[op] for op in own) for level, own in levels.items()}
        after = {level + 1: max(placed[op] for op in own) + 1 for level, own in levels.items()}
        for op in ops:
            if not op.is_message:
                placed[op] = first.get(op.level, after.get(op.level, 0))
    return placed


def build_schedule(file: RankOperations, messages: Pairs, placed: Placed, per_second: float) -> Schedule:
    """Return the schedule of operations placed in rounds; `per_second` converts units of work to seconds."""
    for send, _ in messages:
        if wrong := bounds_error(send.size, Size):
            file.refuse_at(send, f"the bytes of a message {wrong}")
    sends = sorted((send for send, _ in messages), key=lambda send: placed[send])
    columns = np.array([(placed[one], one.rank, one.peer, one.size) for one in sends], dtype=np.int64).reshape(-1, 4)
    work: dict[tuple[int, int], int] = defaultdict(int)
    for op, index in placed.items():
        if op.kind == "calc" and op.size:
            work[index, op.rank] += op.size
            if wrong := bounds_error(work[index, op.rank] / per_second, Seconds):
                file.refuse_at(op, f"the seconds of work of rank {op.rank} in a round {wrong}")
    rounds = max(placed.values(), default=-1) + 1
    when = np.array(list(work), dtype=np.int64).reshape(-1, 2)
    works = RankWork(when[:, 0], when[:, 1], np.array(list(work.values()), dtype=np.float64))
    return assemble_schedule(file.name, file.n_ranks, rounds, RoundMessages(*columns.T), works, per_second)
