"""Network topologies as graphs: hosts, switches, directed links with a latency and a bandwidth, and routes over them.

Each builder returns a `networkx.DiGraph` as described in `simnet.topologies.graphs`, and raises ValueError where a
parameter is out of range. Nothing here knows of time, messages or gradients. A topology from elsewhere registers its
builder under the entry-point group ``simnet.topologies``; `names` and `build` then find it like the ones below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simnet.base import plugins
from simnet.base.errors import check_choice, suggest_names
from simnet.topologies.dragonfly import dragonfly
from simnet.topologies.fat_tree import fat_tree
from simnet.topologies.graphs import Graph
from simnet.topologies.grids import flattened_butterfly, torus
from simnet.topologies.links import select_links
from simnet.topologies.multi_gpu_nodes import multi_gpu_nodes
from simnet.topologies.ring import ring
from simnet.topologies.routes import Routes, check_connected
from simnet.topologies.star import star
from simnet.topologies.tree import tree
from simnet.topologies.wan import wan
from simnet.topologies.wan_of_clusters import wan_of_clusters

if __name__ != "simnet.topologies":  # by the link at the top of a checkout
    raise ImportError("topologies has one name: import simnet.topologies")

__all__ = [
    "FAMILIES",
    "Routes",
    "build",
    "check_connected",
    "dragonfly",
    "fat_tree",
    "flattened_butterfly",
    "multi_gpu_nodes",
    "names",
    "ring",
    "select_links",
    "star",
    "torus",
    "tree",
    "wan",
    "wan_of_clusters",
]

FAMILIES: Mapping[str, Callable[..., Graph]] = {
    one.__name__: one
    for one in (
        *(star, ring, tree, fat_tree, torus, dragonfly, flattened_butterfly),
        *(wan, multi_gpu_nodes, wan_of_clusters),
    )
}
"""The builders of this package by name."""


def names() -> list[str]:
    """Return the sorted names of topology families that `build` accepts, built-in and from plug-ins.

    Examples
    --------
    >>> set(names()) >= {"dragonfly", "fat_tree", "multi_gpu_nodes", "ring", "star", "torus", "tree", "wan"}
    True
    """
    return sorted({*FAMILIES, *plugins.plugin_names("topologies")})


def build(name: str, **parameters: Any) -> Graph:
    """Return the topology of the family `name`, such as ``ring``, built with the given options.

    Parameters
    ----------
    name : str
        One of `names`. A name of this package stays with this package whatever others register.
    **parameters
        Those of the builder, by name.

    Raises
    ------
    ValueError
        If there is no such family, or a parameter is unknown, missing, or refused by the builder.

    Examples
    --------
    >>> build("star", hosts=4, latency=1e-3, bandwidth=1e9).number_of_edges()
    8
    >>> build("star", hots=4, latency=1e-3, bandwidth=1e9)
    Traceback (most recent call last):
    ValueError: there is no star parameter 'hots': did you mean 'hosts'? Allowed: bandwidth, hosts, latency
    """
    builder = FAMILIES.get(name) or plugins.load_plugin("topologies", name, lambda found: found)
    if builder is None:
        raise ValueError(f"there is no topology {name!r}: {suggest_names(name, names())}")
    _check_names(name, builder, parameters)
    return builder(**parameters)


def _check_names(name: str, builder: Callable[..., Any], parameters: dict[str, Any]) -> None:
    from inspect import Parameter, signature

    known = signature(builder).parameters
    if not any(one.kind is Parameter.VAR_KEYWORD for one in known.values()):
        for given in parameters:
            check_choice(given, f"{name} parameter", known)
    needs = (one for one in known.values() if one.default is Parameter.empty and one.kind is not Parameter.VAR_KEYWORD)
    if missing := [one.name for one in needs if one.name not in parameters]:
        *first, last = missing
        needed = f"{', '.join(first)} and {last}" if first else last
        raise ValueError(f"{name} needs {needed}; its parameters are {', '.join(known)}")
