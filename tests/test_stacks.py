"""Transport stacks: framing, words and software by closed forms, on the shaped network's star."""

import dataclasses

import networkx as nx
import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from simnet import topologies
from simnet.base.errors import StalledError
from simnet.network import Network, OnOffFlow
from simnet.network.stack import BESIDE, SEGMENT, STACKS, Stack
from simnet.network.weather import Weather, steps
from simnet.schedule import Call, Round, Schedule
from simnet.validate.replay import of_collective
from simnet.validate.shapednet.links import Change, predict

TCP = STACKS["tcp"].with_software(0.0, 0.0)


def tcp(send_completion="taken", overhead=0.0, **properties):
    """Return TCP under a library whose sends wait for something, and take software."""
    return dataclasses.replace(TCP, send_completion=send_completion, **properties).with_software(overhead)


@given(st.integers(1, 10**6), st.floats(0, 0.1), st.floats(1e5, 1e8), st.floats(0, 1e-3))
def test_a_message_alone_takes_latency_overhead_its_frames_and_the_last_one_again(nbytes, latency, rate, overhead):
    bare = Schedule(2, [Round([0], [1], nbytes)])
    wire = TCP.framed(float(nbytes))
    expected = latency + overhead + (wire + min(wire, SEGMENT + BESIDE)) / rate
    assert predict(bare, [Change(0, latency, rate)], tcp(overhead=overhead))[0] == pytest.approx(expected, rel=1e-9)


def test_acknowledgements_cost_only_where_their_link_has_data_of_its_own():
    (alone,) = TCP.wire(Round([0], [1], 100 * SEGMENT), 2)
    both = TCP.wire(Round([0, 1], [1, 0], 100 * SEGMENT), 2)
    assert (both == alone + 50 * BESIDE).all()


@pytest.mark.parametrize(
    ("sends", "latencies", "words"), [("taken", 0, 0), ("acknowledged", 1, 1), ("ready", 1, 1), ("request", 2, 2)]
)
def test_what_a_send_waits_for_costs_latencies_and_short_frames(sends, latencies, words):
    bare, link = Schedule(2, [Round([0], [1], 10 * SEGMENT, compute=0.25)]), Change(0, 1e-2, 1e6)
    eager, waiting = (predict(bare, [link], tcp(one))[0] for one in ("taken", sends))
    assert waiting - eager == pytest.approx(latencies * 1e-2 + words * 2 * (48 + BESIDE) / 1e6, abs=1e-12)


def test_named_stacks_have_the_sizes_of_their_libraries():
    """What is eager at Open MPI by default, a receiver's credit of NCCL, and what is acknowledged at once."""
    kibi = 1024
    assert {name: one.eager_limit for name, one in STACKS.items() if one.eager_limit} == {"openmpi": 64 * kibi}
    assert {name: one.buffer for name, one in STACKS.items() if one.buffer < np.inf} == {"nccl": 4096 * kibi}
    acknowledged = {name: one.acknowledged for name, one in STACKS.items()}
    assert acknowledged.pop("ideal") == 0
    assert acknowledged.pop("tcp") == 2 * SEGMENT
    assert set(acknowledged.values()) == {64 * kibi}


def test_short_messages_do_not_wait_below_the_eager_limit():
    bare, link = Schedule(2, [Round([0], [1], 1000), Round([0], [1], 1001)]), [Change(0, 1e-2, 1e6)]
    eager, both, long = (
        predict(bare, link, tcp(sends, eager_limit=limit))[0]
        for sends, limit in (("taken", 0), ("request", 0), ("request", 1000))
    )
    # The second request leaves with the first message.
    assert both - eager == pytest.approx(4e-2, rel=0.06)
    assert long - eager == pytest.approx(2e-2, rel=0.1)


SINGLE = (
    "allreduce_ring",
    "allreduce_recursive_doubling",
    "allreduce_rabenseifner",
    "allgather_ring",
    "allgather_bruck",
)


@given(st.integers(2, 9), st.integers(1, 10**6), st.floats(0, 0.1), st.floats(1e5, 1e8))
def test_a_root_that_sends_to_all_pays_one_latency_and_its_own_link(ranks, nbytes, latency, rate):
    schedule = Schedule(ranks, [Round([0], [peer], nbytes) for peer in range(1, ranks)])
    wire = TCP.framed(float(nbytes))
    expected = latency + ((ranks - 1) * wire + min(wire, SEGMENT + BESIDE)) / rate
    assert predict(schedule, [Change(0, latency, rate)], TCP)[0] == pytest.approx(expected, rel=1e-9)


@given(st.integers(2, 9), st.integers(10**4, 10**6))
def test_sends_that_start_together_end_together(peers, nbytes):
    # Each peer answers; the first answer leaves after one message, or after nearly all of them.
    rounds = [Round([0], [peer], nbytes) for peer in range(1, peers + 1)] + [Round([1], [peers + 1], nbytes)]
    schedule, link = Schedule(peers + 2, rounds), [Change(0, 1e-3, 1e6)]
    wire = TCP.framed(float(nbytes)) / 1e6
    one_by_one, together = (predict(schedule, link, tcp(own_link=how))[0] for how in ("queue", "shared"))
    assert one_by_one == pytest.approx(max(2, peers) * wire, rel=0.2 + 4e-3 / wire)
    assert together == pytest.approx((peers + 1) * wire, rel=0.2 + 4e-3 / wire)


def halves(steps, nbytes, ranks=4, phases=1):
    """A ring whose steps go in halves."""
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    rounds = [Round(*zip(*ring, strict=True), nbytes / 2, phase=str(one)) for one in range(phases)]
    return Schedule(ranks, [one for one in rounds for _ in range(2 * steps)])


@given(st.integers(1, 4), st.integers(1, 10**5), st.sampled_from(("taken", "acknowledged", "ready", "request")))
def test_more_rounds_under_way_are_never_slower_without_words_and_phases_wait_for_all(steps, nbytes, sends):
    link = [Change(0, 1e-2, 1e6)]
    one, two = (predict(halves(steps, nbytes), link, tcp(rounds=depth))[0] for depth in (1, 2))
    assert two <= one * (1 + 1e-9)
    both, single = (predict(halves(steps, nbytes, phases=n), link, tcp(sends, rounds=2))[0] for n in (2, 1))
    assert both == pytest.approx(2 * single, rel=1e-6)


@given(
    st.sampled_from((*SINGLE, "broadcast_binomial")),
    st.integers(2, 7),
    st.integers(1, 10**6),
    st.sampled_from(("taken", "acknowledged", "ready", "request")),
)
def test_early_sends_help_and_waiting_never_does(name, ranks, nbytes, sends):
    schedule, link = of_collective(name, ranks, nbytes).schedule, Change(0, 1e-3, 1e6)
    eager = predict(schedule, [link], TCP)[0]
    assert predict(schedule, [link], tcp(sends))[0] >= eager * (1 - 1e-9)
    moments = [predict(schedule, [link], tcp(sends, overhead=cost))[0] for cost in (0, 1e-4)]
    assert moments[0] < moments[1]


@given(st.floats(1e-6, 2), st.floats(1e5, 1e7), st.integers(1, 10**6))
def test_a_change_under_way_takes_the_bytes_that_are_left(at, rate, nbytes):
    bare, slow = Schedule(2, [Round([0], [1], nbytes)]), 1e6
    wire = TCP.framed(float(nbytes))
    passed = min(wire, at * slow)
    up = passed / slow if passed == wire else at + (wire - passed) / rate
    frame = min(wire, SEGMENT + BESIDE)
    found, later = predict(bare, [Change(0, 0, slow), Change(at, 0, rate)], TCP, [0.0, at])
    assert later == pytest.approx(predict(bare, [Change(0, 0, rate)], TCP)[0], rel=1e-9)
    assert up <= found * (1 + 1e-9)
    assert found <= up + 3 * frame / min(slow, rate) + 1e-9


def arrivals(links, rounds, first=None, **properties):
    """Return when messages of one round arrive on a star, without framing, behind senders whose messages queue.

    Of the links of the graph, that of the switch to a host can be the first.
    """
    stack = tcp(segment=0.0, beside=0.0, acknowledged=0.0, **properties)
    graph = topologies.star(len(links), 0.0, 1.0)
    for host, (latency, bandwidth) in enumerate(links):
        for link in ((host, "switch"), ("switch", host)):
            graph.edges[link].update(latency=latency / 2, bandwidth=bandwidth)
    if first is not None:
        edges = sorted(graph.edges(data=True), key=lambda one: one[:2] != ("switch", first))
        graph = nx.DiGraph(edges, **graph.graph)
    timing = Network(graph, stack=stack).time(Schedule(len(links), rounds), messages=True)
    return timing.messages.finish.tolist()


def test_messages_that_meet_at_their_receiver_arrive_in_the_order_in_which_they_come():
    links, both = [(2e-3, 5e6), (6e-3, 5e6), (0.0, 1e6)], [Round([0, 1], [2, 2], [30_000, 10_000])]
    # 20 kB of the first have come when the last byte of the second does.
    assert arrivals(links, both) == pytest.approx([1e-3 + 0.04, 1e-3 + 0.03], rel=1e-12)
    # On a link that they share, the short one is there first.
    assert arrivals(links, both, own_link="shared") == pytest.approx([1e-3 + 0.04, 3e-3 + 0.02], rel=1e-12)


def test_bytes_of_messages_mix_in_a_queue_as_they_come():
    # The second one comes from 1 ms on at half of the rate: 14.5 kB of it before the last byte of the first.
    links, both = [(0.0, 1e6), (2e-3, 0.5e6), (0.0, 1e6)], [Round([0, 1], [2, 2], [30_000, 20_000])]
    first, second = arrivals(links, both)
    assert first == pytest.approx(0.03 + 0.0145, rel=1e-12)
    assert second == pytest.approx(0.03 + 0.02, rel=1e-12)
    links[1] = (2e-3, 0.25e6)
    assert arrivals(links, both)[1] == pytest.approx(1e-3 + 0.08, rel=1e-12)


def test_sends_whose_receivers_are_ready_leave_in_the_order_of_posting():
    # Words from ranks 1 and 2 are at rank 0 long before it is through with its work, that of rank 2 first.
    links = [(0.0, 1e6), (0.02, 1e6), (0.0, 1e6)]
    there = arrivals(links, [Round([0, 0], [1, 2], 10_000, compute=[0.1, 0.0, 0.0])], send_completion="ready")
    assert there == pytest.approx([0.1 + 0.01 + 0.01, 0.1 + 0.01 + 0.01], rel=1e-12)


@pytest.mark.parametrize(("nbytes", "waits"), [(10_000, False), (10_001, True)])
def test_a_send_that_the_buffer_holds_is_done_at_once(nbytes, waits):
    network = Network(topologies.star(3, 0.01, 1e6), stack=Stack("taken", buffer=10_000))
    messages = network.time(Schedule(3, [Round([0], [1], nbytes), Round([0], [2], 1)]), messages=True).messages
    assert messages.sent[1] == (messages.arrived[0] if waits else 0.0)


@pytest.mark.parametrize(("gathers", "ends"), [(True, 0.54), (False, 0.53)])
@pytest.mark.parametrize("operation", ["all_gather", "all_reduce"])
def test_in_a_gather_who_comes_late_sends_before_it_says_that_it_is_ready(operation, gathers, ends):
    # Rank 1 comes at 0.5 s, when the word of rank 0 has long been there: 0.01 s on the link, 0.01 s of latency. What it
    # waits for leaves when its own word is there: behind its own message, or beside that.
    stack = Stack("ready", "queue", word=1e-3, gathers_send_first=gathers)
    network = Network(topologies.star(2, 0.01, 1e6), stack=stack)
    both = Schedule(2, [Round([0, 1], [1, 0], [1e4, 1e4])], [Call(0, 1, operation, "ring", 2e4)])
    timing = network.time(both, [0.0, 0.5])
    assert timing.finish == pytest.approx(ends if operation == "all_gather" else 0.53)


QUEUE = {"send_completion": "taken", "own_link": "queue"}
"""Messages leave a host one after another, without framing."""


def connected(*links):
    """Return a graph of links both ways, from node to node with so many byte/s, without latency."""
    graph = nx.DiGraph()
    graph.add_nodes_from(sorted({node for *ends, _ in links for node in ends if isinstance(node, int)}))
    for one, other, bandwidth in links:
        graph.add_edge(one, other, latency=0.0, bandwidth=bandwidth)
        graph.add_edge(other, one, latency=0.0, bandwidth=bandwidth)
    return graph


def times_of(graph, one, weather=None, **options):
    """Return when the messages of a round arrive [s], after three without bytes from rank 1 to rank 0."""
    network, first = Network(graph, weather, stack=QUEUE, **options), Round([1] * 3, [0] * 3, 0.0)
    # Asked again, the network has the tables of the first time.
    for _ in range(2):
        timing = network.time(Schedule(network.routes.n_hosts, [first, one]), messages=True)
    return timing.messages.arrived[3:]


@pytest.mark.parametrize(
    ("between", "one", "ends"),
    [
        (1e4, Round([2, 1], [0, 0], 1e5, compute=[0, 0.5, 0, 0]), [10.0, 0.5 + 0.1 + 1e-3]),
        (1e6, Round([2, 3, 1], [0, 1, 0], 1e6, compute=[0, 0.5, 0, 0]), [2.0 + 0.25, 2.0, 2.0]),
    ],
    ids=["slow", "shared"],
)
def test_a_message_that_another_link_holds_back_comes_to_a_queue_as_that_carries_it(between, one, ends):
    graph = connected((0, "a", 1e6), (1, "a", 1e6), ("a", "b", between), (2, "b", 1e6), (3, "b", 1e6))
    assert times_of(graph, one) == pytest.approx(ends, rel=1e-9)


@pytest.mark.parametrize(
    ("link", "rate", "ends"),
    [
        # The own link of the first message becomes slow: the other one waits for the little that still comes of it.
        ((0, "switch"), 1e4, [0.1 + 90.0, 0.05 + 1.0 + 0.05 + 0.0095]),
        # The receiver's link carries both as they come.
        (("switch", 2), 1e7, [1.0, 0.05 + 1.0]),
    ],
)
def test_a_queue_is_as_long_as_the_weather_makes_it(link, rate, ends):
    weather = {link: Weather(bandwidth=steps([0.0, 0.1], [1e6, rate]))}
    one = Round([0, 1], [2, 2], 1e6, compute=[0, 0.05, 0])
    assert times_of(topologies.star(3, 0.0, 1e6), one, weather) == pytest.approx(ends, rel=1e-9)


def test_messages_share_a_link_that_traffic_of_others_uses():
    background = [OnOffFlow(3, 2, steps([0.0, 0.1], [0.0, 1.0]))]
    one = Round([0, 1], [2, 2], 1e6, compute=[0, 0.05, 0, 0])
    # Two have halves until 0.1 s, then three have thirds; once the first is through the others have halves.
    ends = [0.1 + 2.775, 0.1 + 2.775 + 0.1]
    assert times_of(topologies.star(4, 0.0, 1e6), one, background=background) == pytest.approx(ends, rel=1e-9)


@pytest.mark.parametrize("link", [("switch", 0), (1, "switch")])
def test_transfers_that_wait_for_a_link_that_is_down_for_good_are_told_so_and_forgotten(link):
    env, told = simpy.Environment(), []
    weather = {link: Weather(bandwidth=steps([0.0, 0.5], [1e6, 0.0]))}
    network = Network(topologies.star(4, 0.0, 1e6), weather, env=env, stack=QUEUE)

    def sends(src, dst, at=0.0):
        yield env.timeout(at)
        try:
            told.append((src, dst, (yield network.transfer(src, dst, 1e6))))
        except StalledError as error:
            told.append((src, dst, f"no capacity on {link[0]}->{link[1]}" in str(error)))

    for src, at in [(1, 0.0), (1, 0.0), (2, 0.1), (2, 20.0)]:
        env.process(sends(src, 0, at))
    env.process(sends(3, 2, 30.0))
    env.run()
    others = [(2, 0, True)] * 2 if link[0] == "switch" else [(2, 0, pytest.approx(1.5)), (2, 0, pytest.approx(21.0))]
    assert sorted(told[:-1], key=lambda one: one[0]) == [(1, 0, True), (1, 0, True), *others]
    assert told[-1] == (3, 2, pytest.approx(31.0))


@pytest.mark.parametrize(
    ("rates", "ends"),
    [
        # What has come by 3 s is carried on; the rest comes when the link is up again, or as fast as it is then.
        ((1e6, 0.0), [3.5, 100.0 + 1.5]),
        ((1e6, 0.25e6), [3.5, 3.0 + 6.0]),
        # At 2.5 s all is carried that had come, and by 3 s 625 kB.
        ((0.25e6, 1e6), [2.0 + 0.375, 3.0 + 3.375]),
    ],
    ids=["down", "slower", "faster"],
)
def test_a_message_comes_as_its_hosts_own_link_is_then(rates, ends):
    weather = {(1, "switch"): Weather(bandwidth=steps([0.0, 3.0, 100.0], [*rates, 1e6]))}
    one = Round([0, 1], [2, 2], [2e6, 4e6], compute=[0, 0.5, 0])
    assert times_of(topologies.star(3, 0.0, 1e6), one, weather) == pytest.approx(ends, rel=1e-9)


def test_three_messages_are_there_when_the_backlog_is_carried_that_their_last_bytes_meet():
    # The backlog is 1.375 MB at 2 s, 1.5 MB at 2.5 s and nothing at 4.5 s.
    graph = topologies.star(4, 0.0, 1e6)
    graph.edges[1, "switch"]["bandwidth"] = 0.25e6
    one = Round([0, 1, 2], [3, 3, 3], [2e6, 1e6, 1.5e6], compute=[0, 0.5, 1.0, 0])
    assert times_of(graph, one) == pytest.approx([2.0 + 1.375, 4.5, 2.5 + 1.5], rel=1e-9)


@pytest.mark.parametrize("until", [np.inf, 3.0])
def test_messages_that_wait_for_a_link_that_is_down_go_around_it(until):
    graph = connected(
        (0, "a", 1e6), (1, "a", 1e6), (0, "b", 1e5), ("b", "c", 1e6), ("c", 1, 1e6), (2, "c", 1e6), (3, "c", 1e6)
    )
    times, rates = ([0.0, 0.5, 3.0], [1e6, 0.0, 1e6]) if until < np.inf else ([0.0, 0.5], [1e6, 0.0])
    weather = {(0, "a"): Weather(bandwidth=steps(times, rates))}
    # Half of the first message goes over the other link; what is left of it, and the second, go back where they can.
    ends = [3.0 + 0.25, 3.0 + 1.25] if until < np.inf else [0.5 + 5.0, 0.5 + 15.0]
    # A third one that is under way meanwhile has links of its own.
    one = Round([2, 0, 0], [3, 1, 1], 1e6)
    assert times_of(graph, one, weather, on_outage="reroute") == pytest.approx([1.0, *ends], rel=1e-9)


@pytest.mark.parametrize("down", [(2, "a"), ("a", 1)])
def test_what_has_not_left_a_host_leaves_over_the_link_that_it_goes_by_then(down):
    graph = connected((2, "a", 1e6), (2, "b", 1e5), ("a", 1, 1e6), ("b", 1, 1e6), (0, "a", 1e6), (3, "a", 1e6))
    weather = {down: Weather(bandwidth=steps([0.0, 0.5], [1e6, 0.0]))}
    rounds = [Round([0, 2, 2], [3, 1, 1], [8e5, 1e6, 1e6]), Round([0, 2], [3, 1], 1.0)]
    network = Network(graph, weather, on_outage="reroute")
    sent = network.time(Schedule(4, rounds), messages=True).messages.sent
    # Of the 2 MB of rank 2, half a megabyte has left in half a second.
    assert sent[3:] == pytest.approx([0.8, 0.5 + 15.0], rel=1e-9)
