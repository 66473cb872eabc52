"""Time over the number of ranks, size by size: what the curves of some numbers of ranks say of another.

At one size, the time of a collective is taken to be a sum of terms, each >= 0, that grow with the ranks in the ways in
which algorithms do: not at all (launch), with the logarithm of the nodes (trees), with the ranks (rings), and with the
bytes that a rank sends out of its node (bandwidth). What the terms cost is fitted to the curves that there are, the
near ones first, with a little ridge, and what remains is interpolated over the logarithm of the ranks. The switch
points of an algorithm whose messages are parts of the vector, as in an all-gather along a ring, are at the same size
of the parts: there the curves are compared at the same size per rank, in place of the same size.

References
----------
C. L. Lawson, R. J. Hanson, "Solving Least Squares Problems", Prentice-Hall 1974 (non-negative least squares).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from validate.calibration.curves import Floats, Setting
from validate.calibration.shapes import Mixture, Shape
from validate.calibration.steps import like_nccl

CHUNKED = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
"""Collectives whose messages have the size of a part of the vector."""

_INSIDE = 0.15
_RIDGE = 0.05
_NEAR = 1.0
_TERMS = 4


def terms(setting: Setting) -> Floats:
    """Return how often a setting pays launch, a step of a tree, a step of a ring, and a byte out of its node.

    Steps of a tree inside a node count little beside those between nodes.

    Examples
    --------
    >>> terms(Setting("all_reduce", 16, 4)).round(3).tolist()
    [1.0, 2.3, 15.0, 0.469]
    """
    ranks, nodes = setting.ranks, min(setting.nodes or setting.ranks, setting.ranks)
    name = setting.collective if setting.collective in ("all_reduce", "alltoall", "sendrecv", "broadcast") else ""
    moved = like_nccl(name, "ring", ranks, nodes)[0].outer_bytes if ranks > 1 else 0.0
    return np.array([1.0, np.log2(nodes) + _INSIDE * np.log2(ranks / nodes), ranks - 1.0, moved])


def over_ranks(
    settings: Sequence[Setting], shapes: Sequence[Shape | Mixture], asked: Setting, sizes: Floats, chunked: bool
) -> Floats:
    """Predict the time of a collective on a number of ranks from its curves on others.

    Parameters
    ----------
    settings, shapes : sequence of Setting, of Shape
        The curves that there are, at least 1.
    asked : Setting
        What is asked for.
    sizes : ndarray of float, shape (n,)
        Total sizes [byte].
    chunked : bool
        Whether curves are compared at the same size per rank.

    Returns
    -------
    ndarray of float, shape (n,)
        Times [s].

    Examples
    --------
    A tree, whose time grows with the logarithm of the nodes:

    >>> nodes = (2, 4, 16)
    >>> shapes = [Shape(segments=((0.0, 1e-5 * (1 + np.log2(n)), 1e-15),)) for n in nodes]
    >>> known = [Setting("all_reduce", n, n) for n in nodes]
    >>> seconds = over_ranks(known, shapes, Setting("all_reduce", 8, 8), np.array([8.0]), chunked=False)
    >>> bool(abs(seconds[0] - 4e-5) < 1e-6)
    True
    """
    parts = asked.ranks if chunked else 1
    ratios = [(one.ranks / asked.ranks if chunked else 1.0) for one in settings]
    known = np.array([shape.at(sizes * ratio) for shape, ratio in zip(shapes, ratios, strict=True)])
    counted = np.array([terms(one) for one in settings])
    wanted = terms(asked)
    if chunked:
        counted[:, 3] *= [one.ranks for one in settings]
        wanted[3] *= asked.ranks
    distance = np.abs(np.log([one.ranks / asked.ranks for one in settings]))
    weight = _NEAR / (_NEAR + distance)
    per_byte = _least_seconds_per_byte(settings, shapes, float(sizes.max()))
    share = np.minimum(per_byte * sizes / parts * counted[:, 3].max() / np.median(known, axis=0), 1.0)
    order = np.argsort([one.ranks for one in settings], kind="stable")
    ranks, places = np.unique([settings[number].ranks for number in order], return_inverse=True)
    found = np.empty(len(sizes))
    for number in range(len(sizes)):
        relative = counted / known[:, number, None] * weight[:, None]
        scale = np.linalg.norm(relative, axis=0)
        scale[scale == 0] = 1.0
        # Where bandwidth cannot be most of the time, it is not to stand for something else that starts with two nodes.
        ridge = _RIDGE * np.array([1.0, 1.0, 1.0, 1.0 / max(share[number], 1e-6)])
        cost, _ = nnls(np.vstack([relative / scale, np.diag(ridge)]), np.concatenate([weight, np.zeros(_TERMS)]))
        cost = cost / scale
        left = np.log(known[:, number] / np.maximum(counted @ cost, 1e-15))[order]
        means = np.bincount(places, left) / np.bincount(places)
        rest = float(np.interp(np.log(asked.ranks), np.log(ranks), means))
        found[number] = max(float(wanted @ cost), 1e-15) * np.exp(rest)
    return found


def _least_seconds_per_byte(settings: Sequence[Setting], shapes: Sequence[Shape | Mixture], size: float) -> float:
    """Return the median over curves between nodes of seconds per byte out of a node, at a large size."""
    found = []
    for one, shape in zip(settings, shapes, strict=True):
        moved = float(terms(one)[3])
        if moved > 0:
            found.append(float(shape.at([size])[0]) / (size * moved))
    return float(np.median(found)) if found else 0.0
