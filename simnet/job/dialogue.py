"""What a policy is asked before each iteration, and told after it.

A policy is a function of what it was asked and told, and of nothing else. So a checkpoint keeps the dialogue in place
of the policy: said once more to one that begins, it brings it to where it was.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.job.checkpoint import State
from simnet.job.exchanging import Step
from simnet.job.job import Job
from simnet.job.record import gains
from simnet.policies import Adaptive, Decision, Observation, Policy, PolicyContext, density_at


class _Said(NamedTuple):
    """A question, and what came of it: numbers alone, with -1 and NaN where nothing was told."""

    iteration: float
    now: float
    crew: float
    attempt: float = -1
    candidate: float = -1
    gain: float = math.nan
    released_gain: float = math.nan
    compression: float = math.nan


class Dialogue:
    """The dialogue of a job with a policy, which begins.

    Parameters
    ----------
    job : Job
        The job.
    policy : Policy
        The policy; it forgets what it knew.
    """

    def __init__(self, job: Job, policy: Policy) -> None:
        self._job, self._policy = job, policy
        self._hosts = np.arange(job.source.workers) if job.placement is None else np.asarray(job.placement)
        self._context: PolicyContext | None = None
        self._said: list[_Said] = []
        self._crews: list[list[int]] = []
        policy.reset()

    def ask(self, iteration: int, now: float, crew: NDArray[np.intp]) -> Decision:
        """Return what the policy wants next; one that is not adaptive wants to train, at the density of the job.

        Parameters
        ----------
        iteration : int
            Which iteration is due.
        now : float
            Simulated time [s].
        crew : ndarray of int, shape (P',)
            The workers that take part.
        """
        job, policy = self._job, self._policy
        placement, workers = self._hosts[crew].tolist(), crew.tolist()
        message, usual = 4.0 * job.source.true_parameters, density_at(job.density, iteration)
        self._context = PolicyContext(iteration, now, job.network(iteration), placement, message, usual)
        if not self._crews or self._crews[-1] != workers:
            self._crews.append(workers)
        self._said.append(_Said(iteration, now, len(self._crews) - 1))
        return (
            policy.decide(self._context) if isinstance(policy, Adaptive) else Decision(policy.shortlist(self._context))
        )

    def tell(self, decision: Decision, step: Step) -> None:
        """Tell the policy what came of what it wanted last."""
        if isinstance(self._policy, Adaptive):
            gain, each = gains(step.exchanges)
            norms, broadcaster = np.sqrt(each), step.exchanges[0].stats.get("broadcaster")
            released = norms.mean() if broadcaster is None else norms[int(float(broadcaster))]
            self._tell(Observation(decision, step.candidate, gain, float(released), float(step.select.max())))

    def _tell(self, observation: Observation) -> None:
        assert isinstance(self._policy, Adaptive)
        assert self._context is not None
        self._said[-1] = self._said[-1]._replace(
            attempt=-1 if observation.decision.attempt is None else observation.decision.attempt,
            candidate=list(self._policy.candidates).index(observation.candidate),
            gain=observation.gain,
            released_gain=observation.released_gain,
            compression=observation.compression,
        )
        self._policy.observe(self._context, observation)

    def save(self) -> State:
        """Return what was said, from which `restore` goes on."""
        said: Floats = np.array(self._said, dtype=np.float64).reshape(-1, len(_Said._fields))
        return {"said": said, "crews": self._crews}

    def restore(self, state: State) -> None:
        """Say once more what was said."""
        for row in state["said"].tolist():
            said = _Said(*row)
            decision = self.ask(int(said.iteration), said.now, np.array(state["crews"][int(said.crew)], dtype=np.intp))
            if said.candidate >= 0:
                candidate = self._policy.candidates[int(said.candidate)]
                attempt = None if said.attempt < 0 else int(said.attempt)
                self._tell(
                    Observation(
                        decision._replace(attempt=attempt), candidate, said.gain, said.released_gain, said.compression
                    )
                )
