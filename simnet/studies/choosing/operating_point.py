"""An operating point: the job and the links at which exchanges are weighed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.units import format_bandwidth, format_seconds
from simnet.cost_models.costs import NodeLinks

Number: TypeAlias = float | Floats
"""A number, or an array of them."""

VALUE = 4.0
"""Bytes of a value, and of an index."""

FORMATS: dict[str, Callable[[float], str]] = {
    "latency": format_seconds,
    "bandwidth": format_bandwidth,
    "density": lambda value: f"{100 * value:.3g} %",
    "workers": lambda value: f"{value:.0f}",
    "model": lambda value: f"{value:,.0f}",
}
"""The text of a value of a quantity."""


@dataclass(frozen=True)
class OperatingPoint:
    """A job on links that are all alike, or on nodes of several GPUs; fields may be arrays that broadcast.

    Parameters
    ----------
    workers : int or ndarray
        P, >= 1.
    parameters : float or ndarray
        n, >= 1.
    density : float or ndarray
        c, the fraction kept, in (0, 1].
    latency : float or ndarray
        alpha [s], from worker to worker; with nodes from node to node. >= 0.
    bandwidth : float or ndarray
        Of each worker's link in each direction [byte/s], > 0; with nodes that of each node, which its GPUs share.
    per_node : int
        Workers of a node, consecutive; it divides the workers, where it does not exceed them.
    inner_latency, inner_bandwidth : float
        Inside a node [s], [byte/s].

    Examples
    --------
    >>> point = OperatingPoint(8, 25_557_032, 0.01, 1e-3, 1.25e9)
    >>> float(point.kept), float(point.dense_bytes)
    (255571.0, 102228128.0)
    """

    workers: Number
    parameters: Number
    density: Number
    latency: Number
    bandwidth: Number
    per_node: int = 1
    inner_latency: float = 0.0
    inner_bandwidth: float = math.inf

    @property
    def links(self) -> tuple[Number, Number, Number, int]:
        """Latency, bandwidth, workers, and workers of a node."""
        return self.latency, self.bandwidth, self.workers, self.per_node

    @property
    def beta(self) -> Floats:
        """Seconds per byte between nodes."""
        return np.asarray(1.0 / np.asarray(self.bandwidth, dtype=np.float64))

    @property
    def inner_beta(self) -> float:
        """Seconds per byte inside a node."""
        return 1.0 / self.inner_bandwidth

    @property
    def nodes(self) -> NodeLinks | None:
        """The nodes, as closed forms take them; None if each worker is one."""
        return None if self.per_node == 1 else NodeLinks(float(self.per_node), self.inner_latency, self.inner_beta)

    @property
    def dense_bytes(self) -> Floats:
        """M, bytes of the whole gradient."""
        return VALUE * np.asarray(self.parameters, dtype=np.float64)

    @cached_property
    def kept(self) -> Floats:
        """Entries that a worker keeps, k = ceil(c n)."""
        # What binary fractions add to a product that is a whole number in decimal is less than that.
        exact = np.multiply(np.asarray(self.parameters, dtype=np.float64), self.density)
        return np.asarray(np.maximum(np.ceil(exact * (1 - 1e-12)), 1.0))

    @cached_property
    def kept_share(self) -> Floats:
        """Bytes of the values kept over those of the whole gradient."""
        return VALUE * self.kept / self.dense_bytes

    def at(self, quantity: str, values: Number) -> OperatingPoint:
        """Return the point with other values of one field.

        Examples
        --------
        >>> OperatingPoint(8, 1000, 0.01, 1e-3, 1.25e9).at("workers", 16).workers
        16
        """
        changed: dict[str, Any] = {quantity: values}
        return replace(self, **changed)
