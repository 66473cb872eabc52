"""Models in PyTorch, with the gradients of all workers at once.

The forward pass is vectorised over workers (`torch.func.vmap`), each with weights of its own that are views of the one
vector of weights. The backward pass adds each worker's gradients into its row of the buffer where the exchange reads
them, so nothing is copied, as in PyTorch's DistributedDataParallel with ``gradient_as_bucket_view``.
"""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import SimnetError, to_install
from simnet.costs.models import Layer
from simnet.traces.live.data import Data
from simnet.traces.live.model import Model
from simnet.traces.source import Values

MODELS = ("conv", "char")
"""What can be trained with PyTorch."""

_CHANNELS, _GROUPS, _UNITS = (16, 32, 32), 4, 32
_EMBEDDING, _CHAR_UNITS = 16, 128


def create(model: str, data: Data, device: str = "cpu") -> Torched:
    """Return a model of PyTorch for data.

    Parameters
    ----------
    model : str
        ``conv``: three convolutions with group norm and two fully connected layers, for images. ``char``: an embedding
        and two fully connected layers, for text (Bengio et al., "A Neural Probabilistic Language Model", 2003).
    data : Data
        What it is trained on.
    device : str
        ``cpu`` or ``cuda``.

    Raises
    ------
    SimnetError
        If PyTorch or the device is not there.
    ValueError
        If the model does not take such data.
    """
    if model == "conv" and len(data.shape) != 3:
        raise ValueError("conv takes images, and only the digits are: data: digits")
    if model == "char" and not data.symbols:
        raise ValueError("char takes text, and only the docstrings are: data: docstrings")
    try:
        import torch
    except ImportError:
        raise SimnetError(f"{model} needs PyTorch: {to_install('train')}") from None
    if device == "cuda" and not torch.cuda.is_available():
        raise SimnetError("there is no GPU that PyTorch can use: take device: cpu")
    made = _conv(data) if model == "conv" else _char(data)
    return Torched(made.to(device), data.shape if model == "conv" else None, device)


def entries(model: str, features: int, classes: int) -> int:
    """Return how many parameters a model has, without making it.

    Parameters
    ----------
    model : str
        One of `MODELS`.
    features : int
        Characters of the context; of no matter for images.
    classes : int
        How many.

    Examples
    --------
    >>> entries("conv", 64, 10)
    18586
    """
    if model == "char":
        widths = (_EMBEDDING * features, _CHAR_UNITS, classes)
        return classes * _EMBEDDING + sum((width + 1) * units for width, units in itertools.pairwise(widths))
    convolved = sum(9 * before * after + 2 * after for before, after in itertools.pairwise((1, *_CHANNELS)))
    return convolved + (4 * _CHANNELS[-1] + 1) * _UNITS + (_UNITS + 1) * classes


class Torched(Model):
    """A module of PyTorch as a model to train; see `create`.

    Parameters
    ----------
    module : torch.nn.Module
        Gives the logits of a batch. It must do the same in training and in evaluation.
    shape : tuple of int or None
        Into which an example is brought; None for symbols, which stay as they are.
    device : str
        Where the module is.
    """

    def __init__(self, module: Any, shape: tuple[int, ...] | None, device: str = "cpu") -> None:
        self._module, self._shape, self._device = module, shape, device
        self.layers = tuple(Layer(name, tuple(one.shape)) for name, one in module.named_parameters())

    def gradients(self, weights: Values, inputs: NDArray[Any], targets: NDArray[np.intp], out: Values) -> Floats:
        """Put the gradient of each worker's mean loss in a row of `out`, and return the losses, shape (P,)."""
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
            losses = torch.func.vmap(self._loss)(leaves, given, classes)
            losses.sum().backward()
        if self._device != "cpu":
            out[:] = place.cpu().numpy()
        found: Floats = losses.detach().cpu().numpy().astype(np.float64)
        return found

    def score(self, weights: Values, inputs: NDArray[Any], targets: NDArray[np.intp]) -> tuple[float, float]:
        """Return the mean loss of some examples, and the share of them that are told right."""
        import torch

        given, classes = self._tensors(inputs, targets)
        with _one_thread(), torch.no_grad():
            logits = torch.func.functional_call(self._module, dict(self._parts(weights)), (given,))
            loss = torch.nn.functional.cross_entropy(logits, classes)
            return float(loss), float((logits.argmax(1) == classes).double().mean())

    def _loss(self, weights: dict[str, Any], inputs: Any, targets: Any) -> Any:
        import torch

        logits = torch.func.functional_call(self._module, weights, (inputs,))
        return torch.nn.functional.cross_entropy(logits, targets)

    def _tensors(self, inputs: NDArray[Any], targets: NDArray[np.intp]) -> tuple[Any, Any]:
        import torch

        plain = inputs.astype(np.int64) if self._shape is None else inputs.reshape(*targets.shape, *self._shape)
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


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, so that the result does not depend on how many there are."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _conv(data: Data) -> Any:
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
        ("fc1", nn.Linear(4 * _CHANNELS[-1], _UNITS)),
        ("relu4", nn.ReLU()),
        ("fc2", nn.Linear(_UNITS, data.classes)),
    ]
    return nn.Sequential(OrderedDict(parts))


def _char(data: Data) -> Any:
    from torch import nn

    parts = OrderedDict(
        embedding=nn.Embedding(data.symbols, _EMBEDDING),
        flatten=nn.Flatten(),
        fc1=nn.Linear(_EMBEDDING * data.shape[0], _CHAR_UNITS),
        relu=nn.ReLU(),
        fc2=nn.Linear(_CHAR_UNITS, data.classes),
    )
    return nn.Sequential(parts)
