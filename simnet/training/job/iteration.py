"""An iteration of a job while it takes place: who computes, from when on, and what its exchange waits for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.network import Timing
from simnet.policies import Decision
from simnet.strategies.averaging import NOBODY

TRAIN, EXPLORE = "train", "explore"
"""Purposes of an iteration: to make progress, or to find out what a candidate takes and gives."""


@dataclass
class Iteration:
    """An iteration, or an attempt of exploration, until its exchange is complete.

    `number` selects the network, `now` is its start [s]. The workers `active`, shape (P',), take part, on the hosts
    `placement`. Each `begins` so many seconds after the first one, spends `probing` on the links and `compute` on its
    passes; it has its gradient after `complete` seconds, of which it computed for `behind`. `latency` and `bandwidth`
    are the worst between neighbours at the start. `keeps_messages` keeps the times of messages, `stream` names the
    random stream of the jitter, and `failures` are the workers that stop without notice, and when [s]. The workers
    `late` compute but miss the exchange; the others wait for them until `waits` seconds after the first. `selections`
    has start and duration of each selection: one, and another after every interruption. `probes` are the messages that
    measured the links, while all senders are present.
    """

    number: int
    now: float
    decision: Decision
    density: float
    active: NDArray[np.intp]
    placement: list[int]
    begins: Floats
    probing: Floats
    compute: Floats
    latency: float
    bandwidth: float
    keeps_messages: bool
    stream: tuple[str | int, ...]
    failures: Mapping[int, float]
    probes: Timing | None = None
    late: NDArray[np.intp] = field(default_factory=NOBODY.copy)
    waits: float = 0.0
    selections: list[tuple[Floats, Floats]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.complete, self.behind = self.begins + self.probing + self.compute, self.compute

    @property
    def trains(self) -> bool:
        """Whether it is no exploration."""
        return self.decision.attempt is None

    @property
    def purpose(self) -> str:
        """`TRAIN` or `EXPLORE`."""
        return TRAIN if self.trains else EXPLORE

    @property
    def batch(self) -> int:
        """The iteration of its gradients, a later one in exploration."""
        return self.number + (self.decision.attempt or 0)

    @property
    def select(self) -> Floats:
        """Seconds that each worker selected."""
        return sum((seconds for _, seconds in self.selections[1:]), self.selections[0][1])

    @property
    def lost(self) -> Floats:
        """Seconds that each worker waited, in vain, before it selected again."""
        between = [later - (begin + seconds) for (begin, seconds), (later, _) in itertools.pairwise(self.selections)]
        return sum(between, np.zeros(self.active.size))

    def add_selection(self, select: Floats, slowed: Floats, held: Floats | float) -> None:
        """Note when workers selected, by how much the kernels slowed their backward pass, and how long they waited."""
        self.compute = self.compute + slowed
        entered = self.complete + slowed
        if self.waits:
            self.selections.append((entered, np.zeros(entered.size)))
            entered = entered + held
        self.selections.append((entered, select))

    def remove_workers(self, gone: NDArray[np.bool_]) -> None:
        """Go on without some of the workers."""
        self.placement = [host for host, left in zip(self.placement, (~gone).tolist(), strict=True) if left]
        self.selections = [(begin[~gone], seconds[~gone]) for begin, seconds in self.selections]
        for name in ("active", "begins", "probing", "compute", "complete", "behind"):
            setattr(self, name, getattr(self, name)[~gone])
        self.probes = None
