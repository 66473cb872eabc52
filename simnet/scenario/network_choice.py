"""What the text of a network stands for: a topology with options, a platform, a file of any kind, or a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simnet import topologies
from simnet.base.errors import InputError, suggest_names
from simnet.interchange.kinds import FORMATS, kind_of, read_network
from simnet.scenario.choice_text import read_choice
from simnet.scenario.finding import find, shipped


def read_network_text(text: str, folder: Path) -> dict[str, Any]:
    """Return the field ``network`` that a text stands for; names of files start at `folder`, and are absolute after.

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
        from simnet.scenario.scenario import load

        found: dict[str, Any] = load(name).written()["network"]
        return found
    named = {"platform": {"path": name}, "file": {"path": name}}
    return {"topology": {kind: {**named[kind], **options}} if kind in named else {name: options}}


def network_taken_for(text: str, folder: Path | None = None) -> str:
    """Return what the text of a network is taken for, and of a file how many hosts it has.

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
    latency = 0.0 if "latency" in options else None
    read = read_network(name, options.get("format"), nodes=options.get("nodes"), latency=latency)
    return f"read as {FORMATS[str(read.kind)]}, {read.graph.graph['hosts']:,} hosts"


def _recognised(text: str, folder: Path) -> tuple[str, str, dict[str, Any]]:
    """Return the kind of a network (topology, platform, file or scenario), its name or file, and its options."""
    from simnet.cost_models.calibration.platform import is_platform, platform_names

    try:
        name, options = read_choice(text)
    except ValueError as error:
        raise InputError(str(error), file=text) from None
    if name in topologies.names():
        return "topology", name, options
    file = (folder / name).absolute()
    if file.is_file():
        kind = kind_of(file)
        if kind is None and is_platform(file):
            return "platform", str(file), options
        return "scenario" if kind is None and file.suffix in (".yaml", ".yml") else "file", str(file), options
    if name in platform_names():
        return "platform", name, options
    if name in shipped():
        return "scenario", str(find(name)), options
    close = suggest_names(name, [*topologies.names(), *platform_names(), *shipped()]).partition("Allowed: ")[0]
    listed = f"{close}Allowed: {', '.join(topologies.names())}, platforms and scenarios of `simnet list`"
    raise InputError(f"there is no such file, and no topology, platform or scenario {name!r}; {listed}")
