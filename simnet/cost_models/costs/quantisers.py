"""Costs of quantised, low-rank and chunked exchanges. `simnet.cost_models.costs` has the symbols and references."""

from __future__ import annotations

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.costs import collectives
from simnet.cost_models.costs.closed_form import ClosedForm, Given, Number, Traffic


@ClosedForm
def fp16(M: Floats, N: Floats) -> Traffic:
    """Cost of a ring all-reduce in half precision by N workers: 2 (N - 1) rounds, (N - 1) / N M bytes."""
    return collectives.ring_allreduce.traffic(M / 2, N)


@ClosedForm
def qsgd(M: Floats, N: Floats, levels: Number = 127.0, bucket: Number = 512.0, bits: Given = None) -> Traffic:
    """Cost of an all-gather of QSGD codes: log N rounds, (N - 1) [M bits / 32 + 4 ceil(M / 4 / bucket)] bytes.

    Derived from [9]. Entries are codes of ceil(log(2 levels + 1)) bits, where `levels` are those above zero, or of
    `bits` bits, the measured mean of a code. Each `bucket` of entries shares a float32 norm.
    """
    n, width = M / 4, np.ceil(np.log2(2 * levels + 1)) if bits is None else bits
    return collectives.allgather.traffic(np.ceil(n * width / 8) + 4 * np.ceil(n / bucket), N)


@ClosedForm
def signsgd(M: Floats, N: Floats, scale_bytes: Number = 4.0) -> Traffic:
    """Cost of signSGD's majority vote by a server: 2 rounds, 2 (N - 1) (M / 32 + scale_bytes) bytes.

    [10] Algorithm 3: one bit per entry to the server and back, with a scale of `scale_bytes`, 0 for signs alone.
    """
    return collectives.parameter_server.traffic(np.ceil(M / 32) + scale_bytes, N)


@ClosedForm
def signsgd_allgather(M: Floats, N: Floats, scale_bytes: Number = 4.0) -> Traffic:
    """Cost of an all-gather of the signs of N workers (signSGD): log N rounds, (N - 1) (M / 32 + scale_bytes) bytes."""
    return collectives.allgather.traffic(np.ceil(M / 32) + scale_bytes, N)


@ClosedForm
def powersgd(
    M: Floats, N: Floats, rank: Number = 2.0, left: Given = None, right: Given = None, vectors: Number = 0.0
) -> Traffic:
    """Cost of PowerSGD's ring all-reduces of `left` and `right` factors, and of `vectors`; sizes are in entries.

    Derived from [11]: 2 (N - 1) [3 alpha + 4 (left + right + vectors) / N beta], with 2 alpha if there are no vectors.
    Factors are those of one square matrix of this `rank` if not given.
    """
    square = rank * np.sqrt(M / 4)
    factors = (square if one is None else one for one in (left, right))
    P, Q = (collectives.ring_allreduce.traffic(4 * entries, N) for entries in factors)
    whole = collectives.ring_allreduce.traffic(4 * vectors, N)
    return P + Q + Traffic(np.where(vectors > 0, whole.rounds, 0.0), whole.nbytes)


@ClosedForm
def onebit_allreduce(M: Floats, N: Floats, padded: Given = None) -> Traffic:
    """Cost of 1-bit Adam's all-reduce of `padded` signs: N - 1 + 3 log N rounds, 2 (N - 1) (padded / 8 / N + 4) bytes.

    Derived from [17]: a pairwise all-to-all of signs, all-gathers of scales, of the signs of each server's chunk, and
    of their scales. `padded` is the number of entries, padded to whole bytes for each server; M / 4 if not given.
    """
    signs = (M / 4 if padded is None else padded) / 8 / N
    scales, gathered = (collectives.allgather.traffic(nbytes, N) for nbytes in (4.0, signs))
    return collectives.pairwise_alltoall.traffic(signs, N) + scales + scales + gathered


_THC_CHUNK = 2.0**23


@ClosedForm
def thc(M: Floats, N: Floats, up: Given = None, down: Given = None, norms: Number = 1.0) -> Traffic:
    """Cost of THC by a server: log N + 2 rounds, (N - 1) (up + down) bytes of codes and 4 log N bytes per norm.

    Derived from [19]: an all-reduce of `norms`, one for a chunk, then codes of `up` bytes to the server and sums of
    `down` bytes back; if not given, half a byte of each of n entries, and ceil(log(16 N + 1)) bits, of chunks of 2^23
    entries of which the last is padded to a power of two.
    """
    rest = M / 4 % _THC_CHUNK
    padded = M / 4 - rest + np.where(rest > 0, 2 ** np.ceil(np.log2(np.maximum(rest, 1))), 0)
    codes = padded / 2 if up is None else up
    sums = padded / 8 * np.ceil(np.log2(16 * N + 1)) if down is None else down
    moved = Traffic(np.where(N > 1, 2.0, 0.0), (N - 1) * (codes + sums))
    return collectives.recursive_doubling_allreduce.traffic(4 * norms, N) + moved


@ClosedForm
def two_hop_reduce(
    M: Floats, N: Floats, ranks_per_node: Number = 1.0, first: Given = None, second: Given = None, calls: Number = 2.0
) -> Traffic:
    """Cost of ZeRO++'s reduction by all-to-alls, first inside nodes of `ranks_per_node` ranks, then between nodes.

    Derived from [20]: c (L + N / L - 2) alpha + [(L - 1) / L h + (N / L - 1) L / N g] beta. The L ranks of a node
    (`ranks_per_node`) exchange h bytes each (`first`), then one rank of each of N / L nodes g bytes each (`second`);
    both include what a rank keeps. A hop takes c `calls`: two, for codes and scales. Default: 4 bits an entry.
    """
    L, nodes = ranks_per_node, N / ranks_per_node
    h, g = M / 8 if first is None else first, M / 8 / L if second is None else second
    hops = [collectives.pairwise_alltoall.traffic(*hop) for hop in ((h / L, L), (g / nodes, nodes))]
    return Traffic(calls * sum(hop.rounds for hop in hops), sum(hop.nbytes for hop in hops))


@ClosedForm
def chunked_allgather(
    M: Floats, N: Floats, size: Number = 4096.0, k: Number = 32.0, bits: Number = 44.0, contributed: Given = None
) -> Traffic:
    """Cost of an all-gather of k entries per block of `size`: log N rounds, (N - 1) ceil(M k bits / size / 32) bytes.

    Derived from [12]: `size` is the number of entries of a block, `bits` the length of an index in it and of a value;
    `contributed` are the bytes of a worker where blocks differ or tables are sent too.
    """
    nbytes = np.ceil(M / 4 / size * k * bits / 8) if contributed is None else contributed
    return collectives.allgather.traffic(nbytes, N)


@ClosedForm
def muloco(M: Floats, N: Floats, bits: Number = 2.0, contributed: Given = None) -> Traffic:
    """Cost of MuLoCo's collectives at `bits` per entry: N - 1 + log N rounds, 2 (N - 1) / N ceil(M bits / 32) bytes.

    Derived from [13]: a pairwise all-to-all of shares, which each worker sums for its own share, and an all-gather of
    the sums, quantised again, with `bits` per entry. `contributed` are the bytes of a worker's vector including tables
    of codes, if they are sent.
    """
    share = (np.ceil(M / 4 * bits / 8) if contributed is None else contributed) / N
    return collectives.pairwise_alltoall.traffic(share, N) + collectives.allgather.traffic(share, N)


@ClosedForm
def int8_ring(M: Floats, N: Floats, table_bytes: Number = 1024.0) -> Traffic:
    """Cost of a ring all-reduce of one byte per entry: 2 (N - 1) rounds of M / 4 / N + 2 table_bytes bytes.

    Derived from [14]: each round sends two chunks, each with a table of 256 float32.
    """
    return Traffic(2 * (N - 1), 2 * (N - 1) * (M / 4 / N + 2 * table_bytes))
