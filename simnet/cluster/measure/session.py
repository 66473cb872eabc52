"""A measurement session at one rank, from joining the job to the file that rank 0 writes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from simnet.base import units
from simnet.base.errors import InputError, SimnetError
from simnet.base.file_io import refuse_existing, stage_files
from simnet.base.processes import Pool, Report
from simnet.cluster.measure import facts
from simnet.cluster.measure.communicators import Communicator, connect_ranks
from simnet.cluster.measure.plan import ELEMENT, Wanted, plan_curves
from simnet.cluster.measure.running import MeasuredRows, Say, measure_curves
from simnet.cost_models.calibration.device import GRADIENT_LENGTHS, measure_device, profile_yaml
from simnet.cost_models.calibration.readers import write_tidy
from simnet.cost_models.costs.devices import KERNEL_METHODS

T = TypeVar("T")

JOINING = 120.0
"""Time limit for all ranks to join the job [s]."""

KERNELS = 0.2
"""Share of the time budget for sparsifier kernels, if they are measured."""


class _AgreedError(InputError):
    """An error that all ranks know, so that each rank exits by itself and no rank has to be terminated."""


@dataclass(frozen=True)
class Session:
    """The settings of a measurement session: output files, backend, measurements, and time budget [s]."""

    # The tidy CSV to write.
    out: Path
    # The carrier of messages.
    backend: str
    # Collectives, sizes and groups.
    wanted: Wanted
    # The time for all of it [s].
    seconds: float
    # A device profile to write, of the kernels of sparsifiers at rank 0.
    device: Path | None = None
    # If true, files may be replaced.
    force: bool = False

    @property
    def files(self) -> list[Path]:
        """The files that the session writes."""
        return [self.out, *([self.device] if self.device is not None else [])]


def run_session(session: Session, say: Say) -> list[str]:
    """Join the job, measure, and write the files; return remarks at rank 0. Every rank calls this.

    `say` reports the progress in lines of text, at rank 0.
    """
    # No rank waits for others longer than all of it takes.
    communicator = connect_ranks(session.backend, session.seconds + JOINING)
    try:
        return _join_session(communicator, session, say if communicator.rank == 0 else lambda text: None)
    except _AgreedError:
        raise
    except Exception as error:
        communicator.abort(str(error))
        raise
    finally:
        communicator.close()


def _join_session(communicator: Communicator, session: Session, say: Say) -> list[str]:
    first = communicator.rank == 0
    _agree_on(communicator, lambda: refuse_existing(session.files, session.force) if first else None)
    node_of = facts.node_of_ranks(communicator)
    wanted = _agree_on(communicator, lambda: plan_curves(session.wanted, node_of))
    told = facts.describe_job(communicator, node_of, session.backend)
    cards = facts.cards_in_use(communicator)
    for_kernels = KERNELS * session.seconds if session.device is not None else 0.0
    points = sum(len(one.sizes) for one in wanted)
    limit = units.format_seconds(session.seconds)
    say(f"{len(wanted)} curves with {points:,} sizes, ranks {facts.describe_placement(node_of)}: at most {limit}")
    found = measure_curves(communicator, wanted, session.seconds - for_kernels, say)
    common = (communicator.library, cards)
    return _agree_on(communicator, lambda: _write_session(session, found, told, common, for_kernels) if first else [])


def _agree_on(communicator: Communicator, work: Callable[[], T]) -> T:
    """Call `work` at every rank. After an InputError anywhere, the first rank that has one raises it; others exit."""
    refusal: InputError | None = None
    try:
        done = work()
    except InputError as error:
        refusal = error
    refused = communicator.gather(np.array([float(refusal is not None)]))[:, 0]
    if refusal is not None and communicator.rank == refused.argmax():
        raise _AgreedError(refusal.message, file=refusal.file, line=refusal.line, field=refusal.field)
    if refused.any():
        raise SystemExit(2)
    return done


def _write_session(
    session: Session, found: MeasuredRows, told: Sequence[str], common: tuple[str, int], for_kernels: float
) -> list[str]:
    """Write the measured table and, if wanted, the device profile; return remarks."""
    if not found.rows:
        raise InputError(f"nothing could be measured; the first reason: {found.left_out[0]}", file="simnet measure")
    remarks = [*told, *(f"left out: {one}" for one in found.left_out)]
    with stage_files(session.files, session.force) as folder:
        if session.device is not None:
            largest = max(GRADIENT_LENGTHS[0], round(session.wanted.largest / ELEMENT))
            lengths = sum(one <= largest for one in GRADIENT_LENGTHS)
            library = "cuda" if session.backend == "nccl" else None
            each = min(0.25, max(1e-3, for_kernels / (lengths * len(KERNEL_METHODS))))
            profile = measure_device(session.device.stem, library, largest=max(largest, 10_000), budget=each)
            (folder / session.device.name).write_text(profile_yaml(profile), encoding="utf-8")
        write_tidy(measured_table(found.rows, *common), folder / session.out.name, remarks)
    lines = [f"left out: {one}" for one in found.left_out]
    wrong = sorted({f"{row['collective']} of {row['ranks']} ranks" for row in found.rows if row["wrong"]})
    lines += [f"warning: results were wrong: {', '.join(wrong)}"] if wrong else []
    return [*lines, f"Written: {', '.join(map(str, session.files))}, {len(found.rows):,} rows"]


def measured_table(rows: Sequence[dict[str, Any]], library: str, cards: int = 0) -> pd.DataFrame:
    """Return measured rows as a table, with ranks per node, the library, and the number of network cards unless 0."""
    made = pd.DataFrame(rows)
    each = made["ranks"] // made["nodes"]
    made["ranks_per_node"] = each.where(each * made["nodes"] == made["ranks"]).astype("Int64")
    made["tool"] = library
    if cards:
        made["network_cards"] = cards
    if library not in ("gloo", "nccl"):
        # Nobody has raised its eager limit.
        made["profile"] = "default"
    return made


MAX_PROCESSES = 64
"""Maximum number of local ranks."""


def on_this_machine(processes: int, session: Session, say: Say) -> list[str]:
    """Measure collectives among `processes` local processes over the loopback interface; return remarks."""
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
