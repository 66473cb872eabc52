"""Dense: the whole gradient by an all-reduce, nothing selected and nothing kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from simnet.base.quantities import Count
from simnet.collectives import registry
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Cost, Exchange, Sparsifier
from simnet.sparsifier_models.options import AlgorithmOf, Options
from simnet.sparsifier_models.selection import Values, squared_norms


@dataclass(frozen=True, kw_only=True)
class DenseOptions(Options):
    """Options of `Dense`.

    Parameters
    ----------
    algorithm : str
        How the gradients are reduced: an all-reduce of `simnet.collectives.registry`.
    group_size : int
        Of ``hierarchical``: workers, consecutive, that reduce among themselves before their first ones do, >= 1.
    """

    algorithm: Annotated[str, AlgorithmOf("all_reduce", ("group_size",))] = "ring"
    group_size: Count = 8


class Dense(Sparsifier):
    """Dense all-reduce. Whatever the density, it sends everything, with the residual it may have been handed.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, Table I.

    Examples
    --------
    >>> exchange = Dense(workers=2, parameters=3).exchange(np.array([[1, 2, 3], [3, 4, 5]], dtype=np.float32))
    >>> exchange.update, exchange.schedule.bytes_sent()
    (array([2., 3., 4.], dtype=float32), array([12., 12.]))
    """

    name = "dense"
    # PyTorch's DistributedDataParallel itself.
    overlaps = True
    paper = "textbook all-reduce"
    fixed_volume = True
    costs: ClassVar[tuple[Cost, ...]] = tuple(
        one.cost for one in registry.built_in() if one.operation == "all_reduce" and one.cost is not None
    )
    option_type = DenseOptions
    sends_all = True
    reads_gradients = False
    options: DenseOptions
    keeps_residual = False

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        return Exchange(
            update=np.add.reduce(corrected, axis=0) / np.float32(self.workers),
            schedule=self._reduction(self.parameters * self.wire.value_bytes),
            selected=np.full(self.workers, self.parameters),
            kernels=(),
            union=self.parameters,
            sent=squared_norms(corrected),
        )

    def _reduction(self, nbytes: float) -> Schedule:
        """Return the messages that reduce a vector of so many bytes."""
        chosen = registry.find("all_reduce", self.options.algorithm)
        return chosen.schedule(self.workers, nbytes, **{name: getattr(self.options, name) for name in chosen.needs})
