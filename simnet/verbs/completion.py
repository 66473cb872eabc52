"""Shell completion for the command line: names, scenario fields, policies.

A completer loads what it names when the shell asks, and no earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from simnet.base.errors import SimnetError

Completer: TypeAlias = Callable[[str, str], Iterable[str]]
"""A function that returns completions of a word, given it and the verb's first argument, which may be a scenario."""


def completion_words(name: str, incomplete: str, first: str = "") -> list[str]:
    """Return completions of a parameter's incomplete value, or of the last word of a comma-separated list.

    Examples
    --------
    >>> completion_words("schemes", "topk,okt"), completion_words("set", "job.de")[:2]
    (['topk,oktopk'], ['job.deadline.', 'job.deaths='])
    """
    before, comma, word = incomplete.rpartition(",") if name in ("schemes", "policies") else ("", "", incomplete)
    found = _COMPLETERS[name](word, first) if name in _COMPLETERS else ()
    return sorted(f"{before}{comma}{one}" for one in {*found} if one.startswith(word))


def _listed(*kinds: str) -> Completer:
    def complete(incomplete: str, first: str) -> Iterable[str]:
        from simnet.studies.listing import listing

        return [row[0] for kind in kinds for row in listing(kind)[1]]

    return complete


def _scenario(incomplete: str, first: str) -> Iterable[str]:
    from simnet.scenario.finding import shipped

    folder = incomplete[: incomplete.rfind("/") + 1]
    return [*shipped(), *(f"{folder}{one.name}" for one in Path(folder).glob("*.yaml"))]


def _fields(incomplete: str, first: str) -> Iterable[str]:
    """Return the completions of the dotted name of a scenario field, level by level."""
    from simnet.scenario.scenario import json_schema

    schema = json_schema()
    *above, _ = incomplete.split(".")
    among = _fields_below(schema, schema)
    for part in above:
        among = _fields_below(schema, among.get(part, {}))
    before = ".".join([*above, ""])
    return [f"{before}{name}{'.' if _fields_below(schema, one) else '='}" for name, one in among.items()]


def _fields_below(schema: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a JSON schema node by name, each with its node; empty for a node without fields."""
    if "$ref" in one:
        return _fields_below(schema, schema["$defs"][one["$ref"].rpartition("/")[2]])
    found = dict(one.get("properties", {}))
    for another in (*one.get("anyOf", ()), *one.get("oneOf", ()), *one.get("allOf", ())):
        found |= _fields_below(schema, another)
    return found


def _policies(incomplete: str, first: str) -> Iterable[str]:
    from simnet.scenario import load

    try:
        return list(load(first or "base").config.policies)
    except SimnetError:
        return []


def _kinds(incomplete: str, first: str) -> Iterable[str]:
    from simnet.studies.listing import LISTS
    from simnet.verbs.new import KINDS

    return [*LISTS, *KINDS]


_COMPLETERS: Mapping[str, Completer] = {
    "scenario": _scenario,
    "source": _scenario,
    "policies": _policies,
    "set": _fields,
    "grid": _fields,
    "kind": _kinds,
    "model": _listed("models"),
    "schemes": _listed("schemes"),
    "strategy": _listed("strategies"),
    "network": _listed("networks", "scenarios"),
    "device": _listed("devices"),
    "stack": _listed("stacks"),
    "gradients": _listed("traces"),
    "what": _listed("collectives"),
    "logs": _listed("measured", "networks"),
    "names": _listed("schemes", "networks", "scenarios", "traces", "models", "devices", "stacks", "collectives"),
}
