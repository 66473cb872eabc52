"""The same exchanges in other simulators, side by side, whole programs and their engines.

A ring all-reduce of 100 MiB on the crossbar and the fat-tree of each, as one writes it; and schedules that each reads
as the same table: in step, jittered, all-to-all and Ok-Topk, where messages meet on the same routes. SimGrid's S4U in
C++ is built where there are a compiler and its headers (``libsimgrid-dev`` of Debian; ``SIMGRID_ROOT`` says where
else), LogGOPSim runs where it is on the path. What is missing is said in a line.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from scaling.cases import SCHEDULES, TOPOLOGIES
from scaling.measuring import Cost, whole
from scaling.programs import LATENCY, NBYTES
from simnet.interchange.goal import write_goal
from simnet.interchange.messages_csv import write_messages
from simnet.interchange.simgrid_writing import write_platform

FOLDER = Path(__file__).parent
S4U, LOGGOPSIM = "exchange_s4u", "LogGOPSim"
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
    schedule : str
        What is sent, and what varies.
    """

    name: str
    topology: str
    ranks: int
    command: tuple[str, ...]
    schedule: str = "ring"

    def __str__(self) -> str:
        return f"peer {self.name} {self.schedule} {self.topology} {self.ranks}"


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


SAME = {
    "ring, in step": ("ring", "crossbar", 0.0),
    "ring, jittered": ("ring", "crossbar", 1e-4),
    "ring, placed at random": ("ring", "fat-tree", 0.0),
    "all-to-all": ("all-to-all", "fat-tree", 0.0),
    "Ok-Topk": ("Ok-Topk", "fat-tree", 0.0),
}
"""Schedules that all read as a table: what, on which topology, and the mean time that ranks work before rounds [s]."""

MOST_ROUTED = 128
"""The most ranks whose routes are written one by one, for SimGrid to take those of simnet; with more it has its own."""


def same(ranks: int, folder: Path) -> list[Peer]:
    """Return the programs that read schedules from files in a folder, which `run_same` writes."""
    found = []
    for name, (_, topology, jitter) in SAME.items():
        given, end = (str(ranks), str(folder / f"{name}.csv")), (str(jitter),)
        found.append(Peer("simnet", topology, ranks, ("exchange_simnet.py", topology, *given, *end), name))
        routed = topology == "fat-tree" and ranks <= MOST_ROUTED
        shape = str(folder / "fat-tree.xml") if routed else topology
        # One actor for all is in lock-step, which is another exchange where ranks differ.
        for style in ("actors", "rounds") if name == "ring, in step" else ("actors",):
            how = "one actor" if style == "rounds" else "actor per rank"
            how += ", same routes" if routed else ""
            found.append(Peer(f"S4U in C++, {how}", topology, ranks, (S4U, shape, *given, style, *end), name))
    # Its gap per byte is whole nanoseconds: 8 Gbit/s.
    arguments = ("-L", str(round(1e9 * LATENCY)), "-o", "0", "-g", "0", "-O", "0", "-G", "1", "-S", "2000000000")
    command = (LOGGOPSIM, "-f", str(folder / "ring, in step.bin"), *arguments)
    return [*found, Peer("LogGOPSim, 8 Gbit/s", "crossbar", ranks, command, "ring, in step")]


def _write(peer: Peer, folder: Path) -> None:
    """Write the files that a program reads, if they are not there."""
    files = [Path(one) for one in peer.command if one.startswith(str(folder)) and not Path(one).exists()]
    for file in files:
        if file.suffix == ".xml":
            write_platform(TOPOLOGIES["fat-tree"](peer.ranks), file)
            continue
        sent = SCHEDULES[SAME[peer.schedule][0]](peer.ranks, NBYTES).in_phase("")
        if "random" in peer.schedule:
            sent = sent.embed(np.random.default_rng(0).permutation(peer.ranks), peer.ranks)
        if file.suffix == ".csv":
            write_messages(sent, file)
        else:
            write_goal(sent, file.with_suffix(".goal"))
            subprocess.run(["txt2bin", "-i", file.with_suffix(".goal"), "-o", file], check=True, capture_output=True)


def run_same(peer: Peer, seconds: float, folder: Path) -> Cost:
    """Measure a program that reads a schedule; see `run`."""
    program, *arguments = peer.command
    found = shutil.which(LOGGOPSIM) if shutil.which("txt2bin") else None
    if program == LOGGOPSIM and found is None:
        return Cost(why="LogGOPSim and its txt2bin are not on the path")
    _write(peer, folder)
    if program == LOGGOPSIM:
        cost = whole([found, *arguments], seconds)
        messages = 2 * peer.ranks * (peer.ranks - 1)
        return cost if cost.why else replace(cost, value={"messages": messages, "finish": math.nan, "engine": math.nan})
    if program != S4U:
        return whole([sys.executable, str(FOLDER / program), *arguments], seconds)
    built, why = build_s4u(folder)
    return Cost(why=why) if why else whole([str(built), *arguments, "--log=root.thresh:error"], seconds)


@cache
def build_s4u(folder: Path) -> tuple[Path, str]:
    """Compile the S4U program into a folder; return it, or why there is none."""
    compiler, root = shutil.which("g++") or shutil.which("c++"), os.environ.get("SIMGRID_ROOT")
    if compiler is None:
        return folder, "there is no C++ compiler"
    program, flags = folder / "exchange_s4u", ["-O2", "-std=c++17"]
    if root is not None:
        places = [str(path.parent) for path in Path(root).glob("lib/**/libsimgrid.so")]
        flags += [f"-I{root}/include", *(f"-L{one}" for one in places), *(f"-Wl,-rpath,{one}" for one in places)]
    source = str(FOLDER / "exchange_s4u.cpp")
    command = [compiler, *flags, source, "-o", str(program), "-lsimgrid", "-Wl,--allow-shlib-undefined"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        lines = [line for line in made.stderr.splitlines() if "error" in line] or ["no message"]
        return program, f"S4U in C++ does not build: {lines[0][:120]}"
    return program, ""


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
