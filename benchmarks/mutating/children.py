"""Runs of tests, each in a fork of this process, which has what tests import from other projects already.

Tests see a copy of the repository, of which this process has imported nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MOST_MEMORY = 4 << 30
"""Memory that a run may take [byte]: mutants ask for arrays of any length."""

_IMPORTED = (
    *("hypothesis", "jinja2", "matplotlib.pyplot", "networkx", "numba", "numpy", "pandas", "pyarrow.parquet"),
    *("pydantic", "rich", "ruamel.yaml", "safetensors.numpy", "scipy.optimize", "scipy.sparse", "scipy.stats", "simpy"),
    "cyclopts",
)


class Ran(NamedTuple):
    """What became of a run.

    Parameters
    ----------
    status : {"passed", "failed", "timeout", "crashed"}
        Crashed means that the process ended otherwise than by itself, or that pytest could not collect.
    test : str
        The first test that failed, if any.
    seconds : float
        Processor time.
    """

    status: str
    test: str
    seconds: float


def prepare(copy: Path) -> None:
    """Have this process, and what it forks, work in a copy of the repository.

    Parameters
    ----------
    copy : Path
        Its folder.
    """
    os.chdir(copy)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ.update(threads, PYTHONPATH=str(copy), PYTHONHASHSEED="0", MPLBACKEND="agg")
    sys.path.insert(0, str(copy))
    for name in _IMPORTED:
        importlib.import_module(name)


def run(tests: Mapping[str, Mapping[str, float] | None], seconds: float, interpreted: bool, plugin: Any = None) -> Ran:
    """Run tests until one fails, or all if a plugin watches them.

    Parameters
    ----------
    tests : mapping of str to mapping of str to float, or None
        The tests of each file, in order, and after how much processor time each counts as hanging [s]; None for all.
    seconds : float
        Processor time of the whole run [s] after which it counts as hanging; on the clock ten times that.
    interpreted : bool
        Whether numba is switched off.
    plugin : object, optional
        Of pytest, beside the one here.
    """
    sys.stdout.flush()
    with tempfile.TemporaryFile("w+") as told:
        began = time.monotonic()
        child = os.fork()
        if not child:
            _tests(tests, seconds, interpreted, plugin, told.fileno())
        status, usage = _wait(child, began + 10 * seconds)
        told.seek(0)
        failed = told.read()
    spent = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGXCPU, signal.SIGKILL)
        return Ran("timeout" if late else "crashed", failed, spent)
    known = {0: "passed", 1: "failed"}
    return Ran(known.get(os.WEXITSTATUS(status), "crashed"), failed, spent)


def _wait(child: int, end: float) -> tuple[int, Any]:
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            break
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return status, usage


def _tests(
    tests: Mapping[str, Mapping[str, float] | None], seconds: float, interpreted: bool, plugin: Any, told: int
) -> None:
    """Run tests in this process, write the first that fails, and end the process."""
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        out = os.open(os.environ.get("MUTATION_SHOWN", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        _switch_compiling(not interpreted)
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "--basetemp", _own_folder()]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += ["-x"] if plugin is None else []
        plugins = [_Chosen(tests, told), *([] if plugin is None else [plugin])]
        code = int(pytest.main([*options, *tests], plugins=plugins))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _own_folder() -> str:
    return str(Path(tempfile.gettempdir()) / f"mutation-{os.getpid()}")


def _switch_compiling(on: bool) -> None:
    from numba import config

    os.environ["NUMBA_DISABLE_JIT"] = "0" if on else "1"
    config.reload_config()


class _Chosen:
    """Keeps the tests that are wanted, in their order, and Hypothesis from seeking the smallest example."""

    def __init__(self, tests: Mapping[str, Mapping[str, float] | None], told: int) -> None:
        self.tests, self.told = tests, told
        self.limits = {name: limit for every in tests.values() for name, limit in (every or {}).items()}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile("mutation", settings.default, phases=(Phase.explicit, Phase.generate), database=None)
        settings.load_profile("mutation")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.limits:
            places = {name: place for place, name in enumerate(self.limits)}
            whole = {file for file, names in self.tests.items() if names is None}
            kept = [one for one in items if one.nodeid in places or one.nodeid.partition("::")[0] in whole]
            items[:] = sorted(kept, key=lambda one: places.get(one.nodeid, len(places)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        # Unless somebody handles its signal, this timer ends the process.
        signal.setitimer(signal.ITIMER_PROF, self.limits.get(item.nodeid, 0.0))
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.told, report.nodeid.encode())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            os.write(self.told, report.nodeid.encode())


def written(path: Path) -> Any:
    """Return what a file of JSON holds; an empty mapping if there is none."""
    return json.loads(path.read_text()) if path.exists() else {}
