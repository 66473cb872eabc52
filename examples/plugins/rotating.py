"""A scheme in one file, as `docs/extending.md` has it."""

import numpy as np

from simnet.collectives import allreduce_ring
from simnet.cost_models.costs.devices import DeviceOp
from simnet.sparsifier_models import Exchange, Sparsifier
from simnet.sparsifier_models.selection import Values, take_mean


class Rotating(Sparsifier):
    """Every worker sends the same k neighbouring entries, another stretch in each iteration; no indices travel."""

    name = "rotating"
    paper = "an example"

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        P, n, k = self.workers, self.parameters, self.k
        indices = (self.iteration * k + np.arange(k)) % n
        update, sent = take_mean(corrected, indices)  # what is left in `corrected` becomes the residual
        values = allreduce_ring(P, k * self.wire.value_bytes)
        return self._make_exchange(update, [DeviceOp("gather", k), values, DeviceOp("scatter", k)], sent, union=k)
