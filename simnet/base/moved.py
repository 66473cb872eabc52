"""Modules that the documentation once named elsewhere: their old names lead to the new places, with a warning."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.machinery import ModuleSpec
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


class _Moved:
    """Finds what is asked for under an old name, and gives the module that has the new one."""

    def __init__(self, place: str) -> None:
        self._place = place

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a spec of a module that has moved; None of any other."""
        old = ".".join(name.split(".")[:2])
        if old not in MOVED:
            return None
        place = MOVED[old] + name.removeprefix(old)
        # The frames of the import system do not count: the warning names the line that imports.
        warnings.warn(f"{name} has moved: import {place}", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, _Moved(place), origin=place)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module under its new name."""
        module = import_module(self._place)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it has been executed."""
        module.__spec__ = self._spec


def install() -> None:
    """Let old names be found, before the import system looks into folders."""
    sys.meta_path.insert(0, _Moved)
