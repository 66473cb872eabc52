"""Measure collectives of PyTorch's gloo on a shaped network, as the library runs them.

    python benchmarks/shaped_collectives.py --ranks 4 --latency 1 --out rows.csv

Takes root and PyTorch, and a machine that does nothing else meanwhile. One latency and rate for all links; every
repetition is kept. The rows are those that `simnet.cost_models.calibration.measured` ships as ``shaped_gloo_again``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

from simnet.cost_models.calibration.readers import write_tidy
from simnet.validate.shapednet.namespaces import shaped_star
from simnet.validate.shapednet.rank import begin

ALGORITHMS = {"all_reduce": "ring", "all_gather": "ring", "broadcast": "binomial"}
SIZES = {4: (2**10, 2**14, 2**17, 2**20), 8: (2**10, 2**14, 2**17, 2**19)}
"""Bytes of the vector, or of each rank's part, by the number of ranks."""

WARMUP = 2

MAX_SECONDS = 120.0
"""Processor time of a rank after which it ends [s]."""


def rank(number: int, job: dict[str, Any]) -> None:
    """Run every collective, all ranks from the same moment on; rank 0 writes how long each took until the last rank."""
    begin(job["owner"], MAX_SECONDS)
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=job["meet"], rank=number, world_size=job["ranks"])
    rows = []
    for name, algorithm in ALGORITHMS.items():
        for nbytes in job["sizes"]:
            own = torch.ones(nbytes // 4)
            parts = [torch.empty_like(own) for _ in range(job["ranks"])]
            for repetition in range(-WARMUP, job["repetitions"]):
                begun, done = _once(job, name, own, parts)
                if number == 0 and repetition >= 0:
                    facts = {"collective": name, "algorithm": algorithm, "ranks": job["ranks"], "nbytes": nbytes}
                    facts["size_convention"] = "per_rank" if name == "all_gather" else "vector"
                    times = {"seconds": max(done) - min(begun), "iteration": repetition}
                    rows.append(facts | times | {"start_skew": max(begun) - min(begun)})
    if number == 0:
        Path(job["out"]).write_text(json.dumps(rows))
    distributed.barrier()


def _once(job: dict[str, Any], name: str, own: Any, parts: list[Any]) -> tuple[list[float], list[float]]:
    from torch import distributed, float64, tensor

    distributed.barrier()
    start = tensor([time.perf_counter() + job["ahead"]], dtype=float64)
    distributed.broadcast(start, 0)
    while (left := float(start) - time.perf_counter()) > 0:
        time.sleep(left / 2 if left > 1e-3 else 0)
    begun = time.perf_counter()
    if name == "all_reduce":
        distributed.all_reduce(own)
    elif name == "all_gather":
        distributed.all_gather(parts, own)
    else:
        distributed.broadcast(own, 0)
    moments: list[Any] = [None] * job["ranks"]
    distributed.all_gather_object(moments, (begun, time.perf_counter()))
    first, last = zip(*moments, strict=True)
    return list(first), list(last)


def measured(ranks: int, latency: float, bandwidth: float, repetitions: int) -> pd.DataFrame:
    """Return the rows of one setting: `latency` one way [s], `bandwidth` [byte/s]."""
    with shaped_star(ranks, latency, bandwidth) as net, tempfile.TemporaryDirectory() as name:
        out = Path(name) / "rows.json"
        job = {
            "ranks": ranks,
            "meet": f"tcp://{net.addresses[0]}:29555",
            "sizes": SIZES[ranks],
            "repetitions": repetitions,
            # Whoever hears of the start last hears of it in time.
            "ahead": 0.02 + 3 * ranks * latency,
            "owner": os.getpid(),
            "out": str(out),
        }
        alone = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lnk0"}
        command = [sys.executable, __file__, "rank", json.dumps(job)]
        processes = [net.start(one, [*command, str(one)], alone) for one in range(ranks)]
        if sum(one.wait() != 0 for one in processes):
            raise SystemExit("a rank has failed; what it said is above")
        rows = pd.DataFrame(json.loads(out.read_text()))
    return rows.assign(link_latency=latency, link_bandwidth=bandwidth)


def main() -> None:
    """Measure what is asked for, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=sorted(SIZES), required=True)
    parser.add_argument("--latency", type=float, required=True, metavar="MS", help="one way")
    parser.add_argument("--rate", type=float, default=100, metavar="MBIT/S")
    parser.add_argument("--repetitions", type=int, default=11)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    rows = measured(given.ranks, given.latency / 1e3, given.rate * 125e3, given.repetitions)
    write_tidy(rows, given.out)
    print(1e3 * rows.groupby(["collective", "nbytes"])["seconds"].describe()[["25%", "50%", "75%"]])


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(int(sys.argv[3]), json.loads(sys.argv[2]))
    else:
        main()
