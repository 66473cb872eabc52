"""The decision: which exchange is expected to be the fastest, is that known, and is a change worth it.

What a change is worth is the time that it saves over the iterations for which links are taken to stay as they are, the
horizon. An exchange that turns out to be slow is left again, so that what its first iterations tell counts as well:
``every x E[gain] + (horizon - every) x E[max(gain, 0)]``, the knowledge gradient of [1]_. A change is made where that
exceeds what the change costs, and a margin, so that exchanges that are as fast as each other do not take turns. A probe
of the links is made where what it tells is worth more than its time, by the same rule.

References
----------
.. [1] P. Frazier, W. Powell, S. Dayanik, "A knowledge-gradient policy for sequential information collection", SIAM
   Journal on Control and Optimization 47, 2008.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simnet.advise.estimator import Estimator, Sum
from simnet.advise.exchanges import Cost
from simnet.base.arrays import Floats
from simnet.job.streams import left_after
from simnet.policies import Took

FACTOR_SPREAD = math.log(1.48) / 1.645
"""Standard deviation of the logarithm of what an exchange takes over its closed form.

On the 866 shipped settings of TCP up to 100 Mbit/s one closed form in ten is off by 48 % or more.
"""

UNKNOWN = math.log(2)
"""The relative standard deviation from which on a time is not known: a factor of two."""

# What links are taken to be before anything is known of them, and by how much that may be off: a second, and 1 MB/s.
_LATENCY, _BYTE, _LINKS_DEVIATION = 1e-3, 1e-9, [1.0, 1e-6]
_LATENCY_AT, _BYTE_AT, _PROBE_AT = 0, 1, 2
# The quantile of a normal distribution that 90 % are within, on both sides.
_NINETY = 1.645
_SMALL = 1e-9
# The relative standard deviation that stands for any larger one.
_WIDEST = 10.0


class Predicted(NamedTuple):
    """What an iteration with an exchange is expected to take beyond computing.

    Parameters
    ----------
    label : str
        The exchange.
    seconds, low, high : float
        The expectation, and the interval that it is in with a probability of 90 % [s].
    communicate, kernels : float
        Messages, and kernels, whether or not they run beside the backward pass [s].
    factor : float
        By which factor messages are found to take longer than their closed form.
    known : bool
        Whether the standard deviation is below `UNKNOWN`.
    worth : float
        What a change to it is worth, over the horizon [s].
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
    """What was decided before an iteration, and why.

    Parameters
    ----------
    iteration : int
        Which.
    took, before : str
        The exchange that was taken, and the one before.
    why : str
        The reason.
    latency_s, byte_s : tuple of (float, float, float)
        Latency of a message, software included, and seconds per byte: estimate, and the ends of its 90 % interval.
    jumps : int
        How often links have jumped so far.
    probed_s : float
        Seconds of the probe just before; 0 where there was none.
    noise, drift : float
        Standard deviations of the logarithms of a time, and of the change of links from one iteration to the next.
    predicted : tuple of Predicted
        All exchanges.
    """

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
    predicted: tuple[Predicted, ...]

    def record(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {**self._asdict(), "predicted": [one._asdict() for one in self.predicted]}


class Adviser:
    """Learns from what iterations take, and says which exchange should come next.

    Parameters
    ----------
    costs : mapping of str to Cost
        What each exchange consists of, by its label.
    fallback : str
        The exchange to take while nothing is known.
    kernels : mapping of str to (float, float)
        By which factors the kernels of each method may differ from the profile, as its interval has it.
    every : int
        Iterations from one decision to the next, >= 1.
    horizon : int
        Iterations over which a change has to pay, >= `every`.
    margin : float
        By how much an exchange has to be faster than the one in force, as a share of its time, >= 0.
    change_cost : float
        Seconds that a change takes, >= 0.
    probe_share : float
        What probes may take of the time of exchanges, unless links have jumped.
    """

    def __init__(
        self,
        costs: Mapping[str, Cost],
        fallback: str,
        kernels: Mapping[str, tuple[float, float]] | None = None,
        *,
        every: int = 5,
        horizon: int = 50,
        margin: float = 0.02,
        change_cost: float = 0.0,
        probe_share: float = 0.01,
    ) -> None:
        self.probe_share = probe_share
        self.every, self.horizon, self.margin, self.change_cost = every, max(horizon, every), margin, change_cost
        self.fallback, self.choice = fallback, fallback
        self.advice: Advice | None = None
        self._costs = dict(costs)
        self._labels = tuple(costs)
        n = len(self._labels)
        self._links = Estimator(
            [_LATENCY, _BYTE, *[0.0] * (1 + n)],
            [*_LINKS_DEVIATION, *[FACTOR_SPREAD] * (1 + n)],
            [True, True] + [False] * (1 + n),
        )
        methods = dict.fromkeys(itertools.chain(*([*one.select, *one.merge] for one in costs.values())))
        self._methods = {name: place for place, name in enumerate(methods)}
        within = [(kernels or {}).get(name, (1.0, 1.0)) for name in self._methods]
        spread = [max(math.log(high / low) / (2 * _NINETY), 0.05) for low, high in within]
        self._kernels = Estimator([1.0] * len(spread), spread, [True] * len(spread))
        self._buckets, self._backward, self._probed = 1, 0.0, 0.0
        # How many jumps there had been at the last probe, and the seconds of exchanges since.
        self._probed_at: int | None = None
        self._waits = False
        self._since_probe = 0.0

    def costs_are(self, costs: Mapping[str, Cost], buckets: int = 1) -> None:
        """Take over what the exchanges consist of, as where buckets are made anew or the density changes.

        Parameters
        ----------
        costs : mapping of str to Cost
            By the labels there were.
        buckets : int
            In how many pieces the gradient is exchanged.
        """
        self._buckets = buckets
        self._costs = dict(costs)

    def learn(self, label: str, cost: Cost, took: Took) -> None:
        """Take in what an iteration with an exchange took.

        Parameters
        ----------
        label : str
            The exchange.
        cost : Cost
            What it consisted of.
        took : Took
            What it took.
        """
        messages = self._messages(label, cost)
        if took.communicate > 0 and any(messages.coefficients.values()):
            self._links.learn(messages, took.communicate, part_of_a_series=True)
        for kernels, seconds in ((cost.select, took.select), (cost.merge, took.merge)):
            if seconds > 0 and any(kernels.values()):
                self._kernels.learn(self._kernels_of(kernels), seconds, part_of_a_series=True)
        self._backward = took.backward
        self._since_probe += took.communicate + took.select + took.merge

    def probes(self, lasts: float) -> None:
        """Take note that workers probe, which keeps them for so many seconds; decisions wait for what they find."""
        self._probed, self._probed_at, self._since_probe, self._waits = lasts, self._links.jumps, 0.0, True

    def learn_round_trip(self, seconds: float) -> None:
        """Take in how long it took from when a worker sent a word to the next until the answer was there."""
        self._waits = False
        if seconds > 0:
            self._links.learn(Sum({_LATENCY_AT: 2.0}, _PROBE_AT), seconds)

    def wants_probe(self) -> bool:
        """Return whether it is worth its time to find out how much of a time is latency."""
        if len(self._labels) < 2 or self._waits:
            return False
        current = self._lasting(self.choice)
        gain = 0.0
        for label in self._labels:
            saved = self._lasting(label).less(current)
            # Beside the time in force, latency and bandwidth are known only together: what one is the other is not.
            links = np.where(np.arange(saved.links.size) <= _BYTE_AT, saved.links, 0.0)
            expected = max(saved.seconds, 0.0)
            gain = max(gain, _expected_excess(saved.seconds, self._links.deviation(links)) - expected)
        cost = 4.0 * float(self._links.state[_LATENCY_AT])
        afresh = self._probed_at != self._links.jumps
        return self.horizon * gain > cost and (afresh or cost <= self.probe_share * self._since_probe)

    def decide(self, iteration: int) -> Advice:
        """Return what to do next, and why."""
        before, current = self.choice, self._lasting(self.choice)
        predicted = [self._predicted(label, current) for label in self._labels]
        least = self.margin * self.horizon * current.seconds + self.change_cost
        best = max(predicted, key=lambda one: one.worth)
        now = next(one for one in predicted if one.label == before)
        if self._waits and self.knows and not (best.known and best.seconds < now.seconds):
            why = "workers have probed, and wait for what they find"
        elif not any(one.known for one in predicted):
            self.choice, why = self.fallback, _not_known(predicted)
        elif best.label != before and best.worth > least:
            self.choice = best.label
            why = f"{best.seconds:.3g} s an iteration in place of {now.seconds:.3g} s"
            if best.seconds >= now.seconds:
                why = f"a try: {best.seconds:.3g} s expected, {best.low:.3g} s possible, {now.seconds:.3g} s now"
        else:
            faster = min(predicted, key=lambda one: one.seconds)
            why = "it is expected to be the fastest"
            if faster.label != before:
                why = f"{faster.label} may take {faster.seconds:.3g} s, not {now.seconds:.3g} s: not worth a change"
        latency, byte = (self._interval(one) for one in (_LATENCY_AT, _BYTE_AT))
        self.advice = Advice(
            iteration, self.choice, before, why, latency, byte, self._links.jumps, self._probed,
            self._links.noise, self._links.drift, tuple(predicted),
        )  # fmt: skip
        self._probed = 0.0
        return self.advice

    @property
    def knows(self) -> bool:
        """Whether it is known what the exchange in force takes."""
        return self._relative(self._lasting(self.choice)) <= UNKNOWN

    def _messages(self, label: str, cost: Cost) -> Sum:
        own = _PROBE_AT + 1 + self._labels.index(label)
        return Sum({_LATENCY_AT: cost.rounds, _BYTE_AT: cost.nbytes}, own)

    def _kernels_of(self, seconds: Mapping[str, float]) -> Sum:
        return Sum({self._methods[name]: one for name, one in seconds.items()})

    def _lasting(self, label: str) -> _Lasting:
        cost = self._costs[label]
        messages = self._links.expected(self._messages(label, cost))
        select, merge = (self._kernels.expected(self._kernels_of(one)) for one in (cost.select, cost.merge))

        def lasts(selecting: float, rest: float) -> float:
            if not self._backward:
                return selecting + rest
            return left_after(self._backward, selecting / self._buckets, rest / self._buckets, self._buckets)

        rest = messages.seconds + merge.seconds
        seconds = lasts(select.seconds, rest)
        by_select, by_rest = 1.0, 1.0
        if self._backward:
            step = 1e-3
            by_rest = (lasts(select.seconds, rest * (1 + step)) - seconds) / (step * rest)
            by_select = (lasts(select.seconds * (1 + step), rest) - seconds) / max(step * select.seconds, 1e-30)
        kernels = by_select * select.gradient + by_rest * merge.gradient
        parts = messages.seconds, select.seconds + merge.seconds
        return _Lasting(max(seconds, _SMALL), by_rest * messages.gradient, kernels, *parts)

    def _interval(self, place: int) -> tuple[float, float, float]:
        value, deviation = float(self._links.state[place]), math.sqrt(self._links.covariance[place, place])
        within = math.exp(_NINETY * min(deviation / value, _WIDEST))
        return value, value / within, value * within

    def _deviation(self, one: _Lasting) -> float:
        return math.hypot(self._links.deviation(one.links), self._kernels.deviation(one.kernels))

    def _relative(self, one: _Lasting) -> float:
        return self._deviation(one) / one.seconds

    def _predicted(self, label: str, current: _Lasting) -> Predicted:
        lasting = self._lasting(label)
        saved = lasting.less(current)
        gain, deviation = saved.seconds, self._deviation(saved)
        relative = self._relative(lasting)
        # What is not known is no reason for a try: where anything is possible, so is a large gain.
        later = max(self.horizon - self.every, 0) * _expected_excess(gain, deviation if relative <= UNKNOWN else 0.0)
        within = math.exp(_NINETY * min(relative, _WIDEST))
        place = _PROBE_AT + 1 + self._labels.index(label)
        return Predicted(
            label, lasting.seconds, lasting.seconds / within, lasting.seconds * within, lasting.communicate,
            lasting.compute, math.exp(self._links.state[place]), relative <= UNKNOWN, self.every * gain + later,
        )  # fmt: skip


class _Lasting(NamedTuple):
    """Seconds of an exchange, their gradients by the states of links and kernels, and what they consist of."""

    seconds: float
    links: Floats
    kernels: Floats
    communicate: float
    compute: float

    def less(self, current: _Lasting) -> _Lasting:
        """Return what is saved against the exchange in force."""
        return _Lasting(
            current.seconds - self.seconds,
            current.links - self.links,
            current.kernels - self.kernels,
            current.communicate - self.communicate,
            current.compute - self.compute,
        )


def _expected_excess(mean: float, deviation: float) -> float:
    """Return the mean of what of a normal number is above zero."""
    if deviation <= 0:
        return max(mean, 0.0)
    z = mean / deviation
    return mean * 0.5 * math.erfc(-z / math.sqrt(2)) + deviation * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _not_known(predicted: Sequence[Predicted]) -> str:
    wide = min(predicted, key=lambda one: one.high / one.low)
    return f"not known what exchanges take: at best {wide.label}, {wide.low:.3g} to {wide.high:.3g} s"
