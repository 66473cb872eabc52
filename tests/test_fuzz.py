"""Mutated files are read or refused: some of a fixed seed for each reader, and all that were wrong once.

`make nightly` reads 10,000 of each with a fresh seed. What it finds goes into ``fuzz/corpus/READER/NAME`` as it is,
which ``--keep`` writes.
"""

import random
import shutil
from functools import partial
from pathlib import Path

import pytest

from fuzz import mutations
from fuzz.guarding import HangError, wrong
from fuzz.readers import READERS
from simnet.base.errors import InputError

CORPUS = Path(__file__).parent / "fuzz" / "corpus"
FOUND = sorted(CORPUS.glob("*/*"))
INPUTS = 10


@pytest.mark.parametrize("reader", READERS)
def test_mutated_files_are_read_or_refused(tmp_path: Path, reader: str) -> None:
    for index in range(INPUTS):
        folder = tmp_path / str(index)
        folder.mkdir()
        READERS[reader].make(random.Random(f"{reader} {index}"), folder)
        assert not wrong(partial(READERS[reader].read, folder)), f"input {index}"


@pytest.mark.parametrize("found", FOUND, ids=[f"{one.parent.name}/{one.name}" for one in FOUND])
def test_what_was_wrong_once_is_read_or_refused(tmp_path: Path, found: Path) -> None:
    # A copy, as who reads a checkpoint goes on in its place.
    shutil.copytree(found, tmp_path / "in")
    assert not wrong(partial(READERS[found.parent.name].read, tmp_path / "in"))


def test_an_input_is_made_again_from_its_seed(tmp_path: Path) -> None:
    for reader, one in READERS.items():
        folders = [tmp_path / reader.replace(" ", "_") / name for name in "ab"]
        for folder in folders:
            folder.mkdir(parents=True)
            one.make(random.Random(f"1 {reader}"), folder)
        first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
        if reader in ("checkpoint", "recording"):  # safetensors has no order of its own
            first, second = ({name: len(file) for name, file in files.items()} for files in (first, second))
        assert first == second


def test_mutations_keep_some_files_readable(tmp_path: Path) -> None:
    """Mutations that break every file would find nothing behind the first check."""
    for reader in ("recording", "archive", "checkpoint", "run", "device", "platform"):
        passed = 0
        for index in range(30):
            folder = tmp_path / f"{reader}{index}"
            folder.mkdir()
            READERS[reader].make(random.Random(f"{reader} {index}"), folder)
            try:
                READERS[reader].read(folder)
                passed += 1
            except InputError:
                pass
        # A job begins anew where its checkpoint is broken.
        assert passed == 30 if reader == "checkpoint" else 0 < passed < 30, reader


def _ends(way: str) -> None:
    if way == "hangs":
        while True:
            pass
    if way == "takes memory":
        raise InputError("cannot be unpacked") from MemoryError()
    if way == "is no answer":
        {}["x"]
    if way == "says too much":
        raise InputError("\n".join(["k" * 999] * 9))


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("is no answer", "KeyError: 'x'"),
        ("takes memory", "MemoryError behind"),
        ("says too much", "says 8,999 characters"),
        ("hangs", "takes more than 0.2 s"),
        ("answers", ""),
    ],
)
def test_what_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch, way: str, said: str) -> None:
    monkeypatch.setattr("fuzz.guarding.MOST_SECONDS", 0.2)
    assert wrong(partial(_ends, way)).startswith(said)
    assert bool(wrong(partial(_ends, way))) == bool(said)


def test_values_are_mutated_in_place_of_none() -> None:
    value = {"a": [1, 2, {"b": "c"}], "d": 0.5}
    before = repr(value)
    assert any(repr(mutations.value(random.Random(seed), value)) != before for seed in range(5))
    assert repr(value) == before
    assert issubclass(HangError, BaseException)
    assert not issubclass(HangError, Exception)
