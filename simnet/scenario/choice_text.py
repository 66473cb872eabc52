"""Texts ``NAME:option=value,option=value`` that choose a scheme, topology or policy, with its options."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from simnet.base.errors import join_names
from simnet.base.yaml_loader import load_yaml

# A colon or comma begins an option where a name and "=" follow, so both may stand in names of files and in values.
_OPTION = re.compile(r"[:,](?=\s*[A-Za-z_]\w*\s*=)")
_BEGINS_OPTION = re.compile(r"\s*[A-Za-z_]\w*\s*=")


def read_choice(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a text ``NAME:option=value,...``; ValueError for a repeated option.

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
    """Return the words of a choice text: the name, then each option as unparsed text.

    >>> choice_words("artopk:collective=tree,selection=var")
    ['artopk', 'collective=tree', 'selection=var']
    """
    return [word.strip() for word in _OPTION.split(text)]


def kind_fields(text: str, kinds: Collection[str], otherwise: str = "") -> dict[str, Any]:
    """Return a text ``KIND:option=value`` as the mapping ``{KIND: {option: value}}`` that scenario files contain.

    A text without a kind is read as options of the kind `otherwise`, if that is given.

    Examples
    --------
    >>> kind_fields("flexible:probe_every=200 ms", ["fixed", "flexible"]), kind_fields("fixed:AG", ["fixed"])
    ({'flexible': {'probe_every': '200 ms'}}, {'fixed': 'AG'})
    """
    name, options = read_choice(text)
    kind, colon, only = name.partition(":")
    if otherwise and kind not in kinds:
        return {otherwise: text}
    return {kind: only} if colon and kind in kinds and not options else {name: options}


def named_fields(value: object, field: str, fields: Collection[str]) -> object:
    """Return a choice as a flat mapping of its options, with the name of the choice under the key `field`.

    Examples
    --------
    >>> named_fields("artopk:collective=tree", "scheme", ["scheme"])
    {'scheme': 'artopk', 'collective': 'tree'}
    >>> named_fields({"artopk": {"collective": "tree"}}, "scheme", ["scheme"])
    {'scheme': 'artopk', 'collective': 'tree'}
    """
    if isinstance(value, dict) and len(value) == 1:
        ((name, options),) = value.items()
        long = name not in fields and (options is None or isinstance(options, dict))
        return {field: name, **(options or {})} if long else value
    if not isinstance(value, str):
        return value
    name, options = read_choice(value)
    other, colon, only = name.partition(":")
    return {other: only, **options} if colon and other in fields else {field: name, **options}


def refuse_bare_option(name: str, names: Collection[str], options: Callable[[str], Collection[str]]) -> None:
    """Raise ValueError for a text ``NAME:VALUE`` where NAME, one of `names`, takes options as ``OPTION=VALUE``.

    Examples
    --------
    >>> refuse_bare_option("diloco:10", ["diloco"], lambda name: ["period", "bits"])
    Traceback (most recent call last):
    ValueError: must be OPTION=VALUE after the colon, as diloco:period=10, got '10'; diloco has period, bits
    """
    known, colon, value = name.partition(":")
    if colon and known in names and (has := options(known)):
        # An optimiser is no single value.
        first = next(one for one in has if one not in ("inner", "outer"))
        said = f"as {known}:{first}={value}, got {value!r}; {known} has {join_names([*has])}"
        raise ValueError(f"must be OPTION=VALUE after the colon, {said}")


def split_choices(text: str | Sequence[str]) -> list[str]:
    """Return the choices of a comma-separated list; commas between options do not separate choices.

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
