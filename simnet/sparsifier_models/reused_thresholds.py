"""Thresholds that Ok-Topk re-uses between the iterations that compute them exactly, and the constants of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simnet.sparsifier_models import selection

RAISES, RAISE = 5, 1.03


@dataclass(frozen=True)
class Rules:
    """Constants of a variant of the reference implementation; options of Ok-Topk, where they are described."""

    tau_prime: int
    tau: int
    local_low: float
    local_high: float
    local_step: float
    global_low: float
    global_high: float
    global_up: float
    global_down: float
    raise_above: float


RULES = {
    "vgg": Rules(32, 64, 2 / 3, 5 / 4, 1.012, 2 / 3, 4 / 3, 1.008, 1.008, 4 / 3),
    "lstm": Rules(32, 64, 3 / 4, 5 / 4, 1.012, 3 / 4, 5 / 4, 1.008, 1.01, 3 / 2),
    "bert": Rules(128, 64, 4 / 5, 5 / 4, 1.025, 4 / 5, 5 / 4, 1.025, 1.036, np.inf),
}


def raised(values: Any, threshold: float, most: float, kernels: Any = selection) -> tuple[float, Any, int]:
    """Raise a re-used threshold while it selects more than `most` entries.

    Returns the threshold, the ascending indices above it, and the counting passes. `kernels` is `selection`, or a
    module with its functions for other arrays.

    Examples
    --------
    >>> raised(np.arange(100, dtype=np.float32), 90.0, 7)
    (92.7, array([93, 94, 95, 96, 97, 98, 99]), 2)
    """
    indices, passes = kernels.above(values, threshold), 1
    while len(indices) > most and passes <= RAISES:
        threshold *= RAISE
        indices = indices[abs(values[indices]) > float(np.float32(threshold))]
        passes += 1
    return threshold, indices, passes


def drifted(threshold: float, count: int, low: float, high: float, up: float, down: float) -> float:
    """Return the next threshold after one that selected `count` entries: it stays between `low` and `high`.

    `up` and `down` are the factors by which it rises and falls.

    Examples
    --------
    >>> [drifted(1.0, count, 66.7, 125.0, up=1.25, down=2.0) for count in (50, 100, 150)]
    [0.5, 1.0, 1.25]
    """
    if count < low:
        return threshold / down
    return threshold * up if count > high else threshold
