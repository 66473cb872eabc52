"""Writes traces as folders for `recorded` and as npz archives for numpy, and reads such archives.

An archive has the description as its member ``trace.json`` and an array for each recorded step and layer, such as
``000020/conv1.weight.npy``, with the worker as its first axis. Without a description, the arrays supply it. Everything
goes step by step; the claims of an archive are checked against its size before it is read.
"""

from __future__ import annotations

import io
import re
import shutil
import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.base.rng import stream
from simnet.base.writing import explain_write_errors
from simnet.costs.layers import Layer
from simnet.traces.files import TensorFile, check_finite, encode_values, write_text
from simnet.traces.metadata import MAX_BYTES, parse_description
from simnet.traces.recorded import DESCRIPTION, RecordedLayer, RecordedPoint, TraceInfo, step_file
from simnet.traces.source import Values
from simnet.traces.synthetic import SyntheticSource

LARGEST = 8 * 2**30
"""Bytes of gradients that are in memory at once at most."""

_MEMBER = re.compile(r"(\d{1,12})/(.+)\.npy", re.DOTALL)
_MOST_MEMBERS = 1_000_000


class Steps(Protocol):
    """A trace to write: a description, and the gradients of its recorded steps."""

    @property
    def info(self) -> TraceInfo:
        """The description."""

    def recorded(self, point: int) -> Values:
        """Return the gradients of a recorded step; float32 of shape (P, n)."""


class Part:
    """Some of the steps, workers and entries of a trace, as `Steps`."""

    def __init__(
        self,
        whole: Steps,
        *,
        steps: Sequence[int] | None = None,
        workers: Sequence[int] | None = None,
        entries: int | None = None,
        seed: int = 0,
    ) -> None:
        info = whole.info
        at = {point.step: place for place, point in enumerate(info.points)}
        for step in steps or ():
            if step not in at:
                shown = ", ".join(map(str, list(at)[:20])) + (", ..." if len(at) > 20 else "")
                raise InputError(f"step {step} is not recorded; there are {shown}", file="--steps")
        for worker in workers or ():
            if not 0 <= worker < info.workers:
                raise InputError(f"there are workers 0 to {info.workers - 1}, got {worker}", file="--workers")
        self._whole = whole
        self._points = [at[step] for step in sorted(set(steps))] if steps is not None else list(at.values())
        self._rows = None if workers is None else list(dict.fromkeys(workers))
        sizes = [prod(layer.shape) for layer in info.layers]
        ends = np.cumsum(sizes).tolist()
        self._columns: NDArray[np.int64] | None = None
        layers = info.layers
        if entries is not None and any(size > entries for size in sizes):
            chosen = [
                np.sort(stream(seed, "traces", "entries", layer.name).choice(size, min(entries, size), replace=False))
                for layer, size in zip(layers, sizes, strict=True)
            ]
            self._columns = np.concatenate(
                [part + end - size for part, end, size in zip(chosen, ends, sizes, strict=True)]
            )
            layers = tuple(
                layer
                if size <= entries
                else RecordedLayer(name=layer.name, shape=(entries,), of=layer.of or layer.shape)
                for layer, size in zip(layers, sizes, strict=True)
            )
        self.info = info.model_copy(
            update={
                "workers": info.workers if self._rows is None else len(self._rows),
                "points": tuple(info.points[place] for place in self._points),
                "layers": layers,
            }
        )

    def recorded(self, point: int) -> Values:
        """Return the gradients of a recorded step; float32 of shape (P, n)."""
        found = self._whole.recorded(self._points[point])
        found = found if self._rows is None else found[self._rows]
        return found if self._columns is None else found[:, self._columns]


class Generated:
    """Synthetic gradients of some steps, as `Steps`; one step must fit memory, see `in_memory`."""

    def __init__(
        self,
        source: SyntheticSource,
        shapes: Sequence[Layer],
        name: str,
        iterations: int,
        steps: Sequence[int],
        seed: int,
    ) -> None:
        self._source = source
        self.info = TraceInfo(
            version=1,
            name=name,
            how=f"synthetic gradients like {source.like.name}",
            software={},
            seed=seed,
            workers=source.workers,
            steps=iterations,
            layers=tuple(
                RecordedLayer(name=layer.name, shape=layer.shape)
                if size == layer.size
                else RecordedLayer(name=layer.name, shape=(size,), of=layer.shape)
                for layer, (_, size) in zip(shapes, source.layers, strict=True)
            ),
            points=tuple(RecordedPoint(step=step) for step in steps),
        )
        in_memory(self.info)

    def recorded(self, point: int) -> Values:
        """Return the gradients of a step; float32 of shape (P, n)."""
        return self._source.gradients(self.info.points[point].step)


def in_memory(info: TraceInfo, entries: int | None = None, times: float = 1.0) -> None:
    """Refuse a trace if a step (`entries`, default all) or `times` as much exceeds `LARGEST`."""
    entries = sum(prod(layer.shape) for layer in info.layers) if entries is None else entries
    needed = 4 * info.workers * entries * times
    if needed > LARGEST:
        raise InputError(
            f"{info.workers} workers with {entries:,} entries need {needed / 2**30:,.1f} GiB of memory, more than "
            f"{LARGEST / 2**30:g} GiB; take fewer workers or entries, or a larger --scale",
            file=info.name,
        )


def write_folder(steps: Steps, folder: Path, dtype: str, per_worker: bool = False) -> None:
    """Write a trace into an empty folder."""
    info = steps.info.model_copy(update={"per_worker": per_worker})
    with explain_write_errors(folder, advice=""):
        _fits_disk(folder, info, dtype)
        for place, point in track_progress(list(enumerate(info.points))):
            gradients = steps.recorded(place)
            groups = [(worker, gradients[worker : worker + 1]) for worker in range(info.workers)]
            for worker, rows in groups if per_worker else [(None, gradients)]:
                file = TensorFile(
                    step_file(folder, point.step, worker),
                    {layer.name: (len(rows), *layer.shape) for layer in info.layers},
                    dtype,
                )
                try:
                    for layer, values in _by_layer(info, rows):
                        file.write(layer.name, _stored(values, dtype, layer.name, point.step))
                    file.finish()
                finally:
                    file.drop()
        write_text(folder / DESCRIPTION, info.model_dump_json(indent=1, exclude_none=True) + "\n")


def write_npz(steps: Steps, path: Path, dtype: str) -> None:
    """Write a trace as an npz archive, of type ``fp32`` or ``fp16``."""
    if dtype == "bf16":
        raise InputError("numpy has no bfloat16; take fp32 or fp16 for .npz", file="--dtype")
    info = steps.info.model_copy(update={"per_worker": False})
    with explain_write_errors(path, advice=""):
        _fits_disk(path.parent, info, dtype)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(DESCRIPTION), info.model_dump_json(indent=1, exclude_none=True) + "\n")
            for place, point in track_progress(list(enumerate(info.points))):
                for layer, values in _by_layer(info, steps.recorded(place)):
                    stored = _stored(values, dtype, layer.name, point.step).reshape(info.workers, *layer.shape)
                    member = zipfile.ZipInfo(f"{point.step:06d}/{layer.name}.npy")
                    with archive.open(member, "w", force_zip64=True) as file:
                        npy.write_array(file, stored, allow_pickle=False)


class ReadArchive:
    """A trace in an npz archive, as `Steps`; every value is checked once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._opened() as archive:
            members = {one.filename: one for one in archive.infolist()}
            if len(members) > _MOST_MEMBERS:
                raise InputError(f"has more than {_MOST_MEMBERS:,} members", file=str(path))
            self.info = self._description(archive, members)
            in_memory(self.info)
            for point in self.info.points:
                for layer in self.info.layers:
                    self._array(archive, members, point.step, layer)

    def recorded(self, point: int) -> Values:
        """Return the gradients of a recorded step; float32 of shape (P, n)."""
        info = self.info
        with self._opened() as archive:
            members = {one.filename: one for one in archive.infolist()}
            arrays = [self._array(archive, members, info.points[point].step, layer) for layer in info.layers]
        return np.concatenate([one.reshape(info.workers, -1) for one in arrays], axis=1)

    def _opened(self) -> zipfile.ZipFile:
        try:
            if not self._path.is_file():
                raise InputError(
                    "is not a file" if self._path.exists() else "there is no such file", file=str(self._path)
                )
            return zipfile.ZipFile(self._path)
        except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise InputError(f"is no npz archive: {error}", file=str(self._path)) from None

    def _read(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> bytes:
        """Return the content of a member, at most so many bytes."""
        try:
            with archive.open(member) as file:
                content = file.read(most + 1)
        except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
            raise InputError(f"{member.filename!r} cannot be read: {error}", file=str(self._path)) from None
        except Exception as error:  # zlib.error and its like of other packings have no base of their own
            raise InputError(f"{member.filename!r} cannot be unpacked: {error}", file=str(self._path)) from None
        if len(content) > most:
            raise InputError(f"{member.filename!r} is larger than {most:,} bytes", file=str(self._path))
        return content

    def _description(self, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> TraceInfo:
        if DESCRIPTION in members:
            content = self._read(archive, members[DESCRIPTION], MAX_BYTES)
            return parse_description(TraceInfo, content, f"{self._path}:{DESCRIPTION}")
        found: dict[int, list[str]] = {}
        for name in members:
            match = _MEMBER.fullmatch(name)
            if match is None:
                raise InputError(
                    f"has no {DESCRIPTION}, and {name[:80]!r} is not called STEP/LAYER.npy, as 000020/fc1.weight.npy",
                    file=str(self._path),
                )
            found.setdefault(int(match[1]), []).append(match[2])
        if not found:
            raise InputError("holds no arrays", file=str(self._path))
        steps = sorted(found)
        names = found[steps[0]]
        shapes = [self._shape(archive, members[self._name(members, steps[0], name)])[0] for name in names]
        if any(len(shape) < 1 or min(shape) < 1 for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
            raise InputError("arrays must have the worker as their first axis, as many in all", file=str(self._path))
        return TraceInfo(
            version=1,
            name=self._path.stem or "trace",
            software={},
            workers=shapes[0][0],
            steps=steps[-1] + 1,
            layers=tuple(
                RecordedLayer(name=name, shape=tuple(shape[1:])) for name, shape in zip(names, shapes, strict=True)
            ),
            points=tuple(RecordedPoint(step=step) for step in steps),
        )

    def _name(self, members: dict[str, zipfile.ZipInfo], step: int, layer: str) -> str:
        for name in (f"{step:06d}/{layer}.npy", f"{step}/{layer}.npy"):
            if name in members:
                return name
        raise InputError(f"has no array of layer {layer!r} at step {step}", file=str(self._path))

    def _shape(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype[Any]]:
        try:
            with archive.open(member) as file:
                version = npy.read_magic(file)
                read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, fortran, dtype = read(file)
        except Exception as error:  # numpy parses the header of a stranger, and says what is wrong in many ways
            raise InputError(f"{member.filename!r} is no array: {error}", file=str(self._path)) from None
        if fortran and len(shape) > 1:
            raise InputError(f"{member.filename!r} has Fortran order; save it in C order", file=str(self._path))
        return tuple(int(size) for size in shape), dtype

    def _array(
        self, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], step: int, layer: RecordedLayer
    ) -> Values:
        member = members[self._name(members, step, layer.name)]
        shape, dtype = self._shape(archive, member)
        expected = (self.info.workers, *layer.shape)
        if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8):
            raise InputError(f"{member.filename!r} is {dtype}, must be float16, 32 or 64", file=str(self._path))
        if shape != expected:
            message = f"{member.filename!r} has shape {list(shape)}, must be {list(expected)}"
            raise InputError(message, file=str(self._path))
        content = self._read(archive, member, prod(shape) * dtype.itemsize + 65_536)
        try:
            found = np.asarray(npy.read_array(io.BytesIO(content), allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise InputError(f"{member.filename!r} is no array: {error}", file=str(self._path)) from None
        return check_finite(found, layer.name, f"{self._path}:{member.filename}")


def _by_layer(info: TraceInfo, gradients: Values) -> list[tuple[RecordedLayer, Values]]:
    ends = np.cumsum([prod(layer.shape) for layer in info.layers])
    return list(zip(info.layers, np.split(gradients, ends[:-1], axis=1), strict=True))


def _stored(values: Values, dtype: str, layer: str, step: int) -> NDArray[Any]:
    stored = encode_values(values, dtype)
    if dtype != "fp32":
        largest = float(np.abs(values).max(initial=0.0))
        if largest > (65504.0 if dtype == "fp16" else 3.3895e38):
            better = "bf16 or fp32" if dtype == "fp16" else "fp32"
            raise InputError(
                f"layer {layer!r} has {largest:.3g} at step {step}, too large; take {better}", file="--dtype"
            )
    return stored


def _fits_disk(folder: Path, info: TraceInfo, dtype: str) -> None:
    size = 4 if dtype == "fp32" else 2
    needed = size * len(info.points) * info.workers * sum(prod(layer.shape) for layer in info.layers)
    free = shutil.disk_usage(folder).free
    if needed > free:
        message = f"needs {needed / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free; take fewer steps or entries"
        raise InputError(message, file=str(folder))
