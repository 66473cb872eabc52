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
from simnet.job.job import Job, buckets
from simnet.job.record import IterationState, gains
from simnet.job.streams import under_way
from simnet.network import Timing
from simnet.policies import (
    Adaptive,
    Decision,
    Measures,
    Observation,
    Policy,
    PolicyContext,
    Took,
    density_at,
)
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
    communicate: float = math.nan
    select: float = math.nan
    merge: float = math.nan
    backward: float = math.nan


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
        scale = job.source.scale
        self._buckets = [
            round((one.entries.stop - one.entries.start) * scale) for one in buckets(job.source, job.overlap)
        ]
        self._context: PolicyContext | None = None
        self._entries: list[_Entry] = []
        # When the rounds of the probe before each entry ended; empty where there was none.
        self._probed: list[list[float]] = [[]]
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
        policy, workers = self._policy, active.tolist()
        self._context = self._of(iteration, now, active)
        if not self._active_sets or self._active_sets[-1] != workers:
            self._active_sets.append(workers)
        self._entries.append(_Entry(iteration, now, len(self._active_sets) - 1))
        self._probed.append([])
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

    def measures(self, iteration: int, now: float, active: NDArray[np.intp]) -> Schedule | None:
        """Return the messages by which workers measure the links before a decision, if they do.

        Parameters
        ----------
        iteration, now, active
            As of `decide`.
        """
        return self._policy.measures(self._of(iteration, now, active)) if isinstance(self._policy, Measures) else None

    def measured(self, iteration: int, now: float, active: NDArray[np.intp], ends: Sequence[float]) -> None:
        """Let the policy know how these messages went, before it decides.

        Parameters
        ----------
        iteration, now, active
            As of `decide`.
        ends : sequence of float
            When the last message of each round had arrived, in seconds since the last worker began.
        """
        assert isinstance(self._policy, Measures)
        self._probed[-1] = list(ends)
        self._policy.measured(self._of(iteration, now, active), ends)

    def _of(self, iteration: int, now: float, active: NDArray[np.intp]) -> PolicyContext:
        job, placement = self._job, self._hosts[active].tolist()
        message, usual = 4.0 * job.source.true_parameters, density_at(job.density, iteration)
        return PolicyContext(
            iteration, now, job.network(iteration), placement, message, usual, self._buckets, job.device
        )

    def observe(self, decision: Decision, step: TimedExchange, state: IterationState) -> None:
        """Let the policy observe what came of its last decision.

        Parameters
        ----------
        decision : Decision
            The decision.
        step : TimedExchange
            The exchange.
        state : IterationState
            What workers did before.
        """
        if isinstance(self._policy, Adaptive):
            gain, each = gains(step.exchanges)
            norms, broadcaster = np.sqrt(each), step.exchanges[0].stats.get("broadcaster")
            released = norms.mean() if broadcaster is None else norms[int(float(broadcaster))]
            assert isinstance(step.result, Timing)
            compression = float((step.select + step.result.rank_compute).max())
            took = self._took(step, state)
            self._observe(Observation(decision, step.candidate, gain, float(released), compression, took))

    def _took(self, step: TimedExchange, state: IterationState) -> Took:
        """Return the parts of an iteration, as workers would agree on them."""
        timing, overlap = step.result, self._job.overlap
        assert isinstance(timing, Timing)
        (complete, select), merge = state.selections[-1], float(timing.rank_compute.max())
        until = timing.left.max() if self._job.barrier else timing.left
        left = until + (timing.origin - step.begun) - (complete + select)
        selecting, count = float(select.max()), len(step.exchanges)
        backward = 0.0 if overlap is None or count == 1 else overlap.backward * float(state.compute.max())
        communicate = under_way(float(left.min()), backward, selecting, count) - merge
        return Took(max(communicate, 0.0), selecting, merge, backward)

    def _observe(self, observation: Observation) -> None:
        assert isinstance(self._policy, Adaptive)
        assert self._context is not None
        self._entries[-1] = self._entries[-1]._replace(
            attempt=-1 if observation.decision.attempt is None else observation.decision.attempt,
            candidate=list(self._policy.candidates).index(observation.candidate),
            gain=observation.gain,
            released_gain=observation.released_gain,
            compression=observation.compression,
            **observation.took._asdict(),
        )
        self._policy.observe(self._context, observation)

    def save(self) -> State:
        """Return the log, from which `restore` resumes."""
        entries: Floats = np.array(self._entries, dtype=np.float64).reshape(-1, len(_Entry._fields))
        return {"entries": entries, "active": self._active_sets, "probed": self._probed[:-1]}

    def restore(self, state: State) -> None:
        """Replay a log to the policy."""
        for row, ends in zip(state["entries"].tolist(), state["probed"], strict=True):
            entry = _Entry(*row)
            active = np.array(state["active"][int(entry.active)], dtype=np.intp)
            self.measures(int(entry.iteration), entry.now, active)
            if ends:
                self.measured(int(entry.iteration), entry.now, active, ends)
            decision = self.decide(int(entry.iteration), entry.now, active)
            if entry.candidate >= 0:
                candidate = self._policy.candidates[int(entry.candidate)]
                attempt = None if entry.attempt < 0 else int(entry.attempt)
                measured = entry.gain, entry.released_gain, entry.compression
                took = Took(entry.communicate, entry.select, entry.merge, entry.backward)
                self._observe(Observation(decision._replace(attempt=attempt), candidate, *measured, took))
