"""Timing of a schedule on the network of a scenario, with bounds and evidence (``simnet time``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from simnet.base.errors import InputError
from simnet.base.units import finite, format_seconds
from simnet.cost_models.calibration.link_bound import Bound, link_bound
from simnet.cost_models.evidence.conditions import NEVER_COMPARED, Evidence, evidence_of
from simnet.cost_models.evidence.intervals import corrected, interval, kind_of_stack
from simnet.network import MAX_MIN, Network, Timing
from simnet.network.stack import name_of
from simnet.network.start_spread import MOST_MESSAGES, has_start_spread, start_spread
from simnet.report import run_setup
from simnet.report.columns import Fields
from simnet.scenario import Scenario
from simnet.schedule import Schedule

# Pairs of hosts whose links are looked at, about.
_PAIRS = 1000
_STREAM = ("iteration", 0)


def network_at_start(scenario: Scenario) -> tuple[Network, list[int]]:
    """Return a scenario's network in the first iteration, and the host of each worker."""
    # Whose network is of a family or in a file does not wait for all that a scenario may hold.
    from simnet.studies.exporting import network_of, stage_at

    stages = network_of(scenario)
    return stages.networks[stage_at(stages, 0)][1], stages.placement


class Timed:
    """Timing of a schedule that starts at `start` [s] on a network. Rank r is on the host of worker r.

    `spread` is the distribution of its time over slightly different start times; None if these cannot change the order
    of messages, or there are too many messages to sample.
    """

    def __init__(self, network: Network, hosts: Sequence[int], schedule: Schedule, start: float = 0.0) -> None:
        self.network, self.hosts, self.schedule = network, list(hosts[: schedule.n_ranks]), schedule
        if schedule.n_ranks > len(hosts):
            raise InputError(
                f"the schedule has {schedule.n_ranks:,} ranks, but the network has places for {len(hosts):,}; "
                "take more --workers, or a larger network"
            )
        self.timing = self.time(start)
        self.spread = start_spread(network, schedule, np.array(self.hosts), start, seed=network.seed, name=_STREAM)

    def time(self, start: float, *, messages: bool = False) -> Timing:
        """Return the timing of the schedule. `messages` adds a table of all messages."""
        return self.network.time(self.schedule, start, placement=self.hosts, messages=messages, stream=_STREAM)

    @cached_property
    def bound(self) -> Bound:
        """Lower bound of the time: the bytes of the busiest host, or group of hosts, divided by its bandwidth.

        No message order or routing is faster: latencies and dependencies are ignored. On a calibrated cluster the bytes
        are those of the messages that its software sends.
        """
        software, schedule = run_setup.software_of(self.network), self.schedule
        sent = schedule if software is None else software(schedule, np.array(self.hosts))
        return link_bound(self.network, self.hosts, sent, self.timing)

    def predicted(self) -> tuple[float, float, Evidence]:
        """Return the ends of the 90 % interval of the time [s], NaN if unknown, and the evidence for the interval.

        The interval does not go below `bound`, and includes the longest time found with slightly different start times.
        """
        schedule, network, hosts, timing = self.schedule, self.network, self.hosts, self.timing
        if (software := run_setup.software_of(network)) is not None and self._calibration is not None:
            low, high = math.nan, math.nan
            if (errors := run_setup.relative_interval(software.known(schedule, np.array(hosts)))) is not None:
                whole = np.array(timing.duration)
                low, high = map(float, corrected(errors.kind, whole, errors.low * whole, errors.high * whole))
                low = max(low, min(self.bound.seconds, timing.duration))
            return low, high, run_setup.calls_evidence(self._calibration["calls"])
        pairs = {(int(src), int(dst)) for one in schedule.rounds for src, dst in zip(one.src, one.dst, strict=True)}
        some = sorted(pairs)[:: max(len(pairs) // _PAIRS, 1)]
        paths = [network.path(hosts[src], hosts[dst], timing.start) for src, dst in some if hosts[src] != hosts[dst]]
        if not paths:
            return math.nan, math.nan, NEVER_COMPARED
        latency, bandwidth = ((min(one), max(one)) for one in zip(*paths, strict=True))
        stack = name_of(network.stack)
        each = np.array(schedule.n_messages / schedule.n_ranks)
        seconds = np.array(timing.duration)
        low, high = map(float, corrected(kind_of_stack(stack), seconds, *interval(stack, each, seconds)))
        known = evidence_of(stack, latency, bandwidth, schedule.n_ranks)
        if self.spread is not None:
            # In the other order of messages the error is the one known where order does not matter: below the time.
            high = max(high, self.spread.high * timing.duration / low)
        return max(low, min(self.bound.seconds, timing.duration)), high, known

    def row(self) -> Fields:
        """Return the table row of a timing: the time with its interval, and the evidence."""
        schedule, timing, bound, sent = self.schedule, self.timing, self.bound, self.schedule.bytes_sent()
        low, high, known = self.predicted()
        spread = [timing.duration] * 3 if self.spread is None else [getattr(self.spread, one) for one in _SPREAD]
        return {
            "time_s": timing.duration,
            "low_s": finite(low),
            "high_s": finite(high),
            **known.figures(),
            "finish_s": timing.finish,
            **{f"duration_{name}_s": seconds for name, seconds in zip(_SPREAD, spread, strict=True)},
            "duration_draws": 1 if self.spread is None else self.spread.draws,
            "first_rank_finish_s": float(timing.rank_finish.min()),
            "last_rank_finish_s": float(timing.rank_finish.max()),
            "rounds": len(schedule.rounds),
            "messages": schedule.n_messages,
            "bytes_B": float(sent.sum()),
            "least_sent_B": float(sent.min()),
            "most_sent_B": float(sent.max()),
            "lower_bound_s": bound.seconds,
            "lower_bound_host": bound.host,
            "lower_bound_of": f"{bound.who} {bound.verb} {bound.nbytes:.0f} B",
        }

    def setup(self) -> Fields:
        """Return the JSON fields that all timings on one network share."""
        return {
            "stack": run_setup.stack_summary(self.network.stack, self._calibration)["name"],
            "sharing": self.network.sharing.law,
            "ranks": self.schedule.n_ranks,
            "hosts": self.network.routes.n_hosts,
            "start_s": self.timing.start,
        }

    def notes(self) -> list[str]:
        """Return lines of text on start times, network stack, calibrated collectives and link sharing of a timing."""
        network, timing, spread, calibration = self.network, self.timing, self.spread, self._calibration
        notes = []
        if spread is not None:
            low, high, median, skew = map(format_seconds, (spread.low, spread.high, spread.median, spread.skew))
            notes.append(
                f"{low} to {high}, median {median}, where ranks enter up to {skew} apart: {spread.draws} draws, since "
                "the last rank entered."
            )
        elif has_start_spread(network, self.schedule):
            notes.append(f"More than {MOST_MESSAGES:,} messages: how far it depends on microseconds was not sampled.")
        first = timing.duration - float(timing.left.max() - timing.left.min())
        if timing.duration > first:
            notes.append(
                f"Ranks are done {format_seconds(first)} to {format_seconds(timing.duration)} after the start."
            )
        notes.append(f"Stack: {run_setup.describe_stack(run_setup.stack_summary(network.stack, calibration))}.")
        for _, call, ranks, size, within, basis in run_setup.call_rows((calibration or {"calls": []})["calls"]):
            notes.append(f"Calibrated: {call}, {ranks} ranks, {size}: {within}, {basis}.")
        if network.sharing != MAX_MIN:
            notes.append(f"Sharing: {run_setup.describe_sharing(run_setup.sharing_summary(network.sharing))}.")
        return notes

    @cached_property
    def _calibration(self) -> Fields | None:
        """Summary of the measured cost model that times the schedule's collectives; None if there is none."""
        return run_setup.calibration_summary(self.network, {"": [(self.schedule, np.array(self.hosts))]})


_SPREAD = ("median", "low", "high")
