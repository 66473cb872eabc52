"""Parsing of command-line options, and of Python arguments with the same names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from simnet.base import units
from simnet.base.errors import InputError, refuse_values

if TYPE_CHECKING:
    from simnet.scenario import Scenario


T = TypeVar("T")


def refuse_sharding(scenario: Scenario, instead: str) -> None:
    """Raise InputError if a scenario has sharded steps. The message suggests what to do `instead`."""
    if scenario.config.job.sharding is not None:
        raise InputError(f"must be left out: {instead}; `simnet run` follows it", field="job.sharding")


def fields(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return, by column, the values of options in the form ``COLUMN=VALUE``."""
    found = {}
    for one in given or ():
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise InputError(f"must be COLUMN=VALUE, got {one!r}", file=option)
        found[name] = value
    return found


def quantity(text: str | None, option: str, read: Callable[[str], T]) -> T | None:
    """Return an option's value in SI units, parsed by the function `read`; None stays None."""
    with refuse_values(file=option):
        return None if text is None else read(text)


def factor_off(value: float | str | None, option: str) -> float | None:
    """Return the factor >= 1 by which figures may be wrong, read from ``1.1`` or ``10%``. InputError: another value.

    Examples
    --------
    >>> factor_off("10%", "--link-uncertainty"), factor_off("1.5", "--link-uncertainty"), factor_off(2, "")
    (1.1, 1.5, 2.0)
    """
    if value is None:
        return None

    def read(text: str) -> float:
        return text.strip().endswith("%") + units.fraction(text)

    return _bounded(value, option, read, lambda one: 1 <= one < math.inf, "a factor >= 1, as 1.1, or a share, as 10%")


def share(value: float | str, option: str) -> float:
    """Return a share in (0, 1), from a number or a text such as ``90%``. InputError: another value."""
    return _bounded(value, option, units.fraction, lambda one: 0 < one < 1, "a share > 0 and < 100 %, such as 90%")


def densities(given: Sequence[str] | None) -> list[float]:
    """Return densities in (0, 1] in ascending order, given as texts such as "0.01" or "1 %"."""
    said = "a fraction > 0 and at most 1, such as 0.01 or 1 %"
    return sorted({_bounded(one, "--density", units.fraction, lambda one: 0 < one <= 1, said) for one in given or ()})


def _bounded(
    value: float | str, option: str, read: Callable[[str], float], holds: Callable[[float], bool], said: str
) -> float:
    """Return a number read from text. InputError: the number does not fulfil `holds`, which `said` describes."""
    try:
        found = read(value) if isinstance(value, str) else float(value)
    except ValueError:
        found = math.nan
    if not holds(found):
        raise InputError(f"must be {said}, got {value!r}", file=option)
    return found


def counts(text: str | None, option: str) -> list[int]:
    """Return the distinct whole numbers >= 1 in a comma-separated option."""
    counts = []
    for word in text.split(",") if text is not None else ():
        if not (word.strip().isascii() and word.strip().isdigit() and 1 <= int(word) <= 10**6):
            raise InputError(f"must be whole numbers from 1 to 1,000,000 such as 2,4,8, got {text!r}", file=option)
        counts.append(int(word))
    return list(dict.fromkeys(counts))
