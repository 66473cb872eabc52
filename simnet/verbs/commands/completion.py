"""What may stand in place of an incomplete word: names of scenarios, models, topologies and the like, for the shell.

A completer loads what it names when the shell asks, and no earlier: to define one costs a command nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import typer

from simnet.base.errors import SimnetError

Completer: TypeAlias = Callable[[typer.Context, str], list[str]]
"""A function of what has been read of the command, and an incomplete word."""


def one_of(names: Callable[[], Iterable[str]], *more: str) -> Completer:
    """Return the completer of a name.

    Parameters
    ----------
    names : callable
        Returns the names that there are.
    *more : str
        Words that may stand in the same place.

    Examples
    --------
    >>> one_of(lambda: ["topk", "artopk"], "all")(None, "a")
    ['all', 'artopk']
    """

    def complete(_: typer.Context, incomplete: str) -> list[str]:
        return sorted(one for one in (*more, *names()) if one.startswith(incomplete))

    return complete


def several_of(names: Callable[[], Iterable[str]], *more: str) -> Completer:
    """Return the completer of names that commas separate.

    Parameters
    ----------
    names, *more
        As of `one_of`.

    Examples
    --------
    >>> several_of(lambda: ["topk", "artopk"])(None, "artopk,t")
    ['artopk,topk']
    """
    last = one_of(names, *more)

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        before, comma, word = incomplete.rpartition(",")
        return [f"{before}{comma}{one}" for one in last(context, word)]

    return complete


def scenario(_: typer.Context, incomplete: str) -> list[str]:
    """Complete a scenario: those that come with simnet, and YAML files.

    Parameters
    ----------
    incomplete : str
        The incomplete word.
    """
    from simnet.scenario.finding import shipped

    folder = incomplete[: incomplete.rfind("/") + 1]
    beside = (f"{folder}{one.name}" for one in Path(folder).glob("*.yaml"))
    return sorted(one for one in {*shipped(), *beside} if one.startswith(incomplete))


def field(_: typer.Context, incomplete: str) -> list[str]:
    """Complete a field of a scenario that is set, part by part of its name.

    Parameters
    ----------
    incomplete : str
        The incomplete word.

    Examples
    --------
    >>> field(None, "job.de")
    ['job.deadline.', 'job.deaths=', 'job.density=', 'job.device=', 'job.device_memory=']
    """
    from simnet.scenario.scenario import json_schema

    schema = json_schema()
    *above, _last = incomplete.split(".")
    among = _fields_below(schema, schema)
    for part in above:
        among = _fields_below(schema, among.get(part, {}))
    before = ".".join([*above, ""])
    named = {
        f"{before}{name}": f"{before}{name}{'.' if _fields_below(schema, one) else '='}" for name, one in among.items()
    }
    return sorted(word for name, word in named.items() if name.startswith(incomplete))


def _fields_below(schema: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of what a part of a JSON schema describes, each with its own part; none if it has none."""
    if "$ref" in one:
        return _fields_below(schema, schema["$defs"][one["$ref"].rpartition("/")[2]])
    found = dict(one.get("properties", {}))
    for another in (*one.get("anyOf", ()), *one.get("oneOf", ()), *one.get("allOf", ())):
        found |= _fields_below(schema, another)
    return found


def policies(context: typer.Context, incomplete: str) -> list[str]:
    """Complete policies, separated by commas, of the scenario that has been named.

    Parameters
    ----------
    context : Context
        What has been read of the command.
    incomplete : str
        The incomplete words.
    """

    def there() -> Sequence[str]:
        from simnet.scenario import load

        # Where an option has no value yet, words that are no options are left as they stand.
        named = [context.params.get("scenario"), *context.args]
        try:
            return list(load(str(next(filter(None, named), ""))).config.policies)
        except SimnetError:
            return []

    return several_of(there)(context, incomplete)


def schemes() -> list[str]:
    """Return the names of all schemes."""
    from simnet import sparsifier_models

    return sparsifier_models.names()


def models() -> list[str]:
    """Return the names of the models that are known."""
    from simnet.cost_models.costs import models

    return models.model_names()


def devices() -> list[str]:
    """Return the names of the devices that are known."""
    from simnet.cost_models.costs.devices import device_names

    return device_names()


def topologies() -> list[str]:
    """Return the names of families of topologies."""
    from simnet import topologies

    return topologies.names()


def collectives() -> list[str]:
    """Return the names of all collectives."""
    from simnet.collectives import registry

    return [one.name for one in registry.every()]


def stacks() -> list[str]:
    """Return the names of transport stacks."""
    from simnet.network.stack import STACKS

    return list(STACKS)


def traces() -> list[str]:
    """Return the names of recorded gradients."""
    from simnet import traces

    return list(traces.trace_names())


def platforms() -> list[str]:
    """Return the names of platforms that are known by their specification."""
    from simnet.cost_models.calibration.platform import platform_names

    return list(platform_names())


def measured() -> list[str]:
    """Return the names of the measurements that come with simnet."""
    from simnet.cost_models.calibration.measured import datasets

    return list(datasets())


def scenarios() -> list[str]:
    """Return the names of the scenarios that come with simnet."""
    from simnet.scenario.finding import shipped

    return list(shipped())
