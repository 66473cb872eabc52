"""Streams of random numbers, and gradients that are added while they are made."""

import importlib
import json
from hashlib import blake2b

import numpy as np
import pytest

from simnet.base.rng import stream
from simnet.traces import synthetic
from simnet.traces.metadata import SyntheticParameters
from simnet.traces.refining import BEYOND

# The package has a function of this name.
SOURCE = importlib.import_module("simnet.traces.synthetic")


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**64 + 3, np.int64(2**40)])
def test_a_stream_is_that_of_the_seed_and_of_the_words_of_its_name(seed):
    words = np.frombuffer(blake2b(b"'jitter'\x1f3", digest_size=16).digest(), dtype="<u4").tolist()
    expected = np.random.default_rng(np.random.SeedSequence([int(seed), *words]))
    assert np.array_equal(stream(seed, "jitter", 3).random(9), expected.random(9))


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
@pytest.mark.parametrize("aside", [1 << 22, 1])
def test_gradients_that_are_added_are_those_that_are_made(monkeypatch, ordered, aside):
    monkeypatch.setattr(SOURCE, "_ASIDE", aside)
    shapes = [("a", (40, 1000)), ("b", (300, 300)), ("c", (7, 7))]
    other = synthetic(shapes, 3, like=described(ordered), iterations=40, seed=2)
    source = synthetic(shapes, 3, like=described(ordered), iterations=40, seed=2)
    start = np.random.default_rng(0).standard_normal((3, source.parameters), dtype=np.float32)
    for iteration in (0, 1, 9, 4, 39):
        rows, made = start.copy(), other.gradients(iteration)
        source.add(iteration, rows)
        assert np.count_nonzero(made) > made.size / 2
        assert np.array_equal(rows, start + made)
