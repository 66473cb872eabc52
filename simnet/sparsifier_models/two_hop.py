"""Reductions by two all-to-all hops, within nodes and between nodes, quantised before each hop.

P = N L ranks are on N nodes of L consecutive ranks. Rank r gets partition r of the sum. In the first hop, ranks
exchange inside each node: its l-th rank sums, over the node, the partitions of the l-th ranks of all nodes. In the
second hop the l-th ranks of all nodes exchange these sums.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet import collectives
from simnet.base.errors import check_int
from simnet.base.quantities import Count
from simnet.schedule import Schedule, merge_schedules
from simnet.sparsifier_models.base import Sparsifier, Step
from simnet.sparsifier_models.codes import LARGEST
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.selection import Values


class Nodes(NamedTuple):
    """A number of nodes N, each with the same number of ranks L."""

    # N, and L.
    nodes: int
    each: int

    @classmethod
    def of(cls, workers: int, each: int, name: str = "ranks_per_node") -> Nodes:
        """Return the nodes of `workers` workers with `each` ranks per node.

        Raises ValueError, with the `name` of the option, if L does not divide P.
        """
        if workers % each:
            raise ValueError(f"{name} must divide the {workers} workers, got {each}")
        return cls(workers // each, each)

    @property
    def ranks(self) -> int:
        """Number of ranks: the number of nodes times the ranks per node."""
        return self.nodes * self.each

    def swizzled(self, partitions: NDArray[Any]) -> NDArray[Any]:
        """Return partitions in sending order: for N nodes of L ranks, partition z moves to (z mod L) N + z // L."""
        return self._turned(partitions, self.nodes, self.each)

    def unswizzled(self, placed: NDArray[Any]) -> NDArray[Any]:
        """Return partitions in order of receiving rank, the inverse of `swizzled`."""
        return self._turned(placed, self.each, self.nodes)

    @staticmethod
    def _turned(parts: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
        return parts.reshape(rows, columns, *parts.shape[1:]).swapaxes(0, 1).reshape(parts.shape)

    def within(self) -> NDArray[np.int64]:
        """Return the ranks of each node, shape (N, L) for N nodes of L ranks."""
        return np.arange(self.ranks).reshape(self.nodes, self.each)

    def across(self) -> NDArray[np.int64]:
        """Return the ranks that have the same position on their nodes, shape (L, N) for N nodes of L ranks."""
        return self.within().T


def sum_in_two_hops(
    nodes: Nodes,
    first: Callable[[int], NDArray[Any]],
    second: Callable[[int, NDArray[Any]], NDArray[Any]],
) -> NDArray[Any]:
    """Return the sum of all ranks' vectors, reduced within and then between nodes, as one partition per rank, (P, m).

    Sums are in the order of the ranks and in their dtype; half precision saturates. `first(rank)` returns what others
    read of its first message: its partitions in the order of `Nodes.swizzled`, shape (P, m). `second(rank, sums)`
    returns what others read of its second message, given the sums over its node, shape (N, m).
    """
    N, L = nodes
    found: Any = None
    for node, ranks in enumerate(nodes.within()):
        total: Any = 0
        for rank in ranks:
            total = _within_range(total + first(rank))
        for place, part in enumerate(total.reshape(L, N, -1)):
            got = second(node * L + place, part)
            if found is None:
                found = np.zeros((L, *got.shape), got.dtype)
            found[place] = _within_range(found[place] + got)
    return nodes.unswizzled(found.reshape(nodes.ranks, -1))


def _within_range(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype == np.float16:
        limit = np.float16(LARGEST["fp16"])
        np.clip(values, -limit, limit, out=values)
    return values


class Hop(NamedTuple):
    """Bytes of codes and of scales in a rank's send buffer for a hop, including its own partition."""

    # Of codes, and of the scales of their groups.
    codes: float
    scales: float

    @classmethod
    def of(cls, entries: float, bits: int, groups: float) -> Hop:
        """Return the bytes of codes and scales for `entries` with `bits` bits each in `groups` groups."""
        return cls(entries * bits / 8, groups * SCALE_BYTES)


class TwoHopOptions(GatheredOptions):
    """Options of schemes that reduce in two hops.

    Parameters
    ----------
    ranks_per_node : int
        Ranks L of a node, consecutive workers, a divisor of P. With 1, all messages are those of the second hop.
    shards : {"float16", "none"}
        How all workers get the shards of the update: two bytes an entry by an all-gather, or not at all, where sharded
        training gathers parameters anyway.
    """

    ranks_per_node: Count = 1
    shards: Literal["float16", "none"] = "float16"


class TwoHop(
    Sparsifier, sends_all=True, keeps_residual=False, memory_factor=(1.7, 12.0), reads_gradients=False, conserves=False
):
    """Base of schemes that reduce in two hops, with the nodes and the messages of both hops and of the all-gather.

    The density has no effect. Rounding errors are not corrected in full, so mass is not conserved.
    """

    options: TwoHopOptions

    def _set_up(self) -> None:
        self.nodes = Nodes.of(self.workers, self.options.ranks_per_node)

    @abstractmethod
    def _steps(self) -> Iterator[Step]:
        """Yield the kernels and messages of an exchange, in order."""

    def _all_to_all(self, hop: int, what: str, nbytes: float) -> Schedule:
        """Return the messages of the all-to-all in hop 1 or 2, with a send buffer of `nbytes` bytes at each rank."""
        groups = self.nodes.within() if hop == 1 else self.nodes.across()
        size = groups.shape[1]
        call = collectives.alltoall_pairwise(size, nbytes / size)
        return merge_schedules([call] * len(groups), list(groups), self.workers).in_phase(f"hop {hop} {what}")

    def _hop(self, hop: int, sent: Hop) -> Iterator[Step]:
        """Yield the two all-to-all calls of a hop: codes, then scales."""
        yield self._all_to_all(hop, "codes", sent.codes)
        yield self._all_to_all(hop, "scales", sent.scales)


SCALE_BYTES = 4
"""Number of bytes of the scale of a group."""

# DeepSpeed aims at groups of so many weights, whose codes are multiples of so many; twice as large ones are refused.
_WEIGHTS, _MULTIPLE = 8000, 8


class GroupCodes(NamedTuple):
    """Quantised groups of entries: a code per entry, and an inverse scale per group."""

    # Shape (groups, size).
    codes: NDArray[np.int8]
    # Shape (groups,): What a code of each group is multiplied by.
    inverses: Values

    def values(self) -> Values:
        """Return the dequantised values, float32 of shape (groups, size)."""
        found: Values = self.codes.astype(np.float32)
        found *= self.inverses[:, np.newaxis]
        return found


def nearest(groups: NDArray[np.floating], bits: int) -> GroupCodes:
    """Return the codes of groups, rounded to the nearest level, ties to even, as in DeepSpeed.

    The scale maps the largest magnitude of a group to 8 (four bits) or 128 (eight bits). As the largest code is 7 or
    127, a largest entry that is positive loses an eighth or a 128th of itself. A group of zeros has the scale 1.
    """
    half = 1 << (bits - 1)
    scales, products = _scaled(groups, half)
    np.rint(products, out=products)
    codes = np.clip(products, -half, half - 1, out=products).astype(np.int8)
    return GroupCodes(codes, np.float32(1) / scales)


def stochastic(groups: NDArray[np.floating], bits: int, uniforms: Values) -> GroupCodes:
    """Return the codes of groups, rounded at random without bias, as in SDP4Bit.

    The largest magnitude of a group stands for 7 of four bits, or 127 of eight. An entry is rounded up if its uniform,
    in (0, 1], is below its fraction. A group of zeros has the scale 1.
    """
    most = (1 << (bits - 1)) - 1
    scales, products = _scaled(groups, most)
    low = np.floor(products)
    products -= low
    low += uniforms < products
    codes = np.clip(low, -most, most, out=low).astype(np.int8)
    return GroupCodes(codes, np.float32(1) / scales)


def _scaled(groups: NDArray[np.floating], most: int) -> tuple[Values, Values]:
    """Return the scale that maps the largest magnitude of each group to `most`, and the scaled groups."""
    largest = np.abs(groups).max(axis=1).astype(np.float32)
    scales = np.ones_like(largest)
    # Magnitudes below those of normal numbers would have an infinite scale.
    with np.errstate(over="ignore"):
        np.divide(np.float32(most), largest, out=scales, where=largest > 0)
    np.minimum(scales, np.finfo(np.float32).max, out=scales)
    return scales, np.multiply(groups, scales[:, np.newaxis], dtype=np.float32)


def halves(values: Values) -> NDArray[np.float16]:
    """Return values rounded to float16; overflow becomes the largest finite number."""
    limit = LARGEST["fp16"]
    return np.clip(values, -limit, limit).astype(np.float16)


def weight_groups(entries: int) -> int:
    """Return the number of groups in which DeepSpeed quantises weights for their all-gather (qwZ).

    All have as many weights, the largest multiple of 8 up to 8000 that divides them. ValueError: `entries` is not a
    multiple of 8, which DeepSpeed refuses.
    """
    if check_int(entries, "entries", 1) % _MULTIPLE:
        raise ValueError(f"quantised weights of a worker must be a multiple of 8, got {entries:,}")
    return entries // next(size for size in range(_WEIGHTS, 0, -_MULTIPLE) if entries % size == 0)
