"""Symmetric ranks: if all ranks do the same at the same time, simulating a few of them is enough.

All enter together, and in every round each sends and receives one message of one size, on routes of like, constant
links that no two messages share. Rings, shifts and pairwise exchanges among like hosts are of this kind. They are
simulated on a small network that takes the same time; it has one host more than there are distinct patterns of who
sends to whom. Of a loop of equal rounds only a few are simulated, until times repeat from turn to turn; the rest of the
loop is extrapolated exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice, pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.network.links import Links
from simnet.network.max_plus import round_runs
from simnet.network.program import Program
from simnet.network.stack import Stack, in_rings, of_rings
from simnet.network.timing import MessageDetail, Split, Timing, message_times, move_software, split_intervals
from simnet.schedule import Round, Schedule
from simnet.topologies.deferred import add_link, deferred
from simnet.topologies.graphs import Graph

TURNS = 4, 16, 64
"""Simulated turns of a loop: the first number, or more if times do not repeat yet."""


T = TypeVar("T")
V = TypeVar("V")

# Relative rounding error within which times count as periodic.
_SAME = 1e-12
# Maximum number of entries in each cache of a network.
_MOST = 64


class SymmetricRun(NamedTuple):
    """Timing of a program in which all ranks have equal times.

    - `finish`: completion time [s].
    - `times` (12, number of rounds): per round: messages sent and arrived, start and end of work, and start and end of
      four kinds of software as in `Engine.software` [s]; NaN for none.
    """

    finish: float
    times: Floats


class _RouteClass(NamedTuple):
    """Capacities and latency that all routes of a round have in common, and the links of these routes."""

    # - `capacities`: capacity of each link, the host's own first [byte/s].
    # - `latency`: latency of each route [s].
    # - `own`, `last` (P,): first link of the route each rank sends over, last link of the one it receives over.
    # - `between`: all other links.
    # - `two_way`: whether control messages back to the sender leave over the own link, too.

    capacities: tuple[float, ...]
    latency: float
    own: Ranks
    last: Ranks
    between: frozenset[int]
    two_way: bool


class _SmallNetwork(NamedTuple):
    """Number of hosts, and capacities and latency of routes, of a small network that stands in for a large one."""

    hosts: int
    capacities: tuple[float, ...]
    latency: float
    two_way: bool


class SymmetricRanks:
    """Timing of schedules in which all ranks do the same at once, by simulating a few hosts instead of all.

    - `links`: links and routes.
    - `stack`: transport stack.
    - `timer`: returns, for a graph, a function that times schedules with cut rings and messages on it.
    """

    def __init__(self, links: Links, stack: Stack, timer: Callable[[Graph], Callable[[Schedule], Timing]]) -> None:
        self._links, self._stack, self._timer = links, stack, timer
        # Common routes by round pattern, timing functions of small networks, and loops of rounds on these from time 0;
        # None if routes differ, or times do not repeat.
        self._routes: dict[bytes, _RouteClass | None] = {}
        self._clocks: dict[_SmallNetwork, Callable[[Schedule], Timing]] = {}
        self._passed: dict[tuple[object, ...], SymmetricRun | None] = {}

    def time(self, program: Program, messages: bool) -> Timing | None:
        """Return a program's timing, with ring steps split as the stack splits them; None if ranks can differ."""
        went = self.completion_times(program) if self.starts_together(program) else None
        if went is None:
            return None
        kept: MessageDetail = None, None, None
        n_ranks = program.hosts.size
        if messages:
            parts = [(self._stack.cut(schedule), ready) for schedule, ready in program.parts]
            own = program.software_of_rounds and partial(program.software_of_rounds, cut=True)
            cut = replace(program, parts=parts, software_of_rounds=own)
            times = np.repeat(went.times, n_ranks, axis=1)
            work, software = times[2:4].reshape(2, -1, n_ranks), times[4:].reshape(4, 2, -1)
            kept = message_times(cut, (times[0], times[1]), np.arange(work.shape[1]), (work[0], work[1]), software)
        return Timing(
            program.origin,
            program.start,
            np.full(n_ranks, went.finish),
            lambda: move_software(_split_times(program, went), program),
            *kept,
            program.computed,
        )

    def starts_together(self, program: Program) -> bool:
        """Return whether links are constant, and ranks enter each schedule together after completing the one before."""
        links, stack, gates = self._links, self._stack, program.gates()
        times = np.concatenate([program.start - program.start[0], *(ready - ready[0] for ready in gates.values())])
        schedules = [schedule for schedule, _ in program.parts if schedule.rounds]
        if not links.constant or not links.lossless or program.delays or not schedules or times.any():
            return False
        # Ranks have to be done with one schedule before they enter the next.
        if len(schedules) > 1 and (stack.rounds > 1 or stack.by_turns):
            return False
        # Rounds are looked at by themselves from here on, without the calls that they are of.
        return stack.pieces == 1 or all(of_rings(schedule) == in_rings(schedule.rounds) for schedule in schedules)

    def completion_times(self, program: Program) -> SymmetricRun | None:
        """Return the times of a program, which are equal for all ranks; None if ranks may have unequal times."""
        gates, index, parts = program.gates(), 0, []
        for rounds in (schedule.rounds for schedule, _ in program.parts if schedule.rounds):
            parts.append((rounds, float(gates[index][0])))
            index += len(rounds)
        loops_of = [list(round_runs(rounds)) for rounds, _ in parts]
        few = self._small_network([one for loops in loops_of for one, _ in loops], program.hosts)
        if few is None:
            return None
        like, stand_in = few
        # A word without latency comes as its rank enters: which of both is first decides what is sent first.
        if like.latency == 0 and any(self._stack.sends_first(program.schedule)):
            return None
        if like not in self._clocks:
            _keep_cached(self._clocks, like, self._timer(_symmetric_graph(*like)))
        now, went = float(program.start[0]), []
        for given, (_, ready) in zip(loops_of, parts, strict=True):
            now = max(now, ready)
            loops = [
                (same[0][0], sum(count for _, count in same))
                for _, group in groupby(
                    ((stand_in[id(one)], count) for one, count in given), key=lambda loop: id(loop[0])
                )
                if (same := list(group))
            ]
            key = like, *((one.dst[0], one.nbytes[0], np.max(one.compute), one.phase, count) for one, count in loops)
            if key not in self._passed:
                tried = (_time_loops(loops, turns, self._clocks[like], self._stack) for turns in TURNS)
                _keep_cached(self._passed, key, next((one for one in tried if one is not None), None))
            passed = self._passed[key]
            if passed is None:
                return None
            went.append(SymmetricRun(now + passed.finish, now + passed.times))
            now = went[-1].finish
        if index in gates:
            now = max(now, float(gates[index][0]))
        return SymmetricRun(now, np.concatenate([one.times for one in went], axis=1))

    def _small_network(self, rounds: Sequence[Round], hosts: Ranks) -> tuple[_SmallNetwork, dict[int, Round]] | None:
        """Return a smaller network on which rounds take equally long, and rounds for it by ``id(round)``, or None."""
        # Rounds that differ only in phase are one unless several may be under way.
        phases = self._stack.rounds > 1
        patterns: dict[bytes, int] = {}
        found: list[_RouteClass] = []
        shifts: dict[int, int] = {}
        for key, one in {id(one): one for one in rounds}.items():
            if not _are_symmetric(one, hosts.size):
                return None
            pattern = one.src.tobytes() + one.dst.tobytes() + hosts.tobytes()
            if pattern not in patterns:
                if pattern not in self._routes:
                    _keep_cached(self._routes, pattern, _routes_of(hosts[one.src], hosts[one.dst], one, self._links))
                routes = self._routes[pattern]
                if routes is None:
                    return None
                patterns[pattern] = len(patterns) + 1
                found.append(routes)
            shifts[key] = patterns[pattern]
        first, *others = found
        like = (
            first.two_way
            and one.two_way
            and (one.capacities, one.latency) == (first.capacities, first.latency)
            and (one.own == first.own).all()
            and (one.last == first.last).all()
            for one in others
        )
        between = [one.between for one in found]
        if not all(like) or sum(map(len, between)) != len(frozenset().union(*between)):
            return None
        few = np.arange(len(found) + 1 if first.two_way else 3)
        distinct: dict[tuple[object, ...], Round] = {}
        stand_in = {}
        for one in rounds:
            compute, phase = float(np.max(one.compute)), one.phase if phases else ""
            content = shifts[id(one)], float(one.nbytes[0]), compute, phase
            if content not in distinct:
                distinct[content] = Round(few, (few + content[0]) % few.size, content[1], compute, phase)
            stand_in[id(one)] = distinct[content]
        return _SmallNetwork(few.size, first.capacities, first.latency, first.two_way), stand_in


def _split_times(program: Program, went: SymmetricRun) -> Split:
    """Return the seconds each rank communicates, computes and waits, from times that are equal for all ranks."""
    accounted, which = np.unique(program.accounted, return_inverse=True)
    finish = np.full(accounted.size, went.finish)

    def of_all(begun: Floats, ended: Floats) -> list[tuple[Ranks, Floats, Floats]]:
        some = begun < ended
        who = np.repeat(np.arange(accounted.size), some.sum())
        return [(who, np.tile(begun[some], accounted.size), np.tile(ended[some], accounted.size))]

    sent, arrived, begun, ended = went.times[:4]
    split = split_intervals(of_all(begun, ended), of_all(sent, arrived), accounted, finish)
    return Split(*(column[which] for column in split))


def _keep_cached(memory: dict[T, V], key: T, value: V) -> None:
    """Store a value in a cache, which is emptied first if it is full."""
    if len(memory) == _MOST:
        memory.clear()
    memory[key] = value


def _are_symmetric(one: Round, n_ranks: int) -> bool:
    """Return whether all ranks send and receive exactly one message of equal size, and work equally long."""
    if len(one) != n_ranks or (one.nbytes != one.nbytes[0]).any() or np.ptp(one.compute):
        return False
    return all((np.bincount(ends, minlength=n_ranks) == 1).all() for ends in (one.src, one.dst))


def _routes_of(src: Ranks, dst: Ranks, one: Round, links: Links) -> _RouteClass | None:
    """Return the common capacities and latency of a round's routes; None if routes differ or if two share a link."""
    there, back = links.routes.table(src, dst), links.routes.table(dst, src)
    if not there.size or there.shape != back.shape or there.min() < 0 or back.min() < 0:
        return None
    if any(
        np.unique(table).size != table.size or (links.own_of(table) != table[:, 0]).any() for table in (there, back)
    ):
        return None
    capacities = np.concatenate([links.constant_capacity[there], links.constant_capacity[back][:, ::-1]])
    latencies = np.concatenate([links.constant_latency_of(there), links.constant_latency_of(back)])
    like, latency = capacities[0], float(latencies[0])
    if (capacities != like).any() or (latencies != latency).any() or not like.min():
        return None
    own, last = np.empty(len(src), dtype=np.int64), np.empty(len(src), dtype=np.int64)
    own[one.src], last[one.dst] = there[:, 0], there[:, -1]
    shared = own[one.dst] == back[:, 0]
    two_way = bool(shared.all())
    # Of ranks in step, control messages of all or of none meet messages on the own link.
    if not two_way and (there.shape[1] > 1 or shared.any()):
        return None
    between = frozenset(there[:, 1:-1].ravel().tolist())
    return _RouteClass(tuple(like.tolist()), latency, own, last, between, two_way)


def _symmetric_graph(hosts: int, capacities: tuple[float, ...], latency: float, two_way: bool) -> Graph:
    """Return a graph with a path between each pair of hosts; if `two_way`, each host has one link in and one out."""
    graph = deferred(range(hosts))
    for src in range(hosts):
        for dst in set(range(hosts)) - {src}:
            if two_way and len(capacities) > 1:
                middle = [f"{src} to {dst}, {hop}" for hop in range(len(capacities) - 3)]
                ends = [f"from {src}", f"to {dst}"] if len(capacities) > 2 else ["switch"]
                path: list[int | str] = [src, *ends[:1], *middle, *ends[1:], dst]
            else:
                path = [src, dst]
            for hop, (link, capacity) in enumerate(zip(pairwise(path), capacities, strict=True)):
                add_link(graph, *link, latency=0.0 if hop else latency, bandwidth=capacity)
    return graph


def _time_loops(
    loops: Sequence[tuple[Round, int]], turns: int, timed: Callable[[Schedule], Timing], stack: Stack
) -> SymmetricRun | None:
    """Time repeated rounds by simulating about `turns` periods and extrapolating; None if times are not periodic."""
    # Every second piece may differ from the others, and the first of a step. As many rounds as may be under way may all
    # go at a time, once the ones before them are done.
    lag = math.lcm(stack.pieces, 2, stack.rounds)
    each = lag // stack.pieces
    # Times settle once as many rounds are under way as may be.
    hosts, steps = len(loops[0][0]), (turns + 2 * max(0, stack.rounds - 2)) * each
    kept = [count if count <= steps + 1 else steps + (count - steps) % each for _, count in loops]
    short = Schedule(hosts, [one for (one, _), count in zip(loops, kept, strict=True) for _ in range(count)])
    rings = iter(in_rings(short.rounds))
    cut = stack.cut(short)
    timing = timed(cut)
    times = _round_times(timing, cut)
    if times is None:
        return None
    offset, later, parts = 0, 0.0, []
    for (_, count), some in zip(loops, kept, strict=True):
        pieces = sum(stack.pieces if ring else 1 for ring in islice(rings, some))
        own = times[:, offset : offset + pieces]
        half, left, turn = pieces // 2, (count - some) // each, 0.0
        if left:
            turn = _repeat_shift(own[:, half - lag : half + lag], lag)
            if not turn > 0:
                return None
        again = later + turn * np.repeat(np.arange(1, left + 1), lag)
        behind = later + left * turn
        parts += [own[:, :half] + later, np.tile(own[:, half - lag : half], left) + again, own[:, half:] + behind]
        offset, later = offset + pieces, behind
    return SymmetricRun(timing.duration + later, np.concatenate(parts, axis=1))


def _round_times(timing: Timing, schedule: Schedule) -> Floats | None:
    """Return when rank 0 sends, receives, computes and uses the CPU in each round [s]; None if times are missing."""
    assert timing.messages is not None
    assert timing.work is not None
    assert timing.software is not None
    times = np.full((12, len(schedule.rounds)), np.nan)
    times[4:] = timing.software.for_messages[:, :, :: schedule.n_ranks].reshape(8, -1)
    times[0], times[1] = (one[:: schedule.n_ranks] for one in (timing.messages.sent, timing.messages.arrived))
    computes = np.array([float(np.max(one.compute)) > 0 for one in schedule.rounds])
    own = timing.work.rank == 0
    if own.sum() != computes.sum():
        return None
    times[2, computes], times[3, computes] = np.sort(timing.work.begun[own]), np.sort(timing.work.ended[own])
    return times


def _repeat_shift(times: Floats, lag: int) -> float:
    """Return the constant delay [s] between times `lag` columns (rounds) apart; NaN if it is not constant."""
    turns = times[:, lag:] - times[:, :-lag]
    turns = turns[~np.isnan(turns)]
    turn = float(turns.mean())
    return turn if (np.abs(turns - turn) <= _SAME * turn).all() else math.nan
