"""SimGrid platforms: links with bandwidth and latency, routes, and profiles of links that change over time.

SimGrid lists the links of every pair of hosts; here routes follow from a graph. A link that is a route by itself
becomes an edge. Any other link becomes a pair of nodes with the link between them, which routes enter and leave over
free edges. Where the routes of the graph would differ from the written ones, the graph carries the latter.

References
----------
SimGrid 4.1, "XML reference" and "Profiles"; H. Casanova et al., "Versatile, Scalable, and Accurate Simulation of
Distributed Applications and Platforms", J. Parallel Distrib. Comput. 74(10), 2014.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from simnet.base.errors import InputError, read_number, suggest_names
from simnet.base.file_io import read_text
from simnet.base.quantities import MOST_RATE, Bandwidth, Rate, Seconds, bounds_error
from simnet.interchange.xmlfile import Element, read_xml
from simnet.network.weather import Signal, Weather
from simnet.topologies import Routes
from simnet.topologies.graphs import Graph, Link, Node, empty, label

MAX_PROFILE_BYTES = 64 * 2**20
"""The largest profile that is read."""


def read_link_profile(path: str | Path, nominal: float, quantity: Any = Rate) -> Signal:
    r"""Read a link's profile: each line has a date [s] and a value, a bandwidth [byte/s] or a latency [s].

    ``PERIODICITY p`` repeats the pattern every p seconds, ``LOOPAFTER d`` d seconds after its last date. Dates count
    from the start of the pattern; before the first, the value is `nominal`. `quantity` has the bounds of values. Raises
    InputError, with file and line, if the file is no such profile, or is stochastic.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "link.profile")
    ...     _ = file.write_text("4 1000\n8 2000\nLOOPAFTER 12\n")
    ...     signal = read_link_profile(file, nominal=500)
    >>> [signal.at(t) for t in (0, 4, 8, 23, 24, 28)]
    [500.0, 1000.0, 2000.0, 2000.0, 1000.0, 2000.0]
    """
    points: dict[float, float] = {}
    last, loop = 0.0, None

    def refuse(line: int | None, message: str) -> NoReturn:
        raise InputError(message, file=str(path), line=line)

    for line, raw in enumerate(read_text(Path(path), MAX_PROFILE_BYTES).split("\n"), start=1):
        words = raw.split()
        if not words or words[0][0] in "#%":
            continue
        if words[0] == "STOCHASTIC" or any(word.isalpha() for word in words[1:]):
            refuse(line, "is stochastic; only profiles with fixed dates and values are read")
        if len(words) != 2:
            refuse(line, f"must be a date and a value, PERIODICITY p or LOOPAFTER d, got {raw.strip()[:40]!r}")
        repeats = words[0] in ("PERIODICITY", "LOOPAFTER")
        numbers = [read_number(word) for word in words[repeats:]]
        for word, number, kind in zip(words[repeats:], numbers, (Seconds, quantity), strict=False):
            if wrong := bounds_error(number, kind, word[:40]):
                refuse(line, wrong)
        if repeats:
            if loop is not None:
                refuse(line, f"repeats twice; {loop[0]} stands in line {loop[2]}")
            loop = words[0], numbers[0], line
            continue
        if numbers[0] < last:
            refuse(line, f"must not be earlier than the date before ({last:g}), got {words[0][:40]}")
        last, points[numbers[0]] = numbers
    if not points:
        refuse(None, "has no dates")
    times, levels = np.array([*points]), np.array([*points.values()])
    before = ([], []) if times[0] == 0 else ([0.0], [nominal])
    start = np.append(before[0], times), np.append(before[1], levels)
    if loop is None:
        return Signal(*start)
    word, seconds, line = loop
    period = seconds if word == "PERIODICITY" else last + seconds
    if period < last or period == 0:
        refuse(line, f"repeats after {period:g} s, before its last date {last:g}")
    if times[0] + period == last:
        # The pattern begins again in the very moment of its last date, which therefore never lasts.
        times, levels, start = times[:-1], levels[:-1], (start[0][:-1], start[1][:-1])

    def chunks() -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        at_once = max(1, 512 // times.size)
        first = 1
        while True:
            starts = np.arange(first, first + at_once) * period
            points = (starts[:, np.newaxis] + times).ravel()
            lasting = np.append(points[:-1] < points[1:], True)
            yield points[lasting], np.tile(levels, at_once)[lasting]
            first += at_once

    return Signal(*start, chunks())


MAX_HOSTS = 100_000
"""The most hosts of a platform that is read."""

_NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z]*)")
_PREFIXES = {"": Decimal(1)} | {
    name: Decimal(base) ** power
    for base, names in ((1000, ("k", "M", "G", "T", "P", "E", "Z", "Y")), (1024, ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")))
    for power, name in enumerate(names, start=1)
}
_TIMES = {"": 1, "w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_SECONDS = {unit: Decimal(factor) for unit, factor in _TIMES.items()} | {
    f"{prefix}s": Decimal(1000) ** -power for power, prefix in enumerate("munp", start=1)
}
_RATES = {"": Decimal(1)} | {
    f"{prefix}{unit}": factor * scale
    for prefix, factor in _PREFIXES.items()
    for unit, scale in (("Bps", Decimal(1)), ("bps", Decimal("0.125")))
}
_POLICIES = ("SHARED", "SPLITDUPLEX", "FATPIPE")
_ROUTINGS = ("Full", "Floyd", "Dijkstra", "DijkstraCache", "None")
_IGNORED = ("prop", "config", "disk", "storage", "storage_type", "mount", "actor", "process", "trace")
# Entering or leaving a link costs next to nothing beside the link, so routes are those of the fewest links.
_CONNECTOR_WEIGHT = 1e-6


class SimGridPlatform(NamedTuple):
    """A SimGrid platform as a topology; bandwidths and latencies that vary by a profile are in `weather`."""

    # The topology; hosts carry their ``name``, and links their ``link``, as in the platform.
    graph: Graph
    # The links that have profiles.
    weather: dict[Link, Weather]
    # Names of the hosts 0 .. P-1, in the order of the file.
    hosts: tuple[str, ...]


def read_platform(path: str | Path) -> SimGridPlatform:
    """Read a SimGrid platform file of version 4 or 4.1.

    Zones of routing Full, Floyd and Dijkstra are flattened, flat clusters with or without backbone become stars. Speeds
    of hosts, disks, properties and configuration are ignored. Profiles are read from files next to or below the
    platform; before its first date a profile has no effect.

    Raises InputError if the file or a profile is no such thing, or names what is missing; or for what a graph with fair
    sharing cannot express: a FATPIPE link on a route, state profiles, stochastic profiles, Vivaldi coordinates,
    wireless links, or a route that takes a link twice.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "two.xml")
    ...     _ = file.write_text('''<platform version="4.1"><zone id="z" routing="Full">
    ...         <host id="Jupiter" speed="1Gf"/><host id="Fafard" speed="1Gf"/>
    ...         <link id="1" bandwidth="1MBps" latency="10ms"/>
    ...         <route src="Jupiter" dst="Fafard"><link_ctn id="1"/></route>
    ...     </zone></platform>''')
    ...     platform = read_platform(file)
    >>> platform.hosts, platform.graph.edges[0, 1]["bandwidth"], platform.graph.edges[1, 0]["latency"]
    (('Jupiter', 'Fafard'), 1000000.0, 0.01)
    """
    top = read_xml(path, ["platform"])
    if top.get("version") not in ("4", "4.1"):
        top.refuse(f"must be 4 or 4.1, got {top.get('version')[:20]!r}; simgrid_update_xml converts others", "version")
    reader = _PlatformReader(Path(path).parent)
    reader.zone(top, "None")
    return reader.finish(top)


def profile_names(path: str | Path) -> list[str]:
    """Return the names of the link profiles of a platform, relative to its folder; the profiles are not read."""
    links = (one for one in read_xml(path, ["platform"]).walk() if one.tag == "link")
    names = (_neighbour_file(one, attribute) for one in links for attribute in ("bandwidth_file", "latency_file"))
    return list(dict.fromkeys(name for name in names if name))


# A link in one direction: its name and "UP" or "DOWN", or "" where both directions share it.
_Lane = tuple[str, str]


@dataclass
class _PlatformRoute:
    """A route that a platform declares between two points; if `fixed`, messages must take exactly this route."""

    src: Node
    dst: Node
    lanes: tuple[_Lane, ...]
    at: Element
    fixed: bool


@dataclass
class _SimLink:
    """A link that a platform declares, with SimGrid's sharing policy, and its variation if it has a profile."""

    bandwidth: float
    latency: float
    policy: str
    weather: Weather | None = None


@dataclass
class _PlatformReader:
    """The hosts, links and routes read from a platform so far."""

    folder: Path
    hosts: list[str] = field(default_factory=list)
    points: dict[str, Node] = field(default_factory=dict)
    links: dict[str, _SimLink] = field(default_factory=dict)
    connections: list[_PlatformRoute] = field(default_factory=list)
    zones: set[str] = field(default_factory=set)
    edges: list[tuple[Node, Node, str, float, float]] = field(default_factory=list)
    free: list[tuple[Node, Node]] = field(default_factory=list)
    forward: bool = False
    profiles: dict[tuple[str, float], Signal] = field(default_factory=dict)

    def zone(self, top: Element, routing: str) -> None:
        """Add the elements of a zone, or of a platform's top level."""
        known: dict[str, Callable[[Element], object]]
        known = {"host": self.host, "router": self.router, "link": self.link, "cluster": self.cluster}
        routes = ("route", "zoneRoute", "ASroute")
        self.forward |= routing in ("Floyd", "Dijkstra", "DijkstraCache")
        for one in top.children:
            if one.tag in ("zone", "AS"):
                inner = one.choice("routing", _ROUTINGS)
                self._new(one, one.get("id"), self.zones)
                self.zone(one, inner)
            elif one.tag in known:
                known[one.tag](one)
            elif one.tag not in routes + _IGNORED:
                one.refuse(f"<{one.tag}> is not read; {suggest_names(one.tag, ['zone', *known, *routes])}")
        for one in top.children:
            if one.tag in routes:
                self.route(one, fixed=routing == "Full" and one.tag == "route")

    def _new(self, one: Element, name: str, names: set[str] | Mapping[str, Any]) -> None:
        if name in names:
            one.refuse(f"{name[:60]!r} stands twice", "id")
        if isinstance(names, set):
            names.add(name)

    def _known(self, one: Element, attribute: str, names: Mapping[str, Any] | set[str]) -> str:
        name = one.get(attribute)
        if name not in names:
            close = suggest_names(name, names).partition("Allowed:")[0]
            one.refuse(f"there is no {name[:60]!r}; {close}".rstrip("; "), attribute)
        return name

    def host(self, one: Element, name: str = "") -> int:
        name, number = name or one.get("id"), len(self.hosts)
        self._new(one, name, self.points)
        if number == MAX_HOSTS:
            one.refuse(f"has more than {MAX_HOSTS:,} hosts")
        self.points[name] = number
        self.hosts.append(name)
        return number

    def router(self, one: Element, name: str = "") -> None:
        name = name or one.get("id")
        self._new(one, name, self.points)
        self.points[name] = name

    def link(self, one: Element) -> None:
        name = one.get("id")
        self._new(one, name, self.links)
        policy = one.choice("sharing_policy", _POLICIES, "SPLITDUPLEX")
        if "state_file" in one.attributes or one.attributes.get("state", "ON") != "ON":
            one.refuse("links that fail end their transfers in SimGrid, which weather cannot express")
        rate = _read_rate(one, "bandwidth")
        delay = _read_seconds(one, "latency") if "latency" in one.attributes else 0.0
        weather = Weather(self.profile(one, "bandwidth_file", rate), self.profile(one, "latency_file", delay))
        self.links[name] = _SimLink(rate, delay, policy, None if weather == Weather() else weather)

    def profile(self, one: Element, attribute: str, nominal: float) -> Signal | None:
        if (name := _neighbour_file(one, attribute)) and (name, nominal) not in self.profiles:
            quantity = Seconds if attribute == "latency_file" else Rate
            self.profiles[name, nominal] = read_link_profile(self.folder / name, nominal, quantity)
        return self.profiles.get((name, nominal))

    def cluster(self, one: Element) -> None:
        """Add a flat cluster: hosts in a star around a router, with a backbone link if one is declared."""
        topology = one.attributes.get("topology", "FLAT")
        policy = one.attributes.get("sharing_policy", "SPLITDUPLEX")
        if topology != "FLAT" or "limiter_link" in one.attributes or policy != "SPLITDUPLEX":
            one.refuse("only flat clusters of SPLITDUPLEX links without limiter are read")
        name, prefix, suffix = one.get("id"), one.get("prefix"), one.get("suffix")
        self._new(one, name, self.zones)
        bandwidth, latency = _read_rate(one, "bw"), _read_seconds(one, "lat")
        router = one.attributes.get("router_id") or f"{prefix}{name}_router{suffix}"
        self.router(one, router)
        numbers = list(_host_numbers(one))
        enter: Node = router
        leave: Node = router
        if "bb_bw" in one.attributes or "bb_lat" in one.attributes:
            backbone, rate = f"{name}_backbone", _read_rate(one, "bb_bw")
            if one.attributes.get("bb_sharing_policy") == "FATPIPE" and rate >= bandwidth:
                # Wider than any host's link for every flow by itself, it only adds latency.
                rate *= len(numbers)
            else:
                one.choice("bb_sharing_policy", ("SHARED",), "SHARED")
            enter, leave = f"{backbone}:in", f"{backbone}:out"
            self.edges.append((enter, leave, backbone, rate, _read_seconds(one, "bb_lat")))
            self.free += [(leave, router), (router, enter)]
        for number in numbers:
            host = self.host(one, f"{prefix}{number}{suffix}")
            link = f"{name}_link_{number}"
            self.edges.append((host, enter, f"{link}_UP", bandwidth, latency))
            self.edges.append((leave, host, f"{link}_DOWN", bandwidth, latency))

    def route(self, one: Element, fixed: bool) -> None:
        ends = ("src", "dst")
        if one.tag != "route":
            for end in ends:
                self._known(one, end, self.zones)
            ends = ("gw_src", "gw_dst")
        src, dst = (self.points[self._known(one, end, self.points)] for end in ends)
        lanes: list[_Lane] = []
        for step in one.children:
            if step.tag != "link_ctn":
                step.refuse("is not read inside of a route; Allowed: link_ctn")
            name = self._known(step, "id", self.links)
            direction = step.attributes.get("direction", "UP").replace("NONE", "UP")
            if direction not in ("UP", "DOWN"):
                step.refuse(f"must be UP or DOWN, got {direction[:20]!r}", "direction")
            lanes.append((name, direction if self.links[name].policy == "SPLITDUPLEX" else ""))
        if src == dst:
            return
        if not lanes:
            one.refuse("has no links")
        if pipe := next((name for name, _ in lanes if self.links[name].policy == "FATPIPE"), ""):
            one.refuse(f"goes over {pipe!r}, a FATPIPE link, which its flows do not share; here all links are shared")
        if one.tag != "route" and not (isinstance(src, str) and isinstance(dst, str)):
            self.forward = True
        self.connections.append(_PlatformRoute(src, dst, tuple(lanes), one, fixed))
        symmetrical = one.attributes.get("symmetrical", "YES")
        if symmetrical.upper() not in ("YES", "NO"):
            one.refuse(f"must be YES or NO, got {symmetrical[:20]!r}", "symmetrical")
        if symmetrical.upper() == "YES":
            swapped = {"UP": "DOWN", "DOWN": "UP", "": ""}
            back = tuple((name, swapped[direction]) for name, direction in reversed(lanes))
            self.connections.append(_PlatformRoute(dst, src, back, one, fixed))

    def finish(self, top: Element) -> SimGridPlatform:
        """Return the topology of all elements that were read."""
        if not self.hosts:
            top.refuse("has no hosts")
        uses = Counter(lane for one in self.connections for lane in one.lanes)
        ends = Counter((one.src, one.dst) for one in self.connections)
        rates = [link.bandwidth for link in self.links.values()] + [rate for *_, rate, _ in self.edges]
        # Far more than the links beside it carry, also in fair weather.
        ample = min(1e6 * max(rates, default=1.0), MOST_RATE)
        graph = empty("simgrid", len(self.hosts), **({"hosts_forward": True} if self.forward else {}))
        for host, name in enumerate(self.hosts):
            graph.nodes[host]["name"] = name
        graph.add_nodes_from(point for point in self.points.values() if isinstance(point, str))
        weather: dict[Link, Weather] = {}
        lane_of: dict[Link, _Lane] = {}

        def connect(u: Node, v: Node) -> None:
            graph.add_edge(u, v, latency=0.0, bandwidth=ample, kind="free", weight=_CONNECTOR_WEIGHT)

        def join(u: Node, v: Node, name: str, rate: float, latency: float) -> None:
            kind = "host" if isinstance(u, int) or isinstance(v, int) else "fabric"
            graph.add_edge(u, v, latency=latency, bandwidth=rate, kind=kind, link=name)

        def place(u: Node, v: Node, lane: _Lane) -> None:
            link = self.links[lane[0]]
            join(u, v, _lane_name(lane), link.bandwidth, link.latency)
            lane_of[u, v] = lane
            if link.weather is not None:
                weather[u, v] = link.weather

        for edge in self.edges:
            join(*edge)
        for u, v in self.free:
            connect(u, v)
        paths: list[list[Node]] = []
        for one in self.connections:
            if ends[one.src, one.dst] > 1:
                one.at.refuse(f"there are two routes from {label(one.src)} to {label(one.dst)}")
            if len(set(one.lanes)) < len(one.lanes):
                one.at.refuse("takes a link twice")
            paths.append([one.src, one.dst])
            if len(one.lanes) == 1 and uses[one.lanes[0]] == 1:
                place(one.src, one.dst, one.lanes[0])
                continue
            here = one.src
            for lane in one.lanes:
                enter, leave = (f"link:{_lane_name(lane)}:{end}" for end in ("in", "out"))
                for node in (enter, leave):
                    if node in self.points:
                        one.at.refuse(f"{node!r} is the name of a router and of the end of a link")
                place(enter, leave, lane)
                connect(here, enter)
                here = leave
                paths[-1][-1:] = enter, leave, one.dst
            connect(here, one.dst)
        self._keep_routes(graph, lane_of, paths)
        return SimGridPlatform(graph, weather, tuple(self.hosts))

    def _keep_routes(self, graph: Graph, lane_of: Mapping[Link, _Lane], paths: Sequence[Sequence[Node]]) -> None:
        """Store in the graph the declared routes that differ from shortest paths; messages take the declared ones."""
        routes = Routes(graph)
        others = []
        for one, path in zip(self.connections, paths, strict=True):
            if one.fixed and isinstance(one.src, int) and isinstance(one.dst, int):
                taken = [routes.links[link] for link in routes.route(one.src, one.dst)]
                if tuple(lane_of[link] for link in taken if link in lane_of) != one.lanes:
                    others.append(path)
        if others:
            graph.graph["routes"] = others


def _neighbour_file(one: Element, attribute: str) -> str:
    """Return the file name in an attribute, which must be in the platform's folder or below; "" if missing."""
    name = one.attributes.get(attribute, "")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        one.refuse(f"must lie beside the platform or below, got {name[:60]!r}", attribute)
    return name


def _lane_name(lane: _Lane) -> str:
    return f"{lane[0]}_{lane[1]}" if lane[1] else lane[0]


def _host_numbers(one: Element) -> Iterator[int]:
    """Yield the host numbers in a cluster's attribute ``radical``: ranges such as ``0-99``, separated by commas."""
    count = 0
    for part in re.split("[,;]", one.get("radical")):
        match = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        if match is None:
            one.refuse(f"must be numbers and ranges such as 0-99, got {part[:40]!r}", "radical")
        first, last = int(match[1]), int(match[2] or match[1])
        count += last - first + 1
        if last < first or count > MAX_HOSTS:
            one.refuse(f"must name at least 1 and at most {MAX_HOSTS:,} hosts, got {part[:40]!r}", "radical")
        yield from range(first, last + 1)


def _read_quantity(one: Element, attribute: str, units: Mapping[str, Decimal], quantity: Any) -> float:
    """Return the quantity in an attribute in SI units, as the nearest float; a plain number is in the base unit."""
    text = one.get(attribute).strip()
    match = _NUMBER.fullmatch(text) if len(text) <= 64 else None
    if match is None or match[2] not in units:
        unit = match[2] if match else ""
        one.refuse(f"{text[:40]!r} is not read; {suggest_names(unit, [known for known in units if known])}", attribute)
    value = float(Decimal(match[1]) * units[match[2]])
    if wrong := bounds_error(value, quantity, text[:40]):
        one.refuse(wrong, attribute)
    return value


_read_seconds = partial(_read_quantity, units=_SECONDS, quantity=Seconds)
_read_rate = partial(_read_quantity, units=_RATES, quantity=Bandwidth)
