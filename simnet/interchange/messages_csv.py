"""Messages as a table, a row each: schedules for spreadsheets, data frames and scripts.

The columns are ``round,phase,src,dst,nbytes_B``, in the order of the schedule. A table holds messages and nothing else:
neither what ranks compute between them, nor ranks after the last one that has a message.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from simnet.base.checks import read_number
from simnet.base.errors import InputError, nearest
from simnet.base.numbered_lines import read_lines
from simnet.base.quantities import Size, outside
from simnet.base.reading import beginning, decoded, reading
from simnet.base.spreadsheets import guarded, unguarded
from simnet.base.writing import explained
from simnet.interchange.told_rounds import Messages as Sent
from simnet.interchange.told_rounds import assembled, narrow
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

_BLOCK, _ROWS, _SHAPES = 2**20, 2**16, 64

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
    >>> from simnet.schedule import Round
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "pair.csv")
    ...     write_messages(Schedule(2, [Round([0, 1], [1, 0], [10, 20.5], phase="swap")]), file)
    ...     file.read_text()
    'round,phase,src,dst,nbytes_B\n0,swap,0,1,10\n0,swap,1,0,20.5\n'
    """
    timed = ("start_s", "finish_s") if isinstance(messages, Messages) else ()
    with explained(Path(path), advice=""), Path(path).open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(("round", "phase", "src", "dst", "nbytes_B", *timed))
        for columns in _pieces_of(messages):
            table.writerows(zip(*columns, strict=True))


def _pieces_of(messages: Schedule | Messages) -> Iterator[list[Iterable[object]]]:
    """Yield the columns of some messages at a time."""
    if isinstance(messages, Messages):
        times = messages.start, messages.finish
        for first in range(0, len(messages.src), _ROWS):
            part = slice(first, first + _ROWS)
            named = (messages.round, messages.phase, messages.src, messages.dst)
            sizes = [_number(value) for value in messages.nbytes[part].tolist()]
            index, phase, src, dst = (one[part].tolist() for one in named)
            yield [index, map(guarded, phase), src, dst, sizes, *(one[part].tolist() for one in times)]
        return
    for index, one in enumerate(messages.rounds):
        sizes = [_number(value) for value in one.nbytes.tolist()]
        yield [[index] * len(one), [guarded(one.phase)] * len(one), one.src.tolist(), one.dst.tolist(), sizes]


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
    table = _Table(str(path), MAX_RANKS if n_ranks is None else n_ranks)
    table.read(Path(path), largest)
    when, src, dst, nbytes = (np.concatenate(column) for column in table.columns)
    order = np.argsort(when, kind="stable")
    messages = Sent(*(column[order] for column in (when, src, dst, nbytes)))
    last = max(int(src.max(initial=0)), int(dst.max(initial=0)))
    rounds = int(when.max(initial=-1)) + 1
    return assembled(str(path), last + 1 if n_ranks is None else n_ranks, rounds, messages, phases=table.phases)


class _Table:
    """A table that is read in pieces: as columns where all is as programs write it, else row by row."""

    def __init__(self, name: str, n_ranks: int) -> None:
        self.name, self.n_ranks = name, n_ranks
        self.names: list[str] = []
        self.phases: dict[int, str] = {}
        self.columns: list[list[NDArray[Any]]] = [[np.zeros(0, dtype=np.int32)] for _ in NEEDED]
        # How many lines and bytes are behind.
        self._line = self._byte = 0

    def read(self, path: Path, largest: int) -> None:
        """Read a file: the row with the names, then the others."""
        pieces = self._pieces(path, largest)
        for text in pieces:
            # A value in quotes may go on in the next piece.
            if b'"' in text:
                self._by_row(itertools.chain([text], pieces))
                break
            at = 0
            while not self.names and at < len(text):
                end = text.find(b"\n", at) + 1 or len(text)
                self._by_row([text[at:end]])
                at = end
            if not self._as_columns(text[at:]):
                self._by_row([text[at:]])
        if not self.names:
            self._take_names([], 1)

    def _pieces(self, path: Path, largest: int) -> Iterator[bytes]:
        """Yield pieces of a file that end where lines do."""
        held = b""
        with reading(path, largest, unpack=False) as more:
            while new := more(max(_BLOCK, len(held))):
                if not self._byte and not held:
                    mark = beginning(new, self.name)
                    new, self._byte = new[len(mark) :], len(mark)
                held += new
                cut = held.rfind(b"\n") + 1
                if cut:
                    yield held[:cut]
                held = held[cut:]
        if held:
            yield held

    def _as_columns(self, text: bytes) -> bool:
        """Take lines whose values are whole numbers and a phase, if there is nothing to be said against them."""
        lines = text.replace(b"\r\n", b"\n").removesuffix(b"\n") + b"\n"
        shapes = sorted(set(lines.translate(None, b"0123456789").split(b"\n")))
        places = [self.names.index(name) for name in NEEDED]
        known_names = sorted(self.names) in (sorted(NEEDED), sorted([*NEEDED, "phase"]))
        if len(shapes) > _SHAPES or b"\r" in lines or not known_names:
            return False
        phases, templates = [], []
        for shape in shapes:
            cells = shape.decode("utf-8", "replace").split(",")
            phase = "".join(cells)
            if shape and (len(cells) != len(self.names) or any(cells[place] for place in places)):
                return False
            if len(phase) > MAX_PHASE or not phase.isascii() or "#" in phase or "?" in phase:
                return False
            phases.append(unguarded(phase))
            templates.append(
                ",".join("#" if place in places else one for place, one in enumerate(cells)) if shape else ""
            )
        found = read_lines(lines, templates)
        if found is None:
            return False
        own = [one for one, shape in zip(found, shapes, strict=True) if shape]
        order = np.argsort(np.concatenate([np.zeros(0, dtype=np.int64), *(one.lines for one in own)]))
        ranking = np.argsort(np.argsort(places))
        when, src, dst, nbytes = (
            np.concatenate([np.zeros(0, dtype=np.int64), *(one.numbers[:, column] for one in own)])[order]
            for column in ranking
        )
        if (src == dst).any() or max(src.max(initial=0), dst.max(initial=0)) >= self.n_ranks:
            return False
        if when.max(initial=0) > MAX_ROUNDS:
            return False
        known = dict(self.phases)
        for one, phase, shape in zip(found, phases, shapes, strict=True):
            if shape:
                for index in np.unique(one.numbers[:, ranking[0]]).tolist():
                    if known.setdefault(index, phase) != phase:
                        return False
        self.phases = known
        for column, values in zip(self.columns, (when, src, dst, nbytes), strict=True):
            column.append(narrow(values))
        self._line += text.count(b"\n")
        self._byte += len(text)
        return True

    def _by_row(self, texts: Iterable[bytes]) -> None:
        """Take rows, the first one of all as names."""
        reader = csv.reader(self._lines(texts), strict=True)
        values: list[tuple[int, int, int, float]] = []

        def keep() -> None:
            for column, one in zip(self.columns, zip(*values, strict=True), strict=False):
                column.append(np.array(one))
            values.clear()

        try:
            for row in reader:
                line = self._line + reader.line_num
                if any(row) and not self.names:
                    self._take_names(row, line)
                elif any(row):
                    values.append(self._values(row, line))
                    if len(values) == _ROWS:
                        keep()
        except csv.Error as error:
            raise InputError(f"is not CSV: {error}", file=self.name, line=self._line + reader.line_num) from None
        keep()
        self._line += reader.line_num

    def _lines(self, texts: Iterable[bytes]) -> Iterator[str]:
        for text in texts:
            lines = decoded(text, self.name, self._byte)
            self._byte += len(text)
            yield from io.StringIO(lines, newline="")

    def _take_names(self, row: Sequence[str], line: int) -> None:
        names = [name.strip() for name in row]
        for name in NEEDED:
            if name not in names:
                given = nearest(name, names).replace("Allowed:", "Given:") if names else "the file is empty"
                self._refuse(line, f"has no column {name!r}; {given}")
        self.names = names

    def _values(self, row: Sequence[str], line: int) -> tuple[int, int, int, float]:
        """Return round, sender, receiver and bytes of a row."""
        names = self.names
        if len(row) != len(names):
            self._refuse(line, f"has {len(row)} values, but there are {len(names)} columns")
        cells = dict(zip(reversed(names), reversed(row), strict=True))
        index = self._whole(line, cells["round"], "round", MAX_ROUNDS)
        src, dst = (self._whole(line, cells[name], name, self.n_ranks - 1) for name in ("src", "dst"))
        if src == dst:
            self._refuse(line, f"rank {src} sends to itself")
        nbytes = read_number(cells["nbytes_B"])
        if wrong := outside(nbytes, Size, cells["nbytes_B"][:40]):
            self._refuse(line, wrong, "nbytes_B")
        phase = unguarded(cells.get("phase", ""))
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


def _number(value: float) -> float | int:
    return int(value) if value.is_integer() and value < 2**53 else value
