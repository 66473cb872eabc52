"""The page of figures, in Markdown."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import simnet
from scaling.cases import RANKS, SCHEDULES, TOPOLOGIES, VARIES, Bench, Case
from scaling.limits import Verdict
from scaling.measuring import Cost
from scaling.peers import Peer

PACKAGES = ("numpy", "numba", "scipy", "simpy", "networkx")
INTRODUCTION = """\
# How fast the network is

<!-- Made by `python benchmarks/network.py --markdown FILE`. Do not edit: run it again. -->

Everything is timed in one run on one core. CPU seconds are the best of three calls of `Network.time` (one call
where it takes longer than a second), in a process that has imported and compiled everything; the schedule and the graph
are made before, the network with its routes afresh for each call. Memory is what a call adds at its peak. The machine
may have other work, so that a figure can be a few tens of percent too high: ratios within the run say more.

The first call in a process takes longer. Programs under *Beside others* are such processes, from start to end: those
of simnet load numpy, the network, and compiled loops once there is enough to do. Nothing is compiled there, as
`simnet.compile` has done that; `make` runs it after installation. Without it the first process that needs compiled
loops says that it compiles them, and they are kept.

The messages are those of a gradient of 100 MiB, over links of 10 Gbit/s with a latency of 10 us each (on the crossbar,
of both links together). The fat-tree is the smallest k-ary one with enough hosts, non-blocking, with a path for each
pair of hosts that a hash picks (ECMP). Ok-Topk has a density of 1 %. What varies:
"""


def machine(simgrid: str | None) -> dict[str, str]:
    """Return what the figures depend on: processor, cores, and versions, that of SimGrid as given."""
    found = {"processor": _processor(), "cores": str(os.cpu_count()), "system": platform.system()}
    found |= {"Python": platform.python_version(), "simnet": simnet.__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found | {"simgrid": simgrid or "not installed"}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown'} ({platform.machine()})"


def figure(value: float, digits: int = 2) -> str:
    """Return a number with so many significant digits, as people write it; a dash for nan."""
    if math.isnan(value):
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
        return f"{value:,.{decimals}f}"
    return f"{value:.{digits - 1}e}"


def duration(seconds: float) -> str:
    """Return a time in seconds or milliseconds."""
    return f"{figure(1e3 * seconds)} ms" if seconds < 0.1 else f"{figure(seconds)} s"


def count(value: float) -> str:
    """Return how many, in thousands or millions."""
    if math.isnan(value):
        return "-"
    return f"{figure(value / 1e6)} M" if value >= 1e6 else f"{figure(value / 1e3)} k"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose columns after the first are aligned to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def verdicts(found: Sequence[Verdict]) -> str:
    """Return the limits and what became of them."""
    rows = [
        [
            one.what,
            f"{figure(one.most)} {one.unit}".strip(),
            one.why or figure(one.found),
            "-" if one.why else figure(one.found / one.most),
            "PASS" if one.passes else "FAIL",
        ]
        for one in found
    ]
    return table(["figure", "limit", "found", "found / limit", ""], rows)


def measured_peers(found: Mapping[Peer, Cost]) -> str:
    """Return programs side by side, with their speed as a ratio to that of simnet on the same schedule and topology."""
    rows = []
    for peer, cost in found.items():
        named = [peer.name, f"{peer.schedule}, {peer.topology}", f"{peer.ranks:,}"]
        if cost.why:
            rows.append([*named, f"left out ({cost.why})", *["-"] * 6])
            continue
        exchange = peer.schedule, peer.topology, peer.ranks
        own = next(
            (c for p, c in found.items() if (p.name, p.schedule, p.topology, p.ranks) == ("simnet", *exchange)), cost
        )
        engine = float(cost.value.get("engine", math.nan))
        rows.append(
            [
                *named,
                figure(cost.seconds),
                figure(engine),
                count(cost.value["messages"] / cost.seconds),
                figure(cost.memory / 1e6),
                figure(cost.value["finish"], 6),
                figure(cost.seconds / own.seconds),
                figure(engine / float(own.value.get("engine", math.nan))) if own.value else "-",
            ]
        )
    head = ["program", "exchange", "ranks", "CPU s", "engine CPU s", "messages per CPU s", "peak MB", "simulated s"]
    return table([*head, "CPU s / simnet's", "engine / simnet's"], rows)


def series(bench: Bench, schedule: str) -> str:
    """Return the cases of a schedule: a row for each topology and each thing that varies."""
    ranks = [few for few in RANKS if any((case.schedule, case.ranks) == (schedule, few) for case in bench.costs)]
    rows = []
    for topology in TOPOLOGIES:
        for varies in VARIES:
            cells = {few: bench.costs.get(Case(schedule, topology, varies, few)) for few in ranks}
            known = [cost for cost in cells.values() if cost is not None]
            if not known:
                continue
            memory = max((cost.memory for cost in known if not cost.why), default=math.nan)
            rows.append(
                [
                    f"{topology}, {varies}",
                    *(_cell(cells[few]) for few in ranks),
                    figure(bench.growth(schedule, topology, varies)),
                    figure(memory / 1e6),
                ]
            )
    return table(["", *(f"P = {few:,}" for few in ranks), "growth", "peak MB"], rows)


def _cell(cost: Cost | None) -> str:
    if cost is None:
        return "-"
    if cost.why:
        return f"left out ({cost.why})"
    return f"{duration(cost.seconds)}, {count(cost.value['messages'] / cost.seconds)}/s"


def page(bench: Bench, found: Sequence[Verdict], beside: Mapping[Peer, Cost], simgrid: str | None) -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    parts.append("".join(f"- *{name}*: {what}\n" for name, what in VARIES.items()))
    parts.append(f"A case is left out where it takes more than {bench.seconds:g} s, or where fewer ranks do.\n")
    parts.append(table(["machine", ""], list(machine(simgrid).items())))
    if found:
        parts.append("## Limits\n")
        parts.append(verdicts(found))
    if beside:
        parts.append("## Beside others\n")
        parts.append(PEERS)
        parts.append(measured_peers(beside))
    if bench.costs:
        parts.append("## Cases\n")
        parts.append(
            "CPU seconds and messages per CPU second; growth is the power of the number of ranks P to which the CPU "
            "time\ngrew, from the fewest to the most ranks measured; memory is that of the most expensive of the row.\n"
        )
    for schedule in SCHEDULES:
        if any(case.schedule == schedule and case.ranks in RANKS for case in bench.costs):
            parts += [f"### {schedule}\n", series(bench, schedule)]
    return "\n".join(parts)


PEERS = """\
A ring all-reduce of 100 MiB, each program as a whole: start, imports, platform, exchange. SimGrid runs from its Python
package, once as one writes it in S4U (an actor per rank, which that package makes a thread), once with one actor that
starts all messages of a round and waits for them, which spares SimGrid the changes of context; both with its CM02
model, without corrections for TCP. On the fat-tree SimGrid chooses paths by destination and simnet by a hash, so that
simulated times may differ where messages meet. The SimPy program is the one that one writes first; it knows no sharing.

S4U in C++ and simnet read further schedules from the same tables. There S4U takes the routes of simnet's fat-tree from
a platform where they can be written one by one, up to 128 ranks; to read them is in the whole, not in the engine. The
engine of simnet has its compiled loops to load. Ranks that are jittered work for an exponential time before each round,
drawn by each program for itself. Where the last columns are above 1, simnet takes less.
"""
