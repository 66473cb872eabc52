"""Reads NCCL's or RCCL's description of a node (``NCCL_TOPO_DUMP_FILE``) as a topology of one or more nodes.

Bandwidths are those that the library assumes. A dump has no latencies of the links inside a node: they are parameters.

References
----------
NCCL 2.27, ``src/graph/topo.cc`` (kvDictPciGen, ncclTopoAddNvLinks, ncclTopoAddC2c, ncclTopoGetInterCpuBw) and
``topo.h`` (bandwidths); RCCL 2.27, ``topo.h`` (xGMI).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from simnet.base.errors import check_int, read_number
from simnet.base.quantities import Seconds, bounds_error
from simnet.interchange.xmlfile import Element, read_xml
from simnet.topologies.graphs import Graph, Node, affordable, empty, latency_seconds

MAX_GPUS = 1024
"""The most GPUs of one node that are read."""

# PCI by GT/s: units of 100 Mbit/s per lane.
_PCI = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
_PCI_DEFAULT = 60
_LANES, _MAX_LANES = 16, 64
# GB/s per NVLink and direction, from this compute capability on; 8.6 has links of its own.
_NVLINK = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0), (60, 18.0), (0, 20.0))
# GB/s per xGMI link and direction, by the architecture of the GPU; 910 is how older files call 90a.
_XGMI = {"94": 48.0, "95": 48.0, "90a": 36.0, "910": 36.0, "": 24.0}
# GB/s between Intel processors, from this model of family 6 on.
_INTEL = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))
_SWITCH, _GPU, _CPU = "0x068000", ("0x03", "0x12"), "0x068001"
# A card right at its processor costs nothing to reach.
_LOCAL = 5000.0
# NCCL prefers NVLink to PCI, PCI to the way between processors, and all of them to the network.
_WEIGHTS = {"nvlink": 1.0, "xgmi": 1.0, "c2c": 1.0, "pci": 8.0, "sys": 64.0, "nic": 512.0}
# Elements by the one that they stand in; the last three of a card are of transports beside that of messages.
_KNOWN = {
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic"),
    "gpu": ("nvlink", "xgmi", "c2c"),
    "nic": ("net", "coll", "gin", "rma"),
}


def read_nccl_topology(path: str | Path, nodes: int = 1, *, latency: float, network_latency: float = 0.0) -> Graph:
    """Read a topology dump of NCCL (version 1) or RCCL (version 2) as a cluster of equal nodes.

    GPUs are the hosts, in the order of their device numbers: GPU g of node n is host n * G + g. Hosts of one NVLink
    domain, apart by their ``host_hash``, make one node together. With several nodes or hosts, every network card is
    linked to one ideal fabric switch; a GPU uses the nearest card. NVLinks through switches meet in one switch per
    node, as in NCCL. Links are of kind ``"nvlink"``, ``"xgmi"``, ``"c2c"`` to a processor, ``"pci"``, ``"sys"`` between
    processors, and ``"nic"`` between cards and fabric. Partitions of a GPU (``mlopart``) share its links. `latency` [s]
    is that of each link inside a node, `network_latency` [s] from card to card, half of it on each card's link, unless
    a card names its own (microseconds). ``graph.graph["remarks"]`` says what is passed over.

    Raises InputError, with file and line, if the file is of another kind or version, has no GPUs, or there are several
    nodes but no network card; ValueError if a parameter is out of range.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "topo.xml")
    ...     _ = file.write_text('''<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD">
    ...       <pci busid="0000:01:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
    ...         <gpu dev="0" sm="80" rank="0"><nvlink target="0000:02:00.0" count="4" tclass="0x030200"/></gpu></pci>
    ...       <pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
    ...         <gpu dev="1" sm="80" rank="1"><nvlink target="0000:01:00.0" count="4" tclass="0x030200"/></gpu></pci>
    ...     </cpu></system>''')
    ...     graph = read_nccl_topology(file, latency=1e-6)
    >>> graph.edges[0, 1]["bandwidth"], graph.edges[0, "node:0/cpu:0"]["bandwidth"]
    (80000000000.0, 24000000000.0)
    """
    check_int(nodes, "nodes", 1)
    latency_seconds(latency, "latency")
    latency_seconds(network_latency, "network_latency")
    top = read_xml(path, ["system"])
    if top.get("version") not in ("1", "2"):
        top.refuse(f"must be 1 (NCCL) or 2 (RCCL), got {top.get('version')[:20]!r}", "version")
    if not any(one.tag == "gpu" for one in top.walk()):
        top.refuse("has no GPUs: a hint for NCCL (NCCL_TOPO_FILE); NCCL_TOPO_DUMP_FILE=x.xml writes what is read")
    node = _NodeSystem()
    for cpu in top.each("cpu"):
        node.cpu(cpu)
    node.finish()
    apart = nodes > 1 or len(node.hosts) > 1
    if nodes > 1 and not node.cards:
        top.refuse("has no network card, so several nodes cannot be joined")
    affordable(nodes * 2 * (len(node.links) + len(node.cards)), f"a cluster of {nodes:,} such nodes")

    gpus = len(node.gpus)
    order = {place: number for number, place in enumerate(sorted(node.gpus, key=lambda one: (node.gpus[one], one)))}
    unknown = sorted(_unknown(top)) + node.missing()
    graph = empty("nccl", nodes * gpus, gpus_per_node=gpus, **({"remarks": unknown} if unknown else {}))
    for n in range(nodes):

        def name(place: str, n: int = n) -> Node:
            return n * gpus + order[place] if place in order else f"node:{n}/{place}"

        cables: list[tuple[Node, Node, float, float, str]]
        cables = [(name(u), name(v), latency, *facts) for (u, v), facts in node.links.items()]
        for card, (gigabytes, own) in node.cards.items() if apart else ():
            cables.append((name(card), "fabric", own or network_latency / 2, gigabytes, "nic"))
        for u, v, delay, gigabytes, kind in cables:
            for a, b in ((u, v), (v, u)):
                graph.add_edge(a, b, latency=delay, bandwidth=gigabytes * 1e9, kind=kind, weight=_WEIGHTS[kind])
    return graph


@dataclass
class _NodeSystem:
    """The devices of a node: GPUs (host, number), links (GB/s, kind) and network cards (GB/s, latency)."""

    # Names of places on other hosts than the first begin with the number of the host.
    hosts: list[str] = field(default_factory=list)
    host: int = 0
    gpus: dict[str, tuple[int, int]] = field(default_factory=dict)
    links: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    cards: dict[str, tuple[float, float]] = field(default_factory=dict)
    cpus: list[tuple[str, float]] = field(default_factory=list)
    direct: list[tuple[str, str, float, Element]] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    parent: dict[str, str] = field(default_factory=dict)

    def cpu(self, one: Element) -> None:
        name = one.attributes.get("host_hash", "")
        if name not in self.hosts:
            self.hosts.append(name)
        self.host = self.hosts.index(name)
        place = self._place("cpu", one.get("numaid"))
        if any(place == name for name, _ in self.cpus):
            one.refuse(f"{place!r} stands twice", "numaid")
        if len(self.cpus) == MAX_GPUS:
            one.refuse(f"has more than {MAX_GPUS:,} processors")
        self.cpus.append((place, _between_processors(one)))
        self._devices_on(one, place)

    def _devices_on(self, one: Element, place: str) -> None:
        """Add the devices attached to `one`, a processor or PCI bridge with the name `place`."""
        gpu = partial(self.gpu, parts=sum(1 for _ in one.each("gpu")))
        readers: dict[str, Callable[[Element, str], None]] = {"pci": self.pci, "nic": self.nic, "gpu": gpu}
        for child in one.children:
            if child.tag in _KNOWN[one.tag]:
                readers[child.tag](child, place)

    def _place(self, kind: str, name: str) -> str:
        """Return the name of a device of this kind on the current host."""
        return f"host:{self.host}/{kind}:{name}" if self.host else f"{kind}:{name}"

    def pci(self, one: Element, parent: str) -> None:
        place = self._place("pci", one.get("busid").lower())
        if place in self.parent:
            one.refuse(f"{place!r} stands twice", "busid")
        self.parent[place] = parent
        width = one.whole("link_width", -1, 65_535, default=0) if one.attributes.get("link_width") else 0
        speed = (one.attributes.get("link_speed", "").split() or [""])[0].removesuffix(".0")
        # A virtual machine does not know the link: 0 or 255 lanes of unknown speed.
        gigabytes = (width if 0 < width <= _MAX_LANES else _LANES) * _PCI.get(speed, _PCI_DEFAULT) / 80
        before = len(self.gpus) + len(self.cards)
        self._devices_on(one, place)
        if len(self.gpus) + len(self.cards) > before:
            self.links[place, parent] = gigabytes, "pci"

    def gpu(self, one: Element, place: str, parts: int) -> None:
        own = place
        if parts > 1:
            own = f"{place}/gpu:{one.get('mlopart')}"
            self.links[own, place] = _LOCAL, "pci"
        if own in self.gpus or len(self.gpus) == MAX_GPUS:
            one.refuse(f"is a second GPU at {own!r}, or more than {MAX_GPUS:,}")
        self.gpus[own] = self.host, one.whole("dev", 0, 1_000_000)
        if place in self.devices:
            return
        self.devices.add(place)
        capability, architecture = one.whole("sm", 0, 10_000), one.attributes.get("gcn", "").removeprefix("gfx")
        each = {
            "nvlink": next(gigabytes for least, gigabytes in _NVLINK if capability >= least),
            "xgmi": next(gigabytes for begins, gigabytes in _XGMI.items() if architecture.startswith(begins)),
        }
        for link in one.children:
            if link.tag == "c2c":
                gigabytes = link.whole("count", 1, 1000) * link.whole("bw", 1, 10_000_000) / 1000
                self.direct.append((place, "cpu", gigabytes, link))
            elif link.tag in each:
                self.direct.append((place, self._target(link), link.whole("count", 1, 1000) * each[link.tag], link))

    def _target(self, link: Element) -> str:
        kind = link.attributes.get("tclass", _GPU[0])
        if kind in (_SWITCH, _CPU):
            return "nvswitch" if kind == _SWITCH else "cpu"
        if not kind.startswith(_GPU):
            link.refuse(f"leads to a device of class {kind[:20]!r}, neither GPU nor switch nor processor", "tclass")
        return self._place("pci", link.get("target").lower())

    def nic(self, one: Element, parent: str) -> None:
        for net in one.each("net"):
            place = self._place("net", f"{net.get('name')}:{net.attributes.get('port', '0')}")
            if "dev" not in net.attributes or net.whole("dev", -1, 1_000_000) < 0:
                continue
            if place in self.cards:
                net.refuse(f"{place!r} stands twice", "name")
            speed = max(net.whole("speed", -1, 100_000_000, default=10_000), 0) or 10_000
            latency = read_number(net.attributes.get("latency", "0")) / 1e6
            if wrong := bounds_error(latency, Seconds, net.attributes.get("latency", "")[:40]):
                net.refuse(wrong, "latency")
            self.cards[place] = speed / 8000, latency
            self.links[place, parent] = _LOCAL, "pci"

    def finish(self) -> None:
        """Add the links between processors of a host, and the links that join GPUs directly."""
        for number, (a, gigabytes) in enumerate(self.cpus):
            for b, other in self.cpus[number + 1 :]:
                if a.rpartition("/")[0] == b.rpartition("/")[0]:
                    self.links[a, b] = min(gigabytes, other), "sys"
        total: dict[tuple[str, str], tuple[float, str]] = {}
        for place, target, gigabytes, link in self.direct:
            if target == "cpu":
                target = self._processor_of(place)
            elif target != "nvswitch" and target not in self.devices:
                self.absent.add(target.rpartition("pci:")[2])
                continue
            if target == place:
                link.refuse("leads from a GPU to itself", "target")
            total[place, target] = total.get((place, target), (0.0, ""))[0] + gigabytes, link.tag
        for (place, target), (gigabytes, kind) in total.items():
            # A link between two GPUs stands at both of them; one to the processor may stand for a slower one over PCI.
            if (target, place) not in self.links:
                other = total.get((target, place), (0.0, ""))[0]
                self.links[place, target] = max(gigabytes, other), kind

    def missing(self) -> list[str]:
        """Return a remark on links to GPUs that the job did not see, which the library passes over, too."""
        shown = ", ".join(sorted(one[:40] for one in self.absent)[:4]) + ", ..." * (len(self.absent) > 4)
        return [f"links to GPUs that are not in the file are passed over: {shown}"] if shown else []

    def _processor_of(self, place: str) -> str:
        while place in self.parent:
            place = self.parent[place]
        return place


def _unknown(one: Element) -> set[str]:
    """Return warnings about XML elements inside `one` that the reader does not know."""
    known = _KNOWN.get(one.tag, ())
    said = "is not known and passed over: figures have nothing of what it joins"
    found = {f"<{child.tag[:40]}> in <{one.tag}> {said}" for child in one.children if child.tag not in known}
    return found.union(*(_unknown(child) for child in one.children if child.tag in known))


def _between_processors(one: Element) -> float:
    """Return the bandwidth between two processors [GB/s], by the processor's architecture and model."""
    arch, vendor = one.attributes.get("arch", "x86_64"), one.attributes.get("vendor", "")
    if (arch, vendor) == ("x86_64", "GenuineIntel"):
        model, family = one.whole("modelid", 0, 1000, default=0), one.whole("familyid", 0, 1000, default=6)
        return next(gigabytes for least, gigabytes in _INTEL if model * (family == 6) >= least)
    return 32.0 if arch == "ppc64" else 16.0 if (arch, vendor) == ("x86_64", "AuthenticAMD") else 6.0
