"""What the programs that are compared have in common: the exchange, and what they print of it."""

from __future__ import annotations

import json
from pathlib import Path

LATENCY, BANDWIDTH, NBYTES = 10e-6, 1.25e9, 100 * 2**20
"""Of a message over the crossbar and of each link of the fat-tree [s], [byte/s]; and of the vector [byte]."""


def report(ranks: int, finish: float) -> None:
    """Print, as JSON, how many messages the ring had, when it was done [s], and its peak memory [byte]."""
    print(json.dumps({"messages": 2 * ranks * (ranks - 1), "finish": finish, "memory": peak_memory()}))


def peak_memory(reset: bool = False) -> float | None:
    """Return the most memory of this process so far [byte], or since a reset; None where the system does not tell."""
    # What `getrusage` tells includes the process that started this one.
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return 1024.0 * float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
