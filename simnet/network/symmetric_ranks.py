"""Ranks in step: where all of them do the same at the same time, a few of them tell when all are done.

Ranks are in step where they enter together, and in every round each of them sends one message and receives one, all of
one size, on routes of like links that never change, and on which no message meets another's. So they are in rings, and
in any exchange by shifts or by pairs among hosts with like links. A network of as few hosts as there are patterns, with
routes of the same links, takes as long. There, of a loop of equal rounds only a few are gone through, until times come
again turn by turn, of a round or two each, as long as the loop goes on: what is left of it takes as many of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.network.links import Links
from simnet.network.max_plus import covered_seconds
from simnet.network.program import Program
from simnet.network.stack import Stack, in_rings, of_rings
from simnet.network.timing import Split, Timing
from simnet.schedule import Round, Schedule
from simnet.topologies.deferred import add_link, deferred

TURNS = 4, 16, 64
"""Turns of a loop that are gone through: so few, or, where times do not come again, so many."""

if TYPE_CHECKING:
    import networkx as nx

T = TypeVar("T")
V = TypeVar("V")

# What rounding makes of times that come again, relative.
_SAME = 1e-12
# What a network keeps in mind, of each kind.
_MOST = 64


class SymmetricRun(NamedTuple):
    """How ranks in step went through a program.

    Parameters
    ----------
    finish : float
        When they were done [s].
    times : ndarray, shape (12, number of rounds)
        For each round when the messages were sent, and had arrived; from when to when ranks computed before they
        entered it, and did software for its messages, four things as `Engine.software` has them [s]; NaN where they
        did not.
    """

    finish: float
    times: Floats


class _Routes(NamedTuple):
    """What the routes of all messages of a round have in common.

    Parameters
    ----------
    capacities : tuple of float
        Of the links of each route, the host's own first [byte/s].
    latency : float
        Of each route [s].
    own, last : ndarray, shape (P,)
        The first link of the route that each rank sends over, and the last of that which it receives over.
    between : frozenset of int
        All other links.
    two_way : bool
        Whether words to the sender of a message leave over the own link as well.
    """

    capacities: tuple[float, ...]
    latency: float
    own: Ranks
    last: Ranks
    between: frozenset[int]
    two_way: bool


class _Few(NamedTuple):
    """A network of few hosts: how many they are, and what the routes between them have in common, as of `_Routes`."""

    hosts: int
    capacities: tuple[float, ...]
    latency: float
    two_way: bool


class SymmetryCache(NamedTuple):
    """What a network has found out, as it is the same every time.

    Parameters
    ----------
    routes : dict
        By messages of a round, what their routes have in common; None if nothing.
    clocks : dict
        By networks of few hosts, what times schedules there.
    passed : dict
        By these and loops of rounds, how few hosts went through them from time 0 on; None if times did not come again.
    """

    routes: dict[bytes, _Routes | None]
    clocks: dict[_Few, Callable[[Schedule], Timing]]
    passed: dict[tuple[object, ...], SymmetricRun | None]


def time_symmetric(
    program: Program,
    links: Links,
    stack: Stack,
    timed: Callable[[nx.DiGraph[Any]], Callable[[Schedule], Timing]],
    memory: SymmetryCache,
) -> SymmetricRun | None:
    """Time a program whose ranks are in step; None if they are not, or not known to be.

    Parameters
    ----------
    program : Program
        Whose rings are not cut, and of whose ranks none fails.
    links : Links
        Of its network.
    stack : Stack
        How messages are sent.
    timed : callable
        Returns, of a network of another graph that is the same in all else, what times schedules there, whose rings
        are cut, and keeps the times of messages.
    memory : Memory
        Of this network; added to.
    """
    gates, index, parts = program.gates(), 0, []
    for rounds in (schedule.rounds for schedule, _ in program.parts if schedule.rounds):
        parts.append((rounds, float(gates[index][0])))
        index += len(rounds)
    times = np.concatenate([program.start, *(ready - ready[0] for ready in gates.values())])
    if not links.constant or not links.lossless or links.flows or program.delays or not parts:
        return None
    if (times[: program.start.size] != times[0]).any() or times[program.start.size :].any():
        return None
    # Ranks have to be done with one schedule before they enter the next.
    if len(parts) > 1 and (stack.rounds > 1 or stack.by_turns):
        return None
    # Rounds are looked at by themselves from here on, without the calls that they are of.
    if stack.pieces > 1 and any(of_rings(schedule) != in_rings(schedule.rounds) for schedule, _ in program.parts):
        return None
    loops_of = [[(same[0], len(same)) for same in _runs(rounds)] for rounds, _ in parts]
    few = _few([one for loops in loops_of for one, _ in loops], program.hosts, links, memory, phases=stack.rounds > 1)
    if few is None:
        return None
    like, stand_in = few
    # A word without latency comes as its rank enters: which of both is first decides what is sent first.
    if like.latency == 0 and any(stack.sends_first(program.schedule)):
        return None
    if like not in memory.clocks:
        _keep(memory.clocks, like, timed(_graph(*like)))
    now, went = float(program.start[0]), []
    for given, (_, ready) in zip(loops_of, parts, strict=True):
        now = max(now, ready)
        loops = [
            (same[0][0], sum(count for _, count in same))
            for _, group in groupby(((stand_in[id(one)], count) for one, count in given), key=lambda loop: id(loop[0]))
            if (same := list(group))
        ]
        key = like, *((one.dst[0], one.nbytes[0], np.max(one.compute), one.phase, count) for one, count in loops)
        if key not in memory.passed:
            tried = (_passed(loops, turns, memory.clocks[like], stack) for turns in TURNS)
            _keep(memory.passed, key, next((one for one in tried if one is not None), None))
        passed = memory.passed[key]
        if passed is None:
            return None
        went.append(SymmetricRun(now + passed.finish, now + passed.times))
        now = went[-1].finish
    if index in gates:
        now = max(now, float(gates[index][0]))
    return SymmetricRun(now, np.concatenate([one.times for one in went], axis=1))


def split_symmetric(program: Program, went: SymmetricRun) -> Split:
    """Return what each rank did from when its time is accounted to its finish."""
    accounted, which = np.unique(program.accounted, return_inverse=True)
    finish = np.full(accounted.size, went.finish)

    def lasts(*intervals: tuple[Floats, Floats]) -> Floats:
        first, last = (np.concatenate([one[end] for one in intervals]) for end in (0, 1))
        some = first < last
        who = np.repeat(np.arange(accounted.size), some.sum())
        firsts, lasts = (np.tile(column[some], accounted.size) for column in (first, last))
        return covered_seconds([who], [firsts], [lasts], accounted, finish)

    sent, arrived, begun, ended = went.times[:4]
    computing = lasts((begun, ended))
    communicating = lasts((begun, ended), (sent, arrived)) - computing
    wait = np.maximum(np.maximum(finish - accounted, 0.0) - communicating - computing, 0.0)
    return Split(communicating[which], computing[which], wait[which])


def _few(
    rounds: Sequence[Round], hosts: Ranks, links: Links, memory: SymmetryCache, phases: bool
) -> tuple[_Few, dict[int, Round]] | None:
    """Return what few hosts have in common, and for each round, by its identity, what they do in its place.

    Rounds that differ in their phase alone have the same in their place, unless `phases` matter.
    """
    patterns: dict[bytes, int] = {}
    found: list[_Routes] = []
    shifts: dict[int, int] = {}
    for key, one in {id(one): one for one in rounds}.items():
        if not _alike(one, hosts.size):
            return None
        pattern = one.src.tobytes() + one.dst.tobytes() + hosts.tobytes()
        if pattern not in patterns:
            if pattern not in memory.routes:
                _keep(memory.routes, pattern, _routes_of(hosts[one.src], hosts[one.dst], one, links))
            routes = memory.routes[pattern]
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
    return _Few(few.size, first.capacities, first.latency, first.two_way), stand_in


def _keep(memory: dict[T, V], key: T, value: V) -> None:
    """Keep something in mind, and forget all else if that is too much."""
    if len(memory) == _MOST:
        memory.clear()
    memory[key] = value


def _alike(one: Round, n_ranks: int) -> bool:
    """Return whether each rank sends one message and receives one, all of one size, and works as long as the others."""
    if len(one) != n_ranks or (one.nbytes != one.nbytes[0]).any() or np.ptp(one.compute):
        return False
    return all((np.bincount(ends, minlength=n_ranks) == 1).all() for ends in (one.src, one.dst))


def _routes_of(src: Ranks, dst: Ranks, one: Round, links: Links) -> _Routes | None:
    """Return what the routes between hosts have in common; None if they differ, share links, or widen on their way."""
    there, back = links.routes.table(src, dst), links.routes.table(dst, src)
    if not there.size or there.shape != back.shape or there.min() < 0 or back.min() < 0:
        return None
    if any(
        np.unique(table).size != table.size or (links.own_of(table) != table[:, 0]).any() for table in (there, back)
    ):
        return None
    capacities = links.constant_capacity[there], links.constant_capacity[back][:, ::-1]
    latencies = np.concatenate([links.constant_latency_of(there), links.constant_latency_of(back)])
    like = capacities[0][0]
    if any((each != like).any() for each in capacities) or (latencies != latencies[0]).any():
        return None
    if not (0 < like[0] == like.min() and like[0] == like[-1]):
        return None
    own, last = np.empty(len(src), dtype=np.int64), np.empty(len(src), dtype=np.int64)
    own[one.src], last[one.dst] = there[:, 0], there[:, -1]
    two_way = bool((own[one.dst] == back[:, 0]).all())
    if not two_way and there.shape[1] > 1:
        return None
    between = frozenset(there[:, 1:-1].ravel().tolist())
    return _Routes(tuple(like.tolist()), float(latencies[0]), own, last, between, two_way)


def _graph(hosts: int, capacities: tuple[float, ...], latency: float, two_way: bool) -> nx.DiGraph[Any]:
    """Return hosts with routes between them: over links of their own, or each over links at its two ends."""
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


def _passed(
    loops: Sequence[tuple[Round, int]], turns: int, timed: Callable[[Schedule], Timing], stack: Stack
) -> SymmetricRun | None:
    """Go through loops of rounds from time 0 on; None if times do not come again within so many turns."""
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
    times = _times(timing, cut)
    if times is None:
        return None
    offset, later, parts = 0, 0.0, []
    for (_, count), some in zip(loops, kept, strict=True):
        pieces = sum(stack.pieces if ring else 1 for ring in islice(rings, some))
        own = times[:, offset : offset + pieces]
        half, left, turn = pieces // 2, (count - some) // each, 0.0
        if left:
            turn = _turn(own[:, half - lag : half + lag], lag)
            if not turn > 0:
                return None
        again = later + turn * np.repeat(np.arange(1, left + 1), lag)
        behind = later + left * turn
        parts += [own[:, :half] + later, np.tile(own[:, half - lag : half], left) + again, own[:, half:] + behind]
        offset, later = offset + pieces, behind
    return SymmetricRun(timing.duration + later, np.concatenate(parts, axis=1))


def _times(timing: Timing, schedule: Schedule) -> Floats | None:
    """Return what is known of each round of the first rank, as `InStep.times`; shape (12, number of rounds).

    None if ranks compute for so short a time that it is lost in rounding.
    """
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


def _runs(rounds: Sequence[Round]) -> list[list[Round]]:
    """Return the same round, as often as it comes in a row, for all rounds in order."""
    return [list(group) for _, group in groupby(rounds, key=id)]


def _turn(times: Floats, lag: int) -> float:
    """Return how many seconds later times, shape (n, rounds), come again after `lag` rounds; NaN if they do not."""
    turns = times[:, lag:] - times[:, :-lag]
    turns = turns[~np.isnan(turns)]
    turn = float(turns.mean())
    return turn if (np.abs(turns - turn) <= _SAME * turn).all() else math.nan
