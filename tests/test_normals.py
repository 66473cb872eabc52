"""Normals of compiled loops are those that numpy draws, and so are the gradients made of them."""

import importlib
import json
from hashlib import blake2b

import numpy as np
import pytest

from simnet.base.rng import stream
from simnet.sparsifier_models.selection import squared_norms
from simnet.traces import normals, synthetic
from simnet.traces.refining import BEYOND
from simnet.traces.synthetic_parameters import SyntheticParameters

# The package has a function of this name.
SOURCE = importlib.import_module("simnet.traces.synthetic")


def bits(values):
    return values.view(np.uint32)


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**64 + 3, np.int64(2**40)])
def test_a_stream_is_that_of_the_seed_and_of_the_words_of_its_name(seed):
    words = np.frombuffer(blake2b(b"'jitter'\x1f3", digest_size=16).digest(), dtype="<u4").tolist()
    expected = np.random.default_rng(np.random.SeedSequence([int(seed), *words]))
    assert np.array_equal(stream(seed, "jitter", 3).random(9), expected.random(9))


@pytest.mark.parametrize("sizes", [(3_000_000,), (1, 2, 4093, 1, 8192, 5000, 3), (4096, 4096, 1), (63, 64, 65) * 99])
def test_compiled_normals_are_those_of_numpy(sizes):
    loops = normals.compiled_loops()
    assert loops is not None
    drawn, expected = normals.Normals(stream(5, "n"), loops), stream(5, "n")
    for size in sizes:
        out = np.empty(size, dtype=np.float32)
        drawn.fill(out)
        assert np.array_equal(bits(out), bits(expected.standard_normal(size, dtype=np.float32)))


def test_draws_beyond_the_last_strip_are_there():
    out = np.empty(4_000_000, dtype=np.float32)
    normals.Normals(stream(6, "n"), normals.compiled_loops()).fill(out)
    assert (np.abs(out) > 3.66).sum() > 500
    assert abs(out.mean()) < 2e-3
    assert abs(out.std() - 1) < 2e-3


def described(ordered):
    """Return parameters of three layers, of which some have quantiles, and the last of these kinds."""
    random = np.random.default_rng(0)
    plain = {
        "matrix": True,
        "rms": (1, 2),
        "dead": (0.1, 0.3),
        "spread": (0.5, 0.9),
        "tail": (0.2, 0),
        "shared": (0.2, 0),
    }
    layers = []
    for layer, given in enumerate(ordered):
        one = {"name": f"layer{layer}", **plain}
        if given:
            kinds, shares = (
                ([(-1, 0), (0.5, 0.3)], [(0.5, 0.5), (0.8, 0.2)]) if given == "two" else ([(0, 0)], [(1,)] * 2)
            )
            one |= {"magnitudes": np.sort(np.abs(random.standard_normal((2, len(BEYOND))))).tolist(), "kinds": kinds}
            one |= {"shares": shares, "agree_bands": [(0.3,) * 5, (0.2,) * 5], "against": (1, 0.5)}
        layers.append(one)
    whole = {"name": "x", "steps": 40, "knots": (0, 1), "worker_spread": (0.2, 0.1), "memory": 0.6, "fixed": 0.4}
    return SyntheticParameters.model_validate_json(json.dumps(whole | {"period": 2.0, "layers": layers}))


@pytest.mark.parametrize("ordered", [(False,) * 3, (False, True, "two"), (True, True, "two")])
@pytest.mark.parametrize("kept", [0, 1 << 29])
def test_gradients_are_the_same_however_they_are_made(monkeypatch, ordered, kept):
    shapes = [("a", (40, 1000)), ("b", (300, 300)), ("c", (7, 7))]

    def made(worth):
        monkeypatch.setattr(normals, "_WORTH", worth)
        monkeypatch.setattr(SOURCE, "_KEPT", kept)
        monkeypatch.setattr(SOURCE, "_KEPT_SHARE", 0)
        source = synthetic(shapes, 3, like=described(ordered), iterations=40, seed=2)
        return [source.gradients(iteration).copy() for iteration in (0, 1, 9, 4, 39)]

    for one, other in zip(made(0), made(1 << 60), strict=True):
        assert np.isfinite(one).all()
        assert np.count_nonzero(one) > one.size / 2
        assert np.array_equal(bits(one), bits(other))


@pytest.mark.parametrize("ordered", [(False,) * 3, (False, True, "two")])
@pytest.mark.parametrize("aside", [1 << 22, 1])
def test_gradients_that_are_added_are_those_that_are_made(monkeypatch, ordered, aside):
    monkeypatch.setattr(normals, "_WORTH", 0)
    monkeypatch.setattr(SOURCE, "_ASIDE", aside)
    shapes = [("a", (40, 1000)), ("b", (300, 300)), ("c", (7, 7))]
    source, other = (synthetic(shapes, 3, like=described(ordered), iterations=40, seed=2) for _ in range(2))
    start = np.random.default_rng(0).standard_normal((3, source.parameters), dtype=np.float32)
    for iteration in (0, 1, 9):
        rows = start.copy()
        assert source.adds
        norms = source.add(iteration, rows)
        assert np.array_equal(bits(rows), bits(start + other.gradients(iteration)))
        if any(ordered):
            assert norms is None
        else:
            assert norms.tolist() == squared_norms(rows).tolist()


def test_the_squares_of_rows_that_gradients_are_added_to_are_not_finite_where_an_entry_is_not(monkeypatch):
    monkeypatch.setattr(normals, "_WORTH", 0)
    source = synthetic([("a", (40, 1000))], 3)
    rows = np.zeros((3, 40_000), dtype=np.float32)
    rows[0, 5], rows[2, -1] = np.inf, np.nan
    assert np.isfinite(source.add(0, rows)).tolist() == [False, True, False]


def test_gradients_are_added_where_loops_are_compiled(monkeypatch):
    source = synthetic(1000, 3)
    assert not source.adds
    monkeypatch.setattr(normals, "_WORTH", 3001)
    assert not source.adds
    source.gradients(0)
    assert source.adds
