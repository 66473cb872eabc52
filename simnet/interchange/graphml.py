"""Reads GraphML and GML files, such as the Topology Zoo's, as topologies whose nodes are hosts that forward messages.

References
----------
S. Knight et al., "The Internet Topology Zoo", IEEE JSAC 29(9), 2011.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from simnet.base.errors import InputError
from simnet.base.reading import read_text
from simnet.interchange.xmlfile import read_xml
from simnet.topologies.checks import affordable
from simnet.topologies.graphs import Node, check_graph, empty

if TYPE_CHECKING:
    import networkx as nx

MAX_BYTES = 16 * 2**20
"""The largest file that is read."""

# m, and m/s of light in fibre.
_EARTH, _FIBRE = 6_371e3, 2.04e8
_NO_NUMBER = (KeyError, TypeError, ValueError, OverflowError)


def read_graphml(path: str | Path, latency: float | None = None, bandwidth: float | None = None) -> nx.DiGraph[Node]:
    """Read a topology from GraphML or GML, as networkx reads them.

    Nodes become hosts 0 .. P-1 in their order in the file, and pass on messages. A link has its ``bandwidth`` [byte/s]
    or ``LinkSpeedRaw`` [bit/s], else `bandwidth`; it has `latency` [s], else its ``latency`` or the time of light in
    fibre between the ``Latitude`` and ``Longitude`` of its ends. Parallel links become one with the sum of their
    bandwidths. Raises InputError if the file is not of this form, or a link has no latency or no bandwidth.
    """
    import networkx as nx

    file, text = str(path), read_text(Path(path), MAX_BYTES)

    def refuse(message: str) -> NoReturn:
        raise InputError(message, file=file)

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
    try:
        check_graph(graph)
    except ValueError as error:
        refuse(str(error))
    return graph


def _number(facts: Mapping[str, Any], name: str) -> float | None:
    """Return the value of a numeric attribute, finite and >= 0; None if it is missing or no number."""
    try:
        value = float(facts[name])
    except _NO_NUMBER:
        return None
    return value if 0 <= value < math.inf else None


def _light_seconds(u: Mapping[str, Any], v: Mapping[str, Any]) -> float | None:
    """Return the time of light in fibre along the great circle between two nodes [s]; None without coordinates."""
    try:
        places = [math.radians(float(one[name])) for one in (u, v) for name in ("Latitude", "Longitude")]
    except _NO_NUMBER:
        return None
    if not all(map(math.isfinite, places)):
        return None
    north, east, other, far = places
    half = math.sin((north - other) / 2) ** 2 + math.cos(north) * math.cos(other) * math.sin((east - far) / 2) ** 2
    return 2 * _EARTH / _FIBRE * math.asin(math.sqrt(min(max(half, 0.0), 1.0)))
