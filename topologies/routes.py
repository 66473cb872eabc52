"""Routes: the fixed path of each pair of hosts, with equal-cost multi-path (ECMP) choices made by a hash."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topologies.checks import whole
from topologies.graphs import Link, Node, check

if TYPE_CHECKING:
    import networkx as nx

_MASK = 2**64 - 1


def mix(value: int) -> int:
    """Return one step of SplitMix64: 64 bits each of which depends on every bit of `value`.

    References
    ----------
    G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.

    Examples
    --------
    >>> hex(mix(0))
    '0xe220a8397b1dcdaf'
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def check_connected(graph: nx.DiGraph[Any]) -> None:
    """Refuse a topology in which a host cannot reach another.

    Raises
    ------
    ValueError
        If there is no route between two hosts, which it names, or `graph` is not a topology (see `Routes`).

    Examples
    --------
    >>> from topologies import wan
    >>> check_connected(wan(["Oregon", "Tokyo"], 0.05, [[0, 1e6], [0, 0]], workers_per_site=1))
    Traceback (most recent call last):
    ValueError: there is no route from host 1 (site Tokyo) to host 0 (site Oregon)
    """
    gap = Routes(graph).gap()
    if gap is not None:
        src, dst = (_place(graph, host) for host in gap)
        raise ValueError(f"there is no route from {src} to {dst}")


class Routes:
    """Fixed routes between the hosts of a topology.

    A message takes the path of least total ``weight`` (1 for a link without one, so: of fewest links). Where a node
    has several next links on such paths, the link is chosen by a hash of seed, source, destination and node, as an
    ECMP switch does: all messages of a pair take one path, different pairs spread over all of them, and the choices at
    successive switches are independent. Routes do not pass through hosts unless ``graph.graph["hosts_forward"]`` is
    True.

    The routes are settled by the graph as it is now and by the seed, in every process alike. Each is worked out when
    it is first asked for and then kept.

    Parameters
    ----------
    graph : networkx.DiGraph
        Hosts 0 .. P-1 (ints), switches (strings), and links with `latency` [s] >= 0, `bandwidth` [byte/s] > 0 and,
        optionally, `weight` > 0: one of this package, or anybody's. Later changes of it have no effect here.
    seed : int
        Seed of the hash, >= 0.

    Attributes
    ----------
    n_hosts : int
        P.
    links : tuple of (node, node)
        The L links, in the order of ``graph.edges``; routes are indices into it.
    index : dict
        From link to its index.
    latency, bandwidth : ndarray, shape (L,), float64
        Nominal latency [s] and bandwidth [byte/s] of each link; read-only.

    Raises
    ------
    ValueError
        If `graph` is not such a graph, naming the link and what is wrong with it, or the seed is negative.

    Examples
    --------
    >>> from topologies import fat_tree
    >>> routes = Routes(fat_tree(4, latency=1e-6, bandwidth=1.25e9), seed=1)
    >>> [routes.links[link] for link in routes.route(0, 3)]
    [(0, 'edge:0.0'), ('edge:0.0', 'agg:0.1'), ('agg:0.1', 'edge:0.1'), ('edge:0.1', 3)]
    """

    def __init__(self, graph: nx.DiGraph[Any], seed: int = 0) -> None:
        self.n_hosts = check(graph)
        self.links: tuple[Link, ...] = tuple(graph.edges)
        self.index: dict[Link, int] = {link: i for i, link in enumerate(self.links)}
        self.latency = _column(graph, "latency")
        self.bandwidth = _column(graph, "bandwidth")

        # Nodes become positions: hosts are their own, switches follow in the order of the graph.
        switches = (node for node in graph if isinstance(node, str))
        self._nodes: tuple[Node, ...] = (*range(self.n_hosts), *switches)
        position = {node: i for i, node in enumerate(self._nodes)}
        self._first_forwarding = 0 if graph.graph.get("hosts_forward", False) else self.n_hosts
        self._weight = [float(link.get("weight", 1.0)) for _, _, link in graph.edges(data=True)]
        self._out: list[list[tuple[int, int]]] = [[] for _ in self._nodes]  # (link, node it leads to)
        self._into: list[list[tuple[int, int]]] = [[] for _ in self._nodes]  # (link, node it comes from)
        for i, (u, v) in enumerate(self.links):
            self._out[position[u]].append((i, position[v]))
            self._into[position[v]].append((i, position[u]))

        self._salt = 0
        seed = whole(seed, "seed", 0)
        while seed:
            self._salt, seed = mix(self._salt ^ (seed & _MASK)), seed >> 64
        self._distances: dict[int, list[float]] = {}
        self._routes: dict[tuple[int, int], tuple[int, ...]] = {}

    def __repr__(self) -> str:
        return f"Routes({self.n_hosts} hosts, {len(self.links)} links)"

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the links from host `src` to host `dst`, as indices into `links`; () from a host to itself.

        Raises
        ------
        ValueError
            If `src` or `dst` is not a host, or there is no route.
        """
        try:
            return self._routes[src, dst]
        except KeyError:
            route = self._routes[src, dst] = self._find(src, dst)
            return route

    def gap(self) -> tuple[int, int] | None:
        """Return the first two hosts (src, dst), by dst, between which there is no route; None if there are none."""
        for dst in range(self.n_hosts):
            gate, _ = self._gate(dst)
            distance = self._distance_to(gate)[: self.n_hosts]
            if math.inf in distance:
                for src, away in enumerate(distance):
                    if away == math.inf and src != dst:
                        return src, dst
        return None

    def path_latency(self, src: int, dst: int) -> float:
        """Return the nominal latency [s] from `src` to host `dst`: the sum over the links of the route."""
        return math.fsum(self.latency[link] for link in self.route(src, dst))

    def bottleneck(self, src: int, dst: int) -> float:
        """Return the nominal bandwidth [byte/s] from `src` to host `dst`: the least on the route; inf to itself."""
        return min((float(self.bandwidth[link]) for link in self.route(src, dst)), default=math.inf)

    def _find(self, src: int, dst: int) -> tuple[int, ...]:
        node, dst = self._host(src, "src"), self._host(dst, "dst")
        if node == dst:
            return ()
        gate, last = self._gate(dst)
        distance = self._distance_to(gate)
        if distance[node] == math.inf:
            raise ValueError(f"there is no route from host {src} to host {dst}")
        pair = mix(mix(self._salt ^ node) ^ dst)
        route = []
        while node != gate:
            equal = [
                (link, after)
                for link, after in self._out[node]
                if self._weight[link] + distance[after] == distance[node]
                and (after == gate or after >= self._first_forwarding)
            ]
            link, node = equal[mix(pair ^ node) % len(equal)] if len(equal) > 1 else equal[0]
            route.append(link)
        return (*route, *last)

    def _gate(self, dst: int) -> tuple[int, tuple[int, ...]]:
        """Return the node through which everything to host `dst` passes, and the links from there on.

        The hosts of one switch then share one table of distances.
        """
        if len(self._into[dst]) == 1:
            link, gate = self._into[dst][0]
            if gate >= self._first_forwarding:
                return gate, (link,)
        return dst, ()

    def _distance_to(self, target: int) -> list[float]:
        """Return the least total weight from every node to `target` (Dijkstra, against the links)."""
        if target in self._distances:
            return self._distances[target]
        distance = [math.inf] * len(self._nodes)
        distance[target] = 0.0
        queue = [(0.0, target)]
        while queue:
            reached, node = heappop(queue)
            if reached > distance[node]:
                continue
            for link, before in self._into[node]:
                through = self._weight[link] + reached
                if through < distance[before]:
                    distance[before] = through
                    if before >= self._first_forwarding:
                        heappush(queue, (through, before))
        self._distances[target] = distance
        return distance

    def _host(self, node: object, name: str) -> int:
        if isinstance(node, str) or not 0 <= (host := whole(node, name, 0)) < self.n_hosts:
            raise ValueError(f"{name} must be a host, 0 .. {self.n_hosts - 1}, got {node!r}")
        return host


def _column(graph: nx.DiGraph[Any], attribute: str) -> NDArray[np.float64]:
    column = np.array([float(link[attribute]) for _, _, link in graph.edges(data=True)], dtype=np.float64)
    column.flags.writeable = False
    return column


def _place(graph: nx.DiGraph[Any], host: int) -> str:
    site = graph.nodes[host].get("site")
    return f"host {host}" if site is None else f"host {host} (site {site})"
