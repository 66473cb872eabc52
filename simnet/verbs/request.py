"""Parts that all commands share: argument types, single-threaded execution, and error messages that name arguments."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, Protocol, TypeAlias, TypeVar

from simnet.base import plugins
from simnet.base.errors import InputError
from simnet.base.threads import one_thread
from simnet.scenario.finding import find

P = ParamSpec("P")
R = TypeVar("R")

Overrides: TypeAlias = Mapping[str, object] | Sequence[str]
"""Fields of a scenario with their values: ``{"job.iterations": 50}``, or ``["job.iterations=50"]`` as on the line."""


class WritableScenario(Protocol):
    """Protocol of `simnet.scenario.Scenario`, for annotations in modules that avoid the slow import of that class."""

    def to_yaml(self) -> str:
        """Return the scenario as YAML."""


ScenarioSource: TypeAlias = str | Path | WritableScenario
"""A YAML file, the name of a shipped scenario, or a scenario that `simnet.load` returned."""

Words: TypeAlias = Sequence[str] | str
"""Several words: a list, or one text with commas between, as on the line."""

USUAL_FOLDER = "runs/"
"""The default of ``--out`` on the command line, for verbs that write a folder named after the scenario."""


def verb(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` such that it runs single-threaded, and errors name its arguments instead of command options.

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
                argument = f"{function.__name__.rstrip('_')}({place[2:].replace('-', '_')}=...)"
                raise InputError(error.message, file=argument, line=error.line, field=error.field) from None
            raise

    return asked


@contextmanager
def scenario_path(scenario: ScenarioSource) -> Iterator[str | Path]:
    """Yield the path or name of a scenario; a loaded scenario is first written to a temporary file."""
    if isinstance(scenario, str | Path):
        # Whether there is one is known before all that a scenario may hold is loaded.
        find(scenario)
        yield scenario
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.yaml"
        path.write_text(scenario.to_yaml(), encoding="utf-8")
        try:
            yield path
        except InputError as error:
            if error.file != str(path):
                raise
            raise InputError(error.message, file="scenario", field=error.field) from None


def set_texts(fields: Overrides | None) -> list[str]:
    """Return scenario fields as texts ``field=value``, in the notation of ``--set``.

    Raises
    ------
    InputError
        If a value is none that a scenario can hold.

    Examples
    --------
    >>> set_texts({"job.iterations": 20, "network.weather": [], "job.density": "1 %"})
    ['job.iterations=20', 'network.weather=[]', 'job.density=1 %']
    """
    if isinstance(fields, str):
        raise InputError(f"must be a mapping of fields to values, got {fields!r}", file="--set")
    if isinstance(fields, Mapping):
        return [f"{name}={_as_written(value)}" for name, value in fields.items()]
    return list(fields or ())


def _as_written(value: object) -> str:
    """Return a value in scenario notation: strings unchanged, other values as JSON."""
    try:
        return value if isinstance(value, str) else json.dumps(value, default=_as_python)
    except (TypeError, ValueError):
        raise InputError(f"cannot be a value of a scenario: {value!r}", file="--set") from None


def _as_python(value: object) -> object:
    """Return a NumPy number or array as Python numbers or lists; other values are unchanged."""
    if not hasattr(value, "tolist"):
        raise TypeError
    return value.tolist()


def word_list(value: Words | None) -> list[str] | None:
    """Return comma-separated text, or a sequence, as a list of words; None stays None."""
    if value is None:
        return None
    return [one.strip() for one in value.split(",")] if isinstance(value, str) else list(value)


def refuse_given(given: Mapping[str, object], what: str) -> None:
    """Raise InputError if any option in `given` has a value. `what` says what these options are for."""
    for option, value in given.items():
        if value:
            raise InputError(f"is only for {what}", file=option)
