"""DiLoCo: workers train alone, and what they have moved by is the gradient of an outer optimiser."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from simnet.base.checks import check_choice
from simnet.base.quantities import Count
from simnet.sparsifier_models.options import AlgorithmOf
from simnet.strategies.averaging import Averaging, Sync, broadcast_tensors
from simnet.strategies.base import PeriodicStrategy, row_distances
from simnet.strategies.optimisers import SGD, AdamW, Optimiser, Values
from simnet.strategies.replicas import Replicas

INNER = AdamW(4e-4, 0.9, 0.95, weight_decay=0.1)
"""The inner optimiser of OpenDiLoCo."""

OUTER = SGD(0.7, momentum=0.9, nesterov=True)
"""The outer optimiser of OpenDiLoCo, exo-explore/gym and prime."""

Compat = Literal["paper", "gym", "gym-alias"]
"""Which numbers result, and what is sent: see `DiLoCo`."""

_FLOAT = 4.0


class DiLoCo(PeriodicStrategy):
    """Every H inner steps the pseudo-gradients are averaged for an outer step, from which all workers continue.

    A pseudo-gradient is the global parameters less those of the worker.

    Parameters
    ----------
    replicas : Replicas
        What is trained.
    inner : Optimiser
        The optimiser of each worker, whose memory stays local.
    outer : SGD
        The optimiser of the global parameters.
    period : int
        H, >= 1.
    averaging : Averaging
        How pseudo-gradients are averaged: the scheme.
    scaled : bool
        Whether pseudo-gradients are multiplied by the outer learning rate before they are exchanged, which then acts
        twice.
    compat : {"paper", "gym", "gym-alias"}
        ``paper`` is also torchft. In exo-explore/gym (``gym``) the parameters are averaged, worker 0 alone makes the
        outer step and broadcasts all parameters, and the first time comes after H + 1 inner steps. There, on a CPU,
        the parameters of worker 0 share their memory with the global ones from the first time on (``gym-alias``):
        later pseudo-gradients are 0, and the momentum alone moves the average.
    broadcast : str
        How gym's broadcast is made.

    References
    ----------
    A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv 2311.08105.
    """

    name = "diloco"
    paper = "Douillard et al., arXiv 2311.08105"

    def __init__(
        self,
        replicas: Replicas,
        *,
        inner: Optimiser = INNER,
        outer: SGD = OUTER,
        period: Count = 500,
        averaging: Averaging = Averaging(),
        scaled: bool = False,
        compat: Compat = "paper",
        broadcast: Annotated[str, AlgorithmOf("broadcast")] = "binomial",
    ) -> None:
        super().__init__(replicas, inner, period)
        check_choice(compat, "compat", get_args(Compat))
        AlgorithmOf("broadcast").check("broadcast", broadcast)
        self.outer, self.scaled, self.compat, self._broadcast = outer, scaled, compat, broadcast
        self.takes_late, self.one_late = compat == "paper", compat != "paper"
        self.master, self._outer_state = self.keep_master(outer)
        self._averager = self.averager("pseudo-gradients" if compat == "paper" else "parameters", averaging)

    def _synchronise(self) -> list[Sync]:
        drift = row_distances(self.local[self.active], self.master[0])
        self.note("drift", drift)
        pseudo_gradient, syncs = self._pseudo_gradient()
        self.outer.step(self.master, pseudo_gradient[None], self._outer_state)
        if self.compat != "paper":
            syncs += broadcast_tensors(self.replicas, "parameters", _FLOAT, self._broadcast, drift.size, self.iteration)
        self.local[self.active] = self.master
        return syncs

    def _pseudo_gradient(self) -> tuple[Values, list[Sync]]:
        """Return the average pseudo-gradient, and the exchanges that made it."""
        local = self.local[self.active]
        if self.compat == "paper":
            moved = self.master - local
            return self.average(self._averager, moved * self.outer.lr if self.scaled else moved)
        mean, syncs = self.average(self._averager, local)
        if self.compat == "gym-alias" and self.iteration > self.period:
            # The average was written to the parameters of worker 0.
            self.master[:] = mean
        return self.master[0] - mean, syncs
