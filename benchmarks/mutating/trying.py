"""Mutants are tried one by one: the tests that run the line, the nearest files first, until one fails."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from mutating.areas import INTERPRETED
from mutating.children import run
from mutating.copies import mutated
from mutating.lines import digest, traced
from mutating.operators import Mutant, changed_line

SLOWER, LEAST = 5.0, 2.0
"""How many times as long as without a mutant a test may take, and how much longer besides [s]."""

START = 30.0
"""Processor time that a run of tests may take besides [s]: it imports what it tests."""


class Tried(NamedTuple):
    """A mutant that was tried.

    Parameters
    ----------
    mutant : Mutant
        The mutant.
    status : {"failed", "timeout", "crashed", "passed", "unreached"}
        What became of the tests; unreached if none runs the line.
    by : str
        The test that failed.
    old, new : str
        The line before and after.
    """

    mutant: Mutant
    status: str
    by: str
    old: str
    new: str

    @property
    def survived(self) -> bool:
        """Whether no test saw it."""
        return self.status in ("passed", "unreached")


class Trials:
    """Tries mutants in a copy of the repository; what is found is kept, and taken again while nothing has changed.

    Parameters
    ----------
    copy, kept : Path
        The copy, and the folder where what is found is kept.
    sources : sequence of str
        Paths of what may be mutated.
    each : float
        Processor time of the tests of a file that are run for a mutant [s], as they take without one, shortest first.
    most : int
        Files of tests that are run for a mutant at most, the nearest first; see `_distance`.
    """

    def __init__(self, copy: Path, kept: Path, sources: Sequence[str], each: float, most: int) -> None:
        self.copy, self.kept, self.sources, self.each, self.most = copy, kept, sources, each, most
        self.results = kept / "results.jsonl"
        self.killers: Counter[tuple[str, str]] = Counter()
        self.known: dict[str, dict[str, Any]] = {}
        if self.results.exists():
            for one in map(json.loads, self.results.read_text().splitlines()):
                self.known[one["key"]] = one

    def tried(self, mutant: Mutant, area: str) -> Tried:
        """Try a mutant of an area, or return what is known of it."""
        source = (self.copy / mutant.file).read_text()
        text = mutant.text(source)
        key = f"{mutant.file} {digest(self.copy / mutant.file)} {mutant.operator} {mutant.occurrence}"
        known = self.known.get(key)
        if known and self._holds(known):
            self.killers[mutant.file, known["by"].partition("::")[0]] += 1
            return Tried(mutant, known["status"], known["by"], *changed_line(source, text)[1:])
        status, by, used = self._try(mutant, text, area in INTERPRETED)
        if status == "unreached" and area in INTERPRETED:
            status, by, used = self._try(mutant, text, False)
        self.killers[mutant.file, by.partition("::")[0]] += 1
        tests = {file: digest(self.copy / file) for file in ([by.partition("::")[0]] if by else used)}
        row = {"key": key, "status": status, "by": by, "budget": self._budget, "tests": tests}
        with self.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return Tried(mutant, status, by, *changed_line(source, text)[1:])

    def _holds(self, known: dict[str, Any]) -> bool:
        """Return whether a result still holds: the tests are as they were, and more were not asked for."""
        survived = known["status"] in ("passed", "unreached")
        same = all(digest(self.copy / file) == one for file, one in known["tests"].items())
        return same and not (survived and known["budget"] < self._budget)

    @property
    def _budget(self) -> float:
        return self.each * self.most

    def _try(self, mutant: Mutant, text: str, interpreted: bool) -> tuple[str, str, list[str]]:
        used: list[str] = []
        for batch in _doubling(self._files(mutant.file)):
            chosen = {file: tests for file in batch if (tests := self._chosen(file, mutant, interpreted))}
            if not chosen:
                continue
            used += chosen
            seconds = START + sum(sum(tests.values()) for tests in chosen.values())
            with mutated(self.copy / mutant.file, text):
                ran = run(chosen, seconds, interpreted)
            if ran.status != "passed":
                return ran.status, ran.test or next(iter(chosen)), used
        return ("passed" if used else "unreached"), "", used

    def _chosen(self, file: str, mutant: Mutant, interpreted: bool) -> dict[str, float]:
        """Return the tests of a file that run a mutant's line, the shortest first, and when each counts as hanging."""
        found = traced(file, self.sources, self.copy, self.kept, interpreted)
        tests = sorted(found.tests_of(mutant.file, mutant.span), key=lambda one: found.seconds[one])
        spent = accumulate(found.seconds[one] for one in tests)
        return {
            one: LEAST + SLOWER * found.seconds[one]
            for one, until in zip(tests, spent, strict=True)
            if until <= self.each
        }

    def _files(self, file: str) -> list[str]:
        """Return the files of tests, those first that see most mutants of a file, then the nearest; its own before all.

        Of those as near, those come first that are called after the module or a package that it is in, then those that
        see most mutants of all files, then those that name it or its package most often.
        """
        seen_of_all: Counter[str] = Counter()
        for (_, name), count in self.killers.items():
            seen_of_all[name] += count
        parts = Path(file).with_suffix("").parts
        found = []
        for path in sorted((self.copy / "tests").glob("test_*.py")):
            name = path.relative_to(self.copy).as_posix()
            seen, distance = self.killers[file, name], _distance(file, _imported(path))
            called = any(one in path.stem for one in parts[1:])
            named = [len(re.findall(rf"\b{one}\b", path.read_text(), re.IGNORECASE)) for one in parts[:-3:-1]]
            found.append((not seen, distance, -seen, not called, -seen_of_all[name], [-one for one in named], name))
        return [file, *[name for *_, name in sorted(found)[: self.most]]]


def _doubling(files: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield one file, the next two, the next four and so on: most mutants are seen at once, and starting takes time.

    Examples
    --------
    >>> [len(batch) for batch in _doubling("abcdefghij")]
    [1, 2, 4, 3]
    """
    start = 0
    while start < len(files):
        yield files[start : 2 * start + 1]
        start = 2 * start + 1


@cache
def _imported(path: Path) -> frozenset[str]:
    """Return the modules that a file imports, and what it imports from them as if these were modules."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{one.name}" for one in node.names}
    return frozenset(found)


def _distance(file: str, imported: frozenset[str]) -> int:
    """Return how far tests are from a file by what they import: 0 the module, 1 its package, 2 a part, 3 that above it.

    What stands at the top of the repository is imported as a part of simnet, too.

    Examples
    --------
    >>> names = ("simnet.cost_models.costs.models", "simnet.cost_models.costs", "re")
    >>> [_distance("simnet/cost_models/costs/models.py", frozenset([one])) for one in names]
    [0, 1, 4]
    """
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package = module.rpartition(".")[0]
    known = imported | {one.removeprefix("simnet.") for one in imported}
    if module in known:
        return 0
    if package in known:
        return 1
    if any(one.startswith(package + ".") for one in known):
        return 2
    return 3 if package.rpartition(".")[0] in known else 4
