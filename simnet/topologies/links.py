"""Selectors of links: texts by which a scenario names links, for example those whose bandwidth varies."""

from __future__ import annotations

from typing import Any

from simnet.base.errors import did_you_mean, join_names, suggest_names
from simnet.topologies.deferred import nodes_and_links
from simnet.topologies.graphs import Graph, Link, label


def select_links(graph: Graph, selector: str) -> list[Link]:
    """Return the links of `graph` that `selector` names.

    ============== =============================================================================================
    selector       links
    ============== =============================================================================================
    ``all``        every one
    ``wan``        those of this ``kind``; ``host``, ``fabric``, ``global``, ``dim0``, ... likewise
    ``A->B``       the one from A to B, where A and B are nodes, or sites by their bare names
    ``A<->B``      those from A to B and from B to A
    ``host:3``     those from or to this node: a host, or a switch by its name, such as ``site:Tokyo`` or ``core:0.1``
    ============== =============================================================================================

    A node is written ``host:3`` or by its name in the graph. Blanks around names do not matter.

    Raises
    ------
    ValueError
        If the selector names no link, with the allowed forms and the nearest names.

    Examples
    --------
    >>> from simnet.topologies import wan
    >>> graph = wan(["Oregon", "Tokyo"], latency=0.05, bandwidth=1e6, workers_per_site=1)
    >>> select_links(graph, "Oregon -> Tokyo")
    [('site:Oregon', 'site:Tokyo')]
    >>> select_links(graph, "host:1")
    [(1, 'site:Tokyo'), ('site:Tokyo', 1)]
    """
    selector = selector.strip()
    if "->" in selector:
        return _links_between(graph, selector)
    all_nodes, links = nodes_and_links(graph)
    kind_of: dict[Link, Any] = {(u, v): link.get("kind") for u, v, link in links}
    if selector == "all":
        chosen = list(kind_of)
    elif selector in kind_of.values():
        chosen = [link for link, kind in kind_of.items() if kind == selector]
    else:
        nodes = {label(node): node for node in all_nodes}
        if selector not in nodes:
            kinds = sorted({kind for kind in kind_of.values() if isinstance(kind, str)})
            raise ValueError(
                f"{selector!r} names no links: {did_you_mean(selector, ['all', *kinds, *nodes])}Allowed: all, "
                f"a kind ({join_names(kinds)}), a node ({join_names(list(nodes), 5)}), or between "
                "nodes or sites A->B, A<->B"
            )
        chosen = [link for link in kind_of if nodes[selector] in link]
    if not chosen:
        raise ValueError(f"{selector!r} names no links: the topology has none there")
    return chosen


def _links_between(graph: Graph, selector: str) -> list[Link]:
    left, both, right = selector.partition("<->")
    if not both:
        left, _, right = selector.partition("->")
    nodes, links = nodes_and_links(graph)
    names = {label(node): node for node in nodes}
    for site in graph.graph.get("sites", ()):
        names.setdefault(site, f"site:{site}")
    ends = left.strip(), right.strip()
    for name in ends:
        if name not in names:
            raise ValueError(f"{selector!r}: {name!r} is neither a node nor a site: {suggest_names(name, names)}")
    a, b = (names[name] for name in ends)
    wanted = [(a, b), (b, a)] if both else [(a, b)]
    there = {(u, v) for u, v, _ in links}
    for u, v in wanted:
        if (u, v) not in there:
            others = join_names([label(to) for start, to, _ in links if start == u]) or "none"
            raise ValueError(
                f"{selector!r}: there is no link from {label(u)} to {label(v)}; from {label(u)} links lead to {others}"
            )
    return wanted
