"""YAML files from strangers that hold data alone: no tags, no anchors, no deep nesting."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode

from simnet.base.errors import InputError

MAX_DEPTH = 20
"""The deepest nesting of brackets; deeper ones cost the parser a time that grows with its square."""


def plain_yaml(text: str, file: str, what: str) -> dict[Any, Any]:
    """Return the fields of a YAML text, which must be a mapping.

    Parameters
    ----------
    text : str
        The text.
    file : str
        What messages call the file.
    what : str
        What it should be, such as ``a platform``.

    Raises
    ------
    InputError
        If it is no YAML, is nested deeper than `MAX_DEPTH`, has tags or anchors, or has no fields.

    Examples
    --------
    >>> plain_yaml("a: [1, 2]", "some.yaml", "a list")
    {'a': [1, 2]}
    >>> plain_yaml("a: &b 1", "some.yaml", "a list")
    Traceback (most recent call last):
    simnet.base.errors.InputError: some.yaml: has anchors or tags, which a list has not
    """
    if _depth(text) > MAX_DEPTH:
        raise InputError(f"is nested deeper than {what} may be", file=file)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
                raise InputError(f"has anchors or tags, which {what} has not", file=file)
        loaded = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise InputError(f"is no YAML: {error.problem or error.context}", file=file, line=line) from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"is no YAML: {str(error).splitlines()[0]}", file=file) from None
    if not isinstance(loaded, dict):
        raise InputError(f"is not {what}: it has no fields", file=file)
    return loaded


def line_of(text: str, loc: Sequence[str | int]) -> int:
    r"""Return the line, from 1, of a field of a YAML text; of the last one on its way that is there.

    Parameters
    ----------
    text : str
        The text, which `plain_yaml` takes.
    loc : sequence of str or int
        Names of fields, and numbers of entries of lists, from the top on.

    Examples
    --------
    >>> text = "a: 1\nb:\n  - {c: 2}\n  - c: 3\n"
    >>> line_of(text, ["b", 1, "c"]), line_of(text, ["b", 0, "d"]), line_of(text, ["d"])
    (4, 3, 1)
    """
    node = YAML(typ="safe", pure=True).compose(io.StringIO(text))
    line = node.start_mark.line
    for step in loc:
        if isinstance(node, MappingNode):
            found = [pair for pair in node.value if pair[0].value == str(step)]
        else:
            found = [(one, one) for one in node.value[step : step + 1]] if isinstance(step, int) else []
        if not found:
            break
        line, node = found[-1][0].start_mark.line, found[-1][1]
    return int(line) + 1


def _depth(text: str) -> int:
    """Return how deep brackets are nested, before a parser spends time on them."""
    depth = deepest = 0
    for one in re.findall(r"[\[\]{}]", text):
        depth += 1 if one in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
