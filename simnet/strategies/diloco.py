"""DiLoCo: workers train locally, and an outer optimiser uses the change of their parameters as a gradient.

SPARTA averages a few parameters after every inner step; with a period it has the outer step of DiLoCo as well.

No code of overlapped DiLoCo's authors is known; the formulas are from summaries of the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import FLOAT_BYTES, Values
from simnet.base.errors import check_int
from simnet.base.quantities import Count, PositiveShare, Share
from simnet.base.rng import stream
from simnet.collectives import registry
from simnet.cost_models.costs.devices import DeviceOp
from simnet.sparsifier_models.options import AlgorithmOf, Allreduce
from simnet.sparsifier_models.wire import in_order
from simnet.strategies.base import PeriodicStrategy, Strategy, row_distances
from simnet.strategies.optimisers import ALL, SGD, AdamW, LearningRate, Optimiser, row_column_index
from simnet.strategies.replicas import Averaging, Replicas, Sync, broadcast_tensors, fragments_of

INNER = AdamW(4e-4, 0.9, 0.95, weight_decay=0.1)
"""The inner optimiser of OpenDiLoCo."""

OUTER = SGD(0.7, momentum=0.9, nesterov=True)
"""The outer optimiser of OpenDiLoCo, exo-explore/gym and prime."""

LATE = SGD(0.4, momentum=0.9, nesterov=True)
"""The outer optimiser of overlapped DiLoCo: the learning rate after a summary of the paper, the rest DiLoCo's."""

Compat = Literal["paper", "gym", "gym-alias"]
"""Variant of DiLoCo that is followed: the paper, exo-explore/gym, or the latter with its aliasing."""


class DiLoCo(PeriodicStrategy):
    """Every `period` inner steps the pseudo-gradients are averaged for an outer step, and all workers continue from it.

    A pseudo-gradient is the global parameters less those of the worker. With `scaled` they are multiplied by the outer
    learning rate before they are exchanged, which then acts twice. `compat` ``paper`` is also torchft. In
    exo-explore/gym (``gym``) the parameters are averaged, worker 0 alone makes the outer step and broadcasts all
    parameters by `broadcast`, and the first time comes after H + 1 inner steps. There, on a CPU, the parameters of
    worker 0 share their memory with the global ones after the first exchange (``gym-alias``), so its later
    pseudo-gradients are 0, and only the momentum moves the average.

    References
    ----------
    A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv 2311.08105.
    """

    name = "diloco"
    paper = "Douillard et al., arXiv 2311.08105"
    master_per_worker: ClassVar[bool] = False
    """Whether each worker has its own copy of the global parameters."""

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
        super().__init__(replicas, inner, period, one_late=compat != "paper")
        self.outer, self.scaled, self.compat, self._broadcast = outer, scaled, compat, broadcast
        self.takes_late = compat == "paper"
        self.master, self._outer_state = self.keep_master(outer, self.workers if self.master_per_worker else 1)
        self._averager = self.averager("pseudo-gradients" if compat == "paper" else "parameters", averaging)

    def _synchronise(self) -> list[Sync]:
        drift = row_distances(self.local[self.active], self.master[0])
        self.note("drift", drift)
        pseudo_gradient, syncs = self._pseudo_gradient()
        self.outer.step(self.master, pseudo_gradient[None], self._outer_state)
        if self.compat != "paper":
            syncs += broadcast_tensors(
                self.replicas, "parameters", FLOAT_BYTES, self._broadcast, drift.size, self.iteration
            )
        self.local[self.active] = self.master
        return syncs

    def _pseudo_gradient(self) -> tuple[Values, list[Sync]]:
        """Return the average pseudo-gradient, shape (n,), and the exchanges that compute it."""
        local = self.local[self.active]
        if self.compat == "paper":
            moved = self.master - local
            return self.average(self._averager, moved * self.outer.lr if self.scaled else moved)
        mean, syncs = self.average(self._averager, local)
        if self.compat == "gym-alias" and self.iteration > self.period:
            # The average was written to the parameters of worker 0.
            self.master[:] = mean
        return self.master[0] - mean, syncs


class SparseLoCo(DiLoCo):
    """DiLoCo with compressed pseudo-gradients. The outer learning rate applies twice: to these and to the outer step.

    The outer learning rate eta is `lr`; with ``scaled=False`` it acts once.
    CCLoco has ``inner=AdamW(8e-4)``. Templar, as Covenant-72B was trained, has ``inner=AdamW(1.17e-4, 0.9, 0.95,
    weight_decay=0.1)``, ``lr=0.4``, ``period=30`` and ``scaled=False``. Each has its scheme: option ``code``.

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
    """DiLoCo with residuals and Nesterov momentum. The outer learning rate scales pseudo-gradients, then outer steps.

    Its inner optimiser is Muon, which `simnet.strategies.optimisers` does not have: another one has to be named.

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


class DelayedDiLoCo(DiLoCo):
    """DiLoCo whose outer step uses the average pseudo-gradient of the previous round, sent during this round.

    S. Kale et al., "Eager Updates For Overlapped Communication and Computation in DiLoCo", after a summary.
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
        super().__init__(replicas, inner=inner, outer=outer, period=period, averaging=averaging)
        self.takes_late = False
        self._before = self.keep("before", np.zeros_like(self.master))

    def _synchronise(self) -> list[Sync]:
        at = self.active if self.master_per_worker else ALL
        own = self.master[at] - self.local[self.active]
        self.note("drift", row_distances(own, np.zeros_like(self.master[0])))
        average, syncs = self.average(self._averager, own, delay=self.period)
        self._step_outer(own, average)
        self.local[self.active] = self.master[at]
        return syncs

    def _step_outer(self, own: Values, average: Values) -> None:
        self.outer.step(self.master, self._before, self._outer_state)
        self._before[0] = average


class EagerDiLoCo(DelayedDiLoCo):
    """DiLoCo whose outer step uses a worker's own pseudo-gradient at once, and those of others a round later.

    (D_p(t) + the sum of all other D_q(t - H)) / P, after a summary of S. Kale et al. `first` says what stands for the
    others in the first round, which the summaries do not tell: nothing (``absent``), or the worker's ``own``.
    """

    name = "eager"
    paper = "Kale et al., arXiv 2502.12996, second-hand"
    master_per_worker = True

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
        super().__init__(replicas, inner=inner, outer=outer, period=period, averaging=averaging)
        self.first = first

    def _step_outer(self, own: Values, average: Values) -> None:
        active, share = self.active, own / np.float32(len(own))
        alone = self.first == "own" and self.iteration < self.period
        self.outer.step(self.master, own if alone else share + self._before[active], self._outer_state, active)
        self._before[active] = average - share


class StreamingDiLoCo(Strategy):
    """DiLoCo that exchanges one fragment at a time, and applies the average `delay` inner steps later.

    `fragments` is F, or the names of the layers of each in the order of their turns; each has a momentum of its own.
    `period` is H, a multiple of F. The outer step is made `delay` = tau < H / F inner steps after pseudo-gradients are
    taken. `mixing` is alpha, the weight of the worker's own parameters when it takes over the global ones: with 0 what
    it trained during the delay is lost.

    References
    ----------
    A. Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv 2501.18512; pytorch/torchft,
    ``DiLoCo``.
    """

    name = "streaming"
    takes_late = True
    paper = "Douillard et al., arXiv 2501.18512"

    def __init__(
        self,
        replicas: Replicas,
        *,
        fragments: Count | Sequence[Sequence[str]],
        inner: Optimiser = INNER,
        outer: SGD = OUTER,
        period: Count = 100,
        delay: int = 1,
        mixing: Share = 0.0,
        averaging: Averaging = Averaging(),
    ) -> None:
        super().__init__(replicas, inner)
        self.fragments = fragments_of(replicas, fragments)
        self.period, count = check_int(period, "period", 1), len(self.fragments)
        if period % count:
            raise ValueError(f"period must be a multiple of the {count} fragments, got {period}")
        self._between = self.steps = period // count
        sizes = [sum(replicas.tensors[layer][1] for layer in one.layers) for one in self.fragments]
        self.shares = tuple(size / replicas.parameters for size in sizes)
        self.delay = check_int(delay, "delay", 0)
        if delay >= self._between:
            raise ValueError(
                f"delay must be less than the {self._between} inner steps from one fragment to the next, got {delay}"
            )
        self.outer, self.mixing = outer, np.float32(mixing)
        self.master, self._outer_state = self.keep_master(outer)
        self._under_way = self.keep("under way", np.zeros_like(self.master))
        self._averagers_of = [
            self.averager("pseudo-gradients", averaging, fragment, f"fragment {number}")
            for number, fragment in enumerate(self.fragments)
        ]

    def begins_exchange(self) -> bool | None:
        """Return whether the pseudo-gradients of a fragment are taken after the next inner step."""
        return (self.iteration + self.delay) % self._between == self._between - 1

    def _advance(self, gradients: Values) -> Sequence[Sync]:
        self.descend(gradients)
        turn, steps = self.iteration // self._between % len(self.fragments), self.iteration % self._between + 1
        columns = self.fragments[turn].entries
        syncs: list[Sync] = []
        if self.begins_exchange():
            local, own = self.local[row_column_index(self.active, columns)], self.master[:, columns]
            self.note("drift", row_distances(local, own[0]))
            average, syncs = self.average(self._averagers_of[turn], own - local, self.delay)
            self._under_way[:, columns] = average
        if steps == self._between:
            self.outer.step(self.master, self._under_way[:, columns], self._outer_state, ALL, columns)
            at, own = row_column_index(self.active, columns), self.master[:, columns]
            self.local[at] = own + self.mixing * (self.local[at] - own)
        return syncs


Masks: TypeAlias = Literal["broadcast", "seeded"]
Draw: TypeAlias = Callable[[int], NDArray[np.bool_]]
"""Function from the number of an inner step to the mask of averaged parameters, bool of shape (n,)."""

_BOOL = 1.0


class SPARTA(DiLoCo):
    """After every inner step each parameter is averaged over the workers with probability `share`.

    With a period H, DiLoCo makes an outer step every H inner steps as well (SPARTA-DiLoCo), by `outer`, `averaging` and
    `compat`. p is `share`. Worker 0 broadcasts the `masks`, a byte for each parameter, or all workers draw them from
    one seed (``seeded``); `draw` replaces the random masks.

    References
    ----------
    exo-explore/gym, ``SPARTAStrategy`` (p 0.005, masks are broadcast) and ``SPARTADiLoCoStrategy`` (H 100), whose
    `sparta_interval` has no effect.
    """

    name = "sparta"
    paper = "EXO Labs (exo-explore/gym)"

    def __init__(
        self,
        replicas: Replicas,
        *,
        inner: Optimiser,
        share: PositiveShare = 0.005,
        masks: Masks = "broadcast",
        algorithm: Allreduce = "ring",
        broadcast: Annotated[str, AlgorithmOf("broadcast")] = "binomial",
        draw: Draw | None = None,
        period: Count | None = None,
        outer: SGD = OUTER,
        averaging: Averaging = Averaging(),
        compat: Compat = "gym",
    ) -> None:
        self._has_outer_step = period is not None
        if period is None:
            Strategy.__init__(self, replicas, inner)
        else:
            super().__init__(
                replicas, inner=inner, outer=outer, period=period, averaging=averaging, compat=compat,
                broadcast=broadcast,
            )  # fmt: skip
        self._masks = masks
        self._reduce, self._broadcast = registry.collective_by_algorithm("all_reduce", algorithm), broadcast
        self._draw = draw or (
            lambda iteration: stream(replicas.seed, "sparta", iteration).random(replicas.parameters) < share
        )
        # Masks are as long every time.
        self._spread: dict[int, list[Sync]] = {}
        # Something is exchanged after every inner step.
        self.steps, self.takes_late = 1, False

    def begins_exchange(self) -> None:
        """Return None, because each step draws at random which parameters it averages, possibly none."""

    def _advance(self, gradients: Values) -> Sequence[Sync]:
        self.descend(gradients)
        mask = np.asarray(self._draw(self.iteration))
        if mask.dtype != np.bool_ or mask.shape != self.local.shape[1:]:
            expected = f"bool of shape {self.local.shape[1:]}"
            raise ValueError(f"a mask must be {expected}, got {mask.dtype} of shape {mask.shape}")
        at = row_column_index(self.active, np.flatnonzero(mask))
        rows = self.local[at]
        self.local[at] = np.add.reduce(rows, axis=0) / np.float32(len(rows))
        syncs = self._syncs(mask, len(rows))
        outer = self._has_outer_step and self.due(self.period, self.one_late)
        return [*syncs, *self._synchronise()] if outer else syncs

    def _syncs(self, mask: NDArray[np.bool_], workers: int) -> list[Sync]:
        """Return the broadcast of the mask, if any, and the all-reduce of each tensor's masked parameters."""
        replicas, syncs, end = self.replicas, list[Sync](), 0
        if self._masks == "broadcast" and workers not in self._spread:
            self._spread[workers] = broadcast_tensors(replicas, "masks", _BOOL, self._broadcast, workers, 0)
        for number, (_, size) in enumerate(replicas.tensors):
            end += size
            entries, whole = np.count_nonzero(mask[end - size : end]) * replicas.scale, size * replicas.scale
            reduction = self._reduce.schedule(workers, FLOAT_BYTES * entries)
            steps = DeviceOp("scan", whole), reduction, DeviceOp("scatter", entries)
            if self._masks == "broadcast":
                syncs.append(self._spread[workers][number]._replace(begin=self.iteration))
            syncs.append(Sync("parameters", *in_order(workers, *steps), self.iteration))
        return syncs
