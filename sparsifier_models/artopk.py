"""AR-Topk: one worker's top-k indices, everybody's values at them, summed by an all-reduce.

As all workers send the same entries, values add up in the network: nothing builds up, and no indices travel but one
worker's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simnet import collectives
from simnet.devices import Kernel
from simnet.schedule import Schedule
from sparsifier_models.base import Exchange, Sparsifier, State
from sparsifier_models.dense import ALLREDUCE
from sparsifier_models.options import Options
from sparsifier_models.selection import Indices, Values, squared_norm, squared_norms, take_mean, top_k

WINDOW, DECAY = 25, 0.001


def windowed_mean(window: NDArray[np.float64], size: int, decay: float) -> NDArray[np.float64]:
    """Return the smoothed value of the released code: 0 until the window is full.

    Parameters
    ----------
    window : ndarray of float64, shape (w, ...)
        The last values, oldest first.
    size : int
        Values that make the window full, >= 1.
    decay : float
        Value a of the weights (1 - a)^age; the newest value has age 1.

    Returns
    -------
    ndarray of float64, shape (...)
        Weighted mean of the last `size` values.

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
    collective : {"ring", "tree"}
        How the values are reduced.
    monitored : bool
        Whether the broadcasting worker also broadcasts its compression gain and time, one scalar each, as in the
        adaptive script of the released code.
    """

    selection: Literal["star", "var"] = "star"
    collective: Literal["ring", "tree"] = "ring"
    monitored: bool = False


class ARTopk(Sparsifier):
    """AR-Topk, Algorithm 1, with STAR or VAR selection of the broadcasting worker.

    With ``compat="released"`` worker 0 is the first to broadcast in STAR, where only the broadcasting worker selects;
    VAR compares norms of the raw gradients, smoothed over 25 steps, until when worker 0 broadcasts.

    References
    ----------
    S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE
    BigData 2023, section 3-A and 3-B, Algorithm 1, Eqn 4.

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
    paper = "Tyagi and Swany, IEEE BigData 2023, arXiv 2312.02493"
    option_type = ARTopkOptions
    options: ARTopkOptions

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        super().__init__(workers, parameters, density, **options)
        self._released = self.options.compat == "released"
        self._window = np.zeros((0, workers))

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        broadcaster, indices, stats = self._choose(corrected, gradients)
        update, sent = take_mean(corrected, indices)
        k = indices.size
        selected = np.full(self.workers, k)
        if self._released and self.options.selection == "star":
            selected[np.arange(self.workers) != broadcaster] = 0
        return Exchange(
            update=update,
            schedule=self._schedule(broadcaster, k),
            selected=selected,
            kernels=self._kernels(selected),
            union=k,
            sent=sent,
            stats=stats,
        )

    def _choose(self, corrected: Values, gradients: Values) -> tuple[int, Indices, dict[str, Any]]:
        """Return the broadcasting worker, its indices, and what is to be said about the choice."""
        criterion: dict[str, Any] = {}
        if self.options.selection == "star":
            broadcaster = (self.iteration + (0 if self._released else 1)) % self.workers
        else:
            compared = self._smoothed_norms(gradients) if self._released else self._variances(corrected)
            # They travel as float32, and of those that are equal there the first wins.
            broadcaster = int(np.argmax(compared.astype(np.float32)))
            criterion = {"criterion": compared}
        indices = top_k(corrected[broadcaster], self.k)
        threshold = float(np.abs(corrected[broadcaster, indices]).min())
        return broadcaster, indices, {"broadcaster": float(broadcaster), "threshold": threshold, **criterion}

    def _variances(self, corrected: Values) -> NDArray[np.float64]:
        return np.array([squared_norm(row[top_k(row, self.k)]) for row in corrected])

    def _smoothed_norms(self, gradients: Values) -> NDArray[np.float64]:
        norms = np.sqrt(squared_norms(gradients))
        self._window = np.vstack([self._window, norms])[-WINDOW:]
        return windowed_mean(self._window, WINDOW, DECAY)

    def _kernels(self, selected: NDArray[np.int64]) -> tuple[Kernel, ...]:
        k = float(selected.max())
        norms: tuple[Kernel, ...] = ()
        if self.options.selection == "var":
            norms = (Kernel("norm", self.parameters if self._released else k),)
        selecting = np.where(selected > 0, float(self.parameters), 0.0)
        return (Kernel("topk", selecting), *norms, Kernel("gather", k), Kernel("scatter", k, launches=2))

    def _schedule(self, broadcaster: int, k: int) -> Schedule:
        def broadcast(nbytes: float) -> Schedule:
            return collectives.broadcast_binomial(self.workers, nbytes, broadcaster)

        wire, parts = self.wire, []
        if self.options.selection == "var":
            parts.append(collectives.allgather_recursive_doubling(self.workers, wire.scalar_bytes))
        if wire.released:
            parts.append(broadcast(wire.count_bytes))
        parts.append(broadcast(k * wire.index_bytes))
        if self.options.monitored:
            parts += [broadcast(wire.scalar_bytes)] * 2
        parts.append(ALLREDUCE[self.options.collective](self.workers, k * wire.value_bytes))
        return Schedule(self.workers).concat(*parts)

    def _own_state(self) -> State:
        return {"window": self._window}

    def _restore_own(self, state: State) -> None:
        window = np.array(state["window"], dtype=np.float64)
        if window.ndim != 2 or window.shape[1] != self.workers or len(window) > WINDOW:
            raise ValueError(f"window must be of shape (0..{WINDOW}, {self.workers}), got {window.shape}")
        if not (np.isfinite(window) & (window >= 0)).all():
            raise ValueError("window must hold norms, finite and >= 0")
        self._window = window
