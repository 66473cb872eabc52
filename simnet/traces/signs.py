"""Signs that workers have in common, and how long they, and what is each worker's own, last.

What two workers have in common at two recorded steps is counted as the mean product of the signs of an entry, as it is
the many small entries that keep their sign that residuals add up, step by step, until they are large.

- Entries of one size have signs that are more alike at two workers than those of another: in an embedding the small
  ones, which come from words that are not there, in other layers the large ones. So how alike they are is told by bands
  of kinds. A band of kinds is not one of magnitudes, as chance makes an entry larger or smaller than its kind is as a
  rule. What kinds make of magnitudes is drawn, and likeness is that which in the bands of magnitudes comes nearest to
  what was counted.
- Correlations over time are those of few standard normals with loadings that move from knot to knot, as in the analysis
  of factors: a component with the same loading everywhere never changes, and one that fades gives way to another. A
  layer has those that stand out from chance. What the workers' gradients have in common swings to and fro, so that two
  steps far apart are alike or unlike by more than the number of entries says, without that anything lasts.
- What does not last turns back: training with momentum overshoots. `TURNING` says how.
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
# Neighbouring bands differ by about this much, where nothing tells.
_BETWEEN_BANDS = 0.3
_ROUNDS = 200
TURNING = 0.62
"""Correlation, from one step to the next, of what workers share and what does not last, of gradients.

Of eight whole runs of two families, of which every step was recorded, it is 0.58 to 0.65 (transformer) and 0.61 to
0.70 (convolutional), 0.63 in the mean, in layers of 100 entries and more but embeddings (`benchmarks/turning.csv`). Six
pairs of steps tell it to 0.3, as what all entries share swings together, so that they decide nothing. That over k steps
is about r^k cos(k w) with r = cos(w), r^2 this one. From one step on these add up to zero: as much comes back as went.
So residuals add it up as they do what is new in every step, and no more.
"""
LONGEST_MEMORY = 0.9
"""What is remembered from one iteration to the next is no more than this."""

# Of gradients, of which next to nothing is a worker's own and lasts, chance makes a twentieth or a tenth, of
# pseudo-gradients it is half and more. So little is told by the mean over pairs of places, at least the three pairs of
# three places, if it is so many of its deviations, which chance makes once in 700 times. Of the traces that come with
# simnet it is 3.9 and 6.6 of them in the convolutional network, and 2.8 and 1.7 in the transformer.
_LEAST_OWN, _FEWEST, _CERTAIN = 0.25, 3, 3.0
# Of what is left beside the components there is no memory to be found where it is next to nothing.
_LEAST_REST = 0.01


def agreeing(counted: Floats, kinds: Kinds, magnitudes: Floats, shared: float, against: float, workers: int) -> Floats:
    """Return how much of the signs is that of all workers in each band of kinds: mean products of two workers' signs.

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
    against : float
        What `simnet.traces.refining.large_ones` found.
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
    ranked, logs = Ranked(kinds, magnitudes), ndtri(ranks).astype(np.float32)
    ranked.magnitudes(x, logs, made)
    place = np.empty(_DRAWN)
    place[np.argsort(made.sum(axis=0, dtype=np.float64), kind="stable")] = ranks
    to, of = np.searchsorted(BANDS, place), np.searchsorted(BANDS, ranks)
    pairs = workers * (workers - 1)
    products = (np.sign(x).sum(axis=0, dtype=np.float64) ** 2 - workers) / pairs
    follows = np.where(ranked.beyond(x, logs), against, 1.0)
    joined = (follows.sum(axis=0) ** 2 - np.square(follows).sum(axis=0)) / pairs
    B = len(BANDS) + 1
    count, already, gained = np.zeros((B, B)), np.zeros((B, B)), np.zeros((B, B))
    np.add.at(count, (to, of), 1)
    np.add.at(already, (to, of), products)
    np.add.at(gained, (to, of), joined - products)
    whole = count.sum(axis=1)
    found, entries = counted
    # A mean over so many entries scatters by about its root; none is known better than to a hundredth.
    certain = np.where(entries > 0, 1 / np.sqrt(1 / np.maximum(entries * (workers - 1), 1) + 1e-4), 0.0)
    a = gained / whole[:, None] * certain[:, None]
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


def _components(covariance: Floats, chance: Floats, entries: float) -> Floats:
    """Return loadings (T, COMPONENTS) of what lasts in a covariance beside its diagonal; no more than chance leaves.

    Parameters
    ----------
    covariance : ndarray, shape (T, T)
        Of one layer between points, with the variance on its diagonal.
    chance : ndarray, shape (T,)
        Between two points chance makes a deviation of the root of the product of theirs over `entries`.
    entries : float
        How many.
    """
    T = len(covariance)
    few = min(COMPONENTS, T)
    found = np.zeros((T, COMPONENTS))
    unit = np.sqrt(np.maximum(chance, 1e-12)) / entries**0.25
    most = np.maximum(np.diag(covariance), 0.0) / unit**2
    if T < 2 or not most.any():
        return found
    matrix = covariance / (unit[:, None] * unit)
    np.fill_diagonal(matrix, 0.0)
    # Gradients that go to and fro together are alike by more than so many entries tell, and as often unlike.
    deviation = math.sqrt(max(2 * np.square(np.minimum(matrix, 0.0)).sum() / (T * (T - 1)), 1.0))
    # Of numbers of deviation one, symmetric and without a diagonal, the largest eigenvalue is about this; what it puts
    # on the diagonal makes it larger.
    least = deviation * 2 * math.sqrt(T) * T / (T - 1)
    common = np.minimum(np.abs(matrix).max(axis=1), most)
    made = np.zeros((T, few))
    for _ in range(_ROUNDS):
        np.fill_diagonal(matrix, common)
        values, vectors = np.linalg.eigh(matrix)
        values = np.where(values > least, values, 0.0)
        made = vectors[:, -few:] * np.sqrt(values[-few:])
        size = np.square(made).sum(axis=1)
        made *= np.sqrt(np.minimum(most / np.maximum(size, 1e-300), 1.0))[:, None]
        common = np.minimum(size, most)
    # Largest first, each with a positive sum: eigenvectors have any sign.
    made = made[:, ::-1] * np.where(made.sum(axis=0)[::-1] < 0, -1.0, 1.0)
    found[:, :few] = made / np.sqrt(np.where(most > 0, most, 1.0))[:, None]
    return found


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


def common(found: Products, steps: NDArray[np.int64]) -> tuple[Floats, float, bool]:
    """Return the loadings of c, the correlation of the rest of it from one step to the next, and whether that turns.

    What steps at one place share lasts no longer than they do: it turns back within a few steps.

    Parameters
    ----------
    found : Products
        Of a trace.
    steps : ndarray of int, shape (T,)
        Its steps.
    """
    place = places(steps)
    times = np.bincount(place)
    turns = bool((times > 1).any())
    # Where signs follow at all workers or at none, those that do are alike by the share that it is of all.
    own = np.sqrt(np.maximum(np.diagonal(found.other, axis1=1, axis2=2), 1e-300))
    whole = np.ones_like(found.other) if turns else own[:, :, None] * own[:, None, :]
    alike = whole * _normal(found.other / whole)
    between = _together(alike, place)
    shares = np.maximum(np.diagonal(_together(found.other, place), axis1=1, axis2=2), 0.0)
    # An entry's product is that of two means over workers.
    chance = math.pi / 2 * (shares + (1 - shares) / (found.workers * times))
    made = np.array([_components(*one) for one in zip(between, chance, found.entries, strict=True)])[:, place]
    if turns:
        return made, TURNING, True
    pairs = np.flatnonzero(np.diff(steps) == 1)
    sizes = np.sqrt(np.maximum(np.diagonal(alike, axis1=1, axis2=2), 0.0))
    first, second = sizes[:, pairs], sizes[:, pairs + 1]
    rest = np.sqrt(np.maximum(1 - np.square(made).sum(axis=2), 0.0))
    expected = rest[:, pairs] * rest[:, pairs + 1] * first * second
    excess = alike[:, pairs, pairs + 1] - (made[:, pairs] * made[:, pairs + 1]).sum(axis=2) * first * second
    weight = found.entries[:, None] / (chance[:, place[pairs]] * chance[:, place[pairs + 1]])
    size, most = (weight * expected**2).sum(axis=0), (weight * (first * second) ** 2).sum(axis=0)
    told = size > _LEAST_REST * most
    slopes = (weight * expected * excess).sum(axis=0)[told] / size[told]
    # The first steps, with more in common than all others, would decide a mean by weight.
    memory = float(np.median(slopes)) if told.any() else 0.0
    return made, min(max(memory, 0.0), LONGEST_MEMORY), turns


def _normal(products: Floats) -> Floats:
    """Return the correlations of normals whose signs have these mean products."""
    return np.asarray(np.sin(math.pi / 2 * np.clip(products, -1.0, 1.0)))


def _together(products: Floats, place: NDArray[np.int64]) -> Floats:
    """Return products between places, of shape (L, places, places), given those of steps: means over their steps."""
    shares = (place == np.arange(place[-1] + 1)[:, None]) / np.bincount(place)[:, None]
    found = shares @ products @ shares.T
    # Of a place and itself it is what is had at one step.
    each = np.diagonal(products, axis1=1, axis2=2) @ shares.T
    found[:, range(len(shares)), range(len(shares))] = each
    return np.asarray(found)


def own(found: Products, steps: NDArray[np.int64]) -> Floats | None:
    """Return the loadings of e; None if nothing of what is a worker's own lasts, beyond chance.

    Layers that tell nothing of their own have what lasts in all together. Where little lasts, as the mean gradient of a
    worker's shard does beside that of all shards, it is the same in all layers for the whole run.

    Parameters
    ----------
    found : Products
        Of a trace.
    steps : ndarray of int, shape (T,)
        Its steps.
    """
    place = places(steps)
    whole = np.einsum("l,ltu->tu", found.entries, found.own) / found.entries.sum()
    between = _together(np.concatenate([whole[None], found.own]), place)
    sizes = np.sqrt(np.maximum(np.diagonal(between, axis1=1, axis2=2), 1e-12))
    ratios = _normal(between / (sizes[:, :, None] * sizes[:, None, :]))
    chance = math.pi / 2 / (math.sqrt(found.workers) * np.bincount(place) * sizes**2)
    entries = [found.entries.sum(), *found.entries]
    together, *each = (_components(*one) for one in zip(ratios, chance, entries, strict=True))
    made = np.array([one if one.any() else together for one in each])
    if np.square(together).sum(axis=1).mean() >= _LEAST_OWN:
        return made[:, place]
    apart = ratios[0][np.triu_indices(len(sizes[0]), 1)]
    if len(apart) < _FEWEST or apart.mean() <= _CERTAIN * apart.std() / math.sqrt(len(apart)):
        return None
    return np.full((len(each), len(steps), 1), math.sqrt(apart.mean()))
