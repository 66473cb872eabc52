"""The interface of a trainable model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.cost_models.costs.layers import Layer
from simnet.traces.source import Values


class Model:
    """A model that computes the gradients of all workers at once; `layers` are its tensors, in order."""

    layers: tuple[Layer, ...]

    def initial(self, draws: np.random.Generator) -> Values:
        """Return random first weights, float32 of shape (n,): normal; biases are zero, norms the identity."""
        parts = []
        for layer in self.layers:
            if len(layer.shape) == 1:
                parts.append(np.full(layer.size, float(layer.name.endswith("weight")), dtype=np.float32))
            else:
                parts.append(draws.standard_normal(layer.size, dtype=np.float32) * np.float32(self.deviation(layer)))
        return np.concatenate(parts)

    def deviation(self, layer: Layer) -> float:
        """Return the standard deviation of a matrix's first weights, sqrt(2 / inputs of a unit) (He et al., 2015)."""
        return math.sqrt(2.0 / math.prod(layer.shape[1:]))

    def gradients(self, weights: Values, inputs: NDArray[Any], targets: NDArray[np.intp], out: Values) -> Floats:
        """Put the gradient of each worker's mean loss in a row of `out`, and return the losses, shape (P,)."""
        raise NotImplementedError

    def score(self, weights: Values, inputs: NDArray[Any], targets: NDArray[np.intp]) -> tuple[float, float]:
        """Return mean loss and accuracy on examples of shape (N, d) with targets of shape (N,) or (N, d)."""
        raise NotImplementedError
