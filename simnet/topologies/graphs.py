"""Topologies as graphs of hosts, switches, and directed links with a latency and a bandwidth.

A `networkx.DiGraph` whose nodes are

* hosts, the ints 0 .. P-1, and
* switches, strings such as ``"core:3"`` or ``"site:Tokyo"``; they forward without delay or limit of their own,

and whose edges, the links, carry

* ``latency`` [s], >= 0, and ``bandwidth`` [byte/s], > 0;
* ``kind``, by which `select_links` finds them: ``"host"`` at a host, ``"fabric"`` between switches, ``"wan"`` between
  sites, ``"border"`` to the border router of a site that is a cluster, ``"local"`` and ``"global"`` inside and between
  the groups of a dragonfly, ``"dim0"``, ``"dim1"``, ... along the dimensions of a torus or flattened butterfly, and in
  a cluster of multi-GPU nodes ``"intra"`` at a GPU and ``"nic"`` at a network card;
* ``weight``, the cost by which `Routes` chooses paths, where it is not 1.

Builders of this package return a graph that networkx makes when somebody looks at it (`simnet.topologies.deferred`).
``graph.graph`` holds ``name`` (the family), ``hosts`` (P) and, where hosts pass on the traffic of others as in a ring,
``hosts_forward`` (True), and ``shape`` (see `simnet.topologies.shapes`). A graph from elsewhere needs only hosts,
latencies and bandwidths; ``routes`` may give it the paths of some pairs of hosts, each a sequence of all nodes from one
host to the other, where they are not those that `Routes` would choose.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from simnet.base.errors import check_int
from simnet.topologies.checks import factor, latency_seconds, rate
from simnet.topologies.deferred import Deferred, add_link, deferred, nodes_and_links

if TYPE_CHECKING:
    import networkx as nx

Node: TypeAlias = int | str
Link: TypeAlias = tuple[Node, Node]
Graph: TypeAlias = "nx.DiGraph[Any]"


def empty(name: str, hosts: int, **facts: Any) -> Graph:
    """Return a graph of `hosts` hosts and no links, with `facts` as graph attributes."""
    return deferred(range(hosts), name=name, hosts=hosts, **facts)


def cable(graph: Graph, a: Node, b: Node, latency: float, bandwidth: float, kind: str, **more: Any) -> None:
    """Connect `a` and `b` by two links, one in each direction.

    Parameters
    ----------
    graph : DiGraph
        Takes the links.
    a, b : node
        The ends.
    latency, bandwidth : float
        Of each link [s], [byte/s].
    kind : str
        What kind of link it is; see `simnet.topologies`.
    **more
        Further attributes of both.
    """
    add_link(graph, a, b, latency=latency, bandwidth=bandwidth, kind=kind, **more)
    add_link(graph, b, a, latency=latency, bandwidth=bandwidth, kind=kind, **more)


def label(node: object) -> str:
    """Return a readable name of a node: ``host:3``, or the name of a switch."""
    return node if isinstance(node, str) else f"host:{node}"


def check_graph(graph: Graph) -> int:
    """Return the number of hosts of a topology; ValueError if nodes, links or attributes are invalid.

    Raises
    ------
    ValueError
        If the graph is not a DiGraph, a node is neither an int nor a string, hosts are missing in 0 .. P-1, a link
        leads from a node to itself, its latency or bandwidth is missing or out of range, a weight is out of range, or
        ``routes`` holds what is no path from a host to another over links that there are, or two for a pair.
    """
    return checked_parts(graph)[0]


def checked_parts(graph: Graph) -> tuple[int, list[Node], list[tuple[Node, Node, dict[str, Any]]]]:
    """Return the number of hosts, the nodes, and the links of a topology; ValueError as from `check_graph`."""
    if not isinstance(graph, Deferred):
        import networkx as nx

        if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
            raise ValueError(
                f"a topology must be a networkx.DiGraph, got {type(graph).__name__}; an undirected graph becomes one "
                "by to_directed(), parallel links by adding their bandwidths"
            )
    nodes, links = nodes_and_links(graph)
    # Links of one kind have the same few numbers.
    allowed: set[tuple[str, float]] = set()
    for u, v, link in links:
        for end in (u, v):
            if not _is_node(end):
                raise ValueError(f"link {u!r} -> {v!r}: {end!r} is neither a host (int) nor a switch (str)")
        if u == v:
            raise ValueError(f"link {label(u)} -> {label(v)} leads from a node to itself")
        for what, check_one in (("latency", latency_seconds), ("bandwidth", rate), ("weight", factor)):
            if what in link:
                value = link[what]
                if type(value) is float and (what, value) in allowed:
                    continue
                allowed.add((what, check_one(value, f"{what} of the link {label(u)} -> {label(v)}")))
            elif what != "weight":
                raise ValueError(f"link {label(u)} -> {label(v)} has no attribute {what!r}")
    for node in nodes:
        if not _is_node(node):
            raise ValueError(f"node {node!r} is neither a host (int) nor a switch (str)")
    hosts = sorted(node for node in nodes if not isinstance(node, str))
    if not hosts:
        raise ValueError("the topology has no hosts; hosts are the nodes 0 .. P-1")
    if hosts[0] != 0:
        raise ValueError(f"hosts must be numbered 0 .. P-1; the first of them is {hosts[0]}")
    for before, after in pairwise(hosts):
        if after != before + 1:
            raise ValueError(f"hosts must be numbered 0 .. P-1 without gaps; {before} is followed by {after}")
    weights = [link.get("weight", 1.0) for _, _, link in links] or [1.0]
    # Beyond this a small weight could vanish when it is added to a large one, and a path of least cost run in circles.
    if max(weights) > 1e9 * min(weights):
        raise ValueError(f"weights must lie within a factor of 1e9, got {min(weights)} and {max(weights)}")
    claimed = check_int(graph.graph.get("hosts", len(hosts)), 'graph.graph["hosts"]', 1)
    if claimed != len(hosts):
        raise ValueError(f'graph.graph["hosts"] is {claimed}, but the graph has {len(hosts)} hosts')
    if "routes" in graph.graph:
        _check_routes(graph.graph["routes"], {(u, v) for u, v, _ in links})
    return len(hosts), nodes, links


def _check_routes(routes: object, links: Set[Link]) -> None:
    if not isinstance(routes, list | tuple):
        raise ValueError(f'graph.graph["routes"] must be a list of paths, got {routes!r:.60}')
    pairs = set()
    for number, path in enumerate(routes):
        name = f'graph.graph["routes"][{number}]'
        if not isinstance(path, list | tuple) or len(path) < 2 or not all(map(_is_node, path)):
            raise ValueError(f"{name} must be the nodes from one host to another, got {path!r:.60}")
        src, dst = path[0], path[-1]
        if isinstance(src, str) or isinstance(dst, str) or src == dst:
            raise ValueError(f"{name} must lead from one host to another, got {label(src)} and {label(dst)}")
        for u, v in pairwise(path):
            if (u, v) not in links:
                raise ValueError(f"{name}: there is no link {label(u)} -> {label(v)}")
        if len(set(pairwise(path))) < len(path) - 1:
            raise ValueError(f"{name} takes a link twice")
        if (src, dst) in pairs:
            raise ValueError(f"{name} is the second from {label(src)} to {label(dst)}")
        pairs.add((src, dst))


def _is_node(node: object) -> bool:
    return isinstance(node, str) or (isinstance(node, int) and not isinstance(node, bool))
