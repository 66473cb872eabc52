"""Conversion of dependency graphs of sends, receives and computation, read from files, to schedules in rounds.

Operations of a rank wait for the completion or the start of others. A send completes when it has left its rank, whether
or not its receive is posted; a rendezvous, a message above the eager limit of a stack, starts when both are. A receive
completes when its message has arrived and what it waits for is completed. The level of an operation is the length of
the longest chain of messages of its rank before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from simnet.base import units
from simnet.base.errors import InputError
from simnet.base.quantities import Seconds, Size, bounds_error
from simnet.interchange.rank_operations import RankWork, RoundMessages, assemble_schedule
from simnet.schedule import Schedule


@dataclass(eq=False)
class Operation:
    """A send, receive or computation of a rank; `place` and `line` locate it in its file."""

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
    # Set by `set_levels`: the level, and whether a message starts only when its receive is posted.
    level: int = 0
    rendezvous: bool = False
    place: str = "line"

    @property
    def is_message(self) -> bool:
        """Whether the operation is a send or a receive."""
        return self.kind != "calc"

    @property
    def post(self) -> Operation | tuple[Operation]:
        """The node for the operation's start in the dependency graph; only rendezvous sends have a separate one."""
        return (self,) if self.kind == "send" and self.rendezvous else self

    def __str__(self) -> str:
        return f"{self.label or self.kind} ({self.place} {self.line})"


@dataclass
class RankOperations:
    """The operations of each rank in a file. A message over `eager_limit` bytes waits until its receive is posted."""

    name: str
    n_ranks: int
    ranks: dict[int, list[Operation]]
    eager_limit: float = math.inf

    def refuse(self, line: int, message: str) -> NoReturn:
        """Raise InputError with `message`, the file's name and the line number `line`."""
        raise InputError(message, file=self.name, line=line)

    def refuse_at(self, op: Operation, message: str) -> NoReturn:
        """Raise InputError with `message` and the position of an operation in its file."""
        if op.place == "line":
            self.refuse(op.line, message)
        raise InputError(message, file=f"{self.name}.{op.rank}.et", field=f"{op.place} {op.line}")


# The round of each operation.
Placed = dict[Operation, int]
T = TypeVar("T")

# Reasons for the order of rounds. Where ranks would wait in a circle, the last ones are given up first: dependencies,
# messages that arrive no earlier than they are received, and operations of a rank at one level in one round.
_NEEDED, _RECEIVED, _LEVEL = range(3)
_MOST_NAMED = 12
_STARTED, _COMPLETED, _ARRIVED = range(3)


class _Order(NamedTuple):
    """A constraint on rounds: operation `behind` is at least `apart` rounds later than operation `before`."""

    before: object
    behind: object
    apart: int
    reason: int


def rounds_of_program(file: RankOperations, strict: bool, per_second: float) -> Schedule:
    """Return the operations of a file as a schedule; `per_second` is the number of units of work in a second.

    With `strict`, InputError if an operation waits for less than rounds would make it wait for.
    """
    for ops in file.ranks.values():
        for op in ops:
            if op.is_message and (op.peer == op.rank or not 0 <= op.peer < file.n_ranks):
                file.refuse_at(op, f"there is no other rank {op.peer}; traces are of ranks 0..{file.n_ranks - 1}")
    sends = match_messages(file)
    for ops in file.ranks.values():
        set_levels(file, ops)
    placed, posted = place_operations(file, sends)
    if strict:
        _Dependencies(file, placed, posted).check(file, sends)
    return build_schedule(file, sends.values(), placed, per_second)


def match_messages(file: RankOperations) -> dict[Operation, Operation]:
    """Match receives to sends; return a dict from receive to send, in order of sends. InputError without a match."""
    ops = [op for one in file.ranks.values() for op in one]
    sends = (((op.rank, op.peer, op.tag), op) for op in ops if op.kind == "send")
    receives = (((op.peer, op.rank, op.tag), op) for op in ops if op.kind == "recv")
    pairs, unreceived, unsent = match_in_order(sends, receives)
    for op in (*unreceived, *unsent):
        other = "recv" if op.kind == "send" else "send"
        file.refuse_at(op, f"rank {op.peer} has no {other} for this {op.kind} of rank {op.rank} with tag {op.tag}")
    for recv, send in pairs.items():
        if recv.size != send.size:
            file.refuse_at(recv, f"receives {recv.size} bytes, but {send.place} {send.line} sends {send.size}")
    return pairs


def match_in_order(
    sends: Iterable[tuple[object, T]], receives: Iterable[tuple[object, T]]
) -> tuple[dict[T, T], list[T], list[T]]:
    """Return a dict from receive to send, paired in order on each connection, and unpaired sends and receives."""
    waiting: dict[object, deque[T]] = defaultdict(deque)
    for connection, one in receives:
        waiting[connection].append(one)
    pairs: dict[T, T] = {}
    unreceived = []
    for connection, one in sends:
        if waiting[connection]:
            pairs[waiting[connection].popleft()] = one
        else:
            unreceived.append(one)
    return pairs, unreceived, [one for left in waiting.values() for one in left]


def set_levels(file: RankOperations, ops: list[Operation]) -> None:
    """Sort a rank's operations by dependency; set `level`, the most messages in any chain of operations before."""
    try:
        order = list(TopologicalSorter({op: op.requires + op.starts_after for op in ops}).static_order())
    except CycleError as error:
        cycle: list[Operation] = error.args[1]
        file.refuse_at(cycle[0], f"operations wait for each other in a circle: {', '.join(map(str, cycle[:6]))}")
    for op in order:
        op.rendezvous = op.is_message and op.size > file.eager_limit
        done = [before.level + before.is_message for before in op.requires]
        op.level = max(done + [before.level for before in op.starts_after], default=0)
    ops[:] = order


def place_operations(file: RankOperations, sends: dict[Operation, Operation]) -> tuple[Placed, Placed]:
    """Return for each operation the earliest round in which it can run, and the round in which its rank posts it.

    InputError if ranks wait for each other in a circle.
    """
    import networkx as nx

    orders = list(_orders(file, sends))
    part: dict[object, int] = {}
    for reason in (_LEVEL, _RECEIVED, _NEEDED):
        graph = nx.DiGraph((one.before, one.behind) for one in orders)
        graph.add_nodes_from(sends.values())
        parts = enumerate(nx.strongly_connected_components(graph))
        part = {node: number for number, nodes in parts for node in nodes}
        circles = {part[one.before] for one in orders if one.apart and part[one.before] == part[one.behind]}
        if not circles:
            break
        within = {one for one in orders if part[one.before] == part[one.behind] and part[one.before] in circles}
        if reason == _NEEDED:
            _refuse_deadlock(file, [one for one in orders if one in within], sends)
        orders = [one for one in orders if one.reason != reason or one not in within]
    apart: dict[int, dict[int, int]] = {number: {} for number in part.values()}
    for one in orders:
        if (before := part[one.before]) != (behind := part[one.behind]):
            apart[behind][before] = max(apart[behind].get(before, 0), one.apart)
    rounds: dict[int, int] = {-1: 0}
    for node in TopologicalSorter(apart).static_order():
        rounds[node] = max((rounds[before] + least for before, least in apart[node].items()), default=0)
    placed = {op: rounds[part[send]] for recv, send in sends.items() for op in (send, recv)}
    posted = dict(placed)
    for ops in file.ranks.values():
        first: dict[int, int] = {}
        for op in ops:
            if op.is_message:
                first[op.level] = min(placed[op], first.get(op.level, placed[op]))
        for op in ops:
            if op.kind != "send":
                posted[op] = max(rounds[part.get(op, -1)], first.get(op.level, 0), placed.get(op, 0))
                placed.setdefault(op, posted[op])
    return placed, posted


def _orders(file: RankOperations, sends: dict[Operation, Operation]) -> Iterator[_Order]:
    """Yield the constraints on operations' rounds: from their dependencies, and from their levels (`set_levels`)."""
    for ops in file.ranks.values():
        for op in ops:
            for before in op.requires:
                yield _Order(sends.get(before, before), op.post, int(before.is_message), _NEEDED)
            started = op.starts_after + [before for before in op.requires if before.kind == "recv"]
            yield from (_Order(before.post, op.post, 0, _NEEDED) for before in started)
    levels = {(op.rank, op.level, op.kind) for pair in sends.items() for op in pair}
    for recv, send in sends.items():
        if recv.rendezvous:
            yield from (_Order(op.post, send, 0, _NEEDED) for op in (send, recv))
        else:
            for before in recv.requires + recv.starts_after:
                apart = int(before.kind == "recv" and before in recv.requires)
                yield _Order(sends.get(before, before), send, apart, _RECEIVED)
        for op in (send, recv):
            yield _Order(send, (op.rank, op.level, op.kind), 0, _LEVEL)
            # An eager message may arrive while its rank still sends what the receive waits for.
            eager = op is recv and not op.rendezvous
            below = op.level - 1
            for level, kind, apart in ((op.level, "send", 0), (below, "send", not eager), (below, "recv", 1)):
                if (op.rank, level, kind) in levels:
                    yield _Order((op.rank, level, kind), send, int(apart), _LEVEL)


def _refuse_deadlock(file: RankOperations, orders: list[_Order], sends: dict[Operation, Operation]) -> NoReturn:
    """Raise InputError that names operations which wait for each other in a circle, found in `orders`."""
    import networkx as nx

    start = next(one for one in orders if one.apart)
    circle: list[Any] = nx.shortest_path(
        nx.DiGraph((one.before, one.behind) for one in orders), start.behind, start.before
    )
    named: list[Operation] = []
    for node, before in pairwise([circle[0], *reversed(circle)]):
        op: Operation = node[0] if isinstance(node, tuple) else node
        if op not in named:
            named += [op, *(one for one in op.requires if sends.get(one) is before)]
    names = ", ".join(f"{op} of rank {op.rank}" for op in named[:_MOST_NAMED])
    more = f", and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    waits = any(op.rendezvous and op.kind == "send" for op in named)
    least = units.format_bytes(file.eager_limit) if waits else ""
    why = f"; on this stack a send of more than {least} waits for its receive" if waits else ""
    file.refuse_at(named[0], f"deadlock, ranks wait for each other in a circle: {names}{more}{why}")


class _Dependencies:
    """Compares the dependencies of operations in a file with the dependencies that execution in rounds adds."""

    # Sends of a rank leave one after another, in the order in which they may start, and arrive so at a peer.
    def __init__(self, file: RankOperations, placed: Placed, posted: Placed) -> None:
        self._placed, self._posted = placed, posted
        # What happens in turn without being required.
        self._implied: dict[Operation, list[Operation]] = {}
        self._events: dict[int, tuple[list[Operation], list[int], list[int]]] = {}
        self._works: dict[tuple[int, int], list[Operation]] = defaultdict(list)
        self._known: dict[tuple[object, ...], tuple[list[Operation], list[Operation]]] = {}
        for rank, ops in file.ranks.items():
            events = sorted((op for op in ops if op.is_message or op.size), key=placed.__getitem__)
            sending = sorted({placed[op] for op in events if op.kind == "send"})
            self._events[rank] = events, [placed[op] for op in events], sending
            for op in ops:
                if op.kind == "calc" and op.size:
                    self._works[rank, op.level].append(op)

    def check(self, file: RankOperations, sends: dict[Operation, Operation]) -> None:
        """Raise InputError if execution in rounds would add dependencies between operations."""
        received = {send: recv for recv, send in sends.items()}
        last: dict[tuple[int, int], Operation] = {}
        for op in sorted(self._placed, key=self._placed.__getitem__):
            needs = (*op.requires,), (*op.starts_after,)
            key = (op.rank, op.kind, op.level, op.cpu, self._placed[op], *needs)
            if key not in self._known:
                self._known[key] = self._compare(op)
            added, turns = self._known[key]
            if added:
                why = "which rounds would make it wait for; --loose accepts that, as an upper bound"
                file.refuse_at(op, f"does not wait for {min(added, key=lambda one: one.line)}, {why}")
            if op.kind == "send":
                self._implied[op] = turns
                before = last.setdefault((op.rank, op.peer), op)
                if self._placed[before] < self._placed[op]:
                    self._implied[received[op]] = [received[before]]
                    last[op.rank, op.peer] = op

    def _compare(self, op: Operation) -> tuple[list[Operation], list[Operation]]:
        """Return the operations that `op` awaits only because of rounds, and those sends that precede `op` anyway."""
        placed, works, (events, rounds, sending) = self._placed, self._works[op.rank, op.level], self._events[op.rank]
        if op.kind == "calc" and not op.size:
            return [], []
        if op.kind == "recv":
            done = self._completed(op, min((self._posted[one] for one in works), default=0) - 1) if works else set()
            return [one for one in works if one not in done], []
        at = bisect_left(sending, placed[op])
        # All before the last round with sends has been compared with these.
        before, since = [-1, -1, *sending][at : at + 2]
        near = events[bisect_left(rounds, since) : bisect_right(rounds, placed[op])]
        wanted = [one for one in near if one.is_message and placed[one] < placed[op]]
        if op.kind == "send":
            wanted += [one for one in near if not one.is_message and placed[one] > since]
        else:
            wanted += [one for one in works[: works.index(op)] if one.cpu != op.cpu]
        done = self._completed(op, before)
        missing = [one for one in wanted if one not in done]
        turns = [one for one in missing if one.kind == "send" and done.issuperset(one.requires + one.starts_after)]
        turns = turns if op.kind == "send" else []
        return [one for one in missing if one not in turns], turns

    def _completed(self, op: Operation, since: int) -> set[Operation]:
        """Return operations that must complete before `op`; search no further back than those of round `since`."""
        found: set[Operation] = set()
        # An operation, and what is known of it: that it has started, that it is completed, that its message is there.
        seen, left = {(op, _STARTED)}, [(op, _STARTED)]
        while left:
            one, is_known = left.pop()
            turns = [] if is_known == _STARTED else self._implied.get(one, [])
            behind = [(before, _ARRIVED if one.kind == "recv" else _COMPLETED) for before in turns]
            if is_known != _ARRIVED:
                behind += [(before, _COMPLETED) for before in one.requires]
                behind += [(before, _STARTED) for before in one.starts_after]
            for known in behind:
                if known[1] != _STARTED:
                    found.add(known[0])
                if known not in seen and self._posted[known[0]] > since:
                    seen.add(known)
                    left.append(known)
        return found


def build_schedule(file: RankOperations, sends: Collection[Operation], placed: Placed, per_second: float) -> Schedule:
    """Return the schedule of operations in their rounds; `per_second` is the number of units of work in a second."""
    for send in sends:
        if wrong := bounds_error(send.size, Size):
            file.refuse_at(send, f"the bytes of a message {wrong}")
    rows = [(placed[one], one.rank, one.peer, one.size) for one in sorted(sends, key=placed.__getitem__)]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4)
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
