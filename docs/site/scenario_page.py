"""The page of the scenario's fields, made of the JSON Schema that `simnet show schema` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cells import cell
from simnet.scenario import json_schema
from simnet.scenario.marked_fields import MARKED_FIELDS

Node = Mapping[str, Any]

HEAD = """# Fields of a scenario

Every field that a scenario file may have, from `simnet show schema`. A value with a unit is written with it,
as `10 ms`, `25 Gbit/s`, `64 MiB`, `5 %`. [Scenario keys](../scenario-keys.md) explains them.

A choice with options is text, `NAME:option=value,option=value`, or a mapping: `AG: topk:allgather=ring` is
`AG: {topk: {allgather: ring}}`, and where the name has a field of its own `AG: {scheme: topk, allgather: ring}`.
"""


MARKED = """`simnet.load` takes these as keywords, on every scenario: `load("quickstart", density="1%")`. A number is
one of SI, a file starts where the user stands. A choice is written `NAME:option=value,option=value`.
`bandwidth` and `latency` are those of a worker's link, or of a node's: of `multi_gpu_nodes` its
`nic_bandwidth` and `nic_latency`. A `network` takes the place of topology and weather, and keeps a worker's
link and the stack; `schemes` takes the place of exchanges and policies, `sharding` of both and of what
means nothing beside it.
"""

UNITS = {"10 ms": " s", "64 MiB": " B", "25 Gbit/s": " B/s"}
"""The unit of defaults, which the schema has as numbers, by the example that it gives of a field."""


def page() -> str:
    """Return the page: a section for each part of a scenario, with its fields, in the order in which they are met."""
    root = json_schema()
    names = list(dict.fromkeys(_met(root, root["$defs"])))
    sections = [("The file", root), *((_title(name), root["$defs"][name]) for name in names)]
    return "\n".join([HEAD, *_marked(), *(line for title, node in sections for line in _section(title, node))]) + "\n"


def _marked() -> Iterator[str]:
    """Yield the table of the fields that are keywords of `simnet.load`."""
    yield "\n## Marked fields\n"
    yield MARKED
    yield "| name | field | value | |"
    yield "|---|---|---|---|"
    for one in MARKED_FIELDS:
        place = f"`{one.key}`" if one.key else "by the scenario"
        metavar = "`" + one.metavar.replace("|", "` or `") + "`"
        yield f"| `{one.name}` | {place} | {metavar} | {cell(one.help)} |"


def _met(node: Any, parts: Mapping[str, Node], above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of the parts that a part refers to, each before those that it refers to itself."""
    for name in re.findall(r'"#/\$defs/(\w+)"', json.dumps({key: node[key] for key in node if key != "$defs"})):
        if name not in above:
            yield name
            yield from _met(parts[name], parts, (*above, name))


def _title(name: str) -> str:
    """Return the name of a part as it is said; what a generic one is of stands in brackets.

    Examples
    --------
    >>> _title("FatTree"), _title("Steps_Annotated_float__Le__NotTiny__Notation__")
    ('Fat tree', 'Steps (of a bandwidth)')
    """
    name, _, of = name.partition("_Annotated_")
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()
    return words + (f" (of a {'bandwidth' if 'NotTiny' in of else 'latency'})" if of else "")


def _anchor(title: str) -> str:
    return re.sub(r"[^\w]+", "-", title.lower()).strip("-")


def _section(title: str, node: Node) -> Iterator[str]:
    yield f"\n## {title}\n"
    if node.get("description"):
        yield f"{cell(node['description'])}\n"
    if node.get("maxProperties") == 1:
        yield "Exactly one of these is given.\n"
    if "anyOf" in node:
        yield from _schemes([one for one in node["anyOf"] if "properties" in one])
        return
    yield "| Field | Takes | Default | Meaning |\n|---|---|---|---|"
    for name, one in node.get("properties", {}).items():
        default = "required" if name in node.get("required", ()) else _default(one)
        yield f"| `{name}` | {_takes(one)} | {default} | {cell(one.get('description') or '')} |"


def _schemes(choices: list[Node]) -> Iterator[str]:
    """Yield the options of the schemes: those that all have, and of each its own."""
    named = {one["properties"]["scheme"]["const"]: one for one in choices if "const" in one["properties"]["scheme"]}
    common = set.intersection(*(set(one["properties"]) for one in named.values()))
    first = next(iter(named.values()))
    prefixed = {
        scheme["pattern"].removeprefix("^") + "NAME": one
        for one in choices
        if (scheme := one["properties"]["scheme"]).get("pattern", "").startswith("^")
    }
    yield "| Scheme | Field | Takes | Default |\n|---|---|---|---|"
    yield "| any | `scheme` | the name of the scheme, or a class in a file as `./my_scheme.py:Rotating` | required |"
    for scheme, one in {"any": first, **named, **prefixed}.items():
        for name, field in one["properties"].items():
            if name != "scheme" and (name in common) == (scheme == "any"):
                yield f"| `{scheme}` | `{name}` | {_takes(field)} | {_default(field)} |".replace("`any`", "any")


def _default(node: Node) -> str:
    value = node.get("default")
    if isinstance(value, float) and "examples" in node:
        return f"`{value:.12g}{UNITS.get(node['examples'][0], '')}`"
    return "" if value is None else f"`{json.dumps(value)}`"


def _takes(node: Node) -> str:
    """Return what a field may be, in words."""
    if "$ref" in node:
        title = _title(node["$ref"].rpartition("/")[2])
        return f"[{title}](#{_anchor(title)})"
    if "examples" in node:
        return f"as `{node['examples'][0]}`"
    if choices := node.get("anyOf") or node.get("oneOf"):
        return ", or ".join(dict.fromkeys(_takes(one) for one in choices if one.get("type") != "null"))
    if "enum" in node:
        return ", ".join(f"`{one}`" for one in node["enum"])
    if "const" in node:
        return f"`{node['const']}`"
    kind = node.get("type")
    if kind == "array":
        return f"a list: {_takes(node['items'])}"
    if kind == "object":
        more = node.get("additionalProperties")
        return f"names, each with {_takes(more)}" if isinstance(more, Mapping) else "a mapping"
    words = {"string": "text", "boolean": "`true` or `false`", "integer": "whole number", "number": "number"}
    return words.get(str(kind), "anything") + _bounds(node)


def _bounds(node: Node) -> str:
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    found = [f"{sign} {node[key]:,.12g}" for key, sign in signs.items() if key in node]
    return " " + ", ".join(found) if found else ""
