"""By how much the time of an exchange moves when what goes in moves by a rounding: where messages meet, small grows.

    python benchmarks/sensitivity.py [--ranks 64,256]

Each schedule of `benchmarks/network.py` that meets itself is timed on its fat-tree, and again with the latency of one
link longer by 1e-12 of it. Prints by how much the end moves, relative, and by how much single messages do at the most.
"""

from __future__ import annotations

import argparse

import numpy as np
from scaling.cases import SCHEDULES, TOPOLOGIES
from scaling.programs import NBYTES

from simnet.base import rng
from simnet.network import Network

BY = 1e-12


def moves(name: str, ranks: int, scattered: bool) -> tuple[float, float]:
    """Return by how much the end and, at the most, a message of an exchange move, over the end."""
    schedule, arrived = SCHEDULES[name](ranks, NBYTES), []
    for factor in (1.0, 1.0 + BY):
        graph = TOPOLOGIES["fat-tree"](ranks)
        hosts = sum(isinstance(node, int) for node in graph)
        placement = rng.stream(0, "benchmark", "ranks").permutation(hosts)[:ranks] if scattered else None
        first = next(iter(graph.edges))
        graph.edges[first]["latency"] *= factor
        timing = Network(graph).time(schedule, placement=placement, messages=True)
        assert timing.messages is not None
        arrived.append(timing.messages.arrived)
    end = float(arrived[0].max())
    return abs(float(arrived[1].max()) - end) / end, float(np.abs(arrived[1] - arrived[0]).max()) / end


def main() -> None:
    """Print a line for each exchange."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="64,256", help="numbers of ranks, by commas [64,256]")
    print(f"{'exchange':24}{'ranks':>7}{'end moves':>12}{'a message':>12}")
    for ranks in map(int, parser.parse_args().ranks.split(",")):
        for name, scattered in (("ring", True), ("Ok-Topk", False), ("all-to-all", False)):
            end, message = moves(name, ranks, scattered)
            print(f"{name + (', scattered' if scattered else ''):24}{ranks:7}{end:12.1e}{message:12.1e}", flush=True)


if __name__ == "__main__":
    main()
