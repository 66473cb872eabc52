"""Rows of published and simulated values, the reproductions that they form, and results not reproduced.

A reproduction runs code of this repository, and what it finds is held against the published value. The error is the
part, or with `absolute` the amount, by which the published value exceeds what simnet has.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import pandas as pd

from simnet.base.spreadsheets import guard_table
from simnet.validate.published import read_published

Relation: TypeAlias = Literal["=", "<=", ">="]
Kind: TypeAlias = Literal["test", "echo", "orientation"]

KINDS: dict[Kind, str] = {
    "test": "it could have failed. Nothing of ours was fitted to the published value, and the tolerance has a reason "
    "of its own: printed digits, counts and bounds, which hold or not, or what is not stated of the setting",
    "echo": "the published value is that of a formula that the paper prints, and ours evaluates it. Agreement proves "
    "that the same formula was coded, and nothing about networks",
    "orientation": "shown and not judged: too little of the setting is known, or an input was fitted to the published "
    "values",
}
"""Kinds of comparison, and what agreement means in each."""

FAR = 0.25
"""Relative difference above which a value without a tolerance is called a contradiction."""

# Sums of float32 differ between machines by less than this part.
_FROZEN = 1e-5

# Bounds hold but for what rounding adds.
_ROUNDING = 1e-9


class Interval(NamedTuple):
    """Range of values, with an optional middle value."""

    # Its ends.
    low: float
    high: float
    # What it is under what is assumed in between; NaN if only the ends are known, as of published ranges.
    middle: float = math.nan

    @classmethod
    def around(cls, values: Iterable[float]) -> Interval:
        """Return the interval that spans `values`, with the first as its middle value."""
        found = [*values]
        return cls(min(found), max(found), found[0])

    def outside(self, published: Interval) -> float:
        """Return by what fraction `published` extends above (> 0) or below (< 0) this interval; 0 if inside."""
        if published.high > self.high:
            return published.high / self.high - 1
        return min(published.low / self.low - 1, 0.0)

    def sign(self, published: Interval, none: float) -> str:
        """Return ``right`` if both gains lie on the same side of `none`, the value of no gain, or ``wrong`` if not.

        It is ``none`` if the published gain includes that value, ``open`` if only this one does.
        """
        if published.low <= none <= published.high:
            return "none"
        above = published.low > none
        if self.low > none or self.high < none:
            return "right" if (self.low > none) == above else "wrong"
        return "open"


class Row(NamedTuple):
    """Published value next to simnet's value: unit, tolerance, and what relation the two values should have."""

    # Which value of the figure or table.
    what: str
    # As published; a name where a choice was published.
    published: float | str | Interval
    # What simnet finds; of an interval the published value, an interval too, is to be inside.
    ours: float | str | Interval
    # Of both.
    unit: str
    # Largest magnitude of the error, of which the reproduction gives the reason; None if there is none, and the row is
    # for orientation.
    tolerance: float | None
    # Whether error and tolerance are amounts in `unit`, not parts.
    absolute: bool = False
    # What ours is to be with respect to the published value.
    relation: Relation = "="
    # Whether it is known to be outside its tolerance, which its reproduction says.
    beyond: bool = False
    # Whether the published value is that of a formula that ours evaluates.
    echo: bool = False

    @property
    def kind(self) -> Kind:
        """``orientation`` if there is no tolerance, ``echo`` if a printed formula is evaluated, otherwise ``test``."""
        if self.tolerance is None:
            return "orientation"
        return "echo" if self.echo else "test"

    @property
    def contradicts(self) -> bool:
        """Whether the published value and simnet's contradict each other.

        They do if the error exceeds the tolerance; without one, if it is outside a range or above `FAR`.
        """
        if self.tolerance is not None:
            return not self.passes
        ranges = isinstance(self.published, Interval) or isinstance(self.ours, Interval)
        # Not a number where there is nothing to compare.
        return abs(self.error) > (_ROUNDING if ranges else FAR)

    @property
    def error(self) -> float:
        """Relative (if `absolute`, absolute) error of the published value. For text, 0 if equal and 1 if not.

        For intervals it is the distance by which the published one lies outside ours; for one value of ours, the
        distance to a published range, negative if the range lies below. NaN for text without a tolerance.
        """
        if isinstance(self.published, str) or isinstance(self.ours, str):
            if self.tolerance is None:
                return math.nan
            return float(self.published != self.ours)
        if isinstance(self.ours, Interval):
            theirs = self.published
            return self.ours.outside(theirs if isinstance(theirs, Interval) else Interval(theirs, theirs))
        if isinstance(self.published, Interval):
            low, high, _ = self.published
            return max(low / self.ours - 1, 0.0) + min(high / self.ours - 1, 0.0)
        published, ours = float(self.published), float(self.ours)
        if self.absolute or published == ours:
            return published - ours
        return published / ours - 1 if ours else math.inf

    @property
    def passes(self) -> bool | None:
        """Whether the error is within the tolerance; None if the row has no tolerance."""
        if self.tolerance is None:
            return None
        return self.excess <= self.tolerance + _ROUNDING

    @property
    def fails(self) -> bool:
        """Whether the verdict by tolerance is unexpected: failed where it should pass, or the reverse."""
        return self.passes is not None and self.passes == self.beyond

    @property
    def excess(self) -> float:
        """Error to compare with the tolerance: its magnitude or, for a bound, the signed amount beyond the bound."""
        if self.relation == "<=":
            return -self.error
        return self.error if self.relation == ">=" else abs(self.error)


@dataclass(frozen=True)
class Reproduction:
    """Reproduction of a figure, table or claim of a paper, with the function that returns its rows."""

    # What `simnet reproduce` knows it by.
    name: str
    # Short name of the paper.
    paper: str
    # Figure, table or section.
    place: str
    # What the values are.
    title: str
    # How ours come about, why the tolerances are what they are, and what agreement does not prove.
    note: str
    # Runs it.
    rows: Callable[[], list[Row]]
    # Whether that takes more than a few seconds.
    slow: bool = False
    # Returns why it cannot run here, or an empty string.
    needs: Callable[[], str] = lambda: ""

    def figures(self, rows: Sequence[Row] | None) -> dict[str, Any]:
        """Return the reproduction and its values as JSON types."""
        head = {key: getattr(self, key) for key in ("name", "paper", "place", "title", "note")}
        head |= {"left_out": f"it {self.needs()}" if rows is None else None, "kinds": kind_counts(rows or ())}
        against = sum(row.contradicts for row in rows or ())
        return {**head, "contradictions": against, "values": [*map(figure_rows, rows or ())]}


def reproduces(
    name: str, paper: str, place: str, *, slow: bool = False, needs: Callable[[], str] = lambda: ""
) -> Callable[[Callable[[], list[Row]]], Reproduction]:
    """Return a decorator that makes a function a reproduction, with title and note from its docstring."""
    outside = set(read_published("beyond.csv").query("name == @name")["what"])

    def made(rows: Callable[[], list[Row]]) -> Reproduction:
        def marked() -> list[Row]:
            return [row._replace(beyond=row.what in outside) for row in rows()]

        first, _, rest = inspect.cleandoc(rows.__doc__ or "").partition("\n")
        title, note = first.removeprefix("Return ").removesuffix("."), " ".join(rest.split())
        return Reproduction(name, paper, place, title, note, marked, slow, needs)

    return made


class Missing(NamedTuple):
    """Published result that is not reproduced, and the reason."""

    paper: str
    what: str
    why: str


def kind_counts(rows: Iterable[Row]) -> dict[Kind, int]:
    """Return the number of rows of each kind of comparison that occurs."""
    found = Counter(row.kind for row in rows)
    return {kind: found[kind] for kind in KINDS if found[kind]}


def worst_row(rows: Iterable[Row]) -> Row | None:
    """Return the row with the largest error relative to its tolerance, or if none has one, with the largest error.

    None if all rows compare names.
    """
    numbers = [row for row in rows if not math.isnan(row.error) and not isinstance(row.ours, str)]
    judged = [row for row in numbers if row.tolerance is not None]
    return max(judged or numbers, key=lambda row: row.excess / (row.tolerance or 1), default=None)


def value(given: float | str | Interval) -> str:
    """Return a value as text, numbers with five significant digits and intervals with three."""
    if isinstance(given, str):
        return given
    if isinstance(given, Interval):
        if given.low == given.high:
            return f"{given.low:.3g}"
        ends = f"{given.low:.3g} to {given.high:.3g}"
        return ends if math.isnan(given.middle) else f"{given.middle:.3g} ({ends})"
    number = float(given)
    if number == round(number) and abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:,.2f}" if abs(number) >= 1000 else f"{number:.5g}"


def as_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a table with one row per comparison: published value, simulated value, tolerance, and error."""
    return pd.DataFrame([figure_rows(row) for row in rows])


def values_text(found: Mapping[str, Sequence[Row] | None]) -> str:
    """Return the values of reproductions as the text of a CSV file."""
    values = [{"name": name, **figure_rows(row)} for name, rows in found.items() for row in rows or ()]
    return str(guard_table(pd.DataFrame(values)).to_csv(index=False))


def figure_rows(row: Row) -> dict[str, Any]:
    """Return a row as a flat dictionary for tables and JSON; ends of intervals have their own columns."""
    found: dict[str, Any] = {"what": row.what, "kind": row.kind}
    for name, one in (("published", row.published), ("ours", row.ours)):
        low, high, known = one if isinstance(one, Interval) else (math.nan, math.nan, one)
        found |= {name: known, f"{name}_low": low, f"{name}_high": high}
    others = ("unit", "tolerance", "absolute", "relation", "error", "passes", "contradicts", "beyond")
    return found | {name: getattr(row, name) for name in others}


def golden(name: str) -> Path | None:
    """Return a folder of reference values in the source repository; None in an installed package."""
    folder = Path(__file__).resolve().parents[3] / "tests" / "golden" / name
    return folder if folder.is_dir() else None


def changed(name: str, rows: Sequence[Row]) -> list[str]:
    """Return the values of a reproduction that differ from the reference values; empty in an installed package."""
    folder = golden("reproductions")
    if folder is None:
        return []
    frozen = pd.read_csv(folder / "values.csv", dtype=str, keep_default_na=False).query("name == @name")
    now = as_frame(rows)
    if frozen["what"].tolist() != now["what"].tolist():
        return ["other values than were frozen"]
    columns = ["kind"] + [f"{who}{end}" for who in ("published", "ours") for end in ("", "_low", "_high")]
    pairs = zip(now["what"], frozen[columns].to_numpy(), now[columns].to_numpy(), strict=True)
    return [what for what, *pair in pairs if not all(map(_is_same, *pair))]


def _is_same(frozen: str, now: str | float) -> bool:
    if isinstance(now, str):
        return frozen == now
    return math.isclose(float(frozen), now, rel_tol=_FROZEN, abs_tol=1e-12) if frozen else math.isnan(now)
