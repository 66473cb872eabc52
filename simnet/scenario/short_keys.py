"""Short names of fields: ``bandwidth`` is that of the topology at hand, ``density`` that of the job."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args

from simnet import topologies
from simnet.base import plugins
from simnet.base.errors import InputError, suggest_names
from simnet.base.quantities import WorkerLink, parameter_hints
from simnet.scenario import schema

if TYPE_CHECKING:
    from simnet.scenario.scenario import Scenario

# Alter no run.
_IDLE = ("name", "description", "output")
# Hold further fields, or take the place of another.
_PARTS = ("other_jobs", "deaths", "on_death", "overlap")


def full_key(name: str, scenario: Scenario, option: str = "--set") -> str:
    """Return the field of a scenario that a name means, dotted as ``--set`` takes it; `option` is for the InputError.

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
    simnet.base.errors.InputError: --set bandwith: there is no such field in scenario 'quickstart'; did you mean 'bandwidth'? Allowed: any field in full, as --set takes it, or in short absences, bandwidth, barrier, batch, churn, compression_ratio, deadline, density, device, device_memory, epoch, hosts, iterations, latency, memory, model, optimizer, parameters, precision, prices, scale, seed, sharding, strategy, tokens, update, workers, workers_per_device
    """  # noqa: E501
    place = f"{option} {name}"
    parts = name.split(".")
    if parts[0] in _IDLE:
        raise InputError("does not alter what is simulated", file=place)
    if parts[-1] in ("density", "compression_ratio") and parts[:-1] in ([], ["job"]):
        # They mean the same, and a scenario may hold one of them.
        ratio = scenario.document.found(("job", "compression_ratio")) is not None
        return "job.compression_ratio" if ratio else "job.density"
    # They import this module.
    from simnet.scenario.marked_fields import MARKED_FIELDS

    marked = {one.name: one.key for one in MARKED_FIELDS if one.key is not None}
    if name in marked and name not in schema.Config.model_fields:
        return str(marked[name])
    known = _fields_by_path(scenario.config.model_dump(mode="json", by_alias=True))
    if name in known:
        return name
    kind = scenario.config.network.topology.choice[0]
    topology, job = f"network.topology.{kind}", "job"
    if parts[-1] in ("latency", "bandwidth") and parts[:-1] in ([], ["network"]):
        at_hand = {one.removeprefix(f"{topology}."): value for one, value in known.items()}
        return link_key(kind, at_hand, parts[-1], option)
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
    if len(parts) > 1 and parts[0] in schema.Config.model_fields and (parts[-1] in _field_names() or _is_free(parts)):
        # A field in full that the scenario does not have: what it may have is said where it is set.
        return name
    plain = [one.rpartition(".") for one, value in known.items() if not isinstance(value, dict | list)]
    short = sorted({last for scope, _, last in plain if scope in ("", topology, job)} - {*_IDLE, *_PARTS})
    first = schema.Config.names()
    unknown = (parts[-1], short) if len(parts) == 1 or parts[0] in first else (parts[0], first)
    close = suggest_names(*unknown).partition("Allowed: ")[0]
    listed = f"Allowed: any field in full, as --set takes it, or in short {', '.join(short)}"
    raise InputError(f"there is no such field in scenario {scenario.name!r}; {close}{listed}", file=place)


def link_key(kind: str, given: Mapping[str, object], quantity: str, option: str) -> str:
    """Return the field that is the latency or bandwidth of a worker's link, or a node's, in a topology.

    Parameters
    ----------
    kind, given : str, mapping
        The topology, and its parameters.
    quantity : str
        ``latency`` or ``bandwidth``.
    option : str
        Who asks, for the InputError: of links that a file has, or of a value for each link.
    """
    way = f"network.topology.{kind}"
    if kind in ("file", "platform"):
        raise InputError(f"is that of {way}, which says itself what its links are", file=option)
    name = worker_link(str(given["name"]) if kind == "registered" else kind).get(quantity)
    if name is None:
        raise InputError(f"is no parameter of {way}; --set says what is", file=option)
    if isinstance(given.get(name), list | dict):
        said = f"is more than one value here, {way}.{name}; --set {way}.{name}=... replaces all of them"
        raise InputError(said, file=option)
    return f"{way}.{name}"


def worker_link(name: str) -> dict[str, str]:
    """Return which parameters of a family are the latency and bandwidth of a worker's link, or of a node's.

    They are called so, or marked in the signature of the builder by `simnet.base.quantities.WorkerLink`.

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
    """Whether some parts of the path of a field, with the last, name it."""
    whole = path.split(".")
    if parts[-1] != whole[-1]:
        return False
    rest = iter(whole[:-1])
    return all(part in rest for part in parts[:-1])


def _is_free(parts: Sequence[str]) -> bool:
    """Whether a field is below one with free names, as options of schemes."""
    named = {"registered", "slow", "sharding"}
    return parts[0] not in ("network", "job") or parts[-1].isdigit() or bool(named & set(parts))


@lru_cache(maxsize=1)
def _field_names() -> frozenset[str]:
    """Return the names of all fields that a scenario can have."""
    parts = schema.Config.model_json_schema(by_alias=True)
    return frozenset(name for part in (parts, *parts["$defs"].values()) for name in part.get("properties", ()))


def _fields_by_path(node: Any, path: str = "") -> dict[str, Any]:
    """Return all fields by their path, with those that hold others."""
    found = {}
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        way = f"{path}.{key}" if path else str(key)
        found[way] = value
        # Lists of numbers, such as matrices, are one value.
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value)):
            found |= _fields_by_path(value, way)
    return found
