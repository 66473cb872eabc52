"""Spar-Reduce-Scatter (SRS): a sparse reduction of each block to the worker of a team that owns the block.

Bags of blocks travel at distances that halve from round to round, so that L = ceil(log2 T) rounds do for any T. Sparse
sums grow when they are added up; here a worker keeps its blocks dense and cuts a block to k_b entries once, right
before it passes the block on (lazy sparsification), so that no message ever grows.

Blocks do not touch each other, so that each is reduced on its own.

References
----------
M. Zhao et al., "SparDL: Distributed Deep Learning Training with Efficient Sparse Communication", ICDE 2024, and its
reference implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.sparsifier_models.selection import Entries, Indices, Values, top_k


def srs_rounds(T: int) -> list[tuple[int, int]]:
    """Return, for each of ceil(log2 T) rounds among T workers, the distance and the number of blocks of its messages.

    In round i worker w sends blocks w + g_i, ..., w + g_i + m_i - 1 (mod T) to worker w + g_i. From then on it is
    responsible for blocks w, ..., w + g_i - 1 alone.
    """
    g = [1 << i for i in reversed(range((T - 1).bit_length()))]
    return [(one, min(one, T - one)) for one in g]


def srs_route(T: int, b: int) -> list[tuple[int, int]]:
    """Return the (sender, receiver) pairs of block `b` in order; each worker except the owner `b` sends once."""
    return [((b - g - x) % T, (b - x) % T) for g, m in srs_rounds(T) for x in range(m)]


def add(block: Values, entries: Entries) -> None:
    """Add entries to a block, in place."""
    block[entries.indices] += entries.values


def merged(messages: Sequence[Entries], c: int) -> Entries:
    """Return the sum of sparse blocks of length `c`, added in order; raise ValueError if a sum overflows."""
    total, touched = np.zeros(c, dtype=np.float32), np.zeros(c, dtype=np.bool_)
    for message in messages:
        add(total, message)
        touched[message.indices] = True
    union = np.flatnonzero(touched)
    if not np.isfinite(total[union]).all():
        raise ValueError("the sum over the workers overflows float32")
    return Entries(union, total[union])


class GatheredBlock(NamedTuple):
    """Result of Spar-All-Gather for one block of the gradient: the selected entries and those dropped on the way."""

    # Sums over all workers of the entries finally selected, k_b at most.
    final: Entries
    # Entries before the last cut: u.
    union: int
    # What cuts before the last one dropped: the teams that all dropped it, and the equal share that each of them has.
    dropped: list[tuple[range, Entries]]


def bruck_all_gather(teams: Sequence[Entries], k_b: int, c: int) -> GatheredBlock:
    """Sum a block's entries over all teams, and keep the k_b largest sums (B-SAG).

    In a real run each team starts the sum with its own entries, so for d >= 3 their results differ in the last bit.
    Here all teams sum in the order of team 0.
    """
    union = merged(teams, c)
    return GatheredBlock(union.cut(k_b)[0], union.indices.size, [])


def recursive_all_gather(teams: Sequence[Entries], k_b: int, c: int) -> GatheredBlock:
    """Sum a block over d teams in log2(d) pairwise steps; after each step, keep the k_b largest sums (R-SAG).

    After the step at distance D = d/2, d/4, ..., 1 the teams t, t + D, t + 2D, ... have the same sum, and each keeps an
    equal share of the entries cut from it as residual. Of entries cut in the last step each keeps its own value. d must
    be a power of two.
    """
    d, held = len(teams), list(teams)
    union, dropped = held[0].indices.size, []
    while len(held) > 1:
        D = len(held) // 2
        for t in range(D):
            total = merged([held[t], held[t + D]], c)
            union = total.indices.size
            held[t], rest = total.cut(k_b)
            if D > 1:
                dropped.append((range(t, d, D), Entries(rest.indices, rest.values * np.float32(D / d))))
        del held[D:]
    return GatheredBlock(held[0], union, dropped)


class AdaptiveBudget(NamedTuple):
    """Adaptive number of entries that the owner of each of T blocks sends in B-SAG (`bruck_all_gather`)."""

    # Entries that a worker sends of its own block, >= 1.
    h: Indices
    # What is added to h next.
    step: Indices
    # Whether the last step was in the right direction and did not double.
    flag: NDArray[np.bool_]


def started(T: int, entries: float, d: int, *, least_step: int) -> AdaptiveBudget:
    """Return the initial number of entries that the owner of each of `T` blocks sends, and the initial step size.

    The number is h = max(1, floor(entries / d)) for d teams, the step (entries - h) / 100, at least `least_step`: 1, or
    0 as in the reference implementation, where h then never changes if entries - h < 100.
    """
    h = max(1, int(entries / d))
    step = max(least_step, int((entries - h) / 100))
    return AdaptiveBudget(np.full(T, h), np.full(T, step), np.zeros(T, dtype=np.bool_))


def adapted(state: AdaptiveBudget, u: Indices, k_b: int, d: int) -> AdaptiveBudget:
    """Return the `AdaptiveBudget` after `state`, given that teams sent ``u[b]`` entries of block b (target: k_b).

    Towards k_b the step doubles every other time; past it the step turns round, half as long.
    """
    h, step, flag = state
    right = (u > k_b) != (step > 0)
    # With k_b < d, which the reference implementation does not allow, even h = 1 may be too much, and steps further
    # down are idle.
    doubles = flag & ~((h == 1) & (step < 0))
    turned = np.where(np.abs(step) > 1, np.trunc(-step / 2).astype(np.int64), -step)
    step = np.where(right, np.where(doubles, 2 * step, step), turned)
    return AdaptiveBudget(np.maximum(h + step, max(1, k_b // d)), step, right & ~flag)


# Entries of messages, and of blocks, that are held at a time.
_HELD = 1 << 22
# Blocks this short are sorted together.
_SHORT = 1 << 10


def batches(T: int, workers: int, kept: int, length: int) -> list[Indices]:
    """Return batches of consecutive block numbers, sized to limit memory."""
    size = max(1, _HELD // max(workers * kept, workers // T * length))
    return [np.arange(first, min(first + size, T)) for first in range(0, T, size)]


class SparseMessages(NamedTuple):
    """Entries that the senders of all lanes send in one step. A lane is a block of a team."""

    # Shape (m,): Which lane an entry is of, ascending.
    lanes: Indices
    # Shape (m,): Where it stands in its block, ascending within a lane.
    columns: Indices
    # Shape (m,).
    values: Values

    def where(self, chosen: NDArray[np.bool_]) -> SparseMessages:
        """Return the entries at which the mask `chosen` is true."""
        return SparseMessages(self.lanes[chosen], self.columns[chosen], self.values[chosen])

    def split(self, lanes: int) -> list[Entries]:
        """Return a list of the entries of each lane (a block of a team), for lanes 0 to `lanes` - 1."""
        ends = np.searchsorted(self.lanes, np.arange(lanes + 1)).tolist()
        return [Entries(self.columns[first:last], self.values[first:last]) for first, last in pairwise(ends)]


class ReducedBlocks:
    """A batch of blocks of all workers, and the entries that workers send to reduce them.

    Workers are counted backwards from the owner of a block: ``sent[i]`` are the entries that the worker i places before
    the owner passed on (for i = 0, the entries that the owner kept in the end), and ``received[i]`` those that it
    received, in order.

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
        """Return, for each block of each team, the rank of the worker `before` places before the block's owner."""
        workers = (self._blocks - before) % self._T
        return (np.arange(self._d)[:, None] * self._T + workers).ravel()

    def reduce(self, k_b: int, h: Indices) -> None:
        """Reduce every block to its owner, which keeps ``h[b]`` entries of block b. Other workers send `k_b` entries.

        ValueError: a sum overflows float32.
        """
        self.received: list[list[SparseMessages]] = [[] for _ in range(self._T)]
        nothing = np.zeros(0, dtype=np.int64)
        self.sent = [SparseMessages(nothing, nothing, np.zeros(0, dtype=np.float32))] * self._T
        # As seen from the owner, worker 0 of the route of block 0.
        for src, dst in [*((-src % self._T, -dst % self._T) for src, dst in srs_route(self._T, 0)), (0, 0)]:
            held = self._values_of(self._ranks(src))
            for message in self.received[src]:
                held[message.lanes, message.columns] += message.values
            wanted = np.full(self._lanes, k_b) if src else np.tile(h, self._d)
            lanes, columns = np.nonzero(_largest(held, self._sizes, np.minimum(wanted, self._sizes)))
            self.sent[src] = SparseMessages(lanes, columns, held[lanes, columns])
            if not np.isfinite(self.sent[src].values).all():
                raise ValueError("the sum over the workers overflows float32")
            if src:
                self.received[dst].append(self.sent[src])

    def _values_of(self, ranks: Indices) -> Values:
        """Return each lane's block in the gradient of its rank in `ranks`; a short block is followed by zeros."""
        values, full = np.zeros((self._lanes, self._c), dtype=np.float32), self._sizes == self._c
        values[full] = sliding_window_view(self._rows, self._c, axis=1)[ranks[full], self._starts[full]]
        for lane in np.flatnonzero(~full):
            start, size = self._starts[lane], self._sizes[lane]
            values[lane, :size] = self._rows[ranks[lane], start : start + size]
        return values

    def kept(self) -> list[list[Entries]]:
        """Return the entries that each block's owner keeps, by block and team."""
        lanes = self.sent[0].split(self._lanes)
        return [lanes[i :: self._blocks.size] for i in range(self._blocks.size)]

    def collect(self, outcomes: Sequence[GatheredBlock], residual: str) -> tuple[Floats, Floats]:
        """Replace each worker's gradient by its residual; return squared norms of sent and of kept values by block.

        `residual` is ``global``, ``end`` or ``local``. Global: at entries that were not finally selected a worker keeps
        its own value, at selected entries the sums that it dropped. Norms, shape (B, P), are over the selected entries.
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
            sent = self.sent[before]
            gone = sent.where(final[of_block[sent.lanes], sent.columns])
            at_gone = ranks[gone.lanes], self._starts[gone.lanes] + gone.columns
            gave[of_block, ranks] = _squared_norms(self._rows[at_gone], gone.lanes, self._lanes)
            if residual == "local":
                self._rows[ranks[sent.lanes], self._starts[sent.lanes] + sent.columns] = 0
            else:
                for message in self.received[before] if residual == "global" else ():
                    back = message.where(final[of_block[message.lanes], message.columns])
                    self._rows[ranks[back.lanes], self._starts[back.lanes] + back.columns] += back.values
                self._rows[at_gone] = 0
                if not before and residual == "global":
                    self._take_shares(outcomes, final)
            at_final = ranks[final_lanes], self._starts[final_lanes] + final_columns
            keeps[of_block, ranks] = _squared_norms(self._rows[at_final], final_lanes, self._lanes)
        return gave, keeps

    def _take_shares(self, outcomes: Sequence[GatheredBlock], final: NDArray[np.bool_]) -> None:
        """Add to the owners' rows their shares of the entries that Spar-All-Gather dropped."""
        for block, outcome, selected in zip(self._blocks.tolist(), outcomes, final, strict=True):
            for holders, share in outcome.dropped:
                inside = share.within(selected)
                for team in holders:
                    add(self._rows[team * self._T + block, block * self._c :], inside)


def _largest(held: Values, sizes: Indices, k: Indices) -> NDArray[np.bool_]:
    """Return a mask of the `k` largest magnitudes in each row's first `sizes` entries; ties go to the lower index."""
    if held.shape[1] > _SHORT:
        chosen = np.zeros(held.shape, dtype=np.bool_)
        for into, row, size, count in zip(chosen, held, sizes, k, strict=True):
            into[top_k(row[:size], count)] = True
        return chosen
    magnitudes = np.where(np.arange(held.shape[1]) < sizes[:, None], np.abs(held), np.float32(-1))
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
    """Return the sum of squares per group of values, shape (count,); `lanes` are values' group numbers, ascending."""
    sizes = np.bincount(lanes, minlength=count)
    starts = np.cumsum(sizes) - sizes
    total = np.zeros(count)
    for size in np.unique(sizes[sizes > 0]).tolist():
        alike = np.flatnonzero(sizes == size)
        entries = values[starts[alike, None] + np.arange(size)].astype(np.float64)
        total[alike] = np.multiply(entries, entries, out=entries).sum(axis=1)
    return total
