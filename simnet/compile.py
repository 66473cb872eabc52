"""Ahead-of-time compilation of all numba functions of simnet: ``python -m simnet.compile``, once for all users.

A function is compiled when it first meets arguments of some kinds. So the loops over gradients are called once, and the
start of some shipped scenarios is run with the compiled event loop at hand: on links that are constant and that change,
with messages that share links, with faults, and beside other jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from simnet.base.errors import InputError
from simnet.base.jit_threshold import native_copy
from simnet.base.progress import track_progress
from simnet.network.compiled_loop import compiled_loop
from simnet.scenario import load
from simnet.scenario.runner import results_of
from simnet.sparsifier_models import compiled_selection

SCENARIOS = ("fluctuating_wan", "quickstart", "incast", "link_faults", "shared_fat_tree")
"""Shipped scenarios that together need everything that is compiled."""


class Warmed(NamedTuple):
    """Names of compiled functions, and the folders of their cache (empty if nothing is cached)."""

    functions: tuple[str, ...]
    folders: tuple[Path, ...]


def warm() -> Warmed:
    """Compile the numba functions of simnet that are not cached on disk; return their names and the cache folders."""
    if compiled_loop() is None:
        raise InputError("is missing, or told not to compile (NUMBA_DISABLE_JIT); loops are interpreted", field="numba")
    from simnet.base import native

    native.silence_compiling()
    loops, bits = native_copy(compiled_selection), np.zeros(1, np.uint32)
    assert loops is not None
    loops.sample(bits, 1, bits)
    loops.count_between(bits, 0, 1)
    loops.band(bits, 0, 1, bits)
    loops.select(bits, 0, 1, 1, np.zeros(1, np.int64))
    for name in track_progress(SCENARIOS):
        results_of(load(name, ["job.iterations=2"]).build())
    return Warmed(*native.compiled_summary())


def main() -> None:
    """Compile all numba functions of simnet that are not cached on disk, and print the cache folders."""
    done = warm()
    print(f"{len(done.functions)} functions are compiled." if done.functions else "Everything is compiled already.")
    for folder in done.folders:
        print(f"Kept in {folder}")


if __name__ == "__main__":
    main()
