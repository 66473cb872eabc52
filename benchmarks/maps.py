"""Times a decision map of a million cells, by closed forms, against the limit of a second.

python benchmarks/maps.py
"""

from __future__ import annotations

import itertools
import time

from simnet.studies.choosing.maps import AXES, axis, draw_map
from simnet.studies.choosing.problem import problem_from_flags
from simnet.studies.choosing.request import ChooseRequest

CELLS, LIMIT = 1000, 1.0


def main() -> None:
    """Time every pair of axes, the best of three times, and print a table."""
    problem = problem_from_flags(ChooseRequest())
    print(f"{len(problem.among)} exchanges, selection included")
    for x, y in itertools.combinations(AXES, 2):
        axes = [axis(name, "2:4000" if name == "workers" else None, CELLS) for name in (x, y)]
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            made = draw_map(problem, *axes)
            took.append(time.perf_counter() - begin)
        verdict = "PASS" if min(took) < LIMIT * made.which.size / 1e6 else "FAIL"
        print(f"{verdict} {x:10}{y:10}{made.which.size:10,} cells {min(took):7.3f} s")


if __name__ == "__main__":
    main()
