"""Deferred graphs: nodes and links are recorded, and networkx builds the graph on first access.

Networkx takes longer to load than a small exchange takes to time. So a builder first returns a `Deferred`, which
records nodes and links; routes are computed from that record. It claims to be a `networkx.DiGraph`, and at the first
access to anything but ``graph.graph`` it becomes one: the same object changes its class, as modules do that
`importlib.util.LazyLoader` loads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    import networkx as nx

_Node: TypeAlias = int | str
_Attributes: TypeAlias = dict[str, Any]

_ONE_AT_A_TIME = RLock()


class Deferred:
    """A directed graph that records nodes and links, and becomes a networkx graph on first access.

    Parameters
    ----------
    facts : dict
        ``graph.graph``.
    nodes : collection of int or str
        Its first nodes.
    """

    def __init__(self, facts: _Attributes, nodes: Collection[_Node]) -> None:
        vars(self).update(graph=facts, _nodes=nodes, _recorded=[])

    def __getattr__(self, name: str) -> Any:
        return getattr(built_graph(self), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(built_graph(self), name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Not made here: `isinstance` looks no further where this is what the class has become meanwhile.
        import networkx as nx

        return nx.DiGraph


def _when_drawn(name: str) -> Callable[..., Any]:
    def method(graph: Deferred, *args: Any) -> Any:
        return getattr(built_graph(graph), name)(*args)

    return method


# Python looks these up at the class, past `__getattr__`.
for _name in ("__contains__", "__dir__", "__getitem__", "__iter__", "__len__", "__reduce_ex__", "__repr__", "__str__"):
    setattr(Deferred, _name, _when_drawn(_name))


def deferred(nodes: Collection[_Node], **facts: Any) -> nx.DiGraph[Any]:
    """Return a graph that first only records nodes and links, and becomes a networkx graph when it is accessed.

    Parameters
    ----------
    nodes : collection of int or str
        Its first nodes.
    **facts
        What ``graph.graph`` holds.

    Examples
    --------
    >>> import networkx as nx
    >>> graph = deferred(range(2), name="pair")
    >>> add_link(graph, 0, 1, latency=1e-3)
    >>> graph.graph, type(graph).__name__
    ({'name': 'pair'}, 'Deferred')
    >>> list(graph.edges(data=True)), type(graph).__name__, isinstance(graph, nx.DiGraph)
    ([(0, 1, {'latency': 0.001})], 'DiGraph', True)
    """
    return cast("nx.DiGraph[Any]", Deferred(facts, nodes))


def add_node(graph: nx.DiGraph[Any], node: _Node, **attributes: Any) -> None:
    """Add a node, or attributes of a node, like ``graph.add_node``, or record them if the graph is not built yet.

    Parameters
    ----------
    graph : nx.DiGraph
        The graph, made or not.
    node : int or str
        A host or a switch.
    **attributes
        Of the node.
    """
    if (told := _recorded_parts(graph)) is None:
        graph.add_node(node, **attributes)
    else:
        told.append((node, None, attributes))


def add_link(graph: nx.DiGraph[Any], u: _Node, v: _Node, **attributes: Any) -> None:
    """Add a link with attributes, like ``graph.add_edge``, or record it if the networkx graph is not built yet.

    Parameters
    ----------
    graph : nx.DiGraph
        The graph, made or not.
    u, v : int or str
        From where, and where to.
    **attributes
        Of the link.
    """
    if (told := _recorded_parts(graph)) is None:
        graph.add_edge(u, v, **attributes)
    else:
        told.append((u, v, attributes))


def nodes_and_links(graph: nx.DiGraph[Any]) -> tuple[list[_Node], list[tuple[_Node, _Node, _Attributes]]]:
    """Return the nodes of a graph and its links (source, destination, attributes), in insertion order.

    A graph that is not made yet need not be made for that.

    Examples
    --------
    >>> graph = deferred(range(2))
    >>> add_link(graph, 1, "switch", kind="host")
    >>> add_link(graph, 0, "switch", kind="host")
    >>> nodes_and_links(graph)
    ([0, 1, 'switch'], [(0, 'switch', {'kind': 'host'}), (1, 'switch', {'kind': 'host'})])
    """
    if (told := _recorded_parts(graph)) is None:
        return list(graph), list(graph.edges(data=True))
    leading: dict[_Node, dict[_Node, _Attributes]] = {node: {} for node in vars(graph)["_nodes"]}
    for u, v, attributes in told:
        out = leading.setdefault(u, {})
        if v is not None:
            leading.setdefault(v, {})
            out.setdefault(v, {}).update(attributes)
    return list(leading), [(u, v, attributes) for u, out in leading.items() for v, attributes in out.items()]


def built_graph(graph: Deferred | nx.DiGraph[Any]) -> nx.DiGraph[Any]:
    """Turn a graph that only records nodes and links into a networkx graph, in place, and return it."""
    import networkx as nx

    with _ONE_AT_A_TIME:
        own = vars(graph)
        if "_recorded" in own:
            made: nx.DiGraph[Any] = nx.DiGraph()
            made.add_nodes_from(own["_nodes"])
            for u, v, attributes in own["_recorded"]:
                if v is None:
                    made.add_node(u, **attributes)
                else:
                    made.add_edge(u, v, **attributes)
            own.update({**vars(made), "graph": own["graph"]})
            # By the setter of every object, as the class here has its own idea of `__class__`.
            vars(object)["__class__"].__set__(graph, nx.DiGraph)
            del own["_nodes"], own["_recorded"]
    return cast("nx.DiGraph[Any]", graph)


def _recorded_parts(graph: nx.DiGraph[Any]) -> list[tuple[_Node, _Node | None, _Attributes]] | None:
    """Return the recorded nodes (u, None, attributes) and links (u, v, attributes); None for a real networkx graph."""
    return vars(graph)["_recorded"] if isinstance(graph, Deferred) else None
