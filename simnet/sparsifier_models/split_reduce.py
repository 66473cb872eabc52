"""Split and reduce: each worker owns a region of the gradient and sums the entries that all workers selected there.

The reduce-scatter of the sparse all-reduces. In step j worker r sends its selection in region (r + j) mod P to the
owner of the region (destination rotation), so no two workers send to the same one in a step; a few steps are posted
together (bucketing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models.base import Sparsifier, Step
from simnet.sparsifier_models.codes import reader
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.selection import Indices, Values
from simnet.sparsifier_models.wire import EVERY, SUMS_OF_SUMS, Wire

Places: TypeAlias = NDArray[np.int32] | NDArray[np.int64]


def rotation(n_workers: int, step: int) -> Indices:
    """Return the rank to which each worker r sends in step j, (r + j) mod P; shape (P,)."""
    return (np.arange(n_workers) + step) % n_workers


def equal_cuts(parameters: int, n_workers: int) -> Indices:
    """Return the boundaries, shape (P + 1,), of P regions of n // P entries; the last region gets the remainder too."""
    return np.append(np.arange(n_workers) * (parameters // n_workers), parameters)


def region_cuts(chosen: Sequence[Places], parameters: int, *, spread: bool = True) -> Indices:
    """Return the region boundaries from 0 to `parameters`, shape (P + 1,): the mean of the workers' proposals.

    `chosen` has the ascending indices of each worker. One with fewer than P entries spreads them over the regions; if
    not `spread`, as in the reference implementation, all its cuts are its first entry. One with none proposes equal
    regions. A region may be empty.
    """
    P = len(chosen)
    total = np.zeros(P - 1, dtype=np.int64)
    for indices in chosen:
        total += proposed_cuts(indices, P, parameters, spread=spread)
    return mean_cuts(total, parameters)


def proposed_cuts(indices: Places, workers: int, parameters: int, *, spread: bool = True) -> Indices:
    """Return the P - 1 region boundaries that a worker proposes, which divide its ascending `indices` about equally."""
    i, size = np.arange(1, workers), indices.size
    if not size:
        return i * parameters // workers
    places = i * size // workers if size < workers and spread else i * (size // workers)
    return indices[places].astype(np.int64)


def mean_cuts(total: Indices, parameters: int) -> Indices:
    """Return the region boundaries from 0 to `parameters`, given the sum of all workers' proposals, shape (P - 1,)."""
    return np.concatenate([[0], total // (total.size + 1), [parameters]])


def balancing(pieces: Indices) -> Indices:
    """Return how many entries worker i sends to worker j, shape (P, P), so that all then hold equally many (+- 1).

    Worker i has `pieces[i]` at first. Of all T, in this order, worker j gets the next T // P, one more if j < T mod P.
    """
    P, total = len(pieces), int(pieces.sum())
    piece = np.append(0, np.cumsum(pieces))
    block = np.append(0, np.cumsum(total // P + (np.arange(P) < total % P)))
    overlap: Indices = np.minimum.outer(piece[1:], block[1:]) - np.maximum.outer(piece[:-1], block[:-1])
    return overlap.clip(min=0)


def unevenness(sizes: Indices) -> float:
    """Return the ratio of the largest size to the mean; 1 if all are 0."""
    return len(sizes) * int(sizes.max()) / int(sizes.sum()) if sizes.any() else 1.0


def compact(indices: Indices) -> Places:
    """Return ascending indices as int32 if they fit in that type, to save memory."""
    fits = not indices.size or indices[-1] <= np.iinfo(np.int32).max
    return indices.astype(np.int32) if fits else indices


def by_region(indices: Indices, cuts: Indices) -> Indices:
    """Return the number of ascending `indices` in each region; shape (P,)."""
    return np.diff(np.searchsorted(indices, cuts))


def split_and_reduce(rows: Values, chosen: Sequence[Places], cuts: Indices) -> tuple[Values, Indices]:
    """Return the sum of all workers' selections, shape (n,), and the number of entries sent, shape (P, P).

    Region r is summed in float32 in the order of the steps j = 0, 1, 2, ...: its owner's entries, those of worker r -
    1, of r - 2, and so on. `rows`, shape (P, n), are not modified. Row r of the entries sent is of worker r.
    """
    ends = np.array([np.searchsorted(indices, cuts) for indices in chosen])
    workers, reduced = np.arange(len(rows)), np.zeros(rows.shape[1], dtype=np.float32)
    together = np.concatenate(chosen)
    begins = np.cumsum([0, *(indices.size for indices in chosen[:-1])])
    for step in range(len(rows)):
        # No two workers send to the same one in a step, so that no entry comes twice.
        regions = rotation(len(rows), step)
        first, last = ends[workers, regions], ends[workers, regions + 1]
        sizes = last - first
        part = together[np.repeat(begins + first - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())]
        reduced[part] += rows[np.repeat(workers, sizes), part]
    return reduced, np.diff(ends, axis=1)


def all_pairs(workers: int, steps: Sequence[int]) -> tuple[Indices, Indices]:
    """Return senders and receivers of the given steps, shape (len(steps) P,); worker r sends to r + step (mod P)."""
    return np.tile(np.arange(workers), len(steps)), np.concatenate([rotation(workers, step) for step in steps])


def entry_messages(
    src: Indices, dst: Indices, entries: Indices, wire: Wire, phase: str, encoded: Floats | None = None
) -> Round:
    """Return a round of messages from `src` to `dst` of `entries` entries, or of `encoded` bytes, all of shape (m,).

    On the released wire indices and values are two messages, one right after the other.
    """
    if encoded is not None:
        return Round(src, dst, encoded, phase=phase)
    widths = [wire.index_bytes, wire.value_bytes] if wire.released else [wire.entry_bytes]
    times = len(widths)
    return Round(np.repeat(src, times), np.repeat(dst, times), np.outer(entries, widths).ravel(), phase=phase)


def split_schedule(
    entries: Indices, bucket: int, wire: Wire, encoded: Floats | None = None, *, empty: bool = True
) -> Schedule:
    """Return the messages of split and reduce: P steps, `bucket` of them in a round; `empty` keeps empty messages.

    ``entries[r, q]``, or `encoded` bytes, go from worker r to q. Step 0, in the first bucket, sends nothing.
    """
    P = len(entries)
    rounds = []
    for first in range(0, P, bucket):
        steps = range(max(first, 1), min(first + bucket, P))
        if steps:
            src, dst = all_pairs(P, steps)
            if not empty:
                filled = entries[src, dst] > 0
                src, dst = src[filled], dst[filled]
            nbytes = None if encoded is None else encoded[src, dst]
            rounds.append(entry_messages(src, dst, entries[src, dst], wire, "split", nbytes))
    return Schedule(P, rounds)


def around_split(parameters: int, entries: Indices, *messages: Step, through_host: bool = False) -> tuple[Step, ...]:
    """Return the steps of split and reduce: kernels that cut up a selection, `messages`, kernels that sum what arrived.

    It adds when all has arrived, an upper bound: reference implementations add one bucket while the next is on its way.
    `through_host` copies values and indices to the host to be sent, and back to be added.
    """
    P, sent, received = len(entries), entries.sum(axis=1).astype(np.float64), entries.sum(axis=0).astype(np.float64)
    return (
        DeviceOp("scan", parameters / P, launches=P),
        DeviceOp("gather", sent),
        *((DeviceOp("copy_out", 2 * sent),) if through_host else ()),
        *messages,
        *((DeviceOp("copy_in", 2 * received),) if through_host else ()),
        DeviceOp("scatter", received / P, launches=P),
    )


class SplitOptions(GatheredOptions):
    """Options of schemes that exchange entries by split and reduce.

    Parameters
    ----------
    rules : {"vgg", "lstm", "bert"}
        Variant of the reference implementation whose constants hold, named after the model it trains.
    bucket : int
        Steps of split and reduce that are posted together, >= 1.
    """

    rules: Literal["vgg", "lstm", "bert"] = "vgg"
    bucket: Count = 4


class DroppedShare(NamedTuple):
    """Quantisation error of the entries that a worker has sent. The error returns to the worker's residual."""

    worker: int
    # Shape (k,): Where.
    indices: Places
    # Shape (k,).
    values: Values

    def into(self, rows: Values, among: Indices | None = None) -> None:
        """Add the quantisation errors to row `worker` of `rows`; if `among` is given, only at the indices in it."""
        inside = slice(None) if among is None else np.isin(self.indices, among)
        rows[self.worker, self.indices[inside]] += self.values[inside]


class SplitReduce(Sparsifier, reads_gradients=False, rounds_down=True, released_widths=(4, 4)):
    """Base of schemes that use split and reduce as the reference implementation of Ok-Topk does."""

    options: SplitOptions

    def _option_traits(self) -> dict[str, Any]:
        return {"codes": EVERY if self.options.compat == "paper" else SUMS_OF_SUMS}

    @property
    def dense_bytes(self) -> float:
        """Bytes on the wire of an entry of a dense vector, scaled up if gradients are only samples."""
        return self.options.scale * float(self.options.value_bytes or 4)

    def _split(self, entries: Indices, encoded: Floats | None, *, empty: bool = True) -> list[Step]:
        """Return messages that send entries to the owners of regions, between kernels that encode and decode these."""
        wire, n, P = self.wire, self.parameters, self.workers
        messages = split_schedule(entries, self.options.bucket, wire, encoded, empty=empty)
        return [*wire.coded(messages, entries.sum(axis=1), entries.sum(axis=0), n, P, of=n / P)]

    def _encoded_split(self, chosen: Sequence[Places], cuts: Indices) -> Floats | None:
        """Return the encoded bytes between each pair of workers, shape (P, P); None without encoding."""
        return None if self.wire.encoding is None else np.array([self.wire.entries(one, cuts) for one in chosen])

    def _encoded_pieces(self, indices: Indices, pieces: Indices, cuts: Indices | None = None) -> Floats | None:
        """Return the encoded bytes of `indices` in pieces of lengths `pieces`, or cut at `cuts`; None if unencoded."""
        if self.wire.encoding is None:
            return None
        if cuts is not None:
            return self.wire.entries(indices, cuts)
        parts = np.split(indices, np.cumsum(pieces.ravel())[:-1])
        return np.array([self.wire.entries(one, (0, self.parameters))[0] for one in parts]).reshape(pieces.shape)

    def _read_split(
        self, rows: Values, chosen: Sequence[Places], cuts: Indices
    ) -> tuple[list[DroppedShare], list[Values]]:
        """Replace sent values in the rows by their decoded values; return the errors and the original values."""
        rests: list[DroppedShare] = []
        before: list[Values] = []
        if (read := reader(self.options.values)) is None:
            return rests, before
        for worker, (row, indices) in enumerate(zip(rows, chosen, strict=True)):
            ends = np.searchsorted(indices, cuts)
            values, seen = row[indices], row[indices]
            for region, part in enumerate(map(slice, ends[:-1], ends[1:])):
                if region != worker:
                    seen[part] = read(values[part])
            rests.append(DroppedShare(worker, indices, values - seen))
            before.append(values)
            row[indices] = seen
        return rests, before

    def _read_pieces(self, sums: Values, indices: Indices, sizes: Indices, senders: Indices) -> list[DroppedShare]:
        """Round `sums` at `indices` to the values that arrive after quantisation; return the errors by sender."""
        if (read := reader(self.options.values)) is None:
            return []
        rests = []
        for sender, part in zip(senders.tolist(), np.split(indices, np.cumsum(sizes)[:-1]), strict=True):
            if sender >= 0:
                values = sums[part]
                sums[part] = read(values)
                rests.append(DroppedShare(sender, part, values - sums[part]))
        return rests

    def _pieces(self, entries: NDArray[np.int64], encoded: Floats | None = None) -> Schedule:
        """Return the all-gather of `entries` entries per worker, shape (P,), or of `encoded` bytes."""
        counts, wire, gather = entries.astype(np.float64), self.wire, self.options.gather
        if encoded is not None:
            return gather(encoded).in_phase("entries")
        if wire.released and self.options.rules == "bert":
            values, indices = gather(counts * wire.value_bytes), gather(counts * wire.index_bytes)
            return values.in_phase("values").concat(indices.in_phase("indices"))
        return gather(counts * wire.entry_bytes).in_phase("entries")

    def _sizes(self) -> Schedule:
        """Return the all-gather of one count per worker."""
        return self.options.gather_equal(self.workers, self.wire.count_bytes, "sizes")
