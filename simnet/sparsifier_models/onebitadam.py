"""1-bit Adam: the momentum of Adam by signs, once its variance is frozen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simnet.base.quantities import Count
from simnet.costs import onebit_allreduce, ring_allreduce
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.onebit import OneBit, OneBitOptions
from simnet.sparsifier_models.selection import Values, squared_norms


@dataclass(frozen=True, kw_only=True)
class OneBitAdamOptions(OneBitOptions):
    """Options of `OneBitAdam`.

    Parameters
    ----------
    freeze_step : int
        Dense steps before the compressed ones, >= 1. In them v is learnt, so that jobs take many.
    """

    freeze_step: Count = 2


class OneBitAdam(OneBit):
    """1-bit Adam. Its steps are those of the optimiser, whose moments it holds; use SGD without momentum after it.

    In the warm-up gradients are reduced densely, and m and v are those of Adam without bias correction. Then v stays;
    each worker makes its own m of the common one and its gradient, and the compressed all-reduce of these is the new
    common m. The update is m / (sqrt v + eps).

    With ``compat="released"`` the first step updates nothing: its gradient is reduced, a compressed all-reduce of zeros
    allocates the memories, and the steps are counted from there. Wires ``paper`` and ``released`` are the same, that of
    the code.

    References
    ----------
    H. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed", ICML 2021;
    code deepspeedai/DeepSpeed, commit edaa722, ``runtime/fp16/onebit``, ``runtime/comm/compressed.py``.

    Examples
    --------
    >>> model = OneBitAdam(workers=2, parameters=1000, freeze_step=1)
    >>> gradients = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float32)
    >>> [int(model.exchange(gradients).schedule.bytes_sent()[0]) for _ in range(2)]
    [4000, 134]
    """

    name = "onebitadam"
    restarts = False
    paper = "Tang et al., ICML 2021, arXiv 2102.02888"
    costs = (onebit_allreduce, ring_allreduce)
    option_type = OneBitAdamOptions
    options: OneBitAdamOptions

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        sent, step = squared_norms(corrected), self.step
        self.step += 1
        if self.options.compat == "released" and step == 0:
            return self._exchanged("first", np.zeros(self.parameters, dtype=np.float32), self._first, sent=sent)
        if step < self.options.freeze_step:
            mean = self._mean(corrected)
            self.m = self._averaged(mean, self.m)
            self._squared(mean)
            return self._exchanged("dense", self.m[0] / self.denominator, self._warm, sent=sent)
        denominator, common = self.denominator, self.m[0]
        m = self._reduce(lambda worker: self._averaged(corrected[worker], common))
        if self.options.masked:
            m[self.v == 0] = 0
        self.m = m[None].copy()
        return self._exchanged("compressed", m / denominator, self._compressed, sent=sent)
