"""Trainable models that compute the gradients of all workers at once, in numpy or in PyTorch.

Logistic regression and the multi-layer perceptron are in numpy. All workers have the same weights, so the passes
through the layers are one matrix product for all batches; only the gradients of the weights are a product for each
worker.

In PyTorch the forward pass is vectorised over workers (`torch.func.vmap`), each with weights that are views of the one
vector. The backward pass adds each worker's gradients into its row of the buffer that the exchange reads, as in
DistributedDataParallel with ``gradient_as_bucket_view``.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Values
from simnet.base.errors import SimnetError, import_extra
from simnet.cost_models.costs.models import Layer
from simnet.traces.live.data import Data


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
        """Return the mean loss and accuracy on N examples; `targets` is one per example, (N,), or position, (N, d)."""
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


MODELS = ("conv", "transformer")
"""Names of the trainable PyTorch models."""

WIDTH, BLOCKS = 128, 4
"""Model width and number of blocks of a transformer."""

_CHANNELS, _GROUPS, _UNITS = (16, 32, 32), 4, 32
# Heads of a transformer, if as many divide its width.
_HEADS = 4


class Sizes(NamedTuple):
    """Layer sizes, for models whose size can be chosen."""

    # Units of the hidden layers of an ``mlp``.
    hidden: Sequence[int] = (64,)
    # Of a ``transformer``, which has four heads, or fewer where four do not divide its width.
    width: int = WIDTH
    blocks: int = BLOCKS


def create_torch_model(model: str, data: Data, sizes: Sizes, device: str = "cpu") -> TorchModel:
    """Return a PyTorch model for a data set, on the device ``cpu`` or ``cuda``.

    ``conv``: three convolutions with group norm and two fully connected layers, for images. ``transformer``: a decoder
    like GPT-2, for words.
    """
    images, foretells = len(data.shape) == 3, data.targets.ndim == 2
    if model == "conv" and not images:
        raise ValueError("conv takes images, which are in data: digits")
    if model == "transformer" and not foretells:
        raise ValueError("transformer foretells a word at every place, as in data: words")
    torch = import_extra("torch", "train", f"{model} needs PyTorch")
    if device == "cuda" and not torch.cuda.is_available():
        raise SimnetError("there is no GPU that PyTorch can use: take device: cpu")
    if model == "transformer":
        from simnet.traces.live.networks import Transformer, deviation

        heads = math.gcd(sizes.width, _HEADS)
        made = Transformer(data.symbols, data.shape[0], sizes.width, sizes.blocks, heads)
        return TorchModel(made.to(device), None, device, lambda layer: deviation(layer.name, sizes.blocks))
    return TorchModel(_convolutional_net(data).to(device), data.shape, device)


def parameter_count(model: str, context: int, classes: int, sizes: Sizes) -> int:
    """Return the number of parameters of a model for sequences of `context` symbols, without creating the model."""
    if model == "conv":
        return 18_586
    width = sizes.width
    return (classes + context + 2) * width + sizes.blocks * (12 * width + 13) * width


def activation_count(model: str, context: int, classes: int, sizes: Sizes) -> int:
    """Return about how many activations per example the backward pass of a model needs."""
    if model == "conv":
        return 14_336
    # Of a block: what two norms, attention, the perceptron and its activation give, and the weights of attention.
    return context * (sizes.blocks * (18 * sizes.width + _HEADS * context) + 3 * classes)


class TorchModel(Model):
    """A PyTorch module with the interface of `Model`."""

    def __init__(
        self,
        module: Any,
        shape: tuple[int, ...] | None,
        device: str = "cpu",
        deviation: Callable[[Layer], float] | None = None,
    ) -> None:
        self._module, self._shape, self._device = module, shape, device
        self._deviation = deviation
        self.layers = tuple(Layer(name, tuple(one.shape)) for name, one in module.named_parameters())

    def deviation(self, layer: Layer) -> float:
        """Return the initial standard deviation of a weight matrix."""
        return super().deviation(layer) if self._deviation is None else self._deviation(layer)

    def gradients(self, weights: Values, inputs: NDArray[Any], targets: NDArray[np.intp], out: Values) -> Floats:
        """Write the gradient of each worker's mean loss to its row of `out`; return the losses, shape (P,)."""
        import torch

        workers = len(targets)
        given, classes = self._tensors(inputs, targets)
        place = torch.from_numpy(out) if self._device == "cpu" else torch.empty(out.shape, device=self._device)
        place.zero_()
        leaves = {}
        for (name, weight), row in zip(self._parts(weights), self._stretches(), strict=True):
            leaf = weight.expand(workers, *weight.shape).detach().requires_grad_()
            leaf.grad = place[:, row].view(leaf.shape)
            leaves[name] = leaf
        with _one_thread(), warnings.catch_warnings():
            # The strides differ, as those of the weights are 0 and those of the gradients are rows of the buffer.
            warnings.filterwarnings("ignore", message="grad and param do not obey the gradient layout")
            # Some operations have no version for many workers at once: they are done for one after the other.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            losses = torch.func.vmap(self._loss)(leaves, given, classes)
            losses.sum().backward()
        if self._device != "cpu":
            out[:] = place.cpu().numpy()
        found: Floats = losses.detach().cpu().numpy().astype(np.float64)
        return found

    def score(self, weights: Values, inputs: NDArray[Any], targets: NDArray[np.intp]) -> tuple[float, float]:
        """Return the mean loss and the accuracy on examples."""
        import torch

        given, classes = self._tensors(inputs, targets)
        with _one_thread(), torch.no_grad():
            logits = torch.func.functional_call(self._module, dict(self._parts(weights)), (given,))
            loss = _torch_cross_entropy(logits, classes)
            return float(loss), float((logits.argmax(-1) == classes).double().mean())

    def _loss(self, weights: dict[str, Any], inputs: Any, targets: Any) -> Any:
        import torch

        return _torch_cross_entropy(torch.func.functional_call(self._module, weights, (inputs,)), targets)

    def _tensors(self, inputs: NDArray[Any], targets: NDArray[np.intp]) -> tuple[Any, Any]:
        import torch

        # An example is the last axis of the inputs.
        plain = inputs.astype(np.int64) if self._shape is None else inputs.reshape(*inputs.shape[:-1], *self._shape)
        return tuple(torch.from_numpy(np.ascontiguousarray(one)).to(self._device) for one in (plain, targets))

    def _stretches(self) -> Iterator[slice]:
        end = 0
        for layer in self.layers:
            yield slice(end, end + layer.size)
            end += layer.size

    def _parts(self, weights: Values) -> Iterator[tuple[str, Any]]:
        import torch

        # PyTorch warns of arrays that are read-only, as those of strategies are, though it only reads them here.
        whole = torch.from_numpy(np.require(weights, requirements="W")).to(self._device)
        for layer, stretch in zip(self.layers, self._stretches(), strict=True):
            yield layer.name, whole[stretch].view(layer.shape)


def _torch_cross_entropy(logits: Any, targets: Any) -> Any:
    """Return the cross-entropy, averaged over examples and, for sequences, over positions."""
    from torch.nn import functional

    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run PyTorch with one thread inside the block, so that results do not depend on the number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _convolutional_net(data: Data) -> Any:
    from torch import nn

    parts: list[tuple[str, Any]] = []
    for number, (before, after) in enumerate(itertools.pairwise((1, *_CHANNELS)), start=1):
        parts += [
            (f"conv{number}", nn.Conv2d(before, after, 3, padding=1, bias=False)),
            (f"norm{number}", nn.GroupNorm(_GROUPS, after)),
            (f"relu{number}", nn.ReLU()),
        ]
        if number > 1:
            parts.append((f"pool{number}", nn.MaxPool2d(2)))
    parts += [
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear((data.shape[1] // 4) * (data.shape[2] // 4) * _CHANNELS[-1], _UNITS)),
        ("relu4", nn.ReLU()),
        ("fc2", nn.Linear(_UNITS, data.classes)),
    ]
    return nn.Sequential(OrderedDict(parts))
