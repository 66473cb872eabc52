"""The question: an operating point and a cost model, from flags, a scenario or a calibrated cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.costs.devices import DeviceProfile, load_device
from simnet.costs.models import load_model
from simnet.network import Network
from simnet.policies import Candidate, density_at, probe_pairs
from simnet.report.run_setup import stack_name
from simnet.scenario.device import default_device
from simnet.studies.choosing import outer_steps
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
from simnet.studies.choosing.passes import Passes, passes_of, passes_of_job
from simnet.studies.choosing.rehearsals import Rehearsals
from simnet.studies.options import model as model_of
from simnet.studies.options import of_gradients
from simnet.studies.timing import on_topology
from simnet.traces import GradientSource, synthetic

if TYPE_CHECKING:
    from simnet.calibration import CalibratedCostModel
    from simnet.scenario import Scenario

MOMENTS = 64
"""Moments of a scenario at which its links are looked at."""

SIMULATED = 8
"""Of these, how many are simulated."""

MOST_SIMULATED = 4096
"""The most workers that are simulated, of those that flags ask for."""

# Entries of all workers, and workers, of gradients that stand for larger ones.
_SAMPLED, _SAMPLED_WORKERS = 2**17, 64

# Links that exist, and by far more; beyond them times leave what floats hold.
_LATENCIES, _BANDWIDTHS = (0.0, 1e6, "s"), (1.0, 1e18, "B/s")


class Trajectory(NamedTuple):
    """Latency [s] and bandwidth [byte/s] of a scenario's slowest pair, as closed forms see it, moment by moment."""

    latency: Floats
    bandwidth: Floats


@dataclass(frozen=True)
class Question:
    """What is to be decided.

    Parameters
    ----------
    title : str
        What it is about.
    point : OperatingPoint
        The job and the links.
    among : tuple of Choice
        What there is to choose from.
    cost_model : CostModel
        How long each takes.
    method : str
        How that is found, for people.
    varies : tuple of str
        Quantities that the cost model takes arrays of.
    misjudged : float
        By which factor latency and bandwidth may be misjudged.
    trajectory : Trajectory, optional
        Of a scenario, whose links change.
    passes : Passes
        How long workers compute.
    coarse : bool
        Whether the cost model is so slow that flips are looked for in large steps.
    device : DeviceProfile
        What selects.
    barrier : bool, optional
        Of a scenario: whether its workers begin each iteration together.
    gradients : callable, optional
        Makes a source of the gradients that are exchanged, or of gradients like them.
    gradients_name : str
        What that source is, for people.
    rehearsals : Rehearsals, optional
        Of the exchanges that follow gradients.
    """

    title: str
    point: OperatingPoint
    among: tuple[Choice, ...]
    cost_model: CostModel
    method: str
    varies: tuple[str, ...] = QUANTITIES
    misjudged: float = MISJUDGED
    trajectory: Trajectory | None = None
    passes: Passes = field(kw_only=True)
    coarse: bool = False
    device: DeviceProfile = field(kw_only=True)
    barrier: bool | None = None
    gradients: Callable[[], GradientSource] | None = None
    gradients_name: str = ""
    rehearsals: Rehearsals | None = None

    def answer(self) -> Decision:
        """Return the decision."""
        return decide(
            self.among,
            self.point,
            self.cost_model,
            varies=self.varies,
            misjudged=self.misjudged,
            coarse=self.coarse,
            backward=self.passes.backward,
        )


@dataclass(frozen=True)
class Given:
    """What flags say; None where they say nothing. SI units."""

    workers: int | None = None
    model: str | None = None
    parameters: int | None = None
    density: float | None = None
    compute: float | None = None
    batch: int | None = None
    latency: float | None = None
    bandwidth: float | None = None
    gpus_per_node: int | None = None
    inner_latency: float | None = None
    inner_bandwidth: float | None = None
    device: str | None = None
    every: bool = False
    schemes: Sequence[Candidate] = ()
    simulate: bool = False
    topology: str | None = None
    stack: str | None = None
    fields: Sequence[str] = ()
    error: float | None = None
    misjudged: float = MISJUDGED
    seed: int = 0


def from_flags(given: Given) -> Question:
    """Return the question that flags ask; what they leave out has the defaults of the AR-Topk paper's Table VI.

    Raises
    ------
    InputError
        If a value is out of range, there is no such model or device, or values do not fit each other.

    Examples
    --------
    >>> from_flags(Given(workers=8, model="resnet50", density=0.01)).answer().best.choice.label
    'AG-Topk'
    """
    point = OperatingPoint(
        count(given.workers, 8, "--workers"),
        parameters(given.model, given.parameters),
        _fraction(given.density, 0.01),
        link(given.latency, 1e-3, "--latency"),
        link(given.bandwidth, 1.25e9, "--bandwidth"),
        *_nodes(given),
    )
    if int(point.workers) % point.per_node and point.per_node < int(point.workers):
        raise InputError(f"must divide the {point.workers} workers, got {point.per_node}", file="--gpus-per-node")
    what = given.model or (f"{point.parameters:,} parameters" if given.parameters else "resnet50")
    title = f"{what}, {point.workers} workers"
    device, passes = _device_and_passes(given, int(point.workers))
    among = _among(given, point.per_node)
    rehearsals = Rehearsals(among, given.seed, _shape(given))
    if not given.simulate:
        _refuse_flat_forms(point.per_node, given, among)
        if given.topology is not None or given.fields:
            raise InputError("is only for --simulate", file="--topology" if given.topology else "--set")
        cost_model = by_closed_form(device, given.error, rehearsals)
        gradients, said = _gradients(given, point)
        return Question(
            title,
            point,
            among,
            cost_model,
            "closed forms",
            _heeded(among),
            given.misjudged,
            passes=passes,
            device=device,
            gradients=gradients,
            gradients_name=said,
            rehearsals=rehearsals,
        )
    if int(point.workers) > MOST_SIMULATED:
        raise InputError(f"must be at most {MOST_SIMULATED:,} for --simulate, got {point.workers:,}", file="--workers")
    network = _network(given, point)
    cost_model = by_simulation([(network, 0.0)], device, rehearsals=rehearsals)
    place = "a star" if point.per_node == 1 else "nodes with one network card each"
    method = f"simulated on {given.topology or place}{_by(network)}"
    return Question(title, point, among, cost_model, method, (), passes=passes, device=device, rehearsals=rehearsals)


def over_networks(given: Given) -> Question:
    """Return the question that flags ask of simulations, at every point on a network of its own, as maps go over.

    Raises
    ------
    InputError
        As `from_flags` does.
    """
    question = from_flags(given)
    rehearsals = Rehearsals(question.among, given.seed, _shape(given))
    cost_model = by_networks(lambda point: _network(given, point), question.device, rehearsals)
    return replace(question, cost_model=cost_model, varies=QUANTITIES, coarse=True)


def from_scenario(loaded: Scenario, given: Given) -> Question:
    """Return the question that a scenario asks: its job, on its links; flags say otherwise where they say something.

    Closed forms see the slowest pair of workers at the median moment. Simulated exchanges begin at moments that are
    spread over the job.

    Raises
    ------
    InputError
        If something is wrong with it, or with what flags say.
    """
    of_gradients(loaded, "choices are of jobs that exchange in every iteration", ["sharding"])
    job = loaded.build().job
    own = outer_steps.weighed(job)
    if given.simulate and (given.latency is not None or given.bandwidth is not None):
        name = "--latency" if given.latency is not None else "--bandwidth"
        raise InputError("is not for --simulate, which takes the links of the scenario", file=name)
    iterations = np.unique(np.linspace(0, job.iterations - 1, MOMENTS).round().astype(int)).tolist()
    hosts = list(range(job.source.workers)) if job.placement is None else list(job.placement)
    density = _fraction(given.density, density_at(job.density, job.iterations - 1))
    device, passes = job.device, passes_of_job(loaded, job, own)
    per_node, inner_latency, inner_bandwidth = _nodes_of(loaded)
    point = OperatingPoint(
        job.source.workers, round(own.share * job.source.true_parameters), density, 0.0, 1.0, per_node,
        inner_latency, inner_bandwidth,
    )  # fmt: skip
    among = outer_steps.that_average(job, _among(given, per_node))
    if not given.simulate:
        _refuse_flat_forms(per_node, given, among)
    rehearsals = Rehearsals(among, given.seed)
    closed = by_closed_form(device, given.error, rehearsals)
    latency: list[float] = []
    bandwidth: list[float] = []
    times: list[float] = []
    now, before = 0.0, 0
    for iteration in iterations:
        # The job is as far as compute and the fastest exchange of the moment before carry it.
        if times:
            where = replace(point, latency=latency[-1], bandwidth=max(bandwidth[-1], 1.0))
            step = own.compute + float(fastest(among, where, closed)[1])
            now += (iteration - before) * step
        pairs = probe_pairs(job.network(iteration), hosts, now)
        before = iteration
        times.append(now)
        latency.append(float(pairs[0].max()))
        bandwidth.append(float(pairs[1].min()))
    up = np.array(bandwidth) > 0
    if not up.any():
        raise InputError("some pair of workers has no link that is up, at whatever moment", file=loaded.name)
    seen = Trajectory(np.array(latency)[up], np.array(bandwidth)[up])
    typical = replace(
        point,
        latency=float(np.median(seen.latency)) if given.latency is None else given.latency,
        bandwidth=float(np.median(seen.bandwidth)) if given.bandwidth is None else given.bandwidth,
    )
    title = f"{loaded.name}, {point.workers} workers{own.trained}"
    if given.simulate:
        chosen = np.unique(np.linspace(0, len(iterations) - 1, SIMULATED).round().astype(int)).tolist()
        moments = [(job.network(iterations[one]), times[one]) for one in chosen]
        cost_model = by_simulation(moments, device, hosts, rehearsals)
        method = f"simulated at {len(moments)} moments{_by(moments[0][0])}"
        return Question(
            title,
            typical,
            among,
            cost_model,
            method,
            (),
            trajectory=seen,
            passes=passes,
            device=device,
            barrier=job.barrier,
        )
    stack = stack_name(job.network(0))
    method = "closed forms, on the slowest pair" + ("" if stack == "ideal" else f", without the stack {stack}")
    return Question(
        title,
        typical,
        among,
        closed,
        method,
        _heeded(among),
        given.misjudged,
        seen,
        passes=passes,
        device=device,
        barrier=job.barrier,
        gradients=lambda: outer_steps.gradients(job),
        gradients_name=f"those of {loaded.name}",
        rehearsals=rehearsals,
    )


def from_fabric(fabric: CalibratedCostModel, given: Given) -> Question:
    """Return the question on a calibrated cluster: an exchange takes as long as its collectives there.

    Raises
    ------
    InputError
        If a value is out of range, or the fabric says nothing of a collective.
    """
    known = [one.setting for one in fabric.model.known]
    workers = count(given.workers, max((one.ranks for one in known), default=8), "--workers")
    point = OperatingPoint(
        workers, parameters(given.model, given.parameters), _fraction(given.density, 0.01), math.nan, math.nan
    )
    pinned = {one.algorithm.casefold() for one in known}
    # Where the library chose between ring and tree, they are one choice.
    among = named(given.schemes) if given.schemes else choices()
    if not given.schemes and "tree" not in pinned:
        among = tuple(one for one in among if "tree" not in one.candidate.options.values())
    device, passes = _device_and_passes(given, workers)
    cost_model = by_fabric(fabric, device)
    title = f"{given.model or f'{point.parameters:,} parameters'}, {workers} workers"
    method = "the calibrated fabric"
    return Question(
        title,
        point,
        among,
        cost_model,
        method,
        ("density",),
        passes=passes,
        coarse=True,
        device=device,
    )


def _refuse_flat_forms(per_node: int, given: Given, among: Sequence[Choice]) -> None:
    """Refuse to rank closed forms that know nothing of nodes beside those that do."""
    if per_node > 1 and any(one.kernel_calls is None for one in among):
        option = "--all" if given.every else "--schemes"
        raise InputError("has closed forms that know nothing of nodes; add --simulate", file=option)


def _among(given: Given, per_node: int) -> tuple[Choice, ...]:
    """Return what there is to choose from: what flags name, or what is usual."""
    return named(given.schemes, per_node) if given.schemes else choices(per_node, every=given.every)


def _heeded(among: Sequence[Choice]) -> tuple[str, ...]:
    """Return the quantities of which closed forms take arrays: none where selecting is sampled."""
    return QUANTITIES if all(one.kernel_calls is not None for one in among) else ()


def parameters(name: str | None, size: int | None) -> int:
    """Return the parameters of a gradient, by the name of a model, resnet50 if there is none, or as they are given."""
    if size is None:
        return model_of(name or "resnet50").parameters
    if name is not None:
        raise InputError("is either --model or --parameters", file="simnet choose")
    if not 1 <= size <= 10**13:
        raise InputError(f"must be from 1 to 1e13, got {size}", file="--parameters")
    return size


def _shape(given: Given) -> str | None:
    """Return the name of the model; None where only its size is known."""
    return None if given.parameters is not None else given.model or "resnet50"


def _gradients(given: Given, point: OperatingPoint) -> tuple[Callable[[], GradientSource], str]:
    """Return what makes synthetic gradients of fewer entries and, of many workers, fewer workers; and what they are."""
    workers = min(int(point.workers), _SAMPLED_WORKERS)
    entries = min(int(point.parameters), _SAMPLED // workers)
    of = _shape(given) or int(point.parameters)

    def make() -> GradientSource:
        return synthetic(of, workers, scale=int(point.parameters) / entries, seed=given.seed)

    shape = f"{of:,} parameters in one layer" if isinstance(of, int) else of
    return make, f"synthetic, like the recorded digits, in the shape of {shape}"


def count(value: int | None, default: int, option: str) -> int:
    """Return a number of workers that an option gives, or the default."""
    if not 1 <= (found := default if value is None else value) <= 1_000_000:
        raise InputError(f"must be from 1 to 1,000,000, got {found}", file=option)
    return found


def _fraction(value: float | None, default: float) -> float:
    found = default if value is None else value
    if not 0 < found <= 1:
        raise InputError(f"must be > 0 and <= 1, got {found:g}", file="--density")
    return found


def link(value: float | None, default: float, option: str) -> float:
    """Return the latency [s] or bandwidth [byte/s] that an option gives, or the default; its name says which."""
    low, high, unit = _LATENCIES if option.endswith("latency") else _BANDWIDTHS
    found = default if value is None else value
    if not low <= found <= high:
        raise InputError(f"must be from {low:g} to {high:g} {unit}, got {found:g} {unit}", file=option)
    return found


def _nodes(given: Given) -> tuple[int, float, float]:
    """Return workers per node, and latency [s] and bandwidth [byte/s] inside one."""
    per_node = count(given.gpus_per_node, 1, "--gpus-per-node")
    if per_node == 1 and (given.inner_latency is not None or given.inner_bandwidth is not None):
        raise InputError("is only for --gpus-per-node above 1", file="--inner-latency or --inner-bandwidth")
    if per_node == 1:
        return 1, 0.0, math.inf
    latency = link(given.inner_latency, 5e-6, "--inner-latency")
    return per_node, latency, link(given.inner_bandwidth, 1e11, "--inner-bandwidth")


def _nodes_of(loaded: Scenario) -> tuple[int, float, float]:
    """Return the same of a scenario whose nodes share one card each."""
    kind, found = loaded.config.network.topology.choice
    nodes = found.arguments() if kind == "multi_gpu_nodes" else {"rails": True}
    if nodes["rails"] or nodes["gpus_per_node"] == 1 or loaded.config.network.placement != "packed":
        return 1, 0.0, math.inf
    return nodes["gpus_per_node"], nodes["intra_latency"], nodes["intra_bandwidth"]


def _device_and_passes(given: Given, workers: int) -> tuple[DeviceProfile, Passes]:
    try:
        device = load_device(given.device or default_device(given.stack))
    except ValueError as error:
        raise InputError(str(error), file="--device") from None
    shape = _shape(given)
    profile = None if shape is None else load_model(shape)
    return device, passes_of(profile, device, workers, compute=given.compute, batch=given.batch, stack=given.stack)


def _network(given: Given, point: OperatingPoint) -> Network:
    """Return the network of flags: a family of topologies, a star, or nodes of GPUs."""
    stack = given.stack or "ideal"
    if given.topology is not None:
        workers, latency, bandwidth = int(point.workers), float(point.latency), float(point.bandwidth)
        if point.per_node > 1:
            raise InputError(f"is not for --topology, whose hosts have one worker each, got {point.per_node}",
                             file="--gpus-per-node")  # fmt: skip
        fields = {"latency": f"{latency!r} s", "bandwidth": f"{bandwidth!r} B/s"}
        place = on_topology(given.topology, fields, given.fields, workers, given.seed, stack)
        if place.network.routes.n_hosts < workers:
            said = f"has {place.network.routes.n_hosts} hosts, fewer than {workers} workers"
            raise InputError(said, file=f"--topology {given.topology}")
        return place.network
    if given.fields:
        raise InputError("is only for --topology", file="--set")
    return network_of(point, stack)


def _by(network: Network) -> str:
    """Return the words for the stack of a network, none for that of closed forms."""
    return "" if (stack := stack_name(network)) == "ideal" else f" by the stack {stack}"
