"""Marked fields: the fields of a scenario that are flags of every verb, and keywords of every function.

`MARKED_FIELDS` is the table of them, `overrides_of` turns their values into what ``--set`` takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypedDict

from simnet.base import plugins
from simnet.base.errors import InputError, suggest_names
from simnet.cost_models.costs.models import is_config
from simnet.scenario import gradient_parts, schema
from simnet.scenario.choice_text import read_choice
from simnet.scenario.fields import is_file
from simnet.scenario.loader import Document
from simnet.scenario.named_exchanges import named_exchanges
from simnet.scenario.network_choice import read_network_text
from simnet.scenario.sharding_parts import MEANINGLESS
from simnet.scenario.short_keys import link_key, worker_link
from simnet.traces import trace_names


class MarkedField(NamedTuple):
    """A field that is a flag: its name, its key in a scenario, and how people write it.

    Parameters
    ----------
    name, key : str
        Of the flag, and of the field that it sets; None where that depends on the scenario.
    metavar, panel, help : str
        What stands for a value, the group in help, and a line about it.
    unit : str
        Of a value that is a number.
    """

    name: str
    key: str | None
    metavar: str
    panel: Literal["Workload", "Network"]
    help: str
    unit: str = ""


MARKED_FIELDS = (
    MarkedField("workers", "workers", "N", "Workload", "Ranks that exchange gradients, one per GPU."),
    MarkedField(
        "model", "job.model", "NAME|SIZE|FILE", "Workload", "A known model, a size such as 7B, or a config.json."
    ),
    MarkedField(
        "gradients", "job.gradients", "KIND|TRACE", "Workload",
        "A recorded trace, train, or synthetic:like=digits.",
    ),
    MarkedField("density", "job.density", "1%", "Workload", "Fraction of the entries that a worker keeps."),
    MarkedField(
        "schemes", None, "A,B:OPTION=VALUE", "Workload", "These exchanges, or all, in place of those of the scenario."
    ),
    MarkedField(
        "strategy", "job.strategy", "NAME:OPTION=VALUE", "Workload",
        "How workers train between exchanges, as diloco:period=100.",
    ),
    MarkedField(
        "sharding", "job.sharding", "NAME:OPTION=VALUE", "Workload",
        "How the model is shared between workers, as fsdp2; in place of exchanges.",
    ),
    MarkedField(
        "compute", "job.compute.mean", "TIME", "Workload", "Forward and backward pass of an iteration.", "s"
    ),
    MarkedField(
        "network", None, "NAME|FILE", "Network",
        "A topology, as fat_tree:k=8; a platform, as dgx-h100; a file; or a scenario's.",
    ),
    MarkedField("bandwidth", None, "RATE", "Network", "Of a worker's link, or a node's, in one direction.", "B/s"),
    MarkedField("latency", None, "TIME", "Network", "Of a worker's link, or a node's, one way.", "s"),
    MarkedField("stack", "network.stack", "NAME", "Network", "How messages are sent, as gloo."),
    MarkedField("device", "job.device", "NAME|FILE", "Workload", "What computes and selects, as h100-torch2.6."),
    MarkedField(
        "memory", "job.device_memory", "SIZE|device", "Workload", "What a worker's device holds, as 80GB.", "B"
    ),
    MarkedField("seed", "seed", "N", "Workload", "Decides everything random."),
)  # fmt: skip
"""The marked fields, in the order of help."""


class FieldsButSeed(TypedDict, total=False):
    """The marked fields but the seed; see `Fields`."""

    workers: int | None
    model: str | int | Path | None
    gradients: str | Path | None
    density: float | str | None
    schemes: str | Sequence[str] | None
    strategy: str | None
    sharding: str | None
    compute: float | str | None
    network: str | Path | None
    bandwidth: float | str | None
    latency: float | str | None
    stack: str | None
    device: str | Path | None
    memory: float | str | None


class Fields(FieldsButSeed, total=False):
    """Values of marked fields: text as in a scenario, or numbers in SI units; None where not given."""

    seed: int | None


class Override(str):
    """A field with its value, as ``--set`` takes it; errors name the option that it comes from."""

    option: str

    @classmethod
    def of(cls, key: str, value: object, option: str) -> Self:
        """Return an override; a text stands as it is, another value as JSON."""
        made = cls(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
        made.option = option
        return made


def overrides_of(source: str | Path, fields: Mapping[str, object], overrides: Sequence[str] = ()) -> list[str]:
    """Return the values of marked fields as ``--set`` takes them for a scenario.

    Parameters
    ----------
    source : str or Path
        The scenario, as of `simnet.scenario.load`.
    fields : mapping of str to value
        By the names of `MARKED_FIELDS`: text with units, or numbers in SI units; None where not given. Names of files
        start at the working directory.
    overrides : sequence of str
        What ``--set`` sets before.

    Raises
    ------
    InputError
        If there is no such field, or the scenario cannot have this value there.

    Examples
    --------
    >>> overrides_of("quickstart", {"density": "1%", "bandwidth": 1.25e8, "latency": None})
    ['job.density=1%', 'network.topology.star.bandwidth=125000000.0 B/s']
    """
    from simnet.scenario.scenario import read_with

    return list(apply_fields(read_with(source, overrides), fields))


def apply_fields(document: Document, fields: Mapping[str, object]) -> list[Override]:
    """Set marked fields of a document, and return what was set; see `overrides_of`."""
    known = {one.name: one for one in MARKED_FIELDS}
    for name in fields:
        if name not in known:
            raise InputError(f"there is no such field; {suggest_names(name, known)}", field=name)
    document.open_texts()
    done: list[Override] = []
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
    return done


def _plain_setting(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    assert field.key is not None
    return {field.key: _as_text(field, value)}


def _as_text(field: MarkedField, value: object) -> object:
    """Return a value as a scenario has it: a number in SI units gets its unit, numbers of NumPy become Python's."""
    if isinstance(value, str | Path):
        return str(value)
    plain = value.tolist() if hasattr(value, "tolist") else value
    return f"{float(plain)!r} {field.unit}" if field.unit else plain  # type: ignore[arg-type]


def _clear(document: Document, *names: str) -> dict[str, object]:
    """Return what takes fields of the job away, of those that are there."""
    defaults = schema.Job.model_fields
    return {
        f"job.{name}": {"synthetic": {}} if name == "gradients" else defaults[name].default
        for name in names
        if document.found(("job", name)) is not None
    }


def _model(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    text = str(value)
    named = json.dumps(str(Path(text).absolute())) if is_config(text) else text
    return {**_clear(document, "parameters"), "job.model": named}


def _density(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    return {"job.density": _as_text(field, value), **_clear(document, "compression_ratio")}


def _gradients(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    name, options = read_choice(str(value))
    kinds = gradient_parts.Gradients.names()
    if name not in kinds:
        name, options = "recorded", {"trace": name, **options}
    options = {key: _absolute(one, trace_names()) if key in ("trace", "like") else one for key, one in options.items()}
    if str(options.get("trace")).endswith(".npz"):
        raise ValueError(
            f"is an archive: simnet convert {value} TRACE makes a trace of it, a folder that --gradients takes"
        )
    layers = _clear(document, "model", "parameters") if name != "synthetic" else {}
    return {**layers, field.key or "": {name: options}}


def _schemes(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    found = named_exchanges(value)  # type: ignore[arg-type]
    exchanges = {one.label: {"scheme": one.scheme, **one.options} for one in found}
    return {"exchanges": exchanges, "policies": {label: {"fixed": label} for label in exchanges}}


def _strategy(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    name, options = read_choice(str(value))
    return {"job.strategy": {"name": plugins.absolute_name(name, Path()), **options}}


def _sharding(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    name, options = read_choice(str(value))
    beside: dict[str, object] = {name: {} for name in ("exchanges", "policies") if document.found((name,)) is not None}
    given = {"as": name}
    if is_file(name):
        given, beside = {"trace": _absolute(name)}, {**beside, **_clear(document, "model", "parameters")}
    return {**beside, **_clear(document, *MEANINGLESS), "job.sharding": {**given, **options}}


def _device(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    return {"job.device": json.dumps(_absolute(str(value)))}


# What of a network says nothing about its links and hosts, so that another one may have it.
_KEPT = ("engine", "stack", "sharing", "routing", "on_outage", "overhead")


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
    return {"network": {**{name: before[name] for name in _KEPT if name in before}, **found}}


def _link(document: Document, field: MarkedField, value: object) -> dict[str, object]:
    kind, given = _topology_at_hand(document)
    return {link_key(kind, given, field.name, f"--{field.name}"): _as_text(field, value)}


def _topology_at_hand(document: Document) -> tuple[str, dict[str, Any]]:
    """Return the topology of a document and its parameters, as far as they are written there."""
    given = document.found(("network", "topology"))
    kind, found = next(iter(given.items())) if isinstance(given, dict) and len(given) == 1 else ("", {})
    return kind, found if isinstance(found, dict) else {}


def _absolute(name: str, known: Sequence[str] = ()) -> str:
    """Return the name of a file, or of a folder that is no known name, with the folder where the user stands."""
    return str(Path(name).absolute()) if is_file(name) or (name not in known and Path(name).is_dir()) else name


_SETTINGS: Mapping[str, Callable[[Document, MarkedField, Any], dict[str, object]]] = {
    "model": _model,
    "gradients": _gradients,
    "density": _density,
    "schemes": _schemes,
    "strategy": _strategy,
    "sharding": _sharding,
    "network": _network,
    "bandwidth": _link,
    "latency": _link,
    "device": _device,
}
_REPLACING = ("sharding", "gradients", "network")
