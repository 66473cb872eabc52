"""Magnitudes of synthetic gradients that follow given quantiles, where no law of few parameters fits a layer."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.traces import ordering
from simnet.traces.refining import BANDS, BEYOND, COARSE
from simnet.traces.source import Values
from simnet.traces.synthetic_parameters import FURTHEST

MEDIAN = 0.6745
"""Of the magnitude of a standard normal."""

_CELL_BITS = 18
# The standard normals between which the bands of kinds are.
_BANDS = np.array([NormalDist().inv_cdf(one) for one in BANDS], dtype=np.float32)
# Whether noise leaves the sign to what is common is told by the last bits of a worker's own normal, on which its
# magnitude hardly depends: the weight that is needed for each of so many.
_ODDS = 256
_NEEDED = np.array([NormalDist().inv_cdf((1 + (one + 0.5) / _ODDS) / 2) for one in range(_ODDS)], dtype=np.float32)


class Ranked:
    """Magnitudes with given quantiles, in the order that kinds of entries have.

    Parameters
    ----------
    kinds : Kinds
        From those of the smallest standard normals to those of the largest.
    quantiles : ndarray
        Of the magnitude, as `BEYOND` says.
    """

    def __init__(self, kinds: ordering.Kinds, quantiles: NDArray[np.float64]) -> None:
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
        above = np.maximum(ordering.survival(kinds, cells.view(np.float32).astype(np.float64)), 1e-12)
        shares = BEYOND if len(quantiles) == len(BEYOND) else COARSE
        table = np.interp(-np.log(above), -np.log(shares), quantiles).astype(np.float32)
        self._starts, self._slopes = table[:-1], np.diff(table) * np.float32(2.0**-_CELL_BITS)

    def magnitudes(self, x: Values, logs: Values, out: Values) -> None:
        """Put the magnitudes of entries into `out`.

        Parameters
        ----------
        x : ndarray, shape (P, size)
            Standard normals of the workers.
        logs : ndarray, shape (size,)
            Standard normals that decide the kinds.
        out : ndarray, shape (P, size)
            Takes the magnitudes.
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
        """Return which entries are more than twice what is the median of their kind; arguments as of `magnitudes`.

        Of kinds that are behind a shift as a rule those are that are beyond it.
        """
        bounds = np.where(self._shift > MEDIAN, self._shift, np.float32(2 * MEDIAN) - self._shift)
        return np.asarray(np.abs(x) > bounds[np.searchsorted(self._bounds, logs)])

    def sign(self, x: Values, logs: Values, common: Values, alike: Floats, against: float, life: Values | None) -> None:
        """Give normals the sign of what workers have in common, in place.

        Parameters
        ----------
        x, logs : ndarray
            As `magnitudes` takes them.
        common : ndarray, shape (size,)
            Standard normals, the same for all workers.
        alike : ndarray, shape (len(BANDS) + 1,)
            Mean product of two workers' signs in each band of kinds, within [0, 1].
        against : float
            Of entries that are `beyond`, the mean product of their sign and that of what is common, where they follow.
        life : ndarray, shape (size,), optional
            Uniform: then entries follow at all workers or at none. Otherwise each worker's does the more surely, the
            larger the common normal is, as if there were noise of deviation one beside it.
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
    """Return standard normals in the same order that are spread evenly: of a small layer chance would decide much.

    Parameters
    ----------
    normals : ndarray of float32, shape (n,)
        Of a layer.
    offset : float
        Where the evenly spaced shares begin, from 0 to 1 of the space between them.
    """
    from scipy.special import ndtri

    ranks = np.empty(len(normals))
    ranks[np.argsort(normals, kind="stable")] = np.arange(len(normals))
    return np.asarray(ndtri((ranks + 0.01 + 0.98 * offset) / len(normals)), dtype=np.float32)
