"""Times a decision map of a million cells, by closed forms, against the limit of a second.

python benchmarks/maps.py
"""

from __future__ import annotations

import itertools
import time

import numpy as np

from simnet.scenario import load
from simnet.studies.choosing.closed_forms import closed_forms
from simnet.studies.choosing.grids import map_of
from simnet.studies.choosing.whole_job import candidates_of, decide_job

CELLS, LIMIT = 1000, 1.0
RANGES = {"latency": (1e-5, 0.2), "bandwidth": (1.25e6, 5e10), "density": (1e-4, 0.3), "workers": (2, 4000)}


def main() -> None:
    """Time every pair of axes, the best of three times, and print a table."""
    loaded = load("base", ["job.overlap=none"])
    run = loaded.build()
    forms = closed_forms(loaded, run, decide_job(run, candidates_of(loaded), policies=False))
    assert forms is not None
    print(f"{len(forms.among)} exchanges, selection included")
    for x, y in itertools.combinations(RANGES, 2):
        values = {name: np.geomspace(*RANGES[name], CELLS) for name in (x, y)}
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            fastest = map_of(forms, values).seconds.argmin(axis=0)
            took.append(time.perf_counter() - begin)
        verdict = "PASS" if min(took) < LIMIT * fastest.size / 1e6 else "FAIL"
        print(f"{verdict} {x:10}{y:10}{fastest.size:10,} cells {min(took):7.3f} s")


if __name__ == "__main__":
    main()
