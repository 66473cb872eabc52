"""What an exchange consists of, before it runs: rounds and bytes by its closed form, kernels by the device profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simnet import sparsifier_models
from simnet.base.rng import stream
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile
from simnet.policies import Candidate, closed_form
from simnet.sparsifier_models.samples import sample_size
from simnet.training.job.exchange import hook_kernels

# Entries of the gradients that are exchanged to see which kernels run, at least; how many they go through is scaled.
_SAMPLE = 64


class ExchangeCost(NamedTuple):
    """Sequential latencies (`rounds`) and bytes on a link of an exchange, and seconds of its kernels by method.

    `select` are kernels before the first message, `merge` the others.
    """

    rounds: float
    nbytes: float
    select: dict[str, float]
    merge: dict[str, float]


def exchange_cost(
    candidate: Candidate, workers: int, buckets: Sequence[int], density: float, device: DeviceProfile
) -> ExchangeCost:
    """Return the cost of an exchange between P workers, for buckets of the given entries at a density.

    Raises ValueError if it has no closed form, or one that is no sum of latencies and bytes, or refuses the density.

    Examples
    --------
    >>> from simnet.cost_models.costs.devices import load_device
    >>> found = exchange_cost(Candidate("dense", "dense", {"algorithm": "ring"}), 4, [1000], 1.0, load_device("ideal"))
    >>> found.rounds, found.nbytes
    (6.0, 6000.0)
    """
    formula = closed_form(candidate)
    rounds = nbytes = 0.0
    select: dict[str, float] = {}
    merge: dict[str, float] = {}
    for entries in buckets:
        message = 4.0 * entries
        each = [float(formula(alpha, beta, message, density, workers)) for alpha, beta in ((1, 0), (0, 1), (1, 1))]
        if not math.isclose(each[0] + each[1], each[2], rel_tol=1e-9):
            raise ValueError(f"the closed form of {candidate.label!r} is no sum of latencies and bytes")
        rounds, nbytes = rounds + each[0], nbytes + each[1]
        for one in device.resolved(_exchange_kernels(candidate, workers, entries, density, device)):
            of = merge if one.before else select
            of[one.method] = of.get(one.method, 0.0) + float(device.seconds([one], workers).max())
    return ExchangeCost(rounds, nbytes, select, merge)


def _exchange_kernels(
    candidate: Candidate, workers: int, entries: int, density: float, device: DeviceProfile
) -> tuple[DeviceOp, ...]:
    sample = min(entries, sample_size(_SAMPLE, density))
    model = sparsifier_models.create(
        candidate.scheme, workers, sample, density, scale=entries / sample, layers=(sample,), **candidate.options
    )
    draws = stream(0, "kernels of an exchange").standard_normal((workers, sample))
    exchange = model.exchange(draws.astype(np.float32))
    return *exchange.kernels, *hook_kernels(device, model, exchange)
