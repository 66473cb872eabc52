"""Exchanges by name: a scheme, or one with options, as ``artopk:collective=tree``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simnet import sparsifier_models
from simnet.base import plugins
from simnet.base.errors import InputError, suggest_names
from simnet.policies import Candidate
from simnet.scenario.choice_text import choice_words, read_choice, split_choices
from simnet.scenario.resolve import own_options
from simnet.sparsifier_models.options import option_values

ALL = "all"
"""In place of names of schemes: every scheme there is."""


def named_exchanges(
    names: str | Sequence[str], option: str | None = "--schemes", folder: Path | None = None
) -> tuple[Candidate, ...]:
    """Return the named exchanges, once each, with their names as labels.

    A name is a scheme, as ``topk``; one with options, as ``artopk:collective=tree:selection=var``; a class in a file,
    as ``./my_scheme.py:Rotating``; or `ALL`. InputError: unknown scheme, option or value, or two of one name.

    Examples
    --------
    >>> named_exchanges(["dense", "artopk:collective=tree:selection=var"])[1].options
    {'collective': 'tree', 'selection': 'var'}
    >>> named_exchanges(["artopk:colective=tree"])
    Traceback (most recent call last):
    simnet.base.errors.InputError: --schemes: artopk:colective=tree: there is no option 'colective' of artopk; did you mean 'collective'? Allowed: allgather, collective, compat, error_feedback, index_bytes, indices, monitored, selection, value_bytes, values, wire
    """  # noqa: E501
    found: dict[str, Candidate] = {}
    wanted = dict.fromkeys(split_choices(names))
    for name in sparsifier_models.names() if ALL in wanted else wanted:
        one = _read_exchange(name, option, folder or Path())
        if one.label in found:
            raise InputError(f"names {one.label!r} twice, by {found[one.label].scheme} and {one.scheme}", file=option)
        found[one.label] = one
    return tuple(found.values())


def _read_exchange(name: str, option: str | None, folder: Path) -> Candidate:
    try:
        scheme, options = read_choice(name)
    except ValueError as error:
        raise InputError(str(error), file=option, field=name) from None
    before, colon, after = scheme.partition(":")
    if colon and before in sparsifier_models.names():
        has = ", ".join(own_options(before))
        message = f"must be OPTION=VALUE after the colon, got {after!r}; {before} has {has}"
        raise InputError(message, file=option, field=name)
    placed = plugins.absolute_name(scheme, folder)
    try:
        found = sparsifier_models.scheme(placed)
    except ValueError as error:
        raise InputError(str(error), file=option) from None
    label = ":".join([found.name if plugins.names_file(scheme) else scheme, *choice_words(name)[1:]])
    known = own_options(placed)
    for key in options:
        if key not in known:
            raise InputError(
                f"there is no option {key!r} of {scheme}; {suggest_names(key, known)}", file=option, field=name
            )
    try:
        option_values(found.option_type, options)
    except ValueError as error:
        raise InputError(str(error), file=option, field=name) from None
    return Candidate(label, placed, options)
