"""Expected progress of a job as its links change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simnet.base.arrays import Floats

# Of the fastest iteration seen, below which none is expected: of one without a time any number would be done at once.
_LEAST = 1e-3

Links = Callable[[float], tuple[float, float]]
"""Gives latency [s] and bandwidth [byte/s] of a path at a moment [s]."""


class ProgressModel:
    """The expected progress of a job between two moments, up to a factor.

    `expected` returns the duration of an iteration on the links of a moment [s], > 0; it is evaluated every `step`
    seconds.

    Examples
    --------
    Iterations that last twice as long from 10 s on:

    >>> pace = ProgressModel(1.0, lambda moment: 1.0 if moment < 10 else 2.0)
    >>> pace.between(0.0, 12.0), pace.between(8.5, 11.0), pace.until(9.0, 1.5)
    (11.0, 2.0, 11.0)
    """

    def __init__(self, step: float, expected: Callable[[float], float]) -> None:
        self._step, self._expected = step, expected
        self._done = [0.0]

    def between(self, start: float, end: float) -> float:
        """Return how many iterations expected to last a second go into the time from `start` >= 0 to `end` [s]."""
        first, last = self._by(start), self._by(end)
        return last - first

    def until(self, start: float, done: float) -> float:
        """Return when so many of them are done after `start` [s]; so far `between` was asked for."""
        wanted = self._by(start) + done
        return float(np.interp(wanted, self._done, self._step * np.arange(len(self._done))))

    def _by(self, moment: float) -> float:
        cell = int(moment / self._step)
        while len(self._done) < cell + 2:
            seconds = self._expected(self._step * (len(self._done) - 0.5))
            self._done.append(self._done[-1] + self._step / seconds)
        before, after = self._done[cell : cell + 2]
        return before + (after - before) * (moment / self._step - cell)


def fit_progress_model(
    links: Links, step: float, latency: Floats, bandwidth: Floats, seconds: Floats
) -> ProgressModel | None:
    """Return a progress model fitted to iterations: a fixed time, a number of latencies and a number of bytes.

    Links are evaluated every `step` seconds. `latency` [s] and `bandwidth` [byte/s] are those at the start of each
    iteration, `seconds` its duration; shape (iterations,). Returns None if links did not change or no iteration took
    any time.
    """
    per_byte = 1 / np.maximum(bandwidth, 1.0)
    if not (seconds > 0).all() or (np.ptp(latency) == 0 and np.ptp(per_byte) == 0):
        return None
    terms = np.stack([np.ones_like(seconds), latency, per_byte], axis=1)
    scale = np.maximum(terms.max(axis=0), 1e-300)
    # Loaded where a pace is fitted: most jobs are not sampled.
    from scipy.optimize import nnls

    # By their relative errors, as slow iterations are few.
    own, latencies, sent = nnls(terms / scale / seconds[:, np.newaxis], np.ones_like(seconds))[0] / scale

    least = _LEAST * seconds.min()

    def expected(moment: float) -> float:
        there, rate = links(moment)
        return float(max(own + latencies * there + sent / max(rate, 1.0), least))

    return ProgressModel(step, expected)
