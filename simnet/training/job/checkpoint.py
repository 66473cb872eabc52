"""Checkpoints: the file from which a killed job resumes under one policy, with the same results.

A safetensors file holds the arrays of the state; one of them is the rest, as JSON. It is written between two
iterations, when the network holds nothing, and is replaced atomically. A file that is cut off, altered or of another
scenario is not read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from simnet.base.errors import InputError
from simnet.base.rows import Rows
from simnet.base.writing import sync_to_disk, temporary_name

State: TypeAlias = Mapping[str, Any]
"""What is kept, by name: None, truth values, numbers, texts, arrays, lists of these, and mappings by text to these."""

EVERY = 10.0
"""Seconds between two checkpoints."""

# Checkpoints may take this share of the time, no more.
_SHARE = 0.05
_ARRAY, _TEXTS, _STATE = "array", "texts", "state"
# What is met in a file that was not written here, or not to its end.
_BROKEN = (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


def rows_beside(checkpoint: Path, what: str) -> Path:
    """Return the path of a checkpoint's rows of a kind; the checkpoint has their length and hash."""
    return checkpoint.with_suffix(f".{what}.rows")


class Checkpoint:
    """The checkpoint of a job under one policy.

    The folder of `path` must exist. A file with another `identity` is not read. `every` is the time between two
    checkpoints [s]; writing takes at most 5 % of the time, shared by `beside` jobs of this process. With 0 there is one
    after each iteration.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.checkpoint")
    ...     Checkpoint(path, "job 7").write({"weights": np.ones(2), "rows": [{"loss": 0.25}]}, done=3)
    ...     Checkpoint(path, "job 7").read(), Checkpoint(path, "job 8").read()
    ({'weights': array([1., 1.]), 'rows': [{'loss': 0.25}]}, None)
    """

    def __init__(self, path: Path, identity: str, every: float = EVERY, beside: int = 1) -> None:
        self.path = path
        self._share = _SHARE / beside
        self._identity = identity
        self._every = every
        self._began = time.monotonic()
        self._next = self._began + every

    def due(self) -> bool:
        """Whether it is time to gather a state, and to write it."""
        self._began = time.monotonic()
        return self._began >= self._next

    def write(self, state: State, done: int, ended: bool = False) -> None:
        """Write the state after `done` iterations atomically; warn and keep the last file if that fails.

        `ended` says that there are no more iterations.
        """
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
        """Return the iterations of the last checkpoint and whether the job has ended; None if this job has none."""
        with suppress(*_BROKEN), self._opened() as file:
            header = file.metadata()
            if header["identity"] == self._identity:
                return int(header["done"]), header["ended"] == str(True)
        return None

    def read(self) -> dict[str, Any] | None:
        """Return the state of the last one; None if there is none of this job, or it is not whole."""
        with suppress(*_BROKEN):
            with self._opened() as file:
                header = file.metadata()
                if header["identity"] != self._identity:
                    return None
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if header["sha256"] == _state_digest(arrays):
                found = _nest_state(json.loads(arrays[_STATE].tobytes()), arrays)
                return found if isinstance(found, dict) else None
        return None

    def _opened(self) -> Any:
        # To open a pipe would wait for ever.
        if not self.path.is_file():
            raise FileNotFoundError(self.path)
        return safe_open(self.path, framework="numpy")

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Raise InputError if the state that is read in the block lacks something or does not fit."""
        try:
            yield
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
            raise InputError("is no checkpoint of this job; --force begins anew", file=str(self.path)) from error


def _flatten_state(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return a value as JSON can hold it; arrays of numbers go into `arrays`, those of texts become lists."""
    if isinstance(value, Rows):
        gathered = np.empty(value.shape, dtype=value.dtype)
        for here, row in zip(gathered, value, strict=True):
            here[:] = row
        value = gathered
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
    """Return what `_flatten_state` made flat; tuples have become lists."""
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
