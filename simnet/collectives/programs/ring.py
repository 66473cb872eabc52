"""Collectives round a ring: every rank sends to its right neighbour only, one chunk a round.

References
----------
P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009.
"""

from __future__ import annotations

import numpy as np

from simnet.base.checks import whole
from simnet.collectives.program import Program, Step


def allgather_ring(n_ranks: int) -> Program:
    """All-gather of P chunks in P - 1 rounds; rank r contributes chunk r."""
    P = whole(n_ranks, "n_ranks", 1)
    rank = np.arange(P)
    # In round s rank r passes on chunk r - s, which its left neighbour sent it the round before.
    return Program(P, P, [Step(rank, (rank + 1) % P, first=rank, times=P - 1, stride=-1, phase="all-gather")])


def reduce_scatter_ring(n_ranks: int) -> Program:
    """Reduce-scatter of P chunks in P - 1 rounds; rank r ends with chunk r."""
    P = whole(n_ranks, "n_ranks", 1)
    rank = np.arange(P)
    # In round s rank r passes on what it has of chunk r - 1 - s; chunk r has then come full circle to rank r.
    step = Step(rank, (rank + 1) % P, first=rank - 1, reduce=True, times=P - 1, stride=-1, phase="reduce-scatter")
    return Program(P, P, [step])


def allreduce_ring(n_ranks: int) -> Program:
    """All-reduce of P chunks in 2 (P - 1) rounds: reduce-scatter, then all-gather."""
    return Program(n_ranks, n_ranks, [*reduce_scatter_ring(n_ranks).steps, *allgather_ring(n_ranks).steps])
