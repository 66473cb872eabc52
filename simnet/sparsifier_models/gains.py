"""Compression gain at densities other than the one in force: what a policy weighs before it changes the density.

The gain is E||g_c||^2 / E||g_e||^2, what is sent over what there is to send, error feedback included. The k largest
entries of a gradient contain the fewer largest, so that one selection over the whole gradient serves all densities.

References
----------
S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE BigData
2023, section 2-C3 (gain), section 3-E1 (candidates, gain trigger).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from simnet.sparsifier_models.base import Sparsifier
from simnet.sparsifier_models.selection import Indices, Values, squared_norm, top_k


def counts_at(model: Sparsifier, densities: Sequence[float]) -> list[int]:
    """Return k of the model at each density, without changing it. ValueError: no density, or one outside (0, 1].

    Examples
    --------
    >>> from simnet.sparsifier_models import create
    >>> counts_at(create("topk", workers=2, parameters=1000), [0.1, 0.033, 0.0001])
    [100, 33, 1]
    """
    if not len(densities):
        raise ValueError("densities must hold one at least")
    twin, counts = copy(model), []
    for density in densities:
        twin.density = density
        counts.append(twin.k)
    return counts


def corrected_rows(gradients: Values, residual: Values | None) -> Iterator[Values]:
    """Yield the gradient plus the residual of each worker. ValueError: an entry is not finite."""
    for worker, fresh in enumerate(gradients):
        with np.errstate(over="ignore", invalid="ignore"):
            row = fresh + (0 if residual is None else residual[worker])
            if not np.isfinite(squared_norm(row)):
                raise ValueError(f"gradient of worker {worker}, with its residual, must be finite")
        yield row


def nested_top_k(values: Values, counts: Sequence[int]) -> list[Indices]:
    """Return the `selection.top_k` of each count, in one pass over `values`.

    Examples
    --------
    >>> nested_top_k(np.array([3, -5, 1, 3, 4], dtype=np.float32), [1, 3])
    [array([1]), array([0, 1, 4])]
    """
    most = top_k(values, max(counts))
    kept = values[most]
    return [most[top_k(kept, k)] for k in counts]


def gain(sent: NDArray[np.float64], given: float) -> NDArray[np.float64]:
    """Return what was sent over what was given, sums of squares; 1 if all is zero."""
    return sent / given if given else np.ones_like(sent)
