"""What an iteration of a rank took, as a row of a CSV file, and the clocks that tell.

On a GPU a moment is an event of the stream in force, so that nothing waits for the device to say what time it is: a row
is written as soon as all of its events have come to pass.
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
from simnet.base.spreadsheets import guarded

if TYPE_CHECKING:
    from simnet.hooks.messages import Message

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


class Clock:
    """Marks moments, and tells the seconds between them; by the processor."""

    def mark(self) -> Mark:
        """Return the present moment."""
        return time.perf_counter()

    def seconds(self, first: Mark, last: Mark) -> float:
        """Return the time between two moments that have come to pass."""
        return float(last - first)

    def passed(self, mark: Mark) -> bool:
        """Return True: a moment of the processor is one that was."""
        return True


class EventClock(Clock):
    """Events of the GPU, each recorded on the stream in force where it is marked."""

    def mark(self) -> Mark:
        """Record an event."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: Mark, last: Mark) -> float:
        """Return the time between two events that have come to pass."""
        return float(first.elapsed_time(last)) / 1e3

    def passed(self, mark: Mark) -> bool:
        """Return whether the device has come to the event."""
        return bool(mark.query())


class Span(NamedTuple):
    """From one moment to another."""

    began: Mark
    ended: Mark


@dataclass
class Iteration:
    """The moments of an iteration on one rank.

    Parameters
    ----------
    number : int
        Which, from 0.
    exchange, density : str, float
        What exchanges, and which fraction it keeps.
    selecting : list of Span
        What the hook does for each bucket before its first message.
    exchanging : list of Span
        The rest of each bucket's exchange.
    messages : list of Message
        Those of all buckets.
    """

    number: int
    exchange: str
    density: float
    selecting: list[Span] = field(default_factory=list)
    exchanging: list[Span] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def parts(self, clock: Clock) -> tuple[list[float], float, float]:
        """Return seconds to select, of each bucket, and of all buckets to communicate and to merge."""
        communicate = sum(clock.seconds(message.began, message.ended) for message in self.messages)
        merge = sum(clock.seconds(*span) for span in self.exchanging) - communicate
        return [clock.seconds(*span) for span in self.selecting], communicate, merge


def begun(path: Path, buffering: int = -1) -> IO[str]:
    """Return a new file of a log, in a folder that is made if it is not there; InputError if the file is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("x", buffering, newline="")
    except FileExistsError:
        raise InputError("is there already; choose another folder for the log", file=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(path)) from None


class Log:
    """The file of one rank.

    Parameters
    ----------
    folder : str or Path
        Where it shall lie, made if it is not there.
    rank : int
        Whose.
    clock : Clock
        What the moments are of.

    Raises
    ------
    InputError
        If the file is there already, or cannot be made.
    """

    def __init__(self, folder: str | PathLike[str], rank: int, clock: Clock) -> None:
        self._file = begun(Path(folder) / f"rank_{rank}.csv")
        self._rows, self._clock = csv.writer(self._file, lineterminator="\n"), clock
        self._rows.writerow(COLUMNS)
        self._waiting: deque[tuple[Iteration, float, Mark, Mark, Mark]] = deque()

    def add(self, one: Iteration, began_s: float, began: Mark, computed: Mark, ended: Mark) -> None:
        """Add an iteration, and write all of those that have come to pass.

        Parameters
        ----------
        one : Iteration
            What the hook marked.
        began_s : float
            When it began, on the processor's clock, since the first one did [s].
        began, computed, ended : Mark
            Its begin, the end of its backward pass with the exchange, and its end.
        """
        self._waiting.append((one, began_s, began, computed, ended))
        while self._waiting and self._clock.passed(self._waiting[0][-1]):
            self._write(*self._waiting.popleft())

    def close(self) -> None:
        """Write what is left; the device must have finished."""
        while self._waiting:
            self._write(*self._waiting.popleft())
        self._file.close()

    def _write(self, one: Iteration, began_s: float, began: Mark, computed: Mark, ended: Mark) -> None:
        seconds = self._clock.seconds
        selecting, communicate, merge = one.parts(self._clock)
        select = sum(selecting)
        wait = seconds(one.selecting[-1].ended, computed) if one.selecting else 0.0
        compute = seconds(began, computed) - wait - select
        measured = (compute, select, communicate, merge, wait, seconds(computed, ended), seconds(began, ended))
        told = [f"{value:.9f}" for value in (began_s, *measured)]
        self._rows.writerow([one.number, guarded(one.exchange), repr(one.density), *told])
