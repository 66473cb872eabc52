"""Gradients recorded from a training run.

A trace is a folder with a description, `trace.json`, and one safetensors file per recorded step, such as
``000020.safetensors``. A file has a tensor per layer, float32, float16 or bfloat16, with the gradients of all workers
before the exchange; the first axis is the worker. If every worker wrote its own (`per_worker`), worker 3 has
``000020.0003.safetensors``, with a first axis of one. If only some entries of a layer are recorded, the same ones at
all steps and workers, it has one axis, and `of` is its whole shape. An npz archive of numpy is a trace, too.

Iteration i of a job gets the recorded step nearest to i, and the last one after the end of the run, so a long job gets
the same gradients many times; for fresh ones, `simnet.traces.fit` a synthetic source to the trace.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from simnet.base.arrays import Ranks, Values
from simnet.base.errors import InputError, suggest_names
from simnet.base.quantities import Count
from simnet.base.rng import stream
from simnet.cost_models.costs.models import Layer
from simnet.traces.files import ARCHIVE, ReadArchive, check_finite, decode_stored, stored_tensor
from simnet.traces.metadata import DESCRIPTION, SHIPPED, RecordedLayer, TraceInfo, is_name, read_description
from simnet.traces.source import as_matrices, output_buffer, shrink_sizes, training_progress

_LARGEST_HEADER = 16_000_000
_DTYPES = ("F32", "F16", "BF16")


class RecordedSource:
    """A gradient source that reads a recorded trace; `recorded` creates it.

    Its `info` is the description of the trace, its `shapes` are the layers of the model, at any scale.
    """

    def __init__(
        self,
        trace: Path | ReadArchive,
        info: TraceInfo,
        workers: Sequence[int],
        iterations: int | None,
        scale: float,
        seed: int,
    ) -> None:
        self.info = info
        self.shapes = tuple(Layer(layer.name, layer.of or layer.shape) for layer in info.layers)
        there = [prod(layer.shape) for layer in info.layers]
        sizes = shrink_sizes(there, scale)
        self.layers = tuple((layer.name, size) for layer, size in zip(self.shapes, sizes, strict=True))
        self.workers = len(workers)
        self.parameters = sum(sizes)
        self.true_parameters = sum(layer.size for layer in self.shapes)
        self.true_shapes = as_matrices(layer.shape for layer in self.shapes)
        self.scale = self.true_parameters / self.parameters
        self._trace = trace
        self._rows = list(workers)
        self._iterations = iterations
        self._steps = np.array([point.step for point in info.points])
        # Entries at random, as a fixed stride would meet the same rows of a matrix again and again.
        self._entries = [chosen_entries(*one, seed) for one in zip(self.shapes, there, sizes, strict=True)]

    def __repr__(self) -> str:
        steps = f"{len(self._steps):,} step{'s' * (len(self._steps) != 1)}"
        return f"{type(self).__name__}({self.info.name}, {self.workers} workers, {self.parameters:,} entries, {steps})"

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return the gradients of all workers at the recorded step nearest to an iteration."""
        return self.gradients_of(range(self.workers), iteration, out)

    def gradients_of(self, workers: Sequence[int], iteration: int, out: Values | None = None) -> Values:
        """Return some workers' gradients at the recorded step nearest to an iteration; ties go to the earlier step.

        With `iterations`, an iteration is scaled to the length of the run; without, it is the step of the same number.
        After the end it is the last step. `out`, float32 of shape (len(workers), n), receives the gradients.
        """
        return self._read(self.nearest(iteration), [self._rows[worker] for worker in workers], out)

    def dtypes(self) -> list[str]:
        """Return the names of the storage types, as in safetensors, in the files of the first step."""
        if isinstance(self._trace, ReadArchive):
            return ["F32"]
        file, _, _ = _worker_files(self._trace, self.info, self.info.points[0].step, self._rows)[0]
        with _open_file(file) as tensors:
            return sorted({tensors.get_slice(layer.name).get_dtype() for layer in self.shapes})

    def nearest(self, iteration: int) -> int:
        """Return the index in `info.points` of the recorded step nearest to an iteration."""
        iterations = self.info.steps if self._iterations is None else self._iterations
        step = training_progress(iteration, iterations) * (self.info.steps - 1)
        return int(np.abs(self._steps - step).argmin())

    def repetition(self, iterations: int) -> str:
        """Return text on the recorded steps that a job of `iterations` iterations uses repeatedly; "" if none repeat.

        Examples
        --------
        >>> recorded("digits").repetition(400), recorded("digits").repetition(1000)
        ('', '12 recorded steps, of a run of 400, for 1,000 iterations: the last one repeats')
        """
        points, length = len(self.info.points), self.info.steps if self._iterations is None else self._iterations
        if iterations == 1 or (iterations <= length and points > 1):
            return ""
        run = f", of a run of {length:,}," if points < length else ""
        count, last = ("step", "it") if points == 1 else ("steps", "the last one")
        return f"{points:,} recorded {count}{run} for {iterations:,} iterations: {last} repeats"

    def recorded(self, point: int, out: Values | None = None) -> Values:
        """Return the gradients of recorded step number `point`; float32 of shape (P, n)."""
        return self._read(point, self._rows, out)

    def _read(self, point: int, workers: Sequence[int], out: Values | None) -> Values:
        found = output_buffer(out, len(workers), self.parameters)
        if isinstance(self._trace, ReadArchive):
            ends = np.cumsum([prod(layer.shape) for layer in self.info.layers])
            layers = np.split(self._trace.recorded(point)[workers], ends[:-1], axis=1)
            parts = (one if at is None else one[:, at] for one, at in zip(layers, self._entries, strict=True))
            return np.concatenate([*parts], axis=1, out=found)
        for file, here, rows in _worker_files(self._trace, self.info, self.info.points[point].step, workers):
            end = 0
            with _open_file(file) as tensors:
                for layer, entries, (_, size) in zip(self.shapes, self._entries, self.layers, strict=True):
                    values = _read_tensor(tensors, layer.name, file)
                    values = values.reshape(len(values), -1)[rows]
                    found[here, end : end + size] = values if entries is None else values[:, entries]
                    end += size
        return found


def chosen_entries(layer: Layer | RecordedLayer, size: int, count: int, seed: int) -> Ranks | None:
    """Return the ascending indices of `count` random entries out of `size` of a layer; None if `count` covers all."""
    if count >= size:
        return None
    return np.sort(stream(seed, "traces", "entries", layer.name).choice(size, count, replace=False))


def trace_names() -> list[str]:
    """Return the names of the traces that ship with simnet, sorted."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{DESCRIPTION}"))


def recorded(
    trace: str | os.PathLike[str],
    *,
    workers: int | Sequence[int] | None = None,
    iterations: Count | None = None,
    scale: float = 1.0,
    seed: int = 0,
) -> RecordedSource:
    """Return a source of recorded gradients, after a check of every value in the trace.

    Parameters
    ----------
    trace : str or Path
        One of `trace_names`, an npz archive, or the folder of a trace, whose path has a directory (``./mine``) or is
        no string.
    workers : int or sequence of int, optional
        How many of the recorded workers to use, or which; all if not given.
    iterations : int, optional
        Iterations over which a job goes through the run, from its first to its last step. Without it, iteration i gets
        step i.
    scale : float
        Use only 1 / `scale` of the entries of each layer, chosen at random, at least one.
    seed : int
        Seed of the entries.

    Raises
    ------
    ValueError
        If there is no such trace, a parameter is out of range, or too few workers are recorded.
    InputError
        If a file cannot be read or has wrong fields, tensors, shapes or types, or a value is not finite.

    Examples
    --------
    >>> source = recorded("digits", workers=2, iterations=1000)
    >>> source.nearest(500), source.info.points[7]
    (7, RecordedPoint(step=200, loss=..., accuracy=...))
    """
    folder = folder_of(trace)
    archive = ReadArchive(folder) if folder.suffix == ".npz" and not folder.is_dir() else None
    if archive is None and not folder.is_dir():
        said = f"is no trace; a trace is a folder with {DESCRIPTION}, or {ARCHIVE}"
        raise InputError(said if folder.exists() else "there is no such file or folder", file=str(folder))
    info = read_description(TraceInfo, folder / DESCRIPTION) if archive is None else archive.info
    outside = [point.step for point in info.points if point.step >= info.steps]
    if outside:
        message = f"step {outside[0]} is not within the {info.steps} steps of the run"
        raise InputError(message, file=str(folder / DESCRIPTION), field="points")
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations must be >= 1, got {iterations}")
    source = RecordedSource(archive or folder, info, _chosen_workers(workers, info), iterations, scale, seed)
    for point in info.points if archive is None else ():
        for file, _, _ in _worker_files(folder, info, point.step, range(info.workers)):
            _check_file(file, info)
    return source


def folder_of(trace: str | os.PathLike[str]) -> Path:
    """Return the folder of a trace, given its name or path; ValueError if no trace has this name."""
    if not is_name(trace):
        return Path(trace)
    if trace not in trace_names():
        if (SHIPPED / trace).is_dir():
            there = ", ".join(trace_names())
            raise ValueError(
                f"the recorded gradients of {trace!r} do not ship with simnet, only those of {there}; "
                f"--gradients synthetic:like={trace} makes gradients like them"
            )
        raise ValueError(
            f"there is no trace {trace!r} (a folder would be ./{trace}): {suggest_names(str(trace), trace_names())}"
        )
    return SHIPPED / trace


def step_file(folder: Path, step: int, worker: int | None = None) -> Path:
    """Return the path of the file of a step, or of one worker's file of a step."""
    return folder / (f"{step:06d}.safetensors" if worker is None else f"{step:06d}.{worker:04d}.safetensors")


def _worker_files(
    folder: Path, info: TraceInfo, step: int, workers: Sequence[int]
) -> list[tuple[Path, slice, list[int]]]:
    """Return the files with the workers' gradients at a step: path, output rows to fill, and rows to read."""
    if info.per_worker:
        return [(step_file(folder, step, worker), slice(place, place + 1), [0]) for place, worker in enumerate(workers)]
    return [(step_file(folder, step), slice(None), list(workers))]


def _read_tensor(tensors: Any, name: str, path: Path) -> Values:
    """Return a tensor of an open safetensors file as float32."""
    kind = tensors.get_slice(name).get_dtype()
    return decode_stored(stored_tensor(path, name) if kind == "BF16" else tensors.get_tensor(name), kind)


def _chosen_workers(workers: int | Sequence[int] | None, info: TraceInfo) -> list[int]:
    count = info.workers if workers is None else workers
    chosen = list(range(count) if isinstance(count, int) else count)
    if not chosen:
        raise ValueError("workers must be >= 1")
    if len(chosen) > info.workers:
        raise ValueError(
            f"trace {info.name!r} has {info.workers} workers, {len(chosen)} are asked for: take --workers "
            f"{info.workers}; a synthetic source that is fitted to the trace has any number"
        )
    if len(set(chosen)) < len(chosen) or not all(0 <= worker < info.workers for worker in chosen):
        raise ValueError(f"workers must be distinct and within 0..{info.workers - 1}, got {chosen}")
    return chosen


def _check_file(path: Path, info: TraceInfo) -> None:
    """Raise InputError if the tensors of a file do not match the layers, types and shapes of a trace's description."""
    with _open_file(path) as tensors:
        found, expected = set(tensors.keys()), {layer.name for layer in info.layers}
        for name in sorted(expected - found):
            raise InputError(f"has no tensor {name!r}, which {DESCRIPTION} lists among its layers", file=str(path))
        for name in sorted(found - expected):
            raise InputError(
                f"there is no layer {name!r} in {DESCRIPTION}: {suggest_names(name, expected)}", file=str(path)
            )
        for layer in info.layers:
            head = tensors.get_slice(layer.name)
            if head.get_dtype() not in _DTYPES:
                allowed = f"{', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}"
                raise InputError(f"layer {layer.name!r} is {head.get_dtype()}, must be {allowed}", file=str(path))
            shape = [1 if info.per_worker else info.workers, *layer.shape]
            if head.get_shape() != shape:
                raise InputError(f"layer {layer.name!r} has shape {head.get_shape()}, must be {shape}", file=str(path))
            check_finite(_read_tensor(tensors, layer.name, path), layer.name, str(path))


@contextmanager
def _open_file(path: Path) -> Iterator[Any]:
    """Open a safetensors file; opening checks that every tensor fits the file's size."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
        if len(start) == 8 and struct.unpack("<Q", start)[0] > _LARGEST_HEADER:
            raise InputError(f"is no trace: its header is larger than {_LARGEST_HEADER} bytes", file=str(path))
        opened = safe_open(path, framework="numpy")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=str(path)) from None
    except SafetensorError as error:
        raise InputError(f"is no safetensors file: {error}", file=str(path)) from None
    with opened as tensors:
        yield tensors
