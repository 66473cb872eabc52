"""The flexible policy of the AR-Topk paper: the candidate with the least closed-form time on the monitored links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.checks import check_int
from simnet.base.quantities import Count, Factor, Seconds, Size, Spread, check_bounds, check_fields
from simnet.base.rng import stream
from simnet.collectives import allreduce_ring
from simnet.network import Network
from simnet.policies.candidate import Candidate, check_distinct, closed_form
from simnet.policies.protocol import PolicyContext
from simnet.schedule import Round, Schedule

# Bytes of the shorter message of a probe, and of what it has found.
_SHORT, _FOUND = 4.0, 16.0


Aggregate: TypeAlias = Literal["worst", "mean", "median"]


@dataclass(frozen=True)
class Monitor:
    """Parameters of the link monitoring of a flexible policy.

    Probes run beside the job, as ping and iperf would, between each worker and the next; they cost nothing. Where the
    network changes by iteration (`simnet.training.job.job.Job.stages`), they see the one in force.

    Raises ValueError if a figure is negative or not finite, or `aggregate` is unknown.

    Parameters
    ----------
    every : float
        Time between probes [s], the first at time 0; 0 probes before each iteration.
    noise : float
        Standard deviation of the logarithm of a probe's error, for latency and bandwidth alike.
    change : float
        Relative change of latency or bandwidth, against what the last decision was based on, beyond which the decision
        is taken again (10 % in the paper's talk).
    aggregate : {"worst", "mean", "median"}
        What of all pairs the closed forms see as alpha and 1/beta: the highest latency and lowest bandwidth, or the
        mean or median of both.
    seed : int
        Seed of the noise.
    """

    every: Seconds = 10.0
    noise: Spread = 0.0
    change: Factor = 0.1
    aggregate: Aggregate = "worst"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def probe(self, context: PolicyContext) -> tuple[float, float]:
        """Return latency [s] and bandwidth [byte/s] of the latest probe before `context`, over all worker pairs."""
        if self.every > 0:
            number = math.floor(context.now / self.every)
            time = number * self.every
        else:
            number, time = context.iteration, context.now
        latency, bandwidth = probe_pairs(context.network, context.placement, time)
        if self.noise:
            errors = stream(self.seed, "probe", number).normal(0.0, self.noise, size=(2, latency.size))
            latency, bandwidth = latency * np.exp(errors[0]), bandwidth * np.exp(errors[1])
        if self.aggregate == "worst":
            return float(latency.max()), float(bandwidth.min())
        of = np.mean if self.aggregate == "mean" else np.median
        return float(of(latency)), float(of(bandwidth))

    def departs(self, seen: tuple[float, float], basis: tuple[float, float]) -> bool:
        """Return whether the latency or the bandwidth differs from `basis` by more than the fraction `change`."""
        return any(abs(now - before) > self.change * before for now, before in zip(seen, basis, strict=True))


def probe_pairs(network: Network, placement: Sequence[int], time: float) -> tuple[Floats, Floats]:
    """Return latency [s] and bandwidth [byte/s] of the path from each worker to the next at a time; shape (P,) each."""
    workers = len(placement)
    if workers < 2:
        return np.zeros(1), np.full(1, math.inf)
    paths = [network.path(placement[rank], placement[(rank + 1) % workers], time) for rank in range(workers)]
    latency, bandwidth = np.array(paths, dtype=np.float64).T
    return latency, bandwidth


class Flexible:
    """The arg-min of the closed forms at the latency and bandwidth last probed (Eqn 5 of the AR-Topk paper).

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
        Iterations from one decision to the next that there may be, >= 1; in between the choice stands, as with a hook
        that asks its policy table every so often.
    probe_bytes : float
        Length of the longer of the messages by which workers measure the links before a decision, one after another, as
        `simnet.cluster.hooks.shifted` does [byte]; with 0 probes run beside the job and cost nothing.
    probe_times : int
        How many of each length they send then, >= 1.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        monitor: Monitor | None = None,
        decide_every: Count = 1,
        probe_bytes: Size = 0.0,
        probe_times: Count = 5,
    ) -> None:
        self.candidates = check_distinct(candidates)
        self.monitor = monitor or Monitor()
        self.decide_every = check_int(decide_every, "decide_every", 1)
        self.probe_bytes = check_bounds(probe_bytes, Size, "probe_bytes")
        self.probe_times = check_int(probe_times, "probe_times", 1)
        self._costs = [closed_form(candidate) for candidate in self.candidates]
        self._probe: Schedule | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the last decision and its basis; the first candidate is in force again."""
        self._basis: tuple[float, float, float] | None = None
        self._choice = self.candidates[0]

    def measures(self, context: PolicyContext) -> Schedule | None:
        """Return the probe messages that precede an iteration; None if no probe is due or simulated."""
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
        """Ignore the measured times: the monitor reads latency and bandwidth from the network itself."""

    def shortlist(self, context: PolicyContext) -> Sequence[Candidate]:
        """Return only the chosen candidate, after a new decision if one is due and links or density changed."""
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
