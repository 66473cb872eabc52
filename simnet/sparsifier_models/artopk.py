"""AR-Topk: one worker broadcasts its top-k indices, and an all-reduce sums all workers' values at these indices.

As all workers send the same entries, values add up in the network: nothing builds up, and only one worker's indices
travel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simnet import collectives
from simnet.base.arrays import Adds
from simnet.base.rows import apply_to_row, map_rows
from simnet.collectives import registry
from simnet.cost_models.costs import artopk_ring, artopk_tree, cltk, var_overhead
from simnet.cost_models.costs.devices import DeviceOp
from simnet.cost_models.costs.encodings import VARYING_CODES
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier
from simnet.sparsifier_models.codes import reader
from simnet.sparsifier_models.options import Allgather, Allreduce, Options
from simnet.sparsifier_models.selection import Indices, Values, largest, squared_norm, squared_norms, take_mean
from simnet.sparsifier_models.wire import GATHERED_AND_REDUCED, Step, reduce_values

WINDOW, DECAY = 25, 0.001
"""Window [exchanges] and decay of the norms compared by VAR in the reference implementation."""

GAIN_WINDOW, GAIN_DECAY = 5, 0.01
"""Window [exchanges] and decay of the smoothed compression gain and of its change."""


def windowed_mean(window: NDArray[np.float64], size: int, decay: float) -> NDArray[np.float64]:
    """Return the weighted mean of the last `size` values of a window; values of age a have weight (1 - `decay`)^a.

    `window`, shape (w, ...), has the oldest value first; the newest has age 1. It is 0 until the window is full.
    """
    if len(window) < size:
        return np.zeros(window.shape[1:])
    weights = (1 - decay) ** np.arange(size, 0, -1)
    return np.asarray(np.tensordot(weights / weights.sum(), window[-size:], axes=1))


class ARTopkOptions(Options):
    """Options of `ARTopk`.

    Parameters
    ----------
    selection : {"star", "var"}
        Who broadcasts its indices: the workers in turn, or the one whose compressed gradient has the largest norm.
    collective : str
        How the values are reduced: an all-reduce of `simnet.collectives.registry`.
    allgather : str
        How the norms of VAR are gathered: an all-gather of `simnet.collectives.registry`.
    monitored : bool
        Whether the broadcasting worker also broadcasts its compression gain and time, one scalar each, as in the
        adaptive script of the reference implementation.
    """

    selection: Literal["star", "var"] = "star"
    collective: Allreduce = "ring"
    allgather: Allgather = "auto"
    monitored: bool = False


class ARTopk(
    Sparsifier,
    overlaps=True,
    separable=True,
    memory_factor=(0.0, 1.0),
    state=("staleness",),
    history=("window", "gains"),
    codes=GATHERED_AND_REDUCED,
    costs=(artopk_ring, artopk_tree, var_overhead),
):
    """AR-Topk: one worker broadcasts its top-k indices, and an all-reduce sums all workers' values at these indices.

    With ``compat="released"`` worker 0 is the first to broadcast in STAR, where only the broadcasting worker selects;
    VAR compares norms of the raw gradients, smoothed over 25 steps, until when worker 0 broadcasts.

    For policies that choose the density there are these statistics besides those of `Exchange`, and `gains`. The gain
    g_t is ``gain``; with ``compat="released"`` the root of the broadcasting worker's own, as the reference
    implementation measures it. Smoothed values are weighted means of the last 5, from the newest on with weights 0.99,
    0.99^2, ...; 0 with fewer values. A change of density starts them afresh.

    ========================  =======================================================================================
    ``staleness``             (P,) exchanges since each worker last broadcast, this one included: 0 for the one that
                              does; all exchanges if it never has. Below P in STAR, unbounded in VAR
    ``gain_change``           |g_t - g_{t-1}| / g_{t-1}; 0 in the first exchange, 1 if only g_{t-1} is 0
    ``smoothed_gain``         g_t smoothed
    ``smoothed_gain_change``  the change smoothed: from 0.1 on the paper measures its candidate densities again
    ========================  =======================================================================================

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE
    BigData 2023, section 3-A and 3-B, Algorithm 1, Eqn 4; section 2-C3 for the gain, 3-E1 for its change.

    Examples
    --------
    In the first step, i = 1, worker 1 of 2 broadcasts the indices of its top-k.

    >>> model = ARTopk(workers=2, parameters=4, density=0.5)
    >>> exchange = model.exchange(np.array([[4, 3, 1, 0], [0, 5, 1, -8]], dtype=np.float32))
    >>> exchange.update
    array([ 0.,  4.,  0., -4.], dtype=float32)
    >>> model.residual
    array([[4., 0., 1., 0.],
           [0., 0., 1., 0.]], dtype=float32)
    >>> exchange.schedule.bytes_sent()
    array([ 8., 16.])
    """

    name = "artopk"
    # `simnet.cluster.hooks`, measured with several buckets.
    paper = "Tyagi and Swany, IEEE BigData 2023, arXiv 2312.02493"
    # The update.
    options: ARTopkOptions

    def _set_up(self) -> None:
        self._released = self.options.compat == "released"
        self._set_traits(
            fixed_volume=self.options.selection == "star" and self.options.indices not in VARYING_CODES,
            reads_gradients=self._released and self.options.selection == "var",
        )
        self.window = np.zeros((0, self.workers))
        self.staleness = np.zeros(self.workers, dtype=np.int64)
        # Rows of density and gain, of the last exchanges at one density.
        self.gains = np.zeros((0, 2))

    def exchange(self, gradients: Values | Adds, *, overwrite: bool = False) -> Exchange:
        """Exchange one gradient per worker; ``staleness`` counts the exchanges since each worker last broadcast."""
        exchange = super().exchange(gradients, overwrite=overwrite)
        broadcaster = int(float(exchange.stats["broadcaster"]))
        staleness = self.staleness + 1
        staleness[broadcaster] = 0
        self.staleness = staleness
        measured = exchange.stats["gain"]
        if self._released:
            measured = math.sqrt(np.asarray(exchange.stats["worker_gain"])[broadcaster])
        before = self.gains[self.gains[:, 0] == self.density]
        self.gains = np.vstack([before, [self.density, measured]])[-GAIN_WINDOW - 1 :]
        gains = self.gains[:, 1]
        # Relative; a rise from 0 is a change by 1.
        changes = np.divide(np.abs(np.diff(gains)), gains[:-1], out=np.sign(gains[1:]), where=gains[:-1] != 0)
        exchange.stats |= {
            "staleness": staleness.astype(np.float64),
            "gain_change": float(changes[-1]) if changes.size else 0.0,
            "smoothed_gain": float(windowed_mean(gains, GAIN_WINDOW, GAIN_DECAY)),
            "smoothed_gain_change": float(windowed_mean(changes, GAIN_WINDOW, GAIN_DECAY)),
        }
        return exchange

    @property
    def turn(self) -> int:
        """Rank of the worker that broadcasts next if workers take turns (STAR); the paper starts with worker 1."""
        return (self.iteration + (0 if self._released else 1)) % self.workers

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        broadcaster, indices, stats = self._choose(corrected, gradients)
        update, sent = take_mean(corrected, indices, read=reader(self.options.values))
        k = indices.size
        selected = np.full(self.workers, k)
        if self._released and self.options.selection == "star":
            selected[np.arange(self.workers) != broadcaster] = 0
        nbytes = float(self.wire.indices(indices, (0, self.parameters))[0])
        key = None if self.options.indices in VARYING_CODES else (broadcaster, k)
        steps = self._steps(broadcaster, selected, nbytes)
        return self._make_exchange(update, steps, sent, key=key, selected=selected, union=k, stats=stats)

    def _choose(self, corrected: Values, gradients: Values) -> tuple[int, Indices, dict[str, Any]]:
        """Return the broadcasting worker's rank, its top-k indices, and statistics about the choice."""
        select, broadcaster, stats = partial(largest, k=self.k), self.turn, dict[str, Any]()
        if self.options.selection == "var":
            if self._released:
                self.window = np.vstack([self.window, np.sqrt(squared_norms(gradients))])[-WINDOW:]
                compared = windowed_mean(self.window, WINDOW, DECAY)
            else:
                compared = np.array([squared_norm(values) for _, values in map_rows(select, corrected)])
            with np.errstate(over="ignore"):  # in single precision; of equal values the first
                broadcaster = int(np.argmax(compared.astype(np.float32)))
            stats["criterion"] = compared
        indices, values = apply_to_row(select, corrected, broadcaster)
        return broadcaster, indices, stats | {"broadcaster": float(broadcaster), "threshold": np.abs(values).min()}

    def _steps(self, broadcaster: int, selected: NDArray[np.int64], indices: float) -> Iterator[Step]:
        """Yield kernels and messages: top-k, norms' all-gather (``var`` only), index broadcast, values' all-reduce."""

        def broadcast(nbytes: float) -> Schedule:
            return collectives.broadcast_binomial(self.workers, nbytes, broadcaster)

        wire, k = self.wire, int(selected.max())
        yield DeviceOp("topk", np.where(selected > 0, float(self.parameters), 0.0))
        if self.options.selection == "var":
            yield DeviceOp("norm", self.parameters if self._released else k)
            yield registry.collective_by_algorithm("all_gather", self.options.allgather).schedule(
                self.workers, wire.scalar_bytes
            )
        if wire.released:
            yield broadcast(wire.count_bytes)
        yield from wire.coded(broadcast(indices), k, k, self.parameters, ascending=False, values=False)
        if self.options.monitored:
            yield from [broadcast(wire.scalar_bytes)] * 2
        yield from reduce_values(self.workers, k, wire, self.options.collective)


class CLTkOptions(Options):
    """Options of `CLTk`.

    Parameters
    ----------
    allreduce : str
        How the values are reduced.
    """

    allreduce: Allreduce = "ring"


class CLTk(
    Sparsifier,
    fixed_volume=True,
    separable=True,
    reads_gradients=False,
    rounds_down=True,
    codes=GATHERED_AND_REDUCED,
    costs=(cltk,),
):
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
    paper = "Chen et al., NeurIPS 2020, arXiv 2104.11125"
    options: CLTkOptions

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        root = self.iteration % self.workers
        indices, own = apply_to_row(partial(largest, k=self.k), corrected, root)
        update, sent = take_mean(corrected, indices, read=reader(self.options.values))
        k, wire = indices.size, self.wire
        nbytes = float(wire.indices(indices, (0, self.parameters))[0])
        broadcast = collectives.broadcast_binomial(self.workers, nbytes, root).in_phase("indices")
        steps = [
            DeviceOp("topk", self.parameters),
            *wire.coded(broadcast, k, k, self.parameters, ascending=False, values=False),
            *reduce_values(self.workers, k, wire, self.options.allreduce, "values"),
        ]
        bits = 8 * (nbytes + k * wire.value_bytes) if self.workers > 1 else 0.0
        stats = {"broadcaster": float(root), "threshold": np.abs(own).min(), "bits": bits}
        return self._make_exchange(update, steps, sent, union=k, stats=stats)
