"""The examples of what can be added to simnet, installed and used as a user would, and the guide to them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import killing
from simnet import sparsifier_models
from simnet.sparsifier_models.conformance import check

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "plugins"
GUIDE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKTOPK = f"{EXAMPLE / 'simnet_additions' / 'scheme.py'}:BlockTopk"
ROTATING = f"{EXAMPLE / 'rotating.py'}:Rotating"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment in which the package is installed, apart from the one that runs the tests."""
    target, source = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for file in [EXAMPLE / "pyproject.toml", *EXAMPLE.glob("simnet_additions/*.py")]:
        copy = source / file.relative_to(EXAMPLE)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(file.read_bytes())
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--no-index", "--target", target, source], check=True)
    return os.environ | {"PYTHONPATH": str(target), "COLUMNS": "300"}


def simnet(environment, *arguments):
    command = [sys.executable, "-m", "simnet.cli", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=killing.PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("scheme", "options"), [(BLOCKTOPK, {"block": 16}), (BLOCKTOPK, {"block": 3}), (ROTATING, {})])
@pytest.mark.parametrize("workers", [1, 2, 5, 8])
@pytest.mark.parametrize(("parameters", "density"), [(1, 1.0), (100, 0.07), (1000, 0.01)])
def test_the_schemes_keep_the_promises_of_a_scheme(scheme, options, workers, parameters, density):
    rng = np.random.default_rng(workers)
    batches = [rng.standard_normal((workers, parameters)).astype(np.float32) for _ in range(3)]
    check(lambda: sparsifier_models.create(scheme, workers, parameters, density, **options), batches)


def test_the_blocks_of_largest_norm_are_sent():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1, 103)).astype(np.float32)
    model = sparsifier_models.create(BLOCKTOPK, 1, 103, 0.2, block=10)
    sent = np.flatnonzero(model.exchange(rows).update)
    norms = [float(np.square(rows[0, start : start + 10], dtype=np.float64).sum()) for start in range(0, 103, 10)]
    assert sorted(set(sent // 10)) == sorted(np.argsort(norms)[-3:])
    # One index of 4 bytes stands for ten values.
    model = sparsifier_models.create(BLOCKTOPK, 2, 103, 0.2, block=10)
    assert model.exchange(np.vstack([rows, rows])).schedule.bytes_sent()[0] == 30 * 4.4


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("schemes", "blocktopk"),
        ("networks", "line"),
        ("weather", "rush_hour"),
        ("policies", "turns"),
        ("collectives", "allreduce_two_shot"),
        ("devices", "npu"),
    ],
)
def test_what_is_installed_is_listed(installed, kind, name):
    assert re.search(rf"^\s*{name}\b", simnet(installed, "list", kind), flags=re.MULTILINE)


def test_a_scenario_may_use_one_of_each_kind(installed, tmp_path):
    simnet(installed, "run", EXAMPLE / "everything.yaml", "--out", tmp_path / "out", "--quiet")
    found = json.loads((tmp_path / "out" / "summary.json").read_text())["policies"]
    assert set(found) == {"blocks", "flexible", "rotating", "in turns"}
    assert found["in turns"]["choices"] == {"blocks": 10, "two shots": 10}
    lock = (tmp_path / "out" / "scenario.lock.yaml").read_text()
    for word in ("line:", "rush_hour:", "turns:", "collective: two_shot", "device: npu", "-rotating.py:Rotating"):
        assert word in lock
    refused = subprocess.run(
        [sys.executable, "-m", "simnet.cli", "--no-plugins", "run", EXAMPLE / "everything.yaml"],
        env=installed, capture_output=True, text=True, timeout=killing.PATIENCE,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "simnet_additions" in refused.stderr.replace("-", "_")


def test_an_installed_scheme_is_compared_like_a_built_in_one(installed, tmp_path):
    simnet(
        installed, "run", "compare", "--schemes", f"topk,blocktopk,{ROTATING}", "--workers", "4",
        "--set", "job.iterations=4", "--out", tmp_path,
    )  # fmt: skip
    policies = json.loads((tmp_path / "summary.json").read_text())["policies"]
    assert set(policies) == {"topk", "blocktopk", "rotating"}
    sent = {name: one["means"]["bytes_sent_per_worker_B"] for name, one in policies.items()}
    assert sent["blocktopk"] < sent["topk"]


def test_an_installed_collective_is_as_good_as_a_built_in_one(installed, tmp_path):
    of = ("--workers", 5, "--size", "1 MB")
    links = ("--latency", "1 ms", "--bandwidth", "1 Gbit/s")
    (row,) = json.loads(simnet(installed, "time", "allreduce_two_shot", *of, *links, "--json"))["rows"]
    assert row["finish_s"] == pytest.approx(2e-3 + 1.6 * 8e-3)
    sent = tmp_path / "sent.csv"
    simnet(installed, "convert", "allreduce_two_shot", sent, *of)
    assert len(sent.read_text().splitlines()) >= 2 * 5 * 4
    assert "two_shot" in simnet(installed, "list", "schemes", "--wide")
    offered = simnet(installed, "choose", "--model", "resnet18", "--workers", 8, *links)
    assert "dense two_shot" in offered


def test_an_installed_log_reader_calibrates(installed, tmp_path):
    lines = ["stopwatch", *(f"all_reduce 8 {2**power} {20 + 2**power / 1000}" for power in range(8, 24))]
    (tmp_path / "log.txt").write_text("\n".join([*lines, "all_reduce 8 1024"]))
    said = simnet(installed, "calibrate", tmp_path / "log.txt", "-o", tmp_path / "fabric.yaml", "--wide")
    assert "1 curve from 16 rows" in said
    assert "log.txt:18: has 3 words, and not 4" in " ".join(said.split())
    assert "all_reduce" in (tmp_path / "fabric.yaml").read_text()


def test_the_guide_names_what_there_is():
    paths = re.findall(r"`((?:examples|tests|docs)/[\w./-]+)`", GUIDE)
    assert "examples/plugins" in paths
    for path in [*paths, *(f"docs/{name}" for name in re.findall(r"\]\((\w+\.md)\)", GUIDE))]:
        assert (ROOT / path).exists(), path


def test_the_guide_counts_the_lines_of_the_examples():
    rows = re.findall(r"\| `(\w+\.py)` \| (\d+) \|$", GUIDE, flags=re.MULTILINE)
    assert len(rows) == 8
    for name, lines in rows:
        (path,) = EXAMPLE.rglob(name)
        assert int(lines) == sum(1 for line in path.read_text().splitlines() if line.strip()), name
