"""Streaming DiLoCo: fragments of the model are synchronised in turn, while the workers train on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simnet.base.checks import check_int
from simnet.base.quantities import Count, Share, check_bounds
from simnet.strategies.averaging import Averaging, Sync
from simnet.strategies.base import Strategy, row_distances
from simnet.strategies.diloco import INNER, OUTER
from simnet.strategies.optimisers import ALL, SGD, Optimiser, Values, row_column_index
from simnet.strategies.replicas import Replicas, fragments_of


class StreamingDiLoCo(Strategy):
    """DiLoCo whose F fragments take turns, one every H / F inner steps, and have tau inner steps to arrive.

    Parameters
    ----------
    fragments : int or sequence of sequence of str
        F, the number of fragments, or the names of the layers of each, in the order of their turns.
    inner, outer : Optimiser, SGD
        The optimisers of each worker, and of the global parameters; each fragment has a momentum of its own.
    period : int
        H, the inner steps from one turn of a fragment to its next; a multiple of F.
    delay : int
        tau, the inner steps from where pseudo-gradients are taken to where the outer step is made; less than H / F.
    mixing : float
        alpha, the weight of the worker's own parameters when it takes over the global ones, in [0, 1]. With 0 what it
        trained during the delay is lost.
    averaging : Averaging
        How pseudo-gradients are averaged: the scheme.

    References
    ----------
    A. Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv 2501.18512; pytorch/torchft,
    ``DiLoCo``.
    """

    name = "streaming"
    takes_late = True
    paper = "Douillard et al., arXiv 2501.18512"

    def __init__(
        self,
        replicas: Replicas,
        *,
        fragments: Count | Sequence[Sequence[str]],
        inner: Optimiser = INNER,
        outer: SGD = OUTER,
        period: Count = 100,
        delay: int = 1,
        mixing: Share = 0.0,
        averaging: Averaging = Averaging(),
    ) -> None:
        super().__init__(replicas, inner)
        self.fragments = fragments_of(replicas, fragments)
        self.period, count = check_int(period, "period", 1), len(self.fragments)
        if period % count:
            raise ValueError(f"period must be a multiple of the {count} fragments, got {period}")
        self._between = self.steps = period // count
        sizes = [sum(replicas.tensors[layer][1] for layer in one.layers) for one in self.fragments]
        self.shares = tuple(size / replicas.parameters for size in sizes)
        self.delay = check_int(delay, "delay", 0)
        if delay >= self._between:
            raise ValueError(
                f"delay must be less than the {self._between} inner steps from one fragment to the next, got {delay}"
            )
        self.outer, self.mixing = outer, np.float32(check_bounds(mixing, Share, "mixing"))
        self.master, self._outer_state = self.keep_master(outer)
        self._under_way = self.keep("under way", np.zeros_like(self.master))
        self._averagers_of = [
            self.averager("pseudo-gradients", averaging, fragment, f"fragment {number}")
            for number, fragment in enumerate(self.fragments)
        ]

    def _advance(self, gradients: Values) -> Sequence[Sync]:
        self.descend(gradients)
        turn, steps = self.iteration // self._between % len(self.fragments), self.iteration % self._between + 1
        columns = self.fragments[turn].entries
        syncs: list[Sync] = []
        if steps == self._between - self.delay:
            local, own = self.local[row_column_index(self.active, columns)], self.master[:, columns]
            self.note("drift", row_distances(local, own[0]))
            average, syncs = self.average(self._averagers_of[turn], own - local, self.delay)
            self._under_way[:, columns] = average
        if steps == self._between:
            self.outer.step(self.master, self._under_way[:, columns], self._outer_state, ALL, columns)
            at, own = row_column_index(self.active, columns), self.master[:, columns]
            self.local[at] = own + self.mixing * (self.local[at] - own)
        return syncs
