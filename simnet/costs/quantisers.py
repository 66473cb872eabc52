"""Costs of quantised and low-rank exchanges. Symbols and references: `simnet.costs`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.costs.arguments import checked, selected_entries
from simnet.costs.collectives import (
    allgather,
    pairwise_alltoall,
    parameter_server,
    recursive_doubling_allreduce,
    ring_allreduce,
)


def fp16(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike) -> Floats:
    """Half precision on a ring: 2 (N - 1) alpha + (N - 1) / N M beta; derived.

    Examples
    --------
    >>> float(fp16(1.0, 0.5, 10.0, 5))
    12.0
    """
    (M,) = checked(M=M)
    return ring_allreduce(alpha, beta, M / 2, N)


def qsgd(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    N: ArrayLike,
    levels: ArrayLike = 127,
    bucket: ArrayLike = 512,
    bits: ArrayLike | None = None,
) -> Floats:
    """QSGD: log N alpha + (N - 1) [n b / 8 + 4 ceil(n / d)] beta; derived from [9].

    An all-gather of b = ceil(log(2 s + 1)) bits an entry, and of one float32 norm for every bucket.

    Parameters
    ----------
    levels : array_like of float
        s, the levels above zero.
    bucket : array_like of float
        d, the entries that share a norm.
    bits : array_like of float, optional
        b, mean bits of an entry without the norms, as measured of a variable-length code.

    Examples
    --------
    Eight-bit QSGD of 1024 entries, two buckets:

    >>> float(qsgd(1.0, 0.5, 4096, 4))
    1550.0
    """
    M, levels, bucket = checked(M=M, levels=levels, bucket=bucket)
    n = M / 4
    width = selected_entries("bits", bits, np.ceil(np.log2(2 * levels + 1)))
    return allgather(alpha, beta, np.ceil(n * width / 8) + 4 * np.ceil(n / bucket), N)


def signsgd(alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike, scale_bytes: ArrayLike = 4.0) -> Floats:
    """Majority vote (signSGD) by a server: 2 alpha + 2 (N - 1) (n / 8 + scale) beta; derived from [10] Algorithm 3.

    One bit an entry to the server and back, with a scale of `scale_bytes`, 0 for signs alone.

    Examples
    --------
    >>> float(signsgd(1.0, 0.5, 320.0, 4, scale_bytes=0))
    32.0
    """
    return parameter_server(alpha, beta, _signs(M, scale_bytes), N)


def signsgd_allgather(
    alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike, scale_bytes: ArrayLike = 4.0
) -> Floats:
    """Signs (signSGD) by all-gather: log N alpha + (N - 1) (n / 8 + scale) beta; derived.

    `scale_bytes` as of `signsgd`.

    Examples
    --------
    >>> float(signsgd_allgather(1.0, 0.5, 320.0, 4))
    23.0
    """
    return allgather(alpha, beta, _signs(M, scale_bytes), N)


def _signs(M: ArrayLike, scale_bytes: ArrayLike) -> Floats:
    M, scale_bytes = checked(M=M, scale_bytes=scale_bytes)
    return np.ceil(M / 32) + scale_bytes


def powersgd(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    N: ArrayLike,
    rank: ArrayLike = 2,
    left: ArrayLike | None = None,
    right: ArrayLike | None = None,
    vectors: ArrayLike = 0.0,
) -> Floats:
    """PowerSGD on rings: 4 (N - 1) (alpha + 2 (|P| + |Q|) / N beta) + 2 (N - 1) (alpha + 4 v / N beta); derived.

    All-reduces of two factors of |P| and |Q| entries, [11], and, if there are any, of v entries sent as they are.

    Parameters
    ----------
    rank : array_like of float
        r.
    left, right : array_like of float, optional
        Entries of the factors P and Q of all layers; r sqrt(M / 4), those of one square matrix, if not given.
    vectors : array_like of float
        Entries that are sent as they are.

    Examples
    --------
    A matrix of 100 x 100, rank 2: two all-reduces of 800 bytes.

    >>> float(powersgd(1.0, 0.5, 40_000, 4, rank=2))
    1212.0
    """
    M, rank, vectors = checked(M=M, rank=rank, vectors=vectors)
    square = rank * np.sqrt(M / 4)
    factors = (selected_entries("left", left, square), selected_entries("right", right, square))
    matrices = sum(ring_allreduce(alpha, beta, 4 * entries, N) for entries in factors)
    return matrices + np.where(vectors > 0, ring_allreduce(alpha, beta, 4 * vectors, N), 0.0)


def onebit_allreduce(
    alpha: ArrayLike, beta: ArrayLike, M: ArrayLike, N: ArrayLike, padded: ArrayLike | None = None
) -> Floats:
    """1-bit Adam's all-reduce of signs: 2 (N - 1) (n / 8 / N + 4) beta + (N - 1 + 3 log N) alpha; derived from [17].

    A pairwise all-to-all of signs, all-gathers of scales, of the signs of each server's chunk, and of their scales.

    Parameters
    ----------
    alpha, beta, M, N : array_like of float
        As of `simnet.costs`.
    padded : array_like of float, optional
        n, the entries with those that make whole bytes for each server; M / 4 if not given.

    Examples
    --------
    >>> float(onebit_allreduce(1.0, 0.5, 4 * 320, 4))
    51.0
    """
    M, N = checked(M=M, N=N)
    signs = selected_entries("padded", padded, M / 4) / 8 / N
    gathers = 2 * allgather(alpha, beta, 4.0, N) + allgather(alpha, beta, signs, N)
    return pairwise_alltoall(alpha, beta, signs, N) + gathers


_THC_CHUNK = 2.0**23


def thc(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    N: ArrayLike,
    up: ArrayLike | None = None,
    down: ArrayLike | None = None,
    norms: ArrayLike = 1,
) -> Floats:
    """THC by a server: (log N + 2) alpha + [(N - 1) (u + d) + 4 log N] beta; derived from [19].

    An all-reduce of norms, then codes of u bytes to the server and sums of d bytes back.

    Parameters
    ----------
    alpha, beta, M, N : array_like of float
        As of `simnet.costs`.
    up, down : array_like of float, optional
        u and d; half a byte of each of n entries, and ceil(log(16 N + 1)) bits, if not given, of chunks of 2^23 entries
        of which the last is padded to a power of two.
    norms : array_like of float
        Norms, one for a chunk.

    Examples
    --------
    512 bytes to the server, 7 bits an entry back:

    >>> float(thc(1.0, 0.5, 4 * 1024, 4))
    2120.0
    """
    alpha, beta, M, N, norms = checked(alpha=alpha, beta=beta, M=M, N=N, norms=norms)
    rest = M / 4 % _THC_CHUNK
    padded = M / 4 - rest + np.where(rest > 0, 2 ** np.ceil(np.log2(np.maximum(rest, 1))), 0)
    codes = selected_entries("up", up, padded / 2)
    sums = selected_entries("down", down, padded / 8 * np.ceil(np.log2(16 * N + 1)))
    moved = np.where(N > 1, 2 * alpha, 0.0) + (N - 1) * (codes + sums) * beta
    return recursive_doubling_allreduce(alpha, beta, 4 * norms, N) + moved


def two_hop_reduce(
    alpha: ArrayLike,
    beta: ArrayLike,
    M: ArrayLike,
    N: ArrayLike,
    ranks_per_node: ArrayLike = 1,
    first: ArrayLike | None = None,
    second: ArrayLike | None = None,
    calls: ArrayLike = 2,
) -> Floats:
    """Two hops of all-to-all: c (L + N / L - 2) alpha + [(L - 1) / L h + (N / L - 1) L / N g] beta; derived from [20].

    L ranks of a node exchange h bytes each, and then ranks of all N / L nodes g bytes each, in c calls a hop.

    Parameters
    ----------
    alpha, beta, M, N : array_like of float
        As of `simnet.costs`.
    ranks_per_node : array_like of float
        L, a divisor of N.
    first, second : array_like of float, optional
        h and g, what a rank has in each hop, with what it keeps; four bits of n and of n / L entries if not given.
    calls : array_like of float
        c; codes and their scales are two.

    Examples
    --------
    >>> float(two_hop_reduce(1.0, 0.5, 4 * 1024, 8, ranks_per_node=4, first=512, second=128))
    232.0
    """
    alpha, M, N, L, calls = checked(alpha=alpha, M=M, N=N, ranks_per_node=ranks_per_node, calls=calls)
    h = selected_entries("first", first, M / 8)
    g = selected_entries("second", second, M / 8 / L)
    nodes = N / L
    return pairwise_alltoall(calls * alpha, beta, h / L, L) + pairwise_alltoall(calls * alpha, beta, g / nodes, nodes)
