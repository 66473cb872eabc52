"""What the network has to hold, each as a figure and its limit."""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from scaling.cases import TOPOLOGIES, Bench, Case
from scaling.measuring import Cost, measured, whole
from scaling.programs import BANDWIDTH, LATENCY, NBYTES
from simnet.base import rng
from simnet.collectives import allreduce_ring
from simnet.cost_models import costs
from simnet.network import Network
from simnet.network.stack import STACKS
from simnet.network.tables import Store
from simnet.topologies import Routes

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Limit:
    """A figure that must not exceed a limit.

    Parameters
    ----------
    what : str
    most : float
        The limit.
    unit : str
        Of the limit and of the figure; empty for a ratio or an exponent.
    figure : callable
        Measures it: (figure, why there is none).
    """

    what: str
    most: float
    unit: str
    figure: Callable[[], tuple[float, str]]

    def __str__(self) -> str:
        return f"limit {self.what}"


@dataclass(frozen=True)
class Verdict:
    """What became of a limit; `found` is nan where it could not be measured, which counts as a failure."""

    what: str
    most: float
    unit: str
    found: float
    why: str

    @property
    def passes(self) -> bool:
        """Whether the figure was found and is within its limit."""
        return self.found <= self.most


def verdict(limit: Limit) -> Verdict:
    """Measure a limit's figure."""
    found, why = limit.figure()
    return Verdict(limit.what, limit.most, limit.unit, found, why)


def limits(bench: Bench, quick: bool) -> Iterator[Limit]:
    """Yield what must hold; with `quick`, without what takes long."""

    def seconds(what: str, most: float, case: Case) -> Limit:
        return Limit(what, most, "CPU s", lambda: _seconds(bench(case)))

    in_step = Case("ring", "crossbar", "in step", 1024)
    yield seconds("ring all-reduce, 1,024 ranks, crossbar, in step", 0.07, in_step)
    yield Limit("its simulated time against the closed form, relative", 1e-9, "", lambda: _closed_form(bench(in_step)))
    for name in STACKS:
        if name != "ideal":
            yield Limit(f"the same on the stack {name}, over ideal: ratio", 2.0, "", partial(_on_stack, name))
    yield seconds("ring all-reduce, 16,384 ranks, crossbar, in step", 5.0, Case("ring", "crossbar", "in step", 16384))
    yield seconds("1,024 ranks, crossbar, with compute jitter", 0.15, Case("ring", "crossbar", "compute", 1024))
    yield seconds("1,024 ranks, fat-tree, in step", 0.2, Case("ring", "fat-tree", "in step", 1024))
    yield seconds("1,024 ranks, fat-tree, in step, scattered", 0.6, Case("ring", "fat-tree", "scattered", 1024))
    yield seconds("1,024 ranks, fat-tree, 5 % jitter", 4.0, Case("ring", "fat-tree", "jitter", 1024))
    yield seconds(
        "1,024 ranks, fat-tree, 5 % jitter, scattered", 1.2, Case("ring", "fat-tree", "scattered jitter", 1024)
    )
    if not quick:
        yield seconds("Ok-Topk, 1,024 ranks, fat-tree", 3.0, Case("Ok-Topk", "fat-tree", "in step", 1024))
        all_to_all = Case("all-to-all", "fat-tree", "in step", 1024)
        yield seconds("all-to-all, 1,024 ranks, fat-tree", 1.5, all_to_all)
        yield Limit("memory of it", 300.0, "MB", lambda: (bench(all_to_all).memory / 1e6, bench(all_to_all).why))
    many = 1024 if quick else 4096
    for topology, varies, most in [
        ("crossbar", "starts", many),
        ("crossbar", "jitter", many),
        ("fat-tree", "jitter", many),
        ("fat-tree", "scattered jitter", 1024),
    ]:
        yield Limit(
            f"growth of CPU time with ranks, 256 to {most:,}, {topology}, {varies}: exponent",
            2.1,
            "",
            partial(_growth, bench, topology, varies, 256, most, "seconds"),
        )
    for varies in ("starts", "jitter"):
        yield Limit(
            f"growth of memory with ranks, {many // 4:,} to {many:,}, crossbar, {varies}: exponent",
            1.1,
            "",
            partial(_growth, bench, "crossbar", varies, many // 4, many, "memory"),
        )
    for topology in ("crossbar", "fat-tree"):
        yield Limit(
            f"weather of 10,000 changes on every link, 1,024 ranks, {topology}, over constant links: ratio",
            3.0,
            "",
            lambda topology=topology: _ratio(
                bench(Case("ring", topology, "weather compute", 1024)), bench(Case("ring", topology, "compute", 1024))
            ),
        )
    yield Limit("full max-min solution, 10,000 flows, 1,024-host fat-tree", 1.2, "CPU ms", lambda: full_solution(bench))
    yield Limit("whole command, 1,024 ranks, fat-tree, compilation cached", 2.0, "CPU s", cold_command)
    if not quick:
        yield Limit("simnet run fat_tree_64, 200 iterations, all policies", 20.0, "s", fat_tree_64)


def _seconds(cost: Cost) -> tuple[float, str]:
    return cost.seconds, cost.why


def _on_stack(name: str, ranks: int = 1024, repeats: int = 21) -> tuple[float, str]:
    """Return by how much longer a stack takes to time exchanges of sizes of their own, in turns with `ideal`, warm."""
    graph = TOPOLOGIES["crossbar"](ranks)
    networks = [Network(graph, stack=stack) for stack in ("ideal", name)]
    took = np.empty((repeats, len(networks)))
    for repeat in range(-3, repeats):
        schedule = allreduce_ring(ranks, NBYTES + repeat)
        for place, network in enumerate(networks):
            begun = time.process_time()
            network.time(schedule)
            if repeat >= 0:
                took[repeat, place] = time.process_time() - begun
    ideal, other = np.median(took, axis=0).tolist()
    return other / ideal, ""


def _closed_form(cost: Cost) -> tuple[float, str]:
    if cost.why:
        return math.nan, cost.why
    exact = float(costs.ring_allreduce(LATENCY, 1 / BANDWIDTH, NBYTES, 1024))
    return abs(cost.value["finish"] / exact - 1), ""


def _growth(bench: Bench, topology: str, varies: str, least: int, most: int, what: str) -> tuple[float, str]:
    why = [bench(Case("ring", topology, varies, ranks)).why for ranks in (least, most)]
    return bench.growth("ring", topology, varies, least=least, what=what), next(filter(None, why), "")


def _ratio(one: Cost, other: Cost) -> tuple[float, str]:
    return one.seconds / other.seconds, one.why or other.why


def full_solution(bench: Bench) -> tuple[float, str]:
    """Time the solver on 10,000 flows that start between random hosts of a fat-tree, once they are laid out [ms]."""

    def prepare() -> Callable[[], Callable[[], float]]:
        routes = Routes(TOPOLOGIES["fat-tree"](1024))
        ends = rng.stream(0, "benchmark", "flows").integers(0, 1024, (12_000, 2))
        pairs = ends[ends[:, 0] != ends[:, 1]][:10_000]
        table = routes.table(pairs[:, 0], pairs[:, 1])

        def fresh() -> Callable[[], float]:
            store, count = Store(True, len(routes.bandwidth), table.shape[1]), len(table)
            store.links.write(0, len(routes.bandwidth), capacity=routes.bandwidth)
            store.make_room(flows=count)
            routes_of = store.add_routes(table) + np.arange(count)
            store.flows.write(0, count, route=routes_of, limit=math.inf, remaining=math.inf)
            for flow in range(count):
                store.loop.start_flow(store.state, flow, 0.0)

            def solve() -> float:
                store.loop.settle_rates(store.state, 0.0)
                return float(store.state.n_chosen)

            return solve

        return fresh

    cost = measured(prepare, bench.seconds)
    return 1e3 * cost.seconds, cost.why


def cold_command() -> tuple[float, str]:
    """Time a program that imports, builds the fat-tree, and times a ring all-reduce; the second run of it."""
    command = [sys.executable, str(FOLDER / "ring_simnet.py"), "fat-tree", "1024"]
    whole(command, 60.0)
    return _seconds(whole(command, 60.0))


def fat_tree_64() -> tuple[float, str]:
    """Time the scenario with all its policies, by the clock on the wall, as they run in processes of a server."""
    with tempfile.TemporaryDirectory() as folder:
        cost = whole([sys.executable, "-m", "simnet.cli", "run", "fat_tree_64", "--out", f"{folder}/run"], 300.0)
        return cost.wall, cost.why
