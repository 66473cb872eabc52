"""Writes SimGrid platforms, with a link per direction, the routes of `simnet.topologies.Routes`, and link profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from itertools import permutations
from pathlib import Path
from typing import Literal

from simnet.base.errors import InputError, check_choice, check_positive
from simnet.base.units import format_bytes
from simnet.interchange.xmlfile import MAX_BYTES
from simnet.network.weather import Weather
from simnet.topologies import Routes
from simnet.topologies.graphs import Graph, Link, Node, check_graph, label


def write_platform(
    graph: Graph,
    path: str | Path,
    weather: Mapping[Link, Weather] | None = None,
    *,
    duration: float | None = None,
    routing: Literal["Full", "Dijkstra"] = "Full",
    routes: Routes | None = None,
    largest: int = MAX_BYTES,
) -> None:
    """Write a topology as a SimGrid platform, and link variations over time as profiles in ``NAME_profiles``.

    Every directed link becomes a ``SHARED`` link. Hosts are named ``host:0``, ``host:1``, ... Profiles have `duration`
    seconds; then the last value holds. Routing ``"Full"`` writes the route of every pair of hosts, by default those of
    `simnet.topologies.Routes`, so SimGrid takes the same paths; ``"Dijkstra"`` writes the links only, and SimGrid
    resolves ties its own way. SimGrid's default network model corrects latencies and bandwidths for TCP by constant
    factors; with ``--cfg=network/model:CM02 --cfg=network/TCP-gamma:0 --cfg=network/crosstraffic:0`` it takes them as
    written.

    Raises ValueError if the graph is no topology, weather names links that are not in the graph, or comes without
    `duration`, or the routes take more than `largest` bytes; InputError if a file cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from simnet.interchange.simgrid import read_platform
    >>> from simnet.topologies import star
    >>> with TemporaryDirectory() as folder:
    ...     write_platform(star(3, 1e-3, 1e9), Path(folder, "star.xml"), routing="Dijkstra")
    ...     list(read_platform(Path(folder, "star.xml")).graph.edges)[:3]
    [(0, 'switch'), (1, 'switch'), (2, 'switch')]
    """
    hosts = check_graph(graph)
    weather = dict(weather or {})
    for link in weather:
        if not graph.has_edge(*link):
            raise ValueError(f"there is weather for {link!r}, but no such link")
    if weather and duration is None:
        raise ValueError("weather needs a duration: how many seconds of it to write")
    names = _quoted_names(graph)
    file = Path(path)
    try:
        profiles = _write_profiles(file, list(graph.edges), weather, duration)
        with file.open("w", encoding="utf-8", newline="\n") as out:
            out.write("<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n")
            out.write(f'<platform version="4.1">\n  <zone id="simnet" routing="{routing}">\n')
            out.writelines(f'    <host id={names[host]} speed="1Gf"/>\n' for host in range(hosts))
            switches = [node for node in graph if isinstance(node, str)] if routing == "Dijkstra" else []
            out.writelines(f"    <router id={names[node]}/>\n" for node in switches)
            for u, v, data in graph.edges(data=True):
                out.write(
                    f'    <link id={_link_name(names, u, v)} bandwidth="{float(data["bandwidth"])!r}Bps" '
                    f'latency="{float(data["latency"])!r}s" sharing_policy="SHARED"{profiles.get((u, v), "")}/>\n'
                )
            written = 0
            for src, dst, links in _routes_written(graph, hosts, routing, routes or Routes(graph)):
                over = "".join(f"<link_ctn id={_link_name(names, u, v)}/>" for u, v in links)
                route = f'    <route src={names[src]} dst={names[dst]} symmetrical="NO">{over}</route>\n'
                written += len(route.encode())
                if written > largest:
                    raise ValueError(
                        f"the routes of {hosts:,} hosts take more than {format_bytes(largest)}; use routing='Dijkstra'"
                    )
                out.write(route)
            out.write("  </zone>\n</platform>\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=error.filename or str(path)) from None


def _quoted_names(graph: Graph) -> dict[Node, str]:
    """Return a dict from node to its name, quoted for XML; ValueError if two nodes have the same name."""
    names: dict[Node, str] = {}
    for node in graph:
        name = label(node)
        if not name.isprintable():
            raise ValueError(f"the name {name!r} of a switch cannot stand in XML")
        names[node] = f'"{escape(name)}"'
    twice = [name for name, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise ValueError(f"two nodes are named {twice[0]}")
    return names


def _link_name(names: Mapping[Node, str], u: Node, v: Node) -> str:
    return f"{names[u][:-1]}-&gt;{names[v][1:]}"


def _routes_written(graph: Graph, hosts: int, routing: str, routes: Routes) -> Iterator[tuple[Node, Node, list[Link]]]:
    if routing == "Dijkstra":
        yield from ((u, v, [(u, v)]) for u, v in graph.edges)
        return
    check_choice(routing, "routing", ("Full", "Dijkstra"))
    for src, dst in permutations(range(hosts), 2):
        yield src, dst, [routes.links[link] for link in routes.route(src, dst)]


def _write_profiles(
    file: Path, links: list[Link], weather: Mapping[Link, Weather], duration: float | None
) -> dict[Link, str]:
    """Write each link's variation over time to profile files; return the files' XML attributes by link."""
    attributes: dict[Link, str] = {}
    if not weather or duration is None:
        return attributes
    check_positive(duration, "duration")
    folder = file.parent / f"{file.stem}_profiles"
    folder.mkdir(exist_ok=True)
    for number, link in enumerate(links):
        for what in ("bandwidth", "latency"):
            if (signal := getattr(weather.get(link), what, None)) is not None:
                name = f"link{number}_{what}.profile"
                changes = zip(*(one.tolist() for one in signal.window(0.0, duration)), strict=True)
                text = "".join(f"{time!r} {value!r}\n" for time, value in changes)
                (folder / name).write_text(text, encoding="ascii")
                attributes[link] = attributes.get(link, "") + f' {what}_file="{escape(f"{folder.name}/{name}")}"'
    return attributes
