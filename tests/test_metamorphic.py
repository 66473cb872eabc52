"""What is known of answers without knowing any: random cases told otherwise take as long, or a multiple of it."""

import dataclasses

import numpy as np
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from simnet import topologies
from simnet.base.errors import StalledError
from simnet.network import ConstantLoad, Network, OnOffFlow
from simnet.network.sharing import MAX_MIN
from simnet.network.weather import Weather, steps
from simnet.schedule import Round, Schedule
from test_against_reference import Case, near, of_engine

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])


def told(case):
    """Return of each job alone when its ranks are done and its messages sent and there, or when it has stopped."""
    answers = []
    for job in case.jobs:
        one = case.time(case.network(), job | {"computing": None})
        if isinstance(one, StalledError):
            answers.append([one.at])
        else:
            answers.append([*one.rank_finish, *one.messages.start, *one.messages.finish])
    return [np.array(times) for times in answers]


def other_parts(case, part):
    """Let jobs have other parts; `part` makes one of a schedule and when it is ready."""
    for job in case.jobs:
        job["parts"] = [one for schedule, ready in job["parts"] for one in part(schedule, ready)]


@quick
@example(seed=632, stacked=False, units=(0.5, 2.0**-16))
@given(
    seed=seeds,
    stacked=st.booleans(),
    units=st.sampled_from([(2.0**-19, 2.0**-16), (2.0**19, 4.0), (0.5, 2.0**-16), (4.0, 2.0**16)]),
)
def test_all_seconds_and_all_bytes_may_have_another_unit(seed, stacked, units):
    """By powers of two, to the last bit: the network has no scale of its own."""
    case, other = Case(seed, stacked), Case(seed, stacked)
    # Losses, incast and weights of round trips know bytes of a segment, and seconds.
    assume(case.loss is None and case.incast is None and case.sharing == MAX_MIN)
    # What is framed has whole bytes.
    times, size = units[0], 1.0 if case.stack.segment else units[1]
    rate = size / times
    factors = {"eager_limit": size, "buffer": size, "word": size, "before": times, "after": times}
    factors |= {"before_byte": times / size, "after_byte": times / size}
    changed = {name: getattr(case.stack, name) * factor for name, factor in factors.items()}
    other.stack = dataclasses.replace(case.stack, **changed)

    def stretched(signal, one, factor):
        return None if signal is None else steps(np.array(one.times) * times, np.array(one.values) * factor)

    for link, bandwidth, latency in zip(other.edges, other.bandwidth, other.latency, strict=True):
        known = other.graph.edges[link]
        known["latency"], known["bandwidth"] = known["latency"] * times, known["bandwidth"] * rate
        if link in other.weather:
            one = other.weather[link]
            other.weather[link] = Weather(
                stretched(one.bandwidth, bandwidth, rate), stretched(one.latency, latency, times)
            )
    other.background = [ConstantLoad(other.edges[link], load * rate) for link, load in other.load.items()]
    other.background += [
        OnOffFlow(src, dst, stretched(on, on, 1.0), limit * rate) for src, dst, on, limit in other.others
    ]
    other.overheads = tuple(seconds * times for seconds in other.overheads)
    other.jitter = None if other.jitter is None else other.jitter * times

    def stretch(schedule, ready):
        rounds = [Round(one.src, one.dst, one.nbytes * size, one.compute * times, one.phase) for one in schedule.rounds]
        return [(Schedule(schedule.n_ranks, rounds, schedule.calls), ready * times)]

    other_parts(other, stretch)
    for job in other.jobs:
        job["start"] = job["start"] * times
        job["deaths"] = {rank: t * times for rank, t in job["deaths"].items()}
    for one, more in zip(told(case), told(other), strict=True):
        assert np.array_equal(one * times, more, equal_nan=True)


@quick
@given(seed=seeds, stacked=st.booleans(), ticks=st.integers(1, 2**50))
def test_all_may_happen_later_with_its_weather(seed, stacked, ticks):
    """To the last bit, as times are multiples of a power of two: the clocks count from when somebody starts."""
    tick = 2.0**-20
    answers = []
    for later in (0.0, ticks * tick):
        case = Case(seed, stacked)

        def moved(times, later=later):
            return np.round(np.asarray(times) / tick) * tick + later

        def changed(signal, one, moved=moved):
            return None if signal is None else steps(np.append(0.0, moved(one.times[1:])), one.values)

        for link, bandwidth, latency in zip(case.edges, case.bandwidth, case.latency, strict=True):
            if link in case.weather:
                one = case.weather[link]
                case.weather[link] = Weather(changed(one.bandwidth, bandwidth), changed(one.latency, latency))
        case.background = [ConstantLoad(case.edges[link], load) for link, load in case.load.items()]
        case.background += [OnOffFlow(src, dst, changed(on, on), limit) for src, dst, on, limit in case.others]
        other_parts(case, lambda schedule, ready, moved=moved: [(schedule, moved(ready))])
        for job in case.jobs:
            job["start"] = moved(job["start"])
            job["deaths"] = {rank: float(moved(time)) for rank, time in job["deaths"].items()}
        answers.append(of_engine([case.time(case.network(), job) for job in case.jobs], [], later))
    for one, more in zip(*answers, strict=True):
        assert np.array_equal(one, more, equal_nan=True)


@quick
@given(seed=seeds, at=st.floats(0.0, 1.0))
def test_a_schedule_may_be_told_in_two_parts(seed, at):
    case, other = Case(seed), Case(seed)

    def cut(schedule, ready):
        first = round(at * len(schedule.rounds))
        halves = [Schedule(schedule.n_ranks, part) for part in (schedule.rounds[:first], schedule.rounds[first:])]
        return [(halves[0], ready), (halves[1], np.zeros(schedule.n_ranks))]

    other_parts(other, cut)
    for one, more in zip(told(case), told(other), strict=True):
        assert np.array_equal(one, more, equal_nan=True)


@quick
@given(
    seed=seeds, share=st.floats(0.0, 1.0), wide=st.floats(1.0, 3.0), n_hosts=st.integers(2, 5), chance=st.floats(0, 1)
)
def test_links_in_series_are_one(seed, share, wide, n_hosts, chance):
    """A link is as good as two with its latency in shares, of which one has its bandwidth and the other no less."""
    rng = np.random.default_rng(seed)
    graph = topologies.star(n_hosts, 1e-3, 1e6)
    series, weather, others = graph.copy(), {}, {}
    for number, (u, v) in enumerate(list(graph.edges)):
        signal = steps([0.0, *np.sort(rng.random(3) * 0.02)], 1e6 * rng.uniform(0.1, 1.0, 4))
        first, second = (u, f"between {number}"), (f"between {number}", v)
        if rng.random() < chance:
            # What a host's own link lets go stays as it was.
            latency = graph.edges[u, v]["latency"]
            series.remove_edge(u, v)
            series.add_edge(*first, latency=latency * share, bandwidth=1e6)
            series.add_edge(*second, latency=latency * (1 - share), bandwidth=1e6 * wide)
            others[first] = Weather(bandwidth=signal)
        else:
            others[(u, v)] = Weather(bandwidth=signal)
        weather[(u, v)] = Weather(bandwidth=signal)
    rounds = []
    for _ in range(rng.integers(1, 5)):
        src = rng.integers(n_hosts, size=rng.integers(1, 6))
        dst = (src + 1 + rng.integers(n_hosts - 1, size=src.size)) % n_hosts
        rounds.append(Round(src, dst, rng.random(src.size) * 3000, rng.random(n_hosts) * 1e-3))
    schedule = Schedule(n_hosts, rounds)
    one, two = (Network(*given).time(schedule, messages=True) for given in ((graph, weather), (series, others)))
    assert near(one.rank_finish, two.rank_finish)
    assert near(one.messages.finish, two.messages.finish)
