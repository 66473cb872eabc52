"""Data parallelism: gradients are averaged after every inner step, or after several that are added up before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simnet.base.checks import check_int
from simnet.base.quantities import Count
from simnet.strategies.averaging import Averaging, Sync
from simnet.strategies.base import Strategy
from simnet.strategies.optimisers import Optimiser, Values
from simnet.strategies.replicas import Replicas


class DataParallel(Strategy):
    """The gradients of every step are averaged, and all workers apply the average.

    Parameters
    ----------
    replicas : Replicas
        What is trained.
    inner : Optimiser
        What applies the average.
    averaging : Averaging
        How gradients are averaged: the scheme.

    References
    ----------
    S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
    """

    name = "dataparallel"
    paper = "Li et al., VLDB 2020 (PyTorch's DistributedDataParallel)"
    alike = True
    takes_late = True

    def __init__(self, replicas: Replicas, *, inner: Optimiser, averaging: Averaging = Averaging()) -> None:
        super().__init__(replicas, inner)
        self._averager = self.averager("gradients", averaging)

    def _advance(self, gradients: Values) -> Sequence[Sync]:
        update, syncs = self.average(self._averager, gradients)
        self.apply(update)
        return syncs

    def apply(self, update: Values) -> None:
        """Move the parameters of all workers by an average gradient, float32 of shape (n,).

        For whoever exchanges gradients otherwise, such as a job whose policy chooses the scheme.
        """
        self.descend(update[np.newaxis])


class GradientAccumulation(DataParallel):
    """The gradients of several inner steps are added up by each worker; their mean is then averaged and applied.

    Parameters
    ----------
    replicas, inner, averaging
        As of `DataParallel`.
    period : int
        H, the inner steps from one exchange to the next, >= 1. With 1 it is data parallelism.

    References
    ----------
    S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, section 3.2.4
    (``no_sync``).
    """

    name = "accumulation"
    paper = "Li et al., VLDB 2020, section 3.2.4 (no_sync)"

    def __init__(
        self,
        replicas: Replicas,
        *,
        inner: Optimiser,
        period: Count,
        averaging: Averaging = Averaging(),
    ) -> None:
        super().__init__(replicas, inner=inner, averaging=averaging)
        self.period = check_int(period, "period", 1)
        self._sum = self.keep("sum", np.zeros((self.workers, replicas.parameters), dtype=np.float32))

    @property
    def steps(self) -> int:
        """H."""
        return self.period

    def _advance(self, gradients: Values) -> Sequence[Sync]:
        self._sum[self.active] += gradients
        if not self.due(self.period):
            return []
        syncs = super()._advance(self._sum[self.active] / np.float32(self.period))
        self._sum[self.active] = 0
        return syncs
