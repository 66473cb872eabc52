"""The log of a policy: what it was asked before each iteration, and what it observed after it.

A policy is a function of these and of nothing else. So a checkpoint keeps the log in place of the policy: replayed to a
policy that starts afresh, it brings that to the same state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base import plugins
from simnet.base.arrays import Floats
from simnet.job.checkpoint import State
from simnet.job.exchange import TimedExchange
from simnet.job.job import Job
from simnet.job.record import gains
from simnet.network import Timing
from simnet.policies import Adaptive, Decision, Flexible, Observation, Policy, PolicyContext, density_at
from simnet.schedule import Schedule


class _Entry(NamedTuple):
    """A question and what the policy observed of it, as numbers; -1 and NaN where it observed nothing."""

    iteration: float
    now: float
    active: float
    attempt: float = -1
    candidate: float = -1
    gain: float = math.nan
    released_gain: float = math.nan
    compression: float = math.nan


class PolicyLog:
    """What a job asks of a policy, and what the policy observes.

    Parameters
    ----------
    job : Job
        The job.
    policy : Policy
        The policy; it is reset.
    """

    def __init__(self, job: Job, policy: Policy) -> None:
        self._job, self._policy = job, policy
        self._hosts = np.arange(job.source.workers) if job.placement is None else np.asarray(job.placement)
        self._context: PolicyContext | None = None
        self._entries: list[_Entry] = []
        self._active_sets: list[list[int]] = []
        policy.reset()

    def decide(self, iteration: int, now: float, active: NDArray[np.intp]) -> Decision:
        """Return what the policy wants next; one that is not adaptive wants to train, at the density of the job.

        Parameters
        ----------
        iteration : int
            Which iteration is due.
        now : float
            Simulated time [s].
        active : ndarray of int, shape (P',)
            The workers that take part.
        """
        job, policy = self._job, self._policy
        placement, workers = self._hosts[active].tolist(), active.tolist()
        message, usual = 4.0 * job.source.true_parameters, density_at(job.density, iteration)
        self._context = PolicyContext(iteration, now, job.network(iteration), placement, message, usual)
        if not self._active_sets or self._active_sets[-1] != workers:
            self._active_sets.append(workers)
        self._entries.append(_Entry(iteration, now, len(self._active_sets) - 1))
        if isinstance(policy, Adaptive):
            decision = policy.decide(self._context)
            if not isinstance(decision, Decision):
                raise plugins.wrong(policy.decide, decision, "a Decision")
            return decision
        shortlist = policy.shortlist(self._context)
        known = isinstance(shortlist, Sequence) and all(one in policy.candidates for one in shortlist)
        if not known or not shortlist:
            raise plugins.wrong(policy.shortlist, shortlist, "some of the candidates")
        return Decision(shortlist)

    def measures(self) -> Schedule | None:
        """Return the messages by which workers measure the links before they act on the last decision, if they do."""
        assert self._context is not None
        return self._policy.measures(self._context) if isinstance(self._policy, Flexible) else None

    def observe(self, decision: Decision, step: TimedExchange) -> None:
        """Let the policy observe what came of its last decision."""
        if isinstance(self._policy, Adaptive):
            gain, each = gains(step.exchanges)
            norms, broadcaster = np.sqrt(each), step.exchanges[0].stats.get("broadcaster")
            released = norms.mean() if broadcaster is None else norms[int(float(broadcaster))]
            assert isinstance(step.result, Timing)
            compression = float((step.select + step.result.rank_compute).max())
            self._observe(Observation(decision, step.candidate, gain, float(released), compression))

    def _observe(self, observation: Observation) -> None:
        assert isinstance(self._policy, Adaptive)
        assert self._context is not None
        self._entries[-1] = self._entries[-1]._replace(
            attempt=-1 if observation.decision.attempt is None else observation.decision.attempt,
            candidate=list(self._policy.candidates).index(observation.candidate),
            gain=observation.gain,
            released_gain=observation.released_gain,
            compression=observation.compression,
        )
        self._policy.observe(self._context, observation)

    def save(self) -> State:
        """Return the log, from which `restore` resumes."""
        entries: Floats = np.array(self._entries, dtype=np.float64).reshape(-1, len(_Entry._fields))
        return {"entries": entries, "active": self._active_sets}

    def restore(self, state: State) -> None:
        """Replay a log to the policy."""
        for row in state["entries"].tolist():
            entry = _Entry(*row)
            active = np.array(state["active"][int(entry.active)], dtype=np.intp)
            decision = self.decide(int(entry.iteration), entry.now, active)
            if entry.candidate >= 0:
                candidate = self._policy.candidates[int(entry.candidate)]
                attempt = None if entry.attempt < 0 else int(entry.attempt)
                measured = entry.gain, entry.released_gain, entry.compression
                self._observe(Observation(decision._replace(attempt=attempt), candidate, *measured))
