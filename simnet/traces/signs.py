"""Signs that workers have in common, and how long they, and what is each worker's own, last.

What two workers have in common at two recorded steps is counted as the mean product of the signs of an entry, as it is
the many small entries that keep their sign that residuals add up, step by step, until they are large.

- Entries of one size have the same sign at more workers than those of another: in an embedding the small ones, which
  come from words that are not there, in other layers the large ones. So the share with the same sign at all workers is
  told by bands of kinds. A band of kinds is not one of magnitudes, as chance makes an entry larger or smaller than its
  kind is as a rule. What kinds make of magnitudes is drawn, and the shares are those whose agreement in the bands of
  magnitudes comes nearest to what was counted.
- Correlations over time are those of few standard normals with loadings that move from knot to knot, as in the analysis
  of factors: a component with the same loading everywhere never changes, and one that fades gives way to another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.traces.ordering import Kinds
from simnet.traces.ranked import Ranked
from simnet.traces.refining import BANDS
from simnet.traces.synthetic_parameters import COMPONENTS

# Entries that are drawn to see what bands of kinds are in bands of magnitudes.
_DRAWN = 8192
# How unlike layers are in how long signs last, as a deviation of the correlation: what a layer says of itself counts
# beside what all say by how certain it is.
_UNLIKE = 0.25
# Neighbouring bands differ by about this much, where nothing tells.
_BETWEEN_BANDS = 0.3
_ROUNDS = 200
LONGEST_MEMORY = 0.9
"""What is remembered from one iteration to the next is no more than this."""

# What is a worker's own and lasts takes as many draws again as there are components. Of gradients, of which nothing
# lasts, chance makes a twentieth or a tenth, of pseudo-gradients it is half and more.
_LEAST_OWN = 0.25
# Of what is left beside the components there is no memory to be found where it is next to nothing.
_LEAST_REST = 0.01


def agreeing(counted: Floats, kinds: Kinds, magnitudes: Floats, shared: float, workers: int) -> Floats:
    """Return the share of the entries in each band of kinds that have the same sign at all workers.

    Parameters
    ----------
    counted : ndarray, shape (2, B)
        What `in_bands` found.
    kinds : Kinds
        Of the layer at a point.
    magnitudes : ndarray
        Its quantiles.
    shared : float
        Correlation of the workers' normals.
    workers : int
        P.
    """
    from scipy.optimize import lsq_linear
    from scipy.special import ndtri

    random = stream(0, "traces", "signs")
    x = random.standard_normal((workers, _DRAWN), dtype=np.float32) * np.float32(math.sqrt(1 - shared))
    x += np.float32(math.sqrt(shared)) * random.standard_normal(_DRAWN, dtype=np.float32)
    ranks = (np.arange(_DRAWN) + 0.5) / _DRAWN
    made = np.empty_like(x)
    Ranked(kinds, magnitudes).magnitudes(x, ndtri(ranks).astype(np.float32), made)
    place = np.empty(_DRAWN)
    place[np.argsort(made.sum(axis=0, dtype=np.float64), kind="stable")] = ranks
    to, of = np.searchsorted(BANDS, place), np.searchsorted(BANDS, ranks)
    total = np.sign(x).sum(axis=0, dtype=np.float64)
    products = (total**2 - workers) / (workers * (workers - 1))
    B = len(BANDS) + 1
    count, already = np.zeros((B, B)), np.zeros((B, B))
    np.add.at(count, (to, of), 1)
    np.add.at(already, (to, of), products)
    whole = count.sum(axis=1)
    found, entries = counted
    # A mean over so many entries scatters by about its root; none is known better than to a hundredth.
    certain = np.where(entries > 0, 1 / np.sqrt(1 / np.maximum(entries * (workers - 1), 1) + 1e-4), 0.0)
    a = (count - already) / whole[:, None] * certain[:, None]
    b = (found - already.sum(axis=1) / whole) * certain
    alike = np.diff(np.eye(B), axis=0) / _BETWEEN_BANDS
    solved = lsq_linear(np.vstack([a, alike]), np.concatenate([b, np.zeros(B - 1)]), bounds=(0.0, 1.0))
    return np.asarray(np.clip(solved.x, 0.0, 1.0))


class Products(NamedTuple):
    """Mean products of signs between points, of each layer.

    Parameters
    ----------
    other, own : ndarray, shape (number of layers, T, T)
        Of two workers, and by how much that of a worker and itself is larger.
    entries : ndarray, shape (number of layers,)
        Entries of each layer.
    workers : int
        P.
    """

    other: Floats
    own: Floats
    entries: Floats
    workers: int


def products(signs: NDArray[np.int8], sizes: Sequence[int]) -> Products:
    """Return the mean products of signs.

    Parameters
    ----------
    signs : ndarray of int8, shape (T, P, n)
        Of the gradients.
    sizes : sequence of int
        Entries of each layer.
    """
    T, P, _ = signs.shape
    other, own = np.zeros((len(sizes), T, T)), np.zeros((len(sizes), T, T))
    start = 0
    for layer, size in enumerate(sizes):
        part = signs[:, :, start : start + size].astype(np.float32)
        start += size
        total = part.sum(axis=1)
        same = np.einsum("twi,uwi->tu", part, part, dtype=np.float64) / (size * P)
        other[layer] = (np.einsum("ti,ui->tu", total, total, dtype=np.float64) / size - same * P) / (P * (P - 1))
        own[layer] = same - other[layer]
    return Products(other, own, np.array(sizes, dtype=np.float64), P)


class Lasting(NamedTuple):
    """What lasts.

    Parameters
    ----------
    loadings : ndarray, shape (number of layers, T, COMPONENTS)
        At each point; the sum of their squares is at most one.
    correlations : ndarray, shape (number of layers, T, T)
        Those that the standard normals are to have.
    share : float
        Of the variance, in all layers together.
    """

    loadings: Floats
    correlations: Floats
    share: float


def lasting(products: Floats, counts: Floats) -> Lasting:
    """Return the loadings of components that last.

    Parameters
    ----------
    products : ndarray, shape (L, T, T)
        Mean products of signs, of each layer.
    counts : ndarray, shape (L,)
        How many products each is the mean of.
    """
    sizes = np.sqrt(np.maximum(np.diagonal(products, axis1=1, axis2=2), 0.0))
    scales = sizes[:, :, None] * sizes[:, None, :]
    # The same for all, weighted by how much of it there is.
    weights = counts[:, None, None] * scales**2
    ratios = np.where(scales > 0, products, 0.0) / np.where(scales > 0, scales, 1.0)
    together = (weights * ratios).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-300)
    certain = 1 / _UNLIKE**2
    ratios = (weights * ratios + certain * together) / (weights + certain)
    whole, *found = np.sin(math.pi / 2 * np.clip(np.concatenate([together[None], ratios]), -1.0, 1.0))
    # In all layers together, as in small ones chance looks like what lasts.
    share = float(np.square(_factors(whole)).sum(axis=1).mean())
    return Lasting(np.array([_factors(one) for one in found]), np.array(found), share)


def _factors(correlation: Floats) -> Floats:
    """Return loadings (T, COMPONENTS) whose products come near to a matrix beside its diagonal."""
    T = len(correlation)
    few = min(COMPONENTS, T)
    matrix = correlation.copy()
    made = np.zeros((T, few))
    common = np.full(T, np.abs(correlation - np.diag(np.diag(correlation))).max(axis=1, initial=0.0))
    for _ in range(_ROUNDS):
        np.fill_diagonal(matrix, common)
        values, vectors = np.linalg.eigh(matrix)
        made = vectors[:, -few:] * np.sqrt(np.maximum(values[-few:], 0.0))
        size = np.sqrt(np.square(made).sum(axis=1, keepdims=True))
        made = made / np.maximum(size, 1.0)
        common = np.square(made).sum(axis=1)
    # Largest first, each with a positive sum: eigenvectors have any sign.
    made = made[:, ::-1]
    made = made * np.where(made.sum(axis=0) < 0, -1.0, 1.0)
    return np.pad(made, ((0, 0), (0, COMPONENTS - few)))


def places(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each step: those that follow each other, between others that do not, are at one.

    Parameters
    ----------
    steps : ndarray of int, shape (T,)
        Recorded steps, ascending.

    Examples
    --------
    >>> places(np.array([0, 1, 22, 23, 44])).tolist(), places(np.array([4, 5, 6])).tolist()
    ([0, 0, 1, 1, 2], [0, 1, 2])
    """
    apart = np.diff(steps) > 1
    return np.concatenate([[0], np.cumsum(apart if apart.any() else ~apart)])


def common(found: Products, steps: NDArray[np.int64]) -> tuple[Floats, float]:
    """Return the loadings of c, and the memory of the rest of it.

    What steps at one place share lasts no longer than they do, as gradients turn back within a few steps; memory is of
    steps that follow each other at places of their own.

    Parameters
    ----------
    found : Products
        Of a trace.
    steps : ndarray of int, shape (T,)
        Its steps.
    """
    counts = found.entries * found.workers * (found.workers - 1)
    place = places(steps)
    products = _together(found.other, place)
    made, correlation, _ = lasting(products, counts)
    rest = 1 - np.square(made).sum(axis=2)
    pairs = place[:-1][(np.diff(steps) == 1) & (np.diff(place) == 1)]
    weight = counts[:, None] * np.diagonal(products, axis1=1, axis2=2)[:, pairs].clip(0) ** 2
    expected = np.sqrt(np.maximum(rest[:, pairs] * rest[:, pairs + 1], 0.0))
    excess = correlation[:, pairs, pairs + 1] - (made[:, pairs] * made[:, pairs + 1]).sum(axis=2)
    size = float((weight * expected**2).sum())
    memory = float((weight * expected * excess).sum()) / size if size > _LEAST_REST * weight.sum() else 0.0
    return made[:, place], min(max(memory, 0.0), LONGEST_MEMORY)


def _together(products: Floats, place: NDArray[np.int64]) -> Floats:
    """Return products between places, of shape (L, places, places), given those of steps: means over their steps."""
    shares = (place == np.arange(place[-1] + 1)[:, None]) / np.bincount(place)[:, None]
    found = shares @ products @ shares.T
    # Of a place and itself it is what is had at one step.
    each = np.diagonal(products, axis1=1, axis2=2) @ shares.T
    found[:, range(len(shares)), range(len(shares))] = each
    return np.asarray(found)


def own(found: Products) -> Floats | None:
    """Return the loadings of e; None if next to nothing of what is a worker's own lasts.

    Parameters
    ----------
    found : Products
        Of a trace.
    """
    made, _, share = lasting(found.own, found.entries * found.workers)
    return made if share >= _LEAST_OWN else None
