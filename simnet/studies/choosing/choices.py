"""What there is to choose from: exchanges with closed forms that hold for any number of workers, and on nodes.

The published formulas have the real-valued log N. Here the rounds of a binomial tree and of Bruck's all-gather are
counted as they are: ceil(log N) down a tree, floor(log N) up. On a star the closed forms are what the network says,
whatever N, to 1e-9 without votes, and to a few per cent with them and on trees of no power of two.

On nodes of g workers that share a link, a ring crosses each of these links once in every round. A tree crosses it
in as many rounds as there are levels above the nodes, and in one more if g is no power of two, or if it is a broadcast
whose root is not the first of its node. In Bruck's all-gather every worker crosses it in these rounds, so that g of
them share it, and 2^j of them in round j before.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005.
S. Tyagi, M. Swany, "Flexible Communication ...", IEEE BigData 2023, arXiv 2312.02493.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

import sparsifier_models
from simnet import costs
from simnet.base.arrays import Floats
from simnet.policies import Candidate, closed_form
from simnet.studies.choosing.operating_point import VALUE, Number, OperatingPoint

Kind: TypeAlias = Literal["dense", "half", "sparse"]
"""The whole gradient in single precision, in half precision, or a selection of it."""


class CollectiveCall(NamedTuple):
    """A collective call of an exchange: its name as nccl-tests has it, its algorithm, and its total bytes."""

    collective: str
    algorithm: str
    nbytes: Floats


class KernelCall(NamedTuple):
    """Calls of a kernel by a worker: method of a device profile, entries gone through, launches."""

    method: str
    entries: Number
    launches: int = 1


@dataclass(frozen=True)
class Choice:
    """A way to exchange gradients.

    Parameters
    ----------
    candidate : Candidate
        Scheme and options.
    kind : {"dense", "half", "sparse"}
        What is sent.
    communicate : callable
        Seconds that the exchange takes at a point, without selecting.
    kernel_calls : callable, optional
        What a worker goes through to select and to put together at a point; none if unknown.
    collective_calls : callable, optional
        The collectives that it consists of at a point.
    bound : bool
        Whether the closed form is a bound from above.
    """

    candidate: Candidate
    kind: Kind
    communicate: Callable[[OperatingPoint], Floats]
    kernel_calls: Callable[[OperatingPoint], Sequence[KernelCall]] | None = None
    collective_calls: Callable[[OperatingPoint], Sequence[CollectiveCall]] | None = None
    bound: bool = False

    @property
    def label(self) -> str:
        """Its name in tables and figures."""
        return self.candidate.label


def choices(per_node: int = 1, *, every: bool = False) -> tuple[Choice, ...]:
    """Return what there is to choose from.

    Parameters
    ----------
    per_node : int
        Workers of a node; with several, two-level all-reduces and ring all-gathers are worth it.
    every : bool
        Also all other schemes that have a closed form, with their default options.

    Examples
    --------
    >>> [one.label for one in choices()][:5]
    ['dense ring', 'dense tree', 'fp16 ring', 'fp16 tree', 'AG-Topk']
    """
    nodes = per_node > 1
    algorithms = ("ring", "tree", "hierarchical") if nodes else ("ring", "tree")
    found = [_dense(algorithm, half, per_node) for half in (False, True) for algorithm in algorithms]
    found += [_allgather("bruck"), *([_allgather("ring")] if nodes else [])]
    found += [_artopk(collective, selection) for selection in ("star", "var") for collective in ("ring", "tree")]
    if every:
        # What hard thresholds keep does not follow from a density.
        covered = {"dense", "fp16", "topk", "artopk", "hardthreshold", "sage"}
        for name in sparsifier_models.names():
            other = None if name in covered else _published(name)
            found += [] if other is None else [other]
    return tuple(found)


def _dense(algorithm: str, half: bool, per_node: int) -> Choice:
    share = 0.5 if half else 1.0
    scheme = "fp16" if half else "dense"

    def communicate(point: OperatingPoint) -> Floats:
        nbytes = share * point.dense_bytes
        if algorithm == "ring":
            return costs.ring_allreduce(*_links(point), nbytes, point.workers)
        if algorithm == "tree":
            return _tree(point, nbytes, up_and_down=True)
        return costs.hierarchical_allreduce(
            point.latency, point.beta, nbytes, point.workers, point.group, point.inner_latency, point.inner_beta
        )

    def collective_calls(point: OperatingPoint) -> list[CollectiveCall]:
        return [CollectiveCall("all_reduce", algorithm, share * point.dense_bytes)]

    def kernel_calls(point: OperatingPoint) -> list[KernelCall]:
        return [KernelCall("scan", point.parameters, 2)] if half else []

    options: dict[str, str | int] = {"algorithm": algorithm}
    if algorithm == "hierarchical":
        options["group_size"] = per_node
    return Choice(
        Candidate(f"{scheme} {algorithm}", scheme, options),
        "half" if half else "dense",
        communicate,
        kernel_calls,
        collective_calls,
    )


def _allgather(algorithm: str) -> Choice:
    def communicate(point: OperatingPoint) -> Floats:
        nbytes = 2 * VALUE * point.kept
        if algorithm == "ring":
            return costs.ring_allgather(*_links(point), nbytes, point.workers)
        return _bruck(point, nbytes)

    def kernel_calls(point: OperatingPoint) -> list[KernelCall]:
        k = point.kept
        return [
            KernelCall("topk", point.parameters),
            KernelCall("gather", k),
            KernelCall("scatter", k),
            KernelCall("scatter", point.workers * k),
        ]

    def collective_calls(point: OperatingPoint) -> list[CollectiveCall]:
        return [CollectiveCall("all_gather", algorithm, point.workers * 2 * VALUE * point.kept)]

    label = "AG-Topk" if algorithm == "bruck" else f"AG-Topk {algorithm}"
    return Choice(
        Candidate(label, "topk", {"allgather": algorithm}), "sparse", communicate, kernel_calls, collective_calls
    )


def _artopk(collective: str, selection: str) -> Choice:
    votes = selection == "var"

    def communicate(point: OperatingPoint) -> Floats:
        nbytes = VALUE * point.kept
        indices = _tree(point, nbytes, up_and_down=False) + _astray(point, nbytes)
        if collective == "ring":
            values = costs.ring_allreduce(*_links(point), nbytes, point.workers)
        else:
            values = _tree(point, nbytes, up_and_down=True)
        return indices + values + (_vote(point) if votes else 0.0)

    def kernel_calls(point: OperatingPoint) -> list[KernelCall]:
        k = point.kept
        norm = [KernelCall("norm", k)] if votes else []
        return [KernelCall("topk", point.parameters), *norm, KernelCall("gather", k), KernelCall("scatter", k, 2)]

    def collective_calls(point: OperatingPoint) -> list[CollectiveCall]:
        nbytes = VALUE * point.kept
        vote = [CollectiveCall("all_gather", "", np.asarray(VALUE * point.workers))] if votes else []
        return [*vote, CollectiveCall("broadcast", "", nbytes), CollectiveCall("all_reduce", collective, nbytes)]

    label = f"ART-{collective}" + (" VAR" if votes else "")
    options = {"collective": collective, "selection": selection}
    return Choice(Candidate(label, "artopk", options), "sparse", communicate, kernel_calls, collective_calls)


def _published(name: str) -> Choice | None:
    """Return a scheme with its default options and the closed form that a flexible policy weighs it by."""
    candidate = Candidate(name, name)
    try:
        cost = closed_form(candidate)
    except ValueError:
        return None

    def communicate(point: OperatingPoint) -> Floats:
        return cost(point.latency, point.beta, point.dense_bytes, point.density, point.workers)

    # A scheme's first formula is a bound where its sparsifier says so.
    formula = sparsifier_models.scheme(name).costs[:1]
    bound = any("at most" in (one.__doc__ or "").splitlines()[0] for one in formula)
    return Choice(candidate, "sparse", communicate, bound=bound)


def _tree(point: OperatingPoint, nbytes: Floats, *, up_and_down: bool) -> Floats:
    """Return the time of a binomial tree: a broadcast, or a reduction and a broadcast."""
    levels, inner = np.log2(point.workers), np.log2(point.group)
    # A reduction whose last level is not full goes up in a round less, but its root gets as many messages.
    # Where subtrees are no whole nodes, what stays below a node's distance crosses to another node once, too.
    astray = np.greater(point.workers, point.group) & (inner % 1 > 0)
    up = up_and_down * (np.floor(levels) - np.floor(inner) + astray)
    between, inside = np.ceil(levels) - np.ceil(inner) + astray, np.ceil(inner) - astray
    times = 2 if up_and_down else 1
    seconds = (between + up) * point.latency + times * between * nbytes * point.beta
    if point.per_node == 1:
        return np.asarray(seconds)
    return np.asarray(seconds + times * inside * (point.inner_latency + nbytes * point.inner_beta))


def _astray(point: OperatingPoint, nbytes: Floats) -> Floats:
    """Return what a broadcast takes more whose root is any worker of a node, and not its first: a crossing."""
    group = point.group
    # Other nodes have no root that is better than another.
    whole = np.greater(point.workers, group) & (np.log2(group) % 1 == 0)
    slower = point.latency - point.inner_latency + nbytes * (point.beta - point.inner_beta)
    return np.asarray(np.where(whole, (1 - 1 / group) * slower, 0.0))


def _bruck(point: OperatingPoint, nbytes: Floats) -> Floats:
    """Return the time of Bruck's all-gather of so many bytes of each worker."""
    flat = costs.bruck_allgather(point.latency, point.beta, nbytes, point.workers)
    if point.per_node == 1:
        return flat
    group = point.group
    crossing = (np.asarray(point.workers) - group) * group + (group**2 - 1) / 3
    # What goes less than a node's distance in all its rounds together crosses to another node once.
    rounds, near = np.ceil(np.log2(point.workers)), np.ceil(np.log2(group))
    across = np.minimum(rounds - near + 1, rounds)
    latency = across * point.latency + (rounds - across) * point.inner_latency
    between = latency + crossing * nbytes * point.beta
    inside = costs.bruck_allgather(point.inner_latency, point.inner_beta, nbytes, point.workers)
    return np.where(np.greater(point.workers, group), between, inside)


def _links(point: OperatingPoint) -> tuple[Number, Number]:
    """Return latency [s] and seconds per byte of the slowest links of a ring: between nodes, or inside a single one."""
    if point.per_node == 1:
        return point.latency, point.beta
    several = np.greater(point.workers, point.group)
    return (
        np.where(several, point.latency, point.inner_latency),
        np.where(several, point.beta, point.inner_beta),
    )


def _vote(point: OperatingPoint) -> Floats:
    """Return the time of the all-gather by recursive doubling of one value of each worker."""
    P, group = np.asarray(point.workers, dtype=np.float64), point.group
    whole = np.log2(P) % 1 == 0
    rounds = np.floor(np.log2(P)) + np.where(whole, 0.0, 2.0)
    # Neighbours at less than a node's distance are in the node, where groups are as regular as the rounds.
    regular = whole & (np.log2(group) % 1 == 0)
    inside = np.where(group >= P, rounds, np.where(regular, np.log2(group), 0.0))
    seconds = (rounds - inside) * point.latency + inside * point.inner_latency
    return np.asarray(seconds + VALUE * ((P - group) * group * point.beta + (group - 1) * point.inner_beta))
