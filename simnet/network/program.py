"""What is to run: the rounds of schedules in a row, when ranks may enter them, and what has been drawn for messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.schedule import Round, Schedule


class Program(NamedTuple):
    """Schedules in a row that are to run.

    Parameters
    ----------
    rounds : list of Round
        Of all schedules, in order.
    gates : dict of int to ndarray, shape (P,)
        Before which rounds ranks wait, and until when [s]. The round after the last is the end.
    start, accounted : ndarray, shape (P,)
        When each rank enters, and from when on its time is accounted [s].
    delays : ndarray, shape (number of messages,)
        Extra latency of each message [s]; empty for none.
    picks : ndarray of int, shape (number of messages,)
        Number by which a message chooses between its candidate routes; empty for the first.
    """

    rounds: list[Round]
    gates: dict[int, Floats]
    start: Floats
    accounted: Floats
    delays: Floats
    picks: Ranks

    @property
    def n_messages(self) -> int:
        """Number of messages."""
        return sum(map(len, self.rounds))

    @classmethod
    def of(
        cls, parts: Sequence[tuple[Schedule, Floats]], start: Floats, accounted: Floats, delays: Floats, picks: Ranks
    ) -> Program:
        """Return schedules in a row, given when each rank may enter each [s]."""
        rounds: list[Round] = []
        gates: dict[int, Floats] = {}
        for schedule, ready in parts:
            # An empty schedule shares its gate with the next, or holds up the end.
            gates[len(rounds)] = np.maximum(ready, gates.get(len(rounds), 0.0))
            rounds.extend(schedule.rounds)
        return cls(rounds, gates, start, accounted, delays, picks)
