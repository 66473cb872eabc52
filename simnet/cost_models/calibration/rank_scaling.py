"""Scales collective times to other numbers of ranks, size by size, by fitted costs of launch, steps and bytes.

At one size, the time of a collective is a sum of terms >= 0: constant, with the logarithm of the nodes (trees), with
the successive messages between nodes (rings, peers), with the bytes out of a node, and on one node with those inside.
Their costs are fitted to the curves, near ones first, with a little ridge; the rest is interpolated over the logarithm
of the ranks. Algorithms whose messages are parts of the vector compare at the same size per rank.
"""

# References: C. L. Lawson, R. J. Hanson, "Solving Least Squares Problems", Prentice-Hall 1974 (non-negative least
# squares). NVIDIA, NCCL, ``src/graph/tuning.cc``: on two nodes a tree is counted with the bandwidth inside the nodes.

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.calibration.curves import Setting
from simnet.cost_models.calibration.step_model import count_like_nccl

CHUNKED_COLLECTIVES = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
"""Collectives whose messages are parts of the vector."""

# Typical on the public sets of docs/calibration.md. On five of them the median error of ranks left out is 2 to 31 %,
# and half or twice as much of `_INSIDE`, `_RIDGE`, `_NEAR` or `_FASTEST_MESSAGE` moves it by at most 3 percentage
# points.

# A step inside a node over one between nodes.
_INSIDE = 0.15
# Of relative errors: few numbers of ranks do not tell five terms apart, and without it one would stand for another.
_RIDGE = 0.05
# A curve whose logarithm of the ranks is off by this counts half.
_NEAR = 1.0
# Places of the terms that bytes and rings have, and how many terms there are; see `term_counts`.
_RING, _OUTER, _INNER, _TERMS = 2, 3, 4, 5
# s: no message between nodes takes less, through a network card.
_FASTEST_MESSAGE = 5e-7
# What noise may add to a time that cannot be longer than another; without it, the H100 cluster is off by 4.0 %
# in place of 2.3 %.
_SLACK = 1.1
# byte: where bandwidth is all of the time.
_LARGE = 2.0**30
_OF_RING = 0.46  # As NCCL counts: half, for both ways along the tree, less 8 %.


def term_counts(setting: Setting, by_tree: float = np.inf, cards: float = np.inf) -> Floats:
    """Return counts of launches, tree steps, ring steps, and bytes out of and inside a node, for a one-byte call, (5,).

    A step to a peer is a ring step; bytes inside count on a single node only. `by_tree` are the bytes that a node of
    two sends along a double tree, for a vector of one byte; `cards` is the number of network cards of a node.
    """
    ranks, nodes = setting.ranks, min(setting.nodes or setting.ranks, setting.ranks)
    if ranks < 2:
        return np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    name = setting.collective if setting.collective in ("all_reduce", "alltoall", "sendrecv", "broadcast") else ""
    (way,) = count_like_nccl(name, "ring", ranks, nodes, cards=cards)
    crossing = ranks - ranks / nodes if name == "alltoall" else min(nodes, ranks - 1) * (nodes > 1)
    tree = np.log2(nodes) + _INSIDE * np.log2(ranks / nodes)
    outer = min(way.outer_bytes, by_tree / min(ranks / nodes, cards)) if nodes == 2 else way.outer_bytes
    inner = way.inner_bytes if nodes == 1 else 0.0
    return np.array([1.0, tree, crossing + _INSIDE * (ranks - 1 - crossing), outer, inner])


def scale_over_ranks(
    settings: Sequence[Setting],
    curves: Sequence[Callable[[Floats], Floats]],
    asked: Setting,
    sizes: Floats,
    *,
    chunked: bool,
    nccl: bool = False,
    cards: float = np.inf,
) -> Floats:
    """Predict times [s] at `sizes` [byte] for an unmeasured number of ranks, from curves on other numbers; shape (n,).

    There is at least one curve, a function from sizes to times, in `curves`, of the setting in `settings`; `asked` is
    the wanted setting. With `chunked`, curves compare at the same size per rank; with `nccl`, there are double trees;
    bytes count over `cards` of a node.
    """
    from scipy.optimize import nnls

    ratios = [one.ranks / asked.ranks if chunked else 1.0 for one in settings]
    times = np.array([curve(np.append(sizes, _LARGE) * one) for curve, one in zip(curves, ratios, strict=True)])
    known, large = times[:, :-1], times[:, -1]
    trees = nccl and asked.collective == "all_reduce" and not asked.algorithm.casefold().startswith("ring")
    by_tree = _tree_bytes(settings, large) if trees else np.inf
    counted = np.array([term_counts(one, by_tree, cards) for one in settings])
    wanted = term_counts(asked, by_tree, cards)
    if chunked:
        counted[:, _OUTER:] *= np.array(ratios)[:, None]
    # With no less to do, no time is less: where it is, the longer one was disturbed, or badly chosen for these ranks.
    more = np.all(counted >= counted[:, None] * (1 - 1e-9), axis=2)
    known = np.minimum(known, _SLACK * np.where(more[:, :, None], known, np.inf).min(axis=1))
    distance = np.abs(np.log([one.ranks / asked.ranks for one in settings]))
    weight = _NEAR / (_NEAR + distance)
    # Where bandwidth cannot be most of the time, it is not to stand for something else that starts with two nodes.
    ridge = np.full((_TERMS, len(sizes)), _RIDGE)
    for term in (_OUTER, _INNER):
        ridge[term] /= np.maximum(_byte_share(counted[:, term], known, large, sizes), 1e-6)
    phases = 2 if asked.collective == "all_reduce" else 1
    too_fast = np.any(known < phases * counted[:, _RING, None] * _FASTEST_MESSAGE, axis=0)
    order = np.argsort([one.ranks for one in settings], kind="stable")
    ranks, places = np.unique([settings[number].ranks for number in order], return_inverse=True)
    found = np.empty(len(sizes))
    for number in range(len(sizes)):
        relative = counted / known[:, number, None] * weight[:, None]
        relative[:, _RING] *= ~too_fast[number]
        scale = np.linalg.norm(relative, axis=0)
        scale[scale == 0] = 1.0
        system = np.vstack([relative / scale, np.diag(ridge[:, number])])
        cost, _ = nnls(system, np.concatenate([weight, np.zeros(_TERMS)]))
        cost = cost / scale
        left = np.log(known[:, number] / np.maximum(counted @ cost, 1e-15))[order]
        means = np.bincount(places, left) / np.bincount(places)
        rest = float(np.interp(np.log(asked.ranks), np.log(ranks), means))
        found[number] = max(float(wanted @ cost), 1e-15) * np.exp(rest)
    return found


def _byte_share(moved: Floats, known: Floats, large: Floats, sizes: Floats) -> Floats:
    """Return, for each size, an upper bound on the share of a collective's time that its bytes take, shape (n,)."""
    paying = moved > 0
    if not paying.any():
        return np.ones(len(sizes))
    per_byte = np.median(large[paying] / (_LARGE * moved[paying]))
    return np.asarray(np.minimum(per_byte * sizes * moved.max() / np.median(known[paying], axis=0), 1.0))


def _tree_bytes(settings: Sequence[Setting], large: Floats) -> float:
    """Return the bytes (>= 1) that each of two nodes sends along a double tree per byte reduced; inf if unknown."""
    # Only ratios count, so that 2 * _LARGE is left out.
    each = zip(settings, large.tolist(), strict=True)
    rates = [(one.nodes, (one.ranks - 1) / one.ranks / seconds) for one, seconds in each]
    inside = max((rate for nodes, rate in rates if nodes == 1), default=0.0)
    between = max((rate for nodes, rate in rates if nodes > 2), default=0.0)
    return max(1.0, between / (_OF_RING * inside)) if inside and between else np.inf
