"""Collectives in about log2 P rounds, whose messages double or halve from round to round.

Recursive doubling and halving pair ranks at distance 1, 2, 4, ... and need a power of two. For other P each of the
first P - 2^floor(log2 P) odd ranks hands its data to the even rank before it, sits out, and gets the result
at the end: one round more at either end.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005.
J. Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", TPDS 8,
1997.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simnet.base.arrays import Ranks
from simnet.base.checks import whole
from simnet.collectives.program import Program, Step


def allreduce_recursive_doubling(n_ranks: int) -> Program:
    """All-reduce of one chunk: partners exchange and reduce the whole vector, at distance 1, 2, 4, ..."""
    P = whole(n_ranks, "n_ranks", 1)
    stay, leave = _fold(P)
    q = np.arange(len(stay))
    steps = [Step(leave, leave - 1, reduce=True, phase="fold")]
    steps += [Step(stay, stay[q ^ d], reduce=True, phase="recursive doubling") for d in _powers_below(len(stay))]
    steps += [Step(leave - 1, leave, phase="unfold")]
    return Program(P, 1, steps)


def allreduce_rabenseifner(n_ranks: int) -> Program:
    """All-reduce of 2^floor(log2 P) chunks: reduce-scatter by recursive halving, all-gather by recursive doubling."""
    P = whole(n_ranks, "n_ranks", 1)
    stay, leave = _fold(P)
    Q = len(stay)
    q = np.arange(Q)
    steps = [Step(leave, leave - 1, count=Q, reduce=True, phase="fold")]
    # At distance d the aligned 2 d chunks that q and its partner work on are halved: each sends the partner's half.
    for d in reversed([*_powers_below(Q)]):
        partner = q ^ d
        steps.append(Step(stay, stay[partner], partner // d * d, d, reduce=True, phase="reduce-scatter"))
    steps += [Step(stay, stay[q ^ d], q // d * d, d, phase="all-gather") for d in _powers_below(Q)]
    steps += [Step(leave - 1, leave, count=Q, phase="unfold")]
    return Program(P, Q, steps)


def allgather_recursive_doubling(n_ranks: int) -> Program:
    """All-gather of P chunks: partners at distance 1, 2, 4, ... exchange all they have; rank r contributes chunk r."""
    P = whole(n_ranks, "n_ranks", 1)
    stay, leave = _fold(P)
    q = np.arange(len(stay))
    # Neighbours fold into neighbours, so that what an aligned group of d ranks holds is one range of chunks.
    start = np.append(stay, P)
    steps = [Step(leave, leave - 1, first=leave, phase="fold")]
    for d in _powers_below(len(stay)):
        group = q // d * d
        steps.append(Step(stay, stay[q ^ d], start[group], start[group + d] - start[group], phase="recursive doubling"))
    # All but the chunk that the rank itself contributed.
    steps += [Step(leave - 1, leave, first=leave + 1, count=P - 1, phase="unfold")]
    return Program(P, P, steps)


def allgather_bruck(n_ranks: int) -> Program:
    """All-gather of P chunks in ceil(log2 P) rounds for every P; rank r contributes chunk r."""
    P = whole(n_ranks, "n_ranks", 1)
    rank = np.arange(P)
    # At distance d rank r has chunks r .. r + d - 1, of which rank r - d needs as many as it lacks.
    steps = [Step(rank, (rank - d) % P, rank, min(d, P - d), phase="Bruck") for d in _powers_below(P)]
    return Program(P, P, steps)


def _fold(P: int) -> tuple[Ranks, Ranks]:
    """Ranks that take part, a power of two of them, and ranks that hand their data to the rank before and leave."""
    extra = P - (1 << (P.bit_length() - 1))
    leave = np.arange(1, 2 * extra, 2)
    return np.setdiff1d(np.arange(P), leave), leave


def _powers_below(n: int) -> Iterator[int]:
    return (1 << bit for bit in range((n - 1).bit_length()))
