"""Ok-Topk: a sparse all-reduce whose volume per worker does not grow with the number of workers.

Entries are picked by thresholds, local and global, that are computed exactly once in tau' iterations and re-used
between. Workers split and reduce over regions of about equally many entries; the owner of a region passes on what
exceeds the global threshold, balanced and all-gathered. A worker's residual keeps all entries but those in both its own
and the global selection.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from annotated_types import Ge

from simnet import collectives
from simnet.base.arrays import Floats
from simnet.base.quantities import Count
from simnet.cost_models.costs import oktopk, oktopk_balance_and_allgatherv, oktopk_split_and_reduce
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models import selection, split_reduce
from simnet.sparsifier_models.base import Exchange, Step
from simnet.sparsifier_models.options import Positive
from simnet.sparsifier_models.selection import Indices, Values, above, squared_norm, squared_norms, top_k
from simnet.sparsifier_models.split_reduce import Places, SplitOptions, SplitReduce
from simnet.sparsifier_models.wire import Codes

WARM_UP = {"vgg": 512, "lstm": 128, "bert": 0}
"""Number of dense warm-up iterations in the reference implementation, also the counter of its first sparse one."""


class OktopkOptions(SplitOptions):
    """Options of `Oktopk`.

    Parameters
    ----------
    hooked : bool
        Whether messages are those of `simnet.cluster.hooks`, on the wire ``paper``: cuts of eight bytes, summed by a
        ring; sizes ahead of the split, and no message without entries; pieces padded to the largest. Thresholds and
        cuts are computed also in iteration 1, for which DDP puts the layers in another order.
    warm_up : int
        Dense iterations before the first sparse one, >= 0. In the reference implementation 512 (vgg), 128 (lstm) and 0
        (bert).
    balance : {"default", "always", "never", "trigger"}
        When pieces are balanced before the all-gather; never in iterations that recompute thresholds. ``default``: as
        the paper has it, always; on the wire ``released`` with the rules of bert only. ``trigger``, which is ours: if
        the largest piece exceeds `trigger` times the mean.
    trigger : float
        Largest piece over the mean that triggers balancing, > 0.
    tau_prime, tau : int
        Iterations after which thresholds, and region cuts, are recomputed, >= 1; by default those of the `rules`.
    """

    hooked: bool = False
    warm_up: Annotated[int, Ge(0)] = 0
    balance: Literal["default", "always", "never", "trigger"] = "default"
    trigger: Positive = 2.0
    tau_prime: Count | None = None
    tau: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hooked and self.wire == "released":
            raise ValueError("hooked must be false on the wire 'released'")


class Oktopk(
    SplitReduce,
    searches_threshold=True,
    state=("local_threshold", "global_threshold", "known_for", "cuts"),
    costs=(oktopk, oktopk_split_and_reduce, oktopk_balance_and_allgatherv),
):
    """Ok-Topk: a sparse all-reduce of about k entries, by a balanced reduce-scatter and an all-gather.

    Selections are strict, so that an exact threshold, the k-th magnitude, selects k - 1 entries. Between recomputations
    thresholds move by a few per cent a step: the number of entries is a variable, and may be several k. A change of
    density recomputes the thresholds, and a worker whose threshold is 0 recomputes its own.

    A worker splits its selection when the regions are cut, and sums its own region when all messages of the split have
    arrived; the reference implementation sums bucket by bucket while the next one is in flight. Then it scans the
    region, and sizes are gathered. In iterations that recompute, all workers take the top-k of the gathered entries.

    With ``compat="released"`` and the rules of lstm or bert, a worker finds its entries in the global selection by
    binary search, although that selection is unsorted in iterations that recompute. The search misses most entries, so
    these are applied and also kept as residual.

    Calls are phases of the schedule: ``cuts`` (all-reduce of the region cuts), ``split sizes`` (all-to-all, on the wire
    ``released`` and if ``hooked``), ``split``, ``sizes`` (all-gather), ``balance``, and ``entries`` (all-gather), which
    on the wire ``released`` is two calls with the rules of bert, ``values`` and ``indices``. Iterations of the warm-up:
    ``dense``.

    Further statistics, besides those of `Exchange`; in the warm-up only the first two. ``threshold`` is the local one
    that selected:

    ==========================  =====================================================================================
    ``counter``                 counter c of the iteration: 512 (vgg), 128 (lstm), 0 (bert) in the first sparse one
    ``recomputed``              1 if thresholds were computed exactly, else 0
    ``local_nnz``               (P,) entries each worker selected
    ``global_threshold``        the one in force, of the sum over the workers; 0 if it was computed from no entry
    ``global_nnz``              entries of the update
    ``local_threshold_after``   (P,) thresholds for the next iteration; ``global_threshold_after`` likewise
    ``region_offsets``          (P,) first entry of each region; ``region_sizes`` (P,) its length
    ``gathered``                entries all-gathered, by all workers together
    ``balance_before``          largest piece to gather over the mean; ``balance_after`` after balancing
    ``words``                   (P,) words of four bytes: what a worker sends to split and to balance, and receives in
                                the all-gather
    ``words_bound``             6 k' (P - 1) / P words of Eq. 3, k' being the larger of the most local and global nnz
    ==========================  =====================================================================================

    Attributes
    ----------
    cuts : ndarray of int64, shape (P + 1,)
        Where the regions start, and n.
    global_threshold : float
        That of the sums, for exchanges that re-use it.

    References
    ----------
    S. Li, T. Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP 2022, section 3; constants
    of re-used thresholds from the reference implementation.

    Examples
    --------
    Both workers select two entries, 9 and 5, and -8 and 5. Their sums are 9, 10 and -8, of which three are kept.

    >>> model = Oktopk(workers=2, parameters=6, density=0.5)
    >>> exchange = model.exchange(np.array([[9, 5, 1, 0, 2, 1], [0, 5, 1, -8, 2, 2]], dtype=np.float32))
    >>> exchange.update
    array([ 4.5,  5. ,  0. , -4. ,  0. ,  0. ], dtype=float32)
    >>> model.residual
    array([[0., 0., 1., 0., 2., 1.],
           [0., 0., 1., 0., 2., 2.]], dtype=float32)
    >>> exchange.stats["region_offsets"], exchange.stats["local_nnz"], exchange.stats["global_threshold"]
    (array([0., 2.]), array([2., 2.]), 8.0)
    """

    name = "oktopk"
    paper = "Li and Hoefler, PPoPP 2022, arXiv 2201.07598"
    options: OktopkOptions

    def _option_traits(self) -> dict[str, Any]:
        hook = Codes(otherwise="the hook of oktopk sends int32 and float32")
        return {"codes": hook} if self.options.hooked else super()._option_traits()

    def _set_up(self) -> None:
        rules = RULES[self.options.rules]
        taus = {"tau": self.options.tau or rules.tau, "tau_prime": self.options.tau_prime or rules.tau_prime}
        self._rules = rules._replace(**taus)
        self._bug = self.options.compat == "released" and self.options.rules != "vgg"
        self._set_traits(period=math.lcm(self._rules.tau, self._rules.tau_prime), conserves=not self._bug)
        self.local_threshold = np.zeros(self.workers)
        self.global_threshold = 0.0
        self.known_for = 0  # k that the thresholds were computed for; 0 before the first time
        self.cuts = split_reduce.equal_cuts(self.parameters, self.workers)

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        t = self.iteration - self.options.warm_up
        counter = float(WARM_UP[self.options.rules] + t)
        if t < 0:
            return self._dense(corrected, counter)
        exact, recut = self.due()
        local, chosen, passes = self._select(corrected, exact)
        if recut:
            self.cuts = split_reduce.region_cuts(chosen, self.parameters, spread=self.options.compat == "paper")
        P = self.workers
        rests, before = self._read_split(corrected, chosen, self.cuts)
        reduced, entries = split_reduce.split_and_reduce(corrected, chosen, self.cuts)
        for one, values in zip(rests, before, strict=True):
            corrected[one.worker, one.indices] = values
        split = self._encoded_split(chosen, self.cuts)
        del chosen
        gathered = np.flatnonzero(reduced) if exact else above(reduced, self.global_threshold)
        pieces = split_reduce.by_region(gathered, self.cuts)
        moved = self.moved(pieces, exact)
        balanced, owners = moved.sum(axis=0), np.arange(P)
        rests += self._read_pieces(reduced, gathered, moved.ravel(), np.where(np.eye(P), -1, owners[:, None]).ravel())
        rests += self._read_pieces(reduced, gathered, balanced, owners)
        kept, threshold = self._select_global(reduced, gathered, exact)
        sums = reduced[kept]
        unsorted = kept[np.argsort(-np.abs(sums), kind="stable")] if self._bug and exact else None
        sent = self._take(corrected, local, kept, unsorted)
        update = np.zeros_like(reduced)
        update[kept] = sums / np.float32(self.workers)
        for one in rests:
            one.into(corrected, kept)
        nnz = entries.sum(axis=1)
        self.drift(local, nnz, threshold, kept.size, exact)
        away = nnz - np.diag(entries) + pieces - np.diag(moved)
        gathers = int(pieces.sum()) if exact else 0
        cuts = self.cuts if (balanced == pieces).all() else None
        encoded = (split, self._encoded_pieces(gathered, moved), self._encoded_pieces(gathered, balanced, cuts))
        return self._make_exchange(
            update,
            self._steps(passes, recut, entries, moved, gathers, kept.size, encoded),
            sent,
            selected=nnz,
            union=kept.size,
            stats={
                "counter": counter,
                "recomputed": float(exact),
                "threshold": local,
                "local_nnz": nnz.astype(np.float64),
                "global_threshold": threshold,
                "global_nnz": float(kept.size),
                "local_threshold_after": self.local_threshold,
                "global_threshold_after": self.global_threshold,
                "region_offsets": self.cuts[:-1].astype(np.float64),
                "region_sizes": np.diff(self.cuts).astype(np.float64),
                "gathered": float(pieces.sum()),
                "balance_before": split_reduce.unevenness(pieces),
                "balance_after": split_reduce.unevenness(balanced),
                "words": 2.0 * (away + pieces.sum() - balanced),
                "words_bound": 6 * max(int(nnz.max()), kept.size) * (P - 1) / P,
            },
        )

    def _dense(self, corrected: Values, counter: float) -> Exchange:
        """Carry out a warm-up iteration: an all-reduce of the whole gradient, which leaves no residual."""
        P, n = self.workers, self.parameters
        sent = squared_norms(corrected)
        update = np.add.reduce(corrected, axis=0) / np.float32(P)
        corrected[:] = 0
        return self._make_exchange(
            update,
            [collectives.allreduce_ring(P, n * self.dense_bytes).in_phase("dense")],
            sent,
            stats={"counter": counter, "recomputed": 0.0, "threshold": np.zeros(P)},
        )

    def due(self) -> tuple[bool, bool]:
        """Return whether this exchange computes exact thresholds, and whether it computes new region boundaries."""
        t = self.iteration - self.options.warm_up
        anew = not self.known_for or (self.options.hooked and self.iteration == 1)
        exact = anew or t % self._rules.tau_prime == 0 or self.known_for != self.k
        return exact, anew or t % self._rules.tau == 0

    def find(self, values: Any, worker: int, exact: bool, kernels: Any = selection) -> tuple[float, Any, int]:
        """Return a worker's threshold, the indices of larger magnitudes, and how many passes it took to count these.

        `kernels` has the functions of `selection`, in NumPy or PyTorch.
        """
        threshold = float(self.local_threshold[worker])
        if exact or threshold == 0:
            threshold = kernels.kth_magnitude(values, self.k)
            return threshold, kernels.above(values, threshold), 0
        return raised(values, threshold, self._rules.raise_above * self.k, kernels)

    def _select(self, corrected: Values, exact: bool) -> tuple[Floats, list[Places], Indices]:
        """Return each worker's threshold, the indices of larger entries, and how many passes it took to count these."""
        local, chosen = self.local_threshold.copy(), []
        passes = np.zeros(self.workers, dtype=np.int64)
        for worker, row in enumerate(corrected):
            local[worker], indices, passes[worker] = self.find(row, worker, exact)
            chosen.append(split_reduce.compact(indices))
        return local, chosen, passes

    def _select_global(self, reduced: Values, gathered: Indices, exact: bool) -> tuple[Indices, float]:
        """Return which of the gathered indices are selected globally, and the global threshold."""
        if not exact:
            return gathered, self.global_threshold
        kept = gathered[top_k(reduced[gathered], self.k)]
        return kept, float(np.abs(reduced[kept]).min()) if kept.size else 0.0

    def _take(self, corrected: Values, local: Floats, kept: Indices, unsorted: Indices | None) -> Floats:
        """Zero the entries selected both locally and globally; return their squared norm by worker, shape (P,)."""
        sent = np.zeros(self.workers)
        for worker, row in enumerate(corrected):
            values = row[kept]
            own = np.abs(values) > np.float32(local[worker])
            sent[worker] = squared_norm(values[own])
            if unsorted is None:
                row[kept[own]] = 0
            elif unsorted.size:
                selected = above(row, local[worker])
                place = np.searchsorted(unsorted, selected)
                place[place == unsorted.size] = 0
                row[selected[unsorted[place] == selected]] = 0
        return sent

    def drift(self, local: Floats, nnz: Indices, threshold: float, count: int, exact: bool) -> None:
        """Set the local and global thresholds of the next iteration.

        `local`, shape (P,), has a threshold per worker, 0 if unknown, and `nnz` its selected entries; `threshold` and
        `count` are the global ones.
        """
        rules, k = self._rules, self.k
        low, high, step = rules.local_low * k, rules.local_high * k, rules.local_step
        pairs = zip(local.tolist(), nnz.tolist(), strict=True)
        self.local_threshold = np.array([drifted(one, found, low, high, step, step) for one, found in pairs])
        low, high = rules.global_low * k, rules.global_high * k
        self.global_threshold = threshold
        if not exact:
            self.global_threshold = drifted(threshold, count, low, high, rules.global_up, rules.global_down)
        self.known_for = k

    def moved(self, pieces: Indices, exact: bool) -> Indices:
        """Return how many selected entries workers send to one another to balance the load, shape (senders, receivers).

        Nothing is balanced if thresholds are exact.
        """
        how = self.options.balance
        balances = how == "always" or (how == "default" and (not self.wire.released or self.options.rules == "bert"))
        if how == "trigger":
            balances = split_reduce.unevenness(pieces) > self.options.trigger
        return split_reduce.balancing(pieces) if balances and not exact else np.diag(pieces)

    def _steps(
        self,
        passes: Indices,
        recut: bool,
        entries: Indices,
        moved: Indices,
        gathered: int,
        kept: int,
        encoded: Sequence[Floats | None],
    ) -> Iterator[Step]:
        """Yield kernels and messages of an exchange, given how many entries workers send to each other."""
        wire, P, n = self.wire, self.workers, float(self.parameters)
        split_bytes, moved_bytes, piece_bytes = encoded
        yield DeviceOp("topk", np.where(passes == 0, n, 0.0))
        yield from (DeviceOp("scan", np.where(passes >= one, n, 0.0)) for one in range(1, int(passes.max()) + 1))
        if recut:
            width = 8.0 if wire.released and self.options.rules == "bert" else wire.count_bytes
            reduce = collectives.allreduce_recursive_doubling
            if self.options.hooked:
                reduce, width = collectives.allreduce_ring, 8.0
            yield reduce(P, (P - 1) * width).in_phase("cuts")
        split = self._split(entries, split_bytes, empty=not self.options.hooked)
        if self.options.hooked and P > 1:
            ahead = Round(*split_reduce.all_pairs(P, range(1, P)), wire.count_bytes, phase="split sizes")
            split.insert(0, Schedule(P, [ahead]))
        if wire.released:
            split.insert(0, collectives.alltoall_pairwise(P, wire.count_bytes).in_phase("split sizes"))
        # The reference implementation has its messages in the host's memory, and the sums of a region go there as well.
        yield from split_reduce.around_split(self.parameters, entries, *split, through_host=wire.released)
        region = np.diff(self.cuts).astype(np.float64)
        if wire.released:
            yield DeviceOp("copy_out", region)
        yield DeviceOp("scan", region)
        yield self._sizes()
        src, dst = np.nonzero(moved - np.diag(np.diag(moved)))
        if src.size:
            nbytes = None if moved_bytes is None else moved_bytes[src, dst]
            balance = split_reduce.entry_messages(src, dst, moved[src, dst], wire, "balance", nbytes)
            yield from wire.coded(Schedule(P, [balance]), moved.sum(axis=1), moved.sum(axis=0), n, of=n / P)
        sizes = moved.sum(axis=0)
        messages = self._pieces(np.full(P, sizes.max()) if self.options.hooked else sizes, piece_bytes)
        yield from wire.coded(messages, sizes, float(sizes.sum()), n / P, P)
        if wire.released:
            yield DeviceOp("copy_in", 2.0 * float(moved.sum()))
        yield from (DeviceOp("topk", float(gathered)), DeviceOp("scatter", float(kept), launches=2))


RAISES, RAISE = 5, 1.03


class Rules(NamedTuple):
    """Threshold constants of the reference implementation for one application, such as BERT."""

    tau_prime: int
    tau: int
    # A worker that selects less or more than this times k lowers or raises its threshold, by a factor.
    local_low: float
    local_high: float
    local_step: float
    # Likewise of the global threshold, with factors up and down of its own.
    global_low: float
    global_high: float
    global_up: float
    global_down: float
    # While a re-used threshold selects more than this times k, it is raised by 3 %, five times at most.
    raise_above: float


RULES = {
    "vgg": Rules(32, 64, 2 / 3, 5 / 4, 1.012, 2 / 3, 4 / 3, 1.008, 1.008, 4 / 3),
    "lstm": Rules(32, 64, 3 / 4, 5 / 4, 1.012, 3 / 4, 5 / 4, 1.008, 1.01, 3 / 2),
    "bert": Rules(128, 64, 4 / 5, 5 / 4, 1.025, 4 / 5, 5 / 4, 1.025, 1.036, np.inf),
}


def raised(values: Any, threshold: float, most: float, kernels: Any = selection) -> tuple[float, Any, int]:
    """Raise a re-used threshold by 3 %, at most five times, until at most `most` entries exceed it.

    Returns the threshold, the ascending indices above it, and the counting passes. `kernels` is `selection`, or a
    module with its functions for other arrays.
    """
    indices, passes = kernels.above(values, threshold), 1
    while len(indices) > most and passes <= RAISES:
        threshold *= RAISE
        indices = indices[abs(values[indices]) > float(np.float32(threshold))]
        passes += 1
    return threshold, indices, passes


def drifted(threshold: float, count: int, low: float, high: float, up: float, down: float) -> float:
    """Return the next threshold: lower if fewer than `low` entries were selected, higher if more than `high`.

    `up` and `down` are the factors by which it rises and falls.
    """
    if count < low:
        return threshold / down
    return threshold * up if count > high else threshold
