"""The clock of a network, function by function, beside engines that note what they are asked."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from simnet.network import simpy_clock
from simnet.network.event_loop.records import ARRIVED, DONE, STALLED
from simnet.network.simpy_clock import Clock


class Noted:
    """An event that notes how it ended."""

    def succeed(self, value):
        self.value, self.error = value, None

    def fail(self, error):
        self.value, self.error = None, error


@pytest.mark.parametrize(
    ("chooses", "zero", "begun", "fails"),
    [(True, 1e16, 0.25, True), (True, 1e16, 0.5, False), (False, 1e16, 0.25, False), (True, 1.0, 0.25, False)],
)
def test_an_exchange_fails_that_begins_and_ends_at_one_time_of_simpy(chooses, zero, begun, fails):
    done = Noted()
    Clock._settle(SimpleNamespace(_chooses=chooses, _zero=zero), done, "all", begun, 0.5)
    assert done.value == (None if fails else "all")
    assert str(done.error) == (
        "an exchange that takes 0.25 s cannot be told at 1e+16 s, where the environment's times are 2 s apart; "
        "begin nearer to 0"
        if fails
        else "None"
    )


def test_callers_are_told_what_has_happened_to_theirs():
    told, called = [], []
    engine = SimpleNamespace(
        state=SimpleNamespace(now=3.0),
        origin=10.0,
        notices=lambda: [(ARRIVED, 1), (DONE, 2), (STALLED, 4)],
        arrived=lambda: called.append("arrived"),
    )
    run = SimpleNamespace(done="done", leave=lambda engine: SimpleNamespace(entered=np.array([2.0, 1.0, 3.0])))
    stalled = SimpleNamespace(stalled=lambda *about: about[1:], fail=lambda engine, error: called.append(error))
    clock = SimpleNamespace(
        _engine=engine,
        _transfers={1: SimpleNamespace(done="there", sent=0.5), 5: None},
        _runs={2: run, 4: stalled, 6: None},
        _settle=lambda *about: told.append(about),
    )
    Clock._tell(clock)
    assert told[0] == ("there", 13.0, 0.5, 3.0)
    assert (told[1][0], *told[1][2:]) == ("done", 1.0, 3.0)
    assert called == ["arrived", ({}, 3.0)]
    assert (list(clock._transfers), list(clock._runs)) == ([5], [6])


def test_there_is_hope_for_so_long_as_bytes_get_through(monkeypatch):
    monkeypatch.setattr(simpy_clock, "_PATIENCE", 3)
    flows = [SimpleNamespace(remaining=size) for size in (5.0, 6.0, 7.0)]
    state = SimpleNamespace(watching=True, flows=flows)
    engine = SimpleNamespace(state=state, next_link_up=lambda: 40.0, next_up=lambda routes: 50.0 + len(list(routes)))
    clock = SimpleNamespace(_engine=engine, _waits=0, _left=(0, 0.0))
    found = [Clock._hope(clock, {0: (1,), 2: (3,)}) for _ in range(4)]
    assert found == [40.0, 40.0, 40.0, math.inf]
    flows[0].remaining = 4.0
    assert (Clock._hope(clock, {0: (1,), 2: (3,)}), clock._waits) == (40.0, 0)
    assert (Clock._hope(clock, {0: (1,), 2: (3,)}), clock._waits) == (40.0, 1)
    assert (Clock._hope(clock, {0: (1,)}), clock._waits, clock._left) == (40.0, 0, (1, 4.0))
    state.watching = False
    assert Clock._hope(clock, {0: (1,)}) == 51.0


def test_links_that_are_down_are_named():
    capacity = {0: 5.0, 1: 0.0, 2: 0.0, 3: 1e-9}
    names = [(0, "a"), ("a", "b"), ("b", 1), (1, 2)]
    links = SimpleNamespace(routes=SimpleNamespace(links=names), capacity=lambda link, moment: (capacity[link], moment))
    clock = SimpleNamespace(_links=links)
    assert Clock._what_is_down(clock, [0, 1, 2], 3.0) == "no capacity on a->b, b->1"
    assert Clock._what_is_down(clock, [0, 3], 3.0) == "next to no capacity"


def waiting(engine, **about):
    """A clock with nothing under way, at 2 s of the environment, that counts from 0.5 s."""
    given = {"_runs": {}, "_transfers": {}, "_chooses": True, "_zero": 0.5, "_armed": 7.0, "_alarm": "set"}
    given |= {"env": SimpleNamespace(now=2.0), "_engine": engine, "now": lambda: 1.5}
    clock = SimpleNamespace(**{**given, **about})
    clock._engines = SimpleNamespace(take=lambda what: clock.__dict__.setdefault("taken", engine))
    return clock


def engine_at(horizon=math.inf):
    state = SimpleNamespace(now=0.0, send_overhead=0.25, horizon=horizon)
    engine = SimpleNamespace(state=state, origin=0.5, begun=[], looked=[])
    engine.begin = lambda *about: engine.begun.append(about)
    engine.look_ahead = engine.looked.append
    return engine


def test_an_idle_network_counts_anew_once_its_times_have_lost_digits():
    engine = engine_at()
    clock = waiting(engine)
    Clock.expect(clock, 1)
    assert (engine.begun, engine.state.now, clock._zero, clock._alarm) == ([(2.0, 0.0)], 0.0, 2.0, None)
    assert clock._armed == math.inf
    for about in ({"_runs": {0: 1}}, {"_transfers": {0: 1}}, {"_chooses": False}, {"now": lambda: 1.0}):
        engine = engine_at()
        clock = waiting(engine, **about)
        Clock.expect(clock, 1)
        assert (engine.begun, engine.state.now, clock._zero, clock._armed) == ([], clock.now(), 0.5, 7.0)


def test_another_engine_goes_on_at_the_time_of_the_one_before():
    before, engine = engine_at(), engine_at()
    clock = waiting(before, taken=engine, _chooses=False)
    Clock.expect(clock, 1)
    assert (clock._engine is engine, engine.begun, engine.state.now, before.begun) == (True, [(0.5, 1.5)], 1.5, [])


@pytest.mark.parametrize(("horizon", "looked"), [(1.7, [1.5]), (1.75, [1.5]), (1.8, [])])
def test_the_weather_is_known_up_to_when_a_message_would_leave(horizon, looked):
    engine = engine_at(horizon)
    Clock.expect(waiting(engine, _chooses=False), 1)
    assert engine.looked == looked


def test_a_message_has_room_and_a_number_of_its_own():
    asked, sent = [], []
    engine = SimpleNamespace(state=SimpleNamespace(now=3.0), transfer=lambda *about: sent.append(about))
    clock = SimpleNamespace(
        expect=asked.append,
        _count=4,
        _transfers={},
        env=SimpleNamespace(event=Noted),
        _engine=engine,
        _arm=lambda: asked.append("armed"),
    )
    done = Clock.transfer(clock, 0, 1, 100.0, 0.5, 9)
    assert asked == [1, "armed"]
    assert sent == [(0, 1, 100.0, 0.5, 9, 5)]
    assert clock._transfers == {5: (done, 0, 1, 3.0)}


def test_time_is_that_of_the_last_batch_where_simpys_is_the_same_to_rounding():
    def now(reached, own):
        state = SimpleNamespace(state=SimpleNamespace(now=reached))
        return Clock.now(SimpleNamespace(_engine=state, env=SimpleNamespace(now=own + 8.0), _zero=8.0))

    assert now(2.0, 2.0 + math.ulp(8.0)) == 2.0
    assert now(2.0, 2.0 + 2 * math.ulp(8.0)) == 2.0 + 2 * math.ulp(8.0)
    assert now(2.0, 2.5) == 2.5
