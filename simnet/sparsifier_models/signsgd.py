"""SignSGD: each worker sends the sign of each entry, one bit, and the mean magnitude.

Either the workers vote, and the sign of the majority is applied, or the mean of all signs with their scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simnet import collectives
from simnet.base.rng import stream
from simnet.cost_models.costs import signsgd, signsgd_allgather
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models.base import Exchange, Sparsifier, Step
from simnet.sparsifier_models.options import Options
from simnet.sparsifier_models.selection import Values


def scale_of(values: Values) -> np.float32:
    """Return the mean magnitude of a vector in float32."""
    return np.float32(np.abs(values).sum(dtype=np.float64) / values.size)


def vote(positive: NDArray[np.integer[Any]], voters: int, draws: np.random.Generator) -> Values:
    """Return the majority sign of each entry, given its number of positive votes; `draws` decides ties at random."""
    plus = 2 * positive > voters
    tied = np.flatnonzero(2 * positive == voters)
    plus[tied] = draws.integers(0, 2, tied.size, dtype=np.bool_)
    return np.where(plus, np.float32(1), np.float32(-1))


class SignSGDOptions(Options):
    """Options of `SignSGD`. The options for widths of values and indices have no effect.

    Parameters
    ----------
    vote : {"majority", "mean"}
        What is applied: the sign of the majority, as in signSGD, or the mean of the signs of all, as in EF-signSGD.
    scaled : bool
        Whether each worker also sends the mean magnitude of its entries, by which signs are multiplied (a majority by
        the mean over the workers). Else a sign is plus or minus one, as published for signSGD, with its own learning
        rate.
    collective : {"auto", "parameter_server", "allgather"}
        A server, worker 0, that returns one bit an entry for a majority and float32 values for a mean; or an all-gather
        by recursive doubling. ``auto``: a server for a majority, as published, an all-gather for a mean.
    """

    vote: Literal["majority", "mean"] = "majority"
    scaled: bool = True
    collective: Literal["auto", "parameter_server", "allgather"] = "auto"


class SignSGD(Sparsifier, fixed_volume=True, sends_all=True, reads_gradients=False, costs=(signsgd, signsgd_allgather)):
    """SignSGD with majority vote, or EF-signSGD, a mean of scaled signs. The density has no effect.

    One bit knows no zero: an entry of zero is sent as plus. A vote that is tied is drawn by the server.

    The server counts the votes when all have arrived, and the workers apply the result. Each is assumed to be one pass
    over the entries.

    A majority is not the mean of the signs sent. As published there is then no residual, with or without error
    feedback, and ``lost`` is the norm of the gradients that are not applied. With ``vote="mean"`` a worker's residual
    is its entries minus its scaled signs (EF-signSGD).

    References
    ----------
    J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, "signSGD: Compressed Optimisation for Non-Convex
    Problems", ICML 2018, Algorithm 3; S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi, "Error Feedback Fixes SignSGD
    and other Gradient Compression Schemes", ICML 2019, Algorithm 1.

    Examples
    --------
    >>> rows = np.array([[3, -1, 2], [1, 1, -4], [-2, -1, -3]], dtype=np.float32)
    >>> exchange = SignSGD(workers=3, parameters=3).exchange(rows)
    >>> exchange.update, exchange.schedule.bytes_sent()
    (array([ 2., -2., -2.], dtype=float32), array([10.,  5.,  5.]))
    >>> model = SignSGD(workers=3, parameters=3, vote="mean")
    >>> model.exchange(rows).update.round(3), model.residual
    (array([ 0.667, -0.667, -0.667], dtype=float32), array([[ 1.,  1.,  0.],
           [-1., -1., -2.],
           [ 0.,  1., -1.]], dtype=float32))
    """

    name = "signsgd"
    paper = "Bernstein et al., ICML 2018, arXiv 1802.04434; Karimireddy et al., ICML 2019, arXiv 1901.09847"
    options: SignSGDOptions

    def _option_traits(self) -> dict[str, Any]:
        return {"conserves": self.options.vote == "mean"}

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        scales = np.ones(self.workers, dtype=np.float32)
        if self.options.scaled:
            scales = np.array([scale_of(row) for row in corrected])
        apply = self._mean if self.options.vote == "mean" else self._majority
        n = self.parameters
        return self._make_exchange(apply(corrected, scales), self._steps(), np.square(scales, dtype=np.float64) * n)

    def _majority(self, corrected: Values, scales: Values) -> Values:
        positive = np.zeros(self.parameters, dtype=np.int32)
        for row in corrected:
            positive += row >= 0
        corrected[:] = 0
        draws = stream(self.options.seed, "signsgd", self.iteration)
        return vote(positive, self.workers, draws) * np.float32(scales.mean(dtype=np.float64))

    def _mean(self, corrected: Values, scales: Values) -> Values:
        total = np.zeros(self.parameters, dtype=np.float32)
        for row, scale in zip(corrected, scales, strict=True):
            own = np.where(row >= 0, scale, -scale)
            total += own
            row -= own
        return total / np.float32(self.workers)

    def _steps(self) -> Iterator[Step]:
        """Yield kernels and messages: mean magnitude, signs, server or all-gather, aggregation."""
        P, n, options, entries = self.workers, self.parameters, self.options, self.k_of_model
        mean = options.vote == "mean"
        yield from [DeviceOp("count", n)] * options.scaled
        yield DeviceOp("cast", n)
        signs = -(-entries // 8) + (self.wire.scalar_bytes if options.scaled else 0.0)
        if options.collective == "allgather" or (mean and options.collective == "auto"):
            yield collectives.allgather_auto(P, signs).in_phase("signs")
        elif P > 1:
            workers, server = np.arange(1, P), np.zeros(P - 1, dtype=np.int64)
            serves = np.arange(P) == 0
            yield Schedule(P, [Round(workers, server, signs, phase="signs")])
            yield DeviceOp("sum", np.where(serves, n, 0))
            yield Schedule(P, [Round(server, workers, 4.0 * entries if mean else signs, phase="update")])
            yield DeviceOp("cast", np.where(serves, 0, n))
            return
        yield DeviceOp("sum", n)
