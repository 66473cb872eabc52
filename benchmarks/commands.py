"""Times what a newcomer meets first: the import, the help, lists, errors, a time, a ring, the quickstart, the demo.

    python benchmarks/commands.py [--repeat 5]

Prints the least CPU seconds of each command in a fresh process, what they are of those of ``import numpy``, which most
of them need, the largest memory of any one of its processes so far, and the limit that the project has set itself on a
quiet machine. With one thread of linear algebra, as the command line has by itself: others spin for some 0.1 CPU s once
numpy is loaded. The commands that simulate run once.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from simnet.base.threads import THREADS

SCENARIO = str(Path(__file__).parents[1] / "simnet" / "scenarios" / "fluctuating_wan.yaml")
RING = str(Path(__file__).parent / "scaling" / "ring_simnet.py")


def seconds(command: list[str], repeat: int, code: int) -> float:
    """Return the least CPU seconds, user and system, of a command that must end with a code."""
    taken = []
    for _ in range(repeat):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        env = os.environ | dict.fromkeys(THREADS, "1")
        # Bytecode is there, as it is once simnet is installed.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != code:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}, not {code}")
        taken.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(taken)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="how often the short commands run")
    repeat = parser.parse_args().repeat
    python, simnet = [sys.executable], [sys.executable, "-m", "simnet.cli"]
    links = ["--topology", "star", "--latency", "10 us", "--bandwidth", "10 Gbit/s"]
    ring = ["--collective", "allreduce_ring", "--workers", "8", "--size", "1 MiB"]
    with tempfile.TemporaryDirectory() as folder:
        cases: list[tuple[str, list[str], int, float | None, int]] = [
            ("import numpy", [*python, "-c", "import numpy"], repeat, None, 0),
            ("import simnet", [*python, "-c", "import simnet"], repeat, 0.1, 0),
            *(
                (f"ring on a {shape}, {ranks} ranks", [*python, RING, shape, str(ranks)], repeat, limit, 0)
                for shape in ("crossbar", "fat-tree")
                for ranks, limit in ((64, 0.25), (256, 0.3), (1024, None))
            ),
            ("simnet --help", [*simnet, "--help"], repeat, 0.25, 0),
            ("simnet nosuch", [*simnet, "nosuch"], repeat, 0.25, 2),
            ("simnet run nosuch", [*simnet, "run", "nosuch"], repeat, 0.25, 2),
            ("simnet list models", [*simnet, "list", "models"], repeat, 0.25, 0),
            ("simnet list networks", [*simnet, "list", "networks"], repeat, None, 0),
            ("simnet list", [*simnet, "list"], 1, None, 0),
            ("simnet time, 8 ranks", [*simnet, "time", *ring, *links], repeat, 0.35, 0),
            ("simnet run quickstart", [*simnet, "run", "quickstart", "--out", f"{folder}/a"], 1, 5.0, 0),
            ("simnet run fluctuating_wan", [*simnet, "run", SCENARIO, "--out", f"{folder}/b"], 1, 12.0, 0),
        ]
        print(f"{'command':31}  {'CPU s':>6}  {'of numpy':>8}  {'limit':>6}  {'peak memory so far':>18}")
        numpy = 0.0
        for name, command, times, limit, code in cases:
            least = seconds(command, times, code)
            numpy = numpy or least
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            most = "" if limit is None else f"{limit:.2f}"
            print(f"{name:31}  {least:6.2f}  {least / numpy:8.1f}  {most:>6}  {peak:14.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
