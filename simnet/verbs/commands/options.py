"""Options that several commands have; how their values are read, `simnet.studies.options` says."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

import typer

from simnet.verbs.commands import completion

R = TypeVar("R")

Scenario: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="A YAML file, or the name of a scenario that comes with simnet.", autocompletion=completion.scenario
    ),
]
Fields: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field, as job.iterations=50; may be repeated.",
        autocompletion=completion.field,
    ),
]
Changes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of it; repeatable.",
        autocompletion=completion.field,
    ),
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
        metavar="NAME",
        help="How messages are sent: a name of `simnet list stacks`; of a scenario network.stack.",
        autocompletion=completion.one_of(completion.stacks),
    ),
]
Size: TypeAlias = Annotated[
    str | None,
    typer.Option("--parameters", metavar="N", help="Parameters in place of a model, as 124439808, 350M or 7B."),
]
Compute: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Forward and backward of an iteration: job.compute.mean; default: the model's on the device.",
    ),
]
Batch: TypeAlias = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="N", help="Samples of a worker in an iteration: job.batch.")
]
Device: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="What selecting costs, and how long a model computes; default: v100-torch2.6, or as the scenario.",
        autocompletion=completion.one_of(completion.devices),
    ),
]
Memory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE|device",
        help="What a worker's device holds, as 16GB, or as its profile says: job.device_memory.",
    ),
]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Replace what is there already.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]
Policies: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="Run these policies only, by their names in the scenario.",
        autocompletion=completion.policies,
    ),
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
