"""The summary of the last run over all sets of measurements, shipped or not, as a table of the repository."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "validated.csv"
"""What ``python benchmarks/validation.py --summary`` wrote; the README and `docs/trust.md` quote it."""

HEAD = ("predicted", "aim", "ours", "plain", "from")


def rows_of(lines: Iterable[str]) -> list[list[str]]:
    """Return the cells of the rows of a Markdown table."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def write(path: Path, lines: Iterable[str]) -> None:
    """Write the rows of the summary as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows_of(lines)])


def read(path: Path = RECORDED) -> dict[str, dict[str, str]]:
    """Return the rows of the summary by what is predicted; of rows with the same words the first counts."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["predicted"]: row for row in reversed(rows)}
