"""Quantities as people write them, ``10 ms``, ``25 Gbit/s``, ``64 MiB``, converted to SI.

Inside simnet, times are seconds, amounts bytes, rates bytes per second. A text is one number and one unit: no bare
numbers, no guessing between bits (``b``) and bytes (``B``), and no likely typos such as millibits (``mb``).
"""

from __future__ import annotations

import math
import re
import reprlib
from contextlib import suppress
from decimal import Context, Decimal
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from simnet.base.errors import suggest_names

Quantity: TypeAlias = str | int | float

_LONGEST = 64
# The exponent has at most three digits, so that no number can be expensive to expand.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_UNIT = re.compile(r"[A-Za-z\u00b5\u03bc]+(?: ?/ ?[A-Za-z\u00b5\u03bc]+)?")
_COUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([kKmMbBtT]?)")
_COUNTS = {"": Decimal(1), "K": Decimal(10**3), "M": Decimal(10**6), "B": Decimal(10**9), "T": Decimal(10**12)}
_MICRO = {0xB5: "u", 0x3BC: "u"}
_ARITHMETIC = Context(prec=50)

_SMALL = {"n": "nano", "u": "micro", "m": "milli"}
_LARGE = {"k": "kilo", "M": "mega", "G": "giga", "T": "tera", "Ki": "kibi", "Mi": "mebi", "Gi": "gibi", "Ti": "tebi"}
_FACTORS = {
    **{symbol: Decimal(10) ** power for symbol, power in zip("numkMGT", (-9, -6, -3, 3, 6, 9, 12), strict=True)},
    **{symbol: Decimal(2) ** power for symbol, power in zip(("Ki", "Mi", "Gi", "Ti"), (10, 20, 30, 40), strict=True)},
}


class _UnitKind(NamedTuple):
    """A kind of quantity, such as time: its name, common units, and an example."""

    name: str
    units: tuple[str, ...]
    example: str


_SCALES = (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1), ("min", 60), ("h", 3600), ("d", 86400))
_TIME = _UnitKind("a time", tuple(name for name, _ in _SCALES), "10 ms")
_SIZE = _UnitKind("a size", tuple(f"{prefix}{unit}" for unit in ("B", "bit") for prefix in ("", *_LARGE)), "64 MiB")
_RATE = _UnitKind(
    "a bandwidth", (*(f"{unit}/s" for unit in _SIZE.units), *(f"{prefix}bps" for prefix in "kMGT")), "25 Gbit/s"
)

# SI factor and dimension of each single unit: by symbol or name, with the prefixes that people use with it, or plural.
_UNITS = {
    f"{prefix}{name}{plural}": (Decimal(value) * _FACTORS.get(symbol, 1), kind)
    for names, value, kind, prefixes in (
        (("s", "sec", "second"), "1", _TIME, _SMALL),
        (("min", "minute"), "60", _TIME, {}),
        (("h", "hour"), "3600", _TIME, {}),
        (("d", "day"), "86400", _TIME, {}),
        (("B", "byte"), "1", _SIZE, _LARGE),
        (("b", "bit"), "0.125", _SIZE, _LARGE),
        (("Bps",), "1", _RATE, _LARGE),
        (("bps",), "0.125", _RATE, _LARGE),
    )
    for name in names
    for symbol, word in {"": "", **prefixes}.items()
    for prefix in (symbol, word)
    for plural in ("", *("s" if len(name) > 2 else ()))
}


def seconds(text: Quantity) -> float:
    """Return a time such as ``10 ms`` in seconds. Units are ns, us, ms, s, min, h and d; only 0 needs no unit.

    Raises ValueError if the unit is missing, unknown or not a time, or the number is negative or too large.

    Examples
    --------
    >>> seconds("10 ms"), seconds("1.5h"), seconds(0)
    (0.01, 5400.0, 0.0)
    >>> seconds(10)
    Traceback (most recent call last):
        ...
    ValueError: 10 has no unit; write e.g. '10 ms'
    >>> seconds("10 mss")
    Traceback (most recent call last):
        ...
    ValueError: '10 mss': unknown unit 'mss'; did you mean 'ms'? Allowed: d, h, min, ms, ns, s, us
    """
    return _parse_quantity(text, _TIME)


def size(text: Quantity) -> float:
    """Return an amount of data in bytes. Units are B and bit (b), with the prefixes k, M, G, T, Ki, Mi, Gi and Ti.

    Examples
    --------
    >>> size("64 MiB"), size("64 MB"), size("64 Mbit")
    (67108864.0, 64000000.0, 8000000.0)
    """
    return _parse_quantity(text, _SIZE)


def bandwidth(text: Quantity) -> float:
    """Return a bandwidth in bytes per second. Units are size per time, as ``Gbit/s``, or bps and Bps with prefixes.

    Examples
    --------
    >>> bandwidth("25 Gbit/s"), bandwidth("25 Gbps"), bandwidth("1 GiB/s")
    (3125000000.0, 3125000000.0, 1073741824.0)
    >>> bandwidth("10 ms")
    Traceback (most recent call last):
        ...
    ValueError: '10 ms' is not a bandwidth; write e.g. '25 Gbit/s'
    """
    return _parse_quantity(text, _RATE)


def fraction(text: str, percent: bool = False) -> float:
    """Return a number or a percentage as a float; ValueError for other text, and with `percent` for plain numbers.

    Examples
    --------
    >>> fraction("7 %"), fraction("0.07")
    (0.07, 0.07)
    """
    number, sign, rest = text.partition("%")
    with suppress(ValueError):
        if not rest.strip() and (sign or not percent):
            # Division, unlike multiplication by 0.01, gives the float nearest to the decimal number meant.
            return float(number) / 100 if sign else float(number)
    raise ValueError(f"must be a number or a percentage such as '10 %', got {text!r}")


def count(text: Quantity) -> int:
    """Return a count such as ``7B``, ``350M`` or ``64k``; ValueError if it is not an integer above 0.

    Examples
    --------
    >>> count("7B"), count("1.5 B"), count("124439808"), count(350)
    (7000000000, 1500000000, 124439808, 350)
    >>> count("7 GB")
    Traceback (most recent call last):
        ...
    ValueError: must be a whole number >= 1, such as 124439808, 350M or 7B, got '7 GB'
    """
    found = _COUNT.fullmatch(str(text).strip()) if isinstance(text, Quantity) and not isinstance(text, bool) else None
    value = Decimal(found[1]) * _COUNTS[found[2].upper()] if found is not None else Decimal(0)
    if value < 1 or value % 1:
        raise ValueError(f"must be a whole number >= 1, such as 124439808, 350M or 7B, got {reprlib.repr(text)}")
    return int(value)


def is_count(text: str) -> bool:
    """Return whether a text is a positive number of things, such as ``25M``, in the notation of `count`."""
    try:
        return count(text) > 0
    except ValueError:
        return False


def format_seconds(value: float) -> str:
    """Return a time as text with three significant digits and a unit from ns to d.

    Examples
    --------
    >>> format_seconds(0.0123), format_seconds(0.9999), format_seconds(5400), format_seconds(0)
    ('12.3 ms', '1 s', '1.5 h', '0 s')
    """
    return _format_scaled(value, _SCALES)


WIDEST = 100.0
"""Maximum ratio of an interval's ends; a wider interval is not informative."""

NOT_DETERMINED = "not determined by these data"
"""Text in place of an interval that is too wide to report."""


def determined(low: float, high: float) -> bool:
    """Return whether an interval is narrow enough to report: `high` is at most `WIDEST` times `low`.

    Examples
    --------
    >>> determined(1e-3, 6e-3), determined(0.0, 0.0), determined(0.0341, 265_000)
    (True, True, False)
    """
    return low <= high <= WIDEST * low < math.inf


def finite(value: float) -> float | None:
    """Return a number; None if it is infinite or NaN, which JSON cannot represent.

    Examples
    --------
    >>> finite(0.5), finite(math.inf)
    (0.5, None)
    """
    return value if math.isfinite(value) else None


def interval_figures(low: float, high: float, unit: str = "") -> dict[str, float | str | None]:
    """Return an interval as JSON fields ``low{unit}`` and ``high{unit}``; nulls and a remark if too wide to report.

    Examples
    --------
    >>> interval_figures(1e-3, 6e-3, "_s"), interval_figures(0.0341, 265_000)["interval"]
    ({'low_s': 0.001, 'high_s': 0.006}, 'not determined by these data')
    """
    if determined(low, high):
        return {f"low{unit}": low, f"high{unit}": high}
    return {f"low{unit}": None, f"high{unit}": None, "interval": NOT_DETERMINED}


def format_bytes(value: float) -> str:
    """Return an amount of data as text with three significant digits, in powers of 1000.

    Examples
    --------
    >>> format_bytes(102_228_128), format_bytes(12), format_bytes(999_999)
    ('102 MB', '12 B', '1 MB')
    """
    return _format_scaled(value, _decimal_scales("B"))


def format_bandwidth(value: float) -> str:
    """Return a bandwidth [byte/s] as text in bit/s with three significant digits.

    Examples
    --------
    >>> format_bandwidth(3.125e9), format_bandwidth(1.56e6)
    ('25 Gbit/s', '12.5 Mbit/s')
    """
    return _format_scaled(8 * value, _decimal_scales("bit/s"))


def _decimal_scales(unit: str) -> tuple[tuple[str, float], ...]:
    return tuple((f"{prefix}{unit}", 1000.0**power) for power, prefix in enumerate(("", *"kMGT")))


def _parse_quantity(text: Quantity, kind: _UnitKind) -> float:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"{reprlib.repr(text)} is not {kind.name}; write e.g. '{kind.example}'")
    shown = reprlib.repr(text)
    stripped = shown if isinstance(text, int) else str(text).strip()
    number = _NUMBER.match(stripped)
    unit = stripped[number.end() :].strip() if number else ""
    if len(stripped) > _LONGEST or number is None or not _UNIT.fullmatch(unit or "s"):
        raise ValueError(f"{shown} is not a number with a unit; write e.g. '{kind.example}'")
    amount = Decimal(number.group())
    if amount < 0:
        raise ValueError(f"{shown} is negative; {kind.name} must be >= 0, e.g. '{kind.example}'")
    if not unit and amount:
        written = f"{number.group()} {kind.example.split()[1]}"
        raise ValueError(f"{shown} has no unit; write e.g. '{written}'")
    value = float(_ARITHMETIC.multiply(amount, _unit_factor(unit, shown, kind))) if unit else 0.0
    if not math.isfinite(value):
        raise ValueError(f"{shown} is too large; write e.g. '{kind.example}'")
    return abs(value)


def _unit_factor(unit: str, shown: str, kind: _UnitKind) -> Decimal:
    known = _resolve_unit(unit.translate(_MICRO))
    if known is None:
        alike = [f"'{name}'" for name in kind.units if name.casefold() == unit.casefold()]
        remedy = f"did you mean {' or '.join(alike)}? Case matters" if alike else suggest_names(unit, kind.units)
        raise ValueError(f"{shown}: unknown unit '{unit}'; {remedy}")
    factor, found = known
    if found != kind:
        raise ValueError(f"{shown} is not {kind.name}; write e.g. '{kind.example}'")
    return factor


@lru_cache(maxsize=1024)
def _resolve_unit(unit: str) -> tuple[Decimal, _UnitKind | None] | None:
    """Return a unit's factor to SI and its kind, which is None for a unit such as s/s; None for an unknown unit."""
    above, slash, below = unit.partition("/")
    first, second = _UNITS.get(above.strip()), _UNITS.get(below.strip())
    if first is None or not slash:
        return first
    if second is None:
        return None
    return first[0] / second[0], _RATE if (first[1], second[1]) == (_SIZE, _TIME) else None


def _format_scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """Return `value` as text in the largest unit of `units` (ascending) that gives a number of at least 1."""
    base = next(name for name, factor in units if factor == 1)
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {base}"
    written = [(f"{value / factor:.3g}", name) for name, factor in units]
    number, name = next(((number, name) for number, name in reversed(written) if abs(float(number)) >= 1), written[0])
    return f"{float(number):.0f} {name}" if 1e3 <= abs(float(number)) < 1e6 else f"{number} {name}"
