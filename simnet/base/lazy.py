"""Lazy imports: a package's modules are imported only when a name from them is first used."""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Collection[str]]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which imports a name when it is first used; `homes` lists names by module."""

    def find(name: str) -> Any:
        for home, names in homes.items():
            if name in names:
                return getattr(import_module(f"{package}.{home}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
