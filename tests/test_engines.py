"""The max-plus clock and the solution of sharing agree, whatever is sent over whatever is constant."""

import re
import subprocess
import sys
from unittest import mock

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import needs
from simnet import collectives, topologies
from simnet.base.errors import SimnetError, StalledError
from simnet.base.jit_threshold import JitThreshold
from simnet.network import (
    ConstantLoad,
    Network,
    OnOffFlow,
    engine_selection,
    links,
    max_plus,
    recurrence,
    weather_forecast,
)
from simnet.network.program import Computing
from simnet.network.transport import Loss, Transport
from simnet.network.weather import Weather, constant, markov, ornstein_uhlenbeck, product, steps
from simnet.schedule import Round, Schedule

COLLECTIVES = {
    "ring": collectives.allreduce_ring,
    "tree": collectives.allreduce_tree,
    "doubling": collectives.allreduce_recursive_doubling,
    "rabenseifner": collectives.allreduce_rabenseifner,
    "bruck": collectives.allgather_bruck,
    "alltoall": collectives.alltoall_pairwise,
    "server": collectives.parameter_server,
    "broadcast": collectives.broadcast_binomial,
}


def graph_of(kind):
    match kind:
        case "star":
            return topologies.star(17, 1e-3, 1e6)
        case "fast star":
            return topologies.star(17, 0.0, 1e6)
        case "ring":
            return topologies.ring(17, 1e-4, 1e6)
        case "tree":
            return topologies.tree(17, arity=3, latency=1e-4, bandwidth=1e6)
        case "fat_tree":
            return topologies.fat_tree(6, 1e-4, 1e6)
        case _:
            return topologies.wan(["a", "b", "c"], 0.01, 1e5, workers_per_site=[6, 6, 5])


@st.composite
def schedules(draw, n_ranks):
    """Rounds of collectives or of random messages, some repeated, with and without compute, bytes and messages."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rounds = []
    for _ in range(draw(st.integers(0, 4))):
        if n_ranks > 1 and draw(st.booleans()):
            made = COLLECTIVES[draw(st.sampled_from(sorted(COLLECTIVES)))](n_ranks, float(draw(st.integers(0, 10_000))))
            rounds += made.rounds
            continue
        count = 0 if n_ranks == 1 else draw(st.integers(0, 2 * n_ranks))
        src = rng.integers(n_ranks, size=count)
        dst = (src + 1 + rng.integers(max(1, n_ranks - 1), size=count)) % n_ranks
        compute = draw(st.sampled_from([0.0, 0.003, "each"]))
        one = Round(
            src,
            dst,
            rng.integers(0, 5, size=count) * 500.0,
            rng.random(n_ranks) * 0.01 if compute == "each" else compute,
        )
        rounds += [one] * draw(st.integers(1, 4))
    return Schedule(n_ranks, rounds)


@st.composite
def weathers(draw, graph):
    """Bandwidth and latency of some links, constant or in steps, now and then zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = draw(st.sampled_from([0.0, 0.0, 0.5]))
    weather = {}
    for link in graph.edges:
        if rng.random() >= share:
            continue
        times = np.concatenate([[0.0], np.sort(rng.random(5)) * 0.2 + 1e-6])
        down = rng.random(6) < 0.2
        down[-1] = False
        bandwidth = steps(times, np.where(down, 0.0, 10 ** rng.uniform(4, 6, 6)))
        weather[link] = Weather(bandwidth, steps(times, rng.random(6) * 1e-3) if rng.random() < 0.5 else None)
    return weather


@st.composite
def jobs(draw):
    """Network, its jitter and overheads, and arguments of `Network.time`."""
    n_ranks = draw(st.integers(1, 17))
    graph = graph_of(draw(st.sampled_from(["star", "fast star", "ring", "tree", "fat_tree", "wan"])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    options = {
        "send_overhead": draw(st.sampled_from([0.0, 1e-4])),
        "receive_overhead": draw(st.sampled_from([0.0, 2e-4])),
        "jitter": draw(st.sampled_from([None, lambda draws, n: draws.exponential(1e-3, n)])),
        "weather": draw(weathers(graph)),
        "background": draw(st.sampled_from([(), (ConstantLoad(next(iter(graph.edges)), 3e5),)])),
    }
    spread = draw(st.sampled_from([0.0, 0.02]))
    parts = [(draw(schedules(n_ranks)), rng.random(n_ranks) * spread * 3) for _ in range(draw(st.integers(1, 2)))]
    more = {
        "start": rng.random(n_ranks) * spread,
        "accounted_from": rng.random(n_ranks) * spread * 2,
        "placement": rng.permutation(17)[:n_ranks],
        "messages": draw(st.booleans()),
    }
    return graph, options, parts, more


def agree(one, other):
    for name in ("start", "finish", "rank_start", "rank_finish"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(one.split, other.split, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    assert (one.messages is None) == (other.messages is None)
    if one.messages is not None:
        for name in ("round", "src", "dst", "nbytes", "start", "finish"):
            np.testing.assert_allclose(
                getattr(one.messages, name), getattr(other.messages, name), rtol=1e-9, atol=1e-12
            )
        works = [
            np.array(sorted(zip(work.rank, work.begun, work.ended, strict=True))) for work in (one.work, other.work)
        ]
        np.testing.assert_allclose(*works, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("many", [0, 10**9])
@settings(max_examples=80, deadline=None)
@given(job=jobs())
def test_auto_and_fluid_agree(many, job):
    graph, options, parts, more = job
    with pytest.MonkeyPatch.context() as patch:
        # With and without the compiled loops.
        patch.setattr(max_plus, "_interpreted", JitThreshold(many, many, bool))
        patch.setattr(engine_selection, "_interpreted", JitThreshold(many, many, bool))
        patch.setattr(engine_selection, "loop_is_loaded", lambda: False)
        try:
            fluid = Network(graph, engine="fluid", **options).time(parts, **more)
        except StalledError as stalled:
            with pytest.raises(StalledError, match=re.escape(str(stalled))):
                Network(graph, **options).time(parts, **more)
            return
        agree(Network(graph, **options).time(parts, **more), fluid)


@given(job=jobs())
def test_what_ranks_did_takes_one_pass_and_is_what_a_second_one_says(job):
    graph, options, parts, more = job
    asked = {**more, "messages": False}
    splits, once = [], max_plus.MaxPlus.completion_times
    for few, most in ((max_plus._FEW, 1), (0, 2)):
        passes = mock.patch.object(max_plus.MaxPlus, "completion_times", autospec=True, side_effect=once)
        with pytest.MonkeyPatch.context() as patch, passes as went:
            patch.setattr(max_plus, "_FEW", few)
            try:
                timing = Network(graph, **options).time(parts, **asked)
            except StalledError:
                return
            splits.append(timing.split)
            assert went.call_count <= most
    for one, other in zip(*splits, strict=True):
        np.testing.assert_array_equal(one, other)


CHANGING = {(0, "switch"): Weather(steps([0.0, 1e-3], [1e6, 9e5]))}
LOSING = Loss({(0, "switch"): 0.01}, Transport())


@pytest.mark.parametrize("stack", ["ideal", "tcp"])
@pytest.mark.parametrize(
    ("options", "entry", "alone"),
    [
        ({}, {}, True),
        ({"on_outage": "reroute"}, {}, True),
        ({"background": [ConstantLoad((0, "switch"), 1e5)]}, {}, True),
        ({"weather": CHANGING}, {}, True),
        ({"loss": LOSING}, {}, True),
        ({"weather": CHANGING, "on_outage": "reroute"}, {}, False),
        ({"weather": CHANGING, "loss": LOSING}, {}, False),
        ({"background": [OnOffFlow(0, 1, constant(1.0))]}, {}, False),
        ({"routing": "flow"}, {}, False),
        ({"routing": "adaptive"}, {}, False),
        ({}, {"deaths": {3: 100.0}}, False),
        ({}, {"computing": Computing(np.ones((1, 4)), beside=2.0)}, True),
    ],
)
def test_a_program_that_is_alone_has_the_times_of_the_event_loop_and_others_are_left_to_it(
    stack, options, entry, alone
):
    def network(engine):
        return Network(topologies.star(4, 1e-3, 1e6), engine=engine, stack=stack, **options)

    schedule = collectives.allreduce_ring(4, 1e5)
    assert network("auto")._is_alone(network("auto")._prepared([(schedule, 0.0)], 0.0, False, **entry)) == alone
    fluid, auto = (network(engine).time(schedule, **entry) for engine in ("fluid", "auto"))
    np.testing.assert_allclose(auto.left, fluid.left, rtol=1e-9)
    if not alone:
        with pytest.raises(SimnetError, match="engine vectorised"):
            network("vectorised").time(schedule, **entry)
    elif stack == "ideal":
        np.testing.assert_array_equal(network("vectorised").time(schedule, **entry).left, auto.left)


def test_work_is_counted_in_messages_and_a_third_of_one_for_each_that_it_meets_and_for_each_change():
    def work(*rounds, **about):
        net = Network(about.pop("graph", topologies.star(4, 1e-3, 1e6)), **about)
        return engine_selection.estimated_work(net._prepared([(Schedule(4, rounds), 0.0)], 0.0, False), net.links)

    apart = [Round([src], [0], [1e6]) for src in (1, 2, 3)]
    together = Round([1, 2, 3], [0, 0, 0], [1e6] * 3)
    assert work(*apart) == 3
    # Three meet two others each, on the one link that they share.
    assert work(together) == work(together, graph=graph_of("tree")) == pytest.approx(3 + 6 / 3)
    assert work(*[together] * 4, *apart) == pytest.approx(4 * 5 + 3)
    assert work(*apart, weather={(1, "switch"): Weather(steps([0.0, 0.1], [1e6, 5e5], period=0.2))}) > 3
    assert work(Round([1, 2, 3] * 4000, [0] * 12_000, [1e6] * 12_000)) == pytest.approx(64_004_000)
    assert work(*(Round([1, 2, 3], [0, 0, 0], [nbytes] * 3) for nbytes in range(1, 2001))) == pytest.approx(2000 * 5)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["ring", "tree", "fat_tree"]), st.sampled_from(["max_min", "rtt"]), st.integers(0, 2**32 - 1))
def test_links_that_limit_no_flow_are_left_out_and_times_stay_those_beside_others(kind, law, seed):
    rng, sizes = np.random.default_rng(seed), {"ring": (48,), "tree": (48, 4), "fat_tree": (6,)}
    graph = getattr(topologies, kind)(*sizes[kind], 1e-4, 1e6)
    for link in graph.edges:
        graph.edges[link]["bandwidth"] *= rng.choice([0.5, 1, 1, 1, 2])
    # Beside others, who may take any route, all links count. More rounds would magnify roundings beyond 1e-9.
    ranks, network = np.arange(48), Network(graph, sharing=law, engine="fluid")
    rounds = [Round(ranks, np.roll(ranks, far), rng.integers(1, 9, 48) * 1e3) for far in (1, rng.integers(2, 48))]
    schedule, entry = Schedule(48, rounds * 11), {"placement": rng.permutation(48), "messages": True}
    agree(network.time(schedule, **entry), network.env.run(network.run(schedule, **entry)))


def test_what_meets_out_of_step_is_left_to_the_fluid_clock():
    with pytest.raises(SimnetError, match="messages meet"):
        Network(graph_of("star"), engine="vectorised").time(
            Schedule(3, [Round([0, 1], [2, 2], [100, 100])]), [0, 1e-5, 0]
        )


@pytest.mark.parametrize("compiled", [False, True])
def test_large_messages_that_meet_for_a_moment_on_links_that_change_share_them(monkeypatch, compiled):
    loops = needs.compiled(max_plus._compiled_recurrence()) if compiled else recurrence
    monkeypatch.setattr(max_plus, "_loops_for", lambda *asked: loops)
    # One of 100 MB takes 100 ms on a link that changes later, and another one is there 5 ms before its end.
    graph = topologies.star(3, 1e-6, 1e9)
    weather = {link: Weather(steps([0.0, 1000.0], [1e9, 5e8]), None) for link in graph.edges}
    network = Network(graph, weather)
    for _ in range(2):
        timing = network.time(Schedule(3, [Round([0, 1], [2, 2], [1e8, 1e8])]), [0.0, 0.095, 0.0])
        assert timing.finish == pytest.approx(0.2 + 1e-6)


@st.composite
def signals(draw, mean):
    """Timelines of every kind around a mean: known steps, periodic, random, products; zero for a while or not."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    times = np.concatenate([[0.0], np.cumsum(rng.exponential(draw(st.sampled_from([1e-3, 0.1, 3.0])), 6) + 1e-6)])
    known = steps(times, np.append(np.where(rng.random(6) < 0.3, 0.0, rng.random(6)), 1.0) * mean)
    match draw(st.sampled_from(["constant", "known", "periodic", "markov", "noise", "product"])):
        case "constant":
            return constant(mean)
        case "known":
            return known
        case "periodic":
            return steps(times, rng.uniform(0.0, 2 * mean, 7) * np.append(rng.random(6) < 0.7, 1), period=times[-1] + 1)
        case "markov":
            return markov([0.0, mean, 2 * mean], [0.01, 0.1, 0.05], seed=seed)
        case "noise":
            return ornstein_uhlenbeck(0.3, 0.1, 0.02, mean=mean, seed=seed)
        case _:
            return product(known, ornstein_uhlenbeck(0.3, 1.0, 0.2, seed=seed))


@st.composite
def skies(draw, graph):
    """Weather of some links, several of them under one signal."""
    of_bandwidth = [draw(signals(1e6)) for _ in range(3)] + [None]
    of_latency = [draw(signals(1e-3)) for _ in range(2)] + [None, None]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return {
        link: Weather(of_bandwidth[rng.integers(4)], of_latency[rng.integers(4)])
        for link in graph.edges
        if rng.random() < 0.7
    }


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_weather_asked_for_at_any_time_in_any_order_agrees(data):
    graph = graph_of(data.draw(st.sampled_from(["star", "ring"])))
    weather = data.draw(skies(graph))
    background = [ConstantLoad(next(iter(graph.edges)), 3e5)]
    options = {"send_overhead": 1e-5, "receive_overhead": data.draw(st.sampled_from([0.0, 1e-5]))}
    # On the ring all hosts take part, or messages would meet; on the star some links are nobody's.
    n_ranks = 17 if len(graph) == 17 else 7
    schedule = collectives.allreduce_ring(n_ranks, 2e4)
    late = np.random.default_rng(0).random(n_ranks) * data.draw(st.sampled_from([0.0, 0.3]))

    def asked(moments, engine):
        net = Network(graph, weather, background=background, engine=engine, **options)
        timings = []
        for moment in moments:
            try:
                timings.append(net.time(schedule, late + moment, messages=True))
            except StalledError:
                timings.append(None)
            except SimnetError:  # A latency that falls can let messages meet.
                timings.append(engine)
        return timings

    moments = data.draw(st.lists(st.sampled_from([0.0, 1e-3, 0.5, 3.0, 17.3, 40.0]), min_size=1, max_size=3))
    # Once they are loaded, compiled loops are used.
    max_plus._compiled_recurrence()
    fluid, went = asked(moments, "fluid"), asked(moments, "vectorised")
    for ours, theirs in zip(went, fluid, strict=True):
        if ours != "vectorised" and theirs is not None:
            agree(ours, theirs)
    with pytest.MonkeyPatch.context() as patch:
        # Windows that grow from the smallest, and move on, change nothing.
        patch.setattr(links, "_FIRST", 1)
        patch.setattr(links, "_HELD", data.draw(st.sampled_from([1, 400])))
        small = asked(moments[::-1], "vectorised")[::-1]
        patch.setattr(max_plus, "_loops_for", lambda *asked: recurrence)
        plain = asked(moments, "vectorised")
    for ours, *others in zip(went, small, plain, strict=True):
        for other in others:
            if ours in (None, "vectorised"):
                assert other == ours
            else:
                np.testing.assert_array_equal(other.messages.finish, ours.messages.finish)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_timelines_say_what_links_are_like(data):
    graph = graph_of("ring")
    crowded = next(iter(graph.edges))
    net = Network(graph, data.draw(skies(graph)), background=[ConstantLoad(crowded, 1.2e6)]).links
    for _ in range(3):
        start = data.draw(st.floats(0, 20))
        until = start + data.draw(st.floats(0, 20))
        bandwidth, latency = net.bandwidths.timelines(start, until), net.latencies.timelines(start, until)
        assert bandwidth.since <= start
        assert bandwidth.until > until
        assert not np.isfinite(bandwidth.times[bandwidth.last]).any()
        for t in (start, (start + until) / 2, until):
            at, then = bandwidth.at(t), latency.at(t)
            for link in range(len(net.routes.links)):
                assert bandwidth.first[link] <= at[link] < bandwidth.last[link]
                assert bandwidth.times[at[link]] <= t < bandwidth.times[at[link] + 1]
                assert bandwidth.values[at[link]] == net.capacity(link, t)[0]
                assert latency.values[then[link]] == net.latency(link, t)


def test_a_long_wait_is_gone_through_compiled_and_given_up_in_the_end(monkeypatch):
    course = ornstein_uhlenbeck(0.3, 0.1, 1e-3, mean=1e6, seed=1)
    graph, loops, asked = topologies.star(2, 1e-3, 1e6), max_plus._compiled_recurrence() or recurrence, []
    schedule = Schedule(2, [Round([0], [1], [5e6])])

    def finish(engine):
        return Network(graph, {(0, "switch"): Weather(course)}, engine=engine).time(schedule).finish

    def from_500_on(effort, ahead):
        asked.append(ahead)
        return loops if ahead > 500 else recurrence

    monkeypatch.setattr(max_plus, "_loops_for", lambda *asked: recurrence)
    plain = finish("vectorised")
    monkeypatch.setattr(max_plus, "_loops_for", from_500_on)
    assert finish("vectorised") == plain
    assert asked[0] == 1
    assert asked[-1] > 500
    monkeypatch.setattr(weather_forecast, "_PATIENCE", 1000)
    with pytest.raises(SimnetError, match="wait for too long"):
        finish("vectorised")
    assert finish("auto") == finish("fluid") == pytest.approx(plain, rel=1e-9)


def test_engines_agree_on_latencies_at_departures_long_after_messages_are_handed_over():
    weather = {(0, "switch"): Weather(None, markov([1e-3, 0.5], 0.1, seed=1))}
    schedule = Schedule(2, [Round([0], [1], [100.0], [1.0, 0.0])] * 60)
    fluid, went = (
        Network(topologies.star(2, 1e-3, 1e6), weather, send_overhead=2.0, engine=engine).time(schedule, messages=True)
        for engine in ("fluid", "vectorised")
    )
    agree(fluid, went)


@pytest.mark.parametrize("engine", ["fluid", "vectorised"])
def test_messages_without_bytes_pass_those_that_are_under_way_on_their_connection(engine):
    graph, pairs = nx.DiGraph(), 8
    for host in range(2 * pairs):
        graph.add_edge(host, "switch", latency=1.0, bandwidth=10.0)
        graph.add_edge("switch", host, latency=0.0, bandwidth=1.0)
    src = np.arange(pairs)
    rounds = [Round(src, src + pairs, np.full(pairs, 100.0)), Round(src, src + pairs, np.where(src == 3, 5.0, 0.0))]
    messages = Network(graph, engine=engine).time(Schedule(2 * pairs, rounds), messages=True).messages
    # Bytes leave their host in 10 s, and come through the slower link in 100 s, where only bytes wait for bytes.
    assert messages.sent.tolist() == [0.0] * pairs + [10.0] * pairs
    assert messages.arrived.tolist() == [101.0] * pairs + np.where(src == 3, 106.0, 11.0).tolist()


EVERYBODY = Round(*np.nonzero(1 - np.eye(4)), np.full(12, 1e6))
NEXT = Round(np.arange(4), (np.arange(4) + 1) % 4, np.full(4, 1e6), np.arange(4.0))
HALVED = dict.fromkeys(topologies.star(4, 0.0, 1e6).edges, Weather(steps([0.0, 4.0], [1e6, 5e5])))


@pytest.mark.parametrize("engine", ["fluid", "vectorised"])
@pytest.mark.parametrize(
    ("latency", "rounds", "weather", "left"),
    [
        # Ten rounds in step, four of 1 s and six of 2 s.
        (0.0, [Round(NEXT.src, NEXT.dst, NEXT.nbytes)] * 10, HALVED, [16.0] * 4),
        # Three of six million bytes at 1 MB/s, from 1 s on, and three at half of that.
        (0.0, [Round([0], [1], [6e6], [1.0, 0.0, 0.0, 0.0])], HALVED, [10.0, 10.0, 0.0, 0.0]),
        # Two messages to the same rank leave one after the other.
        (1.0, [Round([0, 0], [1, 1], [1e6, 1e6])], {}, [2.0, 3.0, 0.0, 0.0]),
        # All to all in 3 s, then to the next after 0 to 3 s of work.
        (0.0, [EVERYBODY, NEXT], {}, [7.0, 5.0, 6.0, 7.0]),
    ],
)
def test_rounds_take_as_long_as_by_hand(engine, latency, rounds, weather, left):
    network = Network(topologies.star(4, latency, 1e6), weather, engine=engine)
    assert network.time(Schedule(4, rounds)).left == pytest.approx(left, rel=1e-12)


@pytest.mark.parametrize("held", [1, 400])
@pytest.mark.parametrize("work", [0.0, 0.02])
def test_how_far_ahead_the_weather_is_looked_up_changes_nothing_where_a_schedule_recurs(monkeypatch, held, work):
    draws = np.random.default_rng(3)
    graph, P = topologies.star(5, 1e-3, 1e6), 5
    weather = {link: Weather(steps(np.arange(400) * 0.05, draws.uniform(2e5, 2e6, 400))) for link in graph.edges}
    # Some messages wait through many changes, and the first to send is the last rank, long before the others.
    rounds = [Round(np.arange(P), (np.arange(P) + 1) % P, draws.uniform(1e4, 1e6, P), work * draws.random(P))] * 4
    schedule = Schedule(P, [*rounds, Round([0, 4], [1, 0], [1e5, 1e7])])
    start = np.array([1.5, 1.4, 1.3, 1.2, 0.0])

    def times(network):
        timing = network.time(schedule, start, messages=True)
        return [
            column.tolist() for column in (*timing.split, timing.left, timing.messages.sent, timing.messages.arrived)
        ]

    far = times(Network(graph, weather, engine="vectorised"))
    monkeypatch.setattr(max_plus, "_loaded_loops", lambda: recurrence)
    monkeypatch.setattr(links, "_FIRST", 1)
    monkeypatch.setattr(links, "_HELD", held)
    network = Network(graph, weather, engine="vectorised")
    assert [times(network) for _ in range(2)] == [far, far]


CHEAP = """
import sys
from simnet import topologies
from simnet import collectives
from simnet.network import Network

graph = topologies.fat_tree(14, 1e-5, 1.25e9) if sys.argv[1] == "unequal" else topologies.star(400, 1e-5, 1.25e9)
schedule = collectives.allreduce_ring(400, 1e8)
print(Network(graph).time(schedule).finish, "llvmlite" in sys.modules)
"""


@pytest.mark.parametrize("distances", ["equal", "unequal"])
def test_rounds_that_numpy_is_through_with_at_once_load_no_compiled_loops(distances):
    # 319,200 messages: one by one, the interpreter would take a second.
    said = subprocess.run([sys.executable, "-c", CHEAP, distances], capture_output=True, text=True, check=True)
    assert said.stdout.split()[1] == "False"
    compiled = "from simnet.network.max_plus import _compiled_recurrence; _compiled_recurrence()\n" + CHEAP
    again = subprocess.run([sys.executable, "-c", compiled, distances], capture_output=True, text=True, check=True)
    assert again.stdout.split() == [said.stdout.split()[0], "True"]


@pytest.mark.parametrize("name", ["ring", "bruck", "broadcast"])
@pytest.mark.parametrize("changes", [False, True])
def test_a_schedule_that_recurs_takes_as_long_as_on_a_network_that_has_never_seen_it(name, changes):
    # Its rounds keep their routes, but nothing of what the links were like: going back in time is no matter either.
    weather = {(0, "switch"): Weather(steps([0, 2], [1e6, 1e5], 4), steps([0, 3], [1e-3, 1e-1], 5))} if changes else {}
    schedules = [COLLECTIVES[name](17, nbytes) for nbytes in (1e5, 1e4)]
    known = Network(graph_of("star"), weather)
    for origin in (0.0, 2.5, 1.0, 40.25, 3.0):
        for schedule in schedules:
            start = np.linspace(0.0, 0.02, 17)
            fresh = Network(graph_of("star"), weather)
            again, first = (one.time(schedule, start, origin=origin) for one in (known, fresh))
            assert again.left.tolist() == first.left.tolist()
            assert again.rank_communicate.tolist() == first.rank_communicate.tolist()
