"""Local SGD: workers train alone, and average their parameters now and then."""

from __future__ import annotations

from typing import Literal, get_args

from simnet.base.checks import check_choice
from simnet.base.quantities import Count
from simnet.strategies.averaging import Averaging, Sync
from simnet.strategies.base import PeriodicStrategy, row_distances
from simnet.strategies.optimisers import Optimiser
from simnet.strategies.replicas import Replicas

Counting = Literal["paper", "gym"]
"""After which inner steps workers synchronise: H, 2 H, ..., or, as exo-explore/gym counts, H + 1, 2 H + 1, ..."""


class LocalSGD(PeriodicStrategy):
    """Every H inner steps the parameters of all workers are averaged; what the optimiser remembers stays local.

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
        check_choice(compat, "compat", get_args(Counting))
        self.takes_late = compat != "gym"
        self._averager = self.averager("parameters", averaging)

    def _synchronise(self) -> list[Sync]:
        mean, syncs = self.average(self._averager, self.local[self.active])
        self.note("drift", row_distances(self.local[self.active], mean))
        self.local[self.active] = mean
        return syncs
