"""SPARTA: after every inner step a few parameters, drawn at random, are averaged over the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.checks import check_choice
from simnet.base.quantities import Count, PositiveShare, check_bounds
from simnet.base.rng import stream
from simnet.collectives import registry
from simnet.cost_models.costs.devices import DeviceOp
from simnet.sparsifier_models.options import AlgorithmOf, Allreduce
from simnet.sparsifier_models.steps import in_order
from simnet.strategies.averaging import Averaging, Sync, broadcast_tensors
from simnet.strategies.base import Strategy
from simnet.strategies.diloco import OUTER, Compat, DiLoCo
from simnet.strategies.optimisers import SGD, Optimiser, Values, row_column_index
from simnet.strategies.replicas import Replicas

Masks: TypeAlias = Literal["broadcast", "seeded"]
Draw: TypeAlias = Callable[[int], NDArray[np.bool_]]
"""Function from the number of an inner step to the mask of averaged parameters, bool of shape (n,)."""

_FLOAT, _BOOL = 4.0, 1.0


class SPARTA(DiLoCo):
    """After every inner step each parameter is averaged over the workers with probability p.

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
        check_choice(masks, "masks", ("broadcast", "seeded"))
        AlgorithmOf("all_reduce").check("algorithm", algorithm)
        AlgorithmOf("broadcast").check("broadcast", broadcast)
        self._has_outer_step = period is not None
        if period is None:
            Strategy.__init__(self, replicas, inner)
        else:
            super().__init__(
                replicas, inner=inner, outer=outer, period=period, averaging=averaging, compat=compat,
                broadcast=broadcast,
            )  # fmt: skip
        check_bounds(share, PositiveShare, "share")
        self._masks = masks
        self._reduce, self._broadcast = registry.collective_by_algorithm("all_reduce", algorithm), broadcast
        self._draw = draw or (
            lambda iteration: stream(replicas.seed, "sparta", iteration).random(replicas.parameters) < share
        )
        # Masks are as long every time.
        self._spread: dict[int, list[Sync]] = {}
        # Something is exchanged after every inner step.
        self.steps, self.takes_late = 1, False

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
        """Return the mask broadcast, if any, and the all-reduce of the masked parameters of each tensor."""
        replicas, syncs, end = self.replicas, list[Sync](), 0
        if self._masks == "broadcast" and workers not in self._spread:
            self._spread[workers] = broadcast_tensors(replicas, "masks", _BOOL, self._broadcast, workers, 0)
        for number, (_, size) in enumerate(replicas.tensors):
            end += size
            entries, whole = np.count_nonzero(mask[end - size : end]) * replicas.scale, size * replicas.scale
            reduction = self._reduce.schedule(workers, _FLOAT * entries)
            steps = DeviceOp("scan", whole), reduction, DeviceOp("scatter", entries)
            if self._masks == "broadcast":
                syncs.append(self._spread[workers][number]._replace(begin=self.iteration))
            syncs.append(Sync("parameters", *in_order(workers, *steps), self.iteration))
        return syncs
