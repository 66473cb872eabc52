"""Conversion from schedules to lists of operations by rank, and from lists of messages by round to schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.base.errors import InputError
from simnet.schedule import Round, Schedule

SEND, RECV, CALC = 0, 1, 2

MAX_COMPUTE = 50_000_000
"""The most compute times, one per rank and round in which ranks differ (400 MB)."""


class RankOperation(NamedTuple):
    """An operation of one rank for an output file. Its kind is `SEND`, `RECV` or `CALC` (computation)."""

    kind: int
    # Bytes of a message or work in the unit of the file, its other rank, its tag, and its round.
    size: int
    peer: int
    tag: int
    round: int
    # Indices of the operations of the rank that it waits for.
    needs: range


class RoundMessages(NamedTuple):
    """Messages as columns, sorted by round: round, source, destination and bytes."""

    round: Ranks
    src: Ranks
    dst: Ranks
    size: Ranks | Floats


class RankWork(NamedTuple):
    """Compute work in columns, at most one row per round and rank; amounts are in the file's unit of work."""

    round: Ranks
    rank: Ranks
    size: Ranks | Floats


_NO_WORK = RankWork(*[np.zeros(0, dtype=np.int64)] * 3)


def operations_of(
    schedule: Schedule, per_second: float, *, every_round: bool, most: int = 10**18 - 1
) -> Iterator[list[RankOperation]]:
    """Yield for each rank of a schedule the list of its operations, in order of execution.

    `per_second` units of work are a second. With `every_round` a rank has a work operation, perhaps of no time, in each
    round with messages of its own: the messages wait for it alone, and it waits for all operations of the round before.
    ValueError: a number exceeds `most`. A rank works before a round, for whole units of time, then sends and receives;
    the tag of a message is its number in the schedule. Bytes are rounded.
    """
    distinct = {id(one): one for one in schedule.rounds}
    laid = {key: _by_rank(one, schedule.n_ranks, per_second, every_round, most) for key, one in distinct.items()}
    firsts = np.cumsum([0, *map(len, schedule.rounds)]).tolist()
    for rank in range(schedule.n_ranks):
        found: list[RankOperation] = []
        before = range(0)
        for index, one in enumerate(schedule.rounds):
            starts, rows = laid[id(one)]
            own = rows[starts[rank] : starts[rank + 1]].tolist()
            works = sum(row[0] == CALC for row in own)
            for part in (own,) if every_round else (own[:works], own[works:]):
                begin = len(found)
                for place, (kind, size, peer, number) in enumerate(part):
                    needs = range(begin, begin + 1) if every_round and place else before
                    tag = 0 if kind == CALC else firsts[index] + number
                    found.append(RankOperation(kind, size, peer, tag, index, needs))
                before = range(begin, len(found)) if part else before
        yield found


def _by_rank(
    one: Round, n_ranks: int, per_second: float, every_round: bool, most: int
) -> tuple[list[int], NDArray[np.int64]]:
    """Return where each rank's rows start, and a round's operations as rows (kind, size, peer, number) by rank."""
    count, ticks = len(one), np.broadcast_to(np.asarray(one.compute), n_ranks)
    active = np.concatenate([one.src, one.dst]) if every_round else one.src[:0]
    workers = np.union1d(np.flatnonzero(ticks), active)
    nothing = np.zeros_like(workers)
    sizes, number = _as_integers(np.rint(one.nbytes), most), np.arange(count)
    rank = np.concatenate([workers, one.src, one.dst])
    rows = (
        np.repeat([CALC, SEND, RECV], [len(workers), count, count]),
        np.concatenate([_as_integers(np.rint(ticks[workers] * per_second), most), sizes, sizes]),
        np.concatenate([nothing, one.dst, one.src]),
        np.concatenate([nothing - 1, number, number]),
    )
    order = np.lexsort([rows[3], rank])
    return np.searchsorted(rank[order], np.arange(n_ranks + 1)).tolist(), np.stack(rows, axis=1)[order]


def _as_integers(values: Floats, most: int) -> Ranks:
    if int(values.max(initial=0)) > most:
        raise ValueError(f"{values.max():.0f} is too large for the format: the most that is written is {most}")
    return values.astype(np.int64)


def assemble_schedule(
    name: str,
    n_ranks: int,
    n_rounds: int,
    messages: RoundMessages,
    work: RankWork = _NO_WORK,
    per_second: float = 1.0,
    phases: Mapping[int, str] | None = None,
) -> Schedule:
    """Return a schedule from columns of messages and work; equal rounds become the same `Round` object."""
    order = np.argsort(work.round, kind="stable")
    works = RankWork(work.round[order], work.rank[order], work.size[order])
    edges = np.arange(n_rounds + 1)
    of_work, of_messages = np.searchsorted(works.round, edges), np.searchsorted(messages.round, edges)
    workers = np.diff(of_work)
    if np.count_nonzero((workers > 0) & (workers < n_ranks)) * n_ranks > MAX_COMPUTE:
        raise InputError(f"has more than {MAX_COMPUTE:,} compute times of ranks and rounds", file=name)
    idle = Round([], [], [])
    rounds = [idle] * n_rounds
    known: dict[int, Round] = {}
    for index in np.flatnonzero((workers > 0) | (np.diff(of_messages) > 0)).tolist():
        compute: float | Floats = 0.0
        if workers[index]:
            compute = np.zeros(n_ranks)
            own = slice(of_work[index], of_work[index + 1])
            compute[works.rank[own]] = works.size[own] / per_second
            if (compute == compute[0]).all():
                compute = float(compute[0])
        own = slice(of_messages[index], of_messages[index + 1])
        phase = "" if phases is None else phases.get(index, "")
        one = Round(messages.src[own], messages.dst[own], messages.size[own], compute, phase)
        key = hash((phase, one.src.tobytes(), one.dst.tobytes(), one.nbytes.tobytes(), np.asarray(compute).tobytes()))
        same = known.setdefault(key, one)
        rounds[index] = same if same is one or same == one else one
    return Schedule(n_ranks, rounds)
