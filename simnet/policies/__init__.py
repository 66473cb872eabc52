"""Policies that choose the exchange and the density of each iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.quantities import Count, Density, Factor, Iterations, Seconds, Size, Spread, check_fields
from simnet.base.rng import stream
from simnet.collectives import allreduce_ring
from simnet.cost_models.costs.devices import DeviceProfile, load_device
from simnet.network import Network
from simnet.policies.candidate import Candidate, check_distinct, closed_form
from simnet.schedule import Round, Schedule

__all__ = [
    "Adaptive",
    "Candidate",
    "Decision",
    "Fixed",
    "Flexible",
    "Measures",
    "Monitor",
    "Observation",
    "OneStepOracle",
    "Policy",
    "PolicyContext",
    "Ramp",
    "TimingOutcome",
    "check_distinct",
    "closed_form",
    "density_at",
    "probe_pairs",
]


class Ramp(NamedTuple):
    """A stretch of iterations in which the density changes linearly from `start` to `end`, both included.

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
    """Return the density at an iteration under consecutive ramps; after the last ramp, its `end` applies.

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
    """What a policy knows when it decides: the iteration, from 0, and the job's state at the simulated time `now` [s].

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
        """Forget all that the policy has learned in earlier iterations, as at the start of a job."""

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return one or more candidates for this iteration; the job simulates each and takes the fastest."""


class Decision(NamedTuple):
    """Exchanges to try and their density, either for an iteration or for an exploration attempt before the iteration.

    `shortlist` has the exchanges to consider, a single one for an attempt; `density` is that of the job if None.
    `attempt` is None for an iteration. Attempt 0 begins with the state of the training (with `fresh`, a residual of
    zero), attempt j continues attempt j - 1 with the gradients of j iterations later. After the attempts all but the
    time is restored.
    """

    shortlist: Sequence[Candidate]
    density: float | None = None
    attempt: int | None = None
    fresh: bool = False


class TimingOutcome(NamedTuple):
    """Communication, kernel and backward-pass times of one iteration [s]; each may be that of a different worker.

    `communicate` is the message time of the worker that waited least; `select` and `merge` are the kernel times of the
    slowest worker, before its first message and after it. `backward` is the backward pass, 0 for one bucket.
    """

    communicate: float
    select: float
    merge: float
    backward: float = 0.0


class Observation(NamedTuple):
    """Outcome of a decision: which exchange ran, how much of the gradient's norm it sent (gain), and how long it took.

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
    """A policy that also chooses the density, and learns from measured compression gains and times of exchanges.

    After a failure the job asks again without a report, and the policy must return the same attempt.
    """

    def decide(self, context: PolicyContext) -> Decision:
        """Return exchanges and density to use in the next iteration, or to measure in a trial before it."""

    def observe(self, context: PolicyContext, observation: Observation) -> None:
        """Learn from the outcome of the decision made in `context`."""


@runtime_checkable
class Measures(Policy, Protocol):
    """A policy whose workers probe the links with messages before iterations, at a cost in simulated time."""

    def measures(self, context: PolicyContext) -> Schedule | None:
        """Return the probe messages that precede an iteration; None if no probe precedes it."""

    def measured(self, context: PolicyContext, ends: Sequence[float]) -> None:
        """Learn from `ends`, the times [s] from the last worker's start to the last arrival of each probe round."""


class OneStepOracle:
    """The policy that takes the fastest exchange in each iteration, because it knows how links will vary."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = check_distinct(candidates)

    def reset(self) -> None:
        """Do nothing, because the oracle keeps no state."""

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return all candidates, of which the job takes the fastest."""
        return self.candidates


class Fixed(OneStepOracle):
    """The policy that takes the same exchange in every iteration."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__((candidate,))


# Bytes of the shorter message of a probe, and of what it has found.
_SHORT, _FOUND = 4.0, 16.0


@dataclass(frozen=True)
class Monitor:
    """Parameters that determine when a flexible policy probes the links, and which changes of links it reacts to.

    Probes run beside the job, as ping and iperf would, between each worker and the next; they cost nothing. Where the
    network changes by iteration (`simnet.training.job.job.Job.stages`), they see the one in force.

    Raises ValueError if a figure is negative or not finite.

    Parameters
    ----------
    every : float
        Time between probes [s], the first at time 0; 0 probes before each iteration.
    noise : float
        Standard deviation of the logarithm of a probe's error, for latency and bandwidth alike.
    change : float
        Relative change of latency or bandwidth, against what the last decision was based on, beyond which the decision
        is taken again (10 % in the paper's talk).
    seed : int
        Seed of the noise.
    """

    every: Seconds = 10.0
    noise: Spread = 0.0
    change: Factor = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def probe(self, context: PolicyContext) -> tuple[float, float]:
        """Return the highest latency [s] and the lowest bandwidth [byte/s] that the latest probe found."""
        if self.every > 0:
            number = math.floor(context.now / self.every)
            time = number * self.every
        else:
            number, time = context.iteration, context.now
        latency, bandwidth = probe_pairs(context.network, context.placement, time)
        if self.noise:
            errors = stream(self.seed, "probe", number).normal(0.0, self.noise, size=(2, latency.size))
            latency, bandwidth = latency * np.exp(errors[0]), bandwidth * np.exp(errors[1])
        return float(latency.max()), float(bandwidth.min())

    def departs(self, seen: tuple[float, float], basis: tuple[float, float]) -> bool:
        """Return whether `seen`, a (latency, bandwidth) pair, differs from `basis` by more than the share `change`."""
        return any(abs(now - before) > self.change * before for now, before in zip(seen, basis, strict=True))


def probe_pairs(network: Network, placement: Sequence[int], time: float) -> tuple[Floats, Floats]:
    """Return the latency [s] and bandwidth [byte/s] of the path from each worker to the next, each of shape (P,)."""
    workers = len(placement)
    if workers < 2:
        return np.zeros(1), np.full(1, math.inf)
    paths = [network.path(placement[rank], placement[(rank + 1) % workers], time) for rank in range(workers)]
    latency, bandwidth = np.array(paths, dtype=np.float64).T
    return latency, bandwidth


@dataclass(eq=False)
class Flexible:
    """The policy that takes the exchange with the shortest time by formulas at the last probed latency and bandwidth.

    The decision is taken again when a probe departs from what the last one was based on by more than the monitor's
    `change`, or when the density changes. Of equal costs the first candidate wins. While a probe finds a link down,
    the decision stands.

    Raises ValueError if there is no candidate, or one without a closed form, or a number is too small.

    Parameters
    ----------
    candidates : sequence of Candidate
        Each with a closed form.
    monitor : Monitor
        How the links are watched.
    decide_every : int
        Minimum number of iterations between decisions, >= 1, as with a hook that looks up its policy table only so
        often.
    probe_bytes : float
        Length of the longer of the messages by which workers measure the links before a decision, one after another, as
        `simnet.cluster.hooks.shifted` does [byte]; with 0 probes run beside the job and cost nothing.
    probe_times : int
        How many of each length they send then, >= 1.
    """

    candidates: Sequence[Candidate]
    monitor: Monitor = Monitor()
    decide_every: Count = 1
    probe_bytes: Size = 0.0
    probe_times: Count = 5

    def __post_init__(self) -> None:
        check_fields(self)
        self.candidates = check_distinct(self.candidates)
        self._costs = [closed_form(candidate) for candidate in self.candidates]
        self._probe: Schedule | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the last decision and what it was based on, and choose the first candidate again."""
        self._basis: tuple[float, float, float] | None = None
        self._choice = self.candidates[0]

    def measures(self, context: PolicyContext) -> Schedule | None:
        """Return the probe messages that precede an iteration; None if no probe is due or probes are free."""
        count = len(context.placement)
        if not self.probe_bytes or count < 2 or context.iteration % self.decide_every:
            return None
        # The same one again, which the network knows then.
        if self._probe is None or self._probe.n_ranks != count:
            workers = np.arange(count)
            lengths = [_SHORT] * self.probe_times + [self.probe_bytes] * self.probe_times
            shifts = [Round(workers, np.roll(workers, -1), nbytes, phase="probe") for nbytes in lengths]
            self._probe = Schedule(count, shifts).concat(allreduce_ring(count, _FOUND).in_phase("probe"))
        return self._probe

    def measured(self, context: PolicyContext, ends: Sequence[float]) -> None:
        """Ignore the measured times, because the monitor reads latency and bandwidth from the network itself."""

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return the chosen candidate alone; every `decide_every` iterations, choose again if links changed."""
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
