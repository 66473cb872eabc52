"""Collectives in which every rank, or a server, talks to every other directly."""

from __future__ import annotations

import numpy as np

from simnet.base.checks import whole
from simnet.collectives.program import Program, Step


def alltoall_pairwise(n_ranks: int) -> Program:
    """Personalised exchange of P x P chunks in P - 1 rounds; chunk i P + j goes from rank i to rank j.

    In round s = 1 .. P - 1 rank r sends to r + s and receives from r - s.
    """
    P = whole(n_ranks, "n_ranks", 1)
    rank = np.arange(P)
    steps = []
    for s in range(1, P):
        to = (rank + s) % P
        steps.append(Step(rank, to, first=rank * P + to, phase="all-to-all"))
    return Program(P, P * P, steps)


def parameter_server(n_ranks: int, server: int = 0) -> Program:
    """All-reduce of one chunk in 2 rounds: everyone sends to the server, the server sends to everyone.

    The messages of a round share the server's link, which is what makes them follow each other.
    """
    P = whole(n_ranks, "n_ranks", 1)
    whole(server, "server", 0, P - 1)
    workers = np.delete(np.arange(P), server)
    home = np.full_like(workers, server)
    return Program(P, 1, [Step(workers, home, reduce=True, phase="push"), Step(home, workers, phase="pull")])
