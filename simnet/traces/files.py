"""Files of a trace: tensors in single or half precision, which appear when they are complete.

A safetensors file begins with a header of its tensors, so it can be laid out in advance and filled layer by layer, in
any order, with one layer in memory.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.errors import InputError
from simnet.base.writing import open_atomic, temporary_name

DTYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
"""Types of entries, and what safetensors files call them."""

_STORED: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def encode_values(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return floats as they are stored in a type of `DTYPES`: rounded to nearest, ties to even; bf16 as 16 bits."""
    if dtype != "bf16":
        with np.errstate(over="ignore"):
            return np.asarray(np.asarray(values).astype(_STORED[DTYPES[dtype]]))
    exact = np.ascontiguousarray(values, dtype="<f4")
    bits = exact.view("<u4")
    # The carry of a rounded infinity or NaN could run into the sign.
    rounded = np.where(np.isfinite(exact), bits + (0x7FFF + ((bits >> 16) & 1)), bits | ((bits & 0xFFFF) != 0) << 22)
    return np.asarray((rounded >> 16).astype("<u2"))


def decode_values(stored: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """Return stored values as float32; `kind` is the name of the type in safetensors files."""
    if kind == "BF16":
        return (stored.astype("<u4") << 16).view("<f4").astype(np.float32, copy=False)
    return stored.astype(np.float32, copy=False)


def check_finite(gradients: NDArray[Any], layer: str, file: str) -> NDArray[np.float32]:
    """Return the gradients of a layer, with the worker as first axis, as float32."""
    with np.errstate(over="ignore"):
        found = gradients.astype(np.float32, copy=False)
    bad = ~np.isfinite(found)
    if bad.any():
        place = tuple(np.argwhere(bad)[0].tolist())
        value, (worker, *index) = gradients[place], place
        why = f", beyond float32, which ends at {np.finfo(np.float32).max:.3g}" if np.isfinite(value) else ""
        raise InputError(f"gradient of worker {worker}, layer {layer!r}, index {index} is {value}{why}", file=file)
    return found


class TensorFile:
    """A safetensors file that is filled tensor by tensor and appears under its name when it is finished.

    Entries that are never written are zero.
    """

    def __init__(self, path: Path, shapes: Mapping[str, Sequence[int]], dtype: str) -> None:
        self._path, self._dtype = path, dtype
        self._size = _STORED[DTYPES[dtype]].itemsize
        header: dict[str, Any] = {}
        self._starts: dict[str, int] = {}
        end = 0
        for name, shape in shapes.items():
            start, end = end, end + prod(shape) * self._size
            header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
            self._starts[name] = start
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._body = 8 + len(text)
        self._ends = {name: self._body + one["data_offsets"][1] for name, one in header.items()}
        self._temporary = temporary_name(path)
        self._file = self._temporary.open("xb")
        try:
            self._file.write(struct.pack("<Q", len(text)) + text)
            self._file.truncate(self._body + end)
        except OSError:
            self.drop()
            raise

    def write(self, name: str, stored: NDArray[Any], at: int = 0) -> None:
        """Write part of a tensor, from entry `at` on; values of another type are `encode_values`."""
        stored = stored if stored.dtype == _STORED[DTYPES[self._dtype]] else encode_values(stored, self._dtype)
        start = self._body + self._starts[name] + at * self._size
        if at < 0 or start + stored.nbytes > self._ends[name]:
            raise ValueError(f"{stored.size} entries from {at} are more than tensor {name!r} has")
        self._file.seek(start)
        self._file.write(np.ascontiguousarray(stored).data)

    def finish(self, sync: bool = True) -> None:
        """Make it appear under its name; with `sync` only after the disk has it."""
        try:
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self._path)
        finally:
            self.drop()

    def drop(self) -> None:
        """Remove it, unless it is finished."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)


def stored_tensor(path: Path, name: str) -> NDArray[Any]:
    """Return a bfloat16 tensor as 16 bits an entry, of a file that safetensors has checked."""
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        head = json.loads(file.read(length))[name]
        start, end = head["data_offsets"]
        file.seek(8 + length + start)
        return np.frombuffer(file.read(end - start), dtype="<u2").reshape(head["shape"])


def write_text(path: Path, text: str, sync: bool = True) -> None:
    """Write a text file atomically; with `sync` wait for the disk."""
    with open_atomic(path, sync) as file:
        file.write(text.encode())
