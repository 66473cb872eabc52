"""Costs of dense collectives, textbook algorithms without pipelining. `simnet.cost_models.costs` has the symbols.

Rounds are counted as the schedules have them: ceil(log N) messages of a binomial tree follow each other over a link,
and floor(log N) ranks; where ranks are paired and N is no power of two, two rounds more than floor(log N). At powers of
two these are the published formulas; else short messages take up to a third less, long ones up to two thirds more.

On `NodeLinks`, links inside are no slower than those between nodes. A ring takes the longer of two chains: messages
over the link of a node, or one that goes round. A reduction crosses between nodes in as many rounds as there are levels
above the nodes, and in one more if the size of a node is no power of two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.costs.arguments import Real, check_arguments


class NodeLinks(NamedTuple):
    """Nodes of consecutive workers that share one link to the other nodes.

    `size` is g, workers of a node, which divides N; `alpha` and `beta` are latency [s] and seconds per byte inside a
    node.
    """

    size: Real
    alpha: Real
    beta: Real


def parameter_server(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Parameter server among the N workers: 2 alpha + 2 (N - 1) M beta; [1] Table I."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    return np.where(N > 1, 2 * alpha, 0.0) + 2 * (N - 1) * M * beta


def ring_allreduce(alpha: Real, beta: Real, M: Real, N: Real, nodes: NodeLinks | None = None) -> Floats:
    """Ring all-reduce: 2 (N - 1) alpha + 2 (N - 1) / N M beta; [1] Table I."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    return _round_the_ring(2 * (N - 1), alpha, M / N * beta, M / N, N, nodes)


def tree_allreduce(alpha: Real, beta: Real, M: Real, N: Real, nodes: NodeLinks | None = None) -> Floats:
    """Tree all-reduce, binomial and unpipelined: 2 alpha log N + 2 log(N) M beta; [1] Table I."""
    return binomial_reduce(alpha, beta, M, N, nodes) + broadcast(alpha, beta, M, N, nodes)


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


def hierarchical_allreduce(
    alpha: Real, beta: Real, M: Real, N: Real, nodes: NodeLinks | None = None, group_size: Real = 8
) -> Floats:
    """Trees in groups, a ring of leaders: 2 log(g) (alpha + M beta) + 2 (N / g - 1) (alpha + g / N M beta); derived.

    `group_size` is g, the workers of a group; it divides N. All N where it exceeds N. `nodes` has the links inside
    groups; those between groups if not given.
    """
    alpha, beta, M, N, group_size = check_arguments(alpha=alpha, beta=beta, M=M, N=N, group_size=group_size)
    size = np.minimum(group_size, N)
    inside = NodeLinks(size, alpha, beta) if nodes is None else nodes
    return tree_allreduce(inside.alpha, inside.beta, M, size) + ring_allreduce(alpha, beta, M, N / size)


def broadcast(
    alpha: Real, beta: Real, M: Real, N: Real, nodes: NodeLinks | None = None, *, any_root: bool = False
) -> Floats:
    """Binomial broadcast: alpha log N + log(N) M beta; [1] Table I.

    If the last level of the tree is not full, its messages follow the others but pass one rank less. With `any_root`,
    every worker of a node is equally often the root, so the message crosses between nodes once more.
    """
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    if nodes is None:
        return np.floor(np.log2(N)) * alpha + np.ceil(np.log2(N)) * M * beta
    g, near_alpha, near_beta = _inner_links(N, nodes)
    far, near = M * beta, M * near_beta
    relays = np.floor(np.log2(N)) - np.floor(np.log2(g))
    seconds = np.floor(np.log2(g)) * near_alpha + np.ceil(np.log2(g)) * near
    across = (
        relays * alpha + _down_nodes(far, near, np.ceil(N / g)) + np.minimum(relays, 2) * _has_folded_ranks(g) * far
    )
    if any_root:
        # Of workers in line, as many as the largest power of two that divides g are a whole subtree under the first
        # worker. Another root cuts each of its levels in half of the cases, and what is cut off crosses as well.
        whole = np.gcd(g.astype(np.int64), 2**30)
        across = across + (relays + 1) * np.log2(whole) / 2 * (far - near) + (1 - 1 / whole) * (alpha - near_alpha)
    return seconds + np.where(g < N, across, 0.0)


def binomial_reduce(alpha: Real, beta: Real, M: Real, N: Real, nodes: NodeLinks | None = None) -> Floats:
    """Binomial reduction: alpha log N + log(N) M beta; the mirror image of `broadcast` on links that are all alike.

    Where N is no power of two, messages meet at the root, and it takes less.
    """
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    g, near_alpha, near_beta = _inner_links(N, nodes)
    relays, near_relays = np.floor(np.log2(N)) - np.floor(np.log2(g)), np.floor(np.log2(g))
    near = np.ceil(np.log2(g)) - np.where(g < N, _has_folded_ranks(g), 0.0)
    far = np.ceil(np.log2(N)) - near
    seconds: Floats = relays * alpha + near_relays * near_alpha + far * M * beta + near * M * near_beta
    return seconds


def ring_reduce_scatter(alpha: Real, beta: Real, M: Real, N: Real, nodes: NodeLinks | None = None) -> Floats:
    """Ring reduce-scatter of a vector of M bytes: (N - 1) alpha + (N - 1) / N M beta; half of the ring all-reduce."""
    return ring_allreduce(alpha, beta, M, N, nodes) / 2


def allgather(alpha: Real, beta: Real, M: Real, N: Real, nodes: NodeLinks | None = None) -> Floats:
    """All-gather of M bytes from each worker: alpha log N + (N - 1) M beta; [1] Table I.

    By recursive doubling if N is a power of two, by Bruck's algorithm else, in ceil(log N) rounds.
    """
    (workers,) = check_arguments(N=N)
    both = (one(alpha, beta, M, N, nodes) for one in (bruck_allgather, recursive_doubling_allgather))
    return np.where(_has_folded_ranks(workers), *both) + 0.0


def recursive_doubling_allgather(alpha: Real, beta: Real, M: Real, N: Real, nodes: NodeLinks | None = None) -> Floats:
    """All-gather by recursive doubling of M bytes from each worker: alpha log N + (N - 1) M beta; [2] section 4.1.

    Where N is no power of two, the workers that sit out get all the rest at the end, in one message.
    """
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    g, near_alpha, near_beta = _inner_links(N, nodes)
    rounds, words = _doubling_gather(N)
    # Neighbours at less than a node's distance are in the node, where groups are as regular as the rounds.
    regular = (np.log2(N) % 1 == 0) & (np.log2(g) % 1 == 0)
    near_rounds = np.where(g >= N, rounds, np.where(regular, np.log2(g), 0.0))
    far = np.where(g < N, words - (g - 1), 0.0)
    latency = (rounds - near_rounds) * alpha + near_rounds * near_alpha
    return latency + M * beta * (far * g) + M * near_beta * (words - far)


def ring_allgather(alpha: Real, beta: Real, M: Real, N: Real, nodes: NodeLinks | None = None) -> Floats:
    """Ring all-gather of M bytes from each worker: (N - 1) (alpha + M beta); [2] section 4.1."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    return _round_the_ring(N - 1, alpha, M * beta, M, N, nodes)


def bruck_allgather(alpha: Real, beta: Real, M: Real, N: Real, nodes: NodeLinks | None = None) -> Floats:
    """Bruck's all-gather of M bytes from each worker: ceil(log N) alpha + (N - 1) M beta; [2] section 4.1."""
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    g, near_alpha, near_beta = _inner_links(N, nodes)
    # What goes less than a node's distance in all its rounds together crosses to another node once.
    rounds = np.ceil(np.log2(N))
    across = np.minimum(rounds - np.ceil(np.log2(g)) + 1, rounds)
    crossing = (N - g) * g + (g**2 - 1) / 3
    between = across * alpha + (rounds - across) * near_alpha + crossing * M * beta
    return np.where(g < N, between, rounds * near_alpha + (N - 1) * M * near_beta) + 0.0


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
    """Return the rounds and the contributions on the longest path of an all-gather by recursive doubling."""
    rounds, folds = np.floor(np.log2(N)), _has_folded_ranks(N)
    extra = N - 2.0**rounds
    # Of the pairs that hold two contributions, a group of d ranks has min(d, extra) at most.
    full = np.where(folds, np.floor(np.log2(np.maximum(extra, 1.0))) + 1, 0.0)
    doubled = 2.0**rounds - 1 + 2.0**full - 1 + extra * (rounds - full)
    return rounds + 2 * folds, np.where(folds, 1 + doubled + N - 1, N - 1) + 0.0


def _has_folded_ranks(N: Floats) -> Floats:
    """Return 1 where ranks sit out because N is no power of two, else 0."""
    return np.where(np.log2(N) % 1 > 0, 1.0, 0.0)


def _inner_links(N: Floats, nodes: NodeLinks | None) -> tuple[Floats, Floats, Floats]:
    """Return the workers of a node, its latency and seconds per byte; without nodes, each worker is one."""
    size, alpha, beta = (
        check_arguments(size=1.0, alpha=0.0, beta=0.0) if nodes is None else check_arguments(**nodes._asdict())
    )
    return np.minimum(size, N), alpha, beta


def _round_the_ring(
    rounds: Floats, alpha: Floats, far: Floats, nbytes: Floats, N: Floats, nodes: NodeLinks | None
) -> Floats:
    """Return the seconds of rounds of a ring whose messages take `far` [s] between nodes, without alpha."""
    if nodes is None:
        return rounds * (alpha + far)
    g, near_alpha, near_beta = _inner_links(N, nodes)
    near = near_alpha + nbytes * near_beta
    crossings = np.ceil(rounds / g)
    last = np.where(near > far, near, far) * (rounds - 1 - g * (crossings - 1))
    queue = alpha + rounds * far
    journey = crossings * (alpha + far) + (crossings - 1) * (g - 1) * near + last
    return np.where(g < N, np.maximum(queue, journey), rounds * near) * (rounds > 0)


def _down_nodes(far: Floats, near: Floats, nodes: Floats) -> Floats:
    """Return the seconds of a message, without latency, down a binomial tree of nodes with one link each."""
    seconds, left = np.zeros(()), nodes
    while (left > 1).any():
        children = np.ceil(np.log2(left))
        half = 2.0 ** (children - 1)
        # Until the first has passed, it has a share of 1, 1/2, 1/3, ... while another one begins.
        first, shares = far, 0.0
        for n in range(1, int(children.max())):
            shares += 1 / n
            first = np.where(n < children, np.maximum(first, n * near + (n + 1) * (far - shares * near)), first)
        # Where the first subtree is less than half full, the second is deeper.
        second = np.minimum(first + (children - 1) * near, children * far)
        seconds = seconds + np.where(left > 1, np.where(left - half < half / 2, second, first), 0.0)
        left = np.maximum(np.maximum(left - half, half / 2), 1.0)
    return seconds
