"""Recognition of regular topologies, whose routes are computed by formula instead of search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simnet.topologies.dragonfly import DragonflyShape
from simnet.topologies.fat_tree import FatTreeShape
from simnet.topologies.graphs import LARGEST, Link
from simnet.topologies.grids import FlattenedButterflyShape, TorusShape
from simnet.topologies.multi_gpu_nodes import MultiGpuShape
from simnet.topologies.ring import RingShape
from simnet.topologies.shapes import Cable, SiteShape
from simnet.topologies.star import StarShape
from simnet.topologies.tree import TreeShape

_SHAPES: dict[str, Callable[..., SiteShape]] = {
    "dragonfly": DragonflyShape,
    "fat_tree": FatTreeShape,
    "flattened_butterfly": FlattenedButterflyShape,
    "multi_gpu_nodes": MultiGpuShape,
    "ring": RingShape,
    "star": StarShape,
    "torus": TorusShape,
    "tree": TreeShape,
}


def family_shape(name: object, numbers: object) -> SiteShape | None:
    """Return the shape of a named topology family with given parameters; None if the name or a parameter is invalid."""
    if not isinstance(name, str) or name not in _SHAPES or not isinstance(numbers, dict):
        return None
    each = (one for value in numbers.values() for one in (value if isinstance(value, list) else [value]))
    if not all(isinstance(one, int) and (isinstance(one, bool) or 1 <= one <= LARGEST) for one in each):
        return None
    try:
        shape = _SHAPES[name](**numbers)
        return shape if shape.n_hosts <= LARGEST else None
    except TypeError:  # the numbers of another family, or a number where there should be a list
        return None


def links_of(cables: Iterable[Cable], weights: Mapping[Link, float], weight: float) -> int | None:
    """Return the number of links of `cables`, two per cable; None unless all of them have `weight` in `weights`.

    Parameters
    ----------
    cables : iterable of Cable
        Two nodes each, and a kind, which does not matter.
    weights : mapping of (u, v) to float
        Every link of the graph, and its weight.
    weight : float
        What each link of the cables must weigh.
    """
    links = 0
    for a, b, _ in cables:
        if weights.get((a, b)) != weight or weights.get((b, a)) != weight:
            return None
        links += 2
    return links


def recognised_shape(facts: Mapping[str, Any], weights: Mapping[Link, float]) -> SiteShape | None:
    """Return the shape that graph attributes declare; None unless its links are the graph's links, all of weight 1.

    Parameters
    ----------
    facts : mapping
        ``graph.graph``.
    weights : mapping of (u, v) to float
        Every link of the graph, and its weight.
    """
    shape = family_shape(facts.get("name"), facts.get("shape"))
    if shape is None or shape.hosts_forward != bool(facts.get("hosts_forward", False)):
        return None
    return shape if links_of(shape.cables(), weights, 1.0) == len(weights) else None
