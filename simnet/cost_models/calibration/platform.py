"""Hardware platforms from vendor specifications: devices, links, network cards, library.

A platform is a YAML file; those of simnet are in ``platforms/``. `simnet.cost_models.calibration.specification`
predicts times of collectives from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pydantic
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from simnet.base import units
from simnet.base.errors import InputError, suggest_names
from simnet.base.file_io import read_shipped_rows, read_text
from simnet.base.yaml_loader import load_yaml_mapping
from simnet.cost_models.calibration import node_links
from simnet.cost_models.calibration.node_links import MAX_DEVICES, InsideRates, Links

MAX_BYTES = 2**16
"""Maximum size of a platform file [byte]."""


class PlatformTransport(NamedTuple):
    """A transport: efficiency on a network card, maximum rate per card [byte/s], extra latency over InfiniBand [s]."""

    efficiency: float
    most: float
    latency: float


TRANSPORTS: Mapping[str, PlatformTransport] = {
    row.pop("transport"): PlatformTransport(*map(float, row.values()))
    for row in read_shipped_rows("data/transports.csv")
}
"""Transports. Where their figures are from, and how far they are to be believed, stands in ``docs/calibration.md``."""

STAGED_SHARE = 0.47
"""Share of the bandwidth of a card that is left where it cannot read the memory of the device (no GPUDirect RDMA)."""

LINK_SHARES: Mapping[str, float] = {"nvlink": 0.8, "xgmi": 0.75, "pcie": 0.53, "memory": 0.5}
"""Share of the line rate that is left: of NVLink 20 of 25 GB/s; of PCIe through the processors, in both directions at
once, 10 GB/s / 1.2 of 15.75 GB/s (both as ``topo.h`` has it); of memory half, as shared memory is copied into and out
of. That of Infinity Fabric is an assumption near the one of NVLink."""


StepCounting: TypeAlias = Literal["as NCCL does", "through the schedule"]
"""How steps and bytes are counted: one for NCCL and RCCL, the other for MPI and gloo."""


class Generation(NamedTuple):
    """A GPU generation: NCCL's LL bandwidth limit inside a node [byte/s], and efficiency of reduction in switches."""

    ll: float
    switch: float


GENERATIONS: Mapping[str, Generation] = {
    row["generation"]: Generation(float(row["ll"]), float(row["switch"]))
    for row in read_shipped_rows("data/generations.csv")
}
"""Generations of devices, after the constants of NCCL's tuning model."""


def one_of(what: str, names: Iterable[str]) -> BeforeValidator:
    """Return a pydantic validator that accepts only `names`, and suggests the closest name for other values."""

    def known(name: object) -> object:
        if not isinstance(name, str) or name not in names:
            raise ValueError(f"there is no {what} {name!r:.60}; {suggest_names(str(name)[:60], filter(None, names))}")
        return name

    return BeforeValidator(known)


def _check_joined(value: Any) -> str | Links:
    """Return the field `joined` after a check: a name, or the number of links between each pair of devices."""
    if value in ("switch", "mesh", "cube_mesh"):
        return str(value)
    rows = value if isinstance(value, list | tuple) and 2 <= len(value) <= MAX_DEVICES else ()
    if rows and all(isinstance(row, list | tuple) and [type(one) for one in row] == [int] * len(rows) for row in rows):
        table = np.array(rows)
        if (table == table.T).all() and not table.diagonal().any() and table.min() >= 0 < table.max():
            return tuple(map(tuple, rows))
    rule = f"a row for each of 2 to {MAX_DEVICES} devices with its links to each, alike both ways"
    raise ValueError(f"must be switch, mesh, cube_mesh, or {rule}, got {value!r:.60}")


_Name = Annotated[str, Field(max_length=200)]
_Rate = Annotated[
    float, BeforeValidator(units.bandwidth), Field(gt=0, le=1e15), PlainSerializer(lambda value: _format_rate(value))
]


class _PlatformPart(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeLink(_PlatformPart):
    """The link between devices of a node, such as NVLink or shared `memory`, and its rate per device and direction.

    Devices are `joined` by a switch or the processors, by as many links between each two (`mesh`), as in a DGX-1
    (`cube_mesh`), or by the links of a matrix. Those without a link send at `pci_rate`. With `switch_reduction`,
    switches between the devices reduce (NVLink SHARP).
    """

    link: Literal["nvlink", "xgmi", "pcie", "memory"]
    rate: _Rate
    joined: Annotated[str | Links, PlainValidator(lambda value: _check_joined(value))] = "switch"
    pci_rate: _Rate | None = None
    switch_reduction: bool = False

    @property
    def links(self) -> Links | None:
        """Number of links between each pair of devices; None if all pairs are joined alike."""
        named = {"cube_mesh": node_links.CUBE_MESH}
        return named.get(self.joined) if isinstance(self.joined, str) else self.joined


class NodeNetwork(_PlatformPart):
    """The network between nodes: transport, cards per node, and rate per card and direction [byte/s].

    `device_direct` cards reach the memory of the devices (GPUDirect RDMA); with `switch_reduction`, switches of the
    network reduce, and the library lets them (SHARP, CollNet).
    """

    transport: Annotated[str, one_of("transport", TRANSPORTS)]
    nics: Annotated[int, Field(ge=1, le=256)]
    rate: _Rate
    device_direct: bool = True
    switch_reduction: bool = False

    @property
    def ordered(self) -> bool:
        """Whether the network delivers 128 bytes whole and in order, as NCCL's LL128 protocol needs."""
        return self.device_direct and self.transport in ("infiniband", "roce")


class Platform(_PlatformPart):
    """A hardware platform from vendor specifications; `inner` joins the devices of a node, `outer` joins the nodes.

    `devices_per_node` are the devices of a `chip`, or ranks of a host, on a full node, which may be several `hosts` of
    one NVLink domain. The library `rccl` is treated as `nccl`. Times of other libraries come from the schedule of an
    algorithm: for `openmpi` (from 4.1 on) the one that its tables choose, for `mpi` and `gloo` the fastest.
    """

    name: _Name
    description: Annotated[str, Field(max_length=1000)] = ""
    sources: Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=50)] = ()
    devices_per_node: Annotated[int, Field(ge=1, le=4096)]
    generation: Annotated[str, one_of("generation", GENERATIONS)]
    chip: _Name = ""
    hosts: Annotated[int, Field(ge=1, le=4096)] = 1
    library: Literal["nccl", "rccl", "mpi", "openmpi", "gloo"] = "nccl"
    inner: NodeLink
    outer: NodeNetwork | None = None

    @pydantic.model_validator(mode="after")
    def _linked(self) -> Platform:
        links = self.inner.links
        if links is None:
            return self
        if len(links) != self.devices_per_node:
            raise ValueError(f"inner.joined: has {len(links)} devices, devices_per_node {self.devices_per_node}")
        if self.inner.pci_rate is None and any(row.count(0) > 1 for row in links):
            raise ValueError("inner.pci_rate: is missing, the rate between devices without a link")
        return self

    @property
    def counted(self) -> StepCounting:
        """How steps and bytes of collectives are counted: by NCCL's formulas, or from schedules."""
        return "as NCCL does" if self.library in ("nccl", "rccl") else "through the schedule"

    def nodes(self, ranks: int, counted: int = 0) -> int:
        """Return how many nodes are needed to have `ranks` devices and `counted` hosts; 1 if nodes have no network."""
        if self.outer is None:
            return 1
        return max(math.ceil(ranks / self.devices_per_node), math.ceil(counted / self.hosts))

    def inner_rate(self) -> float:
        """Return the goodput of each device inside a node in which all devices take part [byte/s]."""
        return self.inner.rate * LINK_SHARES[self.inner.link]

    def inside(self, ranks: int, *, line: bool = False) -> tuple[InsideRates, InsideRates]:
        """Return the bandwidths among the first `ranks` devices of a node, and the best among any `ranks` devices.

        They are goodput, or line rates if `line` [byte/s].
        """
        rate, links = self.inner.rate * (1.0 if line else LINK_SHARES[self.inner.link]), self.inner.links
        if links is not None:
            otherwise = (self.inner.pci_rate or 0.0) * (1.0 if line else LINK_SHARES["pcie"])
            return node_links.linked_rates(links, min(ranks, len(links)), rate / max(map(sum, links)), otherwise)
        joined = InsideRates(rate, rate / 2, rate, rate, rate, rate)
        if self.inner.joined == "mesh" and 1 < ranks <= self.devices_per_node:
            joined = node_links.mesh_rates(ranks, rate / (self.devices_per_node - 1))
        return joined, joined

    def outer_rate(self, per_node: float) -> float:
        """Return the goodput out of a node [byte/s] if `per_node` devices send, each over its share of the cards."""
        if self.outer is None:
            return math.inf
        transport = TRANSPORTS[self.outer.transport]
        cards = min(self.outer.nics, max(1.0, per_node * self.outer.nics / self.devices_per_node))
        if self.counted == "through the schedule":
            cards = min(self.outer.nics, per_node)
        each = min(self.outer.rate * transport.efficiency, transport.most)
        return cards * each * (1.0 if self.outer.device_direct else STAGED_SHARE)


@cache
def platform_names() -> tuple[str, ...]:
    """Return the names of the shipped platforms."""
    folder = files("simnet.cost_models.calibration") / "platforms"
    return tuple(sorted(one.name.removesuffix(".yaml") for one in folder.iterdir() if one.name.endswith(".yaml")))


def load_platform(source: str | Path) -> Platform:
    """Return a platform by its name, or from a file."""
    name = str(source)
    if name in platform_names():
        with as_file(files("simnet.cost_models.calibration") / "platforms" / f"{name}.yaml") as path:
            return _read_platform(path, name)
    if isinstance(source, str) and "." not in name and "/" not in name and not Path(name).exists():
        raise InputError(f"there is no platform {name!r}; {suggest_names(name, platform_names())}")
    return _read_platform(Path(source), name)


def is_platform(path: Path) -> bool:
    """Return whether a file describes a platform: a line starts with `devices_per_node`."""
    try:
        with path.open("rb") as file:
            return b"\ndevices_per_node:" in b"\n" + file.read(MAX_BYTES)
    except OSError:
        return False


def _read_platform(path: Path, name: str) -> Platform:
    return load_yaml_mapping(read_text(path, MAX_BYTES), name, "a platform").validated(Platform)


def _format_rate(value: float) -> str:
    """Return a bandwidth [byte/s] as text that reads back as the same number."""
    text = f"{value / 1e9:.12g} GB/s"
    return text if units.bandwidth(text) == value else f"{value!r} B/s"
