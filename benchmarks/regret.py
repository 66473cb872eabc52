"""How much is lost by choosing an exchange by closed forms instead of by simulating every one of them.

    python benchmarks/regret.py --settings 2000 --processes 2

Settings are random: 2 to 256 workers, latencies of 10 us to 200 ms, bandwidths of 10 Mbit/s to 400 Gbit/s, densities
of 1e-4 to 0.3, gradients of 1e6 to 1e9 entries, on a star, a ring, a tree and fat-trees with oversubscription. Closed
forms see the slowest pair of neighbouring workers. The regret is by how much the choice is slower, simulated, than the
one that is fastest when simulated; selecting costs nothing, so that it does not hide behind that.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pandas as pd

import topologies
from simnet.base.rng import stream
from simnet.costs.devices import load_device
from simnet.network import Network
from simnet.policies import probe_pairs
from simnet.studies.choosing import OperatingPoint, by_closed_form, by_simulation, choices, decide

KINDS = ("star", "ring", "tree", "fat_tree")


class Lost(NamedTuple):
    """What became of a setting."""

    kind: str
    workers: int
    density: float
    parameters: int
    latency: float
    bandwidth: float
    chosen: str
    fastest: str
    regret: float
    too_close: bool


def setting(kind: str, number: int, seed: int) -> tuple[nx.DiGraph[Any], int, int, float]:
    """Return a random network, and workers, parameters and density."""
    draws = stream(seed, "regret", kind, number)

    def between(low: float, high: float) -> float:
        return float(np.exp(draws.uniform(math.log(low), math.log(high))))

    workers = round(between(2, 256))
    latency, bandwidth = between(1e-5, 0.2), between(1.25e6, 5e10)
    parameters, density = round(between(1e6, 1e9)), between(1e-4, 0.3)
    if kind == "star":
        graph = topologies.star(workers, latency=latency, bandwidth=bandwidth)
    elif kind == "ring":
        graph = topologies.ring(workers, latency=latency, bandwidth=bandwidth)
    elif kind == "tree":
        graph = topologies.tree(workers, arity=int(draws.integers(2, 9)), latency=latency / 2, bandwidth=bandwidth)
    else:
        k = next(k for k in range(2, 100, 2) if k**3 // 4 >= workers)
        over = float(draws.choice([1.0, 2.0, 4.0]))
        graph = topologies.fat_tree(k, latency=latency / 4, bandwidth=bandwidth, oversubscription=over)
    return graph, workers, parameters, density


def lost(kind: str, number: int, seed: int) -> Lost:
    """Choose by closed forms in one setting, and say what that costs."""
    graph, workers, parameters, density = setting(kind, number, seed)
    network, ideal = Network(graph), load_device("ideal")
    pairs = probe_pairs(network, range(workers), 0.0)
    point = OperatingPoint(workers, parameters, density, float(pairs[0].max()), float(pairs[1].min()))
    decision = decide(choices(), point, by_closed_form(ideal), varies=())
    simulated = decide(choices(), point, by_simulation([(network, 0.0)], ideal), varies=())
    seconds = {row.choice.label: row.seconds for row in simulated.rows}
    chosen = decision.best.choice.label
    return Lost(
        kind,
        workers,
        density,
        parameters,
        float(point.latency),
        float(point.bandwidth),
        chosen,
        simulated.best.choice.label,
        seconds[chosen] / simulated.best.seconds - 1,
        decision.too_close,
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", help="where to write every setting")
    given = parser.parse_args()
    each = -(-given.settings // len(KINDS))
    asked = [(kind, number, given.seed) for kind in KINDS for number in range(each)]
    with ProcessPoolExecutor(given.processes) as pool:
        found = pd.DataFrame(pool.map(lost, *zip(*asked, strict=True), chunksize=8))
    if given.csv:
        found.to_csv(given.csv, index=False)
    print(f"{len(found)} settings, seed {given.seed}")
    print("| network | settings | choice is the fastest | median | 95 % | worst | 95 % where not too close to call |")
    print("|---|---|---|---|---|---|---|")
    for kind in KINDS:
        part = found[found["kind"] == kind]
        sure = part[~part["too_close"]]["regret"]
        median, most, worst = part["regret"].median(), part["regret"].quantile(0.95), part["regret"].max()
        right = (part["chosen"] == part["fastest"]).mean()
        print(
            f"| {kind} | {len(part)} | {100 * right:.1f} % | {100 * median:.2f} % | {100 * most:.2f} % | "
            f"{100 * worst:.0f} % | {100 * sure.quantile(0.95):.2f} % |"
        )


if __name__ == "__main__":
    main()
