"""Magnitudes of synthetic gradients with given quantiles, for layers that no simple distribution fits."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Values
from simnet.traces import ordering
from simnet.traces.metadata import FURTHEST
from simnet.traces.refining import BANDS, BEYOND

MEDIAN = 0.6745
"""Median magnitude of a standard normal."""

_CELL_BITS = 18
# The standard normals between which the bands of kinds are.
_BANDS = np.array([NormalDist().inv_cdf(one) for one in BANDS], dtype=np.float32)
# Whether noise leaves the sign to what is common is told by the last bits of a worker's own normal, on which its
# magnitude hardly depends: the weight that is needed for each of so many.
_ODDS = 256
_NEEDED = np.array([NormalDist().inv_cdf((1 + (one + 0.5) / _ODDS) / 2) for one in range(_ODDS)], dtype=np.float32)


class Ranked:
    """Generator of gradient magnitudes with given quantiles. Some kinds of entries are large more often than others."""

    def __init__(self, kinds: ordering.EntryKinds, quantiles: NDArray[np.float64]) -> None:
        from scipy.special import ndtri

        self._bounds = ndtri(np.minimum(np.cumsum(kinds.share)[:-1], 1.0)).astype(np.float32)
        self._shift = kinds.shift.astype(np.float32)
        self._scale = np.exp(kinds.log_scale).astype(np.float32)
        # Cells between floats whose bits agree but for the last ones, so that bits tell the cell of a value.
        low, high = np.log(
            [self._scale.min() * ordering.BEHIND * 1e-3, self._scale.max() * (FURTHEST - self._shift.min())]
        )
        ends = np.exp(np.clip([low, high], -85.0, 85.0)).astype(np.float32).view(np.int32) >> _CELL_BITS
        self._first = int(ends[0])
        cells = np.arange(ends[0], ends[1] + 2, dtype=np.int32) << _CELL_BITS
        above = np.maximum(ordering.overall_share_beyond(kinds, cells.view(np.float32).astype(np.float64)), 1e-12)
        table = np.interp(-np.log(above), -np.log(BEYOND), quantiles).astype(np.float32)
        self._starts, self._slopes = table[:-1], np.diff(table) * np.float32(2.0**-_CELL_BITS)

    def magnitudes(self, x: Values, logs: Values, out: Values) -> None:
        """Write gradient magnitudes to `out`, given normals `x` by worker, and normals `logs` that set entries' kinds.

        `x`, shape (P, size), are standard normals of the workers; `logs`, shape (size,), those that decide the kinds.
        """
        kind = np.searchsorted(self._bounds, logs)
        shift, scale = self._shift[kind], self._scale[kind]
        np.abs(x, out=out)
        behind = out * np.float32(ordering.BEHIND)
        out -= shift
        np.maximum(out, behind, out=out)
        out *= scale
        bits = out.view(np.int32)
        cell = bits >> _CELL_BITS
        cell -= self._first
        bits &= (1 << _CELL_BITS) - 1
        np.take(self._slopes, cell, out=behind, mode="clip")
        behind *= bits
        np.take(self._starts, cell, out=out, mode="clip")
        out += behind

    def beyond(self, x: Values, logs: Values) -> NDArray[np.bool_]:
        """Return which entries, (P, size), are larger than usual for their kind. Normals `logs` decide the kinds."""
        bounds = np.where(self._shift > MEDIAN, self._shift, np.float32(2 * MEDIAN) - self._shift)
        return np.asarray(np.abs(x) > bounds[np.searchsorted(self._bounds, logs)])

    def sign(self, x: Values, logs: Values, common: Values, alike: Floats, against: float, life: Values | None) -> None:
        """Set the signs of the normals `x` in place such that the mean product of two workers' signs is `alike`.

        `common`, shape (size,), are standard normals of all workers; `alike`, shape (len(BANDS) + 1,), mean products of
        two workers' signs in bands of kinds; `against` the mean product of the signs of entries that are `beyond` and
        the common one. With uniform `life`, shape (size,), entries follow at all workers or at none; otherwise each
        worker's follows with a probability that grows with the common normal.
        """
        bits, into, band = x.view(np.int32), common, np.searchsorted(_BANDS, logs)
        if against < 1:
            # Other bits decide that.
            turned = (bits >> 8) % _ODDS >= (1 + against) / 2 * _ODDS
            into = np.where(turned & self.beyond(x, logs), -common, common)
        if life is not None:
            np.copysign(x, into, out=x, where=life > (1 - alike).astype(np.float32)[band])
            return
        rho = np.sin(math.pi / 2 * alike)
        weight = np.sqrt(rho / np.maximum(1 - rho, 1e-12)).astype(np.float32)
        np.copysign(x, into, out=x, where=weight[band] * np.abs(common) > _NEEDED[bits % _ODDS])


def spread_evenly(normals: Values, offset: float) -> Values:
    """Return evenly spaced standard normals, in the order of `normals`, to reduce noise in a small layer.

    `offset` in [0, 1] shifts the evenly spaced shares by a fraction of their distance.
    """
    from scipy.special import ndtri

    ranks = np.empty(len(normals))
    ranks[np.argsort(normals, kind="stable")] = np.arange(len(normals))
    return np.asarray(ndtri((ranks + 0.01 + 0.98 * offset) / len(normals)), dtype=np.float32)
