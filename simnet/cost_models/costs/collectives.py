"""Costs of dense collectives, textbook algorithms without pipelining. `simnet.cost_models.costs` has the symbols.

Rounds are counted as the schedules have them: ceil(log N) messages of a binomial tree follow each other over a link,
and floor(log N) ranks; where ranks are paired and N is no power of two, two rounds more than floor(log N). At powers of
two these are the published formulas; else short messages take up to a third less, long ones up to two thirds more.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats

Real: TypeAlias = ArrayLike
"""A real number, or an array of them."""

# Arguments of which there is one at least.
_COUNTS = ("N", "P", "aggregators", "bucket", "d", "group_size", "levels", "ranks_per_node", "size", "slots")


def check_arguments(**arguments: ArrayLike) -> list[Floats]:
    """Return the arguments as float64 arrays, in order; ValueError for a value outside its symbol's range."""
    return [_in_range(name, given) for name, given in arguments.items()]


def selected_entries(name: str, given: ArrayLike | None, default: Floats) -> Floats:
    """Return `given` as a checked float64 array; `default` if it is None. `name` is used in errors."""
    return default if given is None else _in_range(name, given)


def _in_range(name: str, given: ArrayLike) -> Floats:
    values = np.asarray(given, dtype=np.float64)
    # Written so that NaN, which compares false with everything, is refused too.
    if name == "c":
        allowed, wanted = (values > 0) & (values <= 1), "in (0, 1]"
    else:
        low = int(name in _COUNTS)
        allowed, wanted = (values >= low) & (values < np.inf), f"finite and >= {low}"
    if not allowed.all():
        raise ValueError(f"{name} must be {wanted}, got {values[~allowed].flat[0]:g}")
    # Arrays without axes become numpy floats, on which formulas give numpy floats again.
    return values[()]


def parameter_server(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Parameter server among the N workers: 2 alpha + 2 (N - 1) M beta; [1] Table I."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    return np.where(N > 1, 2 * alpha, 0.0) + 2 * (N - 1) * M * beta


def ring_allreduce(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Ring all-reduce: 2 (N - 1) alpha + 2 (N - 1) / N M beta; [1] Table I."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    return 2 * (N - 1) * (alpha + M / N * beta)


def tree_allreduce(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Tree all-reduce, binomial and unpipelined: 2 alpha log N + 2 log(N) M beta; [1] Table I."""
    return binomial_reduce(alpha, beta, M, N) + broadcast(alpha, beta, M, N)


def recursive_doubling_allreduce(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """All-reduce by recursive doubling: log N (alpha + M beta); [2] section 4.5."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    return (np.floor(np.log2(N)) + 2 * _has_folded_ranks(N)) * (alpha + M * beta)


def rabenseifner_allreduce(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """All-reduce by recursive halving and doubling: 2 alpha log N + 2 (N - 1) / N M beta; [2] section 4.5."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    rounds = np.floor(np.log2(N))
    paired = 2.0**rounds
    return 2 * rounds * alpha + 2 * (paired - 1) / paired * M * beta + 2 * _has_folded_ranks(N) * (alpha + M * beta)


def hierarchical_allreduce(alpha: Real, beta: Real, M: Real, N: Real, group_size: Real = 8) -> Floats:
    """Trees in groups, a ring of leaders: 2 log(g) (alpha + M beta) + 2 (N / g - 1) (alpha + g / N M beta); derived.

    `group_size` is g, the workers of a group; it divides N. All N where it exceeds N.
    """
    M, N, group_size = check_arguments(M=M, N=N, group_size=group_size)
    size = np.minimum(group_size, N)
    return tree_allreduce(alpha, beta, M, size) + ring_allreduce(alpha, beta, M, N / size)


def broadcast(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Return the time [s] of a binomial broadcast of M bytes: alpha log N + log(N) M beta; [1] Table I.

    If the last level of the tree is not full, its messages follow the others but pass one rank less.
    """
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    return np.floor(np.log2(N)) * alpha + np.ceil(np.log2(N)) * M * beta


def binomial_reduce(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Binomial reduction: alpha log N + log(N) M beta; the mirror image of `broadcast`.

    Where N is no power of two, messages meet at the root, and it takes less.
    """
    return broadcast(alpha, beta, M, N)


def ring_reduce_scatter(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Ring reduce-scatter of a vector of M bytes: (N - 1) alpha + (N - 1) / N M beta; half of the ring all-reduce."""
    return ring_allreduce(alpha, beta, M, N) / 2


def allgather(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """All-gather of M bytes from each worker: alpha log N + (N - 1) M beta; [1] Table I.

    By recursive doubling if N is a power of two, by Bruck's algorithm else, in ceil(log N) rounds.
    """
    (workers,) = check_arguments(N=N)
    both = (one(alpha, beta, M, N) for one in (bruck_allgather, recursive_doubling_allgather))
    return np.where(_has_folded_ranks(workers), *both) + 0.0


def recursive_doubling_allgather(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """All-gather by recursive doubling of M bytes from each worker: alpha log N + (N - 1) M beta; [2] section 4.1.

    Where N is no power of two, the workers that sit out get all the rest at the end, in one message.
    """
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    rounds, words = _doubling_gather(N)
    return rounds * alpha + M * beta * words


def ring_allgather(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Ring all-gather of M bytes from each worker: (N - 1) (alpha + M beta); [2] section 4.1."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    return (N - 1) * (alpha + M * beta)


def bruck_allgather(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Bruck's all-gather of M bytes from each worker: ceil(log N) alpha + (N - 1) M beta; [2] section 4.1."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    return np.ceil(np.log2(N)) * alpha + (N - 1) * M * beta


def halving_reduce_scatter(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Reduce-scatter of M bytes by recursive halving: alpha log N + (N - 1) / N M beta; [2] section 4.2."""
    M, N = check_arguments(M=M, N=N)
    return recursive_doubling_allgather(alpha, beta, M / N, N)


def pairwise_alltoall(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Pairwise all-to-all of M bytes from each worker to each other: (N - 1) (alpha + M beta); [2] section 4.3."""
    return ring_allgather(alpha, beta, M, N)


def bruck_alltoall(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Bruck's all-to-all of M bytes from each to each other: alpha log N + N / 2 log(N) M beta; [2] section 4.3."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    rounds = np.ceil(np.log2(N))
    # Of the distances below N, those that have a bit.
    bits = [2.0**k for k in range(int(np.max(rounds)))]
    blocks = sum((N // (2 * bit) * bit + np.maximum(N % (2 * bit) - bit, 0.0) for bit in bits), 0.0 * N)
    return rounds * alpha + blocks * M * beta


def _doubling_gather(N: Floats) -> tuple[Floats, Floats]:
    """Return rounds and contributions on the critical path of a recursive-doubling all-gather."""
    rounds, folds = np.floor(np.log2(N)), _has_folded_ranks(N)
    extra = N - 2.0**rounds
    # Of the pairs that hold two contributions, a group of d ranks has min(d, extra) at most.
    full = np.where(folds, np.floor(np.log2(np.maximum(extra, 1.0))) + 1, 0.0)
    doubled = 2.0**rounds - 1 + 2.0**full - 1 + extra * (rounds - full)
    return rounds + 2 * folds, np.where(folds, 1 + doubled + N - 1, N - 1) + 0.0


def _has_folded_ranks(N: Floats) -> Floats:
    """Return 1.0 where N is no power of two, so that recursive doubling folds ranks; else 0.0."""
    return np.where(np.log2(N) % 1 > 0, 1.0, 0.0)
