"""PowerSGD: each layer is approximated by a product of two low-rank matrices, which are all-reduced in turn.

One step of power iteration for each exchange, from where the last one stopped, finds about the best factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.base.rng import stream
from simnet.cost_models.costs import powersgd
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange, Step
from simnet.sparsifier_models.dense import Dense, DenseOptions
from simnet.sparsifier_models.selection import Values, squared_norm

# Entries of a matrix that are in double precision at a time; they stay in the cache.
_BLOCK = 16384
# A column of which less is left than this, relative, holds but what float32 rounds off.
_DEPENDENT = 1e-6


class Matrix(NamedTuple):
    """A layer as a row-major matrix of `rows` rows and `columns` columns; zeros pad its last row."""

    # Its entries in the gradient.
    place: slice
    # a, b and r; r = 0 if the layer is sent as it is.
    rows: int
    columns: int
    rank: int

    def blocks(self, values: Values) -> Iterator[tuple[slice, Floats]]:
        """Yield consecutive blocks of rows: their slice and their entries in double precision."""
        step = max(1, _BLOCK // self.columns)
        for first in range(0, self.rows, step):
            rows = slice(first, min(first + step, self.rows))
            piece = values[first * self.columns : rows.stop * self.columns]
            block = np.zeros((rows.stop - first) * self.columns)
            block[: piece.size] = piece
            yield rows, block.reshape(-1, self.columns)

    def times(self, values: Values, Q: Floats) -> Floats:
        """Return the columns of M Q, shape (r, rows), for this matrix M and the columns of Q, shape (r, columns)."""
        P = np.empty((len(Q), self.rows))
        for rows, block in self.blocks(values):
            for j, q in enumerate(Q):
                P[j, rows] = (block * q).sum(axis=1)
        return P

    def transposed_times(self, values: Values, P: Floats) -> Floats:
        """Return the columns of M^T P, shape (r, columns), for this matrix M and the columns of P, shape (r, rows)."""
        Q = np.zeros((len(P), self.columns))
        for rows, block in self.blocks(values):
            for j, p in enumerate(P):
                Q[j] += (block * p[rows, np.newaxis]).sum(axis=0)
        return Q

    def product(self, P: Floats, Q: Values, size: int) -> Values:
        """Return the first `size` entries of P Q^T, given columns of P, (r, rows), and of Q, (r, columns)."""
        entries = np.empty(self.rows * self.columns, dtype=np.float32)
        step = max(1, _BLOCK // self.columns)
        for first in range(0, self.rows, step):
            rows = slice(first, first + step)
            block = P[0, rows, np.newaxis] * Q[0]
            for p, q in zip(P[1:], Q[1:], strict=True):
                block += p[rows, np.newaxis] * q
            entries[first * self.columns : first * self.columns + block.size] = block.ravel()
        return entries[:size]


def near_square(size: int) -> tuple[int, int]:
    """Return rows and columns of a near-square matrix for a vector: ceil(size / columns) and ceil(sqrt(size))."""
    columns = math.isqrt(size - 1) + 1
    return -(-size // columns), columns


def orthonormal(columns: Floats) -> Floats:
    """Return the Gram-Schmidt orthonormalised `columns`, shape (r, a); linearly dependent columns become zero."""
    basis = np.zeros_like(columns)
    for i, column in enumerate(columns):
        rest = column
        for earlier in basis[:i]:
            rest = rest - (earlier * rest).sum() * earlier
        left = _vector_norm(rest)
        if left > _DEPENDENT * _vector_norm(column):
            basis[i] = rest / left
    return basis


def _finite_factor(factor: Values) -> Values:
    if not np.isfinite(factor).all():
        raise ValueError("the sum of a factor over the workers overflows float32")
    return factor


def _vector_norm(vector: Floats) -> float:
    return math.sqrt(float((vector * vector).sum()))


class PowerSGDOptions(DenseOptions):
    """Options of `PowerSGD`.

    Parameters
    ----------
    rank : int
        Rank r of what is sent of a layer, >= 1.
    warm_start : bool
        Whether the power iteration continues from the Q of the exchange before; else Q is redrawn each time.
    shapes : sequence of sequence of int
        Shapes of the layers, in the order of the gradient: the first axis counts the rows. If not given, each of the
        ``layers``, or all of the gradient, is about square.
    """

    rank: Count = 2
    warm_start: bool = True
    shapes: Sequence[Sequence[Count]] = ()


class PowerSGD(Dense, by_tensors=True, keeps_residual=True, state=("queries",), costs=(powersgd,)):
    """PowerSGD: all-reduces of two low-rank factors P and Q of each matrix. The density has no effect.

    Vectors, and layers whose factors would not be shorter than the layer, are sent uncompressed. A worker's residual is
    its entries minus its own decompressed contribution (Algorithm 2) or, with ``compat="released"``, minus the update,
    as in the reference implementation. Both conserve the sum.

    Products are sums of float64 in a fixed order, the same to the bit on every machine. P is orthonormalised column by
    column, by Gram-Schmidt. Q is too, before it is used, which changes neither the range of M Q nor the update, but
    keeps numbers in range; a direction that got lost, as when a gradient is zero, is redrawn.

    At a ``scale`` s, messages count factors as sqrt(s) times as long, and uncompressed layers as s times as long. In
    messages a layer is compressed if one s times as long would be, even if its sample is not.

    References
    ----------
    T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS 2019, Algorithms 1 and 2.

    Examples
    --------
    A gradient of rank one passes unharmed, at the price of its edges: 4 values by all-reduce, twice.

    >>> model = PowerSGD(workers=2, parameters=16, rank=1, shapes=[(4, 4)])
    >>> rows = np.outer([1, 2], np.outer([1, 2, 3, 4], [1, 0, -1, 0])).astype(np.float32)
    >>> exchange = model.exchange(rows)
    >>> exchange.update.reshape(4, 4).round(4) + 0.0
    array([[ 1.5,  0. , -1.5,  0. ],
           [ 3. ,  0. , -3. ,  0. ],
           [ 4.5,  0. , -4.5,  0. ],
           [ 6. ,  0. , -6. ,  0. ]], dtype=float32)
    >>> exchange.schedule.bytes_sent()
    array([32., 32.])
    """

    name = "powersgd"
    paper = "Vogels et al., NeurIPS 2019, arXiv 1905.13727"
    options: PowerSGDOptions

    def _set_up(self) -> None:
        shapes = [tuple(shape) for shape in self.options.shapes]
        sizes = [math.prod(shape) for shape in shapes] or [size for _, size in self.layers] or [self.parameters]
        if sum(sizes) != self.parameters:
            raise ValueError(f"shapes add up to {sum(sizes)} parameters, but there are {self.parameters}")
        if self.layers and sizes != [size for _, size in self.layers]:
            raise ValueError("shapes and layers differ in size")
        sides = [(shape[0], math.prod(shape[1:])) for shape in shapes] or map(near_square, sizes)
        self._sizes = [(size, *both) for size, both in zip(sizes, sides, strict=True)]
        matrices, start = [], 0
        for size, rows, columns in self._sizes:
            rank = min(self.options.rank, rows, columns)
            place, start = slice(start, start + size), start + size
            matrices.append(Matrix(place, rows, columns, rank if rank * (rows + columns) < size else 0))
        self._matrices = [one for one in matrices if one.rank]
        self._vectors = [one.place for one in matrices if not one.rank]
        self.queries = np.zeros(sum(one.rank * one.columns for one in self._matrices), dtype=np.float32)

    @property
    def lengths(self) -> tuple[float, float, float]:
        """Number of entries of all factors P, of all factors Q, and of uncompressed layers, for the whole model."""
        left, right, plain = np.sum([self._lengths_of(*one) for one in self._sizes], axis=0).tolist()
        return left, right, plain

    def _lengths_of(self, size: int, rows: int, columns: int) -> tuple[float, float, float]:
        """Return the numbers of entries that one layer sends as factor P, as factor Q, and uncompressed."""
        scale = self.options.scale
        left, right = (math.sqrt(scale) * one for one in (rows, columns))
        rank = min(self.options.rank, left, right)
        if rank * (left + right) < scale * size:
            return rank * left, rank * right, 0.0
        return 0.0, 0.0, scale * size

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        P = np.float32(self.workers)
        update, sent = np.zeros(self.parameters, dtype=np.float32), np.zeros(self.workers)
        for place in self._vectors:
            for worker, row in enumerate(corrected):
                update[place] += row[place]
                sent[worker] += squared_norm(row[place])
                row[place] = 0
        queries, at = np.zeros_like(self.queries), 0
        for index, one in enumerate(self._matrices):
            length = one.rank * one.columns
            query = queries[at : at + length].reshape(one.rank, -1)
            basis = self._basis(self.queries[at : at + length].reshape(one.rank, -1), index)
            sent += self._power_step(one, corrected, basis, query, update)
            at += length
        update /= P
        if self.options.compat == "released":
            for one in self._matrices:
                corrected[:, one.place] -= update[one.place]
        self.queries = queries if self.options.warm_start else self.queries
        return self._make_exchange(update, self._steps(), sent)

    def _basis(self, query: Values, index: int) -> Floats:
        """Return orthonormal columns of factor Q to start from; random columns replace zero or dependent ones."""
        basis = orthonormal(query.astype(np.float64))
        missing = np.array([not column.any() for column in basis])
        if missing.any():
            draws = stream(self.options.seed, "powersgd", self.iteration, index).standard_normal(basis.shape)
            basis = orthonormal(np.where(missing[:, np.newaxis], draws, basis))
        return basis

    def _power_step(self, one: Matrix, corrected: Values, basis: Floats, query: Values, update: Values) -> Floats:
        """Compress one layer by power iteration: fill `query` and `update`; return the squared norm of Q by worker."""
        size, sent = one.place.stop - one.place.start, np.zeros(self.workers)
        total = np.zeros((one.rank, one.rows), dtype=np.float32)
        for row in corrected:
            total += one.times(row[one.place], basis).astype(np.float32)
        P = orthonormal(_finite_factor(total).astype(np.float64))
        for worker, row in enumerate(corrected):
            Q = one.transposed_times(row[one.place], P).astype(np.float32)
            query += Q
            # The columns of P are orthonormal, so that P Q^T is as long as Q.
            sent[worker] = squared_norm(Q.ravel())
            if self.options.compat == "paper":
                own = one.product(P, Q, size)
                update[one.place] += own
                row[one.place] -= own
        if self.options.compat == "released":
            update[one.place] = one.product(P, query, size)
        np.divide(_finite_factor(query), np.float32(self.workers), out=query)
        return sent

    def _steps(self) -> Iterator[Step]:
        """Yield kernels and messages for each matrix M: P = M Q, all-reduce, orthonormalise; Q = M^T P, all-reduce."""
        left, right, plain = self.lengths
        scale = self.options.scale
        entries = self.parameters - plain / scale
        # A product reads the matrices once; the last one writes them.
        product = DeviceOp("norm", entries)
        yield product
        yield self._summed("P", left).concat(self._summed("uncompressed", plain))
        yield from (DeviceOp("norm", left / scale, launches=self.options.rank), product)
        yield self._summed("Q", right)
        yield DeviceOp("sum", entries)

    def _summed(self, phase: str, entries: float) -> Schedule:
        """Return the all-reduce messages of a number of entries, or no messages for 0."""
        nbytes = float(self.options.value_bytes or 4) * entries
        return self._reduction(nbytes).in_phase(phase) if entries else Schedule(self.workers)

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes of each array that a worker stores, by name, for the full matrices of the model."""
        return super().held_bytes() | {"queries": self.queries.itemsize * self.lengths[1]}
