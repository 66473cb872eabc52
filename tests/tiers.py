"""Which tests run when: as many as fit into the time that there is, the shortest first.

``durations.csv`` has what the tests took that take half a second or more, the cases of one together, in a run on a
machine with two busy cores. `make test` runs the shortest of those that need nothing beside ``.venv``, `make test-long`
the next ones, `make test-extras` the shortest of those that need more, and `make slow` all that is left; of tests of
several short cases that are left, the first is run by `make test-long` or `make test-extras`. To measure them again,
run all four with ``--junitxml``, as cases of one test may be in two of them, and give this script what they left:

    python tests/tiers.py fast.xml long.xml slow.xml extras.xml
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

DURATIONS = Path(__file__).with_name("durations.csv")

FAST, LONG, EXTRAS = 90.0, 420.0, 240.0
"""Seconds of one process that each may take: `make test` and `make test-long` have two, `make test-extras` one."""

CASE = 3.0
"""Seconds of a case, up to which the first case of a test for which there is no time is run all the same."""

LEAST = 0.5
"""Seconds of a test that counts; those below it, and new ones, are run by `make test`, or `make test-extras`."""


class Took(NamedTuple):
    """How long a test took: all its cases, and the longest of them; and whether it needs more than ``.venv``."""

    test: str
    seconds: float
    longest: float
    extras: bool


@cache
def _rows() -> dict[str, Took]:
    with DURATIONS.open(newline="", encoding="utf-8") as file:
        rows = [
            Took(row["test"], float(row["seconds"]), float(row["longest"]), row["extras"] == "yes")
            for row in csv.DictReader(file)
        ]
    return {row.test: row for row in rows}


@cache
def tiers() -> dict[str, str]:
    """Return the marker of each test that has one for its time: ``long`` or ``slow``."""
    return assigned(_rows().values())


def first(test: str) -> str | None:
    """Return the marker of the first case of a test for whose cases there is no time."""
    row = _rows()[test]
    if row.longest > CASE:
        return "slow"
    return None if row.extras else "long"


def assigned(rows: Iterable[Took]) -> dict[str, str]:
    """Return the marker of each test that does not fit in where it would be run otherwise.

    >>> own = [Took("a", FAST, 1, False), Took("b", LONG, 1, False), Took("c", LONG + 1, 1, False)]
    >>> assigned([*own, Took("d", EXTRAS + 1, 1, True)])
    {'b': 'long', 'c': 'slow', 'd': 'slow'}
    """
    found = {}
    rows = sorted(rows, key=lambda row: (row.seconds, row.test))
    own, others = ([row for row in rows if row.extras is extras] for extras in (False, True))
    for row, end in zip(own, accumulate(row.seconds for row in own), strict=True):
        if end > FAST:
            found[row.test] = "long" if end <= FAST + LONG else "slow"
    for row, end in zip(others, accumulate(row.seconds for row in others), strict=True):
        if end > EXTRAS:
            found[row.test] = "slow"
    return found


def measured(path: str) -> dict[str, list[float]]:
    """Return the seconds of each case of each test of a run, by the file that ``--junitxml`` wrote."""
    found: dict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(path).iter("testcase"):
        folder, _, rest = case.attrib["classname"].partition(".")
        if folder == "tests" and rest.startswith("test_"):
            file, *inside = rest.split(".")
            test = "::".join([f"{file}.py", *inside, case.attrib["name"].partition("[")[0]])
            found[test].append(float(case.attrib["time"]))
    return found


def write(paths: Iterable[str]) -> None:
    """Write what tests took, by the files of several runs; what none of them ran keeps what it had.

    Those of extras have a name with ``extras``.
    """
    rows: dict[str, Any] = {}
    if DURATIONS.exists():
        with DURATIONS.open(newline="", encoding="utf-8") as file:
            rows = {row["test"]: row for row in csv.DictReader(file)}
    cases: dict[tuple[str, str], list[float]] = defaultdict(list)
    for path in paths:
        for test, seconds in measured(path).items():
            cases[test, "yes" if "extras" in path else "no"] += seconds
    # Of a test with cases of both kinds those with extras count, which take longer.
    for (test, extras), took in sorted(cases.items()):
        rows[test] = {"test": test, "seconds": round(sum(took), 1), "longest": round(max(took), 1), "extras": extras}
    with DURATIONS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["test", "seconds", "longest", "extras"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[test] for test in sorted(rows) if float(rows[test]["seconds"]) >= LEAST)


if __name__ == "__main__":
    write(sys.argv[1:])
