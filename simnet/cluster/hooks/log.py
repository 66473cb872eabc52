"""Times of the stages of iterations on a rank, written as CSV rows, and the clocks that measure them.

On a GPU a moment is an event of the stream, so nothing waits for the device: a row is written after its last event.
"""

from __future__ import annotations

import csv
import time
from collections import deque
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

from simnet.base.errors import InputError
from simnet.base.file_io import explain_write_errors
from simnet.base.spreadsheets import guard_cell
from simnet.cluster.lazy_torch import torch

if TYPE_CHECKING:
    from simnet.cluster.hooks.messages import HookMessage

Mark: TypeAlias = Any
"""A moment: seconds of the host, or an event of a GPU."""

COLUMNS = (
    "iteration",
    "exchange",
    "density",
    "began_s",
    "compute_s",
    "select_s",
    "messages_s",
    "merge_s",
    "exposed_s",
    "update_s",
    "total_s",
)
"""Of the file ``rank_<r>.csv``, one row per iteration, in seconds.

=================  ====================================================================================================
``exchange``       label of the exchange, and ``density`` the fraction that it keeps
``began_s``        when the iteration began, since the first one did
``compute_s``      forward and backward pass, without what the hook does between
``select_s``       what the hook does before the first message of each bucket, summed over the buckets
``messages_s``     time in which a message is under way, waiting for other ranks included
``merge_s``        what is done between messages and after the last one of a bucket, summed over the buckets
``exposed_s``      from when the last bucket was handed over until all exchanges were done
``update_s``       the optimizer
``total_s``        all of it
=================  ====================================================================================================
"""


class StageClock:
    """Clock of the processor: it marks moments, and returns the seconds between two marks."""

    def mark(self) -> Mark:
        """Return the current time [s]."""
        return time.perf_counter()

    def seconds(self, first: Mark, last: Mark) -> float:
        """Return the time between two marks [s]."""
        return float(last - first)

    def passed(self, mark: Mark) -> bool:
        """Return True, as marks of the processor's clock always lie in the past."""
        return True


class EventClock(StageClock):
    """Clock of a GPU: its marks are CUDA events on the current stream."""

    def mark(self) -> Mark:
        """Return a CUDA event recorded on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: Mark, last: Mark) -> float:
        """Return the time between two events that have completed [s]."""
        return float(first.elapsed_time(last)) / 1e3

    def passed(self, mark: Mark) -> bool:
        """Return whether the GPU has reached the event `mark`."""
        return bool(mark.query())


class LoggedSpan(NamedTuple):
    """The marks that a clock made at the start and the end of a stage."""

    began: Mark
    ended: Mark


@dataclass
class LoggedIteration:
    """The marks of an iteration's stages and messages on one rank."""

    number: int
    exchange: str
    density: float
    # The hook's work on each bucket before its first message, and the rest of its exchange.
    selecting: list[LoggedSpan] = field(default_factory=list)
    exchanging: list[LoggedSpan] = field(default_factory=list)
    # The messages of all buckets.
    messages: list[HookMessage] = field(default_factory=list)

    def parts(self, clock: StageClock) -> tuple[list[float], float, float]:
        """Return the selection time of each bucket, the total time of messages, and that of other exchange work [s]."""
        communicate = sum(clock.seconds(message.began, message.ended) for message in self.messages)
        merge = sum(clock.seconds(*span) for span in self.exchanging) - communicate
        return [clock.seconds(*span) for span in self.selecting], communicate, merge


def open_log(path: Path, buffering: int = -1) -> IO[str]:
    """Create a log file and its folder, and return the open file; InputError if the file exists."""
    if path.exists():
        raise InputError("is there already; choose another folder for the log", file=str(path))
    with explain_write_errors(path, advice=""):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("x", buffering, newline="")


class IterationLog:
    """The CSV log ``rank_<r>.csv`` of one rank; InputError if the file exists or cannot be created."""

    def __init__(self, folder: str | PathLike[str], rank: int, clock: StageClock) -> None:
        self._file = open_log(Path(folder) / f"rank_{rank}.csv")
        self._rows, self._clock = csv.writer(self._file, lineterminator="\n"), clock
        self._rows.writerow(COLUMNS)
        self._waiting: deque[tuple[LoggedIteration, float, Mark, Mark, Mark]] = deque()

    def add(self, one: LoggedIteration, began_s: float, began: Mark, computed: Mark, ended: Mark) -> None:
        """Queue an iteration for the log; write the queued iterations that the device has completed."""
        self._waiting.append((one, began_s, began, computed, ended))
        while self._waiting and self._clock.passed(self._waiting[0][-1]):
            self._write(*self._waiting.popleft())

    def close(self) -> None:
        """Write all queued iterations and close the file; the device must have finished."""
        while self._waiting:
            self._write(*self._waiting.popleft())
        self._file.close()

    def _write(self, one: LoggedIteration, began_s: float, began: Mark, computed: Mark, ended: Mark) -> None:
        seconds = self._clock.seconds
        selecting, communicate, merge = one.parts(self._clock)
        select = sum(selecting)
        wait = seconds(one.selecting[-1].ended, computed) if one.selecting else 0.0
        compute = seconds(began, computed) - wait - select
        measured = (compute, select, communicate, merge, wait, seconds(computed, ended), seconds(began, ended))
        told = [f"{value:.9f}" for value in (began_s, *measured)]
        self._rows.writerow([one.number, guard_cell(one.exchange), repr(one.density), *told])
