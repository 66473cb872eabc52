"""Random-k: k entries drawn at random, whatever their magnitude.

If all workers draw the same entries, from a seed they share, only values need to travel, and an all-reduce adds them.
"""

from __future__ import annotations

import numpy as np

from simnet.base.rng import stream
from simnet.costs import ring_allreduce, topk_allgather, tree_allreduce
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange
from simnet.sparsifier_models.codes import reader
from simnet.sparsifier_models.gathered import Gathered, GatheredOptions
from simnet.sparsifier_models.options import Allreduce
from simnet.sparsifier_models.selection import Indices, Values, take_mean
from simnet.sparsifier_models.steps import reduce_values
from simnet.sparsifier_models.wire import ADDED_UP, Codes


class RandomkOptions(GatheredOptions):
    """Options of `Randomk`.

    Parameters
    ----------
    shared : bool
        Whether all workers draw the same entries; else each draws its own, and values and indices are all-gathered.
    collective : str
        How values at shared entries are reduced: an all-reduce of `simnet.collectives.registry`.
    """

    shared: bool = True
    collective: Allreduce = "ring"


class Randomk(Gathered, fixed_volume=True, separable=True, costs=(ring_allreduce, tree_allreduce, topk_allgather)):
    """Random-k with a shared seed: an all-reduce of k values; or with own draws, over all-gather.

    A worker packs its values before its first message and applies the update after the last one, which is assumed. The
    draws depend on the seed and the iteration only. Values are not scaled up by n/k: what is not sent is kept.

    References
    ----------
    S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.

    Examples
    --------
    >>> exchange = Randomk(workers=2, parameters=100, density=0.1).exchange(np.ones((2, 100), dtype=np.float32))
    >>> float(exchange.update.sum()), exchange.schedule.bytes_sent()
    (10.0, array([40., 40.]))
    """

    name = "randomk"
    paper = "Stich et al., NeurIPS 2018, arXiv 1809.07599"
    options: RandomkOptions

    ascending = True

    @property
    def codes(self) -> Codes:
        """Values that can be added up, as no index travels; every code where each worker has its own draws."""
        shared = Codes((), ADDED_UP, "workers draw the same entries and add values up on the way")
        return shared if self.options.shared else super().codes

    def _draw(self, *worker: int) -> Indices:
        generator = stream(self.options.seed, "randomk", self.iteration, *worker)
        return np.sort(generator.choice(self.parameters, self.k, replace=False, shuffle=False))

    def _select(self, values: Values, worker: int) -> Indices:
        return self._draw(worker)

    def _selection_kernels(self) -> tuple[DeviceOp, ...]:
        return ()

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        if not self.options.shared:
            return super()._communicate(corrected, gradients)
        indices = self._draw()
        update, sent = take_mean(corrected, indices, read=reader(self.options.values))
        steps = reduce_values(self.workers, indices.size, self.wire, self.options.collective)
        return self._make_exchange(update, steps, sent, union=indices.size)
