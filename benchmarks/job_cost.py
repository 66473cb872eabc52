"""Measure what simulating a job costs: processor seconds by workers, entries, iterations and policies.

    python benchmarks/job_cost.py

Each row is the scenario `quickstart` with one field changed, in one process, the better of two runs. The first run,
which loads or compiles loops, does not count. `docs/performance.md` has the figures.
"""

from __future__ import annotations

import os
import time
from unittest import mock

from simnet.scenario import load, runner

BASE = ("job.iterations=20",)
POLICIES = (
    "AG: {fixed: AG}",
    "ART-ring: {fixed: ART-ring}",
    "flexible: {flexible: {probe_every: 200 ms}}",
    "oracle: oracle",
)
FIELDS = {
    "workers": [f"workers={count}" for count in (4, 16, 64)],
    "entries": [f"job.scale={scale}" for scale in (1000, 100, 10)],
    "density": ["job.density=0.1%", "job.density=1%", "job.density=10%"],
    "iterations": [f"job.iterations={count}" for count in (20, 80, 320)],
    "policies": ["policies={" + ", ".join(POLICIES[:count]) + "}" for count in range(1, 5)],
}


def seconds(*changes: str) -> float:
    """Return the processor seconds of the job with these changes; the better of two runs."""
    found = []
    for _ in range(2):
        built = load("quickstart", [*BASE, *changes]).build()
        started = time.process_time()
        runner.results_of(built)
        found.append(time.process_time() - started)
    return min(found)


def main() -> None:
    """Print a row for each value of each field."""
    with mock.patch.object(os, "cpu_count", return_value=1):
        seconds()
        for name, values in FIELDS.items():
            for one in values:
                print(f"{name:12}{one[:24]:26}{seconds(one):8.2f} CPU s", flush=True)


if __name__ == "__main__":
    main()
