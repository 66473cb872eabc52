"""The exponential in single precision: the same bits on every machine, and close to the true value."""

import hashlib

import numpy as np

from simnet.traces.exponential import by_formula, processor_agrees


def numbers() -> np.ndarray:
    draws = np.random.default_rng(0)
    edges = [0.0, -0.0, 88.722, 88.723, -87.33, -87.34, -103.97, -104.0, 1e-30, -np.inf, np.inf]
    return np.concatenate([draws.standard_normal(200_000), draws.uniform(-105, 89, 200_000), edges]).astype(np.float32)


def test_its_bits_are_those_that_every_machine_has():
    bits = by_formula(numbers()).tobytes()
    assert hashlib.sha256(bits).hexdigest()[:16] == "cb02cde6064457d3"


def test_it_is_right_to_three_units_in_the_last_place():
    x = numbers()[:-2]
    exact, found = np.exp(x.astype(np.float64)), by_formula(x).astype(np.float64)
    normal = (exact > 1.2e-38) & (exact < 3.4e38)
    off = np.abs(found - exact)[normal] / np.spacing(exact[normal].astype(np.float32))
    assert off.max() < 3
    assert by_formula(np.float32([-np.inf, np.inf])).tolist() == [0.0, np.inf]


def test_numpy_is_asked_only_where_it_gives_these_bits(monkeypatch):
    x = numbers()
    if processor_agrees():
        with np.errstate(over="ignore", under="ignore"):
            assert np.array_equal(np.exp(x).view(np.int32), by_formula(x).view(np.int32))
