"""Random schedules on random networks, timed by simnet and by SimGrid's S4U: two programs that share no code.

    python benchmarks/referee.py [--count 200] [--seed 0]

Bandwidths are unequal, routes are those of simnet, written one by one, and messages meet on them. A message leaves when
its sender enters a round, and a rank enters the next round when what it has sent and what it receives have arrived: in
simnet a socket without buffer. In SimGrid's model CM02 a flow's weight on shared links is one over the latency of its
route; simnet's law `rtt` with the exponent 1 is the same where latencies are equal both ways, as here, and on a star,
where all routes are equally long, so is `max_min`. It needs g++ and libsimgrid-dev; what is missing is said. Ends with
1 if a finish differs by more than `AGREE`.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import networkx as nx
import numpy as np
from scaling.peers import build_s4u

from simnet import topologies
from simnet.interchange.messages_csv import write_messages
from simnet.interchange.simgrid_writing import write_platform
from simnet.network import MAX_MIN, Network, Sharing, Stack
from simnet.schedule import Round, Schedule

AGREE = 1e-9
"""Relative difference of the finish. SimGrid updates all flows at each event here (``network/optim:Full``); as it does
by default, lazily, finishes are up to 1 % off."""

FAMILIES = {
    "star": lambda: topologies.star(6, 1e-4, 1e8),
    "ring": lambda: topologies.ring(6, 1e-4, 1e8),
    "tree": lambda: topologies.tree(8, 2, 1e-4, 1e8),
    "fat_tree": lambda: topologies.fat_tree(4, 1e-5, 1e8, oversubscription=2.0),
    "torus": lambda: topologies.torus((3, 3), 1e-5, 1e8),
    "dragonfly": lambda: topologies.dragonfly(2, 1e-5, 1e8),
}


def network_at(draws: np.random.Generator, family: str) -> nx.DiGraph:
    """Return a network of a family whose links have one latency and unequal bandwidths, those of two ways, too."""
    graph, latency = FAMILIES[family](), float(f"{10 ** draws.uniform(-6, -2):.6g}")
    for *_, link in graph.edges(data=True):
        link["latency"] = latency
        link["bandwidth"] = float(f"{link['bandwidth'] * draws.uniform(0.1, 1):.6g}")
    return graph


def schedule_at(draws: np.random.Generator, ranks: int) -> Schedule:
    """Return rounds of messages between random pairs, of 1 byte to some megabytes."""
    rounds = []
    for _ in range(draws.integers(1, 8)):
        pairs = draws.permutation(ranks * (ranks - 1))[: draws.integers(1, 3 * ranks)]
        src, other = np.divmod(pairs, ranks - 1)
        rounds.append(Round(src, other + (other >= src), np.rint(10 ** draws.uniform(0, 6.5, len(pairs)))))
    return Schedule(ranks, rounds)


def main() -> None:
    """Print how far the finishes are apart, family by family, and end with 1 if one is too far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    given = parser.parse_args()
    apart: dict[str, list[tuple[float, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program, why = build_s4u(Path(folder))
        if why:
            print(f"no referee: {why}")
            raise SystemExit(0)
        for seed in range(given.seed, given.seed + given.count):
            draws = np.random.default_rng(seed)
            family = list(FAMILIES)[seed % len(FAMILIES)]
            graph = network_at(draws, family)
            law = MAX_MIN if family == "star" else Sharing(exponent=1.0)
            network = Network(graph, stack=Stack("taken", buffer=0.0), sharing=law)
            schedule = schedule_at(draws, network.routes.n_hosts)
            platform, table = Path(folder) / "platform.xml", Path(folder) / "messages.csv"
            write_platform(graph, platform)
            write_messages(schedule, table)
            arguments = [str(platform), str(schedule.n_ranks), str(table), "eager", "0", "--log=root.thresh:error"]
            said = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=True, timeout=60)
            theirs, ours = float(json.loads(said.stdout)["finish"]), network.time(schedule).finish
            apart.setdefault(family, []).append((abs(ours - theirs) / theirs if theirs else math.inf, seed))
    print(f"{'family':<12}{'cases':>6}{'median':>10}{'worst':>10}  seed")
    for family, found in apart.items():
        worst, seed = max(found)
        print(f"{family:<12}{len(found):>6}{np.median([one for one, _ in found]):>10.1e}{worst:>10.1e}  {seed}")
    wrong = [seed for found in apart.values() for one, seed in found if not one <= AGREE]
    print(f"{len(wrong)} of {given.count} differ by more than {AGREE:g}" + (f": seeds {wrong[:20]}" if wrong else ""))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
