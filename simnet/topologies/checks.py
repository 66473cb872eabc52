"""Checks of the arguments of topology builders: counts, latencies, bandwidths and ratios."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial, wraps
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from annotated_types import Ge

from simnet.base.errors import check_int, is_number
from simnet.base.quantities import RATE, TIME, Bandwidth, Seconds, check_bounds, parameter_hints

F = TypeVar("F", bound=Callable[..., Any])

LARGEST = 1_000_000
"""Directed links of the largest graph that is built: some 0.5 GB as networkx keeps it."""


def checked(builder: F) -> F:
    """Return a wrapper of a topology builder that checks each argument against the annotation of its parameter.

    Counts, latencies, bandwidths and ratios arrive as an int or float within their bounds; None where that is allowed,
    and what is annotated otherwise, arrive as they are.

    Raises
    ------
    ValueError
        From the builder returned, if an argument is no such number.
    """

    @cache
    def checks() -> tuple[inspect.Signature, dict[str, Callable[[object, str], float] | None]]:
        """Return the builder's signature and a dict from parameter to check (None: unchecked); the result is cached."""
        signature = inspect.signature(builder)
        hints = parameter_hints(builder, list(signature.parameters))
        return signature, {name: _annotation_check(hint) for name, hint in hints.items()}

    @wraps(builder)
    def build(*args: Any, **kwargs: Any) -> Any:
        signature, check_of = checks()
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        for name, value in given.arguments.items():
            check = check_of.get(name)
            if check is not None and (value is not None or signature.parameters[name].default is not None):
                given.arguments[name] = check(value, name)
        return builder(*given.args, **given.kwargs)

    return cast("F", build)


def _annotation_check(hint: Any) -> Callable[[object, str], float] | None:
    """Return the function that checks and converts an argument with this annotation; None if there is no check."""
    if get_origin(hint) in (Union, UnionType):
        return next((check for one in get_args(hint) if (check := _annotation_check(one)) is not None), None)
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    least: Any = next((one.ge for one in marks if isinstance(one, Ge)), 0)
    if TIME in marks or RATE in marks:
        return latency_seconds if TIME in marks else rate
    if kind is int and marks:
        return partial(check_int, low=least)
    return partial(factor, least=least) if kind is float and marks else None


def latency_seconds(value: object, name: str) -> float:
    """Return a latency [s] as a float; raise ValueError with the argument's `name` if it is out of bounds."""
    return check_bounds(_finite(value, name, ">= 0", "seconds"), Seconds, name)


def rate(value: object, name: str) -> float:
    """Return a bandwidth [byte/s] as a float; raise ValueError with the argument's `name` if it is out of bounds."""
    return check_bounds(_finite(value, name, "> 0", "bytes per second"), Bandwidth, name)


def factor(value: object, name: str, least: float = 0.0) -> float:
    """Return a ratio as a float; raise ValueError with the argument's `name` unless it is finite, > 0 and >= `least`.

    Parameters
    ----------
    value : object
        The ratio.
    name : str
        Name of the argument in the error.
    least : float
        Smallest ratio allowed.
    """
    return _finite(value, name, f">= {least:g}" if least else "> 0", least=least)


def affordable(links: int, what: str) -> None:
    """Raise ValueError if a graph would exceed `LARGEST` directed links; builders call this before they add links."""
    if links > LARGEST:
        raise ValueError(f"{what} needs {links:,} directed links; at most {LARGEST:,} are allowed")


def _finite(value: Any, name: str, sign: str, unit: str = "", least: float = 0.0) -> float:
    if not is_number(value):
        raise ValueError(f"{name} must be a number, {f'{unit} {sign}'.strip()}, got {value!r}")
    number = math.inf
    with suppress(OverflowError):  # an int beyond the range of float64
        number = float(value)
    if not (least <= number < math.inf and (number or sign == ">= 0")):
        raise ValueError(f"{name} must be finite and {f'{sign} {unit}'.strip()}, got {value}")
    return number
