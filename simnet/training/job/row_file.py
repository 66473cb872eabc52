"""Rows of numbers that only grow, in a file beside a checkpoint: what a long job has done takes no memory.

The last rows are in memory, and short jobs never make a file. A checkpoint holds those, and of the file how long it is
and its hash: whoever resumes cuts off what came after the checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simnet.base.arrays import Floats

_NUMBER = 8
# Bytes that are in memory, and that are read at a time.
_HELD = 1 << 20


class KeptRows(NamedTuple):
    """Rows of `width` numbers to read: the first `filed` rows are in the file `path`, the rest in `held`."""

    width: int
    path: Path | None
    filed: int
    held: bytes

    @property
    def total(self) -> int:
        """How many rows there are."""
        return self.filed + len(self.held) // (_NUMBER * self.width)

    def between(self, first: int, last: int) -> Floats:
        """Return rows `first` to `last` (exclusive), float64 of shape (rows, width); integers have the bytes of int64.

        Raises OSError or ValueError if the file cannot be read or is too short.
        """
        row, last = _NUMBER * self.width, min(last, self.total)
        found = np.empty((max(last - first, 0), self.width))
        here = min(max(self.filed - first, 0), len(found))
        if here and self.path is not None:
            read = np.fromfile(self.path, dtype=np.float64, count=here * self.width, offset=first * row)
            found[:here] = read.reshape(here, self.width)
        begin = max(first - self.filed, 0)
        rest = np.frombuffer(self.held, dtype=np.float64).reshape(-1, self.width)
        found[here:] = rest[begin : begin + len(found) - here]
        return found

    def pieces(self) -> Iterator[tuple[int, Floats]]:
        """Yield all rows, as many at a time as memory is not felt of; each time the number of the first, and they."""
        size = max(_HELD // (_NUMBER * self.width), 1)
        for first in range(0, self.total, size):
            yield first, self.between(first, first + size)


class RowFile:
    """Rows of `width` numbers of eight bytes.

    Above `held` bytes they move to the file `path`, whose folder must exist; without a file they stay in memory.

    Examples
    --------
    >>> rows = RowFile(2)
    >>> rows.append(np.arange(6.0).tobytes())
    >>> len(rows), rows.kept().between(1, 3).tolist()
    (3, [[2.0, 3.0], [4.0, 5.0]])
    """

    def __init__(self, width: int, path: Path | None = None, *, held: int | None = None) -> None:
        self._width, self._path, self._most = width, path, held or _HELD
        self._held, self._filed, self._hash = bytearray(), 0, hashlib.sha256()

    def __len__(self) -> int:
        return self._filed + len(self._held) // (_NUMBER * self._width)

    def append(self, rows: bytes) -> None:
        """Add rows as numpy has them in memory: integers as int64, others as float64."""
        self._held += rows
        if len(self._held) >= self._most and self._path is not None:
            self._file()

    def _file(self) -> None:
        """Have the rows that are in memory in the file; if it cannot be written, warn, and leave all later ones."""
        assert self._path is not None
        try:
            with self._path.open("r+b" if self._filed else "wb") as stream:
                # What an earlier process wrote after its last checkpoint goes.
                stream.truncate(_NUMBER * self._width * self._filed)
                stream.seek(0, os.SEEK_END)
                stream.write(self._held)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            warnings.warn(f"{self._path} cannot be written, rows stay in memory: {error.strerror}", stacklevel=2)
            self._most = 2 * len(self._held)
            return
        self._hash.update(self._held)
        self._filed = len(self)
        self._held.clear()

    def kept(self) -> KeptRows:
        """Return the rows so far, to read them."""
        return KeptRows(self._width, self._path, self._filed, bytes(self._held))

    def save(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the rows."""
        held = np.frombuffer(bytes(self._held), dtype=np.int64)
        return {"width": self._width, "filed": self._filed, "sha256": self._hash.hexdigest(), "held": held}

    @classmethod
    def restored(cls, saved: Mapping[str, Any], path: Path | None = None) -> RowFile:
        """Return the rows that `save` returned, and cut the file to them.

        Raises LookupError, TypeError or ValueError if lost.
        """
        found = cls(int(saved["width"]), path)
        held = np.asarray(saved["held"])
        if found._width < 1 or saved["filed"] < 0 or held.dtype.itemsize != _NUMBER or held.size % found._width:
            raise ValueError("these are no rows")
        found._held += held.tobytes()
        left = _NUMBER * found._width * int(saved["filed"])
        if left:
            if path is None or not path.is_file():
                raise ValueError("the rows are gone")
            with path.open("rb") as stream:
                while left and (piece := stream.read(min(left, _HELD))):
                    found._hash.update(piece)
                    left -= len(piece)
        if left or found._hash.hexdigest() != saved["sha256"]:
            raise ValueError("the rows are not those of the checkpoint")
        found._filed = int(saved["filed"])
        return found
