"""The interface of trainable models, and models in numpy: logistic regression and multi-layer perceptron.

All workers have the same weights, so the passes through the layers are one matrix product for all batches; only the
gradients of the weights are a product for each worker.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.cost_models.costs.models import Layer
from simnet.traces.source import Values


class Model:
    """A model that computes the gradients of all workers at once; `layers` lists its tensors in order."""

    layers: tuple[Layer, ...]

    def initial(self, draws: np.random.Generator) -> Values:
        """Return random initial weights, float32 of shape (n,): matrices are normal, biases 0, and norm scales 1."""
        parts = []
        for layer in self.layers:
            if len(layer.shape) == 1:
                parts.append(np.full(layer.size, float(layer.name.endswith("weight")), dtype=np.float32))
            else:
                parts.append(draws.standard_normal(layer.size, dtype=np.float32) * np.float32(self.deviation(layer)))
        return np.concatenate(parts)

    def deviation(self, layer: Layer) -> float:
        """Return the initial standard deviation of a weight matrix: sqrt(2 / fan-in) (He et al., 2015)."""
        return math.sqrt(2.0 / math.prod(layer.shape[1:]))

    def gradients(self, weights: Values, inputs: NDArray[Any], targets: NDArray[np.intp], out: Values) -> Floats:
        """Write the gradient of each worker's mean loss to its row of `out`; return the losses, shape (P,)."""
        raise NotImplementedError

    def score(self, weights: Values, inputs: NDArray[Any], targets: NDArray[np.intp]) -> tuple[float, float]:
        """Return mean loss and accuracy on N examples, with a target each, (N,), or one per position, (N, d)."""
        raise NotImplementedError


class Perceptron(Model):
    """A fully connected ReLU network with softmax cross-entropy; without hidden layers it is logistic regression."""

    def __init__(self, features: int, hidden: Sequence[int], classes: int) -> None:
        self._widths = (features, *hidden, classes)
        self.layers = tuple(_layer_shapes(self._widths))

    def gradients(self, weights: Values, inputs: NDArray[Any], targets: NDArray[np.intp], out: Values) -> Floats:
        """Write the gradient of each worker's mean loss to its row of `out`; return the losses, shape (P,)."""
        workers, batch = targets.shape
        matrices = list(self._matrices(weights))
        rows = [np.asarray(inputs, dtype=np.float32).reshape(workers * batch, -1)]
        for number, (matrix, bias) in enumerate(matrices):
            values = rows[-1] @ matrix.T
            values += bias
            if number < len(matrices) - 1:
                np.maximum(values, 0, out=values)
            rows.append(values)
        losses, back = _cross_entropy(rows[-1], targets.reshape(-1))
        # Each worker takes the mean of its own batch.
        back /= np.float32(batch)
        end = out.shape[1]
        for number in reversed(range(len(matrices))):
            matrix, _ = matrices[number]
            units, width = matrix.shape
            own = back.reshape(workers, batch, units)
            np.sum(own, axis=1, out=out[:, end - units : end])
            end -= units
            place = out[:, end - units * width : end].reshape(workers, units, width)
            np.matmul(own.transpose(0, 2, 1), rows[number].reshape(workers, batch, width), out=place)
            end -= units * width
            if number:
                back = back @ matrix
                back *= rows[number] > 0
        mean: Floats = losses.reshape(workers, batch).mean(axis=1)
        return mean

    def score(self, weights: Values, inputs: NDArray[Any], targets: NDArray[np.intp]) -> tuple[float, float]:
        """Return the mean loss and the accuracy on examples."""
        values = np.asarray(inputs, dtype=np.float32)
        for number, (matrix, bias) in enumerate(self._matrices(weights)):
            if number:
                values = np.maximum(values, 0)
            values = values @ matrix.T + bias
        losses, _ = _cross_entropy(values, targets)
        return float(losses.mean()), float((values.argmax(axis=1) == targets).mean())

    def _matrices(self, weights: Values) -> Iterator[tuple[Values, Values]]:
        end = 0
        for weight, bias in zip(self.layers[::2], self.layers[1::2], strict=True):
            middle = end + weight.size
            yield weights[end:middle].reshape(weight.shape), weights[middle : middle + bias.size]
            end = middle + bias.size


def _layer_shapes(widths: Sequence[int]) -> Iterator[Layer]:
    for number, (width, units) in enumerate(itertools.pairwise(widths), start=1):
        yield Layer(f"fc{number}.weight", (units, width))
        yield Layer(f"fc{number}.bias", (units,))


def _cross_entropy(values: Values, targets: NDArray[np.intp]) -> tuple[Floats, Values]:
    """Return the softmax cross-entropy of each row of logits, and its gradient with respect to the logits."""
    shifted = values - values.max(axis=1, keepdims=True)
    odds = np.exp(shifted)
    sums = odds.sum(axis=1, keepdims=True)
    row = np.arange(len(targets))
    losses = np.log(sums[:, 0].astype(np.float64)) - shifted[row, targets]
    odds /= sums
    odds[row, targets] -= 1
    return losses, odds
