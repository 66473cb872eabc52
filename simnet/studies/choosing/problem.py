"""The choice between exchanges by themselves: where, among which, and the time of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.cost_models.costs.computing import PassTime, SampleCount, batch_samples, pass_time
from simnet.cost_models.costs.devices import DeviceProfile, load_device
from simnet.cost_models.costs.models import load_model
from simnet.network import Network
from simnet.policies import density_at, probe_pairs
from simnet.report.columns import Fields
from simnet.report.cost_summary import throughput
from simnet.report.run_setup import stack_name
from simnet.scenario.computing import default_device, stack_doubt
from simnet.studies.choosing.choices import Choice, choices, named
from simnet.studies.choosing.cost_models import (
    CostModel,
    by_closed_form,
    by_fabric,
    by_networks,
    by_simulation,
    network_of,
)
from simnet.studies.choosing.decision import MISJUDGED, QUANTITIES, Decision, decide, fastest
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.request import MOST_SIMULATED, ChooseRequest, check_count, named_exchanges
from simnet.studies.choosing.sampled_exchanges import SampledExchanges
from simnet.studies.codes import computing_told
from simnet.studies.options import of_gradients
from simnet.studies.timing import on_topology
from simnet.traces import GradientSource, synthetic
from simnet.training.job.job import Job, Overlap
from simnet.training.job.local_steps import check_switching, start_strategy

if TYPE_CHECKING:
    from simnet.cost_models.calibration import CalibratedCostModel
    from simnet.scenario import Scenario

MOMENTS = 64
"""Moments of a scenario at which its links are looked at."""

# Entries of all workers, and workers, of gradients that stand for larger ones.
_SAMPLED, _SAMPLED_WORKERS = 2**17, 64


class Trajectory(NamedTuple):
    """Latency [s] and bandwidth [byte/s] of a scenario's slowest pair, moment by moment."""

    latency: Floats
    bandwidth: Floats


class ComputeTimes(NamedTuple):
    """How long workers compute from one exchange to the next.

    Parameters
    ----------
    compute, backward : float
        Time of both passes, and of the backward pass, during which an exchange may take place [s]; 0 if not known.
    known : PassTime, optional
        The compute time, where it follows from the model.
    samples : SampleCount, optional
        Samples of all workers.
    notes : tuple of str
        Sources and doubts, a sentence each.
    """

    compute: float
    backward: float
    known: PassTime | None = None
    samples: SampleCount | None = None
    notes: tuple[str, ...] = ()

    def throughput(self, exchange: float) -> Fields | None:
        """Return the throughput of all workers, with an exchange of so many seconds after the passes."""
        return None if self.samples is None else throughput(self.samples, self.compute + exchange)


@dataclass(frozen=True)
class Problem:
    """A choice between exchanges by themselves.

    Parameters
    ----------
    title, method : str
        For people: the job, and where times are from.
    point : OperatingPoint
        The job and the links.
    among : tuple of Choice
        The exchanges.
    cost_model : CostModel
        The time of each.
    device : DeviceProfile
        The device that selects.
    passes : ComputeTimes
        How long workers compute.
    varies : tuple of str
        Quantities of which the cost model takes arrays.
    misjudged : float
        By which factor latency and bandwidth may be off.
    trajectory : Trajectory, optional
        The links over time, of a scenario.
    coarse : bool
        Whether the cost model is slow, so that flips are found less exactly.
    barrier : bool, optional
        Whether workers begin together; None where there is no job.
    gradients, gradients_name : callable, str, optional
        Gradients on which gains are measured, and their name.
    sampled : SampledExchanges, optional
        The exchanges whose volume follows the gradients.
    """

    title: str
    point: OperatingPoint
    among: tuple[Choice, ...]
    cost_model: CostModel
    method: str
    device: DeviceProfile
    passes: ComputeTimes
    varies: tuple[str, ...] = ()
    misjudged: float = MISJUDGED
    trajectory: Trajectory | None = None
    coarse: bool = False
    barrier: bool | None = None
    gradients: Callable[[], GradientSource] | None = None
    gradients_name: str = ""
    sampled: SampledExchanges | None = None

    def answer(self) -> Decision:
        """Return the decision."""
        point, varies, backward = self.point, self.varies, self.passes.backward
        return decide(
            self.among, point, self.cost_model,
            varies=varies, misjudged=self.misjudged, coarse=self.coarse, backward=backward,
        )  # fmt: skip


def problem_from_flags(request: ChooseRequest, *, over: bool = False) -> Problem:
    """Return the problem of flags; what they leave out has the defaults of the AR-Topk paper's Table VI.

    With `over`, simulations have a network at every point, as a map wants.
    """
    workers = check_count(request.workers, 8, "--workers")
    point = OperatingPoint(
        workers, request.size(), request.fraction(0.01),
        request.link("latency", 1e-3), request.link("bandwidth", 1.25e9), *request.nodes(workers),
    )  # fmt: skip
    per_node = point.per_node
    what = request.model or ("resnet50" if request.parameters is None else f"{point.parameters:,} parameters")
    title = f"{what}, {point.workers} workers"
    device, passes = _device_and_passes(request, workers)
    among, misjudged = _among(request, per_node), request.misjudged or MISJUDGED
    sampled = SampledExchanges(among, request.seed or 0, request.shape)
    if not request.simulate:
        _refuse_flat_forms(per_node, request, among)
        if request.topology is not None or request.set_:
            raise InputError("is only for --simulate", file="--topology" if request.topology else "--set")
        closed = by_closed_form(device, request.error, sampled)
        gradients, said = _gradients(request, point)
        return Problem(
            title, point, among, closed, "closed forms", device, passes, _heeded(among), misjudged,
            gradients=gradients, gradients_name=said, sampled=sampled,
        )  # fmt: skip
    if workers > MOST_SIMULATED:
        raise InputError(f"must be at most {MOST_SIMULATED:,} for --simulate, got {workers:,}", file="--workers")
    network = _network(request, point)
    place = "a star" if per_node == 1 else "nodes with one network card each"
    method = f"simulated on {request.topology or place}{_by(network)}"
    if over:
        simulated = by_networks(lambda point: _network(request, point), device, sampled)
        return Problem(title, point, among, simulated, method, device, passes, QUANTITIES, coarse=True, sampled=sampled)
    simulated = by_simulation([(network, 0.0)], device, sampled=sampled)
    return Problem(title, point, among, simulated, method, device, passes, sampled=sampled)


def problem_from_scenario(loaded: Scenario, request: ChooseRequest) -> Problem:
    """Return the problem of a scenario: its job, on its slowest links; flags override."""
    of_gradients(loaded, "choices are of jobs that exchange in every iteration", ["sharding"])
    job = loaded.build().job
    share, compute, backward, trained = _outer_step(job)
    if request.simulate and (request.latency is not None or request.bandwidth is not None):
        name = "--latency" if request.latency is not None else "--bandwidth"
        raise InputError("is not for --simulate, which takes the links of the scenario", file=name)
    density = request.fraction(density_at(job.density, job.iterations - 1))
    per_node, inner_latency, inner_bandwidth = _nodes_of(loaded)
    point = OperatingPoint(
        job.source.workers, round(share * job.source.true_parameters), density, 0.0, 1.0, per_node,
        inner_latency, inner_bandwidth,
    )  # fmt: skip
    among = _that_average(job, _among(request, per_node))
    if not request.simulate:
        _refuse_flat_forms(per_node, request, among)
    sampled = SampledExchanges(among, request.seed or 0)
    closed = by_closed_form(job.device, request.error, sampled)
    seen = _trajectory(loaded.name, job, compute, lambda where: float(fastest(among, where, closed)[1]), point)
    typical = replace(
        point,
        latency=request.link("latency", float(np.median(seen.latency))),
        bandwidth=request.link("bandwidth", float(np.median(seen.bandwidth))),
    )
    each = loaded.samples
    if each is not None and job.strategy is not None:
        each = each._replace(number=each.number * job.strategy.steps)
    notes = (*computing_told([loaded.computing]), *(f"Warning: {one}" for one in loaded.warnings))
    stack = stack_name(job.network(0))
    method = "closed forms, on the slowest pair" + ("" if stack == "ideal" else f", without the stack {stack}")
    return Problem(
        f"{loaded.name}, {point.workers} workers{trained}", typical, among, closed,
        "a simulation of the job" if request.simulate else method, job.device,
        ComputeTimes(compute, backward, loaded.compute_time, each, notes),
        () if request.simulate else _heeded(among), request.misjudged or MISJUDGED, seen, barrier=job.barrier,
        gradients=lambda: _gradients_of(job), gradients_name=f"those of {loaded.name}", sampled=sampled,
    )  # fmt: skip


def problem_from_fabric(fabric: CalibratedCostModel, request: ChooseRequest) -> Problem:
    """Return the problem of a calibrated cluster: an exchange takes as long as its collectives there."""
    known = [one.setting for one in fabric.model.known]
    workers = check_count(request.workers, max((one.ranks for one in known), default=8), "--workers")
    point = OperatingPoint(workers, request.size(), request.fraction(0.01), math.nan, math.nan)
    among = _among(request, 1)
    # Where the library chose between ring and tree, they are one choice.
    if not request.schemes and "tree" not in {one.algorithm.casefold() for one in known}:
        among = tuple(one for one in among if "tree" not in one.candidate.options.values())
    device, passes = _device_and_passes(request, workers)
    title = f"{request.model or f'{point.parameters:,} parameters'}, {workers} workers"
    return Problem(
        title, point, among, by_fabric(fabric, device), "the calibrated fabric", device, passes, ("density",),
        coarse=True,
    )  # fmt: skip


def _trajectory(
    name: str, job: Job, compute: float, exchange: Callable[[OperatingPoint], float], point: OperatingPoint
) -> Trajectory:
    """Return the links of a job's slowest pair of neighbours at moments that are spread over the job."""
    hosts = list(range(job.source.workers)) if job.placement is None else list(job.placement)
    latency: list[float] = []
    bandwidth: list[float] = []
    now, before = 0.0, 0
    for iteration in np.unique(np.linspace(0, job.iterations - 1, MOMENTS).round().astype(int)).tolist():
        # The job is as far as compute and the fastest exchange of the moment before carry it.
        if latency:
            where = replace(point, latency=latency[-1], bandwidth=max(bandwidth[-1], 1.0))
            now += (iteration - before) * (compute + exchange(where))
        pairs = probe_pairs(job.network(iteration), hosts, now)
        before = iteration
        latency.append(float(pairs[0].max()))
        bandwidth.append(float(pairs[1].min()))
    up = np.array(bandwidth) > 0
    if not up.any():
        raise InputError("some pair of workers has no link that is up, at whatever moment", file=name)
    return Trajectory(np.array(latency)[up], np.array(bandwidth)[up])


def _outer_step(job: Job) -> tuple[float, float, float, str]:
    """Return the exchanged share of the model, computing and backward pass between exchanges [s], and the strategy."""
    own, once = job.strategy, job.compute.mean
    if own is None:
        return 1.0, once, once * (job.overlap.backward if job.overlap is not None else Overlap().backward), ""
    try:
        check_switching(own.name, own.options, 2)
    except ValueError as error:
        raise InputError(str(error), field="job.strategy") from None
    parts = f", one of {len(own.shares)} fragments, as if of one size" if len(own.shares) > 1 else ""
    steps = f"after each of {own.steps:,} inner steps" if own.steps > 1 else "after each inner step"
    return sum(own.shares) / len(own.shares), own.steps * once, 0.0, f", {own.name} {steps}{parts}"


def _that_average(job: Job, among: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return the choices by which the strategy of a job can average; all if it has none."""
    own, why, found = job.strategy, "", []
    for one in among:
        try:
            if own is not None:
                start_strategy(job.source, own.name, own.options, one.candidate, seed=job.seed, bucket=own.bucket)
        except ValueError as error:
            why = str(error)
        else:
            found.append(one)
    if among and not found:
        raise InputError(f"leaves nothing to choose from: {why}", field="job.strategy")
    return tuple(found)


def _gradients_of(job: Job) -> GradientSource:
    """Return the gradients that a job exchanges; refuse what follows from how a strategy trains."""
    if job.strategy is None or job.strategy.name == "dataparallel":
        return job.source
    return _refuse_gains(job.strategy.name)


def _refuse_gains(name: str) -> NoReturn:
    said = f"are not weighed under {name}, whose gains are those of what it exchanges, after inner steps"
    raise InputError(f"{said}; a policy `moo` of the scenario measures them as it trains", file="--ratios")


def _refuse_flat_forms(per_node: int, request: ChooseRequest, among: Sequence[Choice]) -> None:
    """Refuse to rank closed forms that know nothing of nodes among those that do."""
    if per_node > 1 and any(one.kernel_calls is None for one in among):
        option = "--all" if request.every else "--schemes"
        raise InputError("has closed forms that know nothing of nodes; add --simulate", file=option)


def _among(request: ChooseRequest, per_node: int) -> tuple[Choice, ...]:
    """Return the exchanges that flags name, or the usual ones."""
    schemes = named_exchanges(request)
    return named(schemes, per_node) if schemes else choices(per_node, every=request.every)


def _heeded(among: Sequence[Choice]) -> tuple[str, ...]:
    """Return the quantities of which closed forms take arrays: none where selecting is sampled."""
    return QUANTITIES if all(one.kernel_calls is not None for one in among) else ()


def _gradients(request: ChooseRequest, point: OperatingPoint) -> tuple[Callable[[], GradientSource], str]:
    """Return a maker of synthetic gradients of fewer entries and, of many workers, fewer workers; and their name."""
    workers, size = min(int(point.workers), _SAMPLED_WORKERS), int(point.parameters)
    of = request.shape or size
    scale = size / min(size, _SAMPLED // workers)
    shape = f"{of:,} parameters in one layer" if isinstance(of, int) else of
    said = f"synthetic, like the recorded digits, in the shape of {shape}"
    return lambda: synthetic(of, workers, scale=scale, seed=request.seed or 0), said


def _nodes_of(loaded: Scenario) -> tuple[int, float, float]:
    """Return workers per node, and latency [s] and bandwidth [byte/s] inside one, if nodes share one card each."""
    kind, found = loaded.config.network.topology.choice
    nodes = found.arguments() if kind == "multi_gpu_nodes" else {"rails": True}
    if nodes["rails"] or nodes["gpus_per_node"] == 1 or loaded.config.network.placement != "packed":
        return 1, 0.0, math.inf
    return nodes["gpus_per_node"], nodes["intra_latency"], nodes["intra_bandwidth"]


def _device_and_passes(request: ChooseRequest, workers: int) -> tuple[DeviceProfile, ComputeTimes]:
    """Return the device that flags name, and how long workers compute on it."""
    try:
        device = load_device(request.device or default_device(request.stack))
    except ValueError as error:
        raise InputError(str(error), file="--device") from None
    compute, batch, doubt = request.compute_time, request.batch, stack_doubt(device, request.stack)
    profile = None if request.shape is None else load_model(request.shape)
    known, notes = None, [] if doubt is None else [f"Warning: {doubt}"]
    if compute is None and profile is not None:
        try:
            known = pass_time(profile, device, batch)
            notes.insert(0, f"Computing: {known.describe()}.")
        except ValueError as error:
            notes.insert(0, f"Exchanges are ranked by themselves: {error}; --compute says it.")
    seconds = known.seconds if known is not None else compute or 0.0
    if batch is not None and not seconds:
        raise InputError("needs --compute: how long a batch takes is not known", file="--batch")
    each = batch or (known.batch if known is not None else 0)
    share = Overlap.backward if profile is None else profile.backward_fraction
    of_all = batch_samples(profile, workers * each) if each else None
    return device, ComputeTimes(seconds, share * seconds, known, of_all, tuple(notes))


def _network(request: ChooseRequest, point: OperatingPoint) -> Network:
    """Return the network of flags: a family of topologies, a star, or nodes of GPUs."""
    stack = request.stack or "ideal"
    if request.topology is None:
        if request.set_:
            raise InputError("is only for --topology", file="--set")
        return network_of(point, stack)
    workers, latency, bandwidth = int(point.workers), float(point.latency), float(point.bandwidth)
    fields = {"latency": f"{latency!r} s", "bandwidth": f"{bandwidth!r} B/s"}
    place = on_topology(request.topology, fields, request.set_ or (), workers, request.seed or 0, stack)
    if place.network.routes.n_hosts < workers:
        said = f"has {place.network.routes.n_hosts} hosts, fewer than {workers} workers"
        raise InputError(said, file=f"--topology {request.topology}")
    return place.network


def _by(network: Network) -> str:
    """Return the words for the stack of a network, none for that of closed forms."""
    return "" if (stack := stack_name(network)) == "ideal" else f" by the stack {stack}"
