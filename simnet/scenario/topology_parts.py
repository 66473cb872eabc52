"""The topology part of a scenario: a family, a file, or a topology that a plug-in registers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SerializeAsAny

from simnet import topologies
from simnet.base.quantities import MOST_RATE, Count
from simnet.interchange.kinds import read_network
from simnet.scenario.fields import File, is_file
from simnet.scenario.parts import Named, OneOf, Part, Target, configures, kinds, part_of

if TYPE_CHECKING:
    import networkx as nx


@configures(topologies.wan)
class Wan(Part):
    """Workers at several sites; `latency` and `bandwidth` are one value, or a matrix with a row per site of origin."""

    # Lock files have these two first.
    sites: Any
    workers_per_site: Any


class OnHosts(OneOf):
    """A topology; without a number of hosts it has one per worker."""

    registry = "topologies"

    @classmethod
    def derived(cls, target: Target, name: str | None = None) -> type[Part]:
        """Return the part class of a topology family, derived from its builder."""
        optional = (("hosts", "one per worker"), ("nodes", "as many as hold the workers"))
        return part_of(target, name, optional=optional)


_FAMILIES = {name: one for name, one in topologies.FAMILIES.items() if not name.startswith("wan")}


@kinds(**_FAMILIES)
class Cluster(OnHosts):
    """The topology of a site."""

    def _check(self) -> None:
        super()._check()
        kind, part = self.choice
        for name in ("hosts", "nodes"):
            if getattr(part, name, 1) is None:
                said = "only a topology without sites has a default, by the number of workers"
                raise ValueError(f"needs {kind}.{name}: {said}")


@configures(topologies.wan_of_clusters)
class WanOfClusters(Part):
    """Sites that are clusters, joined by border routers; `latency` and `bandwidth` are as of wan.

    sites: topologies by the names of sites
    """

    sites: Annotated[dict[str, SerializeAsAny[Cluster]], Field(min_length=1)]


@configures(read_network, kind="format")
class TopologyFile(Named):
    """A topology from a file: SimGrid platform with its weather, NCCL topology, node-link JSON, calibrated fabric."""

    named = "path"


def platform(path: str | Path, nodes: Count | None = None) -> nx.DiGraph[Any]:
    """Return the nodes of a platform, whose vendor says what their links and cards are.

    Parameters
    ----------
    path : str or Path
        A platform of `simnet list networks`, or the file of one.
    nodes : int, optional
        How many, >= 1; as many as the workers need when left out.
    """
    # Calibration takes long to import.
    from simnet.cost_models.calibration.platform import load_platform
    from simnet.cost_models.calibration.specification import specified_parameters

    read = load_platform(path)
    known = {key: value for key, (value, _) in specified_parameters(read).items()}
    if read.outer is None and (nodes or 1) > 1:
        raise ValueError(f"nodes must be 1: nothing joins the nodes of {path}, got {nodes}")
    return topologies.multi_gpu_nodes(
        nodes or 1,
        read.devices_per_node,
        intra_latency=known["inner_latency"],
        intra_bandwidth=read.inner_rate(),
        nic_latency=known["outer_latency"],
        nic_bandwidth=min(read.outer_rate(read.devices_per_node), MOST_RATE),
    )


@configures(platform)
class PlatformNodes(Named):
    """Nodes of a platform that comes with simnet, or of a file that describes one."""

    named = "path"
    path: File
    nodes: Any

    def source(self, folder: Path) -> str | Path:
        """Return the platform's name, or the path of its file."""
        return folder / self.path if is_file(self.path) else self.path


@kinds(
    **_FAMILIES,
    wan=Wan,
    wan_of_clusters=WanOfClusters,
    file=TopologyFile,
    platform=PlatformNodes,
)
class Topology(OnHosts):
    """Hosts, switches and links; a text may be the name of a platform, or of a file."""

    otherwise = "file"
