"""What flags of `simnet choose` say, and the job that they describe: fields of the scenario ``base``, or of another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simnet.base import units
from simnet.base.errors import InputError, suggest_names
from simnet.costs.models import is_config
from simnet.job import Overlap
from simnet.policies import Candidate
from simnet.scenario import Scenario, load, topology_parts
from simnet.scenario.parts import field_names
from simnet.studies import options
from simnet.studies.choosing import inputs
from simnet.studies.choosing.choices import follows_gradients
from simnet.studies.variants import ALL, variants

# Entries that the scenario base has of a gradient, those of resnet50 at its scale, and those that a bucket selects.
_ENTRIES, _SELECTED = 25_557, 10
# From so many parameters on, whose buckets are hundreds, one iteration is simulated.
_LARGE = 10**9


@dataclass(frozen=True)
class Flags:
    """What flags say, as they are written; None where they say nothing. The command describes each."""

    scenario: str | Path | None = None
    workers: int | None = None
    model: str | None = None
    parameters: int | str | None = None
    density: str | None = None
    compute: str | None = None
    batch: int | None = None
    latency: str | None = None
    bandwidth: str | None = None
    gpus_per_node: int | None = None
    inner_latency: str | None = None
    inner_bandwidth: str | None = None
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


def job_of(flags: Flags, more: Sequence[str] = ()) -> Scenario:
    """Return the scenario that is asked about, with what flags set of it, and further fields."""
    return load(flags.source, [*fields_of_job(flags), *more], flags.seed)


def assumptions_of(flags: Flags, loaded: Scenario) -> list[str]:
    """Return what a job from flags assumes; nothing where there is a scenario."""
    if flags.scenario is not None:
        return []
    where = ("network", "topology", loaded.config.network.topology.choice[0])
    fields = {
        "workers": (flags.workers, ("workers",)),
        "model": (flags.model or flags.parameters, ("job", "model")),
        "latency": (flags.latency or flags.gpus_per_node, (*where, "latency")),
        "bandwidth": (flags.bandwidth or flags.gpus_per_node, (*where, "bandwidth")),
        "density": (flags.density, ("job", "density")),
        "iterations": (_iterations(flags), ("job", "iterations")),
    }
    own = {one.partition("=")[0].strip() for one in flags.set_ or ()}
    left = {name: way for name, (given, way) in fields.items() if given is None and ".".join(way) not in own}
    said = [f"{name}={value}" for name, way in left.items() if (value := loaded.document.found(way)) is not None]
    found = [f"Assumed, as in the scenario base: {', '.join(said)}."] if said else []
    if (iterations := _iterations(flags)) is not None and "job.iterations" not in own:
        found.append(f"Assumed: {iterations[0]} iteration{'s' * (iterations[0] > 1)}, {iterations[1]}.")
    return found


def _iterations(flags: Flags) -> tuple[int, str] | None:
    """Return how many iterations a job from flags has, and why; None for those of the scenario ``base``."""
    if flags.every or any(map(follows_gradients, named_exchanges(flags))):
        return 300, "as in the scenario compare, in which thresholds settle"
    if inputs.parameters(flags.model, options.parameters(flags.parameters)) > _LARGE:
        return 1, "as the buckets of so large a model are many"
    return None


def fields_of_job(flags: Flags) -> list[str]:
    """Return what flags set of the scenario whose job is asked about."""
    fields = _fields_of_base(flags) if flags.scenario is None else [*scenario_overrides(flags), *_links(flags)]
    if flags.density is not None:
        fields += [f"job.density={options.density(flags.density)!r}", "job.compression_ratio=null"]
    return [*fields, *device_field(flags), *options.memory(flags.memory)]


def _links(flags: Flags) -> list[str]:
    """Return what `--latency` and `--bandwidth` set: parameters of these names of the topology of a scenario."""
    given = {"latency": flags.latency, "bandwidth": flags.bandwidth}
    if not any(given.values()):
        return []
    kind, part = load(flags.source, scenario_overrides(flags), flags.seed).config.network.topology.choice
    names, found = field_names(type(part)), []
    for name, text in given.items():
        if text is not None:
            _link(text, name)
            if name not in names:
                close = [f"network.topology.{kind}.{one}" for one in names if one.endswith(name)]
                way = f"; --set {' or '.join(close)} says it" if close else ""
                raise InputError(f"is no parameter of the topology {kind}{way}", file=f"--{name}")
            found.append(f"network.topology.{kind}.{name}={text}")
    return found


def _link(text: str | None, name: str, default: float = 0.0) -> float:
    """Return the latency [s] or bandwidth [byte/s] that an option of this name gives."""
    option = f"--{name.replace('_', '-')}"
    read = units.seconds if name.endswith("latency") else units.bandwidth
    return inputs.link(options.quantity(text, option, read), default, option)


def _fields_of_base(flags: Flags) -> list[str]:
    """Return what flags set of the scenario ``base``, whose links and model have other fields by what they say."""
    fields, own = [], list(flags.set_ or ())
    workers = inputs.count(flags.workers, 8, "--workers")
    if workers > inputs.MOST_SIMULATED:
        most = f"must be at most {inputs.MOST_SIMULATED:,} for a job, which is simulated, got {workers:,}"
        raise InputError(f"{most}; --parameters instead of --model asks closed forms", file="--workers")
    known = inputs.parameters(flags.model, options.parameters(flags.parameters))
    fields.append(f"job.scale={_scale(flags, known)}")
    if flags.model is not None or flags.parameters is not None:
        named = str(Path(flags.model).resolve()) if flags.model and is_config(flags.model) else flags.model
        fields.append(f"job.model={json.dumps(named)}")
        fields += [] if flags.parameters is None else [f"job.parameters={known}"]
    if (iterations := _iterations(flags)) is not None:
        fields.append(f"job.iterations={iterations[0]}")
    per_node = inputs.count(flags.gpus_per_node, 1, "--gpus-per-node")
    inner = {name: getattr(flags, name) for name in ("inner_latency", "inner_bandwidth")}
    if per_node > 1:
        fields.append(f"network.topology={json.dumps({'multi_gpu_nodes': _nodes(flags, workers, per_node)})}")
    elif any(inner.values()):
        raise InputError("is only for --gpus-per-node above 1", file="--inner-latency or --inner-bandwidth")
    kind = flags.topology or "star"
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
        if (text := getattr(flags, name)) is not None and per_node == 1:
            _link(text, name)
            fields.append(f"network.topology.{kind}.{name}={text}")
    passes = options.passes(flags.compute, flags.batch)
    return [*fields, f"workers={workers}", *passes, *options.stack(flags.stack), *own]


def _scale(flags: Flags, parameters: int) -> int:
    """Return the scale at which each bucket of a model still selects whole entries."""
    layers = 1 if flags.parameters is not None else len(options.model(flags.model or "resnet50").layers)
    buckets = min(layers, 4 * parameters / Overlap().bucket + 2)
    density = 0.01 if flags.density is None else options.density(flags.density)
    return max(round(parameters / max(_ENTRIES, _SELECTED * buckets / density)), 1)


def _nodes(flags: Flags, workers: int, per_node: int) -> dict[str, object]:
    """Return the nodes whose workers share one card each."""
    if flags.topology is not None:
        said = f"is not for --topology, whose hosts have one worker each, got {per_node}"
        raise InputError(said, file="--gpus-per-node")
    if workers % per_node and per_node < workers:
        raise InputError(f"must divide the {workers} workers, got {per_node}", file="--gpus-per-node")
    inside = _link(flags.inner_latency, "inner_latency", 5e-6)
    card = max(_link(flags.latency, "latency", 1e-3) - inside, 0.0)
    return {
        "nodes": -(-workers // per_node),
        "gpus_per_node": per_node,
        "intra_latency": f"{inside!r} s",
        "intra_bandwidth": f"{_link(flags.inner_bandwidth, 'inner_bandwidth', 1e11)!r} B/s",
        "nic_latency": f"{card!r} s",
        "nic_bandwidth": f"{_link(flags.bandwidth, 'bandwidth', 1.25e9)!r} B/s",
    }


def device_field(flags: Flags) -> list[str]:
    """Return the field of a scenario that `--device` sets, as ``--set`` does."""
    return [] if flags.device is None else [f"job.device={json.dumps(flags.device)}"]


def named_exchanges(flags: Flags) -> tuple[Candidate, ...]:
    """Return the exchanges that are asked about; none where the usual ones are."""
    wanted = options.words(flags.schemes) or []
    if wanted and (flags.every or ALL in wanted):
        raise InputError("is either names or --all", file="--schemes")
    return variants(wanted) if wanted else ()


def scenario_overrides(flags: Flags) -> list[str]:
    """Return what flags set of a scenario; refuse those that are not for one."""
    network: Mapping[str, object] = {
        "--gpus-per-node": flags.gpus_per_node,
        "--inner-latency": flags.inner_latency,
        "--inner-bandwidth": flags.inner_bandwidth,
        "--topology": flags.topology,
    }
    options.only("flags alone", False, {"--model": flags.model, "--parameters": flags.parameters, **network})
    workers = [f"workers={flags.workers}"] if flags.workers is not None else []
    passes = options.passes(flags.compute, flags.batch)
    return [*(flags.set_ or ()), *workers, *passes, *options.stack(flags.stack)]
