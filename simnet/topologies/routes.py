"""Routes: the fixed path of each pair of hosts, with equal-cost multi-path (ECMP) choices made by a hash."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import islice, pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.errors import check_choice, check_int
from simnet.topologies.fat_tree import FatTreeShape
from simnet.topologies.graphs import Graph, Link, Node, checked_parts
from simnet.topologies.recognition import recognised_shape
from simnet.topologies.shapes import Places, every_answer
from simnet.topologies.splitmix import mix, mix_all
from simnet.topologies.star import StarShape
from simnet.topologies.wan_of_clusters import recognised_sites

# Pairs of hosts whose routes are worked out together: more would not be faster, but need more memory.
_BLOCK = 2**16

# Candidates of a pair of hosts: as many as there are paths between the pods of a fat-tree of k = 32.
_MOST = 256

# Candidates that are kept for when they are asked for again: some 0.1 GB.
_KEPT = 2**20

# Tables of distances around links that are down that are kept.
_KEPT_AROUND = 256

_Route: TypeAlias = tuple[int, ...]

# Given a node by its position and a number n of equally good ways on, says which of them: 0 .. n-1.
_Choose: TypeAlias = Callable[[int, int], int]


def check_connected(graph: Graph) -> None:
    """Raise ValueError if a host of a topology cannot reach another.

    Raises
    ------
    ValueError
        If there is no route between two hosts, which it names, or `graph` is not a topology (see `Routes`).

    Examples
    --------
    >>> from simnet.topologies import wan
    >>> check_connected(wan(["Oregon", "Tokyo"], 0.05, [[0, 1e6], [0, 0]], workers_per_site=1))
    Traceback (most recent call last):
    ValueError: there is no route from host 1 (site Tokyo) to host 0 (site Oregon)
    """
    gap = Routes(graph).gap()
    if gap is not None:
        src, dst = (_host_place(graph, host) for host in gap)
        raise ValueError(f"there is no route from {src} to {dst}")


_NONE: frozenset[int] = frozenset()


class Routes:
    """Fixed routes between the hosts of a topology.

    A message takes the path of least total ``weight`` (1 for a link without one, so: of fewest links). Where a node
    has several next links on such paths, the link is chosen by a hash of seed, source, destination and node, as an
    ECMP switch does: all messages of a pair take one path, different pairs spread over all of them, and the choices at
    successive switches are independent. Routes do not pass through hosts unless ``graph.graph["hosts_forward"]`` is
    True.

    On a graph that is a star, ring, tree, fat-tree, torus, dragonfly, flattened butterfly, cluster of multi-GPU nodes
    or WAN of such sites as its builder made it, the route follows from the numbers of the two hosts, without a search,
    however large the graph. It is the one that the search finds, but on a torus, a dragonfly and a cluster with rails
    alone, which have routes of their own; their builders describe them. With a link added, taken away or given another
    ``weight`` the graph is searched like any other; latencies and bandwidths do not matter.

    In addition to `route` there are `candidates`, all routes among which the hash chooses, and `around`, the route that
    remains when links are down.

    Where ``graph.graph["routes"]`` has the path of a pair, it takes that one and no other, whatever the weights.

    Routes depend only on the present graph and the seed, so they are equal in every process. Each is computed on first
    use and then cached.

    Parameters
    ----------
    graph : networkx.DiGraph
        Hosts 0 .. P-1 (ints), switches (strings), and links with `latency` [s] >= 0, `bandwidth` [byte/s] > 0 and,
        optionally, `weight` > 0: one of this package, or anybody's. Later changes of it have no effect here.
    seed : int
        Seed of the hash, >= 0.
    routing : {"hash", "single"}
        How to choose between equal ways on: by the hash, or always the first in the order of ``graph.edges``, so that
        all pairs share one path where they could spread.

    Attributes
    ----------
    n_hosts : int
        P.
    links : tuple of (node, node)
        The L links, in the order of ``graph.edges``; routes are indices into it.
    index : dict
        From link to its index.
    kinds : tuple of str or None
        The ``kind`` of each link, where it has one.
    latency, bandwidth : ndarray, shape (L,), float64
        Nominal latency [s] and bandwidth [byte/s] of each link; read-only.

    Raises
    ------
    ValueError
        If `graph` is not such a graph, naming the link and what is wrong with it, the seed is negative, or there is no
        such `routing`.

    Examples
    --------
    >>> from simnet.topologies import fat_tree
    >>> routes = Routes(fat_tree(4, latency=1e-6, bandwidth=1.25e9), seed=1)
    >>> [routes.links[link] for link in routes.route(0, 3)]
    [(0, 'edge:0.0'), ('edge:0.0', 'agg:0.1'), ('agg:0.1', 'edge:0.1'), ('edge:0.1', 3)]
    """

    def __init__(self, graph: Graph, seed: int = 0, routing: Literal["hash", "single"] = "hash") -> None:
        check_choice(routing, "routing", ("hash", "single"))
        self.n_hosts, nodes, links = checked_parts(graph)
        self.links: tuple[Link, ...] = tuple([(u, v) for u, v, _ in links])
        self.kinds: tuple[str | None, ...] = tuple([link.get("kind") for *_, link in links])
        self.latency = _link_column(links, "latency")
        self.bandwidth = _link_column(links, "bandwidth")

        # Nodes become positions: hosts are their own, switches follow in the order of the graph.
        switches = (node for node in nodes if isinstance(node, str))
        self._nodes: tuple[Node, ...] = (*range(self.n_hosts), *switches)
        self._position = {node: i for i, node in enumerate(self._nodes)}
        self._first_forwarding = 0 if graph.graph.get("hosts_forward", False) else self.n_hosts
        self._weight = [float(link.get("weight", 1.0)) for *_, link in links]
        paths = graph.graph.get("routes", ())
        self._routes: dict[tuple[int, int], _Route] = {
            (path[0], path[-1]): tuple([self.index[link] for link in pairwise(path)]) for path in paths
        }
        weights = dict(zip(self.links, self._weight, strict=True))
        shape = recognised_shape(graph.graph, weights) or recognised_sites(graph.graph, weights)
        # Routes of its own are no longer those of the shape.
        self._shape = None if paths else shape

        self._hashes = routing == "hash"
        self._salt = 0
        seed = check_int(seed, "seed", 0)
        while seed:
            self._salt, seed = mix(self._salt ^ seed), seed >> 64
        self._distances: dict[frozenset[int], dict[int, array[float]]] = {_NONE: {}}
        self._forked: set[tuple[int, int]] = set()  # pairs with a route that kept which had a choice on the way
        self._candidates: dict[tuple[int, int], tuple[_Route, ...]] = {}
        self._n_kept = 0

    @cached_property
    def index(self) -> dict[Link, int]:
        """Index in `links` of each link (u, v)."""
        return {link: i for i, link in enumerate(self.links)}

    @cached_property
    def _out(self) -> list[list[tuple[int, int]]]:
        """Outgoing links of each node, as pairs of link and next node."""
        return self._links_at(0)

    @cached_property
    def _into(self) -> list[list[tuple[int, int]]]:
        """Incoming links of each node, as pairs of link and previous node."""
        return self._links_at(1)

    def _links_at(self, end: int) -> list[list[tuple[int, int]]]:
        found: list[list[tuple[int, int]]] = [[] for _ in self._nodes]
        for i, link in enumerate(self.links):
            found[self._position[link[end]]].append((i, self._position[link[1 - end]]))
        return found

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
            rule, forks = self._rule(self._hash(src, dst)), []

            def choose(at: int, ways: int) -> int:
                if ways > 1:
                    forks.append(at)
                return rule(at, ways)

            route = self._routes[src, dst] = self._find(src, dst, choose)
            if forks:
                self._forked.add((src, dst))
            return route

    def candidates(self, src: int, dst: int) -> tuple[tuple[int, ...], ...]:
        """Return all equal-cost routes from host `src` to host `dst`, from which `route` chooses.

        Returns
        -------
        tuple of tuple of int
            Each as `route` returns it; ``((),)`` from a host to itself. Up to 256 routes are all there, in the order of
            the links at each node where they part. Of more, at most 256 are drawn by the hash, `route` first.

        Examples
        --------
        >>> from simnet.topologies import fat_tree
        >>> routes = Routes(fat_tree(4, latency=1e-6, bandwidth=1e9))
        >>> [routes.links[one[1]] for one in routes.candidates(0, 2)]
        [('edge:0.0', 'agg:0.0'), ('edge:0.0', 'agg:0.1')]
        """
        try:
            return self._candidates[src, dst]
        except KeyError:
            found = self._all_candidates(src, dst)
            if self._n_kept + len(found) > _KEPT:
                self._candidates.clear()
                self._n_kept = 0
            self._candidates[src, dst] = found
            self._n_kept += len(found)
            return found

    def _all_candidates(self, src: int, dst: int) -> tuple[_Route, ...]:
        route = self.route(src, dst)
        if (src, dst) not in self._forked:
            return (route,)
        found = tuple(islice(every_answer(partial(self._find, src, dst)), _MOST + 1))
        if len(found) <= _MOST:
            return found
        # The first ones in order would all leave by the first way; drawn, they spread over all of it.
        drawn = {route: None}
        for number in range(2 * _MOST):
            drawn[self._find(src, dst, _pair_hash(mix(self._hash(src, dst) ^ number)))] = None
            if len(drawn) == _MOST:
                break
        return tuple(drawn)

    def around(self, src: int, dst: int, down: frozenset[int]) -> tuple[int, ...] | None:
        """Return a route from host `src` to host `dst` that avoids the links `down`; None if there is none.

        It is `route` if that avoids them; else one of the `candidates` that do, chosen by the hash of `Routes`; if none
        does, a path of least total weight over the remaining links, chosen by the hash among equal ones.

        Parameters
        ----------
        src, dst : int
            Hosts.
        down : frozenset of int
            The links to avoid, as indices into `links`.

        Raises
        ------
        ValueError
            If `src` or `dst` is not a host, or there is no route even with all links.

        Examples
        --------
        >>> from simnet.topologies import ring
        >>> routes = Routes(ring(4, latency=1e-3, bandwidth=1e9))
        >>> down = frozenset([routes.index[0, 1]])
        >>> [routes.links[link] for link in routes.around(0, 1, down)]
        [(0, 3), (3, 2), (2, 1)]
        """
        route = self.route(src, dst)
        if down.isdisjoint(route):
            return route
        pair = self._hash(src, dst)
        left = [one for one in self.candidates(src, dst) if down.isdisjoint(one)]
        if left:
            # No node has this position, so this choice has nothing to do with those of `route`.
            return left[self._rule(pair)(len(self._nodes), len(left))]
        if all(link in down for link, _ in self._out[src]) or all(link in down for link, _ in self._into[dst]):
            return None
        return self._search(int(src), int(dst), self._rule(pair), down)

    def table(self, src: ArrayLike, dst: ArrayLike) -> NDArray[np.int64]:
        """Return the routes of many pairs of hosts as a table: a row of link indices for each pair, padded with -1.

        Parameters
        ----------
        src, dst : array_like of int, shape (m,)
            Hosts.

        Returns
        -------
        ndarray of int64, shape (m, L)
            In each row the links of a route in order, -1 after the last of them; L is the number of links of the
            longest route, at least 1.

        Raises
        ------
        ValueError
            As `route` does, or if `src` and `dst` are not such arrays.

        Examples
        --------
        >>> from simnet.topologies import star
        >>> Routes(star(3, latency=1e-3, bandwidth=1e9)).table([0, 1, 2], [1, 1, 0]).tolist()
        [[0, 4], [-1, -1], [2, 3]]
        """
        ends = np.asarray(src), np.asarray(dst)
        whole_numbers = all(one.dtype.kind in "iu" or not one.size for one in ends)
        if ends[0].ndim != 1 or ends[0].shape != ends[1].shape or not whole_numbers:
            raise ValueError(f"src and dst must be as many hosts each, got {src!r} and {dst!r}")
        for hosts, name in zip(ends, ("src", "dst"), strict=True):
            if hosts.size:
                self._host(int(hosts.min()), name)
                self._host(int(hosts.max()), name)
        if isinstance(self._shape, StarShape | FatTreeShape):
            blocks = []
            for first in range(0, ends[0].size, _BLOCK):
                here = slice(first, first + _BLOCK)
                sources, destinations = (one[here].astype(np.int64) for one in ends)
                blocks.append(self._block(self._shape, sources, destinations))
            rows = np.concatenate(blocks) if blocks else np.zeros((0, 1), dtype=np.int64)
            longest = max(1, int((rows >= 0).sum(axis=1).max(initial=0)))
            return rows[:, :longest]
        routes = [self.route(*pair) for pair in zip(ends[0].tolist(), ends[1].tolist(), strict=True)]
        return route_table(routes)

    def _block(self, shape: StarShape | FatTreeShape, src: Places, dst: Places) -> NDArray[np.int64]:
        pair = mix_all(mix_all(np.uint64(self._salt) ^ src.astype(np.uint64)) ^ dst.astype(np.uint64))

        def choose(at: Places, ways: int) -> Places:
            if ways == 1 or not self._hashes:
                return np.zeros_like(at)
            return (mix_all(pair ^ at.astype(np.uint64)) % np.uint64(ways)).astype(np.int64)

        nodes = np.stack([src, *shape.paths(src, dst, choose, self._position)], axis=1)
        nodes[src == dst, 1:] = -1
        # What a path leaves out moves behind its end; the order of the others stays.
        nodes = np.take_along_axis(nodes, np.argsort(nodes < 0, axis=1, kind="stable"), axis=1)
        before, behind, first = nodes[:, :-1], nodes[:, 1:], self.n_hosts
        up, down, between = self._links_by_ends
        links = between[np.maximum(before - first, 0), np.maximum(behind - first, 0)]
        links = np.where(before < first, up[np.minimum(before, first - 1)], links)
        links = np.where(behind < first, down[np.minimum(behind, first - 1)], links)
        return np.where(behind < 0, -1, links)

    @cached_property
    def _links_by_ends(self) -> tuple[Places, Places, NDArray[np.int32]]:
        """Link indices: out of each host, into each host, and from switch to switch, shape (S, S); -1 for no link."""
        first, count = self.n_hosts, len(self._nodes) - self.n_hosts
        up, down = np.full(first, -1), np.full(first, -1)
        between = np.full((count, count), -1, dtype=np.int32)
        u, v = np.array([(self._position[u], self._position[v]) for u, v in self.links], dtype=np.int64).T
        leaves, comes = u < first, v < first
        inner = np.flatnonzero(~leaves & ~comes)
        up[u[leaves]], down[v[comes]] = np.flatnonzero(leaves), np.flatnonzero(comes)
        between[u[inner] - first, v[inner] - first] = inner
        return up, down, between

    def gap(self) -> tuple[int, int] | None:
        """Return the first pair of hosts (src, dst), in order of dst, that has no route; None if all are connected."""
        if self._shape is not None:
            return None
        for dst in range(self.n_hosts):
            gate, _ = self._gate(dst)
            distance = self._distance_to(gate)[: self.n_hosts]
            found = next((src for src, away in enumerate(distance) if away == math.inf and src != dst), None)
            if found is not None:
                return found, dst
        return None

    def path_latency(self, src: int, dst: int) -> float:
        """Return the nominal latency [s] from host `src` to host `dst`: the sum over the links of the route."""
        return math.fsum(self.latency[link] for link in self.route(src, dst))

    def bottleneck(self, src: int, dst: int) -> float:
        """Return the lowest nominal bandwidth [byte/s] on the route from host `src` to `dst`; inf if `src` is `dst`."""
        return min((float(self.bandwidth[link]) for link in self.route(src, dst)), default=math.inf)

    def _find(self, src: int, dst: int, choose: _Choose) -> _Route:
        node, dst = self._host(src, "src"), self._host(dst, "dst")
        if node == dst:
            return ()
        if self._shape is not None:
            nodes = self._shape.path(node, dst, lambda at, ways: choose(self._position[at], ways))
            return tuple([self.index[link] for link in pairwise((node, *nodes))])
        route = self._search(node, dst, choose)
        if route is None:
            raise ValueError(f"there is no route from host {src} to host {dst}")
        return route

    def _search(self, node: int, dst: int, choose: _Choose, down: frozenset[int] = _NONE) -> _Route | None:
        gate, last = self._gate(dst)
        distance = self._distance_to(gate, down)
        if distance[node] == math.inf or not down.isdisjoint(last):
            return None
        route = []
        while node != gate:
            equal = [
                (link, after)
                for link, after in self._out[node]
                if self._weight[link] + distance[after] == distance[node]
                and (after == gate or after >= self._first_forwarding)
                and link not in down
            ]
            link, node = equal[choose(node, len(equal))]
            route.append(link)
        return (*route, *last)

    def _hash(self, src: int, dst: int) -> int:
        return mix(mix(self._salt ^ self._host(src, "src")) ^ self._host(dst, "dst"))

    def _rule(self, pair: int) -> _Choose:
        """Return a function that picks one of several equal-cost next hops, by a hash or always the first."""
        return _pair_hash(pair) if self._hashes else lambda node, ways: 0

    def _gate(self, dst: int) -> tuple[int, tuple[int, ...]]:
        """Return the only node with a link to host `dst`, if it forwards, and this link; else `dst` and no link."""
        # The hosts of one switch then share one table of distances.
        if len(self._into[dst]) == 1:
            link, gate = self._into[dst][0]
            if gate >= self._first_forwarding:
                return gate, (link,)
        return dst, ()

    def _distance_to(self, target: int, down: frozenset[int] = _NONE) -> array[float]:
        """Return the least weight of paths from each node to `target` that avoid the links `down` (Dijkstra)."""
        if down not in self._distances:
            # What is known of other links that are down is forgotten.
            self._distances = {_NONE: self._distances[_NONE], down: {}}
        known = self._distances[down]
        if down and len(known) >= _KEPT_AROUND:
            known.clear()
        if target not in known:
            known[target] = self._distances_without(target, down)
        return known[target]

    def _distances_without(self, target: int, down: frozenset[int]) -> array[float]:
        distance = array("d", [math.inf]) * len(self._nodes)
        distance[target] = 0.0
        queue = [(0.0, target)]
        while queue:
            reached, node = heappop(queue)
            if reached > distance[node]:
                continue
            for link, before in self._into[node]:
                through = self._weight[link] + reached
                if through < distance[before] and link not in down:
                    distance[before] = through
                    if before >= self._first_forwarding:
                        heappush(queue, (through, before))
        return distance

    def _host(self, node: object, name: str) -> int:
        if isinstance(node, str) or not 0 <= (host := check_int(node, name, 0)) < self.n_hosts:
            raise ValueError(f"{name} must be a host, 0 .. {self.n_hosts - 1}, got {node!r}")
        return host


def route_table(routes: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return routes as a table: a row of link indices for each route, padded with -1."""
    table = np.full((len(routes), max(1, max(map(len, routes), default=0))), -1, dtype=np.int64)
    for row, route in zip(table, routes, strict=True):
        row[: len(route)] = route
    return table


def _link_column(links: Sequence[tuple[Node, Node, Mapping[str, Any]]], attribute: str) -> NDArray[np.float64]:
    column = np.array([float(link[attribute]) for *_, link in links], dtype=np.float64)
    column.flags.writeable = False
    return column


def _pair_hash(pair: int) -> _Choose:
    return lambda node, ways: mix(pair ^ node) % ways if ways > 1 else 0


def _host_place(graph: Graph, host: int) -> str:
    site = graph.nodes[host].get("site")
    return f"host {host}" if site is None else f"host {host} (site {site})"
