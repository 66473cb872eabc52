"""Topology of a scenario (a family, a file or a registered topology), and its link graph and transport stack."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SerializeAsAny

from simnet import topologies
from simnet.base import plugins
from simnet.base.errors import InputError
from simnet.base.file_io import read_text
from simnet.base.quantities import MOST_RATE, Count
from simnet.cost_models.calibration.platform import Platform, load_platform
from simnet.interchange.kinds import NetworkRead, read_network
from simnet.scenario.fields import NameOrFile
from simnet.scenario.parts import Named, OneOf, Part, Target, configures, kinds, part_of
from simnet.topologies.graphs import Graph, check_graph

if TYPE_CHECKING:
    from simnet.network import Stack


@configures(topologies.wan)
class Wan(Part):
    """Workers at several sites; `latency` and `bandwidth` are one value, or a matrix with a row per site of origin."""

    # Lock files have these two first.


class OnHosts(OneOf):
    """Topology that has one host per worker by default."""

    registry = "topologies"

    @classmethod
    def derived(cls, target: Target, name: str | None = None) -> type[Part]:
        """Return the part class of a topology family, with a field for each parameter of its builder."""
        optional = (("hosts", "one per worker"), ("nodes", "as many as hold the workers"))
        return part_of(target, name, optional=optional)


_FAMILIES = {name: one for name, one in topologies.FAMILIES.items() if not name.startswith("wan")}


@kinds(**_FAMILIES)
class Cluster(OnHosts):
    """Topology of one site in a network of several sites."""

    def _check(self) -> None:
        super()._check()
        kind, part = self.choice
        for name in ("hosts", "nodes"):
            if getattr(part, name, 1) is None:
                said = "only a topology without sites has a default, by the number of workers"
                raise ValueError(f"needs {kind}.{name}: {said}")


@configures(topologies.wan_of_clusters)
class WanOfClusters(Part):
    """Clusters joined by border routers; `latency` and `bandwidth` between sites are numbers or matrices.

    sites: topologies by the names of sites
    """

    sites: Annotated[dict[str, SerializeAsAny[Cluster]], Field(min_length=1)]


@configures(read_network, kind="format")
class TopologyFile(Named):
    """A topology from a file: SimGrid platform, NCCL topology, node-link JSON, or cost model fitted to a cluster."""

    named = "path"


def platform(path: str | Path, nodes: Count | None = None) -> Graph:
    """Return a network of `nodes` equal machines with the links and network cards that their vendor specifies.

    Parameters
    ----------
    path : str or Path
        A platform of `simnet list networks`, or the file of one.
    nodes : int, optional
        How many, >= 1; as many as the workers need when left out.
    """
    read = load_platform(path)
    if read.outer is None and (nodes or 1) > 1:
        raise ValueError(f"nodes must be 1: nothing joins the nodes of {path}, got {nodes}")
    return _platform_graph(read, nodes or 1, read.inner_rate())


def _platform_graph(read: Platform, nodes: int, inner_rate: float) -> Graph:
    """Return the graph of a platform's nodes, whose devices send at `inner_rate` inside a node [byte/s]."""
    from simnet.cost_models.calibration.specification import specified_parameters

    known = {key: value for key, (value, _) in specified_parameters(read).items()}
    return topologies.multi_gpu_nodes(
        nodes,
        read.devices_per_node,
        intra_latency=known["inner_latency"],
        intra_bandwidth=inner_rate,
        nic_latency=known["outer_latency"],
        nic_bandwidth=min(read.outer_rate(read.devices_per_node), MOST_RATE),
    )


@configures(platform)
class PlatformNodes(Named):
    """Nodes of a platform that comes with simnet, or of a file that describes one."""

    named = "path"
    path: NameOrFile

    def load(self) -> Platform:
        """Return the platform; InputError if its file has errors."""
        return load_platform(self.path)


@kinds(
    **_FAMILIES,
    wan=Wan,
    wan_of_clusters=WanOfClusters,
    file=TopologyFile,
    platform=PlatformNodes,
)
class Topology(OnHosts):
    """Hosts, switches and links; a text in their place names a platform or a file."""

    otherwise = "file"


# As of the file of a calibrated cluster.
_MOST_BYTES = 2 * 2**20


def build_topology(given: Topology) -> NetworkRead:
    """Return the network that a topology describes; ValueError or InputError for invalid options or files."""
    part = given.choice[1]
    if isinstance(part, TopologyFile):
        return NetworkRead(*part.build())
    sites = {}
    for name, site in part.sites.items() if isinstance(part, WanOfClusters) else ():
        try:
            sites[name] = _with_hosts(site.choice[1])
        except ValueError as error:
            raise ValueError(f"site {name}: {error}") from error
    return NetworkRead(part.build(sites=sites) if sites else _with_hosts(part), {})


def sending(given: Topology, read: NetworkRead, stack: str | Stack | None) -> tuple[Graph, dict[str, Any]]:
    """Return the link graph that a topology describes, and `Network` options for the transport stack that it runs.

    A calibrated cluster or platform has its own software, unless a stack is given. InputError if its file is wrong.
    """
    part = given.choice[1]
    # Calibration takes long to import.
    if isinstance(part, PlatformNodes):
        from simnet.cost_models.calibration.cost_model import specified_cost_model
        from simnet.cost_models.calibration.software import CalibratedSoftware

        described = part.load()
        if stack is not None:
            # In a mesh a message has the links of two devices.
            pair = described.inside(2)[0].ring
            return _platform_graph(described, getattr(part, "nodes", None) or 1, pair), {"stack": stack}
        model = specified_cost_model(described)
        model.network = {"multi_gpu_nodes": {"gpus_per_node": described.devices_per_node}}
    elif stack is not None or read.kind != "fabric":
        return read.graph, {} if stack is None else {"stack": stack}
    else:
        from simnet.cost_models.calibration.cost_model_file import has_curves, load_cost_model
        from simnet.cost_models.calibration.software import CalibratedSoftware

        if not has_curves(part.path):
            return read.graph, {}
        model = load_cost_model(part.path)
    software = CalibratedSoftware(model, read.graph, Path(part.path).name)
    return software.graph, {"stack": software.stack, "software": software}


def platform_of(given: Topology) -> Platform | None:
    """Return the hardware specification of a topology that consists of one vendor's machines; else None."""
    part = given.choice[1]
    return part.load() if isinstance(part, PlatformNodes) else None


def cluster_file(given: Topology) -> str | None:
    """Return the name of the file that describes a topology; None if there is none."""
    part = given.choice[1]
    return str(part.path) if isinstance(part, TopologyFile) else None


def calibrated_stack(given: Topology) -> str | None:
    """Return the transport stack for which a topology file was calibrated; None if the file names none."""
    file = cluster_file(given)
    if file is None or Path(file).suffix not in (".yaml", ".yml"):
        return None
    found: dict[str, str] = {}
    with suppress(InputError):
        for line in read_text(Path(file), _MOST_BYTES).splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key, value.strip().strip("'"))
    return (found.get("curves", "[]") != "[]" and found.get("stack")) or None


def _with_hosts(part: Part) -> Graph:
    """Build a topology part's graph; count the hosts as its attribute ``hosts`` if the graph lacks it."""
    graph: Graph = part.build()
    if not hasattr(graph, "graph"):
        raise plugins.return_error(part.function, graph, "a networkx.DiGraph")
    if "hosts" not in graph.graph:
        hosts = check_graph(graph)
        graph.graph["hosts"] = hosts
    return graph
