"""What the workers' gradients share and what fades: an autoregressive process over iterations.

Every draw is from a stream named after the iteration, so any iteration can be computed without those before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType

import numpy as np

from simnet.base.rng import stream
from simnet.traces.normals import Normals
from simnet.traces.runs import RUN, LayerRun
from simnet.traces.source import Values

# It is computed afresh every so many iterations, from where it has forgotten all but a hundredth.
_RESTART, _FORGOTTEN = 64, 0.01


class FadingNormals:
    """Autocorrelated standard normals of all entries."""

    def __init__(self, runs: Sequence[LayerRun], seed: int, memory: float, turns: bool) -> None:
        self._runs, self._seed, self._turns = runs, seed, turns
        self._kept = math.sqrt(memory) if turns else memory
        self._at, self._rows = -1, np.zeros((0, 0), dtype=np.float32)

    def at(self, iteration: int, compiled: ModuleType | None) -> Values:
        """Return the normals of an iteration, computed from the last one if that is recent.

        The row is valid until the next call.
        """
        restart = iteration - iteration % _RESTART
        at, rows = self._at, self._rows
        # Until it is there again, as it changes in place.
        self._at = -1
        if not restart <= at <= iteration or not len(rows):
            at = restart - (math.ceil(math.log(_FORGOTTEN, self._kept)) if self._kept > 0 else 0)
            rows = rows if len(rows) else np.empty((1 + self._turns, self._runs[-1].entries.stop), dtype=np.float32)
            for fresh, normals in zip(rows, self._news(at, compiled), strict=True):
                normals.fill(fresh)
        while at < iteration:
            at += 1
            go_on = self._turn if self._turns else self._fade
            go_on(rows, self._news(at, compiled), compiled)
        self._at, self._rows = at, rows
        return np.asarray(rows[0])

    def _news(self, at: int, compiled: ModuleType | None) -> list[Normals]:
        """Return the innovations of an iteration, a stream for each row."""
        names: list[tuple[str | int, ...]] = [("common", at), ("common", at, "aside")]
        some = names[: 1 + self._turns]
        return [Normals(stream(self._seed, "gradients", *name), compiled) for name in some]

    def _fade(self, rows: Values, news: list[Normals], compiled: ModuleType | None) -> None:
        """Advance by an iteration, in place."""
        kept, fresh = np.float32(self._kept), np.float32(math.sqrt(1 - self._kept**2))
        piece = np.empty(RUN, dtype=np.float32)
        if compiled is not None:
            compiled.remember(*news[0].state, rows[0], fresh, kept, piece[: compiled.BLOCK])
            return
        for run in self._runs:
            new, old = piece[: run.entries.stop - run.entries.start], rows[0, run.entries]
            news[0].fill(new)
            new *= fresh
            new += kept * old
            old[:] = new

    def _turn(self, rows: Values, news: list[Normals], compiled: ModuleType | None) -> None:
        """Advance by an iteration, in place: two numbers rotate by an angle."""
        # Its cosine is what is kept of them.
        along, across = np.float32(self._kept**2), np.float32(self._kept * math.sqrt(1 - self._kept**2))
        fresh, piece = np.float32(math.sqrt(1 - self._kept**2)), np.empty(RUN, dtype=np.float32)
        for run in self._runs:
            one, other = rows[:, run.entries]
            turned = along * other + across * one
            one *= along
            one -= across * other
            other[:] = turned
            for row, normals in zip((one, other), news, strict=True):
                new = piece[: row.size]
                normals.fill(new)
                new *= fresh
                row += new
