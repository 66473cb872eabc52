"""Where compiled loops are kept: one process compiles them, others read them, and one line tells where that fails."""

import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import caching

from simnet.base import compiled_cache

# Compiled as the loops of simnet are; those would take seconds.
SMALL = """
from numba.core import types
from simnet.base.compiling import compile_function

@compile_function(types.int64(types.int64))
def twice(number):
    return 2 * number
"""


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    for name in ("_told", "_folders"):
        monkeypatch.setattr(compiled_cache, name, set())
    monkeypatch.setattr(compiled_cache, "_compiled", [])


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "installed" / "small.py"
    path.parent.mkdir()
    path.write_text(SMALL)
    return path


def loaded_from(path):
    spec = importlib.util.spec_from_file_location("kernels_elsewhere", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.twice(21) == 42
    return module.twice


def compiled_by(path):
    """Return whether loading compiles, and where the code is kept."""
    before = len(compiled_cache.cache_summary()[0])
    twice = loaded_from(path)
    return len(compiled_cache.cache_summary()[0]) > before, getattr(twice._cache, "cache_path", None)


def test_what_calls_functions_of_another_file_is_compiled_again_when_that_has_changed(tmp_path):
    # Copied, as in an update of a checkout: the caller's file stays as it is.
    (tmp_path / "caller.py").write_text(
        "from callee import add\n\ndef twice(number):\n    return add(number, number)\n"
    )
    use = (
        "import callee, caller\n"
        "from simnet.base import compiled_cache, compiling\n"
        "found = compiling.compiled_module(callee, caller).twice(21)\n"
        "print(found, len(compiled_cache.cache_summary()[0]))\n"
    )

    def found(body=""):
        if body:
            (tmp_path / "callee.py").write_text(f"def add(one, other):\n    return {body}\n")
        command = [sys.executable, "-c", use]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()

    assert found("one + other") == ["42", "2"]
    assert found() == ["42", "0"]
    assert found("one + other + 1") == ["43", "2"]


def test_what_an_earlier_version_compiled_for_classes_that_have_other_names_is_compiled_again(tmp_path):
    use = (
        "import pairs\n"
        "from simnet.base import compiled_cache, compiling\n"
        "made = compiling.compiled_module(pairs)\n"
        "print(made.total(pairs.ONE), len(compiled_cache.cache_summary()[0]))\n"
    )

    def found(name):
        text = f"from typing import NamedTuple\n\nclass {name}(NamedTuple):\n    a: int\n    b: int\n\n"
        text += f"def total(pair):\n    return pair.a + pair.b\n\nONE = {name}(20, 22)\n"
        (tmp_path / "pairs.py").write_text(text)
        command = [sys.executable, "-c", use]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()

    assert [found("Pair"), found("Couple")] == [["42", "1"]] * 2


def test_a_version_that_another_process_wrote_over_is_compiled_again(tmp_path):
    """Two processes that compile at once number their files alike."""
    (tmp_path / "halves.py").write_text("def half(number):\n    return number / 2\n")
    use = (
        "import numpy, halves\n"
        "from simnet.base import compiling\n"
        "half = compiling.compiled_module(halves).half\n"
        "print(half(numpy.{}(2.5)))\n"
    )

    def halved(dtype):
        command = [sys.executable, "-c", use.format(dtype)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert [halved("float32"), halved("int64")] == ["1.25\n", "1.0\n"]
    one, other = sorted((tmp_path / "__pycache__").glob("*.nbc"))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    assert [halved("float32"), halved("int64")] == ["1.25\n", "1.0\n"]


def refused(*arguments):
    raise OSError(13, "Permission denied")


@pytest.fixture
def read_only(monkeypatch):
    """Neither beside the source nor in the home of the user can anything be written."""
    for one in (caching.CacheImpl._locator_classes[1], caching.CacheImpl._locator_classes[2]):
        monkeypatch.setattr(one, "ensure_cache_path", refused)


def test_what_one_process_compiled_is_read_by_the_next_and_one_line_tells_of_it(small, caplog):
    with caplog.at_level(logging.WARNING):
        first, place = compiled_by(small)
        again, _ = compiled_by(small)
    assert (first, again) == (True, False)
    assert Path(place) == small.parent / "__pycache__"
    assert [record.getMessage() for record in caplog.records] == [
        "simnet compiles its loops, which takes some seconds; `python -m simnet.compile` does so beforehand, once"
    ]


def test_what_was_compiled_at_installation_is_read_by_those_who_cannot_write_there(small, read_only, monkeypatch):
    with monkeypatch.context() as installing:
        installing.setattr(caching.CacheImpl._locator_classes[1], "ensure_cache_path", lambda self: None)
        (small.parent / "__pycache__").mkdir(exist_ok=True)
        assert compiled_by(small)[0]
    assert compiled_by(small) == (False, str(small.parent / "__pycache__"))


def test_without_a_folder_that_can_be_written_to_every_process_compiles_and_says_so(small, read_only, caplog):
    with caplog.at_level(logging.WARNING):
        assert [compiled_by(small), compiled_by(small)] == [(True, None)] * 2
    assert "every process does so again; set NUMBA_CACHE_DIR" in caplog.messages[1]


def test_a_full_disk_does_not_stop_anything_and_is_told(small, monkeypatch, caplog):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    with caplog.at_level(logging.WARNING):
        assert compiled_by(small)[0]
    assert not list(small.parent.rglob("*.nbc"))
    assert "No space left on device" in caplog.text


def command(*arguments):
    program = [str(Path(sys.executable).with_name("simnet")), *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, check=True, timeout=300)


def test_after_warming_no_command_compiles(tmp_path):
    compile_all = [sys.executable, "-m", "simnet.compile"]
    subprocess.run(compile_all, check=True, timeout=300)
    said = subprocess.run(compile_all, capture_output=True, text=True, check=True, timeout=300).stdout
    assert said.startswith("Everything is compiled already.\nKept in ")
    for asked in (
        ["run", "fluctuating_wan", "--set", "job.iterations=30", "--out", tmp_path / "run"],
        ["choose", "quickstart"],
        ["run", "compare", "--schemes", "topk,oktopk", "--workers", "4", "--set", "job.iterations=20"],
        ["run", "link_faults", "--set", "job.iterations=5", "--out", tmp_path / "faults"],
    ):
        assert "compiles" not in command(*asked).stderr
