"""Costs of quantised, low-rank and chunked exchanges. Symbols and references: `simnet.cost_models.costs`."""

from __future__ import annotations

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.costs import collectives
from simnet.cost_models.costs.collectives import Real, check_arguments, selected_entries


def fp16(alpha: Real, beta: Real, M: Real, N: Real) -> Floats:
    """Half precision on a ring: 2 (N - 1) alpha + (N - 1) / N M beta; derived."""
    (M,) = check_arguments(M=M)
    return collectives.ring_allreduce(alpha, beta, M / 2, N)


def qsgd(
    alpha: Real, beta: Real, M: Real, N: Real, levels: Real = 127, bucket: Real = 512, bits: Real | None = None
) -> Floats:
    """QSGD: log N alpha + (N - 1) [n b / 8 + 4 ceil(n / d)] beta; derived from [9].

    An all-gather of b = ceil(log(2 s + 1)) bits an entry, and of one float32 norm for every bucket: `levels` is s,
    those above zero, `bucket` d, the entries that share a norm, `bits` the mean of an entry, as measured of a code.
    """
    M, levels, bucket = check_arguments(M=M, levels=levels, bucket=bucket)
    n = M / 4
    width = selected_entries("bits", bits, np.ceil(np.log2(2 * levels + 1)))
    return collectives.allgather(alpha, beta, np.ceil(n * width / 8) + 4 * np.ceil(n / bucket), N)


def signsgd(alpha: Real, beta: Real, M: Real, N: Real, scale_bytes: Real = 4.0) -> Floats:
    """Majority vote (signSGD) by a server: 2 alpha + 2 (N - 1) (n / 8 + scale) beta; derived from [10] Algorithm 3.

    One bit an entry to the server and back, with a scale of `scale_bytes`, 0 for signs alone.
    """
    return collectives.parameter_server(alpha, beta, _sign_bytes(M, scale_bytes), N)


def signsgd_allgather(alpha: Real, beta: Real, M: Real, N: Real, scale_bytes: Real = 4.0) -> Floats:
    """Signs (signSGD) by all-gather: log N alpha + (N - 1) (n / 8 + scale) beta; derived."""
    return collectives.allgather(alpha, beta, _sign_bytes(M, scale_bytes), N)


def _sign_bytes(M: Real, scale_bytes: Real) -> Floats:
    M, scale_bytes = check_arguments(M=M, scale_bytes=scale_bytes)
    return np.ceil(M / 32) + scale_bytes


def powersgd(
    alpha: Real,
    beta: Real,
    M: Real,
    N: Real,
    rank: Real = 2,
    left: Real | None = None,
    right: Real | None = None,
    vectors: Real = 0.0,
) -> Floats:
    """PowerSGD on rings: 4 (N - 1) (alpha + 2 (|P| + |Q|) / N beta) + 2 (N - 1) (alpha + 4 v / N beta); derived.

    All-reduces of two factors of |P| and |Q| entries, [11], `left` and `right`, those of one square matrix of this
    `rank` if not given, and, if there are any, of v entries sent as they are (`vectors`).
    """
    M, rank, vectors = check_arguments(M=M, rank=rank, vectors=vectors)
    square = rank * np.sqrt(M / 4)
    factors = (selected_entries("left", left, square), selected_entries("right", right, square))
    matrices = sum(collectives.ring_allreduce(alpha, beta, 4 * entries, N) for entries in factors)
    return matrices + np.where(vectors > 0, collectives.ring_allreduce(alpha, beta, 4 * vectors, N), 0.0)


def onebit_allreduce(alpha: Real, beta: Real, M: Real, N: Real, padded: Real | None = None) -> Floats:
    """1-bit Adam's all-reduce of signs: 2 (N - 1) (n / 8 / N + 4) beta + (N - 1 + 3 log N) alpha; derived from [17].

    A pairwise all-to-all of signs, all-gathers of scales, of the signs of each server's chunk, and of their scales.
    `padded` is n, the entries padded to whole bytes for each server; M / 4 if not given.
    """
    M, N = check_arguments(M=M, N=N)
    signs = selected_entries("padded", padded, M / 4) / 8 / N
    gathers = 2 * collectives.allgather(alpha, beta, 4.0, N) + collectives.allgather(alpha, beta, signs, N)
    return collectives.pairwise_alltoall(alpha, beta, signs, N) + gathers


_THC_CHUNK = 2.0**23


def thc(
    alpha: Real, beta: Real, M: Real, N: Real, up: Real | None = None, down: Real | None = None, norms: Real = 1
) -> Floats:
    """THC by a server: (log N + 2) alpha + [(N - 1) (u + d) + 4 log N] beta; derived from [19].

    An all-reduce of `norms`, one for a chunk, then codes of u bytes to the server (`up`) and sums of d bytes back
    (`down`); if not given, half a byte of each of n entries, and ceil(log(16 N + 1)) bits, of chunks of 2^23 entries of
    which the last is padded to a power of two.
    """
    alpha, beta, M, N, norms = check_arguments(alpha=alpha, beta=beta, M=M, N=N, norms=norms)
    rest = M / 4 % _THC_CHUNK
    padded = M / 4 - rest + np.where(rest > 0, 2 ** np.ceil(np.log2(np.maximum(rest, 1))), 0)
    codes = selected_entries("up", up, padded / 2)
    sums = selected_entries("down", down, padded / 8 * np.ceil(np.log2(16 * N + 1)))
    moved = np.where(N > 1, 2 * alpha, 0.0) + (N - 1) * (codes + sums) * beta
    return collectives.recursive_doubling_allreduce(alpha, beta, 4 * norms, N) + moved


def two_hop_reduce(
    alpha: Real,
    beta: Real,
    M: Real,
    N: Real,
    ranks_per_node: Real = 1,
    first: Real | None = None,
    second: Real | None = None,
    calls: Real = 2,
) -> Floats:
    """Two hops of all-to-all: c (L + N / L - 2) alpha + [(L - 1) / L h + (N / L - 1) L / N g] beta; derived from [20].

    L `ranks_per_node` exchange h bytes each (`first`), and then ranks of all N / L nodes g bytes each (`second`), with
    those that they keep, in c `calls` a hop: codes and their scales are two. Four bits of n and of n / L entries if not
    given.
    """
    alpha, M, N, L, calls = check_arguments(alpha=alpha, M=M, N=N, ranks_per_node=ranks_per_node, calls=calls)
    h = selected_entries("first", first, M / 8)
    g = selected_entries("second", second, M / 8 / L)
    hop, nodes = collectives.pairwise_alltoall, N / L
    return hop(calls * alpha, beta, h / L, L) + hop(calls * alpha, beta, g / nodes, nodes)


def chunked_allgather(
    alpha: Real,
    beta: Real,
    M: Real,
    N: Real,
    size: Real = 4096,
    k: Real = 32,
    bits: Real = 44,
    contributed: Real | None = None,
) -> Floats:
    """All-gather of k entries of each block: log N alpha + (N - 1) ceil(n / s k b / 8) beta; derived from [12].

    `size` is s, the entries of a block, `bits` b, those of an index in it and of a value; `contributed` are the bytes
    of a worker where blocks differ or tables are sent too.
    """
    M, size, k, bits = check_arguments(M=M, size=size, k=k, bits=bits)
    nbytes = selected_entries("contributed", contributed, np.ceil(M / 4 / size * k * bits / 8))
    return collectives.allgather(alpha, beta, nbytes, N)


def muloco(alpha: Real, beta: Real, M: Real, N: Real, bits: Real = 2, contributed: Real | None = None) -> Floats:
    """Reduce-scatter, all-gather of codes: (N - 1 + log N) alpha + 2 (N - 1) / N ceil(n b / 8) beta; derived from [13].

    A pairwise all-to-all of the shares, each worker's sum of its own, and an all-gather of the sums, quantised again,
    with b `bits` an entry. `contributed` are the bytes of a worker's vector, where tables are sent too.
    """
    M, N, bits = check_arguments(M=M, N=N, bits=bits)
    share = selected_entries("contributed", contributed, np.ceil(M / 4 * bits / 8)) / N
    return collectives.pairwise_alltoall(alpha, beta, share, N) + collectives.allgather(alpha, beta, share, N)


def int8_ring(alpha: Real, beta: Real, M: Real, N: Real, table_bytes: Real = 1024.0) -> Floats:
    """Ring of one byte an entry: 2 (N - 1) [alpha + (n / N + 2 t) beta]; derived from [14].

    Each round sends two chunks, each with a table of t bytes: 256 float32.
    """
    alpha, beta, M, N, table_bytes = check_arguments(alpha=alpha, beta=beta, M=M, N=N, table_bytes=table_bytes)
    return 2 * (N - 1) * (alpha + (M / 4 / N + 2 * table_bytes) * beta)
