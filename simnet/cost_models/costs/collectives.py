"""Costs of dense collectives by textbook algorithms without pipelining, in the symbols of `simnet.cost_models.costs`.

Rounds are counted as the schedules have them: ceil(log N) messages of a binomial tree follow each other over a link,
and floor(log N) ranks; where ranks are paired and N is no power of two, two rounds more than floor(log N). At powers of
two these are the formulas of [1] and [2]; else short messages take up to a third less, long ones up to two thirds more.
"""

from __future__ import annotations

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.costs.closed_form import ClosedForm, Traffic


@ClosedForm
def parameter_server(M: Floats, N: Floats) -> Traffic:
    """Cost of an exchange of M bytes by N workers and a server: 2 rounds, 2 (N - 1) M bytes (AR-Topk paper)."""
    return Traffic(np.where(N > 1, 2.0, 0.0), 2 * (N - 1) * M)


@ClosedForm
def ring_allreduce(M: Floats, N: Floats) -> Traffic:
    """Cost of a ring all-reduce of M bytes by N workers: 2 (N - 1) rounds, 2 (N - 1) / N M bytes (AR-Topk paper)."""
    return Traffic(2 * (N - 1), 2 * (N - 1) / N * M)


@ClosedForm
def tree_allreduce(M: Floats, N: Floats) -> Traffic:
    """Cost of a binomial-tree all-reduce of M bytes by N workers: 2 log N rounds, 2 log(N) M bytes (AR-Topk paper)."""
    return binomial_reduce.traffic(M, N) + broadcast.traffic(M, N)


@ClosedForm
def recursive_doubling_allreduce(M: Floats, N: Floats) -> Traffic:
    """Cost of a recursive-doubling all-reduce of M bytes by N workers: log N rounds of M bytes (Thakur et al. 2005)."""
    rounds = np.floor(np.log2(N)) + 2 * _has_folded_ranks(N)
    return Traffic(rounds, rounds * M)


@ClosedForm
def rabenseifner_allreduce(M: Floats, N: Floats) -> Traffic:
    """Cost of Rabenseifner's all-reduce of M bytes by N workers: 2 log N rounds, 2 (N - 1) / N M bytes."""
    rounds, folds = np.floor(np.log2(N)), _has_folded_ranks(N)
    paired = 2.0**rounds
    return Traffic(2 * rounds + 2 * folds, 2 * (paired - 1) / paired * M + 2 * folds * M)


@ClosedForm
def hierarchical_allreduce(M: Floats, N: Floats, group_size: Floats | float = 8.0) -> Traffic:
    """Cost of a two-level all-reduce, groups of g: 2 log g + 2 (N / g - 1) rounds, [2 log g + 2 (N - g) / N] M bytes.

    Derived: 2 log(g) (alpha + M beta) + 2 (N / g - 1) (alpha + g / N M beta). `group_size` is g; it divides N. If it
    exceeds N, the group is all N workers.
    """
    size = np.minimum(group_size, N)
    return tree_allreduce.traffic(M, size) + ring_allreduce.traffic(M, N / size)


@ClosedForm
def broadcast(M: Floats, N: Floats) -> Traffic:
    """Cost of a binomial broadcast of M bytes to N workers: log N rounds of M bytes (AR-Topk paper, Table I).

    If the last level of the tree is not full, the paths to its ranks pass one rank less than there are rounds.
    """
    return Traffic(np.floor(np.log2(N)), np.ceil(np.log2(N)) * M)


@ClosedForm
def binomial_reduce(M: Floats, N: Floats) -> Traffic:
    """Cost of a binomial reduction of M bytes from N workers: log N rounds of M bytes, like `broadcast`.

    Where N is no power of two, messages meet at the root, and it takes less.
    """
    return broadcast.traffic(M, N)


@ClosedForm
def ring_reduce_scatter(M: Floats, N: Floats) -> Traffic:
    """Cost of a ring reduce-scatter of M bytes by N workers: N - 1 rounds, (N - 1) / N M bytes."""
    return Traffic(N - 1, (N - 1) / N * M)


@ClosedForm
def allgather(M: Floats, N: Floats) -> Traffic:
    """Cost of an all-gather of M bytes from each of N workers: log N rounds, (N - 1) M bytes (AR-Topk paper, Table I).

    By recursive doubling if N is a power of two, by Bruck's algorithm else, in ceil(log N) rounds.
    """
    return bruck_allgather.traffic(M, N)


@ClosedForm
def recursive_doubling_allgather(M: Floats, N: Floats) -> Traffic:
    """Cost of a recursive-doubling all-gather of M bytes from each of N workers: log N rounds, (N - 1) M bytes.

    Where N is no power of two, the workers that sit out get all the rest at the end, in one message.
    """
    rounds, folds = np.floor(np.log2(N)), _has_folded_ranks(N)
    extra = N - 2.0**rounds
    # Of the pairs that hold two contributions, a group of d ranks has min(d, extra) at most.
    full = np.where(folds, np.floor(np.log2(np.maximum(extra, 1.0))) + 1, 0.0)
    doubled = 2.0**rounds - 1 + 2.0**full - 1 + extra * (rounds - full)
    return Traffic(rounds + 2 * folds, np.where(folds, 1 + doubled + N - 1, N - 1) * M)


@ClosedForm
def ring_allgather(M: Floats, N: Floats) -> Traffic:
    """Cost of a ring all-gather of M bytes from each of N workers: N - 1 rounds of M bytes (Thakur et al. 2005)."""
    return Traffic(N - 1, (N - 1) * M)


@ClosedForm
def bruck_allgather(M: Floats, N: Floats) -> Traffic:
    """Cost of Bruck's all-gather of M bytes from each of N workers: ceil(log N) rounds, (N - 1) M bytes."""
    return Traffic(np.ceil(np.log2(N)), (N - 1) * M)


@ClosedForm
def halving_reduce_scatter(M: Floats, N: Floats) -> Traffic:
    """Cost of a recursive-halving reduce-scatter of M bytes by N workers: log N rounds, (N - 1) / N M bytes."""
    return recursive_doubling_allgather.traffic(M / N, N)


@ClosedForm
def pairwise_alltoall(M: Floats, N: Floats) -> Traffic:
    """Cost of a pairwise all-to-all of M bytes per pair of N workers: N - 1 rounds of M bytes (Thakur et al. 2005)."""
    return ring_allgather.traffic(M, N)


@ClosedForm
def bruck_alltoall(M: Floats, N: Floats) -> Traffic:
    """Cost of Bruck's all-to-all of M bytes per pair of N workers: log N rounds, N / 2 log(N) M bytes."""
    rounds = np.ceil(np.log2(N))
    # Of the distances below N, those that have a bit.
    bits = [2.0**k for k in range(int(np.max(rounds)))]
    blocks = sum((N // (2 * bit) * bit + np.maximum(N % (2 * bit) - bit, 0.0) for bit in bits), 0.0 * N)
    return Traffic(rounds, blocks * M)


def _has_folded_ranks(N: Floats) -> Floats:
    """Return 1.0 where N is no power of two, so that recursive doubling folds ranks; else 0.0."""
    return np.where(np.log2(N) % 1 > 0, 1.0, 0.0)
