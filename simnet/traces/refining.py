"""Magnitudes and order of a layer's entries, each from what was recorded of it.

The moments of `simnet.traces.fitting` describe gradients whose tails are about those of a lognormal mixture. Others
have heavier or lighter ones, or are zero at most workers. Top-k sees two things of them. One is how large the entries
of a layer are: tables of quantiles here, from the smallest to the largest. The other is which entries they are at
several workers: an order as in `simnet.traces.ordering`, the one whose overlap and build-up come nearest to those of
the layer, at as many entries as the layer has among the top-k of the whole gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.traces.ordering import Order, orders
from simnet.traces.source import Values

_Table = NDArray[np.float64]

BEYOND: _Table = np.concatenate([[1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2], np.geomspace(0.1, 1e-6, 26)])
"""Shares of larger entries for which magnitudes are tabulated: the smallest entry first."""

# Densities of the whole gradient at which the order is looked at.
_DENSITIES = np.geomspace(3e-4, 0.25, 12)
# So many selected entries of a worker count half as much as many.
_FEW = 5.0


class Refined(NamedTuple):
    """What a layer is like.

    Parameters
    ----------
    orders : tuple of Order
        At each point.
    shared : ndarray, shape (T,)
        Correlation of x between workers.
    magnitudes : ndarray, shape (T, Q)
        Quantiles of the magnitude, ascending; `BEYOND` says which.
    """

    orders: tuple[Order, ...]
    shared: _Table
    magnitudes: _Table


def refined(parts: list[Values]) -> list[Refined]:
    """Return what the layers are like.

    Parameters
    ----------
    parts : list of ndarray of float32, shape (T, P, size)
        Gradients of each layer, of workers that are about as large.
    """
    whole = np.concatenate([np.abs(part) for part in parts], axis=2)
    n = whole.shape[2]
    counts = np.unique(np.maximum(1, np.round(_DENSITIES * n)).astype(int))
    # The magnitude at which each worker's k largest begin; shape (T, P, number of counts).
    thresholds = -np.sort(-whole, axis=2)[:, :, counts - 1]
    del whole
    return [_layer(part, np.maximum(thresholds, 1e-45)) for part in parts]


def _layer(part: Values, thresholds: Values) -> Refined:
    points, P, size = part.shape
    shared = _smooth(np.array([_sign_correlation(gradients) for gradients in part]))
    local = np.empty((points, thresholds.shape[2]))
    overlap, build_up = np.empty_like(local), np.empty_like(local)
    for point, gradients in enumerate(np.abs(part)):
        ranks = np.argsort(np.argsort(-gradients, axis=1), axis=1)
        alive = int((gradients > 0).sum(axis=1).min())
        for place in range(local.shape[1]):
            k = round(int((gradients >= thresholds[point, :, place : place + 1]).sum()) / P)
            k = min(k, alive)
            local[point, place] = k
            times = (ranks < k).sum(axis=0)
            overlap[point, place] = (times * (times - 1)).sum() / max(P * (P - 1) * k, 1)
            build_up[point, place] = (times > 0).sum() / max(k, 1)
    weight = local / (local + _FEW)
    weighted = [_smooth(value * weight) / np.maximum(_smooth(weight), 1e-12) for value in (overlap, build_up)]
    weight, local = _smooth(weight), _smooth(local)
    errors = []
    for point in range(points):
        grid = orders(P, float(shared[point]))
        close, distinct = grid.at(np.clip(local[point] / size, 1e-6, 1.0))
        # What is sure at least: entries that differ by chance alone.
        misses = np.square(np.log(distinct / np.maximum(weighted[1][point], 1.0)))
        misses += 0.25 * np.square(close - weighted[0][point])
        errors.append(misses @ weight[point])
    return Refined(_chosen(np.array(errors), grid.found), shared, _magnitudes(part))


def _chosen(errors: _Table, found: tuple[Order, ...]) -> tuple[Order, ...]:
    """Return the order of least error at each point, of one skew and share of dead at all points."""
    kinds: dict[tuple[float, float], list[int]] = {}
    for place, order in enumerate(found):
        kinds.setdefault((order.skew, order.dead), []).append(place)
    best = min(kinds.values(), key=lambda places: float(errors[:, places].min(axis=1).sum()))
    return tuple(found[best[place]] for place in errors[:, best].argmin(axis=1))


def _magnitudes(part: Values) -> _Table:
    """Return quantiles of the magnitude at each point, of all workers together; shape (T, Q)."""
    tables = np.quantile(np.abs(part).reshape(len(part), -1), 1 - BEYOND, axis=1).T
    return np.asarray(np.maximum.accumulate(tables.astype(np.float64), axis=1))


def _sign_correlation(gradients: Values) -> float:
    """Return the correlation of two normals that have the same sign as often as two workers' entries, not below zero.

    Signs do not care how heavy the tails are.
    """
    signs = np.sign(gradients)
    total, nonzero = signs.sum(axis=0, dtype=np.float64), np.abs(signs).sum(axis=0, dtype=np.float64)
    pairs = float((nonzero * (nonzero - 1)).sum())
    mean = float((total**2 - nonzero).sum()) / pairs if pairs else 0.0
    return float(np.clip(np.sin(np.pi / 2 * np.clip(mean, -1.0, 1.0)), 0.0, 0.999))


def _smooth(table: _Table) -> _Table:
    padded = np.concatenate([table[:1], table, table[-1:]])
    return np.asarray((padded[:-2] + padded[1:-1] + padded[2:]) / 3)
