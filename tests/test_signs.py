"""Signs that workers have in common, and what lasts, of all workers and of each: drawn, and found again."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simnet.traces import ordering, recorded, refining, signs, synthetic
from simnet.traces.ordering import EntryKinds
from simnet.traces.refining import BANDS, BEYOND
from simnet.traces.synthetic import row_count
from simnet.traces.synthetic_parameters import ORDERED, LayerParameters, SyntheticParameters

SIZE, STEPS = 20_000, 40
SPREAD = np.linspace(-3.0, 3.0, 61)
ONE = {"kinds": ((0.0, 0.0),), "shares": ((1.0,),) * 2}
"""A single kind, in place of those."""


def parameters(knots=2, **changes):
    """Return parameters of one layer of entries of many sizes, that has nothing in common but those."""
    share = np.exp(-(np.linspace(-2.5, 2.5, len(SPREAD)) ** 2) / 2)
    layer = {
        "name": "w",
        "matrix": True,
        **dict.fromkeys(("dead", "spread", "tail", "shared"), (0.0,) * knots),
        "rms": (1.0,) * knots,
        "kinds": tuple((0.0, float(one)) for one in SPREAD),
        "shares": (tuple((share / share.sum()).tolist()),) * knots,
        "magnitudes": (tuple(np.exp(-3 + 4 * np.linspace(0, 1, len(BEYOND))).tolist()),) * knots,
        "agree_bands": ((0.0,) * (len(BANDS) + 1),) * knots,
        "against": (1.0,) * knots,
        **changes,
    }
    return SyntheticParameters(
        name="made",
        steps=STEPS,
        knots=tuple(np.linspace(0, 1, knots).tolist()),
        worker_spread=(0.0,) * knots,
        worker_sizes=((1.0,),) * knots,
        memory=0.0,
        fixed=1.0,
        period=1.0,
        layers=(LayerParameters(**layer),),
    )


def gradients(like, steps, workers=8, size=SIZE):
    source = synthetic([("w", (1, size))], workers, like=like, iterations=STEPS)
    return np.stack([source.gradients(step) for step in steps])


def test_signs_are_counted_in_bands_of_magnitudes():
    random = np.random.default_rng(0)
    magnitudes = np.linspace(1, 2, 1000)
    rows = random.choice([-1.0, 1.0], (8, 1000)) * magnitudes
    rows[:, :300] = magnitudes[:300]
    rows[:, 980:] = -magnitudes[980:]
    places = random.permutation(1000)
    products, entries = refining.sign_products_in_bands(rows[:, places].astype(np.float32))
    assert products[[0, -1]] == pytest.approx(1)
    assert products[1:-1] == pytest.approx(0, abs=0.05)
    assert entries == pytest.approx([300, 300, 300, 80, 20])


@pytest.mark.parametrize("shares", [(0.9, 0.9, 0.6, 0.3, 0.1), (0.0, 0.1, 0.3, 0.6, 0.9)])
def test_the_shares_that_gradients_were_made_with_are_found(shares):
    like = parameters(agree_bands=(shares, shares))
    (rows,) = gradients(like, [5], size=100_000)
    layer = like.layers[0]
    kinds = EntryKinds(np.array(layer.shares[0]), *np.array(layer.kinds).T)
    found = signs.sign_agreement(
        refining.sign_products_in_bands(rows), kinds, np.array(layer.magnitudes[0]), 0.0, 1.0, 8
    )
    assert found == pytest.approx(shares, abs=0.06)


def test_what_the_workers_have_in_common_lasts_as_loadings_say():
    loadings = ((0.9, 0.0), (0.6, 0.7), (0.0, 0.8))
    like = parameters(knots=3, agree_bands=((1.0,) * (len(BANDS) + 1),) * 3, lasting=loadings)
    steps = np.array([0, 19, 20, 39])
    made = np.sign(gradients(like, steps)[:, 0])
    at = np.array([np.interp(steps / (STEPS - 1), (0, 0.5, 1), one) for one in np.transpose(loadings)])
    expected = 2 / math.pi * np.arcsin(at.T @ at)
    np.fill_diagonal(expected, 1)
    assert made @ made.T / SIZE == pytest.approx(expected, abs=0.03)


def test_what_a_worker_has_of_its_own_lasts_and_changes_no_magnitudes():
    steps = [3, 30]
    loading = 0.9
    some = gradients(parameters(own_lasting=((loading,), (loading,))), steps)
    first, second = np.sign(some)
    assert (first * second).mean() == pytest.approx(2 / math.pi * math.asin(loading**2), abs=0.01)
    assert (first[1:] * second[:-1]).mean() == pytest.approx(0, abs=0.01)
    assert (first[1:] * first[:-1]).mean() == pytest.approx(0, abs=0.01)
    without = gradients(parameters(), steps)
    at = [0.1, 0.5, 0.9, 0.99]
    assert np.quantile(np.abs(some), at) == pytest.approx(np.quantile(np.abs(without), at), rel=0.02)


def test_loadings_are_found_again():
    loadings = np.array([(0.9, 0.3), (0.9, 0.1), (0.7, 0.0), (0.4, 0.6), (0.1, 0.9), (0.0, 0.9)])
    steps = np.round(np.linspace(0, STEPS - 1, len(loadings))).astype(int)
    like = parameters(
        knots=len(loadings),
        agree_bands=((0.5,) * (len(BANDS) + 1),) * len(loadings),
        lasting=tuple(map(tuple, loadings.tolist())),
        own_lasting=tuple(map(tuple, loadings[::-1].tolist())),
    )
    like = like.model_copy(update={"knots": tuple((steps / (STEPS - 1)).tolist())})
    found = signs.sign_products(np.sign(gradients(like, steps)).astype(np.int8), [SIZE])
    off = ~np.eye(len(steps), dtype=bool)
    (common,), _, _ = signs.shared_loadings(found, steps)
    assert (common @ common.T)[off] == pytest.approx((loadings @ loadings.T)[off], abs=0.06)
    (own,) = signs.own_loadings(found, steps)
    assert (own @ own.T)[off] == pytest.approx((loadings[::-1] @ loadings[::-1].T)[off], abs=0.12)


def test_nothing_of_a_workers_own_lasts_where_all_is_new():
    steps = np.arange(6)
    assert (
        signs.own_loadings(signs.sign_products(np.sign(gradients(parameters(), steps)).astype(np.int8), [SIZE]), steps)
        is None
    )


def test_what_is_left_remembers():
    like = parameters(agree_bands=((1.0,) * (len(BANDS) + 1),) * 2, lasting=((0.6,), (0.6,)))
    like = like.model_copy(update={"memory": 0.7})
    steps = np.arange(8)
    found = signs.sign_products(np.sign(gradients(like, steps, size=60_000)).astype(np.int8), [60_000])
    made, memory, turns = signs.shared_loadings(found, steps)
    assert not turns
    # What three components do not take is remembered.
    correlation = (made[0, :-1] * made[0, 1:]).sum(axis=1)
    rest = np.sqrt((1 - np.square(made[0, :-1]).sum(axis=1)) * (1 - np.square(made[0, 1:]).sum(axis=1)))
    assert (correlation + memory * rest).mean() == pytest.approx(0.36 + 0.64 * 0.7, abs=0.06)


@pytest.mark.parametrize("lasts", [0.0, 0.6])
def test_what_steps_that_follow_each_other_share_is_not_taken_to_last(lasts):
    """Between others that are far away: gradients turn back within a few steps, of which pairs tell little."""
    like = parameters(agree_bands=((1.0,) * (len(BANDS) + 1),) * 2, lasting=((lasts,), (lasts,)))
    like = like.model_copy(update={"memory": 0.7})
    steps = np.array([0, 1, 10, 11, 20, 21, 30, 31])
    found = signs.sign_products(np.sign(gradients(like, steps, size=60_000)).astype(np.int8), [60_000])
    ((made,), memory, turns) = signs.shared_loadings(found, steps)
    assert (memory, turns) == (signs.TURNING, True)
    assert (made[::2] == made[1::2]).all()
    apart = ~np.eye(4, dtype=bool)
    assert (made[::2] @ made[::2].T)[apart].mean() == pytest.approx(lasts**2, abs=0.05)


@pytest.mark.parametrize("between", ["linear", "logarithmic"])
def test_tables_go_from_knot_to_knot_with_the_step_or_with_its_logarithm(between):
    like = parameters(agree_bands=((0.0,) * (len(BANDS) + 1),) * 2)
    layer = like.layers[0]
    first, second = (tuple(size * one for one in layer.magnitudes[0]) for size in (8.0, 1.0))
    layer = layer.model_copy(update={"magnitudes": (first, second), "shares": (layer.shares[0],) * 2})
    like = like.model_copy(update={"layers": (layer,), "between": between, "knots": (0.0, 1.0)})
    sizes = np.abs(gradients(like, [0, 5, STEPS - 1], size=50_000)).mean(axis=(1, 2))
    share = 5 / (STEPS - 1) if between == "linear" else math.log(6) / math.log(STEPS)
    assert sizes[1] == pytest.approx((1 - share) * sizes[0] + share * sizes[2], rel=0.02)


def test_a_worker_with_a_few_huge_entries_is_no_large_one():
    rows = np.random.default_rng(0).standard_normal((8, SIZE)).astype(np.float32)
    rows[3, :10] *= 100
    assert np.sqrt(np.square(rows[3]).mean()) > 2 * np.sqrt(np.square(rows[2]).mean())
    sizes = refining.step_statistics(rows, [SIZE]).sizes
    assert sizes == pytest.approx(1, abs=0.06)
    rows[5] *= 3
    assert refining.step_statistics(rows, [SIZE]).sizes[-1] == pytest.approx(2.4, abs=0.1)


@pytest.mark.parametrize("trace", ["transformer-local", "transformer"])
def test_workers_stand_alone_and_gradients_can_be_added(trace):
    """In the one all there is of what lasts, in the other the rest turns, and large ones are against small ones."""
    like = synthetic(10, 2, like=trace).like
    assert like.turns == (trace == "transformer")
    assert any(layer.lasting and layer.own_lasting and layer.agree_bands for layer in like.layers) != like.turns
    assert any(min(layer.against) < 0 for layer in like.layers) or not like.turns

    def source():
        return synthetic("gpt2", 5, like=like, scale=5000, seed=3)

    whole = source().gradients(7)
    np.testing.assert_array_equal(source().gradients_of([1, 4], 7), whole[[1, 4]])
    rows = np.zeros_like(whole)
    source().add(7, rows)
    np.testing.assert_array_equal(rows, whole)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lasting": ((0.8, 0.7), (0.1, 0.1))}, "squares of lasting of layer 'w' must add up to at most 1"),
        ({"own_lasting": ((0.8,), (0.1, 0.1))}, "own_lasting of layer 'w' must have as many values at each knot"),
        ({"lasting": ((0.8,),)}, "lasting must have 2 rows, one for each knot"),
        ({"agree_bands": ((0.8,), (0.1,))}, "at least 5 items"),
        ({"own_lasting": ((0.8,), (0.1,))} | dict.fromkeys(ORDERED), "must have magnitudes"),
    ],
)
def test_what_is_no_parameter(changes, says):
    with pytest.raises(ValueError, match=says):
        parameters(**changes)


@pytest.mark.parametrize("family", ["convolutional", "transformer"])
def test_what_a_worker_has_of_its_own_lasts_in_pseudo_gradients_and_hardly_in_gradients(family):
    for what in ("", "-dirichlet", "-local", "-local-dirichlet"):
        source = recorded(f"{family}{what}")
        of_all = np.stack([source.recorded(place) for place in range(len(source.info.points))])
        steps = np.array([point.step for point in source.info.points])
        found = signs.own_loadings(
            signs.sign_products(np.sign(of_all).astype(np.int8), [size for _, size in source.layers]), steps
        )
        variance = 0.0 if found is None else np.square(found).sum(axis=2).mean()
        assert variance > 0.25 if "local" in what else variance < 0.1, what


def test_what_a_shard_has_of_its_own_is_found_however_little_where_it_lasts():
    """A hundredth of the variance, in all layers alike, as the mean of few examples differs from that of all."""
    lasting = ((0.1,), (0.1,))
    steps = np.array([0, 1, 10, 11, 20, 21, 30, 31])
    rows = np.sign(gradients(parameters(own_lasting=lasting), steps, size=60_000)).astype(np.int8)
    found = signs.own_loadings(signs.sign_products(rows, [10_000, 50_000]), steps)
    assert found.shape == (2, 8, 1)
    assert found**2 == pytest.approx(0.01, abs=0.003)


def test_what_turns_back_is_added_up_as_noise():
    """From one step on correlations add up to zero, as those of noise are.

    With r = cos(w), 1 + 2 sum of r^k cos(k w) = (1 - r^2) / (1 - 2 r cos(w) + r^2) = (1 - r^2) / (1 - r^2) = 1.
    """
    like = parameters(agree_bands=((1.0,) * (len(BANDS) + 1),) * 2)
    like = like.model_copy(update={"memory": 0.5, "turns": True})
    made = np.sign(gradients(like, range(90), workers=1, size=8000)[:, 0])
    # w is 45 degrees: r^k cos(k w) is 1/2, 0, -1/4, -1/4, -1/8, 0, 1/16, 1/16; signs have 2 / pi arcsin of that.
    expected = [2 / math.pi * math.asin(one) for one in (1 / 2, 0, -1 / 4, -1 / 4, -1 / 8, 0, 1 / 16, 1 / 16)]
    found = [(made[:-lag] * made[lag:]).mean() for lag in range(1, 9)]
    assert found == pytest.approx(expected, abs=0.01)


def test_the_page_and_the_law_are_from_what_was_measured():
    """Rows of whole runs, family and seed, stand on the page; over one step they are the law's in the mean."""
    root = Path(__file__).parents[1]
    page = (root / "docs/traces.md").read_text()
    table = pd.read_csv(root / "benchmarks/turning.csv").query("first == 2 and last > 100")
    assert len(table) == 8
    assert table["1"].mean() == pytest.approx(signs.TURNING, abs=0.02)
    for row in table.to_dict("records"):
        (line,) = (one for one in page.splitlines() if one.startswith(f"| {row['family']}, seed {row['seed']} |"))
        told = [float(cell) for cell in line.split("|")[2:-1]]
        assert told == pytest.approx([row["alike"], *(row[str(lag)] for lag in range(1, 9))], abs=0.0051)


def test_what_turns_back_takes_a_row_more():
    """The two numbers that turn, log s and three rows that recur: six, and five where it fades."""
    like, n = parameters(), 200_000
    out, kept = np.empty((1, n), dtype=np.float32), {}
    for turns in (False, True):
        source = synthetic([("w", (1, n))], 1, like=like.model_copy(update={"memory": 0.5, "turns": turns}))
        tracemalloc.start()
        source.gradients(1, out)
        kept[turns] = tracemalloc.get_traced_memory()[0] / (4 * n)
        tracemalloc.stop()
        # Recurring are `life`, too, where entries of a layer may be zero.
        assert row_count(1, n, turns=turns) - 1 <= kept[turns] + 0.1
        assert kept[turns] <= row_count(1, n, turns=turns)
    assert kept[True] - kept[False] == pytest.approx(1, abs=0.1)


def test_iterations_that_turn_back_can_be_had_without_those_before():
    like = parameters(agree_bands=((0.5,) * (len(BANDS) + 1),) * 2)
    like = like.model_copy(update={"memory": 0.9, "turns": True, "steps": 200})
    source = synthetic([("w", (1, 10_000))], 2, like=like, iterations=200)
    before = source.gradients(63)
    np.testing.assert_array_equal(source.gradients(64), synthetic([("w", (1, 10_000))], 2, like=like).gradients(64))
    # Half of the signs alike at once, and 0.9 of c a step later.
    after = source.gradients(64)
    alike = math.sin(math.pi / 2 * 0.5)
    assert (np.sign(before[0]) * np.sign(after[1])).mean() == pytest.approx(
        2 / math.pi * math.asin(alike * 0.9), abs=0.02
    )


@pytest.mark.parametrize("alike", [0.1, 0.4, 0.8])
def test_workers_agree_by_degrees(alike):
    """As normals that correlate by rho = sin(pi / 2 alike): three of them are on one side at (1 + 3 alike) / 4."""
    like = parameters(agree_bands=((alike,) * (len(BANDS) + 1),) * 2).model_copy(update={"turns": True})
    (rows,) = gradients(like, [5], workers=3, size=60_000)
    signs_of = np.sign(rows)
    assert (signs_of[0] * signs_of[1]).mean() == pytest.approx(alike, abs=0.015)
    assert (np.abs(signs_of.sum(axis=0)) == 3).mean() == pytest.approx((1 + 3 * alike) / 4, abs=0.015)
    # Of a share that is the same at all workers and others that toss coins it would be as much, but not of eight.
    (rows,) = gradients(like, [5], size=60_000)
    x = np.random.default_rng(0).standard_normal((9, 60_000))
    rho = math.sin(math.pi / 2 * alike)
    drawn = np.sign(math.sqrt(1 - rho) * x[:8] + math.sqrt(rho) * x[8]).sum(axis=0)
    found = [np.bincount(np.abs(one).astype(int), minlength=9)[::2] / 60_000 for one in (np.sign(rows).sum(0), drawn)]
    assert found[0] == pytest.approx(found[1], abs=0.015)


@pytest.mark.parametrize("turns", [True, False])
@pytest.mark.parametrize("against", [-1.0, -0.5, 1.0])
def test_entries_that_are_large_for_their_kind_have_the_sign_against_the_others(against, turns):
    """Kinds without shift go beyond twice their median, 0.6745, at 17.7 % of the draws: 2 (1 - Phi(1.349))."""
    like = parameters(agree_bands=((1.0,) * (len(BANDS) + 1),) * 2, against=(against,) * 2, **ONE)
    (rows,) = gradients(like.model_copy(update={"turns": turns}), [5], size=50_000)
    small = np.abs(rows) < np.quantile(np.abs(rows), 0.823 - 0.01)
    large = np.abs(rows) > np.quantile(np.abs(rows), 0.823 + 0.01)
    product = np.sign(rows[0]) * np.sign(rows[1])
    assert product[small[0] & small[1]].mean() == pytest.approx(1, abs=0.01)
    assert product[small[0] & large[1]].mean() == pytest.approx(against, abs=0.03)
    assert refining.large_entry_sign(rows) == pytest.approx(math.sin(math.pi / 2 * against), abs=0.05)


def test_large_entries_are_not_against_small_ones_that_have_nothing_in_common():
    assert refining.large_entry_sign(np.random.default_rng(0).standard_normal((8, 4000)).astype(np.float32)) == 1
    assert refining.large_entry_sign(np.ones((8, 49), dtype=np.float32)) == 1


def test_kinds_that_are_never_large_can_be_left_out():
    """Entries that are about the same at all workers are of such a kind, if there may be any."""
    random = np.random.default_rng(0)
    rows = np.exp(random.standard_normal(20_000)) * (1 + 0.02 * random.standard_normal((8, 20_000)))
    counts, zero = [ordering.count_largest(rows.astype(np.float32))], np.zeros(1)
    assert ordering.fit_order(counts, zero, zero).kinds.shift.min() < -10
    assert ordering.fit_order(counts, zero, zero, 0.0).kinds.shift.min() == 0


@pytest.mark.parametrize(("family", "output"), [("convolutional", "11.weight"), ("transformer", "wte.weight")])
def test_any_class_of_an_output_layer_is_met_sometime(family, output):
    layers = {layer.name: layer for layer in synthetic(10, 2, like=family).like.layers}
    assert np.mean(layers[output].against) < -0.5
    assert min(shift for shift, _ in layers[output].kinds) >= 0
    others = [shift for name, layer in layers.items() if name != output for shift, _ in layer.kinds]
    assert min(others) < 0


def test_what_swings_to_and_fro_does_not_last():
    """Of two directions that all entries share, the one as often unlike as alike is none of what lasts."""
    steps = np.array([0, 1, 10, 11, 20, 21, 30, 31, 38, 39])
    swing = np.array([1, 1, -1, -1, 1, 1, -1, -1, 1, 1]) * 0.3
    constant = np.full(10, 0.6)

    def found(rows):
        other = np.outer(rows, rows)
        np.fill_diagonal(other, 0.4)
        products = signs.SignProducts(other[None], np.eye(10)[None] * 0.6, np.array([1000.0]), 8)
        return np.square(signs.shared_loadings(products, steps)[0]).sum(axis=2)

    assert (found(swing) == 0).all()
    assert (found(constant) > 0.8).all()
