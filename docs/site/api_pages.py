"""Pages of the library's reference; what they say stands in the docstrings, which mkdocstrings puts in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module

from simnet import sparsifier_models

HEADS = {
    "simnet": "What a notebook starts from: the commands as functions, and the network below them. "
    "[Python API](../api.md) shows how to use it.",
    "simnet.topologies": "Builders of networks. [Networks and weather](../topologies.md) says which to take.",
    "simnet.sparsifier_models": "Schemes that decide what is sent. [Schemes](../schemes.md) is an overview, "
    "[Extend](../extending.md) shows how to add one.",
    "simnet.collectives": "Who sends how many bytes to whom, step by step.",
}
"""What the page of a package opens with."""


def page(package: str) -> str:
    """Return the page of a package: its public names, in the order of the alphabet."""
    names = [f"{package}.{name}" for name in import_module(package).__all__]
    if package == "simnet.sparsifier_models":
        names += [f"{one.__module__}.{one.__name__}" for one in sparsifier_models.SCHEMES.values()]
    return "\n".join(lines(package, names))


def lines(package: str, names: Iterable[str]) -> Iterable[str]:
    """Yield the lines of the page of a package with these names."""
    yield f"# {package}\n\n{HEADS[package]}\n"
    options = "".join(f"      {one}: false\n" for one in ("members", "show_root_heading", "show_root_toc_entry"))
    yield f"::: {package}\n    options:\n{options}"
    yield from (f"::: {name}\n" for name in names)


PAGES: dict[str, Callable[[], str]] = {package.replace(".", "-"): partial(page, package) for package in HEADS}
"""What makes the page of each package, by the page's name."""
