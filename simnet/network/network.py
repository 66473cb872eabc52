"""The network as a SimPy component: messages over routes of shared links with time-varying bandwidth and latency.

A message of B bytes pays the sender's overhead, the latency of its route when it departs (plus jitter), its bytes at
the max-min fair share of every link on the route, and the receiver's overhead: alpha + B * beta on an idle constant
route. Rates change whenever a link on the route changes or a flow that shares a link starts or ends. A link without
capacity makes transfers wait. A transport stack frames messages and decides when a send completes
(`simnet.network.stack`). The module is long, as all that a user calls on a network stands in one class.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, get_args

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats, Ranks
from simnet.base.errors import SimnetError, check_choice
from simnet.base.quantities import Seconds, Size, check_bounds
from simnet.base.rng import stream as named_stream
from simnet.network.engine_selection import EngineSelector
from simnet.network.jitter import Delays, Jitter, draw_jitter
from simnet.network.links import ConstantLoad, Links, OnOffFlow
from simnet.network.max_plus import MaxPlus
from simnet.network.program import Entry, Parts, Program, entry_times, failures_of, hosts_of, parts_of
from simnet.network.sharing import Sharing, sharing_of
from simnet.network.slow_start import LEAST_TIMEOUT, slow_start_delays
from simnet.network.stack import IDEAL, Stack, name_of, stack_of
from simnet.network.symmetric_ranks import SymmetricRanks
from simnet.network.timing import Messages, TimedRun, Timing
from simnet.network.transport import Incast, Loss, MeasuredIncast
from simnet.network.weather import Weather
from simnet.schedule import Schedule
from simnet.topologies.graphs import Graph, Link

if TYPE_CHECKING:
    import simpy

    from simnet.network.simpy_clock import Clock

__all__ = ["ConstantLoad", "Jitter", "Messages", "Network", "OnOffFlow", "Timing"]

EngineName: TypeAlias = Literal["auto", "vectorised", "fluid"]

Routing: TypeAlias = Literal["hash", "single", "flow", "adaptive"]

OnOutage: TypeAlias = Literal["wait", "reroute"]

Software: TypeAlias = Callable[[Schedule, Ranks], Schedule]
"""Adds the library's software time to `compute` of each round, given the host of each rank."""

# A message of routing by flow draws one of so many numbers.
_PICKS = 1 << 40


class Network:
    """Hosts and links that carry messages in simulated time.

    Parameters
    ----------
    graph : networkx.DiGraph
        Hosts 0 .. P-1 and links with `latency` [s] and `bandwidth` [byte/s]; see `simnet.topologies`.
    weather : mapping of link (u, v) to Weather, optional
        Absolute latency and bandwidth of links over time. Links and quantities not given keep the graph's values.
    env : simpy.Environment, optional
        Clock of `transfer` and `run`; a new one by default.
    send_overhead, receive_overhead : float
        Time per message before it leaves the sender and after its last byte arrived [s].
    jitter : callable, optional
        Draws the extra latency of each message; see `Jitter`.
    background : sequence of ConstantLoad or OnOffFlow
        Background traffic.
    seed : int
        Seed of the jitter and of the choice between equal-cost routes.
    engine : {"auto", "vectorised", "fluid"}
        ``vectorised`` is the max-plus clock, for messages that share no link at a time; ``fluid`` the event loop.
        ``auto`` takes the first where it is exact. Where both apply they agree to rounding.
    stack : str, Stack or mapping
        Transport stack: a name in `simnet.network.stack.STACKS`, or properties.
    software : callable, optional
        Adds software time of the collective library to schedules (`simnet.cost_models.calibration.CalibratedSoftware`);
        it counts as communication. Does not apply to `transfer`.
    sharing : str, Sharing or mapping
        How flows share links: ``max_min``, ``rtt`` (weighted by round-trip time), or properties.
    loss : Loss, optional
        Packet loss by link and the transport's response.
    incast : Incast or MeasuredIncast, optional
        Goodput collapse when many senders target one host.
    routing : {"hash", "single", "flow", "adaptive"}
        Choice between equal-cost routes: by a hash of the host pair (ECMP); always the first; at random per message; or
        the route whose most loaded link has the fewest messages per bandwidth when the message leaves.
    on_outage : {"wait", "reroute"}
        Messages on a failed link wait, or take a detour of at most 256 links until the link is up again.

    Raises
    ------
    ValueError
        If a link or host is not in the graph, an overhead is negative, or a name is unknown.

    Examples
    --------
    >>> import simpy
    >>> from simnet import topologies
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
        graph: Graph,
        weather: Mapping[Link, Weather] | None = None,
        env: simpy.Environment | None = None,
        *,
        send_overhead: Seconds = 0.0,
        receive_overhead: Seconds = 0.0,
        jitter: Jitter | None = None,
        background: Sequence[ConstantLoad | OnOffFlow] = (),
        seed: int = 0,
        engine: EngineName = "auto",
        stack: str | Stack | Mapping[str, object] = "ideal",
        software: Software | None = None,
        sharing: str | Sharing | Mapping[str, object] = "max_min",
        loss: Loss | None = None,
        incast: Incast | MeasuredIncast | None = None,
        routing: Routing = "hash",
        on_outage: OnOutage = "wait",
    ) -> None:
        for name, value, allowed in (
            ("engine", engine, get_args(EngineName)),
            ("routing", routing, get_args(Routing)),
            ("on_outage", on_outage, get_args(OnOutage)),
        ):
            check_choice(value, name, allowed)
        for name, seconds in (("send_overhead", send_overhead), ("receive_overhead", receive_overhead)):
            check_bounds(seconds, Seconds, name)
        self.graph = graph
        self.stack, self.software, self.sharing = stack_of(stack), software, sharing_of(sharing)
        choice: Literal["hash", "single"] = "single" if routing == "single" else "hash"
        self.links = Links(graph, weather or {}, background, seed, routing=choice, loss=loss, incast=incast)
        self.routes = self.links.routes
        self.send_overhead = float(send_overhead)
        self.receive_overhead = float(receive_overhead)
        self.jitter = jitter
        self.seed = seed
        self.engine, self.routing, self.on_outage = engine, routing, on_outage
        self._timing = self._engines(alone=True)
        overheads = self.send_overhead, self.receive_overhead
        self._max_plus = MaxPlus(self.links, overheads, partial(_time_events, self._timing))
        self._symmetric_ranks = SymmetricRanks(
            self.links, self.stack, partial(_small_timer, overheads, replace(self.stack, pieces=1))
        )
        self._begin_on(env)

    def __repr__(self) -> str:
        hosts, links = self.routes.n_hosts, self.graph.number_of_edges()
        return f"Network({hosts:,} hosts, {links:,} links, stack {name_of(self.stack)})"

    def _engines(self, *, alone: bool) -> EngineSelector:
        return EngineSelector(
            self.links,
            (self.send_overhead, self.receive_overhead),
            self.stack,
            self.sharing,
            multipath=self.routing in ("flow", "adaptive"),
            adaptive=self.routing == "adaptive",
            watching=self.on_outage == "reroute" and not self.links.constant,
            alone=alone,
        )

    def on(self, env: simpy.Environment) -> Network:
        """Return a copy of the network that uses SimPy environment `env` and the same links, with nothing in flight."""
        other = copy.copy(self)
        other._begin_on(env)
        return other

    def _begin_on(self, env: simpy.Environment | None) -> None:
        """Discard everything in flight and take times from `env`; if None, an environment is created when needed."""
        self._env = env
        self._clock: Clock | None = None
        self._draws: dict[str, np.random.Generator] = {}

    @property
    def env(self) -> simpy.Environment:
        """The SimPy environment of `transfer` and `run`."""
        if self._env is None:
            import simpy

            self._env = simpy.Environment()
        return self._env

    def _drawing(self, what: str) -> np.random.Generator:
        """Return the random generator for the ``jitter`` or the ``routes`` (`what`) of single transfers."""
        if what not in self._draws:
            self._draws[what] = named_stream(self.seed, what, "transfer")
        return self._draws[what]

    def path(self, src: int, dst: int, t: float = 0.0) -> tuple[float, float]:
        """Return latency [s] and bottleneck bandwidth [byte/s] of the route from host `src` to `dst` at time `t` [s].

        Constant background load is subtracted, flows are not. With packet loss it is the goodput of a single transfer.
        """
        return self.links.path(src, dst, t)

    def transfer(self, src: int, dst: int, nbytes: float) -> simpy.Event:
        """Send `nbytes` from host `src` to host `dst` now; return the SimPy event of the arrival.

        The event's value is the arrival time [s]. A transfer that can never finish fails with `StalledError`.

        Raises
        ------
        ValueError
            If `nbytes` is negative or not finite, or there is no route.
        """
        check_bounds(nbytes, Size, "nbytes")
        delay = 0.0 if self.jitter is None else float(draw_jitter(self.jitter, self._drawing("jitter"), 1)[0])
        pick = int(self._drawing("routes").integers(_PICKS)) if self.routing == "flow" else 0
        self.routes.route(src, dst)
        return self._own_clock().transfer(src, dst, float(nbytes), delay, pick)

    def expect(self, messages: int) -> None:
        """Announce how many messages `transfer` and `run` will carry; for many messages the event loop is compiled.

        Times do not depend on it.
        """
        self._own_clock().expect(messages)

    def run(
        self,
        schedule: Schedule | Parts,
        start: float | ArrayLike | None = None,
        *,
        messages: bool = False,
        **entry: Unpack[Entry],
    ) -> simpy.Event:
        """Start a schedule now or later, next to other traffic; return the SimPy event of its completion.

        The event's value is a `Timing`; a schedule that can never finish fails with `StalledError`. Parameters are
        those of `time`; `start` defaults to now and must not lie in the past.

        Notes
        -----
        The timing counts from an origin: the last time the network was idle, more than a second after the previous
        origin. `env.now` itself is absolute and has a resolution of only 0.1 us at 1e9 s.
        """
        clock = self._own_clock()
        now = clock.origin + clock.now()
        if start is None:
            # The clock knows its time better than a double that counts from 0.
            start = max(0.0, math.nextafter(now, 0.0) - (entry.get("origin") or 0.0))
        program = self._prepared(parts_of(schedule), start, True, **entry)
        earliest = program.origin + float(program.start.min())
        # SimPy's sums of delays may be off by a rounding.
        if earliest < (1 - 1e-9) * now:
            raise ValueError(f"start must not be before now, {now:g} s, got {earliest:g} s")
        return clock.run(TimedRun(program, self.env.event(), messages))

    def time(
        self,
        schedule: Schedule | Parts,
        start: float | ArrayLike = 0.0,
        *,
        messages: bool = False,
        **entry: Unpack[Entry],
    ) -> Timing:
        """Return the timing of a schedule that has the network to itself, except for background traffic.

        It runs on a clock of its own: `env` does not move, and repeated calls give the same answer.

        Parameters
        ----------
        schedule : Schedule or sequence of (Schedule, ready)
            With a sequence, each rank goes through the schedules in order and enters each no earlier than its time
            `ready` [s] (scalar or shape (P,)), as buckets of a gradient that become ready one by one.
        start : float or array_like, shape (P,)
            When each rank enters [s].
        messages : bool
            Whether to keep start and finish of every message.
        **entry
            Hosts, failures, computing and the like: `simnet.network.program.Entry`.

        Raises
        ------
        SimnetError
            If the engine is ``vectorised`` and cannot time the schedule.
        StalledError
            If the schedule can never finish; names the waiting ranks, what each waits for, and who failed.
        ValueError
            If the placement, a failure, or the shape of `computing` is invalid, or ready times decrease.

        Examples
        --------
        >>> from simnet import topologies
        >>> from simnet.schedule import Round, Schedule
        >>> network = Network(topologies.star(2, latency=1e-3, bandwidth=1e6))
        >>> network.time(Schedule(2, [Round([0], [1], [500])])).finish
        0.0015
        """
        parts = parts_of(schedule)
        # Rings stand for themselves where a few ranks stand for all.
        program = self._prepared(parts, start, cut=False, **entry)
        if self.engine != "fluid" and self._is_alone(program):
            accelerator = self._max_plus if self.stack == IDEAL else self._symmetric_ranks
            timing = accelerator.time(program, messages)
            if timing is not None:
                return timing
        if self.engine == "vectorised":
            raise SimnetError(
                "the max-plus clock (engine vectorised) cannot time this: messages meet, or meet flows of others, or "
                "wait for too long, or ranks fail, or kernels queue"
                f"{'' if self.stack == IDEAL else ', or ranks are out of step on this stack'}"
            )
        if self.stack.pieces > 1:
            program = self._prepared(parts, start, cut=True, **entry)
        return _time_events(self._timing, program, messages)

    def _is_alone(self, program: Program) -> bool:
        """Return whether a program's times depend only on its own messages, and on how links vary over time."""
        # No rank fails or computes on a stream, no other flows are there, and each message has one route, without loss
        # if links change.
        links = self.links
        is_steady = links.constant or (self.on_outage == "wait" and links.lossless)
        has_one_route = self.routing in ("hash", "single")
        return is_steady and has_one_route and not (links.flows or program.failures or program.streams)

    def _own_clock(self) -> Clock:
        if self._clock is None:
            from simnet.network.simpy_clock import Clock

            self._clock = Clock(self.env, self._engines(alone=False))
        return self._clock

    def _prepared(
        self, parts: Parts, start: float | ArrayLike, cut: bool, stream: tuple[str | int, ...] = (), **entry: Any
    ) -> Program:
        """Return schedules as a program, with checked entry times and random draws; `cut` splits rounds on rings."""
        n_ranks = parts[0][0].n_ranks
        for schedule, _ in parts:
            if schedule.n_ranks != n_ranks:
                raise ValueError(f"the schedules have {n_ranks} and {schedule.n_ranks} ranks")
        hosts = hosts_of(entry.get("placement"), n_ranks, self.routes.n_hosts)
        bare, software = parts, None
        of_rounds = partial(self._software_of, bare, hosts, cut=cut)
        if self.software is not None:
            parts = [(self.software(schedule, hosts), ready) for schedule, ready in bare]
            software = np.zeros(n_ranks)
            for (with_it, _), (without, _) in zip(parts, bare, strict=True):
                software += with_it.compute() - without.compute()
        parts = [(self.stack.arranged(schedule), ready) for schedule, ready in parts]
        if cut:
            parts = [(self.stack.cut(schedule), ready) for schedule, ready in parts]
        origin, gated, entered, accounted = entry_times(parts, start, entry.get("accounted_from"), entry.get("origin"))
        by_flow = self.routing == "flow"
        cold = self._slow_start([one for one, _ in parts], hosts, entry.get("silence", 0.0), origin)
        n_messages = sum(one.n_messages for one, _ in parts) if self.jitter is not None or by_flow else cold.size
        delays = Delays(self.jitter, lambda: named_stream(self.seed, "jitter", *stream), n_messages, cold)
        picks = np.zeros(0, dtype=np.int64)
        if by_flow:
            picks = named_stream(self.seed, "routes", *stream).integers(_PICKS, size=n_messages)
        program = Program(
            origin,
            gated,
            hosts,
            entered,
            np.maximum(entered, accounted),
            delays,
            picks,
            failures_of(entry.get("deaths") or {}, n_ranks),
            software,
            None if software is None else of_rounds,
        )
        computing = entry.get("computing")
        return program if computing is None else program.beside(computing, [one for one, _ in bare], of_rounds)

    def _slow_start(self, schedules: Sequence[Schedule], hosts: Ranks, silence: float, moment: float) -> Floats:
        """Return by how much TCP slow start delays each message after idling `silence` [s]; empty if it is off."""
        window, payload = self.stack.initial_window, 1.0
        if not window or silence <= LEAST_TIMEOUT:
            return np.zeros(0)
        if self.stack.segment:
            payload = self.stack.segment / (self.stack.segment + self.stack.beside)

        def path(src: int, dst: int) -> tuple[float, float]:
            latency, bandwidth = self.path(src, dst, moment)
            return latency, payload * bandwidth

        rounds = [one for each in schedules for one in each.rounds]
        return slow_start_delays(rounds, hosts, path, window, silence, self.stack.ahead(rounds))

    def _software_of(self, parts: Parts, hosts: Ranks, *, cut: bool) -> list[float | Floats]:
        """Return the seconds of library computation before each round: one per rank, or one for all ranks."""
        found: list[float | Floats] = []
        for schedule, _ in parts:
            idle = schedule.without_work()
            if self.software is not None:
                idle = self.software(idle, hosts)
            idle = self.stack.arranged(idle)
            found += [one.compute for one in (self.stack.cut(idle) if cut else idle).rounds]
        return found


def _time_events(engines: EngineSelector, program: Program, messages: bool = True) -> Timing:
    """Return the timing of a program on an otherwise idle network, by the event loop."""
    # Loaded where messages meet, and only there.
    import simpy

    from simnet.network.simpy_clock import Clock

    env = simpy.Environment(initial_time=float(program.start.min()))
    clock = Clock(env, engines, program.origin)
    timing = env.run(until=clock.run(TimedRun(program, env.event(), messages)))
    assert isinstance(timing, Timing)
    return timing


def _small_timer(overheads: tuple[float, float], stack: Stack, graph: Graph) -> Callable[[Schedule], Timing]:
    """Return a function that times a schedule and its messages by the event loop on the network `graph`."""
    send, receive = overheads
    few = Network(graph, send_overhead=send, receive_overhead=receive, stack=stack, engine="fluid")
    return partial(few.time, messages=True)
