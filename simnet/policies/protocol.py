"""Interface between a job and its policy: context, decision, observation.

Before each iteration the job asks its policy for a shortlist of exchanges; of several it simulates each on the true
weather and keeps the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from simnet.base.quantities import Density, Iterations
from simnet.cost_models.costs.devices import DeviceProfile, load_device
from simnet.network import Network
from simnet.policies.candidate import Candidate, check_distinct
from simnet.schedule import Schedule


class Ramp(NamedTuple):
    """A number of iterations over which the density changes linearly from `start` to `end`, both included.

    Parameters
    ----------
    iterations : int
        Length of the stretch.
    start, end : float
        The density at either end, in (0, 1].
    """

    iterations: Iterations
    start: Density
    end: Density


def density_at(ramps: Sequence[Ramp], iteration: int) -> float:
    """Return the density at an iteration under consecutive ramps; after the last ramp its `end` stays in force.

    Examples
    --------
    >>> [density_at([Ramp(3, 1.0, 0.5), Ramp(1, 0.01, 0.01)], iteration) for iteration in range(5)]
    [1.0, 0.75, 0.5, 0.01, 0.01]
    """
    for ramp in ramps:
        if iteration < ramp.iterations:
            share = iteration / (ramp.iterations - 1) if ramp.iterations > 1 else 1.0
            low, high = sorted((ramp.start, ramp.end))
            # Rounding must not carry it past an end, least of all past 1.
            return min(max(ramp.start + share * (ramp.end - ramp.start), low), high)
        iteration -= ramp.iterations
    return ramps[-1].end


@dataclass(frozen=True)
class PolicyContext:
    """What a policy knows before an iteration, counted from 0, at the simulated time `now` [s].

    `placement` has the host of each worker, `message` is M, the bytes of the dense gradient, `density` c, the target.
    `buckets` are the entries of each piece of the gradient; `device` has the costs of kernels.
    """

    iteration: int
    now: float
    network: Network
    placement: Sequence[int]
    message: float
    density: float
    buckets: Sequence[int] = ()
    device: DeviceProfile = field(default_factory=lambda: load_device("ideal"))


class Policy(Protocol):
    """A rule that shortlists candidate exchanges before each iteration."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """All candidate exchanges that the policy may shortlist."""

    def reset(self) -> None:
        """Forget all that earlier iterations taught the policy, as at the start of a job."""

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return at least one candidate for this iteration; the job takes the fastest of several."""


class Decision(NamedTuple):
    """The shortlist and density of an iteration, or of an exploration attempt before it.

    `shortlist` has the exchanges to consider, a single one for an attempt; `density` is that of the job if None.
    `attempt` is None for an iteration. Attempt 0 begins with the state of the training (with `fresh`, a residual of
    zero), attempt j continues attempt j - 1 with gradients of j iterations later; then all but the time is as before.
    """

    shortlist: Sequence[Candidate]
    density: float | None = None
    attempt: int | None = None
    fresh: bool = False


class TimingOutcome(NamedTuple):
    """Times [s] that an iteration spends in each phase, over all workers.

    Messages traveled for `communicate`, of the worker that waited least; kernels of the slowest took `select` before
    the first message and `merge` after it. `backward` is the backward pass, 0 for one bucket.
    """

    communicate: float
    select: float
    merge: float
    backward: float = 0.0


class Observation(NamedTuple):
    """Outcome of a decision: the exchange carried out, its compression gain, and its times.

    `gain` is the compression gain, the mean of ||g_c||^2 over that of ||g_e||^2; `released_gain` the ratio of norms.
    `compression` are the seconds of the slowest worker's kernels.
    """

    decision: Decision
    candidate: Candidate
    gain: float
    released_gain: float
    compression: float
    took: TimingOutcome = TimingOutcome(0.0, 0.0, 0.0)


@runtime_checkable
class Adaptive(Policy, Protocol):
    """A policy that chooses the density as well, and learns from the observed gains and times.

    After a failure the job asks again without a report; an attempt must then be the same.
    """

    def decide(self, context: PolicyContext) -> Decision:
        """Return the shortlist and density of the next iteration, or of an exploration attempt before it."""

    def observe(self, context: PolicyContext, observation: Observation) -> None:
        """Learn from the outcome of the decision made in `context`."""


@runtime_checkable
class Measures(Policy, Protocol):
    """A policy whose workers probe the links with messages before iterations, at a cost in simulated time."""

    def measures(self, context: PolicyContext) -> Schedule | None:
        """Return the probe messages that precede an iteration; None if there are none."""

    def measured(self, context: PolicyContext, ends: Sequence[float]) -> None:
        """Learn the arrival time of the last message of each probe round, in seconds since the last worker began."""


class OneStepOracle:
    """The exchange that is fastest in the iteration to come, on the true weather; a bound for other policies."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = check_distinct(candidates)

    def reset(self) -> None:
        """Do nothing: the oracle keeps no state."""

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return all candidates, so that the job takes the fastest."""
        return self.candidates


class Fixed(OneStepOracle):
    """Always the same exchange."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__((candidate,))
