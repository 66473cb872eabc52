"""Schemes in which every worker selects for itself, and an all-gather carries the values with their indices.

Every worker receives what all others selected and adds it up. It sends c n entries but receives P times as many: the
union of the selections grows with P (gradient build-up).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simnet import collectives
from simnet.collectives import registry
from simnet.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier
from simnet.sparsifier_models.options import Allgather, Options
from simnet.sparsifier_models.selection import Indices, Values, squared_norm, taken
from simnet.sparsifier_models.steps import Step, in_order


@dataclass(frozen=True, kw_only=True)
class GatheredOptions(Options):
    """Options of schemes that all-gather.

    Parameters
    ----------
    allgather : str
        Algorithm of the all-gather, of those in `simnet.collectives.registry`. ``auto`` is recursive doubling at powers
        of two and Bruck's algorithm else.
    """

    allgather: Allgather = "auto"

    def gather(self, nbytes: NDArray[np.float64]) -> Schedule:
        """Return the messages by which all workers get the bytes of each, shape (P,)."""
        return registry.find("all_gather", self.allgather).schedule_of_sizes(nbytes)


class Gathered(Sparsifier):
    """Common part: a scheme of this kind says which entries a worker selects, and which kernels that takes.

    A worker packs what it sends, and clears it, before its first message, and adds up what it gets after the last one.

    Attributes
    ----------
    sends_gain : bool
        Whether an all-reduce of one scalar, the compression gain, follows on the wire ``released``.
    """

    option_type = GatheredOptions
    reads_gradients = False
    options: GatheredOptions
    sends_gain: ClassVar[bool] = True

    @abstractmethod
    def _select(self, values: Values, worker: int) -> Indices:
        """Return the distinct indices that a worker sends of its `values`, shape (n,)."""

    @abstractmethod
    def _selection_kernels(self) -> tuple[Step, ...]:
        """Return what a worker ran to select, in order, and messages between, if that takes any."""

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        total = np.zeros(self.parameters, dtype=np.float32)
        touched = np.zeros(self.parameters, dtype=np.bool_)
        selected = np.zeros(self.workers, dtype=np.int64)
        sent, threshold = np.zeros(self.workers), np.zeros(self.workers)
        for worker, (indices, values) in enumerate(self._taken(corrected)):
            total[indices] += values
            touched[indices] = True
            selected[worker] = indices.size
            sent[worker] = squared_norm(values)
            threshold[worker] = np.abs(values).min(initial=np.inf)
        if self.fixed_volume:
            schedule, kernels = self._in_order(selected.tobytes(), lambda: self._steps(selected))
        else:
            schedule, kernels = in_order(self.workers, *self._steps(selected))
        return Exchange(
            update=total / np.float32(self.workers),
            schedule=schedule,
            selected=selected,
            kernels=kernels,
            union=int(np.count_nonzero(touched)),
            sent=sent,
            stats={"threshold": threshold},
        )

    def _taken(self, corrected: Values) -> Iterator[tuple[Indices, Values]]:
        """Take what each worker sends out of its row; yield where that was, and what."""
        return self._each(self._take, corrected)

    def _take(self, row: Values, worker: int) -> tuple[Indices, Values]:
        indices = self._select(row, worker)
        return indices, taken(row, indices)

    def _steps(self, selected: NDArray[np.int64]) -> Iterator[Step]:
        """Yield what workers do: select, pack what they selected, gather it, and add up what comes."""
        own = selected.astype(np.float64)
        yield from self._selection_kernels()
        yield from (DeviceOp("gather", own), DeviceOp("scatter", own))
        if not self.wire.released:
            yield DeviceOp("pack", own)
        yield self._allgather(selected)
        yield DeviceOp("scatter", float(selected.sum()))

    def _allgather(self, entries: NDArray[np.int64]) -> Schedule:
        """Return the messages by which all workers get the `entries`, shape (P,), of each.

        On the wire of the reference implementation values and indices are gathered one after the other.
        """
        gather, counts, wire = self.options.gather, entries.astype(np.float64), self.wire
        if not wire.released:
            return gather(counts * wire.entry_bytes).in_phase("entries")
        values = gather(counts * wire.value_bytes).in_phase("values")
        both = values.concat(gather(counts * wire.index_bytes).in_phase("indices"))
        if not self.sends_gain:
            return both
        return both.concat(collectives.allreduce_recursive_doubling(self.workers, wire.scalar_bytes).in_phase("gain"))
