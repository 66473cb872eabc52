"""Cost models: the estimated time of an exchange with its interval, by closed forms, measurements, or simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, get_args

import numpy as np

import sparsifier_models
import topologies
from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.base.progress import tracked
from simnet.costs.devices import DeviceOp, DeviceProfile, End
from simnet.costs.models import model
from simnet.job.streams import Sent, queued
from simnet.network import Network, Stack
from simnet.report.stacks import name_of
from simnet.schedule import Schedule
from simnet.studies.choosing.chances import GIVEN, UNNAMED, interval, kind_of_stack
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.traces import synthetic

if TYPE_CHECKING:
    from simnet.calibration import CalibratedCostModel

_SAMPLE = 4096
_SMALL = 64
# Of all workers together, of gradients that a scheme follows.
_LARGE = 2**16
# The most exchanges in which thresholds and residuals settle, how many count at least, and by what share of their bytes
# these and as many before them may differ then.
_MOST_SETTLING, _LEAST_COUNTED, _SETTLED = 200, 32, 0.03
_LAYERS = 8
_LEAST_TIMES, _MOST_TIMES = 4, 40
_LARGEST_SAMPLE = 2**26


class Selecting(NamedTuple):
    """The time that workers take to select, merge and unpack, and its interval [s]."""

    seconds: Floats
    low: Floats
    high: Floats


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
        What that interval is from, a name of `simnet.studies.choosing.chances.error_models`.
    weather : tuple of float, optional
        The least and the most that sending takes as links change, if that was looked at [s].
    """

    communicate: Floats
    selecting: Selecting
    least: Floats
    most: Floats
    kind: str
    weather: tuple[float, float] | None = None

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

Beside: TypeAlias = Callable[[Choice, OperatingPoint, int], float]
"""What is left of a choice after the backward pass [s], at the point of one of so many equal buckets."""


class Sample(NamedTuple):
    """What an exchange sends and runs, found by doing it on a sample of gradients."""

    schedule: Schedule
    kernels: tuple[DeviceOp, ...]


def by_closed_form(device: DeviceProfile, error: float | None = None, shape: str | None = None) -> CostModel:
    """Return the cost model of the closed forms, in which no two messages share a link.

    Parameters
    ----------
    device : DeviceProfile
        What selecting costs.
    error : float, optional
        Relative error of the time to communicate that the 90 % interval stands for, >= 0. By default what measured
        times were off by whose software is left out, as it is here.
    shape : str, optional
        As of `settled`.

    Examples
    --------
    >>> from simnet.studies.choosing import choices
    >>> from simnet.costs.devices import load_device
    >>> estimate = by_closed_form(load_device("ideal"))(choices()[0], OperatingPoint(8, 11_689_512, 0.1, 1e-3, 1.25e9))
    >>> f"{estimate.seconds:.4f} s, {estimate.low:.4f} to {estimate.high:.4f}"
    '0.0795 s, 0.0787 to 0.1949'
    """
    known: dict[tuple[object, ...], Estimate] = {}
    kind = UNNAMED if error is None else GIVEN

    def around(communicate: Floats) -> tuple[Floats, Floats]:
        if error is None:
            low, high = interval(UNNAMED, np.zeros(()), communicate)
            return low, high
        return communicate / (1 + error), communicate * (1 + error)

    def cost_model(choice: Choice, point: OperatingPoint) -> Estimate:
        if choice.settled:
            numbers = point.workers, point.parameters, point.density, point.latency, point.bandwidth
            key = (choice.label, *map(float, numbers))
            if key not in known:
                exchanges = settled(choice, point, shape=shape)
                found = _mean(exchanges, int(point.workers), [(network_of(point), 0.0)], device)
                low, high = around(found.seconds)
                known[key] = Estimate(found.seconds, found.select, low * found.least, high * found.most, kind)
            return known[key]
        communicate = choice.communicate(point)
        select = selecting(choice, point, device)
        low, high = around(communicate)
        if choice.slack is not None:
            low = np.maximum(low - choice.slack(point), 0.0)
        return Estimate(communicate, select, low, high, kind)

    return cost_model


class _Mean(NamedTuple):
    """The time of exchanges of a settled period.

    Parameters
    ----------
    seconds : ndarray
        To communicate, the mean over the later half of them and over moments [s].
    select : Selecting
        To select.
    moments : ndarray, shape (moments,)
        The mean of each moment [s].
    least, most : float
        How far the half before was from it, in parts of it: some schemes drift on. 1 if not below, or above.
    messages : float
        Of an exchange, for each worker.
    """

    seconds: Floats
    select: Selecting
    moments: Floats
    least: float
    most: float
    messages: float


def _mean(
    exchanges: Sequence[Sample],
    workers: int,
    moments: Sequence[tuple[Network, float]],
    device: DeviceProfile,
    placement: Sequence[int] | None = None,
) -> _Mean:
    """Return the time of exchanges, simulated."""
    hosts = None if placement is None else list(placement[:workers])
    selects = np.array(
        [[device.seconds(one.kernels, workers, end).max() for end in (None, *get_args(End))] for one in exchanges]
    )
    times = np.zeros((len(moments), len(exchanges)))
    for column, (schedule, kernels) in enumerate(exchanges):
        first, between = device.work(kernels, workers)
        worked = schedule.with_work(between)
        for row, (network, start) in enumerate(moments):
            lasts = network.time(worked, first, placement=hosts, origin=start).lasts_from(start)
            times[row, column] = lasts - selects[column, 0]
    halves = np.array_split(times, min(2, times.shape[1]), axis=1)
    means = halves[-1].mean(axis=1)
    drift = float(halves[0].mean() / means.mean()) if means.mean() > 0 else 1.0
    return _Mean(
        np.asarray(means.mean()),
        Selecting(*map(np.asarray, selects.mean(axis=0))),
        means,
        min(drift, 1.0),
        max(drift, 1.0),
        float(np.mean([one.schedule.n_messages for one in exchanges])) / workers,
    )


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
        for ranks in np.unique(workers).tolist():
            cells = workers.ravel() == ranks
            for part, nbytes in zip(collective_calls, sizes, strict=True):
                one = fabric.fastest_of(part.collective, part.algorithm, int(ranks), nbytes.ravel()[cells])
                found[:, cells] += one[:3]
                longest, kind = max((longest, kind), (float(one.seconds.max()), one.kinds[int(one.seconds.argmax())]))
        seconds, low, high = found.reshape(3, *workers.shape)
        return Estimate(seconds, selecting(choice, point, device), low, high, kind)

    return cost_model


def by_simulation(
    moments: Sequence[tuple[Network, float]],
    device: DeviceProfile,
    placement: Sequence[int] | None = None,
    seed: int = 0,
    samples: dict[tuple[object, ...], tuple[Sample, ...]] | None = None,
    shape: str | None = None,
) -> CostModel:
    """Return the cost model that simulates: messages meet, links change; points have no arrays.

    Latency and bandwidth of a point do not matter: they are in the network. The time is the mean over the `moments`.

    Parameters
    ----------
    moments : sequence of (Network, float)
        Networks, and when exchanges begin there [s].
    device : DeviceProfile
        What selecting costs.
    placement : sequence of int, optional
        Host of each worker.
    seed : int
        Seed of the gradients of which a sample is exchanged.
    samples : dict, optional
        What other cost models of the same seed have exchanged; grows.
    shape : str, optional
        As of `settled`.
    """
    samples = {} if samples is None else samples

    def cost_model(choice: Choice, point: OperatingPoint) -> Estimate:
        key = (choice.label, point.workers, point.parameters, point.density)
        if key not in samples:
            samples[key] = settled(choice, point, seed, shape)
        found = _mean(samples[key], int(point.workers), moments, device, placement)
        stack = name_of(moments[0][0].stack)
        low, high = interval(stack, np.asarray(found.messages), found.seconds)
        return Estimate(
            found.seconds,
            found.select,
            low * found.least,
            high * found.most,
            kind_of_stack(stack),
            (float(found.moments.min()), float(found.moments.max())),
        )

    return cost_model


def by_networks(network_at: Callable[[OperatingPoint], Network], device: DeviceProfile, seed: int = 0) -> CostModel:
    """Return the cost model that simulates every cell of a point on a network of its own.

    Parameters
    ----------
    network_at : callable
        Makes the network of a point without arrays.
    device : DeviceProfile
        What selecting costs.
    seed : int
        Seed of the gradients of which a sample is exchanged.
    """
    samples: dict[tuple[object, ...], tuple[Sample, ...]] = {}
    fields = ("workers", "parameters", "density", "latency", "bandwidth")

    def cost_model(choice: Choice, point: OperatingPoint) -> Estimate:
        values = np.broadcast_arrays(*(np.asarray(getattr(point, name)) for name in fields))
        found = np.zeros((6, values[0].size))
        for cell in tracked(range(values[0].size)):
            own = dict(zip(fields, (one.flat[cell].item() for one in values), strict=True))
            own |= {name: round(own[name]) for name in ("workers", "parameters")}
            at = replace(point, **own)
            one = by_simulation([(network_at(at), 0.0)], device, seed=seed, samples=samples)(choice, at)
            found[:, cell] = [float(part) for part in (one.communicate, *one.selecting, one.least, one.most)]
        communicate, seconds, low, high, least, most = found.reshape(6, *values[0].shape)
        return Estimate(communicate, Selecting(seconds, low, high), least, most, one.kind)

    return cost_model


def beside_backward(
    backward: float,
    device: DeviceProfile,
    moments: Sequence[tuple[Network, float]] = (),
    placement: Sequence[int] | None = None,
    seed: int = 0,
) -> Beside:
    """Return what says how long exchanges take yet after a backward pass that they go beside, as jobs have it.

    Messages are timed, and kernels queue on the compute stream of their worker.

    Parameters
    ----------
    backward : float
        Seconds of the backward pass, of which each bucket has an equal slice.
    device : DeviceProfile
        What kernels cost.
    moments : sequence of (Network, float)
        Networks, and when the backward pass begins there [s]; the mean over them counts. Where there is none, the links
        of the point.
    placement : sequence of int, optional
        Host of each worker.
    seed : int
        Seed of the gradients of which a sample is exchanged.
    """

    def beside(choice: Choice, point: OperatingPoint, buckets: int) -> float:
        schedule, kernels = sample(choice, point, seed)
        workers = int(point.workers)
        hosts = None if placement is None else list(placement[:workers])
        ready = [np.full(workers, backward * (number + 1) / buckets) for number in range(buckets)]
        sent = [Sent(schedule, kernels, one, choice.kind != "sparse") for one in ready]
        left = []
        for network, start in moments or ((network_of(point), 0.0),):
            parts, computing = queued(sent, device, network.stack)
            timing = network.time(parts, np.zeros(workers), placement=hosts, origin=start, computing=computing)
            left.append(timing.lasts_from(start) - backward)
        return float(np.mean(left))

    return beside


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


def selecting(choice: Choice, point: OperatingPoint, device: DeviceProfile) -> Selecting:
    """Return what workers take to select at a point, and to merge and unpack what they receive.

    Where they work unlike long between the same messages, the longest of each time counts: the others wait for it.

    Parameters
    ----------
    choice : Choice
        The exchange.
    point : OperatingPoint
        The job.
    device : DeviceProfile
        What its kernels cost.
    """
    if choice.kernel_calls is None:
        found = sample(choice, point, 0)
        worked = [device.work(found.kernels, int(point.workers), end) for end in (None, *get_args(End))]
        return Selecting(*(np.asarray(first.max() + sum(one.max() for one in rest.values())) for first, rest in worked))
    calls = choice.kernel_calls(point)
    return Selecting(*(sum((device.once(one, end) for one in calls), np.zeros(())) for end in (None, *get_args(End))))


def sample(choice: Choice, point: OperatingPoint, seed: int = 0) -> Sample:
    """Exchange a sample of synthetic gradients, and return what the last of some exchanges sends and runs.

    Parameters
    ----------
    choice, point, seed
        As of `settled`.
    """
    return settled(choice, point, seed)[-1]


def settled(choice: Choice, point: OperatingPoint, seed: int = 0, shape: str | None = None) -> tuple[Sample, ...]:
    """Exchange samples of synthetic gradients, and return what the exchanges of a period send and run.

    Bytes and entries count for the whole gradient. Where a scheme keeps k entries they are exact, and one exchange says
    it; where thresholds decide they are those of these samples, after as many exchanges in which they settle.

    Parameters
    ----------
    choice : Choice
        The exchange.
    point : OperatingPoint
        The job; its fields are numbers.
    seed : int
        Of the gradients.
    shape : str, optional
        The model whose layers gradients have, for schemes that follow them; where it is of another size, or omitted,
        they have eight layers alike.

    Raises
    ------
    InputError
        If the sample would not fit into memory, or the scheme cannot do with what it is given.
    """
    workers, parameters, density = int(point.workers), int(point.parameters), float(point.density)
    keeps_k = choice.kernel_calls is not None
    most = max(_SAMPLE, _LARGE // workers) if choice.settled else _SAMPLE
    wanted = min(parameters, _SMALL if keeps_k else max(most, math.ceil(16 / density)))
    if workers * wanted > _LARGEST_SAMPLE:
        raise InputError(
            f"{workers} workers with a density of {density:g} need a sample of {workers * wanted:.3g} entries, at "
            f"most {_LARGEST_SAMPLE:.3g} are taken; use the closed forms, fewer workers or a higher density",
            file="simnet choose",
        )
    times = 1 if keeps_k else int(np.clip(_LARGEST_SAMPLE / 2 / (workers * wanted), _LEAST_TIMES, _MOST_TIMES))
    window = 1
    if choice.settled:
        # Residuals settle in as many exchanges as it takes to send every entry once; some thresholds take longer.
        window, times = max(choice.period, _LEAST_COUNTED), _MOST_SETTLING
    layers: str | list[tuple[str, tuple[int, ...]]]
    if choice.settled and shape is not None and model(shape).parameters == parameters:
        layers = shape
    else:
        count = min(_LAYERS, parameters)
        ends = [number * parameters // count for number in range(count + 1)]
        layers = [(f"layer {number}", (last - first,)) for number, (first, last) in enumerate(pairwise(ends))]
    source = synthetic(layers, workers, iterations=times, scale=parameters / wanted, seed=seed)
    scheme = choice.candidate.scheme
    options = dict(choice.candidate.options)
    if hasattr(sparsifier_models.scheme(scheme).option_type, "initial"):
        # Thresholds that start elsewhere take hundreds of iterations to get where they belong.
        options["initial"] = "exact"
    try:
        made = sparsifier_models.create(
            scheme,
            workers,
            source.parameters,
            density,
            scale=source.scale,
            seed=seed,
            layers=source.layers,
            **options,
        )
    except ValueError as error:
        raise InputError(f"{choice.label}: {error}", file="simnet choose") from None
    found: list[Sample] = []
    sent: list[float] = []
    for iteration in range(times):
        exchange = made.exchange(source.gradients(iteration))
        found.append(Sample(exchange.schedule, tuple(exchange.kernels)))
        sent.append(float(exchange.schedule.bytes_sent().max()))
        if choice.settled and iteration >= 1 / density and len(sent) >= 2 * window and len(sent) % window == 0:
            before, last = np.mean(sent[-2 * window : -window]), np.mean(sent[-window:])
            if abs(last - before) <= _SETTLED * before:
                break
    return tuple(found[-2 * window :] if choice.settled else found[-1:])
