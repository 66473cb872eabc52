"""Files of gradient traces: tensors in single or half precision, and npz archives of numpy.

A file appears under its name when it is complete. An archive has the description as its member ``trace.json`` and an
array for each recorded step and layer, such as ``000020/conv1.weight.npy``, with the worker as its first axis. Without
a description, the arrays supply it. Everything goes step by step; the claims of an archive are checked against its size
before it is read.
"""

from __future__ import annotations

import json
import math
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Values
from simnet.base.errors import InputError
from simnet.base.file_io import open_atomic
from simnet.traces import metadata

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
    """Write arrays atomically as a safetensors file, converting floats to `dtype`; `sync` waits for the disk."""
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
    """Return a bfloat16 tensor as 16-bit integers, from a safetensors file whose structure was already checked."""
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


LARGEST = 8 * 2**30
"""Maximum bytes of gradients in memory at once."""

ARCHIVE = "an archive, as numpy.savez('mine.npz', **{'000020/fc1': array}): of step 20, with the worker as first axis"
"""How gradients become an archive, for messages."""

_MEMBER = re.compile(r"(\d{1,12})/(.+)\.npy", re.DOTALL)
_MOST_MEMBERS = 1_000_000


def in_memory(info: metadata.TraceInfo, entries: int | None = None, times: float = 1.0) -> None:
    """Raise InputError if `times` copies of a step's gradients in float32 need more than `LARGEST` bytes."""
    entries = sum(prod(layer.shape) for layer in info.layers) if entries is None else entries
    needed = 4 * info.workers * entries * times
    if needed > LARGEST:
        raise InputError(
            f"{info.workers} workers with {entries:,} entries need {needed / 2**30:,.1f} GiB of memory, more than "
            f"{LARGEST / 2**30:g} GiB; take fewer workers or entries, or a larger --scale",
            file=info.name,
        )


class ReadArchive:
    """A gradient trace in an npz archive, read one step at a time; all values are checked once, at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise self._refusal("is not a file" if path.exists() else "there is no such file")
        with self._said("is no npz archive"), zipfile.ZipFile(path) as archive:
            self._members = {one.filename: one.file_size for one in archive.infolist()}
        if len(self._members) > _MOST_MEMBERS:
            raise self._refusal(f"has more than {_MOST_MEMBERS:,} members")
        self.info = self._description()
        in_memory(self.info)
        for point in range(len(self.info.points)):
            self.recorded(point)

    def recorded(self, point: int, /) -> Values:
        """Return the gradients of recorded step number `point`, float32 of shape (P, n)."""
        info = self.info
        arrays = [self._array(info.points[point].step, layer) for layer in info.layers]
        return np.concatenate([one.reshape(info.workers, -1) for one in arrays], axis=1)

    def _refusal(self, message: str) -> InputError:
        return InputError(message, file=str(self._path))

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Convert any error in the ``with`` block into an InputError that begins with `what`: the file is untrusted."""
        try:
            yield
        except Exception as error:
            objects = "Object arrays" in str(error)
            why = "it holds objects, not numbers, as rows of unequal length do" if objects else error
            raise self._refusal(f"{what}: {why}") from None

    def _member(self, name: str, most: int = LARGEST) -> Any:
        """Return an archive member of at most `most` bytes: an array, or bytes if it is not a .npy file."""
        if self._members[name] > most:
            raise self._refusal(f"{name!r} is larger than {most:,} bytes")
        with self._said(f"{name!r} is no array"), np.load(self._path) as archive:
            return archive[name]

    def _description(self) -> metadata.TraceInfo:
        if metadata.DESCRIPTION in self._members:
            return metadata.parse_description(
                metadata.TraceInfo,
                self._member(metadata.DESCRIPTION, metadata.MAX_BYTES),
                f"{self._path}:{metadata.DESCRIPTION}",
            )
        found: dict[int, list[str]] = {}
        for name in self._members:
            match = _MEMBER.fullmatch(name)
            if match is None:
                wanted = "is not named STEP/LAYER, such as 000020/fc1.weight: STEP is a number, as of the iteration"
                raise self._refusal(f"the array {name.removesuffix('.npy')[:80]!r} {wanted}")
            found.setdefault(int(match[1]), []).append(match[2])
        if not found:
            raise self._refusal("holds no arrays")
        steps = sorted(found)
        shapes = {name: np.shape(self._member(self._name(steps[0], name))) for name in found[steps[0]]}
        if any(min(shape, default=0) < 1 for shape in shapes.values()) or len({one[0] for one in shapes.values()}) != 1:
            raise self._refusal("arrays must have the worker as their first axis, as many in all")
        workers, entries = next(iter(shapes.values()))[0], sum(math.prod(one[1:]) for one in shapes.values())
        if workers > entries:
            each = f"{workers:,} workers of {entries:,} entr{'y' if entries == 1 else 'ies'} each"
            advice = "transpose them, as array.T"
            if all(len(one) == 1 for one in shapes.values()):
                advice = "stack those of all workers, as numpy.stack([first, second])"
            raise self._refusal(f"has {each}: the first axis of arrays is the worker; {advice}")
        return metadata.TraceInfo(
            version=1,
            name=self._path.stem or "trace",
            software={},
            workers=workers,
            steps=steps[-1] + 1,
            layers=tuple(metadata.RecordedLayer(name=name, shape=shape[1:]) for name, shape in shapes.items()),
            points=tuple(metadata.RecordedPoint(step=step) for step in steps),
        )

    def _name(self, step: int, layer: str) -> str:
        for name in (f"{step:06d}/{layer}.npy", f"{step}/{layer}.npy"):
            if name in self._members:
                return name
        raise self._refusal(f"has no array of layer {layer!r} at step {step}")

    def _array(self, step: int, layer: metadata.RecordedLayer) -> Values:
        name, expected = self._name(step, layer.name), (self.info.workers, *layer.shape)
        found = np.asarray(self._member(name, 8 * prod(expected) + 65_536))
        if found.dtype.kind != "f" or found.dtype.itemsize not in (2, 4, 8):
            raise self._refusal(f"{name!r} is {found.dtype}, must be float16, 32 or 64")
        if found.shape != expected:
            raise self._refusal(f"{name!r} has shape {list(found.shape)}, must be {list(expected)}")
        return check_finite(found, layer.name, f"{self._path}:{name}")
