"""The topology of a scenario: a family, a file, or what another package registers."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeAlias

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, SerializeAsAny, model_validator

from simnet import topologies
from simnet.base import plugins
from simnet.base.errors import suggest_names
from simnet.interchange.kinds import read_network
from simnet.scenario.fields import File
from simnet.scenario.parts import NameOr, OneOf, Part, Target, configures, kinds, part_of


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
        """Return the part of a family, given its builder."""
        return part_of(target, name, optional=(("hosts", "one per worker"),))


_FAMILIES = {name: one for name, one in topologies.FAMILIES.items() if not name.startswith("wan")}


@kinds(**_FAMILIES)
class Cluster(OnHosts):
    """The topology of a site."""

    def _check(self) -> None:
        super()._check()
        kind, part = self.choice
        if getattr(part, "hosts", 1) is None:
            raise ValueError(f"needs {kind}.hosts: only a topology without sites has one for each worker by default")


@configures(topologies.wan_of_clusters)
class WanOfClusters(Part):
    """Sites that are clusters, joined by border routers; `latency` and `bandwidth` are as of wan.

    sites: topologies by the names of sites
    """

    sites: Annotated[dict[str, SerializeAsAny[Cluster]], Field(min_length=1)]


@configures(read_network, kind="format")
class TopologyFile(Part):
    """A topology from a file: SimGrid platform with its weather, NCCL topology, node-link JSON, calibrated fabric."""


FileOrMapping: TypeAlias = NameOr[File, TopologyFile]


class Registered(Part):
    """A topology of another package, with its own parameters: the same as its name as the key, without `registered`."""

    model_config = ConfigDict(extra="allow")

    name: str


@kinds(
    **_FAMILIES,
    wan=Wan,
    wan_of_clusters=WanOfClusters,
    file=FileOrMapping,
    registered=Registered,
)
class Topology(OnHosts):
    """Hosts, switches and links."""

    @model_validator(mode="wrap")
    @classmethod
    def _by_name(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        given = value.get("registered") if isinstance(value, dict) else None
        if isinstance(given, dict) and isinstance(given.get("name"), str):
            family = given["name"]
            if family not in topologies.names() and plugins.find_entry("topologies", family) is None:
                raise ValueError(f"there is no topology {family!r}; {suggest_names(family, topologies.names())}")
            return handler({family: {name: one for name, one in given.items() if name != "name"}})
        return handler(value)
