"""Schedules as operations of ranks, to be written a few ranks at a time, and schedules from messages by round."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.base.errors import InputError
from simnet.schedule import Round, Schedule

SEND, RECV, CALC = 0, 1, 2

MAX_COMPUTE = 50_000_000
"""The most compute times, one per rank and round in which ranks differ (400 MB)."""


class Operations(NamedTuple):
    """Operations of whole ranks, to be written."""

    # Shape (n,): Rank, and `SEND`, `RECV` or `CALC`.
    rank: Ranks
    kind: Ranks
    # Shape (n,): Bytes of a message or work in the unit of the file, its other rank and tag, and its round.
    size: Ranks
    peer: Ranks
    tag: Ranks
    round: Ranks
    # Shape (m,): Indices of an operation that waits and of the one that it waits for, of the same rank.
    waiting: Ranks
    before: Ranks


class RoundMessages(NamedTuple):
    """Messages by round, in their order."""

    round: Ranks
    src: Ranks
    dst: Ranks
    size: Ranks | Floats


class RankWork(NamedTuple):
    """Work of ranks before rounds, in the unit of the file; each rank and round once at most."""

    round: Ranks
    rank: Ranks
    size: Ranks | Floats


def operations_of(
    schedule: Schedule, per_second: float, *, every_round: bool, most: int = 10**18 - 1
) -> Iterator[Operations]:
    """Yield the operations of the ranks of a schedule, a few ranks at a time.

    A rank works before a round, for whole units of time, then sends and receives; the tag of a message is its number in
    the schedule. Bytes are rounded.
    """
    laid = {
        key: _by_rank(one, schedule.n_ranks, per_second, every_round, most)
        for key, one in _distinct_rounds(schedule).items()
    }
    firsts = np.cumsum([0, *map(len, schedule.rounds)])
    for first, last in itertools.pairwise(_block_bounds(laid, schedule)):
        own = [slice(*laid[id(one)].rank.searchsorted([first, last])) for one in schedule.rounds]
        lengths = [one.stop - one.start for one in own]
        rows = [
            laid[id(one)].of(part) for one, part in zip(schedule.rounds, own, strict=True) if part.stop > part.start
        ]
        if not rows:
            continue
        rank, kind, size, peer, number = (np.concatenate(column) for column in zip(*rows, strict=True))
        order = np.argsort(rank, kind="stable")
        hint = np.repeat(np.arange(len(lengths)), lengths)
        tag = np.where(kind == CALC, 0, number + np.repeat(firsts[:-1], lengths))
        ops = [column[order].astype(np.int64) for column in (rank, kind, size, peer, tag, hint)]
        ends = np.flatnonzero(np.append(ops[0][1:] != ops[0][:-1], True)) + 1
        cuts = ends[np.flatnonzero(np.append(np.diff(ends // _BLOCK) > 0, True))]
        for begin, end in itertools.pairwise([0, *cuts.tolist()]):
            yield _waiting_operations(*(column[begin:end] for column in ops), every_round=every_round)


# Operations of a block, and blocks that are laid out together.
_BLOCK, _BLOCKS = 2**15, 16


class _OperationRows(NamedTuple):
    """Operations of ranks in a round, by rank: first work, then messages, which have numbers in the round."""

    rank: Ranks
    kind: Ranks
    size: Ranks
    peer: Ranks
    number: Ranks

    def of(self, part: slice) -> tuple[Ranks, ...]:
        return tuple(column[part] for column in self)


def _distinct_rounds(schedule: Schedule) -> dict[int, Round]:
    return {id(one): one for one in schedule.rounds}


def _by_rank(one: Round, n_ranks: int, per_second: float, every_round: bool, most: int) -> _OperationRows:
    count, ticks = len(one), np.broadcast_to(np.asarray(one.compute), n_ranks)
    active = np.concatenate([one.src, one.dst]) if every_round else one.src[:0]
    workers = np.union1d(np.flatnonzero(ticks), active)
    nothing = np.zeros_like(workers)
    sizes, number = _as_integers(np.rint(one.nbytes), most), np.arange(count)
    columns = (
        np.concatenate([workers, one.src, one.dst]),
        np.repeat([CALC, SEND, RECV], [len(workers), count, count]),
        np.concatenate([_as_integers(np.rint(ticks[workers] * per_second), most), sizes, sizes]),
        np.concatenate([nothing, one.dst, one.src]),
        np.concatenate([nothing - 1, number, number]),
    )
    order = np.lexsort([columns[4], columns[0]])
    return _OperationRows(*(_narrow_integers(column[order]) for column in columns))


def _block_bounds(laid: Mapping[int, _OperationRows], schedule: Schedule) -> list[int]:
    """Return ranks that cut the schedule into blocks of operations."""
    counts = np.zeros(schedule.n_ranks)
    for key, times in Counter(map(id, schedule.rounds)).items():
        counts += times * np.bincount(laid[key].rank, minlength=schedule.n_ranks)
    block = np.cumsum(counts) // max(_BLOCKS * _BLOCK, 4 * len(schedule.rounds))
    return [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), schedule.n_ranks]


def _waiting_operations(
    rank: Ranks, kind: Ranks, size: Ranks, peer: Ranks, tag: Ranks, round_: Ranks, *, every_round: bool
) -> Operations:
    begin, end = _awaited_range(rank, kind, round_, every_round)
    count = end - begin
    waiting = np.repeat(np.arange(len(rank)), count)
    before = np.arange(len(waiting)) - np.repeat(np.cumsum(count) - end, count)
    return Operations(rank, kind, size, peer, tag, round_, waiting, before)


def _as_integers(values: Floats, most: int) -> Ranks:
    if int(values.max(initial=0)) > most:
        raise ValueError(f"{values.max():.0f} is too large for the format: the most that is written is {most}")
    return values.astype(np.int64)


def _awaited_range(rank: Ranks, kind: Ranks, round_: Ranks, every_round: bool) -> tuple[Ranks, Ranks]:
    """Return the range of operations that each one waits for."""
    starts = np.concatenate([[True], (rank[1:] != rank[:-1]) | (kind[1:] == CALC)])
    if not every_round:
        starts |= np.concatenate([[True], (round_[1:] != round_[:-1]) | (kind[:-1] == CALC)])
    group = np.cumsum(starts) - 1
    at = np.append(np.flatnonzero(starts), len(rank))
    previous = np.maximum(group - 1, 0)
    begin, end = at[previous], at[previous + 1]
    nothing = (group == 0) | (rank[begin] != rank)
    begin, end = np.where(nothing, 0, begin), np.where(nothing, 0, end)
    if every_round:
        message = kind != CALC
        begin, end = np.where(message, at[group], begin), np.where(message, at[group] + 1, end)
    return begin, end


def assemble_schedule(
    name: str,
    n_ranks: int,
    n_rounds: int,
    messages: RoundMessages,
    work: RankWork | None = None,
    per_second: float = 1.0,
    phases: Mapping[int, str] | None = None,
) -> Schedule:
    """Return a schedule; equal rounds are one object."""
    if work is None:
        work = RankWork(*[np.zeros(0, dtype=np.int64)] * 3)
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


def _narrow_integers(values: Ranks) -> Ranks:
    """Return whole numbers as int32 if they fit."""
    return values.astype(np.int32) if values.max(initial=0) < 2**31 and values.min(initial=0) >= -1 else values
