"""Choices as text: ``NAME:option=value,option=value``, the same on the command line and in a scenario."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from simnet.base.yaml_loader import load_yaml

# A colon or comma begins an option where a name and "=" follow, so both may stand in names of files and in values.
_OPTION = re.compile(r"[:,](?=\s*[A-Za-z_]\w*\s*=)")
_BEGINS_OPTION = re.compile(r"\s*[A-Za-z_]\w*\s*=")


def read_choice(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a choice and its options, whose values are YAML. ValueError: an option stands there twice.

    Examples
    --------
    >>> read_choice("fsdp2:replicas=2,param_dtype=float32")
    ('fsdp2', {'replicas': 2, 'param_dtype': 'float32'})
    >>> read_choice("torus:dims=[4, 4],latency=1 us"), read_choice("./my_scheme.py:Rotating")
    (('torus', {'dims': [4, 4], 'latency': '1 us'}), ('./my_scheme.py:Rotating', {}))
    """
    name, *words = choice_words(text)
    options: dict[str, Any] = {}
    for word in words:
        key, _, value = (part.strip() for part in word.partition("="))
        if key in options:
            raise ValueError(f"gives the option {key} twice")
        options[key] = load_yaml(value, text).value
    return name, options


def choice_words(text: str) -> list[str]:
    """Return the name of a choice, and its options as they are written.

    >>> choice_words("artopk:collective=tree,selection=var")
    ['artopk', 'collective=tree', 'selection=var']
    """
    return [word.strip() for word in _OPTION.split(text)]


def split_choices(text: str | Sequence[str]) -> list[str]:
    """Return the choices of a list with commas between; options keep theirs.

    Examples
    --------
    >>> split_choices("topk,artopk:collective=tree,selection=var,dense")
    ['topk', 'artopk:collective=tree,selection=var', 'dense']
    """
    found: list[str] = []
    for piece in text.split(",") if isinstance(text, str) else text:
        if found and isinstance(text, str) and _BEGINS_OPTION.match(piece):
            found[-1] += f",{piece}"
        else:
            found.append(piece.strip())
    return found
