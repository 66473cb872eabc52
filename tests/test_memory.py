"""The memory under the network, and delays of messages: stretches never overlap, nothing depends on pieces."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simnet.network import event_loop as k
from simnet.network import jitter as jitter_module
from simnet.network.jitter import Delays
from simnet.network.memory import Store


@pytest.mark.parametrize("compiled", [False, True])
@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=30))
def test_stretches_are_zero_apart_and_keep_what_is_written(compiled, steps):
    store, held = Store(compiled, 3), {}
    for number, (size, give) in enumerate(steps, start=1):
        if give and held:
            at = sorted(held)[number % len(held)]
            store.give_back(at, held.pop(at)[0])
            continue
        at = store.take(size)
        assert not any(at < other + length and other < at + size for other, (length, _) in held.items())
        assert at >= k.N_FIRST
        assert (store.read("n", at, size) == 0).all()
        store.write("n", at, size, number)
        held[at] = size, number
        for other, (length, value) in held.items():
            assert (store.read("n", other, length) == value).all()


def test_flows_of_before_a_longer_way_are_not_taken_for_it():
    store = Store(False, 2, hops=1)
    store.make_room(flows=2)
    early = store.kernel.take_flow(store.memory)
    store.make_room(flows=2, hops=5)
    store.kernel.free_flow(store.memory, early)
    taken = [store.kernel.take_flow(store.memory) for _ in range(3)]
    assert early not in taken
    assert all(store.memory.n[f + k.FLOW_HOPS] == 5 for f in taken)
    assert len(set(taken)) == 3


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 40))
def test_delays_do_not_depend_on_who_asks_for_how_many(counts, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jitter_module, "_BLOCK", block)
        delays = Delays(lambda draws, n: draws.exponential(1.0, n), lambda: np.random.default_rng(3), sum(counts))
        read = delays.reader()
        np.testing.assert_array_equal(np.concatenate([np.zeros(0), *map(read, counts)]), delays.all())


def test_without_jitter_there_are_no_delays():
    none = Delays(None, lambda: np.random.default_rng(0), 10)
    assert not none
    assert none.all().size == none.reader()(5).size == 0
