"""Lines that people type: what is wrong with them is said in one line, what they guess works, and answers fit."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import killing
import needs
from commands import did, invoke, refused
from simnet.report.summary import Summary
from simnet.verbs import app

WRONG = [*csv.DictReader((Path(__file__).parent / "wrong_lines.csv").read_text().splitlines())]

# What a newcomer who knew one verb tried with another, and that has an answer.
GUESSES = (
    "run quickstart --density 1% --set job.iterations=2",
    "run quickstart --workers 6 --set job.iterations=2",
    "run --schemes topk,dense --bandwidth 1Gbit/s --set job.iterations=2",
    "choose --strategy diloco:period=100 --schemes topk,dense",
    "choose --compute 20ms --schemes topk,dense",
    "choose quickstart --policies AG,flexible --set job.iterations=5",
    "choose --model 7B --schemes dense,artopk",
    "choose quickstart --workers 8 --schemes topk,dense --set job.iterations=5",
    "calibrate dgx-h100 --out x.yaml",
    "time allreduce_ring",
    "time all_reduce --network dgx-h100",
    "step --density 1% --schemes topk,dense",
    "list schemes",
    "list networks",
)

# A call of each verb.
CALLS: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "run": (("quickstart",), {"set": {"job.iterations": 2}}),
    "choose": ((), {"schemes": "topk,dense"}),
    "step": ((), {"schemes": "topk,dense"}),
    "time": (("all_reduce",), {"workers": 4}),
    "calibrate": (("dgx-h100",), {}),
    "measure": ((), {"out": "cpu.yaml", "what": "device:library=numpy,largest=10000", "budget": "1 ms"}),
    "validate": (("aws_p5_2node",), {"split": "sizes"}),
    "reproduce": (("artopk-table-ii",), {}),
    "list": (("schemes",), {}),
    "show": (("topk",), {}),
    "convert": (("allreduce_ring", "ring.goal"), {"workers": 4, "size": "1MB"}),
    "new": (("scenario", "mine"), {}),
}


@pytest.mark.parametrize("row", WRONG, ids=[one["line"] for one in WRONG])
def test_a_wrong_line_is_refused_in_one_line_with_what_was_found_and_what_is_allowed(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused(*shlex.split(row["line"]))
    assert len(said.splitlines()) == 1
    assert row["found"] in said
    assert row["said"] in said
    assert not any(tmp_path.iterdir())


def test_a_hundred_wrong_lines_are_tried_over_all_verbs():
    assert len(WRONG) >= 100
    assert {one["line"].split()[0] for one in WRONG} >= app.all_verbs().keys()


@pytest.mark.parametrize("line", GUESSES)
def test_what_people_guess_works(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert did(*line.split(), "--quiet").stdout


@pytest.mark.parametrize("name", app.VERBS)
def test_no_line_of_an_answer_is_wider_than_the_terminal_or_80_characters(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, given = CALLS[name]
    found = app.function_of(name)(*words, **given)
    assert isinstance(found, Summary)
    for columns in (40, 60, 80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        width = app.line_width()
        assert width == min(columns, 80)
        assert max(map(len, found.text(width).splitlines())) <= width
    shown = found.text(40)
    assert not found.columns or found.columns[0].heading in shown
    assert found.columns == () or "Hidden" in shown or len(found.columns) <= 2


@needs.posix
@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_a_terminal_has_lines_of_its_width(columns, tmp_path):
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    bare = {key: one for key, one in os.environ.items() if key != "COLUMNS"}
    words = [sys.executable, "-m", "simnet.cli", "list", "stacks"]
    subprocess.run(words, stdout=theirs, env=bare, check=True, timeout=killing.PATIENCE)
    os.close(theirs)
    lines = os.read(ours, 65_536).decode().splitlines()
    assert 30 < max(map(len, lines)) <= min(columns, 80)


@pytest.mark.parametrize("name", app.all_verbs())
def test_help_of_a_verb_is_a_screen(name):
    said = did(name, "-h").stdout.splitlines()
    assert len(said) <= 24
    assert max(map(len, said)) <= 80
    assert all(one.help for one in app.verb_options(name))
    assert invoke(name, "--help").exit_code == 0


def test_own_gradients_on_a_fat_tree_are_ranked_by_one_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    layers = {f"{step:06d}/w": draws.standard_t(3, size=(8, 4096)).astype(np.float32) for step in range(10)}
    np.savez("own.npz", **layers)
    asked = "choose", "--gradients", "own.npz", "--network", "fat_tree:k=4", "--compute", "20ms"
    found = json.loads(did(*asked, "--save-scenario", "own.yaml", "--json").stdout)
    assert {row["exchange"] for row in found["rows"]} >= {"AG-Topk", "ART-ring", "dense ring"}
    # A ring all-reduce of 4,096 numbers of 4 bytes among eight.
    dense = next(row for row in found["rows"] if row["exchange"] == "dense ring")
    assert dense["mean_bytes_sent_per_worker_B"] == pytest.approx(2 * 7 / 8 * 4096 * 4)
    assert json.loads(did("choose", "own.yaml", "--json").stdout)["rows"] == found["rows"]
