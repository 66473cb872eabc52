"""The package itself: what it offers at once, what that costs, and names that modules had before they moved."""

import ast
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

import simnet
import topologies
from simnet.base.moved import MOVED
from simnet.schedule import Schedule


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
    root = Path(__file__).parents[1]
    for package in ("simnet", "sparsifier_models", "topologies", "validate"):
        for file in (root / package).rglob("*.py"):
            text = file.read_text()
            assert text.count("\n") <= 500 or "long" in (ast.get_docstring(ast.parse(text)) or ""), file
