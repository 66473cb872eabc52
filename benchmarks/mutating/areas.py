"""Areas of the code that are mutated, and the share of mutants that tests have to see."""

from __future__ import annotations

from pathlib import Path

LEAST_SCORE = 0.85
"""Least share of the mutants of an area that tests see."""

AREAS = {
    "flows": ("simnet/network/event_loop/sharing.py", "simnet/network/sharing.py"),
    "network": ("simnet/network/**/*.py",),
    "costs": ("simnet/cost_models/costs/*.py",),
    "schedules": ("simnet/schedule.py", "simnet/collectives/*.py"),
    "selection": ("simnet/sparsifier_models/selection.py",),
    "schemes": ("simnet/sparsifier_models/*.py",),
    "calibration": ("simnet/cost_models/calibration/**/*.py",),
    "policies": ("simnet/policies/*.py",),
    "choose": ("simnet/studies/choosing/*.py",),
}
"""Patterns of the files of each area, by name; a file is of the first area that matches it."""

INTERPRETED = frozenset(("flows", "network"))
"""Areas whose tests run with numba switched off: a mutant of the event loop takes 20 s to compile.

Lines that no test reaches without numba, as those of tables that compiled code reads, are tried with it.
"""


def files(root: Path) -> dict[str, list[str]]:
    """Return the files of each area.

    What is compiled only, ``compiled_*.py``, is in none: no line of it is seen to run, and tests hold its results to
    those of the interpreted twin, which is.
    """
    taken: set[str] = set()
    found = {}
    for name, patterns in AREAS.items():
        paths = {path.relative_to(root).as_posix() for pattern in patterns for path in root.glob(pattern)}
        found[name] = sorted(path for path in paths - taken if "/compiled_" not in path)
        taken |= paths
    return found
