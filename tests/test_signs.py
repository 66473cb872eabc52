"""Signs that workers have in common, and what lasts, of all workers and of each: drawn, and found again."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simnet.traces import recorded, refining, signs, synthetic
from simnet.traces.metadata import ORDERED, LayerParameters, SyntheticParameters
from simnet.traces.refining import BANDS, BEYOND

SIZE, STEPS = 20_000, 40
SPREAD = np.linspace(-3.0, 3.0, 61)
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


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lasting": ((0.8, 0.7), (0.1, 0.1))}, "squares of lasting of layer 'w' must add up to at most 1"),
        ({"own_lasting": ((0.8,), (0.1, 0.1))}, "own_lasting of layer 'w' must have as many values at each knot"),
        ({"lasting": ((0.8,),)}, "lasting of layer 'w' must have 2 values, one for each knot"),
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


def test_the_law_is_the_mean_of_what_was_measured():
    table = pd.read_csv(Path(__file__).parents[1] / "benchmarks/turning.csv").query("first == 2 and last > 100")
    assert len(table) == 8
    assert table["1"].mean() == pytest.approx(signs.TURNING, abs=0.02)


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


def test_large_entries_are_not_against_small_ones_that_have_nothing_in_common():
    assert refining.large_entry_sign(np.random.default_rng(0).standard_normal((8, 4000)).astype(np.float32)) == 1
    assert refining.large_entry_sign(np.ones((8, 49), dtype=np.float32)) == 1


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
