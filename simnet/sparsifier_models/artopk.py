"""AR-Topk: one worker's top-k indices, everybody's values at them, summed by an all-reduce.

As all workers send the same entries, values add up in the network: nothing builds up, and no indices travel but one
worker's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simnet import collectives
from simnet.base.arrays import Adds
from simnet.base.rows import apply_to_row, map_rows
from simnet.collectives import registry
from simnet.costs import artopk_ring, artopk_tree, var_overhead
from simnet.costs.devices import DeviceOp
from simnet.costs.encodings import VARYING_CODES
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier, State, checked_part
from simnet.sparsifier_models.gains import corrected_rows, counts_at, gain, nested_top_k
from simnet.sparsifier_models.options import Allgather, Allreduce, Options
from simnet.sparsifier_models.selection import Indices, Values, largest, squared_norm, squared_norms, take_mean
from simnet.sparsifier_models.steps import Step, in_order
from simnet.sparsifier_models.value_codes import read_back, reader
from simnet.sparsifier_models.wire import GATHERED_AND_REDUCED, Codes

WINDOW, DECAY = 25, 0.001
"""Of the norms that VAR of the reference implementation compares."""

GAIN_WINDOW, GAIN_DECAY = 5, 0.01
"""Of the compression gain and its change."""


def windowed_mean(window: NDArray[np.float64], size: int, decay: float) -> NDArray[np.float64]:
    """Return the smoothed value of the reference implementation: a mean with the weights (1 - a)^age.

    `window`, shape (w, ...), has the oldest value first; the newest has age 1. It is 0 until the window is full.

    Examples
    --------
    >>> windowed_mean(np.array([1.0, 2.0]), 3, 0.5), windowed_mean(np.array([7.0, 1.0, 4.0]), 2, 0.5)
    (array(0.), array(3.))
    """
    if len(window) < size:
        return np.zeros(window.shape[1:])
    weights = (1 - decay) ** np.arange(size, 0, -1)
    return np.asarray(np.tensordot(weights / weights.sum(), window[-size:], axes=1))


@dataclass(frozen=True, kw_only=True)
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


class ARTopk(Sparsifier):
    """AR-Topk, Algorithm 1, with STAR or VAR selection of the broadcasting worker.

    With ``compat="released"`` worker 0 is the first to broadcast in STAR, where only the broadcasting worker selects;
    VAR compares norms of the raw gradients, smoothed over 25 steps, until when worker 0 broadcasts.

    For policies that choose the density there are these statistics besides those of `Exchange`, and `gains`. The gain
    g_t is ``gain``; with ``compat="released"`` the root of the broadcasting worker's own, as the reference
    implementation measures it. Smoothed are the last 5 values, newest first with weights 0.99, 0.99^2, ...; fewer make
    0. A change of density starts them afresh.

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
    # `simnet.hooks`, measured with several buckets.
    overlaps = True
    separable = True
    paper = "Tyagi and Swany, IEEE BigData 2023, arXiv 2312.02493"
    costs = (artopk_ring, artopk_tree, var_overhead)
    # The update.
    room = (0.0, 1.0)
    option_type = ARTopkOptions
    options: ARTopkOptions

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        super().__init__(workers, parameters, density, **options)
        self.fixed_volume = self.options.selection == "star" and self.options.indices not in VARYING_CODES
        self._released = self.options.compat == "released"
        self.reads_gradients = self._released and self.options.selection == "var"
        self._window = np.zeros((0, workers))
        self._staleness = np.zeros(workers, dtype=np.int64)
        # Rows of density and gain, of the last exchanges at one density.
        self._gains = np.zeros((0, 2))

    def exchange(self, gradients: Values | Adds, *, overwrite: bool = False) -> Exchange:
        """Exchange one gradient per worker, as `Sparsifier.exchange`."""
        exchange = super().exchange(gradients, overwrite=overwrite)
        broadcaster = int(float(exchange.stats["broadcaster"]))
        staleness = self._staleness + 1
        staleness[broadcaster] = 0
        self._staleness = staleness
        measured = exchange.stats["gain"]
        if self._released:
            measured = math.sqrt(np.asarray(exchange.stats["worker_gain"])[broadcaster])
        before = self._gains[self._gains[:, 0] == self.density]
        self._gains = np.vstack([before, [self.density, measured]])[-GAIN_WINDOW - 1 :]
        gains = self._gains[:, 1]
        changes = [_change(*pair) for pair in itertools.pairwise(gains.tolist())]
        exchange.stats |= {
            "staleness": staleness.astype(np.float64),
            "gain_change": changes[-1] if changes else 0.0,
            "smoothed_gain": float(windowed_mean(gains, GAIN_WINDOW, GAIN_DECAY)),
            "smoothed_gain_change": float(windowed_mean(np.array(changes), GAIN_WINDOW, GAIN_DECAY)),
        }
        return exchange

    def gains(self, gradients: Values, densities: Sequence[float]) -> NDArray[np.float64]:
        """Return the compression gain g_t that an exchange of `gradients` would have at each density.

        The state stays as it is, and a worker goes through its whole gradient once to select for all densities.

        Parameters
        ----------
        gradients : ndarray of float32, shape (P, n)
        densities : sequence of float
            Candidates, each in (0, 1]; 0.1, 0.033, 0.011, 0.004 and 0.001 in the paper.

        Returns
        -------
        ndarray of float64, shape (len(densities),)

        Raises
        ------
        ValueError
            If the gradients are not what `exchange` takes, or a density is out of range.

        Examples
        --------
        >>> model = ARTopk(workers=2, parameters=4, density=0.25)
        >>> model.gains(np.array([[4, 3, 1, 2], [0, 3, 1, 4]], dtype=np.float32), [0.25, 0.5])
        array([0.35714286, 0.67857143])
        """
        fresh, counts = self._checked(gradients, "gradients"), counts_at(self, densities)
        selections: dict[int, list[Indices]] = {}
        norms = np.zeros((self.workers, len(counts)))
        for worker, row in enumerate(corrected_rows(fresh, self._residual)):
            if self.options.selection == "var" or worker == self.turn:
                selections[worker] = nested_top_k(row, counts)
                norms[worker] = [squared_norm(row[indices]) for indices in selections[worker]]
        sources = [self.turn] * len(counts)
        if self.options.selection == "var":
            compared = norms.T
            if self._released:
                compared = np.tile(windowed_mean(self._norms_with(fresh), WINDOW, DECAY), (len(counts), 1))
            sources = [_first_largest(one) for one in compared]
        sent, given = np.zeros((self.workers, len(counts))), np.zeros(self.workers)
        code = self.options.values or "float32"
        for worker, row in enumerate(corrected_rows(fresh, self._residual)):
            given[worker] = squared_norm(row)
            taken = (row[selections[source][c]] for c, source in enumerate(sources))
            sent[worker] = [squared_norm(read_back(values, code)) for values in taken]
        if not self._released:
            return gain(sent.sum(axis=0), float(given.sum()))
        return np.sqrt([gain(sent[source, c], given[source]) for c, source in enumerate(sources)])

    @property
    def codes(self) -> Codes:
        """Every code of indices, and values that can be added up."""
        return GATHERED_AND_REDUCED

    @property
    def turn(self) -> int:
        """The worker that broadcasts in STAR; in the paper's first step, i = 1, it is worker 1."""
        return (self.iteration + (0 if self._released else 1)) % self.workers

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        broadcaster, indices, stats = self._choose(corrected, gradients)
        left = np.zeros(self.workers)
        update, sent = take_mean(corrected, indices, self._row_of_zeros(), left, reader(self.options.values))
        k = indices.size
        selected = np.full(self.workers, k)
        if self._released and self.options.selection == "star":
            selected[np.arange(self.workers) != broadcaster] = 0
        nbytes = float(self.wire.indices(indices, (0, self.parameters))[0])
        if self.options.indices in VARYING_CODES:
            schedule, kernels = in_order(self.workers, *self._steps(broadcaster, selected, nbytes))
        else:
            schedule, kernels = self._in_order((broadcaster, k), lambda: self._steps(broadcaster, selected, nbytes))
        return Exchange(
            update=update,
            schedule=schedule,
            selected=selected,
            kernels=kernels,
            union=k,
            sent=sent,
            stats=stats,
            left=left,
        )

    def _choose(self, corrected: Values, gradients: Values) -> tuple[int, Indices, dict[str, Any]]:
        """Return the broadcasting worker, its indices, and what is to be said about the choice."""
        criterion: dict[str, Any] = {}
        if self.options.selection == "star":
            broadcaster = self.turn
        else:
            compared = self._smoothed_norms(gradients) if self._released else self._variances(corrected)
            broadcaster = _first_largest(compared)
            criterion = {"criterion": compared}
        indices, values = apply_to_row(partial(largest, k=self.k), corrected, broadcaster)
        threshold = float(np.abs(values).min())
        return broadcaster, indices, {"broadcaster": float(broadcaster), "threshold": threshold, **criterion}

    def _variances(self, corrected: Values) -> NDArray[np.float64]:
        return np.array([squared_norm(values) for _, values in map_rows(partial(largest, k=self.k), corrected)])

    def _smoothed_norms(self, gradients: Values) -> NDArray[np.float64]:
        self._window = self._norms_with(gradients)
        return windowed_mean(self._window, WINDOW, DECAY)

    def _norms_with(self, gradients: Values) -> NDArray[np.float64]:
        return np.vstack([self._window, np.sqrt(squared_norms(gradients))])[-WINDOW:]

    def _steps(self, broadcaster: int, selected: NDArray[np.int64], indices: float) -> Iterator[Step]:
        """Yield the steps of workers: select, agree on the broadcaster, take the values at its indices, reduce them."""

        def broadcast(nbytes: float) -> Schedule:
            return collectives.broadcast_binomial(self.workers, nbytes, broadcaster)

        wire, k = self.wire, int(selected.max())
        yield DeviceOp("topk", np.where(selected > 0, float(self.parameters), 0.0))
        if self.options.selection == "var":
            yield DeviceOp("norm", self.parameters if self._released else k)
            yield registry.find("all_gather", self.options.allgather).schedule(self.workers, wire.scalar_bytes)
        if wire.released:
            yield broadcast(wire.count_bytes)
        yield from wire.encoding_kernels(k, self.parameters, ascending=False, values=False)
        yield broadcast(indices)
        yield from wire.decoding_kernels(k, self.parameters, 1, values=False)
        if self.options.monitored:
            yield from [broadcast(wire.scalar_bytes)] * 2
        yield DeviceOp("gather", k)
        yield from wire.value_kernels(k)
        yield registry.find("all_reduce", self.options.collective).schedule(self.workers, k * wire.value_bytes)
        yield from wire.reading_kernels(k)
        yield DeviceOp("scatter", k, launches=2)

    def _own_state(self) -> State:
        return {"window": self._window, "staleness": self._staleness, "gains": self._gains}

    def _restore_own(self, state: State) -> None:
        window = checked_part(state, "window", np.float64, (range(WINDOW + 1), self.workers), 0)
        staleness = checked_part(state, "staleness", np.int64, (self.workers,), 0)
        gains = checked_part(state, "gains", np.float64, (range(GAIN_WINDOW + 2), 2), 0)
        self._window, self._staleness, self._gains = window, staleness, gains


def _first_largest(compared: NDArray[np.float64]) -> int:
    """Return where the largest value stands; values travel as float32, and of those equal there the first wins."""
    with np.errstate(over="ignore"):
        return int(np.argmax(compared.astype(np.float32)))


def _change(before: float, after: float) -> float:
    """Return the relative change of the gain."""
    if before == 0:
        return float(after > 0)
    return abs(after - before) / before
