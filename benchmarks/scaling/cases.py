"""The exchanges to time: a schedule on a topology, and what varies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import networkx as nx
import numpy as np

from scaling.measuring import Cost, measured
from scaling.programs import BANDWIDTH, LATENCY, NBYTES
from simnet import collectives, topologies
from simnet.base import rng
from simnet.network import Network
from simnet.network.weather import Weather, steps
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models.split_reduce import split_schedule
from simnet.sparsifier_models.wire import Wire

RANKS = (64, 256, 1024, 4096)
CHANGES = 10_000
"""Changes of each link's bandwidth under weather; each link has a course of its own."""
MOST_MESSAGES = 40_000_000
"""A schedule of more messages is left out for its memory alone."""


def oktopk(ranks: int, nbytes: float) -> Schedule:
    """Return the messages of an exchange of Ok-Topk between two recuts, at a density of 1 %.

    Each worker sends each other one what it selected of its region, eight bytes an entry, eight at a time; then
    everybody gathers what each owner keeps. How many entries that are is drawn, with the mean of equal regions.
    """
    kept = 0.01 * nbytes / 4
    draws = rng.stream(0, "benchmark", "oktopk")
    entries = draws.poisson(kept / ranks, (ranks, ranks))
    wire = Wire(4, 4, 4, released=False)
    sizes = collectives.allgatherv_recursive_doubling(np.full(ranks, wire.count_bytes))
    gathered = collectives.allgatherv_recursive_doubling(draws.poisson(kept / ranks, ranks) * wire.entry_bytes)
    return split_schedule(entries, 8, wire).concat(sizes, gathered)


SCHEDULES: dict[str, Callable[[int, float], Schedule]] = {
    "ring": collectives.allreduce_ring,
    "tree": collectives.allreduce_tree,
    "all-gather": lambda ranks, nbytes: collectives.allgather_recursive_doubling(ranks, nbytes / ranks),
    "Ok-Topk": oktopk,
    "all-to-all": lambda ranks, nbytes: collectives.alltoall_pairwise(ranks, nbytes / ranks),
}
TOPOLOGIES: dict[str, Callable[[int], nx.DiGraph[Any]]] = {
    "crossbar": lambda ranks: topologies.star(ranks, LATENCY, BANDWIDTH),
    "ring": lambda ranks: topologies.ring(ranks, LATENCY, BANDWIDTH),
    "fat-tree": lambda ranks: topologies.fat_tree(2 * math.ceil((4 * ranks) ** (1 / 3) / 2), LATENCY, BANDWIDTH),
}
VARIES = {
    "in step": "nothing varies",
    "starts": "each rank enters at a random time within 1 ms",
    "compute": "each rank computes before each round, for an exponential time with a mean of 5 % of a message",
    "jitter": "each message has an extra latency, exponential with a mean of 5 % of a message: each is its own event",
    "weather": f"the bandwidth of each link changes every millisecond, {CHANGES:,} times, between half and all of it; "
    "the second exchange on the network, as the first takes in the weather, some 30 us a link",
    "weather compute": "both: ranks compute before each round, and each link changes every millisecond",
    "storm": f"the bandwidth of each link changes {CHANGES:,} times within the exchange, between half and all of it",
    "scattered": "ranks are placed at random, so that messages meet, on equal-cost paths too",
    "scattered jitter": "both: messages meet, and each is its own event",
}


@dataclass(frozen=True)
class Case:
    """A schedule on a topology, what varies, and between how many ranks."""

    schedule: str
    topology: str
    varies: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.schedule} {self.topology} {self.varies} {self.ranks}"


def cases(ranks: tuple[int, ...]) -> Iterator[Case]:
    """Yield all cases, those of a series one after another, from few ranks to many."""
    for schedule, topology, varies in itertools.product(SCHEDULES, TOPOLOGIES, VARIES):
        # Where all hosts are alike, it does not matter who is where. All-to-all takes long: what it shares with the
        # others is left to them.
        if topology == "crossbar" and "scattered" in varies:
            continue
        if schedule == "all-to-all" and varies not in ("in step", "jitter"):
            continue
        yield from (Case(schedule, topology, varies, few) for few in ranks)


@cache
def _graph(topology: str, ranks: int) -> nx.DiGraph[Any]:
    return TOPOLOGIES[topology](ranks)


def message_seconds(schedule: Schedule) -> float:
    """Return how long the mean message of a schedule takes over two idle links [s]."""
    return 2 * LATENCY + schedule.nbytes / max(schedule.n_messages, 1) / BANDWIDTH


def _computing(schedule: Schedule, mean: float) -> Schedule:
    draws, P = rng.stream(0, "benchmark", "compute"), schedule.n_ranks
    return Schedule(
        P, [Round(one.src, one.dst, one.nbytes, draws.exponential(mean, P), one.phase) for one in schedule.rounds]
    )


def _weather(graph: nx.DiGraph[Any], schedule: Schedule, storm: bool) -> dict[Any, Weather]:
    """Return bandwidths that change every millisecond, or as often until the exchange should be over."""
    draws = rng.stream(0, "benchmark", "weather")
    times = 1e-3 * np.arange(CHANGES)
    if storm:
        times = np.linspace(0.0, _alone(schedule), CHANGES)
    return {link: Weather(steps(times, BANDWIDTH * draws.uniform(0.5, 1.0, CHANGES))) for link in graph.edges}


def _alone(schedule: Schedule) -> float:
    """Return about how long a schedule takes on links that change [s]."""
    biggest = {id(one): one.nbytes.max(initial=0.0) for one in schedule.rounds}
    return 4 / 3 * sum(2 * LATENCY + biggest[id(one)] / BANDWIDTH for one in schedule.rounds)


def prepared(case: Case) -> Callable[[], Callable[[], dict[str, float]]]:
    """Make the schedule of a case; return what makes a network without memories, which returns the work to time."""
    schedule = SCHEDULES[case.schedule](case.ranks, NBYTES)
    mean = 0.05 * message_seconds(schedule)
    if "compute" in case.varies:
        schedule = _computing(schedule, mean)
    graph, draws = _graph(case.topology, case.ranks), rng.stream(0, "benchmark", "ranks")
    hosts = sum(isinstance(node, int) for node in graph)
    placement = draws.permutation(hosts)[: case.ranks] if "scattered" in case.varies else None
    start = draws.uniform(0.0, 1e-3, case.ranks) if case.varies == "starts" else 0.0
    stormy = case.varies == "storm"
    weather = _weather(graph, schedule, stormy) if stormy or "weather" in case.varies else None
    jitter = (lambda noise, count: noise.exponential(mean, count)) if "jitter" in case.varies else None
    count = schedule.n_messages

    def fresh() -> Callable[[], dict[str, float]]:
        network = Network(graph, weather, jitter=jitter)
        if weather is not None:
            # What is known of the weather is kept from exchange to exchange; taking it in first is told apart.
            network.time(schedule, start, placement=placement)
        return lambda: {"messages": count, "finish": network.time(schedule, start, placement=placement).finish}

    return fresh


def messages_of(schedule: str, ranks: int) -> float:
    """Return about how many messages a schedule has, without making it."""
    per_rank = {"ring": 2 * ranks, "tree": 4, "all-gather": 2 * math.log2(ranks)}
    # In the others each rank sends to each other one.
    return ranks * per_rank.get(schedule, ranks)


class Bench:
    """Measures cases, each once.

    Parameters
    ----------
    seconds : float
        How long a case may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.costs: dict[Case, Cost] = {}
        warm_up()

    def __call__(self, case: Case) -> Cost:
        """Return what a case costs; one that is not measured says why."""
        if case not in self.costs:
            self.costs[case] = self._measure(case)
        return self.costs[case]

    def _measure(self, case: Case) -> Cost:
        if messages_of(case.schedule, case.ranks) > MOST_MESSAGES and case.varies != "in step":
            return Cost(why=f"more than {MOST_MESSAGES:,} messages")
        for fewer, cost in self.costs.items():
            same = (fewer.schedule, fewer.topology, fewer.varies) == (case.schedule, case.topology, case.varies)
            if same and fewer.ranks < case.ranks and cost.why:
                return Cost(why=f"{fewer.ranks:,} ranks: {cost.why.split(': ')[-1]}")
        _graph(case.topology, case.ranks)
        return measured(lambda: prepared(case), self.seconds)

    def growth(self, *series: str, least: int = 0, what: str = "seconds") -> float:
        """Return to which power of the number of ranks the CPU time of a series grew, or its `what`.

        From the smallest to the largest number of ranks measured, from `least` on; nan with fewer than two.
        """
        points = {
            case.ranks: getattr(cost, what)
            for case, cost in self.costs.items()
            if (case.schedule, case.topology, case.varies) == series and case.ranks >= least and not cost.why
        }
        if len(points) < 2 or min(points.values()) <= 0:
            return math.nan
        few, many = min(points), max(points)
        return math.log(points[many] / points[few]) / math.log(many / few)


def warm_up() -> None:
    """Let everything be imported and compiled before something is timed."""
    for topology, varies, ranks in [
        ("crossbar", "starts", 320),
        ("crossbar", "weather", 64),
        ("fat-tree", "jitter", 32),
    ]:
        prepared(Case("ring", topology, varies, ranks))()()
    prepared(Case("ring", "fat-tree", "scattered jitter", 16))()()
