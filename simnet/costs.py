"""Closed-form alpha-beta costs of collectives, in seconds, one function for each published formula.

The arguments carry the papers' symbols and broadcast against each other as numpy arrays do:

======  ================================================================
alpha   latency of a message [s], >= 0
beta    seconds per byte [s/byte], >= 0; 1 / beta is the bandwidth
M       bytes of the message, >= 0: the dense gradient, unless said otherwise
c       density, the fraction of entries kept, in (0, 1]; c M is the bytes of the kept values
N       number of workers, >= 1; one worker communicates nothing, which costs 0
======  ================================================================

log is the real-valued log2, as in the published tables; textbook schedules equal the formulas where N is a power of
two (ring, parameter server and Bruck: for every N). Values outside the ranges, and NaN, raise ValueError. Scalars in
give a numpy float, arrays a float64 array.

References
----------
[1] S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks",
    IEEE BigData 2023, arXiv 2312.02493: Table I and Eqns 1b, 3, 4a, 4b, 5a-c.
[2] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19,
    2005.

Examples
--------
Dense ring all-reduce of ResNet-18 by 8 workers at 1 ms and 10, 5 and 1 Gbit/s:

>>> import numpy as np
>>> bandwidth = np.array([10e9, 5e9, 1e9]) / 8
>>> ring_allreduce(1e-3, 1 / bandwidth, 46_758_048, 8).round(4)
array([0.0795, 0.1449, 0.6686])
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.schedule import Floats

SPARSE_COLLECTIVES = ("ART-ring", "ART-tree", "AG")
"""Candidates of the flexible exchange, in the order in which the released code compares them."""


class Best(NamedTuple):
    """The cheapest of `SPARSE_COLLECTIVES`, cell by cell."""

    choice: NDArray[np.intp]
    """Position in `SPARSE_COLLECTIVES`."""
    label: NDArray[np.str_]
    """Its name."""
    seconds: Floats
    """Its cost."""


def parameter_server(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Parameter server among the N workers: 2 alpha + 2 (N - 1) M beta; [1] Table I.

    Examples
    --------
    >>> float(parameter_server(1.0, 0.5, 10.0, 3))
    22.0
    """
    alpha, beta, M, N = _checked(alpha=alpha, beta=beta, M=M, N=N)
    return np.where(N > 1, 2 * alpha, 0.0) + 2 * (N - 1) * M * beta


def ring_allreduce(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Ring all-reduce: 2 (N - 1) alpha + 2 (N - 1) / N M beta; [1] Table I.

    Examples
    --------
    >>> float(ring_allreduce(1.0, 0.5, 10.0, 5))
    16.0
    """
    alpha, beta, M, N = _checked(alpha=alpha, beta=beta, M=M, N=N)
    return 2 * (N - 1) * alpha + 2 * (N - 1) / N * M * beta


def tree_allreduce(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Tree all-reduce, binomial and unpipelined: 2 alpha log N + 2 log(N) M beta; [1] Table I.

    Examples
    --------
    >>> float(tree_allreduce(1.0, 0.5, 10.0, 4))
    24.0
    """
    alpha, beta, M, N = _checked(alpha=alpha, beta=beta, M=M, N=N)
    return 2 * np.log2(N) * (alpha + M * beta)


def broadcast(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Binomial broadcast, and binomial reduction: alpha log N + log(N) M beta; [1] Table I.

    Examples
    --------
    >>> float(broadcast(1.0, 0.5, 10.0, 4))
    12.0
    """
    alpha, beta, M, N = _checked(alpha=alpha, beta=beta, M=M, N=N)
    return np.log2(N) * (alpha + M * beta)


def allgather(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """All-gather by recursive doubling of M bytes from each worker: alpha log N + (N - 1) M beta; [1] Table I.

    Examples
    --------
    >>> float(allgather(1.0, 0.5, 10.0, 4))
    17.0
    """
    alpha, beta, M, N = _checked(alpha=alpha, beta=beta, M=M, N=N)
    return np.log2(N) * alpha + (N - 1) * M * beta


def topk_allgather(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
    """AG, all-gather of values and indices, 2 M c bytes a worker: alpha log N + 2 M c beta (N - 1); [1] section 3-D.

    Examples
    --------
    ResNet-18 in Table VI, CR 0.1 at 1 ms and 10 Gbit/s (printed: 54 ms):

    >>> round(1e3 * float(topk_allgather(1e-3, 0.8e-9, 46_758_048, 0.1, 8)), 3)
    55.369
    """
    alpha, beta, M, c, N = _checked(alpha=alpha, beta=beta, M=M, c=c, N=N)
    return np.log2(N) * alpha + 2 * M * c * beta * (N - 1)


def artopk_ring(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
    """AR-Topk by broadcast and ring: alpha [2 (N - 1) + log N] + M c beta [2 (N - 1) / N + log N]; [1] Eqn 4a.

    Examples
    --------
    >>> round(1e3 * float(artopk_ring(1e-3, 0.8e-9, 46_758_048, 0.1, 8)), 3)
    34.768
    """
    alpha, beta, M, c, N = _checked(alpha=alpha, beta=beta, M=M, c=c, N=N)
    return alpha * (2 * (N - 1) + np.log2(N)) + M * c * beta * (2 * (N - 1) / N + np.log2(N))


def artopk_tree(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
    """AR-Topk by broadcast and tree: 3 alpha log N + 3 M c beta log N; [1] Eqn 4b.

    Examples
    --------
    >>> round(1e3 * float(artopk_tree(1e-3, 0.8e-9, 46_758_048, 0.1, 8)), 3)
    42.666
    """
    alpha, beta, M, c, N = _checked(alpha=alpha, beta=beta, M=M, c=c, N=N)
    return 3 * np.log2(N) * (alpha + M * c * beta)


def var_overhead(alpha: ArrayLike, beta: ArrayLike, N: ArrayLike) -> Floats:
    """Extra cost of VAR selection, an all-gather of 4 bytes a worker: alpha log N + 4 (N - 1) beta; from [1] s3-B.

    Examples
    --------
    >>> float(var_overhead(1.0, 0.5, 4))
    8.0
    """
    return allgather(alpha, beta, 4.0, N)


def best_collective(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Best:
    """Cheapest of `SPARSE_COLLECTIVES` by the three formulas; of equals the one that stands first.

    This arg-min is what the inequalities of [1] Eqn 5 amount to, and holds where they do not (N < 7).

    Returns
    -------
    Best
        Choice, label and cost, each of the shape the arguments broadcast to.

    Examples
    --------
    >>> best_collective(1e-3, 0.8e-9, 46_758_048, [0.1, 0.01], 8).label.tolist()
    ['ART-ring', 'AG']
    """
    candidates = (artopk_ring, artopk_tree, topk_allgather)
    seconds = np.stack([np.asarray(cost(alpha, beta, M, c, N)) for cost in candidates])
    choice = seconds.argmin(axis=0)
    return Best(choice, np.array(SPARSE_COLLECTIVES)[choice], seconds.min(axis=0))


def ring_over_tree(M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
    """Largest alpha / beta [bytes] at which ART-ring beats ART-tree; [1] Eqn 5a, N >= 2 (infinite at N = 2).

    Examples
    --------
    >>> float(ring_over_tree(1.0, 1.0, 8)), float(ring_over_tree(1.0, 1.0, 2))
    (0.53125, inf)
    """
    M, c, N = _checked(M=M, c=c, N=N, fewest=2)
    with np.errstate(divide="ignore"):
        return (np.log2(N) - (N - 1) / N) / (N - 1 - np.log2(N)) * M * c


def ring_over_allgather(M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
    """Largest alpha / beta [bytes] at which ART-ring beats AG; [1] Eqn 5b, N >= 2.

    Examples
    --------
    >>> round(float(ring_over_allgather(1.0, 1.0, 8)), 5)
    0.66071
    """
    M, c, N = _checked(M=M, c=c, N=N, fewest=2)
    return (1 - 1 / N - np.log2(N) / (2 * (N - 1))) * M * c


def tree_over_allgather(M: ArrayLike, c: ArrayLike, N: ArrayLike) -> Floats:
    """Largest alpha / beta [bytes] at which ART-tree beats AG, negative if it never does; [1] Eqn 5c, N >= 2.

    Examples
    --------
    >>> round(float(tree_over_allgather(1.0, 1.0, 8)), 5)
    0.83333
    """
    M, c, N = _checked(M=M, c=c, N=N, fewest=2)
    return ((N - 1) / np.log2(N) - 1.5) * M * c


def step_time(compute: ArrayLike, sync: ArrayLike, io: ArrayLike = 0.0, compress_decompress: ArrayLike = 0.0) -> Floats:
    """Step without overlap: t_compute + t_sync + t_IO + t_comp-decomp [s]; [1] Eqn 1b (dense) and Eqn 3.

    Examples
    --------
    >>> float(step_time(0.5, 1.0, compress_decompress=0.25))
    1.75
    """
    parts = _checked(compute=compute, sync=sync, io=io, compress_decompress=compress_decompress)
    return parts[0] + parts[1] + parts[2] + parts[3]


def compression_pays(sync: ArrayLike, compress_decompress: ArrayLike, dense_sync: ArrayLike) -> NDArray[np.bool_]:
    """Whether t_sync(c) + t_comp-decomp(c) < t_sync of the dense gradient; [1] section 2-C1.

    Examples
    --------
    >>> bool(compression_pays(0.035, 0.002, 0.080))
    True
    """
    sparse, extra, dense = _checked(sync=sync, compress_decompress=compress_decompress, dense_sync=dense_sync)
    return sparse + extra < dense


def recursive_doubling_allreduce(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """All-reduce by recursive doubling: log N (alpha + M beta); [2] section 4.5.

    Examples
    --------
    >>> float(recursive_doubling_allreduce(1.0, 0.5, 10.0, 4))
    12.0
    """
    alpha, beta, M, N = _checked(alpha=alpha, beta=beta, M=M, N=N)
    return np.log2(N) * (alpha + M * beta)


def rabenseifner_allreduce(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """All-reduce by recursive halving and doubling: 2 alpha log N + 2 (N - 1) / N M beta; [2] section 4.5.

    Examples
    --------
    >>> float(rabenseifner_allreduce(1.0, 0.5, 10.0, 4))
    11.5
    """
    alpha, beta, M, N = _checked(alpha=alpha, beta=beta, M=M, N=N)
    return 2 * np.log2(N) * alpha + 2 * (N - 1) / N * M * beta


def ring_reduce_scatter(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Ring reduce-scatter of a vector of M bytes: (N - 1) alpha + (N - 1) / N M beta; half of the ring all-reduce.

    Examples
    --------
    >>> float(ring_reduce_scatter(1.0, 0.5, 10.0, 5))
    8.0
    """
    return ring_allreduce(alpha, beta, M, N) / 2


def ring_allgather(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Ring all-gather of M bytes from each worker: (N - 1) (alpha + M beta); [2] section 4.1.

    Examples
    --------
    >>> float(ring_allgather(1.0, 0.5, 10.0, 4))
    18.0
    """
    alpha, beta, M, N = _checked(alpha=alpha, beta=beta, M=M, N=N)
    return (N - 1) * (alpha + M * beta)


def bruck_allgather(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Bruck's all-gather of M bytes from each worker: ceil(log N) alpha + (N - 1) M beta; [2] section 4.1.

    Examples
    --------
    >>> float(bruck_allgather(1.0, 0.5, 10.0, 5))
    23.0
    """
    alpha, beta, M, N = _checked(alpha=alpha, beta=beta, M=M, N=N)
    return np.ceil(np.log2(N)) * alpha + (N - 1) * M * beta


def pairwise_alltoall(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Pairwise all-to-all of M bytes from each worker to each other: (N - 1) (alpha + M beta); [2] section 4.3.

    Examples
    --------
    >>> float(pairwise_alltoall(1.0, 0.5, 10.0, 4))
    18.0
    """
    return ring_allgather(alpha, beta, M, N)


def _checked(*, fewest: int = 1, **arguments: ArrayLike) -> list[Floats]:
    """Return the arguments as float64 in their order, refusing what lies outside the ranges of the module."""
    checked = []
    for name, given in arguments.items():
        values = np.asarray(given, dtype=np.float64)
        # Written so that NaN, which compares false with everything, is refused too.
        if name == "c":
            allowed, wanted = (values > 0) & (values <= 1), "in (0, 1]"
        else:
            low = fewest if name == "N" else 0
            allowed, wanted = (values >= low) & (values < np.inf), f"finite and >= {low}"
        if not allowed.all():
            raise ValueError(f"{name} must be {wanted}, got {values[~allowed].flat[0]:g}")
        # Adding zero turns arrays without axes into numpy floats, on which formulas give numpy floats again.
        checked.append(values + 0.0)
    return checked
