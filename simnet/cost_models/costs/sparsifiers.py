"""Costs of sparse exchanges, and the cheapest of them. `simnet.cost_models.costs` has the symbols and references."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.cost_models.costs import collectives
from simnet.cost_models.costs.closed_form import ClosedForm, Given, Number, Real, Traffic, check_arguments

VALUE_BYTES = 4.0
ENTRY_BYTES = 8.0


class CostBounds(NamedTuple):
    """Lower and upper bounds of a cost over all possible selections of entries."""

    lower: Floats
    upper: Floats


def fill_in(n: Real, k: Real, P: Real) -> Floats:
    """Return the expected number of distinct entries in P independent uniform selections of k out of n.

    It is n (1 - (1 - k / n)^P). Gradients of workers resemble each other, so that their union is smaller.
    """
    n, k, P = check_arguments(n=n, k=k, P=P)
    if (k > n).any():
        raise ValueError("k must not exceed n")
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(n > 0, k / n, 0.0)
        union: Floats = -n * np.expm1(P * np.log1p(-share))
    return np.where(n > 0, union, 0.0) + 0.0


@ClosedForm
def topk_allgather(M: Floats, c: Floats, N: Floats) -> Traffic:
    """Cost of an all-gather of top-k values and indices, density c: log N rounds, 2 M c (N - 1) bytes (AR-Topk paper).

    Published also as TopkA, log N alpha and 2 k (N - 1) words; [3], [5].

    Examples
    --------
    ResNet-18 in Table VI, CR 0.1 at 1 ms and 10 Gbit/s (printed: 54 ms):

    >>> round(1e3 * float(topk_allgather(1e-3, 0.8e-9, 46_758_048, 0.1, 8)), 3)
    55.369
    """
    return Traffic(np.log2(N), 2 * M * c * (N - 1))


# The name under which [3] and [5] publish the same formula.
topka = topk_allgather


@ClosedForm
def artopk_ring(M: Floats, c: Floats, N: Floats) -> Traffic:
    """Cost of AR-Topk on a ring at density c: 2 (N - 1) + log N rounds, M c [2 (N - 1) / N + log N] bytes."""
    return Traffic(2 * (N - 1) + np.log2(N), M * c * (2 * (N - 1) / N + np.log2(N)))


@ClosedForm
def artopk_tree(M: Floats, c: Floats, N: Floats) -> Traffic:
    """Cost of AR-Topk on a tree at density c: 3 log N rounds of M c bytes (AR-Topk paper, Eqn 4b).

    Workers begin to reduce as soon as they have passed the indices on, which saves up to one alpha for each binary 1 in
    the number of the worker that broadcasts.
    """
    return Traffic(3 * np.log2(N), 3 * np.log2(N) * M * c)


@ClosedForm
def var_overhead(N: Floats) -> Traffic:
    """Cost of the all-gather of norms by which AR-Topk's ``var`` selects a worker: log N rounds, 4 (N - 1) bytes."""
    return collectives.allgather.traffic(4.0, N)


@ClosedForm
def threshold_allgather(M: Floats, c: Floats, N: Floats, selected: Given = None, gathers: Number = 1.0) -> Traffic:
    """Cost of the all-gathers of SIDCo, DGC and RedSync: log N rounds each, 8 (N - 1) bytes per selected entry.

    The bytes of messages that carry sizes are left out, as in the published tables. `selected` is the mean
    number of entries selected per worker, c M / 4 if not given; `gathers` is the number of all-gathers, 1 for the
    entries alone, 2 with sizes before them, 3 with indices and values apart.
    """
    found = collectives.allgather.traffic(ENTRY_BYTES * (c * M / VALUE_BYTES if selected is None else selected), N)
    return Traffic(gathers * found.rounds, found.nbytes)


@ClosedForm
def gaussiank(M: Floats, c: Floats, N: Floats, selected: Given = None) -> Traffic:
    """Cost of Gaussian-k's two all-gathers of `selected` entries per worker: 2 log N rounds, 8 selected (N - 1) bytes.

    One gathers sizes, one entries, as in the code of [3]. `selected` is that of `threshold_allgather`.
    """
    return threshold_allgather.traffic(M, c, N, selected, gathers=2.0)


@ClosedForm
def topkdsa(M: Floats, c: Floats, N: Floats, union: Given = None) -> Traffic:
    """Cost of TopkDSA, `union` entries in all: N - 1 + log N rounds, [2 M c + min(8 union, M)] (N - 1) / N bytes.

    Derived from [3] and [4]: every worker sends the owners of the regions its selection there (k entries in balanced
    regions); then reduced regions are all-gathered, as entries or dense, whichever is shorter. `union` are the entries
    of the union of all selections; c M / 4, equal supports, if not given. The all-gather of sizes is not included.
    """
    k = c * M / VALUE_BYTES
    moved = ENTRY_BYTES * k + np.minimum(ENTRY_BYTES * (k if union is None else union), M)
    return Traffic(N - 1 + np.log2(N), moved * (N - 1) / N)


def topkdsa_bounds(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> CostBounds:
    """Return bounds of TopkDSA's time [s]: all workers select the same entries, or the union of entries is dense.

    Derived: 4 M c (N - 1) / N beta to (2 c + 1) M (N - 1) / N beta. Latency is that of `topkdsa`.
    """
    dense = np.asarray(M, dtype=np.float64) / VALUE_BYTES
    return CostBounds(topkdsa(alpha, beta, M, c, N), topkdsa(alpha, beta, M, c, N, union=dense))


def sparcml_bounds(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> CostBounds:
    """Return bounds of the time [s] of SparCML's recursive doubling, from equal to disjoint selections.

    Derived from [4]: log N alpha, and 2 M c log N beta to 2 M c (N - 1) beta. With disjoint selections the message
    doubles in every step until it is as long as the dense gradient.
    """
    alpha, beta, M, c, N = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N)
    steps = np.log2(N)
    sparse = np.clip(np.ceil(-np.log2(2 * c)), 0, steps)
    equal = steps * np.minimum(2 * c, 1.0)
    disjoint = 2 * c * (2**sparse - 1) + steps - sparse
    return CostBounds(steps * alpha + equal * M * beta, steps * alpha + disjoint * M * beta)


@ClosedForm
def gtopk_reduce(M: Floats, c: Floats, N: Floats, entry_bytes: Number = ENTRY_BYTES) -> Traffic:
    """Cost of gTopk's reduction at density c, without its broadcast: log N rounds of 2 M c bytes.

    Published in [5]. `entry_bytes` are the bytes of an entry, 16 in the released code.
    """
    return collectives.binomial_reduce.traffic(entry_bytes * c * M / VALUE_BYTES, N)


@ClosedForm
def gtopk(M: Floats, c: Floats, N: Floats, entry_bytes: Number = ENTRY_BYTES) -> Traffic:
    """Cost of gTopk's binomial reduction and broadcast at density c: 2 log N rounds of 2 M c bytes."""
    back = collectives.broadcast.traffic(entry_bytes * c * M / VALUE_BYTES, N)
    return gtopk_reduce.traffic(M, c, N, entry_bytes) + back


@ClosedForm
def oktopk_split_and_reduce(M: Floats, c: Floats, N: Floats, selected: Given = None) -> Traffic:
    """Cost of Ok-Topk's split and reduce at density c: N - 1 rounds of 2 M c / N bytes (Ok-Topk paper, Eqn 1).

    Regions are balanced. `selected` are the entries a worker selected, c M / 4 if not given: between recomputations of
    the thresholds there can be more.
    """
    own = c * M / VALUE_BYTES if selected is None else selected
    return Traffic(N - 1, ENTRY_BYTES * own * (N - 1) / N)


@ClosedForm
def oktopk_balance_and_allgatherv(M: Floats, c: Floats, N: Floats, kept: Given = None) -> Traffic:
    """Upper bound of Ok-Topk's balance and allgatherv: N + 2 log N rounds, 4 M c (N - 1) / N bytes (paper, Eqn 2).

    Half of the bytes balance, if one worker holds all. `kept` are entries above the global threshold; default c M / 4.
    """
    total = c * M / VALUE_BYTES if kept is None else kept
    return Traffic(np.where(N > 1, N, 0.0) + 2 * np.log2(N), 2 * ENTRY_BYTES * total * (N - 1) / N)


@ClosedForm
def oktopk(M: Floats, c: Floats, N: Floats, selected: Given = None, kept: Given = None) -> Traffic:
    """Upper bound of Ok-Topk's time at density c: 2 N + 2 log N rounds, 6 M c (N - 1) / N bytes (paper, Eqn 3).

    The printed sum of Eqns 1 and 2 is one alpha larger than its parts. The bound holds for no more than k entries, or
    for numbers given: `selected` is that of `oktopk_split_and_reduce`, `kept` of `oktopk_balance_and_allgatherv`.
    """
    split, gather = (
        oktopk_split_and_reduce.traffic(M, c, N, selected),
        oktopk_balance_and_allgatherv.traffic(M, c, N, kept),
    )
    return split + gather + Traffic(np.where(N > 1, 1.0, 0.0), 0.0)


def sparse_allreduce_bound(beta: Real, M: Real, c: Real, N: Real) -> Floats:
    """Return the least time [s] of a sparse all-reduce, which sends 2 M c (N - 1) / N bytes (Ok-Topk, Theorem 3.1)."""
    beta, M, c, N = check_arguments(beta=beta, M=M, c=c, N=N)
    return ENTRY_BYTES * c * M / VALUE_BYTES * (N - 1) / N * beta


@ClosedForm
def spardl(M: Floats, c: Floats, N: Floats) -> Traffic:
    """Cost of SparDL in one team at density c: 2 ceil(log N) rounds, 4 M c (N - 1) / N bytes.

    Derived from [6]: half of the bytes are the Spar-Reduce-Scatter, half the all-gather.
    """
    return spardl_rsag.traffic(M, c, N, 1.0)


@ClosedForm
def spardl_bsag(M: Floats, c: Floats, N: Floats, d: Number, h: Given = None) -> Traffic:
    """Upper bound of SparDL's time by B-SAG in d teams, which exchange blocks of at most `h` entries; d divides N.

    Derived from [6]: (2 ceil(log(N / d)) + ceil(log d)) alpha + [4 M c (N - d) / N + 8 h (d - 1)] beta. The all-
    gather in a team carries no more than k d / N entries of a block. SparDL adapts `h` from k / N up; k d / N, all
    that a worker has, if not given.
    """
    k = c * M / VALUE_BYTES
    _check_teams(N, d)
    crossing = k * d / N if h is None else h
    rounds = 2 * np.ceil(np.log2(N / d)) + np.ceil(np.log2(d))
    return Traffic(rounds, ENTRY_BYTES * (2 * k * (N - d) / N + crossing * (d - 1)))


@ClosedForm
def spardl_rsag(M: Floats, c: Floats, N: Floats, d: Number) -> Traffic:
    """Cost of SparDL by R-SAG, d teams: 2 ceil(log(N / d)) + log d rounds, 2 M c (2 N - 2 d + d log d) / N bytes.

    Derived from [6]: (2 ceil(log(N / d)) + log d) alpha + 2 M c (2 N - 2 d + d log d) / N beta.
    """
    k, doublings = c * M / VALUE_BYTES, np.log2(d)
    _check_teams(N, d)
    if (doublings % 1 != 0).any():
        raise ValueError(f"d must be a power of two, got {np.asarray(d)[np.asarray(doublings) % 1 != 0].flat[0]:g}")
    rounds = 2 * np.ceil(np.log2(N / d)) + doublings
    return Traffic(rounds, ENTRY_BYTES * k * (2 * (N - d) + d * doublings) / N)


def _check_teams(N: Floats, d: Number) -> None:
    wrong = N % d != 0
    if wrong.any():
        workers, found = (np.broadcast_to(one, np.shape(wrong))[wrong].flat[0] for one in (N, d))
        raise ValueError(f"d must divide the number of workers, got {found:g} teams of {workers:g}")


@ClosedForm
def exdyna(
    M: Floats, c: Floats, N: Floats, longest: Given = None, union: Given = None, index_bytes: Number = 8.0
) -> Traffic:
    """Cost of ExDyna and MiCRO: ring all-gathers of counts and padded indices, then a ring all-reduce of values.

    From the code of [7]: 4 (N - 1) rounds, (N - 1) (8 + 8 longest + 8 union / N) bytes. `longest` are the most
    entries that a worker selected, k / N if not given; `union` those of all workers, c M / 4 if not given;
    `index_bytes` are those of an index, and of a count.
    """
    k, width = c * M / VALUE_BYTES, index_bytes
    padded, everywhere = k / N if longest is None else longest, k if union is None else union
    counts, indices = (collectives.ring_allgather.traffic(nbytes, N) for nbytes in (width, width * padded))
    return counts + indices + collectives.ring_allreduce.traffic(VALUE_BYTES * everywhere, N)


@ClosedForm
def hardthreshold(
    M: Floats, c: Floats, N: Floats, longest: Given = None, union: Given = None, index_bytes: Number = 8.0
) -> Traffic:
    """Cost of Hard threshold and SAGE: ring all-gathers of counts and indices, then a ring all-reduce of values.

    Formula and arguments as of `exdyna`, but every worker selects from the whole gradient: `longest` is c M / 4 if not
    given, and `union` the `fill_in` of independent selections.
    """
    k = c * M / VALUE_BYTES
    return exdyna.traffic(M, c, N, k if longest is None else longest, _union_of_own(M, k, N, union), index_bytes)


@ClosedForm
def uniontopk(M: Floats, c: Floats, N: Floats, union: Given = None, index_bytes: Number = 8.0) -> Traffic:
    """Cost of top-k by a ring all-gather of k indices per worker and a ring all-reduce of values at their union.

    3 (N - 1) rounds, (N - 1) (2 M c + 8 union / N) bytes. `union` is the number of distinct indices, k to N k; the
    `fill_in` of independent selections if not given. `index_bytes` is the size of an index, as in `exdyna`.
    """
    k = c * M / VALUE_BYTES
    values = collectives.ring_allreduce.traffic(VALUE_BYTES * _union_of_own(M, k, N, union), N)
    return collectives.ring_allgather.traffic(index_bytes * k, N) + values


@ClosedForm
def cltk(M: Floats, c: Floats, N: Floats, index_bytes: Number = 8.0) -> Traffic:
    """Cost of CLT-k at density c: 2 (N - 1) + log N rounds, 2 M c [log N + (N - 1) / N] bytes.

    Derived from [8] and the code of [7]: a broadcast of one worker's indices, then a ring all-reduce of the values at
    them. AR-Topk is that with `index_bytes` of 4.
    """
    k = c * M / VALUE_BYTES
    values = collectives.ring_allreduce.traffic(VALUE_BYTES * k, N)
    return collectives.broadcast.traffic(index_bytes * k, N) + values


@ClosedForm
def deft(
    M: Floats,
    c: Floats,
    N: Floats,
    layers: Number,
    longest: Given = None,
    union: Given = None,
    index_bytes: Number = 8.0,
) -> Traffic:
    """Cost of DEFT: broadcasts that assign layers to workers, all-gathers of indices, and an all-reduce of values.

    Derived from the code of [7]: two broadcasts, the second right behind the first, take log N rounds of 4 (N +
    layers) bytes; `layers` are counted after long ones are cut; the rest is as of `exdyna`.
    """
    bins = collectives.broadcast.traffic(4 * (N + layers), N)
    return bins + exdyna.traffic(M, c, N, longest, union, index_bytes)


def _union_of_own(M: Floats, k: Floats, N: Floats, union: Given) -> Number:
    return fill_in(M / VALUE_BYTES, k, N) if union is None else union


@ClosedForm
def arctopk(
    M: Floats, c: Floats, N: Floats, rank: Number = 4.0, sketch: Given = None, kept: Given = None, tensors: Number = 1.0
) -> Traffic:
    """Cost of ARC-Top-K: a ring all-reduce of a sketch of each tensor, and one of all rows that are kept.

    2 (N - 1) (tensors + 1) rounds, 8 (N - 1) (sketch + kept) / N bytes. `sketch` are entries of all sketches:
    `rank` rows of each matrix, and all entries of a vector; of one square matrix if not given. `kept` are the
    entries in the rows kept, c M / 4 if not given.
    """
    sketches = rank * np.sqrt(M / VALUE_BYTES) if sketch is None else sketch
    moved = collectives.ring_allreduce.traffic(
        VALUE_BYTES * (sketches + (c * M / VALUE_BYTES if kept is None else kept)), N
    )
    return Traffic((tensors + 1) * moved.rounds, moved.nbytes)


@ClosedForm
def ef21(M: Floats, c: Floats, N: Floats, contributed: Given = None, flag_bytes: Number = 0.0) -> Traffic:
    """Cost of EF21's all-gather of gradient changes: log N rounds, (N - 1) (contributed + flag_bytes) bytes.

    The dense exchange before all others costs `ring_allreduce` once. `contributed` are the bytes of a worker's message
    without a flag, those of k values with indices if not given; `flag_bytes` state the kind of a message, in EF21+: 1.
    """
    nbytes = ENTRY_BYTES * c * M / VALUE_BYTES if contributed is None else contributed
    return collectives.allgather.traffic(nbytes + flag_bytes, N)


@ClosedForm
def omnireduce(
    M: Floats,
    N: Floats,
    blocks: Given = None,
    union: Given = None,
    turns: Given = None,
    aggregators: Given = None,
    block_bytes: Number = 1028.0,
    slots: Number = 8.0,
) -> Traffic:
    """Cost of OmniReduce: workers send non-zero blocks to aggregators, which send sums back; 2 rounds per turn.

    (blocks + union) (N - 1) / aggregators block_bytes bytes, derived for even loads. `blocks` are those that a
    worker sends, `union` those that come back, all M / 1024 if not given; `turns` is `union` over the slots if not
    given; `aggregators` all workers or as many as slots if not given; `block_bytes` include the offset of the next
    block; `slots` blocks are on their way.
    """
    every = np.ceil(M / 1024)
    z, u = every if blocks is None else blocks, every if union is None else union
    t, A = np.ceil(u / slots) if turns is None else turns, np.minimum(N, slots) if aggregators is None else aggregators
    return Traffic(np.where(N > 1, 2 * t, 0.0), (z + u) * (N - 1) / A * block_bytes)


SPARSE_COLLECTIVES = ("ART-ring", "ART-tree", "AG")
"""Candidates of the flexible exchange, in the order in which the released code compares them."""


class CheapestCollective(NamedTuple):
    """The cheapest of `SPARSE_COLLECTIVES` for each element of the arguments: its index, name and cost [s]."""

    choice: NDArray[np.intp]
    """Position in `SPARSE_COLLECTIVES`."""
    label: NDArray[np.str_]
    """Name of the cheapest."""
    seconds: Floats
    """Cost of the cheapest [s]."""


def best_collective(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> CheapestCollective:
    """Return the cheapest of `SPARSE_COLLECTIVES` by their closed forms; ties go to the first.

    This arg-min is what the inequalities of [1] Eqn 5 amount to, and holds where they do not (N < 7).

    Examples
    --------
    >>> best_collective(1e-3, 0.8e-9, 46_758_048, [0.1, 0.01], 8).label.tolist()
    ['ART-ring', 'AG']
    """
    candidates = (artopk_ring, artopk_tree, topk_allgather)
    seconds = np.stack([np.asarray(cost(alpha, beta, M, c, N)) for cost in candidates])
    choice = seconds.argmin(axis=0)
    return CheapestCollective(choice, np.array(SPARSE_COLLECTIVES)[choice], seconds.min(axis=0))
