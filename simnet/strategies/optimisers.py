"""Optimisers with PyTorch's float32 arithmetic, for the parameters of all workers at once, shape (workers, n)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray

from simnet.base.arrays import Values
from simnet.base.quantities import check_fields

Index: TypeAlias = slice | NDArray[np.intp]
State: TypeAlias = Mapping[str, NDArray[Any]]

LearningRate: TypeAlias = Annotated[float, Gt(0), Le(1e6)]
"""A learning rate, > 0."""
Momentum: TypeAlias = Annotated[float, Ge(0), Lt(1)]
"""Decay factor of a running sum or mean per step, in [0, 1)."""
Decay: TypeAlias = Annotated[float, Ge(0), Le(1)]
"""A weight decay, in [0, 1]."""

ALL = slice(None)


def row_column_index(rows: Index, columns: Index) -> tuple[Any, Any]:
    """Return the index of some rows and columns of a 2-D array; it selects a view if either is a slice."""
    if isinstance(rows, slice) or isinstance(columns, slice):
        return rows, columns
    return rows[:, np.newaxis], columns


@dataclass(frozen=True)
class Optimiser(ABC):
    """Base class of optimisers, which update parameters by gradients. ValueError: an option is out of range."""

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def state(self, rows: int, parameters: int) -> dict[str, NDArray[Any]]:
        """Return the initial optimiser state by name: zeros for `rows` models of the given number of parameters."""

    def step(
        self, parameters: Values, gradients: Values, state: State, rows: Index = ALL, columns: Index = ALL
    ) -> None:
        """Update the given rows and columns of `parameters`, shape (rows, n), and of `state` by gradients, in place."""
        at = row_column_index(rows, columns)
        values = parameters[at]
        self._move(values, gradients, state, at, rows)
        parameters[at] = values

    def _move(self, values: Values, gradients: Values, state: State, at: tuple[Any, Any], rows: Index) -> None:
        """Update the parameters `values` in place, and their `state`, which is at the index `at`, or at `rows`."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent with the arithmetic of `torch.optim.SGD`.

    With gradient g and parameters w: g = g + d w; v = m v + g, and v = g in the first step; w = w - r v, or, with
    Nesterov's momentum, w = w - r (g + m v). That is not the look-ahead of textbooks.

    Raises ValueError if a value is out of range, or Nesterov's momentum is 0.

    Parameters
    ----------
    lr : float
        r, the learning rate, > 0.
    momentum : float
        m, in [0, 1).
    nesterov : bool
        Whether the momentum is Nesterov's.
    weight_decay : float
        d, in [0, 1].

    Examples
    --------
    >>> outer = SGD(0.5, momentum=0.5, nesterov=True)
    >>> parameters, state = np.ones((1, 1), np.float32), outer.state(1, 1)
    >>> outer.step(parameters, np.ones((1, 1), np.float32), state)
    >>> parameters, state["momentum"]
    (array([[0.25]], dtype=float32), array([[1.]], dtype=float32))
    """

    lr: LearningRate
    momentum: Momentum = 0.0
    nesterov: bool = False
    weight_decay: Decay = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov: true needs a momentum > 0 of the same optimiser, got 0")

    def state(self, rows: int, parameters: int) -> dict[str, NDArray[Any]]:
        """Return the zeroed momentum buffer, float32 of shape (rows, n); empty without momentum."""
        return {"momentum": np.zeros((rows, parameters), dtype=np.float32)} if self.momentum else {}

    def _move(self, values: Values, gradients: Values, state: State, at: tuple[Any, Any], rows: Index) -> None:
        step = gradients
        if self.weight_decay:
            step = step + np.float32(self.weight_decay) * values
        if self.momentum:
            velocity = state["momentum"][at]
            velocity *= np.float32(self.momentum)
            velocity += step
            state["momentum"][at] = velocity
            step = step + np.float32(self.momentum) * velocity if self.nesterov else velocity
        values -= np.float32(self.lr) * step


@dataclass(frozen=True)
class AdamW(Optimiser):
    """Adam with decoupled weight decay, with the arithmetic and the defaults of `torch.optim.AdamW`.

    Raises ValueError if a value is out of range.

    Parameters
    ----------
    lr : float
        The learning rate, > 0.
    beta1, beta2 : float
        What the running means of gradients and of their squares keep from step to step, in [0, 1).
    eps : float
        What is added to the root of the latter, > 0.
    weight_decay : float
        The share of the parameters, times `lr`, that each step takes away, in [0, 1].
    """

    lr: LearningRate = 1e-3
    beta1: Momentum = 0.9
    beta2: Momentum = 0.999
    eps: LearningRate = 1e-8
    weight_decay: Decay = 0.01

    def state(self, rows: int, parameters: int) -> dict[str, NDArray[Any]]:
        """Return both zeroed moments, float32 of shape (rows, n), and step counts per row, int64 of shape (rows, 1)."""
        means = {name: np.zeros((rows, parameters), dtype=np.float32) for name in ("mean", "square")}
        return {**means, "steps": np.zeros((rows, 1), dtype=np.int64)}

    def _move(self, values: Values, gradients: Values, state: State, at: tuple[Any, Any], rows: Index) -> None:
        mean, square = state["mean"][at], state["square"][at]
        state["steps"][rows] += 1
        steps = state["steps"][rows].astype(np.float64)
        # PyTorch corrects for the bias in double precision, and goes on in single.
        size = (self.lr / (1 - self.beta1**steps)).astype(np.float32)
        unbiased = np.sqrt(1 - self.beta2**steps).astype(np.float32)
        values *= np.float32(1 - self.lr * self.weight_decay)
        weight = np.float32(1 - self.beta1)
        mean += weight * (gradients - mean)
        square *= np.float32(self.beta2)
        square += np.float32(1 - self.beta2) * gradients * gradients
        scale = np.sqrt(square)
        scale /= unbiased
        scale += np.float32(self.eps)
        values -= size * mean / scale
        state["mean"][at], state["square"][at] = mean, square


@dataclass(frozen=True)
class SignDescent(Optimiser):
    """Descent by signs, as in DeMo, with learning rate r and weight decay d: w = (1 - r d) w - r sign(g)."""

    lr: LearningRate
    weight_decay: Decay = 0.0

    def state(self, rows: int, parameters: int) -> dict[str, NDArray[Any]]:
        """Return an empty state, because descent by signs has no state."""
        return {}

    def _move(self, values: Values, gradients: Values, state: State, at: tuple[Any, Any], rows: Index) -> None:
        values *= np.float32(1 - self.lr * self.weight_decay)
        values -= np.float32(self.lr) * np.sign(gradients)
