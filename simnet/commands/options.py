"""Options that several commands have, and how the values of options are read."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

import typer

from simnet.base import units
from simnet.base.errors import InputError

R = TypeVar("R")

Scenario: TypeAlias = Annotated[
    str, typer.Argument(help="A YAML file, or the name of a scenario that comes with simnet.")
]
Fields: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set a field, as job.iterations=50; may be repeated."),
]
Changes: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of it; repeatable.")
]
Seed: TypeAlias = Annotated[int | None, typer.Option(min=0, help="Seed in place of that of the scenario.")]
Seeds: TypeAlias = Annotated[
    int,
    typer.Option(
        min=1, max=1000, help="How many seeds: that of the scenario and the next ones. With several, who is tied."
    ),
]
Stack: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="How messages are sent: a name of `simnet list stacks`; of a scenario network.stack."
    ),
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace what is there already.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table.")]
Policies: TypeAlias = Annotated[
    str | None, typer.Option(metavar="A,B", help="Run these policies only, by their names in the scenario.")
]


def grouped(command: Callable[..., R]) -> Callable[..., R]:
    """Let the fields of a command's parameters that are dataclasses be options, as if they were its own parameters.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Link:
    ...     latency: str = "1 ms"
    >>> @grouped
    ... def ping(host: str, link: Link) -> str:
    ...     return f"{host} within {link.latency}"
    >>> inspect.signature(ping)
    <Signature (*, host: str, latency: str = '1 ms') -> str>
    >>> ping(host="a", latency="2 ms")
    'a within 2 ms'
    """
    signature = inspect.signature(command)
    types = get_type_hints(command, include_extras=True)
    groups = {name: inspect.signature(types[name]).parameters for name in types if is_dataclass(types[name])}
    parameters: list[inspect.Parameter] = []
    for name, one in signature.parameters.items():
        hints = get_type_hints(types[name], include_extras=True) if name in groups else types
        own = groups.get(name, {name: one})
        parameters += [each.replace(kind=each.KEYWORD_ONLY, annotation=hints[key]) for key, each in own.items()]

    @functools.wraps(command)
    def flat(**given: Any) -> R:
        made = {name: types[name](**{key: given.pop(key) for key in own}) for name, own in groups.items()}
        return command(**given, **made)

    shown = signature.replace(parameters=parameters, return_annotation=types.get("return"))
    flat.__signature__ = shown  # type: ignore[attr-defined]
    flat.__annotations__ = {one.name: one.annotation for one in parameters}
    return flat


def stack(name: str | None) -> list[str]:
    """Return the field of a scenario that `--stack` sets, as ``--set`` does; none if it is not given."""
    from simnet.network.stack import stack_of

    if name is None:
        return []
    try:
        stack_of(name)
    except ValueError as error:
        raise InputError(str(error), file="--stack") from None
    return [f"network.stack={name}"]


def words(text: str | None) -> list[str] | None:
    """Return the words of an option, which commas separate; None if it is not given."""
    return None if text is None else [word.strip() for word in text.split(",")]


def only(what: str, given: bool, options: Mapping[str, object]) -> None:
    """Refuse options that are given, which None, False and 0 are not, and mean nothing without something else."""
    for name, value in options.items():
        if not given and value not in (None, False, 0):
            raise InputError(f"is only for {what}", file=name)


FACT = (
    "What the logs do not say: ranks=16 of all, 'osu_*_n8.log:ranks=32' or 'n8/*:ranks=32' of those of these names, "
    "'*_n{ranks}.log' as their names tell; repeatable."
)
"""Help of the option --fact."""


def fields(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """Read values by column, given as COLUMN=VALUE."""
    found = {}
    for one in given or ():
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise InputError(f"must be COLUMN=VALUE, got {one!r}", file=option)
        found[name] = value
    return found


def quantity(text: str | None, option: str, read: Callable[[str], float]) -> float | None:
    """Return a number with a unit that an option gives, read by a function of `simnet.base.units`."""
    try:
        return None if text is None else read(text)
    except ValueError as error:
        raise InputError(str(error), file=option) from None


def counts(text: str | None, option: str) -> list[int]:
    """Read whole numbers >= 1, separated by commas."""
    counts = []
    for word in text.split(",") if text is not None else ():
        if not (word.strip().isascii() and word.strip().isdigit() and 1 <= int(word) <= 10**6):
            raise InputError(f"must be whole numbers from 1 to 1,000,000 such as 2,4,8, got {text!r}", file=option)
        counts.append(int(word))
    return list(dict.fromkeys(counts))


def density(text: str, option: str = "--density") -> float:
    """Return the density in (0, 1] that an option gives: a number, or per cent."""
    try:
        found = units.fraction(text)
    except ValueError:
        found = math.nan
    if not 0 < found <= 1:
        raise InputError(f"must be a fraction > 0 and at most 1, such as 0.01 or 1 %, got {text!r}", file=option)
    return found


def figure(path: Path | None, force: bool, option: str = "--figure") -> None:
    """Refuse a file for a figure that is neither PNG nor SVG, or that is there already: before work that takes long."""
    from simnet.base.writing import refuse_existing

    if path is not None:
        if path.suffix not in (".png", ".svg"):
            raise InputError(f"must end with .png or .svg, got {path.name!r}", file=option)
        refuse_existing([path], force)
