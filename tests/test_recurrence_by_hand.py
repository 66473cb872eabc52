"""How bytes cross links whose bandwidth moves, beside a walk from change to change, and latencies that add up."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from simnet.network import outlook, recurrence
from simnet.network.recurrence import BEYOND, CROSSED, NEVER, Cursors, RouteState


def timelines_of(links):
    """Cursors over timelines, of which each is given as its starts and values, and begins anywhere, and the firsts."""
    times, values, first = [], [], []
    for starts, levels, known in links:
        first.append(len(times))
        times += [*starts, known, math.inf]
        values += [*levels, -1.0, -1.0]
    return Cursors(np.array(times), np.array(values), np.array(first)), first


def in_force(link, t):
    """The segment of a timeline that holds at a time: since when, until when and its value."""
    starts, levels, known = link
    times = [*starts, known, math.inf]
    at = int(np.searchsorted(times, t, side="right")) - 1
    return times[at], times[at + 1], [*levels, -1.0, -1.0][at]


def walked(links, now, nbytes):
    """How bytes cross links from a time on: how that ends, when, and since and until when the last rate holds."""
    while True:
        since, until, rates = zip(*(in_force(link, now) for link in links), strict=True)
        rate, change = min(rates), min(until)
        if rate < 0:
            return BEYOND, now, None
        if rate > 0 and now + nbytes / rate <= change:
            return CROSSED, now + nbytes / rate, (max(since), change, rate)
        if change == math.inf:
            return NEVER, now, None
        nbytes, now = nbytes - rate * (change - now), change


LINKS = [
    ([0.0, 1.0, 2.0, 5.0], [4.0, 0.0, 8.0, 2.0], 30.0),
    ([0.0, 1.5, 2.5, 4.0, 4.5], [6.0, 1.0, 16.0, 0.0, 3.0], math.inf),
    ([0.0, 0.5, 3.0], [2.0, 32.0, 4.0], math.inf),
    ([0.0, 6.0], [5.0, 0.0], math.inf),
    ([0.0], [3.0], math.inf),
]


def state(count):
    return RouteState(*(np.zeros(count) for _ in RouteState._fields))


@pytest.mark.parametrize(
    "route", [(0,), (1,), (4,), (3,), (0, 1), (1, 0), (2, 3), (0, 2, 1), (1, 2, 4, 0), (4, 0, 2, 3)]
)
@pytest.mark.parametrize("now", [0.0, 0.75, 1.0, 2.5, 5.5, 7.0, 31.0])
def test_bytes_cross_links_as_a_walk_from_change_to_change_has_it(route, now):
    for nbytes in (0.5, 2.0, 4.0, 7.0, 16.0, 90.0):
        # Links were looked up at some time, before or after.
        for moved in (0, 1):
            cursors, _ = timelines_of(LINKS)
            cursors.segment[0] += moved
            routes, table = state(2), np.full((2, len(route) + 1), -1)
            table[1, : len(route)] = route
            outcome, came = recurrence._integrate(1, now, nbytes, table, route[-1], routes, cursors)
            wanted, when, last = walked([LINKS[link] for link in route], now, nbytes)
            assert (outcome, came) == (wanted, pytest.approx(when))
            if last is not None:
                since, until, rate = last
                assert (routes.rate_since[1], routes.rate_until[1]) == (since, until)
                assert routes.seconds[1] == nbytes / rate
                at = in_force(LINKS[route[-1]], max(since, now))[2]
                assert routes.own[1] == nbytes / at
            assert routes.seconds[0] == routes.own[0] == 0.0


@pytest.mark.parametrize("now", [0.0, 0.75, 1.0, 2.5, 5.5, 7.0, 31.0])
@pytest.mark.parametrize("link", range(len(LINKS)))
def test_bytes_leave_their_host_at_the_pace_of_its_link(link, now):
    for nbytes in (0.5, 2.0, 4.0, 7.0, 16.0, 90.0):
        cursors, first = timelines_of(LINKS)
        outcome, left = recurrence._leave(link, now, nbytes, cursors)
        wanted, when, _ = walked([LINKS[link]], now, nbytes)
        assert (outcome, left) == (wanted, pytest.approx(when))
        assert cursors.segment.tolist() == first


def test_no_links_take_no_time():
    cursors, _ = timelines_of(LINKS)
    assert recurrence._integrate(0, 3.0, 9.0, np.full((1, 2), -1), -1, state(1), cursors) == (CROSSED, 3.0)


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0, 3.5, 6.0, 29.0])
def test_latencies_of_a_route_add_up_and_hold_until_the_first_changes(t):
    cursors, _ = timelines_of(LINKS)
    routes, table = state(2), np.array([[4, -1, -1, -1], [0, 3, 2, -1]])
    assert recurrence._look_up_latency(1, t, table, routes, cursors) is True
    since, until, values = zip(*(in_force(LINKS[link], t) for link in (0, 3, 2)), strict=True)
    assert (routes.latency[1], routes.latency_since[1], routes.latency_until[1]) == (
        sum(values),
        max(since),
        min(until),
    )
    assert routes.latency[0] == 0.0


def test_a_latency_that_is_not_known_yet_is_not_taken():
    cursors, _ = timelines_of(LINKS)
    routes, table = state(1), np.array([[3, 0]])
    assert recurrence._look_up_latency(0, 30.0, table, routes, cursors) is False
    assert routes.latency[0] == 0.0


@pytest.mark.parametrize("times", [[1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 2.0], [2.0, 1.0, 1.0], [1.0, 2.0, 1.0]])
def test_times_are_all_equal_or_not(times):
    assert recurrence._all_equal(np.array(times)) is (len(set(times)) == 1)


def test_segments_are_found_from_before_and_from_behind():
    times = np.array([0.0, 1.0, 1.5, 4.0, math.inf])
    for t in (0.0, 0.5, 1.0, 1.5, 3.0, 4.0, 9.0):
        wanted = int(np.searchsorted(times, t, side="right")) - 1
        assert {recurrence._segment_at(times, at, t) for at in range(4)} == {wanted}


def looking(first, last, sizes=(40, 50), waiting=3):
    """An outlook on links whose bandwidth and latency are known for segments from a first to a last."""
    looked = []
    one = SimpleNamespace(
        _timelines=[
            SimpleNamespace(first=np.array(first) + at, last=np.array(last) + at, times=np.zeros(size), until=9.0 - at)
            for at, size in enumerate(sizes)
        ],
        _waiting=waiting,
        _n_messages=20,
        _start=1.0,
        _origin=2.0,
        _look=lambda *about: looked.append(about),
    )
    return one, looked


def test_more_weather_is_looked_up_in_proportion_to_what_is_through(monkeypatch):
    monkeypatch.setattr(outlook, "_PATIENCE", 30)
    one, looked = looking([0, 5, 20], [4, 18, 90])
    assert outlook.Outlook.extend(one, 5, np.array([1, 0, -1]), 2.0, 3.0) is True
    # Four segments and thirteen, of which there are fewer than messages; twice as long as for the quarter that is done.
    assert (one.effort, one._waiting, looked) == (20, 5, [(2.0, 3.0, 1.0 + 1.25 * 2.0 * 4)])
    assert outlook.Outlook.extend(one, 5, np.array([2, -1, -1]), 2.0, 3.0) is False
    assert len(looked) == 1
    one._waiting = 4
    assert outlook.Outlook.extend(one, 5, np.array([2, -1, -1]), 2.0, 3.0) is True
    assert one.effort == 70
    assert outlook.Outlook.extend(one, 0, np.array([0, -1, -1]), 2.0, 7.0) is False
    assert looked[-1] == (2.0, 7.0, 1.0 + 1.25 * 6.0 * 20)


def test_weather_that_is_too_much_or_too_far_is_not_looked_up(monkeypatch):
    route = np.array([0, -1])
    for name, most in (("_HELD", 89), ("_LONGEST", 0.5)):
        with monkeypatch.context() as patch:
            patch.setattr(outlook, name, most)
            one, looked = looking([0], [4])
            assert outlook.Outlook.extend(one, 5, route, 2.0, 3.0) is False
            assert looked == []
            patch.setattr(outlook, name, 2 * most)
            assert outlook.Outlook.extend(one, 5, route, 2.0, 3.0) is True
