"""Where output cannot be written commands end with one line: a full disk, a pipe that nobody reads."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import killing
import needs
from simnet.verbs.app import VERBS

PRINTING = {
    "run": "quickstart --set job.iterations=2 --set output.report=false",
    "choose": "--workers 4",
    "time": "all_reduce --workers 4 --size 1MB",
    "measure": "--processes 2 --sizes :1KiB --budget '1 s' -o measured.csv",
    "calibrate": "published_plateaus -o fabric.yaml",
    "step": "quickstart --set job.iterations=2",
    "convert": "allreduce_ring a.goal --workers 4 --size 1MiB",
    "new": "scenario my_cluster",
    "list": "schemes",
    "show": "schema",
}
"""Arguments with which each command prints something soon."""

NO_FILES = {"choose", "time", "step", "list", "show"}
"""Of these, commands that write no file."""

EXTRAS = {"measure"}
"""Of these, commands that need torch."""

FULL = "error: standard output: cannot be written: No space left on device\n"


def commands(names: set[str]) -> list[list[str]]:
    return [[*name.split(), *shlex.split(PRINTING[name])] for name in PRINTING if name in names]


def ended(kind: str, asked: list[list[str]], folder: Path) -> dict[str, tuple[int, str]]:
    """Return how commands end whose output cannot be written, and what they say on standard error."""
    (folder / "logs").mkdir(exist_ok=True)
    lines = "".join(f"{number},0.0{1 + number % 3}\n" for number in range(40))
    (folder / "logs" / "rank_0.csv").write_text(f"iteration,compute_s\n{lines}")
    script = Path(__file__).with_name("full_disk.py")
    made = subprocess.run(
        [sys.executable, script, kind],
        input=json.dumps(asked), cwd=folder, capture_output=True, text=True, timeout=killing.PATIENCE, check=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    return {words: (status, said) for words, (status, said) in json.loads(made.stdout).items()}


def test_every_command_is_among_those_that_print():
    assert set(PRINTING) == set(VERBS)


@needs.linux
@pytest.mark.parametrize("quick", [True, False])
def test_a_full_standard_output_is_one_line(quick, tmp_path):
    slow = {"run", "step", "measure"}
    asked = commands(set(PRINTING) - slow if quick else slow - EXTRAS)
    if quick:
        asked += [["--help"], ["--version"], ["choose", "--help"], ["choose", "--workers", "4", "--json"]]
    for words, (status, said) in ended("stdout", asked, tmp_path).items():
        assert (status, said.splitlines(keepends=True)[-1:]) == (2, [FULL]), (words, said)
        assert "Traceback" not in said


@needs.linux
def test_a_full_disk_is_one_line_that_names_the_file(tmp_path):
    asked = commands(set(PRINTING) - NO_FILES - EXTRAS)
    for words, (status, said) in ended("files", asked, tmp_path).items():
        last = said.splitlines()[-1]
        assert status == 2, (words, said)
        assert last.startswith("error: "), (words, said)
        assert ": cannot be written: File too large" in last
        assert ".tmp" not in last
        assert "Traceback" not in said
    assert not [one for one in tmp_path.rglob("*") if one.is_file() and one.stat().st_size and one.suffix != ".csv"]


@needs.linux
def test_a_pipe_that_nobody_reads_ends_a_command_as_it_ends_others(tmp_path):
    asked = commands({"choose", "time", "list", "show"})
    for words, (status, said) in ended("pipe", asked, tmp_path).items():
        # Tables are printed by rich, which ends with 1 in its place.
        assert status in ({-signal.SIGPIPE, 1} if words.startswith("choose") else {-signal.SIGPIPE}), words
        assert "error" not in said
        assert "Traceback" not in said
