"""Replay of a `Schedule` by real ranks, which send its messages and are timed.

Every rank of a job (torch.distributed with NCCL or gloo, or MPI) goes through the rounds of the same schedule: it
starts its receives and sends of a round together, and enters the next one when they are done. What is measured is the
network under exactly the messages that simnet times, sparse exchanges among them, which no benchmark of collectives
sends. Nothing is reduced or selected.

Differences from the model: a send is done when the library no longer needs its buffer, which may be before it is
delivered; a message of no bytes carries one, and fractions of bytes are rounded; ``compute`` of a round is waited for
only if asked.

Run it as ``torchrun --nproc-per-node 4 -m simnet.validate.replay --backend gloo --collective allreduce_ring --size '1
MiB' --out ring.csv``, or under ``mpirun`` with ``--backend mpi``; see ``docs/stacks.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simnet.base import units
from simnet.base.arrays import Floats
from simnet.base.errors import InputError, SimnetError, refuse_values
from simnet.cluster.measure.communicators import BACKENDS, Communicator, connect_ranks
from simnet.cluster.measure.facts import float_digest
from simnet.cluster.measure.plan import MEMORY
from simnet.collectives import registry
from simnet.cost_models.calibration.readers import write_tidy
from simnet.cost_models.calibration.readers.conventions import mpi_convention
from simnet.interchange.kinds import read_schedule
from simnet.schedule import Schedule
from simnet.studies import options

_PINGS = 12
_CONTENTS = 251


class ReplayPart(NamedTuple):
    """Message from the view of one rank: the other rank, start and end in the buffer [byte], and the message number."""

    peer: int
    first: int
    last: int
    number: int


class ReplayStep(NamedTuple):
    """What one rank does in a round: compute for a time [s], send messages and receive messages."""

    compute: float
    sends: tuple[ReplayPart, ...]
    receives: tuple[ReplayPart, ...]


class Repetition(NamedTuple):
    """One timed run of a schedule: seconds and start time of each rank by a common clock, shape (P,)."""

    seconds: Floats
    began: Floats


@dataclass(frozen=True)
class Workload:
    """Schedule to replay, and the columns that describe it in the table of results."""

    # What is sent.
    schedule: Schedule
    # Columns of its rows: ``collective``, ``nbytes`` and others.
    facts: dict[str, object]


def steps_of_rank(schedule: Schedule, rank: int) -> list[ReplayStep]:
    """Return what a rank does in each round in which it sends, receives or computes.

    Messages between two ranks keep the order of the schedule, so both sides pair them alike. Rounds share buffers.
    """
    steps: list[ReplayStep] = []
    number = 0
    for one in schedule.rounds:
        sizes = np.maximum(np.rint(one.nbytes), 1).astype(np.int64)
        outward, inward = (
            _cut_parts(np.flatnonzero(own == rank), peers, sizes, number)
            for own, peers in ((one.src, one.dst), (one.dst, one.src))
        )
        compute = float(np.broadcast_to(np.asarray(one.compute), schedule.n_ranks)[rank])
        if outward or inward or compute:
            steps.append(ReplayStep(compute, outward, inward))
        number += len(one)
    return steps


def _cut_parts(
    own: NDArray[np.int64], peers: NDArray[np.int64], sizes: NDArray[np.int64], number: int
) -> tuple[ReplayPart, ...]:
    last = np.cumsum(sizes[own])
    first = last - sizes[own]
    columns = (peers[own].tolist(), first.tolist(), last.tolist(), (own + number).tolist())
    return tuple(map(ReplayPart, *columns))


def measure_replay(
    schedule: Schedule,
    communicator: Communicator,
    *,
    repetitions: int = 10,
    warmup: int = 3,
    compute: bool = False,
    check: bool = True,
    one_clock: bool = False,
) -> list[Repetition]:
    """Execute a schedule and return its timed repetitions; every rank of the job calls this with the same schedule.

    All ranks pass a barrier before each repetition and start at a moment agreed on, by clocks compared beforehand: a
    barrier alone lets them go as far apart as its last message takes.
    """
    if repetitions < 1 or warmup < 0:
        raise ValueError(f"repetitions must be >= 1 and warmup >= 0, got {repetitions} and {warmup}")
    if schedule.n_ranks != communicator.size:
        raise InputError(f"the schedule has {schedule.n_ranks} ranks, the job {communicator.size}; they must agree")
    if np.unique(communicator.gather(np.array([_schedule_digest(schedule)]))).size > 1:
        raise InputError("the ranks do not have the same schedule")
    own = steps_of_rank(schedule, communicator.rank)
    ends = ([part.last for one in own for part in one.sends], [part.last for one in own for part in one.receives])
    lengths = [max(each, default=0) for each in ends]
    if (needed := communicator.gather(np.array([float(sum(lengths))])).max()) > MEMORY:
        shown = units.format_bytes(float(needed))
        raise InputError(f"a rank needs buffers of {shown}; at most {units.format_bytes(MEMORY)} are made")
    out, into = map(communicator.buffer, lengths)
    if check:
        _check_messages(own, communicator, out, into)
    steps = [
        (
            step.compute if compute else 0.0,
            [(part.peer, out[part.first : part.last]) for part in step.sends],
            [(part.peer, into[part.first : part.last]) for part in step.receives],
        )
        for step in own
    ]
    ahead = 0.0 if one_clock else clock_offset(communicator)
    done: list[Repetition] = []
    for repetition in range(warmup + repetitions):
        _start_together(communicator, ahead)
        began = time.perf_counter()
        for seconds, sends, receives in steps:
            if seconds:
                communicator.finish()
                _wait_until(time.perf_counter() + seconds)
            communicator.exchange(sends, receives)
        communicator.finish()
        took = time.perf_counter() - began
        times = communicator.gather(np.array([took, began - ahead]))
        if repetition >= warmup:
            done.append(Repetition(times[:, 0], times[:, 1]))
    return done


def _schedule_digest(schedule: Schedule) -> float:
    """Return a hash of a schedule's messages as a float, which ranks can compare."""
    columns = schedule.columns()
    parts = [columns[name].tobytes() for name in ("round", "src", "dst", "nbytes")]
    return float_digest(b"".join([str(schedule.n_ranks).encode(), *parts]))


def _check_messages(own: Sequence[ReplayStep], communicator: Communicator, out: Any, into: Any) -> None:
    """Send each message once, with content unique to the message; RuntimeError if a message arrives altered."""
    wrong = 0
    for step in own:
        for part in step.sends:
            communicator.put(out[part.first : part.last], _part_content(part))
        communicator.exchange(
            [(part.peer, out[part.first : part.last]) for part in step.sends],
            [(part.peer, into[part.first : part.last]) for part in step.receives],
        )
        communicator.finish()
        got = communicator.get(into)
        wrong += sum(not np.array_equal(got[part.first : part.last], _part_content(part)) for part in step.receives)
    if (total := int(communicator.gather(np.array([float(wrong)])).sum())) > 0:
        raise RuntimeError(f"{total} messages did not arrive as they were sent")


def _part_content(part: ReplayPart) -> NDArray[np.uint8]:
    return np.full(part.last - part.first, part.number % _CONTENTS, dtype=np.uint8)


def clock_offset(communicator: Communicator) -> float:
    """Return how far this rank's clock is ahead of rank 0's [s]. All ranks must call this function together.

    Rank 0 asks each rank for its time; the answer of the shortest round trip counts, as if it were given half-way.

    References
    ----------
    F. Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989.
    """
    ask, answer = communicator.buffer(1), communicator.buffer(8)
    found = np.zeros(communicator.size)
    for other in range(1, communicator.size):
        best = np.inf
        for _ in range(_PINGS):
            if communicator.rank == 0:
                asked = time.perf_counter()
                communicator.exchange([(other, ask)], [])
                communicator.exchange([], [(other, answer)])
                communicator.finish()
                trip = time.perf_counter() - asked
                if trip < best:
                    best = trip
                    found[other] = communicator.get(answer).view(np.float64)[0] - (asked + trip / 2)
            elif communicator.rank == other:
                communicator.exchange([], [(0, ask)])
                communicator.finish()
                communicator.put(answer, np.array([time.perf_counter()]).view(np.uint8))
                communicator.exchange([(0, answer)], [])
                communicator.finish()
    return float(communicator.gather(found)[0, communicator.rank])


def _start_together(communicator: Communicator, ahead: float) -> None:
    """Wait for all ranks, then until a common start time; this rank's clock is `ahead` [s] of rank 0's."""
    began = time.perf_counter()
    communicator.barrier()
    now = time.perf_counter()
    left, took = communicator.gather(np.array([now - ahead, now - began])).T
    # By then all know of it, also where some links are longer than others: the slowest rank took longer for the barrier
    # than any takes for what the gather sends.
    _wait_until(float(left.max() + max(1e-4, 2 * took.max())) + ahead)


def _wait_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        if left > 2e-3:
            time.sleep(left - 1e-3)


def table(workload: Workload, done: Sequence[Repetition], tool: str, *, per_rank: bool = False) -> pd.DataFrame:
    """Return timed repetitions of a workload as a table of measurements, a row per repetition or per rank."""
    rows: list[dict[str, object]] = []
    for index, one in enumerate(done):
        shared = workload.facts | {"ranks": workload.schedule.n_ranks, "tool": tool, "iteration": index}
        if per_rank:
            late = one.began - one.began.min()
            rows += [
                shared | {"seconds": float(taken), "rank": rank, "started": float(late[rank])}
                for rank, taken in enumerate(one.seconds)
            ]
            continue
        rows.append(
            shared
            | {
                "seconds": float(one.seconds.max()),
                "statistic": "max",
                "seconds_min": float(one.seconds.min()),
                "seconds_max": float(one.seconds.max()),
                "start_skew": float(np.ptp(one.began)),
                "elapsed": float((one.began + one.seconds).max() - one.began.min()),
            }
        )
    return pd.DataFrame(rows)


def of_collective(name: str, ranks: int, nbytes: float) -> Workload:
    """Return the workload of the collective `name`; `nbytes` means the same as the size in OSU's MPI benchmarks.

    Examples
    --------
    >>> of_collective("allgather_bruck", 4, 1000).facts
    {'collective': 'all_gather', 'algorithm': 'bruck', 'nbytes': 1000, 'size_convention': 'per_rank'}
    """
    with refuse_values(file="--collective"):
        found = registry.collective_by_name(name)
        if found.needs:
            raise ValueError(f"{name} needs more than ranks and a size: {', '.join(found.needs)}")
    facts: dict[str, object] = {
        "collective": found.operation,
        "algorithm": found.algorithm,
        "nbytes": round(nbytes),
        "size_convention": mpi_convention(found.operation),
    }
    return Workload(found.schedule(ranks, nbytes), facts)


def of_file(path: str, ranks: int) -> Workload:
    """Return the workload of a schedule file. The workload's size is the largest number of bytes that a rank sends."""
    _, schedule = read_schedule(path, n_ranks=ranks if path.endswith(".csv") else None)
    sent = schedule.bytes_sent()
    facts: dict[str, object] = {
        "collective": "exchange",
        "algorithm": Path(path).stem,
        "nbytes": round(float(sent.max(initial=0.0))),
        "size_convention": "message",
    }
    return Workload(schedule, facts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of the replay on every rank of a job, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simnet.validate.replay", description="Run schedules for real.")
    parser.add_argument("files", nargs="*", help="schedules, as simnet convert writes them: CSV, GOAL, Chakra")
    parser.add_argument("--backend", choices=BACKENDS, default="gloo")
    parser.add_argument(
        "--collective", action="append", default=[], metavar="NAME", help="as allreduce_ring; repeatable"
    )
    parser.add_argument("--size", action="append", default=[], metavar="SIZE", help="as '1 MiB'; repeatable")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--compute", action="store_true", help="wait for the compute times of the rounds")
    parser.add_argument("--no-check", action="store_true", help="do not look at what arrives beforehand")
    parser.add_argument("--per-rank", action="store_true", help="a row for every rank")
    parser.add_argument("--out", default="replay.csv", help="tidy CSV that rank 0 writes")
    given = parser.parse_args(arguments)
    communicator: Communicator | None = None
    try:
        if bool(given.collective) != bool(given.size) or not (given.files or given.collective):
            raise InputError("needs files, or --collective with --size", file="simnet.validate.replay")
        if given.repetitions < 1 or given.warmup < 0:
            raise InputError("must be >= 1, and --warmup >= 0", file="--repetitions")
        sizes = [options.quantity(text, "--size", units.size) or 0.0 for text in given.size]
        communicator = connect_ranks(given.backend)
        ranks = communicator.size
        work = [of_collective(name, ranks, nbytes) for name in given.collective for nbytes in sizes]
        work += [of_file(path, ranks) for path in given.files]
        tables = []
        for one in work:
            done = measure_replay(
                one.schedule,
                communicator,
                repetitions=given.repetitions,
                warmup=given.warmup,
                compute=given.compute,
                check=not given.no_check,
            )
            tables.append(table(one, done, communicator.tool, per_rank=given.per_rank))
        if communicator.rank == 0:
            write_tidy(pd.concat(tables, ignore_index=True), given.out)
    except SimnetError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    finally:
        if communicator is not None:
            communicator.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
