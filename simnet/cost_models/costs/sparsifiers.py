"""Costs of sparse exchanges, and the cheapest of them. Symbols and references: `simnet.cost_models.costs`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.cost_models.costs import collectives
from simnet.cost_models.costs.collectives import Real, check_arguments, selected_entries

VALUE_BYTES = 4.0
ENTRY_BYTES = 8.0


class CostBounds(NamedTuple):
    """Lower and upper bounds of a cost over all possible selections."""

    lower: Floats
    upper: Floats


def fill_in(n: Real, k: Real, P: Real) -> Floats:
    """Entries of the union of P independent uniform selections of k out of n: n (1 - (1 - k / n)^P); derived.

    Gradients of workers resemble each other, so that their union is smaller.
    """
    n, k, P = check_arguments(n=n, k=k, P=P)
    if (k > n).any():
        raise ValueError("k must not exceed n")
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(n > 0, k / n, 0.0)
        union: Floats = -n * np.expm1(P * np.log1p(-share))
    return np.where(n > 0, union, 0.0) + 0.0


def topk_allgather(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> Floats:
    """AG, all-gather of values and indices, 2 M c bytes a worker: alpha log N + 2 M c beta (N - 1); [1] section 3-D.

    Published also as TopkA, log N alpha and 2 k (N - 1) words; [3], [5].

    Examples
    --------
    ResNet-18 in Table VI, CR 0.1 at 1 ms and 10 Gbit/s (printed: 54 ms):

    >>> round(1e3 * float(topk_allgather(1e-3, 0.8e-9, 46_758_048, 0.1, 8)), 3)
    55.369
    """
    alpha, beta, M, c, N = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N)
    return np.log2(N) * alpha + 2 * M * c * beta * (N - 1)


# The name under which [3] and [5] publish the same formula.
topka = topk_allgather


def artopk_ring(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> Floats:
    """AR-Topk by broadcast and ring: alpha [2 (N - 1) + log N] + M c beta [2 (N - 1) / N + log N]; [1] Eqn 4a."""
    alpha, beta, M, c, N = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N)
    return alpha * (2 * (N - 1) + np.log2(N)) + M * c * beta * (2 * (N - 1) / N + np.log2(N))


def artopk_tree(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> Floats:
    """AR-Topk by broadcast and tree: 3 alpha log N + 3 M c beta log N; [1] Eqn 4b.

    Workers begin to reduce as soon as they have passed the indices on, which saves up to one alpha for each binary 1 in
    the number of the worker that broadcasts.
    """
    alpha, beta, M, c, N = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N)
    return 3 * np.log2(N) * (alpha + M * c * beta)


def var_overhead(alpha: Real, beta: Real, N: Real) -> Floats:
    """Extra cost of VAR selection, an all-gather of 4 bytes a worker: alpha log N + 4 (N - 1) beta; [1] section 3-B."""
    return collectives.allgather(alpha, beta, 4.0, N)


def threshold_allgather(
    alpha: Real, beta: Real, M: Real, c: Real, N: Real, selected: Real | None = None, gathers: Real = 1
) -> Floats:
    """All-gather of k' entries found by a threshold: gathers log N alpha + 8 k' (N - 1) beta; derived.

    SIDCo, DGC and RedSync. The bytes of messages that carry sizes are left out, as in the published tables. `selected`
    is k', the mean over workers of the entries selected, c M / 4 if not given; `gathers` is 1 for the entries alone, 2
    with sizes before them, 3 with indices and values apart.
    """
    alpha, beta, M, c, N, gathers = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N, gathers=gathers)
    found = selected_entries("selected", selected, c * M / VALUE_BYTES)
    return collectives.allgather(gathers * alpha, beta, ENTRY_BYTES * found, N)


def gaussiank(alpha: Real, beta: Real, M: Real, c: Real, N: Real, selected: Real | None = None) -> Floats:
    """Gaussian-k, all-gather of sizes and of k' entries: 2 log N alpha + 8 k' (N - 1) beta; derived, code of [3].

    `selected` is k', as of `threshold_allgather`.
    """
    return threshold_allgather(alpha, beta, M, c, N, selected, gathers=2)


def topkdsa(alpha: Real, beta: Real, M: Real, c: Real, N: Real, union: Real | None = None) -> Floats:
    """TopkDSA: (N - 1 + log N) alpha + [8 k + min(8 |U|, M)] (N - 1) / N beta; derived from the messages, [3] and [4].

    Every worker sends the owners of the regions its selection there (k entries in balanced regions); then the reduced
    regions are all-gathered, as entries or dense, whichever is shorter. `union` is |U|, the entries of the union of all
    selections; c M / 4, equal supports, if not given. Sizes, all-gathered before, cost `allgather` of 4 bytes more.
    """
    alpha, beta, M, c, N = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N)
    reduced = selected_entries("union", union, c * M / VALUE_BYTES)
    moved = ENTRY_BYTES * c * M / VALUE_BYTES + np.minimum(ENTRY_BYTES * reduced, M)
    return (N - 1 + np.log2(N)) * alpha + moved * (N - 1) / N * beta


def topkdsa_bounds(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> CostBounds:
    """TopkDSA: 4 k (N - 1) / N (equal supports) to (2 k + n) (N - 1) / N words (dense in the end); derived.

    Latency is that of `topkdsa`.
    """
    dense = np.asarray(M, dtype=np.float64) / VALUE_BYTES
    return CostBounds(topkdsa(alpha, beta, M, c, N), topkdsa(alpha, beta, M, c, N, union=dense))


def sparcml_bounds(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> CostBounds:
    """SparCML by recursive doubling: log N alpha and 2 k log N to 2 k (N - 1) words; derived from [4].

    The lower bound is of equal supports, the upper one of disjoint ones, in which the message doubles in every step
    until it is as long as the dense gradient.
    """
    alpha, beta, M, c, N = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N)
    steps = np.log2(N)
    sparse = np.clip(np.ceil(-np.log2(2 * c)), 0, steps)
    equal = steps * np.minimum(2 * c, 1.0)
    disjoint = 2 * c * (2**sparse - 1) + steps - sparse
    return CostBounds(steps * alpha + equal * M * beta, steps * alpha + disjoint * M * beta)


def gtopk_reduce(alpha: Real, beta: Real, M: Real, c: Real, N: Real, entry_bytes: Real = ENTRY_BYTES) -> Floats:
    """gTopk, reduction only: log N alpha + 2 k log N words; published, [5], which leaves the broadcast out.

    `entry_bytes` are the bytes of an entry, 16 in the released code.
    """
    alpha, beta, M, c, N, entry_bytes = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N, entry_bytes=entry_bytes)
    return collectives.binomial_reduce(alpha, beta, entry_bytes * c * M / VALUE_BYTES, N)


def gtopk(alpha: Real, beta: Real, M: Real, c: Real, N: Real, entry_bytes: Real = ENTRY_BYTES) -> Floats:
    """gTopk, binomial reduction and broadcast: 2 log N alpha + 4 k log N words; derived from the algorithm of [5]."""
    M, c, entry_bytes = check_arguments(M=M, c=c, entry_bytes=entry_bytes)
    back = collectives.broadcast(alpha, beta, entry_bytes * c * M / VALUE_BYTES, N)
    return gtopk_reduce(alpha, beta, M, c, N, entry_bytes) + back


def oktopk_split_and_reduce(alpha: Real, beta: Real, M: Real, c: Real, N: Real, selected: Real | None = None) -> Floats:
    """Ok-Topk, split and reduce: (N - 1) alpha + 2 k (N - 1) / N words; published, [3] Eqn 1.

    Regions are balanced. `selected` are the entries a worker selected, c M / 4 if not given: between recomputations of
    the thresholds there can be more.
    """
    alpha, beta, M, c, N = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N)
    own = selected_entries("selected", selected, c * M / VALUE_BYTES)
    return (N - 1) * alpha + ENTRY_BYTES * own * (N - 1) / N * beta


def oktopk_balance_and_allgatherv(
    alpha: Real, beta: Real, M: Real, c: Real, N: Real, kept: Real | None = None
) -> Floats:
    """Ok-Topk, balance and allgatherv: at most (N + 2 log N) alpha + 4 k (N - 1) / N words; published, [3] Eqn 2.

    Half of the words balance, if one worker holds all. `kept` are the entries above the global threshold, c M / 4 if
    not given.
    """
    alpha, beta, M, c, N = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N)
    total = selected_entries("kept", kept, c * M / VALUE_BYTES)
    messages: Floats = np.where(N > 1, N, 0.0) + 2 * np.log2(N)
    return messages * alpha + 2 * ENTRY_BYTES * total * (N - 1) / N * beta


def oktopk(
    alpha: Real, beta: Real, M: Real, c: Real, N: Real, selected: Real | None = None, kept: Real | None = None
) -> Floats:
    """Ok-Topk: at most (2 N + 2 log N) alpha + 6 k (N - 1) / N words; published, [3] Eqn 3.

    The printed sum of Eqns 1 and 2 is one alpha larger than its parts. The bound holds for no more than k entries, or
    for those given: `selected` as of `oktopk_split_and_reduce`, `kept` as of `oktopk_balance_and_allgatherv`.
    """
    split = oktopk_split_and_reduce(alpha, beta, M, c, N, selected)
    gather = oktopk_balance_and_allgatherv(alpha, beta, M, c, N, kept)
    return split + gather + np.where(np.asarray(N) > 1, alpha, 0.0)


def sparse_allreduce_bound(beta: Real, M: Real, c: Real, N: Real) -> Floats:
    """Least bytes of a sparse all-reduce of k entries: 2 k (N - 1) / N words; published, [3] Theorem 3.1."""
    beta, M, c, N = check_arguments(beta=beta, M=M, c=c, N=N)
    return ENTRY_BYTES * c * M / VALUE_BYTES * (N - 1) / N * beta


def spardl(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> Floats:
    """SparDL in one team: 2 ceil(log N) alpha + 4 k (N - 1) / N words; derived from [6].

    Half of the words are the Spar-Reduce-Scatter, half the all-gather.
    """
    return spardl_rsag(alpha, beta, M, c, N, 1.0)


def spardl_bsag(alpha: Real, beta: Real, M: Real, c: Real, N: Real, d: Real, h: Real | None = None) -> Floats:
    """SparDL, B-SAG: (2 ceil(log(N / d)) + ceil(log d)) alpha + 4 k (N - d) / N + 2 h (d - 1) words at most; derived.

    From the algorithm of [6], with d teams, a divisor of N. The all-gather in a team carries no more than k d / N
    entries of a block. `h` are a worker's entries in the exchange between teams, which SparDL adapts from k / N up; k d
    / N, all that it has, if not given.
    """
    alpha, beta, M, c, N = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N)
    d, k = _team_size(N, d), c * M / VALUE_BYTES
    crossing = selected_entries("h", h, k * d / N)
    rounds = 2 * np.ceil(np.log2(N / d)) + np.ceil(np.log2(d))
    return rounds * alpha + ENTRY_BYTES * (2 * k * (N - d) / N + crossing * (d - 1)) * beta


def spardl_rsag(alpha: Real, beta: Real, M: Real, c: Real, N: Real, d: Real) -> Floats:
    """SparDL, R-SAG: (2 ceil(log(N / d)) + log d) alpha + 2 k (2 N - 2 d + d log d) / N words; derived.

    From the algorithm of [6], with d = 2^x teams. Two move as much as one, in a round less if N is a power of two.
    """
    alpha, beta, M, c, N = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N)
    d, k = _team_size(N, d), c * M / VALUE_BYTES
    doublings = np.log2(d)
    if (doublings % 1 != 0).any():
        raise ValueError(f"d must be a power of two, got {np.asarray(d)[np.asarray(doublings) % 1 != 0].flat[0]:g}")
    rounds = 2 * np.ceil(np.log2(N / d)) + doublings
    return rounds * alpha + ENTRY_BYTES * k * (2 * (N - d) + d * doublings) / N * beta


def _team_size(N: Floats, d: Real) -> Floats:
    (teams,) = check_arguments(d=d)
    wrong = N % teams != 0
    if wrong.any():
        workers, found = (np.broadcast_to(one, np.shape(wrong))[wrong].flat[0] for one in (N, teams))
        raise ValueError(f"d must divide the number of workers, got {found:g} teams of {workers:g}")
    return teams


def exdyna(
    alpha: Real,
    beta: Real,
    M: Real,
    c: Real,
    N: Real,
    longest: Real | None = None,
    union: Real | None = None,
    index_bytes: Real = 8.0,
) -> Floats:
    """ExDyna, MiCRO on rings: (N - 1) (4 alpha + [8 + 8 kmax + 8 |U| / N] beta); derived from the code of [7].

    All-gathers of the counts and of the indices, padded to the longest, then an all-reduce of the values there.
    `longest` is kmax, the most entries that a worker selected, k / N if not given; `union` |U|, those of all workers, c
    M / 4 if not given; `index_bytes` are those of an index, and of a count.
    """
    alpha, beta, M, c, N, width = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N, index_bytes=index_bytes)
    padded = selected_entries("longest", longest, c * M / VALUE_BYTES / N)
    everywhere = selected_entries("union", union, c * M / VALUE_BYTES)
    counts, indices = (collectives.ring_allgather(alpha, beta, nbytes, N) for nbytes in (width, width * padded))
    return counts + indices + collectives.ring_allreduce(alpha, beta, VALUE_BYTES * everywhere, N)


def hardthreshold(
    alpha: Real,
    beta: Real,
    M: Real,
    c: Real,
    N: Real,
    longest: Real | None = None,
    union: Real | None = None,
    index_bytes: Real = 8.0,
) -> Floats:
    """Hard threshold, SAGE, on rings: (N - 1) (4 alpha + [8 + 8 kmax + 8 |U| / N] beta); derived from the code of [7].

    Arguments as of `exdyna`, but every worker selects from the whole gradient: `longest` is c M / 4 if not given, and
    `union` the `fill_in` of independent selections.
    """
    M, c, N = check_arguments(M=M, c=c, N=N)
    k = c * M / VALUE_BYTES
    padded = selected_entries("longest", longest, k)
    return exdyna(alpha, beta, M, c, N, padded, _union_of_own(M, k, N, union), index_bytes)


def uniontopk(
    alpha: Real, beta: Real, M: Real, c: Real, N: Real, union: Real | None = None, index_bytes: Real = 8.0
) -> Floats:
    """Top-k, values at the union, on rings: (N - 1) (3 alpha + [8 k + 8 |U| / N] beta); derived from the code of [7].

    An all-gather of each worker's k indices, without counts, then an all-reduce of all values at their union. `union`
    is |U|, k to N k; the `fill_in` of independent selections if not given. `index_bytes` as of `exdyna`.
    """
    alpha, beta, M, c, N, width = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N, index_bytes=index_bytes)
    k = c * M / VALUE_BYTES
    values = collectives.ring_allreduce(alpha, beta, VALUE_BYTES * _union_of_own(M, k, N, union), N)
    return collectives.ring_allgather(alpha, beta, width * k, N) + values


def cltk(alpha: Real, beta: Real, M: Real, c: Real, N: Real, index_bytes: Real = 8.0) -> Floats:
    """CLT-k: log N (alpha + 8 k beta) + 2 (N - 1) (alpha + 4 k / N beta); derived from [8] and the code of [7].

    A broadcast of one worker's indices, then a ring all-reduce of the values at them: AR-Topk with `index_bytes` of 4.
    """
    alpha, beta, M, c, N, width = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N, index_bytes=index_bytes)
    k = c * M / VALUE_BYTES
    values = collectives.ring_allreduce(alpha, beta, VALUE_BYTES * k, N)
    return collectives.broadcast(alpha, beta, width * k, N) + values


def deft(
    alpha: Real,
    beta: Real,
    M: Real,
    c: Real,
    N: Real,
    layers: Real,
    longest: Real | None = None,
    union: Real | None = None,
    index_bytes: Real = 8.0,
) -> Floats:
    """DEFT: log N (alpha + 4 (N + L) beta) + (N - 1) (4 alpha + [8 + 8 kmax + 8 |U| / N] beta); derived, code of [7].

    Two broadcasts, the second right behind the first, tell the bins of the L layers, counted after long ones are cut;
    then as `exdyna`.
    """
    layers, N = check_arguments(layers=layers, N=N)
    bins = collectives.broadcast(alpha, beta, 4 * (N + layers), N)
    return bins + exdyna(alpha, beta, M, c, N, longest, union, index_bytes)


def _union_of_own(M: Floats, k: Floats, N: Floats, union: Real | None) -> Floats:
    return fill_in(M / VALUE_BYTES, k, N) if union is None else selected_entries("union", union, k)


def arctopk(
    alpha: Real,
    beta: Real,
    M: Real,
    c: Real,
    N: Real,
    rank: Real = 4,
    sketch: Real | None = None,
    kept: Real | None = None,
    tensors: Real = 1,
) -> Floats:
    """ARC-Top-K on rings: 2 (N - 1) [(t + 1) alpha + 4 (|S| + k) / N beta]; derived from the code of [15].

    An all-reduce of the sketch of each of t `tensors`, and one of the kept rows of all. `sketch` is |S|, entries of all
    sketches: `rank` rows of each matrix, and all entries of a vector; of one square matrix if not given. `kept` are the
    entries in the rows kept, c M / 4 if not given.
    """
    M, c, rank, tensors = check_arguments(M=M, c=c, rank=rank, tensors=tensors)
    sketches = selected_entries("sketch", sketch, rank * np.sqrt(M / VALUE_BYTES))
    rows = selected_entries("kept", kept, c * M / VALUE_BYTES)
    nbytes = VALUE_BYTES * (sketches + rows)
    latency = tensors * collectives.ring_allreduce(alpha, beta, 0.0, N)
    return collectives.ring_allreduce(alpha, beta, nbytes, N) + latency


def ef21(
    alpha: Real, beta: Real, M: Real, c: Real, N: Real, contributed: Real | None = None, flag_bytes: Real = 0.0
) -> Floats:
    """EF21, all-gather of what is new: log N alpha + (N - 1) (8 k + flag) beta; derived from [16].

    The dense exchange before all others costs `ring_allreduce` once. `contributed` are the bytes of a worker's message
    without a flag, those of k values with indices if not given; `flag_bytes` tell the kind of a message, in EF21+: 1.
    """
    alpha, beta, M, c, N, flag_bytes = check_arguments(alpha=alpha, beta=beta, M=M, c=c, N=N, flag_bytes=flag_bytes)
    nbytes = selected_entries("contributed", contributed, ENTRY_BYTES * c * M / VALUE_BYTES)
    return collectives.allgather(alpha, beta, nbytes + flag_bytes, N)


def omnireduce(
    alpha: Real,
    beta: Real,
    M: Real,
    N: Real,
    blocks: Real | None = None,
    union: Real | None = None,
    turns: Real | None = None,
    aggregators: Real | None = None,
    block_bytes: Real = 1028.0,
    slots: Real = 8,
) -> Floats:
    """OmniReduce: 2 t alpha + (z + u) (N - 1) / A b beta for even loads; derived from the code of [18].

    Blocks go to A aggregators, and sums come back, in t turns. `blocks` and `union` are z and u, blocks that a worker
    sends and that come back, all M / 1024 if not given; `turns` is t, u over the slots if not given; `aggregators` A,
    all workers or as many as slots if not given; `block_bytes` b, with the offset of the next block; `slots` blocks are
    on their way.
    """
    alpha, beta, M, N = check_arguments(alpha=alpha, beta=beta, M=M, N=N)
    block_bytes, slots = check_arguments(block_bytes=block_bytes, slots=slots)
    every = np.ceil(M / 1024)
    z, u = selected_entries("blocks", blocks, every), selected_entries("union", union, every)
    t = selected_entries("turns", turns, np.ceil(u / slots))
    (A,) = check_arguments(aggregators=np.minimum(N, slots) if aggregators is None else aggregators)
    return np.where(N > 1, 2 * t * alpha + (z + u) * (N - 1) / A * block_bytes * beta, 0.0) + 0.0


SPARSE_COLLECTIVES = ("ART-ring", "ART-tree", "AG")
"""Candidates of the flexible exchange, in the order in which the released code compares them."""


class CheapestCollective(NamedTuple):
    """The cheapest of `SPARSE_COLLECTIVES` for each element of the arguments: index, name, cost [s]."""

    choice: NDArray[np.intp]
    """Position in `SPARSE_COLLECTIVES`."""
    label: NDArray[np.str_]
    """Name of the cheapest."""
    seconds: Floats
    """Cost of the cheapest [s]."""


def best_collective(alpha: Real, beta: Real, M: Real, c: Real, N: Real) -> CheapestCollective:
    """Return the cheapest of `SPARSE_COLLECTIVES` by the three formulas; on ties the first.

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
