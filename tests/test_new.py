"""What `simnet new` writes works as it stands: it runs, passes its own tests and the project's checks."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import killing
from commands import contents, did, policies_of, refused

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each kind."""
    folder = tmp_path_factory.mktemp("new")
    for kind in ("scenario", "scheme", "topology", "policy", "strategy"):
        did("new", kind, f"own_{kind}", "--out", folder)
    return folder


@pytest.fixture(scope="module")
def installed(written: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the packages are installed, apart from the one that runs the tests."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    packages = written / "own_topology", written / "own_policy"
    subprocess.run([*pip, "--no-build-isolation", "--target", target, *packages], check=True)
    return os.environ | {"PYTHONPATH": f"{target}{os.pathsep}{ROOT}", "COLUMNS": "300"}


def process(environment: dict[str, str], folder: Path, *arguments: object) -> str:
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=killing.PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_scenario_runs_and_is_what_its_schema_asks_for(written: Path, tmp_path: Path) -> None:
    summary = json.loads(did("run", written / "own_scenario.yaml", "--json", "-q", "--out", tmp_path).stdout)
    assert set(summary["policies"]) == {"dense", "topk", "flexible"}
    # A hundredth of the entries, each with an index, from four workers.
    sent = {name: one["total_bytes_sent_B"] for name, one in summary["policies"].items()}
    assert 0.02 < sent["topk"] / sent["dense"] < 0.05
    assert json.loads((written / "scenario.schema.json").read_text()) == json.loads(did("show", "schema").stdout)


def test_a_new_scheme_is_compared_and_sends_what_topk_sends(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written)
    did(
        *("run", "compare", "--schemes", "topk,./own_scheme.py:OwnScheme", "--set", "job.iterations=4"),
        *("--set", "job.overlap=none", "--out", tmp_path, "-q"),
    )
    rows = policies_of(tmp_path)
    figures = ["bytes_sent_per_worker_B", "iteration_s", "actual_density", "build_up"]
    assert rows.loc["own_scheme", figures].equals(rows.loc["topk", figures])


TWO_METHODS = """
import numpy as np
from simnet.cost_models.costs.devices import DeviceOp
from simnet.sparsifier_models.gathered import Gathered

class Leading(Gathered, rounds_down=True, fixed_volume=True):
    name, paper = "leading", "a test"

    def _select(self, values, worker):
        return np.arange(self.k)

    def _selection_kernels(self):
        return (DeviceOp("scan", self.parameters),)
"""


def test_a_scheme_from_outside_takes_two_methods_and_states_its_traits_as_keywords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(TWO_METHODS)
    did(
        *("run", "compare", "--schemes", "topk,./own.py:Leading", "--workers", "4", "--set", "job.iterations=2"),
        *("--set", "job.scale=200000", "--set", "job.overlap=none", "--out", tmp_path, "-q"),
    )
    rows = policies_of(tmp_path)
    sent = rows["bytes_sent_per_worker_B"]
    assert sent["leading"] == pytest.approx(sent["topk"], rel=1e-3)
    assert rows.loc["leading", "build_up"] == 1 < rows.loc["topk", "build_up"]
    (tmp_path / "own.py").write_text(TWO_METHODS.replace("rounds_down", "rounds_dawn"))
    assert "rounds_dawn" in refused("run", "compare", "--schemes", "topk,./own.py:Leading", "--workers", "4")


def test_new_topologies_and_policies_run_once_installed(
    written: Path, installed: dict[str, str], tmp_path: Path
) -> None:
    for kind in ("topology", "policy"):
        place = written / f"own_{kind}" / f"own_{kind}.yaml"
        said = process(installed, written, "simnet.cli", "run", place, "--json", "-q", "--out", tmp_path / kind)
        policies = json.loads(said)["policies"]
        if kind == "policy":
            assert policies["own_policy"]["choices"] == {"topk": 10, "dense": 10}
            between = sorted((policies["topk"]["simulated_s"], policies["dense"]["simulated_s"]))
            assert between[0] < policies["own_policy"]["simulated_s"] < between[1]
        else:
            assert policies["topk"]["simulated_s"] < policies["dense"]["simulated_s"]
            assert "own_topology" in process(installed, written, "simnet.cli", "list", "networks")


def test_a_new_strategy_keeps_what_its_test_promises(written: Path) -> None:
    runpy.run_path(str(written / "test_own_strategy.py"))["test_workers_agree_after_an_exchange"](2)


def test_they_pass_their_own_tests(written: Path, installed: dict[str, str]) -> None:
    said = process(installed, written, "pytest", "-q", "-p", "no:cacheprovider", ".")
    assert " passed" in said


def test_they_pass_the_checks_of_the_project(written: Path, installed: dict[str, str]) -> None:
    files = sorted(written.rglob("*.py"))
    assert len(files) == 8
    settings = ROOT / "pyproject.toml"
    process(installed, written, "ruff", "format", "--check", "--no-cache", "--config", settings, *files)
    process(installed, written, "ruff", "check", "--no-cache", "--config", settings, "--ignore", "D,INP", *files)
    for place in (written, written / "own_topology", written / "own_policy"):
        mypy = "mypy", "--config-file", settings, "--cache-dir", ROOT / ".mypy_cache"
        process(installed | {"MYPYPATH": str(ROOT)}, place, *mypy, *sorted(place.glob("*.py")))


def test_each_says_what_to_do_next(tmp_path: Path) -> None:
    def then(kind: str, name: str) -> str:
        return json.loads(did("new", kind, name, "--out", tmp_path, "--json").stdout)["next"]

    assert then("scenario", "a") == f"simnet run {tmp_path / 'a.yaml'}"
    assert f"topk,{tmp_path / 'a_b.py'}:AB" in then("scheme", "a_b")
    assert then("policy", "c") == f"pip install -e {tmp_path / 'c'}; simnet run {tmp_path / 'c' / 'c.yaml'}"


def test_nothing_is_replaced_unless_by_force(tmp_path: Path) -> None:
    did("new", "scheme", "my_own", "--out", tmp_path)
    (tmp_path / "test_my_own.py").unlink()
    (tmp_path / "my_own.py").write_text("# my own\n")
    assert "my_own.py: is there already; --force replaces it" in refused("new", "scheme", "my_own", "--out", tmp_path)
    assert contents(tmp_path) == {"my_own.py": b"# my own\n"}
    did("new", "scheme", "my_own", "--out", tmp_path, "--force")
    assert "class MyOwn(" in (tmp_path / "my_own.py").read_text()


def test_scenarios_of_a_folder_share_its_schema(tmp_path: Path) -> None:
    did("new", "scenario", "one", "--out", tmp_path)
    did("new", "scenario", "two", "--out", tmp_path)
    (tmp_path / "scenario.schema.json").write_text("{}")
    assert "schema.json: is there already" in refused("new", "scenario", "three", "--out", tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("scheme", "topk", "comes with simnet"),
        ("topology", "star", "comes with simnet"),
        ("policy", "fixed", "comes with simnet"),
        ("strategy", "diloco", "comes with simnet"),
        ("scenario", "quickstart", "comes with simnet"),
        ("scheme", "json", "Python module that is there already"),
        ("policy", "Mine", "must begin with a small letter"),
        ("topology", "../up", "must begin with a small letter"),
    ],
)
def test_names_that_would_not_work_are_refused(kind: str, name: str, said: str, tmp_path: Path) -> None:
    assert said in refused("new", kind, name, "--out", tmp_path / "a")
    assert not (tmp_path / "a").exists()
