"""Choice between the interpreted and the compiled event loop, by the amount of work to simulate.

Work is estimated beforehand and counted afterwards, in messages that meet no other: about 15 us each when interpreted.
Each other message of a round on each link of the route, and each change of a used link, adds about 5 us.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from simnet.base.jit_threshold import JitThreshold
from simnet.network.compiled_loop import loop_is_kept, loop_is_loaded
from simnet.network.links import Links
from simnet.network.program import Program
from simnet.network.sharing import Sharing
from simnet.network.stack import Stack
from simnet.schedule import count_rounds

if TYPE_CHECKING:
    from simnet.network.engine import Engine

# Work from which on loading the compiled event loop takes less time than it saves, and compiling it.
_MANY, _VERY_MANY = 5_000, 500_000
# What meeting another message on a link, a change of a link, and settling the rates of flows once, are of that.
_MEETING, _CHANGING, _SETTLING = 1 / 3, 1 / 3, 2


def estimated_work(program: Program, links: Links) -> float:
    """Return the simulation effort of a program, as an equivalent number of messages on unshared, constant links.

    Where different rounds have more than 5,000 messages in all, evenly spaced ones stand for the others. For 500,000
    messages or more, which need no estimate, it is their number.
    """
    n_messages = program.schedule.n_messages
    if n_messages >= _VERY_MANY or not n_messages:
        return n_messages
    every = math.ceil(sum(len(one) for one, _ in count_rounds(program.schedule.rounds)) / _MANY)
    rounds, times = zip(*itertools.islice(count_rounds(program.schedule.rounds), 0, None, every), strict=True)
    hosts = (program.hosts[np.concatenate([getattr(one, end) for one in rounds])] for end in ("src", "dst"))
    table, size = links.routes.table(*hosts), len(links.routes.links)
    # A link of each round is a number of its own.
    own = np.repeat(np.arange(len(rounds)), [len(one) for one in rounds])[:, np.newaxis] * size + table
    of_round, users = np.unique(own[table >= 0], return_counts=True)
    share = sum(len(one) * count for one, count in zip(rounds, times, strict=True)) / n_messages
    meetings = (np.array(times)[of_round // size] * users * (users - 1)).sum() / share
    used = np.unique(of_round % size)
    changes = links.changes(used, program.origin, float(program.schedule.bytes_sent().max(initial=0.0)))
    return float(n_messages + _MEETING * meetings + _CHANGING * changes)


# What all networks of this process have had done without the compiled event loop.
_interpreted = JitThreshold(_MANY, _VERY_MANY, loop_is_kept)


class EngineSelector:
    """Creates the event-loop engine of a network: interpreted at first, and compiled once there is enough work.

    - `links`: links and routes.
    - `overheads`, `stack`, `sharing`, `options`: as for `Engine`.
    """

    def __init__(
        self, links: Links, overheads: tuple[float, float], stack: Stack, sharing: Sharing, **options: Any
    ) -> None:
        self.links, self._given, self._options = links, (links, overheads, stack, sharing), options
        self._carried, self._counted = 0.0, 0.0
        self._engine: Engine | None = None
        self._compiled = False

    def take(self, what: Program | int) -> Engine:
        """Return the engine for the next work `what`, a program or number of messages; compiled if that saves time."""
        if not self._compiled:
            compiled = loop_is_loaded() or _interpreted.is_enough_with(self._work_of(what))
            if self._engine is None or compiled:
                # Only now is there anything for the event loop to do.
                from simnet.network.engine import Engine

                self._compiled = compiled
                self._engine = Engine(*self._given, compiled=compiled, **self._options)
        assert self._engine is not None
        return self._engine

    def _work_of(self, what: Program | int) -> float:
        """Return the work of `what` and of earlier rate calculations, as far as not returned before."""
        if isinstance(what, int):
            self._carried += what
        elif what.schedule.n_messages >= _MANY and loop_is_kept():
            self._carried += what.schedule.n_messages
        else:
            self._carried += estimated_work(what, self.links)
        done = 0 if self._engine is None else _SETTLING * self._engine.state.stamp
        before, self._counted = self._counted, max(self._carried, done)
        return self._counted - before
