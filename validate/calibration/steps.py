"""What a collective costs in steps and bytes, read from the schedule of its algorithm.

A model of steps has a few parameters of the machine (latency of a step, seconds per byte, seconds per byte reduced) and
takes how often each is paid from the schedule. So parameters fitted on an all-reduce of 8 ranks say something of an
all-gather of 16. Steps between nodes and steps inside a node are counted apart.

References
----------
A. Alexandrov et al., "LogGP: Incorporating long messages into the LogP model", SPAA 1995. NVIDIA, NCCL,
``src/graph/tuning.cc``: latencies and bandwidths by algorithm and protocol, from which NCCL chooses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from simnet import collectives
from simnet.schedule import Round, Schedule
from validate.calibration.curves import Setting

MAX_RANKS = 4096
"""The most ranks whose schedule is made; beyond, and for NCCL, closed forms count the steps."""


class Cost(NamedTuple):
    """How often an algorithm pays what, for a size of one byte.

    Parameters
    ----------
    inner, outer : float
        Steps inside a node, and between nodes.
    inner_bytes, outer_bytes : float
        Bytes on the critical path inside a node, and out of the busiest node.
    reduced : float
        Bytes that a rank reduces.
    tree : bool
        Whether it goes along a tree, on which bandwidth differs from that of a ring.
    """

    inner: float
    outer: float
    inner_bytes: float
    outer_bytes: float
    reduced: float = 0.0
    tree: bool = False


_SCHEDULES: MappingProxyType[str, MappingProxyType[str, Callable[[int], Schedule]]] = MappingProxyType(
    {
        "all_reduce": MappingProxyType(
            {
                "ring": lambda ranks: collectives.allreduce_ring(ranks, 1.0, gamma=1.0),
                "recursive_doubling": lambda ranks: collectives.allreduce_recursive_doubling(ranks, 1.0, gamma=1.0),
                "rabenseifner": lambda ranks: collectives.allreduce_rabenseifner(ranks, 1.0, gamma=1.0),
            }
        ),
        "all_gather": MappingProxyType(
            {
                "ring": lambda ranks: collectives.allgather_ring(ranks, 1.0 / ranks),
                "bruck": lambda ranks: collectives.allgather_bruck(ranks, 1.0 / ranks),
            }
        ),
        "reduce_scatter": MappingProxyType(
            {"ring": lambda ranks: collectives.reduce_scatter_ring(ranks, 1.0, gamma=1.0)}
        ),
        "broadcast": MappingProxyType({"binomial": lambda ranks: collectives.broadcast_binomial(ranks, 1.0)}),
        "reduce": MappingProxyType({"binomial": lambda ranks: collectives.reduce_binomial(ranks, 1.0, gamma=1.0)}),
        "alltoall": MappingProxyType({"pairwise": lambda ranks: collectives.alltoall_pairwise(ranks, 1.0 / ranks)}),
    }
)
"""Schedules of one byte by collective and algorithm."""


def algorithms(collective: str, algorithm: str) -> tuple[str, ...]:
    """Return the algorithms whose schedules are looked at: the one that is named, or all of the collective.

    Examples
    --------
    >>> algorithms("all_reduce", "Ring"), algorithms("broadcast", "")
    (('ring',), ('binomial',))
    """
    known = _SCHEDULES.get(collective, MappingProxyType({}))
    word = algorithm.casefold()
    named = tuple(name for name in known if word.startswith(name))
    return named or tuple(known)


@cache
def through_schedule(collective: str, algorithm: str, ranks: int, nodes: int) -> Cost:
    """Return what an algorithm pays, read from its schedule.

    Ranks are placed on nodes in blocks. A round with a message between nodes is a step between nodes.

    Parameters
    ----------
    collective, algorithm : str
        As `algorithms` has them.
    ranks, nodes : int
        Ranks, 2 .. `MAX_RANKS`, and nodes; 0 nodes if not known, which counts as a node for each rank.

    Examples
    --------
    >>> through_schedule("all_reduce", "ring", 4, 0)
    Cost(inner=0.0, outer=6.0, inner_bytes=0.0, outer_bytes=1.5, reduced=0.75, tree=False)
    """
    schedule = _SCHEDULES[collective][algorithm](ranks)
    node = np.arange(ranks) * (nodes or ranks) // ranks
    counted: dict[int, tuple[float, float, float, float, float]] = {}
    total = np.zeros(5)
    for one in schedule.rounds:
        if id(one) not in counted:
            counted[id(one)] = _round(one, node)
        total += counted[id(one)]
    inner, outer, inner_bytes, outer_bytes, reduced = (float(value) for value in total)
    return Cost(inner, outer, inner_bytes, outer_bytes, reduced)


def like_nccl(collective: str, algorithm: str, ranks: int, nodes: int) -> tuple[Cost, ...]:
    """Return what NCCL counts for the algorithms that it may choose: rings, and for an all-reduce trees too.

    A chunk crosses the network as often as there are nodes on its way; all other steps are inside nodes. Trees are
    pipelined: their bytes do not grow with their depth.

    Examples
    --------
    >>> like_nccl("all_reduce", "ring", 16, 2)[0][:4]
    (26, 4, 0.0, 1.875)
    >>> like_nccl("all_gather", "", 8, 1)[0][:4]
    (7, 0, 0.875, 0.0)
    """
    many = nodes or ranks
    share, passes = (ranks - 1) / ranks, 2 if collective == "all_reduce" else 1
    steps, crossing = passes * (ranks - 1), passes * many if many > 1 else 0
    crossing = min(crossing, steps)
    factor = {"all_reduce": 2 * share, "broadcast": 1.0, "reduce": 1.0, "sendrecv": 1.0}.get(collective, share)
    reduced = share if collective in ("all_reduce", "reduce_scatter") else 0.0
    outer_share = factor if many > 1 else 0.0
    if collective == "sendrecv":
        return (Cost(float(many == 1), float(many > 1), float(many == 1), float(many > 1)),)
    if collective == "alltoall":
        remote = (1 - 1 / many) * (ranks / many)
        inside = ranks / many - 1
        return (Cost(inside, ranks - 1 - inside, (ranks / many - 1) / ranks, remote if many > 1 else 0.0),)
    ring = Cost(steps - crossing, crossing, factor if many == 1 else 0.0, outer_share, reduced)
    if collective != "all_reduce" or algorithm.casefold().startswith("ring"):
        return (ring,)
    depth = 2 * math.ceil(math.log2(many)) if many > 1 else 0
    tree = Cost(2 * (ranks / many - 1), depth, 2.0 if many == 1 else 0.0, 2.0 if many > 1 else 0.0, 1.0, tree=True)
    return (tree,) if algorithm.casefold().startswith("tree") else (ring, tree)


def costs(setting: Setting, nccl: bool) -> tuple[Cost, ...]:
    """Return what each algorithm that a setting may use pays; nothing if none is known.

    Examples
    --------
    >>> len(costs(Setting("all_reduce", 8), nccl=False)), costs(Setting("gather", 8), nccl=False)
    (3, ())
    """
    if setting.ranks < 2:
        return ()
    if setting.collective not in (*_SCHEDULES, "sendrecv"):
        return ()
    nodes = setting.nodes if 0 < setting.nodes <= setting.ranks else 0
    if nccl:
        return like_nccl(setting.collective, setting.algorithm, setting.ranks, nodes)
    if setting.ranks > MAX_RANKS:
        return ()
    names = algorithms(setting.collective, setting.algorithm)
    return tuple(through_schedule(setting.collective, name, setting.ranks, nodes) for name in names)


def _round(one: Round, node: np.ndarray) -> tuple[float, float, float, float, float]:
    """Return steps and bytes inside and between nodes of a round, and the bytes that a rank reduces before it."""
    reduced = float(np.max(one.compute))
    if not len(one):
        return 0.0, 0.0, 0.0, 0.0, reduced
    crosses = node[one.src] != node[one.dst]
    if crosses.any():
        away = one.nbytes[crosses]
        busiest = max(np.bincount(node[ends][crosses], weights=away).max() for ends in (one.src, one.dst))
        return 0.0, 1.0, 0.0, float(busiest), reduced
    busiest = max(np.bincount(ends, weights=one.nbytes).max() for ends in (one.src, one.dst))
    return 1.0, 0.0, float(busiest), 0.0, reduced
