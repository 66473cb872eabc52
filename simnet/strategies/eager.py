"""Overlapped DiLoCo: an exchange takes a whole round of inner steps, and its outcome comes a round late.

No code of the authors is known; the formulas are from summaries of the paper, not read in it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from simnet.base.checks import check_choice
from simnet.base.quantities import Count
from simnet.strategies.averaging import Averaging, Sync
from simnet.strategies.base import PeriodicStrategy, row_distances
from simnet.strategies.diloco import INNER
from simnet.strategies.optimisers import SGD, Optimiser
from simnet.strategies.replicas import Replicas

LATE = SGD(0.4, momentum=0.9, nesterov=True)
"""The outer optimiser of overlapped DiLoCo: the learning rate after a summary of the paper, the rest DiLoCo's."""


class DelayedDiLoCo(PeriodicStrategy):
    """DiLoCo whose outer step takes the average pseudo-gradient of the round before, which had that long to arrive.

    Parameters
    ----------
    replicas : Replicas
        What is trained.
    inner, outer : Optimiser, SGD
        The optimisers of each worker, and of the global parameters.
    period : int
        H, the inner steps of a round, >= 1.
    averaging : Averaging
        How pseudo-gradients are averaged: the scheme.

    References
    ----------
    S. Kale et al., "Eager Updates For Overlapped Communication and Computation in DiLoCo", arXiv 2502.12996, after a
    summary: the naive delayed outer gradients.
    """

    name = "delayed"
    paper = "Kale et al., arXiv 2502.12996 (naive delayed), second-hand"
    delays = True

    def __init__(
        self,
        replicas: Replicas,
        *,
        inner: Optimiser = INNER,
        outer: SGD = LATE,
        period: Count = 30,
        averaging: Averaging = Averaging(),
    ) -> None:
        super().__init__(replicas, inner, period)
        self.outer = outer
        self.master, self._outer_state = self.keep_master(outer)
        self._before = self.keep("before", np.zeros_like(self.master))
        self._averager = self.averager("pseudo-gradients", averaging)

    def _synchronise(self) -> list[Sync]:
        own = self.master - self.local[self.active]
        self.note("drift", row_distances(own, np.zeros_like(self.master[0])))
        average, syncs = self.average(self._averager, own, delay=self.period)
        self.outer.step(self.master, self._before, self._outer_state)
        self._before[0] = average
        self.local[self.active] = self.master
        return syncs


class EagerDiLoCo(PeriodicStrategy):
    """DiLoCo whose outer step takes a worker's own pseudo-gradient at once, and those of the others a round late.

    The global parameters of the workers differ by that meanwhile.

    Parameters
    ----------
    replicas : Replicas
        What is trained.
    inner, outer : Optimiser, SGD
        The optimisers of each worker, and of its global parameters.
    period : int
        H, the inner steps of a round, >= 1.
    first : {"absent", "own"}
        What stands for the others in the first round, which the summaries do not tell: nothing, or the worker's own.
    averaging : Averaging
        How pseudo-gradients are averaged: the scheme.

    References
    ----------
    S. Kale et al., "Eager Updates For Overlapped Communication and Computation in DiLoCo", arXiv 2502.12996, after a
    summary: (D_p(t) + the sum of all other D_q(t - H)) / P.
    """

    name = "eager"
    paper = "Kale et al., arXiv 2502.12996, second-hand"
    delays = True

    def __init__(
        self,
        replicas: Replicas,
        *,
        inner: Optimiser = INNER,
        outer: SGD = LATE,
        period: Count = 30,
        first: Literal["absent", "own"] = "absent",
        averaging: Averaging = Averaging(),
    ) -> None:
        super().__init__(replicas, inner, period)
        check_choice(first, "first", ("absent", "own"))
        self.outer, self.first = outer, first
        self.master, self._outer_state = self.keep_master(outer, self.workers)
        self._others = self.keep("others", np.zeros_like(self.master))
        self._averager = self.averager("pseudo-gradients", averaging)

    def _synchronise(self) -> list[Sync]:
        active = self.active
        own = self.master[active] - self.local[active]
        self.note("drift", row_distances(own, np.zeros_like(self.master[0])))
        average, syncs = self.average(self._averager, own, delay=self.period)
        share = own / np.float32(len(own))
        alone = self.first == "own" and self.iteration < self.period
        self.outer.step(self.master, own if alone else share + self._others[active], self._outer_state, active)
        self._others[active] = average - share
        self.local[active] = self.master[active]
        return syncs
