"""Timing of a schedule on the network of a scenario, with bounds and evidence, for ``simnet time``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simnet.base.errors import InputError
from simnet.base.units import finite, format_seconds
from simnet.cost_models.evidence.conditions import NEVER_COMPARED, Evidence, evidence_of
from simnet.cost_models.evidence.intervals import corrected, interval, kind_of_stack
from simnet.network import MAX_MIN, Network, Timing
from simnet.network.stack import name_of
from simnet.network.start_spread import MOST_MESSAGES, StartSpread, has_start_spread, start_spread
from simnet.report import run_setup
from simnet.report.columns import Fields
from simnet.schedule import Schedule, count_rounds

if TYPE_CHECKING:
    from simnet.network.links import Links
    from simnet.scenario import Scenario
    from simnet.topologies.graphs import Node

# Pairs of hosts whose links are looked at, about.
_PAIRS = 1000


class Timed(NamedTuple):
    """A schedule's timing, with the network and the host of each rank.

    `spread` is None if start times cannot change the order of messages, or with too many messages to sample.
    """

    schedule: Schedule
    network: Network
    hosts: list[int]
    timing: Timing
    spread: StartSpread | None = None


class Bound(NamedTuple):
    """Lower bound on a schedule's time [s]: the busiest host, its direction, and its bytes."""

    seconds: float
    host: int
    verb: str
    nbytes: float


def network_at_start(scenario: Scenario) -> tuple[Network, list[int]]:
    """Return the network of a scenario in its first iteration, and the host of each worker."""
    # Whose network is of a family or in a file does not wait for all that a scenario may hold.
    from simnet.studies.exporting import network_of, stage_at

    stages = network_of(scenario)
    return stages.networks[stage_at(stages, 0)][1], stages.placement


def time_schedule(scenario: Scenario, schedule: Schedule, start: float = 0.0, *, messages: bool = False) -> Timed:
    """Time a schedule on the network of a scenario; rank r is on the host of worker r."""
    network, hosts = network_at_start(scenario)
    hosts = hosts[: schedule.n_ranks]
    if schedule.n_ranks > len(hosts):
        raise InputError(
            f"the schedule has {schedule.n_ranks:,} ranks, but the network has places for {len(hosts):,}; "
            "take more --workers, or a larger network"
        )
    stream = ("iteration", 0)
    timing = network.time(schedule, start, placement=hosts, messages=messages, stream=stream)
    spread = start_spread(network, schedule, np.array(hosts), start, seed=network.seed, name=stream)
    return Timed(schedule, network, hosts, timing, spread)


def least_time(timed: Timed) -> Bound:
    """Return the lower bound from the busiest host's bytes over its links' total bandwidth.

    No message order or routing is faster: latencies and dependencies are ignored.
    """
    schedule, network, hosts, timing = timed.schedule, timed.network, np.array(timed.hosts), timed.timing
    sent, received = (np.zeros(network.routes.n_hosts) for _ in range(2))
    # The same round often stands many times.
    for one, times in count_rounds(schedule.rounds):
        src, dst = hosts[one.src], hosts[one.dst]
        nbytes = np.where(src == dst, 0.0, times * one.nbytes)
        np.add.at(sent, src, nbytes)
        np.add.at(received, dst, nbytes)
    found = Bound(0.0, int(hosts[0]), "sends", 0.0)
    for verb, totals, out in (("sends", sent, True), ("receives", received, False)):
        gates = _host_gates(network, out)
        for host in np.flatnonzero(totals).tolist():
            seconds = _gate_seconds(network.links, gates[host], float(totals[host]), timing)
            if seconds > found.seconds:
                found = Bound(seconds, host, verb, float(totals[host]))
    return found


def predicted(timed: Timed) -> tuple[float, float, Evidence]:
    """Return the 90 % interval of the time [s], NaN if unknown, and its evidence level.

    The interval does not go below the lower bound of `least_time`, and holds the longest of slightly different starts.
    """
    schedule, network, hosts, timing = timed.schedule, timed.network, timed.hosts, timed.timing
    if (calibration := _calibrated_calls(timed)) is not None:
        return math.nan, math.nan, run_setup.calls_evidence(calibration["calls"])
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
    if timed.spread is not None:
        # In the other order of messages the error is the one known where order does not matter: below the time.
        high = max(high, timed.spread.high * timing.duration / low)
    return max(low, min(least_time(timed).seconds, timing.duration)), high, known


def timing_row(timed: Timed) -> Fields:
    """Return the table row of a timing: its time with interval, and the evidence."""
    schedule, timing, spread = timed.schedule, timed.timing, timed.spread
    bound, sent = least_time(timed), schedule.bytes_sent()
    low, high, known = predicted(timed)
    return {
        "time_s": timing.duration,
        "low_s": finite(low),
        "high_s": finite(high),
        **known.figures(),
        "finish_s": timing.finish,
        "duration_median_s": timing.duration if spread is None else spread.median,
        "duration_low_s": timing.duration if spread is None else spread.low,
        "duration_high_s": timing.duration if spread is None else spread.high,
        "duration_draws": 1 if spread is None else spread.draws,
        "first_rank_finish_s": float(timing.rank_finish.min()),
        "last_rank_finish_s": float(timing.rank_finish.max()),
        "rounds": len(schedule.rounds),
        "messages": schedule.n_messages,
        "bytes_B": float(sent.sum()),
        "least_sent_B": float(sent.min()),
        "most_sent_B": float(sent.max()),
        "lower_bound_s": bound.seconds,
        "lower_bound_host": bound.host,
        "lower_bound_of": f"host {bound.host} {bound.verb} {bound.nbytes:.0f} B",
    }


def timing_setup(timed: Timed) -> Fields:
    """Return the JSON fields common to all timings on a network."""
    network = timed.network
    return {
        "stack": run_setup.stack_summary(network.stack, _calibrated_calls(timed))["name"],
        "sharing": network.sharing.law,
        "ranks": timed.schedule.n_ranks,
        "hosts": network.routes.n_hosts,
        "start_s": timed.timing.start,
    }


def timing_notes(timed: Timed) -> list[str]:
    """Return notes on a timing as text lines: dependence on start times, stack, and calibrated calls."""
    schedule, network, timing, spread = timed.schedule, timed.network, timed.timing, timed.spread
    calibration = _calibrated_calls(timed)
    notes = []
    if spread is not None:
        low, high, median, skew = (format_seconds(one) for one in (spread.low, spread.high, spread.median, spread.skew))
        notes.append(
            f"{low} to {high}, median {median}, where ranks enter up to {skew} apart: {spread.draws} draws, since the "
            "last rank entered."
        )
    elif has_start_spread(network, schedule):
        notes.append(f"More than {MOST_MESSAGES:,} messages: how far it depends on microseconds was not sampled.")
    first = timing.duration - float(timing.left.max() - timing.left.min())
    if timing.duration > first:
        notes.append(f"Ranks are done {format_seconds(first)} to {format_seconds(timing.duration)} after the start.")
    notes.append(f"Stack: {run_setup.describe_stack(run_setup.stack_summary(network.stack, calibration))}.")
    for _, call, ranks, size, within, basis in run_setup.call_rows([] if calibration is None else calibration["calls"]):
        notes.append(f"Calibrated: {call}, {ranks} ranks, {size}: {within}, {basis}.")
    if network.sharing != MAX_MIN:
        notes.append(f"Sharing: {run_setup.describe_sharing(run_setup.sharing_summary(network.sharing))}.")
    return notes


def _calibrated_calls(timed: Timed) -> Fields | None:
    """Return the calibration of a schedule's calls; None unless the network is a calibrated cluster."""
    software = timed.network.software
    if software is None:
        return None
    from simnet.cost_models.calibration.software import CalibratedSoftware

    assert isinstance(software, CalibratedSoftware)
    return run_setup.calibration_summary(software, {"": software.known(timed.schedule, np.array(timed.hosts))})


def _host_gates(network: Network, out: bool) -> list[list[int]]:
    """Return the first costly links out of (or into) each host, past links of kind ``free``."""
    routes = network.routes
    beyond: dict[Node, list[tuple[int, Node]]] = {}
    for link, (u, v) in enumerate(routes.links):
        beyond.setdefault(u if out else v, []).append((link, v if out else u))
    gates = []
    for host in range(routes.n_hosts):
        found: set[int] = set()
        seen: set[Node] = {host}
        open_: list[Node] = [host]
        while open_:
            for link, node in beyond.get(open_.pop(), ()):
                if routes.kinds[link] != "free":
                    found.add(link)
                elif node not in seen:
                    seen.add(node)
                    open_.append(node)
        gates.append(sorted(found))
    return gates


def _gate_seconds(links: Links, gates: Sequence[int], nbytes: float, timing: Timing) -> float:
    """Return the seconds for `nbytes` over several saturated links; at most the timing's duration."""
    if links.constant:
        return nbytes / float(links.constant_capacity[gates].sum())
    timelines = [links.capacities(link, timing.start, math.nextafter(timing.finish, math.inf)) for link in gates]
    times = np.unique(np.concatenate([at for at, _ in timelines]))
    rate = np.sum([values[np.searchsorted(at, times, "right") - 1] for at, values in timelines], axis=0)
    since = np.append(times - timing.start, timing.duration)
    carried = np.concatenate([[0.0], np.cumsum(rate * np.diff(since))])
    last = int(np.searchsorted(carried, nbytes)) - 1
    if last < 0 or last >= times.size:
        return timing.duration if last >= 0 else 0.0
    return float(since[last] + (nbytes - carried[last]) / rate[last])
