"""Times selecting and exchanging on this machine, on one core, against the limits that the project has set itself.

    python benchmarks/sparsifiers.py [--quick] [--json FILE]

Limits are ratios of times taken in the same run, so that they mean the same on any machine: finding the k-th magnitude
against ``numpy.partition`` of the magnitudes; picking out the entries above a threshold, in bytes read and written per
second, against a copy. All repetitions are interleaved and the best of each counts. Then, for every scheme, the seconds
that an iteration of all workers takes (best of the third to the fifth, with error feedback) and the memory it allocates
at most, in copies of the gradients. ``--quick`` takes shorter gradients, on which the limits do not apply.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simnet.cost_models.costs import models
from simnet.sparsifier_models import create, names
from simnet.sparsifier_models.selection import above, count_above, kth_magnitude, squared_norm, top_k

LENGTH, DENSITIES = 25_600_000, (1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5)
WORKERS, DENSITY = 8, 0.01
FASTER, SHARE, SECONDS, COPIES = 5.0, 0.5, 3.0, 1 + 8 / WORKERS
# Where half of the entries are above the threshold, getting fresh memory for the result takes most of the time.
JUDGED = 0.1

IMPORT = "import time, numpy; from simnet.sparsifier_models import selection; start = time.perf_counter(); "
IMPORT += "selection.kth_magnitude(numpy.arange(1 << 20, dtype=numpy.float32), 9); print(time.perf_counter() - start)"


@dataclass
class Row:
    """A line of the result: what was measured, and the limit, if any."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        """PASS or FAIL; empty if there is no limit."""
        if self.limit is None:
            return ""
        return "PASS" if (self.value >= self.limit if self.at_least else self.value <= self.limit) else "FAIL"

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"{'>=' if self.at_least else '<='} {self.limit:g}"
        return f"{self.name:40} {self.value:9.3g} {self.unit:8} {limit:7} {self.verdict:4} {self.note}".rstrip()


def best_of(calls: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Return the shortest time of each call [s]; they take turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeat):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def loading() -> list[Row]:
    """Time importing the compiled loops in fresh processes, without and with a cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        taken = [
            float(subprocess.check_output([sys.executable, "-c", IMPORT], env=environment, text=True)) for _ in range(2)
        ]
    return [Row("compiling the loops", taken[0], "s"), Row("loading them from the cache", taken[1], "s")]


def kernels(n: int, repeat: int, judged: bool) -> list[Row]:
    """Time what selects, at every density, against a partition and a copy."""
    values = np.random.default_rng(0).standard_t(3, n).astype(np.float32)
    target = np.zeros_like(values)
    thresholds = {density: kth_magnitude(values, max(1, int(density * n))) for density in DENSITIES}
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: np.copyto(target, values),
        "squared_norm": lambda: squared_norm(values),
    }
    for density, threshold in thresholds.items():
        k = max(1, int(density * n))
        calls |= {
            f"partition {density:g}": lambda k=k: np.partition(np.abs(values), n - k)[n - k],
            f"kth_magnitude {density:g}": lambda k=k: kth_magnitude(values, k),
            f"top_k {density:g}": lambda k=k: top_k(values, k),
            f"count_above {density:g}": lambda t=threshold: count_above(values, t),
            f"above {density:g}": lambda t=threshold: above(values, t),
        }
    best = best_of(calls, repeat)
    copied = 2 * values.nbytes / best["copy"]

    rows = [Row("copy, read and written", copied / 1e9, "GB/s", note=f"{1e3 * best['copy']:.3g} ms")]
    for density in DENSITIES:
        seconds = best[f"kth_magnitude {density:g}"]
        ratio = best[f"partition {density:g}"] / seconds
        rows.append(
            Row(
                f"kth_magnitude over partition, {density:g}",
                ratio,
                "times",
                FASTER if judged else None,
                at_least=True,
                note=f"{1e3 * seconds:.3g} ms",
            )
        )
    for name, width in (("above", 8),):
        for density, threshold in thresholds.items():
            seconds = best[f"{name} {density:g}"]
            moved = values.nbytes + width * count_above(values, threshold)
            rows.append(
                Row(
                    f"{name} over copy, {density:g}",
                    moved / seconds / copied,
                    "of it",
                    SHARE if judged and density <= JUDGED else None,
                    at_least=True,
                    note=f"{1e3 * seconds:.3g} ms",
                )
            )
    rows += [Row(f"top_k, {density:g}", 1e3 * best[f"top_k {density:g}"], "ms") for density in DENSITIES]
    rows.append(Row("count_above", 1e3 * min(best[f"count_above {one:g}"] for one in DENSITIES), "ms"))
    rows.append(Row("squared_norm", 1e3 * best["squared_norm"], "ms"))
    return rows


def scheme(name: str, layers: list[tuple[str, int]], pool: NDArray[np.float32], judged: bool) -> list[Row]:
    """Time an iteration of a scheme, and measure the memory that one allocates."""
    model = create(name, WORKERS, pool.shape[1], DENSITY, layers=layers)
    taken = []
    for iteration in range(5):
        gradients = pool[iteration % 3 :][:WORKERS]
        start = time.perf_counter()
        model.exchange(gradients)
        taken.append(time.perf_counter() - start)
    tracemalloc.start()
    model.exchange(pool[:WORKERS])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return [
        Row(f"{name}: iteration", min(taken[2:]), "s", SECONDS if judged else None),
        Row(f"{name}: memory", peak / gradients.nbytes, "copies", COPIES if judged else None),
    ]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter gradients, fewer repetitions, no limits")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    parser.add_argument("--schemes", nargs="*", metavar="NAME", help="only these schemes; none: the kernels alone")
    arguments = parser.parse_args()
    quick = arguments.quick
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    rows: list[Row] = []

    def report(more: list[Row]) -> None:
        rows.extend(more)
        for row in more:
            print(row, flush=True)

    print(f"numpy {np.__version__}, one core of {platform.machine()}")
    report(loading())
    length = LENGTH // 16 if quick else LENGTH
    print(f"\nA gradient of {length} entries")
    report(kernels(length, 3 if quick else 9, not quick))

    layers = [(layer.name, layer.size) for layer in models.load_model("resnet18").layers]
    if quick:
        layers = [(layer, max(1, size // 16)) for layer, size in layers]
    n = sum(size for _, size in layers)
    print(f"\n{WORKERS} workers with gradients of {n} entries in {len(layers)} layers, density {DENSITY:g}")
    rng = np.random.default_rng(0)
    pool = np.empty((WORKERS + 2, n), dtype=np.float32)
    for row in pool:
        row[:] = rng.standard_t(3, n)
    for name in names() if arguments.schemes is None else arguments.schemes:
        try:
            report(scheme(name, layers, pool, not quick))
        except Exception as error:
            report([Row(f"{name}: iteration", float("nan"), "s", SECONDS, note=f"{type(error).__name__}: {error}")])

    failed = [row.name for row in rows if row.verdict == "FAIL"]
    print(f"\n{len(failed)} limits missed{': ' if failed else ''}{', '.join(failed)}")
    if arguments.json:
        # JSON has no NaN.
        results = [
            {**asdict(row), "value": row.value if math.isfinite(row.value) else None, "verdict": row.verdict}
            for row in rows
        ]
        arguments.json.write_text(json.dumps({"numpy": np.__version__, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
