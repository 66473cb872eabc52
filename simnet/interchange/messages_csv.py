"""Message tables in CSV: schedules in a form for spreadsheets, data frames and scripts.

The columns are ``round,phase,src,dst,nbytes_B``, in the order of the schedule. A table holds neither compute times nor
ranks after the last one that has a message.
"""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from simnet.base.errors import InputError, read_number, suggest_names
from simnet.base.file_io import explain_write_errors, read_text
from simnet.base.quantities import Size, bounds_error
from simnet.base.spreadsheets import guard_cell, unguard_cell
from simnet.interchange.rank_operations import RoundMessages, assemble_schedule
from simnet.network import Messages
from simnet.schedule import Schedule

MAX_BYTES = 2**30
"""The largest table that is read, unless another limit is given."""

MAX_ROUNDS = 1_000_000
"""The last round that a table may name."""

MAX_RANKS = 1_000_000
"""The most ranks that are read."""

MAX_PHASE = 60
"""The longest name of a phase."""

_ROWS = 2**16

NEEDED = ("round", "src", "dst", "nbytes_B")
"""Columns without which a table is no schedule; ``phase`` may be missing, others are ignored."""


def write_messages(messages: Schedule | Messages, path: str | Path) -> None:
    r"""Write messages as a CSV table, with ``start_s`` and ``finish_s`` if timed; numbers read back exactly.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from simnet.schedule import Round
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "pair.csv")
    ...     write_messages(Schedule(2, [Round([0, 1], [1, 0], [10, 20.5], phase="swap")]), file)
    ...     file.read_text()
    'round,phase,src,dst,nbytes_B\n0,swap,0,1,10\n0,swap,1,0,20.5\n'
    """
    timed = ("start_s", "finish_s") if isinstance(messages, Messages) else ()
    with explain_write_errors(Path(path), advice=""), Path(path).open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(("round", "phase", "src", "dst", "nbytes_B", *timed))
        for columns in _pieces_of(messages):
            index, phase, src, dst, sizes, *times = (one.tolist() for one in columns)
            table.writerows(zip(index, map(guard_cell, phase), src, dst, map(_read_number, sizes), *times, strict=True))


def _pieces_of(messages: Schedule | Messages) -> Iterator[list[NDArray[Any]]]:
    """Yield the columns of the table in chunks of rows, to bound memory."""
    if isinstance(messages, Messages):
        named = messages.round, messages.phase, messages.src, messages.dst
        columns = (*named, messages.nbytes, messages.start, messages.finish)
        for first in range(0, len(messages.src), _ROWS):
            yield [one[first : first + _ROWS] for one in columns]
    else:
        for index, one in enumerate(messages.rounds):
            yield [np.full(len(one), index), np.full(len(one), one.phase), one.src, one.dst, one.nbytes]


def read_messages(path: str | Path, n_ranks: int | None = None, *, largest: int = MAX_BYTES) -> Schedule:
    """Read a UTF-8 table of messages as a schedule. Its first row names the columns, which must include `NEEDED`.

    Messages of a round keep their order. Rounds that no message names are empty. Ranks are those up to the last one
    that sends or receives, unless `n_ranks` says otherwise. Raises InputError, with file and line, if the file has more
    than `largest` bytes, a column is missing, or a value is out of range.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from simnet.collectives import allreduce_ring
    >>> ring = allreduce_ring(4, 1 << 20)
    >>> with TemporaryDirectory() as folder:
    ...     write_messages(ring, Path(folder, "ring.csv"))
    ...     read_messages(Path(folder, "ring.csv")) == ring
    True
    """
    table = _MessageTable(str(path), MAX_RANKS if n_ranks is None else n_ranks)
    when, src, dst, nbytes = table.columns(read_text(Path(path), largest))
    order = np.argsort(when, kind="stable")
    messages = RoundMessages(*(column[order] for column in (when, src, dst, nbytes)))
    last = max(int(src.max(initial=0)), int(dst.max(initial=0)))
    rounds = int(when.max(initial=-1)) + 1
    return assemble_schedule(str(path), last + 1 if n_ranks is None else n_ranks, rounds, messages, phases=table.phases)


@dataclass
class _MessageTable:
    """Reader of a CSV table of messages, which checks every row."""

    name: str
    n_ranks: int
    phases: dict[int, str] = field(default_factory=dict)

    def columns(self, text: str) -> list[NDArray[Any]]:
        """Return round, sender, receiver and bytes of all rows, as columns."""
        columns: list[array[Any]] = [array(kind) for kind in "qqqd"]
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = filter(any, reader)
        try:
            names = [name.strip() for name in next(rows, ())]
            for name in NEEDED:
                if name not in names:
                    given = suggest_names(name, names).replace("Allowed:", "Given:") if names else "the file is empty"
                    self._refuse(reader.line_num if names else 1, f"has no column {name!r}; {given}")
            for row in rows:
                for column, value in zip(columns, self._values(names, row, reader.line_num), strict=True):
                    column.append(value)
        except csv.Error as error:
            self._refuse(reader.line_num, f"is not CSV: {error}")
        return [np.array(column) for column in columns]

    def _values(self, names: Sequence[str], row: Sequence[str], line: int) -> tuple[int, int, int, float]:
        if len(row) != len(names):
            self._refuse(line, f"has {len(row)} values, but there are {len(names)} columns")
        cells = dict(zip(reversed(names), reversed(row), strict=True))
        index = self._whole(line, cells["round"], "round", MAX_ROUNDS)
        src, dst = (self._whole(line, cells[name], name, self.n_ranks - 1) for name in ("src", "dst"))
        if src == dst:
            self._refuse(line, f"rank {src} sends to itself")
        nbytes = read_number(cells["nbytes_B"])
        if wrong := bounds_error(nbytes, Size, cells["nbytes_B"][:40]):
            self._refuse(line, wrong, "nbytes_B")
        phase = unguard_cell(cells.get("phase", ""))
        if len(phase) > MAX_PHASE:
            self._refuse(line, f"is longer than {MAX_PHASE} characters", "phase")
        known = self.phases.setdefault(index, phase)
        if known != phase:
            self._refuse(line, f"is {phase[:40]!r}, but other messages of round {index} are {known[:40]!r}", "phase")
        return index, src, dst, nbytes

    def _whole(self, line: int, text: str, name: str, most: int) -> int:
        word = text.strip()
        if not (word.isascii() and word.isdigit() and len(word) <= 12 and int(word) <= most):
            self._refuse(line, f"must be a whole number in 0..{most}, got {text[:40]!r}", name)
        return int(word)

    def _refuse(self, line: int, message: str, field: str | None = None) -> NoReturn:
        raise InputError(message, file=self.name, line=line, field=field)


def _read_number(value: float) -> float | int:
    return int(value) if value.is_integer() and value < 2**53 else value
