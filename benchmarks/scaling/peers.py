"""The same exchange in other simulators, side by side: a ring all-reduce of 100 MiB, whole programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scaling.measuring import Cost, whole

FOLDER = Path(__file__).parent
MISSING = "the Python package simgrid is not installed"


@dataclass(frozen=True)
class Peer:
    """A program that runs the exchange, and what is special about how.

    Parameters
    ----------
    name, topology : str
    ranks : int
    command : tuple of str
        The program and its arguments, after the interpreter.
    """

    name: str
    topology: str
    ranks: int
    command: tuple[str, ...]

    def __str__(self) -> str:
        return f"peer {self.name} {self.topology} {self.ranks}"


def peers(ranks: int, fewer: int) -> list[Peer]:
    """Return the programs to compare; those that take long between `fewer` ranks, too."""
    found = []
    for topology in ("crossbar", "fat-tree"):
        for count in (fewer, ranks):
            given = (topology, str(count))
            found += [
                Peer("simnet", topology, count, ("ring_simnet.py", *given)),
                Peer("simnet, jitter", topology, count, ("ring_simnet.py", *given, "jitter")),
                Peer("SimGrid, one actor", topology, count, ("ring_simgrid.py", *given, "rounds")),
                Peer("SimGrid, actor per rank", topology, count, ("ring_simgrid.py", *given, "actors")),
            ]
            if topology == "crossbar":
                found.append(Peer("SimPy, naive", topology, count, ("ring_simpy.py", str(count))))
    return found


def run(peer: Peer, seconds: float, simgrid_python: str, before: Mapping[Peer, Cost]) -> Cost:
    """Measure a program from its start to its end.

    Parameters
    ----------
    peer : Peer
    seconds : float
        How long it may take.
    simgrid_python : str
        Interpreter in which SimGrid is installed.
    before : mapping of Peer to Cost
        What was measured already; it tells what would take too long.
    """
    uses_simgrid = peer.command[0] == "ring_simgrid.py"
    if uses_simgrid and simgrid_version(simgrid_python) is None:
        return Cost(why=MISSING)
    for smaller, cost in before.items():
        if (smaller.name, smaller.topology) == (peer.name, peer.topology):
            # The messages of a ring grow with the square of its ranks.
            expected = cost.seconds * (peer.ranks / smaller.ranks) ** 2
            if cost.why or expected > 2 * seconds:
                return Cost(why=cost.why or f"would take some {expected:.0f} s")
    program, *arguments = peer.command
    return whole([simgrid_python if uses_simgrid else sys.executable, str(FOLDER / program), *arguments], seconds)


@cache
def simgrid_version(python: str = sys.executable) -> str | None:
    """Return the version of SimGrid's Python package in an interpreter; None where it has none."""
    program = "import simgrid; print(simgrid.simgrid_version)"
    asked = subprocess.run([python, "-c", program], capture_output=True, text=True)
    # It prints a line about its configuration before.
    return None if asked.returncode else asked.stdout.split()[-1]
