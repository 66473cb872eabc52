"""Reads topologies from networkx's file formats: node-link JSON, GraphML and GML, such as those of the Topology Zoo.

References
----------
S. Knight et al., "The Internet Topology Zoo", IEEE JSAC 29(9), 2011.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from simnet.base.errors import InputError, refuse_values, shorten_text, suggest_names
from simnet.base.file_io import read_text
from simnet.interchange.xmlfile import read_xml
from simnet.topologies.graphs import Graph, Node, affordable, check_graph, empty, label
from simnet.topologies.routes import Routes

MAX_JSON_BYTES = 256 * 2**20
"""The largest file of node-link JSON that is read."""

MAX_GRAPHML_BYTES = 16 * 2**20
"""The largest GraphML or GML file that is read."""

# m, and m/s of light in fibre.
_EARTH, _FIBRE = 6_371e3, 2.04e8
_NO_NUMBER = (KeyError, TypeError, ValueError, OverflowError)


def read_nodelink(path: str | Path) -> Graph:
    """Read a topology from node-link JSON, as ``networkx.node_link_data`` writes it.

    Nodes are hosts (whole numbers 0 .. P-1) and switches (strings), links carry ``latency`` [s] and ``bandwidth``
    [byte/s]; other attributes are kept. Links stand under ``"edges"`` or ``"links"``. Each link of an undirected graph
    becomes one in each direction. Hosts pass on messages with ``hosts_forward``, or if there are no switches and one
    does not reach another otherwise. Raises InputError if the file is not JSON of this form, or no topology.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import networkx as nx
    >>> from simnet.topologies import ring
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "ring.json")
    ...     _ = file.write_text(json.dumps(nx.node_link_data(ring(4, 1e-3, 1e9))))
    ...     graph = read_nodelink(file)
    >>> graph.edges[0, 1]["bandwidth"], graph.graph["name"]
    (1000000000.0, 'ring')
    """
    import networkx as nx

    refuse = partial(_refuse, str(path))

    def entries(value: object, name: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            refuse(f"must be an object, got {_value_text(value)}", name)
        return {key: tuple(one) if isinstance(one, list) and key == "sites" else one for key, one in value.items()}

    def node(value: object, name: str) -> Node:
        if isinstance(value, bool) or not isinstance(value, int | str):
            refuse(f"must be a host (a whole number) or a switch (a string), got {_value_text(value)}", name)
        return value

    data = entries(_read_json(read_text(Path(path), MAX_JSON_BYTES), str(path)), "")
    if data.get("multigraph"):
        refuse("must be false; join parallel links by adding their bandwidths", "multigraph")
    links = "links" if "links" in data and "edges" not in data else "edges"
    for name in ("nodes", links):
        if not isinstance(data.get(name), list):
            refuse(f"must be a list; {suggest_names(name, data)}".replace("Allowed:", "Given:"), name)
    graph: Graph = nx.DiGraph(**entries(data.get("graph", {}), "graph"))
    for number, one in enumerate(data["nodes"]):
        facts = dict(entries(one, f"nodes[{number}]"))
        new = node(facts.pop("id", None), f"nodes[{number}].id")
        if new in graph:
            refuse(f"{label(new)} stands twice", f"nodes[{number}].id")
        graph.add_nodes_from([(new, facts)])
    directed = data.get("directed", False)
    for number, one in enumerate(data[links]):
        facts = dict(entries(one, f"{links}[{number}]"))
        u, v = (node(facts.pop(end, None), f"{links}[{number}].{end}") for end in ("source", "target"))
        for end, place in (("source", u), ("target", v)):
            if place not in graph:
                refuse(f"there is no node {_value_text(place)}", f"{links}[{number}].{end}")
        for way in [(u, v)] if directed else [(u, v), (v, u)]:
            if graph.has_edge(*way):
                refuse(f"the link {label(way[0])} -> {label(way[1])} stands twice", f"{links}[{number}]")
            graph.add_edges_from([(*way, facts)])
    hosts = _check_hosts(graph, str(path))
    graph.graph.setdefault("hosts", hosts)
    gap = None if "hosts_forward" in graph.graph else Routes(graph).gap()
    if gap is not None and len(graph) == hosts:
        graph.graph["hosts_forward"] = True
        graph.graph.setdefault("remarks", []).append("hosts pass on messages, as the graph has no switches")
    elif gap is not None and nx.has_path(graph, *gap):
        rule = "hosts pass on nothing unless the graph has hosts_forward"
        refuse(f"there is no route from host {gap[0]} to host {gap[1]}: {rule}")
    return graph


def read_graphml(path: str | Path, latency: float | None = None, bandwidth: float | None = None) -> Graph:
    """Read a topology from GraphML or GML, as networkx reads them.

    Nodes become hosts 0 .. P-1 in their order in the file, and pass on messages. A link has its ``bandwidth`` [byte/s]
    or ``LinkSpeedRaw`` [bit/s], else `bandwidth`; it has `latency` [s], else its ``latency`` or the time of light in
    fibre between the ``Latitude`` and ``Longitude`` of its ends. Parallel links become one with the sum of their
    bandwidths. Raises InputError if the file is not of this form, or a link has no latency or no bandwidth.
    """
    import networkx as nx

    refuse, text = partial(_refuse, str(path)), read_text(Path(path), MAX_GRAPHML_BYTES)
    if text.lstrip().startswith("<"):
        read_xml(path, ["graphml"])
    try:
        read = nx.parse_graphml(text) if text.lstrip().startswith("<") else nx.parse_gml(text, label="id")
    except (nx.NetworkXError, ValueError, KeyError, TypeError, AttributeError) as error:
        refuse(f"is not a graph that networkx reads: {str(error)[:200]}")
    affordable(2 * read.number_of_edges(), "such a graph")
    order = {node: host for host, node in enumerate(read.nodes)}
    graph = empty("graphml", len(order), hosts_forward=True)
    for u, v, facts in read.edges(data=True):
        name = f"the link {u} - {v}"
        own = _number(facts, "bandwidth") or (_number(facts, "LinkSpeedRaw") or 0.0) / 8 or bandwidth
        takes = latency if latency is not None else _number(facts, "latency")
        takes = _light_seconds(read.nodes[u], read.nodes[v]) if takes is None else takes
        if own is None:
            refuse(f"{name} has no LinkSpeedRaw: give bandwidth (--bandwidth 10Gbit/s), that of links without one")
        if takes is None:
            refuse(f"{name} has no latency, and its ends no coordinates: give latency (--latency 5ms)")
        ends = (order[u], order[v])
        for a, b in {ends} if read.is_directed() else {ends, ends[::-1]}:
            known = graph.edges[a, b] if graph.has_edge(a, b) else {"latency": takes, "bandwidth": 0.0}
            both = {"latency": min(takes, known["latency"]), "bandwidth": own + known["bandwidth"]}
            if a != b:
                graph.add_edge(a, b, **both, kind="wan")
    _check_hosts(graph, str(path))
    return graph


def _refuse(file: str, message: str, field: str | None = None) -> NoReturn:
    raise InputError(message, file=file, field=field)


def _check_hosts(graph: Graph, file: str) -> int:
    """Return the number of hosts, and remark on values of another unit; InputError if the topology is not valid."""
    with refuse_values(file=file):
        hosts = check_graph(graph)
    links = [one for _, _, one in graph.edges(data=True)]
    longest = max((one["latency"] for one in links), default=0.0)
    slowest = min((one["bandwidth"] for one in links), default=0.0)
    said = [f"latency counts in seconds: a link has {longest:g}"] * (longest >= 1)
    said += [f"bandwidth counts in byte/s: a link has {slowest:g}"] * (0 < slowest < 10_000)
    graph.graph.pop("remarks", None)
    graph.graph |= {"remarks": said} if said else {}
    return hosts


def _read_json(text: str, file: str) -> object:
    def constant(name: str) -> NoReturn:
        raise InputError(f"holds {name}, which is not JSON", file=file)

    try:
        return json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", file=file, line=error.lineno) from None
    except RecursionError:
        raise InputError("is nested too deep", file=file) from None
    except ValueError:  # a whole number of thousands of digits
        raise InputError("holds a number that is too long", file=file) from None


def _value_text(value: object) -> str:
    return shorten_text(json.dumps(value), 40)


def _number(facts: Mapping[str, Any], name: str) -> float | None:
    """Return the value of a numeric attribute if it is finite and >= 0; otherwise None."""
    try:
        value = float(facts[name])
    except _NO_NUMBER:
        return None
    return value if 0 <= value < math.inf else None


def _light_seconds(u: Mapping[str, Any], v: Mapping[str, Any]) -> float | None:
    """Return the time [s] of light in fibre between the coordinates of two nodes; None without coordinates."""
    try:
        places = [math.radians(float(one[name])) for one in (u, v) for name in ("Latitude", "Longitude")]
    except _NO_NUMBER:
        return None
    if not all(map(math.isfinite, places)):
        return None
    north, east, other, far = places
    half = math.sin((north - other) / 2) ** 2 + math.cos(north) * math.cos(other) * math.sin((east - far) / 2) ** 2
    return 2 * _EARTH / _FIBRE * math.asin(math.sqrt(min(max(half, 0.0), 1.0)))
