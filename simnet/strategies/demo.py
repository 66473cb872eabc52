"""DeMo: a few coefficients of the momentum are exchanged after every step, and parameters move by the signs of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simnet.strategies.averaging import Averaging, Sync
from simnet.strategies.data_parallel import DataParallel
from simnet.strategies.optimisers import Decay, LearningRate, SignDescent, Values
from simnet.strategies.replicas import Replicas


class DeMo(DataParallel):
    """Every step, what a scheme makes of the gradients and its residuals is applied by its sign.

    Parameters
    ----------
    replicas : Replicas
        What is trained.
    lr : float
        The learning rate, > 0.
    weight_decay : float
        The share of the parameters, times `lr`, that each step takes away, in [0, 1].
    averaging : Averaging
        The scheme, which has the momentum as its residual.
    scaled : bool
        Whether gradients are multiplied by `lr` before the scheme gets them, as released: the residual then carries it.

    References
    ----------
    B. Peng et al., "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870; bloc97/DeMo.
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
