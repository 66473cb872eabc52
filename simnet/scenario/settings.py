"""Overrides of scenario fields: by flags such as ``--workers``, and by short keys in ``--set``.

``bandwidth`` is that of the topology at hand, ``density`` that of the job.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from simnet import topologies
from simnet.base import plugins
from simnet.base.errors import InputError, suggest_names
from simnet.base.quantities import WorkerLink, parameter_hints
from simnet.base.yaml_loader import dotted_key
from simnet.scenario import job_parts, schema
from simnet.scenario.choice_text import read_choice, refuse_bare_option
from simnet.scenario.fields import is_file
from simnet.scenario.job_parts import MEANINGLESS
from simnet.scenario.loader import Document, part_at
from simnet.scenario.marked_fields import MARKED_FIELDS, MarkedField
from simnet.scenario.named_choices import named_exchanges, parameters_of, read_network_text
from simnet.traces import trace_names
from simnet.training.parallel.plan import SHARDINGS, sharding_options

if TYPE_CHECKING:
    from simnet.scenario.scenario import Scenario

# Alter no run.
_IDLE = ("name", "description", "output")
# Hold further fields, or take the place of another.
_PARTS = ("other_jobs", "deaths", "on_death", "overlap")


def full_key(name: str, scenario: Scenario, option: str = "--set") -> str:
    """Return the full dotted key of a scenario field, given its short name; errors name `option` as their origin.

    A name that leaves parts out means the one field that fits: first of the topology and the job, then anywhere.
    ``bandwidth`` and ``latency`` are those of a worker's link, or of a node's.

    Examples
    --------
    >>> from simnet.scenario import load
    >>> scenario = load("quickstart")
    >>> full_key("network.bandwidth", scenario), full_key("density", scenario), full_key("spread", scenario)
    ('network.topology.star.bandwidth', 'job.density', 'job.compute.spread')
    >>> full_key("bandwith", scenario)
    Traceback (most recent call last):
        ...
    simnet.base.errors.InputError: --set bandwith: there is no such field in scenario 'quickstart'; did you mean 'bandwidth'? Allowed: any field in full, as --set takes it, or in short absences, bandwidth, barrier, batch, churn, deadline, density, device, device_memory, epoch, hosts, implementation, iterations, latency, memory, model, optimizer, parameters, precision, prices, scale, seed, sharding, strategy, tokens, update, workers, workers_per_device
    """  # noqa: E501
    place, name = f"{option} {name}", dotted_key(name)
    parts = name.split(".")
    if parts[0] in _IDLE:
        raise InputError("does not alter what is simulated", file=place)
    marked = {one.name: one.key for one in MARKED_FIELDS if one.key is not None}
    if name in marked and (option == "--grid" or name not in schema.Config.model_fields):
        return str(marked[name])
    known = _fields_by_path(scenario.config.model_dump(mode="json", by_alias=True))
    if name in known:
        return name
    kind = scenario.config.network.topology.choice[0]
    topology, job = f"network.topology.{kind}", "job"
    if parts[-1] in ("latency", "bandwidth") and parts[:-1] in ([], ["network"]):
        at_hand = {one.removeprefix(f"{topology}."): value for one, value in known.items()}
        return link_key(kind, at_hand, parts[-1], option, scenario.document.found(("network", "weather")))
    for scope in (topology, job):
        one = f"{scope}.{parts[-1]}"
        if one in known and _path_fits(parts, one):
            if isinstance(known[one], list | dict):
                raise InputError(f"is more than one value here; {option} {one}=... replaces all of them", file=place)
            return one
    leaves = [one for one, value in known.items() if not isinstance(value, dict) and _path_fits(parts, one)]
    own = [one for one in leaves if not one.startswith("other_jobs.")] or leaves
    fitting = [one for one in own if known[one] is not None] or own
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(f"may mean {', '.join(fitting[:8])}; write one of them", file=place)
    part = part_at(parts[:-1])
    allows = part is None or parts[-1] in part.names() or part.model_config.get("extra") == "allow"
    if len(parts) > 1 and parts[0] in schema.Config.model_fields and allows:
        # A field in full that the scenario does not have: what it may have is said where it is set.
        return name
    plain = [one.rpartition(".") for one, value in known.items() if not isinstance(value, dict | list)]
    short = sorted({last for scope, _, last in plain if scope in ("", topology, job)} - {*_IDLE, *_PARTS})
    first = schema.Config.names()
    unknown = (parts[-1], short) if len(parts) == 1 or parts[0] in first else (parts[0], first)
    close = suggest_names(*unknown).partition("Allowed: ")[0]
    listed = f"Allowed: any field in full, as --set takes it, or in short {', '.join(short)}"
    raise InputError(f"there is no such field in scenario {scenario.name!r}; {close}{listed}", file=place)


def link_key(
    kind: str, given: Mapping[str, object], quantity: str, option: str, weather: object = None, value: object = "..."
) -> str:
    """Return the scenario key of the latency or bandwidth of links between workers, for a topology of kind `kind`.

    `given` are its parameters. Raises an InputError about `option` if links come from a file or have different values;
    it says how to replace all by `value`, or to scale them by `weather`.
    """
    way = f"network.topology.{kind}"
    if kind == "file":
        # Where a file has none, as of NCCL; of others, reading says that they have.
        return f"{way}.{quantity}"
    if kind == "platform":
        raise InputError(f"is that of {way}, which says itself what its links are", file=option)
    name = worker_link(kind).get(quantity)
    if name is None:
        raise InputError(f"is no parameter of {way}; --set says what is", file=option)
    if isinstance(given.get(name), list | dict):
        scaling = _scaling_option(quantity, weather)
        said = f"is more than one value here; --set '{way}.{name}={value}' replaces all of them"
        raise InputError(f"{said}{scaling and f', {scaling} multiplies them by 0.5'}", file=option)
    return f"{way}.{name}"


def _scaling_option(quantity: str, weather: object) -> str:
    """Return an option that halves the bandwidth or latency of all links; "" if that takes several options."""
    entries = weather if isinstance(weather, list) else []
    for place, one in enumerate(entries):
        own = one.get(quantity, {}) if isinstance(one, dict) and one.get("links") == "all" else None
        if isinstance(own, dict) and "factor" not in own:
            return f"--set network.weather.{place}.{quantity}.factor=0.5"
    return "" if entries else f"--set 'network.weather=[{{links: all, {quantity}: {{factor: 0.5}}}}]'"


def worker_link(name: str) -> dict[str, str]:
    """Return what a topology family calls the latency and the bandwidth of the links between workers or nodes.

    The parameters have these names, or the builder's signature marks them with `simnet.base.quantities.WorkerLink`.

    Examples
    --------
    >>> worker_link("star"), worker_link("multi_gpu_nodes")["bandwidth"]
    ({'latency': 'latency', 'bandwidth': 'bandwidth'}, 'nic_bandwidth')
    """
    builder = topologies.FAMILIES.get(name) or plugins.load_plugin("topologies", name, lambda found: found)
    names = list(inspect.signature(builder).parameters) if callable(builder) else []
    hints = parameter_hints(builder, names) if callable(builder) else {}
    marked = [one for one in names if WorkerLink in get_args(hints.get(one))]
    fitting = {
        quantity: [one for one in marked if one.endswith(quantity)] or [one for one in names if one == quantity]
        for quantity in ("latency", "bandwidth")
    }
    return {quantity: found[0] for quantity, found in fitting.items() if found}


def _path_fits(parts: Sequence[str], path: str) -> bool:
    """Return whether `parts` occur in this order in the dotted `path`, and both end with the same part."""
    whole = path.split(".")
    if parts[-1] != whole[-1]:
        return False
    rest = iter(whole[:-1])
    return all(part in rest for part in parts[:-1])


def _fields_by_path(node: Any, path: str = "") -> dict[str, Any]:
    """Return all fields in a nested value by dotted path, including fields that contain others."""
    found = {}
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        way = f"{path}.{key}" if path else str(key)
        found[way] = value
        # Lists of numbers, such as matrices, are one value.
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value)):
            found |= _fields_by_path(value, way)
    return found


class Override(str):
    """A ``--set`` assignment, and the command-line option behind it, which error messages name."""

    option: str

    @classmethod
    def of(cls, key: str, value: object, option: str) -> Self:
        """Return an override that assigns a value to a key; a value that is not text is written as JSON."""
        made = cls(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
        made.option = option
        return made


def apply_fields(document: Document, fields: Mapping[str, object], before: Sequence[str] = ()) -> list[str]:
    """Apply the values of command-line flags (marked fields) to a document, and return the assignments made.

    If a flag replaces a field of which `before` had set a part, that part is set again.
    """
    known = {one.name: one for one in MARKED_FIELDS}
    for name in fields:
        if name not in known:
            more = f"; simnet.run(..., set={{{name!r}: ...}}) takes fields in full" if "." in name else ""
            raise InputError(f"there is no such field; {suggest_names(name, known)}{more}", field=name)
    document.open_texts()
    done: list[str] = []
    # What takes the place of other fields comes first, so that those given beside it are not lost.
    for name in sorted(known, key=lambda one: one not in _REPLACING):
        value, option = fields.get(name), f"--{name}"
        if value is None:
            continue
        try:
            settings = _SETTINGS.get(name, _plain_setting)(document, known[name], value)
        except ValueError as error:
            raise InputError(str(error), file=option) from None
        except InputError as error:
            raise error if error.file and error.file != option else InputError(error.message, file=option) from None
        for key, one in settings.items():
            done.append(Override.of(key, one, option))
            document.set(done[-1])
    replaced = tuple(f"{one.partition('=')[0]}." for one in done)
    inside = [one for one in before if one.startswith(replaced)]
    for one in inside:
        document.set(one)
    return [*done, *inside]


def _plain_setting(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    assert field.key is not None
    text = _as_text(field, value)
    cleared = _clear(document, "parameters") if field.name == "model" else {}
    return {**cleared, field.key: json.dumps(text) if field.name in _TEXTS else text}


def _as_text(field: MarkedField, value: object) -> object:
    """Return a value in scenario notation: SI numbers get their unit, NumPy numbers become Python numbers."""
    if isinstance(value, str | Path):
        return str(value)
    plain = value.tolist() if hasattr(value, "tolist") else value
    return f"{float(plain)!r} {field.unit}" if field.unit else plain  # type: ignore[arg-type]


def _clear(document: Document, *names: str) -> dict[str, object]:
    """Return assignments that reset named job fields to their defaults, for the fields that a document sets."""
    defaults = schema.Job.model_fields
    return {
        f"job.{name}": {"synthetic": {}} if name == "gradients" else defaults[name].default
        for name in names
        if document.found(("job", name)) is not None
    }


def _gradients(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    name, options = read_choice(str(value))
    kinds = job_parts.Gradients.names()
    if name not in kinds:
        name, options = "recorded", {"trace": name, **options}
    options = {key: _absolute(one, trace_names()) if key in ("trace", "like") else one for key, one in options.items()}
    layers = _clear(document, "model", "parameters") if name != "synthetic" else {}
    # The scale of the file is that of its model; recorded gradients are all there.
    if name == "recorded" and not document.is_overridden(("job", "scale")):
        layers |= _clear(document, "scale")
    return {**layers, field.key or "": {name: options}}


def _schemes(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    exchanges = named_exchanges(value)  # type: ignore[arg-type]
    return {"exchanges": exchanges, "policies": {label: {"fixed": label} for label in exchanges}}


def _sharding(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    name, options = read_choice(str(value))
    refuse_bare_option(name, SHARDINGS, sharding_options)
    beside: dict[str, object] = {name: {} for name in ("exchanges", "policies") if document.found((name,)) is not None}
    given = {"as": name}
    if is_file(name):
        given, beside = {"trace": _absolute(name)}, {**beside, **_clear(document, "model", "parameters")}
    return {**beside, **_clear(document, *MEANINGLESS), "job.sharding": {**given, **options}}


# What of a network says nothing about its links and hosts, so that another one may have it.
_KEPT = ("engine", "stack", "sharing", "routing", "on_outage", "overhead")
# Parameters of a topology that follow from the workers, and values that others may have.
_BY_WORKERS = ("hosts", "nodes")
_EXAMPLES = {
    **{"gpus_per_node": "8", "intra_latency": "2us", "intra_bandwidth": "300GB/s", "latency": "50us", "k": "4"},
    **{"bandwidth": "10Gbit/s", "nic_latency": "5us", "nic_bandwidth": "200Gbit/s", "arity": "4", "dims": "[2,4]"},
    **{"routers": "4", "sites": "2", "workers_per_site": "4"},
}


def _network(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    found = read_network_text(str(value), Path())
    if list(found) != ["topology"]:
        return {"network": found}
    ((kind, options),) = found["topology"].items()
    before: Any = document.found(("network",))
    before = before if isinstance(before, dict) else {}
    old, had = _topology_at_hand(document)
    ends = worker_link(old), worker_link(kind)
    for quantity, name in ends[1].items():
        # A worker's link stays what it was, if it was one.
        was = had.get(ends[0].get(quantity, ""))
        if name not in options and was is not None and not isinstance(was, list | dict):
            options[name] = was
    known = parameters_of(kind)
    required = (name for name, one in known.items() if one.default is one.empty)
    lacking = [name for name in required if name not in (*_BY_WORKERS, *options)]
    # What there is not is said by the check of the whole.
    if lacking and options.keys() <= known.keys():
        example = ",".join(f"{name}={_EXAMPLES.get(name, name.upper())}" for name in lacking)
        raise ValueError(f"lacks {', '.join(lacking)}; write {value}{',' if '=' in str(value) else ':'}{example}")
    return {"network": {**{name: before[name] for name in _KEPT if name in before}, **found}}


def _link(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    kind, given = _topology_at_hand(document)
    weather, text = document.found(("network", "weather")), _as_text(field, value)
    return {link_key(kind, given, field.name, f"--{field.name}", weather, text): text}


def _topology_at_hand(document: Document) -> tuple[str, dict[str, Any]]:
    """Return the kind of topology in a document, and the parameters that the document gives."""
    given = document.found(("network", "topology"))
    kind, found = next(iter(given.items())) if isinstance(given, dict) and len(given) == 1 else ("", {})
    return kind, found if isinstance(found, dict) else {}


def _absolute(name: str, known: Sequence[str] = ()) -> str:
    """Return the absolute path of a file, or of a folder whose name is not in `known`; return other names unchanged."""
    return str(Path(name).absolute()) if is_file(name) or (name not in known and Path(name).is_dir()) else name


_SETTINGS: Mapping[str, Callable[[Document, MarkedField, Any], dict[str, object]]] = {
    "gradients": _gradients,
    "schemes": _schemes,
    "sharding": _sharding,
    "network": _network,
    "bandwidth": _link,
    "latency": _link,
}
_TEXTS = ("model", "strategy", "device")
_REPLACING = ("sharding", "gradients", "network")
