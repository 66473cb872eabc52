"""Checks of arguments: numbers, integers, positive numbers, names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any, TypeGuard, TypeVar

from simnet.base.errors import suggest_names

T = TypeVar("T")


def check_int(value: object, name: str, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as an int; ValueError, which calls it `name`, if it is not an integer in `low` .. `high`.

    Examples
    --------
    >>> check_int(2.5, "n_ranks", 1)
    Traceback (most recent call last):
    ValueError: n_ranks must be a whole number >= 1, got 2.5
    """
    number = None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        allowed = "" if low is None else f" >= {low}" if high is None else f" in {low}..{high}"
        raise ValueError(f"{name} must be a whole number{allowed}, got {value!r}")
    return number


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a real number and not a bool.

    Examples
    --------
    >>> is_number(2), is_number(2.5), is_number(True), is_number("2")
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def read_number(text: str) -> float:
    """Return the number that a text states; NaN if the text is too long or no number. ``1_000`` is no number.

    Examples
    --------
    >>> read_number(" 1e3"), read_number("1_000"), read_number("fast")
    (1000.0, nan, nan)
    """
    try:
        return float(text) if text.isascii() and "_" not in text and len(text) <= 60 else math.nan
    except ValueError:
        return math.nan


def check_positive(value: float, name: str) -> float:
    """Return `value` as a float; ValueError, which calls it `name`, if it is not a finite number > 0.

    Examples
    --------
    >>> check_positive(0, "period")
    Traceback (most recent call last):
    ValueError: period must be a number > 0 and finite, got 0
    """
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number > 0 and finite, got {value!r}")
    return float(value)


def check_choice(value: object, name: str, allowed: Collection[str]) -> None:
    """Raise ValueError if `value` is not one of the allowed names.

    Examples
    --------
    >>> check_choice("hsah", "routing", ["hash", "single"])
    Traceback (most recent call last):
    ValueError: there is no routing 'hsah': did you mean 'hash'? Allowed: hash, single
    """
    if value not in allowed:
        raise ValueError(f"there is no {name} {value!r}: {suggest_names(str(value), allowed)}")


def make_dataclass(kind: Callable[..., T], given: Mapping[str, Any], called: str) -> T:
    """Return an instance of the dataclass `kind` with the field values `given`; ValueError for an unknown field."""
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise ValueError(f"{called} has no property {name!r}: {suggest_names(str(name), known)}")
    return kind(**given)
