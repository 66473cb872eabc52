"""Which tests run which lines: each file of tests is run once under Coverage.py, test by test."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest

from mutating.children import run, written

LONGEST = 900.0
"""Processor time that a file of tests may take [s]."""


def digest(path: Path) -> str:
    """Return what tells a file from another version of it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


class Traced:
    """What a file of tests runs.

    Parameters
    ----------
    found : dict
        As it is kept: files of the tests and of what they run, with digests; processor time of each test [s]; and the
        tests of each line that some but not all of them run.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        self.seconds: dict[str, float] = found["seconds"]
        self.lines: dict[str, dict[str, list[int]]] = defaultdict(dict, found["lines"])
        self.names = list(self.seconds)

    def tests_of(self, file: str, span: tuple[int, int]) -> list[str]:
        """Return the tests that run lines; of lines that run when the file is imported, all tests.

        Parameters
        ----------
        file : str
            Path in the repository.
        span : tuple of int
            The first line and the last.
        """
        ran = [self.lines[file][line] for line in map(str, range(span[0], span[1] + 1)) if line in self.lines[file]]
        places = sorted({place for one in ran for place in one})
        return [self.names[place] for place in places] if places or not ran else self.names


def traced(tests: str, sources: Sequence[str], copy: Path, kept: Path, interpreted: bool) -> Traced:
    """Return what a file of tests runs, as kept if neither it nor that has changed since.

    Parameters
    ----------
    tests : str
        Path of the file in the repository.
    sources : sequence of str
        Paths of what may be mutated.
    copy, kept : Path
        Folder of the repository, and that where what is found is kept.
    interpreted : bool
        Whether numba is switched off.
    """
    place = kept / ("interpreted" if interpreted else "compiled") / (tests.replace("/", ".") + ".json")
    found = written(place)
    # Of a run that was stopped there are no digests.
    if not found.get("digests") or any(digest(copy / file) != one for file, one in found["digests"].items()):
        place.parent.mkdir(parents=True, exist_ok=True)
        tracer = _Tracer(copy, sources, place)
        ran = run({tests: None}, LONGEST, interpreted, tracer)
        found = written(place)
        if not found or ran.status in ("timeout", "crashed"):
            found = {"digests": {tests: digest(copy / tests)}, "seconds": {}, "lines": {}}
            place.write_text(json.dumps(found))
        used = [tests, *found["lines"], *found["digests"]]
        found["digests"] = {file: digest(copy / file) for file in used}
        place.write_text(json.dumps(found))
    return Traced(found)


class _Tracer:
    """Notes the lines that each test runs; those that run when modules are imported are of no test."""

    def __init__(self, copy: Path, sources: Sequence[str], place: Path) -> None:
        self.copy, self.place = copy, place
        self.sources = set(sources)
        include = [str(copy / one) for one in sources]
        self.coverage = coverage.Coverage(data_file=None, include=include, config_file=False, messages=False)
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        began = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - began
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        seconds = {name: round(took, 4) for name, took in self.seconds.items() if name not in self.failed}
        places = {name: place for place, name in enumerate(seconds)}
        data = self.coverage.get_data()
        lines = {}
        for path in data.measured_files():
            by_line = data.contexts_by_lineno(path)
            lines[Path(path).relative_to(self.copy).as_posix()] = {
                line: sorted({places[one] for one in contexts if one in places}) for line, contexts in by_line.items()
            }
        loaded = {Path(one.__file__) for one in list(sys.modules.values()) if getattr(one, "__file__", None)}
        helpers = [path.relative_to(self.copy).as_posix() for path in loaded if self.copy / "tests" in path.parents]
        self.place.write_text(json.dumps({"digests": dict.fromkeys(helpers), "seconds": seconds, "lines": lines}))
