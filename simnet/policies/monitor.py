"""How a policy watches the links: probes with noise, every so often."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from simnet.base.quantities import Factor, Seconds, Spread
from simnet.base.rng import stream
from simnet.network import Network
from simnet.policies.protocol import PolicyContext

Aggregate: TypeAlias = Literal["worst", "mean", "median"]


@dataclass(frozen=True)
class Monitor:
    """How a flexible policy watches the links.

    Probes run beside the job, as ping and iperf would, between each worker and the next; they cost nothing. Where the
    network changes by iteration (`simnet.training.job.Job.stages`), they see the one in force.

    Raises ValueError if a figure is negative or not finite, or `aggregate` is unknown.

    Parameters
    ----------
    every : float
        Time between probes [s], the first at time 0; 0 probes before each iteration.
    noise : float
        Standard deviation of the logarithm of a probe's error, for latency and bandwidth alike.
    change : float
        Relative change of latency or bandwidth, against what the last decision was based on, beyond which the decision
        is taken again (10 % in the paper's talk).
    aggregate : {"worst", "mean", "median"}
        What of all pairs the closed forms see as alpha and 1/beta: the highest latency and lowest bandwidth, or the
        mean or median of both.
    seed : int
        Seed of the noise.
    """

    every: Seconds = 10.0
    noise: Spread = 0.0
    change: Factor = 0.1
    aggregate: Aggregate = "worst"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("every", "noise", "change"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be >= 0 and finite, got {value}")
        if self.aggregate not in get_args(Aggregate):
            raise ValueError(f"aggregate must be one of {', '.join(get_args(Aggregate))}, got {self.aggregate!r}")

    def probe(self, context: PolicyContext) -> tuple[float, float]:
        """Return latency [s] and bandwidth [byte/s] as the latest probe before `context` found them."""
        if self.every > 0:
            number = math.floor(context.now / self.every)
            time = number * self.every
        else:
            number, time = context.iteration, context.now
        latency, bandwidth = probe_pairs(context.network, context.placement, time)
        if self.noise:
            errors = stream(self.seed, "probe", number).normal(0.0, self.noise, size=(2, latency.size))
            latency, bandwidth = latency * np.exp(errors[0]), bandwidth * np.exp(errors[1])
        if self.aggregate == "worst":
            return float(latency.max()), float(bandwidth.min())
        of = np.mean if self.aggregate == "mean" else np.median
        return float(of(latency)), float(of(bandwidth))

    def departs(self, seen: tuple[float, float], basis: tuple[float, float]) -> bool:
        """Whether latency or bandwidth seen differs from that of `basis` by more than `change`.

        Examples
        --------
        >>> Monitor(change=0.1).departs((1e-3, 1.25e9), (1e-3, 1.3e9)), Monitor(change=0.0).departs((1, 2), (1, 3))
        (False, True)
        """
        return any(abs(now - before) > self.change * before for now, before in zip(seen, basis, strict=True))


def probe_pairs(
    network: Network, placement: Sequence[int], time: float
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
    """Return latency [s] and bandwidth [byte/s] from each worker to the next at a time; shape (P,) each.

    Of fewer than two workers: zero latency and infinite bandwidth.
    """
    workers = len(placement)
    if workers < 2:
        return np.zeros(1), np.full(1, math.inf)
    paths = [network.path(placement[rank], placement[(rank + 1) % workers], time) for rank in range(workers)]
    latency, bandwidth = np.array(paths, dtype=np.float64).T
    return latency, bandwidth
