"""Where ranks are in step, a few of them tell the times of all: those that the event loop has for all of them."""

import itertools
import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looping import each
from simnet import topologies
from simnet.base.errors import SimnetError
from simnet.collectives import (
    allgather_ring,
    allreduce_recursive_doubling,
    allreduce_ring,
    alltoallv_pairwise,
    broadcast_binomial,
)
from simnet.network import Network, OnOffFlow
from simnet.network.stack import STACKS, Stack
from simnet.network.transport import Loss, Transport
from simnet.network.weather import Weather, steps
from simnet.schedule import Call, Round, Schedule

seconds = st.just(0.0) | st.floats(1e-7, 1e-3)


def looping(size, count, compute=0.0, shift=1, ranks=8, phase=""):
    """A loop of one round: each rank sends to the one `shift` after it."""
    each = np.arange(ranks)
    return Schedule(ranks, [Round(each, (each + shift) % ranks, size, compute, phase)] * count)


@st.composite
def stacks(draw):
    send_completion = draw(st.sampled_from(["left", "taken", "acknowledged", "ready", "request"]))
    wire = {
        "segment": draw(st.sampled_from([0.0, 100.0, 1448.0])),
        "beside": draw(st.sampled_from([0.0, 90.0])),
        "acknowledged": draw(st.sampled_from([0.0, 2896.0])),
        "word": draw(st.sampled_from([0.0, 48.0, 3000.0])),
        "pieces": draw(st.integers(1, 3)),
    }
    if send_completion == "left":
        return Stack(send_completion, **wire)
    return Stack(
        send_completion,
        draw(st.sampled_from(["shared", "queue"])),
        eager_limit=draw(st.sampled_from([0.0, 700.0])),
        buffer=draw(st.sampled_from([math.inf, 100.0, 30_000.0])),
        before=draw(seconds),
        after=draw(seconds),
        before_byte=draw(st.just(0.0) | st.floats(1e-10, 1e-6)),
        after_byte=draw(st.just(0.0) | st.floats(1e-10, 1e-6)),
        rounds=draw(st.integers(1, 4)),
        posts_ahead=draw(st.booleans()),
        by_turns=draw(st.booleans()),
        gathers_send_first=draw(st.booleans()),
        **wire,
    )


def far_star(hosts, latency, switches):
    """A star whose hosts have so many switches of their own on their way to the one in the middle."""
    graph = topologies.star(hosts, latency, 1e6)
    for host in range(hosts):
        graph.remove_edges_from([(host, "switch"), ("switch", host)])
        chain = [host, *(f"{host}.{number}" for number in range(switches)), "switch"]
        for u, v in itertools.pairwise(chain):
            for link in ((u, v), (v, u)):
                graph.add_edge(*link, latency=latency / 4, bandwidth=1e6 if host in link else 2e6)
    return graph


def mesh(hosts, latency, bandwidth):
    """Hosts with a switch of their own each, all of which are connected."""
    graph = nx.DiGraph()
    for host in range(hosts):
        graph.add_edge(host, f"s{host}", latency=latency / 4, bandwidth=bandwidth)
        graph.add_edge(f"s{host}", host, latency=latency / 4, bandwidth=bandwidth)
    for one, other in itertools.permutations(range(hosts), 2):
        graph.add_edge(f"s{one}", f"s{other}", latency=latency / 2, bandwidth=2 * bandwidth)
    return graph


def uneven(draw, graph):
    """Change bandwidth or latency of one link, or of all links in one direction of hosts or between switches."""
    edges = sorted(graph.edges, key=str)
    down, across = (
        [(u, v) for u, v in edges if isinstance(u, int) == host and str(u) < str(v)] for host in (True, False)
    )
    chosen = draw(st.sampled_from([edges[:1], edges[-1:], [edges[len(edges) // 2]], down, across]))
    attribute, factor = draw(st.sampled_from(["bandwidth", "latency"])), draw(st.sampled_from([0.25, 0.5, 2.0, 4.0]))
    for edge in chosen:
        graph.edges[edge][attribute] *= factor


@st.composite
def programs(draw, changed=False):
    """A graph of 8 or 16 hosts, and schedules that ranks of it go through in step."""
    kind = draw(st.sampled_from(["star", "ring", "mesh", "far star", "farther star"]))
    latency = draw(st.sampled_from([0.0, 1e-5, 1e-3, 0.05]))
    graph = {
        "star": lambda: topologies.star(8, latency, 1e6),
        "ring": lambda: topologies.ring(8, latency, 1e6),
        "mesh": lambda: mesh(8, latency, 1e6),
        "far star": lambda: far_star(8, latency, 1),
        "farther star": lambda: far_star(16, latency, 2),
    }[kind]()
    if changed:
        uneven(draw, graph)
    ranks = sum(1 for node in graph if isinstance(node, int))
    rounds = []
    for _ in range(draw(st.integers(1, 3))):
        # Where messages take no time at all, what ranks do at one instant hangs on which of them is first.
        sizes = [1.0, 600.0, 1e4, *([0.0] if latency else [])]
        size, count = draw(st.sampled_from(sizes) | st.floats(1, 1e5)), draw(st.integers(1, 60))
        rounds += looping(
            size, count, draw(seconds), draw(st.integers(1, ranks - 1)), ranks, draw(st.sampled_from(["", "a"]))
        ).rounds
    cut = draw(st.integers(0, len(rounds)))
    ready = draw(st.sampled_from([0.0, 0.3]))
    gather = [Call(0, len(rounds) - cut, "all_gather", "", 0.0)] if draw(st.booleans()) else []
    return graph, [(Schedule(ranks, rounds[:cut]), 0.0), (Schedule(ranks, rounds[cut:], gather), ready)]


def agree(one, other):
    """Hold that two timings are the same, to 1e-9 of the time that they took."""
    near = {"rtol": 0, "atol": 1e-9 * other.duration}
    np.testing.assert_allclose(one.left, other.left, **near)
    np.testing.assert_allclose(one.split, other.split, **near)
    for column in ("sent", "arrived"):
        np.testing.assert_allclose(getattr(one.messages, column), getattr(other.messages, column), **near)
    for column in ("round", "src", "dst", "nbytes", "phase"):
        np.testing.assert_array_equal(getattr(one.messages, column), getattr(other.messages, column))
    np.testing.assert_array_equal(np.sort(one.work.rank), np.sort(other.work.rank))
    np.testing.assert_allclose(np.sort(one.work.begun), np.sort(other.work.begun), **near)
    np.testing.assert_allclose(one.software.for_messages, other.software.for_messages, **near)
    np.testing.assert_allclose(*(software_intervals(timing, near["atol"]) for timing in (one, other)), **near)


def software_intervals(timing, least):
    """Return when software of hosts begins, in order, and when it ends, of what takes longer than a rounding."""
    host = timing.software.of_ranks(timing.messages)
    return np.sort(np.stack([host.begun, host.ended])[:, host.ended - host.begun > least])


def hold_to_the_event_loop(stack, program, overhead, accounted):
    graph, parts = program
    options = {"stack": stack, "send_overhead": overhead, "receive_overhead": 2 * overhead}
    auto, fluid = (
        Network(graph, engine=engine, **options).time(parts, 5.0, messages=True, accounted_from=5.0 + accounted)
        for engine in ("auto", "fluid")
    )
    try:
        agree(auto, fluid)
    except AssertionError:
        # Where CPU work of a rank falls due at one instant, rounding decides its order: the event loop differs, too.
        near = (replace(stack, before=stack.before * (1 + n * 1e-12)) for n in (-3, -1, 1, 3))
        others = (Network(graph, engine="fluid", **options | {"stack": one}).time(parts, 5.0) for one in near)
        if all(np.abs(one.left - fluid.left).max() < 1e-9 * fluid.duration for one in others):
            raise


CASES = {
    "stack": stacks(),
    "program": programs(),
    "overhead": st.sampled_from([0.0, 1e-4]),
    "accounted": st.sampled_from([0.0, 0.01]),
}


@settings(max_examples=150)
@given(**CASES)
def test_times_are_those_of_the_event_loop(stack, program, overhead, accounted):
    hold_to_the_event_loop(stack, program, overhead, accounted)


@settings(max_examples=150)
@given(**CASES | {"program": programs(changed=True)})
def test_times_on_uneven_links_are_those_of_the_event_loop(stack, program, overhead, accounted):
    hold_to_the_event_loop(stack, program, overhead, accounted)


@pytest.mark.slow
@settings(derandomize=False, max_examples=1500)
@given(**CASES)
def test_times_are_those_of_the_event_loop_in_new_cases(stack, program, overhead, accounted):
    hold_to_the_event_loop(stack, program, overhead, accounted)


EXCHANGES = {
    "ring": lambda: allreduce_ring(16, 1e6),
    "gather": lambda: allgather_ring(16, 1e5),
    "doubling": lambda: allreduce_recursive_doubling(16, 1e5),
    "pairwise": lambda: alltoallv_pairwise(np.full((16, 16), 3e4)),
    "loop": lambda: looping(3e3, 150, ranks=16),
}


def with_software(schedule, hosts):
    """Return a schedule with 0.1 ms of library software before each round."""
    return schedule.with_work(dict.fromkeys(range(len(schedule.rounds)), 1e-4))


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("name", sorted(set(STACKS) - {"ideal"}))
def test_named_stacks_need_no_event_loop_for_exchanges_in_step(name, exchange):
    options = {"stack": name, "software": None if exchange == "doubling" else with_software}
    graph, schedule = topologies.star(16, 1e-3, 1.25e8), EXCHANGES[exchange]()
    alone = Network(graph, engine="vectorised", **options).time(schedule, messages=True)
    agree(alone, Network(graph, engine="fluid", **options).time(schedule, messages=True))


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
@pytest.mark.parametrize("nbytes", [0.0, 1e3])
def test_as_many_rounds_go_at_a_time_as_may_be_under_way(rounds, nbytes):
    stack = Stack("taken", rounds=rounds)
    auto, fluid = (
        Network(topologies.star(8, 1e-3, 1e6), stack=stack, engine=engine).time(looping(nbytes, 50), messages=True)
        for engine in ("vectorised", "fluid")
    )
    agree(auto, fluid)
    if not nbytes:
        begun = np.round(auto.messages.sent[::8] / 1e-3)
        np.testing.assert_array_equal(begun, np.arange(50) // rounds)


@pytest.mark.parametrize("late", range(4))
def test_ranks_are_in_step_once_all_have_waited_for_the_one_that_enters_late(late):
    parts = [(looping(1e3, 40, ranks=4), 5.0 + 0.1 * (np.arange(4) == late))]
    graph = topologies.star(4, 0.0, 1e6)
    vectorised, fluid = (Network(graph, engine=e).time(parts, 5.0, messages=True) for e in ("vectorised", "fluid"))
    agree(vectorised, fluid)
    begun = np.round(fluid.messages.sent.reshape(40, 4), 9)
    np.testing.assert_array_equal(np.ptp(begun, axis=1) > 0, np.arange(40) < 3)
    assert fluid.duration == pytest.approx(0.1 + 0.04)


def test_a_ring_among_other_ranks_begins_after_the_ring_before_it():
    network = Network(topologies.star(8, 1e-3, 1e6), stack=Stack("taken", rounds=4))
    rings = [looping(1e4, 10, shift=shift) for shift in (1, 3)]
    both = network.time(Schedule(8, [one for ring in rings for one in ring.rounds]))
    assert both.duration == pytest.approx(sum(network.time(ring).duration for ring in rings), rel=1e-9)


def unlike(graph, link, **about):
    graph.edges[link].update(about)
    return graph


@pytest.mark.parametrize(
    ("graph", "schedule", "options"),
    [
        (unlike(topologies.star(8, 1e-3, 1e6), (0, "switch"), latency=1e-3), looping(1e4, 30), {}),
        (unlike(topologies.star(8, 1e-3, 1e6), (0, "switch"), bandwidth=2e6), looping(1e4, 30), {}),
        (topologies.star(8, 1e-3, 1e6), looping(1e4, 30).concat(broadcast_binomial(8, 1e4)), {}),
        (topologies.star(8, 1e-3, 1e6), looping(np.arange(8) * 1e3, 30), {}),
        (topologies.star(8, 1e-3, 1e6), looping(1e4, 30), {"start": np.arange(8) * 1e-3}),
        (topologies.star(8, 1e-3, 1e6), looping(1e4, 30), {"placement": np.arange(8)[::-1] // 2}),
    ],
    ids=["latency", "bandwidth", "broadcast", "sizes", "start", "placement"],
)
def test_who_is_out_of_step_is_timed_by_the_event_loop(graph, schedule, options):
    graph = graph.copy()
    with pytest.raises(SimnetError, match="out of step on this stack"):
        Network(graph, stack="gloo", engine="vectorised").time(schedule, **options)
    auto, fluid = (
        Network(graph, stack="gloo", engine=engine).time(schedule, **options) for engine in ("auto", "fluid")
    )
    np.testing.assert_array_equal(auto.left, fluid.left)


def test_work_that_is_lost_in_rounding_is_left_to_the_event_loop():
    graph, schedule = topologies.star(8, 1e-3, 1e6), looping(1e4, 30, compute=1e-20)
    auto, fluid = (Network(graph, stack="tcp", engine=engine).time(schedule) for engine in ("auto", "fluid"))
    np.testing.assert_array_equal(auto.left, fluid.left)


OWN = (0, "switch")


@pytest.mark.parametrize(
    "about",
    [
        {"weather": {OWN: Weather(steps([0.0, 100.0], [1e6, 2e6]))}},
        {"loss": Loss({OWN: 0.015}, Transport("mathis", segment=1000.0))},
        {"background": [OnOffFlow(0, 1, steps([0.0, 100.0], [0.0, 1.0]))]},
        {"jitter": lambda draws, n: draws.exponential(1e-3, n)},
    ],
    ids=["weather", "loss", "background", "jitter"],
)
def test_what_moves_ranks_apart_is_left_to_the_event_loop(about):
    network = Network(topologies.star(8, 1e-3, 1e6), stack="tcp", engine="vectorised", **about)
    with pytest.raises(SimnetError, match="out of step on this stack"):
        network.time(looping(1e4, 6))


def is_in_step(stack, parts, made=topologies.star, **options):
    """Whether ranks are, and then to times of the event loop."""
    graph = made(parts[0][0].n_ranks, 1e-3, 1e6)
    alone, fluid = (Network(graph, stack=stack, engine=engine) for engine in ("vectorised", "fluid"))
    try:
        went = alone.time(parts, messages=True, **options)
    except SimnetError:
        return False
    agree(went, fluid.time(parts, messages=True, **options))
    return True


@pytest.mark.parametrize(
    ("lasting", "apart"),
    [({}, True), ({"rounds": 2}, False), ({"by_turns": True, "send_completion": "ready", "before": 1e-4}, False)],
    ids=["one round", "two rounds", "by turns"],
)
@pytest.mark.parametrize("ready", [0.0, 0.3])
def test_ranks_are_done_with_one_schedule_before_the_next_but_where_rounds_differ(lasting, apart, ready):
    stack = Stack(**{"send_completion": "taken", **lasting})
    one = looping(1e4, 3)
    assert is_in_step(stack, [(one, ready)], start=0.25)
    assert is_in_step(stack, [(one, ready), (one, ready)], start=0.25) is apart
    # What is ready after the last message holds up the end.
    assert is_in_step(stack, [(one, ready), (Schedule(8, []), 0.9)], start=0.25)


@pytest.mark.parametrize(
    "stack",
    [
        Stack("taken"),
        Stack("ready", "queue", pieces=3, before=1e-3),
        Stack("acknowledged", rounds=3),
        Stack("ready", "queue", by_turns=True, before=1e-3, word=3e3),
    ],
    ids=["taken", "pieces", "rounds", "by turns"],
)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 22, 23])
def test_loops_of_any_length_take_what_their_rounds_take_one_by_one(stack, count):
    rounds = looping(1e4, count, ranks=4).concat(
        looping(2e4, 23 - count, compute=0.5, ranks=4), looping(1e4, 3, ranks=4)
    )
    assert is_in_step(stack, [(Schedule(4, rounds.rounds), 0.0)])


@each("nbytes, shift", [(1e4, 1), (1e4, 7), (0.0, 1)])
def test_neighbours_of_a_ring_are_in_step_over_links_of_one_way(nbytes, shift):
    one_way = looping(nbytes, 9, compute=1e-4, shift=shift)
    assert is_in_step(Stack("taken"), [(one_way, 0.0)], topologies.ring)
    assert is_in_step(STACKS["tcp"], [(one_way, 0.0)], mesh)


@each("partners, in_step", [([1, 0, 3, 2], True), ([1, 2, 3, 0], True), ([1, 2, 0, 4, 3], False)])
def test_control_messages_of_all_ranks_or_of_none_meet_messages_on_direct_links(partners, in_step):
    def mesh(hosts, latency, bandwidth):
        graph = nx.DiGraph()
        graph.add_edges_from(itertools.permutations(range(hosts), 2), latency=latency, bandwidth=bandwidth)
        return graph

    stack = Stack("acknowledged", "queue", rounds=2, word=3e3)
    swaps = Schedule(len(partners), [Round(range(len(partners)), partners, 1e4)] * 6)
    assert is_in_step(stack, [(swaps, 0.0)], mesh) is in_step


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_rounds_of_other_phases_are_not_under_way_at_once(rounds):
    phases = looping(1e3, 4, phase="a").concat(looping(1e3, 4, phase="b"), looping(1e3, 4, phase="a"))
    assert is_in_step(Stack("taken", rounds=rounds), [(Schedule(8, phases.rounds), 0.0)])


def test_ranks_in_step_wait_for_what_they_do_neither_compute_nor_send():
    alone, fluid = (
        Network(topologies.star(4, 1e-3, 1e6), stack="tcp", engine=engine).time(
            [(looping(1e4, 3, 0.5, ranks=4), 0.0), (looping(1e4, 2, 0.25, ranks=4), 4.0)],
            accounted_from=[0.0, 0.75, 4.1, 9.0],
        )
        for engine in ("vectorised", "fluid")
    )
    np.testing.assert_allclose(alone.split, fluid.split, atol=1e-9)
