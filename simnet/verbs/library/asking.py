"""What all functions of the library do alike: they read fields, name arguments in errors, and blame who is to blame."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeAlias, TypeVar

from simnet.base import plugins
from simnet.base.errors import InputError
from simnet.base.progress import report_progress
from simnet.base.threads import one_thread
from simnet.studies import options

P = ParamSpec("P")
R = TypeVar("R")

Fields: TypeAlias = Mapping[str, object] | Sequence[str]
"""Fields of a scenario with their values: ``{"job.iterations": 50}``, or as the commands have it."""

Share: TypeAlias = Callable[[float], None]
"""Called now and then with the share that is done, in [0, 1]."""


def verb(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of the library compute as the command does, and its errors name arguments, not options.

    Examples
    --------
    >>> @verb
    ... def listen(inner_latency: str) -> None:
    ...     raise InputError("must be a time", file="--inner-latency")
    >>> listen("x")
    Traceback (most recent call last):
    simnet.base.errors.InputError: listen(inner_latency=...): must be a time
    """

    @functools.wraps(function)
    def asked(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            with plugins.name_authors(), one_thread():
                return function(*arguments, **named)
        except InputError as error:
            place = error.file or ""
            if place.startswith("--") and " " not in place:
                argument = f"{function.__name__}({place[2:].replace('-', '_')}=...)"
                raise InputError(error.message, file=argument, line=error.line, field=error.field) from None
            raise

    return asked


def overrides(
    fields: Fields, stack: str | None = None, compute: float | str | None = None, batch: int | None = None
) -> list[str]:
    """Return fields as ``--set`` has them, those of passes and that of a stack.

    Parameters
    ----------
    fields : mapping or sequence of str
        See `Fields`. Texts are read as in a scenario, as ``10 ms``; other values are those of JSON.
    stack : str, optional
        A name of `simnet.network.STACKS`.
    compute, batch
        As of `simnet.run`.

    Raises
    ------
    InputError
        If a value is none that a scenario can hold, or there is no such stack.

    Examples
    --------
    >>> overrides({"job.iterations": 20, "network.weather": [], "job.density": "1 %"})
    ['job.iterations=20', 'network.weather=[]', 'job.density=1 %']
    """
    if isinstance(fields, str):
        raise InputError(f"must be a mapping of fields to values, got {fields!r}", file="--set")
    given = (
        [f"{name}={written(value)}" for name, value in fields.items()] if isinstance(fields, Mapping) else list(fields)
    )
    return [*given, *options.passes(quantity(compute, "s"), batch), *options.stack(stack)]


def written(value: object) -> str:
    """Return a value as a scenario has it: a text unchanged, others as JSON."""
    try:
        return value if isinstance(value, str) else json.dumps(value, default=_as_python)
    except (TypeError, ValueError):
        raise InputError(f"cannot be a value of a scenario: {value!r}", file="--set") from None


def _as_python(value: object) -> object:
    """Return numbers and arrays of NumPy as Python's."""
    if not hasattr(value, "tolist"):
        raise TypeError
    return value.tolist()


def words(value: Sequence[object] | str | None) -> str | None:
    """Return several words as an option has them, with commas between; None where there are none."""
    return value if value is None or isinstance(value, str) else ",".join(map(str, value))


def quantity(value: str | float | None, unit: str) -> str | None:
    """Return a quantity as an option has it: a number is one of SI.

    Examples
    --------
    >>> quantity("10 ms", "s"), quantity(0.01, "s"), quantity(None, "s")
    ('10 ms', '0.01 s', None)
    """
    return value if value is None or isinstance(value, str) else f"{float(value)!r} {unit}"


def telling(progress: Share | None) -> AbstractContextManager[None]:
    """Report the share that is done to a callback, if there is one."""
    return nullcontext() if progress is None else report_progress(progress)
