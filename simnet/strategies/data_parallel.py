"""Data parallelism, gradient accumulation, DeMo and local SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from simnet.base.arrays import Values
from simnet.base.errors import check_int
from simnet.base.quantities import Count
from simnet.strategies.base import PeriodicStrategy, Strategy, row_distances
from simnet.strategies.optimisers import Decay, LearningRate, Optimiser, SignDescent
from simnet.strategies.replicas import Averaging, Replicas, Sync


class DataParallel(Strategy):
    """The gradients of every step are averaged, and all workers apply the average."""

    name = "dataparallel"
    paper = "Li et al., VLDB 2020 (PyTorch's DistributedDataParallel)"
    alike = True
    takes_late = True

    def __init__(self, replicas: Replicas, *, inner: Optimiser, averaging: Averaging = Averaging()) -> None:
        super().__init__(replicas, inner)
        self._averager = self.averager("gradients", averaging)

    def _advance(self, gradients: Values) -> Sequence[Sync]:
        update, syncs = self.average(self._averager, gradients)
        self.descend(update[np.newaxis])
        return syncs


class GradientAccumulation(DataParallel):
    """Each worker adds up the gradients of several inner steps; their mean is then averaged and applied."""

    name = "accumulation"
    paper = "Li et al., VLDB 2020, section 3.2.4 (no_sync)"

    def __init__(
        self, replicas: Replicas, *, inner: Optimiser, period: Count, averaging: Averaging = Averaging()
    ) -> None:
        super().__init__(replicas, inner=inner, averaging=averaging)
        self.period = self.steps = check_int(period, "period", 1)
        self._sum = self.keep("sum", np.zeros((self.workers, replicas.parameters), dtype=np.float32))

    def _advance(self, gradients: Values) -> Sequence[Sync]:
        self._sum[self.active] += gradients
        if not self.due(self.period):
            return []
        syncs = super()._advance(self._sum[self.active] / np.float32(self.period))
        self._sum[self.active] = 0
        return syncs


class DeMo(DataParallel):
    """In every step workers exchange gradients by a scheme, and move each parameter by the sign of the update.

    The scheme has the momentum as its residual. With `scaled` gradients are multiplied by `lr` before the scheme gets
    them, as released (bloc97/DeMo).
    """

    name = "demo"
    paper = "Peng et al., arXiv 2411.19870"

    def __init__(
        self,
        replicas: Replicas,
        *,
        lr: LearningRate = 4e-4,
        weight_decay: Decay = 0.0,
        averaging: Averaging = Averaging("demo"),
        scaled: bool = True,
    ) -> None:
        super().__init__(replicas, inner=SignDescent(lr, weight_decay), averaging=averaging)
        self._scale = np.float32(lr if scaled else 1.0)

    def _advance(self, gradients: Values) -> Sequence[Sync]:
        return super()._advance(gradients if self._scale == 1 else self._scale * gradients)


Counting = Literal["paper", "gym"]
"""Inner steps after which workers synchronise: H, 2 H, ... (paper) or H + 1, 2 H + 1, ... (exo-explore/gym)."""


class LocalSGD(PeriodicStrategy):
    """Every `period` inner steps the parameters of all workers are averaged; the optimisers' states stay local.

    H is `period`; with ``compat="gym"`` they are after H + 1, 2 H + 1, ... inner steps, as in exo-explore/gym.

    References
    ----------
    S. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; pytorch/torchft, ``LocalSGD``.
    FedAvg: H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
    2017; exo-explore/gym, ``FedAvgStrategy``, without its islands: ``compat="gym"`` with ``inner=AdamW()``.
    """

    name = "localsgd"
    paper = "Stich, ICLR 2019"

    def __init__(
        self,
        replicas: Replicas,
        *,
        inner: Optimiser,
        period: Count,
        averaging: Averaging = Averaging(),
        compat: Counting = "paper",
    ) -> None:
        super().__init__(replicas, inner, period, one_late=compat == "gym")
        self.takes_late = compat != "gym"
        self._averager = self.averager("parameters", averaging)

    def _synchronise(self) -> list[Sync]:
        mean, syncs = self.average(self._averager, self.local[self.active])
        self.note("drift", row_distances(self.local[self.active], mean))
        self.local[self.active] = mean
        return syncs
