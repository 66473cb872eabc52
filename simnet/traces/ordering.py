"""Which entries are large at several workers: the order of magnitudes, whatever the magnitudes themselves.

The order of a worker's entries is that of s |x|, with the scale s of an entry, which all workers share, and a standard
normal x of each worker's own, a part of which workers share, too. log s is spread * (1 - exp(-skew z)) / skew of a
standard normal z: the more skew, the more equal are the large scales, and the fewer of the very largest entries workers
have in common; with none log s is normal. A share `dead` of the entries stays behind all others.

The entries beyond a threshold m, with q(s) = P(s |x| > m), are the share E q of one worker's, E q^2 of two, and
E[1 - (1 - q)^P] of any of P. So overlap and build-up at every density are integrals over z, and over the shared part.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

_Table = NDArray[np.float64]

BEHIND = math.exp(-12.0)
"""Scale of entries that stay behind, over that of others."""

LARGEST_LOG = 60.0
"""log s is cut off here, and at its negative."""

_SPREADS = (0.0, *np.geomspace(0.05, 5.0, 30).tolist())
_SKEWS = (-0.4, -0.2, 0.0, 0.2, 0.4, 0.7, 1.0)
_DEAD = (0.0, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95)
_SHARED = (0.0, 0.3, 0.45, 0.6, 0.75, 0.9)
_DENSITIES = np.geomspace(1e-6, 1.0, 49)


class Order(NamedTuple):
    """The parameters of an order.

    Parameters
    ----------
    spread, skew : float
        Of the scales.
    dead : float
        Share of entries that stay behind.
    """

    spread: float
    skew: float
    dead: float


class Orders(NamedTuple):
    """What a grid of orders predicts.

    Parameters
    ----------
    found : tuple of Order
        The grid.
    densities : ndarray, shape (D,)
        Ascending.
    overlap, build_up : ndarray, shape (number of orders, D)
        Share that two workers have in common, and distinct entries of all over those of one.
    """

    found: tuple[Order, ...]
    densities: _Table
    overlap: _Table
    build_up: _Table

    def at(self, densities: _Table) -> tuple[_Table, _Table]:
        """Return overlap and build-up of all orders at other densities."""
        place = np.interp(np.log(densities), np.log(self.densities), np.arange(len(self.densities)))
        low = np.minimum(place.astype(int), len(self.densities) - 2)
        weight = place - low
        both = [(1 - weight) * one[:, low] + weight * one[:, low + 1] for one in (self.overlap, self.build_up)]
        return both[0], both[1]


def logs(spread: float, skew: float, normal: NDArray[np.floating[Any]]) -> _Table:
    """Return log s of standard normal values.

    Examples
    --------
    >>> logs(0.5, 0.0, np.array([2.0])).tolist()
    [1.0]
    """
    bent = normal if skew == 0 else -np.expm1(-skew * normal) / skew
    return np.asarray(np.clip(spread * bent, -LARGEST_LOG, LARGEST_LOG), dtype=np.float64)


def survival(order: Order, magnitudes: _Table) -> _Table:
    """Return the share of entries s |x| above each magnitude.

    Examples
    --------
    >>> survival(Order(0.0, 0.0, 0.0), np.array([0.0, 1.959964])).round(3).tolist()
    [1.0, 0.05]
    """
    z, weights = _normal(81)
    scales = np.exp(logs(order.spread, order.skew, z))
    alive = weights @ erfc(magnitudes / (math.sqrt(2) * scales[:, None]))
    behind = weights @ erfc(magnitudes / (math.sqrt(2) * BEHIND * scales[:, None])) if order.dead else 0.0
    return np.asarray((1 - order.dead) * alive + order.dead * behind)


def grid(order: Order) -> _Table:
    """Return magnitudes from where hardly an entry is smaller to where hardly one is larger, ascending.

    Examples
    --------
    >>> values = grid(Order(0.5, 0.0, 0.2))
    >>> share = survival(Order(0.5, 0.0, 0.2), values)
    >>> bool(share[0] > 0.999), bool(share[-1] < 1e-6)
    (True, True)
    """
    ends = logs(order.spread, order.skew, np.array([-5.0, 5.0]))
    # However far the smallest scales reach down, nobody selects them.
    lowest = max(float(ends[0]), -20.0) - 8 + (math.log(BEHIND) if order.dead else 0.0)
    return np.exp(np.linspace(lowest, float(ends[1]) + 1.8, 400))


@lru_cache(maxsize=16)
def orders(workers: int, shared: float) -> Orders:
    """Return what all orders of the grid predict, for a number of workers and the correlation of their x.

    Examples
    --------
    >>> grid = orders(8, 0.0)
    >>> independent = grid.found.index(Order(0.0, 0.0, 0.0))
    >>> overlap, build_up = grid.at(np.array([0.1]))
    >>> overlap[independent].round(3).tolist(), build_up[independent].round(1).tolist()
    ([0.1], [5.7])
    """
    rho = min(_SHARED, key=lambda one: abs(one - shared))
    z, weights = _normal(41)
    common, shares = _normal(9) if rho else (np.zeros(1), np.ones(1))
    found, overlap, build_up = [], [], []
    for spread, skew in itertools.product(_SPREADS, _SKEWS):
        if spread == 0 and skew != 0:
            continue
        log = logs(spread, skew, z)
        thresholds = np.exp(np.linspace(max(float(log.min()), -20.0) - 8, log.max() + 1.8, 160))
        m = thresholds / np.exp(log)[:, None]
        # q of each z, threshold and shared part.
        own, moved = math.sqrt(2 * (1 - rho)), math.sqrt(rho) * common
        q = 0.5 * (erfc((m[..., None] - moved) / own) + erfc((m[..., None] + moved) / own))
        weight = weights[:, None, None] * shares
        of_any = -np.expm1(workers * np.log1p(-q * (1 - 1e-12)))
        one, two, some = ((weight * value).sum(axis=(0, 2)) for value in (q, q**2, of_any))
        for dead in _DEAD:
            c = np.maximum((1 - dead) * one, 1e-300)[::-1]
            logs_c = np.log(np.maximum.accumulate(c))
            at = np.log(np.minimum(_DENSITIES, 1 - dead))
            found.append(Order(spread, skew, dead))
            overlap.append(np.interp(at, logs_c, (two / np.maximum(one, 1e-300))[::-1]))
            build_up.append(np.interp(at, logs_c, (some / np.maximum(one, 1e-300))[::-1]))
    return Orders(tuple(found), _DENSITIES, np.array(overlap), np.array(build_up))


def _normal(points: int) -> tuple[_Table, _Table]:
    """Return values and weights of a standard normal: evenly spaced, as integrands may have steps."""
    values = np.linspace(-5.0, 5.0, points)
    weights = np.exp(-(values**2) / 2)
    return values, weights / weights.sum()
