"""Times what a newcomer meets first: the import, the help, the quickstart, the demo.

    python benchmarks/commands.py [--repeat 5]

Prints the median wall time of each command in a fresh process, the largest memory of any one of its processes, and the
limit that the project has set itself. The commands that simulate run once.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCENARIO = str(Path(__file__).parents[1] / "scenarios" / "fluctuating_wan.yaml")


def seconds(command: list[str], repeat: int) -> float:
    """Return the median wall time of a command that must succeed [s]."""
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="how often the short commands run")
    repeat = parser.parse_args().repeat
    simnet = [sys.executable, "-m", "simnet.cli"]
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            ("import simnet", [sys.executable, "-c", "import simnet"], repeat, 0.3),
            ("simnet --help", [*simnet, "--help"], repeat, 0.6),
            ("simnet run quickstart", [*simnet, "run", "quickstart", "--out", f"{folder}/a"], 1, 5.0),
            ("simnet run fluctuating_wan", [*simnet, "run", SCENARIO, "--out", f"{folder}/b"], 1, 60.0),
        ]
        print(f"{'command':28}  {'median':>8}  {'limit':>6}  {'peak memory so far':>18}")
        for name, command, times, limit in cases:
            median = seconds(command, times)
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            print(f"{name:28}  {median:6.2f} s  {limit:4.1f} s  {peak:14.0f} MiB")


if __name__ == "__main__":
    main()
