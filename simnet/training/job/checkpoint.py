"""Checkpoint files, from which a killed job resumes under one policy with identical results.

A safetensors file holds the arrays of the state; one of them is the rest, as JSON. It is replaced atomically. A file
that is cut off, altered or of another scenario is not read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from simnet.base.errors import InputError
from simnet.base.rows import Rows
from simnet.base.writing import sync_to_disk, temporary_name

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = 8
_TEXT, _FLOAT, _INT = "text", "float64", "int64"


class RowTable:
    """Table of rows in one byte array; each column holds integers, floats or texts, eight bytes a value.

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
        self._kinds: dict[str, str] = {}
        # Each text of a column, and its number.
        self._texts: dict[str, dict[str, int]] = {}
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._rows) // (_NUMBER * max(len(self._kinds), 1))

    def append(self, columns: Mapping[str, Any]) -> None:
        """Add one row, or several where columns are arrays; scalars and texts are repeated in each row."""
        if not self._kinds:
            for name, one in columns.items():
                self._kinds[name] = (
                    _TEXT if isinstance(one, str) else _FLOAT if np.asarray(one).dtype.kind == "f" else _INT
                )
            self._texts = {name: {} for name, kind in self._kinds.items() if kind == _TEXT}
        numbers = dict(columns)
        for name, known in self._texts.items():
            numbers[name] = known.setdefault(columns[name], len(known))
        (count,) = np.broadcast_shapes((1,), *map(np.shape, numbers.values()))
        rows = np.empty((count, len(self._kinds)))
        integers = rows.view(np.int64)
        for place, (name, kind) in enumerate(self._kinds.items()):
            (rows if kind == _FLOAT else integers)[:, place] = numbers[name]
        self._rows += rows.data

    def between(self, first: int = 0, last: int | None = None) -> dict[str, NDArray[Any]]:
        """Return the columns of rows `first` to `last` (exclusive), int64, float64 or texts; all by default."""
        last, row = len(self) if last is None else last, _NUMBER * len(self._kinds)
        rows = np.frombuffer(self._rows[first * row : last * row]).reshape(-1, max(len(self._kinds), 1))
        columns = zip(self._kinds.items(), rows.T.copy(), strict=False)
        found = {name: column.view(_FLOAT if kind == _FLOAT else _INT) for (name, kind), column in columns}
        texts = {name: np.array([*known], dtype=object)[found[name]] for name, known in self._texts.items()}
        return found | texts

    def frame(self, first: int = 0, last: int | None = None) -> pd.DataFrame:
        """Return rows `first` to `last` (exclusive) as a table; all by default."""
        import pandas as pd

        found = self.between(first, last) or {name: np.zeros(0, dtype=object) for name in self._expected}
        return pd.DataFrame({**self._constants, **found}, copy=False)

    def save(self) -> dict[str, Any]:
        """Return the rows as a checkpoint state."""
        texts = {name: list(known) for name, known in self._texts.items()}
        return {"kinds": self._kinds, "texts": texts, "rows": np.frombuffer(bytes(self._rows), dtype=np.int64)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Replace the rows with those of a state returned by `save`."""
        self._kinds, self._rows = dict(saved["kinds"]), bytearray(saved["rows"].tobytes())
        self._texts = {name: {text: number for number, text in enumerate(own)} for name, own in saved["texts"].items()}


State: TypeAlias = Mapping[str, Any]
"""State by name: None, booleans, numbers, texts, arrays, lists of these, and mappings from text to these."""

EVERY = 10.0
"""Seconds between two checkpoints."""

# Checkpoints may take this share of the time, no more.
_SHARE = 0.05
_ARRAY, _TEXTS, _STATE = "array", "texts", "state"
# What is met in a file that was not written here, or not to its end.
_BROKEN = (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Checkpoint:
    """Checkpoint file of a job under one policy, written every `every` seconds in at most 5 % of the run time."""

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
        """Write the state after `done` iterations atomically; warn and keep the last file if that fails."""
        arrays: dict[str, NDArray[Any]] = {}
        text = json.dumps(_flatten_state(state, arrays), separators=(",", ":"))
        # As a tensor, since there is a limit to how long a header may be.
        arrays[_STATE] = np.frombuffer(text.encode(), dtype=np.uint8)
        header = {"identity": self._identity, "sha256": _state_digest(arrays), "done": str(done), "ended": str(ended)}
        # In a folder of its own, as safetensors begins a file under a name of its own, too.
        begun = temporary_name(self.path)
        file = begun / self.path.name
        try:
            begun.mkdir()
            with file.open("xb") as empty:
                mode = os.fstat(empty.fileno()).st_mode & 0o777
            save_file(arrays, file, header)
            # As others may read it as other files of this user may be; safetensors makes files for the user alone.
            file.chmod(mode)
            sync_to_disk(file)
            file.replace(self.path)
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or error
            warnings.warn(f"no checkpoint: {self.path} cannot be written: {why}", stacklevel=2)
        finally:
            shutil.rmtree(begun, ignore_errors=True)
        now = time.monotonic()
        self._next = now + max(self._every, (now - self._began) / self._share if self._every else 0.0)

    def done(self) -> tuple[int, bool] | None:
        """Return the iterations in the last checkpoint, and whether the job has ended; None without a valid file."""
        with suppress(*_BROKEN), self._opened() as file:
            header = file.metadata()
            return int(header["done"]), header["ended"] == str(True)
        return None

    def read(self) -> dict[str, Any] | None:
        """Return the state in the checkpoint file; None if the file is missing, corrupt or of another job."""
        with suppress(*_BROKEN):
            with self._opened() as file:
                sha256 = file.metadata()["sha256"]
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if sha256 == _state_digest(arrays):
                found = _nest_state(json.loads(arrays[_STATE].tobytes()), arrays)
                return found if isinstance(found, dict) else None
        return None

    def _opened(self) -> Any:
        # To open a pipe would wait for ever.
        if not self.path.is_file():
            raise FileNotFoundError(self.path)
        file: Any = safe_open(self.path, framework="numpy")
        if file.metadata()["identity"] != self._identity:
            raise ValueError("the checkpoint is of another job")
        return file

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Convert errors from restoring an incompatible state inside the block to InputError."""
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
            raise InputError("is no checkpoint of this job; --force begins anew", file=str(self.path)) from error


def _flatten_state(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return a state as JSON values; numeric arrays move to `arrays`, and text arrays become lists."""
    if isinstance(value, Rows):
        value = np.stack([*value])
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            return {_TEXTS: value.tolist()}
        name = str(len(arrays))
        # Not `ascontiguousarray`, which would give an array without axes one.
        arrays[name] = np.asarray(value, order="C")
        return {_ARRAY: name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {"of": {key: _flatten_state(one, arrays) for key, one in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_flatten_state(one, arrays) for one in value]
    return value


def _nest_state(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the state that `_flatten_state` flattened; tuples come back as lists."""
    if isinstance(value, list):
        return [_nest_state(one, arrays) for one in value]
    if isinstance(value, dict):
        if "of" in value:
            return {key: _nest_state(one, arrays) for key, one in value["of"].items()}
        return np.array(value[_TEXTS], dtype=str) if _TEXTS in value else arrays[value[_ARRAY]]
    return value


def _state_digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        one = arrays[name]
        digest.update(f"\0{name} {one.dtype.str} {one.shape}\0".encode())
        digest.update(one.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
