"""Schemes in which each worker selects entries, and an all-gather carries the values and indices of all.

Every worker receives what all others selected and adds it up. It sends c n entries but receives P times as many: the
union of the selections grows with P (gradient build-up).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet import collectives
from simnet.base import plugins
from simnet.base.arrays import Floats
from simnet.collectives import registry
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier, Step
from simnet.sparsifier_models.codes import read_back
from simnet.sparsifier_models.options import Allgather, Options
from simnet.sparsifier_models.selection import Indices, Values, indices_problem, squared_norm, take_entries
from simnet.sparsifier_models.wire import EVERY


class GatheredOptions(Options):
    """Options of schemes that exchange entries by an all-gather.

    Parameters
    ----------
    allgather : str
        Algorithm of the all-gather, of those in `simnet.collectives.registry`. ``auto`` is recursive doubling at powers
        of two and Bruck's algorithm else.
    """

    allgather: Allgather = "auto"

    def gather(self, nbytes: NDArray[np.float64]) -> Schedule:
        """Return the messages of an all-gather to which worker i contributes ``nbytes[i]`` bytes."""
        return registry.collective_by_algorithm("all_gather", self.allgather).schedule_of_sizes(nbytes)

    def gather_equal(self, workers: int, nbytes: float, phase: str) -> Schedule:
        """Return the all-gather, named `phase`, of `nbytes` bytes from each worker."""
        return self.gather(np.full(workers, nbytes)).in_phase(phase)


class GatheredPart(NamedTuple):
    """Message of one worker: indices, decoded values, the smallest magnitude sent, and the number of bytes."""

    # Shape (k,): Where.
    indices: Indices
    # Shape (k,): As all read them.
    values: Values
    # The smallest magnitude of them, before they are encoded; inf if there are none.
    threshold: float
    # Bytes of both on the wire.
    nbytes: float
    # The thresholds tried, and the kernels of the search, of a scheme that searches for its threshold.
    tries: int = 1
    kernels: Sequence[DeviceOp] = ()


class Gathered(Sparsifier, reads_gradients=False, codes=EVERY):
    """Base of schemes that all-gather each worker's entries; subclasses define selection and its kernels.

    A worker packs the entries that it sends, and zeroes them, before its first message, and sums all entries after the
    last one.

    Attributes
    ----------
    sends_gain : bool
        Whether an all-reduce of one scalar, the compression gain, follows on the wire ``released``.
    ascending : bool
        Whether a device that selects leaves indices in ascending order.
    """

    options: GatheredOptions
    sends_gain: ClassVar[bool] = True
    ascending: bool = False

    @abstractmethod
    def _select(self, values: Values, worker: int) -> Indices:
        """Return the distinct indices that a worker selects from its `values`, shape (n,)."""

    @abstractmethod
    def _selection_kernels(self) -> tuple[Step, ...]:
        """Return the kernels and messages by which entries are selected, in order."""

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        total = np.zeros(self.parameters, dtype=np.float32)
        touched = np.zeros(self.parameters, dtype=np.bool_)
        selected = np.zeros(self.workers, dtype=np.int64)
        sent, threshold, nbytes = np.zeros(self.workers), np.zeros(self.workers), np.zeros(self.workers)
        each = self._each(self._take, corrected)
        self._searches: list[tuple[int, Sequence[DeviceOp]]] = []
        for worker in range(self.workers):
            one = next(each)
            total[one.indices] += one.values
            touched[one.indices] = True
            selected[worker] = one.indices.size
            sent[worker] = squared_norm(one.values)
            threshold[worker], nbytes[worker] = one.threshold, one.nbytes
            self._searches.append((one.tries, one.kernels))
            # The next one takes its memory.
            del one
        return self._make_exchange(
            total / np.float32(self.workers),
            self._steps(selected, nbytes),
            sent,
            key=selected.tobytes() if self.traits.fixed_volume else None,
            selected=selected,
            union=int(np.count_nonzero(touched)),
            stats={"threshold": threshold},
        )

    def _take(self, row: Values, worker: int) -> GatheredPart:
        indices = self._select(row, worker)
        if self.traits.is_third_party and (wrong := indices_problem(indices, row.size)):
            raise plugins.return_error(self._select, indices, f"distinct indices (worker {worker}: {wrong})")
        return self._send(row, indices)

    def _send(self, row: Values, indices: Indices) -> GatheredPart:
        """Return a message with a row's entries at `indices`; in the row, replace these by their encoding errors."""
        values = take_entries(row, indices)
        read = read_back(values, self.options.values or "float32")
        if read is not values:
            row[indices] = values - read
        nbytes = float(self.wire.entries(indices, (0, self.parameters))[0])
        return GatheredPart(indices, read, float(np.abs(values).min(initial=np.inf)), nbytes)

    def _steps(self, selected: NDArray[np.int64], nbytes: Floats) -> Iterator[Step]:
        """Yield kernels and messages: selection, encoding, packing, all-gather, decoding, sum."""
        own, total, wire = selected.astype(np.float64), float(selected.sum()), self.wire
        yield from self._selection_kernels()
        yield from (DeviceOp("gather", own), DeviceOp("scatter", own))
        yield from wire.encoding_kernels(own, self.parameters, ascending=self.ascending)
        if not wire.released:
            yield DeviceOp("pack", own)
        yield self._allgather(selected, nbytes)
        yield from wire.decoding_kernels(total, self.parameters, self.workers)
        yield DeviceOp("scatter", total)

    def _allgather(self, entries: NDArray[np.int64], nbytes: Floats) -> Schedule:
        """Return the all-gather of each worker's entries; released code has one for values and one for indices."""
        gather, counts, wire = self.options.gather, entries.astype(np.float64), self.wire
        if not wire.released:
            return gather(nbytes).in_phase("entries")
        values = gather(counts * wire.value_bytes).in_phase("values")
        both = values.concat(gather(counts * wire.index_bytes).in_phase("indices"))
        if not self.sends_gain:
            return both
        return both.concat(collectives.allreduce_recursive_doubling(self.workers, wire.scalar_bytes).in_phase("gain"))
