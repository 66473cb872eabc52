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

Builders of this package return a graph that networkx builds on first access (`simnet.topologies.deferred`).
``graph.graph`` holds ``name`` (the family), ``hosts`` (P) and, where hosts pass on the traffic of others as in a ring,
``hosts_forward`` (True), and ``shape`` (see `simnet.topologies.shapes`). A graph from elsewhere needs only hosts,
latencies and bandwidths; ``routes`` may give it the paths of some pairs of hosts, each a sequence of all nodes from one
host to the other, where they are not those that `Routes` would choose.

This module also checks the arguments of builders: counts, latencies, bandwidths and ratios.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Set
from contextlib import suppress
from functools import cache, partial, wraps
from itertools import pairwise
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from annotated_types import Ge

from simnet.base.errors import check_int, is_number
from simnet.base.quantities import RATE, TIME, Bandwidth, Seconds, check_bounds, parameter_hints
from simnet.topologies.deferred import Deferred, add_link, deferred, nodes_and_links

if TYPE_CHECKING:
    import networkx as nx


F = TypeVar("F", bound=Callable[..., Any])

LARGEST = 1_000_000
"""Directed links of the largest graph that is built: some 0.5 GB as networkx keeps it."""


def checked(builder: F) -> F:
    """Return a wrapper of a topology builder that checks each argument against the annotation of its parameter.

    Counts, latencies, bandwidths and ratios arrive as an int or float within their bounds; None where that is allowed,
    and what is annotated otherwise, arrive as they are.

    Raises
    ------
    ValueError
        From the builder returned, if an argument is no such number.
    """

    @cache
    def checks() -> tuple[inspect.Signature, dict[str, Callable[[object, str], float] | None]]:
        """Return the builder's signature and a dict from parameter to check (None: unchecked); the result is cached."""
        signature = inspect.signature(builder)
        hints = parameter_hints(builder, list(signature.parameters))
        return signature, {name: _annotation_check(hint) for name, hint in hints.items()}

    @wraps(builder)
    def build(*args: Any, **kwargs: Any) -> Any:
        signature, check_of = checks()
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        for name, value in given.arguments.items():
            check = check_of.get(name)
            if check is not None and (value is not None or signature.parameters[name].default is not None):
                given.arguments[name] = check(value, name)
        return builder(*given.args, **given.kwargs)

    return cast("F", build)


def _annotation_check(hint: Any) -> Callable[[object, str], float] | None:
    """Return the function that checks and converts an argument with this annotation; None if there is no check."""
    if get_origin(hint) in (Union, UnionType):
        return next((check for one in get_args(hint) if (check := _annotation_check(one)) is not None), None)
    kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    least: Any = next((one.ge for one in marks if isinstance(one, Ge)), 0)
    if TIME in marks or RATE in marks:
        return latency_seconds if TIME in marks else rate
    if kind is int and marks:
        return partial(check_int, low=least)
    return partial(factor, least=least) if kind is float and marks else None


def latency_seconds(value: object, name: str) -> float:
    """Return a latency [s] as a float; raise ValueError with the argument's `name` if it is out of bounds."""
    return check_bounds(_finite(value, name, ">= 0", "seconds"), Seconds, name)


def rate(value: object, name: str) -> float:
    """Return a bandwidth [byte/s] as a float; raise ValueError with the argument's `name` if it is out of bounds."""
    return check_bounds(_finite(value, name, "> 0", "bytes per second"), Bandwidth, name)


def factor(value: object, name: str, least: float = 0.0) -> float:
    """Return a ratio as a float; raise ValueError with the argument's `name` unless it is finite, > 0 and >= `least`.

    Parameters
    ----------
    value : object
        The ratio.
    name : str
        Name of the argument in the error.
    least : float
        Smallest ratio allowed.
    """
    return _finite(value, name, f">= {least:g}" if least else "> 0", least=least)


def affordable(links: int, what: str) -> None:
    """Raise ValueError if a graph would exceed `LARGEST` directed links; builders call this before they add links."""
    if links > LARGEST:
        raise ValueError(f"{what} needs {links:,} directed links; at most {LARGEST:,} are allowed")


def _finite(value: Any, name: str, sign: str, unit: str = "", least: float = 0.0) -> float:
    if not is_number(value):
        raise ValueError(f"{name} must be a number, {f'{unit} {sign}'.strip()}, got {value!r}")
    number = math.inf
    with suppress(OverflowError):  # an int beyond the range of float64
        number = float(value)
    if not (least <= number < math.inf and (number or sign == ">= 0")):
        raise ValueError(f"{name} must be finite and {f'{sign} {unit}'.strip()}, got {value}")
    return number


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
        an entry of ``routes`` is no path over existing links from a host to another, or a second one for its pair.
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
