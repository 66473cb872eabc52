"""Adviser of exchanges: it predicts the time of each exchange, and decides whether a switch pays off.

The worth of a change is the time that it saves over the horizon; its first iterations count as information: ``every x
E[gain] + (horizon - every) x E[max(gain, 0)]``, the knowledge gradient of P. Frazier, W. Powell, S. Dayanik, SIAM
Journal on Control and Optimization 47, 2008.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.base.quantities import Count, Factor, Seconds, check_fields
from simnet.base.rng import stream
from simnet.cost_models.costs.devices import DeviceOp, DeviceProfile
from simnet.cost_models.evidence.intervals import SCORE_95
from simnet.policies import Candidate, Decision, Observation, PolicyContext, TimingOutcome, check_distinct, closed_form
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models.samples import divisible_sample_size
from simnet.training.advise.estimator import Estimator, WeightedTimes
from simnet.training.job.exchange import exposed_after_backward
from simnet.training.job.local_costs import local_operations

# Entries of the gradients that are exchanged to see which kernels run, at least; how many they go through is scaled.
_SAMPLE = 64


class ExchangeCost(NamedTuple):
    """Cost of an exchange: number of sequential rounds, bytes sent, and seconds of kernels by kernel method."""

    rounds: float
    nbytes: float
    select: dict[str, float]
    merge: dict[str, float]


def exchange_cost(
    candidate: Candidate, workers: int, buckets: Sequence[int], density: float, device: DeviceProfile
) -> ExchangeCost:
    """Split the closed form of an exchange's time into latencies, bytes and kernels; ValueError for other terms."""
    formula = closed_form(candidate)
    rounds = nbytes = 0.0
    select: dict[str, float] = {}
    merge: dict[str, float] = {}
    for entries in buckets:
        message = 4.0 * entries
        each = [float(formula(alpha, beta, message, density, workers)) for alpha, beta in ((1, 0), (0, 1), (1, 1))]
        if not math.isclose(each[0] + each[1], each[2], rel_tol=1e-9):
            raise ValueError(f"the closed form of {candidate.label!r} is no sum of latencies and bytes")
        rounds, nbytes = rounds + each[0], nbytes + each[1]
        for one in device.resolved(_exchange_kernels(candidate, workers, entries, density, device)):
            of = merge if one.before else select
            of[one.method] = of.get(one.method, 0.0) + float(device.seconds([one], workers).max())
    return ExchangeCost(rounds, nbytes, select, merge)


def _exchange_kernels(
    candidate: Candidate, workers: int, entries: int, density: float, device: DeviceProfile
) -> tuple[DeviceOp, ...]:
    sample = min(entries, divisible_sample_size(_SAMPLE, density))
    model = sparsifier_models.create(
        candidate.scheme, workers, sample, density, scale=entries / sample, layers=(sample,), **candidate.options
    )
    draws = stream(0, "kernels of an exchange").standard_normal((workers, sample))
    exchange = model.exchange(draws.astype(np.float32))
    return local_operations(device, model, exchange)


FACTOR_SPREAD = math.log(1.48) / SCORE_95
"""Prior standard deviation of the log ratio of measured to closed-form communication time.

On the 866 shipped settings of TCP up to 100 Mbit/s one closed form in ten is off by 48 % or more.
"""

UNKNOWN = math.log(2)
"""Relative standard deviation from which a predicted time counts as unknown: a factor of two."""

HORIZON, MARGIN = 50, 0.02
"""Default horizon of a switch in iterations, and the minimum share of time that it must save."""

WORD, PINGS = 4.0, 2
"""Bytes of a ping in a probe, and the number of sequential pings; the first one synchronises the workers."""

# What links are taken to be before anything is known of them, and by how much that may be off: a second, and 1 MB/s.
_LATENCY, _BYTE, _LINKS_DEVIATION = 1e-3, 1e-9, [1.0, 1e-6]
_LATENCY_AT, _BYTE_AT, _FACTORS_AT = 0, 1, 2
# The relative standard deviation of a probe, and how much of the smallest exchange its long message is: the best of
# 0.5 to 24 %, and of 3 to 100 %, as the constants of the filter.
_PROBE_NOISE, _PROBE_PART = 0.02, 0.25
_SMALL = 1e-9
# The relative standard deviation that stands for any larger one.
_WIDEST = 10.0


class PredictedTime(NamedTuple):
    """Expected seconds per iteration spent in an exchange, without compute, and their 90 % interval.

    `factor` scales the closed-form communication time, `worth` is the gain of a switch over the horizon [s].
    """

    label: str
    seconds: float
    low: float
    high: float
    communicate: float
    kernels: float
    factor: float
    known: bool
    worth: float


class Advice(NamedTuple):
    """Decision of the adviser before an iteration, the reason, and link estimates with 90 % intervals."""

    iteration: int
    took: str
    before: str
    why: str
    latency_s: tuple[float, float, float]
    byte_s: tuple[float, float, float]
    jumps: int
    probed_s: float
    noise: float
    drift: float
    predicted: tuple[PredictedTime, ...]

    def record(self) -> dict[str, Any]:
        """Return the advice as a dictionary of JSON-compatible values."""
        return {**self._asdict(), "predicted": [one._asdict() for one in self.predicted]}


class Adviser:
    """Online estimator of exchange times that recommends the next exchange from measured iteration times.

    `kernels` has the lowest and highest factor on kernel costs by method. A decision is due `every` so many iterations;
    a switch costs `change_cost` [s] and must save over `horizon` iterations more than the share `margin`. Probes may
    take the share `probe_share` of exchange time.
    """

    def __init__(
        self,
        costs: Mapping[str, ExchangeCost],
        fallback: str,
        kernels: Mapping[str, tuple[float, float]] | None = None,
        *,
        every: int,
        horizon: int = HORIZON,
        margin: float = MARGIN,
        change_cost: float = 0.0,
        probe_share: float = 0.01,
    ) -> None:
        self._every, self.horizon, self.margin, self.change_cost = every, max(horizon, every), margin, change_cost
        self.fallback, self.choice, self.probe_share = fallback, fallback, probe_share
        self.advice: Advice | None = None
        self._labels = tuple(costs)
        n = len(self._labels)
        self._links = Estimator(
            [_LATENCY, _BYTE, *[0.0] * n], [*_LINKS_DEVIATION, *[FACTOR_SPREAD] * n], [True, True] + [False] * n
        )
        self._methods = [*dict.fromkeys(itertools.chain(*([*one.select, *one.merge] for one in costs.values())))]
        within = [(kernels or {}).get(name, (1.0, 1.0)) for name in self._methods]
        spread = [max(math.log(high / low) / (2 * SCORE_95), 0.05) for low, high in within]
        self._kernels = Estimator([1.0] * len(spread), spread, [True] * len(spread))
        self.knows = False
        self._backward, self._probed = 0.0, 0.0
        # How many jumps there had been at the last probe, and what its words took.
        self._probed_at, self._words = 0, 0.0
        # Seconds of all exchanges, and of all probes but the first.
        self._exchanged, self._spent = 0.0, 0.0
        self.costs_are(costs)

    def costs_are(self, costs: Mapping[str, ExchangeCost], buckets: int = 1) -> None:
        """Replace the costs of all exchanges, by label, after the gradient buckets or the density have changed."""
        self._buckets = buckets
        each = [costs[label] for label in self._labels]
        messages = [self._messages(*one) for one in zip(self._labels, each, strict=True)]
        self._all_messages = WeightedTimes(*map(np.array, zip(*messages, strict=True)))
        self._all_select, self._all_merge = (
            WeightedTimes(*map(np.array, zip(*(self._kernels_of(one) for one in part), strict=True)))
            for part in ([one.select for one in each], [one.merge for one in each])
        )

    def learn(self, label: str, cost: ExchangeCost, took: TimingOutcome) -> None:
        """Update link and kernel estimates from the measured times of one iteration."""
        if took.communicate > 0 and cost.rounds + cost.nbytes > 0:
            self._links.learn(self._messages(label, cost), took.communicate)
        for kernels, seconds in ((cost.select, took.select), (cost.merge, took.merge)):
            if seconds > 0 and any(kernels.values()):
                self._kernels.learn(self._kernels_of(kernels), seconds)
        self._backward = took.backward
        self._exchanged += took.communicate + took.select + took.merge

    def probes(self, lasts: float) -> None:
        """Record that workers spent `lasts` seconds on a link probe, which counts against the time for probes."""
        self._probed, self._probed_at = lasts, self._links.jumps
        self._spent += lasts if self._words else 0.0

    def learn_round_trip(self, seconds: float, nbytes: float = 0.0) -> None:
        """Update link estimates from the time of sending `nbytes` to the next worker and receiving a short reply."""
        if seconds > 0:
            self._words = self._words if nbytes else PINGS * seconds
            both = np.zeros(_FACTORS_AT + len(self._labels))
            both[[_LATENCY_AT, _BYTE_AT]] = 2.0, nbytes
            self._links.learn(WeightedTimes(both, np.zeros_like(both)), seconds, _PROBE_NOISE)

    def wants_probe(self) -> bool:
        """Return whether links have changed abruptly since the last probe, and the time budget allows another probe."""
        jumped = self._probed_at != self._links.jumps
        return jumped and self._spent + self._words <= self.probe_share * self._exchanged

    def decide(self, iteration: int) -> Advice:
        """Choose the exchange of the next iteration, and return the decision with its reason."""
        before, predicted = self.choice, self._predicted()
        now = next(one for one in predicted if one.label == before)
        best, faster = max(predicted, key=lambda one: one.worth), min(predicted, key=lambda one: one.seconds)
        least = self.margin * self.horizon * now.seconds + self.change_cost
        if not any(one.known for one in predicted):
            wide = min(predicted, key=lambda one: one.high / one.low)
            why = f"not known what exchanges take: at best {wide.label}, {wide.low:.3g} to {wide.high:.3g} s"
            self.choice = self.fallback
        elif best.label != before and best.worth > least:
            self.choice, why = best.label, f"{best.seconds:.3g} s an iteration in place of {now.seconds:.3g} s"
            if best.seconds >= now.seconds:
                why = f"a try: {best.seconds:.3g} s expected, {best.low:.3g} s possible, {now.seconds:.3g} s now"
        elif faster.label == before:
            why = "it is expected to be the fastest"
        else:
            why = f"{faster.label} may take {faster.seconds:.3g} s, not {now.seconds:.3g} s: not worth a change"
        latency, byte = (self._interval(one) for one in (_LATENCY_AT, _BYTE_AT))
        self.advice = Advice(
            iteration, self.choice, before, why, latency, byte, self._links.jumps, self._probed,
            self._links.noise, self._links.drift, predicted,
        )  # fmt: skip
        self.knows = next(one.known for one in predicted if one.label == self.choice)
        self._probed = 0.0
        return self.advice

    def _messages(self, label: str, cost: ExchangeCost) -> WeightedTimes:
        coefficients, factors = np.zeros((2, _FACTORS_AT + len(self._labels)))
        coefficients[[_LATENCY_AT, _BYTE_AT]] = cost.rounds, cost.nbytes
        factors[_FACTORS_AT + self._labels.index(label)] = 1.0
        return WeightedTimes(coefficients, factors)

    def _kernels_of(self, seconds: Mapping[str, float]) -> WeightedTimes:
        coefficients = np.array([seconds.get(name, 0.0) for name in self._methods], dtype=np.float64)
        return WeightedTimes(coefficients, np.zeros_like(coefficients))

    def _interval(self, place: int) -> tuple[float, float, float]:
        value, deviation = float(self._links.state[place]), math.sqrt(self._links.covariance[place, place])
        within = math.exp(SCORE_95 * min(deviation / value, _WIDEST))
        return value, value / within, value * within

    def _predicted(self) -> tuple[PredictedTime, ...]:
        messages = self._links.expected(self._all_messages)
        select, merge = (self._kernels.expected(one) for one in (self._all_select, self._all_merge))
        rest = messages.seconds + merge.seconds
        more = [1e-3 * np.maximum(one, _SMALL) for one in (select.seconds, rest)]

        def lasts(selecting: Floats, others: Floats) -> Floats:
            if not self._backward:
                return selecting + others
            return exposed_after_backward(
                self._backward, selecting / self._buckets, others / self._buckets, self._buckets
            )

        seconds = np.maximum(lasts(select.seconds, rest), _SMALL)
        by_select = (lasts(select.seconds + more[0], rest) - seconds) / more[0]
        by_rest = (lasts(select.seconds, rest + more[1]) - seconds) / more[1]
        links = by_rest[:, np.newaxis] * messages.gradient
        kernels = by_select[:, np.newaxis] * select.gradient + by_rest[:, np.newaxis] * merge.gradient
        relative = np.sqrt(self._variances(links, kernels)) / seconds
        within = np.exp(SCORE_95 * np.minimum(relative, _WIDEST))
        factors = np.exp(self._links.state[_FACTORS_AT:])
        now = self._labels.index(self.choice)
        gain = seconds[now] - seconds
        spread = self._variances(links - links[now], kernels - kernels[now])
        # What is not known is no reason for a try: where anything is possible, so is a large gain.
        possible = _expected_excess(gain, np.where(relative <= UNKNOWN, np.sqrt(spread), 0.0))
        worth = self._every * gain + (self.horizon - self._every) * possible
        numbers = (
            seconds, seconds / within, seconds * within, messages.seconds, select.seconds + merge.seconds, factors,
            relative <= UNKNOWN, worth,
        )  # fmt: skip
        columns = (one.tolist() for one in numbers)
        return tuple(PredictedTime(*one) for one in zip(self._labels, *columns, strict=True))

    def _variances(self, links: Floats, kernels: Floats) -> Floats:
        """Return the variances of predicted times, given the derivatives with respect to link and kernel estimates."""
        both = ((links, self._links.covariance), (kernels, self._kernels.covariance))
        first, second = (np.maximum(((one @ covariance) * one).sum(axis=1), 0.0) for one, covariance in both)
        return np.asarray(first + second)


def _expected_excess(mean: Floats, deviation: Floats) -> Floats:
    """Return E[max(X, 0)] of a normally distributed X, for each pair of mean and standard deviation."""
    z: Floats = np.clip(mean / np.maximum(deviation, 1e-30), -40.0, 40.0)
    below = np.array([0.5 * math.erfc(-one / math.sqrt(2)) for one in z.tolist()])
    return np.asarray(mean * below + deviation * np.exp(-z * z / 2) / math.sqrt(2 * math.pi))


def probe_bytes(costs: Mapping[str, ExchangeCost]) -> float:
    """Return the size [byte] of the first link probe's large message: a fixed part of the fewest exchanged bytes."""
    return _PROBE_PART * min(one.nbytes for one in costs.values())


AGREES = 2
"""Lag of decisions in iterations: workers agree on the times of an iteration during the next one."""

_REMEMBERED = 1000


@dataclass(eq=False)
class Advised:
    """Policy that follows the adviser: it learns exchange costs from iteration times and picks the fastest exchange.

    Links are measured by a probe before the first iteration, and then by the exchanges themselves; after a jump of the
    links workers stop for another probe, a short message there and back. While exchange times are unknown, the policy
    uses the fallback.

    Raises ValueError if there is no candidate, one without a closed form, no candidate of the label `fallback`, or a
    number is out of its range.

    Parameters
    ----------
    candidates : sequence of Candidate
        Each with a closed form.
    fallback : str, optional
        Label of the exchange while nothing is known; when omitted, the first that is dense, or else the first.
    decide_every : int
        Iterations from one decision to the next, >= 1.
    horizon : int
        Iterations over which a change has to pay, >= 1.
    margin : float
        By how much an exchange has to be faster than the one in force, as a share of its time.
    change_cost : float
        Time that a change takes [s].
    probes : bool
        Whether workers may stop for a probe.

    Attributes
    ----------
    log : deque of Advice
        The last 1,000 decisions, and why they were taken.
    """

    candidates: Sequence[Candidate]
    fallback: str | None = None
    decide_every: Count = 2
    horizon: Count = HORIZON
    margin: Factor = MARGIN
    change_cost: Seconds = 0.0
    probes: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        self.candidates = check_distinct(self.candidates)
        self._of = {one.label: one for one in self.candidates}
        for one in self.candidates:
            closed_form(one)
        dense = [one.label for one in self.candidates if one.scheme in ("dense", "fp16")]
        self._fallback = self.fallback or (*dense, self.candidates[0].label)[0]
        if self._fallback not in self._of:
            raise ValueError(f"fallback must be one of {', '.join(self._of)}, got {self._fallback!r}")
        self.reset()

    def reset(self) -> None:
        """Clear all state at the start of a job."""
        self.log: deque[Advice] = deque(maxlen=_REMEMBERED)
        self._adviser: Adviser | None = None
        self._state: tuple[int, float] | None = None
        self._costs: dict[str, ExchangeCost] = {}
        self._told: list[tuple[int, float | tuple[str, ExchangeCost, TimingOutcome]]] = []

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return a list with one exchange, the one that the adviser's latest decision chose."""
        return self.decide(context).shortlist

    def measures(self, context: PolicyContext) -> Schedule | None:
        """Return the messages of the link probe that is due, between ring neighbours; None if none is due."""
        adviser, workers = self._updated(context), np.arange(len(context.placement))
        if not self.probes or min(workers.size, len(self.candidates)) < 2 or not self._due(context):
            return None
        if not self.log:
            lengths = [WORD] * PINGS + [probe_bytes(self._costs)]
        elif adviser.wants_probe():
            lengths = [WORD] * PINGS
        else:
            return None
        ahead = np.roll(workers, -1)
        rounds = [
            one
            for nbytes in lengths
            for one in (Round(workers, ahead, nbytes, phase="probe"), Round(ahead, workers, WORD, phase="probe"))
        ]
        return Schedule(workers.size, rounds)

    def measured(self, context: PolicyContext, ends: Sequence[float]) -> None:
        """Pass a link probe's round trips to the adviser: the first at once, others once all workers have them."""
        adviser = self._updated(context)
        adviser.probes(max(ends))
        took = np.diff(ends[1::2], prepend=0.0).tolist()
        if self.log:
            self._told.append((context.iteration, min(took)))
            return
        adviser.learn_round_trip(min(took[:PINGS]))
        adviser.learn_round_trip(took[-1], probe_bytes(self._costs))

    def decide(self, context: PolicyContext) -> Decision:
        """Return the decision, which holds the chosen exchange; decide anew if a decision is due."""
        adviser = self._updated(context)
        if self._due(context):
            self.log.append(adviser.decide(context.iteration))
        return Decision((self._of[adviser.choice],))

    def observe(self, context: PolicyContext, observation: Observation) -> None:
        """Queue the measured times of an iteration for the adviser, until all workers have agreed on these times."""
        label = observation.candidate.label
        self._told.append((context.iteration, (label, self._costs[label], observation.took)))

    def _due(self, context: PolicyContext) -> bool:
        return context.iteration % self.decide_every == 0 or self._adviser is None or not self._adviser.knows

    def _updated(self, context: PolicyContext) -> Adviser:
        """Return the adviser with current exchange costs; if a decision is due, it first learns queued times."""
        state, buckets = (len(context.placement), context.density), context.buckets or [round(context.message / 4)]
        if state != self._state:
            self._state = state
            self._costs = {
                label: exchange_cost(one, state[0], buckets, state[1], context.device)
                for label, one in self._of.items()
            }
            if self._adviser is None:
                within = {name: (one.low, one.high) for name, one in context.device.methods.items()}
                self._adviser = Adviser(
                    self._costs, self._fallback, within, every=self.decide_every, horizon=self.horizon,
                    margin=self.margin, change_cost=self.change_cost,
                )  # fmt: skip
            self._adviser.costs_are(self._costs, len(buckets))
        assert self._adviser is not None
        while self._due(context) and self._told and self._told[0][0] <= context.iteration - AGREES:
            _, told = self._told.pop(0)
            if isinstance(told, float):
                self._adviser.learn_round_trip(told)
            else:
                self._adviser.learn(*told)
        return self._adviser
