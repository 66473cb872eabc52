"""Measure how fast the network times schedules: CPU seconds, messages per second, growth with the number of ranks.

Run ``python benchmarks/network.py [--quick]``. Each figure is the best of three, in one process on one core; imports
and compilation are left out, the schedule and the network are made before. ``in step``: nothing varies; ``starts``:
ranks enter at random times; ``messages``: every message has a random extra latency, so that each is an event of its
own. Cases of more than `MOST` messages are left out where the vectorised clock cannot time them.
"""

from __future__ import annotations

import argparse
import math
import time
import tracemalloc
from collections.abc import Callable

import networkx as nx
import numpy as np

import topologies
from simnet import collectives, costs
from simnet.errors import SimnetError
from simnet.network import Network
from simnet.schedule import Schedule
from sparsifier_models import create

LATENCY, BANDWIDTH, NBYTES = 10e-6, 1.25e9, 100 * 2**20
RANKS = (64, 256, 1024, 4096)
MOST = 5_000
TARGETS = {("ring", "crossbar", "in step", 1024): 0.07, ("ring", "crossbar", "starts", 1024): 0.15}
"""CPU seconds that a case may take."""


def oktopk(ranks: int, _: float) -> Schedule:
    """Return the messages of an exchange of Ok-Topk after its thresholds are known."""
    n = max(20_000, 20 * ranks)
    model, draws = create("oktopk", ranks, n, 0.01), np.random.default_rng(0)
    for _step in range(2):
        exchange = model.exchange(draws.standard_normal((ranks, n)).astype(np.float32))
    return exchange.schedule


SCHEDULES: dict[str, Callable[[int, float], Schedule]] = {
    "ring": collectives.allreduce_ring,
    "tree": collectives.allreduce_tree,
    "all-gather": collectives.allgather_recursive_doubling,
    "Ok-Topk": oktopk,
}
TOPOLOGIES: dict[str, Callable[[int], nx.DiGraph]] = {
    "crossbar": lambda ranks: topologies.star(ranks, LATENCY, BANDWIDTH),
    "ring": lambda ranks: topologies.ring(ranks, LATENCY, BANDWIDTH),
    "fat-tree": lambda ranks: topologies.fat_tree(2 * math.ceil((4 * ranks) ** (1 / 3) / 2), LATENCY, BANDWIDTH),
}


def best_seconds(call: Callable[[], object]) -> float:
    """Return the least CPU time of three calls."""
    best = math.inf
    for _ in range(3):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def peak_memory(call: Callable[[], object]) -> int:
    """Return the most bytes that a call allocates at a time."""
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def can_be_timed(network: Network, schedule: Schedule) -> bool:
    """Whether a case is small, or the vectorised clock can time it."""
    if schedule.n_messages <= MOST:
        return True
    alone = Network(network.graph, engine="vectorised", jitter=network.jitter)
    if max(map(len, schedule.rounds)) > MOST:
        return False
    try:
        alone.time(schedule)
    except SimnetError:
        return False
    return True


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer ranks")
    counts = RANKS[:2] if parser.parse_args().quick else RANKS
    warm = Network(topologies.star(2, LATENCY, BANDWIDTH))
    warm.time(collectives.allreduce_ring(2, 1.0))
    print(f"{'schedule':11}{'topology':10}{'varies':10}{'ranks':>6}{'messages':>11}{'CPU s':>9}{'msg/s':>11}{'MB':>8}")
    for kind, make in SCHEDULES.items():
        for shape, build in TOPOLOGIES.items():
            for varies in ("in step", "starts", "messages"):
                seconds: dict[int, float] = {}
                for ranks in counts:
                    if kind == "Ok-Topk" and ranks > 256:
                        continue
                    schedule = make(ranks, NBYTES)
                    jitter = (lambda draws, n: draws.exponential(1e-6, n)) if varies == "messages" else None
                    network = Network(build(ranks), jitter=jitter)
                    start = np.random.default_rng(0).random(ranks) * (1e-3 if varies == "starts" else 0.0)
                    if not can_be_timed(network, schedule):
                        continue
                    seconds[ranks] = best_seconds(lambda n=network, s=schedule, t=start: n.time(s, start=t))
                    used = peak_memory(lambda n=network, s=schedule, t=start: n.time(s, start=t))
                    count = schedule.n_messages
                    limit = TARGETS.get((kind, shape, varies, ranks))
                    verdict = "" if limit is None else f"  <= {limit} {'PASS' if seconds[ranks] <= limit else 'FAIL'}"
                    print(
                        f"{kind:11}{shape:10}{varies:10}{ranks:6}{count:11}{seconds[ranks]:9.4f}"
                        f"{count / seconds[ranks]:11.3g}{used / 1e6:8.1f}{verdict}"
                    )
                    if (kind, shape, varies) == ("ring", "crossbar", "in step"):
                        exact = float(costs.ring_allreduce(LATENCY, 1 / BANDWIDTH, NBYTES, ranks))
                        assert math.isclose(network.time(schedule).finish, exact, rel_tol=1e-9)
                if len(seconds) > 1:
                    (few, least), (many, most) = min(seconds.items()), max(seconds.items())
                    print(f"{'':31}growth: ranks to the power of {math.log(most / least) / math.log(many / few):.2f}")


if __name__ == "__main__":
    main()
