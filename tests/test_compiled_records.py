"""States of records: compiled, functions do as in Python, and notice that another module has changed."""

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Annotated

import numpy as np
import pytest
from numba import njit
from numba.core.caching import NullCache

from simnet.base.compiled_records import compiled_state
from simnet.base.compiling import compiled_module


@dataclass(slots=True)
class Part:
    mass: float = 1.5
    count: Annotated[int, np.int32] = 2
    is_loose: bool = False


@dataclass(slots=True)
class Box:
    total: float = 0.0
    n: int = 0
    is_open: bool = True
    parts: list[Part] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    order: list[Annotated[int, np.int32]] = field(default_factory=list)


def work(box, heavy):
    for at in range(box.n):
        part = box.parts[box.order[at]]
        part.is_loose = part.mass > heavy and not part.is_loose
        part.mass, part.count = part.mass / 3, part.count - 7
        box.total += min(part.mass * part.count, box.limits[at])
    box.is_open = box.is_open and box.n > 3
    box.n -= 1
    return box.total


def state_of(box):
    rows = [(float(part.mass), int(part.count), bool(part.is_loose)) for part in box.parts]
    return box.total, box.n, box.is_open, rows


@pytest.mark.parametrize("n", [0, 3, 5])
def test_a_function_of_records_is_the_same_compiled(n):
    draws = np.random.default_rng(n)
    mass, limits, order = draws.random(n), draws.random(n) - 4, draws.permutation(n)
    plain = Box(n=n, parts=[Part(mass=one) for one in mass.tolist()], limits=limits.tolist(), order=order.tolist())
    box = compiled_state(Box, (sys.modules[__name__],))()
    assert (box.total, box.n, box.is_open, len(box.parts)) == (0.0, 0, True, 0)
    box.n, box.limits, box.order = n, limits, order.astype(np.int32)
    assert box.parts.dtype["count"] == np.int32
    box.parts = np.array([(one, 2, False) for one in mass], box.parts.dtype).view(np.recarray)
    run = njit(work)
    for _ in range(2):
        assert run(box, 0.5) == work(plain, 0.5)
        assert state_of(box) == state_of(plain)
        assert type(box.is_open) is bool
        assert type(box.n) is int


def tripled(x):
    return 3 * x


def both(short, wide):
    return tripled(short[0]) + tripled(wide[0]) + tripled(7)


def test_a_function_is_compiled_once_for_whole_numbers_of_all_widths_and_constants(monkeypatch):
    monkeypatch.setattr("simnet.base.compiling.find_cache", lambda function, sources: NullCache())
    module = ModuleType(__name__)
    module.__dict__.update(tripled=tripled, both=both)
    made = compiled_module(module)
    short, wide = np.array([1 << 30], np.int32), np.array([1 << 40])
    # What does not fit the narrower of both is no less.
    assert made.both(short, wide) == 3 * (1 << 30) + 3 * (1 << 40) + 21
    assert len(made.tripled.signatures) == 1
