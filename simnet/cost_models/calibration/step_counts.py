"""Steps and bytes of collectives, counted from schedules or by NCCL's formulas.

Steps between nodes and inside a node count apart. Of NCCL, a *ring* passes chunks around; a *tree*, for all-reduce, is
a chain inside each node and a double binary tree between nodes; *peers*, for all-to-all, are messages from each rank to
each other; a *pair*, for send-receive, is one from each rank to the next; the *switch* reduces inside an NVLink domain.
"""

# References: NVIDIA, NCCL, ``src/graph/tuning.cc``; P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full
# bandwidth broadcast, reduction and scan", Parallel Computing 35, 2009; R. Thakur et al., IJHPCA 19, 2005.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from simnet.base import plugins
from simnet.collectives import registry
from simnet.cost_models.calibration.curves import Setting
from simnet.schedule import Round

MAX_RANKS = 4096
"""The most ranks whose schedule is made; beyond, and for NCCL, closed forms count the steps."""


AlgorithmKind: TypeAlias = Literal["ring", "tree", "peers", "pair", "switch"]
"""Communication pattern of an algorithm; latency and bandwidth of a step differ by pattern."""


class StepCount(NamedTuple):
    """Steps and bytes that an algorithm takes for a total size of one byte.

    Steps and bytes on the critical path `inner`, inside a node, and `outer`, out of the busiest node or over one of its
    cards; bytes `reduced` by a rank; `peers` of a rank; `kind`, the shape of the algorithm.
    """

    inner: float
    outer: float
    inner_bytes: float
    outer_bytes: float
    reduced: float = 0.0
    peers: float = 0.0
    kind: AlgorithmKind = "ring"


# Algorithms of MPI libraries that count where they are named alone, and as what they count: one after the other.
_COUNTED_LIKE: Mapping[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("all_gather", "recursive_doubling"): (("all_gather", "bruck"),),
    ("all_reduce", "nonoverlapping"): (("reduce", "binomial"), ("broadcast", "binomial")),
    ("reduce_scatter", "butterfly"): (("reduce_scatter", "recursive_halving"),),
}


def known_algorithms() -> tuple[str, ...]:
    """Return the names of algorithms with step counts: NCCL's, then those counted from schedules."""
    names = {one.algorithm for one in registry.all_collectives() if one.calibrated}
    return ("ring", "tree", *sorted(names - {"ring", "tree"}))


def _known_algorithms(collective: str) -> dict[str, registry.Collective]:
    """Return the algorithms of a collective that are counted from schedules, by name."""
    return _registered_algorithms(collective, plugins.plugins_allowed())


# Fitting asks for each setting; looking through packages takes time.
@cache
def _registered_algorithms(collective: str, _allowed: bool) -> dict[str, registry.Collective]:
    return {one.algorithm: one for one in registry.all_collectives() if one.calibrated and one.operation == collective}


def counted_algorithms(collective: str, algorithm: str) -> tuple[str, ...]:
    """Return the algorithms of a collective whose steps can be counted; only those that `algorithm` names, if any."""
    known = _known_algorithms(collective)
    alone = [name for of, name in (("all_gather", "neighbor"), *_COUNTED_LIKE) if of == collective]
    word = algorithm.casefold()
    named = tuple(name for name in (*known, *alone) if name in word)
    return named or tuple(known)


@cache
def count_schedule(collective: str, algorithm: str, ranks: int, nodes: int) -> StepCount:
    """Return an algorithm's step count from its schedule; rounds that cross nodes count as steps between nodes.

    Ranks (2 .. `MAX_RANKS`) fill nodes in blocks; 0 nodes means one for each rank.
    """
    rounds: Iterable[Round] = ()
    for of, name in _COUNTED_LIKE.get((collective, algorithm), ((collective, algorithm),)):
        rounds = (*rounds, *(_neighbour_rounds(ranks) if name == "neighbor" else _unit_rounds(of, name, ranks)))
    node = np.arange(ranks) * (nodes or ranks) // ranks
    counted: dict[int, tuple[float, float, float, float, float]] = {}
    total = np.zeros(5)
    for one in rounds:
        if id(one) not in counted:
            counted[id(one)] = _count_round(one, node)
        total += counted[id(one)]
    inner, outer, inner_bytes, outer_bytes, reduced = (float(value) for value in total)
    return StepCount(inner, outer, inner_bytes, outer_bytes, reduced)


def _unit_rounds(collective: str, algorithm: str, ranks: int) -> Iterable[Round]:
    """Return the rounds of an algorithm for a total size of one byte."""
    found = _known_algorithms(collective)[algorithm]
    work = {"gamma": 1.0} if "gamma" in found.options else {}
    return found.schedule_of_vector(ranks, 1.0, **work).rounds


def _neighbour_rounds(ranks: int) -> Iterable[Round]:
    """Return the rounds of a neighbour-exchange all-gather (Chen et al., HPC Asia 2005); a ring if ranks are odd."""
    if ranks % 2:
        return _unit_rounds("all_gather", "ring", ranks)
    rank = np.arange(ranks)
    first, even, odd = (
        Round(rank, (rank + np.where((rank + side) % 2, -1, 1)) % ranks, many / ranks)
        for side, many in ((0, 1), (0, 2), (1, 2))
    )
    return [first, *(odd if number % 2 else even for number in range(1, ranks // 2))]


def count_like_nccl(
    collective: str, algorithm: str, ranks: int, nodes: int, switch: bool = False, cards: float = math.inf
) -> tuple[StepCount, ...]:
    """Return step counts by NCCL's formulas: of all algorithms it may choose, or of the pinned `algorithm`.

    A chunk crosses the network once per node; trees are pipelined. Between two nodes each half of the vector crosses
    once each way. 0 `nodes` are a node for each rank; with `switch`, switches inside a node reduce; each of the `cards`
    of a node has a ring of its own, infinite for one per rank.
    """
    many = nodes or ranks
    each = ranks / many
    rails = min(each, cards)
    share, alone = (ranks - 1) / ranks, many == 1
    if collective == "sendrecv":
        return (StepCount(float(alone), float(not alone), float(alone), float(not alone), kind="pair"),)
    if collective == "alltoall":
        away, peers = 0.0 if alone else (1 - 1 / many) * each / rails, ranks - (1.0 if alone else each)
        return (StepCount(float(alone), float(not alone), (each - 1) / ranks, away, 0.0, peers, "peers"),)
    passes = 2 if collective == "all_reduce" else 1
    steps = passes * (ranks - 1)
    crossing = 0 if alone else min(passes * many, steps)
    factor = {"all_reduce": 2 * share, "broadcast": 1.0, "reduce": 1.0}.get(collective, share)
    reduced = share if collective in ("all_reduce", "reduce_scatter") else 1.0 if collective == "reduce" else 0.0
    ring = StepCount(steps - crossing, crossing, factor if alone else 0.0, 0.0 if alone else factor / rails, reduced)
    if collective != "all_reduce":
        return (ring,)
    depth = 0 if alone else 2 * math.ceil(math.log2(many))
    sent = 0.0 if alone else (1.0 if many == 2 else 2.0) / rails
    tree = StepCount(2 * (each - 1), depth, 2.0 if alone else 0.0, sent, 1.0, kind="tree")
    ways = {"ring": (ring,), "tree": (tree,)}
    inside = (StepCount(2, 0, 1 + 1 / ranks, 0.0, kind="switch"),) if switch and alone else ()
    if algorithm.casefold().startswith("nvls") and inside:
        return inside
    return ways.get(algorithm.casefold()[:4], (ring, tree, *inside))


def count_steps(setting: Setting, nccl: bool, switch: bool = False, cards: float = math.inf) -> tuple[StepCount, ...]:
    """Return the step count of each algorithm a setting may use; empty if none is known."""
    alone, nodes = setting.collective == "sendrecv", min(setting.nodes, setting.ranks)
    if setting.ranks < 2 or not (alone or _known_algorithms(setting.collective)):
        return ()
    if nccl:
        return count_like_nccl(setting.collective, setting.algorithm, setting.ranks, nodes, switch, cards)
    if alone:
        return count_like_nccl(setting.collective, "", setting.ranks, nodes)
    if setting.ranks > MAX_RANKS:
        return ()
    names = counted_algorithms(setting.collective, setting.algorithm)
    return tuple(count_schedule(setting.collective, name, setting.ranks, nodes) for name in names)


def _count_round(one: Round, node: np.ndarray) -> tuple[float, float, float, float, float]:
    """Return a round's steps inside and between nodes, bytes inside and between, and reduced bytes."""
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
