"""How much time policies lose against the one-step oracle, on links that drift and on links that change.

    python benchmarks/adviser.py --settings 60 --processes 2

Beside the shipped scenarios whose links change there are random jobs: 2 to 32 workers on a star, a ring or a WAN,
latencies of 0.1 to 50 ms, bandwidths of 50 Mbit/s to 25 Gbit/s, densities of 0.1 to 50 %, gradients of 1e6 to 1e8
entries, 30 to 400 iterations, which compute for 0.1 to 3 times as long as the fastest exchange takes. In every second
triple of them the latency is one at which two exchanges are equally fast by their closed forms. In half of them
latency and bandwidth of each link drift on their own, by noise with a memory of 3 to 30 % of the job and a standard
deviation of 40 %; in the others those of all links jump three times, by factors up to 20. Policies choose between
AG-Topk, AR-Topk by ring and by tree, and dense. `flexible` probes before every iteration, and its probes cost nothing;
those of `adviser` are charged. Fixed is the best fixed exchange, which nobody knows before.

Constants of `simnet.training.advise.estimator` were learnt on the jobs of seed 1, and rules tried on those of seeds 1
and 2: random jobs of seed 0, the default, played no part. ``--constant _RATE=0.05`` measures with another one.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pandas as pd

from simnet import topologies
from simnet.base.rng import stream
from simnet.cost_models.costs.devices import load_device
from simnet.network import Network
from simnet.network.weather import Weather, ornstein_uhlenbeck, steps
from simnet.policies import Candidate, Fixed, Flexible, Monitor, OneStepOracle, Policy, Ramp, closed_form
from simnet.scenario import load
from simnet.traces import synthetic
from simnet.training.advise import estimator
from simnet.training.advise.adviser import Advised
from simnet.training.job.job import Compute, Job
from simnet.training.job.running import run_policy

SHIPPED = ("quickstart", "fluctuating_wan", "flexcomm_c1", "flexcomm_c2", "link_faults", "moo_wan")
CHANGES = ("drift", "jumps")
FAMILIES = ("star", "ring", "wan")
LONG = 100
CANDIDATES = (
    Candidate("AG", "topk"),
    Candidate("ART-ring", "artopk", {"collective": "ring"}),
    Candidate("ART-tree", "artopk", {"collective": "tree"}),
    Candidate("dense", "dense", {"algorithm": "ring"}),
)


class Lost(NamedTuple):
    """What each kind of policy loses against the one-step oracle, as a share of its seconds."""

    kind: str
    name: str
    iterations: int
    oracle_s: float
    adviser: float
    flexible: float
    fixed: float
    probes: float


def setting(change: str, number: int, seed: int) -> Job:
    """Return a random job on links that drift or jump."""
    draws = stream(seed, "adviser", change, number)

    def between(low: float, high: float) -> float:
        return float(np.exp(draws.uniform(math.log(low), math.log(high))))

    family, workers = FAMILIES[number % len(FAMILIES)], round(between(2, 32))
    latency, bandwidth = between(1e-4, 5e-2), between(6.25e6, 3.125e9)
    parameters, density, iterations = round(between(1e6, 1e8)), between(1e-3, 0.5), round(between(30, 400))
    computing, memory, per_site = between(0.1, 3.0), between(0.03, 0.3), int(draws.integers(1, 5))
    if family == "wan":
        workers = max(2, workers // per_site) * per_site
    # Rounds of each exchange, and its seconds of bytes.
    parts = np.array(
        [
            [float(closed_form(one)(*of, 4 * parameters, density, workers)) for of in ((1, 0), (0, 1 / bandwidth))]
            for one in CANDIDATES
        ]
    )
    if number // len(FAMILIES) % 2:
        equal = [(a[1] - b[1]) / (b[0] - a[0]) for a in parts for b in parts if a[0] < b[0] and a[1] > b[1]]
        both = [one for one in equal if 1e-5 < one < 1 and np.isclose(*np.sort(parts @ [one, 1])[:2])]
        latency = float(draws.choice(both)) if both else latency
    graph: nx.DiGraph[Any]
    if family == "wan":
        graph = topologies.wan(workers // per_site, latency, bandwidth, per_site)
    else:
        graph = topologies.build(family, hosts=workers, latency=latency, bandwidth=bandwidth)
    slower, later = ([1.0, *(between(1, 20) for _ in range(2)), 1.0] for _ in range(2))
    fastest = [float((parts @ [latency * x, y]).min()) for x, y in zip(later, slower, strict=True)]
    compute = computing * fastest[0]
    # Stretches of as many iterations of the fastest exchange.
    shares = np.diff([0.0, *np.sort(draws.uniform(0.1, 0.9, 3))])
    at = [0.0, *np.cumsum(iterations * shares * (compute + np.array(fastest[:3])))]
    one = compute + fastest[0]
    weather = {}
    for link, own in graph.edges.items():
        if change == "drift":
            seeds = draws.integers(2**31, size=2).tolist()
            drifts = [ornstein_uhlenbeck(0.4, memory * iterations * one, one, seed=each) for each in seeds]
            weather[link] = Weather(drifts[0] * own["bandwidth"], drifts[1] * own["latency"])
        else:
            bandwidths = [own["bandwidth"] / each for each in slower]
            weather[link] = Weather(steps(at, bandwidths), steps(at, [own["latency"] * each for each in later]))
    return Job(
        source=synthetic(parameters, workers, iterations=iterations, scale=parameters / 4096, seed=number),
        iterations=iterations,
        stages=[(0, Network(graph, weather))],
        density=[Ramp(1, density, density)],
        compute=Compute(compute, spread=0.05),
        device=load_device("ideal"),
        seed=number,
    )


def lost(kind: str, name: str, seed: int, constants: dict[str, float]) -> Lost:
    """Run a job under every policy."""
    for constant, value in constants.items():
        setattr(estimator, constant, value)
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
    return Lost(kind, name, job.iterations, best, *(one / best - 1 for one in took), probes)


def row(title: str, figures: Any) -> str:
    """Return a row of a table, of shares."""
    return f"| {title} | " + " | ".join(f"{100 * one:.1f} %" for one in figures) + " |"


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=60, help="random jobs for each kind of change")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--constant", action="append", default=[], metavar="NAME=VALUE", help="of the estimator")
    parser.add_argument("--out", help="file of all figures")
    given = parser.parse_args()
    constants = {name: float(value) for name, value in (one.split("=") for one in given.constant)}
    if unknown := [name for name in constants if not hasattr(estimator, name)]:
        parser.error(f"the estimator has no {unknown[0]}")
    asked = [("shipped", name) for name in SHIPPED]
    asked += [(change, str(number)) for change in CHANGES for number in range(given.settings)]
    n = len(asked)
    with ProcessPoolExecutor(given.processes) as pool:
        found = pd.DataFrame(pool.map(lost, *zip(*asked, strict=True), [given.seed] * n, [constants] * n))
    if given.out:
        found.to_csv(given.out, index=False)
    print("| links | adviser | flexible | best fixed | probes |")
    print("|---|---|---|---|---|")
    names = list(Lost._fields[4:])
    shipped, random = found[found["kind"] == "shipped"], found[found["kind"] != "shipped"]
    for name, figures in zip(shipped["name"], shipped[names].to_numpy(), strict=True):
        print(row(f"`{name}`", figures))
    parts = {change: random[random["kind"] == change] for change in CHANGES}
    parts |= {f"below {LONG} iterations": random[random["iterations"] < LONG]}
    parts |= {f"from {LONG} iterations": random[random["iterations"] >= LONG], "all": random}
    for title, part in parts.items():
        for what, share in (("median", 0.5), ("95 %", 0.95), ("worst", 1.0)):
            print(row(f"{title}, {len(part)} jobs, {what}", part[names].quantile(share)))


if __name__ == "__main__":
    main()
