"""Reductions in two hops of all-to-all: between the ranks of a node, and between the nodes, quantised anew for each.

P = N L ranks lie on N nodes of L consecutive ones. Rank r gets partition r of the sum. In the first hop the ranks of a
node meet: rank l of each gets the partitions of all ranks l, of which it knows the sum over its node; in the second one
the ranks l of all nodes do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet import collectives
from simnet.base.quantities import Count
from simnet.schedule import Schedule, beside
from simnet.sparsifier_models.base import Sparsifier
from simnet.sparsifier_models.gathered import GatheredOptions
from simnet.sparsifier_models.group_codes import SCALE_BYTES
from simnet.sparsifier_models.steps import Step
from simnet.sparsifier_models.value_codes import LARGEST


class Nodes(NamedTuple):
    """N nodes of L ranks.

    Parameters
    ----------
    nodes, each : int
        N, and L.
    """

    nodes: int
    each: int

    @classmethod
    def of(cls, workers: int, each: int, name: str = "ranks_per_node") -> Nodes:
        """Return the nodes of P workers, L = `each` to a node.

        Raises ValueError, with the `name` of the option, if L does not divide P.
        """
        if workers % each:
            raise ValueError(f"{name} must divide the {workers} workers, got {each}")
        return cls(workers // each, each)

    @property
    def ranks(self) -> int:
        """P."""
        return self.nodes * self.each

    def swizzled(self, partitions: NDArray[Any]) -> NDArray[Any]:
        """Return partitions, shape (P, ...), in the order in which they are sent: z at place (z mod L) N + z // L.

        Examples
        --------
        >>> Nodes(2, 4).swizzled(np.arange(8))
        array([0, 4, 1, 5, 2, 6, 3, 7])
        """
        return self._turned(partitions, self.nodes, self.each)

    def unswizzled(self, placed: NDArray[Any]) -> NDArray[Any]:
        """Return partitions in the order of the ranks that get them: the inverse of `swizzled`.

        Examples
        --------
        >>> Nodes(2, 4).unswizzled(np.array([0, 4, 1, 5, 2, 6, 3, 7]))
        array([0, 1, 2, 3, 4, 5, 6, 7])
        """
        return self._turned(placed, self.each, self.nodes)

    @staticmethod
    def _turned(parts: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
        return parts.reshape(rows, columns, *parts.shape[1:]).swapaxes(0, 1).reshape(parts.shape)

    def within(self) -> NDArray[np.int64]:
        """Return the ranks of each node, shape (N, L)."""
        return np.arange(self.ranks).reshape(self.nodes, self.each)

    def across(self) -> NDArray[np.int64]:
        """Return the ranks that have the same place on their nodes, shape (L, N)."""
        return self.within().T


def sum_in_two_hops(
    nodes: Nodes,
    first: Callable[[int], NDArray[Any]],
    second: Callable[[int, NDArray[Any]], NDArray[Any]],
) -> NDArray[Any]:
    """Return the sum of the vectors of all ranks, as the second hop leaves it; shape (P, m), a row for each rank.

    Sums are in the order of the ranks and in their dtype; half precision saturates. `first(rank)` returns what others
    read of its first message: its partitions in the order of `Nodes.swizzled`, shape (P, m). `second(rank, sums)`
    returns what others read of its second message, given the sums over its node, shape (N, m).

    Examples
    --------
    >>> vectors = np.arange(16.0).reshape(4, 4)
    >>> nodes = Nodes(2, 2)
    >>> sum_in_two_hops(nodes, lambda rank: nodes.swizzled(vectors[rank, :, None]), lambda _, part: part).ravel()
    array([24., 28., 32., 36.])
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
    """What a rank has for the ranks of a hop, all of it, its own part too [byte].

    Parameters
    ----------
    codes, scales : float
        Of codes, and of the scales of their groups.
    """

    codes: float
    scales: float

    @classmethod
    def of(cls, entries: float, bits: int, groups: float) -> Hop:
        """Return the hop of `entries` with codes of `bits` bits in `groups`.

        Examples
        --------
        >>> Hop.of(6144, 4, 96)
        Hop(codes=3072.0, scales=384)
        """
        return cls(entries * bits / 8, groups * SCALE_BYTES)


@dataclass(frozen=True, kw_only=True)
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


class TwoHop(Sparsifier):
    """Common part: the nodes, and the messages of both hops and of the all-gather behind them.

    The density does not matter. What rounding takes is not made up for in full, so that mass is not conserved.
    """

    option_type = TwoHopOptions
    sends_all = True
    options: TwoHopOptions
    keeps_residual = False
    room = (1.7, 12.0)
    reads_gradients = False

    def __init__(self, workers: int, parameters: int, density: float = 1.0, **options: Any) -> None:
        super().__init__(workers, parameters, density, **options)
        self.nodes = Nodes.of(workers, self.options.ranks_per_node)

    @property
    def conserves(self) -> bool:
        """False: what rounding takes is lost, or comes back in part."""
        return False

    @abstractmethod
    def _steps(self) -> Iterator[Step]:
        """Yield what workers do, in order."""

    def _all_to_all(self, hop: int, what: str, nbytes: float) -> Schedule:
        """Return the messages of hop 1 or 2, in which each rank sends so many bytes in all."""
        groups = self.nodes.within() if hop == 1 else self.nodes.across()
        size = groups.shape[1]
        call = collectives.alltoall_pairwise(size, nbytes / size)
        return beside([call] * len(groups), list(groups), self.workers).in_phase(f"hop {hop} {what}")

    def _hop(self, hop: int, sent: Hop) -> Iterator[Step]:
        """Yield the calls of a hop: codes, and their scales."""
        yield self._all_to_all(hop, "codes", sent.codes)
        yield self._all_to_all(hop, "scales", sent.scales)

    def _gathered(self, nbytes: float, phase: str) -> Schedule:
        """Return the messages by which all get what each has so many bytes of."""
        return self.options.gather(np.full(self.workers, nbytes)).in_phase(phase)
