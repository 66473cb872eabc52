"""The tables under the network, and delays of messages: stretches never overlap, nothing depends on pieces."""

import dataclasses
from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sharing import max_min_shares
from simnet.network.event_loop.records import Link
from simnet.network.tables import Store
from simnet.topologies.routes import route_table


@pytest.mark.parametrize("compiled", [False, True])
@settings(max_examples=20, deadline=None)
@example(steps=[(2, False)] * 4 + [(0, True), (0, False), (0, False), (0, True), (4, False)])
@given(steps=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=30))
def test_stretches_are_as_new_apart_and_keep_what_is_written(compiled, steps):
    store, held = Store(compiled, 0), {}
    new = dataclasses.asdict(Link())
    for number, (count, give) in enumerate(steps, start=1):
        if give and held:
            at = sorted(held)[number % len(held)]
            store.links.give_back(at, held.pop(at)[0])
            continue
        at = store.links.take(count)
        assert not any(at < other + length and other < at + count for other, (length, _) in held.items())
        for field, value in new.items():
            np.testing.assert_array_equal(store.links.read(field, at, count), np.full(count, value))
        store.links.write(at, count, capacity=number, users=np.arange(count), is_dirty=True)
        if count:
            held[at] = count, number
        for other, (length, value) in held.items():
            assert store.links.read("capacity", other, length).tolist() == [value] * length
            assert store.links.read("users", other, length).tolist() == list(range(length))
            assert all(store.state.links[row].is_dirty for row in range(other, other + length))
    for at, (length, _) in held.items():
        store.links.give_back(at, length)
    assert (size := store.links.size, store.links.take(size), store.links.size) == (size, 0, size)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_flows_keep_their_places_when_longer_routes_come(compiled, order):
    capacity = [6.0, 8.0, 1.0, 9.0, 9.0]
    store = Store(compiled, 5, hops=2)
    store.links.write(0, 5, capacity=capacity)
    store.make_room(flows=3)
    routes = [(0, 1), (1,), (3, 1), (4, 3, 0, 2)]

    def start(route):
        f = store.loop.take_flow(store.state)
        store.flows.write(f, 1, route=store.add_routes(route_table([route])), limit=np.inf, remaining=np.inf)
        store.loop.start_flow(store.state, f, 0.0)
        return f

    flows = [start(route) for route in routes[:3]]
    store.loop.settle_rates(store.state, 0.0)
    store.make_room(flows=1, hops=4)
    flows.append(start(routes[3]))
    here = set(range(4))
    for leaving in order:
        store.loop.settle_rates(store.state, 0.0)
        rates = [store.state.flows[flows[one]].rate for one in sorted(here)]
        assert rates == pytest.approx(max_min_shares([routes[one] for one in sorted(here)], capacity))
        store.loop.detach_flow(store.state, flows[leaving])
        here.remove(leaving)
    assert store.links.read("users").tolist() == [0] * 5
    assert store.links.read("first_membership").tolist() == [-1] * 5
