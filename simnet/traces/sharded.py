"""Gradients that are drawn, and stay, where their workers live."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.rows import Rows, Shards
from simnet.traces.source import GradientSource, Shaped, Values, WithoutLearning


class ShardedSource:
    """A source whose gradients live in shards.

    Parameters
    ----------
    source : GradientSource
        The source of which the shards have copies.
    shards : Shards
        The shards.
    """

    def __init__(self, source: GradientSource, shards: Shards) -> None:
        self._source, self._shards = source, shards
        self.workers, self.parameters = source.workers, source.parameters
        self.true_parameters, self.scale, self.layers = source.true_parameters, source.scale, source.layers
        if isinstance(source, Shaped):
            self.true_shapes = source.true_shapes

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return the gradients of an iteration, float32 of shape (P, n), drawn here."""
        return self._source.gradients(iteration, out)

    def begin(self) -> ShardedTraining:
        """Return a training on the gradients where they live."""
        return ShardedTraining(self._shards)


class ShardedTraining(WithoutLearning):
    """A training without learning, as the gradients are given beforehand, whose gradients and residuals are `Rows`.

    Parameters
    ----------
    shards : Shards
        Where they live.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def gradients(self, iteration: int, crew: NDArray[np.intp], out: Any = None) -> Any:
        """Return the gradients of an iteration, of some workers.

        Parameters
        ----------
        iteration : int
            Which.
        crew : ndarray of int, shape (workers,)
            The workers.
        out : Rows, optional
            Where to put those of all workers.
        """
        everybody = len(crew) == self._shards.workers
        if isinstance(out, Rows) and everybody and out.base is None:
            self._shards.redraw(out, iteration)
            return out
        found = self._shards.gradients(iteration)
        return found if everybody else found[crew]

    def adding(self, iteration: int, crew: NDArray[np.intp]) -> None:
        """Return None: gradients come where they live."""
