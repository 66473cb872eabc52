"""Type hints for quantities: how a number is written in a scenario file, and which values are allowed.

A parameter annotated ``latency: Seconds`` is a float in Python and the text ``10 ms`` in a scenario, whose fields
derive from the signatures they configure (`simnet.scenario.parts`). Only the signature states unit, bounds and default.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import ArrayLike

from simnet.base import units
from simnet.base.errors import check_choice, check_int, is_number

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema


@dataclass(frozen=True)
class Notation:
    """The written form of a number: its description for the JSON Schema, and examples.

    `read` returns the number of a text, or raises ValueError; `scales` are units for output and their values, the unit
    of 1 first, none for plain numbers.
    """

    what: str
    examples: tuple[str | int, ...]
    read: Callable[[Any], object]
    scales: Sequence[tuple[str, float]] = ()

    def write(self, value: float) -> str:
        """Return the shortest text that reads back as exactly the same number.

        Examples
        --------
        >>> Notation("time", (), units.seconds, TIMES).write(0.0123)
        '12.3 ms'
        """
        if value == 0:
            return f"0 {self.scales[0][0]}"
        texts = (f"{value / scale:.12g} {unit}" for unit, scale in self.scales if 1 <= value / scale < 1000)
        exact = (text for text in texts if self.read(text) == value)
        return min(exact, key=len, default=f"{value!r} {self.scales[0][0]}")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # Only scenarios need pydantic, and they have it loaded.
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(self.write) if self.scales else None
        return core_schema.no_info_before_validator_function(self.read, handler(source), serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        number = {"const": 0} if self.scales else handler(schema)
        forms = number.get("anyOf", [{"type": "string"}, number])
        return {"anyOf": forms, "description": self.what, "examples": list(self.examples)}


@dataclass(frozen=True)
class NotTiny:
    """The smallest allowed value other than 0, for numbers used as divisors, such as rates."""

    least: float

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import PydanticCustomError, core_schema

        def check(value: float) -> float:
            if 0 < value < self.least:
                raise PydanticCustomError("greater_than_equal", "too small", {"ge": self.least})
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))


@dataclass(frozen=True)
class Written:
    """The type of a parameter's value in files, for parameters that accept other types in Python."""

    form: Any


class Absolute:
    """Marks a function that returns a link's bandwidth or latency over time itself, not a factor to multiply it by."""


class WorkerLink:
    """Marks a parameter that is the bandwidth or latency of a worker's own link, although its name does not say so."""


def _read_fraction(value: object) -> object:
    """Return a percentage such as ``10 %`` as a fraction, 0.1; numbers are returned unchanged."""
    return units.fraction(value, percent=True) if isinstance(value, str) else value


def _read_iterations(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})? epochs?", value.strip()):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ITERATIONS:
        return value
    raise ValueError(
        f"must be a whole number from 1 to {MAX_ITERATIONS:,}, or epochs such as '2 epochs', got {value!r:.60}"
    )


MAX_ITERATIONS = 10_000_000
"""The longest job."""

MOST_PARAMETERS = 10**13
"""The largest model."""

TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))
SIZES = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9))
RATES = (("B/s", 1.0), ("Gbit/s", 1.25e8), ("Mbit/s", 1.25e5), ("kbit/s", 125.0), ("Tbit/s", 1.25e11))

TIME = Notation("time with unit", ("10 ms", "50 us", "1.5 h"), units.seconds, TIMES)
RATE = Notation("bandwidth with unit", ("25 Gbit/s", "100 MB/s"), units.bandwidth, RATES)
SIZE = Notation("amount of data with unit", ("64 MiB", "1500 B"), units.size, SIZES)
FACTOR = Notation("factor", ("50 %",), _read_fraction)
SHARE = Notation("probability or share", ("2 %",), _read_fraction)
PARAMETERS = Notation("number of parameters", (124439808, "7B"), units.count)
ITERATIONS = Notation("iterations, or epochs", (300, "2 epochs"), _read_iterations)

# No sum or quotient of what lies within these bounds overflows.
MOST_SECONDS = 1e12
"""The longest time [s]."""
MOST_BYTES = 1e18
"""The largest amount of data [byte]."""
MOST_RATE = 1e18
"""The highest rate [byte/s]."""
# A byte in the longest time is the least that a rate is.
_LEAST = NotTiny(1 / MOST_SECONDS)

Seconds: TypeAlias = Annotated[float, Le(MOST_SECONDS), TIME]
"""A time [s], >= 0."""
Duration: TypeAlias = Annotated[Seconds, Gt(0), _LEAST]
"""A time [s], > 0."""
Size: TypeAlias = Annotated[float, Le(MOST_BYTES), SIZE]
"""An amount of data [byte], >= 0."""
PositiveSize: TypeAlias = Annotated[Size, Gt(0), _LEAST]
"""An amount of data [byte], > 0."""
Rate: TypeAlias = Annotated[float, Le(MOST_RATE), _LEAST, RATE]
"""Bytes per second, >= 0."""
Bandwidth: TypeAlias = Annotated[Rate, Gt(0)]
"""Bytes per second, > 0."""
Factor: TypeAlias = Annotated[float, Ge(0), Le(1e6), _LEAST, FACTOR]
"""A factor >= 0."""
PositiveFactor: TypeAlias = Annotated[float, Gt(0), Le(1e6), _LEAST, FACTOR]
"""A factor > 0."""
Spread: TypeAlias = Annotated[
    float, Ge(0), Le(5), Notation("standard deviation of a logarithm: 0.1 is about 10 %", ("10 %",), _read_fraction)
]
"""A standard deviation of a logarithm."""
Share: TypeAlias = Annotated[float, Ge(0), Le(1), SHARE]
"""A probability, or a part of a whole."""
PositiveShare: TypeAlias = Annotated[float, Gt(0), Le(1), SHARE]
"""A part of a whole, > 0."""
# A ramp from 1 to less than the least would end at 0 for rounding.
Density: TypeAlias = Annotated[
    float, Gt(0), Le(1), _LEAST, Notation("fraction of the entries kept", ("1 %",), _read_fraction)
]
"""The fraction of the entries of a gradient that is kept."""
Slowdown: TypeAlias = Annotated[float, Gt(0), Le(1e6), _LEAST]
"""A factor > 0."""
Count: TypeAlias = Annotated[int, Ge(1)]
"""A count, at least one."""
Parameters: TypeAlias = Annotated[int, Ge(1), Le(MOST_PARAMETERS), PARAMETERS]
"""Number of parameters of a model."""
Iterations: TypeAlias = Annotated[int, Written(Annotated[Annotated[int, Ge(1)] | str, ITERATIONS])]
"""A number of iterations; in a scenario also a text such as ``2 epochs``."""
WholeNumber: TypeAlias = Annotated[int, Ge(0)]
"""A whole number, 0 or more."""
Host: TypeAlias = WholeNumber
"""Number of a host, from 0."""
Latencies: TypeAlias = Annotated[ArrayLike, Written(Seconds | Sequence[Sequence[Seconds]])]
"""A latency [s], or a matrix of latencies."""
Bandwidths: TypeAlias = Annotated[ArrayLike, Written(Rate | Sequence[Sequence[Rate]])]
"""A bandwidth [byte/s], or a matrix of bandwidths, 0 for no link."""


_BOUNDS: Sequence[tuple[type, str, str, Callable[[float, float], bool]]] = (
    (Gt, "gt", ">", operator.gt),
    (Ge, "ge", ">=", operator.ge),
    (Le, "le", "<=", operator.le),
    (Lt, "lt", "<", operator.lt),
    (NotTiny, "least", ">=", operator.ge),
)


def bounds_error(value: float, quantity: Any, got: object = None) -> str:
    """Return the error message if a number is outside the bounds of `quantity`, else ""; `got` is the number as text.

    Examples
    --------
    >>> bounds_error(1e305, Bandwidth), bounds_error(1e-300, Bandwidth, "1e-300"), bounds_error(1e9, Bandwidth)
    ('must be <= 1e+18, got 1e+305', "must be >= 1e-12, got '1e-300'", '')
    """
    _, *marks = get_args(quantity)
    shown = value if got is None else got
    least = min([0.0, *(getattr(mark, "ge", 0.0) for mark in marks)])
    if not is_number(value) or not least <= value < math.inf:
        return f"must be a finite number >= {least:g}, got {shown!r}"
    for mark in marks:
        for kind, name, sign, holds in _BOUNDS:
            if isinstance(mark, kind) and not holds(value, getattr(mark, name)) and (value or kind is not NotTiny):
                return f"must be {sign} {getattr(mark, name):g}, got {shown!r}"
    return ""


def check_bounds(value: float, quantity: Any, name: str) -> float:
    """Return a number; raise ValueError if it is outside the bounds of `quantity`.

    Examples
    --------
    >>> check_bounds(1e300, Seconds, "latency")
    Traceback (most recent call last):
    ValueError: latency must be <= 1e+12, got 1e+300
    """
    wrong = bounds_error(value, quantity)
    if wrong:
        raise ValueError(f"{name} {wrong}")
    return value


_FORMS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    str: (str, "a text"),
    Sequence: ((list, tuple), "a list"),
}


def check_value(value: Any, hint: Any, name: str) -> Any:
    """Return a value converted to its annotation: a number, text, truth value or list; ValueError if it does not fit.

    None is allowed where the annotation has it. Values of other annotations, and of unions, are taken as they are.

    Examples
    --------
    >>> check_value(3, Annotated[float, Gt(0), Le(2)], "share")
    Traceback (most recent call last):
    ValueError: share must be <= 2, got 3
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    (kind, *others) = [one for one in kinds if one is not NoneType]
    if others or (value is None and kind is not hint):
        return value
    form, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    if get_origin(form) is Literal:
        check_choice(value, name, get_args(form))
    for mark in marks:
        if hasattr(mark, "check"):
            mark.check(name, value)
    if form is int:
        bounds = [(Ge, "ge"), (Le, "le")]
        low, high = (next((getattr(one, end) for one in marks if isinstance(one, kind)), None) for kind, end in bounds)
        return check_int(value, name, low, high)
    if form is float:
        if not is_number(value):
            raise ValueError(f"{name} must be a number, got {value!r:.100}")
        return float(check_bounds(value, kind, name) if marks else value)
    types, allowed = _FORMS.get(get_origin(form) or form, (object, ""))
    if not isinstance(value, types):
        raise ValueError(f"{name} must be {allowed}, got {value!r:.100}")
    for one in value if get_origin(form) is Sequence else ():
        check_value(one, next(iter(get_args(form)), Any), f"an entry of {name}")
    return value


def check_fields(owner: Any) -> None:
    """Raise ValueError if the value of a dataclass field violates its annotation; see `check_value`."""
    for name, hint in parameter_hints(type(owner), [one.name for one in dataclasses.fields(owner)]).items():
        check_value(getattr(owner, name), hint, name)


def parameter_hints(target: Callable[..., Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the annotations of some parameters of `target`, except annotations that only type checkers can resolve."""
    if isinstance(target, type) and (dataclasses.is_dataclass(target) or hasattr(target, "_fields")):
        written, known = target.__annotations__, vars(sys.modules[target.__module__])
    else:
        function = getattr(target, "__init__") if isinstance(target, type) else inspect.unwrap(target)  # noqa: B009
        written, known = function.__annotations__, function.__globals__
    found: dict[str, Any] = {}
    for name in names:
        with suppress(KeyError, NameError):
            one = SimpleNamespace(__annotations__={name: written[name]})
            found |= get_type_hints(one, known, include_extras=True)
    return found
