"""The extra latency of messages, fitted to distances that are known by hand: what is drawn, matched, and left out.

Draws are made up where the fit is looked at: as quantiles of a logarithm that is normal, so that it is right to the
step of its search.
"""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from simnet.base.rng import stream
from simnet.calibration import Setting, jitter, measured
from simnet.calibration.jitter import (
    FittedJitter,
    Repeated,
    below,
    extra,
    fit,
    fit_links,
    holds,
    in_proportion,
    messages_of,
    repeated,
    typical,
    unevenness,
)
from simnet.network import Stack
from simnet.schedule import Round, Schedule

IDEAL = Stack()
PAIR, RING, TREE = Setting("sendrecv", 2, 2), Setting("sendrecv", 4, 4), Setting("broadcast", 2, 0, "binomial")
# Of twenty-four steps from 0.1 to 4, and of the eight from one to the next but one.
STEP = 40 ** (1 / 23)
MIDDLE = 0.1 * STEP**8
MANY, FEW = 4000, 1000


def late(sigma, many=MANY):
    """Return extra latencies of median 1 that are spread as evenly as so many can be."""
    return np.exp(sigma * norm.ppf((np.arange(many) + 0.5) / many))


def calls(sigma, median=1.0, base=1000.0, size=8.0):
    return Repeated(PAIR, size, base + median * late(sigma))


def of_four(sigma, size=8.0):
    return Repeated(RING, size, 1000 + 10 * late(sigma, FEW))


@pytest.fixture
def evenly(monkeypatch):
    """Have draws be quantiles, as often as draws are wanted; those of four ranks are fewer and ten times as long."""
    asked = []

    def made_up(schedule, sigma, count):
        asked.append((schedule.n_ranks, count))
        scale, many = (10.0, FEW) if schedule.n_ranks == 4 else (1.0, MANY)
        return scale * np.resize(late(sigma, many), count)

    monkeypatch.setattr(jitter, "extra", made_up)
    return asked


@pytest.mark.parametrize("steps", [1 / 8, 5.25, 11, 12.75, 22.875])
def test_the_spread_is_that_of_the_finest_step(evenly, steps):
    # Between the ends of the coarse search the fine one goes on by quarters of its steps, at the ends by eighths.
    found = fit([calls(0.1 * STEP**steps, 2e-3)], IDEAL)
    # Percentiles of what was seen and of what is drawn are half a place apart: up to a fiftieth of the highest.
    assert found == (pytest.approx(2e-3, rel=0.02), pytest.approx(0.1 * STEP**steps, rel=1e-9), 1, MANY)


@pytest.mark.parametrize(("sigma", "found"), [(0.08, 0.1), (4.6, 4.0)])
def test_spreads_are_between_a_tenth_and_four(evenly, sigma, found):
    assert fit([calls(sigma, base=1e6)], IDEAL).sigma == pytest.approx(found)


def test_as_many_are_drawn_as_are_repeated_or_a_multiple(evenly):
    fit([calls(1.0), Repeated(RING, 8.0, 1000 + 10 * late(1.0)[::12])], IDEAL)
    # Of 4,000 at most: once as many, and eleven times 334.
    assert set(evenly) == {(2, 4000), (4, 11 * 334)}


def test_settings_count_by_their_repetitions(evenly):
    # Of a pair there are four thousand repetitions, and twice as many in eight sizes of four ranks, that are ten times
    # as late: where all count as they should, the draws have their percentiles.
    slow = [of_four(MIDDLE, size) for size in range(1, 9)]
    found = fit([*slow[:3], calls(MIDDLE), *slow[3:]], IDEAL)
    assert found == (pytest.approx(1.0, rel=0.02), pytest.approx(MIDDLE), 9, 3 * MANY)


def test_calls_that_did_not_scatter_downwards_are_matched_above(evenly):
    # Half of them took as long as the median to within roundings.
    seconds = 1000 + late(MIDDLE)
    seconds[: MANY // 2 + 1] = 1001 - 1e-10 * np.arange(MANY // 2 + 1)
    found = fit([Repeated(PAIR, 8.0, seconds)], IDEAL)
    assert (found.sigma, found.median) == (pytest.approx(MIDDLE), pytest.approx(1.0, rel=0.02))


@pytest.mark.parametrize("still", [False, True])
def test_what_draws_do_not_scatter_is_not_matched(monkeypatch, still):
    # Of those that are earlier than the median, draws know nothing, whether calls do or not.
    def above(sigma, many=MANY):
        return np.where(np.arange(many) % MANY <= MANY // 2, 1.0, np.resize(late(sigma), many))

    monkeypatch.setattr(jitter, "extra", lambda schedule, sigma, count: above(sigma, count))
    seconds = 1000 + (above(MIDDLE) if still else late(MIDDLE))
    found = fit([Repeated(PAIR, 8.0, seconds)], IDEAL)
    assert (found.sigma, found.median) == (pytest.approx(MIDDLE), pytest.approx(1.0, rel=0.02))


def test_calls_take_more_than_their_extra_latencies(evenly):
    assert fit([calls(MIDDLE, base=1e-3)], IDEAL).sigma == pytest.approx(MIDDLE)
    # The shortest size decides, whatever comes before it.
    other = fit([calls(MIDDLE), calls(MIDDLE, base=-0.05, size=16.0)], IDEAL)
    assert other is None or other.median < 0.95
    assert fit([calls(MIDDLE, base=-0.999)], IDEAL) is None
    # So does the shortest kind of call: here one of four ranks, ten times as late, that takes a tenth.
    other = fit([calls(MIDDLE), Repeated(RING, 8.0, 10 * late(MIDDLE, FEW) - 9.9)], IDEAL)
    assert other is None or 10 * other.median < 0.1


def test_fifty_repetitions_are_the_fewest(evenly):
    fifty = calls(1.0)._replace(seconds=1000 + late(1.0)[40::80])
    assert fit([fifty], IDEAL).repetitions == 50
    assert fit([fifty._replace(seconds=fifty.seconds[:49])], IDEAL) is None


@pytest.mark.parametrize(("off", "scatters"), [(0.9e-9, False), (1.1e-9, True)])
def test_a_billionth_of_a_time_is_a_rounding(evenly, off, scatters):
    # Of 98 in a hundred the ninetieth percentile is beyond the median, or none.
    seconds = 5.0 * (1 + off * np.repeat([-1.0, 0.0, 1.0], [20, 60, 20]))
    assert (fit([Repeated(PAIR, 8.0, seconds)], IDEAL) is not None) == scatters


def test_a_fit_needs_scatter_beyond_the_median_in_more_than_a_tenth(evenly):
    for many, found in ((9, False), (12, True)):
        seconds = np.append(np.full(100 - many, 1000.0), 1000 + np.arange(1.0, many + 1))
        assert (fit([Repeated(PAIR, 8.0, seconds)], IDEAL) is not None) == found


def test_percentiles_of_values_that_count_unequally_lie_in_the_middle_of_their_share():
    # Of weights 4, 1 and 5, in order of the values, the middles are at 20, 45 and 75 %.
    found = jitter._percentiles(np.array([3.0, 1.0, 2.0]), np.array([5.0, 4.0, 1.0]))
    between = {10: 1.0, 20: 1.0, 30: 1.4, 70: 2 + 25 / 30, 80: 3.0, 90: 3.0, 95: 3.0, 98: 3.0}
    assert tuple(between) == jitter.MATCHED
    assert found == pytest.approx(list(between.values()))


@pytest.mark.parametrize(("messages", "each", "drawn"), [
    (3, 1, 4000), (3, 7, 3997), (3, 5000, 5000), (1000, 1, 4000), (1600, 1, 2500), (97_561, 1, 40),
    (200_000, 1, 25),
    (200_000, 10, 20), (200_000, 30, 30), (0, 1, 4000),
])  # fmt: skip
def test_as_many_calls_are_drawn_as_four_million_numbers_suffice_for(messages, each, drawn):
    ranks = np.zeros(messages, dtype=int)
    found = jitter._drawn(Schedule(2, [Round(ranks, ranks + 1, 1.0)]), each)
    assert (found, type(found)) == (drawn, int)


def test_what_lies_below_is_counted_among_distances_of_draws(monkeypatch):
    # From the median, one and a half, draws are -0.75, -0.5, 0, 0.5 and 2 away, and a fit of two twice as far.
    drawn = np.array([0.75, 1.0, 1.5, 2.0, 3.5])
    fitted = FittedJitter(2.0, 0.5, 1, 5)
    monkeypatch.setattr(jitter, "extra", lambda schedule, sigma, count: np.resize(drawn, count) if sigma == 0.5 else 0)

    def below_of(seconds, size=8.0):
        return below(Repeated(PAIR, size, np.array(seconds)), fitted, IDEAL)

    found = below_of([10 - 1.6, 10 - 1.2, 10.0, 10.9, 10 + 4.5])
    share = stream(0, "ties", "sendrecv", 2, "8.0").random(5)[2]
    assert found == pytest.approx([0, 0.2, 0.4 + 0.2 * share, 0.6, 1.0])
    other = stream(0, "ties", "sendrecv", 2, "16.0").random(5)[2]
    assert below_of([9.0, 9.5, 10.0, 10.9, 14.5], 16.0)[2] == pytest.approx(0.4 + 0.2 * other)


def test_shares_are_uneven_by_the_mean_of_thirds_of_the_calls_by_time():
    # Of two shares the even ones are a quarter and three quarters, a quarter from each side of a step. The longest
    # calls are all the way up, the shortest a tenth below, and those between a fifth above what would be even.
    shares = np.array([1.0, 0.15, 0.45, 0.65, 1.0, 0.95])
    seconds = np.array([9.0, 1.0, 5.0, 1.5, 8.0, 4.0])
    assert unevenness(shares, seconds) == pytest.approx((1.0 + 0.35 + 0.45) / 3)
    # Seven are three, two and two; of calls that take as long the first comes first.
    equal = np.ones(7)
    assert unevenness(np.array([0.2, 0.5, 0.8, 0.5, 0.5, 0.0, 1.0]), equal) == pytest.approx(
        (max(1 / 3 - 0.2, 0.2) + 0.5 + 0.5) / 3
    )


def test_repetitions_in_proportion_are_those_of_one_message_over_their_median():
    one = in_proportion(Repeated(RING, 16.0, np.array([3.0, 2.0, 8.0])))
    assert (one.setting, one.size) == (TREE, 16.0)
    assert one.seconds.tolist() == [1.0, 2 / 3, 8 / 3]
    assert messages_of(TREE, 1.0).n_messages == 1


def test_latencies_hold_where_factors_do_as_well_and_where_factors_cannot():
    spread = np.random.default_rng(0).permutation(1000 + late(1.0, 100))
    alone = [Repeated(TREE, 8.0, spread / np.median(spread))]
    fitted = fit(alone, IDEAL)
    assert holds(fitted, alone, IDEAL)
    assert fit_links(alone, IDEAL) == fitted
    wrong = fitted._replace(median=fitted.median * 100)
    assert not holds(wrong, alone, IDEAL)
    # As factors on calls these would take less than no time.
    wild = [Repeated(PAIR, 8.0, late(8.0))]
    assert fit([in_proportion(one) for one in wild], IDEAL) is None
    assert holds(wrong, wild, IDEAL)


def test_fewer_repetitions_than_a_fit_takes_have_no_links():
    assert fit_links([Repeated(PAIR, 8.0, np.arange(1.0, 50.0))], IDEAL) is None


def test_calls_are_late_by_what_is_drawn_for_schedules_of_their_size():
    once = Schedule(3, [Round([0, 0], [1, 2], 1.0)])
    draws = stream(0, "extra latency", 3, 2).standard_normal((2, 4))
    assert extra(once, 0.7, 4).tolist() == np.exp(0.7 * draws).max(axis=0).tolist()
    # The second message waits for the first.
    then = Schedule(3, [Round([0], [1], 1.0), Round([1], [2], 1.0)])
    numbers = stream(0, "extra latency", 3, 2)
    first, second = numbers.standard_normal((1, 4)), numbers.standard_normal((1, 4))
    assert extra(then, 0.7, 4) == pytest.approx((np.exp(0.7 * first) + np.exp(0.7 * second))[0])


def test_of_chains_of_messages_the_longest_count_alone():
    def drawn(schedule):
        numbers = stream(0, "extra latency", 4, schedule.n_messages)
        return [np.exp(numbers.standard_normal((len(one), 4))) for one in schedule.rounds]

    # Two messages come to rank 3 by way of rank 1, and one from rank 2 that does not count.
    joined = Schedule(4, [Round([0, 2], [1, 3], 1.0), Round([1], [3], 1.0)])
    (first, _), (second,) = drawn(joined)
    assert extra(joined, 1.0, 4) == pytest.approx(first + second)
    # It comes too late to be one of the longest, too.
    after = Schedule(4, [Round([0], [1], 1.0), Round([1], [3], 1.0), Round([2], [3], 1.0)])
    assert extra(after, 1.0, 4) == pytest.approx(drawn(after)[0][0] + drawn(after)[1][0])
    # Of two that are as long the later one counts, whenever they are sent.
    apart = Schedule(4, [Round([0], [1], 1.0), Round([2], [3], 1.0)])
    assert extra(apart, 1.0, 4) == pytest.approx(np.maximum(drawn(apart)[0][0], drawn(apart)[1][0]))


def test_what_is_typical_is_the_median_of_what_is_drawn():
    # One message is late by the median itself; the standard error of 4000 draws is 0.7 (pi / 8000)^(1/2) = 1.4 %.
    once = Schedule(2, [Round([0], [1], 1.0)])
    assert typical(FittedJitter(3e-6, 0.7, 1, 1), once) == pytest.approx(3e-6, rel=0.05)


def test_in_an_exchange_of_all_each_rank_sends_the_next_a_byte():
    sent = jitter._exchanged(Setting("sendrecv", 3, 1))
    (one,) = sent.rounds
    assert (one.src.tolist(), one.dst.tolist(), one.nbytes.tolist(), sent.n_ranks) == ([0, 1, 2], [1, 2, 0], [1] * 3, 3)
    assert jitter._exchanged(Setting("all_reduce", 4, 4, "ring")).nbytes == pytest.approx(6.0)
    told = {ranks: jitter._exchanged(Setting("sendrecv", ranks)) is not None for ranks in (0, 1, 2, 64, 65)}
    assert told == {0: False, 1: False, 2: True, 64: True, 65: False}


def test_a_number_of_ranks_that_an_algorithm_does_not_take_has_no_messages(monkeypatch):
    even = SimpleNamespace(
        ranks=SimpleNamespace(among=lambda ranks: ranks % 2 == 0), schedule_of_vector=lambda *given: given
    )
    monkeypatch.setattr(jitter.registry, "known", lambda collective, algorithm: even)
    assert messages_of(Setting("broadcast", 3), 6.0) is None
    assert messages_of(Setting("broadcast", 4), 6.0) == (4, 6.0)


def table(rows):
    """Return rows as readers give them, of one system."""
    like = measured.load("shaped_gloo").rows.iloc[[0] * len(rows)].reset_index(drop=True)
    return like.assign(**{name: [one[name] for one in rows] for name in rows[0]})


def test_what_a_row_does_not_say_of_its_setting_is_not_known():
    row = {
        "iteration": 0, "iterations": 1, "collective": "all_gather", "ranks": 4, "nodes": pd.NA, "algorithm": pd.NA,
        "protocol": pd.NA, "nbytes": 64, "seconds": 1.0,
    }  # fmt: skip
    base = table([row, row | {"iteration": 1, "seconds": 2.0}])
    (one,) = repeated(base)
    assert one.setting == Setting("all_gather", 4, 0, "", "")
    said = {"nodes": 2, "algorithm": "ring", "protocol": "LL"}
    (one,) = repeated(table([row | said, row | said | {"iteration": 1}]))
    assert one.setting == Setting("all_gather", 4, 2, "ring", "LL")
    for name in said:
        other = {"nodes": 4, "algorithm": "bruck", "protocol": "LL128"}
        assert repeated(table([row | said, row | said | {"iteration": 1, name: other[name]}])) == []
