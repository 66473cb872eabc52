"""Published values beside simnet's own: a row, a reproduction of a figure or table, and what cannot be reproduced.

A reproduction runs code of this repository, and what it finds is held against the published value. The error is the
part, or with `absolute` the amount, by which the published value exceeds what simnet has.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import pandas as pd

Relation: TypeAlias = Literal["=", "<=", ">="]
Kind: TypeAlias = Literal["timed", "formula", "exact", "bound", "claim", "gain", "orientation"]

KINDS: dict[Kind, str] = {
    "timed": "the paper presents the values as measured, or read off its figures",
    "formula": "the published values are those of a formula, step times with a constant per model added: agreement "
    "proves that the same formula was coded, and nothing about networks",
    "exact": "counts and bytes, which are equal or wrong",
    "bound": "published bounds, which simnet's messages keep or not",
    "claim": "what a paper promises in words, and its code by its constants; no number was published",
    "gain": "a published gain, as a rule the best of several settings; ours is an interval, from one end of what is "
    "not stated to the other, and the published value is inside or not",
    "orientation": "the setting of the published value is not known well enough for an error to mean something",
}
"""What agreement means."""

# Bounds hold but for what rounding adds.
_ROUNDING = 1e-9


class Interval(NamedTuple):
    """From where to where a value is.

    Parameters
    ----------
    low, high : float
        Its ends.
    middle : float or None
        What it is under what is assumed in between; None if only the ends are known, as of published ranges.
    """

    low: float
    high: float
    middle: float | None = None

    @classmethod
    def around(cls, middle: float, others: Iterable[float]) -> Interval:
        """Return the interval of a value under what is assumed in between, and of others at the ends.

        Parameters
        ----------
        middle : float
            The value in between.
        others : iterable of float
            The others.
        """
        found = [middle, *others]
        return cls(min(found), max(found), middle)

    def outside(self, published: Interval) -> float:
        """Return the part by which a published range lies above the interval, or, negative, below it; 0 inside.

        Parameters
        ----------
        published : Interval
            The range.

        Examples
        --------
        >>> Interval(2.0, 4.0).outside(Interval(2.5, 3.0)), Interval(2.0, 4.0).outside(Interval(1.0, 1.0))
        (0.0, -0.5)
        """
        if published.high > self.high:
            return published.high / self.high - 1
        return min(published.low / self.low - 1, 0.0)

    def sign(self, published: Interval, none: float) -> str:
        """Say whether the sign of a published gain is right: right, wrong, or open; none if none was published.

        Parameters
        ----------
        published : Interval
            The gain.
        none : float
            What is no gain.

        Examples
        --------
        >>> [Interval(*ends).sign(Interval(2.0, 2.0), 1.0) for ends in ((1.1, 3.0), (0.9, 1.2), (0.5, 0.9))]
        ['right', 'open', 'wrong']
        """
        if published.low <= none <= published.high:
            return "none"
        above = published.low > none
        if self.low > none or self.high < none:
            return "right" if (self.low > none) == above else "wrong"
        return "open"


class Row(NamedTuple):
    """A published value and simnet's own.

    Parameters
    ----------
    what : str
        Which value of the figure or table.
    published : float, str or Interval
        As published; a name where a choice was published.
    ours : float, str or Interval
        What simnet finds; of an interval the published value, an interval too, is to be inside.
    unit : str
        Of both.
    tolerance : float or None
        Largest magnitude of the error; None if none is stated, and the row neither passes nor fails.
    absolute : bool
        Whether error and tolerance are amounts in `unit`, not parts.
    relation : {"=", "<=", ">="}
        What ours is to be with respect to the published value.
    beyond : bool
        Whether it is known to be outside its tolerance, which its reproduction says.

    Examples
    --------
    >>> Row("AG, 8 workers", 54.0, 50.0, "ms", 0.122).error
    0.08000000000000007
    >>> Row("volume", 6.0, 4.0, "k", 0.0, relation="<=").passes, Row("best", "AG", "ART-ring", "", 0.0).passes
    (True, False)
    """

    what: str
    published: float | str | Interval
    ours: float | str | Interval
    unit: str
    tolerance: float | None
    absolute: bool = False
    relation: Relation = "="
    beyond: bool = False

    @property
    def error(self) -> float:
        """By how much the published value exceeds ours; of names 0 if they are the same, else 1, or nan to look at.

        Of intervals it is by how much the published one is outside.
        """
        if isinstance(self.published, str) or isinstance(self.ours, str):
            if self.tolerance is None:
                return math.nan
            return float(self.published != self.ours)
        if isinstance(self.published, Interval) or isinstance(self.ours, Interval):
            assert isinstance(self.published, Interval)
            assert isinstance(self.ours, Interval)
            return self.ours.outside(self.published)
        published, ours = float(self.published), float(self.ours)
        if self.absolute or published == ours:
            return published - ours
        return published / ours - 1 if ours else math.inf

    @property
    def passes(self) -> bool | None:
        """Whether the error is within the tolerance; None without one."""
        if self.tolerance is None:
            return None
        return self.excess <= self.tolerance + _ROUNDING

    @property
    def fails(self) -> bool:
        """Whether the error is not within the tolerance where it is meant to be, or is within where it is known not to.

        Examples
        --------
        >>> Row("hours", 109.0, 107.4, "h", 0.01).fails, Row("hours", 109.0, 107.4, "h", 0.01, beyond=True).fails
        (True, False)
        """
        return self.passes is not None and self.passes == self.beyond

    @property
    def excess(self) -> float:
        """The magnitude of the error in the direction in which it counts."""
        if self.relation == "<=":
            return -self.error
        return self.error if self.relation == ">=" else abs(self.error)


@dataclass(frozen=True)
class Reproduction:
    """A figure, table or claim of a paper, and how simnet comes to its values.

    Parameters
    ----------
    name : str
        What `simnet reproduce` knows it by.
    paper : str
        Short name of the paper.
    place : str
        Figure, table or section.
    title : str
        What the values are.
    kind : str
        A key of `KINDS`.
    values : int
        Number of rows.
    note : str
        How ours come about, why the tolerances are what they are, and what agreement does not prove.
    rows : callable
        Runs it.
    slow : bool
        Whether that takes more than a few seconds.
    needs : callable
        Returns why it cannot run here, or an empty string.
    """

    name: str
    paper: str
    place: str
    title: str
    kind: Kind
    values: int
    note: str
    rows: Callable[[], list[Row]]
    slow: bool = False
    needs: Callable[[], str] = lambda: ""


def reproduces(
    name: str,
    paper: str,
    place: str,
    kind: Kind,
    values: int,
    *,
    slow: bool = False,
    needs: Callable[[], str] = lambda: "",
) -> Callable[[Callable[[], list[Row]]], Reproduction]:
    """Make a reproduction of the function that returns its rows, which tells the title and the note in its docstring.

    Parameters
    ----------
    name, paper, place, kind, values, slow, needs
        As for `Reproduction`.
    """

    def made(rows: Callable[[], list[Row]]) -> Reproduction:
        first, _, rest = inspect.cleandoc(rows.__doc__ or "").partition("\n")
        title, note = first.removeprefix("Return ").removesuffix("."), " ".join(rest.split())
        return Reproduction(name, paper, place, title, kind, values, note, rows, slow, needs)

    return made


class Missing(NamedTuple):
    """Something published that is not reproduced, and why."""

    paper: str
    what: str
    why: str


class Outcome(NamedTuple):
    """How a reproduction came out.

    Parameters
    ----------
    rows : int
        Number of values.
    judged : int
        Those that have a tolerance.
    passed : int
        Those of them that are within it.
    beyond : int
        Those that are outside, and known to be.
    worst : Row or None
        The row of largest error among those that have a tolerance, in parts of it, or among all if none has; None for
        names alone.
    """

    rows: int
    judged: int
    passed: int
    beyond: int
    worst: Row | None

    @property
    def status(self) -> str:
        """Say it in a word or two."""
        if not self.judged:
            return "no tolerance"
        outside = self.judged - self.passed
        return "pass" if not outside else f"{outside} outside{', as said' if outside == self.beyond else ''}"


def outcome(rows: Sequence[Row]) -> Outcome:
    """Return how rows came out.

    Examples
    --------
    >>> outcome([Row("a", 1.0, 1.1, "s", 0.1), Row("b", 2.0, 1.0, "s", 0.1), Row("c", 3.0, 1.0, "s", None)]).status
    '1 outside'
    """
    judged = [row for row in rows if row.passes is not None]
    numbers = [row for row in judged or rows if not isinstance(row.ours, str)]
    worst = max(numbers, key=lambda row: row.excess / (row.tolerance or 1), default=None)
    passed, beyond = (sum(one) for one in ([row.passes is True for row in judged], [row.beyond for row in judged]))
    return Outcome(len(rows), len(judged), passed, beyond, worst)


def value(given: float | str | Interval) -> str:
    """Return a value as text, to five digits, of intervals to three.

    Parameters
    ----------
    given : float, str or Interval
        The value.

    Examples
    --------
    >>> value(1234567.0), value(0.0123456), value(3.0), value("AG")
    ('1,234,567', '0.012346', '3', 'AG')
    >>> value(Interval(2.0, 3.0)), value(Interval(2.0, 3.0, 2.25))
    ('2 to 3', '2.25 (2 to 3)')
    """
    if isinstance(given, str):
        return given
    if isinstance(given, Interval):
        if given.low == given.high:
            return f"{given.low:.3g}"
        ends = f"{given.low:.3g} to {given.high:.3g}"
        return ends if given.middle is None else f"{given.middle:.3g} ({ends})"
    number = float(given)
    if number == round(number) and abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:,.2f}" if abs(number) >= 1000 else f"{number:.5g}"


def as_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return rows as a table."""
    return pd.DataFrame([{**row._asdict(), "error": row.error, "passes": row.passes} for row in rows])


def golden(name: str) -> Path | None:
    """Return a folder of runs of reference implementations, which a checkout has and an installed package has not."""
    folder = Path(__file__).resolve().parents[2] / "tests" / "golden" / name
    return folder if folder.is_dir() else None
