"""A platform from its specification alone: what devices, links, network cards and library make of a collective.

Nothing is measured. For NCCL and RCCL every algorithm takes, in each of its protocols,

    base latency + steps inside nodes * latency + steps between nodes * latency + size * seconds per byte,

as NCCL's own tuning model has it, with its latencies by link and the bandwidth that it takes a link for; bytes are
those that leave the busiest device or node. For MPI and gloo, steps and bytes come from the schedules of
`simnet.collectives`. What a transport makes of the line rate stands in `TRANSPORTS`. Which of ring and tree runs on two
nodes, where a tree sends half as much, a specification does not say: the middle is predicted, in logarithms.

References
----------
NVIDIA, NCCL, ``src/graph/tuning.cc`` (latencies, efficiency of protocols) and ``src/graph/topo.h`` (links).
Z. Hu et al., "Demystifying NCCL: An in-depth analysis of GPU communication protocols and algorithms",
arXiv:2507.04786, 2025. P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
and scan", Parallel Computing 35(12), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
import pydantic
from numpy.typing import ArrayLike
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer

from simnet.base import units
from simnet.base.errors import InputError, nearest
from simnet.base.plain_yaml import plain_yaml
from simnet.base.reading import read_text
from simnet.calibration.curves import Floats, Setting
from simnet.calibration.step_counts import costs
from simnet.calibration.step_model import PARAMETERS, StepModel

MAX_BYTES = 2**16
"""The largest platform file that is read."""


class Transport(NamedTuple):
    """What a transport makes of a network card.

    Parameters
    ----------
    efficiency : float
        Goodput of large messages over the line rate.
    most : float
        Goodput that one card cannot exceed, whatever its line rate [byte/s].
    latency : float
        One way, beyond that of InfiniBand, for which NCCL's latencies stand [s].
    """

    efficiency: float
    most: float
    latency: float


TRANSPORTS: MappingProxyType[str, Transport] = MappingProxyType(
    {
        "infiniband": Transport(0.9, math.inf, 0.0),
        "roce": Transport(0.85, math.inf, 1e-6),
        "slingshot": Transport(0.8, math.inf, 5e-6),
        "efa": Transport(0.85, math.inf, 15e-6),
        "tcpx": Transport(0.85, math.inf, 25e-6),
        "sockets": Transport(0.6, 2.5e9, 25e-6),
    }
)
"""Transports. Where their figures are from, and how far they are to be believed, stands in ``docs/calibration.md``."""

STAGED = 0.47
"""Share of the bandwidth of a card that is left where it cannot read the memory of the device (no GPUDirect RDMA)."""

LINKS: MappingProxyType[str, float] = MappingProxyType({"nvlink": 0.8, "xgmi": 0.75, "pcie": 0.53, "memory": 0.5})
"""Share of the line rate that is left: of NVLink 20 of 25 GB/s; of PCIe through the processors, in both directions at
once, 10 GB/s / 1.2 of 15.75 GB/s (both as ``topo.h`` has it); of memory half, as shared memory is copied into and out
of. That of Infinity CalibratedCostModel is an assumption near the one of NVLink."""


Counted: TypeAlias = Literal["as NCCL does", "through the schedule"]
"""How steps and bytes are counted: one for NCCL and RCCL, the other for MPI and gloo."""

HELD_OUT: MappingProxyType[Counted, int] = MappingProxyType({"as NCCL does": 4085, "through the schedule": 691})
"""Public measurements from which the widths of intervals are, each of a platform left out of what was fitted."""

_HALF_WIDTHS: MappingProxyType[Counted, tuple[tuple[float, float], ...]] = MappingProxyType(
    {
        "as NCCL does": ((0.35, 1.45), (0.4, 1.6), (0.6, 1.4), (0.55, 0.6)),
        "through the schedule": ((2.2, 1.5), (1.7, 1.3), (0.8, 1.1), (0.35, 1.15)),
    }
)
_HALF_WIDTHS_HOLD = 0.9

COLLECTIVES = ("all_gather", "all_reduce", "alltoall", "broadcast", "reduce", "reduce_scatter", "sendrecv")
"""Collectives that are predicted."""


class Generation(NamedTuple):
    """What NCCL knows of a generation of devices.

    Parameters
    ----------
    ll : float
        Most bandwidth of the LL protocol on one node [byte/s].
    switch : float
        Efficiency of in-switch reduction; 0 where there is none.
    """

    ll: float
    switch: float


GENERATIONS: MappingProxyType[str, Generation] = MappingProxyType(
    {
        "older": Generation(39e9, 0.0),
        "volta": Generation(39e9, 0.0),
        "ampere": Generation(87.7e9, 0.0),
        "hopper": Generation(141e9, 0.85),
        "blackwell": Generation(282e9, 0.74),
        "cdna": Generation(87.7e9, 0.0),
        "cpu": Generation(39e9, 0.0),
    }
)
"""Generations of devices, after the constants of NCCL's tuning model."""


class _Protocol(NamedTuple):
    """A protocol of NCCL: share of the bandwidth that it leaves, base latency, and latency of a step by link [s]."""

    share: float
    base: float
    ring: Mapping[str, float]
    tree: Mapping[str, float]


# Constants of NCCL's tuning model, those of ring and tree put together where they are alike.
_PROTOCOLS: MappingProxyType[str, _Protocol] = MappingProxyType(
    {
        "ll": _Protocol(
            0.5,
            6.7e-6,
            MappingProxyType({"nvlink": 0.6e-6, "pcie": 1.0e-6, "net": 2.7e-6}),
            MappingProxyType({"nvlink": 0.6e-6, "pcie": 1.0e-6, "net": 5.0e-6}),
        ),
        "ll128": _Protocol(
            0.92,
            14e-6,
            MappingProxyType({"nvlink": 1.9e-6, "pcie": 2.5e-6, "net": 4.0e-6}),
            MappingProxyType({"nvlink": 1.25e-6, "pcie": 1.9e-6, "net": 8.5e-6}),
        ),
        "simple": _Protocol(
            1.0,
            8.4e-6,
            MappingProxyType({"nvlink": 3.4e-6, "pcie": 5.7e-6, "net": 14e-6}),
            MappingProxyType({"nvlink": 4.0e-6, "pcie": 4.0e-6, "net": 14e-6}),
        ),
    }
)
_SWITCH_LATENCY = MappingProxyType({"inner": 25e-6, "outer": 21e-6})
_COLLNET_LATENCY = 35e-6
_COLLNET_SHARE = 0.9
_LL_BETWEEN = (39e9, 20.4e9)
# Log2 of the size, and the share of bandwidth that it reaches, about as NCCL's tuning model corrects its trees.
_REACHED = ((12.0, 16.0, 18.0, 20.0, 24.0, 28.0), (1.0, 0.6, 0.45, 0.5, 0.8, 1.0))
_TREE_SHARE = 0.92
_PEER_SHARE = 0.7
# Of MPI: one way over InfiniBand, through memory; what an eager message costs more in bytes and one by rendezvous in
# latency; what a core reduces, and what a rank of several on a node receives through memory, per byte of the size.
_HOST_LATENCY = 1e-6
_MEMORY_LATENCY = 0.5e-6
_EAGER = MappingProxyType({"latency": 2.0, "bytes": 2.0})
_REDUCED_PER_SECOND = 3.5e9
_RECEIVED = MappingProxyType({"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "broadcast": 1.0})

_Name = Annotated[str, Field(max_length=200)]
_Rate = Annotated[
    float,
    BeforeValidator(units.bandwidth),
    Field(gt=0, le=1e15),
    PlainSerializer(lambda value: _rate(value)),
]


class _Part(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeLink(_Part):
    """The link inside a node.

    Parameters
    ----------
    link : str
        Its kind; `memory` for processes that meet in the memory of a host.
    rate : float
        Line rate of one device, in one direction [byte/s].
    switch_reduction : bool
        Whether switches between the devices reduce (NVLink SHARP).
    """

    link: Literal["nvlink", "xgmi", "pcie", "memory"]
    rate: _Rate
    switch_reduction: bool = False


class NodeNetwork(_Part):
    """The network between nodes.

    Parameters
    ----------
    transport : str
        A name of `TRANSPORTS`.
    nics : int
        Network cards of a node, 1 .. 256.
    rate : float
        Line rate of one of them, in one direction [byte/s].
    device_direct : bool
        Whether they reach the memory of the devices (GPUDirect RDMA and its like).
    switch_reduction : bool
        Whether switches of the network reduce, and the library is set to let them (SHARP, CollNet).
    """

    transport: str
    nics: Annotated[int, Field(ge=1, le=256)]
    rate: _Rate
    device_direct: bool = True
    switch_reduction: bool = False

    @property
    def ordered(self) -> bool:
        """Whether messages of the LL128 protocol may go over it: it needs 128 bytes to arrive as one, and in order."""
        return self.device_direct and self.transport in ("infiniband", "roce")

    @pydantic.field_validator("transport")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in TRANSPORTS:
            raise ValueError(f"there is no transport {name!r}; {nearest(name, TRANSPORTS)}")
        return name


class Platform(_Part):
    """A platform, as its vendor describes it.

    Parameters
    ----------
    name, description : str
        What it is.
    sources : tuple of str
        Where its figures are from.
    devices_per_node : int
        Devices, or ranks of a host, on a full node; a node ends where the inner link ends.
    generation : str
        A name of `GENERATIONS`.
    library : str
        What runs the collectives. `rccl` counts as `nccl`; `mpi` and `gloo` go through the schedules.
    inner : NodeLink
        The link inside a node.
    outer : NodeNetwork or None
        The network between nodes; without it, all ranks are on one node.

    Examples
    --------
    >>> load_platform("dgx-h100").devices_per_node
    8
    """

    name: _Name
    description: Annotated[str, Field(max_length=1000)] = ""
    sources: Annotated[tuple[Annotated[str, Field(max_length=1000)], ...], Field(max_length=50)] = ()
    devices_per_node: Annotated[int, Field(ge=1, le=4096)]
    generation: str
    library: Literal["nccl", "rccl", "mpi", "gloo"] = "nccl"
    inner: NodeLink
    outer: NodeNetwork | None = None

    @pydantic.field_validator("generation")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in GENERATIONS:
            raise ValueError(f"there is no generation {name!r}; {nearest(name, GENERATIONS)}")
        return name

    @property
    def counted(self) -> Counted:
        """How steps and bytes are counted."""
        return "as NCCL does" if self.library in ("nccl", "rccl") else "through the schedule"

    def nodes(self, ranks: int) -> int:
        """Return the fewest nodes that hold so many ranks.

        Examples
        --------
        >>> load_platform("dgx-h100").nodes(20)
        3
        """
        return math.ceil(ranks / self.devices_per_node) if self.outer is not None else 1

    def inner_rate(self) -> float:
        """Return the goodput of a device inside its node [byte/s]."""
        return self.inner.rate * LINKS[self.inner.link]

    def outer_rate(self, per_node: float) -> float:
        """Return the goodput of a node of which so many devices take part [byte/s]: each has its share of the cards.

        Examples
        --------
        >>> one = load_platform("dgx-h100")
        >>> one.outer_rate(1) * 8 == one.outer_rate(8)
        True
        """
        if self.outer is None:
            return math.inf
        transport = TRANSPORTS[self.outer.transport]
        cards = min(self.outer.nics, max(1.0, per_node * self.outer.nics / self.devices_per_node))
        if self.counted == "through the schedule":
            cards = min(self.outer.nics, per_node)
        each = min(self.outer.rate * transport.efficiency, transport.most)
        return cards * each * (1.0 if self.outer.device_direct else STAGED)


@dataclass(frozen=True)
class SpecifiedStepModel(StepModel):
    """The step model of a platform that was never measured.

    Parameters
    ----------
    platform : Platform or None
        Its specification.
    """

    platform: Platform | None = None

    def at(self, setting: Setting, sizes: ArrayLike) -> Floats | None:
        """Return times [s] of sizes [byte], or None for a collective without a known algorithm."""
        assert self.platform is not None
        return times(self.platform, setting, sizes)


def specified(platform: Platform) -> SpecifiedStepModel:
    """Return the step model of a platform.

    Examples
    --------
    >>> model = specified(load_platform("dgx-h100"))
    >>> [round(1e3 * float(one), 2) for one in model.at(Setting("all_gather", 16, 2), [2**20, 2**30])]
    [0.05, 2.87]
    """
    found = parameters(platform)
    return SpecifiedStepModel(
        nccl=platform.counted == "as NCCL does",
        values=tuple(value for value, _ in found.values()),
        errors=tuple(error for _, error in found.values()),
        switch=platform.inner.switch_reduction,
        platform=platform,
    )


def parameters(platform: Platform) -> dict[str, tuple[float, float]]:
    """Return what a specification says of the parameters of the step model, on full nodes.

    `times` goes further where links, protocols and algorithms differ by more than one factor for all; these values are
    what a fit to the first measurements of a platform can begin from.

    Returns
    -------
    dict of str to (float, float)
        By the names of `PARAMETERS`, in their order: value, and standard error of its logarithm.

    Examples
    --------
    >>> value, error = parameters(load_platform("dgx-h100"))["outer_seconds_per_byte"]
    >>> round(1e-9 / value), error < 0.5
    (45, True)
    """
    nccl = platform.counted == "as NCCL does"
    link, far = _link(platform), _far(platform)
    low, middle, high = (_PROTOCOLS[name] for name in ("ll", "ll128", "simple"))
    full = platform.devices_per_node
    node = platform.outer_rate(full) if platform.outer is not None else platform.inner_rate() * full
    outer_latency = low.ring["net"] + far
    found = {
        "launch": (high.base if nccl else _HOST_LATENCY, 0.7),
        "inner_latency": (low.ring[link] if nccl else _MEMORY_LATENCY, 0.7),
        "outer_latency": (outer_latency if nccl else _HOST_LATENCY + far, 0.7),
        "inner_seconds_per_byte": (1 / platform.inner_rate(), 0.2),
        "outer_seconds_per_byte": ((full if nccl else 1) / node, 0.35),
        "gamma": (5e-14 if nccl else 1 / _REDUCED_PER_SECOND, 0.5),
        "ll128_latency_factor": (middle.ring["net"] / low.ring["net"], 0.5),
        "simple_latency_factor": ((high.ring["net"] + far) / outer_latency if nccl else _EAGER["latency"], 0.5),
        "ll_byte_factor": (1 / low.share if nccl else _EAGER["bytes"], 0.5),
        "ll128_byte_factor": (1 / middle.share, 0.05),
        "tree_latency_factor": ((high.tree["net"] + far) / (high.ring["net"] + far), 0.5),
        "tree_byte_factor": (1 / _TREE_SHARE, 0.2),
        "peer_latency": (high.ring["net"] / 2, 0.7),
        "peer_byte_factor": (1.0, 0.3),
        "pair_byte_factor": (1 / _PEER_SHARE, 0.4),
        "switch_byte_factor": (1 / (GENERATIONS[platform.generation].switch or 1.0), 0.1),
    }
    return {name: found[name] for name in PARAMETERS}


def sentences(platform: Platform) -> list[str]:
    """Return what a specification says of the parameters of the step model, as lines for people.

    Examples
    --------
    >>> print(sentences(load_platform("dgx-h100"))[0])
    NVIDIA DGX H100, 8 H100 with 18 NVLinks of 25 GB/s each way on NVSwitches, 8 InfiniBand NDR cards
    """
    lines = [platform.description or platform.name, "nothing was measured: whatever is predicted is an extrapolation"]
    lines.append("parameters of a step, from the specification:")
    for name, (value, error) in parameters(platform).items():
        within = f"within a factor of {math.exp(1.645 * error):.2f}"
        lines.append(f"  {name:<24}{value:>10.3g}  {within} ({PARAMETERS[name]})")
    return lines


def half_widths(platform: Platform, coverage: float) -> list[tuple[float, float]]:
    """Return how far the logarithm of a measured time may be below and above a prediction, by bin of sizes.

    The widths are quantiles of what was left out of public measurements, each platform counting alike, with what
    is fitted of transports fitted to the other platforms; see ``docs/calibration.md``.

    Parameters
    ----------
    platform : Platform
        The specification.
    coverage : float
        Share of measurements that an interval shall hold, in (0, 1). Widths grow with it as those of a normal
        distribution.

    Examples
    --------
    >>> len(widths(load_platform("dgx-h100"), 0.9))
    4
    """
    scale = NormalDist().inv_cdf(0.5 + coverage / 2) / NormalDist().inv_cdf(0.5 + _HALF_WIDTHS_HOLD / 2)
    return [(scale * below, scale * above) for below, above in _HALF_WIDTHS[platform.counted]]


def times(platform: Platform, setting: Setting, sizes: ArrayLike) -> Floats | None:
    """Return predicted times of a collective.

    Parameters
    ----------
    platform : Platform
        The specification.
    setting : Setting
        What is asked for; with 0 nodes, the ranks fill as few nodes as will hold them.
    sizes : array_like of float, shape (n,)
        Total sizes as nccl-tests counts them [byte].

    Returns
    -------
    ndarray of float, shape (n,), or None
        Times [s]; None for a collective without a known algorithm.
    """
    asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
    if setting.ranks < 2:
        alone = _PROTOCOLS["ll"].base if platform.counted == "as NCCL does" else _HOST_LATENCY
        return np.full(len(asked), alone)
    nodes = setting.nodes or platform.nodes(setting.ranks)
    if platform.outer is None:
        nodes = 1
    nodes = min(nodes, setting.ranks)
    if platform.counted == "through the schedule":
        return _through_schedules(platform, setting, nodes, asked)
    ways = _like_nccl(platform, setting, nodes)
    if not ways:
        return None
    pinned = setting.algorithm.casefold().rpartition("_")[2]
    wanted = [pinned] if pinned in ways else list(ways)
    moved = asked / np.interp(np.log2(asked), *_REACHED)
    found = {name: np.min([low + slope * moved for low, slope in ways[name]], axis=0) for name in wanted}
    fastest: Floats = np.min(list(found.values()), axis=0)
    if nodes == 2 and len(found) > 1:
        return np.asarray(np.sqrt(fastest * found["ring"]))
    return fastest


def _like_nccl(platform: Platform, setting: Setting, nodes: int) -> dict[str, list[tuple[float, float]]]:
    """Return for each algorithm the latency [s] and seconds per byte of each of its protocols."""
    ranks, collective = setting.ranks, setting.collective
    if collective in ("alltoall", "sendrecv"):
        return {"peers": [_peers(platform, setting, nodes)]}
    share = (ranks - 1) / ranks
    moved = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "broadcast": 1.0, "reduce": 1.0}
    if collective not in moved:
        return {}
    per_node, depth = ranks / nodes, math.ceil(math.log2(nodes))
    inner = platform.inner_rate()
    outer = platform.outer_rate(per_node) if nodes > 1 else math.inf
    link, far = _link(platform), _far(platform)
    steps = 2 * (ranks - 1) if collective == "all_reduce" else ranks - 1
    between = 0 if nodes == 1 else min(2 * nodes, steps) if collective == "all_reduce" else nodes - 1
    ways: dict[str, list[tuple[float, float]]] = {"ring": []}
    protocols = _protocols(platform, setting, nodes)
    for one, most in protocols:
        latency = one.base + (steps - between) * one.ring[link] + between * (one.ring["net"] + far)
        ways["ring"].append((latency, moved[collective] / min(one.share * min(inner, outer), most)))
    if collective != "all_reduce":
        return ways
    ways["tree"] = []
    sent = 1.0 if nodes == 2 else 2.0
    slope = max(2.0 / inner if per_node > 1 else 0.0, sent / outer) / _TREE_SHARE
    for one, most in protocols:
        latency = one.base + 2 * ((per_node - 1) * one.tree[link] + depth * (one.tree["net"] + far))
        ways["tree"].append((latency, max(slope / one.share, 2.0 / most)))
    simple = setting.protocol.casefold() in ("", "simple")
    if platform.outer is not None and platform.outer.switch_reduction and nodes > 1 and simple:
        # The vector leaves a node once and comes back once, in one step of the network.
        ways["collnet"] = [(_COLLNET_LATENCY, max(2.0 / inner if per_node > 1 else 0.0, 1.0 / outer) / _COLLNET_SHARE)]
    switch = GENERATIONS[platform.generation].switch
    if platform.inner.switch_reduction and switch and per_node > 1 and simple:
        latency = _SWITCH_LATENCY["inner"] + 2 * depth * (_SWITCH_LATENCY["outer"] + far)
        ways["nvls" if nodes == 1 else "nvlstree"] = [(latency, max(1 / (inner * switch), sent / outer))]
    return ways


def _protocols(platform: Platform, setting: Setting, nodes: int) -> list[tuple[_Protocol, float]]:
    """Return the protocols that NCCL may use, each with its most bandwidth [byte/s]; a pinned one alone."""
    most = {"ll": GENERATIONS[platform.generation].ll if nodes == 1 else _LL_BETWEEN[0 if nodes == 2 else 1]}
    reaches = nodes == 1 or (platform.outer is not None and platform.outer.ordered)
    names = [name for name in _PROTOCOLS if name != "ll128" or (_link(platform) == "nvlink" and reaches)]
    pinned = setting.protocol.casefold()
    return [(_PROTOCOLS[name], most.get(name, math.inf)) for name in ([pinned] if pinned in names else names)]


def _peers(platform: Platform, setting: Setting, nodes: int) -> tuple[float, float]:
    """Return latency [s] and seconds per byte of messages from each rank to each other, or to the next alone."""
    simple, inner, per_node = _PROTOCOLS["simple"], platform.inner_rate(), setting.ranks / nodes
    near = simple.ring[_link(platform)]
    if setting.collective == "sendrecv":
        if nodes == 1:
            return simple.base + near, 1 / inner
        # One rank of a node sends to the next node, and has its own share of the cards for it.
        rate = _PEER_SHARE * min(inner, platform.outer_rate(1.0))
        return simple.base + simple.ring["net"] + _far(platform), 1 / rate
    latency = simple.base + (setting.ranks - 1) * (near if nodes == 1 else simple.ring["net"] / 2)
    away = per_node * (1 - 1 / nodes) / platform.outer_rate(per_node) if nodes > 1 else 0.0
    return latency, max((per_node - 1) / setting.ranks / inner, away)


def _rate(value: float) -> str:
    """Return a bandwidth [byte/s] as text that reads back as exactly the same number."""
    text = f"{value / 1e9:.12g} GB/s"
    return text if units.bandwidth(text) == value else f"{value!r} B/s"


def _link(platform: Platform) -> str:
    return "pcie" if platform.inner.link in ("pcie", "memory") else "nvlink"


def _far(platform: Platform) -> float:
    return 0.0 if platform.outer is None else TRANSPORTS[platform.outer.transport].latency


def _through_schedules(platform: Platform, setting: Setting, nodes: int, sizes: Floats) -> Floats | None:
    """Return times [s] of a library on hosts: eager messages cost twice the bytes, others twice the latency."""
    asked = Setting(setting.collective, setting.ranks, nodes, setting.algorithm)
    counted = costs(asked, nccl=False)
    if not counted:
        return None
    far = _HOST_LATENCY + _far(platform)
    within = 0.0 if setting.ranks == nodes else _RECEIVED.get(setting.collective, 0.0)
    inner_byte = 1 / platform.inner_rate()
    outer_byte = 1 / platform.outer_rate(setting.ranks / nodes)
    ways = []
    for one in counted:
        latency = one.inner * _MEMORY_LATENCY + one.outer * far
        moved = max(one.inner_bytes * inner_byte + one.outer_bytes * outer_byte, within * inner_byte)
        work = one.reduced / _REDUCED_PER_SECOND
        ways.append(latency + (_EAGER["bytes"] * moved + work) * sizes)
        ways.append(_EAGER["latency"] * latency + (moved + work) * sizes)
    return np.asarray(_HOST_LATENCY + np.min(ways, axis=0), dtype=np.float64)


@cache
def platform_names() -> tuple[str, ...]:
    """Return the names of the platforms that come with simnet.

    Examples
    --------
    >>> "dgx-h100" in platform_names()
    True
    """
    folder = files("simnet.calibration") / "platforms"
    return tuple(sorted(one.name.removesuffix(".yaml") for one in folder.iterdir() if one.name.endswith(".yaml")))


def load_platform(source: str | Path) -> Platform:
    """Return a platform by its name, or from a file.

    Raises
    ------
    InputError
        If there is none, or a field of it is not as it must be.
    """
    name = str(source)
    if name in platform_names():
        with as_file(files("simnet.calibration") / "platforms" / f"{name}.yaml") as path:
            return _read(path, name)
    if isinstance(source, str) and "." not in name and "/" not in name and not Path(name).exists():
        raise InputError(f"there is no platform {name!r}; {nearest(name, platform_names())}")
    return _read(Path(source), name)


def is_platform(path: Path) -> bool:
    """Return whether a file is of a platform: `devices_per_node` is at the start of a line."""
    try:
        with path.open("rb") as file:
            return b"\ndevices_per_node:" in b"\n" + file.read(MAX_BYTES)
    except OSError:
        return False


def _read(path: Path, name: str) -> Platform:
    text = read_text(path, MAX_BYTES)
    try:
        return Platform.model_validate(plain_yaml(text, name, "a platform"))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(first["msg"].removeprefix("Value error, "), file=name, field=where or None) from None
