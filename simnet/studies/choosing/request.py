"""The request of `simnet choose`, and the job that it describes: fields of the scenario ``base``, or of another."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simnet.base import units
from simnet.base.errors import InputError, suggest_names
from simnet.cost_models.costs.models import is_config
from simnet.policies import Candidate
from simnet.scenario import Scenario, load, topology_parts
from simnet.scenario.named_exchanges import ALL
from simnet.scenario.named_exchanges import named_exchanges as exchanges_by_name
from simnet.scenario.parts import field_names
from simnet.studies import options
from simnet.studies.choosing.choices import follows_gradients
from simnet.training.job.job import Overlap

MOST_SIMULATED = 4096
"""The most workers that are simulated, of those that flags ask for."""

# Entries that the scenario base has of a gradient, those of resnet50 at its scale, and those that a bucket selects.
_ENTRIES, _SELECTED = 25_557, 10
# From so many parameters on, whose buckets are hundreds, one iteration is simulated.
_LARGE = 10**9
# Links that exist, and by far more; beyond them times leave what floats hold.
_LATENCIES, _BANDWIDTHS = (0.0, 1e6, "s"), (1.0, 1e18, "B/s")


@dataclass(frozen=True)
class ChooseRequest:
    """The flags of `simnet choose`, as the command describes them; None where they are not given.

    Quantities are texts with units; of an exchange by itself they may be numbers in SI units.
    """

    scenario: str | Path | None = None
    workers: int | None = None
    model: str | None = None
    parameters: int | str | None = None
    density: float | str | None = None
    compute: str | None = None
    batch: int | None = None
    latency: float | str | None = None
    bandwidth: float | str | None = None
    gpus_per_node: int | None = None
    inner_latency: float | str | None = None
    inner_bandwidth: float | str | None = None
    fabric: Path | None = None
    device: str | None = None
    every: bool = False
    schemes: str | None = None
    simulate: bool = False
    topology: str | None = None
    param: Sequence[str] | None = None
    set_: Sequence[str] | None = None
    stack: str | None = None
    error: float | None = None
    misjudged: float | None = None
    memory: str | None = None
    seed: int | None = None

    @property
    def source(self) -> str:
        """The scenario whose job is asked about; without one, flags are fields of ``base``."""
        return "base" if self.scenario is None else str(self.scenario)

    @property
    def of_exchange(self) -> bool:
        """Whether an exchange by itself is asked about: of a cluster's calls, or of a size that says no computing."""
        return self.fabric is not None or (self.parameters is not None and self.compute is None)

    @property
    def shape(self) -> str | None:
        """The name of the model; None where only its size is known."""
        return None if self.parameters is not None else self.model or "resnet50"

    @property
    def compute_time(self) -> float | None:
        """Seconds of both passes, where they are given."""
        return options.quantity(self.compute, "--compute", units.seconds)

    def size(self) -> int:
        """Return the parameters of the gradient, those of resnet50 if nothing is said."""
        size = options.parameters(self.parameters)
        if size is None:
            return options.model(self.model or "resnet50").parameters
        if self.model is not None:
            raise InputError("is either --model or --parameters", file="simnet choose")
        if not 1 <= size <= 10**13:
            raise InputError(f"must be from 1 to 1e13, got {size}", file="--parameters")
        return size

    def fraction(self, default: float) -> float:
        """Return the density, in (0, 1]."""
        return default if self.density is None else options.density(str(self.density))

    def link(self, name: str, default: float = 0.0) -> float:
        """Return the latency [s] or bandwidth [byte/s] of this name."""
        value, option = getattr(self, name), f"--{name.replace('_', '-')}"
        read, (low, high, unit) = units.bandwidth, _BANDWIDTHS
        if name.endswith("latency"):
            read, (low, high, unit) = units.seconds, _LATENCIES
        found = options.quantity(value, option, read) if isinstance(value, str) else value
        found = default if found is None else float(found)
        if not low <= found <= high:
            raise InputError(f"must be from {low:g} to {high:g} {unit}, got {found:g} {unit}", file=option)
        return found

    def nodes(self, workers: int) -> tuple[int, float, float]:
        """Return workers per node, and latency [s] and bandwidth [byte/s] inside one."""
        per_node = check_count(self.gpus_per_node, 1, "--gpus-per-node")
        if per_node == 1:
            if self.inner_latency is not None or self.inner_bandwidth is not None:
                raise InputError("is only for --gpus-per-node above 1", file="--inner-latency or --inner-bandwidth")
            return 1, 0.0, math.inf
        if self.topology is not None:
            said = f"is not for --topology, whose hosts have one worker each, got {per_node}"
            raise InputError(said, file="--gpus-per-node")
        if workers % per_node and per_node < workers:
            raise InputError(f"must divide the {workers} workers, got {per_node}", file="--gpus-per-node")
        return per_node, self.link("inner_latency", 5e-6), self.link("inner_bandwidth", 1e11)


def check_count(value: int | None, default: int, option: str) -> int:
    """Return a number of workers that an option gives, or the default."""
    if not 1 <= (found := default if value is None else value) <= 1_000_000:
        raise InputError(f"must be from 1 to 1,000,000, got {found}", file=option)
    return found


def job_of(request: ChooseRequest, more: Sequence[str] = ()) -> Scenario:
    """Return the scenario that is asked about, with what flags set of it, and further fields."""
    return load(request.source, [*fields_of_job(request), *more], request.seed)


def assumptions_of(request: ChooseRequest, loaded: Scenario) -> list[str]:
    """Return what a job from flags assumes; nothing where there is a scenario."""
    if request.scenario is not None:
        return []
    where = ("network", "topology", loaded.config.network.topology.choice[0])
    fields = {
        "workers": (request.workers, ("workers",)),
        "model": (request.model or request.parameters, ("job", "model")),
        "latency": (request.latency or request.gpus_per_node, (*where, "latency")),
        "bandwidth": (request.bandwidth or request.gpus_per_node, (*where, "bandwidth")),
        "density": (request.density, ("job", "density")),
        "iterations": (_iterations(request), ("job", "iterations")),
    }
    own = {one.partition("=")[0].strip() for one in request.set_ or ()}
    left = {name: way for name, (given, way) in fields.items() if given is None and ".".join(way) not in own}
    said = [f"{name}={value}" for name, way in left.items() if (value := loaded.document.found(way)) is not None]
    found = [f"Assumed, as in the scenario base: {', '.join(said)}."] if said else []
    if (iterations := _iterations(request)) is not None and "job.iterations" not in own:
        found.append(f"Assumed: {iterations[0]} iteration{'s' * (iterations[0] > 1)}, {iterations[1]}.")
    return found


def _iterations(request: ChooseRequest) -> tuple[int, str] | None:
    """Return how many iterations a job from flags has, and why; None for those of the scenario ``base``."""
    if request.every or any(map(follows_gradients, named_exchanges(request))):
        return 300, "as in the scenario compare, in which thresholds settle"
    if request.size() > _LARGE:
        return 1, "as the buckets of so large a model are many"
    return None


def fields_of_job(request: ChooseRequest) -> list[str]:
    """Return what flags set of the scenario whose job is asked about."""
    fields = _fields_of_base(request) if request.scenario is None else [*scenario_overrides(request), *_links(request)]
    if request.density is not None:
        fields += [f"job.density={request.fraction(0.01)!r}", "job.compression_ratio=null"]
    return [*fields, *device_field(request), *options.memory(request.memory)]


def _links(request: ChooseRequest) -> list[str]:
    """Return what `--latency` and `--bandwidth` set: parameters of these names of the topology of a scenario."""
    given = {name: text for name in ("latency", "bandwidth") if (text := getattr(request, name)) is not None}
    if not given:
        return []
    kind, part = load(request.source, scenario_overrides(request), request.seed).config.network.topology.choice
    names, found = field_names(type(part)), []
    for name, text in given.items():
        request.link(name)
        if name not in names:
            close = [f"network.topology.{kind}.{one}" for one in names if one.endswith(name)]
            way = f"; --set {' or '.join(close)} says it" if close else ""
            raise InputError(f"is no parameter of the topology {kind}{way}", file=f"--{name}")
        found.append(f"network.topology.{kind}.{name}={text}")
    return found


def _fields_of_base(request: ChooseRequest) -> list[str]:
    """Return what flags set of the scenario ``base``, whose links and model have other fields by what they say."""
    fields, own = [], list(request.set_ or ())
    workers = check_count(request.workers, 8, "--workers")
    if workers > MOST_SIMULATED:
        most = f"must be at most {MOST_SIMULATED:,} for a job, which is simulated, got {workers:,}"
        raise InputError(f"{most}; --parameters instead of --model asks closed forms", file="--workers")
    known = request.size()
    fields.append(f"job.scale={_scale(request, known)}")
    if request.model is not None or request.parameters is not None:
        named = str(Path(request.model).resolve()) if request.model and is_config(request.model) else request.model
        fields.append(f"job.model={json.dumps(named)}")
        fields += [] if request.parameters is None else [f"job.parameters={known}"]
    if (iterations := _iterations(request)) is not None:
        fields.append(f"job.iterations={iterations[0]}")
    per_node, inside, rate = request.nodes(workers)
    if per_node > 1:
        nodes = {
            "nodes": -(-workers // per_node),
            "gpus_per_node": per_node,
            "intra_latency": f"{inside!r} s",
            "intra_bandwidth": f"{rate!r} B/s",
            "nic_latency": f"{max(request.link('latency', 1e-3) - inside, 0.0)!r} s",
            "nic_bandwidth": f"{request.link('bandwidth', 1.25e9)!r} B/s",
        }
        fields.append(f"network.topology={json.dumps({'multi_gpu_nodes': nodes})}")
    kind = request.topology or "star"
    if kind != "star":
        part = topology_parts.Topology.parts([kind]).get(kind)
        if part is None or kind == "file":
            families = set(topology_parts.Topology.names()) - {"file"}
            raise InputError(f"there is no topology {kind!r}; {suggest_names(kind, families)}", file="--topology")
        links = {"latency": "1 ms", "bandwidth": "10 Gbit/s"}
        fields.append(f"network.topology={json.dumps({kind: links})}")
        # A name that leaves its topology out is a parameter of it, as on the line of `simnet time`.
        names = field_names(part)
        way = f"network.topology.{kind}."
        own = [f"{way}{one}" if one.partition("=")[0].partition(".")[0] in names else one for one in own]
    for name in ("latency", "bandwidth"):
        if (text := getattr(request, name)) is not None and per_node == 1:
            request.link(name)
            fields.append(f"network.topology.{kind}.{name}={text}")
    passes = options.passes(request.compute, request.batch)
    return [*fields, f"workers={workers}", *passes, *options.stack(request.stack), *own]


def _scale(request: ChooseRequest, parameters: int) -> int:
    """Return the scale at which each bucket of a model still selects whole entries."""
    layers = 1 if request.parameters is not None else len(options.model(request.model or "resnet50").layers)
    buckets = min(layers, 4 * parameters / Overlap().bucket + 2)
    density = request.fraction(0.01)
    return max(round(parameters / max(_ENTRIES, _SELECTED * buckets / density)), 1)


def device_field(request: ChooseRequest) -> list[str]:
    """Return the field of a scenario that `--device` sets, as ``--set`` does."""
    return [] if request.device is None else [f"job.device={json.dumps(request.device)}"]


def named_exchanges(request: ChooseRequest) -> tuple[Candidate, ...]:
    """Return the exchanges that are asked about; none where the usual ones are."""
    wanted = options.words(request.schemes) or []
    if wanted and (request.every or ALL in wanted):
        raise InputError("is either names or --all", file="--schemes")
    return exchanges_by_name(wanted) if wanted else ()


def scenario_overrides(request: ChooseRequest) -> list[str]:
    """Return what flags set of a scenario; refuse those that are not for one."""
    network: Mapping[str, object] = {
        "--gpus-per-node": request.gpus_per_node,
        "--inner-latency": request.inner_latency,
        "--inner-bandwidth": request.inner_bandwidth,
        "--topology": request.topology,
    }
    options.only("flags alone", False, {"--model": request.model, "--parameters": request.parameters, **network})
    workers = [f"workers={request.workers}"] if request.workers is not None else []
    passes = options.passes(request.compute, request.batch)
    return [*(request.set_ or ()), *workers, *passes, *options.stack(request.stack)]
