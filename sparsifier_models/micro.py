"""MiCRO: exclusive partitions of equal size, which never change, and a threshold scaled online."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from simnet.costs import exdyna
from simnet.devices import Kernel
from sparsifier_models.base import Floats
from sparsifier_models.partitioned import Partitioned, PartitionedOptions
from sparsifier_models.selection import Indices, Values, kth_magnitude


@dataclass(frozen=True, kw_only=True)
class MiCROOptions(PartitionedOptions):
    """Options of `MiCRO`.

    Parameters
    ----------
    initial : {"formula", "exact"}
        Threshold of the first iteration, unless ``initial_threshold`` gives it: 1 / (2 sqrt(k)), or, as in earlier
        versions of the released code, each worker's own k-th largest magnitude (by the formula where that is 0).
    """

    initial: Literal["formula", "exact"] = "formula"


class MiCRO(Partitioned):
    """MiCRO: as ExDyna, but each of the P partitions keeps its n / P entries.

    References
    ----------
    D. Yoon, S. Oh, "MiCRO: Near-Zero Cost Gradient Sparsification for Scaling and Accelerating Distributed DNN
    Training", HiPC 2023, arXiv 2310.00967, and the released code.

    Examples
    --------
    Nothing in the second half is as large as the threshold; one entry of it is sent all the same.

    >>> model = MiCRO(workers=2, parameters=4, density=0.5, initial_threshold=3)
    >>> exchange = model.exchange(np.array([[4, 3, 9, 0], [9, 0, 1, -2]], dtype=np.float32))
    >>> exchange.update, exchange.selected
    (array([6.5, 1.5, 5. , 0. ], dtype=float32), array([2, 1]))
    """

    name = "micro"
    paper = "Yoon and Oh, HiPC 2023, arXiv 2310.00967"
    costs = (exdyna,)
    option_type = MiCROOptions
    options: MiCROOptions

    def _partitions(self) -> Indices:
        i = np.arange(self.workers + 1)
        quotient, remainder = divmod(self.parameters, self.workers)
        return quotient * i + np.minimum(i, remainder)

    def _initial_threshold(self, corrected: Values) -> Floats:
        threshold = super()._initial_threshold(corrected)
        if not self._starts_exact:
            return threshold
        exact = np.array([kth_magnitude(row, self.k) for row in corrected])
        return np.where(exact > 0, exact, threshold)

    def _selection_kernels(self) -> tuple[Kernel, ...]:
        first = not self._counts.size
        exact = (Kernel("topk", self.parameters),) if first and self._starts_exact else ()
        return (*exact, *super()._selection_kernels())

    @property
    def _starts_exact(self) -> bool:
        return self.options.initial == "exact" and self.options.initial_threshold is None
