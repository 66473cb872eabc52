"""Measure how fast the network times schedules: CPU seconds, messages per second, memory, growth with the ranks.

    python benchmarks/network.py [--quick] [--only WORDS] [--seconds S] [--json FILE] [--history FILE] [--markdown FILE]

Three parts: *limits*, the figures that must hold, with PASS or FAIL; *peers*, the same exchanges in other simulators,
whole programs and their engines; *cases*, every schedule on every topology. Each is measured in a process of its own,
which has imported and compiled everything before; what takes longer than its seconds is left out, and says so. Run it
on a machine that has nothing else to do. ``--markdown`` writes a page, whose figures `docs/performance.md` quotes;
``--history`` keeps what was measured at each commit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scaling.cases import RANKS, Bench, cases
from scaling.limits import Verdict, limits, verdict
from scaling.measuring import Cost
from scaling.page import count, figure, machine, page
from scaling.peers import Peer, peers, run, run_same, same, simgrid_version
from scaling.programs import BANDWIDTH, LATENCY, NBYTES

from simnet import collectives, topologies
from simnet.network import Network
from simnet.network.compiled_loop import compiled_loop


def chosen(what: object, words: str) -> bool:
    """Return whether the name of something has all the words."""
    return all(word in str(what) for word in words.split())


def plain(value: Any) -> Any:
    """Return a value for JSON, which has no nan."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def as_json(bench: Bench, found: list[Verdict], beside: dict[Peer, Cost], simgrid: str | None) -> str:
    """Return everything that was measured."""
    rows = {
        "machine": machine(simgrid),
        "limits": [plain(dataclasses.asdict(one)) | {"passes": one.passes} for one in found],
        "peers": [plain(dataclasses.asdict(peer) | dataclasses.asdict(cost)) for peer, cost in beside.items()],
        "cases": [plain(dataclasses.asdict(case) | dataclasses.asdict(cost)) for case, cost in bench.costs.items()],
    }
    return json.dumps(rows, indent=1) + "\n"


def show(name: object, cost: Cost) -> None:
    """Print a line about a case or a peer."""
    if cost.why:
        print(f"{name!s:48} left out ({cost.why})", flush=True)
        return
    rate = count(cost.value["messages"] / cost.seconds)
    print(f"{name!s:48}{cost.seconds:10.4f} s{rate:>9}/s{cost.memory / 1e6:9.1f} MB", flush=True)


def commit() -> str:
    """Return the commit that is measured, with a plus if files differ from it; "" where there is no repository."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.stdout.strip()


def warm() -> None:
    """Have everything compiled and loaded, for the processes that measure to inherit."""
    compiled_loop()
    graph = topologies.fat_tree(10, LATENCY, BANDWIDTH)
    for engine in ("fluid", "auto"):
        Network(graph, engine=engine).time(collectives.allreduce_ring(240, NBYTES))


def main() -> None:
    """Print a line for each figure, and write the files that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer ranks, without the scenario")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help='what has these words in its line: "limit", "ring fat"'
    )
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="limit of a case [10]")
    parser.add_argument("--simgrid-python", default=sys.executable, metavar="FILE", help="interpreter with simgrid")
    parser.add_argument("--history", type=Path, metavar="FILE", help="add all figures as a line, with the commit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    given = parser.parse_args()
    ranks = RANKS[:2] if given.quick else RANKS
    warm()
    bench = Bench(given.seconds)
    found: list[Verdict] = []
    beside: dict[Peer, Cost] = {}
    for limit in limits(bench, given.quick):
        if chosen(limit, given.only):
            one = verdict(limit)
            found.append(one)
            said = one.why or f"{figure(one.found)} {one.unit}".strip()
            print(f"{'PASS' if one.passes else 'FAIL'} {one.what}: {said} (limit {figure(one.most)})", flush=True)
    for peer in peers(*((256, 64) if given.quick else (1024, 256))):
        if chosen(peer, given.only):
            beside[peer] = run(peer, 12 * given.seconds, given.simgrid_python, beside)
            show(peer, beside[peer])
    for few in (64, 256) if given.quick else (64, 256, 1024):
        with tempfile.TemporaryDirectory() as folder:
            for peer in same(few, Path(folder)):
                if chosen(peer, given.only):
                    beside[peer] = run_same(peer, 12 * given.seconds, Path(folder))
                    show(peer, beside[peer])
    for case in cases(ranks):
        if chosen(f"case {case}", given.only):
            show(f"case {case}", bench(case))
            if case.ranks == ranks[-1]:
                exponent = bench.growth(case.schedule, case.topology, case.varies)
                if not math.isnan(exponent):
                    print(f"{'':48}CPU time grows with ranks to the power of {exponent:.2f}", flush=True)
    simgrid = simgrid_version(given.simgrid_python)
    if given.json:
        given.json.write_text(as_json(bench, found, beside, simgrid))
    if given.history:
        with given.history.open("a") as lines:
            rows = json.loads(as_json(bench, found, beside, simgrid))
            print(
                json.dumps({"commit": commit(), "time": datetime.now(UTC).isoformat("T", "seconds"), **rows}),
                file=lines,
            )
    if given.markdown:
        given.markdown.write_text(page(bench, found, beside, simgrid))


if __name__ == "__main__":
    main()
