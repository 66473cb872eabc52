"""The package itself: what it offers at once, what that costs, and its parts, each by one name."""

import ast
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import needs
import simnet
import tiers
from simnet import topologies
from simnet.schedule import Schedule

ROOT = Path(__file__).parents[1]
PARTS = ("topologies", "sparsifier_models", "validate", "scenarios")


def test_a_notebook_finds_what_it_starts_from():
    network = simnet.Network(topologies.star(simnet.load("quickstart").config.workers, latency=1e-3, bandwidth=1e9))
    schedule = simnet.Schedule(2, [simnet.Round([0], [1], 1e6)])
    assert network.time(schedule).finish > 0
    assert simnet.Schedule is Schedule
    assert set(simnet.__all__) <= set(dir(simnet))
    with pytest.raises(AttributeError, match="module 'simnet' has no attribute 'Netwrok'"):
        simnet.Netwrok  # noqa: B018


def test_importing_it_imports_nothing_heavy():
    code = "import sys, simnet; dir(simnet); print(len(sys.modules), 'numpy' in sys.modules, simnet.__version__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert int(found[0]) < 100
    assert found[1:] == ["False", simnet.__version__]


@pytest.mark.parametrize("name", ["topologies", "sparsifier_models", "validate"])
def test_a_part_is_imported_by_one_name(name):
    code = f"import simnet.{name}\nimport {name}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr.endswith(f"ImportError: {name} has one name: import simnet.{name}\n")


def test_modules_are_found_as_all_of_python_are():
    code = "import sys; before = [*sys.meta_path]; import simnet.cli, simnet.validate.commands; "
    code += "assert sys.meta_path == before"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@needs.posix
def test_names_at_the_top_are_links_to_real_folders():
    for name in PARTS:
        assert (ROOT / name).readlink() == Path("simnet", name)
        assert not (ROOT / "simnet" / name).is_symlink()
    command = [sys.executable, "-m", "simnet.cli", "time", "allreduce_ring", "--size", "1 MB"]
    command += ["--workers", "4", "--network"]
    told = [
        subprocess.run([*command, scenario], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for scenario in ("scenarios/quickstart.yaml", "quickstart")
    ]
    assert told[0] == told[1]


def test_a_module_is_run():
    command = [sys.executable, "-m", "simnet.validate.replay", "--help"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("usage: python -m simnet.validate.replay")
    assert said.stderr == ""


def test_what_never_was_is_not_there():
    with pytest.raises(ModuleNotFoundError, match=r"simnet\.wheather"):
        import_module("simnet.wheather")


def test_long_modules_say_why_they_are_long():
    for file in (ROOT / "simnet").rglob("*.py"):
        text = file.read_text()
        assert text.count("\n") <= 500 or "long" in (ast.get_docstring(ast.parse(text)) or ""), file


def test_every_test_whose_time_is_told_is_there():
    parsed = cache(lambda file: ast.parse((ROOT / "tests" / file).read_text()))
    for name in sorted(tiers.tiers()):
        file, *inside, test = name.split("::")
        body: list[ast.stmt] = parsed(file).body
        for one in inside:
            (body,) = (found.body for found in body if isinstance(found, ast.ClassDef) and found.name == one)
        assert test in [found.name for found in body if isinstance(found, ast.FunctionDef)], name
