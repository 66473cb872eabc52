"""Gradients recorded from a training run.

A trace is a folder with a description, `trace.json`, and one safetensors file per recorded step, named after it, such
as ``000020.safetensors``. In such a file a tensor per layer, float32 or float16, holds that layer's gradients of all
workers, each before the exchange; the first axis is the worker, the others are those of the layer.

A trace records a few steps of a run. A job meets the recorded step nearest to its own, so a long job meets the same
gradients many times over; for fresh ones in every iteration, `simnet.traces.fit` a synthetic source to the trace.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator
from safetensors import SafetensorError, safe_open

from simnet.errors import InputError, nearest
from simnet.models import Layer
from simnet.rng import stream
from simnet.traces.metadata import SHIPPED, Description, is_name, read_description
from simnet.traces.source import Values, buffer, position, shrunk

_DESCRIPTION = "trace.json"
_LARGEST_HEADER = 16_000_000
_DTYPES = ("F32", "F16")
_Whole = Annotated[int, Field(ge=0, le=2**40)]
_Positive = Annotated[int, Field(ge=1, le=2**40)]


class RecordedLayer(Description):
    """A tensor of parameters: its name and shape."""

    name: Annotated[str, Field(min_length=1)]
    shape: tuple[_Positive, ...]


class RecordedPoint(Description):
    """A recorded step, with the mean loss of the workers and the accuracy before it."""

    step: _Whole
    loss: float | None = None
    accuracy: float | None = None


class TraceInfo(Description):
    """What `trace.json` says: which run it was, and what was recorded of it.

    Parameters
    ----------
    version : 1
        Of this format.
    name, model, data, how, license, date : str
        What was trained, on what, how, when, and the licence of the trace.
    software : mapping of str to str
        Versions.
    seed : int, optional
        Seed of the run.
    workers : int
        P.
    steps : int
        Length of the run.
    layers : tuple of RecordedLayer
        In the order of the gradient.
    points : tuple of RecordedPoint
        The recorded steps, ascending.
    """

    version: Literal[1]
    name: str
    model: str = ""
    data: str = ""
    how: str = ""
    license: str = ""
    date: str = ""
    software: Annotated[dict[str, str], Field(default_factory=dict)]
    seed: int | None = None
    workers: _Positive
    steps: _Positive
    layers: Annotated[tuple[RecordedLayer, ...], Field(min_length=1)]
    points: Annotated[tuple[RecordedPoint, ...], Field(min_length=1)]

    @field_validator("layers")
    @classmethod
    def _distinct(cls, layers: tuple[RecordedLayer, ...]) -> tuple[RecordedLayer, ...]:
        listed = [layer.name for layer in layers]
        twice = [name for name in listed if listed.count(name) > 1]
        if twice:
            raise ValueError(f"two layers are called {twice[0]!r}")
        return layers

    @field_validator("points")
    @classmethod
    def _ascending(cls, points: tuple[RecordedPoint, ...]) -> tuple[RecordedPoint, ...]:
        steps = [point.step for point in points]
        if sorted(set(steps)) != steps:
            raise ValueError(f"steps must ascend, got {', '.join(map(str, steps))}")
        return points


class RecordedSource:
    """The gradients of a trace, as a `GradientSource`; see `recorded`.

    Its `info` is the description of the trace, its `shapes` are the recorded layers, at any scale.

    Parameters
    ----------
    folder : Path
        Where the trace lies.
    info : TraceInfo
        Its description.
    workers : sequence of int
        Which of the recorded workers, distinct.
    iterations : int, optional
        Length of the job.
    scale : float
        How many times fewer entries to use.
    seed : int
        Decides which.
    """

    def __init__(
        self, folder: Path, info: TraceInfo, workers: Sequence[int], iterations: int | None, scale: float, seed: int
    ) -> None:
        self.info = info
        self.shapes = tuple(Layer(layer.name, layer.shape) for layer in info.layers)
        sizes = shrunk([layer.size for layer in self.shapes], scale)
        self.layers = tuple((layer.name, size) for layer, size in zip(self.shapes, sizes, strict=True))
        self.workers = len(workers)
        self.parameters = sum(sizes)
        self.true_parameters = sum(layer.size for layer in self.shapes)
        self.scale = self.true_parameters / self.parameters
        self._folder = folder
        self._rows = list(workers)
        self._iterations = iterations
        self._steps = np.array([point.step for point in info.points])
        # Entries at random, as a fixed stride would meet the same rows of a matrix again and again.
        self._entries = [
            None
            if size == layer.size
            else np.sort(stream(seed, "traces", "entries", layer.name).choice(layer.size, size, replace=False))
            for layer, size in zip(self.shapes, sizes, strict=True)
        ]

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return the gradients of the recorded step nearest to an iteration, the earlier of two equally near.

        Parameters
        ----------
        iteration : int
            From 0. With a length of the job, the step as far through the run as the iteration is through the job;
            without it, the step of the same number. After the end, the last step.
        out : ndarray of float32, shape (P, n), optional
            Where to put them.
        """
        return self.recorded(self.nearest(iteration), out)

    def nearest(self, iteration: int) -> int:
        """Return which of `info.points` is nearest to an iteration."""
        iterations = self.info.steps if self._iterations is None else self._iterations
        step = position(iteration, iterations) * (self.info.steps - 1)
        return int(np.abs(self._steps - step).argmin())

    def recorded(self, point: int, out: Values | None = None) -> Values:
        """Return the gradients of one of `info.points`; float32 of shape (P, n)."""
        found = buffer(out, self.workers, self.parameters)
        end = 0
        with _opened(_file(self._folder, self.info.points[point].step)) as tensors:
            for layer, entries, (_, size) in zip(self.shapes, self._entries, self.layers, strict=True):
                rows = tensors.get_tensor(layer.name).reshape(self.info.workers, layer.size)[self._rows]
                found[:, end : end + size] = rows if entries is None else rows[:, entries]
                end += size
        return found


def names() -> list[str]:
    """Return the names of the traces that come with simnet, sorted.

    Examples
    --------
    >>> names()
    ['digits']
    """
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{_DESCRIPTION}"))


def recorded(
    trace: str | os.PathLike[str],
    *,
    workers: int | Sequence[int] | None = None,
    iterations: int | None = None,
    scale: float = 1.0,
    seed: int = 0,
) -> RecordedSource:
    """Return a source that yields recorded gradients.

    Every value of the trace is looked at once, so a bad one is found now and not in the middle of a job.

    Parameters
    ----------
    trace : str or Path
        One of `names`, or the folder of a trace, whose path has a directory (``./mine``) or is no string.
    workers : int or sequence of int, optional
        How many of the recorded workers to use, or which; all if not given.
    iterations : int, optional
        Length of the job, for a job that shall go through the whole run: its first iteration meets the first step of
        the run, its last the last. Without it, iteration i meets step i.
    scale : float
        Use only 1 / `scale` of the entries of each layer, chosen at random, at least one.
    seed : int
        Decides which.

    Raises
    ------
    ValueError
        If there is no trace of this name, or a parameter is out of range, or more workers are asked for than recorded.
    InputError
        If a file cannot be read or has wrong fields, tensors, shapes or types, or a value is NaN or infinite.

    Examples
    --------
    >>> source = recorded("digits", workers=2, iterations=1000)
    >>> source.nearest(500), source.info.points[7]
    (7, RecordedPoint(step=200, loss=..., accuracy=...))
    """
    folder = _folder(trace)
    info = read_description(TraceInfo, folder / _DESCRIPTION)
    outside = [point.step for point in info.points if point.step >= info.steps]
    if outside:
        message = f"step {outside[0]} is not within the {info.steps} steps of the run"
        raise InputError(message, file=str(folder / _DESCRIPTION), field="points")
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations must be >= 1, got {iterations}")
    source = RecordedSource(folder, info, _chosen(workers, info), iterations, scale, seed)
    for point in info.points:
        _check(_file(folder, point.step), info)
    return source


def _folder(trace: str | os.PathLike[str]) -> Path:
    if not is_name(trace):
        return Path(trace)
    if trace not in names():
        raise ValueError(f"there is no trace {trace!r} (a folder would be ./{trace}): {nearest(str(trace), names())}")
    return SHIPPED / trace


def _file(folder: Path, step: int) -> Path:
    return folder / f"{step:06d}.safetensors"


def _chosen(workers: int | Sequence[int] | None, info: TraceInfo) -> list[int]:
    count = info.workers if workers is None else workers
    chosen = list(range(count) if isinstance(count, int) else count)
    if not chosen:
        raise ValueError("workers must be >= 1")
    if len(chosen) > info.workers:
        raise ValueError(
            f"trace {info.name!r} has {info.workers} workers, {len(chosen)} are asked for; a synthetic source that is "
            "fitted to the trace has any number"
        )
    if len(set(chosen)) < len(chosen) or not all(0 <= worker < info.workers for worker in chosen):
        raise ValueError(f"workers must be distinct and within 0..{info.workers - 1}, got {chosen}")
    return chosen


def _check(path: Path, info: TraceInfo) -> None:
    """Raise if a file does not hold the gradients that the description says it does."""
    with _opened(path) as tensors:
        found, expected = set(tensors.keys()), {layer.name for layer in info.layers}
        for name in sorted(expected - found):
            raise InputError(f"has no tensor {name!r}, which {_DESCRIPTION} lists among its layers", file=str(path))
        for name in sorted(found - expected):
            raise InputError(f"there is no layer {name!r} in {_DESCRIPTION}: {nearest(name, expected)}", file=str(path))
        for layer in info.layers:
            head = tensors.get_slice(layer.name)
            if head.get_dtype() not in _DTYPES:
                allowed = " or ".join(_DTYPES)
                raise InputError(f"layer {layer.name!r} is {head.get_dtype()}, must be {allowed}", file=str(path))
            shape = [info.workers, *layer.shape]
            if head.get_shape() != shape:
                raise InputError(f"layer {layer.name!r} has shape {head.get_shape()}, must be {shape}", file=str(path))
            _check_finite(tensors.get_tensor(layer.name), layer.name, path)


def _check_finite(gradients: NDArray[Any], name: str, path: Path) -> None:
    bad = ~np.isfinite(gradients)
    if bad.any():
        worker, *index = (int(one) for one in np.argwhere(bad)[0])
        value = gradients[(worker, *index)]
        raise InputError(f"gradient of worker {worker}, layer {name!r}, index {index} is {value}", file=str(path))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file, whose reader checks every tensor's size against the file's."""
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
