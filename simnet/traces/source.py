"""The interfaces of gradient sources and of trainings, and the implementations that they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Adds, Values
from simnet.base.rows import Rows, Shards


class GradientSource(Protocol):
    """A source of the gradients of P workers in each iteration."""

    workers: int
    """Number of workers, P."""
    parameters: int
    """Number of entries of a gradient, n."""
    true_parameters: int
    """Number of entries of the full-size gradient."""
    scale: float
    """`true_parameters` / `parameters`: bytes are multiplied by it."""
    layers: tuple[tuple[str, int], ...]
    """Name and entries of each layer, in the order of the gradient."""

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return an iteration's gradients, contiguous float32 of shape (P, n), in `out` if given.

        The gradients do not depend on earlier calls. A source that can add them to existing rows, with little extra
        memory, has a method ``add(iteration, rows)``; one that knows the shapes of the model's tensors, as matrices or
        vectors, has them as `true_shapes`.
        """


class Score(NamedTuple):
    """Loss and accuracy of a model on held-out data; NaN if not measured."""

    loss: float
    accuracy: float
    # Of the worker whose classes, in the shares that it has of them, are predicted worst. NaN if workers do not differ.
    worst_worker_accuracy: float = math.nan


class Training:
    """Interface of a training run that yields gradients and applies updates. By default, updates are ignored."""

    def gradients(self, iteration: int, crew: NDArray[np.intp], out: Values | None = None) -> Values:
        """Return the gradients of the P' workers `crew` in an iteration, float32 of shape (P', n).

        The array, `out` if given, belongs to the caller unless it is read-only. Gradients depend only on updates; no
        side effects.
        """
        raise NotImplementedError

    def adding(self, iteration: int, crew: NDArray[np.intp]) -> Adds | None:
        """Return a function that adds an iteration's gradients to an array, (P', n); None if not supported."""
        return None

    def apply(self, update: Values) -> None:
        """Apply the mean gradient that an exchange returned, float32 of shape (n,)."""

    def score(self, iteration: int | None) -> Score | None:
        """Return the score after the update of `iteration` (-1: before training), or None if nothing is trained.

        NaN if no measurement is due, or `iteration` is None.
        """
        return None

    def save(self) -> dict[str, NDArray[Any]]:
        """Return a copy of everything that updates change, as arrays by name."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a state that `save` returned; ValueError, without any effect, if the state does not fit."""


@runtime_checkable
class Trainable(Protocol):
    """A gradient source whose gradients depend on the applied updates."""

    def begin(self) -> Training:
        """Return an independent training that starts from the initial weights."""


@runtime_checkable
class Evaluable(Protocol):
    """A gradient source that can evaluate gradients at any parameters."""

    evaluate: int
    """Iterations between two measurements of loss and accuracy."""

    def initial(self) -> Values:
        """Return the initial parameters, float32 of shape (n,)."""

    def gradients_at(self, parameters: Values, iteration: int) -> Values:
        """Return an iteration's gradients at `parameters`, of shape (1, n) for all or (P, n) for each worker."""

    def score(self, weights: Values) -> Score:
        """Return loss and accuracy of the model with given weights, shape (n,)."""


class FixedTraining(Training):
    """Training without learning: gradients come from a source and do not depend on the updates."""

    def __init__(self, source: GradientSource) -> None:
        self._source = source
        self._add = getattr(source, "add", None)

    def gradients(self, iteration: int, crew: NDArray[np.intp], out: Values | None = None) -> Values:
        """Return the gradients of the workers `crew` in an iteration; they may be written to `out`, shape (P, n)."""
        source = self._source
        everybody = len(crew) == source.workers
        if isinstance(source, CachedSource):
            own = None
        else:
            own = output_buffer(out if everybody else None, source.workers, source.parameters)
        gradients = source.gradients(iteration, own)
        if gradients is not own:
            # What the source may keep stays as it is.
            gradients = gradients.view()
            gradients.flags.writeable = False
        return gradients if everybody else gradients[crew]

    def adding(self, iteration: int, crew: NDArray[np.intp]) -> Adds | None:
        """Return a function that adds all workers' gradients to an array, (P, n); None if not supported."""
        return partial(self._add, iteration) if self._add is not None and len(crew) == self._source.workers else None


class _DerivedSource:
    """A gradient source with the sizes and names of another source."""

    def __init__(self, source: GradientSource) -> None:
        self._source = source
        self.workers, self.parameters = source.workers, source.parameters
        self.true_parameters, self.scale, self.layers = source.true_parameters, source.scale, source.layers
        if hasattr(source, "true_shapes"):
            self.true_shapes = source.true_shapes

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return an iteration's gradients, float32 of shape (P, n); written to `out` if given."""
        return self._source.gradients(iteration, out)


class ThinnedSource(_DerivedSource):
    """Source that keeps every `every`-th entry of some layers of another source; they stand for all entries.

    `entries`, int64 of shape (n,), are the indices of the entries that are kept.
    """

    def __init__(self, source: GradientSource, which: slice, every: int) -> None:
        super().__init__(source)
        sizes = [size for _, size in source.layers]
        first = np.cumsum([0, *sizes])[:-1][which]
        kept = shrink_sizes(sizes[which], every)
        self.entries = np.concatenate([at + every * np.arange(n) for at, n in zip(first, kept, strict=True)])
        if hasattr(source, "true_shapes"):
            self.true_shapes = source.true_shapes[which]
        self.layers = tuple((name, n) for (name, _), n in zip(source.layers[which], kept, strict=True))
        self.parameters = self.entries.size
        self.scale = source.scale * sum(sizes[which]) / self.parameters

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return an iteration's gradients, float32 of shape (P, n); written to `out` if given."""
        return np.take(self._source.gradients(iteration), self.entries, axis=1, out=out)


class CachedSource(_DerivedSource):
    """A gradient source with a cache, for runs that need the same iterations at about the same time.

    It caches the last iterations, at most `most`, within 64 MiB but at least one. The cached arrays are read-only. It
    has `true_shapes` if the source has.
    """

    BYTES = 64 * 2**20

    def __init__(self, source: GradientSource, most: int = 8) -> None:
        super().__init__(source)
        self._kept: dict[int, Values] = {}
        self._room = min(most, max(1, self.BYTES // (4 * self.workers * self.parameters)))

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return an iteration's gradients, float32 of shape (P, n); copied to `out` if given."""
        found = self._kept.pop(iteration, None)
        if found is None:
            while len(self._kept) >= self._room:
                # The one that nobody has asked for for longest.
                del self._kept[next(iter(self._kept))]
            found = self._source.gradients(iteration)
            found.flags.writeable = False
        self._kept[iteration] = found
        if out is None:
            return found
        out = output_buffer(out, self.workers, self.parameters)
        out[:] = found
        return out


def cached_source(source: GradientSource, most: int = 8) -> GradientSource:
    """Return a source that computes each iteration once for several runs; a trainable source is returned unchanged."""
    return source if isinstance(source, (Trainable, CachedSource)) else CachedSource(source, most)


def begin_training(source: GradientSource) -> Training:
    """Return a training for one run of a job, with the gradients of a source."""
    return source.begin() if isinstance(source, Trainable) else FixedTraining(source)


def tensor_options(source: GradientSource, which: slice = slice(None)) -> dict[str, Any]:
    """Return scheme options for layers of a source: ``layers`` and, if the source is scaled down, ``true_shapes``."""
    layers = source.layers[which]
    if not hasattr(source, "true_shapes"):
        return {"layers": layers}
    shapes = source.true_shapes[which]
    if source.scale != 1:
        return {"layers": layers, "true_shapes": shapes}
    return {"layers": tuple((name, shape) for (name, _), shape in zip(layers, shapes, strict=True))}


def as_matrices(shapes: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return each shape as a matrix, (first axis, product of the others), or a vector if it has one axis or one row."""
    return tuple(
        (shape[0], math.prod(shape[1:])) if len(shape) > 1 and shape[0] > 1 else (math.prod(shape),) for shape in shapes
    )


def shrink_sizes(sizes: Sequence[int], scale: float) -> list[int]:
    """Return layer sizes `scale` times smaller, at least one entry each; ValueError if `scale` < 1 or not finite."""
    if not 1 <= scale < math.inf:
        raise ValueError(f"scale must be >= 1 and finite, got {scale}")
    return [max(1, round(size / scale)) for size in sizes]


def training_progress(iteration: int, iterations: int) -> float:
    """Return the progress of training at an iteration, from 0 to 1; ValueError if `iteration` is negative."""
    if iteration < 0:
        raise ValueError(f"iteration must be >= 0, got {iteration}")
    return min(iteration / max(iterations - 1, 1), 1.0)


def output_buffer(out: Values | None, workers: int, parameters: int) -> Values:
    """Return `out`, or a new array if it is None; ValueError unless it is contiguous float32 of shape (P, n)."""
    if out is None:
        return np.empty((workers, parameters), dtype=np.float32)
    if out.shape != (workers, parameters) or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(
            f"out must be a contiguous float32 array of shape ({workers}, {parameters}), "
            f"got {out.dtype} of shape {out.shape}"
        )
    return out


class ShardedSource(_DerivedSource):
    """Gradient source divided among processes, which draw and store the gradients of their shares of the workers."""

    def __init__(self, source: GradientSource, shards: Shards) -> None:
        super().__init__(source)
        self._shards = shards

    def begin(self) -> ShardedTraining:
        """Return a training whose gradients are drawn in the shard processes."""
        return ShardedTraining(self._shards)


class ShardedTraining(Training):
    """Training in which updates change nothing, with gradients in other processes, to which `Rows` objects refer."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def gradients(self, iteration: int, crew: NDArray[np.intp], out: Any = None) -> Any:
        """Return some workers' gradients in an iteration, written to `out` if it has rows for all workers."""
        everybody = len(crew) == self._shards.workers
        if isinstance(out, Rows) and everybody and out.base is None:
            self._shards.redraw(out, iteration)
            return out
        found = self._shards.gradients(iteration)
        return found if everybody else found[crew]
