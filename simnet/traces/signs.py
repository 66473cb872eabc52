"""How far gradient signs agree between workers, and how long the agreement lasts over iterations.

The mean product of the signs of an entry at two workers and two recorded steps is counted, as it is the many small
entries with lasting signs that residuals accumulate until they are large.

- How alike signs are depends on the size of entries: in an embedding the small ones are most alike, in other layers the
  large ones. So likeness is given in bands of kinds. As chance moves entries between bands of magnitudes, the likeness
  in bands of kinds is fitted to the counts in bands of magnitudes, by drawing magnitudes from the kinds.
- Correlations over time are those of a few standard normals with loadings that move from knot to knot, as in factor
  analysis. A layer has the factors that stand out from chance; what workers share oscillates, which widens chance.
- What does not last turns back, as training with momentum overshoots; see `TURNING`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.traces.metadata import COMPONENTS
from simnet.traces.ordering import EntryKinds
from simnet.traces.ranked import Ranked
from simnet.traces.refining import BANDS

# Entries that are drawn to see what bands of kinds are in bands of magnitudes.
_DRAWN = 8192
# Neighbouring bands differ by about this much, where nothing tells.
_BETWEEN_BANDS = 0.3
_ROUNDS = 200
TURNING = 0.62
"""Correlation between consecutive steps of what workers share and what does not last, of gradients.

In eight whole runs of two families it is 0.58 to 0.65 (transformer) and 0.61 to 0.70 (convolutional), 0.63 in the mean,
in layers of 100 entries and more but embeddings (`benchmarks/turning.csv`). Over k steps it is about r^k cos(k w) with
r = cos(w), r^2 this one; from one step on the sum is zero, so residuals accumulate it like white noise.
"""
LONGEST_MEMORY = 0.9
"""Maximum autocorrelation from one iteration to the next."""

# Of gradients, of which next to nothing is a worker's own and lasts, chance makes a twentieth or a tenth, of
# pseudo-gradients it is half and more. So little is told by the mean over pairs of places, at least the three pairs of
# three places, if it is so many of its deviations, which chance makes once in 700 times. Of the traces that come with
# simnet it is 3.9 and 6.6 of them in the convolutional network, and 2.8 and 1.7 in the transformer.
_LEAST_OWN, _FEWEST, _CERTAIN = 0.25, 3, 3.0
# Of what is left beside the components there is no memory to be found where it is next to nothing.
_LEAST_REST = 0.01


def sign_agreement(
    counted: Floats, kinds: EntryKinds, magnitudes: Floats, shared: float, against: float, workers: int
) -> Floats:
    """Fit how often two workers' signs agree, by band of scale, to the agreement `counted` by band of magnitude."""
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


class SignProducts(NamedTuple):
    """Mean products of an entry's signs at two steps, by layer: of two workers, and the excess within one worker."""

    # Shape (L, T, T): Of two workers, and the excess of a worker with itself.
    other: Floats
    own: Floats
    # Shape (L,): Entries of each layer.
    entries: Floats
    workers: int


def sign_products(signs: NDArray[np.int8], sizes: Sequence[int]) -> SignProducts:
    """Return mean products of signs at two steps for each layer, given the signs (T, P, n) of T steps and P workers."""
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
    return SignProducts(other, own, np.array(sizes, dtype=np.float64), P)


def _factor_loadings(covariance: Floats, chance: Floats, entries: float) -> Floats:
    """Fit factor loadings, (T, COMPONENTS), to the sign correlations between T steps; drop factors below noise."""
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


def step_places(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a group number per step. Consecutive steps form a group; if all are consecutive, each step is a group."""
    apart = np.diff(steps) > 1
    return np.concatenate([[0], np.cumsum(apart if apart.any() else ~apart)])


def shared_loadings(found: SignProducts, steps: NDArray[np.int64]) -> tuple[Floats, float, bool]:
    """Fit signs that workers share: return loadings of lasting signs, correlation of the rest, and if it oscillates.

    What only steps at one place share turns back within a few steps.
    """
    place = step_places(steps)
    times = np.bincount(place)
    turns = bool((times > 1).any())
    # Where signs follow at all workers or at none, those that do are alike by the share that it is of all.
    own = np.sqrt(np.maximum(np.diagonal(found.other, axis1=1, axis2=2), 1e-300))
    whole = np.ones_like(found.other) if turns else own[:, :, None] * own[:, None, :]
    alike = whole * _normal_correlations(found.other / whole)
    between = _place_products(alike, place)
    shares = np.maximum(np.diagonal(_place_products(found.other, place), axis1=1, axis2=2), 0.0)
    # An entry's product is that of two means over workers.
    chance = math.pi / 2 * (shares + (1 - shares) / (found.workers * times))
    made = np.array([_factor_loadings(*one) for one in zip(between, chance, found.entries, strict=True)])[:, place]
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


def _normal_correlations(products: Floats) -> Floats:
    """Return the correlations of normal variables whose signs have the mean products `products`."""
    return np.asarray(np.sin(math.pi / 2 * np.clip(products, -1.0, 1.0)))


def _place_products(products: Floats, place: NDArray[np.int64]) -> Floats:
    """Return mean sign products between groups of steps, (L, groups, groups), from the products between steps."""
    shares = (place == np.arange(place[-1] + 1)[:, None]) / np.bincount(place)[:, None]
    found = shares @ products @ shares.T
    # Of a place and itself it is what is had at one step.
    each = np.diagonal(products, axis1=1, axis2=2) @ shares.T
    found[:, range(len(shares)), range(len(shares))] = each
    return np.asarray(found)


def own_loadings(found: SignProducts, steps: NDArray[np.int64]) -> Floats | None:
    """Return factor loadings, (layers, steps, factors), of signs that persist at one worker; None if none clearly do.

    Layers without a result of their own get that of all layers together. If little lasts, as the mean gradient of a
    worker's shard, it is the same in all layers for the whole run.
    """
    place = step_places(steps)
    whole = np.einsum("l,ltu->tu", found.entries, found.own) / found.entries.sum()
    between = _place_products(np.concatenate([whole[None], found.own]), place)
    sizes = np.sqrt(np.maximum(np.diagonal(between, axis1=1, axis2=2), 1e-12))
    ratios = _normal_correlations(between / (sizes[:, :, None] * sizes[:, None, :]))
    chance = math.pi / 2 / (math.sqrt(found.workers) * np.bincount(place) * sizes**2)
    entries = [found.entries.sum(), *found.entries]
    together, *each = (_factor_loadings(*one) for one in zip(ratios, chance, entries, strict=True))
    made = np.array([one if one.any() else together for one in each])
    if np.square(together).sum(axis=1).mean() >= _LEAST_OWN:
        return made[:, place]
    apart = ratios[0][np.triu_indices(len(sizes[0]), 1)]
    if len(apart) < _FEWEST or apart.mean() <= _CERTAIN * apart.std() / math.sqrt(len(apart)):
        return None
    return np.full((len(each), len(steps), 1), math.sqrt(apart.mean()))
