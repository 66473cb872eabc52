"""The link between a network and SimPy: the event loop runs from one SimPy event to the next.

SimPy is the master of time. One of its events represents the next event of the network. When it fires, the engine
processes what is due and advances by itself until the next event of anyone else, or until a caller has to be notified.
The engine counts seconds from an origin, which moves up when the network has been idle.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import simpy

from simnet.base.errors import SimnetError, StalledError
from simnet.network.engine_selection import EngineSelector
from simnet.network.event_loop import codes
from simnet.network.program import Program
from simnet.network.timing import TimedRun

# Links that come up while nothing moves, after which there is no more waiting for a route around those that are down.
_PATIENCE = 20_000

# Seconds since the origin after which an idle network counts anew: up to there times are exact to some 1e-16 s.
_LATE = 1.0


class Clock:
    """Runs the messages and schedules in flight on a network in step with the time of a SimPy environment.

    - `env`: its time.
    - `engines`: the engine; not shared with another clock.
    - `origin`: the moment from which the environment's time counts [s]; by default 0, with a moving origin inside.
    """

    def __init__(self, env: simpy.Environment, engines: EngineSelector, origin: float | None = None) -> None:
        self.env = env
        self._engines = engines
        self._engine = engines.take(0)
        self._chooses = origin is None
        # When SimPy's time counts as the environment's, and that of the engine.
        self._zero = float(env.now) if origin is None else 0.0
        self._engine.reset(self._zero if origin is None else origin, float(env.now) - self._zero)
        self._links = engines.links
        self._armed = math.inf
        self._alarm: simpy.Event | None = None
        self._runs: dict[int, TimedRun] = {}
        self._transfers: dict[int, _SingleTransfer] = {}
        self._tokens = itertools.count()
        self._waits, self._left = 0, (0, 0.0)

    def now(self) -> float:
        """Return the present time of the event loop, or of SimPy if that is later [s after `origin`]."""
        reached, own = self._engine.state.now, float(self.env.now) - self._zero
        return reached if own - reached <= math.ulp(self.env.now) else own

    @property
    def origin(self) -> float:
        """Absolute time [s] from which the event loop's times count."""
        return self._engine.origin

    def transfer(self, src: int, dst: int, nbytes: float, delay: float, pick: int) -> simpy.Event:
        """Send a message now on candidate route `pick`, with extra latency `delay` [s]; return its arrival event."""
        self.expect(1)
        token = next(self._tokens)
        one = self._transfers[token] = _SingleTransfer(self.env.event(), src, dst, self._engine.state.now)
        self._engine.transfer(src, dst, nbytes, delay, pick, token)
        self._arm()
        return one.done

    def run(self, run: TimedRun) -> simpy.Event:
        """Start the ranks of a schedule; return the event of its completion."""
        self.expect(run.program)
        self._runs[run.enter(self._engine, self._engine.state.now)] = run
        self._arm()
        return run.done

    def expect(self, what: Program | int) -> None:
        """Prepare the event loop for another program, or for `what` more messages."""
        now = self.now()
        engine = self._engines.take(what)
        if not self._runs and not self._transfers:
            origin = self._engine.origin
            anew = self._chooses and now > _LATE
            if anew:
                origin = float(self.env.now)
                now -= origin - self._zero
                self._zero, self._armed, self._alarm = origin, math.inf, None
            if anew or engine is not self._engine:
                self._engine = engine
                engine.reset(origin, now)
        s = self._engine.state
        s.now = now
        if now + s.send_overhead >= s.horizon:
            self._engine.look_ahead(now)

    def _arm(self) -> None:
        """Set the SimPy time-out for the event loop's next event."""
        if not self._runs and not self._transfers:
            return
        s = self._engine.state
        self._wake_at(s.now if s.n_notices else self._engine.loop.next_event_time(s))

    def _wake_at(self, time: float) -> None:
        if time < self._armed:
            self._armed = time
            # SimPy adds delays to its own now, which may miss `time` by a rounding.
            self._alarm = self.env.timeout(max(0.0, time - (self.env.now - self._zero)))
            assert self._alarm.callbacks is not None
            self._alarm.callbacks.append(self._wake)

    def _wake(self, event: simpy.Event) -> None:
        if event is not self._alarm:
            return
        time, self._armed, self._alarm = self._armed, math.inf, None
        engine, s = self._engine, self._engine.state
        while self._runs or self._transfers:
            if s.n_notices:
                if s.now > time:
                    break
                self._tell()
                continue
            came_to = engine.loop.advance(s, time, float(self.env.peek()) - self._zero)
            if came_to == codes.WAITING:
                break
            if came_to == codes.STUCK:
                if s.now > time:
                    self._wake_at(s.now)
                    return
                self._give_up()
            elif came_to == codes.GROW:
                engine.grow()
            elif came_to == codes.EXTEND:
                engine.look_ahead(engine.loop.next_event_time(s))
            elif came_to == codes.OUTAGE:
                engine.reroute()
        self._arm()

    def _tell(self) -> None:
        """Trigger the SimPy events of transfers that have arrived, and of schedules that have completed or stalled."""
        engine = self._engine
        now = engine.state.now
        for kind, item in engine.notices():
            if kind == codes.ARRIVED:
                engine.arrived()
                transfer = self._transfers.pop(item)
                self._settle(transfer.done, engine.origin + now, transfer.sent, now)
            elif kind == codes.DONE:
                run = self._runs.pop(item)
                timing = run.leave(engine)
                self._settle(run.done, timing, float(timing.entered.min()), now)
            else:
                run = self._runs.pop(item)
                run.fail(engine, run.stalled(engine, {}, now))

    def _settle(self, done: simpy.Event, value: object, begun: float, now: float) -> None:
        """Let the event `done` succeed with `value`, or fail if SimPy's time cannot resolve the duration."""
        at = self._zero + now
        if not self._chooses or begun == now or self._zero + begun != at:
            done.succeed(value)
            return
        done.fail(
            SimnetError(
                f"an exchange that takes {now - begun:.3g} s cannot be told at {at:g} s, where the environment's times "
                f"are {math.ulp(at):.2g} s apart; begin nearer to 0"
            )
        )

    def _give_up(self) -> None:
        """Fail all transfers and schedules if no blocked message can move again; else wait for links to recover."""
        engine = self._engine
        now = engine.state.now
        messages = engine.under_way()
        blocked = {f: engine.route(f) for f in messages if engine.is_blocked(f)}
        hope = self._recovery_time(blocked)
        if hope < math.inf:
            engine.state.hope = hope
            return
        held: dict[int, dict[tuple[int, int], str]] = {}
        failures: list[Callable[[], object]] = []
        for f in messages:
            why = self._what_is_down(blocked.get(f, ()), engine.moment(now))
            owner, token = engine.owner(f)
            if owner == codes.TRANSFER:
                one = self._transfers.pop(token)
                engine.arrived()
                waits = f"host {one.dst} waits for a message from host {one.src}: {why}"
                message = f"a transfer stopped for ever at {engine.origin + now:g} s:"
                error = StalledError(message, [waits], now, origin=engine.origin)
                failures.append(functools.partial(one.done.fail, error))
            elif f in blocked:
                held.setdefault(owner, {})[engine.place(f)] = why
        for e, run in self._runs.items():
            failures.append(functools.partial(run.fail, engine, run.stalled(engine, held.get(e, {}), now)))
        self._runs.clear()
        engine.clear()
        for fail in failures:
            fail()

    def _recovery_time(self, blocked: Mapping[int, Sequence[int]]) -> float:
        """Return the time [s] of the next link recovery worth waiting for; infinity to give up the blocked messages."""
        engine = self._engine
        if not engine.state.watching:
            return engine.next_up(blocked.values())
        # Any link that comes up may open a route, but need not: only so often without a byte that got through.
        left = len(blocked), math.fsum(engine.state.flows[f].remaining for f in blocked)
        self._waits = self._waits + 1 if left == self._left else 0
        self._left = left
        return engine.next_link_up() if self._waits < _PATIENCE else math.inf

    def _what_is_down(self, route: Sequence[int], moment: float) -> str:
        names = self._links.routes.links
        down = [f"{names[link][0]}->{names[link][1]}" for link in route if self._links.capacity(link, moment)[0] <= 0]
        return f"no capacity on {', '.join(down)}" if down else "next to no capacity"


class _SingleTransfer(NamedTuple):
    """A message in flight that `Clock.transfer` sent: its arrival event, hosts, and time of sending [s]."""

    done: simpy.Event
    src: int
    dst: int
    sent: float
