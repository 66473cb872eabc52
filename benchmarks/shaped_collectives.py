"""Measure collectives of PyTorch's gloo on a shaped network, as the library runs them.

    python benchmarks/shaped_collectives.py --latency 1,1,1,1 --rate 100,100,100,100 --out rows.csv
    python benchmarks/shaped_collectives.py --latency 20,20,20,20 --rate 20,20,20,20 --silences 1,3,10 --out rows.csv

Takes root and PyTorch. Every rank has a link of its own; every repetition is kept. The rows are those that
`simnet.cost_models.calibration.measured` ships as ``shaped_gloo_again``, ``shaped_gloo_unequal`` and
``shaped_gloo_silent``. With silences, Linux shrinks the windows of silent connections, as it does by default.
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
from simnet.validate.shapednet.links import Change
from simnet.validate.shapednet.namespaces import IDLE, Star, inside, shaped_star
from simnet.validate.shapednet.rank import begin

ALGORITHMS = {"all_reduce": "ring", "all_gather": "ring", "broadcast": "binomial"}

WARMUP = 2

MAX_SECONDS = 120.0
"""Processor time of a rank after which it ends [s]."""


def rank(number: int, job: dict[str, Any]) -> None:
    """Run every collective, all ranks from the same moment on; rank 0 writes how long each took at each rank."""
    begin(job["owner"], MAX_SECONDS)
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=job["meet"], rank=number, world_size=job["ranks"])
    rows = []
    for name in job["collectives"]:
        for nbytes in job["sizes"]:
            own = torch.ones(nbytes // 4)
            parts = [torch.empty_like(own) for _ in range(job["ranks"])]
            silences = job["silences"] or [0.0]
            ahead = [0.0] * WARMUP + [one for one in silences for _ in range(job["repetitions"])]
            for iteration, silence in enumerate(ahead, -WARMUP):
                begun, done = _once(job["ahead"] + silence, name, own, parts)
                if number == 0 and iteration >= 0:
                    facts = {"collective": name, "algorithm": ALGORITHMS[name], "ranks": job["ranks"], "nbytes": nbytes}
                    facts["size_convention"] = "per_rank" if name == "all_gather" else "vector"
                    if job["silences"]:
                        facts["silence"] = silence + job["ahead"]
                    least = min(end - start for start, end in zip(begun, done, strict=True))
                    times = {"seconds": max(done) - min(begun), "least": least, "iteration": iteration}
                    rows.append(facts | times | {"start_skew": max(begun) - min(begun)})
    if number == 0:
        Path(job["out"]).write_text(json.dumps(rows))
    distributed.barrier()


def _once(ahead: float, name: str, own: Any, parts: list[Any]) -> tuple[list[float], list[float]]:
    from torch import distributed, float64, tensor

    distributed.barrier()
    start = tensor([time.perf_counter() + ahead], dtype=float64)
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
    moments: list[Any] = [None] * len(parts)
    distributed.all_gather_object(moments, (begun, time.perf_counter()))
    first, last = zip(*moments, strict=True)
    return list(first), list(last)


def measured(links: Change, ranks: int, job: dict[str, Any]) -> pd.DataFrame:
    """Return the rows of one setting of links; `job` has sizes, repetitions, collectives and silences."""
    with shaped_star(ranks, *IDLE) as net, tempfile.TemporaryDirectory() as name:
        net.change(links)
        if job["silences"]:
            _shrink_silent_windows(net)
        out = Path(name) / "rows.json"
        job = job | {
            "ranks": ranks,
            "meet": f"tcp://{net.addresses[0]}:29555",
            # Whoever hears of the start last hears of it in time.
            "ahead": 0.02 + 3 * ranks * max(latency for latency, _ in links.of_hosts(ranks)),
            "owner": os.getpid(),
            "out": str(out),
        }
        alone = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lnk0"}
        command = [sys.executable, __file__, "rank", json.dumps(job)]
        processes = [net.start(one, [*command, str(one)], alone) for one in range(ranks)]
        if sum(one.wait() != 0 for one in processes):
            raise SystemExit("a rank has failed; what it said is above")
        rows = pd.DataFrame(json.loads(out.read_text()))
        drops = net.traffic().drops
    return rows.assign(**links.columns(ranks), drops=drops)


def _shrink_silent_windows(net: Star) -> None:
    for namespace in net.namespaces:
        with inside(namespace):
            Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle").write_text("1", encoding="ascii")


def main() -> None:
    """Measure what is asked for, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, what in (("latency", "one way [ms], of each rank"), ("rate", "[Mbit/s], of each rank")):
        parser.add_argument(f"--{name}", type=_numbers, required=True, metavar="A,B,...", help=what)
    parser.add_argument("--sizes", type=_numbers, default=(2.0**10, 2.0**14, 2.0**17, 2.0**20), metavar="BYTES,...")
    parser.add_argument("--silences", type=_numbers, default=(), metavar="SECONDS,...")
    parser.add_argument("--collectives", type=lambda text: text.split(","), default=list(ALGORITHMS), metavar="A,B")
    parser.add_argument("--repetitions", type=int, default=11)
    parser.add_argument("--run", default="", help="name of the setting, a column of the rows")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    links = Change(0.0, tuple(one / 1e3 for one in given.latency), tuple(one * 125e3 for one in given.rate))
    job = {"sizes": [int(one) for one in given.sizes], "repetitions": given.repetitions}
    rows = measured(links, len(given.latency), job | {"collectives": given.collectives, "silences": given.silences})
    write_tidy(rows.assign(run=given.run) if given.run else rows, given.out)
    by = ["collective", "nbytes", *(["silence"] if given.silences else [])]
    print(1e3 * rows.groupby(by)["seconds"].describe()[["25%", "50%", "75%"]])


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(one) for one in text.split(","))


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(int(sys.argv[3]), json.loads(sys.argv[2]))
    else:
        main()
