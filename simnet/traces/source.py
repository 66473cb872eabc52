"""What every gradient source offers, and what sources share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Adds, Floats

Values: TypeAlias = NDArray[np.float32]


class GradientSource(Protocol):
    """Fresh gradients of P workers, iteration by iteration."""

    @property
    def workers(self) -> int:
        """P."""

    @property
    def parameters(self) -> int:
        """Entries n of the gradients that the source yields."""

    @property
    def true_parameters(self) -> int:
        """Entries of the gradients that they stand for."""

    @property
    def scale(self) -> float:
        """`true_parameters` / `parameters`: bytes sent count so many times."""

    @property
    def layers(self) -> tuple[tuple[str, int], ...]:
        """Name and entries of each layer, in the order of the gradient; the entries add up to `parameters`."""

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return the gradients of an iteration, float32 of shape (P, n), contiguous; in `out` if given.

        They do not depend on which iterations were asked for before.
        """


@runtime_checkable
class Shaped(Protocol):
    """A source that knows the tensors of the model that its gradients are those of, or are samples of."""

    @property
    def true_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Rows and columns, or one length, of each of them."""


@runtime_checkable
class Adding(Protocol):
    """A source that can add gradients to rows while it makes them: they take no memory of their own."""

    @property
    def adds(self) -> bool:
        """Whether it can do so with the next ones."""

    def add(self, iteration: int, rows: Values) -> Floats | None:
        """Add the gradients of an iteration to `rows`, float32 of shape (P, n) and contiguous; see `Adds`."""


class Score(NamedTuple):
    """How good a model is on data held out of the training; NaN where it was not measured."""

    loss: float
    accuracy: float


class Training(Protocol):
    """What one policy's run of a job has of its own: where the gradients come from, and where the updates go."""

    def gradients(self, iteration: int, crew: NDArray[np.intp], out: Values | None = None) -> Values:
        """Return the gradients of some workers for the data of an iteration, float32 of shape (P', n).

        An array of the caller's own, `out` if that is given, unless it is read-only. They depend on the updates applied
        so far at most. To ask for them changes nothing.
        """

    def adding(self, iteration: int, crew: NDArray[np.intp]) -> Adds | None:
        """Return what adds the gradients that `gradients` would return to rows, while it makes them.

        None where whole gradients are made.
        """

    def apply(self, update: Values) -> None:
        """Take the mean gradient that an exchange yielded, float32 of shape (n,)."""

    def score(self, iteration: int | None) -> Score | None:
        """Return how good the model is after the update of an iteration; None if nothing is trained.

        Before the first update the iteration is -1. NaN if no measurement is due then, or there was no iteration but an
        attempt of exploration.
        """

    def save(self) -> dict[str, NDArray[Any]]:
        """Return all that the updates have changed, by name; arrays that do not change any more."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what `save` returned; ValueError, with nothing taken, if it does not fit."""


@runtime_checkable
class Trainable(Protocol):
    """A source whose gradients depend on the updates."""

    def begin(self) -> Training:
        """Return a training that starts from the first weights and depends on no other."""


@runtime_checkable
class Evaluable(Protocol):
    """A source that has gradients at any parameters, which others move."""

    @property
    def evaluate(self) -> int:
        """Loss and accuracy are measured after every so many iterations."""

    def initial(self) -> Values:
        """Return the first parameters, float32 of shape (n,)."""

    def gradients_at(self, parameters: Values, iteration: int) -> Values:
        """Return gradients for the data of an iteration, at parameters of shape (1, n) or of each worker, (P, n)."""

    def score(self, weights: Values) -> Score:
        """Return how good a model with some parameters is, float32 of shape (n,)."""


class WithoutLearning:
    """A training whose gradients are given beforehand: updates change nothing."""

    def apply(self, update: Values) -> None:
        """Do nothing."""

    def score(self, iteration: int | None) -> Score | None:
        """Return None: there is no model."""
        return None

    def save(self) -> dict[str, NDArray[Any]]:
        """Return nothing: updates change nothing."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take nothing."""


class Given(WithoutLearning):
    """A training without learning, as its gradients are given beforehand.

    Parameters
    ----------
    source : GradientSource
        Where they come from.
    """

    def __init__(self, source: GradientSource) -> None:
        self._source = source
        # Asked once, as to ask a protocol takes longer than most answers.
        self._adding = source if isinstance(source, Adding) else None

    def gradients(self, iteration: int, crew: NDArray[np.intp], out: Values | None = None) -> Values:
        """Return the source's gradients of an iteration, of some workers.

        Parameters
        ----------
        iteration : int
            Which.
        crew : ndarray of int, shape (workers,)
            The workers.
        out : ndarray of float32, shape (P, n), optional
            Where to put those of all workers.
        """
        source = self._source
        everybody = len(crew) == source.workers
        if isinstance(source, Shared):
            own = None
        else:
            own = buffer(out if everybody else None, source.workers, source.parameters)
        gradients = source.gradients(iteration, own)
        if gradients is not own:
            # What the source may keep stays as it is.
            gradients = gradients.view()
            gradients.flags.writeable = False
        return gradients if everybody else gradients[crew]

    def adding(self, iteration: int, crew: NDArray[np.intp]) -> Adds | None:
        """Return what adds the source's gradients of an iteration, if it adds those of all workers."""
        source = self._adding
        if source is None or len(crew) < self._source.workers or not source.adds:
            return None
        return partial(source.add, iteration)


class Shared:
    """A source whose gradients several runs of a job ask for at about the same iteration, so that each is made once.

    It keeps those that were asked for last: of one iteration at least, and of more as long as they take no more than
    64 MiB. They cannot be written to.

    Parameters
    ----------
    source : GradientSource
        Where they come from.
    most : int
        Iterations of which it keeps them at most.

    Attributes
    ----------
    true_shapes : tuple of tuple of int
        As of `Shaped`; not there if the source has none.
    """

    BYTES = 64 * 2**20
    """What gradients may take that are kept for others."""

    def __init__(self, source: GradientSource, most: int = 8) -> None:
        self._source = source
        self.workers, self.parameters = source.workers, source.parameters
        self.true_parameters, self.scale, self.layers = source.true_parameters, source.scale, source.layers
        if isinstance(source, Shaped):
            self.true_shapes = source.true_shapes
        self._kept: dict[int, Values] = {}
        self._room = min(most, max(1, self.BYTES // (4 * self.workers * self.parameters)))

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return the gradients of an iteration, float32 of shape (P, n); a copy, in `out`, if that is given."""
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
        out = buffer(out, self.workers, self.parameters)
        out[:] = found
        return out


def shared(source: GradientSource, most: int = 8) -> GradientSource:
    """Return a source that makes gradients once for several runs; itself if they depend on the updates of each.

    Parameters
    ----------
    source : GradientSource
        Where they come from.
    most : int
        Iterations of which it keeps them at most.
    """
    return source if isinstance(source, (Trainable, Shared)) else Shared(source, most)


def begun(source: GradientSource) -> Training:
    """Return a training on the gradients of a source, for one run of a job."""
    return source.begin() if isinstance(source, Trainable) else Given(source)


def tensors(source: GradientSource, which: slice = slice(None)) -> dict[str, Any]:
    """Return the options that tell a scheme of the tensors of the gradients, ``layers`` and ``true_shapes``.

    Parameters
    ----------
    source : GradientSource
        The source of the gradients.
    which : slice
        Which of its layers the scheme exchanges.

    Examples
    --------
    >>> from simnet.traces import synthetic
    >>> layers = [("weight", (16, 4, 3)), ("bias", (16,))]
    >>> tensors(synthetic(layers, workers=2))
    {'layers': (('weight', (16, 12)), ('bias', (16,)))}
    >>> tensors(synthetic(layers, workers=2, scale=8))
    {'layers': (('weight', 24), ('bias', 2)), 'true_shapes': ((16, 12), (16,))}
    """
    layers = source.layers[which]
    if not isinstance(source, Shaped):
        return {"layers": layers}
    shapes = source.true_shapes[which]
    if source.scale != 1:
        return {"layers": layers, "true_shapes": shapes}
    return {"layers": tuple((name, shape) for (name, _), shape in zip(layers, shapes, strict=True))}


def as_matrices(shapes: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return shapes of one length or two: what has more axes is a matrix whose rows are along the first, if several.

    Parameters
    ----------
    shapes : iterable of sequence of int
        Of one axis or more.

    Examples
    --------
    >>> as_matrices([(64, 3, 7, 7), (64,), (1, 64)])
    ((64, 147), (64,), (64,))
    """
    return tuple(
        (shape[0], math.prod(shape[1:])) if len(shape) > 1 and shape[0] > 1 else (math.prod(shape),) for shape in shapes
    )


def shrunk(sizes: Sequence[int], scale: float) -> list[int]:
    """Return the sizes of the layers of a model `scale` times smaller; each layer keeps at least one entry.

    Raises
    ------
    ValueError
        If `scale` is < 1 or not finite.

    Examples
    --------
    >>> shrunk([4608, 32, 10], 100)
    [46, 1, 1]
    """
    if not 1 <= scale < math.inf:
        raise ValueError(f"scale must be >= 1 and finite, got {scale}")
    return [max(1, round(size / scale)) for size in sizes]


def position(iteration: int, iterations: int) -> float:
    """Return how far through a training an iteration is: from 0 in the first to 1 in the last, and 1 after it.

    Raises
    ------
    ValueError
        If `iteration` is negative.

    Examples
    --------
    >>> position(0, 101), position(25, 101), position(999, 101)
    (0.0, 0.25, 1.0)
    """
    if iteration < 0:
        raise ValueError(f"iteration must be >= 0, got {iteration}")
    return min(iteration / max(iterations - 1, 1), 1.0)


def buffer(out: Values | None, workers: int, parameters: int) -> Values:
    """Return `out`, or a new buffer if there is none.

    Parameters
    ----------
    out : ndarray or None
        What the caller gave.
    workers, parameters : int
        P and n.

    Raises
    ------
    ValueError
        If `out` is not a contiguous float32 array of shape (P, n).
    """
    if out is None:
        return np.empty((workers, parameters), dtype=np.float32)
    if out.shape != (workers, parameters) or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(
            f"out must be a contiguous float32 array of shape ({workers}, {parameters}), "
            f"got {out.dtype} of shape {out.shape}"
        )
    return out
