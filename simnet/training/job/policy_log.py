"""Log of a policy's decisions and observations. Replaying it after a restart restores the policy's state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base import plugins
from simnet.network import Timing
from simnet.policies import Adaptive, Decision, Measures, Observation, Policy, PolicyContext, TimingOutcome, density_at
from simnet.schedule import Schedule
from simnet.training.job.checkpoint import RowTable, State
from simnet.training.job.exchange import TimedExchange, total_communication
from simnet.training.job.job import Job, job_buckets, job_overlap
from simnet.training.job.record import Iteration, compression_gains

# What a policy observes of a decision, as numbers; -1 and NaN where it observed nothing.
_NUMBERS = ("gain", "released_gain", "compression", *TimingOutcome._fields)
_UNOBSERVED = {"attempt": -1, "candidate": -1} | dict.fromkeys(_NUMBERS, math.nan)


class PolicyLog:
    """Log of a policy's decisions and observations; replaying the log brings a reset policy to the same state."""

    def __init__(self, job: Job, policy: Policy, keeps: bool = True) -> None:
        self._job, self._policy = job, policy
        # Asked once, as to ask a protocol takes longer than most answers.
        self._adaptive = policy if isinstance(policy, Adaptive) else None
        self._measures = policy if isinstance(policy, Measures) else None
        scale = job.source.scale
        self._buckets = [
            round((one.entries.stop - one.entries.start) * scale) for one in job_buckets(job, policy.candidates)
        ]
        # What the policy knew at its last decision.
        self._context: PolicyContext
        # Nobody asks for the log of a job without checkpoints.
        self._kept, self._entries = keeps, RowTable()
        # When the rounds of a probe before the next decision arrived.
        self._ends: Sequence[float] = ()
        # The last entry, as long as what the policy observes may be added.
        self._last: dict[str, int | float | str] | None = None
        policy.reset()

    def decide(self, iteration: int, now: float, active: NDArray[np.intp]) -> Decision:
        """Return the policy's decision for an iteration, and log the inputs of the decision."""
        self._keep()
        ends = np.asarray(self._ends, dtype=np.float64).tobytes().hex()
        at = {"iteration": iteration, "now": float(now)}
        self._last = {**at, "active": active.tobytes().hex(), "ends": ends, **_UNOBSERVED}
        return self._decided(iteration, now, active)

    def _decided(self, iteration: int, now: float, active: NDArray[np.intp]) -> Decision:
        policy, self._context, self._ends = self._policy, self._context_of(iteration, now, active), ()
        if self._adaptive is not None:
            decision = self._adaptive.decide(self._context)
            if not isinstance(decision, Decision):
                raise plugins.return_error(self._adaptive.decide, decision, "a Decision")
            return decision
        shortlist = policy.shortlist(self._context)
        known = isinstance(shortlist, Sequence) and all(one in policy.candidates for one in shortlist)
        if not known or not shortlist:
            raise plugins.return_error(policy.shortlist, shortlist, "some of the candidates")
        return Decision(shortlist)

    def measures(self, iteration: int, now: float, active: NDArray[np.intp]) -> Schedule | None:
        """Return the messages of a link probe that the policy requests before its decision; None for no probe."""
        return None if self._measures is None else self._measures.measures(self._context_of(iteration, now, active))

    def measured(self, iteration: int, now: float, active: NDArray[np.intp], ends: Sequence[float]) -> None:
        """Give the policy the end times of a link probe's rounds [s since the last worker began the iteration]."""
        assert self._measures is not None
        self._ends = ends
        self._measures.measured(self._context_of(iteration, now, active), ends)

    def _context_of(self, iteration: int, now: float, active: NDArray[np.intp]) -> PolicyContext:
        job, placement = self._job, self._job.hosts[active].tolist()
        shares = (1.0,) if job.strategy is None else job.strategy.shares
        share, usual = shares[iteration % len(shares)], density_at(job.density, iteration)
        message, parts = 4.0 * share * job.source.true_parameters, [round(share * one) for one in self._buckets]
        return PolicyContext(iteration, now, job.network(iteration), placement, message, usual, parts, job.device)

    def observe(self, iteration: Iteration, step: TimedExchange) -> None:
        """Inform the policy of the result of the exchange that followed its last decision."""
        if self._adaptive is None:
            return
        gain, each = compression_gains(step.exchanges)
        norms, broadcaster = np.sqrt(each), step.exchanges[0].stats.get("broadcaster")
        released = norms.mean() if broadcaster is None else norms[int(float(broadcaster))]
        assert isinstance(step.result, Timing)
        assert self._last is not None
        compression = float((step.select + step.result.rank_compute).max())
        took = self._outcome(iteration, step, step.result)
        observation = Observation(iteration.decision, step.candidate, gain, float(released), compression, took)
        attempt = iteration.decision.attempt
        numbers = zip(_NUMBERS, (float(gain), float(released), compression, *took), strict=True)
        candidate = list(self._policy.candidates).index(step.candidate)
        self._last |= {"attempt": -1 if attempt is None else attempt, "candidate": candidate, **dict(numbers)}
        self._adaptive.observe(self._context, observation)

    def _outcome(self, iteration: Iteration, step: TimedExchange, timing: Timing) -> TimingOutcome:
        """Return an iteration's times by part, each a maximum or minimum over workers, as from an all-reduce."""
        overlap = job_overlap(self._job, self._policy.candidates)
        (complete, select), merge = iteration.selections[-1], float(timing.rank_compute.max())
        until = timing.left.max() if self._job.barrier else timing.left
        left = until + (timing.origin - step.begun) - (complete + select)
        selecting, count = float(select.max()), len(step.exchanges)
        backward = 0.0 if overlap is None or count == 1 else overlap.backward * float(iteration.compute.max())
        communicate = total_communication(float(left.min()), backward, selecting, count) - merge
        return TimingOutcome(max(communicate, 0.0), selecting, merge, backward)

    def _keep(self) -> None:
        """Append the latest decision and observation to the log."""
        if self._last is not None and self._kept:
            self._entries.append(self._last)
        self._last = None

    def save(self) -> State:
        """Return the log in the form that a checkpoint stores."""
        self._keep()
        return self._entries.save()

    def restore(self, state: State) -> None:
        """Restore the policy by replaying a saved log."""
        self._entries.restore(state)
        columns = self._entries.between()
        for row in zip(*(column.tolist() for column in columns.values()), strict=True):
            self._replay(dict(zip(columns, row, strict=True)))

    def _replay(self, entry: dict[str, Any]) -> None:
        active, ends = (bytes.fromhex(entry[name]) for name in ("active", "ends"))
        at = entry["iteration"], entry["now"], np.frombuffer(active, dtype=np.intp)
        self.measures(*at)
        if ends:
            self.measured(*at, np.frombuffer(ends).tolist())
        decision = self._decided(*at)
        if entry["candidate"] >= 0:
            assert self._adaptive is not None
            candidate = self._policy.candidates[entry["candidate"]]
            attempt = None if entry["attempt"] < 0 else entry["attempt"]
            gain, released, compression, *took = (entry[name] for name in _NUMBERS)
            known = gain, released, compression, TimingOutcome(*took)
            observation = Observation(decision._replace(attempt=attempt), candidate, *known)
            self._adaptive.observe(self._context, observation)
