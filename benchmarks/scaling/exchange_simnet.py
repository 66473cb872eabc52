"""A schedule in simnet, as a program: `exchange_simnet.py {crossbar,fat-tree} RANKS TABLE.csv JITTER`.

Takes what `exchange_s4u.cpp` takes: TABLE.csv is what simnet writes of a schedule, JITTER the mean of an exponential
time that a rank works before each of its rounds [s]; 0 for none.
"""

from __future__ import annotations

import json
import math
import sys
import time

import numpy as np
from programs import BANDWIDTH, LATENCY, peak_memory

from simnet import topologies
from simnet.interchange.messages_csv import read_messages
from simnet.network import Network


def main() -> None:
    """Run the exchange and print what it did, as JSON."""
    shape, ranks, jitter = sys.argv[1], int(sys.argv[2]), float(sys.argv[4])
    schedule = read_messages(sys.argv[3], ranks)
    if jitter:
        draws = np.random.default_rng(0)
        schedule = schedule.with_work({n: draws.exponential(jitter, ranks) for n in range(len(schedule.rounds))})
    if shape == "crossbar":
        network = Network(topologies.star(ranks, LATENCY, BANDWIDTH))
    else:
        network = Network(topologies.fat_tree(2 * math.ceil((4 * ranks) ** (1 / 3) / 2), LATENCY, BANDWIDTH))
    before = time.process_time()
    finish = network.time(schedule).finish
    engine = time.process_time() - before
    print(json.dumps({"messages": schedule.n_messages, "finish": finish, "memory": peak_memory(), "engine": engine}))


main()
