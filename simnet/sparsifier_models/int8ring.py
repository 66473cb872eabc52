"""Int8 ring of INTELLECT-1: a ring all-reduce that quantises its chunks again at each hop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from simnet.cost_models.costs import int8_ring
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier, Stats, Step
from simnet.sparsifier_models.codes import uncentred
from simnet.sparsifier_models.selection import Values, squared_norms

# Chunks of a worker that are under way at a time.
_IN_FLIGHT = 2
_BINS = 256


def _receive_chunks(chunks: Sequence[Values]) -> list[Values]:
    """Return chunks, each of shape (m,), as receivers decode these; equally long chunks are quantised together."""
    found = list(chunks)
    for length in {one.size for one in chunks} - {0}:
        which = [place for place, one in enumerate(chunks) if one.size == length]
        rows = uncentred(np.stack([chunks[place] for place in which]), _BINS).values()
        for place, row in zip(which, rows, strict=True):
            found[place] = row
    return found


class Int8Ring(
    Sparsifier,
    fixed_volume=True,
    sends_all=True,
    keeps_residual=False,
    reads_gradients=False,
    costs=(int8_ring,),
    conserves=False,
):
    """Ring all-reduce of one byte per entry, without error feedback. The density has no effect.

    The gradient is cut into 2 P chunks, two per worker; if n is not divisible, the last ones are shorter (the released
    code refuses this). In the reduce-scatter each hop decodes a chunk, adds its own entries and quantises the sum
    again. The owner of a chunk divides by P, quantises, and stores the decoded result; the all-gather quantises at each
    hop.

    Hence workers end up with unlike results, the ``replicas`` of the exchange. The update is their mean: P times it is
    what all workers apply together, so that ``lost`` says what of the gradients they do not apply.

    A chunk's codes and its table of 256 float32 are messages of their own, on either wire. Both chunks of a hop travel
    in one round.

    Statistics of its own: ``spread``, shape (P,), the largest difference of a replica to the update.

    References
    ----------
    S. Jaghouar et al., "INTELLECT-1 Technical Report", 2024; code PrimeIntellect-ai/prime, ``ring_allreduce_py`` of
    Aoiryo/prime, commit 85ad1eb.

    Examples
    --------
    >>> model = Int8Ring(workers=2, parameters=4)
    >>> exchange = model.exchange(np.array([[1, 2, 3, 4], [3, 2, 1, 0]], dtype=np.float32))
    >>> exchange.replicas.tolist()
    [[2.0, 2.0, 2.0, 2.0], [2.0, 2.0, 2.0, 2.0]]
    >>> exchange.schedule.bytes_sent(), exchange.schedule.n_messages
    (array([4100., 4100.]), 16)
    """

    name = "int8ring"
    paper = "Jaghouar et al., 2024, arXiv 2412.01152"

    def _chunks(self) -> list[list[slice]]:
        """Return the slices of the gradient that each worker owns, two per worker."""
        total = _IN_FLIGHT * self.workers
        ends = np.minimum(np.arange(total + 1) * -(-self.parameters // total), self.parameters).tolist()
        every = [slice(*one) for one in pairwise(ends)]
        return [every[_IN_FLIGHT * worker : _IN_FLIGHT * (worker + 1)] for worker in range(self.workers)]

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        P, chunks, sent = self.workers, self._chunks(), squared_norms(corrected)

        def places(distance: int) -> list[tuple[int, slice]]:
            """Return pairs (worker, chunk): for each worker, the chunks of the worker `distance` ranks after it."""
            return [(worker, chunk) for worker in range(P) for chunk in chunks[(worker + distance) % P]]

        def coded(sends: list[tuple[int, slice]], divisor: int = 1) -> list[tuple[int, slice, Values]]:
            """Return worker, chunk and decoded values of each chunk sent, after division by `divisor`."""
            values = _receive_chunks([corrected[one] / np.float32(divisor) for one in sends])
            return [(*place, one) for place, one in zip(sends, values, strict=True)]

        for hop in range(P - 1):
            for worker, chunk, values in coded(places(-1 - hop)):
                corrected[(worker + 1) % P, chunk] += values
        for worker, chunk, values in coded(places(0), P):
            corrected[worker, chunk] = values
        for hop in range(P - 1):
            for worker, chunk, values in coded(places(-hop)):
                corrected[(worker + 1) % P, chunk] = values
        update: Values = corrected.mean(axis=0, dtype=np.float64).astype(np.float32)
        stats: Stats = {"spread": np.array([float(np.abs(row - update).max()) for row in corrected])}
        return self._make_exchange(update, self._steps(), sent, key="ring", stats=stats, replicas=corrected)

    def _steps(self) -> Iterator[Step]:
        """Yield kernels and messages: quantisation before each hop, addition or copy after each hop."""
        P, piece = self.workers, self.parameters / (_IN_FLIGHT * self.workers)
        quantise = [DeviceOp(one, piece, launches=_IN_FLIGHT) for one in ("norm", "cast")]
        for hop in range(P - 1):
            yield from quantise
            yield self._hop("reduce-scatter", -1 - hop)
            yield DeviceOp("sum", piece, launches=_IN_FLIGHT)
        yield from quantise
        for hop in range(P - 1):
            yield from quantise
            yield self._hop("all-gather", -hop)
            yield DeviceOp("cast", piece, launches=_IN_FLIGHT)

    def _hop(self, phase: str, distance: int) -> Schedule:
        """Return messages from each rank r to the next, with the chunks that rank r + `distance` (modulo P) owns."""
        P, value = self.workers, self.options.value_bytes or 1.0
        lengths = np.array([[one.stop - one.start for one in own] for own in self._chunks()])
        codes = value * self.options.scale * np.roll(lengths, -distance, axis=0)
        sizes = np.stack([np.full(codes.shape, self.wire.scalar_bytes * _BINS), codes], axis=2).ravel()
        src = np.repeat(np.arange(P), 2 * _IN_FLIGHT)
        return Schedule(P, [Round(src, (src + 1) % P, sizes, phase=phase)])
