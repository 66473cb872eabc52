"""SparseLoCo and MuLoCo: DiLoCo rounds whose pseudo-gradients a scheme with a decaying residual compresses.

The residual takes the place of the outer momentum. The scheme of the same name in `simnet.sparsifier_models` selects
and encodes; H and the outer step are here, as in the released codes.
"""

from __future__ import annotations

from simnet.base.quantities import Count
from simnet.strategies.averaging import Averaging
from simnet.strategies.diloco import DiLoCo
from simnet.strategies.optimisers import SGD, AdamW, LearningRate, Optimiser
from simnet.strategies.replicas import Replicas


class SparseLoCo(DiLoCo):
    """DiLoCo with compressed pseudo-gradients and a plain outer step; eta acts twice.

    CCLoco has ``inner=AdamW(8e-4)``. Templar, as Covenant-72B was trained, has ``inner=AdamW(1.17e-4, 0.9, 0.95,
    weight_decay=0.1)``, ``lr=0.4``, ``period=30`` and ``scaled=False``. Each has its scheme: option ``code``.

    Parameters
    ----------
    replicas, inner, period, averaging
        As of `DiLoCo`.
    lr : float
        eta, the outer learning rate, > 0.
    scaled : bool
        If true, pseudo-gradients are multiplied by eta before the exchange, so that eta acts twice.

    References
    ----------
    "Communication Efficient LLM Pre-training with SparseLoCo", arXiv 2508.15706; QErywan/RobustDiLoCo at its first
    commit. CCLoco: tplr-ai/CCLoco, ``src/tplr/ccloco.py`` and ``train.py``. Templar: one-covenant/templar,
    ``neurons.py`` and ``compress.py``; "Covenant-72B", arXiv 2603.08163.
    """

    name = "sparseloco"
    paper = "SparseLoCo, arXiv 2508.15706"

    def __init__(
        self,
        replicas: Replicas,
        *,
        inner: Optimiser = AdamW(1e-3),
        lr: LearningRate = 1.0,
        period: Count = 15,
        averaging: Averaging = Averaging("sparseloco"),
        scaled: bool = True,
    ) -> None:
        super().__init__(replicas, inner=inner, outer=SGD(lr), period=period, averaging=averaging, scaled=scaled)


class MuLoCo(DiLoCo):
    """DiLoCo with a compressed exchange, residuals, and Nesterov's momentum; eta acts twice.

    Its inner optimiser is Muon, which `simnet.strategies.optimisers` does not have: another one has to be named.

    Parameters
    ----------
    replicas, inner, period, averaging
        As of `DiLoCo`.
    outer : SGD
        The optimiser of the global parameters; its learning rate is eta.
    scaled : bool
        Whether pseudo-gradients are multiplied by eta before they are exchanged, as released with error feedback.

    References
    ----------
    B. Therien et al., "MuLoCo: Muon is a practical inner optimizer for DiLoCo", arXiv 2505.23725;
    facebookresearch/MuLoCo, ``QuantizedOuterSGD``; settings of bentherien/muloco-1.
    """

    name = "muloco"
    paper = "MuLoCo, arXiv 2505.23725"

    def __init__(
        self,
        replicas: Replicas,
        *,
        inner: Optimiser,
        outer: SGD = SGD(0.7, momentum=0.6, nesterov=True),
        period: Count = 30,
        averaging: Averaging = Averaging("muloco"),
        scaled: bool = True,
    ) -> None:
        super().__init__(replicas, inner=inner, outer=outer, period=period, averaging=averaging, scaled=scaled)
