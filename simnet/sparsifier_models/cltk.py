"""CLT-k: one worker's top-k indices, everybody's values at them, the workers taking turns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from simnet import collectives
from simnet.base.rows import apply_to_row
from simnet.collectives import registry
from simnet.costs import cltk
from simnet.costs.devices import DeviceOp
from simnet.sparsifier_models.base import Exchange, Sparsifier
from simnet.sparsifier_models.options import Allreduce, Options
from simnet.sparsifier_models.selection import Values, largest, take_mean
from simnet.sparsifier_models.steps import in_order
from simnet.sparsifier_models.value_codes import reader
from simnet.sparsifier_models.wire import GATHERED_AND_REDUCED, Codes


@dataclass(frozen=True, kw_only=True)
class CLTkOptions(Options):
    """Options of `CLTk`.

    Parameters
    ----------
    allreduce : str
        How the values are reduced.
    """

    allreduce: Allreduce = "ring"


class CLTk(Sparsifier):
    """CLT-k, cyclic local top-k: in iteration t worker t mod P broadcasts the indices of its k largest entries.

    All workers run the top-k, but only the broadcaster's counts. ``bits`` is 64 k + 32 k at the widths of the released
    code.

    References
    ----------
    C.-Y. Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient Distributed
    Training", NeurIPS 2020, arXiv 2104.11125; as released with ExDyna (Yoon and Oh, CCGrid 2024).

    Examples
    --------
    >>> model = CLTk(workers=2, parameters=4, density=0.5)
    >>> exchange = model.exchange(np.array([[4, 3, 1, 0], [0, 5, 1, -8]], dtype=np.float32))
    >>> exchange.update, exchange.stats["broadcaster"]
    (array([2., 4., 0., 0.], dtype=float32), 0.0)
    >>> model.residual
    array([[ 0.,  0.,  1.,  0.],
           [ 0.,  0.,  1., -8.]], dtype=float32)
    >>> exchange.schedule.bytes_sent()
    array([16.,  8.])
    """

    name = "cltk"
    separable = True
    paper = "Chen et al., NeurIPS 2020, arXiv 2104.11125"
    fixed_volume = True
    costs = (cltk,)
    option_type = CLTkOptions
    reads_gradients = False
    options: CLTkOptions
    rounds_down = True

    @property
    def codes(self) -> Codes:
        """Every code of indices, and values that can be added up."""
        return GATHERED_AND_REDUCED

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        root = self.iteration % self.workers
        indices, own = apply_to_row(partial(largest, k=self.k), corrected, root)
        threshold = float(np.abs(own).min())
        update, sent = take_mean(corrected, indices, read=reader(self.options.values))
        k, wire = indices.size, self.wire
        nbytes = float(wire.indices(indices, (0, self.parameters))[0])
        pairs = k * wire.entry_bytes if wire.encoding is None else nbytes + k * wire.value_bytes
        broadcast = collectives.broadcast_binomial(self.workers, nbytes, root)
        values = registry.find("all_reduce", self.options.allreduce).schedule(self.workers, k * wire.value_bytes)
        schedule, kernels = in_order(
            self.workers,
            DeviceOp("topk", self.parameters),
            *wire.encoding_kernels(k, self.parameters, ascending=False, values=False),
            broadcast.in_phase("indices"),
            *wire.decoding_kernels(k, self.parameters, 1, values=False),
            DeviceOp("gather", k),
            *wire.value_kernels(k),
            values.in_phase("values"),
            *wire.reading_kernels(k),
            DeviceOp("scatter", k, launches=2),
        )
        return Exchange(
            update=update,
            schedule=schedule,
            selected=np.full(self.workers, k),
            kernels=kernels,
            union=k,
            sent=sent,
            stats={
                "broadcaster": float(root),
                "threshold": threshold,
                "bits": 8 * pairs if self.workers > 1 else 0.0,
            },
        )
