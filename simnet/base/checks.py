"""Refusals that many parameters share: what is a number, a whole number, a positive number, one of some names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any, TypeGuard, TypeVar

from simnet.base.errors import nearest

T = TypeVar("T")


def whole(value: object, name: str, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int.

    Parameters
    ----------
    value : object
        What is given.
    name : str
        What it is called in the error.
    low : int, optional
        The least that is allowed.
    high : int, optional
        The most that is allowed.

    Raises
    ------
    ValueError
        If it is no whole number in low .. high.

    Examples
    --------
    >>> whole(2.5, "n_ranks", 1)
    Traceback (most recent call last):
    ValueError: n_ranks must be a whole number >= 1, got 2.5
    """
    number = None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        allowed = "" if low is None else f" >= {low}" if high is None else f" in {low}..{high}"
        raise ValueError(f"{name} must be a whole number{allowed}, got {value!r}")
    return number


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a real number, and not a truth value.

    Examples
    --------
    >>> is_number(2), is_number(2.5), is_number(True), is_number("2")
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def read_number(text: str) -> float:
    """Return the number that a text from elsewhere is; NaN if it is none, or is longer than any number need be.

    Python's own digit separator, and digits of other scripts, are no numbers of a file.

    Examples
    --------
    >>> read_number(" 1e3"), read_number("1_000"), read_number("fast")
    (1000.0, nan, nan)
    """
    try:
        return float(text) if text.isascii() and "_" not in text and len(text) <= 60 else math.nan
    except ValueError:
        return math.nan


def positive(value: float, name: str) -> float:
    """Return `value` as a float.

    Raises
    ------
    ValueError
        If it is no number, not finite, or not above 0.

    Examples
    --------
    >>> positive(0, "period")
    Traceback (most recent call last):
    ValueError: period must be a number > 0 and finite, got 0
    """
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number > 0 and finite, got {value!r}")
    return float(value)


def named(value: object, name: str, allowed: Collection[str]) -> None:
    """Refuse what is none of some names.

    Parameters
    ----------
    value : object
        What is given.
    name : str
        What it is the name of.
    allowed : collection of str
        The names that there are.

    Raises
    ------
    ValueError
        If it is none of them.

    Examples
    --------
    >>> named("hsah", "routing", ["hash", "single"])
    Traceback (most recent call last):
    ValueError: there is no routing 'hsah': did you mean 'hash'? Allowed: hash, single
    """
    if value not in allowed:
        raise ValueError(f"there is no {name} {value!r}: {nearest(str(value), allowed)}")


def with_properties(kind: Callable[..., T], given: Mapping[str, Any], called: str) -> T:
    """Return a dataclass made of some of its properties.

    Parameters
    ----------
    kind : type
        The dataclass.
    given : mapping
        Properties by name.
    called : str
        What it is called in the error.

    Raises
    ------
    ValueError
        If it has no such property, or refuses it.
    """
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise ValueError(f"{called} has no property {name!r}: {nearest(str(name), known)}")
    return kind(**given)
