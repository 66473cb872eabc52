"""Checkpoint files of jobs, from which a killed job resumes with identical results.

A file of NumPy (``.npz``) holds the arrays of the state; one of them is the rest, as JSON. It is replaced atomically. A
file that is cut off, altered or of another scenario is not read.
"""

from __future__ import annotations

import json
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from simnet.base.errors import InputError
from simnet.base.file_io import open_atomic
from simnet.base.rows import Rows

if TYPE_CHECKING:
    import pandas as pd


class RowTable:
    """Growing table in one byte array, with eight bytes per value: integers, floats, or indices of texts stored once.

    An empty table has the columns `expected`; `constants` are columns with the same text in each row.

    Examples
    --------
    >>> rows = RowTable(policy="AG")
    >>> rows.append({"worker": np.arange(2), "seconds": [0.5, 1.5], "purpose": "train"})
    >>> rows.append({"worker": 0, "seconds": 0.25, "purpose": "explore"})
    >>> len(rows), rows.between(1)["seconds"], rows.between()["purpose"].tolist(), list(rows.frame())
    (3, array([1.5 , 0.25]), ['train', 'train', 'explore'], ['policy', 'worker', 'seconds', 'purpose'])
    """

    def __init__(self, expected: Sequence[str] = (), **constants: str) -> None:
        self._expected, self._constants = expected, constants
        self._row: np.dtype[Any] = np.dtype([])
        # Each text of a column, and its number.
        self._texts: dict[str, dict[str, int]] = {}
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // max(self._row.itemsize, 1)

    def append(self, columns: Mapping[str, Any]) -> None:
        """Add rows given by column. If some columns are arrays, scalars and texts are repeated in each row."""
        if not self._row.names:
            kinds = {name: np.asarray(one).dtype.kind for name, one in columns.items()}
            self._row = np.dtype([(name, np.float64 if kind == "f" else np.int64) for name, kind in kinds.items()])
            self._texts = {name: {} for name, kind in kinds.items() if kind == "U"}
        texts = {name: known.setdefault(columns[name], len(known)) for name, known in self._texts.items()}
        numbers = {**columns, **texts}
        rows = np.empty(np.broadcast_shapes((1,), *map(np.shape, numbers.values())), self._row)
        for name, one in numbers.items():
            rows[name] = one
        self._rows += rows.tobytes()

    def between(self, first: int = 0, last: int | None = None) -> dict[str, NDArray[Any]]:
        """Return the columns of rows `first` to `last` (exclusive; all by default) as int64, float64 or text."""
        if not self._row.names:
            return {}
        rows = np.frombuffer(self._rows, self._row)[first:last]
        texts = {name: np.array([*known], dtype=object)[rows[name]] for name, known in self._texts.items()}
        return {name: rows[name].copy() for name in self._row.names} | texts

    def frame(self, first: int = 0, last: int | None = None) -> pd.DataFrame:
        """Return rows `first` to `last` (exclusive; all by default) as a DataFrame."""
        import pandas as pd

        found = self.between(first, last) or {name: np.zeros(0, dtype=object) for name in self._expected}
        return pd.DataFrame({**self._constants, **found}, copy=False)

    def save(self) -> dict[str, Any]:
        """Return the rows in the form that a checkpoint stores."""
        kinds = {name: self._row[name].name for name in self._row.names or ()}
        texts = {name: list(known) for name, known in self._texts.items()}
        return {"kinds": kinds, "texts": texts, "rows": np.frombuffer(bytes(self._rows), dtype=np.int64)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Replace the rows by those of a state that `save` returned."""
        self._row, self._rows = np.dtype([*saved["kinds"].items()]), bytearray(saved["rows"].tobytes())
        self._texts = {name: {text: number for number, text in enumerate(own)} for name, own in saved["texts"].items()}


State: TypeAlias = Mapping[str, Any]
"""State by name: None, booleans, numbers, texts, arrays, lists of these, and mappings from text to these."""

EVERY = 10.0
"""Seconds between two checkpoints."""

# Checkpoints may take this share of the time, no more.
_SHARE = 0.05
_ARRAY, _TEXTS, _STATE, _HEADER = "<array>", "<texts>", "state", "header"
# What is met in a file that was not written here, or not to its end.
_BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, EOFError, BadZipFile, zlib.error)


class Checkpoint:
    """Checkpoint file of a job under one policy. Writing it every `every` seconds takes at most 5 % of the run time."""

    def __init__(self, path: Path, identity: str, every: float = EVERY, beside: int = 1) -> None:
        self.path = path
        self._share = _SHARE / beside
        self._identity = identity
        self._every = every
        self._began = time.monotonic()
        self._next = self._began + every

    def due(self) -> bool:
        """Return whether the next checkpoint is due."""
        self._began = time.monotonic()
        return self._began >= self._next

    def write(self, state: State, done: int, ended: bool = False) -> None:
        """Write the state after `done` iterations atomically. On failure, warn and keep the previous file."""
        arrays: dict[str, NDArray[Any]] = {}
        header = {"identity": self._identity, "done": done, "ended": ended}
        for name, part in ((_STATE, state), (_HEADER, header)):
            text = json.dumps(part, separators=(",", ":"), default=partial(_json_value, arrays=arrays))
            arrays[name] = np.frombuffer(text.encode(), dtype=np.uint8)
        try:
            with open_atomic(self.path) as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            warnings.warn(f"no checkpoint: {self.path} cannot be written: {error.strerror or error}", stacklevel=2)
        now = time.monotonic()
        self._next = now + max(self._every, (now - self._began) / self._share if self._every else 0.0)

    def done(self) -> tuple[int, bool] | None:
        """Return the number of iterations in the file, and whether the job has ended; None without a file."""
        with suppress(*_BROKEN), self._opened() as (header, _):
            return int(header["done"]), bool(header["ended"])
        return None

    def read(self) -> dict[str, Any] | None:
        """Return the state in the checkpoint file; None if the file is missing, corrupt or belongs to another job."""
        with suppress(*_BROKEN), self._opened() as (_, arrays):
            found = json.loads(arrays[_STATE].tobytes(), object_hook=partial(_state_value, arrays=arrays))
            return found if isinstance(found, dict) else None
        return None

    @contextmanager
    def _opened(self) -> Iterator[tuple[dict[str, Any], Mapping[str, NDArray[Any]]]]:
        """Yield the file's header and its arrays; each array is read and verified on first use."""
        # To open a pipe would wait for ever.
        if not self.path.is_file():
            raise FileNotFoundError(self.path)
        with self.path.open("rb") as file, np.load(file) as arrays:
            header = json.loads(arrays[_HEADER].tobytes())
            if header["identity"] != self._identity:
                raise ValueError("the checkpoint is of another job")
            yield header, arrays

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Convert an error in the ``with`` block, raised while a state is restored, to InputError."""
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
            raise InputError("is no checkpoint of this job; --force begins anew", file=str(self.path)) from error


def _json_value(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return a value of a state as JSON values. Numeric arrays are moved to `arrays`; text arrays become lists."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    value = np.stack([*value]) if isinstance(value, Rows) else value
    if value.dtype.kind not in "biuf":
        return {_TEXTS: value.tolist()}
    name = str(len(arrays))
    # Not `ascontiguousarray`, which would give an array without axes one.
    arrays[name] = np.asarray(value, order="C")
    return {_ARRAY: name}


def _state_value(found: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the array that a JSON object of `_json_value` stands for; other objects are returned unchanged."""
    if _TEXTS in found:
        return np.array(found[_TEXTS], dtype=str)
    return arrays[found[_ARRAY]] if _ARRAY in found else found
