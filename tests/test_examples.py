"""The example of a scheme from outside, installed as a user would install it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import killing
from sparsifier_models.conformance import check

PACKAGE = Path(__file__).parents[1] / "examples" / "blocktopk"


@pytest.fixture(scope="module")
def blocktopk():
    spec = importlib.util.spec_from_file_location("blocktopk", PACKAGE / "blocktopk.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["blocktopk"] = module
    spec.loader.exec_module(module)
    yield module.BlockTopk
    del sys.modules["blocktopk"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment in which the package is installed, apart from the one that runs the tests."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    source = tmp_path_factory.mktemp("source")
    for file in PACKAGE.glob("*.*"):
        (source / file.name).write_bytes(file.read_bytes())
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--no-index", "--target", target, source], check=True)
    return os.environ | {"PYTHONPATH": str(target), "COLUMNS": "300"}


def simnet(environment, *arguments):
    command = [sys.executable, "-m", "simnet.cli", *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=killing.PATIENCE, check=True
    ).stdout


@pytest.mark.parametrize("workers", [1, 2, 5, 8])
@pytest.mark.parametrize(("parameters", "density", "block"), [(1, 1.0, 16), (100, 0.07, 16), (1000, 0.01, 3)])
def test_the_example_keeps_the_promises_of_a_scheme(blocktopk, workers, parameters, density, block):
    rng = np.random.default_rng(workers)
    batches = [rng.standard_normal((workers, parameters)).astype(np.float32) for _ in range(3)]
    check(lambda: blocktopk(workers, parameters, density, block=block), batches)


def test_the_blocks_of_largest_norm_are_sent(blocktopk):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1, 103)).astype(np.float32)
    model = blocktopk(1, 103, 0.2, block=10)
    sent = np.flatnonzero(model.exchange(rows).update)
    norms = [float(np.square(rows[0, start : start + 10], dtype=np.float64).sum()) for start in range(0, 103, 10)]
    assert sorted(set(sent // 10)) == sorted(np.argsort(norms)[-3:])
    # One index of 4 bytes stands for ten values.
    assert blocktopk(2, 103, 0.2, block=10).exchange(np.vstack([rows, rows])).schedule.bytes_sent()[0] == 30 * 4.4


def test_an_installed_scheme_is_as_good_as_a_built_in_one(installed, tmp_path):
    assert "blocktopk" in simnet(installed, "list", "sparsifiers")
    simnet(
        installed, "compare", "--schemes", "topk,blocktopk", "--workers", "2,4", "--set", "job.iterations=4",
        "--out", tmp_path,
    )  # fmt: skip
    rows = json.loads((tmp_path / "compare.json").read_text())["rows"]
    assert [(row["exchange"], row["workers"]) for row in rows] == [
        ("topk", 2), ("blocktopk", 2), ("topk", 4), ("blocktopk", 4),
    ]  # fmt: skip
    assert rows[1]["bytes_sent_B"] < rows[0]["bytes_sent_B"]


def test_the_guide_names_what_there_is():
    guide = (PACKAGE.parents[1] / "docs" / "adding-a-scheme.md").read_text()
    for path in ("examples/blocktopk", "tests/test_invariants.py", "tests/test_examples.py"):
        assert path in guide
        assert (PACKAGE.parents[1] / path).exists()
