"""The adviser as an adaptive policy of simulated jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from simnet.base.checks import check_int
from simnet.base.quantities import Count, Factor, Seconds, check_bounds
from simnet.policies import Candidate, Decision, Observation, PolicyContext, TimingOutcome, check_distinct, closed_form
from simnet.schedule import Round, Schedule
from simnet.training.advise.adviser import (
    HORIZON,
    MARGIN,
    PINGS,
    WORD,
    Advice,
    Adviser,
    ExchangeCost,
    exchange_cost,
    probe_bytes,
)

AGREES = 2
"""Lag of decisions in iterations: workers agree on the times of an iteration during the next one."""

_REMEMBERED = 1000


class Advised:
    """The adviser's choice, by what iterations took so far, as `simnet.cluster.hooks.Hook.advised` makes it.

    Links are measured by a probe before the first iteration, and then by the exchanges themselves; workers stop for a
    word there and back after links have jumped. While it is not known what exchanges take, the fallback is taken.

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

    def __init__(
        self,
        candidates: Sequence[Candidate],
        fallback: str | None = None,
        decide_every: Count = 2,
        horizon: Count = HORIZON,
        margin: Factor = MARGIN,
        change_cost: Seconds = 0.0,
        probes: bool = True,
    ) -> None:
        self.candidates = check_distinct(candidates)
        self._of = {one.label: one for one in self.candidates}
        for one in self.candidates:
            closed_form(one)
        dense = [one.label for one in self.candidates if one.scheme in ("dense", "fp16")]
        self.fallback = fallback or (*dense, self.candidates[0].label)[0]
        if self.fallback not in self._of:
            raise ValueError(f"fallback must be one of {', '.join(self._of)}, got {self.fallback!r}")
        self.decide_every, self.horizon = check_int(decide_every, "decide_every", 1), check_int(horizon, "horizon", 1)
        self.margin = check_bounds(margin, Factor, "margin")
        self.change_cost = check_bounds(change_cost, Seconds, "change_cost")
        self.probes = probes
        self.reset()

    def reset(self) -> None:
        """Clear all state at the start of a job."""
        self.log: deque[Advice] = deque(maxlen=_REMEMBERED)
        self._adviser: Adviser | None = None
        self._state: tuple[int, float] | None = None
        self._costs: dict[str, ExchangeCost] = {}
        self._told: list[tuple[int, float | tuple[str, ExchangeCost, TimingOutcome]]] = []

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return the exchange chosen by the last decision, as a list of one."""
        return self.decide(context).shortlist

    def measures(self, context: PolicyContext) -> Schedule | None:
        """Return the probe schedule, pings between ring neighbours and at first a long message; None if none is due."""
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
        """Learn round trips from the first probe; queue those of later probes until workers have agreed on them."""
        adviser = self._updated(context)
        adviser.probes(max(ends))
        took = np.diff(ends[1::2], prepend=0.0).tolist()
        if self.log:
            self._told.append((context.iteration, min(took)))
            return
        adviser.learn_round_trip(min(took[:PINGS]))
        adviser.learn_round_trip(took[-1], probe_bytes(self._costs))

    def decide(self, context: PolicyContext) -> Decision:
        """Return the chosen exchange, re-deciding first if a decision is due."""
        adviser = self._updated(context)
        if self._due(context):
            self.log.append(adviser.decide(context.iteration))
        return Decision((self._of[adviser.choice],))

    def observe(self, context: PolicyContext, observation: Observation) -> None:
        """Queue the times of an iteration until workers have agreed on them."""
        label = observation.candidate.label
        self._told.append((context.iteration, (label, self._costs[label], observation.took)))

    def _due(self, context: PolicyContext) -> bool:
        return context.iteration % self.decide_every == 0 or self._adviser is None or not self._adviser.knows

    def _updated(self, context: PolicyContext) -> Adviser:
        """Return the adviser, updated with the queued times that workers have agreed on if a decision is due."""
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
                    self._costs, self.fallback, within, every=self.decide_every, horizon=self.horizon,
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
