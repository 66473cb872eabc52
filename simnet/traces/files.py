"""Files of a trace: tensors in single or half precision; a file appears under its name when it is complete."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.errors import InputError
from simnet.base.writing import open_atomic

DTYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
"""Storage types of entries, with their names in safetensors files."""

STORED: dict[str, np.dtype[Any]] = {"fp32": np.dtype("<f4"), "fp16": np.dtype("<f2"), "bf16": np.dtype("<u2")}
"""The numpy dtype of each storage type."""


def encode_stored(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return floats in the storage type `dtype` of `DTYPES`, rounded to nearest even; bf16 becomes 16-bit integers."""
    if dtype != "bf16":
        with np.errstate(over="ignore"):
            return np.asarray(np.asarray(values).astype(STORED[dtype]))
    exact = np.ascontiguousarray(values, dtype="<f4")
    bits = exact.view("<u4")
    # The carry of a rounded infinity or NaN could run into the sign.
    rounded = np.where(np.isfinite(exact), bits + (0x7FFF + ((bits >> 16) & 1)), bits | ((bits & 0xFFFF) != 0) << 22)
    return np.asarray((rounded >> 16).astype("<u2"))


def decode_stored(stored: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """Return stored values as float32; `kind` is their type's name in safetensors files."""
    if kind == "BF16":
        return (stored.astype("<u4") << 16).view("<f4").astype(np.float32, copy=False)
    return stored.astype(np.float32, copy=False)


def check_finite(gradients: NDArray[Any], layer: str, file: str) -> NDArray[np.float32]:
    """Return the gradients of a layer, (P, ...), as float32; InputError if a value is not finite."""
    with np.errstate(over="ignore"):
        found = gradients.astype(np.float32, copy=False)
    bad = ~np.isfinite(found)
    if bad.any():
        place = tuple(np.argwhere(bad)[0].tolist())
        value, (worker, *index) = gradients[place], place
        why = f", beyond float32, which ends at {np.finfo(np.float32).max:.3g}" if np.isfinite(value) else ""
        raise InputError(f"gradient of worker {worker}, layer {layer!r}, index {index} is {value}{why}", file=file)
    return found


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], dtype: str, sync: bool = True) -> None:
    """Write floats or results of `encode_stored` atomically as a safetensors file; `sync` waits for the disk."""
    stored = STORED[dtype]
    header, end = {}, 0
    for name, values in tensors.items():
        start, end = end, end + values.size * stored.itemsize
        header[name] = {"dtype": DTYPES[dtype], "shape": values.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open_atomic(path, sync) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values if values.dtype == stored else encode_stored(values, dtype)).data)


def stored_tensor(path: Path, name: str) -> NDArray[Any]:
    """Return a bfloat16 tensor of a safetensors file, already checked, as 16-bit integers."""
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        head = json.loads(file.read(length))[name]
        start, end = head["data_offsets"]
        file.seek(8 + length + start)
        return np.frombuffer(file.read(end - start), dtype="<u2").reshape(head["shape"])


def write_text(path: Path, text: str, sync: bool = True) -> None:
    """Write a text file atomically; `sync` waits until it is on disk."""
    with open_atomic(path, sync) as file:
        file.write(text.encode())
