"""Gradients that are drawn and stored in the processes of their workers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.rows import Rows, Shards
from simnet.traces.source import GradientSource, Shaped, Values, WithoutLearning


class ShardedSource:
    """A gradient source whose rows are drawn and stored by the shards, each with a copy of the source."""

    def __init__(self, source: GradientSource, shards: Shards) -> None:
        self._source, self._shards = source, shards
        self.workers, self.parameters = source.workers, source.parameters
        self.true_parameters, self.scale, self.layers = source.true_parameters, source.scale, source.layers
        if isinstance(source, Shaped):
            self.true_shapes = source.true_shapes

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return an iteration's gradients, float32 of shape (P, n), drawn in this process."""
        return self._source.gradients(iteration, out)

    def begin(self) -> ShardedTraining:
        """Return a training whose gradients are drawn in the shards."""
        return ShardedTraining(self._shards)


class ShardedTraining(WithoutLearning):
    """A training without learning, whose gradients are `Rows` in shards."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def gradients(self, iteration: int, crew: NDArray[np.intp], out: Any = None) -> Any:
        """Return the gradients of some workers in an iteration, in `out` if that holds all workers."""
        everybody = len(crew) == self._shards.workers
        if isinstance(out, Rows) and everybody and out.base is None:
            self._shards.redraw(out, iteration)
            return out
        found = self._shards.gradients(iteration)
        return found if everybody else found[crew]

    def adding(self, iteration: int, crew: NDArray[np.intp]) -> None:
        """Return None: gradients are drawn in the shards."""
