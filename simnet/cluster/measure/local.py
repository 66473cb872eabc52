"""A measurement on this machine, whose ranks are local processes."""

from __future__ import annotations

import os
import socket
import sys

from simnet.base.errors import InputError, SimnetError
from simnet.base.processes import Pool, Report
from simnet.cluster.measure.running import Say
from simnet.cluster.measure.session import Session, run_session

MAX_PROCESSES = 64
"""Maximum number of local ranks."""


def on_this_machine(processes: int, session: Session, say: Say) -> list[str]:
    """Measure among 2 to `MAX_PROCESSES` local processes over the loopback interface; return remarks."""
    if session.backend == "mpi":
        raise InputError("starts ranks of gloo or nccl; those of MPI start with mpirun", file="--processes")
    if not 2 <= processes <= MAX_PROCESSES:
        raise InputError(f"must be a whole number from 2 to {MAX_PROCESSES}, got {processes}", file="--processes")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    tasks = [(rank, processes, port, session) for rank in range(processes)]
    told = ""

    def show(rank: int, text: str) -> None:
        nonlocal told
        if text != told:
            told = text
            say(text)

    lines: list[str] = []
    with Pool(processes) as pool:
        for rank, outcome in pool.each(_run_rank, tasks, show):
            if outcome.kind == "refused":
                raise SimnetError(outcome.content)
            if outcome.kind != "done":
                raise InputError(f"{outcome.kind}: {outcome.content}", file=f"rank {rank}")
            lines += outcome.content
    return lines


def _run_rank(rank: int, ranks: int, port: int, session: Session, report: Report) -> list[str]:
    """Run one rank of a local measurement in this process, and return its remarks."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    try:
        return run_session(session, report)
    except SystemExit:
        return []
