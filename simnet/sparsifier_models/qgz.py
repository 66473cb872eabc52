"""qgZ of ZeRO++: gradients are reduced in two hops with 4-bit codes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from simnet.base.quantities import Count
from simnet.collectives import registry
from simnet.cost_models.costs import two_hop_reduce
from simnet.cost_models.costs.devices import DeviceOp
from simnet.sparsifier_models import two_hop
from simnet.sparsifier_models.base import Exchange, Step
from simnet.sparsifier_models.chunking import places
from simnet.sparsifier_models.selection import Values, squared_norm
from simnet.sparsifier_models.two_hop import GroupCodes, Hop, TwoHop, TwoHopOptions

BITS = 4
HALF = 2
"""Number of bytes of a half-precision value."""


def groups_of(shape: Sequence[int], nodes: two_hop.Nodes) -> int:
    """Return the number of quantisation groups of a tensor in the first hop; 0 if the tensor stays in float16.

    It is the number of rows, of columns, or P, whichever is largest: n / G entries share a scale. Vectors are not
    quantised, nor tensors whose size is no multiple of 2 P, nor anything on a single node. Where G is no multiple of P,
    the released kernel leaves entries out; here each partition then has as many groups as divide it, G / P at most.
    """
    P, entries = nodes.ranks, math.prod(shape)
    if len(shape) < 2 or entries % (2 * P) or nodes.nodes == 1:
        return 0
    most = max(*shape[:2], P) // P
    return P * next(one for one in range(most, 0, -1) if entries // P % one == 0)


class GroupedTensor(NamedTuple):
    """A tensor of this gradient: its slice, its number of quantisation groups, and its entries with padding."""

    # Where it lies.
    place: slice
    # Groups of the first hop; 0 if it is not quantised.
    groups: int
    # Its entries, and zeros behind them.
    entries: int


class GroupedWhole(NamedTuple):
    """Numbers of entries and first-hop quantisation groups of a tensor in the full model, not in a gradient sample."""

    entries: float
    groups: float


class QGZ(TwoHop, by_tensors=True, costs=(two_hop_reduce,)):
    """qgZ: workers exchange 4-bit gradients inside each node, then 4-bit sums between nodes.

    Tensors are the ``layers``, in half precision. A rank quantises a tensor in G groups and sends each rank of its node
    the partitions for which that rank sums over the node. That rank adds up the parts in half precision, quantises the
    sums in G / L groups, and sends them to the other nodes. The update is the mean. There is no error memory.

    Vectors, tensors whose entries are no multiple of 2 P, and all tensors on a single node are reduced by a
    reduce-scatter of float16. See `groups_of`. Without ``layers`` the gradient is a matrix of about sqrt(n) columns, a
    multiple of 2 P, with zeros behind it.

    With ``compat="released"`` the sum is divided by N only, as in DeepSpeed until 2026: quantised tensors have L times
    their mean. On the wire ``paper`` all tensors travel together, in four calls; on ``released`` each has calls of its
    own.

    References
    ----------
    G. Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training", 2023; code
    deepspeedai/DeepSpeed, commit edaa722, ``runtime/comm/coalesced_collectives.py``, ``csrc/quantization``.

    Examples
    --------
    A rank keeps half of its codes and scales in each hop, and 1/4 of the update in the all-gather:

    >>> model = QGZ(workers=4, parameters=6144, layers=[("w", (64, 96))], ranks_per_node=2, shards="none")
    >>> gradients = np.random.default_rng(0).standard_normal((4, 6144)).astype(np.float32)
    >>> model.exchange(gradients).schedule.bytes_sent()[0] == (3072 + 4 * 96) / 2 + (1536 + 4 * 48) / 2
    np.True_
    """

    name = "qgz"
    paper = "Wang et al., 2023, arXiv 2306.10209"

    def _set_up(self) -> None:
        super()._set_up()
        shapes = self.shapes
        if not shapes:
            columns = -(-(math.isqrt(self.parameters - 1) + 1) // (2 * self.workers)) * 2 * self.workers
            shapes = ((-(-self.parameters // columns), columns),)
        self.tensors = []
        for place, shape in places(shapes):
            groups, entries = groups_of(shape, self.nodes), place.stop - place.start
            self.tensors.append(GroupedTensor(slice(place.start, min(place.stop, self.parameters)), groups, entries))
        scale = self.options.scale
        self._whole = [GroupedWhole(math.prod(one), groups_of(one, self.nodes)) for one in self.true_shapes]
        self._whole = self._whole or [GroupedWhole(scale * one.entries, scale * one.groups) for one in self.tensors]

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        update, sent = np.empty(self.parameters, dtype=np.float32), np.zeros(self.workers)
        self._begin()
        for number, tensor in enumerate(self.tensors):
            rows = corrected[:, tensor.place]
            found = self._reduce(number, rows, sent) if tensor.groups else self._mean(rows, sent)
            update[tensor.place] = found[: rows.shape[1]]
        return self._make_exchange(update, self._steps(), sent, key="two hops")

    def _begin(self) -> None:
        """Before an exchange, prepare state that it modifies; `QGZ` has none, but subclasses may."""

    def _code(self, hop: int, rank: int, number: int, groups: NDArray[np.float16]) -> GroupCodes:
        """Return the codes that a rank sends in hop 1 or 2, given its groups of a tensor in sending order."""
        return two_hop.nearest(groups, BITS)

    def _reduce(self, number: int, rows: Values, sent: Any) -> NDArray[np.float16]:
        """Return a tensor's mean over ranks; add each rank's squared norm after quantisation to `sent`."""
        tensor, nodes = self.tensors[number], self.nodes

        def first(rank: int) -> NDArray[np.float16]:
            vector = np.zeros(tensor.entries, dtype=np.float16)
            vector[: rows.shape[1]] = two_hop.halves(rows[rank])
            groups = nodes.swizzled(vector.reshape(nodes.ranks, -1)).reshape(tensor.groups, -1)
            got = self._code(1, rank, number, groups).values()
            sent[rank] += squared_norm(got.ravel())
            return two_hop.halves(got).reshape(nodes.ranks, -1)

        def second(rank: int, part: NDArray[np.float16]) -> NDArray[np.float16]:
            groups = part.reshape(tensor.groups // nodes.each, -1)
            return two_hop.halves(self._code(2, rank, number, groups).values()).reshape(part.shape)

        total = two_hop.sum_in_two_hops(nodes, first, second).ravel()
        divisor = nodes.nodes if self.options.compat == "released" else nodes.ranks
        return (total / np.float16(divisor)).astype(np.float16)

    def _mean(self, rows: Values, sent: Any) -> NDArray[np.float16]:
        """Return the mean of `rows`, one per rank, summed in float16; add each row's squared norm to `sent`."""
        P = np.float16(self.workers)
        total: NDArray[np.float16] = np.zeros(rows.shape[1], dtype=np.float16)
        for rank, row in enumerate(rows):
            share = two_hop.halves(row)
            sent[rank] += squared_norm(share.astype(np.float32))
            # Sums in single precision, rounded once, are those in half precision; nothing overflows.
            total = two_hop.halves(np.add(total, share / P, dtype=np.float32))
        return total

    # Messages

    @property
    def _half(self) -> float:
        """Number of bytes of an unquantised value."""
        return self.options.value_bytes or HALF

    def _steps(self) -> Iterator[Step]:
        """Yield kernels and messages: two hops, the reduction of unquantised tensors, and the all-gather."""
        quantised = [one for one in self._whole if one.groups]
        others = [one for one in self._whole if not one.groups]
        if self.wire.released:
            for one in self._whole:
                yield from self._two_hops([one]) if one.groups else self._reduced([one])
        else:
            yield from self._two_hops(quantised) if quantised else ()
            yield from self._reduced(others) if others else ()
        if self.options.shards == "float16":
            entries = sum(-(-one.entries // self.workers) for one in self._whole)
            yield self.options.gather_equal(self.workers, self._half * entries, "shards")

    def _two_hops(self, tensors: Sequence[GroupedWhole]) -> Iterator[Step]:
        """Yield kernels and messages of both hops for quantised tensors, which are sent together."""
        N, L = self.nodes
        entries, groups = sum(one.entries for one in tensors), sum(one.groups for one in tensors)
        n = entries / self.options.scale
        yield from self._quantise(n)
        yield from self._hop(1, Hop.of(entries, BITS, groups))
        yield DeviceOp("sum", n / L, launches=L)
        yield from self._quantise(n / L)
        yield from self._hop(2, Hop.of(entries / L, BITS, groups / L))
        yield DeviceOp("sum", n / (N * L), launches=N)

    def _quantise(self, entries: float) -> Iterator[Step]:
        """Yield the kernels that quantise a number of entries."""
        yield DeviceOp("cast", entries)

    def _reduced(self, tensors: Sequence[GroupedWhole]) -> Iterator[Step]:
        """Yield the ring reduce-scatter of unquantised tensors."""
        P = self.workers
        entries = sum(-(-one.entries // P) * P for one in tensors)
        ring = registry.collective_by_algorithm("reduce_scatter", "ring")
        yield ring.schedule(P, self._half * entries).in_phase("values")


_MEMORY_BITS = 8
_MEMORIES = ("first", "first_scales", "second", "second_scales")


class LoCoOptions(TwoHopOptions):
    """Options of `LoCo`.

    Parameters
    ----------
    err_beta : float
        Share of the memory that stays, in [0, 1].
    reset_T : int
        After how many exchanges the memories are cleared; see `LoCo` for what the released code makes of it.
    """

    err_beta: Annotated[float, Ge(0), Le(1)] = 0.8
    reset_T: Count = 1024  # noqa: N815


class LoCo(QGZ, state=("counter", "begun", *_MEMORIES), costs=(two_hop_reduce,)):
    """LoCo: workers reduce 4-bit gradients in two hops, as in `QGZ`, with an error memory at each worker.

    A rank adds its memory e to what it sends, h = g + e, and keeps e <- beta e + (1 - beta) (h - what h became). The
    second hop has a memory of its own. Memories are codes of eight bits, in the same groups and order as the message:
    that of `simnet.sparsifier_models.two_hop.Nodes.swizzled`. They follow the error without compensating all of it, so
    mass is not conserved. Without ``error_feedback`` this is qgZ.

    All memories are cleared every ``reset_T`` exchanges, as documented. With ``compat="released"`` a counter, one for
    all, goes up with every quantised tensor, and when it exceeds ``reset_T`` only the tensor at hand is cleared and the
    counter starts again; the update is L times the mean, as that of `QGZ`. That a loss scale changes memories is not
    modelled: nothing overflows here.

    References
    ----------
    X. Xie, Z. Lin, K.-C. Toh, P. Zhou, "LoCo: Low-Bit Communication Adaptor for Large-scale Model Training", 2024; code
    deepspeedai/DeepSpeed, commit edaa722, ``runtime/comm/coalesced_collectives.py``, ``csrc/quantization``.

    Examples
    --------
    Four bits lose some of the sum of ten gradients, and with memory less:

    >>> gradients = np.random.default_rng(0).standard_normal((4, 6144)).astype(np.float32)
    >>> for beta in (1.0, 0.8):
    ...     model = LoCo(workers=4, parameters=6144, layers=[("w", (64, 96))], ranks_per_node=2, err_beta=beta)
    ...     applied = sum(model.exchange(gradients).update for _ in range(10))
    ...     print(round(float(np.abs(applied - 10 * gradients.mean(0)).mean()), 2))
    0.57
    0.17
    """

    name = "loco"
    paper = "Xie et al., 2024, arXiv 2407.04480"
    options: LoCoOptions

    def _set_up(self) -> None:
        super()._set_up()
        kept = [one if one.groups else one._replace(entries=0) for one in self.tensors]
        # Where the memories of each tensor end: those of the first hop, and their groups.
        self._ends: list[int] = list(itertools.accumulate([0, *(one.entries for one in kept)]))
        self._group_ends: list[int] = list(itertools.accumulate([0, *(one.groups for one in kept)]))
        each = self.nodes.each
        self.first = np.zeros((self.workers, self._ends[-1]), dtype=np.int8)
        self.first_scales = np.ones((self.workers, self._group_ends[-1]), dtype=np.float32)
        self.second = np.zeros((self.workers, self._ends[-1] // each), dtype=np.int8)
        self.second_scales = np.ones((self.workers, self._group_ends[-1] // each), dtype=np.float32)
        # As released, the counter starts with each tensor the first time.
        self.counter, self.begun = 0, False

    def memory(self, hop: int, number: int, rank: int) -> GroupCodes:
        """Return a rank's quantised error memory of a tensor in hop 1 or 2, in sending order."""
        codes, inverses = (getattr(self, name)[rank, place] for name, place in self._places(hop, number))
        return GroupCodes(codes.reshape(inverses.size, -1), inverses)

    def _places(self, hop: int, number: int) -> list[tuple[str, slice]]:
        """Return (attribute name, slice) of the codes, then of the scales, in a tensor's error memory of hop 1 or 2."""
        name, each = ("first", 1) if hop == 1 else ("second", self.nodes.each)
        return [
            (key, slice(ends[number] // each, ends[number + 1] // each))
            for key, ends in ((name, self._ends), (f"{name}_scales", self._group_ends))
        ]

    def _begin(self) -> None:
        for name in _MEMORIES:
            setattr(self, name, getattr(self, name).copy())
        released, tensors = self.options.compat == "released", range(len(self.tensors))
        for which in [[one] for one in tensors if self.tensors[one].groups] if released else [tensors]:
            if (released and not self.begun) or self.counter >= self.options.reset_T + released:
                self.counter = 0
                for number, hop in itertools.product(which, (1, 2)):
                    for empty, (name, place) in enumerate(self._places(hop, number)):
                        getattr(self, name)[:, place] = empty
            self.counter += 1
        self.begun = True

    def _code(self, hop: int, rank: int, number: int, groups: NDArray[np.float16]) -> GroupCodes:
        """Return the codes of groups plus error memory, and update that memory by the quantisation error."""
        if not self.options.error_feedback:
            return two_hop.nearest(groups, BITS)
        before = two_hop.halves(self.memory(hop, number, rank).values())
        # Sums in single precision, rounded once, are those in half precision.
        h = two_hop.halves(np.add(groups, before, dtype=np.float32))
        sent = two_hop.nearest(h, BITS)
        error = two_hop.halves(np.subtract(h, two_hop.halves(sent.values()), dtype=np.float32))
        beta = np.float32(self.options.err_beta)
        after = beta * before.astype(np.float32) + (1 - beta) * error.astype(np.float32)
        kept = two_hop.nearest(two_hop.halves(after), _MEMORY_BITS)
        (codes, entries), (scales, some) = self._places(hop, number)
        getattr(self, codes)[rank, entries] = kept.codes.ravel()
        getattr(self, scales)[rank, some] = kept.inverses
        return sent

    def _quantise(self, entries: float) -> Iterator[Step]:
        """Yield the kernels that quantise a number of entries and update the error memory."""
        yield from (DeviceOp(one, entries) for one in ("sum", "cast", "sum", "cast"))

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes of each error memory that a worker stores, by name, for full model tensors."""
        if not self.options.error_feedback:
            return {}
        quantised = [one for one in self._whole if one.groups]
        scales = two_hop.SCALE_BYTES * sum(one.groups for one in quantised)
        first = {"first": sum(one.entries for one in quantised), "first_scales": scales}
        return first | {f"second{name[5:]}": nbytes / self.nodes.each for name, nbytes in first.items()}
