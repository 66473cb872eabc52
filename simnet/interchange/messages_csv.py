"""Messages as a table, a row each: schedules for spreadsheets, data frames and scripts.

The columns are ``round,phase,src,dst,nbytes_B``, in the order of the schedule. A table holds messages and nothing else:
neither what ranks compute between them, nor ranks after the last one that has a message.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from simnet.base.checks import read_number
from simnet.base.errors import InputError, nearest
from simnet.base.quantities import Size, outside
from simnet.base.reading import read_text
from simnet.base.writing import explained
from simnet.network import Messages
from simnet.schedule import Round, Schedule

MAX_BYTES = 256 * 2**20
"""The largest table that is read, unless another limit is given."""

MAX_ROUNDS = 1_000_000
"""The last round that a table may name."""

MAX_RANKS = 1_000_000
"""The most ranks that are read."""

MAX_PHASE = 60
"""The longest name of a phase."""

NEEDED = ("round", "src", "dst", "nbytes_B")
"""Columns without which a table is no schedule; ``phase`` may be missing, others are ignored."""


def write_messages(messages: Schedule | Messages, path: str | Path) -> None:
    r"""Write a table of messages; of timed ones also their ``start_s`` and ``finish_s``.

    Parameters
    ----------
    messages : Schedule or simnet.network.Messages
        What is sent, or what was and when.
    path : str or Path
        The file. Numbers are written so that they read back as they are.

    Raises
    ------
    InputError
        If the file cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "pair.csv")
    ...     write_messages(Schedule(2, [Round([0, 1], [1, 0], [10, 20.5], phase="swap")]), file)
    ...     file.read_text()
    'round,phase,src,dst,nbytes_B\n0,swap,0,1,10\n0,swap,1,0,20.5\n'
    """
    columns: Mapping[str, Any] = messages.columns() if isinstance(messages, Schedule) else vars(messages)
    named: dict[str, list[object]] = {
        **{name: columns[name].tolist() for name in ("round", "phase", "src", "dst")},
        "nbytes_B": [_number(value) for value in columns["nbytes"].tolist()],
    }
    if isinstance(messages, Messages):
        named |= {"start_s": messages.start.tolist(), "finish_s": messages.finish.tolist()}
    with explained(Path(path), advice=""), Path(path).open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(named)
        table.writerows(zip(*named.values(), strict=True))


def read_messages(path: str | Path, n_ranks: int | None = None, *, largest: int = MAX_BYTES) -> Schedule:
    """Read a table of messages as a schedule.

    Messages of a round keep their order. Rounds that no message names are empty.

    Parameters
    ----------
    path : str or Path
        The file, UTF-8. Its first row names the columns, those of `NEEDED` among them.
    n_ranks : int, optional
        Number of ranks; by default up to the last one that sends or receives.
    largest : int
        How many bytes the file may have.

    Raises
    ------
    InputError
        If the file cannot be read, a column is missing, or a value is out of range. With file and line.

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
    file = str(path)

    def refuse(line: int, message: str, field: str | None = None) -> NoReturn:
        raise InputError(message, file=file, line=line, field=field)

    def whole(line: int, text: str, name: str, most: int) -> int:
        word = text.strip()
        if not (word.isascii() and word.isdigit() and len(word) <= 12 and int(word) <= most):
            refuse(line, f"must be a whole number in 0..{most}, got {text[:40]!r}", name)
        return int(word)

    most = MAX_RANKS - 1 if n_ranks is None else n_ranks - 1
    rows = _rows(read_text(Path(path), largest), file)
    _, head = next(rows, (1, []))
    names = [name.strip() for name in head]
    for name in NEEDED:
        if name not in names:
            given = nearest(name, names).replace("Allowed:", "Given:") if names else "the file is empty"
            refuse(1, f"has no column {name!r}; {given}")
    place = {name: names.index(name) for name in (*NEEDED, "phase") if name in names}
    rounds: dict[int, tuple[list[int], list[int], list[float], list[str]]] = {}
    for line, row in rows:
        if len(row) != len(names):
            refuse(line, f"has {len(row)} values, but there are {len(names)} columns")
        index = whole(line, row[place["round"]], "round", MAX_ROUNDS)
        src, dst = (whole(line, row[place[name]], name, most) for name in ("src", "dst"))
        if src == dst:
            refuse(line, f"rank {src} sends to itself")
        nbytes = read_number(row[place["nbytes_B"]])
        if wrong := outside(nbytes, Size, row[place["nbytes_B"]][:40]):
            refuse(line, wrong, "nbytes_B")
        phase = row[place["phase"]] if "phase" in place else ""
        if len(phase) > MAX_PHASE:
            refuse(line, f"is longer than {MAX_PHASE} characters", "phase")
        columns = rounds.setdefault(index, ([], [], [], []))
        if columns[3] and columns[3][0] != phase:
            refuse(line, f"is {phase[:40]!r}, but other messages of round {index} are {columns[3][0][:40]!r}", "phase")
        columns[0].append(src)
        columns[1].append(dst)
        columns[2].append(nbytes)
        columns[3].append(phase)
    idle = Round([], [], [])
    built = [idle] * (max(rounds, default=-1) + 1)
    for index, (sources, targets, sizes, phases) in rounds.items():
        built[index] = Round(sources, targets, sizes, phase=phases[0])
    last = max((max(*src, *dst) for src, dst, _, _ in rounds.values()), default=0)
    return Schedule(last + 1 if n_ranks is None else n_ranks, built)


def _rows(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, each with its line."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if any(row):
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", file=file, line=reader.line_num) from None


def _number(value: float) -> float | int:
    return int(value) if value.is_integer() and value < 2**53 else value
