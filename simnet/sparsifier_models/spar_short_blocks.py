"""SparDL where blocks are short: many of them at once, step by step, to the bit as one after the other.

Among P workers there are P T steps of `simnet.sparsifier_models.spar_reduce_scatter`, of c entries each; where c is
small, what a step costs is the calls. All blocks take the same route, seen from their owners: the step in which a block
leaves the worker that is o before its owner is done for all blocks, and all teams, together. A *lane* is one block in
one team.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.sparsifier_models.selection import Indices, Values
from simnet.sparsifier_models.spar_reduce_scatter import Entries, Outcome, add, srs_route

# Fewer workers in a team, longer blocks or more entries of a block, and one block after the other is faster.
_TEAM, _LENGTH, _KEPT = 16, 1 << 10, 64
# Entries of messages that are held at a time.
_HELD = 1 << 22


def pays(T: int, length: int, kept: int) -> bool:
    """Return whether dealing with blocks together is faster, for `kept` of the `length` entries of a block."""
    return T >= _TEAM and length <= _LENGTH and kept <= _KEPT


def batches(T: int, workers: int, kept: int) -> list[Indices]:
    """Return the batches of blocks, in order, for `T` blocks with `kept` entries each."""
    size = max(1, _HELD // (workers * kept))
    return [np.arange(first, min(first + size, T)) for first in range(0, T, size)]


class Messages(NamedTuple):
    """What is passed on in one step, of all lanes.

    Parameters
    ----------
    lanes : ndarray of int64, shape (m,)
        Which lane an entry is of, ascending.
    columns : ndarray of int64, shape (m,)
        Where it stands in its block, ascending within a lane.
    values : ndarray of float32, shape (m,)
    """

    lanes: Indices
    columns: Indices
    values: Values

    def where(self, chosen: NDArray[np.bool_]) -> Messages:
        """Return those chosen."""
        return Messages(self.lanes[chosen], self.columns[chosen], self.values[chosen])

    def split(self, lanes: int) -> list[Entries]:
        """Return the entries of each lane."""
        ends = np.searchsorted(self.lanes, np.arange(lanes + 1)).tolist()
        return [Entries(self.columns[first:last], self.values[first:last]) for first, last in pairwise(ends)]


class ShortBlocks:
    """Some blocks of all workers.

    Parameters
    ----------
    rows : ndarray of float32, shape (P, n)
        The gradients of all workers, whole.
    blocks : ndarray of int64, shape (B,)
        Which blocks.
    teams, length : int
        Number of teams d, and entries c of a block but the last ones.
    """

    def __init__(self, rows: Values, blocks: Indices, teams: int, length: int) -> None:
        self._rows, self._blocks, self._c = rows, blocks, length
        self._d, self._T = teams, len(rows) // teams
        self._lanes = teams * blocks.size
        # Of the blocks, and of the lanes: team after team.
        self._sizes = np.tile(np.clip(rows.shape[1] - blocks * length, 0, length), teams)
        self._starts = np.tile(blocks * length, teams)

    def _ranks(self, before: int) -> Indices:
        """Return the worker of each lane that is so many before the owner of its block."""
        workers = (self._blocks - before) % self._T
        return (np.arange(self._d)[:, None] * self._T + workers).ravel()

    def reduce(self, k_b: int, h: Indices) -> None:
        """Reduce every block to its owner, which keeps ``h[b]`` entries. ValueError: a sum overflows float32."""
        self._received: list[list[Messages]] = [[] for _ in range(self._T)]
        nothing = np.zeros(0, dtype=np.int64)
        self._sent = [Messages(nothing, nothing, np.zeros(0, dtype=np.float32))] * self._T
        there = np.arange(self._c) < self._sizes[:, None]
        places = np.where(there, self._starts[:, None] + np.arange(self._c), 0)
        # As seen from the owner, worker 0 of the route of block 0.
        for src, dst in [*((-src % self._T, -dst % self._T) for src, dst in srs_route(self._T, 0)), (0, 0)]:
            held = self._rows[self._ranks(src)[:, None], places]
            for message in self._received[src]:
                held[message.lanes, message.columns] += message.values
            wanted = np.full(self._lanes, k_b) if src else np.tile(h, self._d)
            lanes, columns = np.nonzero(_largest(held, there, np.minimum(wanted, self._sizes)))
            self._sent[src] = Messages(lanes, columns, held[lanes, columns])
            if not np.isfinite(self._sent[src].values).all():
                raise ValueError("the sum over the workers overflows float32")
            if src:
                self._received[dst].append(self._sent[src])

    def kept(self) -> list[list[Entries]]:
        """Return what the owner of each block has kept of it in each team."""
        lanes = self._sent[0].split(self._lanes)
        return [lanes[i :: self._blocks.size] for i in range(self._blocks.size)]

    def collect(self, outcomes: Sequence[Outcome], *, local: bool) -> tuple[Floats, Floats]:
        """Turn the blocks at every worker into its residuals; `local` loses what is dropped on the way.

        Returns sums of squares, shape (B, P), of own entries that were passed on and finally selected, and of what is
        kept at entries finally selected.
        """
        B, P = len(outcomes), len(self._rows)
        gave, keeps = np.zeros((B, P)), np.zeros((B, P))
        final = np.zeros((B, self._c), dtype=np.bool_)
        for block, outcome in zip(final, outcomes, strict=True):
            block[outcome.final.indices] = True
        of_block = np.tile(np.arange(B), self._d)
        final_lanes, final_columns = np.nonzero(final[of_block])
        for before in range(self._T):
            ranks = self._ranks(before)
            sent = self._sent[before]
            gone = sent.where(final[of_block[sent.lanes], sent.columns])
            at_gone = ranks[gone.lanes], self._starts[gone.lanes] + gone.columns
            gave[of_block, ranks] = _squared_norms(self._rows[at_gone], gone.lanes, self._lanes)
            if local:
                self._rows[ranks[sent.lanes], self._starts[sent.lanes] + sent.columns] = 0
            else:
                for message in self._received[before]:
                    back = message.where(final[of_block[message.lanes], message.columns])
                    self._rows[ranks[back.lanes], self._starts[back.lanes] + back.columns] += back.values
                self._rows[at_gone] = 0
                if not before:
                    self._take_shares(outcomes, final)
            at_final = ranks[final_lanes], self._starts[final_lanes] + final_columns
            keeps[of_block, ranks] = _squared_norms(self._rows[at_final], final_lanes, self._lanes)
        return gave, keeps

    def _take_shares(self, outcomes: Sequence[Outcome], final: NDArray[np.bool_]) -> None:
        """Give the owners their shares of what was dropped where teams met."""
        for block, outcome, selected in zip(self._blocks.tolist(), outcomes, final, strict=True):
            for holders, share in outcome.dropped:
                inside = share.within(selected)
                for team in holders:
                    add(self._rows[team * self._T + block, block * self._c :], inside)


def _largest(held: Values, there: NDArray[np.bool_], k: Indices) -> NDArray[np.bool_]:
    """Return where the `k` largest magnitudes of each row are, of those that are there; of equal ones, the first."""
    magnitudes = np.where(there, np.abs(held), np.float32(-1))
    place = np.minimum(held.shape[1] - k, held.shape[1] - 1)
    parted = np.partition(magnitudes, np.unique(place), axis=1)
    least = np.maximum(parted[np.arange(len(held)), place], 0)[:, None]
    found: NDArray[np.bool_] = magnitudes >= least
    over = np.flatnonzero(np.count_nonzero(found, axis=1) > k)
    if over.size:
        tied = magnitudes[over] == least[over]
        room = k[over] - np.count_nonzero(found[over] & ~tied, axis=1)
        found[over] &= ~(tied & (np.cumsum(tied, axis=1) > room[:, None]))
    return found


def _squared_norms(values: Values, lanes: Indices, count: int) -> Floats:
    """Return the sum of squares in each lane, added up as `simnet.sparsifier_models.selection.squared_norm` does."""
    sizes = np.bincount(lanes, minlength=count)
    starts = np.cumsum(sizes) - sizes
    total = np.zeros(count)
    for size in np.unique(sizes[sizes > 0]).tolist():
        alike = np.flatnonzero(sizes == size)
        entries = values[starts[alike, None] + np.arange(size)].astype(np.float64)
        total[alike] = np.multiply(entries, entries, out=entries).sum(axis=1)
    return total
