"""The vectorised clock and the solution of sharing agree, whatever is sent over whatever is constant."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topologies
from simnet import collectives, network, vectorised
from simnet.errors import SimnetError, StalledError
from simnet.network import ConstantLoad, Network, OnOffFlow
from simnet.schedule import Round, Schedule
from simnet.weather import Weather, constant, steps

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


@pytest.mark.parametrize("many", [0, 10**9])
@settings(max_examples=150, deadline=None)
@given(job=jobs())
def test_auto_and_fluid_agree(many, job):
    graph, options, parts, more = job
    with pytest.MonkeyPatch.context() as patch:
        # With and without the compiled loops.
        patch.setattr(vectorised, "_MANY", many)
        patch.setattr(network, "_MANY_CHANGING", 0)
        try:
            fluid = Network(graph, engine="fluid", **options).time(parts, **more)
        except StalledError as stalled:
            with pytest.raises(StalledError, match=re.escape(str(stalled))):
                Network(graph, **options).time(parts, **more)
            return
        agree(Network(graph, **options).time(parts, **more), fluid)


def passages(monkeypatch):
    """Count the attempts of the vectorised clock that succeed."""
    real, went = vectorised.pass_through, []

    def counted(*arguments, **options):
        result = real(*arguments, **options)
        went.append(result is not None)
        return result

    monkeypatch.setattr("simnet.network.pass_through", counted)
    return went


@pytest.mark.parametrize("jitter", [None, lambda draws, n: draws.exponential(1e-4, n)])
@pytest.mark.parametrize("graph", ["star", "ring"])
def test_a_ring_on_its_own_links_is_vectorised_also_out_of_step(graph, jitter, monkeypatch):
    went = passages(monkeypatch)
    net = Network(graph_of(graph), jitter=jitter)
    schedule = collectives.allreduce_ring(17, 1e6)
    timing = net.time(schedule, start=np.linspace(0, 0.1, 17))
    assert went == [True]
    agree(timing, Network(graph_of(graph), jitter=jitter, engine="fluid").time(schedule, np.linspace(0, 0.1, 17)))


def test_collisions_in_step_are_solved_round_by_round(monkeypatch):
    went = passages(monkeypatch)
    graph = topologies.fat_tree(6, 1e-4, 1e6)
    order = np.random.default_rng(0).permutation(54)
    src = np.arange(54)
    # Every message has the same bytes and its own end, but routes share links, alike at all ranks or not.
    one = Round(src, order[(np.argsort(order) + 1) % 54], 1e5)
    for rounds in ([one] * 5, [one]):
        schedule = Schedule(54, rounds)
        agree(Network(graph).time(schedule), Network(graph, engine="fluid").time(schedule))
    # An all-to-all on a tree shares its trunk alike among all ranks.
    tree = topologies.tree(4, arity=2, latency=1e-4, bandwidth=1e6)
    swap = Round([0, 1, 2, 3], [2, 3, 0, 1], 1e5)
    went.clear()
    schedule = Schedule(4, [swap] * 100)
    agree(Network(tree).time(schedule), Network(tree, engine="fluid").time(schedule))
    assert went[0]


def test_what_meets_out_of_step_is_left_to_the_fluid_clock(monkeypatch):
    went = passages(monkeypatch)
    Network(graph_of("star")).time(Schedule(3, [Round([0, 1], [2, 2], [100, 100])]), start=[0, 1e-5, 0])
    assert went == [False]


def test_flows_of_others_are_left_to_the_fluid_clock_and_refused_by_the_vectorised(monkeypatch):
    went = passages(monkeypatch)
    schedule, background = collectives.allreduce_ring(17, 1e6), [OnOffFlow(0, 1, constant(1.0))]
    Network(graph_of("star"), background=background).time(schedule)
    assert went == []
    with pytest.raises(SimnetError, match="vectorised clock cannot"):
        Network(graph_of("star"), background=background, engine="vectorised").time(schedule)


@pytest.mark.parametrize("jitter", [None, lambda draws, n: draws.exponential(1e-4, n)])
def test_weather_is_vectorised_and_agrees(jitter, monkeypatch):
    changing = steps([0, 0.4, 1.1, 1.2], [1e6, 2e5, 0.0, 5e5], period=1.5)
    weather = {(one, "switch"): Weather(changing, steps([0, 0.7], [1e-3, 2e-3])) for one in range(0, 17, 3)}
    schedule, start = collectives.allreduce_ring(17, 1e6), np.linspace(0, 0.1, 17)
    both = [
        Network(graph_of("star"), weather, jitter=jitter, engine=engine).time(schedule, start)
        for engine in ("vectorised", "fluid")
    ]
    agree(*both)
    monkeypatch.setattr(vectorised, "_loops", lambda: None)
    plain = Network(graph_of("star"), weather, jitter=jitter, engine="vectorised").time(schedule, start)
    np.testing.assert_array_equal(plain.rank_finish, both[0].rank_finish)


def test_a_link_that_stays_down_is_told_not_waited_for(monkeypatch):
    monkeypatch.setattr(network, "_MANY_CHANGING", 0)
    weather = {(0, "switch"): Weather(bandwidth=steps([0, 0.1], [1e6, 0.0]))}
    with pytest.raises(StalledError):
        Network(graph_of("star"), weather).time(collectives.allreduce_ring(17, 1e6))


def test_engines_are_named():
    with pytest.raises(ValueError, match="there is no engine 'fluids': did you mean 'fluid'"):
        Network(graph_of("star"), engine="fluids")


def test_without_numba_the_numbers_are_the_same(monkeypatch):
    schedule = collectives.allreduce_ring(17, 1e6)
    jitter = {"jitter": lambda draws, n: draws.exponential(1e-4, n), "receive_overhead": 1e-5}
    monkeypatch.setattr(vectorised, "_MANY", 0)
    compiled = Network(graph_of("star"), **jitter).time(schedule)
    monkeypatch.setattr(vectorised, "_loops", lambda: None)
    plain = Network(graph_of("star"), **jitter).time(schedule)
    np.testing.assert_array_equal(compiled.rank_finish, plain.rank_finish)
