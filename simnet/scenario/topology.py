"""Construction of the link graph and transport stack from the topology of a scenario."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simnet.base import plugins
from simnet.base.errors import InputError
from simnet.base.reading import read_text
from simnet.interchange.kinds import NetworkRead
from simnet.scenario import topology_parts
from simnet.topologies.graphs import check_graph

if TYPE_CHECKING:
    import networkx as nx

    from simnet.network import Stack
    from simnet.scenario.parts import Part
    from simnet.scenario.topology_parts import Topology

# As of the file of a calibrated cluster.
_MOST_BYTES = 2 * 2**20


def build_topology(given: Topology, folder: Path) -> NetworkRead:
    """Return the network that a topology describes. ValueError or InputError: invalid options or file."""
    part = given.choice[1]
    if isinstance(part, topology_parts.TopologyFile):
        return NetworkRead(*part.build(path=folder / part.arguments()["path"]))
    if isinstance(part, topology_parts.PlatformNodes):
        return NetworkRead(part.build(path=part.source(folder)), {})
    if not isinstance(part, topology_parts.WanOfClusters):
        return NetworkRead(_with_hosts(part), {})
    sites = {}
    for name, site in part.sites.items():
        try:
            sites[name] = _with_hosts(site.choice[1])
        except ValueError as error:
            raise ValueError(f"site {name}: {error}") from None
    return NetworkRead(part.build(sites=sites), {})


def sending(
    given: Topology, read: NetworkRead, folder: Path, stack: str | Stack | None
) -> tuple[nx.DiGraph[Any], dict[str, Any]]:
    """Return a topology's link graph, and the transport-stack options of `Network`.

    A calibrated cluster, or a platform, brings its software, unless another stack is given. InputError: its file is
    wrong.
    """
    if stack is not None:
        return read.graph, {"stack": stack}
    part, file = given.choice[1], cluster_file(given)
    # Calibration takes long to import.
    if isinstance(part, topology_parts.PlatformNodes):
        from simnet.cost_models.calibration.cost_model import specified_cost_model
        from simnet.cost_models.calibration.platform import load_platform
        from simnet.cost_models.calibration.software import CalibratedSoftware

        described = load_platform(part.source(folder))
        model, file = specified_cost_model(described), part.path
        model.network = {"multi_gpu_nodes": {"gpus_per_node": described.devices_per_node}}
    elif read.kind != "fabric" or file is None:
        return read.graph, {}
    else:
        from simnet.cost_models.calibration.cost_model_file import has_curves, load_cost_model
        from simnet.cost_models.calibration.software import CalibratedSoftware

        if not has_curves(folder / file):
            return read.graph, {}
        model = load_cost_model(folder / file)
    software = CalibratedSoftware(model, read.graph, Path(file).name)
    return software.graph, {"stack": software.stack, "software": software}


def platform_chip(given: Topology, folder: Path) -> str:
    """Return the chip of a platform's devices; "" of other topologies, or if it is not known."""
    part = given.choice[1]
    if not isinstance(part, topology_parts.PlatformNodes):
        return ""
    # Calibration takes long to import.
    from simnet.cost_models.calibration.platform import load_platform

    return load_platform(part.source(folder)).chip


def cluster_file(given: Topology) -> str | None:
    """Return a topology's file name; None if the topology has no file."""
    part = given.choice[1]
    return str(part.arguments()["path"]) if isinstance(part, topology_parts.TopologyFile) else None


def calibrated_stack(given: Topology, folder: Path) -> str | None:
    """Return the transport stack that a topology file names; None if it names none."""
    file = cluster_file(given)
    if file is None or Path(file).suffix not in (".yaml", ".yml"):
        return None
    found: dict[str, str] = {}
    with suppress(InputError):
        for line in read_text(folder / file, _MOST_BYTES).splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key, value.strip().strip("'"))
    return (found.get("curves", "[]") != "[]" and found.get("stack")) or None


def _with_hosts(part: Part) -> nx.DiGraph[Any]:
    """Return the graph of a part with its attribute ``hosts`` set."""
    graph: nx.DiGraph[Any] = part.build()
    if not hasattr(graph, "graph"):
        raise plugins.return_error(part.function, graph, "a networkx.DiGraph")
    if "hosts" not in graph.graph:
        hosts = check_graph(graph)
        graph.graph["hosts"] = hosts
    return graph
