"""A ring all-reduce written directly in SimPy, as a program: `ring_simpy.py RANKS`.

One process per rank, one timeout per message, one event per arrival; links are never shared, so this holds for a
crossbar only. It is what one writes first, not the fastest that SimPy can do.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import simpy
from programs import BANDWIDTH, LATENCY, NBYTES, report


def main() -> None:
    """Run the exchange and print what it did, as JSON."""
    ranks = int(sys.argv[1])
    env = simpy.Environment()
    inboxes = [simpy.Store(env) for _ in range(ranks)]
    seconds = LATENCY + NBYTES / ranks / BANDWIDTH

    def message(number: int, rank: int) -> Generator[simpy.Event, None, None]:
        yield env.timeout(seconds)
        inboxes[(rank + 1) % ranks].put(number)

    def one_rank(rank: int) -> Generator[simpy.Event, None, None]:
        for number in range(2 * (ranks - 1)):
            sent = env.process(message(number, rank))
            yield inboxes[rank].get()
            yield sent

    for rank in range(ranks):
        env.process(one_rank(rank))
    env.run()
    report(ranks, env.now)


main()
