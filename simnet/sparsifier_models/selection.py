"""Selection routines that schemes share: exact top-k, thresholds, norms, means of sparse selections.

All of them are deterministic to the bit. No result depends on the number of threads or the processor, unlike sums of a
BLAS, or on the order of elements after a partition. Long arrays go through the compiled loops of
`simnet.sparsifier_models.compiled_selection`; short ones, and all where numba is missing, through numpy, with the same
results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.jit_threshold import Native, native_copy
from simnet.base.rows import Rows, map_rows
from simnet.sparsifier_models import compiled_selection

Values = NDArray[np.float32]
Indices = NDArray[np.int64]
Bits = NDArray[np.uint32]

# Blocks this short stay in the cache while they are converted, squared and summed.
_BLOCK = 8192
# Calling the compiled loops takes longer than numpy does with shorter arrays.
_LONG = 1 << 17
# One entry in so many is looked at to tell how many there will be, or where the k-th magnitude lies.
_SAMPLED = 512
# Magnitudes as integers, see `simnet.sparsifier_models.compiled_selection`.
_INFINITY, _LARGEST = 0x7F800000, 0x7FFFFFFF


@lru_cache(maxsize=1024)
def entries_kept(density: float, parameters: int) -> int:
    """Return k = ceil(density * parameters), computed from the decimal digits of the density.

    In binary floating point 0.07 * 100 exceeds 7, and its ceiling would be 8.
    """
    return math.ceil(Fraction(repr(float(density))) * parameters)


def top_k(values: Values, k: int) -> Indices:
    """Return ascending indices of the `k` largest magnitudes, or all if `k` >= n; ties go to the lower index."""
    n = values.size
    if k >= n:
        return np.arange(n)
    if k <= 0:
        return np.zeros(0, dtype=np.int64)
    if loops := _loops_for(values):
        bits = _magnitude_bits(values)
        smallest, larger = _kth_largest(loops, bits, k)
        indices = np.empty(k, dtype=np.int64)
        loops.select(bits, smallest, _LARGEST, k - larger, indices)
        return indices[:k]
    magnitude = np.abs(values)
    least = np.partition(magnitude, n - k)[n - k]
    found = np.flatnonzero(magnitude >= least)
    if found.size > k:
        tied = np.flatnonzero(magnitude[found] == least)
        found = np.delete(found, tied[k - found.size :])
    return found


def largest(values: Values, k: int) -> tuple[Indices, Values]:
    """Return the ascending indices of the `k` largest magnitudes, and the values there."""
    indices = top_k(values, k)
    return indices, values[indices]


def kth_magnitude(values: Values, k: int) -> float:
    """Return the `k`-th largest magnitude; raise ValueError unless 1 <= `k` <= n."""
    n = values.size
    if not 1 <= k <= n:
        raise ValueError(f"k must be in 1..{n}, got {k}")
    if loops := _loops_for(values):
        return float(np.uint32(_kth_largest(loops, _magnitude_bits(values), k)[0]).view(np.float32))
    return float(np.partition(np.abs(values), n - k)[n - k])


def above(values: Values, threshold: float, *, strict: bool = True) -> Indices:
    """Return ascending indices of the magnitudes > `threshold`, or >= `threshold` if not `strict`.

    They are compared in float32, as on a device.
    """
    if loops := _loops_for(values):
        indices = np.empty(count_above(values, threshold, strict=strict), dtype=np.int64)
        if indices.size:
            least = _least_magnitude(threshold, strict)
            loops.select(_magnitude_bits(values), least, _INFINITY, values.size, indices)
        return indices
    return np.flatnonzero(_exceeds_threshold(values, threshold, strict))


def count_above(values: Values, threshold: float, *, strict: bool = True) -> int:
    """Return the number of magnitudes > `threshold`, or >= `threshold` if not `strict`."""
    if loops := _loops_for(values):
        least = _least_magnitude(threshold, strict)
        return int(loops.count_between(_magnitude_bits(values), least, _INFINITY)) if least <= _INFINITY else 0
    return int(np.count_nonzero(_exceeds_threshold(values, threshold, strict)))


def squared_norm(values: Values | NDArray[np.float64]) -> float:
    """Return the sum of squares in double precision; it is not finite if some entry is not finite."""
    total = 0.0
    for first in range(0, values.size, _BLOCK):
        block = values[first : first + _BLOCK].astype(np.float64)
        total += float(np.multiply(block, block, out=block).sum())
    return total


def squared_norms(rows: Values | Rows) -> NDArray[np.float64]:
    """Return the sum of squares of each row in double precision; shape (P,)."""
    if isinstance(rows, Rows):
        return np.fromiter(rows.each(squared_norm), dtype=np.float64)
    total = np.zeros(len(rows))
    for first in range(0, rows.shape[1], _BLOCK):
        # As an array of its own, whose rows numpy adds up as it does one alone.
        block = rows[:, first : first + _BLOCK].astype(np.float64, order="C")
        total += np.multiply(block, block, out=block).sum(axis=1)
    return total


def add_rows(
    rows: Values | Rows, others: Values | Rows | None, out: Values | Rows, decay: float = 1.0, gain: float = 1.0
) -> NDArray[np.float64]:
    """Write gain * rows + decay * others to `out`, and return the squared norm of each row."""
    if isinstance(out, Rows):
        return np.fromiter(out.each(_add_row, rows, repeat(None) if others is None else others), dtype=np.float64)
    assert not isinstance(rows, Rows)
    assert not isinstance(others, Rows)
    if (decay, gain) == (1.0, 1.0):
        np.add(rows, 0 if others is None else others, out=out)
    else:
        for worker, (row, into) in enumerate(zip(rows, out, strict=True)):
            fresh = row * np.float32(gain)
            into[:] = fresh if others is None else others[worker] * np.float32(decay) + fresh
    return squared_norms(out)


class Entries(NamedTuple):
    """Selected entries of a vector: ascending indices and values, shape (m,)."""

    indices: NDArray[Any]
    values: NDArray[Any]

    def within(self, final: NDArray[np.bool_]) -> Entries:
        """Return the entries whose indices are marked in `final`, a mask over the whole vector."""
        inside = final[self.indices]
        return Entries(self.indices[inside], self.values[inside])

    def cut(self, k: int) -> tuple[Entries, Entries]:
        """Return two parts: the `k` entries of largest magnitude, and all other entries."""
        largest = np.zeros(self.values.size, dtype=np.bool_)
        largest[top_k(self.values, k)] = True
        rest = ~largest
        return Entries(self.indices[largest], self.values[largest]), Entries(self.indices[rest], self.values[rest])


def indices_problem(indices: Any, size: int) -> str:
    """Return why `indices` is not an array of distinct integers from 0 to `size` - 1; empty if it is such an array.

    Examples
    --------
    >>> indices_problem(np.array([3, 1, 3]), 4), indices_problem(np.array([True, False]), 2)
    ('index 3 is there twice', 'they are bool of shape (2,)')
    """
    if not isinstance(indices, np.ndarray) or indices.ndim != 1 or indices.dtype.kind not in "iu":
        return f"they are {getattr(indices, 'dtype', type(indices).__name__)} of shape {np.shape(indices)}"
    ordered = np.sort(indices)
    wrong = ordered[(ordered < 0) | (ordered >= size) | (np.diff(ordered, prepend=-1) == 0)]
    why = "is there twice" if wrong.size and 0 <= wrong[0] < size else f"is not from 0 to {size - 1}"
    return f"index {wrong[0]} {why}" if wrong.size else ""


def take_mean(
    rows: Values | Rows, indices: Indices, read: Callable[[Values], Values] | None = None
) -> tuple[Values, NDArray[np.float64]]:
    """Move the entries at `indices` out of all rows; return their mean over rows, and their squared norm by row.

    Returns the mean, shape (n,): the sum over the rows, in order, divided by P, and zero at other entries; and the sum
    of squares taken from each row, shape (P,). `read` is that of `take_entries`.
    """
    total, sent = np.zeros(indices.size, dtype=np.float32), np.zeros(len(rows))
    for worker, values in enumerate(map_rows(partial(take_entries, indices=indices, read=read), rows)):
        total += values
        sent[worker] = squared_norm(values)
    mean = np.zeros(rows.shape[1], dtype=np.float32)
    mean[indices] = total / np.float32(len(rows))
    return mean, sent


def take_entries(row: Values, indices: Indices, read: Callable[[Values], Values] | None = None) -> Values:
    """Return a row's entries at `indices`, decoded by `read` if given, and subtract them from the row.

    `read` returns what receivers read of values; it is returned then, and the row keeps the rest.
    """
    values: Values = row[indices]
    if read is None:
        row[indices] = 0
        return values
    seen = read(values)
    row[indices] = values - seen
    return seen


def _add_row(out: Values, row: Values, other: Values | None) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        np.add(row, 0 if other is None else other, out=out)
    return squared_norm(out)


def _exceeds_threshold(values: Values, threshold: float, strict: bool) -> NDArray[np.bool_]:
    compare = np.greater if strict else np.greater_equal
    return compare(np.abs(values), np.float32(threshold))


def _compiled_loops() -> Native | None:
    """Return the compiled loops of `compiled_selection`; None if numba is missing or disabled."""
    return native_copy(compiled_selection)


def _loops_for(values: NDArray[np.floating]) -> Native | None:
    """Return the compiled loops for a long array of float32, else None."""
    return _compiled_loops() if values.dtype == np.float32 and values.size >= _LONG else None


def _magnitude_bits(values: Values) -> Bits:
    return np.require(values, requirements=["C", "A"]).view(np.uint32)


def _least_magnitude(threshold: float, strict: bool) -> int:
    """Return the bit pattern of the least magnitude > threshold, or >= threshold if not `strict`."""
    limit = np.float32(threshold)
    if np.isnan(limit):
        return _INFINITY + 1
    return (int(limit.view(np.uint32)) & _LARGEST) + strict if limit >= 0 else 0


def _kth_largest(loops: Native, bits: Bits, k: int) -> tuple[int, int]:
    """Return the bit pattern of the k-th largest magnitude, and the number of larger magnitudes."""
    n, m = bits.size, max(1, bits.size // _SAMPLED)
    sample = np.empty(m, dtype=np.uint32)
    loops.sample(bits, n // m, sample)
    expected = m * (k / n)
    # The margin of error of a count in the sample.
    spread = 4 * math.sqrt(expected * (1 - k / n)) + 8
    first, last = math.floor(expected - spread), math.ceil(expected + spread)
    sample.partition(np.array([m - rank for rank in (first, last) if 0 < rank <= m], dtype=np.int64))
    low = int(sample[m - last]) if last <= m else 0
    high = int(sample[m - first]) if first > 0 else _LARGEST
    inside = np.empty(min(n, 2 * (last - first) * n // m), dtype=np.uint32)
    while True:
        # Without those that equal `low`: zeros may be most of all entries, and to put equal ones in order takes long.
        found, above = (
            loops.band(bits, low + 1, high, inside) if low < high else (0, loops.count_between(bits, low + 1, _LARGEST))
        )
        if found < 0:
            inside = np.empty(n, dtype=np.uint32)
        elif above >= k:
            low, high = high, _LARGEST
        elif above + found >= k:
            break
        elif above + found + loops.count_between(bits, low, low) >= k:
            return low, above + found
        else:
            low, high = 0, low - 1
    place = found - (k - above)
    inside = inside[:found]
    inside.partition(place)
    return int(inside[place]), above + int(np.count_nonzero(inside[place:] > inside[place]))
