"""The network as a SimPy component: messages over routes of shared links whose weather changes.

A message of B bytes from s to d costs the sender's overhead, then the latency of its route as it is at that moment
(plus jitter), then its bytes at the max-min fair share of every link on the route, then the receiver's overhead. On an
idle constant route that is alpha + B * beta exactly. A transfer in flight is re-rated whenever a link on its route
changes or a flow that it shares links with comes or goes; a link that is down makes transfers wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import simpy
from numpy.typing import ArrayLike, NDArray

from simnet.errors import StalledError
from simnet.flows import Fluid
from simnet.rng import stream
from simnet.schedule import Floats, Ranks, Round, Schedule
from simnet.weather import Signal, Weather
from topologies import Routes
from topologies.graphs import Link

if TYPE_CHECKING:
    import networkx as nx

Jitter: TypeAlias = Callable[[np.random.Generator, int], Floats]
"""Draws n extra latencies [s], >= 0, from a generator."""

# Changes of links that are looked through for one that lets a waiting transfer go on, before it counts as stopped.
_PATIENCE = 200_000


@dataclass(frozen=True)
class ConstantLoad:
    """Background traffic that takes a constant rate from a link and does not give way.

    Parameters
    ----------
    link : (u, v)
        The directed link.
    rate : float
        Bytes per second, >= 0. What exceeds the link's bandwidth is lost, not carried over.
    """

    link: Link
    rate: float


@dataclass(frozen=True)
class OnOffFlow:
    """Background traffic that shares fairly, as a long TCP transfer would, while it is on.

    Parameters
    ----------
    src, dst : int
        Hosts between which it flows.
    on : Signal
        Greater than 0 while it is on.
    limit : float
        Bytes per second that it takes at most.
    """

    src: int
    dst: int
    on: Signal
    limit: float = math.inf


@dataclass(frozen=True)
class Messages:
    """Every message of a timed schedule, as columns of equal length, in the order of the schedule."""

    round: Ranks
    src: Ranks
    dst: Ranks
    nbytes: Floats
    start: Floats
    finish: Floats
    phase: NDArray[np.str_]


@dataclass(frozen=True)
class Timing:
    """When a schedule was done, and what each rank did meanwhile.

    Parameters
    ----------
    start, finish : float
        When the first rank entered and the last one was done [s].
    rank_start, rank_finish : ndarray, shape (P,)
        The same for each rank.
    rank_communicate, rank_compute, rank_wait : ndarray, shape (P,)
        Seconds of each rank between its start and its finish: with a message of its own in flight, computing (the
        `compute` of its rounds), and neither. They add up to the time between both.
    messages : Messages or None
        Start and finish of every message, when asked for.
    """

    start: float
    finish: float
    rank_start: Floats
    rank_finish: Floats
    rank_communicate: Floats
    rank_compute: Floats
    rank_wait: Floats
    messages: Messages | None = None

    @property
    def duration(self) -> float:
        """Seconds from start to finish."""
        return self.finish - self.start


class Network:
    """Hosts and links that carry messages in simulated time.

    Parameters
    ----------
    graph : networkx.DiGraph
        Hosts 0 .. P-1 and links with `latency` [s] and `bandwidth` [byte/s]; see `topologies`.
    weather : mapping of link (u, v) to Weather, optional
        How latency and bandwidth of a link move in time, in absolute terms; where a Weather leaves one of them open,
        and on links not named, the graph's values hold.
    env : simpy.Environment, optional
        The clock of `transfer` and `run`; a new one when omitted.
    send_overhead, receive_overhead : float
        Seconds per message before it leaves the sender and after its last byte arrived.
    jitter : callable, optional
        Draws the extra latency of each message; see `Jitter`.
    background : sequence of ConstantLoad or OnOffFlow
        Traffic of others.
    seed : int
        Seed of the jitter and of the choice between equal routes.

    Raises
    ------
    ValueError
        If weather or background traffic names a link or host that the graph has not, or an overhead is negative.

    Examples
    --------
    >>> import simpy, topologies
    >>> env = simpy.Environment()
    >>> network = Network(topologies.star(4, latency=1e-3, bandwidth=1e6), env=env)
    >>> def job():
    ...     yield network.transfer(0, 1, nbytes=1000)
    ...     print(f"{env.now:.6f} s")
    >>> process = env.process(job())
    >>> env.run()
    0.002000 s
    """

    def __init__(
        self,
        graph: nx.DiGraph[Any],
        weather: Mapping[Link, Weather] | None = None,
        env: simpy.Environment | None = None,
        *,
        send_overhead: float = 0.0,
        receive_overhead: float = 0.0,
        jitter: Jitter | None = None,
        background: Sequence[ConstantLoad | OnOffFlow] = (),
        seed: int = 0,
    ) -> None:
        if not (0 <= send_overhead < math.inf and 0 <= receive_overhead < math.inf):
            raise ValueError(f"overheads must be >= 0 and finite, got {send_overhead} and {receive_overhead}")
        self.graph = graph
        self.env = simpy.Environment() if env is None else env
        self.routes = Routes(graph, seed=seed)
        self.send_overhead = float(send_overhead)
        self.receive_overhead = float(receive_overhead)
        self.jitter = jitter
        self.seed = seed
        self._bandwidth: list[Signal | float] = self.routes.bandwidth.tolist()
        self._latency: list[Signal | float] = self.routes.latency.tolist()
        for link, one in (weather or {}).items():
            index = self._index(link, "weather")
            if not isinstance(one, Weather):
                raise ValueError(f"weather of the link {link!r} must be a Weather, got {one!r}")
            if one.bandwidth is not None:
                self._bandwidth[index] = one.bandwidth
            if one.latency is not None:
                self._latency[index] = one.latency
        self._load: dict[int, float] = {}
        self._on_off: list[OnOffFlow] = []
        for traffic in background:
            if not isinstance(traffic, ConstantLoad | OnOffFlow):
                raise ValueError(f"background traffic must be ConstantLoad or OnOffFlow, got {traffic!r}")
            if isinstance(traffic, ConstantLoad):
                if not 0 <= traffic.rate < math.inf:
                    raise ValueError(f"background load must be >= 0 and finite, got {traffic.rate}")
                index = self._index(traffic.link, "background traffic")
                self._load[index] = self._load.get(index, 0.0) + traffic.rate
            else:
                if not traffic.limit > 0:
                    raise ValueError(f"the limit of a background flow must be > 0, got {traffic.limit}")
                if not self.routes.route(traffic.src, traffic.dst):
                    raise ValueError(f"a background flow needs two hosts, got {traffic.src} and {traffic.dst}")
                self._on_off.append(traffic)
        self._clock: _Clock | None = None
        self._transfers = stream(seed, "jitter", "transfer")

    def _index(self, link: Link, what: str) -> int:
        try:
            return int(self.routes.index[link])
        except KeyError:
            raise ValueError(f"{what} names the link {link!r}, which the graph has not") from None

    def latency(self, link: int, t: float) -> float:
        """Seconds of latency of a link, by its index in `routes.links`, at time `t`."""
        value = self._latency[link]
        return value if isinstance(value, float) else value.at(t)

    def capacity(self, link: int, t: float) -> tuple[float, float]:
        """Bytes per second that a link leaves to flows at time `t`, and until when (infinity when for ever)."""
        value = self._bandwidth[link]
        load = self._load.get(link, 0.0)
        if isinstance(value, float):
            return max(0.0, value - load), math.inf
        return max(0.0, value.at(t) - load), value.next_change(t)

    def _opens(self, route: Sequence[int], t: float) -> float:
        """Return the first time from `t` on at which every link of a route has capacity; infinity if there is none."""
        for _ in range(_PATIENCE):
            for link in route:
                capacity, until = self.capacity(link, t)
                if capacity <= 0:
                    t = until
                    break
            else:
                return t
            if t == math.inf:
                break
        return math.inf

    def path(self, src: int, dst: int, t: float = 0.0) -> tuple[float, float]:
        """Return latency [s] and bottleneck bandwidth [byte/s] of the route from `src` to `dst` as it is at `t`.

        Constant background load is taken off the bandwidth; flows are not.
        """
        route = self.routes.route(src, dst)
        latency = sum((self.latency(link, t) for link in route), 0.0)
        return latency, min((self.capacity(link, t)[0] for link in route), default=math.inf)

    def transfer(self, src: int, dst: int, nbytes: float) -> simpy.Event:
        """Send `nbytes` from host `src` to host `dst` now, and return the SimPy event of their arrival.

        The event's value is the time of arrival [s]. A transfer that can never end fails with `StalledError`.

        Raises
        ------
        ValueError
            If `nbytes` is negative or not finite, or there is no route.
        """
        if not 0 <= nbytes < math.inf:
            raise ValueError(f"nbytes must be >= 0 and finite, got {nbytes}")
        delay = float(self._delays(self._transfers, 1)[0]) if self.jitter is not None else 0.0
        single = _Transfer(self.env.event(), src, dst)
        clock = self._own_clock()
        clock.send(single, (0, 0), self.routes.route(src, dst), float(nbytes), delay, clock.now())
        clock.arm()
        return single.done

    def run(
        self,
        schedule: Schedule,
        *,
        placement: ArrayLike | None = None,
        messages: bool = False,
        stream: tuple[str | int, ...] = (),
    ) -> simpy.Event:
        """Start a schedule now, in the company of whatever else is under way, and return the event of its end.

        The event's value is a `Timing`. See `time` for the parameters.
        """
        clock = self._own_clock()
        start = np.full(schedule.n_ranks, clock.now())
        return self._begin(clock, [(schedule, start)], start, placement, messages, stream)

    def time(
        self,
        schedule: Schedule | Sequence[tuple[Schedule, ArrayLike]],
        start: float | ArrayLike = 0.0,
        *,
        placement: ArrayLike | None = None,
        messages: bool = False,
        stream: tuple[str | int, ...] = (),
        accounted_from: float | ArrayLike | None = None,
    ) -> Timing:
        """Time a schedule on this network, alone but for the background traffic, on a clock of its own.

        The network's `env` neither moves nor matters: asked twice, the answer is the same.

        Parameters
        ----------
        schedule : Schedule or sequence of (Schedule, ready)
            With a sequence, each rank goes through the schedules in order, one after another, and enters each not
            before its time `ready` (scalar or shape (P,), seconds): buckets of a gradient that become ready one by one.
        start : float or array_like, shape (P,)
            When each rank enters [s].
        placement : array_like of int, shape (P,), optional
            The host of each rank; rank r is on host r when omitted.
        messages : bool
            Whether to keep start and finish of every message.
        stream : tuple of str or int
            Name of the random stream of the jitter; equal names give equal draws, message by message.
        accounted_from : float or array_like, shape (P,), optional
            What a rank does before this time is not accounted (it is busy with something else); default `start`.

        Raises
        ------
        StalledError
            If the schedule can never end; names the waiting ranks and what each waits for.
        ValueError
            If the placement names a host that the graph has not, or has not one entry per rank.

        Examples
        --------
        >>> import topologies
        >>> from simnet.schedule import Round, Schedule
        >>> network = Network(topologies.star(2, latency=1e-3, bandwidth=1e6))
        >>> network.time(Schedule(2, [Round([0], [1], [500])])).finish
        0.0015
        """
        parts = [(schedule, start)] if isinstance(schedule, Schedule) else list(schedule)
        if not parts:
            raise ValueError("there is no schedule to time")
        n_ranks = parts[0][0].n_ranks
        begin = _moments(start, n_ranks, "start")
        env = simpy.Environment(initial_time=float(begin.min()))
        done = self._begin(_Clock(self, env), parts, begin, placement, messages, stream, accounted_from)
        timing = env.run(until=done)
        assert isinstance(timing, Timing)
        return timing

    def _delays(self, draws: np.random.Generator, count: int) -> Floats:
        """Return the extra latency [s] of each of `count` messages; nothing at all without jitter."""
        if self.jitter is None:
            return np.zeros(0)
        delays = np.asarray(self.jitter(draws, count), dtype=np.float64)
        if delays.shape != (count,) or not (np.isfinite(delays) & (delays >= 0)).all():
            raise ValueError(f"jitter must draw {count} finite latencies >= 0, got {delays!r}")
        return delays

    def _own_clock(self) -> _Clock:
        if self._clock is None:
            self._clock = _Clock(self, self.env)
        return self._clock

    def _begin(
        self,
        clock: _Clock,
        parts: Sequence[tuple[Schedule, ArrayLike]],
        start: Floats,
        placement: ArrayLike | None,
        messages: bool,
        name: tuple[str | int, ...],
        accounted_from: float | ArrayLike | None = None,
    ) -> simpy.Event:
        n_ranks = parts[0][0].n_ranks
        hosts = np.arange(n_ranks) if placement is None else np.asarray(placement)
        if hosts.shape != (n_ranks,) or not np.issubdtype(hosts.dtype, np.integer):
            raise ValueError(f"placement must name one host, a whole number, for each of the {n_ranks} ranks")
        if hosts.min() < 0 or hosts.max() >= self.routes.n_hosts:
            raise ValueError(
                f"{n_ranks} ranks need hosts within 0..{self.routes.n_hosts - 1}, the placement has "
                f"{hosts.min()}..{hosts.max()}"
            )
        n_messages = sum(schedule.n_messages for schedule, _ in parts)
        delays = self._delays(stream(self.seed, "jitter", *name), n_messages)
        accounted = start if accounted_from is None else _moments(accounted_from, n_ranks, "accounted_from")
        gated = [(schedule, _moments(ready, n_ranks, "ready")) for schedule, ready in parts]
        run = _Run(clock, gated, hosts.tolist(), start, np.maximum(start, accounted), delays, messages)
        run.begin()
        clock.arm()
        return run.done


def _moments(times: float | ArrayLike, n_ranks: int, name: str) -> Floats:
    """Return times [s] of all ranks, given one for all or one each."""
    given = np.asarray(times, dtype=np.float64)
    if given.shape not in ((), (n_ranks,)):
        raise ValueError(f"{name} must be one time or {n_ranks}, one for each rank; got shape {given.shape}")
    if not (np.isfinite(given).all() and given.min() >= 0):
        raise ValueError(f"{name} must be finite and >= 0, got {times!r}")
    return np.broadcast_to(given, n_ranks)


class _Owner(Protocol):
    """Whoever sent a message and is told of its delivery, or that it will never come."""

    def delivered(self, key: tuple[int, int], now: float) -> None: ...

    def stalled(self, blocked: Mapping[tuple[int, int], str], now: float) -> None: ...


class _Transfer:
    """A single message of somebody's own process."""

    def __init__(self, done: simpy.Event, src: int, dst: int) -> None:
        self.done, self._src, self._dst = done, src, dst

    def delivered(self, key: tuple[int, int], now: float) -> None:
        self.done.succeed(now)

    def stalled(self, blocked: Mapping[tuple[int, int], str], now: float) -> None:
        waiting = [f"host {self._dst} waits for a message from host {self._src}: {why}" for why in blocked.values()]
        self.done.fail(StalledError(f"a transfer stopped for ever at {now:g} s:", waiting))


class _Plan:
    """A `Round` in the form that ranks walk through: who sends which messages, and in how many each takes part."""

    def __init__(self, one: Round, n_ranks: int) -> None:
        self.phase = one.phase
        self.src: list[int] = one.src.tolist()
        self.dst: list[int] = one.dst.tolist()
        self.nbytes: list[float] = one.nbytes.tolist()
        self.degree: list[int] = (
            np.bincount(one.src, minlength=n_ranks) + np.bincount(one.dst, minlength=n_ranks)
        ).tolist()
        self.compute: list[float] = np.broadcast_to(np.asarray(one.compute, dtype=np.float64), n_ranks).tolist()
        self.sends: dict[int, list[int]] = {}
        for position, src in enumerate(self.src):
            self.sends.setdefault(src, []).append(position)


class _State(Enum):
    """What a rank does: nothing yet or any more, waits for its gate, computes, or has entered its round."""

    OUTSIDE = 0
    GATED = 1
    COMPUTING = 2
    IN_ROUND = 3


class _Run:
    """A schedule under way: each rank in the round it has reached, and the messages of each round still to come."""

    def __init__(
        self,
        clock: _Clock,
        parts: Sequence[tuple[Schedule, Floats]],
        hosts: list[int],
        start: Floats,
        accounted_from: Floats,
        delays: Floats,
        keep: bool,
    ) -> None:
        n_ranks = len(hosts)
        self._clock = clock
        self._hosts = hosts
        self._rounds: list[Round] = []
        self._gates: dict[int, list[float]] = {}
        for schedule, ready in parts:
            if schedule.n_ranks != n_ranks:
                raise ValueError(f"the schedules have {n_ranks} and {schedule.n_ranks} ranks")
            # An empty schedule shares its gate with the next, or holds up the end.
            index = len(self._rounds)
            self._gates[index] = np.maximum(ready, self._gates.get(index, 0.0)).tolist()
            self._rounds.extend(schedule.rounds)
        plans = {key: _Plan(one, n_ranks) for key, one in {id(one): one for one in self._rounds}.items()}
        self._plans = [plans[id(one)] for one in self._rounds]
        self._offsets: list[int] = np.cumsum([0, *(len(one) for one in self._rounds)]).tolist()
        self._delays: list[float] | None = delays.tolist() if delays.size else None
        self._left: dict[int, list[int]] = {}
        self._inside = [n_ranks] * len(self._rounds)
        self._routes: dict[tuple[int, int], tuple[int, ...]] = {}
        self._running = n_ranks
        self._at = [-1] * n_ranks
        self._state = [_State.OUTSIDE] * n_ranks
        self._in_flight = [0] * n_ranks
        self._start = start
        self._finish = start.copy()
        self._since: list[float] = accounted_from.tolist()
        self._communicate, self._compute, self._wait = ([0.0] * n_ranks for _ in range(3))
        self._times = np.zeros((2, self._offsets[-1])) if keep else None
        self.done: simpy.Event = clock.env.event()

    def begin(self) -> None:
        for rank, time in enumerate(self._start.tolist()):
            self._clock.at(time, self._next_round, rank)

    def delivered(self, key: tuple[int, int], now: float) -> None:
        index, position = key
        plan = self._plans[index]
        if self._times is not None:
            self._times[1, self._offsets[index] + position] = now
        left = self._undelivered(index)
        ends = plan.src[position], plan.dst[position]
        for rank in ends:
            self._account(rank, now)
            self._in_flight[rank] -= 1
            left[rank] -= 1
        for rank in ends:
            if not left[rank] and self._at[rank] == index and self._state[rank] is _State.IN_ROUND:
                self._next_round(rank, now)

    def stalled(self, blocked: Mapping[tuple[int, int], str], now: float) -> None:
        missing: dict[tuple[int, int], list[str]] = {}
        for (index, position), why in blocked.items():
            plan = self._plans[index]
            src, dst = plan.src[position], plan.dst[position]
            missing.setdefault((index, dst), []).append(f"from rank {src} ({why})")
            missing.setdefault((index, src), []).append(f"to rank {dst} ({why})")
        waiting = []
        for rank, index in enumerate(self._at):
            if index == len(self._plans):
                continue
            phase = f" ({self._plans[index].phase})" if self._plans[index].phase else ""
            count = self._undelivered(index)[rank]
            known = missing.get((index, rank))
            what = "; ".join(known) if known else "from ranks that wait themselves"
            waiting.append(f"rank {rank} waits in round {index}{phase} for {count} message(s): {what}")
        self.done.fail(StalledError(f"the exchange stopped for ever at {now:g} s:", waiting))

    def _next_round(self, rank: int, now: float) -> None:
        """Take a rank out of its round and into the next one in which it has something to do."""
        self._account(rank, now)
        index = self._at[rank]
        while True:
            if index >= 0:
                self._inside[index] -= 1
                if not self._inside[index]:
                    self._left.pop(index, None)
            index += 1
            gate = self._gates[index][rank] if index in self._gates else now
            if index == len(self._plans):
                self._at[rank] = index
                self._state[rank] = _State.GATED
                if gate > now:
                    self._clock.at(gate, self._leave_schedule, rank)
                else:
                    self._leave_schedule(rank, now)
                return
            plan = self._plans[index]
            if gate <= now and not plan.degree[rank] and not plan.compute[rank]:
                continue
            self._at[rank] = index
            if gate > now:
                self._state[rank] = _State.GATED
                self._clock.at(gate, self._work, rank)
                return
            if plan.compute[rank]:
                self._work(rank, now)
                return
            if not self._enter(rank, now):
                return

    def _work(self, rank: int, now: float) -> None:
        """Let a rank compute before it enters its round."""
        self._account(rank, now)
        self._state[rank] = _State.COMPUTING
        self._clock.at(now + self._plans[self._at[rank]].compute[rank], self._worked, rank)

    def _worked(self, rank: int, now: float) -> None:
        self._account(rank, now)
        if self._enter(rank, now):
            self._next_round(rank, now)

    def _enter(self, rank: int, now: float) -> bool:
        """Start a rank's messages of its round; return whether it is done with the round already."""
        self._state[rank] = _State.IN_ROUND
        index = self._at[rank]
        plan = self._plans[index]
        for position in plan.sends.get(rank, ()):
            dst = plan.dst[position]
            self._account(dst, now)
            self._in_flight[rank] += 1
            self._in_flight[dst] += 1
            message = self._offsets[index] + position
            if self._times is not None:
                self._times[0, message] = now
            delay = self._delays[message] if self._delays is not None else 0.0
            self._clock.send(self, (index, position), self._route(rank, dst), plan.nbytes[position], delay, now)
        return not self._undelivered(index)[rank]

    def _leave_schedule(self, rank: int, now: float) -> None:
        self._account(rank, now)
        self._state[rank] = _State.OUTSIDE
        self._finish[rank] = now
        self._running -= 1
        if not self._running:
            self.done.succeed(self._timing())

    def _account(self, rank: int, now: float) -> None:
        """Book the time since a rank's last event under what it has been doing."""
        elapsed = now - self._since[rank]
        state = self._state[rank]
        if elapsed <= 0 or state is _State.OUTSIDE:
            return
        self._since[rank] = now
        if state is _State.COMPUTING:
            self._compute[rank] += elapsed
        elif self._in_flight[rank]:
            self._communicate[rank] += elapsed
        else:
            self._wait[rank] += elapsed

    def _undelivered(self, index: int) -> list[int]:
        """Return how many messages of a round each rank still waits for, its own sends included."""
        left = self._left.get(index)
        if left is None:
            left = self._left[index] = list(self._plans[index].degree)
        return left

    def _route(self, src: int, dst: int) -> tuple[int, ...]:
        route = self._routes.get((src, dst))
        if route is None:
            route = self._clock.network.routes.route(self._hosts[src], self._hosts[dst])
            self._routes[src, dst] = route
        return route

    def _timing(self) -> Timing:
        messages = None
        if self._times is not None:
            columns = Schedule(len(self._at), self._rounds).columns()
            messages = Messages(**columns, start=self._times[0], finish=self._times[1])
        return Timing(
            start=float(self._start.min()),
            finish=float(self._finish.max()),
            rank_start=self._start,
            rank_finish=self._finish,
            rank_communicate=np.array(self._communicate),
            rank_compute=np.array(self._compute),
            rank_wait=np.array(self._wait),
            messages=messages,
        )


class _Clock:
    """The network's agenda: messages in their latency, flows, ranks at work; one SimPy event stands for the next."""

    def __init__(self, network: Network, env: simpy.Environment) -> None:
        self.network = network
        self.env = env
        self._time = float(env.now)
        self._armed = math.inf
        self._agenda: list[tuple[float, int, Callable[[Any, float], None], Any]] = []
        self._count = 0
        self._fluid = Fluid(network.capacity)
        self._flows: dict[int, tuple[_Owner, tuple[int, int]]] = {}
        self._background: dict[int, float] = {}
        self._toggles = 0
        self._hope = -math.inf

    def now(self) -> float:
        return max(self._time, float(self.env.now))

    def at(self, time: float, call: Callable[[Any, float], None], argument: Any) -> None:
        """Call ``call(argument, time)`` at `time`; at the same time, in the order of asking."""
        self._count += 1
        heappush(self._agenda, (time, self._count, call, argument))

    def send(
        self, owner: _Owner, key: tuple[int, int], route: tuple[int, ...], nbytes: float, delay: float, now: float
    ) -> None:
        """Let a message leave: overhead, latency and jitter first, then its bytes as a flow."""
        network = self.network
        depart = now + network.send_overhead
        latency = 0.0
        for link in route:
            latency += network.latency(link, depart)
        arrive = depart + (latency + delay)
        if nbytes > 0 and route:
            self.at(arrive, self._join, (owner, key, route, nbytes))
        else:
            self.at(arrive + network.receive_overhead, self._deliver, (owner, key))

    def arm(self) -> None:
        """Make sure that SimPy wakes this clock in time for its next event."""
        time = min(self._agenda[0][0] if self._agenda else math.inf, self._fluid.next_event())
        if time < self._armed:
            self._armed = time
            # SimPy adds delays to its own now, which may miss `time` by a rounding; the value carries it exactly.
            event = self.env.timeout(max(0.0, time - self.env.now), value=time)
            assert event.callbacks is not None
            event.callbacks.append(self._wake)

    def _wake(self, event: simpy.Event) -> None:
        time = event.value
        if time != self._armed:
            return
        self._armed = math.inf
        self._time = time
        self._process(time)
        self._give_up(time)
        self.arm()

    def _process(self, now: float) -> None:
        """Work off everything due by `now`, as one batch, before flows are given new rates."""
        agenda, fluid = self._agenda, self._fluid
        while True:
            while agenda and agenda[0][0] <= now:
                _, _, call, argument = heappop(agenda)
                call(argument, now)
            for flow in fluid.advance(now):
                message = self._flows.pop(flow)
                if self.network.receive_overhead:
                    self.at(now + self.network.receive_overhead, self._deliver, message)
                else:
                    self._deliver(message, now)
            if agenda and agenda[0][0] <= now:
                continue
            if self._background and not self._flows:
                self._stop_background()
            fluid.settle(now)
            if fluid.next_event() > now:
                return

    def _join(self, argument: tuple[_Owner, tuple[int, int], tuple[int, ...], float], now: float) -> None:
        owner, key, route, nbytes = argument
        if not self._flows:
            self._start_background(now)
        self._count += 1
        self._flows[self._count] = owner, key
        self._fluid.add(self._count, route, nbytes, now)

    def _deliver(self, message: tuple[_Owner, tuple[int, int]], now: float) -> None:
        owner, key = message
        owner.delivered(key, now)

    # Background flows take part only while there is somebody to share with. Whether one is on is a function of time
    # alone, so nothing is lost by leaving it out in between. Their numbers are negative, apart from messages.

    def _start_background(self, now: float) -> None:
        if not self._background:
            for number in range(len(self.network._on_off)):
                self._background[number] = now
                self._toggles += 1
                self._toggle((number, now), now)

    def _stop_background(self) -> None:
        for number in self._background:
            if self._fluid.has(-1 - number):
                self._fluid.remove(-1 - number)
        self._background.clear()

    def _toggle(self, argument: tuple[int, float], now: float) -> None:
        number, due = argument
        self._toggles -= 1
        if self._background.get(number) != due:
            return
        traffic = self.network._on_off[number]
        on, present = traffic.on.at(now) > 0, self._fluid.has(-1 - number)
        if on and not present:
            route = self.network.routes.route(traffic.src, traffic.dst)
            self._fluid.add(-1 - number, route, math.inf, now, traffic.limit)
        elif present and not on:
            self._fluid.remove(-1 - number)
        change = traffic.on.next_change(now)
        self._background[number] = change
        if change < math.inf:
            self._toggles += 1
            self.at(change, self._toggle, (number, change))

    def _give_up(self, now: float) -> None:
        """Tell those whose messages can never arrive, once nothing else can happen."""
        if not self._flows or now < self._hope or self._fluid.next_finish() < math.inf:
            return
        if len(self._agenda) > self._toggles:
            return
        blocked = {flow: route for flow, route in self._fluid.blocked() if flow in self._flows}
        self._hope = min((self.network._opens(route, now) for route in blocked.values()), default=math.inf)
        if self._hope < math.inf:
            return
        self._hope = -math.inf
        owners: dict[int, _Owner] = {}
        held: dict[int, dict[tuple[int, int], str]] = {}
        for flow, (owner, key) in self._flows.items():
            self._fluid.remove(flow)
            owners[id(owner)] = owner
            held.setdefault(id(owner), {})[key] = self._what_is_down(blocked.get(flow, ()), now)
        self._flows.clear()
        self._fluid.settle(now)
        for number, owner in owners.items():
            owner.stalled(held[number], now)

    def _what_is_down(self, route: Sequence[int], now: float) -> str:
        names = self.network.routes.links
        down = [f"{names[link][0]}->{names[link][1]}" for link in route if self.network.capacity(link, now)[0] <= 0]
        return f"no capacity on {', '.join(down)}" if down else "next to no capacity"
