"""A ring all-reduce in simnet, as a program: `ring_simnet.py {crossbar,fat-tree} RANKS [jitter]`."""

from __future__ import annotations

import math
import sys

from programs import BANDWIDTH, LATENCY, NBYTES, report

from simnet import collectives, topologies
from simnet.network import Network


def main() -> None:
    """Run the exchange and print what it did, as JSON."""
    shape, ranks, jitter = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["jitter"]
    if shape == "crossbar":
        graph = topologies.star(ranks, LATENCY, BANDWIDTH)
    else:
        graph = topologies.fat_tree(2 * math.ceil((4 * ranks) ** (1 / 3) / 2), LATENCY, BANDWIDTH)
    schedule = collectives.allreduce_ring(ranks, NBYTES)
    mean = 0.05 * (2 * LATENCY + NBYTES / ranks / BANDWIDTH)
    network = Network(graph, jitter=(lambda draws, count: draws.exponential(mean, count)) if jitter else None)
    report(ranks, network.time(schedule).finish)


main()
