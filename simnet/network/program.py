"""Programs: consecutive schedules, the hosts and entry times of ranks, and random draws, ready to be timed.

Beside its messages a rank has a compute stream: a queue, on its device, of backward-pass slices and compression
kernels. A worker has one, first come first served, without preemption. When the slice that produces a part of the
gradient is done, its selection kernels queue, then the part may be exchanged; work before rounds queues too. All queued
kernels run before the next slice, so a kernel waits for at most one slice and delays all later ones. With a side
stream, kernels run concurrently with the backward pass, and both slow down.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats, Ranks
from simnet.network.jitter import Delays
from simnet.schedule import Schedule


@dataclass(frozen=True)
class Computing:
    """Times of compression kernels that run during the backward pass, and slowdown factors of concurrent work.

    Parameters
    ----------
    select : array_like, shape (n_parts, P)
        Seconds of the kernels of each rank before the first message of each part, >= 0.
    side_stream : (float, float), optional
        Slowdown of slices and kernels while both run, each on its own stream; None: they share one.
    beside : array_like, shape (n_parts,) or scalar
        Slowdown of slices while messages of a part are in flight.

    Raises
    ------
    ValueError
        If seconds are negative or not finite, or a factor is not > 0.
    """

    select: ArrayLike
    side_stream: tuple[float, float] | None = None
    beside: ArrayLike = 1.0

    def __post_init__(self) -> None:
        select = np.asarray(self.select, dtype=np.float64)
        if select.ndim != 2 or not (np.isfinite(select).all() and (select >= 0).all()):
            raise ValueError("select must be seconds >= 0, of shape (n_parts, P)")
        factors = [*np.ravel(self.beside).tolist(), *(self.side_stream or ())]
        if not all(0 < factor < math.inf for factor in factors):
            raise ValueError(f"factors of side_stream and beside must be > 0, got {factors}")


@dataclass(frozen=True)
class Streams:
    """Seconds of backward-pass slices and of kernels on all ranks' compute streams, and how much each slows the other.

    Parameters
    ----------
    slices, select : ndarray, shape (n_parts, P)
        Seconds of the slice before each part, and of its kernels.
    beside : ndarray, shape (n_parts,)
        Slowdown of slices while messages of a part are in flight.
    side_stream : (float, float) or None
        Slowdown of slices and kernels while both run on separate streams.
    software : tuple of (float or ndarray of shape (P,))
        Library software in the work before each round, which needs no stream.
    """

    slices: Floats
    select: Floats
    beside: Floats
    side_stream: tuple[float, float] | None
    software: tuple[float | Floats, ...]


@dataclass(frozen=True)
class Computed:
    """Times at which each rank's compute stream ran backward-pass slices and compression kernels during an exchange.

    Parameters
    ----------
    done : ndarray, shape (P,)
        When each rank finished all slices and kernels [s since the origin].
    slices : ndarray, shape (P,)
        Seconds that its slices took.
    begun, ended : dict of str to ndarray, shape (n_parts, P)
        Start and end of each ``slice``, ``select`` and ``unpack`` [s since the origin]; NaN for none.
    aside : bool
        Whether kernels had a separate stream.
    """

    done: Floats
    slices: Floats
    begun: dict[str, Floats]
    ended: dict[str, Floats]
    aside: bool = False

    def later(self, seconds: float) -> Computed:
        """Return a copy with all times shifted by `seconds`."""
        begun, ended = ({what: one + seconds for what, one in times.items()} for times in (self.begun, self.ended))
        return Computed(self.done + seconds, self.slices, begun, ended, self.aside)


def check_slices(start: Floats, ready: Sequence[Floats], computing: Computing) -> tuple[Floats, Floats]:
    """Check and return when each part of the gradient is ready [s], and the seconds of kernels before its exchange.

    Raises
    ------
    ValueError
        If shapes differ, or ready times decrease or precede the start.
    """
    when, select = np.stack(ready), np.asarray(computing.select, dtype=np.float64)
    if select.shape != when.shape or (np.ndim(computing.beside) and np.shape(computing.beside) != when.shape[:1]):
        raise ValueError(
            f"{when.shape[0]} schedules of {when.shape[1]} ranks need seconds of kernels of shape {when.shape}, and "
            f"a factor for each schedule or for all, got {select.shape} and {np.shape(computing.beside)}"
        )
    if (when[0] < start).any() or (when[1:] < when[:-1]).any():
        raise ValueError("no schedule may be ready before the one before it, nor the first before ranks start")
    return when, select


def queue_in_turn(start: Floats, ready: Floats, select: Floats) -> tuple[Floats, Computed]:
    """Run each backward slice, then its selection kernels, on one stream; return ends of selection [s] and `Computed`.

    Examples
    --------
    >>> gates, computed = queue_in_turn(np.zeros(1), np.array([[2.0], [3.0]]), np.array([[0.5], [0.25]]))
    >>> gates[:, 0], computed.begun["slice"][:, 0], computed.slices
    (array([2.5 , 3.75]), array([0. , 2.5]), array([3.]))
    """
    opens = ready + (np.cumsum(select, axis=0) if len(select) > 1 else select)
    before = np.concatenate([start[np.newaxis], opens[:-1]])
    behind = opens - select
    computed = Computed(
        opens[-1],
        ready[-1] - start,
        {"slice": before, "select": behind},
        {"slice": behind, "select": opens},
    )
    return opens, computed


def runs_in_turn(parts: Sequence[Schedule], computing: Computing) -> bool:
    """Return whether backward-pass slices and selection kernels just alternate, with no other work or slowdown."""
    between = any(np.any(one.compute) for schedule in parts[:-1] for one in schedule.rounds)
    beside = np.broadcast_to(np.asarray(computing.beside), len(parts))[:-1]
    aside = computing.side_stream is not None and np.any(np.asarray(computing.select)[:-1])
    return not (between or aside or (beside != 1.0).any())


Parts: TypeAlias = Sequence[tuple[Schedule, ArrayLike]]
"""Schedules in a row, each with when ranks may enter it [s]: a scalar, or shape (P,)."""


class Entry(TypedDict, total=False):
    """Keyword arguments of `Network.time` and `Network.run` on where and when ranks enter a schedule.

    Parameters
    ----------
    placement : array_like of int, shape (P,), optional
        The host of each rank; rank r on host r by default.
    stream : tuple of str or int
        Name of the random stream; equal names give equal jitter, message by message.
    accounted_from : float or array_like, shape (P,), optional
        Time of a rank before this is not accounted [s]; default `start`.
    deaths : mapping of int to float, optional
        Ranks that fail for good, and when [s, absolute]. Messages from and to a failed rank vanish and free their
        links; sends to it never complete. At one instant failures come first. If another rank depends on the failed
        one, the schedule stalls once no message is in flight. Only the event loop supports failures.
    origin : float, optional
        The moment [s] from which all times count except `deaths`, so that late exchanges keep their precision. By
        default given times are absolute, and the timing counts from the first entry.
    computing : Computing, optional
        Computation next to the schedules: `ready` is then when slices of the backward pass alone would end, and
        kernels queue on the rank's stream (`simnet.network.program`). Accounting starts after all slices and
        kernels.
    silence : float
        How long all connections were silent before [s], by default not at all; see `simnet.network.slow_start`.
    """

    placement: ArrayLike | None
    stream: tuple[str | int, ...]
    accounted_from: float | ArrayLike | None
    deaths: Mapping[int, float] | None
    origin: float | None
    computing: Computing | None
    silence: float


@dataclass(frozen=True)
class Program:
    """Consecutive schedules and all that determines their times: hosts and entry times of ranks, and random draws.

    - `origin`: the moment from which all times count [s].
    - `parts` (P,): schedules in order, and when each rank may enter each [s].
    - `hosts`, `start`, `accounted` (P,): host of each rank, when it enters, and the start of its accounting [s].
    - `delays`: extra latency of each message.
    - `picks` (number of messages,): candidate route of each message; empty for the first.
    - `failures`: ranks that fail for good, and when [s].
    - `software` (P,), optional: seconds of library software in each rank's work.
    - `software_of_rounds`: returns its part before each round; with ``cut=True`` for cut rings.
    - `streams`: work on compute streams; a part may start when its work is done.
    - `computed`: computation with known times; `parts` then have the times when they may start.
    """

    origin: float
    parts: Sequence[tuple[Schedule, Floats]]
    hosts: Ranks
    start: Floats
    accounted: Floats
    delays: Delays
    picks: Ranks
    failures: Mapping[int, float]
    software: Floats | None = None
    software_of_rounds: Callable[..., Sequence[float | Floats]] | None = None
    streams: Streams | None = None
    computed: Computed | None = None

    @cached_property
    def schedule(self) -> Schedule:
        """All parts (schedules) concatenated into one schedule."""
        first, *others = (schedule for schedule, _ in self.parts)
        return first.concat(*others) if others else first

    @cached_property
    def compute(self) -> Floats:
        """Seconds each rank computes in all rounds; shape (P,)."""
        return self.schedule.compute()

    def counted_from(self, origin: float, now: float) -> Program:
        """Return the program with times relative to another `origin` [s], and no entry before `now`."""
        later = self.origin - origin
        start = np.maximum(self.start + later, now)
        return replace(
            self,
            origin=origin,
            computed=None if self.computed is None else self.computed.later(later),
            parts=[(schedule, ready + later) for schedule, ready in self.parts],
            start=start,
            accounted=np.maximum(self.accounted + later, start),
        )

    def beside(
        self, computing: Computing, bare: Sequence[Schedule], of_rounds: Callable[[], Sequence[float | Floats]]
    ) -> Program:
        """Return the program with its parts exchanged during a backward pass, each after its gradients are ready.

        `bare` are the schedules without a library's CPU time, which `of_rounds` returns for each round [s].
        """
        ready, select = check_slices(self.start, [ready for _, ready in self.parts], computing)
        if runs_in_turn(bare, computing):
            opens, computed = queue_in_turn(self.start, ready, select)
            parts = [(schedule, gate) for (schedule, _), gate in zip(self.parts, opens, strict=True)]
            return replace(self, parts=parts, accounted=np.maximum(self.accounted, opens[-1]), computed=computed)
        slices = np.diff(ready, axis=0, prepend=self.start[np.newaxis])
        factors = np.broadcast_to(np.asarray(computing.beside, dtype=np.float64), len(self.parts))
        return replace(self, streams=Streams(slices, select, factors, computing.side_stream, tuple(of_rounds())))

    def columns(self) -> dict[str, Any]:
        """Return the columns of all messages, including a column ``part`` with the index of the message's schedule."""
        counts = [schedule.n_messages for schedule, _ in self.parts]
        return {**self.schedule.columns(), "part": np.repeat(np.arange(len(counts)), counts)}

    def bounds(self) -> list[tuple[int, int]]:
        """Return for each part (schedule) the index of its first round, and the index after its last round."""
        ends = list(itertools.accumulate(len(schedule.rounds) for schedule, _ in self.parts))
        return list(zip([0, *ends], ends, strict=False))

    def part_of(self, rounds: Ranks) -> Ranks:
        """Return the index of the part (schedule) to which each of `rounds` belongs."""
        ends = np.cumsum([len(schedule.rounds) for schedule, _ in self.parts])
        return np.searchsorted(ends, rounds, side="right")

    def software_before(self) -> Sequence[float | Floats]:
        """Return the library's CPU seconds before each round: per rank, or one number for all ranks."""
        return [0.0] * len(self.schedule.rounds) if self.software_of_rounds is None else self.software_of_rounds()

    def begins(self) -> Ranks:
        """Return the first round of each schedule and collective call; ranks enter it after all earlier rounds."""
        calls = [call.first for call in self.schedule.calls if call.rounds]
        parts = [first for first, last in self.bounds() if last > first]
        return np.unique(np.array(parts + calls, dtype=np.int64))

    def gates(self) -> dict[int, Floats]:
        """Return, by round index, the earliest time [s] each rank may enter; the index past the last is the end."""
        gates: dict[int, Floats] = {}
        index = 0
        for schedule, ready in self.parts:
            # An empty schedule shares its gate with the next schedule, or with the end.
            gates[index] = np.maximum(ready, gates.get(index, -np.inf))
            index += len(schedule.rounds)
        return gates


def entry_times(
    parts: Parts, start: float | ArrayLike, accounted_from: float | ArrayLike | None, origin: float | None
) -> tuple[float, list[tuple[Schedule, Floats]], Floats, Floats]:
    """Return the time origin [s] and, relative to it, per rank: ready time of each part, start, start of accounting."""
    n_ranks = parts[0][0].n_ranks
    begin = moments_of(start, n_ranks, "start")
    accounted = begin if accounted_from is None else moments_of(accounted_from, n_ranks, "accounted_from")
    gated = [(schedule, moments_of(ready, n_ranks, "ready")) for schedule, ready in parts]
    if origin is None:
        origin = float(begin.min())
        return origin, [(one, ready - origin) for one, ready in gated], begin - origin, accounted - origin
    if not 0 <= origin < math.inf:
        raise ValueError(f"origin must be finite and >= 0, got {origin!r}")
    return origin, gated, begin, accounted


def hosts_of(placement: ArrayLike | None, n_ranks: int, n_hosts: int) -> Ranks:
    """Return the checked host of each rank, shape (P,). Without a placement, rank r is on host r."""
    hosts = np.arange(n_ranks) if placement is None else np.asarray(placement)
    if hosts.shape != (n_ranks,) or not np.issubdtype(hosts.dtype, np.integer):
        raise ValueError(f"placement must name one host, a whole number, for each of the {n_ranks} ranks")
    if hosts.min() < 0 or hosts.max() >= n_hosts:
        found = f"{hosts.min()}..{hosts.max()}"
        raise ValueError(f"{n_ranks} ranks need hosts within 0..{n_hosts - 1}, the placement has {found}")
    return hosts.astype(np.int64)


def parts_of(schedule: Schedule | Parts) -> Parts:
    """Return a list of (schedule, earliest entry of ranks [s]); for a single schedule, the earliest entry is 0."""
    parts = [(schedule, 0.0)] if isinstance(schedule, Schedule) else list(schedule)
    if not parts:
        raise ValueError("there is no schedule to time")
    return parts


def failures_of(deaths: Mapping[int, float], n_ranks: int) -> dict[int, float]:
    """Return a checked dict from rank to failure time [s]."""
    if not isinstance(deaths, Mapping):
        raise ValueError(f"deaths must be a mapping from ranks to seconds, got {deaths!r}")
    for rank, time in deaths.items():
        if not (isinstance(rank, int | np.integer) and 0 <= rank < n_ranks):
            raise ValueError(f"deaths must be those of ranks 0..{n_ranks - 1}, got {rank!r}")
        if not (isinstance(time, int | float | np.number) and 0 <= time < math.inf):
            raise ValueError(f"a rank must die at a finite time >= 0, got {time!r} for rank {rank}")
    return {int(rank): float(time) for rank, time in deaths.items()}


def moments_of(times: float | ArrayLike, n_ranks: int, name: str) -> Floats:
    """Return one time per rank [s], shape (P,), from a scalar or an array; errors call it `name`."""
    given = np.asarray(times, dtype=np.float64)
    if given.shape not in ((), (n_ranks,)):
        raise ValueError(f"{name} must be one time or {n_ranks}, one for each rank; got shape {given.shape}")
    # Of numbers with NaN both are NaN.
    if not (given.min() >= 0 and given.max() < math.inf):
        raise ValueError(f"{name} must be finite and >= 0, got {times!r}")
    return np.broadcast_to(given, n_ranks) if given.ndim == 0 else given
