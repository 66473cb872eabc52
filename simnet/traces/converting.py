"""Writes traces as folders for `recorded` and as npz archives for numpy, and reads such archives.

An archive has the description as its member ``trace.json`` and an array for each recorded step and layer, such as
``000020/conv1.weight.npy``, with the worker as its first axis. Without a description, the arrays supply it. Everything
goes step by step; the claims of an archive are checked against its size before it is read.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.base.rng import stream
from simnet.base.writing import explain_write_errors
from simnet.cost_models.costs.layers import Layer
from simnet.traces.files import check_finite, encode_stored, write_tensors, write_text
from simnet.traces.metadata import MAX_BYTES, parse_description
from simnet.traces.recorded import DESCRIPTION, RecordedLayer, RecordedPoint, TraceInfo, step_file
from simnet.traces.source import Values
from simnet.traces.synthetic import SyntheticSource

LARGEST = 8 * 2**30
"""Maximum bytes of gradients in memory at once."""

_MEMBER = re.compile(r"(\d{1,12})/(.+)\.npy", re.DOTALL)
_MOST_MEMBERS = 1_000_000


class ConvertedSteps(Protocol):
    """A trace to be written: its description, and a method that returns the gradients of a recorded step."""

    @property
    def info(self) -> TraceInfo:
        """Description of the trace."""

    def recorded(self, point: int, /) -> Values:
        """Return the gradients of the recorded step at index `point`; float32 of shape (P, n)."""


class _Steps(NamedTuple):
    info: TraceInfo
    recorded: Callable[[int], Values]


def trace_part(
    whole: ConvertedSteps,
    *,
    steps: Sequence[int] | None = None,
    workers: Sequence[int] | None = None,
    entries: int | None = None,
    seed: int = 0,
) -> ConvertedSteps:
    """Return a subset of a trace: some recorded steps and workers, and at most `entries` entries of each layer.

    Defaults are all steps, workers and entries; entries are drawn at random by `seed`.
    """
    info = whole.info
    at = {point.step: place for place, point in enumerate(info.points)}
    for step in steps or ():
        if step not in at:
            shown = ", ".join(map(str, list(at)[:20])) + (", ..." if len(at) > 20 else "")
            raise InputError(f"step {step} is not recorded; there are {shown}", file="--steps")
    for worker in workers or ():
        if not 0 <= worker < info.workers:
            raise InputError(f"there are workers 0 to {info.workers - 1}, got {worker}", file="--workers")
    points = [at[step] for step in sorted(set(steps))] if steps is not None else list(at.values())
    rows = slice(None) if workers is None else list(dict.fromkeys(workers))
    columns: Any = slice(None)
    chosen, layers, begin = [], [], 0
    for layer in info.layers:
        size = prod(layer.shape)
        part: Any = range(size)
        if entries is not None and size > entries:
            part = np.sort(stream(seed, "traces", "entries", layer.name).choice(size, entries, replace=False))
            layer = RecordedLayer(name=layer.name, shape=(entries,), of=layer.of or layer.shape)
        chosen.append((begin, part))
        layers.append(layer)
        begin += size
    if tuple(layers) != info.layers:
        columns = np.concatenate([begin + np.asarray(part) for begin, part in chosen])
    described = {
        "workers": info.workers if workers is None else len(set(workers)),
        "points": tuple(info.points[place] for place in points),
        "layers": tuple(layers),
    }
    return _Steps(info.model_copy(update=described), lambda point: whole.recorded(points[point])[rows][:, columns])


def generated(
    source: SyntheticSource, shapes: Sequence[Layer], name: str, iterations: int, steps: Sequence[int], seed: int
) -> ConvertedSteps:
    """Return some iterations of a synthetic source as a trace; one step must fit memory, see `in_memory`."""
    info = TraceInfo(
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
    in_memory(info)
    return _Steps(info, lambda point: source.gradients(steps[point]))


def in_memory(info: TraceInfo, entries: int | None = None, times: float = 1.0) -> None:
    """Raise InputError if `times` the gradients of a step (`entries` per worker, default all) exceed `LARGEST`."""
    entries = sum(prod(layer.shape) for layer in info.layers) if entries is None else entries
    needed = 4 * info.workers * entries * times
    if needed > LARGEST:
        raise InputError(
            f"{info.workers} workers with {entries:,} entries need {needed / 2**30:,.1f} GiB of memory, more than "
            f"{LARGEST / 2**30:g} GiB; take fewer workers or entries, or a larger --scale",
            file=info.name,
        )


def write_folder(steps: ConvertedSteps, folder: Path, dtype: str, per_worker: bool = False) -> None:
    """Write a trace into an empty folder."""
    info = steps.info.model_copy(update={"per_worker": per_worker})
    with explain_write_errors(folder, advice=""):
        for place, point in track_progress(list(enumerate(info.points))):
            gradients = steps.recorded(place)
            groups = [(worker, gradients[worker : worker + 1]) for worker in range(info.workers)]
            for worker, rows in groups if per_worker else [(None, gradients)]:
                tensors = {
                    layer.name: _stored_values(values, dtype, layer.name, point.step).reshape(-1, *layer.shape)
                    for layer, values in _by_layer(info, rows)
                }
                write_tensors(step_file(folder, point.step, worker), tensors, dtype)
        write_text(folder / DESCRIPTION, info.model_dump_json(indent=1, exclude_none=True) + "\n")


def write_npz(steps: ConvertedSteps, path: Path, dtype: str) -> None:
    """Write a trace as an npz archive, of type ``fp32`` or ``fp16``."""
    if dtype == "bf16":
        raise InputError("numpy has no bfloat16; take fp32 or fp16 for .npz", file="--dtype")
    info = steps.info.model_copy(update={"per_worker": False})
    with explain_write_errors(path, advice=""), zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(DESCRIPTION), info.model_dump_json(indent=1, exclude_none=True) + "\n")
        for place, point in track_progress(list(enumerate(info.points))):
            for layer, values in _by_layer(info, steps.recorded(place)):
                stored = _stored_values(values, dtype, layer.name, point.step).reshape(info.workers, *layer.shape)
                member = zipfile.ZipInfo(f"{point.step:06d}/{layer.name}.npy")
                with archive.open(member, "w", force_zip64=True) as file:
                    npy.write_array(file, stored, allow_pickle=False)


class ReadArchive:
    """A trace read from an npz archive, as `ConvertedSteps`; all values are checked once."""

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
        """Return the gradients of a recorded step; float32 of shape (P, n)."""
        info = self.info
        arrays = [self._array(info.points[point].step, layer) for layer in info.layers]
        return np.concatenate([one.reshape(info.workers, -1) for one in arrays], axis=1)

    def _refusal(self, message: str) -> InputError:
        return InputError(message, file=str(self._path))

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        """Convert any error of the readers into InputError, as the file is untrusted."""
        try:
            yield
        except Exception as error:
            raise self._refusal(f"{what}: {error}") from None

    def _member(self, name: str, most: int = LARGEST) -> Any:
        """Return an archive member of at most `most` bytes: an array, or bytes if it is not a .npy file."""
        if self._members[name] > most:
            raise self._refusal(f"{name!r} is larger than {most:,} bytes")
        with self._said(f"{name!r} is no array"), np.load(self._path) as archive:
            return archive[name]

    def _description(self) -> TraceInfo:
        if DESCRIPTION in self._members:
            return parse_description(TraceInfo, self._member(DESCRIPTION, MAX_BYTES), f"{self._path}:{DESCRIPTION}")
        found: dict[int, list[str]] = {}
        for name in self._members:
            match = _MEMBER.fullmatch(name)
            if match is None:
                wanted = "is not called STEP/LAYER.npy, as 000020/fc1.weight.npy"
                raise self._refusal(f"has no {DESCRIPTION}, and {name[:80]!r} {wanted}")
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
            raise self._refusal(f"has {each}: the first axis of arrays is the worker; transpose them, as array.T")
        return TraceInfo(
            version=1,
            name=self._path.stem or "trace",
            software={},
            workers=workers,
            steps=steps[-1] + 1,
            layers=tuple(RecordedLayer(name=name, shape=shape[1:]) for name, shape in shapes.items()),
            points=tuple(RecordedPoint(step=step) for step in steps),
        )

    def _name(self, step: int, layer: str) -> str:
        for name in (f"{step:06d}/{layer}.npy", f"{step}/{layer}.npy"):
            if name in self._members:
                return name
        raise self._refusal(f"has no array of layer {layer!r} at step {step}")

    def _array(self, step: int, layer: RecordedLayer) -> Values:
        name, expected = self._name(step, layer.name), (self.info.workers, *layer.shape)
        found = np.asarray(self._member(name, 8 * prod(expected) + 65_536))
        if found.dtype.kind != "f" or found.dtype.itemsize not in (2, 4, 8):
            raise self._refusal(f"{name!r} is {found.dtype}, must be float16, 32 or 64")
        if found.shape != expected:
            raise self._refusal(f"{name!r} has shape {list(found.shape)}, must be {list(expected)}")
        return check_finite(found, layer.name, f"{self._path}:{name}")


def _by_layer(info: TraceInfo, gradients: Values) -> list[tuple[RecordedLayer, Values]]:
    ends = np.cumsum([prod(layer.shape) for layer in info.layers])
    return list(zip(info.layers, np.split(gradients, ends[:-1], axis=1), strict=True))


def _stored_values(values: Values, dtype: str, layer: str, step: int) -> NDArray[Any]:
    stored = encode_stored(values, dtype)
    if dtype != "fp32":
        largest = float(np.abs(values).max(initial=0.0))
        if largest > (65504.0 if dtype == "fp16" else 3.3895e38):
            better = "bf16 or fp32" if dtype == "fp16" else "fp32"
            raise InputError(
                f"layer {layer!r} has {largest:.3g} at step {step}, too large; take {better}", file="--dtype"
            )
    return stored
