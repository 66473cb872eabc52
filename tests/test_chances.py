"""Chances of being the fastest: what must hold of any errors, and that the shipped errors are those measured."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring_jobs.errors import FASTEST
from validating import chances as judging
from validating import residuals

import needs
from simnet.cost_models.calibration import measured
from simnet.cost_models.evidence import conditions
from simnet.cost_models.evidence.chances import SURE, ErrorPart, chances
from simnet.cost_models.evidence.intervals import (
    CROSS_VALIDATED,
    DRAWS,
    GIVEN,
    NAMED,
    SCORES,
    UNNAMED,
    ErrorModel,
    corrected,
    error_models,
    factor_for_another,
    interval,
)
from simnet.policies import Candidate
from simnet.report.summary import Column, Summary, percent
from simnet.scenario import load
from simnet.studies import job_totals
from simnet.studies.choosing.ranking import row_totals
from simnet.studies.choosing.whole_job import candidates_of, decide_job
from simnet.validate.shapednet.libraries import cases, predictable

SHIPPED = Path(measured.__file__).parent / "residuals.csv"

SAME = SCORES[np.newaxis] / 1.645
NORMAL = {"normal": ErrorModel(0.0, SAME), "shared": ErrorModel(0.9, SAME)}
"""Errors whose logarithms are normal, alike at all sites: an interval holds 90 %."""


def part(seconds, factor=1.2, kind="normal"):
    times = np.array(seconds, dtype=float)
    return ErrorPart(times, times / factor, times * factor, [kind] * len(times))


times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=6)


@given(times, st.sampled_from(["normal", "shared"]), st.randoms())
@settings(max_examples=20, deadline=None)
def test_chances_add_up_and_do_not_depend_on_the_order_of_choices(seconds, kind, random):
    names = [f"choice {number}" for number in range(len(seconds))]
    found = chances(names, [part(seconds, kind=kind)], NORMAL)
    assert found.fastest.sum() == pytest.approx(1)
    assert (found.regret >= 0).all()
    order = list(range(len(seconds)))
    random.shuffle(order)
    other = chances([names[one] for one in order], [part([seconds[one] for one in order], kind=kind)], NORMAL)
    assert other.fastest.tolist() == found.fastest[order].tolist()
    assert other.regret.tolist() == found.regret[order].tolist()


def test_equal_times_have_equal_chances_up_to_the_draws():
    found = chances(list("abcd"), [part([1.0] * 4)], NORMAL)
    assert found.fastest == pytest.approx(np.full(4, 0.25), abs=4 * 0.5 / DRAWS**0.5)
    assert found.regret.max() < 1.1 * found.regret.min()


def test_times_that_are_certain_have_chances_of_0_and_1_and_equals_share():
    found = chances(list("abc"), [part([1.0, 1.5, 1.0], factor=1.0)], NORMAL)
    assert found.fastest.tolist() == [0.5, 0.0, 0.5]
    assert found.regret.tolist() == [0.0, 0.5, 0.0]


def test_what_takes_no_time_is_the_fastest_and_others_are_infinitely_slower():
    found = chances(list("ab"), [part([0.0, 1.0])], NORMAL)
    assert found.fastest.tolist() == [1.0, 0.0]
    assert found.regret.tolist() == [0.0, np.inf]


@pytest.mark.parametrize(("kind", "correlation"), [("normal", 0.0), ("shared", 0.9)])
def test_two_choices_have_the_chance_that_theory_gives(kind, correlation):
    # The difference of two normal logarithms is normal.
    spread = np.log(1.2) / 1.645 * np.sqrt(2 * (1 - correlation))
    for ratio in (1.01, 1.1, 1.3):
        found = chances(list("ab"), [part([1.0, ratio], kind=kind)], NORMAL).fastest[0]
        assert found == pytest.approx(residuals._NORMAL.cdf(np.log(ratio) / spread), abs=0.01)


def test_errors_of_parts_are_drawn_for_themselves():
    # Half of the time each: independent errors of two halves make up for each other in part.
    whole = chances(list("ab"), [part([1.0, 1.1])], NORMAL).fastest[0]
    halves = chances(list("ab"), [part([0.5, 0.55]), part([0.5, 0.55])], NORMAL).fastest[0]
    assert halves > whole + 0.05


def test_gradients_of_a_job_lengthen_all_parts_of_an_exchange_alike():
    known = ErrorPart(np.array([1.6, 1.0]), np.array([1.6, 1.0]), np.array([1.6, 1.0]), [GIVEN, GIVEN])
    spread = [(1.0, 1.0), (0.7, 1.6)]
    assert chances(["known", "follows"], [known]).fastest.tolist() == [0.0, 1.0]
    whole = chances(["known", "follows"], [known._replace(spread=spread)])
    assert whole.fastest[0] == pytest.approx(0.05, abs=1e-3)
    half = ErrorPart(*(one / 2 for one in known[:3]), known.kinds, spread)
    two = chances(["known", "follows"], [half, half])
    assert two.fastest[0] == whole.fastest[0]
    below = chances(["known", "follows"], [known._replace(seconds=np.array([0.7, 1.0]), spread=spread)])
    assert below.fastest[1] == pytest.approx(0.05, abs=1e-3)


def test_a_further_choice_leaves_the_draws_of_others_as_they_are():
    two = chances(list("ab"), [part([1.0, 1.05])], NORMAL)
    three = chances(list("abc"), [part([1.0, 1.05, 1e3])], NORMAL)
    assert three.fastest.tolist() == [*two.fastest.tolist(), 0.0]


def test_chances_come_true_where_errors_are_as_the_model_has_them():
    random = np.random.default_rng(3)
    rows = []
    for number in range(400):
        seconds = np.exp(random.normal(0, 0.1, 2))
        true = seconds * np.exp(random.normal(0, np.log(1.2) / 1.645, 2))
        found = chances(list("ab"), [part(seconds)], NORMAL)
        rows.append((str(number), found.fastest[0], true[0] < true[1]))
    judged = pd.DataFrame(rows, columns=["site", "chance", "first"])
    for said, came, count in judging.reliability(judged):
        if count > 30:
            assert came == pytest.approx(said, abs=3 * (said * (1 - said) / count) ** 0.5 + 0.01)


def sites_of(scales, random, pairs=400, shift=0.0):
    """Return errors of pairs at made-up sites whose intervals say a factor of 1.5, and that are off by so much."""
    rows = []
    for site, scale in enumerate(scales):
        centre = shift * random.normal() * scale
        for place in range(pairs):
            for name in "ab":
                ours = np.exp(random.normal(0, 1.5))
                measured = ours * np.exp(centre + scale * random.normal() * np.log(1.5) / 1.645)
                where = dict.fromkeys(("site", "set", "cluster"), f"site{site}") | {"place": str(place)}
                what = {"kind": "sizes", "name": name, "collective": "all_reduce", "ranks": 2, "size": 1.0}
                took = {"measured": measured, "ours": ours, "low": ours / 1.5, "high": ours * 1.5}
                rows.append(where | what | took)
    return pd.DataFrame(rows)


SCALES = np.exp(np.linspace(-1.2, 1.2, 9))
"""Some sites are hard to predict, and some easy: what is pooled over them is neither."""


def test_sure_is_right_as_often_as_claimed_at_sites_that_were_not_seen():
    # Each site in turn is the new one; the hardest has errors larger than any that were seen.
    made = [sites_of(SCALES, np.random.default_rng(seed), pairs=60) for seed in (11, 12, 13)]
    rows = pd.concat([judging.on_clusters(one, judging.CLUSTERS[1]) for one in made], ignore_index=True)
    found = judging.figures(rows)
    assert found["sites"] == len(SCALES)
    assert found["sure"] > 0.4
    assert found["sure_right"] >= 0.98
    # By the chance alone, which is from eight sites, more would be called sure, and wrong.
    by_chance = judging.figures(rows.assign(sure=np.maximum(rows["chance"], 1 - rows["chance"]) >= SURE))
    assert 1 - found["sure_right"] < 0.75 * (1 - by_chance["sure_right"])


def test_one_site_alone_tells_no_chances():
    rows = sites_of(SCALES[:2], np.random.default_rng(3), pairs=20)
    assert len(judging.on_clusters(rows, judging.CLUSTERS[1])) == 40
    assert judging.on_clusters(rows[rows["site"] == "site0"], judging.CLUSTERS[1]).empty


def test_a_choice_is_the_less_sure_the_fewer_sites_its_chance_is_from():
    # The same mixture of easy and hard sites, seen once and eight times.
    few = ErrorModel(0.0, np.array([0.2 * SAME[0], 0.2 * SAME[0], 2.0 * SAME[0]]))
    many = few._replace(quantiles=np.tile(few.quantiles, (8, 1)))
    times = part([1.0, 1.6], kind="x")
    rare, often = (chances(list("ab"), [times], {"x": one}) for one in (few, many))
    assert rare.fastest[0] == pytest.approx(often.fastest[0], abs=0.01)
    assert rare.at_least[0] < often.at_least[0] < often.fastest[0]
    assert often.fastest[0] > SURE
    assert not rare.sure[0]


def test_one_known_error_for_all_leaves_a_chance_as_it_is():
    found = chances(list("ab"), [part([1.0, 1.5])], NORMAL)
    assert found.at_least.tolist() == found.fastest.tolist()
    assert found.sure == [bool(found.fastest[0] >= SURE), False]


def test_errors_of_two_choices_are_from_the_same_site():
    # One site is exact and the other is not: of three choices alike, either all are off or none.
    both = {"x": ErrorModel(0.0, np.array([1e-6 * SAME[0], 4 * SAME[0]]))}
    mixed = chances(list("ab"), [part([1.0, 1.1], kind="x")], both).fastest[0]
    hard = chances(list("ab"), [part([1.0, 1.1], 1.2**4)], NORMAL).fastest[0]
    assert mixed == pytest.approx((1 + hard) / 2, abs=0.01)


def test_intervals_of_calibrations_are_corrected_to_hold_what_they_say_at_a_further_site():
    random = np.random.default_rng(5)
    for kind, scale in (("ranks", 0.5), ("beyond", 2.0)):
        rows = sites_of(scale * SCALES, random).assign(kind=kind)
        inside = []
        for site in rows["site"].unique():
            own, known = rows[rows["site"] == site], {kind: residuals.model(rows[rows["site"] != site])}
            low, high = corrected(kind, own["ours"], own["low"], own["high"], known)
            inside.append(((low <= own["measured"]) & (own["measured"] <= high)).mean())
        assert np.mean(inside) == pytest.approx(0.9, abs=0.02)
    assert "specified" not in CROSS_VALIDATED
    low, high = corrected("specified", np.ones(1), np.full(1, 0.5), np.full(1, 3.0))
    wider = factor_for_another(len(error_models()["specified"].quantiles))
    assert (low[0], high[0]) == pytest.approx((0.5**wider, 3.0**wider))
    assert corrected("ranks", np.zeros(1), np.zeros(1), np.zeros(1))[1].tolist() == [0.0]


def test_intervals_without_software_hold_nine_in_ten():
    links = residuals.of_links()
    own = residuals.with_intervals(links[links["kind"] == UNNAMED], residuals.sides(links))
    inside = (own["low"] <= own["measured"]) & (own["measured"] <= own["high"])
    assert inside.groupby(own["set"]).mean().mean() == pytest.approx(0.9, abs=0.01)


def test_errors_of_links_were_learnt_where_it_is_said():
    seen = [
        (one.ranks, *links)
        for name in residuals.SETS
        for one in cases(predictable(measured.load_dataset(name).rows))
        for links in [np.array(one.links.of_hosts(one.ranks))]
        if links[:, 1].max() <= FASTEST
    ]
    ranks = [one[0] for one in seen]
    latency, bandwidth = np.concatenate([one[1:] for one in seen]).T
    found = [(min(one), max(one)) for one in (latency, bandwidth, ranks)]
    assert found == [conditions.LATENCY, conditions.BANDWIDTH, conditions.WORKERS]


def test_intervals_of_links_are_wider_the_more_of_a_time_is_software():
    seconds = np.array([1e-3, 1e-1, 10.0])
    low, high = interval("gloo", np.full(3, 8.0), seconds)
    assert (np.diff(high / seconds) < 0).all()
    assert (np.diff(seconds / low) < 0).all()
    assert ((low < seconds) & (seconds < high)).all()
    assert interval("gloo", np.zeros(1), np.zeros(1))[1].tolist() == [0.0]


def test_a_stack_that_was_not_measured_has_the_errors_of_none():
    one = np.ones(1)
    assert interval("nccl", one, one) == interval(UNNAMED, one, one)


def test_quantiles_and_correlation_are_those_of_made_up_errors():
    random = np.random.default_rng(5)
    rows = []
    for place in range(3000):
        together, own = random.normal(), random.normal(size=2)
        for name, each in zip("ab", own, strict=True):
            error = 0.1 * (np.sqrt(0.4) * together + np.sqrt(0.6) * each)
            one = {"kind": "x", "site": "s", "set": "s", "cluster": "s", "place": str(place), "name": name}
            one["collective"] = name
            rows.append(one | {"size": 1.0, "measured": np.exp(error), "ours": 1.0, "low": 0.9, "high": 1 / 0.9})
    found = residuals.model(pd.DataFrame(rows))
    inside = np.abs(SCORES) <= 2
    assert found.quantiles.shape == (1, len(SCORES))
    assert found.quantiles[0, inside] == pytest.approx(0.1 * SCORES[inside] / -np.log(0.9), abs=0.1)
    assert found.shared == pytest.approx(0.4, abs=0.05)


def test_shipped_errors_of_links_and_jobs_are_what_shipped_measurements_say():
    made = pd.read_csv(io.StringIO(residuals.table(pd.DataFrame())))
    shipped = pd.read_csv(SHIPPED)
    own = shipped[~shipped["kind"].isin(residuals.BASES)].reset_index(drop=True)
    pd.testing.assert_frame_equal(made, own, obj="python benchmarks/validation.py --residuals FILE makes it anew")


@pytest.mark.slow
def test_shipped_errors_of_clusters_are_what_public_measurements_say():
    from validating import page, running

    wanted, _ = running.sets(needs.shared() / "measured")
    made = {one["name"]: one for one in running.run(wanted, {}, 2)}
    clusters = residuals.of_clusters(page.frame({"sets": made}))
    assert residuals.table(clusters) == SHIPPED.read_text(encoding="utf-8")


def test_sure_is_right_on_links_and_in_jobs_that_errors_were_not_learnt_from():
    links = residuals.of_links()
    for case in (judging.LINKS[0], judging.LINKS[2]):
        found = judging.figures(judging.on_links(links, case))
        assert found["pairs"] > 150
        assert found["sure_right"] >= 0.98
    found = judging.figures(judging.on_jobs(residuals.of_jobs()))
    assert found["pairs"] > 200
    assert found["sure_right"] >= 0.98
    assert 0.3 < found["sure"] < 1.0


def test_models_are_shipped_for_every_kind():
    known = error_models()
    assert set(known) == {*residuals.BASES, *residuals.MEASURED_STACKS, *residuals.JOBS, NAMED, UNNAMED, GIVEN}
    for name, one in known.items():
        assert 0 <= one.shared < 1
        assert (np.diff(one.quantiles) >= 0).all()
        assert (one.quantiles[:, 0] < one.quantiles[:, -1]).all()
        assert (len(one.quantiles) > 1) == (name != GIVEN)


@pytest.fixture(scope="module")
def small_job():
    loaded = load("quickstart", ["job.iterations=30"])
    run = loaded.build()
    return run.job, decide_job(run, candidates_of(loaded)[:4], policies=False)


def test_what_a_sample_leaves_open_lowers_the_chance_of_the_fastest(small_job):
    job, found = small_job
    rows = [row for row in found.rows if row.complete][:2]
    every_tenth = [_tenth(row) for row in rows]
    assert max(row.error for row in rows) == pytest.approx(0, abs=1e-12)
    totals = row_totals(every_tenth, job)
    assert [one.left_open > 0 for one in totals] == [False, True]
    assert job_totals.judged(totals).fastest[0] < job_totals.judged(row_totals(rows, job)).fastest[0]


def _tenth(row):
    sample = {name: one[::10] for name, one in row.sample.items()}
    # Unlike from one to the next, as on links that change.
    seconds = sample["iteration_s"] * np.linspace(0.5, 1.5, len(sample["iteration_s"]))
    return replace(row, sample=sample | {"iteration_s": seconds, "stands_for": 10 * sample["stands_for"]})


def test_messages_of_an_exchange_are_those_of_a_worker_in_an_iteration(small_job):
    job, _ = small_job
    workers = job.source.workers
    assert job_totals.messages(Candidate("ring", "dense", {"algorithm": "ring"}), job) == 2 * (workers - 1)


def test_a_chance_is_never_certain_in_words():
    assert percent(0.99999) == ">99 %"
    rows = [{"exchange": "AG", "chance": 0.99999}, {"exchange": "ring", "chance": 1e-5}]
    table = Summary(
        answer="", columns=[Column("exchange", "exchange", "text"), Column("chance", "chance", "chance")], rows=rows
    )
    assert [line.split()[-1] for line in str(table).splitlines()[-2:]] == [">99", "<1"]
