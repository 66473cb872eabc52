"""Wide-area network of clusters: each site has a topology of its own, and long links join the sites' border routers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from simnet.base.errors import check_choice
from simnet.base.quantities import Bandwidth, Bandwidths, Latencies, Seconds
from simnet.topologies.graphs import Graph, Link, Node, affordable, cable, check_graph, checked, empty, label
from simnet.topologies.recognition import family_shape, links_of, recognised_shape
from simnet.topologies.shapes import OUTSIDE, Cable, Choose, SiteShape
from simnet.topologies.wan import between_sites, link_sites, site_names


@checked
def wan_of_clusters(
    sites: Mapping[str, Graph],
    latency: Latencies,
    bandwidth: Bandwidths,
    *,
    border_bandwidth: Bandwidth,
    border_latency: Seconds = 0.0,
    borders: Mapping[str, Sequence[Node]] | None = None,
) -> Graph:
    """Return a network of clusters: each has a topology and a border router; long links join border routers.

    Hosts are numbered site by site, and a site keeps its links, its latencies and its routes: no message between two
    hosts of one site leaves it. From a host at site a to one at b a message goes to the nearest of the borders of a,
    over that one's link to the border router of a, to the border router of b, and in by the border nearest to its
    destination; among equally near ones the choice is made per pair (see `Routes`). It pays the latency inside both
    sites, twice `border_latency`, and ``latency[a, b]``. Sites without a link of their own go through the border
    routers of others, over as few links as possible and, among such paths, with the least latency, as in `wan`.

    Parameters
    ----------
    sites : mapping of str to networkx.DiGraph
        The topology of each of the S sites by its name, in the order of the rows of the matrices.
    latency : array_like of float, shape (S, S) or scalar
        One-way latency from row to column [s], >= 0. The diagonal is ignored, and so are pairs without a link.
    bandwidth : array_like of float, shape (S, S) or scalar
        From row to column [byte/s]; 0 for no link from row to column. The diagonal is ignored.
    border_bandwidth : float
        Of each link between a border and its border router, in each direction [byte/s], > 0.
    border_latency : float
        Of each such link [s], >= 0.
    borders : mapping of str to sequence of node, optional
        Of a site the nodes, as its own graph names them, that have a link to its border router. By default those at its
        top: the switch of a star, the root of a tree, the core switches of a fat-tree, all routers of a dragonfly
        or flattened butterfly, the fabric, rails or spines of multi-GPU nodes, and all hosts of a ring or torus.
        Another topology says so in ``graph.graph["borders"]``, or needs it here.

    Returns
    -------
    networkx.DiGraph
        The border router of a site is ``"site:NAME"``, and a switch X of its topology ``"NAME/X"``. Links inside sites
        keep their kind; those to border routers are of kind ``"border"``, those between border routers of kind
        ``"wan"``, with ``sites=(from, to)``. All nodes carry ``site=NAME``; ``graph.graph["sites"]`` is the tuple of
        names. The ``weight`` of the border and wan links sees to the routes; for it, latencies of sites count as equal
        if they differ by less than a billionth of the sum of all.

    Raises
    ------
    ValueError
        If a parameter is out of range, a matrix has another shape, a site is no topology, has no borders, or has hosts
        that would forward the traffic of others only because those of another site do.

    Examples
    --------
    >>> from simnet.topologies import Routes, fat_tree, star
    >>> graph = wan_of_clusters(
    ...     {"Oregon": fat_tree(4, latency=1e-6, bandwidth=1e9), "Tokyo": star(3, latency=1e-6, bandwidth=1e9)},
    ...     latency=50e-3,
    ...     bandwidth=1e8,
    ...     border_bandwidth=1e10,
    ... )
    >>> graph.graph["hosts"]
    19
    >>> routes = Routes(graph)
    >>> [routes.links[link][1] for link in routes.route(17, 0)]
    ['Tokyo/switch', 'site:Tokyo', 'site:Oregon', 'Oregon/core:1.0', 'Oregon/agg:0.1', 'Oregon/edge:0.0', 0]
    """
    if not isinstance(sites, Mapping):
        raise ValueError(f"sites must be a mapping from names to topologies, got {sites!r}")
    names = site_names(list(sites))
    S = len(names)
    for name in names:
        if "/" in name:
            raise ValueError(f"sites must be named without '/', which parts site and switch, got {name!r}")
    clusters = [_site_cluster(name, graph) for name, graph in sites.items()]
    ends = _border_nodes(names, clusters, borders)
    forward = _hosts_forward(names, clusters)
    hosts = [int(graph.graph["hosts"]) for graph, _ in clusters]
    inside = sum(graph.number_of_edges() for graph, _ in clusters)
    links = inside + 2 * sum(map(len, ends)) + S * (S - 1)
    affordable(links, f"a network of {S:,} sites and {sum(hosts):,} hosts")
    far, rates = between_sites(names, latency, bandwidth)

    facts: dict[str, Any] = {"sites": names}
    if forward:
        facts["hosts_forward"] = True
    if borders is None and all(shape is not None for _, shape in clusters):
        facts["shape"] = {
            "sites": [
                [name, cluster.graph["name"], cluster.graph["shape"]]
                for name, (cluster, _) in zip(names, clusters, strict=True)
            ]
        }
    graph = empty("wan_of_clusters", sum(hosts), **facts)
    weight = _border_weight(one for cluster, _ in clusters for *_, one in cluster.edges(data=True))
    for name, first, (cluster, _), outer in zip(names, accumulate([0, *hosts[:-1]]), clusters, ends, strict=True):
        renamed = _add_site(graph, name, cluster, first)
        router = f"site:{name}"
        graph.add_node(router, site=name)
        for node in outer:
            cable(graph, renamed[node], router, border_latency, border_bandwidth, "border", weight=weight)
    # As in wan. Weights are whole multiples of 2**-30, so that their sums are exact in any order.
    shares = np.floor(far / (2 * far[rates != 0].sum() or 1.0) * 2.0**30) / 2.0**30
    link_sites(graph, names, far, rates, 1.0 + shares)
    return graph


def _add_site(graph: Graph, name: str, cluster: Graph, first: int) -> dict[Any, Node]:
    """Add the nodes and links of a site, hosts numbered from `first`; return a dict from cluster node to new node."""
    renamed = {node: _site_node(node, name, first) for node in cluster}
    for node, attributes in cluster.nodes(data=True):
        graph.add_node(renamed[node], **{**attributes, "site": name})
    for u, v, attributes in cluster.edges(data=True):
        graph.add_edge(renamed[u], renamed[v], **attributes)
    return renamed


def _site_node(node: Node, site: str, first: int) -> Node:
    return f"{site}/{node}" if isinstance(node, str) else first + node


def _site_cluster(name: str, graph: Graph) -> tuple[Graph, SiteShape | None]:
    """Return the checked graph of a site and its shape, which is None if the graph has no known regular shape."""
    try:
        hosts = check_graph(graph)
    except ValueError as error:
        raise ValueError(f"site {name}: {error}") from None
    if graph.graph.get("hosts") != hosts:
        graph = graph.copy()
        graph.graph["hosts"] = hosts
    weights = {(u, v): float(link.get("weight", 1.0)) for u, v, link in graph.edges(data=True)}
    return graph, recognised_shape(graph.graph, weights)


def _border_nodes(
    names: Sequence[str],
    clusters: Sequence[tuple[Graph, SiteShape | None]],
    given: Mapping[str, Sequence[Node]] | None,
) -> list[list[Node]]:
    """Return for each site the nodes that have links to its border router."""
    chosen = given or {}
    for name in chosen:
        check_choice(name, "site", names)
    found = []
    for name, (graph, shape) in zip(names, clusters, strict=True):
        if name not in chosen:
            own = shape.borders() if shape is not None else graph.graph.get("borders")
            if own is None:
                raise ValueError(
                    f"site {name} is none of this package's topologies as built, so borders must name the nodes of it "
                    "that have a link to its border router"
                )
        else:
            own = chosen[name]
        nodes = list(dict.fromkeys(own))
        if not nodes:
            raise ValueError(f"borders of site {name} must name at least one node")
        there = dict.fromkeys(map(label, graph))
        for node in nodes:
            check_choice(label(node), f"node of site {name}", there)
        found.append(nodes)
    return found


def _hosts_forward(names: Sequence[str], clusters: Sequence[tuple[Graph, SiteShape | None]]) -> bool:
    """Return whether hosts forward messages; ValueError if some sites' hosts do and other sites' hosts must not."""
    for name, (graph, _) in zip(names, clusters, strict=True):
        if graph.graph.get("routes"):
            raise ValueError(f"site {name} gives the routes of its hosts one by one, which no site of a WAN can")
    forward = [bool(graph.graph.get("hosts_forward", False)) for graph, _ in clusters]
    if any(forward):
        one = names[forward.index(True)]
        for name, (graph, _), forwards in zip(names, clusters, forward, strict=True):
            if not forwards and any(graph.out_degree(host) > 1 for host in range(graph.graph["hosts"])):
                raise ValueError(
                    f"hosts of site {one} pass on the traffic of others and those of site {name} do not, though they "
                    "have several links; one network can only have the one or the other"
                )
    return any(forward)


def _border_weight(links: Iterator[Mapping[str, Any]]) -> float:
    """Return the weight of links to border routers: a power of two above the weight of any path inside a site."""
    return float(2.0 ** math.ceil(math.log2(1 + sum(float(link.get("weight", 1.0)) for link in links))))


@dataclass(frozen=True)
class WanOfClustersShape:
    """Cables and routes of a WAN of clusters: the shape of each site, and the weighted links between sites."""

    names: Sequence[str]
    shapes: Sequence[SiteShape]
    first: Sequence[int]
    """The first host of each site, and behind them the number of all hosts."""
    out: Sequence[Mapping[int, float]]
    """Of each site its neighbours, in the order of the links, and the weights of these."""
    _steps: dict[int, list[list[int]]] = field(default_factory=dict)

    @property
    def hosts_forward(self) -> bool:
        """Whether hosts of a site forward messages of other hosts."""
        return any(shape.hosts_forward for shape in self.shapes)

    def cables(self) -> Iterator[Cable]:
        """Yield the cables inside all sites."""
        for name, first, shape in zip(self.names, self.first, self.shapes, strict=False):
            for a, b, kind in shape.cables():
                yield _site_node(a, name, first), _site_node(b, name, first), kind

    def border_cables(self) -> Iterator[Cable]:
        """Yield the cables between border nodes and the border router of their site."""
        for name, first, shape in zip(self.names, self.first, self.shapes, strict=False):
            for node in shape.borders():
                yield _site_node(node, name, first), f"site:{name}", "border"

    def path(self, src: int, dst: int, choose: Choose) -> list[Node]:
        """Return the route from host `src` to `dst`: out of a site, along border routers, and into a site."""
        a, b = self._site(src), self._site(dst)
        if a == b:
            return self._inside(a, self.shapes[a].path(src - self.first[a], dst - self.first[a], self._from(a, choose)))
        nodes = self._inside(a, self.shapes[a].outward(src - self.first[a], self._from(a, choose)))
        steps = self._steps_to(b)
        while a != b:
            router = f"site:{self.names[a]}"
            nodes.append(router)
            a = steps[a][choose(router, len(steps[a]))]
        inward = self.shapes[b].inward(dst - self.first[b], self._from(b, choose))
        return [*nodes, f"site:{self.names[b]}", *self._inside(b, inward)]

    def _site(self, host: int) -> int:
        return int(np.searchsorted(self.first, host, side="right")) - 1

    def _inside(self, site: int, nodes: Sequence[Node]) -> list[Node]:
        return [_site_node(node, self.names[site], self.first[site]) for node in nodes]

    def _from(self, site: int, choose: Choose) -> Choose:
        """Return a function that chooses next hops inside a site, given the function `choose` of the whole network."""
        name, first = self.names[site], self.first[site]
        return lambda at, ways: choose(f"site:{name}" if at == OUTSIDE else _site_node(at, name, first), ways)

    @cached_property
    def between(self) -> Graph:
        """Graph of the sites, by number, with the weights of the links between them."""
        import networkx as nx

        graph: Graph = nx.DiGraph()
        graph.add_nodes_from(range(len(self.names)))
        graph.add_weighted_edges_from((a, b, weight) for a, links in enumerate(self.out) for b, weight in links.items())
        return graph

    def _steps_to(self, b: int) -> list[list[int]]:
        """Return for each site all next sites on least-weight paths to site `b`, in the order of the site's links."""
        import networkx as nx

        if b not in self._steps:
            distance = nx.single_source_dijkstra_path_length(self.between.reverse(copy=False), b)
            self._steps[b] = [
                [after for after, weight in links.items() if weight + distance[after] == distance[a]]
                for a, links in enumerate(self.out)
            ]
        return self._steps[b]

    @property
    def joined(self) -> bool:
        """Whether every site can reach every other site."""
        import networkx as nx

        return bool(nx.is_strongly_connected(self.between))


def recognised_sites(facts: Mapping[str, Any], weights: Mapping[Link, float]) -> WanOfClustersShape | None:
    """Return the shape that a WAN's graph attributes declare; None if the links differ from those of the shape.

    Parameters
    ----------
    facts : mapping
        ``graph.graph``.
    weights : mapping of (u, v) to float
        Weight of every link: 1 inside sites, any number between border routers; a link to a border router weighs more
        than all links inside its site together.
    """
    given = facts.get("shape")
    if facts.get("name") != "wan_of_clusters" or not isinstance(given, dict):
        return None
    sites = given.get("sites")
    if not isinstance(sites, list) or not all(isinstance(one, list | tuple) and len(one) == 3 for one in sites):
        return None
    shapes = [shape for _, family, numbers in sites if (shape := family_shape(family, numbers)) is not None]
    names = [name for name, *_ in sites if isinstance(name, str)]
    if not sites or len(shapes) != len(sites) or len(set(names)) != len(sites):
        return None
    place = {f"site:{name}": i for i, name in enumerate(names)}
    out: list[dict[int, float]] = [{} for _ in names]
    between = 0
    for (u, v), weight in weights.items():
        if u in place and v in place:
            out[place[str(u)]][place[str(v)]] = weight
            between += 1
    whole = WanOfClustersShape(names, shapes, [0, *accumulate(shape.n_hosts for shape in shapes)], out)
    inside = links_of(whole.cables(), weights, 1.0)
    if inside is None or whole.hosts_forward != bool(facts.get("hosts_forward", False)) or not whole.joined:
        return None
    border = next((weights.get((a, b), 0.0) for a, b, _ in whole.border_cables()), 0.0)
    at_borders = links_of(whole.border_cables(), weights, border)
    if at_borders is None or border <= inside or inside + at_borders + between != len(weights):
        return None
    return whole
