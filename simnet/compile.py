"""Ahead-of-time compilation of everything that simnet compiles: ``python -m simnet.compile``, once for all users.

Numba compiles a function when it first meets arguments of some types. So the loops over gradients are imported, which
compiles them, and the start of some shipped scenarios is run with the compiled event loop at hand: on links that are
constant and that change, with messages that share links, with faults, and beside other jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.network.compiled_loop import compiled_loop
from simnet.scenario import load
from simnet.scenario.runner import results_of

SCENARIOS = ("fluctuating_wan", "quickstart", "incast", "link_faults", "shared_fat_tree")
"""Shipped scenarios that together need everything that is compiled."""


class Warmed(NamedTuple):
    """The compiled functions by name, and the cache folders; none if nothing is kept."""

    functions: tuple[str, ...]
    folders: tuple[Path, ...]


def warm() -> Warmed:
    """Compile what is not in the cache."""
    if compiled_loop() is None:
        raise InputError("is missing, or told not to compile (NUMBA_DISABLE_JIT); loops are interpreted", field="numba")
    from simnet.base import compiled_cache

    compiled_cache.silence_compiling()
    import simnet.sparsifier_models.compiled_selection

    assert simnet.sparsifier_models.compiled_selection
    for name in track_progress(SCENARIOS):
        results_of(load(name, ["job.iterations=2"]).build())
    return Warmed(*compiled_cache.cache_summary())


def main() -> None:
    """Compile, and say where what was compiled is kept."""
    done = warm()
    print(f"{len(done.functions)} functions are compiled." if done.functions else "Everything is compiled already.")
    for folder in done.folders:
        print(f"Kept in {folder}")


if __name__ == "__main__":
    main()
