"""Hard threshold: all entries as large as a threshold that never changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.costs import hardthreshold, threshold_allgather
from simnet.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.carried_threshold import CarriedThreshold, CarriedThresholdOptions
from simnet.sparsifier_models.gathered import Gathered
from simnet.sparsifier_models.options import Positive
from simnet.sparsifier_models.selection import Indices, Values, above
from simnet.sparsifier_models.wire import EVERY, Codes, Wire


@dataclass(frozen=True, kw_only=True)
class HardThresholdOptions(CarriedThresholdOptions):
    """Options of `HardThreshold`.

    Parameters
    ----------
    form : {"fused", "original"}
        How the entries travel: indices gathered and values reduced at their union, as in the codes released with
        ExDyna, MiCRO and DEFT; or values and positions gathered, as in the code of the paper, where a worker keeps what
        others selected and ``allreduce`` is not used.
    threshold : float
        The threshold, > 0. If not given, see `start`.
    """

    form: Literal["fused", "original"] = "fused"
    threshold: Positive | None = None


class HardThreshold(CarriedThreshold):
    """Hard threshold: each worker sends its entries of magnitude >= the threshold, if any.

    The threshold is the published 1 / (2 sqrt(k)), or keeps k entries of the first gradients; nothing keeps it there.
    With error feedback, more entries reach it from then on.

    In the form ``original`` and on the wire ``released``, the workers gather the number of their entries and where
    those of each layer start and end, 8 bytes each, then float32 values and int32 positions, both padded to the most.
    On the wire ``paper`` each sends its values and positions.

    References
    ----------
    A. Sahu et al., "Rethinking gradient sparsification as total error minimization", NeurIPS 2021, arXiv 2108.00951,
    and its reference implementation; fused as released with ExDyna (Yoon and Oh, CCGrid 2024).

    Examples
    --------
    >>> gradients = np.array([[4, 3, 1, 0], [0, 2, 1, -8]], dtype=np.float32)
    >>> for form in ("fused", "original"):
    ...     model = HardThreshold(workers=2, parameters=4, density=0.5, threshold=3, form=form)
    ...     print(model.exchange(gradients).update, model.residual[1])
    [ 2.   2.5  0.  -4. ] [0. 0. 1. 0.]
    [ 2.   1.5  0.  -4. ] [0. 2. 1. 0.]
    """

    name = "hardthreshold"
    separable = True
    paper = "Sahu et al., NeurIPS 2021, arXiv 2108.00951"
    costs = (hardthreshold, threshold_allgather)
    option_type = HardThresholdOptions
    options: HardThresholdOptions

    @property
    def codes(self) -> Codes:
        """Those of indices that are gathered and values that are reduced; every code in the original form."""
        return super().codes if self.options.form == "fused" else EVERY

    @property
    def wire(self) -> Wire:
        """The wire of an entry; the original form as released has int32 positions and int64 counts."""
        wire = super().wire
        if self.options.form == "fused" or self.options.index_bytes is not None or not wire.released:
            return wire
        return replace(wire, index_bytes=wire.index_bytes / 2)

    @property
    def enough(self) -> float:
        """None where k selects nothing, as the threshold does not follow the gradients."""
        return super().enough if self._estimates else 0.0

    @property
    def _given_threshold(self) -> float | None:
        return self.options.threshold

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        self._first = self._begins and self._estimates
        if not self._estimates:
            self._threshold = self._first_threshold()
        elif self._first:
            self._threshold = self._estimated(corrected)
        self._threshold_density = self.density
        if self.options.form == "fused":
            exchange = super()._communicate(corrected, gradients)
        else:
            exchange = Gathered._communicate(self, corrected, gradients)
            k_max = float(exchange.selected.max())
            exchange.stats["k_max"] = k_max
            if self.options.indices is None and self.options.values is None:
                exchange.stats["bits"] = 8 * k_max * self.wire.entry_bytes if self.workers > 1 else 0.0
        exchange.stats["threshold"] = self._threshold.copy()
        return exchange

    def _select(self, values: Values, worker: int) -> Indices:
        return above(values, float(self._threshold[worker]), strict=False)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        tensors = 1 if self.options.form == "fused" else max(1, len(self.layers))
        estimate = self._estimating_kernels() if self._first else ()
        return (*estimate, DeviceOp("scan", self.parameters / tensors, launches=tensors))

    def _allgather(self, entries: NDArray[np.int64], nbytes: Floats) -> Schedule:
        if self.options.form == "fused":
            return super()._allgather(entries, nbytes)
        wire, gather = self.wire, self.options.gather

        def equal(each: float, phase: str) -> Schedule:
            return gather(np.full(self.workers, each)).in_phase(phase)

        if not wire.released:
            return gather(nbytes).in_phase("entries")
        L, k_max = max(1, len(self.layers)), int(entries.max())
        return equal(wire.count_bytes, "counts").concat(
            equal(L * wire.count_bytes, "starts"),
            equal(L * wire.count_bytes, "ends"),
            equal(k_max * wire.value_bytes, "values"),
            equal(k_max * wire.index_bytes, "indices"),
        )
