"""THC: a server sums codes without decoding them, after a Hadamard transform that evens out the entries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from statistics import NormalDist
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from simnet import collectives
from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.base.rng import stream
from simnet.cost_models.costs import thc
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier, Step
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.selection import Values, squared_norm

BOUND = 2.1538746940614564
"""Clipping bound T: one entry in 32 of a standard normal distribution exceeds it in magnitude."""
GRID = 1001
"""Number of grid points from -T to T to which entries are rounded."""

F = TypeVar("F", bound=np.floating[Any])

_STAGES, _CODES = 10, 16
# Entries at a time: whole blocks of the transform, and few enough to stay in the cache.
_PIECE = 1 << 16


@cache
def code_levels(granularity: int) -> tuple[int, ...]:
    """Return the level, from 0 to `granularity`, that each of the 16 codes decodes to; levels are symmetric.

    Of all such levels they have the least expected squared error for normal entries cut at +-T, each rounded at random
    to one of its two neighbours without bias. For g = 16 they are the table of the released code.

    Examples
    --------
    >>> code_levels(16)
    (0, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12, 13, 14, 16)
    """

    def error(low: int, high: int) -> float:
        """Return the expected squared error of stochastic rounding of a normal variable between two levels."""
        a, b = ((2 * level / granularity - 1) * BOUND for level in (low, high))
        mass, density = (of(b) - of(a) for of in (normal.cdf, normal.pdf))
        return b * normal.pdf(b) - a * normal.pdf(a) - mass - (a + b) * density - a * b * mass

    # Least error of a lower half that ends at a level, and its levels; one level longer in each turn.
    normal, best = NormalDist(), dict[int, tuple[float, tuple[int, ...]]]({0: (0.0, (0,))})
    for _ in range(_CODES // 2 - 1):
        before, best = best, {}
        for end in range(min(before) + 1, granularity // 2 + 1):
            best[end] = min((was + 2 * error(at, end), (*path, end)) for at, (was, path) in before.items() if at < end)
    _, lower = min((was + error(at, granularity - at), path) for at, (was, path) in best.items())
    return (*lower, *(granularity - level for level in reversed(lower)))


def sender_table(granularity: int) -> tuple[NDArray[np.int64], Floats]:
    """Return, for 1001 evenly spaced points of the value range, the next lower code and the chance of rounding up."""
    # In whole numbers: level r stands at point 1000 r / g.
    points, levels = granularity * np.arange(GRID), (GRID - 1) * np.array(code_levels(granularity))
    codes = np.minimum(np.searchsorted(levels, points, side="right") - 1, _CODES - 2)
    return codes, (points - levels[codes]) / (levels[codes + 1] - levels[codes])


def butterflies(values: NDArray[F], stages: int) -> NDArray[F]:
    """Return the Hadamard transform of each block of 2^stages entries; two transforms multiply by 2^stages."""
    found = values
    for stage in range(stages):
        pairs = found.reshape(-1, 2, 1 << stage)
        found = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
    return found.reshape(-1)


def hadamard(values: Floats, stages: int) -> Floats:
    """Return the orthonormal Hadamard transform of each block of 2^stages entries; it is its own inverse."""
    return butterflies(values, stages) / math.sqrt(1 << stages)


class THCOptions(GatheredOptions):
    """Options of `THC`.

    Parameters
    ----------
    chunk : int
        Entries that share a norm, >= 1; 8 Mi in the released code. A chunk is padded to a power of two.
    servers : {"one", "all"}
        Whether worker 0 adds up all codes, or every worker those of its share.
    granularity : int
        Highest of the levels that codes stand for, g, from 15 to 255; the released code has tables for 16 and 30.
    """

    chunk: Count = 8 << 20
    servers: Literal["one", "all"] = "one"
    granularity: Annotated[int, Ge(15), Le(255)] = 16


class THC(
    Sparsifier,
    fixed_volume=True,
    sends_all=True,
    memory_factor=(1.7, 12.0),
    reads_gradients=False,
    auxiliary_state=("padding_error",),
    state=("padding_error",),
    costs=(thc,),
):
    """THC: workers send four bits per entry to a server that adds the codes undecoded. The density has no effect.

    First the workers all-reduce the largest norm. A worker flips signs by a random diagonal that all share, transforms
    blocks of 2^10 entries, scales them to about a normal distribution, clips at +-T, and rounds at random, without
    bias, to a grid of 1001 points and from there to a code. The server adds up the integer levels of the codes, and
    workers transform the mean back. A worker's residual is its entries minus its own decoded codes, padding included.

    The wire ``paper`` has four bits for a code, and as many as the sum needs on the way back; ``released`` a float32
    for each, as the Python path of the released code.

    If all norms are zero, so is the update, and nothing is drawn.

    References
    ----------
    M. Li, R. Ben Basat, S. Vargaftik, C. Lao, K. Xu, M. Mitzenmacher, M. Yu, "THC: Accelerating Distributed Deep
    Learning Using Tensor Homomorphic Compression", NSDI 2024; code SophiaLi06/BytePS_THC, commit a6af970.

    Examples
    --------
    Half a byte an entry to the server, and six bits of sums of up to 32 back, beside the norm:

    >>> model = THC(workers=2, parameters=1024)
    >>> gradients = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32)
    >>> model.exchange(gradients).schedule.bytes_sent()
    array([772., 516.])
    """

    name = "thc"
    paper = "Li et al., NSDI 2024, arXiv 2302.08545"
    options: THCOptions

    def _set_up(self) -> None:
        chunk = self.options.chunk
        self.chunks = [slice(first, min(first + chunk, self.parameters)) for first in range(0, self.parameters, chunk)]
        self._codes, self._chances = sender_table(self.options.granularity)
        self._levels = np.array(code_levels(self.options.granularity))
        # That of the padding after each chunk, one after the other.
        self.padding_error = np.zeros((self.workers, self._padded(self.parameters) - self.parameters), dtype=np.float32)

    def _padded(self, entries: int) -> int:
        """Return the number of entries in all chunks of a gradient, padding included."""
        full, rest = divmod(entries, self.options.chunk)
        return full * _next_power(min(self.options.chunk, entries)) + (_next_power(rest) if rest else 0)

    def diagonal(self, entries: int) -> Floats:
        """Return the random signs that all workers use in all exchanges; float64 of shape (entries,)."""
        return np.array([1.0, -1.0])[stream(self.options.seed, "thc").integers(0, 2, entries)]

    def _happens(self, what: str, worker: int, first: int, chances: Floats, draws: np.random.Generator) -> Any:
        """Return a random mask that is true with probability `chances`, for a worker's entries from `first` on."""
        return draws.random(chances.size) < chances

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        update, sent = np.empty(self.parameters, dtype=np.float32), np.zeros(self.workers)
        padding = self.padding_error.copy()
        overflow, at = np.zeros(self.workers), 0
        for chunk in self.chunks:
            size = chunk.stop - chunk.start
            padded = slice(at, at + _next_power(size) - size)
            at = padded.stop
            found, cut = self._reduce(corrected[:, chunk], padding[:, padded], sent, chunk.start)
            update[chunk] = found
            overflow += cut
        self.padding_error = padding if self.options.error_feedback else self.padding_error
        stats = {"overflow": overflow / self._padded(self.parameters)}
        return self._make_exchange(update, self._steps(), sent, key="thc", stats=stats)

    def _reduce(self, rows: Values, padding: Values, sent: Floats, start: int) -> tuple[Values, Floats]:
        """Return a chunk's mean and each worker's number of clipped entries; write errors to rows and padding."""
        P, size = rows.shape
        d = size + padding.shape[1]
        stages = min(_STAGES, d.bit_length() - 1)
        norms = [math.sqrt(squared_norm(row) + squared_norm(rest)) for row, rest in zip(rows, padding, strict=True)]
        largest, cut = max(norms), np.zeros(P)
        mean = np.zeros(d, dtype=np.float32)
        if largest == 0:
            return mean[:size], cut
        diagonal, draws = self.diagonal(d), [stream(self.options.seed, "thc", self.iteration, one) for one in range(P)]
        scale = math.sqrt(d) / largest
        g = self.options.granularity
        inverse = 2 * BOUND / g / scale
        for first in range(0, d, _PIECE):
            piece = slice(first, min(first + _PIECE, d))
            signs, total = diagonal[piece], np.zeros(piece.stop - first, dtype=np.int64)
            inside = max(0, min(piece.stop, size) - first)
            for worker in range(P):
                x = np.concatenate([rows[worker, first : first + inside], padding[worker, max(0, first - size) :]])
                x = x[: total.size].astype(np.float64)
                y = hadamard(x * signs, stages) * scale
                cut[worker] += np.count_nonzero(np.abs(y) > BOUND)
                y = np.clip(y, -BOUND, BOUND) / (2 * BOUND / (GRID - 1))
                low = np.floor(y)
                above = self._happens("grid", worker, start + first, y - low, draws[worker])
                point = np.clip(low + above + GRID // 2, 0, GRID - 1).astype(np.int64)
                above = self._happens("table", worker, start + first, self._chances[point], draws[worker])
                levels = self._levels[self._codes[point] + above]
                total += levels
                own = hadamard((levels - g / 2) * inverse, stages) * signs
                sent[worker] += squared_norm(own[:inside])
                x -= own
                rows[worker, first : first + inside] = x[:inside]
                padding[worker, max(0, first - size) : max(0, piece.stop - size)] = x[inside:]
            mean[piece] = hadamard((total / P - g / 2) * inverse, stages) * signs
        return mean[:size], cut

    # Messages

    @property
    def code_bytes(self) -> tuple[float, float]:
        """Bytes per entry from a worker to the server, and from the server to a worker."""
        if self.wire.released:
            return 4.0, 4.0
        return 0.5, math.ceil(math.log2(self.options.granularity * self.workers + 1)) / 8

    def _steps(self) -> Iterator[Step]:
        """Yield kernels and messages: norms, transform, quantisation, sum, inverse transform."""
        P, n = self.workers, self.parameters
        whole = self.k_of_model
        up, down = (self._padded(whole) * one for one in self.code_bytes)
        numbers = self.wire.scalar_bytes * -(-whole // self.options.chunk)
        # Ten stages of the transform stay in the cache of a block: one pass.
        transform = DeviceOp("cast", n)
        yield from (DeviceOp("norm", n), transform)
        yield collectives.allreduce_recursive_doubling(P, numbers).in_phase("norms")
        # Codes; and what they leave, transformed back.
        yield from (DeviceOp("cast", n), transform, DeviceOp("sum", n))
        if self.options.servers == "all":
            yield collectives.alltoall_pairwise(P, up / P).in_phase("codes")
            yield DeviceOp("sum", n / P, launches=P)
            yield self.options.gather_equal(P, down / P, "sums")
        elif P > 1:
            others, server = np.arange(1, P), np.zeros(P - 1, dtype=np.int64)
            yield Schedule(P, [Round(others, server, up, phase="codes")])
            yield DeviceOp("sum", np.where(np.arange(P) == 0, n, 0), launches=P)
            yield Schedule(P, [Round(server, others, down, phase="sums")])
        yield transform

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes of each array that a worker stores, by name, for the whole model with padding."""
        whole = self.k_of_model
        padding = self._padded(whole) - whole if self.options.error_feedback else 0
        return super().held_bytes() | {"padding_error": float(self.padding_error.itemsize * padding)}


def _next_power(entries: int) -> int:
    """Return the least power of two that is >= `entries`."""
    return 1 << (entries - 1).bit_length()
