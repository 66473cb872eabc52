"""The package itself: what it offers at once, what that costs, and names that modules had before they moved."""

import ast
import os
import subprocess
import sys
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import needs
import simnet
import tiers
from simnet import topologies
from simnet.base.moved import MOVED
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
    code = "import sys, simnet; print(len(sys.modules), 'numpy' in sys.modules, simnet.__version__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert int(found[0]) < 100
    assert found[1:] == ["False", simnet.__version__]


EVERY = """
import pkgutil, sys, warnings
from importlib import import_module

order, found = sys.argv[1], 0
for top in ("topologies", "sparsifier_models", "validate", "scenarios"):
    if order == "new":
        import_module(f"simnet.{top}")
    package = import_module(top)
    assert package is import_module(f"simnet.{top}")
    for one in pkgutil.walk_packages(package.__path__, f"{top}."):
        if one.name.endswith("__main__"):
            continue
        if order == "new":
            import_module(f"simnet.{one.name}")
        names = [name for name in sys.modules if name.startswith("simnet.")]
        loaded = [(name, vars(sys.modules[name]), vars(sys.modules[name]).copy()) for name in names]
        old = import_module(one.name)
        new = import_module(f"simnet.{one.name}")
        assert old is new and new.__name__ == new.__spec__.name == f"simnet.{one.name}", one.name
        # topologies.star stays the function, which is not the module of this name.
        for name, now, before in loaded:
            changed = [key for key, value in before.items() if now[key] is not value]
            assert not changed, (one.name, name, changed)
        found += 1
print(found)
"""
"""Imports all modules of the folders at the top, by their names there."""


@pytest.mark.parametrize(("way", "order"), [("folder", "old"), ("path", "new"), ("installed", "old")])
def test_in_a_checkout_the_names_of_its_folders_are_those_of_the_same_modules(way, order, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(ROOT)} if way == "path" else {}
    done = subprocess.run(
        [sys.executable, "-c", EVERY, order],
        env=environment,
        cwd=ROOT if way == "folder" else tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    files = [
        one for top in PARTS for one in (ROOT / top).rglob("*.py") if one.name not in ("__main__.py", "__init__.py")
    ]
    assert int(done.stdout) >= len(files)


WORK = """
import multiprocessing, sys
import sparsifier_models
from topologies.star import star

def work(hosts):
    return sparsifier_models.Wire, star, sparsifier_models.create("topk", 2, hosts, 0.5)

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        wire, builder, model = pool.apply(work, (10,))
    import simnet.sparsifier_models.topk, simnet.topologies
    assert wire is simnet.sparsifier_models.Wire and builder is simnet.topologies.star
    assert type(model) is simnet.sparsifier_models.topk.Topk
"""


@needs.posix
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_processes_find_what_was_imported_by_the_name_of_a_folder(method, tmp_path):
    (tmp_path / "script.py").write_text(WORK)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "script.py", method], env=environment, cwd=tmp_path, check=True)


@pytest.mark.parametrize("module", ["replay", "jobs"])
@pytest.mark.parametrize("package", ["validate", "simnet.validate"])
def test_a_module_is_run_by_either_name(package, module):
    command = [sys.executable, "-m", f"{package}.{module}", "--help"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"usage: python -m simnet.validate.{module}")
    assert said.stderr == ""


def test_pytest_finds_the_examples_of_a_folder_at_the_top():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "topologies",
        "sparsifier_models/base.py",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_what_is_not_in_a_folder_at_the_top_is_not_found():
    import_module("validate")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'validate\.nosuch'"):
        import_module("validate.nosuch")


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_name_leads_to_the_module_and_warns(old, new):
    spec = import_module(new).__spec__
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved: import {new}"):
        found = import_module(old)
    assert found is import_module(new)
    assert found.__spec__ is spec


def test_a_script_that_uses_an_old_name_is_told_in_which_line():
    code = "import simnet\nfrom simnet.weather import steps"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert told.startswith("<string>:2: DeprecationWarning: simnet.weather has moved: import simnet.network.weather")


def test_modules_in_a_package_that_moved_are_not_loaded_twice():
    code = (
        "from simnet.choosing.policy_file import load_policy as old\n"
        "from simnet.studies.choosing.policy_file import load_policy as new\n"
        "from validate.calibration.specification import parameters\n"
        "from simnet.weather import Weather, steps\n"
        "print(old is new)"
    )
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "True\n"


def test_what_never_was_is_not_there():
    with warnings.catch_warnings(), pytest.raises(ModuleNotFoundError, match=r"simnet\.wheather"):
        import_module("simnet.wheather")


def test_long_modules_say_why_they_are_long():
    for package in ("simnet", *PARTS):
        for file in (ROOT / package).rglob("*.py"):
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
