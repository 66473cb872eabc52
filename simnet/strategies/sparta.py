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
from simnet.strategies.optimisers import SGD, Index, Optimiser, Values, row_column_index
from simnet.strategies.replicas import Replicas

Masks: TypeAlias = Literal["broadcast", "seeded"]
Draw: TypeAlias = Callable[[int], NDArray[np.bool_]]
"""Returns which parameters are averaged after an inner step, bool of shape (n,), from its number."""

_FLOAT, _BOOL = 4.0, 1.0


class SparseAveraging:
    """Averages each parameter over the workers with probability `share`.

    Worker 0 broadcasts the masks, a byte for each parameter, or all workers draw them from one seed. `algorithm` and
    `broadcast` are the all-reduce and the broadcast; `draw` replaces the random masks.
    """

    def __init__(
        self,
        replicas: Replicas,
        share: float,
        masks: Masks,
        algorithm: str,
        broadcast: str = "binomial",
        draw: Draw | None = None,
    ) -> None:
        check_choice(masks, "masks", ("broadcast", "seeded"))
        AlgorithmOf("all_reduce").check("algorithm", algorithm)
        AlgorithmOf("broadcast").check("broadcast", broadcast)
        self._replicas, self._share, self._masks = replicas, check_bounds(share, PositiveShare, "share"), masks
        self._reduce, self._broadcast = registry.find("all_reduce", algorithm), broadcast
        self._draw = draw or self._drawn
        # Masks are as long every time.
        self._spread: dict[int, list[Sync]] = {}

    def __call__(self, local: Values, iteration: int, active: Index) -> list[Sync]:
        """Average the drawn parameters of the active workers in place, and return the exchanges."""
        mask = np.asarray(self._draw(iteration))
        if mask.dtype != np.bool_ or mask.shape != local.shape[1:]:
            raise ValueError(f"a mask must be bool of shape {local.shape[1:]}, got {mask.dtype} of shape {mask.shape}")
        at = row_column_index(active, np.flatnonzero(mask))
        rows = local[at]
        local[at] = np.add.reduce(rows, axis=0) / np.float32(len(rows))
        return self._syncs(mask, len(rows), iteration)

    def _drawn(self, iteration: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (
            stream(self._replicas.seed, "sparta", iteration).random(self._replicas.parameters) < self._share
        )
        return found

    def _syncs(self, mask: NDArray[np.bool_], workers: int, iteration: int) -> list[Sync]:
        """Return what is sent of each tensor."""
        replicas, syncs, end = self._replicas, list[Sync](), 0
        if self._masks == "broadcast" and workers not in self._spread:
            self._spread[workers] = broadcast_tensors(replicas, "masks", _BOOL, self._broadcast, workers, 0)
        for number, (_, size) in enumerate(replicas.tensors):
            end += size
            entries, whole = np.count_nonzero(mask[end - size : end]) * replicas.scale, size * replicas.scale
            reduction = self._reduce.schedule(workers, _FLOAT * entries)
            steps = DeviceOp("scan", whole), reduction, DeviceOp("scatter", entries)
            if self._masks == "broadcast":
                syncs.append(self._spread[workers][number]._replace(begin=iteration))
            syncs.append(Sync("parameters", *in_order(workers, *steps), iteration))
        return syncs


class SPARTA(DiLoCo):
    """After every inner step each parameter is averaged over the workers with probability p.

    With a period H, DiLoCo makes an outer step every H inner steps as well (SPARTA-DiLoCo).

    Parameters
    ----------
    replicas : Replicas
        What is trained.
    inner : Optimiser
        The optimiser of each worker.
    share, masks, algorithm, broadcast, draw
        As of `SparseAveraging`.
    period : int, optional
        H of DiLoCo, >= 1; no outer step if None.
    outer, averaging, compat
        As of `DiLoCo`, where there is a period.

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
        self._sparse = SparseAveraging(replicas, share, masks, algorithm, broadcast, draw)
        self.takes_late = False

    @property
    def steps(self) -> int:
        """1: something is exchanged after every inner step."""
        return 1

    def _advance(self, gradients: Values) -> Sequence[Sync]:
        self.descend(gradients)
        syncs = self._sparse(self.local, self.iteration, self.active)
        outer = self._has_outer_step and self.due(self.period, self.one_late)
        return [*syncs, *self._synchronise()] if outer else syncs
