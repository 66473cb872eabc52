"""The plan of a measurement: which collectives are timed, in which groups of ranks, and at which sizes.

A *group* is some ranks of the job: whole nodes, single ranks of nodes, and parts of one node, so the sharing of network
cards can be determined. Sizes are total sizes as in nccl-tests, and grow by a factor.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from simnet.base import units
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers.conventions import PARTED_COLLECTIVES

Pairs: TypeAlias = Literal["one", "nodes", "none"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv")
"""The collectives measured in groups; in ``sendrecv`` each rank sends to the next and receives from the previous."""

OF_PAIRS = ("p2p_latency", "p2p_bw")
"""The tests between two ranks: half the time of a round trip, and a window of one-way messages."""

ELEMENT = 4
"""Size of an element, in single precision [byte]."""

MEMORY = 8 * 2**30
"""Maximum total size of a rank's buffers [byte]."""

_MOST_SIZES = 1000

# Buffers of the smallest size while its result is looked at: what goes in, what comes out and two copies of it, what
# is due, and where they differ.
_LOOKED_AT = 6


@dataclass(frozen=True)
class Group:
    """Ranks (ascending) that call collectives together, and their number of nodes. In a pair, the first rank sends."""

    ranks: tuple[int, ...]
    nodes: int

    def __str__(self) -> str:
        return f"{len(self.ranks)} ranks on {self.nodes} node{'s' if self.nodes > 1 else ''}"


@dataclass(frozen=True)
class PlannedCurve:
    """A collective or point-to-point test, the ranks that run it, and the sizes to time [byte, as in nccl-tests]."""

    collective: str
    group: Group
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Wanted:
    """The measurements that the user wants: collectives, sizes [byte], numbers of ranks, and pairs of ranks."""

    # Of `COLLECTIVES`.
    collectives: Sequence[str] = COLLECTIVES
    # Sizes [byte], and the ratio of one size to the one before, > 1.
    smallest: float = 1024
    largest: float = 64 * 2**20
    factor: float = 2.0
    # Sizes of the groups to measure; all when empty.
    ranks: Collection[int] = ()
    # Pairs of ranks: one on a node and one between nodes, neighbours of all nodes as well, or none.
    pairs: Pairs = "one"


def plan_curves(wanted: Wanted, node_of: Sequence[int]) -> list[PlannedCurve]:
    """Return the tests to run (collective, ranks, sizes), given each rank's node: first pairs, then groups by size."""
    if len(node_of) < 2:
        raise InputError("the job has one rank; a collective takes two", file="simnet measure")
    steps = size_series(wanted.smallest, wanted.largest, wanted.factor)
    found = plan_groups(node_of)
    counts = sorted({len(one.ranks) for one in found})
    for count in wanted.ranks:
        if count not in counts:
            raise InputError(f"no group has {count}; allowed: {', '.join(map(str, counts))}", file="--groups")
    kept = [one for one in found if not wanted.ranks or len(one.ranks) in wanted.ranks]
    made = [(name, one) for one in plan_pairs(node_of, wanted.pairs) for name in OF_PAIRS]
    made += [(name, one) for one in kept for name in wanted.collectives]
    if (needed := max(2 * sum(steps), _LOOKED_AT * steps[0])) > MEMORY:
        text = f"{units.format_bytes(needed)} for buffers of all sizes, at most {units.format_bytes(MEMORY)}"
        raise InputError(f"a rank needs {text}", file="--sizes")
    return [PlannedCurve(name, one, divisible_sizes(name, steps, len(one.ranks))) for name, one in made]


def plan_groups(node_of: Sequence[int]) -> list[Group]:
    """Return the groups of ranks to measure, smallest first, given the node of each rank.

    With r ranks on each of n nodes: parts of the first node, its first rank or all ranks of the first 2, 4, 8, ...
    nodes, and parts of every node, in powers of two. With unequal nodes r is the minimum, and the job is a group, too.
    """
    on_node: dict[int, list[int]] = {}
    for rank, node in enumerate(node_of):
        on_node.setdefault(node, []).append(rank)
    each, nodes = min(map(len, on_node.values())), len(on_node)
    shapes = {(1, part) for part in _powers_of_two(each)} | {(nodes, part) for part in _powers_of_two(each)}
    shapes |= {(part, count) for part in _powers_of_two(nodes) for count in (1, each)}
    found = {
        Group(tuple(sorted(rank for own in list(on_node.values())[:count] for rank in own[:part])), count)
        for count, part in shapes
        if count * part > 1
    }
    found.add(Group(tuple(range(len(node_of))), nodes))
    return sorted(found, key=lambda one: (len(one.ranks), one.nodes))


def plan_pairs(node_of: Sequence[int], which: Pairs) -> list[Group]:
    """Return the pairs of ranks to measure: two ranks of one node, and the first ranks of neighbouring nodes."""
    if which == "none":
        return []
    first: dict[int, int] = {}
    for rank, node in enumerate(node_of):
        first.setdefault(node, rank)
    leaders = list(first.values())
    second = [rank for rank, node in enumerate(node_of) if node == node_of[0]][1:2]
    between = list(pairwise(leaders))
    if which == "one":
        between = between[:1]
    elif len(leaders) > 2:
        between.append((leaders[0], leaders[-1]))
    return [Group((0, one), 1) for one in second] + [Group(one, 2) for one in between]


def size_series(smallest: float, largest: float, factor: float) -> list[int]:
    """Return sizes [byte] from `smallest` to `largest` that grow by `factor`; InputError for 0 or over 1,000 sizes."""
    if not ELEMENT <= smallest <= largest:
        raise InputError(f"must begin at {ELEMENT} B to {largest:g} B, their end, got {smallest:g} B", file="--sizes")
    if not 1.01 <= factor <= 1024:
        raise InputError(f"must grow by 1.01 to 1024, got {factor:g}", file="--sizes")
    found = [smallest]
    while (following := found[-1] * factor) <= largest:
        if len(found) == _MOST_SIZES:
            raise InputError(f"are more than {_MOST_SIZES:,} by a factor of {factor:g}", file="--sizes")
        found.append(following)
    return [round(one) for one in found]


def divisible_sizes(collective: str, wanted: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Return, for the `wanted` sizes, the nearest sizes [byte] that divide evenly among the ranks."""
    part = ELEMENT * (ranks if collective in PARTED_COLLECTIVES else 1)
    return tuple(dict.fromkeys(max(1, round(one / part)) * part for one in wanted))


def _powers_of_two(most: int) -> list[int]:
    """Return the powers of two up to `most`, and `most` itself, ascending."""
    return sorted({most, *(2**power for power in range(most.bit_length()))})
