"""The random part that workers' gradients share: normal numbers of an autoregressive process over iterations.

Every draw is from a stream named after the iteration, so any iteration can be computed without those before.
"""

from __future__ import annotations

import math

import numpy as np

from simnet.base.arrays import Values
from simnet.base.rng import stream

# It is computed afresh every so many iterations, from where it has forgotten all but a hundredth.
_RESTART, _FORGOTTEN = 64, 0.01

PIECE = 1 << 16
"""Entries computed at a time, few enough for the CPU cache."""


def skip_normals(draws: np.random.Generator, count: int) -> None:
    """Advance a random stream past `count` float32 standard normals."""
    for first in range(0, count, PIECE):
        draws.standard_normal(min(PIECE, count - first), dtype=np.float32)


class FadingNormals:
    """Standard normal numbers, one per entry, that follow an autoregressive process over iterations."""

    def __init__(self, entries: int, seed: int, memory: float, turns: bool) -> None:
        self._entries, self._seed, self._turns = entries, seed, turns
        self._kept = math.sqrt(memory) if turns else memory
        self._at, self._rows = -1, np.zeros((0, 0), dtype=np.float32)

    def at(self, iteration: int) -> Values:
        """Return the normals of an iteration, shape (n,); fast if the previous call was for an iteration just before.

        The row is valid until the next call.
        """
        restart = iteration - iteration % _RESTART
        at, rows = self._at, self._rows
        # Until it is there again, as it changes in place.
        self._at = -1
        if not restart <= at <= iteration or not len(rows):
            at = restart - (math.ceil(math.log(_FORGOTTEN, self._kept)) if self._kept > 0 else 0)
            rows = rows if len(rows) else np.empty((1 + self._turns, self._entries), dtype=np.float32)
            for fresh, normals in zip(rows, self._fresh_streams(at), strict=True):
                normals.standard_normal(dtype=np.float32, out=fresh)
        while at < iteration:
            at += 1
            self._advance(rows, self._fresh_streams(at))
        self._at, self._rows = at, rows
        return np.asarray(rows[0])

    def _fresh_streams(self, at: int) -> list[np.random.Generator]:
        """Return random streams of the fresh normals of an iteration: one, or two if the process oscillates."""
        names: list[tuple[str | int, ...]] = [("common", at), ("common", at, "aside")]
        return [stream(self._seed, "gradients", *name) for name in names[: 1 + self._turns]]

    def _advance(self, rows: Values, news: list[np.random.Generator]) -> None:
        """Advance the process by an iteration in place: decay all values, rotate oscillating ones, and add noise."""
        turns, kept = self._turns, self._kept
        new_share = math.sqrt(1 - kept**2)
        shares = (kept**2, kept * new_share, new_share) if turns else (kept, 0.0, new_share)
        along, across, fresh = map(np.float32, shares)
        room = np.empty(PIECE, dtype=np.float32)
        for first in range(0, rows.shape[1], PIECE):
            one, *others = part = rows[:, first : first + PIECE]
            turned = [along * other + across * one for other in others]
            one *= along
            for other, new in zip(others, turned, strict=True):
                one -= across * other
                other[:] = new
            for row, normals in zip(part, news, strict=True):
                new = room[: row.size]
                normals.standard_normal(dtype=np.float32, out=new)
                new *= fresh
                row += new
