"""Signs that workers have in common, and what lasts, of all workers and of each: drawn, and found again."""

import math
import sys

import numpy as np
import pytest

from simnet.traces import normals, recorded, refining, signs, synthetic
from simnet.traces.ordering import Kinds
from simnet.traces.refining import BANDS, BEYOND
from simnet.traces.synthetic_parameters import LayerParameters, SyntheticParameters

SIZE, STEPS = 20_000, 40
SPREAD = np.linspace(-3.0, 3.0, 61)


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
    products, entries = refining.in_bands(rows[:, places].astype(np.float32))
    assert products[[0, -1]] == pytest.approx(1)
    assert products[1:-1] == pytest.approx(0, abs=0.05)
    assert entries == pytest.approx([300, 300, 300, 80, 20])


@pytest.mark.parametrize("shares", [(0.9, 0.9, 0.6, 0.3, 0.1), (0.0, 0.1, 0.3, 0.6, 0.9)])
def test_the_shares_that_gradients_were_made_with_are_found(shares):
    like = parameters(agree_bands=(shares, shares))
    (rows,) = gradients(like, [5], size=100_000)
    layer = like.layers[0]
    kinds = Kinds(np.array(layer.shares[0]), *np.array(layer.kinds).T)
    found = signs.agreeing(refining.in_bands(rows), kinds, np.array(layer.magnitudes[0]), 0.0, 8)
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
    found = signs.products(np.sign(gradients(like, steps)).astype(np.int8), [SIZE])
    off = ~np.eye(len(steps), dtype=bool)
    (common,), _ = signs.common(found, steps)
    assert (common @ common.T)[off] == pytest.approx((loadings @ loadings.T)[off], abs=0.06)
    (own,) = signs.own(found)
    assert (own @ own.T)[off] == pytest.approx((loadings[::-1] @ loadings[::-1].T)[off], abs=0.12)


def test_nothing_of_a_workers_own_lasts_where_all_is_new():
    steps = np.arange(6)
    assert signs.own(signs.products(np.sign(gradients(parameters(), steps)).astype(np.int8), [SIZE])) is None


def test_what_is_left_remembers():
    like = parameters(agree_bands=((1.0,) * (len(BANDS) + 1),) * 2, lasting=((0.6,), (0.6,)))
    like = like.model_copy(update={"memory": 0.7})
    steps = np.arange(8)
    found = signs.products(np.sign(gradients(like, steps, size=60_000)).astype(np.int8), [60_000])
    made, memory = signs.common(found, steps)
    # What three components do not take is remembered.
    correlation = (made[0, :-1] * made[0, 1:]).sum(axis=1)
    rest = np.sqrt((1 - np.square(made[0, :-1]).sum(axis=1)) * (1 - np.square(made[0, 1:]).sum(axis=1)))
    assert (correlation + memory * rest).mean() == pytest.approx(0.36 + 0.64 * 0.7, abs=0.06)


@pytest.mark.parametrize("lasts", [0.0, 0.6])
def test_what_steps_that_follow_each_other_share_is_not_taken_to_last(lasts):
    """Between others that are far away: gradients turn back within a few steps, which pairs of steps cannot tell."""
    like = parameters(agree_bands=((1.0,) * (len(BANDS) + 1),) * 2, lasting=((lasts,), (lasts,)))
    like = like.model_copy(update={"memory": 0.7})
    steps = np.array([0, 1, 10, 11, 20, 21, 30, 31])
    found = signs.products(np.sign(gradients(like, steps, size=60_000)).astype(np.int8), [60_000])
    ((made,), memory) = signs.common(found, steps)
    assert memory == 0
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
    sizes = refining.looked_at(rows, [SIZE]).sizes
    assert sizes == pytest.approx(1, abs=0.06)
    rows[5] *= 3
    assert refining.looked_at(rows, [SIZE]).sizes[-1] == pytest.approx(2.4, abs=0.1)


@pytest.fixture
def all_last():
    """Parameters in which all there is of what lasts differs from layer to layer."""
    like = synthetic(10, 2, like="transformer-local").like
    assert all(layer.lasting and layer.own_lasting and layer.agree_bands for layer in like.layers)
    return like


def test_workers_stand_alone_and_compiled_loops_make_the_same(all_last, monkeypatch):
    def source():
        return synthetic("gpt2", 5, like=all_last, scale=5000, seed=3)

    whole = source().gradients(7)
    np.testing.assert_array_equal(source().gradients_of([1, 4], 7), whole[[1, 4]])
    if normals.loops() is None:
        pytest.skip("without compiled loops")
    monkeypatch.setattr(sys.modules["simnet.traces.synthetic"], "loops_for", lambda _: normals.loops())
    np.testing.assert_array_equal(source().gradients(7), whole)
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
        ({"own_lasting": ((0.8,), (0.1,)), "magnitudes": None, "kinds": None, "shares": None}, "must have magnitudes"),
    ],
)
def test_what_is_no_parameter(changes, says):
    with pytest.raises(ValueError, match=says):
        parameters(**changes)


@pytest.mark.parametrize("family", ["convolutional", "transformer"])
def test_what_a_worker_has_of_its_own_lasts_in_pseudo_gradients_alone(family):
    for what in ("", "-dirichlet", "-local", "-local-dirichlet"):
        source = recorded(f"{family}{what}")
        of_all = np.stack([source.recorded(place) for place in range(len(source.info.points))])
        found = signs.own(signs.products(np.sign(of_all).astype(np.int8), [size for _, size in source.layers]))
        assert (found is not None) == ("local" in what), what
