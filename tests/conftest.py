"""Settings shared by all tests."""

import os
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import needs
import tiers
from scenario_texts import SMALL
from simnet.base.threads import THREADS

# Tests run on all processors already, and the threads of linear algebra would wait for each other. Read when numpy is
# imported, here and in processes that tests start. The matrix asks for more.
for _one in THREADS:
    os.environ.setdefault(_one, "1")
# Processes of pytest-xdist have a width, which tables go by.
os.environ.pop("COLUMNS", None)

# The same examples in every run, and no deadline: the machines that run the tests are shared and noisy.
settings.register_profile("simnet", derandomize=True, deadline=None, max_examples=50)
# Others in every run, which a failure prints with what repeats it.
settings.register_profile("nightly", derandomize=False, deadline=None, max_examples=500, print_blob=True)
settings.load_profile("simnet")

# A process of test_hooks.py, with PyTorch.
collect_ignore = ["fully_shard_calls.py", "hook_worker.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that take long; of those for which there is no time the first case is run all the same."""
    begun = set()
    for one in items:
        test, case, _ = one.nodeid.removeprefix("tests/").partition("[")
        marker = tiers.tiers().get(test)
        if marker == "slow" and case and test not in begun:
            begun.add(test)
            marker = tiers.first(test)
        if marker is not None:
            one.add_marker(marker)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a small scenario in an empty folder, where the test works."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    return "small.yaml"


@pytest.fixture
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The file of a module's own scenario."""
    path = tmp_path / "one.yaml"
    path.write_text(request.module.SCENARIO)
    return path


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of fact sheets and measurements beside the repository; tests that need it skip without it."""
    return needs.shared()


@pytest.fixture(params=["here", "all"])
def recorded(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """What reads a golden run of a compressor: its first steps, and all of them where they are at hand."""
    golden = Path(__file__).parent / "golden" / "compressors"
    folder = golden if request.param == "here" else request.getfixturevalue("shared") / "papers" / "data" / "sharded"
    return lambda name: np.load(folder / f"{name}.npz")


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no search for routes pass: those of regular topologies follow by formula."""

    def refuse(routes: object, target: int) -> None:
        raise AssertionError(f"a search for routes to {target}")

    monkeypatch.setattr("simnet.topologies.routes.Routes._distance_to", refuse)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The live trainings that begin, in their order."""
    from simnet.traces.live import LiveSource, LiveTraining

    begun: list[object] = []
    monkeypatch.setattr(LiveSource, "begin", lambda source: begun.append(LiveTraining(source)) or begun[-1])
    return begun


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a package of one module that registers something, as `pip install` would."""

    def install(module: str, text: str, entry_points: str, version: str = "1.0") -> None:
        site = tmp_path / "site"
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (site / f"{module}.py").write_text(text)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(site)

    return install


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that is skipped for another reason than those of `needs`."""
    report = yield
    if isinstance(report.longrepr, tuple) and _reason(report) not in needs.REASONS:
        report.outcome = "failed"
        report.longrepr = f"skipped for a reason that tests/needs.py does not have: {report.longrepr[2]}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the tests that were skipped, by reason."""
    skipped = Counter(map(_reason, terminalreporter.stats.get("skipped", [])))
    terminalreporter.write_line(f"{skipped.total()} skipped")
    for reason, count in skipped.most_common():
        terminalreporter.write_line(f"  {count} {reason}")


def _reason(report: pytest.TestReport) -> str:
    assert isinstance(report.longrepr, tuple)
    return str(report.longrepr[2]).removeprefix("Skipped: ").partition(":")[0]
