"""Live training as a gradient source: batches of each worker, weight updates, and evaluation of the model.

The update is stochastic gradient descent with momentum as in PyTorch: v <- m v + u + d w, w <- w - r v, with the mean
gradient u that an exchange yields, momentum m, weight decay d and learning rate r. All of it comes after the exchange.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Le, Len, Lt
from numpy.typing import NDArray

from simnet.base.arrays import Values
from simnet.base.errors import DivergedError, check_choice, check_int, check_positive
from simnet.base.quantities import Count, Written, check_fields
from simnet.base.rng import stream
from simnet.traces.live import data as sources
from simnet.traces.live import models
from simnet.traces.live.data import DATA, Data, deal_shards
from simnet.traces.live.models import Model, Perceptron, Sizes
from simnet.traces.source import Score, Training, as_matrices, output_buffer

MODELS = ("logistic", "mlp", *models.MODELS)
"""Names of the trainable models."""

_EVERY = 10
# Places that are evaluated at once.
_CHUNK = 1024
# Bytes that PyTorch takes once it is imported.
_TORCH = 2.0**29


class LearningRate(NamedTuple):
    """The learning rate by iteration: it rises linearly in a warm-up, and is multiplied by `factor` at each drop."""

    # After the warm-up and before the first drop.
    rate: float
    # Iterations over which it rises linearly from 1 / P of `rate`.
    warm_up: Annotated[int, Ge(0)] = 0
    # Iterations from which on it is multiplied by `factor`, each time again.
    drops: Sequence[Count] = ()
    # The factor of each drop.
    factor: Annotated[float, Gt(0), Le(1)] = 0.1

    def at(self, iteration: int, workers: int) -> float:
        """Return the learning rate of an iteration."""
        rate = self.rate * self.factor ** sum(iteration >= drop for drop in self.drops)
        if iteration < self.warm_up:
            rate *= (1 + (workers - 1) * iteration / self.warm_up) / workers
        return rate


@dataclass(eq=False)
class LiveSource:
    """A gradient source that trains a model on data; `train` creates it."""

    model: Model
    data: Data
    # The examples of each worker.
    own: Sequence[NDArray[np.intp]]
    # Examples per worker and iteration.
    batch: Count
    rate: LearningRate
    # m and d of the update.
    momentum: Annotated[float, Ge(0), Lt(1)]
    weight_decay: Annotated[float, Ge(0), Le(1)]
    # Iterations between two measurements of loss and accuracy.
    evaluate: Count
    # Entries of a larger model that each entry stands for: bytes and times are multiplied by it.
    scale: Annotated[float, Ge(1), Le(1e9)]
    # Seed of the first weights and the order of the batches.
    seed: int
    # Shape (P, C): Shares of the classes among the examples of each worker; None if workers do not differ.
    class_shares: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        self.workers = len(self.own)
        self.layers = tuple((layer.name, layer.size) for layer in self.model.layers)
        self.parameters = sum(size for _, size in self.layers)
        self.true_parameters = round(self.parameters * self.scale)
        self.scale = self.true_parameters / self.parameters
        if self.scale == 1:
            self.true_shapes = as_matrices(layer.shape for layer in self.model.layers)
        self._orders: list[tuple[int, NDArray[np.intp]]] = [(-1, one) for one in self.own]

    def begin(self) -> LiveTraining:
        """Return an independent training that starts from the initial weights."""
        return LiveTraining(self)

    def initial(self) -> Values:
        """Return the initial weights, float32 of shape (n,)."""
        return self.model.initial(stream(self.seed, "live", "weights"))

    def gradients(self, iteration: int, out: Values | None = None) -> Values:
        """Return the gradients of an iteration's batches at the initial weights; float32 of shape (P, n)."""
        return self.gradients_at(self.initial()[np.newaxis], iteration, out=out)

    def gradients_at(
        self, parameters: Values, iteration: int, crew: NDArray[np.intp] | None = None, out: Values | None = None
    ) -> Values:
        """Return the gradients of an iteration's batches of the workers `crew` at given weights; float32, (P', n).

        `parameters` are the weights of all, shape (1, n), or of each, (P', n); `out` receives the gradients.
        """
        crew = np.arange(self.workers) if crew is None else crew
        out = output_buffer(out, len(crew), self.parameters)
        inputs, targets = self.batches(iteration, crew)
        # Of those with weights of their own, one after the other.
        together = len(crew) if len(parameters) == 1 else 1
        finite = True
        with np.errstate(over="ignore", invalid="ignore"):
            for first, weights in zip(range(0, len(crew), together), parameters, strict=True):
                some = slice(first, first + together)
                losses = self.model.gradients(weights, inputs[some], targets[some], out[some])
                finite = finite and bool(np.isfinite(losses).all())
        if not (finite and all(np.isfinite(row).all() for row in out)):
            raise DivergedError(
                f"the training diverged: with the batches of iteration {iteration} a worker's loss or gradient is no "
                f"finite number; try a smaller learning rate than {self.rate.rate:g}"
            )
        return out

    def score(self, weights: Values) -> Score:
        """Return the loss and accuracy on the held-out data, given weights of shape (n,)."""
        data, total = self.data, np.zeros(2)
        with np.errstate(over="ignore", invalid="ignore"):
            together = max(1, _CHUNK // math.prod(data.held_targets.shape[1:]))
            for first in range(0, len(data.held_targets), together):
                inputs, targets = (one[first : first + together] for one in (data.held_inputs, data.held_targets))
                total += len(targets) * np.array(self.model.score(weights, inputs, targets))
            loss, accuracy = (total / len(data.held_targets)).tolist()
            if self.class_shares is None:
                return Score(loss, accuracy)
            members = [np.flatnonzero(data.held_targets == one) for one in range(data.classes)]
            each = [self.model.score(weights, data.held_inputs[own], data.held_targets[own])[1] for own in members]
        return Score(loss, accuracy, float((self.class_shares @ each).min()))

    def batches(self, iteration: int, crew: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.intp]]:
        """Return the batches of P' workers in an iteration, b examples each: inputs, (P', b, d), and targets, (P', b).

        A worker goes through its shard in random order, in another order each time.
        """
        chosen = np.stack([self._examples(int(worker), iteration) for worker in crew])
        return self.data.inputs[chosen], self.data.targets[chosen]

    def _examples(self, worker: int, iteration: int) -> NDArray[np.intp]:
        size = self.own[worker].size
        begin = iteration * self.batch
        found = []
        for epoch in range(begin // size, (begin + self.batch - 1) // size + 1):
            first, last = max(begin - epoch * size, 0), min(begin + self.batch - epoch * size, size)
            found.append(self._order(worker, epoch)[first:last])
        return np.concatenate(found)

    def _order(self, worker: int, epoch: int) -> NDArray[np.intp]:
        kept, order = self._orders[worker]
        if kept != epoch:
            order = stream(self.seed, "live", "order", worker, epoch).permutation(self.own[worker])
            self._orders[worker] = epoch, order
        return order


class LiveTraining(Training):
    """A training run of a model: its current weights, and the momentum of the optimizer.

    `weights` and `velocity` are w and v of the update, float32 of shape (n,); `applied` counts the updates.
    """

    def __init__(self, source: LiveSource) -> None:
        self.source = source
        self.weights = source.initial()
        self.velocity = np.zeros_like(self.weights)
        self.applied = 0

    def gradients(self, iteration: int, crew: NDArray[np.intp] | None = None, out: Values | None = None) -> Values:
        """Return the gradients of the workers `crew` at the current weights; see `LiveSource.gradients_at`."""
        return self.source.gradients_at(self.weights[np.newaxis], iteration, crew, out)

    def apply(self, update: Values) -> None:
        """Update the weights by a mean gradient, float32 of shape (n,), with the optimizer."""
        source = self.source
        with np.errstate(over="ignore", invalid="ignore"):
            self.velocity *= np.float32(source.momentum)
            self.velocity += update
            if source.weight_decay:
                self.velocity += np.float32(source.weight_decay) * self.weights
            self.weights -= np.float32(source.rate.at(self.applied, source.workers)) * self.velocity
        self.applied += 1

    def score(self, iteration: int | None) -> Score:
        """Return the loss and accuracy on held-out data after an iteration; NaN if no evaluation is due."""
        if iteration is None or (iteration + 1) % self.source.evaluate:
            return Score(math.nan, math.nan)
        return self.source.score(self.weights)

    def save(self) -> dict[str, NDArray[Any]]:
        """Return the weights, the momentum, and the number of applied updates."""
        return {"weights": self.weights.copy(), "velocity": self.velocity.copy(), "applied": np.array(self.applied)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a state that `save` returned; ValueError if the state does not fit the model."""
        weights, velocity = (np.array(state[name]) for name in ("weights", "velocity"))
        for name, one in (("weights", weights), ("velocity", velocity)):
            if one.shape != self.weights.shape or one.dtype != np.float32:
                wanted = f"{self.weights.size} numbers of type float32"
                raise ValueError(f"{name} must be {wanted}, got {one.dtype} of shape {one.shape}")
        self.applied = check_int(state["applied"].item(), "applied", 0)
        self.weights, self.velocity = weights, velocity


def train(
    model: str = "mlp",
    data: str = "digits",
    *,
    workers: int,
    batch: Annotated[int, Ge(1), Le(10**6)] = 16,
    learning_rate: Annotated[float | LearningRate, Written(Annotated[float, Gt(0), Le(1e6)])] = 0.1,
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9,
    weight_decay: Annotated[float, Ge(0), Le(1)] = 0.0,
    dirichlet: Annotated[float, Gt(0), Le(1e6)] | None = None,
    hidden: Annotated[Sequence[Count], Len(1, 8)] = Sizes().hidden,
    width: Annotated[int, Ge(1), Le(2**14)] = Sizes().width,
    blocks: Annotated[int, Ge(1), Le(256)] = Sizes().blocks,
    evaluate: Count = _EVERY,
    scale: float = 1.0,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
) -> LiveSource:
    """Return a gradient source that trains a model on a data set; each update is the mean gradient of an exchange.

    Parameters
    ----------
    model : str
        One of `MODELS`.
    data : str
        One of `DATA`.
    workers : int
        P.
    batch : int
        Examples per worker and iteration.
    learning_rate : float or Rate
        For the mean gradient of all workers.
    momentum, weight_decay : float
        m and d of the update, which follows the exchange.
    dirichlet : float, optional
        Concentration of shards that differ in their classes; see `simnet.traces.live.data.deal_shards`.
    hidden : sequence of int
        Units of the hidden layers of an ``mlp``.
    width, blocks : int
        Of a ``transformer``.
    evaluate : int
        Iterations between two measurements of loss and accuracy.
    scale : float
        Entries of a larger model that each entry stands for.
    seed : int
        Seed of all that is random.
    options : mapping, optional
        Parameters of the function that makes the data.
    device : str
        Device of PyTorch, ``cpu`` or ``cuda``; ``cpu`` for the models in numpy.

    Raises
    ------
    ValueError
        If there is no such model or data, or a number is out of range.
    SimnetError
        If a package is missing, or there are fewer examples than workers.
    """
    rate = learning_rate if isinstance(learning_rate, LearningRate) else LearningRate(float(learning_rate))
    check_int(workers, "workers", 1)
    check_positive(rate.rate, "the learning rate")
    if dirichlet is not None:
        check_positive(dirichlet, "dirichlet")
    found = _load_data(data, dict(options or {}), seed)
    kinds = found.targets if found.kinds is None else found.kinds
    own = deal_shards(kinds, workers, int(kinds.max()) + 1, dirichlet, seed)
    made = create_model(model, found, Sizes(hidden, width, blocks), device)
    shares = None
    if dirichlet is not None and not found.symbols:
        shares = np.stack([np.bincount(found.targets[one], minlength=found.classes) / one.size for one in own])
    return LiveSource(made, found, own, batch, rate, momentum, weight_decay, evaluate, scale, seed, shares)


def create_model(model: str, data: Data, sizes: Sizes | None = None, device: str = "cpu") -> Model:
    """Return a model of `MODELS` for a data set, on the device ``cpu`` or ``cuda``."""
    check_choice(model, "model to train", MODELS)
    sizes = sizes or Sizes()
    if model in models.MODELS:
        return models.create_torch_model(model, data, sizes, device)
    if device != "cpu":
        raise ValueError(f"{model} is computed by numpy, so device must be cpu, got {device!r}")
    if data.targets.ndim == 2:
        raise ValueError(f"{model} foretells one class an example; words are for transformer")
    return Perceptron(data.inputs.shape[1], sizes.hidden if model == "mlp" else (), data.classes)


def training_size(
    model: str, data: str, workers: int, batch: int, sizes: Sizes, options: Mapping[str, Any]
) -> tuple[int, float]:
    """Return the number of gradient entries, and the bytes of data and activations, estimated without the model.

    `batch` is of a worker and iteration, `options` are those of the data.
    """
    numbers, held, classes = 64, 1440.0, 10
    context = options.get("context", 0)
    if data == "classification":
        numbers, classes = options["features"], options["classes"]
        held = 2.4 * options["samples"]
    elif data == "words":
        numbers, classes, held = context, options["vocabulary"], 0.0
    rows = max(workers * batch, _CHUNK // (context if data == "words" else 1))
    if model in models.MODELS:
        what = (model, context, classes, sizes)
        return models.parameter_count(*what), 4.0 * (held * numbers + rows * models.activation_count(*what)) + _TORCH
    widths = (numbers, *(sizes.hidden if model == "mlp" else ()), classes)
    entries = sum((width + 1) * units for width, units in itertools.pairwise(widths))
    return entries, 4.0 * (held * numbers + 4 * rows * sum(widths))


def _load_data(name: str, options: dict[str, Any], seed: int) -> Data:
    check_choice(name, "data", DATA)
    made: Data = getattr(sources, name)(**({"seed": seed} if name == "classification" else {}) | options)
    return made
