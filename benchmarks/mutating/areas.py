"""What is mutated, and which share of the mutants of each area tests have to see."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Area(NamedTuple):
    """Files that are judged together.

    Parameters
    ----------
    patterns : tuple of str
        Of paths in the repository; a file is of the first area that has it.
    target : float
        Least share of mutants that tests see.
    """

    patterns: tuple[str, ...]
    target: float


AREAS = {
    "flows": Area(("simnet/network/event_loop/sharing.py", "simnet/network/sharing.py"), 0.90),
    "network": Area(("simnet/network/**/*.py",), 0.90),
    "costs": Area(("simnet/costs/*.py",), 0.90),
    "collectives": Area(("simnet/collectives/*.py",), 0.90),
    "selection": Area(("sparsifier_models/selection.py",), 0.90),
    "schemes": Area(("sparsifier_models/*.py",), 0.85),
    "calibration": Area(("simnet/calibration/**/*.py",), 0.90),
    "policies": Area(("simnet/policies/*.py",), 0.85),
}
"""Areas by name."""

INTERPRETED = frozenset(("flows", "network"))
"""Areas whose tests run with numba switched off: a mutant of the event loop takes 20 s to compile."""


def files(root: Path) -> dict[str, list[str]]:
    """Return the files of each area.

    What is compiled only, ``compiled_*.py``, is in none: no line of it is seen to run, and tests hold its results to
    those of the interpreted twin, which is.
    """
    taken: set[str] = set()
    found = {}
    for name, area in AREAS.items():
        paths = {path.relative_to(root).as_posix() for pattern in area.patterns for path in root.glob(pattern)}
        found[name] = sorted(path for path in paths - taken if "/compiled_" not in path)
        taken |= paths
    return found
