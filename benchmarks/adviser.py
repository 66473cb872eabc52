"""How much time policies lose against the one-step oracle, on links that drift and on links that change.

    python benchmarks/adviser.py --settings 40 --processes 2

Beside the shipped scenarios whose links change there are random ones: 4 to 16 workers on a star or a WAN, latencies of
0.1 to 50 ms, bandwidths of 50 Mbit/s to 25 Gbit/s, densities of 0.1 to 10 %, gradients of 1e6 to 1e8 entries, 300
iterations. In half of them latency and bandwidth of each link drift on their own, by noise with a memory of a tenth of
the job and a standard deviation of 40 %; in the others those of all links jump three times, by factors up to 20.
Policies choose between AG-Topk, AR-Topk by ring and by tree, and dense. `flexible` probes before every iteration, and
its probes cost nothing; those of `adviser` are charged. Fixed is the best fixed exchange, which nobody knows before.
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
from simnet.advise import Advised
from simnet.base.rng import stream
from simnet.costs.devices import load_device
from simnet.job import Compute, Job, run_policy
from simnet.network import Network
from simnet.network.weather import Weather, ornstein_uhlenbeck, steps
from simnet.policies import Candidate, Fixed, Flexible, Monitor, OneStepOracle, Policy, Ramp
from simnet.scenario import load
from simnet.traces import synthetic

SHIPPED = ("quickstart", "fluctuating_wan", "flexcomm_c1", "flexcomm_c2", "link_faults", "moo_wan")
CHANGES = ("drift", "jumps")
ITERATIONS, COMPUTE = 300, 0.05
CANDIDATES = (
    Candidate("AG", "topk"),
    Candidate("ART-ring", "artopk", {"collective": "ring"}),
    Candidate("ART-tree", "artopk", {"collective": "tree"}),
    Candidate("dense", "dense", {"algorithm": "ring"}),
)


class Lost(NamedTuple):
    """What each kind of policy loses against the one-step oracle, as a share of its time."""

    kind: str
    name: str
    adviser: float
    flexible: float
    fixed: float
    probes: float


def setting(change: str, number: int, seed: int) -> Job:
    """Return a random job on links that drift or jump."""
    draws = stream(seed, "adviser", change, number)

    def between(low: float, high: float) -> float:
        return float(np.exp(draws.uniform(math.log(low), math.log(high))))

    workers, latency, bandwidth = 2 * int(draws.integers(2, 9)), between(1e-4, 5e-2), between(6.25e6, 3.125e9)
    parameters, density = round(between(1e6, 1e8)), between(1e-3, 0.1)
    graph: nx.DiGraph[Any] = topologies.star(workers, latency, bandwidth)
    if number % 2:
        graph = topologies.wan(workers // 2, latency, bandwidth, 2)
    # As long as three hundred all-reduces of what is kept take about, so that what changes does so within the job.
    long = ITERATIONS * (COMPUTE + 2 * workers * latency + 10 * density * parameters / bandwidth)
    at = [0.0, *np.sort(draws.uniform(0.1, 0.9, 3)) * long]
    slower, later = ([1.0, *(between(1, 20) for _ in range(2)), 1.0] for _ in range(2))
    weather = {}
    for link, own in graph.edges.items():
        if change == "drift":
            seeds = draws.integers(2**31, size=2).tolist()
            drifts = [ornstein_uhlenbeck(0.4, long / 10, long / 1000, seed=one) for one in seeds]
            weather[link] = Weather(drifts[0] * own["bandwidth"], drifts[1] * own["latency"])
        else:
            bandwidths = [own["bandwidth"] / one for one in slower]
            weather[link] = Weather(steps(at, bandwidths), steps(at, [own["latency"] * one for one in later]))
    return Job(
        source=synthetic(parameters, workers, iterations=ITERATIONS, scale=parameters / 4096, seed=number),
        iterations=ITERATIONS,
        stages=[(0, Network(graph, weather))],
        density=[Ramp(1, density, density)],
        compute=Compute(COMPUTE, spread=0.05),
        device=load_device("ideal"),
        seed=number,
    )


def lost(kind: str, name: str, seed: int) -> Lost:
    """Run a job under every policy."""
    if kind == "shipped":
        built = load(name).build()
        job, given = built.job, [one for policy in built.policies.values() for one in policy.candidates]
        candidates = tuple({one.label: one for one in given}.values())
    else:
        job, candidates = setting(kind, int(name), seed), CANDIDATES

    def seconds(policy: Policy) -> float:
        return float(run_policy(job, name, policy).iterations["iteration_s"].sum())

    advised = Advised(candidates)
    best = seconds(OneStepOracle(candidates))
    took = (
        seconds(advised),
        seconds(Flexible(candidates, Monitor(every=0.0))),
        min(map(seconds, map(Fixed, candidates))),
    )
    probes = sum(one.probed_s for one in advised.log) / took[0]
    return Lost(kind, name, *(one / best - 1 for one in took), probes)


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=40, help="random jobs for each kind of change")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    asked = [("shipped", name) for name in SHIPPED]
    asked += [(change, str(number)) for change in CHANGES for number in range(given.settings)]
    with ProcessPoolExecutor(given.processes) as pool:
        found = pd.DataFrame(pool.map(lost, *zip(*asked, strict=True), [given.seed] * len(asked)))
    print("| links | adviser | flexible | best fixed | probes |")
    print("|---|---|---|---|---|")
    for row in found[found["kind"] == "shipped"].itertuples():
        print(f"| `{row.name}` | " + " | ".join(f"{100 * one:.1f} %" for one in row[3:]) + " |")
    for change in CHANGES:
        part = found[found["kind"] == change].drop(columns=["kind", "name"])
        for what, share in (("median", 0.5), ("95 %", 0.95)):
            figures = part.quantile(share)
            print(
                f"| {change}, {len(part)} jobs, {what} | " + " | ".join(f"{100 * one:.1f} %" for one in figures) + " |"
            )


if __name__ == "__main__":
    main()
