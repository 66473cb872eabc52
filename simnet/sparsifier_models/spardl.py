"""SparDL: a sparse reduce-scatter and all-gather with messages of bounded size and lossless residuals.

Blocks are reduced inside teams of workers (Spar-Reduce-Scatter), summed up between teams (Spar-All-Gather), and spread
inside the teams again by Bruck's all-gather. Whenever a block is passed on, it is cut to k_b entries; the global
residual collection recovers all entries dropped on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.collectives.doubling import bruck
from simnet.cost_models.costs import spardl, spardl_bsag, spardl_rsag
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models import spar_reduce_scatter as srs
from simnet.sparsifier_models.base import Exchange, Sparsifier, Step
from simnet.sparsifier_models.options import Options
from simnet.sparsifier_models.selection import Entries, Indices, Values
from simnet.sparsifier_models.spar_reduce_scatter import AdaptiveBudget, GatheredBlock
from simnet.sparsifier_models.wire import SUMS_OF_SUMS


class SparDLOptions(Options):
    """Options of `SparDL`.

    Parameters
    ----------
    teams : int
        Number of teams d, >= 1, a divisor of the number of workers; a team is T = P/d consecutive workers.
    residual : {"global", "end", "local"}
        What a worker keeps. ``global``: global residual collection (GRC), which loses nothing. ``end``: GRC without
        in-procedure residuals, so that sums it received and dropped are lost. ``local``: its own values, except those
        that it passed on; what is dropped on the way is lost.
    sag : {"bruck", "recursive", "auto"}
        How teams exchange: B-SAG; R-SAG, for a power of two of teams; or R-SAG where possible and else B-SAG. B-SAG is
        what the reference implementation has; R-SAG is known from comments in it.
    adapt : {"released", "fixed"}
        How B-SAG's h moves. In the reference implementation it never does where c rho - h < 100 at the start, c being
        the length of a block and rho the density; ``fixed``: the first step is 1 at least. Elsewhere both are the same.
    exchanges : {"log", "sequential"}
        Rounds of Spar-Reduce-Scatter: ceil(log2 T), a bag of blocks each; or T - 1, a block each, as released.
    """

    teams: Count = 1
    residual: Literal["global", "end", "local"] = "global"
    sag: Literal["bruck", "recursive", "auto"] = "bruck"
    adapt: Literal["released", "fixed"] = "released"
    exchanges: Literal["log", "sequential"] = "log"


class SparDL(
    Sparsifier,
    reads_gradients=False,
    rounds_down=True,
    released_widths=(4, 4),
    codes=SUMS_OF_SUMS,
    costs=(spardl, spardl_bsag, spardl_rsag),
):
    """SparDL: a sparse reduce-scatter and all-gather that keep k entries. Residuals contain all dropped entries.

    The gradient is cut into T = P/d blocks of c = ceil(n / T) entries, the last ones padded with zeros. Of each block
    k_b = floor(c rho) entries are kept, one at least: k = T k_b. ``selected`` is what a worker keeps of the block that
    it owns in its team, before teams meet, and the union are the entries finally selected, both without padding.
    ``sent`` is a worker's own values at those entries, as far as it passed them on.

    With ``compat="released"`` h moves as with ``adapt="released"``, and a density at which k_b or h would be 0,
    where the reference implementation fails, is an error. If the density changes so that k_b does, h starts afresh.

    Statistics of its own:

    ==================  ============================================================================================
    ``k_block``         k_b
    ``h``               (P,) entries that the owner of a block sent to the other teams, or kept if there are none
    ``block_union``     (P,) u, the entries of the worker's block over all teams, padding included, before the last cut
    ``rounds``          rounds of messages
    ``in_procedure``    (P,) norm of what the worker keeps at entries finally selected: its own values and sums it
                        received, which it dropped and others did not
    ==================  ============================================================================================

    References
    ----------
    M. Zhao, Y. Yin, Y. Mao, Q. Liu, L. Chen, Y. Gao, "SparDL: Distributed Deep Learning Training with Efficient Sparse
    Communication", ICDE 2024, arXiv 2304.00737, and its reference implementation.

    Examples
    --------
    Worker 1 passes 5 on, to which worker 0 adds its 4; of the second block worker 0 passes 2 on and -8 is kept.

    >>> model = SparDL(workers=2, parameters=4, density=0.5)
    >>> exchange = model.exchange(np.array([[4, 3, 2, 0], [5, 1, 1, -8]], dtype=np.float32))
    >>> exchange.update
    array([ 4.5,  0. ,  0. , -4. ], dtype=float32)
    >>> model.residual
    array([[0., 3., 2., 0.],
           [0., 1., 1., 0.]], dtype=float32)
    >>> exchange.schedule.bytes_sent()
    array([16., 16.])
    """

    name = "spardl"
    paper = "Zhao et al., ICDE 2024, arXiv 2304.00737"
    options: SparDLOptions

    def _set_up(self) -> None:
        P, d, sag = self.workers, self.options.teams, self.options.sag
        if P % d:
            allowed = ", ".join(str(one) for one in range(1, P + 1) if P % one == 0)
            raise ValueError(f"teams must divide the {P} workers, got {d}. Allowed: {allowed}")
        if sag == "recursive" and d & (d - 1):
            raise ValueError(f"sag 'recursive' needs a power of two of teams, got {d}. Allowed: auto, bruck")
        self._d, self._T = d, P // d
        self._recursive = sag != "bruck" and d & (d - 1) == 0
        self._adapts = d > 1 and not self._recursive
        self.k_block = self._k_block()
        self.h, self.step, self.flag = self._start()
        state = ("h", "step", "flag", "k_block") if self._adapts else ()
        self._set_traits(
            fixed_volume=d == 1,
            conserves=self.options.residual == "global",
            state=state,
            # A block of every team at a time, twice.
            memory_factor=(0.2 + 2 * (d / P) ** 2, 6.0),
        )

    @property
    def max_selected(self) -> int:
        """Maximum number of entries that a worker may select: k, or all if B-SAG adapts the number that is sent."""
        return self.parameters if self._adapts else self.k

    @property
    def unit(self) -> int:
        """Number of blocks; the scheme selects the same number of entries in each block."""
        return self._T

    def _block_length(self) -> int:
        return -(-self.parameters // self._T)

    def _k_block_of_model(self) -> int:
        c = -(-self.true_parameters // self._T)
        k_b = int(c * self.density)
        least = self._d if self._adapts else 1
        if self.options.compat == "released" and k_b < least:
            raise ValueError(
                f"density {self.density:g} keeps {k_b} entries of a block of {c}, but the reference needs {least}: "
                f"density must be >= {least / c:.4g}"
            )
        return max(1, k_b)

    def _k_block(self) -> int:
        """Return the number of entries to select per block of this gradient, k_b."""
        return max(1, min(round(self._k_block_of_model() / self.options.scale), self._block_length()))

    @property
    def k_of_model(self) -> int:
        """Number of entries selected in all blocks of the whole model, without padding."""
        return min(self.true_parameters, self._T * self._k_block_of_model())

    def _start(self) -> AdaptiveBudget:
        frozen = "released" in (self.options.adapt, self.options.compat)
        return srs.started(self._T, self._block_length() * self.density, self._d, least_step=0 if frozen else 1)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        P, d, T, c, k_b = self.workers, self._d, self._T, self._block_length(), self._k_block()
        if self._adapts and k_b != self.k_block:
            self.k_block, (self.h, self.step, self.flag) = k_b, self._start()
        h = np.minimum(self.h, c) if self._adapts else np.full(T, k_b)
        update = np.zeros(self.parameters, dtype=np.float32)
        u, kept = np.zeros(T, dtype=np.int64), np.zeros(P, dtype=np.int64)
        union, sent, in_procedure = 0, np.zeros(P), np.zeros(P)
        for b, (own, gathered, gave, keeps) in enumerate(self._reduced_blocks(corrected, k_b, h)):
            kept[b::T] = [one.indices.size for one in own]
            # All teams pad alike where they would select more entries than the block has.
            u[b] = gathered.union + max(0, int(h[b]) - max(0, min(c, self.parameters - b * c)))
            union += gathered.final.indices.size
            update[b * c + gathered.final.indices] = gathered.final.values / np.float32(P)
            sent, in_procedure = sent + gave, in_procedure + keeps
        if self._adapts:
            self.h, self.step, self.flag = srs.adapted(AdaptiveBudget(self.h, self.step, self.flag), u, k_b, d)
        exchange = self._make_exchange(
            update,
            self._steps(k_b, h, u, union),
            sent,
            selected=kept,
            union=union,
            stats={
                "k_block": float(k_b),
                "h": np.tile(h, d).astype(np.float64),
                "block_union": np.tile(u, d).astype(np.float64),
            },
        )
        exchange.stats |= {"rounds": float(len(exchange.schedule.rounds)), "in_procedure": np.sqrt(in_procedure)}
        return exchange

    def _reduced_blocks(
        self, corrected: Values, k_b: int, h: Indices
    ) -> Iterator[tuple[list[Entries], GatheredBlock, Floats, Floats]]:
        """Yield, by block, teams' sums, the all-gather of these, and squared norms of what workers sent and kept."""
        gather = srs.recursive_all_gather if self._recursive else srs.bruck_all_gather
        c = self._block_length()
        for blocks in srs.batches(self._T, self.workers, k_b, c):
            reduced = srs.ReducedBlocks(corrected, blocks, self._d, c)
            reduced.reduce(k_b, h[blocks])
            kept = reduced.kept()
            outcomes = [gather(own, k_b, c) for own in kept]
            gave, keeps = reduced.collect(outcomes, self.options.residual)
            yield from zip(kept, outcomes, gave, keeps, strict=True)

    def _steps(self, k_b: int, h: Indices, u: Indices, union: int) -> Iterator[Step]:
        """Yield kernels and messages: Spar-Reduce-Scatter, Spar-All-Gather between teams, all-gather within teams."""
        # `k_b` entries of a block are passed on, ``h[b]`` go between teams, ``u[b]`` is its union, `union` the entries
        # selected.
        P, d, T, c, coded = self.workers, self._d, self._T, self._block_length(), self.wire.coded
        ranks = np.arange(P).reshape(d, T)
        for g, m in srs.srs_rounds(T):
            to = np.roll(ranks, -g, axis=1)
            for bag in [m] if self.options.exchanges == "log" else [1] * m:
                yield from (DeviceOp("topk_segments", c, segments=bag), DeviceOp("gather", k_b, launches=bag))
                messages = self._messages(ranks, to, np.full((P, bag), k_b), "spar-reduce-scatter")
                yield from coded(messages, bag * k_b, bag * k_b, c, bag)
                yield DeviceOp("scatter", k_b, launches=bag)
        yield from (DeviceOp("topk", c), DeviceOp("gather", np.tile(h, d)))
        if self._recursive:
            for distance in (1 << i for i in reversed(range(d.bit_length() - 1))):
                to = ranks[np.arange(d) ^ distance]
                messages = self._messages(ranks, to, np.full((P, 1), k_b), "spar-all-gather")
                yield from coded(messages, k_b, k_b, c)
                yield from (DeviceOp("scatter", k_b, launches=2), DeviceOp("topk", 2 * k_b))
        elif d > 1:
            messages = self._bruck(ranks.T, np.tile(h[:, None], d), "spar-all-gather")
            yield from coded(messages, h.max(), d * h.max(), c, d)
            yield DeviceOp("scatter", np.tile(h, d), launches=d)
            yield DeviceOp("topk", np.tile(np.where(u > k_b, u, 0), d))
        kept = np.minimum(u, k_b)
        messages = self._bruck(ranks, np.tile(kept, (d, 1)), "all-gather")
        yield from coded(messages, np.tile(kept, d), float(kept.sum()), c, T)
        # The update, and the residual at the entries of the update.
        yield DeviceOp("scatter", union, launches=2)

    def _bruck(self, groups: Indices, entries: Indices, phase: str) -> Schedule:
        """Return the messages of simultaneous Bruck all-gathers, one among the workers in each row of `groups`."""
        size, rounds = groups.shape[1], Schedule(self.workers)
        for step in bruck(size).steps:
            blocks = (step.first[:, None] + np.arange(step.count[0])) % size
            carried = entries[:, blocks].reshape(self.workers, -1)
            rounds = rounds.concat(self._messages(groups[:, step.src], groups[:, step.dst], carried, phase))
        return rounds

    def _messages(self, src: Indices, dst: Indices, entries: Indices, phase: str) -> Schedule:
        """Return the round in which each worker sends blocks of `entries` entries, shape (P, blocks)."""
        wire = self.wire
        nbytes = wire.expected(entries, self._block_length()).sum(axis=1, keepdims=True)
        if wire.released:
            parts = [entries * wire.index_bytes, entries * wire.value_bytes]
            if phase != "spar-all-gather":
                parts.append(np.full(entries.shape, wire.count_bytes))
            nbytes = np.stack(parts, axis=2).reshape(self.workers, -1)
        src, dst = (np.repeat(one, nbytes.shape[1]) for one in (src, dst))
        return Schedule(self.workers, [Round(src, dst, nbytes.ravel(), phase=phase)])
