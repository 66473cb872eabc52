"""What a job and its policy say to each other: context, decision, observation.

Before each iteration the job asks its policy for a shortlist of exchanges. One entry means that the decision is taken.
With several, the job simulates each on the true weather and keeps the fastest. An adaptive policy, such as
`simnet.policies.moo.Moo`, also says the density, may have exchanges tried beside the training, and observes what came
of every exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from simnet.costs.devices import DeviceProfile, load_device
from simnet.network import Network
from simnet.policies.candidate import Candidate
from simnet.schedule import Schedule


@dataclass(frozen=True)
class PolicyContext:
    """What a policy may look at before an iteration: where the job is, its network and its gradient.

    Parameters
    ----------
    iteration : int
        From 0.
    now : float
        Simulated time [s].
    network : Network
        The network as it is; a policy that only monitors asks it for `Network.path` at times that have passed.
    placement : sequence of int
        Host of each worker.
    message : float
        M, bytes of the dense gradient.
    density : float
        c, target fraction kept.
    buckets : sequence of int, optional
        Entries of each piece that the gradient is exchanged in; one piece when omitted.
    device : DeviceProfile, optional
        What kernels are known to cost; nothing when omitted.
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
    """Decides before each iteration which exchanges to consider."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """Every exchange that the policy may ever ask for."""

    def reset(self) -> None:
        """Forget what was learnt: a job begins."""

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return the exchanges to consider now, at least one; of several the job takes the fastest."""


class Decision(NamedTuple):
    """What an adaptive policy has decided: the exchange and density of an iteration, or of an attempt.

    Parameters
    ----------
    shortlist : sequence of Candidate
        The exchanges to consider, as `Policy.shortlist`; of an attempt the only one.
    density : float or None
        Target fraction kept; that of the job if None.
    attempt : int or None
        None for the iteration itself. Else it is exploration: the workers compute, select, exchange and update as in an
        iteration, which takes its time, and then everything is as it was before. Attempt 0 begins with the state of the
        training, attempt j resumes from attempt j - 1 with the gradients of the iteration j later, or of the last one.
        The first attempt after a failure begins with the state of the training, too.
    fresh : bool
        Whether attempt 0 begins with a residual of zero instead of the one in force.
    """

    shortlist: Sequence[Candidate]
    density: float | None = None
    attempt: int | None = None
    fresh: bool = False


class TimingOutcome(NamedTuple):
    """What an iteration took, of all workers.

    Parameters
    ----------
    communicate : float
        Seconds in which messages were under way, of the worker that waited least for the others.
    select : float
        Seconds of kernels before the first message of each bucket, of the slowest worker.
    merge : float
        The same of kernels between messages and after the last.
    backward : float
        Seconds of the backward pass that buckets become ready in, equally spaced; 0 where there is one bucket.
    """

    communicate: float
    select: float
    merge: float
    backward: float = 0.0


class Observation(NamedTuple):
    """What came of a decision: the exchange that took place, its gain and its compression time.

    Parameters
    ----------
    decision : Decision
        What was decided.
    candidate : Candidate
        The exchange that took place.
    gain : float
        Compression gain, mean of ||g_c||^2 over mean of ||g_e||^2.
    released_gain : float
        The same as released code measures it: the ratio of the norms, of the broadcasting worker alone, or the mean
        over the workers if there is none.
    compression : float
        Seconds that the slowest worker took to select, pack, merge and unpack.
    took : TimingOutcome
        The parts of the iteration.
    """

    decision: Decision
    candidate: Candidate
    gain: float
    released_gain: float
    compression: float
    took: TimingOutcome = TimingOutcome(0.0, 0.0, 0.0)


@runtime_checkable
class Adaptive(Policy, Protocol):
    """A policy that also chooses the density, and learns from what it observes.

    The job asks until it gets an iteration, and reports the result of each decision. After a failure it asks again
    without a report; the attempt must then be the same.
    """

    def decide(self, context: PolicyContext) -> Decision:
        """Return what to do next: an iteration, or an attempt before it."""

    def observe(self, context: PolicyContext, observation: Observation) -> None:
        """Learn what came of the decision that was taken in `context`."""


@runtime_checkable
class Measures(Policy, Protocol):
    """A policy that has workers measure the links before iterations, which takes them time."""

    def measures(self, context: PolicyContext) -> Schedule | None:
        """Return the messages by which workers measure the links before an iteration; None where they do not."""

    def measured(self, context: PolicyContext, ends: Sequence[float]) -> None:
        """Learn when the last message of each round had arrived, in seconds since the last worker began."""
