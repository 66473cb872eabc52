"""Sampled simulation of a job: only some iterations are simulated, and recorded exchanges are reused.

The job is cut into blocks of time. One iteration of each block is simulated, and stands for as many iterations as fit
into the block at its speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.network import Timing
from simnet.policies import Candidate, density_at
from simnet.sparsifier_models import Exchange
from simnet.traces.source import FixedTraining, begin_training
from simnet.training.job.exchange import ExchangeProcess, SparsifierSet, TimedExchange, keep_fastest
from simnet.training.job.job import Job
from simnet.training.job.record import Iteration, iteration_statistics
from simnet.training.job.steady import detect_steady_part

# Of the fastest iteration seen, below which none is expected: of one without a time any number would be done at once.
_LEAST = 1e-3


class ProgressModel:
    """Progress of a job over time, given the expected duration of an iteration at each time."""

    def __init__(self, step: float, expected: Callable[[float], float]) -> None:
        self._step, self._expected = step, expected
        self._done = [0.0]

    def between(self, start: float, end: float) -> float:
        """Return how many iterations the job is expected to finish between the times `start` >= 0 and `end` [s]."""
        first, last = self._by(start), self._by(end)
        return last - first

    def until(self, start: float, done: float) -> float:
        """Return when [s] the job has done `done` iterations since `start`; call `between` up to that time first."""
        wanted = self._by(start) + done
        return float(np.interp(wanted, self._done, self._step * np.arange(len(self._done))))

    def _by(self, moment: float) -> float:
        cell = int(moment / self._step)
        while len(self._done) < cell + 2:
            seconds = self._expected(self._step * (len(self._done) - 0.5))
            self._done.append(self._done[-1] + self._step / seconds)
        before, after = self._done[cell : cell + 2]
        return before + (after - before) * (moment / self._step - cell)


def fit_iteration_time(latency: Floats, bandwidth: Floats, seconds: Floats) -> Callable[[float, float], float] | None:
    """Return a fitted function from latency and bandwidth to iteration time [s]; None if links are constant.

    Arrays of shape (iterations,) hold the links at the start of each iteration, and its duration [s].
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

    def expected(there: float, rate: float) -> float:
        return float(max(own + latencies * there + sent / max(rate, 1.0), least))

    return expected


# The golden section: its multiples are spread evenly, however many there are.
_TURN = (math.sqrt(5) - 1) / 2
# Exchanges one after the other that tell whether what is sent still moves.
_TELLING = 32


@dataclass(eq=False)
class IterationSampling:
    """Stratified sample of a job's iterations, and the number of iterations that each sampled one represents.

    About `samples` iterations are simulated; or, with `block` [s], one per block of the job's time and, after `until`,
    one per 4 blocks; a job longer than `give_up` [s] is extrapolated. The lists have an entry per simulated iteration:
    `stands_for`, their total duration `lasts` [s], and the `expected` duration up to a factor.
    """

    iterations: int
    samples: int = 1
    _: KW_ONLY
    block: float | None = None
    until: float = math.inf
    give_up: float = math.inf
    pace: ProgressModel | None = None

    def __post_init__(self) -> None:
        self.stands_for, self.lasts, self.expected = list[float](), list[float](), list[float]()
        self._begun, self._done, self._reached = math.nan, 0.0, 0.0
        self._block = self.block or 0.0

    def after(self, began: float, seconds: float) -> tuple[int, float]:
        """Return the next iteration to simulate and its start [s], given start and duration [s] of the last one."""
        left = self.iterations - self._done
        if not self.stands_for:
            # The first begins with the job.
            self._begun = self._reached = began
            if self.block is None:
                self._block = left * seconds / self.samples
        span = self._block
        if self.block is not None:
            span = (self._cell() + 1) * self._block - (self._reached - self._begun)
        stands_for, lasts, expected = self._covered(began, seconds, span, left)
        left -= stands_for
        self._done += stands_for
        self._reached += lasts
        over = left < 0.5 or self._reached - self._begun > self.give_up
        more = 1 + left / stands_for if over else 1.0
        for column, value in zip(
            (self.stands_for, self.lasts, self.expected), (stands_for, lasts, expected), strict=True
        ):
            column.append(value * more)
        if over:
            return self.iterations, self._reached
        if self.block is not None:
            self._block = self.block * (1 if self._reached - self._begun < self.until else 4)
            cell = self._cell()
            ahead = self._begun + (cell + (cell * _TURN) % 1) * self._block - self._reached
        else:
            if (more := self.samples - len(self.stands_for)) > 0:
                self._block = left * (self._reached - self._begun) / self._done / more
            ahead = ((len(self.stands_for) * _TURN) % 1) * self._block
        if self._block <= seconds or ahead < 0:
            ahead = 0.0
        number = int(self._done + 1e-9 + (ahead / seconds if seconds > 0 else 0.0))
        return min(number, self.iterations - 1), self._reached + ahead

    def _covered(self, began: float, seconds: float, span: float, left: float) -> tuple[float, float, float]:
        """Return a sample's number of iterations, their duration [s], and their relative duration by `pace`."""
        if seconds <= 0:
            return left, 0.0, 0.0
        stands_for, lasts = min(max(span / seconds, 1.0), left), min(max(span, seconds), left * seconds)
        if self.pace is None or seconds > self.give_up:
            return stands_for, lasts, lasts
        own = self.pace.between(began, began + seconds)
        if span <= seconds or not own > 0:
            return stands_for, lasts, own * stands_for
        # What the links are like in all of the block is known, and on which of them the iteration was.
        block = self.pace.between(self._reached, self._reached + span)
        stands_for = max(block / own, 1.0)
        if stands_for <= left:
            return stands_for, span, block
        block *= left / stands_for
        return left, self.pace.until(self._reached, block) - self._reached, block

    def _cell(self) -> int:
        """Return the index of the current sampling block."""
        return int((self._reached - self._begun) / self._block + 1e-9)


class RecordedExchanges(SparsifierSet):
    """Exchanges computed once and then reused; those that depend on gradients are computed for `window` iterations."""

    def __init__(self, job: Job, window: int) -> None:
        super().__init__(job, (), training=FixedTraining(job.source))
        self.window = window
        self._once: dict[tuple[str, float, int], list[Exchange]] = {}
        self._rows: dict[tuple[str, int], list[list[Exchange]]] = {}
        self._makers: dict[str, SparsifierSet] = {}
        self._any: NDArray[np.float32] | None = None
        self._timings: dict[tuple[object, ...], TimedExchange] = {}

    def follows_gradients(self, candidate: Candidate) -> bool:
        """Return whether the volume that a candidate sends depends on the gradients."""
        return not all(model.traits.fixed_volume for model in self._maker(candidate).of(candidate))

    def made(self, candidate: Candidate) -> int:
        """Return how many exchanges of a candidate were computed rather than reused."""
        followed = sum(len(rows) for (label, _), rows in self._rows.items() if label == candidate.label)
        return followed + sum(label == candidate.label for label, _, _ in self._once)

    def takes_turns(self, candidate: Candidate) -> bool:
        """Return whether a candidate's messages may depend on which worker's turn it is to select entries for all."""
        turns = [turn for label, _, turn in self._once if label == candidate.label]
        return not turns or max(turns) >= 0

    def unsettled(self, candidate: Candidate) -> str:
        """Return why the volume of a candidate is not yet steady; empty if the volume is steady."""
        first = max((first for label, first in self._rows if label == candidate.label), default=None)
        if first is None:
            return ""
        rows = self._rows[candidate.label, first]
        made, count = [iteration_statistics(one) for one in rows], len(rows)
        period, asked = int(made[-1]["period"]), density_at(self._job.density, first)
        if 2 * count < 3 * period:
            return detect_steady_part({}, self._job.iterations, period).unsettled
        columns = {name: np.array([one[name] for one in made]) for name in ("density_ratio", "build_up")}
        if count < _TELLING:
            ratio = columns["density_ratio"][count // 2 :].mean(keepdims=True)
            return detect_steady_part({"density_ratio": ratio}, 1, asked=asked).unsettled
        columns["bytes_sent_B"] = np.array([sum(float(np.sum(one.stats["bytes_sent"])) for one in row) for row in rows])
        return detect_steady_part(columns, count, period, asked).unsettled

    def step(self, where: Iteration, shortlist: Sequence[Candidate]) -> ExchangeProcess:
        """Time an iteration's exchanges with each candidate of the shortlist, and return the fastest exchange."""
        _, best = yield from keep_fastest(self._timed_once(one, where) for one in shortlist)
        return best

    def _timed_once(self, candidate: Candidate, where: Iteration) -> ExchangeProcess:
        """Time an exchange; on constant links, reuse the timing of an iteration with equal workers and compute."""
        exchanges, network = self._exchanges(candidate, where), self._job.network(where.number)
        steady = network.links.constant and network.jitter is None and network.routing != "flow"
        key = (id(exchanges), *(one.tobytes() for one in (where.active, where.complete, where.behind)))
        if where.failures or where.keeps_messages or not steady or key not in self._timings:
            self._timings[key] = yield from self._maker(candidate)._timed(candidate, exchanges, where)
        known = self._timings[key]
        assert isinstance(known.result, Timing)
        return known._replace(result=replace(known.result, origin=where.now), begun=where.now)

    def apply(self, exchanges: Sequence[Exchange]) -> None:
        """Do nothing, because the updates were applied when the exchanges were recorded."""

    def _maker(self, candidate: Candidate) -> SparsifierSet:
        if candidate.label not in self._makers:
            self._makers[candidate.label] = SparsifierSet(self._job, [candidate])
        return self._makers[candidate.label]

    def _exchanges(self, candidate: Candidate, where: Iteration) -> list[Exchange]:
        if not self.follows_gradients(candidate):
            return self._of_any(candidate, where)
        first, last = _constant_density_range(self._job, where.number)
        rows = self._rows.setdefault((candidate.label, first), [])
        window, wanted = min(self.window, last - first), where.number - first
        if wanted >= window:
            half = window // 2
            wanted = half + (wanted - half) % (window - half)
        maker = self._maker(candidate)
        while len(rows) <= wanted:
            number = first + len(rows)
            at = replace(where, number=number)
            exchanges = maker._exchanged(maker.of(candidate), maker.training.gradients(number, where.active), at)
            maker.apply(exchanges)
            rows.append(_without_updates(exchanges))
        return rows[wanted]

    def _of_any(self, candidate: Candidate, where: Iteration) -> list[Exchange]:
        """Return each bucket's exchange for a candidate with gradient-independent bytes; they are computed once."""
        for turn in (-1, where.number % where.active.size):
            if (found := self._once.get((candidate.label, where.density, turn))) is not None:
                return found
        if self._any is None:
            self._any = begin_training(self._job.source).gradients(0, where.active).copy()
        maker = self._maker(candidate)
        found = _without_updates(maker._exchanged(maker.of(candidate), self._any, where))
        turns = any("broadcaster" in one.stats for one in found)
        self._once[candidate.label, where.density, where.number % where.active.size if turns else -1] = found
        return found


def _constant_density_range(job: Job, iteration: int) -> tuple[int, int]:
    """Return the half-open range of iterations around `iteration` during which the density is constant."""
    first = 0
    for ramp in job.density:
        last = first + ramp.iterations
        if iteration < last or ramp is job.density[-1]:
            if ramp.start == ramp.end:
                return first, job.iterations if ramp is job.density[-1] else last
            return (iteration, iteration + 1) if iteration < last else (last, job.iterations)
        first = last
    raise AssertionError("a job has a density")


def _without_updates(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Return exchanges whose updates are zeros, which take no memory."""
    return [replace(one, update=np.broadcast_to(np.float32(0), one.update.shape)) for one in exchanges]


def total_time(seconds: Floats, stands_for: Floats, expected: Floats | None = None) -> tuple[float, float]:
    """Return a job's duration [s] and its standard error [s], both estimated from a sample of its iterations.

    Arrays have shape (samples,): the `seconds` of iterations, how many iterations each stands for, and how long these
    were expected to last, up to a factor. The error is estimated from differences between iterations of adjacent
    speeds.

    Examples
    --------
    >>> total_time(np.array([1.0, 1.0, 2.0]), np.array([4, 4, 2]))
    (12.0, 2.0)
    >>> total_time(np.array([1.0, 1.0, 2.0]), np.array([4, 4, 2]), np.array([4.0, 4.0, 2.0]))
    (12.0, 0.0)
    """
    whole = float((seconds * stands_for).sum())
    if seconds.size < 2 or not whole or not seconds.all():
        return whole, 0.0 if stands_for.max() <= 1 else math.inf
    blocks = seconds * stands_for if expected is None else expected
    speeds, left_out = stands_for / np.maximum(blocks, 1e-300), 1 - 1 / np.maximum(stands_for[1:], 1.0)
    open_ = math.sqrt(float((np.diff(speeds) ** 2 / 2 * blocks[1:] ** 2 * left_out).sum()))
    done = np.cumsum(stands_for)
    at_end = whole - float(np.interp(done[-1] - open_, done, np.cumsum(seconds * stands_for)))
    return whole, max(at_end, whole * open_ / float(done[-1]))
