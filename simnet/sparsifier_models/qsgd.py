"""QSGD: entries are rounded at random, without bias, to one of a few levels. An all-gather carries the codes.

Entries come in buckets. A bucket is sent as its norm and, for each entry, a sign and a level from 0 to s: the fraction
of the norm in units of 1 / s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.base.rng import stream
from simnet.cost_models.costs import qsgd
from simnet.cost_models.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange, Sparsifier
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.selection import Values, squared_norm

# Entries quantised at a time: what that needs stays in the cache.
_BLOCK = 32768


def elias_length(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the length [bit] of Elias's recursive (omega) code of integers in 1 .. 2^53.

    A zero ends the code; before it stands the number in binary, before that the length of the number less one, and so
    on until that is one (P. Elias, IEEE Trans. Inf. Theory 21, 1975).
    """
    length, rest = np.ones_like(numbers), numbers
    while (rest > 1).any():
        digits = np.where(rest > 1, np.frexp(rest)[1], 0).astype(np.int64)
        length = length + digits
        rest = digits - 1
    return length


def norms_of(buckets: Values, norm: str) -> Values:
    """Return the norm of each bucket in float32, shape (m,), rounded so that no magnitude in the bucket exceeds it."""
    if norm == "max":
        largest: Values = np.abs(buckets).max(axis=1)
        return largest
    wide = buckets.astype(np.float64)
    exact = np.sqrt(np.multiply(wide, wide, out=wide).sum(axis=1))
    # Where the norm is too large for a float32, the largest one is still no smaller than any entry.
    np.minimum(exact, np.finfo(np.float32).max, out=exact)
    return np.asarray(exact.astype(np.float32))


def levels_of(buckets: Values, norms: Values, s: int, uniform: Floats) -> Floats:
    """Return the signed level, at most `s`, of each entry, rounded at random without bias (QSGD, section 3.1).

    `buckets` and the draws `uniform`, in [0, 1), have shape (m, d), `norms` (m,). The levels are -s .. s.
    """
    unit = np.divide(s, norms, out=np.zeros(norms.shape), where=norms > 0, dtype=np.float64)
    level: Floats = np.abs(buckets) * unit[:, np.newaxis]
    level += uniform
    np.minimum(np.floor(level, out=level), s, out=level)
    np.copysign(level, buckets, out=level)
    return level


def code_counts(levels: Floats, s: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return histograms of levels, shape (s + 1,), and of distances to the previous nonzero entry in a bucket.

    The distance of the first nonzero entry is its position from 1. Zeros are not coded.
    """
    d = levels.shape[1]
    at = np.flatnonzero(levels)
    distances = np.diff(at, prepend=at[:1])
    in_bucket = np.count_nonzero(levels, axis=1)
    coded = np.flatnonzero(in_bucket)
    first = (np.cumsum(in_bucket) - in_bucket)[coded]
    distances[first] = at[first] - d * coded + 1
    magnitudes = np.abs(levels.ravel()[at]).astype(np.int64)
    return np.bincount(magnitudes, minlength=s + 1), np.bincount(distances, minlength=d + 1)


class QSGDOptions(GatheredOptions):
    """Options of `QSGD`. The options for widths of values and indices have no effect.

    Parameters
    ----------
    levels : int
        Levels s above zero, in 1 .. 32767: 127 fit into 8 bits, 7 into 4, 1 into 2.
    bucket : int
        Entries that share a norm, >= 1; the last bucket may be shorter.
    norm : {"l2", "max"}
        What levels are fractions of: the Euclidean norm, as analysed in the paper, or the largest magnitude, as in its
        experiments.
    coding : {"fixed", "elias"}
        ceil(log2(2 s + 1)) bits for each entry, or the code of the paper: for each entry that is not zero its distance
        from the last one, its sign and its level, the numbers in Elias's recursive code.
    """

    levels: Annotated[int, Ge(1), Le(32767)] = 127
    bucket: Count = 512
    norm: Literal["l2", "max"] = "l2"
    coding: Literal["fixed", "elias"] = "fixed"


class QSGD(Sparsifier, sends_all=True, reads_gradients=False, costs=(qsgd,)):
    """QSGD: an all-gather of entries quantised at random to a few levels per bucket. The density has no effect.

    What a worker sends is right on average; its variance is at most min(d / s^2, sqrt(d) / s) times the squared norm of
    the bucket of d entries (Lemma 3.1). The paper has no error feedback: that is ``error_feedback=False``. With it, the
    default, what is kept stays bounded only if that factor is below one, as with the default levels and bucket; with s
    below about sqrt(d) / 2 it may grow without limit.

    A worker decodes the messages of all after the last one has come, which is assumed.

    Statistics of its own: ``bits_per_entry``, shape (P,), of what each worker contributes, norms included.

    References
    ----------
    D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization
    and Encoding", NeurIPS 2017, section 3 (levels, code), section 4 (buckets).

    Examples
    --------
    >>> model = QSGD(workers=2, parameters=4, levels=1, bucket=4, norm="max")
    >>> exchange = model.exchange(np.array([[1, 0, -1, 1], [2, 2, -2, 0]], dtype=np.float32))
    >>> exchange.update, exchange.schedule.bytes_sent()
    (array([ 1.5,  1. , -1.5,  0.5], dtype=float32), array([5., 5.]))
    """

    name = "qsgd"
    paper = "Alistarh et al., NeurIPS 2017, arXiv 1610.02132"
    options: QSGDOptions

    def _blocks(self) -> Iterator[tuple[slice, int]]:
        """Yield slices of whole buckets that are quantised together, and the length of their buckets."""
        n, d = self.parameters, min(self.options.bucket, self.parameters)
        whole_buckets, step = n - n % d, d * max(1, _BLOCK // d)
        for start in range(0, whole_buckets, step):
            yield slice(start, min(start + step, whole_buckets)), d
        if n % d:
            yield slice(whole_buckets, n), n % d

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        n, s, elias = self.parameters, self.options.levels, self.options.coding == "elias"
        total, sent, bits = np.zeros(n, dtype=np.float32), np.zeros(self.workers), np.zeros(self.workers)
        for worker, row in enumerate(corrected):
            generator = stream(self.options.seed, "qsgd", self.iteration, worker)
            for place, d in self._blocks():
                buckets = row[place].reshape(-1, d)
                norms = norms_of(buckets, self.options.norm)
                levels = levels_of(buckets, norms, s, generator.random(buckets.shape))
                if elias:
                    bits[worker] += _elias_bits(levels, s)
                levels *= (norms / np.float64(s))[:, np.newaxis]
                own = levels.astype(np.float32)
                total[place] += own.ravel()
                sent[worker] += squared_norm(own.ravel())
                buckets -= own
        nbytes = self._bytes(bits)
        return self._make_exchange(
            total / np.float32(self.workers),
            [
                *(DeviceOp("norm", n), DeviceOp("cast", n)),
                self.options.gather(nbytes).in_phase("levels"),
                DeviceOp("sum", n, launches=self.workers),
            ],
            sent,
            stats={"bits_per_entry": 8 * nbytes / self.k_of_model},
        )

    def _bytes(self, coded: Floats) -> Floats:
        """Return the bytes that each worker contributes; `coded` is the length [bit] of its Elias code, shape (P,)."""
        entries = self.k_of_model
        bits = np.ceil(coded * (entries / self.parameters))
        if self.options.coding == "fixed":
            bits = np.full(self.workers, float(entries * (2 * self.options.levels).bit_length()))
        return np.ceil(bits / 8) + self.wire.scalar_bytes * -(-entries // self.options.bucket)


def _elias_bits(levels: Floats, s: int) -> float:
    """Return the length [bit] of the Elias code of the buckets' levels, excluding norms (paper, section 3.1)."""
    bits = 0.0
    for counts, sign in zip(code_counts(levels, s), (1, 0), strict=True):
        numbers = np.flatnonzero(counts)
        bits += float((counts[numbers] * (elias_length(numbers) + sign)).sum())
    return bits
