"""Measure the device profile of this machine's processor: what the kernels of the sparsifiers cost.

Run ``python benchmarks/device_cpu.py > my-cpu.yaml``. The launch time of a method is its time on a gradient of ten
entries. The bytes per entry are those with the least maximal relative error on gradients of ten thousand to ten million
entries; that error is stated with them. It is large where short arrays stay in a cache and long ones do not. Each time
is the best of several repetitions.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sparsifier_models.selection import above, squared_norm, top_k

DENSITY = 0.1
SHORTEST = 10
LENGTHS = (10_000, 100_000, 1_000_000, 10_000_000)
METHODS = ("topk", "topk_layer", "scan", "norm", "gather", "scatter")
CALLS = {
    "topk": "exact top-k as simnet selects it, compiled from 131072 entries on",
    "scan": "comparison of the magnitudes and compaction, compiled from 131072 entries on",
    "norm": "squares summed in double precision, block by block",
    "gather": "numpy take at ascending indices",
    "scatter": "numpy add at ascending indices",
}


def best_seconds(call: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of `call` among the repetitions that fit into `seconds`, three at least."""
    best, repetitions, stop = float("inf"), 0, time.perf_counter() + seconds
    while repetitions < 3 or time.perf_counter() < stop:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        repetitions += 1
    return best


def kernels(n: int, rng: np.random.Generator) -> dict[str, tuple[int, Callable[[], object]]]:
    """Return, for each method, the entries it goes through and the call to time, on a gradient of `n` entries."""
    values = rng.standard_t(3, n).astype(np.float32)
    k = round(DENSITY * n)
    chosen = top_k(values, k)
    sent, total = values[chosen], np.zeros(n, dtype=np.float32)
    threshold = np.abs(sent).min()

    def scatter() -> None:
        total[chosen] += sent

    return {
        "topk": (n, lambda: top_k(values, k)),
        "scan": (n, lambda: above(values, threshold, strict=False)),
        "norm": (n, lambda: squared_norm(values)),
        "gather": (k, lambda: values[chosen]),
        "scatter": (k, scatter),
    }


def fitted(launch: float, entries: list[int], seconds: list[float]) -> tuple[float, float]:
    """Return the seconds per entry that fit best beside the launch time, and the largest relative error of the fit."""
    x, y = np.array(entries, dtype=np.float64), np.array(seconds)
    # The error of a slope s is max |a + s b|, convex in s: the best one is where two of these lines meet, or at 0.
    a, b = launch / y - 1, x / y
    meet = [-(a[i] + a[j]) / (b[i] + b[j]) for i in range(len(y)) for j in range(len(y))]
    errors = {max(0.0, float(s)): float(np.abs(a + max(0.0, s) * b).max()) for s in meet}
    best = min(errors, key=errors.__getitem__)
    return best, errors[best]


def copy_bandwidth(seconds: float) -> float:
    """Return bytes read and written per second by a copy of 256 MiB."""
    source = np.ones(2**26, dtype=np.float32)
    target = np.zeros_like(source)
    return 2 * source.nbytes / best_seconds(lambda: np.copyto(target, source), seconds)


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        fields = dict(line.split("\t:", 1) if "\t:" in line else line.split(":", 1) for line in lines if ":" in line)
        fields = {name.strip(): value.strip() for name, value in fields.items()}
        return f"{fields['model name']}, family {fields['cpu family']} model {fields['model']}"
    except (OSError, KeyError):
        return platform.processor() or platform.machine()


def main() -> None:
    """Print the profile as YAML."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="cpu", help="name of the profile")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each method and length")
    arguments = parser.parse_args()

    bandwidth = copy_bandwidth(arguments.seconds)
    rng = np.random.default_rng(0)
    entries: dict[str, list[int]] = {}
    seconds: dict[str, list[float]] = {}
    for n in (SHORTEST, *LENGTHS):
        for method, (count, call) in kernels(n, rng).items():
            entries.setdefault(method, []).append(count)
            seconds.setdefault(method, []).append(best_seconds(call, arguments.seconds))

    lines = [
        f"name: {arguments.name}",
        f"device: {processor()}",
        "source: >-",
        f"  benchmarks/device_cpu.py on {datetime.datetime.now(tz=datetime.UTC).date()}, numpy {np.__version__}, on",
        f"  gradients of {LENGTHS[0]} to {LENGTHS[-1]} entries at density {DENSITY:g}; memory bandwidth by a copy of",
        "  256 MiB, bytes read and written.",
        f"memory_bandwidth: {bandwidth:.3e}",
        "methods:",
    ]
    for method in METHODS:
        measured = "topk" if method == "topk_layer" else method
        (launch, *longer), counts = seconds[measured], entries[measured][1:]
        slope, error = fitted(launch, counts, longer)
        lines += [
            f"  {method}:",
            f"    launch: {launch:.3e}",
            f"    bytes_per_entry: {slope * bandwidth:.4g}",
            f"    source: {CALLS[measured]}, {counts[0]} to {counts[-1]} entries. Within {100 * error:.0f} %.",
        ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
