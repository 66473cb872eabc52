"""Native code: functions do as in Python, code is kept and read again, and one line tells where that fails."""

import importlib.util
import logging
from dataclasses import dataclass, field
from types import ModuleType
from typing import Annotated, NamedTuple

import numpy as np
import pytest

from simnet.base import native
from simnet.base.compiled_records import compiled_state
from simnet.base.jit_threshold import native_copy


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


class Pair(NamedTuple):
    one: np.ndarray
    other: np.ndarray


def tripled(x):
    return 3 * x


def weighed(short, wide, table, pair, last, strict):
    """Take arrays of all widths and shapes, a tuple, one that may be None, and a bool; write into the table."""
    total = tripled(short[0]) + tripled(wide[0]) + tripled(7)
    for row in range(table.shape[0]):
        for column in range(table.shape[1]):
            table[row, column] += pair.one[row]
    if last is not None and strict:
        total += last[-1] + len(pair.other)
    return total, table[-1, -1], strict


def nothing(times):
    times[0] = 2.0


def divided(one, other):
    return one // other


def of(*functions):
    module = ModuleType(__name__)
    module.__dict__.update({one.__name__: one for one in functions})
    module.__file__ = None
    return module


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for name in ("_told", "_folders"):
        monkeypatch.setattr(native, name, set())
    monkeypatch.setattr(native, "_compiled", [])
    return tmp_path / "home" / "simnet"


def state_of(box):
    rows = [(float(part.mass), int(part.count), bool(part.is_loose)) for part in box.parts]
    return box.total, box.n, box.is_open, rows


@pytest.mark.parametrize("n", [0, 3, 5])
def test_a_function_of_records_does_as_in_python(n):
    draws = np.random.default_rng(n)
    mass, limits, order = draws.random(n), draws.random(n) - 4, draws.permutation(n)
    plain = Box(n=n, parts=[Part(mass=one) for one in mass.tolist()], limits=limits.tolist(), order=order.tolist())
    box = compiled_state(Box)()
    assert (box.total, box.n, box.is_open, len(box.parts)) == (0.0, 0, True, 0)
    box.n, box.limits, box.order = n, limits, order.astype(np.int32)
    assert box.parts.dtype["count"] == np.int32
    box.parts = np.array([(one, 2, False) for one in mass], box.parts.dtype).view(np.recarray)
    run = native_copy(of(work)).work
    for _ in range(2):
        assert run(box, 0.5) == work(plain, 0.5)
        assert state_of(box) == state_of(plain)
        assert type(box.is_open) is bool
        assert type(box.n) is int


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("other", [None, np.array([5, 6])])
def test_arrays_and_tuples_come_in_whole_and_what_does_not_fit_the_narrower_integer_is_no_less(other, strict):
    made = native_copy(of(tripled, weighed))
    short, wide = np.array([1 << 30], np.int32), np.array([1 << 40])
    wide.setflags(write=False)
    for table in (np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(2, 6)[:, ::2]):
        pair = Pair(np.array([1.0, 0.25]), np.zeros((3, 0)))
        found, last = made.weighed(short, wide, table, pair, other, strict), table[-1, -1]
        more = 9 if strict and other is not None else 0
        assert found == (3 * (1 << 30) + 3 * (1 << 40) + 21 + more, last, strict)
        assert last in (5.25, 10.25)
    # A read-only array and another are one kind, a strided table is another.
    made.weighed(short, wide.copy(), np.zeros((1, 1)), Pair(np.zeros(1), np.zeros((3, 0))), other, strict)
    assert len(native.compiled_summary()[0]) <= 2


def test_without_a_result_none_is_returned_and_what_cannot_be_computed_is_refused():
    made, times = native_copy(of(nothing, divided)), np.zeros(1)
    assert made.nothing(times) is None
    assert times[0] == 2.0
    assert made.divided(7, 2) == 3
    with pytest.raises(ArithmeticError, match="divided failed"):
        made.divided(7, 0)


SOURCE = "def add(one, other):\n    return {}\n\ndef twice(number):\n    return add(number, number)\n"


def loaded_from(path):
    spec = importlib.util.spec_from_file_location("kernels_elsewhere", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    native_copy.cache_clear()
    return native_copy(module)


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "installed" / "small.py"
    path.parent.mkdir()
    path.write_text(SOURCE.format("one + other"))
    return path


def compiled_by(path, number=21):
    """Return what a call of `twice` returns, and whether it compiled."""
    before = len(native.compiled_summary()[0])
    return loaded_from(path).twice(number), len(native.compiled_summary()[0]) > before


def test_what_one_process_compiled_is_read_by_the_next_and_one_line_tells_of_it(small, caplog):
    with caplog.at_level(logging.WARNING):
        assert not loaded_from(small).is_kept("twice")
        assert [compiled_by(small), compiled_by(small)] == [(42, True), (42, False)]
        assert loaded_from(small).is_kept("twice")
    assert native.compiled_summary()[1] == (small.parent / "__pycache__",)
    assert [record.getMessage() for record in caplog.records] == [
        "simnet compiles its loops, which takes some seconds; `python -m simnet.compile` does so beforehand, once"
    ]


def test_each_kind_of_argument_and_each_version_of_what_is_called_has_code_of_its_own(small):
    assert [compiled_by(small, one) for one in (21, 0.75, 21, True)] == [
        (42, True), (1.5, True), (42, False), (2, True)
    ]  # fmt: skip
    # Copied, as in an update of a checkout: the caller stays as it is.
    small.write_text(SOURCE.format("one + other + 1"))
    assert [compiled_by(small), compiled_by(small)] == [(43, True), (43, False)]
    small.write_text(SOURCE.format("one + other"))
    assert compiled_by(small) == (42, False)


@pytest.mark.parametrize(
    "damage", [lambda code: code[:-9], lambda code: code[:-1] + b"?", lambda code: b"", bytes.upper]
)
def test_code_that_is_not_whole_is_compiled_again(small, damage):
    compiled_by(small)
    (kept,) = small.parent.rglob("twice-*.o")
    kept.write_bytes(damage(kept.read_bytes()))
    assert [compiled_by(small), compiled_by(small)] == [(42, True), (42, False)]


def test_what_was_compiled_at_installation_is_read_by_those_who_cannot_write_there(small, monkeypatch):
    compiled_by(small)
    monkeypatch.setattr(native, "_keep_code", lambda *given: pytest.fail("writes"))
    assert compiled_by(small) == (42, False)


def full(*arguments, **options):
    raise OSError(28, "No space left on device")


def test_where_the_source_cannot_be_written_to_the_cache_of_the_user_is_used(small, folder, monkeypatch):
    (small.parent / "__pycache__").write_text("no folder")
    assert [compiled_by(small), compiled_by(small)] == [(42, True), (42, False)]
    assert list(folder.glob("twice-*.o"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder.parent / "given"))
    native_copy.cache_clear()
    assert compiled_by(small) == (42, True)
    assert list((folder.parent / "given").glob("twice-*.o"))


def test_without_a_folder_that_can_be_written_to_every_process_compiles_and_says_so(small, monkeypatch, caplog):
    monkeypatch.setattr(native, "open_atomic", full)
    with caplog.at_level(logging.WARNING):
        assert [compiled_by(small), compiled_by(small)] == [(42, True)] * 2
    assert not list(small.parent.rglob("*.o"))
    assert "No space left on device), so that every process does so again; set NUMBA_CACHE_DIR" in caplog.messages[1]
