"""Reads topologies from node-link JSON, which networkx and graph drawing tools exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from simnet.base.errors import InputError, shorten_text, suggest_names
from simnet.base.reading import read_text
from simnet.topologies.graphs import Node, check_graph, label
from simnet.topologies.routes import Routes

if TYPE_CHECKING:
    import networkx as nx

MAX_BYTES = 256 * 2**20
"""The largest file that is read."""


def read_nodelink(path: str | Path) -> nx.DiGraph[Node]:
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

    file = str(path)

    def refuse(message: str, field: str | None = None) -> NoReturn:
        raise InputError(message, file=file, field=field)

    def entries(value: object, name: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            refuse(f"must be an object, got {_value_text(value)}", name)
        return {key: tuple(one) if isinstance(one, list) and key == "sites" else one for key, one in value.items()}

    def node(value: object, name: str) -> Node:
        if isinstance(value, bool) or not isinstance(value, int | str):
            refuse(f"must be a host (a whole number) or a switch (a string), got {_value_text(value)}", name)
        return value

    data = entries(_read_json(read_text(Path(path), MAX_BYTES), file), "")
    if data.get("multigraph"):
        refuse("must be false; join parallel links by adding their bandwidths", "multigraph")
    links = "links" if "links" in data and "edges" not in data else "edges"
    for name in ("nodes", links):
        if not isinstance(data.get(name), list):
            refuse(f"must be a list; {suggest_names(name, data)}".replace("Allowed:", "Given:"), name)
    graph: nx.DiGraph[Node] = nx.DiGraph(**entries(data.get("graph", {}), "graph"))
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
    try:
        hosts = check_graph(graph)
    except ValueError as error:
        raise InputError(str(error), file=file) from None
    graph.graph.setdefault("hosts", hosts)
    gap = None if "hosts_forward" in graph.graph else Routes(graph).gap()
    if gap is not None and len(graph) == hosts:
        graph.graph |= {"hosts_forward": True, "remarks": ["hosts pass on messages, as the graph has no switches"]}
    elif gap is not None and nx.has_path(graph, *gap):
        rule = "hosts pass on nothing unless the graph has hosts_forward"
        refuse(f"there is no route from host {gap[0]} to host {gap[1]}: {rule}")
    return graph


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
