"""The SimPy network: what a message costs, sharing, weather, stalls, and the laws that hold for every schedule."""

import math

import networkx as nx
import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

import outputs
from simnet import topologies
from simnet.base.errors import StalledError
from simnet.base.rng import stream
from simnet.collectives import allreduce_ring
from simnet.network import ConstantLoad, Network, OnOffFlow
from simnet.network.start_spread import start_spread
from simnet.network.transport import MeasuredIncast
from simnet.network.weather import Weather, constant, ornstein_uhlenbeck, outages, steps
from simnet.schedule import Round, Schedule
from timings import SEEDS, timed

ALPHA, RATE = 1e-3, 1e6


@st.composite
def schedules(draw, n_ranks):
    """Rounds of random messages."""
    sizes = st.sampled_from([0.0, 1.0, 1e3, 5e5, 1e6, 3.3e6])
    rounds = []
    for _ in range(draw(st.integers(1, 4))):
        ranks = st.permutations(range(n_ranks))
        src, dst = draw(ranks), draw(ranks)
        pairs = [(s, d) for s, d in zip(src, dst, strict=True) if s != d][: draw(st.integers(0, n_ranks))]
        extra = draw(st.lists(st.tuples(*[st.integers(0, n_ranks - 1)] * 2), max_size=4))
        pairs += [(s, d) for s, d in extra if s != d]
        nbytes = [draw(sizes) for _ in pairs]
        compute = draw(st.sampled_from([0.0, 0.25, [0.1 * rank for rank in range(n_ranks)]]))
        rounds.append(Round([s for s, _ in pairs], [d for _, d in pairs], nbytes, compute))
    return Schedule(n_ranks, rounds)


@st.composite
def signals(draw, values, last=None):
    times = draw(st.lists(st.sampled_from([0.1, 0.3, 0.5, 1.0, 2.0, 4.0, 7.5]), unique=True, max_size=4))
    levels = draw(st.lists(st.sampled_from(values), min_size=len(times) + 1, max_size=len(times) + 1))
    if last is not None:
        levels[-1] = last
    return steps([0.0, *sorted(times)], levels)


def bandwidths(draw, graph, values=(0.0, 2e5, 1e6, 4e6)):
    """Weather of bandwidth on a few links; it ends well, so that every transfer does."""
    links = draw(st.lists(st.sampled_from(sorted(graph.edges, key=str)), unique=True, max_size=4))
    return {link: Weather(bandwidth=draw(signals(values, last=5e5))) for link in links}


# What one message costs


STAR = topologies.star(2, ALPHA, RATE)
LATER = {(0, 1): Weather(latency=steps([0, 1], [0.5, 0.01]))}
# Of one message over a ring: what it may go around is at most 256 links long.
DOWN = {"weather": {(0, 1): Weather(bandwidth=steps([0, 5], [0.0, RATE]))}, "on_outage": "reroute"}


@pytest.mark.parametrize(
    ("graph", "options", "message", "start", "finish"),
    [
        (STAR, {"send_overhead": 1e-4, "receive_overhead": 2e-4}, (0, 1, 500), 3.0, 3.0008 + ALPHA),
        (topologies.ring(5, ALPHA, RATE), {}, (0, 2, 0), 0.0, 2 * ALPHA),
        (topologies.ring(2, ALPHA, RATE), {"weather": LATER}, (0, 1, 0), 0.9, 1.4),
        (topologies.ring(2, ALPHA, RATE), {"weather": LATER}, (0, 1, 0), 1.0, 1.01),
        (topologies.ring(257, ALPHA, RATE), DOWN, (0, 1, 1e6), 0.0, 256 * ALPHA + 1),
        (topologies.ring(258, ALPHA, RATE), DOWN, (0, 1, 1e6), 0.0, 5 + 1),
    ],
)
def test_a_message_costs_overheads_the_latency_as_it_leaves_and_bytes(graph, options, message, start, finish):
    network = Network(graph, **options)
    schedule = Schedule(network.routes.n_hosts, [Round(*([one] for one in message))])
    assert network.time(schedule, start=start).finish == pytest.approx(finish, rel=1e-12)


def test_a_transfer_in_flight_is_re_rated_and_waits_for_a_link_that_is_down():
    weather = {(0, "switch"): Weather(bandwidth=steps([0, 10, 20], [1.0, 0.0, 0.5]))}
    network = Network(topologies.star(2, 0.0, 1.0), weather)
    assert network.time(Schedule(2, [Round([0], [1], 12)])).finish == 24.0


def test_jitter_lengthens_messages_by_the_draws_of_its_named_stream():
    network = Network(topologies.star(4, ALPHA, RATE), jitter=lambda rng, n: rng.exponential(0.01, n), seed=5)
    one = network.time(allreduce_ring(4, 1e5), stream=("iteration", 1), messages=True)
    again = network.time(allreduce_ring(4, 1e5), stream=("iteration", 1), messages=True)
    other = network.time(allreduce_ring(4, 1e5), stream=("iteration", 2))
    still = Network(topologies.star(4, ALPHA, RATE)).time(allreduce_ring(4, 1e5))
    assert one.finish == again.finish != other.finish
    assert one.finish > still.finish
    assert np.all(one.messages.finish - one.messages.start >= ALPHA + 25_000 / RATE - 1e-12)
    with pytest.raises(ValueError, match="jitter must draw 24 finite latencies >= 0"):
        Network(topologies.star(4, ALPHA, RATE), jitter=lambda rng, n: np.arange(n) - 1.0).time(allreduce_ring(4, 1e5))


# Sharing


@pytest.mark.parametrize("n_ranks", [2, 3, 9, 17, 100])
def test_any_number_of_messages_may_be_under_way_at_once(n_ranks):
    workers, ranks = np.arange(1, n_ranks), np.arange(n_ranks)
    to, graph = np.zeros_like(workers), topologies.star(n_ranks, ALPHA, RATE)
    served = Schedule(n_ranks, [Round(workers, to, 1e6), Round(to, workers, 1e6)])
    assert Network(graph).time(served).finish == pytest.approx(2 * ALPHA + 2 * (n_ranks - 1), rel=1e-12)
    spread = Schedule(n_ranks, [Round(to, workers, 1e6)])
    assert Network(graph).time(spread).finish == pytest.approx(ALPHA + n_ranks - 1, rel=1e-12)
    ring = Schedule(n_ranks, [Round(ranks, (ranks + 1) % n_ranks, 1e6)] * 2)
    assert Network(graph, engine="fluid").time(ring).finish == pytest.approx(2 * (ALPHA + 1), rel=1e-12)
    network = Network(graph)
    for worker in workers.tolist():
        network.transfer(worker, 0, 1e6)
    network.env.run()
    assert network.env.now == pytest.approx(ALPHA + n_ranks - 1, rel=1e-12)


FIRST, SECOND = OnOffFlow(0, 2, steps([0, 4, 8], [0, 1, 0])), OnOffFlow(0, 3, steps([0, 8, 12], [0, 1, 0]))


@pytest.mark.parametrize(
    ("background", "nbytes", "finish"),
    [
        ([ConstantLoad((0, "switch"), 4.0)], 12, 2.0),
        # 40 bytes alone, 20 at half rate, then 40 alone; and 20 at half rate beside each of two, one after the other.
        ([FIRST], 100, 12.0),
        ([FIRST, SECOND], 100, 14.0),
        ([SECOND, FIRST], 100, 14.0),
        ([OnOffFlow(0, 2, constant(1), limit=1.0)], 90, 10.0),
    ],
)
def test_traffic_of_others_shares_while_it_is_on(background, nbytes, finish):
    network = Network(topologies.star(4, 0.0, 10.0), background=background)
    assert network.time(Schedule(4, [Round([0], [1], nbytes)])).finish == pytest.approx(finish)


def two_ways(slow, bandwidth, weather=None):
    graph = nx.Graph()
    for ends in ((0, "in"), (1, "in"), ("out", 2), ("out", 3)):
        graph.add_edge(*ends, latency=0.0, bandwidth=10.0)
    for middle in ("left", "right"):
        for end in ("in", "out"):
            graph.add_edge(end, middle, latency=0.0, bandwidth=bandwidth if middle == slow else 10.0)
    return Network(graph.to_directed(), weather, routing="adaptive")


@pytest.mark.parametrize("slow", ["left", "right"])
def test_adaptive_routes_are_those_whose_most_loaded_link_is_the_least_loaded(slow):
    network = two_ways(slow, 1.0)
    assert network.time(Schedule(4, [Round([0], [2], 100)])).finish == pytest.approx(10.0)
    # Two have 5 B/s each on the faster one, five times as much as one alone on the other.
    assert network.time(Schedule(4, [Round([0, 1], [2, 3], 100)])).finish == pytest.approx(20.0)


@pytest.mark.parametrize("slow", ["left", "right"])
def test_what_vanishes_with_its_rank_or_never_arrives_loads_no_route(slow):
    # One message at a time goes the way of 10 B/s, and a second one that of 6 B/s.
    dies, stops = two_ways(slow, 6.0), two_ways(slow, 6.0, {("out", 2): Weather(bandwidth=steps([0, 0.1], [10, 0]))})
    for network, deaths in ((dies, {0: 0.1}), (stops, {})):
        with pytest.raises(StalledError):
            network.env.run(network.run(Schedule(4, [Round([0], [2], 6)]), deaths=deaths))
    timing = dies.env.run(dies.run(Schedule(4, [Round([0, 1], [2, 3], 6)]), messages=True))
    assert timing.messages.finish == pytest.approx([0.1 + 0.6, 0.1 + 1.0])
    # What never arrives has left its host at 0.6 s.
    assert stops.env.run(stops.transfer(1, 3, 6)) == pytest.approx(0.6 + 0.6)


# A SimPy citizen


def test_transfers_of_other_processes_share_with_a_schedule():
    env = simpy.Environment()
    network = Network(topologies.star(3, 0.0, 10.0), env=env)

    def backup():
        yield env.timeout(1.0)
        return (yield network.transfer(0, 2, 20))

    both = env.process(backup()), network.run(Schedule(3, [Round([0], [1], 50)]))
    env.run()
    assert [both[0].value, both[1].value.finish] == pytest.approx([5.0, 7.0])


@pytest.mark.parametrize("origin", [None, 40.0])
def test_a_schedule_starts_no_sooner_than_now(origin):
    network, send = Network(STAR, env=simpy.Environment(100.0)), Schedule(2, [Round([0], [1], 500)])
    with pytest.raises(ValueError, match="start must not be before now, 100 s, got 99"):
        network.run(send, start=99.999 - (origin or 0.0), origin=origin)
    assert network.env.run(network.run(send, start=100.0 - (origin or 0.0), origin=origin)).start == 100.0
    for wrong in (math.inf, math.nan, -1.0):
        with pytest.raises(ValueError, match="start must be finite and >= 0"):
            network.time(send, start=[0.0, wrong])


@pytest.mark.parametrize(
    ("nbytes", "dies", "finish"),
    [
        # 10 B/s come from either of two hosts, and 10 B/s go on. 50 bytes wait when the receiver of the first dies.
        (100.0, 5.0, 15.0),
        # All of its 20 bytes have come by 2 s, and 20 of both wait from then on.
        (20.0, 3.0, 12.0),
        (20.0, 30.0, 12.0),
    ],
)
def test_bytes_of_a_message_that_vanishes_stay_in_the_queue_of_their_receiver(nbytes, dies, finish):
    # The link into the receiver is the first of all.
    graph = nx.DiGraph(list(topologies.star(3, 0.0, 10.0).edges(data=True))[::-1])
    network = Network(graph, stack={"send_completion": "taken", "own_link": "queue"})
    network.run(Schedule(3, [Round([0], [2], nbytes)]), deaths={2: dies}).defused = True
    assert network.env.run(network.run(Schedule(3, [Round([1], [2], 100.0)]))).finish == pytest.approx(finish)


def test_a_word_waits_for_the_bytes_before_it_in_the_queue_of_its_receiver():
    stack = {"send_completion": "ready", "own_link": "queue", "eager_limit": 50.0, "word": 10.0}
    network = Network(topologies.star(4, 0.0, 10.0), stack=stack)
    # 50 bytes come to host 0 from either of two; 30 wait there when rank 1 says that it is ready, in 10 bytes.
    network.run(Schedule(4, [Round([2, 3], [0, 0], [50.0, 50.0])]))
    job = network.run(Schedule(2, [Round([0], [1], [100.0])]), start=3.0)
    assert network.env.run(job).finish == pytest.approx(3.0 + 30 / 10 + 1.0 + 10.0)


@pytest.mark.parametrize(
    ("others", "finish"),
    [
        ({"incast": MeasuredIncast([2, 4], [1.0, 1.0], links=[("switch", 0)])}, [20.0, 15.0]),
        ({"incast": MeasuredIncast([2, 4], [1.0, 1.0], links=[("switch", 2)])}, [20.0, 20.0]),
        ({"background": [OnOffFlow(1, 2, constant(0.0)), OnOffFlow(1, 0, constant(0.0))]}, [20.0, 20.0]),
    ],
)
def test_links_without_incast_or_traffic_of_others_have_a_receive_queue(others, finish):
    graph = topologies.star(3, 0.0, 10.0)
    graph.edges[1, "switch"]["bandwidth"] = 20.0
    network = Network(graph, **others, stack={"send_completion": "taken", "own_link": "queue"})
    # What comes at 20 B/s is there by 5 s, when 100 bytes of both wait; where it shares the link, half of it is.
    timing = network.time(Schedule(3, [Round([0, 1], [2, 2], [100.0, 100.0])]), messages=True)
    assert timing.messages.finish == pytest.approx(finish)


def test_bytes_in_the_queue_of_their_receiver_wait_for_its_link_alone():
    # All have come by 1 s, and 200 are through by 2 s, when links fail; the last one is up again at 10 s.
    graph, links = nx.DiGraph(), [(0, "a"), ("a", "b"), ("b", 1)]
    graph.add_edges_from([*links, *((v, u) for u, v in links)], latency=0.0, bandwidth=1e3)
    weather = {links[1]: Weather(steps([0, 2], [1e3, 0])), links[2]: Weather(steps([0, 2, 10], [100, 0, 100]))}
    network = Network(graph, weather, stack={"send_completion": "taken", "own_link": "queue"})
    assert network.time(Schedule(2, [Round([0], [1], [1000.0])])).finish == pytest.approx(18.0)


def test_timing_leaves_the_environment_alone_and_repeats_itself():
    env = simpy.Environment()
    network = Network(topologies.star(4, ALPHA, RATE), env=env)
    network.transfer(0, 1, 1e6)
    first = network.time(allreduce_ring(4, 1e6)).finish
    env.run(until=0.5)
    assert network.time(allreduce_ring(4, 1e6)).finish == first
    assert env.now == 0.5


def test_schedules_in_sequence_wait_until_they_are_ready():
    network = Network(topologies.star(2, 0.0, 1.0))
    send = Schedule(2, [Round([0], [1], 3)])
    assert network.time([(send, 1.0), (send, 2.0)], start=1.0).finish == 7.0
    assert network.time([(send, 1.0), (send, [9.0, 9.5])], start=1.0).finish == 12.0


def test_the_spread_of_start_times_counts_from_when_the_last_schedule_may_be_entered():
    network, ring, hosts = Network(topologies.star(4, ALPHA, 1e9), stack="gloo"), allreduce_ring(4, 4e6), np.arange(4)
    both = start_spread(network, [(ring, np.zeros(4)), (ring, np.full(4, 0.5))], hosts)
    assert both.at_once == pytest.approx(start_spread(network, ring, hosts, ready=0.25).at_once, rel=1e-9)
    one = start_spread(network, ring, hosts)
    late = [stream(0, "start times", draw).uniform(0.0, one.skew, 4) if draw else np.zeros(4) for draw in range(16)]
    took = [network.time(ring, each, origin=0.0).finish - each.max() for each in late]
    assert [one.low, one.median, one.high] == pytest.approx([min(took), np.median(took), max(took)], rel=1e-9)


# Laws of every schedule

GRAPHS = {
    "star": topologies.star(5, ALPHA, RATE),
    "ring": topologies.ring(5, ALPHA, RATE),
    "tree": topologies.tree(5, 2, ALPHA, RATE),
    "wan": topologies.wan(2, 0.02, 3e5, [2, 3]),
}
graphs = st.sampled_from(sorted(GRAPHS))


@given(graphs, st.data())
def test_no_link_carries_more_than_it_can(name, data):
    graph = GRAPHS[name]
    load = [ConstantLoad(data.draw(st.sampled_from(sorted(graph.edges, key=str))), 1e5)]
    network = Network(graph, bandwidths(data.draw, graph), background=load)
    timing = network.time(data.draw(schedules(5)), messages=True)
    carried = np.zeros(len(network.routes.links))
    for src, dst, nbytes in zip(timing.messages.src, timing.messages.dst, timing.messages.nbytes, strict=True):
        carried[list(network.routes.route(int(src), int(dst)))] += nbytes
    for link, nbytes in enumerate(carried):
        times, capacities = network.links.capacities(link, 0.0, timing.finish)
        assert capacities.tolist() == [network.links.capacity(link, t)[0] for t in times]
        assert nbytes <= np.diff([*times, timing.finish]) @ capacities * (1 + 1e-9) + 1e-6


@given(graphs, st.data())
def test_each_rank_s_time_is_accounted_for(name, data):
    graph = GRAPHS[name]
    start = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.4, 2.0]), min_size=5, max_size=5)))
    schedule = data.draw(schedules(5))
    timing = Network(graph, bandwidths(data.draw, graph)).time(schedule, start, messages=True)
    total = timing.rank_communicate + timing.rank_compute + timing.rank_wait
    assert total == pytest.approx(timing.rank_finish - timing.rank_start, abs=1e-9)
    assert timing.rank_compute == pytest.approx(sum(np.broadcast_to(one.compute, 5) for one in schedule.rounds))
    work = timing.work
    worked = np.bincount(work.rank, weights=work.ended - work.begun, minlength=5)
    assert timing.rank_compute == pytest.approx(worked, abs=1e-12)
    assert (timing.rank_wait >= 0).all()


@given(graphs, st.data())
def test_a_change_alters_nothing_before_it(name, data):
    graph = GRAPHS[name]
    weather, schedule = bandwidths(data.draw, graph), data.draw(schedules(5))
    link = data.draw(st.sampled_from(sorted(graph.edges, key=str)))
    moment = data.draw(st.sampled_from([0.2, 0.5, 1.7]))
    old = weather.get(link, Weather(bandwidth=constant(graph.edges[link]["bandwidth"]))).bandwidth
    times, values = old.window(0.0, moment)
    changed = weather | {link: Weather(bandwidth=steps([*times, moment], [*values, 123.0]))}
    before = Network(graph, weather).time(schedule, messages=True).messages
    after = Network(graph, changed).time(schedule, messages=True).messages
    early = before.finish <= moment
    assert np.array_equal(before.finish[early], after.finish[early])
    assert np.all(after.finish[~early] > moment)


# Monotonicity. Under max-min sharing with several bottlenecks it is no theorem: slowing one flow can free another
# that more depends on. It is one for a transfer alone with background traffic, and for schedules whose messages
# share no link, with any weather of bandwidth; there the engine must obey.


def worse(draw, graph):
    """A network, and the same with one thing worse: more latency, more load, or less bandwidth on a link."""
    link = draw(st.sampled_from(sorted(graph.edges, key=str)))
    signal = draw(signals((0.0, 2e5, 1e6, 4e6), last=5e5))
    base = {link: Weather(bandwidth=signal, latency=constant(graph.edges[link]["latency"]))}
    kind = draw(st.sampled_from(["latency", "load", "bandwidth"]))
    if kind == "latency":
        more = constant(graph.edges[link]["latency"] + draw(st.sampled_from([1e-6, 0.1])))
        return Network(graph, base), Network(graph, {link: Weather(bandwidth=signal, latency=more)})
    if kind == "load":
        light, heavy = sorted(draw(st.tuples(*[st.sampled_from([0.0, 1e4, 4.9e5])] * 2)))
        return (
            Network(graph, base, background=[ConstantLoad(link, light)]),
            Network(graph, base, background=[ConstantLoad(link, heavy)]),
        )
    factor = draw(signals((0.1, 0.5, 1.0), last=0.3))
    return Network(graph, base), Network(graph, {link: Weather(bandwidth=signal * factor)})


@given(graphs, st.data())
def test_a_transfer_alone_is_never_faster_for_worse_links_or_more_bytes(name, data):
    better, worse_network = worse(data.draw, GRAPHS[name])
    src, dst = data.draw(st.permutations(range(5)))[:2]
    few, many = sorted(data.draw(st.tuples(*[st.sampled_from([0.0, 1.0, 1e5, 2e6])] * 2)))
    start = data.draw(st.sampled_from([0.0, 0.3, 1.1]))
    one = better.time(Schedule(5, [Round([src], [dst], few)]), start).finish
    assert worse_network.time(Schedule(5, [Round([src], [dst], few)]), start).finish >= one * (1 - 1e-12)
    assert better.time(Schedule(5, [Round([src], [dst], many)]), start).finish >= one * (1 - 1e-12)
    assert better.time(Schedule(5, [Round([src], [dst], few)]), start + 0.1).finish >= one * (1 - 1e-12)


@given(graphs, st.data())
def test_company_never_makes_a_transfer_faster(name, data):
    graph = GRAPHS[name]
    src, dst, other, third = data.draw(st.permutations(range(5)))[:4]
    weather = bandwidths(data.draw, graph)
    on = data.draw(signals((0, 1), last=1))
    alone = Network(graph, weather).time(Schedule(5, [Round([src], [dst], 1e6)])).finish
    pair = data.draw(st.sampled_from([(src, other), (other, dst), (third, other)]))
    beside = Network(graph, weather, background=[OnOffFlow(*pair, on)])
    assert beside.time(Schedule(5, [Round([src], [dst], 1e6)])).finish >= alone * (1 - 1e-12)


# Stalls


def test_a_stalled_exchange_names_the_waiting_ranks_and_what_they_wait_for():
    network = Network(topologies.star(3, 0.0, 1.0), {(0, "switch"): Weather(bandwidth=steps([0, 2], [1.0, 0.0]))})
    with pytest.raises(
        StalledError, match=r"rank 1 waits in round 1 \(gather\).*from rank 0 \(no capacity on 0->switch"
    ):
        network.time(Schedule(3, [Round([1], [2], 1), Round([0, 2], [1, 1], [5, 1], phase="gather")]))


def test_a_transfer_that_never_arrives_fails():
    network = Network(topologies.star(2, 0.0, 1.0), {("switch", 1): Weather(bandwidth=constant(0))})
    with pytest.raises(StalledError, match="host 1 waits for a message from host 0"):
        network.env.run(network.transfer(0, 1, 5))


def test_a_link_that_flickers_without_ever_coming_up_is_a_stall():
    on = steps([0, 1], [0, 1], period=2)
    off = steps([0, 1], [1, 0], period=2)
    network = Network(
        topologies.star(3, 0.0, 1.0), {(0, "switch"): Weather(bandwidth=on), ("switch", 1): Weather(bandwidth=off)}
    )
    with pytest.raises(StalledError, match="rank 1 waits"):
        network.time(Schedule(3, [Round([0], [1], 5)]))


def test_a_long_outage_under_fine_weather_elsewhere_is_no_stall():
    up = Weather(bandwidth=ornstein_uhlenbeck(0.1, 10, 0.01, mean=1e6, seed=1))
    down = Weather(bandwidth=outages(at=[(1, 3600)]) * 1e6)
    network = Network(
        topologies.star(3, 0, 1e6),
        {(0, "switch"): up, ("switch", 1): down},
        background=[OnOffFlow(2, 1, steps([0, 0.5], [0, 1], period=1.0))],
    )
    finish = network.time(Schedule(3, [Round([0], [1], 2e6)])).finish
    assert 3601 < finish < 3604


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weather": {(0, 9): Weather()}}, "weather names the link"),
        ({"background": [ConstantLoad((0, "swich"), 1.0)]}, "background traffic names the link"),
        ({"background": [ConstantLoad((0, "switch"), -1.0)]}, "must be >= 0"),
        ({"background": [OnOffFlow(0, 0, constant(1))]}, "needs two hosts"),
        ({"background": [OnOffFlow(0, 1, constant(1), limit=0)]}, "must be > 0"),
        ({"weather": {(0, "switch"): constant(1)}}, "must be a Weather"),
        ({"background": ["x"]}, "must be ConstantLoad or OnOffFlow"),
        ({"send_overhead": -1.0}, "send_overhead must be a finite number >= 0"),
        ({"receive_overhead": math.nan}, "receive_overhead must be a finite number >= 0"),
    ],
)
def test_wrong_parameters_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Network(topologies.star(3, 0.0, 1.0), **arguments)


@pytest.mark.parametrize("engine", ["vectorised", "fluid"])
def test_a_junction_of_other_tools_is_no_link_of_its_host(engine):
    graph = nx.DiGraph()
    for link, bandwidth, kind in (((0, "j"), 1e9, "free"), (("j", "s"), 1e3, "link"), (("s", 1), 1e6, "link")):
        for ends in (link, link[::-1]):
            graph.add_edge(*ends, latency=0.0, bandwidth=bandwidth, kind=kind)
    timing = Network(graph, engine=engine).time(Schedule(2, [Round([0], [1], [2e3])]))
    assert timing.left.tolist() == pytest.approx([2.0, 2.0], rel=1e-9)


@pytest.mark.parametrize("engine", ["vectorised", "fluid"])
def test_ranks_of_one_host_send_each_other_in_no_time_whatever_the_weather(engine):
    slow = Weather(steps([0, 1], [1e3, 1e6]))
    schedule = Schedule(3, [Round([0, 1], [1, 0], [500.0, 500.0]), Round([1], [2], [500.0])])
    weather = dict.fromkeys(topologies.star(2, 0.0, 1e6).edges, slow)
    net = Network(topologies.star(2, 0.0, 1e6), weather, engine=engine)
    timing = net.time(schedule, placement=[0, 0, 1], messages=True)
    assert timing.messages.arrived.tolist() == pytest.approx([0.0, 0.0, 0.5])
    assert timing.left.tolist() == pytest.approx([0.0, 0.5, 0.5])


@pytest.mark.parametrize("seed", SEEDS)
def test_networks_time_random_jobs_as_they_did(seed):
    assert not outputs.changes("timings", timed(seed))


def test_a_million_messages_are_split_as_few_are():
    # More than are split together; all are alike but one that enters late, and the one that sends to it.
    schedule, late = allreduce_ring(600, 600e3), np.zeros(600)
    late[417] = 1e-3
    timing = Network(topologies.star(600, 1e-6, 1e9)).time(schedule, late)
    np.testing.assert_allclose(sum(timing.split), timing.left - timing.entered, rtol=1e-9)
    assert np.argmin(timing.rank_wait) == 417
    assert np.ptp(np.delete(timing.rank_wait, [416, 417])) < 1e-9
    assert timing.rank_compute.max() == 0
