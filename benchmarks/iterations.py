"""What an iteration of a job costs: CPU time and memory of `simnet run quickstart` without a report at two lengths.

    python benchmarks/iterations.py [--lengths 1000 5000]

What both lengths need, imports and loops that are compiled or loaded, drops out of the difference between them. Prints
CPU seconds and the largest memory of each length, what an iteration adds to both, and the CPU seconds that 100,000
iterations come to; and these in multiples of ``import numpy`` of the same run, which a busy machine slows down alike.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from simnet.base.threads import THREADS

# The policies of the scenario, of which one exchanges twice in each iteration.
POLICIES = 4
LONG = 100_000


def cost(command: list[str]) -> tuple[float, float]:
    """Return the CPU seconds and the largest memory [byte] of a command."""
    env = os.environ | dict.fromkeys(THREADS, "1")
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    # Linux counts in KiB, macOS in bytes.
    return used.ru_utime + used.ru_stime, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs=2, default=(1000, 5000), help="iterations of the two runs")
    lengths = parser.parse_args().lengths
    simnet = [
        sys.executable,
        "-m",
        "simnet.cli",
        "run",
        "quickstart",
        "--set",
        "output.report=false",
        "--quiet",
        "--jobs",
        "1",
    ]
    numpy = min(cost([sys.executable, "-c", "import numpy"])[0] for _ in range(5))
    print(f"import numpy: {numpy:.3f} CPU s")
    seconds, memory = [], []
    for iterations in lengths:
        with tempfile.TemporaryDirectory() as folder:
            took, held = cost([*simnet, "--set", f"job.iterations={iterations}", "--out", folder])
        seconds.append(took)
        memory.append(held)
        print(f"{iterations:9,} iterations: {took:7.1f} CPU s, {held / 2**20:6.0f} MiB at most", flush=True)
    more = lengths[1] - lengths[0]
    each, bytes_each = (seconds[1] - seconds[0]) / more, (memory[1] - memory[0]) / more
    print(f"an iteration: {1e3 * each:.2f} ms under {POLICIES} policies, {1e3 * each / POLICIES:.2f} ms under one")
    print(f"              {bytes_each:,.0f} bytes of memory under {POLICIES} policies")
    long = seconds[0] + (LONG - lengths[0]) * each
    print(f"{LONG:9,} iterations: {long:7.0f} CPU s, {long / numpy:,.0f} times import numpy, by these")


if __name__ == "__main__":
    main()
