"""Meaning of texts that name an exchange, such as ``artopk:collective=tree``, or a network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from simnet import sparsifier_models, topologies
from simnet.base import plugins
from simnet.base.errors import InputError, refuse_values, suggest_names
from simnet.cost_models.calibration.platform import is_platform, platform_names
from simnet.interchange.kinds import FORMATS, WITHOUT_LATENCIES, kind_of, read_network
from simnet.scenario.choice_text import choice_words, read_choice, refuse_bare_option, split_choices
from simnet.scenario.finding import find, shipped
from simnet.scenario.parts import parameter_help
from simnet.sparsifier_models.options import FROM_JOB

ALL = "all"
"""Text that stands for all schemes."""


def option_meanings(scheme: str) -> list[tuple[str, str]]:
    """Return the options of a scheme and their meanings; for the name ``any``, the options that all schemes have."""
    common = parameter_help(sparsifier_models.Options)
    if scheme == "any":
        return [*common.items()]
    classes = sparsifier_models.scheme(scheme).option_type.__mro__
    meanings = {option: text for one in reversed(classes) for option, text in parameter_help(one).items()}
    return [(option, text) for option, text in meanings.items() if option not in {*common, *FROM_JOB}]


def named_exchanges(names: str | Sequence[str], folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Convert texts such as ``artopk:collective=tree`` to the scenario's exchanges, a mapping by label.

    A name is a scheme, as ``topk``; one with options, as ``artopk:collective=tree:selection=var``; a class in a file,
    as ``./my_scheme.py:Rotating``; or `ALL`. Whether a scheme has the options is not looked at.

    Raises
    ------
    ValueError
        If there is no such scheme, an option is given twice or without its name, or two classes have one name.

    Examples
    --------
    >>> named_exchanges(["dense", "artopk:collective=tree:selection=var"])["artopk:collective=tree:selection=var"]
    {'scheme': 'artopk', 'collective': 'tree', 'selection': 'var'}
    """
    found: dict[str, dict[str, Any]] = {}
    wanted = dict.fromkeys(split_choices(names))
    for name in sparsifier_models.names() if ALL in wanted else wanted:
        scheme, options = read_choice(name)
        refuse_bare_option(scheme, sparsifier_models.names(), sparsifier_models.own_options)
        placed = plugins.absolute_name(scheme, folder or Path())
        made = sparsifier_models.scheme(placed)
        if plugins.names_file(scheme):
            # A class of somebody's own may have the name of what it derives from.
            scheme = made.name if "name" in vars(made) else scheme.rpartition(":")[2]
        label = ":".join([scheme, *choice_words(name)[1:]])
        if label in found:
            raise ValueError(f"names {label!r} twice, by {found[label]['scheme']} and {placed}")
        found[label] = {"scheme": placed, **options}
    return found


def parameters_of(topology: str) -> Mapping[str, Parameter]:
    """Return the parameters of a topology family by name; empty for an unknown family."""
    builder = topologies.FAMILIES.get(topology)
    return {} if builder is None else signature(builder).parameters


def read_network_text(text: str, folder: Path) -> dict[str, Any]:
    """Convert the name or file of a network to the scenario field ``network``; relative paths start at `folder`.

    Raises
    ------
    InputError
        If it is neither the name of a topology, platform or scenario, nor a file that describes a network.

    Examples
    --------
    >>> read_network_text("fat_tree:k=8,latency=1 us", Path())
    {'topology': {'fat_tree': {'k': 8, 'latency': '1 us'}}}
    """
    kind, name, options = _recognised(text, folder)
    if kind == "scenario":
        from simnet.scenario.scenario import network_written

        return network_written(name)
    named = {"platform": {"path": name}, "file": {"path": name}}
    return {"topology": {kind: {**named[kind], **options}} if kind in named else {name: options}}


def network_taken_for(text: str, folder: Path | None = None, hosts: int | None = None) -> str:
    """Return a phrase that says what the value of ``--network`` names, such as a topology, with its number of hosts.

    Examples
    --------
    >>> network_taken_for("fat_tree:k=8"), network_taken_for("dgx-h100")
    ('the topology fat_tree', 'the platform dgx-h100')
    """
    kind, name, options = _recognised(text, folder or Path())
    if kind == "scenario":
        return f"the network of the scenario {Path(name).stem}"
    if kind != "file":
        return f"the {kind} {name if Path(name).suffix == '' else Path(name).name}"
    found: Any = options.get("format") or kind_of(name)
    if hosts is None:
        latency = 0.0 if found in WITHOUT_LATENCIES else None
        hosts = read_network(name, found, nodes=options.get("nodes"), latency=latency).graph.graph["hosts"]
    return f"read as {FORMATS[str(found)]}, {hosts:,} hosts"


def _recognised(text: str, folder: Path) -> tuple[str, str, dict[str, Any]]:
    """Return what a network text names (topology, platform, file or scenario), the name, and the options."""
    with refuse_values(file=text):
        name, options = read_choice(text)
    if name in topologies.names():
        return "topology", name, options
    refuse_bare_option(name, topologies.names(), parameters_of)
    file = (folder / name).absolute()
    # Not Path.is_file or Path.is_dir, which raise OSError for a name that is too long.
    if os.path.isfile(file):  # noqa: PTH113
        kind = kind_of(file)
        if kind is None and is_platform(file):
            return "platform", str(file), options
        return "scenario" if kind is None and file.suffix in (".yaml", ".yml") else "file", str(file), options
    if name in platform_names():
        return "platform", name, options
    if name in shipped():
        return "scenario", str(find(name)), options
    if os.path.isdir(file):  # noqa: PTH112
        raise InputError(f"is a folder; simnet calibrate {name} -o fabric.yaml makes a network of logs", file=name)
    close = suggest_names(name, [*topologies.names(), *platform_names(), *shipped()]).partition("Allowed: ")[0]
    listed = f"{close}Allowed: {', '.join(topologies.names())}, platforms and scenarios of `simnet list`"
    raise InputError(f"there is no such file, and no topology, platform or scenario {name!r}; {listed}")
