"""A rank process on a shaped network: it replays the workloads of a job file, and rank 0 writes the times.

Run by `simnet.validate.shapednet.experiment`: ``python -m simnet.validate.shapednet.worker JOB.json [RANK]``; MPI tells
the rank.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from simnet.cluster.measure.communicators import Communicator, MpiCommunicator, TorchCommunicator
from simnet.cost_models.calibration.readers import write_tidy
from simnet.interchange import read_messages
from simnet.validate.replay import Workload, measure_replay, table
from simnet.validate.shapednet.rank import begin, meet_at
from simnet.validate.shapednet.sockets import SocketCommunicator


def main(job_file: str, rank: int = 0) -> None:
    """Run the workloads of a job file at one rank, one after the other."""
    job: dict[str, Any] = json.loads(Path(job_file).read_text(encoding="utf-8"))
    begin(job["owner"], job["limit"])
    communicator = _connect_rank(job, rank)
    tables = []
    for one in job["work"]:
        work = Workload(read_messages(one["schedule"], n_ranks=communicator.size), one["facts"])
        done = measure_replay(
            work.schedule,
            communicator,
            repetitions=one["repetitions"],
            warmup=one["warmup"],
            check=False,
            one_clock=True,
        )
        rows = table(work, done, communicator.tool)
        rows["began"] = [float(each.began.min()) for each in done]
        tables.append(rows)
    if communicator.rank == 0:
        part = Path(f"{job['out']}.part")
        write_tidy(pd.concat(tables, ignore_index=True), part)
        part.replace(job["out"])
    communicator.barrier()
    communicator.close()


def _connect_rank(job: dict[str, Any], rank: int) -> Communicator:
    addresses = job["addresses"]
    if job["backend"] == "tcp":
        return SocketCommunicator(rank, addresses, Path(job["control"]))
    if job["backend"] == "mpich":
        joined = MpiCommunicator()
        joined.tool = "replay-mpich"
        return joined
    meet_at(addresses[0])
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(addresses))}
    return TorchCommunicator("gloo")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
