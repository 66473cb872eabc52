"""Names that modules had before: they lead to the new places.

Modules that the documentation once named elsewhere are found by their old names, with a warning.

`simnet.topologies`, `simnet.sparsifier_models`, `simnet.validate` and `simnet.scenarios` stand in folders at the top of
a checkout, to which links in `simnet/` lead. There, and only there, they have the names of these folders, too:
``topologies`` is `simnet.topologies`, the same module with the same classes. Each tells `at_top` how it is imported.
Where simnet is installed none of them is imported by such a name, which is left to others.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

MOVED = {
    "simnet.checks": "simnet.base.checks",
    "simnet.choosing": "simnet.studies.choosing",
    "simnet.devices": "simnet.costs.devices",
    "simnet.rng": "simnet.base.rng",
    "simnet.training": "simnet.job",
    "simnet.weather": "simnet.network.weather",
    "validate.calibration": "simnet.calibration",
    "validate.communicators": "simnet.measure.communicators",
    "validate.measured": "simnet.calibration.measured",
    "validate.readers": "simnet.calibration.readers",
}
"""New places of packages and modules, by their old names."""

_at_top: set[str] = set()
"""The packages that were imported by the name of their folder at the top of a checkout."""


class _Finder:
    """Finds what is asked for under an old name."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a spec of a module that has another name; None of any other."""
        top, _, rest = name.partition(".")
        if top != "simnet" and top not in _at_top:
            return None
        old = f"{top}.{rest.partition('.')[0]}"
        if old in MOVED:
            place = MOVED[old] + name.removeprefix(old)
            # The frames of the import system do not count: the warning names the line that imports.
            warnings.warn(f"{name} has moved: import {place}", DeprecationWarning, stacklevel=2)
            return ModuleSpec(name, _Loader(name, "", place), origin=place)
        return None if top == "simnet" else _spec_at_top(name)


class _Loader(SourceFileLoader):
    """Gives the module that has the new name. What ``python -m`` asks for, it reads as any loader does."""

    def __init__(self, name: str, path: str, place: str) -> None:
        super().__init__(name, path)
        self._place = place

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module under its new name."""
        module = import_module(self._place)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it has been executed."""
        module.__spec__ = self._spec
        _name_loaded(self.name, self._place)


def install() -> None:
    """Let old names be found, before the import system looks into folders."""
    sys.meta_path.insert(0, _Finder)


def at_top(name: str) -> None:
    """Let a package that is imported by the name of its folder at the top of a checkout be the part of simnet.

    Parameters
    ----------
    name : str
        How the package is imported: ``topologies``, or ``simnet.topologies``, of which nothing is to be done.
    """
    if "." in name:
        return
    _at_top.add(name)
    place = f"simnet.{name}"
    sys.modules[name] = import_module(place)
    _name_loaded(name, place)


def _name_loaded(name: str, place: str) -> None:
    """Give the modules of a package that are loaded their old names, too.

    Were `topologies.star` imported by that name, the import system would set the module as the attribute of the package
    that is the function of this name.
    """
    for other, module in list(sys.modules.items()):
        if other.startswith(f"{place}."):
            sys.modules[name + other.removeprefix(place)] = module


def _spec_at_top(name: str) -> ModuleSpec | None:
    # Loaded already where folders are looked into.
    from importlib.util import find_spec, spec_from_file_location

    place = f"simnet.{name}"
    found = find_spec(place)
    if found is None or found.origin is None:
        return None
    # The way to the file that leads through the top, as whoever looks for it by this name expects.
    simnet = sys.modules["simnet"].__path__[0]
    file = simnet.removesuffix("simnet") + found.origin.removeprefix(simnet)[1:]
    return spec_from_file_location(
        name, file, loader=_Loader(name, file, place), submodule_search_locations=found.submodule_search_locations
    )
