"""Binary GOAL, what LogGOPSim runs: read as rounds, and written without its ``txt2bin``.

All numbers are little-endian. The file begins with a number that marks it (8 bytes), how many ranks there are (4) and
the highest cpu and card in use (1 each). A table says where each rank begins and ends, counted from behind the mark (8
bytes each). A rank has the number of its operations and of those that wait for nothing (4 each), the places of the
latter (4 each), a record per operation, and the places of operations that wait for others: first those that wait for
the end of an operation, then those that wait for its start, one operation after another (4 each).

References
----------
``Parser.hpp`` and ``Goal.hpp`` of LogGOPSim; T. Hoefler, T. Schneider, A. Lumsdaine, "LogGOPSim: Simulating Large-Scale
Applications in the LogGOPS Model", HPDC 2010.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Ranks
from simnet.base.checks import positive
from simnet.base.errors import InputError
from simnet.base.reading import reading
from simnet.base.writing import explained
from simnet.interchange.goal import MAX_BYTES, MAX_RANKS
from simnet.interchange.operations import read_rounds
from simnet.interchange.told_rounds import CALC, Operations, operations_of, work_before
from simnet.schedule import Schedule

MARK = (4223).to_bytes(8, "little")
"""How a file begins."""

SPENT = (2342).to_bytes(8, "little")
"""How one begins that a simulation has used as its memory."""

_HEAD = np.dtype([("ranks", "<u4"), ("cpu", "u1"), ("nic", "u1")])
_NODE = np.dtype(
    [
        ("needs", "<u4"),
        ("kind", "u1"),
        ("peer", "<u4"),
        ("size", "<u8"),
        ("tag", "<u4"),
        ("cpu", "u1"),
        ("nic", "u1"),
        ("ends", "<u4"),
        ("first_end", "<u4"),
        ("starts", "<u4"),
        ("first_start", "<u4"),
    ]
)
_ANY = 2**32 - 1


def write_goal_binary(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule as binary GOAL: the operations of `simnet.interchange.write_goal`, in their order.

    LogGOPSim does not look at the tag of a ``calc``; here it tells the round.

    Parameters
    ----------
    schedule : Schedule
        What is sent.
    path : str or Path
        The file.

    Raises
    ------
    InputError
        If it cannot be written.
    ValueError
        If there are 2**32 - 1 messages or rounds, a message has 1e18 bytes, or a rank works for 1e9 seconds.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from simnet.collectives import allreduce_ring
    >>> ring = allreduce_ring(4, 1 << 20).in_phase("")
    >>> with TemporaryDirectory() as folder:
    ...     write_goal_binary(ring, Path(folder, "ring.bin"))
    ...     read_goal_binary(Path(folder, "ring.bin")) == ring
    True
    """
    if max(schedule.n_messages, len(schedule.rounds)) >= _ANY:
        raise ValueError(f"binary GOAL has tags below {_ANY:,} for messages and rounds")
    P = schedule.n_ranks
    sizes = np.full(P, 8, dtype=np.int64)
    with explained(Path(path), advice=""), Path(path).open("wb") as out:
        head = np.array([(P, 0, 0)], dtype=_HEAD).tobytes()
        out.write(MARK + head + bytes(16 * P))
        written = 0
        for ops in operations_of(schedule, 1e9, every_round=True):
            ranks, firsts = np.unique(ops.rank, return_index=True)
            edges = np.searchsorted(ops.waiting, np.append(firsts, len(ops.rank)))
            bounds = [*firsts.tolist(), len(ops.rank)]
            for number, rank in enumerate(ranks.tolist()):
                # Ranks that do nothing have two zeros.
                out.write(bytes(8 * (rank - written)))
                own, of = slice(*bounds[number : number + 2]), slice(*edges[number : number + 2])
                content = _rank(ops, own, ops.waiting[of] - own.start, ops.before[of] - own.start)
                sizes[rank], written = len(content), rank + 1
                out.write(content)
        out.write(bytes(8 * (P - written)))
        begin = len(head) + 16 * P
        ends = begin + np.cumsum(sizes)
        out.seek(len(MARK) + len(head))
        out.write(np.stack([ends - sizes, ends], axis=1).astype("<u8").tobytes())


def _rank(ops: Operations, own: slice, waiting: Ranks, before: Ranks) -> bytes:
    """Return what the file says of a rank."""
    count = own.stop - own.start
    nodes = np.zeros(count, dtype=_NODE)
    nodes["needs"] = np.bincount(waiting, minlength=count)
    nodes["kind"], nodes["peer"], nodes["size"] = ops.kind[own] + 1, ops.peer[own], ops.size[own]
    nodes["tag"] = np.where(ops.kind[own] == CALC, ops.hint[own], ops.tag[own])
    nodes["ends"] = np.bincount(before, minlength=count)
    upto = np.cumsum(nodes["ends"], dtype=np.int64)
    nodes["first_end"], nodes["first_start"] = upto - nodes["ends"], upto
    roots = np.flatnonzero(nodes["needs"] == 0)
    places = waiting[np.argsort(before, kind="stable")]
    numbers = (np.array([count, len(roots)]), roots, places)
    first, second, last = (one.astype("<u4").tobytes() for one in numbers)
    return first + second + nodes.tobytes() + last


def read_goal_binary(
    path: str | Path, *, strict: bool = True, nanoseconds_per_calc: float = 1.0, largest: int = MAX_BYTES
) -> Schedule:
    """Read binary GOAL.

    Files of `write_goal_binary` come back as they were, as those of `simnet.interchange.write_goal` do; files of
    ``txt2bin`` have no labels, so that their rounds are found out, as `simnet.interchange.read_goal` does.

    Parameters
    ----------
    path : str or Path
        The file, of at most `simnet.interchange.goal.MAX_RANKS` ranks, one after another as ``txt2bin`` writes them.
    strict, nanoseconds_per_calc, largest
        As for `simnet.interchange.read_goal`.

    Raises
    ------
    InputError
        If the file cannot be read or is not binary GOAL, or as `simnet.interchange.read_goal` does. With rank and
        operation, from 0.
    """
    per_second = 1e9 / positive(nanoseconds_per_calc, "nanoseconds_per_calc")
    return read_rounds(_GoalBinary(Path(path), largest), strict, per_second, "operation")


class _GoalBinary:
    """A binary GOAL file, read a rank at a time."""

    def __init__(self, path: Path, largest: int) -> None:
        self.path, self.name, self.largest, self.n_ranks = path, str(path), largest, 0

    def blocks(self) -> Iterator[Operations]:
        """Read the file, from its beginning."""
        with reading(self.path, self.largest, unpack=False) as more:
            mark = more(len(MARK))
            if mark == SPENT:
                raise InputError("was used up by a simulation with --save-mem; make it again", file=self.name)
            if mark != MARK:
                raise InputError("is not binary GOAL: it begins otherwise", file=self.name)
            self.n_ranks = int(self._numbers(more, 1, _HEAD)["ranks"][0])
            if not 1 <= self.n_ranks <= MAX_RANKS:
                raise InputError(f"must have 1..{MAX_RANKS:,} ranks, got {self.n_ranks:,}", file=self.name)
            bounds = self._numbers(more, 2 * self.n_ranks, np.dtype("<u8"))
            begins, ends = bounds[0::2], bounds[1::2]
            expected = np.append(np.uint64(_HEAD.itemsize + 16 * self.n_ranks), ends[:-1])
            if (begins != expected).any() or (ends < begins).any():
                rank = int(np.argmax((begins != expected) | (ends < begins)))
                self._refuse(rank, "does not lie behind the rank before, as txt2bin writes it")
            if int(ends[-1]) > self.largest:
                self._refuse(self.n_ranks - 1, f"ends behind {self.largest:,} bytes, the most that are read")
            for rank, length in enumerate((ends - begins).tolist()):
                content = more(length)
                if len(content) < length:
                    self._refuse(rank, "ends behind the end of the file")
                if content != bytes(8):
                    yield self._rank(rank, content)

    def _rank(self, rank: int, content: bytes) -> Operations:
        words = np.frombuffer(content[: len(content) // 4 * 4], dtype="<u4")
        count, free = (int(one) for one in words[:2]) if len(words) > 1 else (0, len(content))
        at = 8 + 4 * free
        behind = at + count * _NODE.itemsize
        if behind > len(content) or (len(content) - behind) % 4:
            self._refuse(rank, f"has no room for its {count:,} operations")
        nodes = np.frombuffer(content, dtype=_NODE, count=count, offset=at)
        places = np.frombuffer(content, dtype="<u4", offset=behind).astype(np.int64)
        kind = nodes["kind"].astype(np.int64) - 1
        peer, tag, size = (nodes[name].astype(np.int64) for name in ("peer", "tag", "size"))
        message = kind != CALC
        self._check(rank, (kind < 0) | (kind > CALC), "is neither send nor recv nor calc")
        self._check(rank, size < 0, "has a size of 2**63 or more")
        for values, what in ((peer, "source"), (tag, "tag")):
            open_ = message & (values == _ANY)
            self._check(rank, open_, f"must name its {what}: which message comes first would depend on the network")
        edges = []
        for number, first in (("ends", "first_end"), ("starts", "first_start")):
            many, start = nodes[number].astype(np.int64), nodes[first].astype(np.int64)
            self._check(rank, (many > 0) & (start + many > len(places)), "has dependents where there are none")
            if many.sum() > len(places):
                self._refuse(rank, "has more dependents than it has room for")
            before = np.repeat(np.arange(count), many)
            edges.append((places[np.arange(len(before)) - np.repeat(np.cumsum(many) - many - start, many)], before))
        waiting, before = (np.concatenate(columns) for columns in zip(*edges, strict=True))
        if (waiting >= count).any():
            self._refuse(rank, f"has a dependent {int(waiting.max()):,}, but operations are 0..{count - 1:,}")
        self._check(rank, np.bincount(waiting, minlength=count) != nodes["needs"], "waits for another number of others")
        if not np.array_equal(np.sort(words[2 : 2 + free]), np.flatnonzero(nodes["needs"] == 0)):
            self._refuse(rank, "begins with other operations than those that wait for nothing")
        same = np.zeros_like(kind)
        return Operations(
            *(same + rank, np.arange(count), kind, size, peer, tag, np.where(message, 0, nodes["cpu"])),
            hint=work_before(same, kind, tag, same == 0),
            waiting=waiting,
            before=before,
            at_start=np.repeat([False, True], [len(one) for one, _ in edges]),
            label=lambda _: "",
        )

    def _numbers(self, more: Callable[[int], bytes], count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        content = more(count * dtype.itemsize)
        if len(content) < count * dtype.itemsize:
            raise InputError("ends before its ranks", file=self.name)
        return np.frombuffer(content, dtype=dtype)

    def _check(self, rank: int, wrong: NDArray[np.bool_], message: str) -> None:
        if wrong.any():
            raise InputError(message, file=self.name, field=f"rank {rank}, operation {int(np.argmax(wrong))}")

    def _refuse(self, rank: int, message: str) -> NoReturn:
        raise InputError(message, file=self.name, field=f"rank {rank}")
