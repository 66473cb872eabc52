"""The policy of the AR-Topk paper: the arg-min of the closed forms on monitored links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simnet.base.checks import whole
from simnet.base.quantities import Count
from simnet.policies.candidate import Candidate, closed_form, distinct
from simnet.policies.monitor import Monitor
from simnet.policies.protocol import PolicyContext


class Flexible:
    """The arg-min of the closed forms at the latency and bandwidth last probed (Eqn 5 of the AR-Topk paper).

    The decision is taken again when a probe departs from what the last one was based on by more than the monitor's
    `change`, or when the density changes. Of equal costs the first candidate wins. While a probe finds a link down,
    the decision stands.

    Parameters
    ----------
    candidates : sequence of Candidate
        Each with a closed form.
    monitor : Monitor
        How the links are watched.
    decide_every : int
        Iterations from one decision to the next that there may be, >= 1; in between the choice stands, as with a hook
        that asks its policy table every so often.

    Raises
    ------
    ValueError
        If there is no candidate, or one without a closed form, or `decide_every` < 1.
    """

    def __init__(
        self, candidates: Sequence[Candidate], monitor: Monitor | None = None, decide_every: Count = 1
    ) -> None:
        self.candidates = distinct(candidates)
        self.monitor = monitor or Monitor()
        self.decide_every = whole(decide_every, "decide_every", 1)
        self._costs = [closed_form(candidate) for candidate in self.candidates]
        self.reset()

    def reset(self) -> None:
        """Forget the last decision."""
        self._basis: tuple[float, float, float] | None = None
        self._choice = self.candidates[0]

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return the choice in force, after a new decision where one is due."""
        if self._basis is not None and context.iteration % self.decide_every:
            return (self._choice,)
        latency, bandwidth = self.monitor.probe(context)
        basis = self._basis
        due = basis is None or context.density != basis[2] or self.monitor.departs((latency, bandwidth), basis[:2])
        if bandwidth > 0 and due:
            self._basis = latency, bandwidth, context.density
            workers = len(context.placement)
            found = [cost(latency, 1.0 / bandwidth, context.message, context.density, workers) for cost in self._costs]
            self._choice = self.candidates[int(np.argmin(found))]
        return (self._choice,)
