"""Cost models: the estimated time of an exchange with its interval, by closed forms, measurements, or simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from simnet import topologies
from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.cost_models.costs.devices import DeviceProfile, IntervalEnd
from simnet.cost_models.evidence.conditions import KNOWN_CALLS, beyond_links, known_links
from simnet.cost_models.evidence.intervals import GIVEN, UNNAMED, interval, kind_of_stack
from simnet.network import Network, Stack
from simnet.network.compiled_loop import load_kept_loop
from simnet.network.stack import name_of
from simnet.network.start_spread import has_start_spread, start_spread
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.sampled_exchanges import Part, Sample, SampledExchanges, ratio

if TYPE_CHECKING:
    from simnet.cost_models.calibration import CalibratedCostModel

SAMPLED = 1_000
"""The most messages of an exchange that is timed with workers that enter a little apart."""

# The most exchanges of a settled period that are timed, where it has no period of its own.
_TIMED, _MEASURED = 32, np.zeros((), dtype=bool)


class Selecting(NamedTuple):
    """The time that workers take to select, merge and unpack, and its interval [s]."""

    seconds: Floats
    low: Floats
    high: Floats


class Follows(NamedTuple):
    """The 5 and 95 % quantiles of a job's time over the expected one: to send, and to select and merge."""

    sent: tuple[float, float] = (1.0, 1.0)
    ran: tuple[float, float] = (1.0, 1.0)


class Estimate(NamedTuple):
    """The estimated time of an exchange; fields have the shape to which those of the operating point broadcast.

    Parameters
    ----------
    communicate : ndarray
        To send [s].
    selecting : Selecting
        To select and put together.
    least, most : ndarray
        Interval of the time to send [s].
    kind : str
        What that interval is from, a name of `simnet.cost_models.evidence.intervals.error_models`.
    follows : Follows
        What of these intervals is for the gradients: their ends are those of links and devices times these.
    beyond : ndarray of bool
        Whether the time to send goes beyond what errors were learnt from.
    known : str
        What that is, for people.
    spread : tuple of float
        By how much sending takes less, and more, as workers enter a little apart [s]; None if too much is sent to look.
    """

    communicate: Floats
    selecting: Selecting
    least: Floats
    most: Floats
    kind: str
    follows: Follows = Follows()
    beyond: NDArray[np.bool_] = _MEASURED
    known: str = ""
    spread: tuple[float, float] | None = (0.0, 0.0)

    @property
    def select(self) -> Floats:
        """To select and put together [s]."""
        return self.selecting.seconds

    @property
    def seconds(self) -> Floats:
        """Both together [s]."""
        return np.asarray(self.communicate + self.select)

    @property
    def low(self) -> Floats:
        """Lower end of their interval [s]."""
        return np.asarray(self.least + self.selecting.low)

    @property
    def high(self) -> Floats:
        """Upper end of their interval [s]."""
        return np.asarray(self.most + self.selecting.high)


CostModel: TypeAlias = Callable[[Choice, OperatingPoint], Estimate]
"""The estimated time of a choice at an operating point."""


def by_closed_form(
    device: DeviceProfile, error: float | None = None, sampled: SampledExchanges | None = None
) -> CostModel:
    """Return the cost model of the closed forms, in which no two messages share a link.

    Where no formula of the density says what an exchange sends, rehearsed ones are timed on the links of the point.

    Examples
    --------
    >>> from simnet.studies.choosing.choices import choices
    >>> from simnet.cost_models.costs.devices import load_device
    >>> estimate = by_closed_form(load_device("ideal"))(choices()[0], OperatingPoint(8, 11_689_512, 0.1, 1e-3, 1.25e9))
    >>> f"{estimate.seconds:.4f} s, {estimate.low:.4f} to {estimate.high:.4f}"
    '0.0795 s, 0.0787 to 0.1949'
    """
    known: dict[tuple[object, ...], Estimate] = {}
    sampled = SampledExchanges() if sampled is None else sampled
    kind = UNNAMED if error is None else GIVEN

    def learnt(point: OperatingPoint, estimate: Estimate) -> Estimate:
        return estimate if error is not None else _from_links(point, estimate)

    def around(communicate: Floats) -> tuple[Floats, Floats]:
        if error is None:
            low, high = interval(UNNAMED, np.zeros(()), communicate)
            return low, high
        return communicate / (1 + error), communicate * (1 + error)

    def cost_model(choice: Choice, point: OperatingPoint) -> Estimate:
        if choice.follows_gradients or choice.by_layers:
            numbers = point.workers, point.parameters, point.density, point.latency, point.bandwidth
            key = (choice.label, *map(float, numbers))
            if key not in known:
                found = _mean_time(choice, point, sampled, [(network_of(point), 0.0)], device)
                low, high = around(found.seconds)
                least, most = found.follows.sent
                ends = low * least, high * most
                known[key] = learnt(point, Estimate(found.seconds, found.select, *ends, kind, follows=found.follows))
            return known[key]
        communicate = choice.communicate(point)
        select = selecting(choice, point, device, sampled)
        low, high = around(communicate)
        if choice.slack is not None:
            low = np.maximum(low - choice.slack(point), 0.0)
        return learnt(point, Estimate(communicate, select, low, high, kind))

    return cost_model


def _from_links(point: OperatingPoint, estimate: Estimate) -> Estimate:
    """Return an estimate whose errors are those that were learnt on links."""
    return estimate._replace(beyond=beyond_links(*point.links), known=known_links())


class _MeanTime(NamedTuple):
    """The time of rehearsed exchanges."""

    seconds: Floats
    select: Selecting
    follows: Follows
    messages: float
    spread: tuple[float, float] | None


def _mean_time(
    choice: Choice,
    point: OperatingPoint,
    sampled: SampledExchanges,
    moments: Sequence[tuple[Network, float]],
    device: DeviceProfile,
    placement: Sequence[int] | None = None,
    *,
    spread: bool = True,
) -> _MeanTime:
    """Return the time of rehearsed exchanges, simulated, and how far that of the last depends on when workers enter."""
    exchanges, workers = sampled.of(choice, point), int(point.workers)
    hosts = None if placement is None else list(placement[:workers])
    if len(exchanges) > 1:
        load_kept_loop()
    step = 1 if choice.period > 1 else -(-len(exchanges) // _TIMED)
    timed = exchanges[::step]

    def lasts(among: Sequence[Sample]) -> Floats:
        """Return what they take to communicate, the mean of each moment [s]."""
        ready = []
        for one in among:
            first, between = device.work(one.kernels, workers)
            ready.append((one.schedule.with_work(between), first, float(device.seconds(one.kernels, workers).max())))
        return np.array(
            [
                np.mean(
                    [
                        network.time(schedule, first, placement=hosts, origin=start).lasts_from(start) - select
                        for schedule, first, select in ready
                    ]
                )
                for network, start in moments
            ]
        )

    means = lasts(timed)
    selects = np.mean(
        [[device.seconds(one.kernels, workers, end).max() for end in (None, *get_args(IntervalEnd))] for one in timed],
        axis=0,
    )
    seconds, follows = float(means.mean()), Follows()
    select, low, high = selects.tolist()
    if choice.follows_gradients:
        scheme, kept_each = choice.candidate.scheme, sampled.kept_each(point)
        sent, ran = (ratio(scheme, part, kept_each) for part in get_args(Part))
        select, low, high = select * ran.middle, low * ran.least, high * ran.most
        moved = 0.0
        if seconds > 0:
            # Latencies stay, whatever is sent.
            empty = Sample(timed[-1].schedule.scaled(0.0), timed[-1].kernels)
            moved = 1 - min(float(lasts([empty]).mean()) / seconds, 1.0)
        least, most = (1 + (one / sent.middle - 1) * moved for one in (sent.least, sent.most))
        follows = Follows((least, most), (ran.least / ran.middle, ran.most / ran.middle))
    return _MeanTime(
        np.asarray(seconds),
        Selecting(*map(np.asarray, (select, low, high))),
        follows,
        float(np.mean([one.schedule.n_messages for one in timed])) / workers,
        _start_spread(timed[-1], *moments[0], device, hosts) if spread else (0.0, 0.0),
    )


def _start_spread(
    one: Sample, network: Network, start: float, device: DeviceProfile, hosts: Sequence[int] | None
) -> tuple[float, float] | None:
    """Return by how much an exchange takes less and more as workers enter a little apart [s]; None if too large."""
    first, between = device.work(one.kernels, one.schedule.n_ranks)
    schedule = one.schedule.with_work(between)
    places = np.array(range(schedule.n_ranks) if hosts is None else hosts)
    if not has_start_spread(network, schedule):
        return 0.0, 0.0
    found = start_spread(network, schedule, places, start, ready=first, most=SAMPLED)
    return found and (found.low - found.at_once, found.high - found.at_once)


def by_fabric(fabric: CalibratedCostModel, device: DeviceProfile) -> CostModel:
    """Return the cost model of a calibrated cluster: an exchange takes as long as its collectives.

    Latency and bandwidth of a point do not matter: they are in the fabric.
    """

    def cost_model(choice: Choice, point: OperatingPoint) -> Estimate:
        if choice.collective_calls is None:
            raise InputError(f"a fabric says nothing of the messages of {choice.label}", file="simnet choose")
        collective_calls = choice.collective_calls(point)
        workers, *sizes = np.broadcast_arrays(point.workers, *(part.nbytes for part in collective_calls))
        found = np.zeros((3, workers.size))
        longest, kind = -math.inf, ""
        beyond = np.zeros(workers.size, dtype=bool)
        for ranks in np.unique(workers).tolist():
            cells = workers.ravel() == ranks
            for part, nbytes in zip(collective_calls, sizes, strict=True):
                one = fabric.fastest_of(part.collective, part.algorithm, int(ranks), nbytes.ravel()[cells])
                found[:, cells] += one[:3]
                beyond[cells] |= one.extrapolates
                longest, kind = max((longest, kind), (float(one.seconds.max()), one.kinds[int(one.seconds.argmax())]))
        seconds, low, high = found.reshape(3, *workers.shape)
        select = selecting(choice, point, device)
        return Estimate(seconds, select, low, high, kind, beyond=beyond.reshape(workers.shape), known=KNOWN_CALLS)

    return cost_model


def by_simulation(
    moments: Sequence[tuple[Network, float]],
    device: DeviceProfile,
    placement: Sequence[int] | None = None,
    sampled: SampledExchanges | None = None,
    *,
    spread: bool = True,
) -> CostModel:
    """Return the cost model that simulates: messages meet, links change; points have no arrays.

    Latency and bandwidth of a point do not matter: they are in the network. The time is the mean over the `moments`.
    """
    sampled = SampledExchanges() if sampled is None else sampled

    def cost_model(choice: Choice, point: OperatingPoint) -> Estimate:
        found = _mean_time(choice, point, sampled, moments, device, placement, spread=spread)
        stack = name_of(moments[0][0].stack)
        low, high = interval(stack, np.asarray(found.messages), found.seconds)
        estimate = Estimate(
            found.seconds,
            found.select,
            low * found.follows.sent[0],
            high * found.follows.sent[1],
            kind_of_stack(stack),
            found.follows,
            spread=found.spread,
        )
        return _from_links(point, estimate)

    return cost_model


def by_networks(
    network_at: Callable[[OperatingPoint], Network], device: DeviceProfile, sampled: SampledExchanges | None = None
) -> CostModel:
    """Return the cost model that simulates every cell of a point on a network of its own."""
    sampled = SampledExchanges() if sampled is None else sampled
    fields = ("workers", "parameters", "density", "latency", "bandwidth")
    known: dict[tuple[object, ...], tuple[list[float], str]] = {}

    def simulated(choice: Choice, at: OperatingPoint) -> tuple[list[float], str]:
        key = (choice.label, *(getattr(at, name) for name in fields))
        if key not in known:
            one = by_simulation([(network_at(at), 0.0)], device, sampled=sampled, spread=False)(choice, at)
            known[key] = [float(part) for part in (one.communicate, *one.selecting, one.least, one.most)], one.kind
        return known[key]

    def cost_model(choice: Choice, point: OperatingPoint) -> Estimate:
        values = np.broadcast_arrays(*(np.asarray(getattr(point, name)) for name in fields))
        found = np.zeros((6, values[0].size))
        for cell in track_progress(range(values[0].size)):
            own = dict(zip(fields, (one.flat[cell].item() for one in values), strict=True))
            own |= {name: round(own[name]) for name in ("workers", "parameters")}
            at = replace(point, **own)
            found[:, cell], kind = simulated(choice, at)
        communicate, seconds, low, high, least, most = found.reshape(6, *values[0].shape)
        return _from_links(point, Estimate(communicate, Selecting(seconds, low, high), least, most, kind))

    return cost_model


def network_of(point: OperatingPoint, stack: str | Stack = "ideal") -> Network:
    """Return the network of a point: a star, or nodes whose workers share one card each."""
    workers, latency, bandwidth = int(point.workers), float(point.latency), float(point.bandwidth)
    if point.per_node == 1:
        return Network(topologies.star(workers, latency=latency, bandwidth=bandwidth), stack=stack)
    return Network(
        topologies.multi_gpu_nodes(
            -(-workers // point.per_node),
            point.per_node,
            intra_latency=point.inner_latency,
            intra_bandwidth=point.inner_bandwidth,
            nic_latency=max(latency - point.inner_latency, 0.0),
            nic_bandwidth=bandwidth,
        ),
        stack=stack,
    )


def selecting(
    choice: Choice, point: OperatingPoint, device: DeviceProfile, sampled: SampledExchanges | None = None
) -> Selecting:
    """Return what workers take to select at a point, and to merge and unpack what they receive.

    Where they work unlike long between the same messages, the longest of each time counts: the others wait for it.
    """
    if choice.kernel_calls is None:
        found = (SampledExchanges() if sampled is None else sampled).of(choice, point)[-1]
        worked = [device.work(found.kernels, int(point.workers), end) for end in (None, *get_args(IntervalEnd))]
        return Selecting(*(np.asarray(first.max() + sum(one.max() for one in rest.values())) for first, rest in worked))
    calls = choice.kernel_calls(point)
    return Selecting(
        *(sum((device.once(one, end) for one in calls), np.zeros(())) for end in (None, *get_args(IntervalEnd)))
    )
