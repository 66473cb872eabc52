"""Two-level schemes: dense collectives inside nodes, and any scheme between nodes, for the shard that a rank owns.

The L ranks of a node reduce-scatter their gradients, so that each owns a part of n / L entries. Ranks that own the same
part on different nodes exchange it by the scheme, and the ranks of a node all-gather the parts. To the scheme a node is
one worker, whose gradient is the mean of its ranks. Unsent entries are in one residual per node and part.

``two_level/NAME`` is the scheme `NAME` on two levels, with its options and those of `TwoLevelOptions`. Several numbers
of ranks are several levels: the scheme between nodes is then itself on two levels, over sites of so many nodes.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Adds
from simnet.base.errors import check_int
from simnet.collectives import registry
from simnet.schedule import Schedule, merge_schedules
from simnet.sparsifier_models.base import Exchange, Sparsifier, State, Stats
from simnet.sparsifier_models.dense import Dense
from simnet.sparsifier_models.options import AlgorithmOf, Options
from simnet.sparsifier_models.selection import Values, squared_norms
from simnet.sparsifier_models.wire import EVERY, Wire, kernels_beside

PREFIX = "two_level/"
"""Prefix of the names of two-level schemes."""

AUTO: Literal["auto"] = "auto"
BOTTLENECK: Literal["bottleneck"] = "bottleneck"

# As many sets of schedules are kept as of a scheme.
_RECURRING = 64
_OF_ENTRIES = ("weights", "transforms", "tracks")
# Traits that a scheme has on two levels as well.
_SAME = (
    *("keeps_residual", "searches_threshold", "disjoint", "rounds_down", "is_restartable", "overlaps"),
    *("released_widths", "moments", "is_third_party", *_OF_ENTRIES),
)
_OF_SHARD = re.compile(r"shard(\d+)\.(.+)")


class TwoLevelOptions(Options):
    """Options of two-level schemes, in addition to those of the scheme between nodes.

    Parameters
    ----------
    ranks_per_node : "auto", int or sequence of int
        Number of consecutive ranks of a node, >= 1, a divisor of the workers; if larger than their number, all are one
        node. Several numbers are several levels, from inside out: ``[8, 4]`` are nodes of 8 ranks in sites of 4 nodes.
        ``auto`` takes the nodes of the job's network.
    node_order : "bottleneck" or sequence of int
        In which order nodes stand in the rings of the scheme, each once; as they are numbered if none is given.
        ``bottleneck`` makes the slowest pair of neighbours as fast as can be on the job's network.
    inner_reduce_scatter, inner_all_gather : str
        Collectives inside, of those in `simnet.collectives.registry`.
    """

    ranks_per_node: Literal["auto"] | int | Sequence[int] = AUTO
    node_order: Literal["bottleneck"] | Sequence[int] = ()
    inner_reduce_scatter: Annotated[str, AlgorithmOf("reduce_scatter")] = "ring"
    inner_all_gather: Annotated[str, AlgorithmOf("all_gather")] = "ring"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranks_per_node != AUTO:
            sizes_of(self.ranks_per_node)
        order = self.node_order
        if order != BOTTLENECK and (
            not isinstance(order, list | tuple)
            or sorted(_check_integers(order, "node_order", 0)) != list(range(len(order)))
        ):
            raise ValueError(f"node_order must be 'bottleneck' or each node once, from 0 on, got {order!r:.100}")


OWN = tuple(one.name for one in dataclasses.fields(TwoLevelOptions) if one.name not in Options.__dataclass_fields__)
"""Names of the options of `TwoLevelOptions` that other schemes lack."""


def _check_integers(values: Sequence[object], name: str, least: int) -> list[int]:
    return [check_int(one, f"an entry of {name}", least) for one in values]


def sizes_of(ranks_per_node: object) -> tuple[int, ...]:
    """Return the group size of each level from the inside out: ranks per node, then nodes per site, and so on.

    Raises ValueError unless it is one number >= 1 or several.
    """
    if isinstance(ranks_per_node, list | tuple) and ranks_per_node:
        return tuple(_check_integers(ranks_per_node, "ranks_per_node", 1))
    if isinstance(ranks_per_node, str | list | tuple):
        raise ValueError(f"ranks_per_node must be 'auto', a number or several, got {ranks_per_node!r:.100}")
    return (check_int(ranks_per_node, "ranks_per_node", 1),)


def without_network(scheme: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a scheme's options without values taken from the network, and the number of ranks that share a gradient.

    What options take from a network becomes one rank a node, in the order of their numbers.
    """
    if not scheme.startswith(PREFIX):
        return dict(options), 1
    found = {name: value for name, value in options.items() if value != BOTTLENECK}
    if found.get("ranks_per_node", AUTO) == AUTO:
        found["ranks_per_node"] = 1
    return found, math.prod(sizes_of(found["ranks_per_node"]))


class TwoLevel(Sparsifier, codes=EVERY):
    """A scheme on two levels, nodes and their ranks; `on_two_levels` derives a class from each scheme.

    With one rank per node it equals the scheme, on a single node a dense all-reduce. `residual` is that of a node's
    sum: the owner of a part has it, the other ranks have zeros, so what all ranks sent and kept adds up to their
    gradients. Thresholds in the statistics are those of the scheme, which sees means; statistics that are one number
    for all workers are means over the parts.
    """

    options: TwoLevelOptions
    scheme: ClassVar[type[Sparsifier]]

    def _set_up(self) -> None:
        if self.options.ranks_per_node == AUTO or self.options.node_order == BOTTLENECK:
            raise ValueError(
                "ranks_per_node 'auto' and node_order 'bottleneck' need the network of a job: give numbers"
            )
        sizes, order = sizes_of(self.options.ranks_per_node), self.options.node_order
        if len(sizes) == 1:
            sizes = (min(sizes[0], self.workers),)
        if self.workers % math.prod(sizes):
            text = " of ".join(map(str, sizes))
            raise ValueError(f"ranks_per_node {text} must divide the {self.workers} workers")
        L = self.ranks = sizes[0]
        N = self.nodes = self.workers // L
        if order and len(order) != self.workers // math.prod(sizes):
            raise ValueError(f"node_order must have each of {self.workers // math.prod(sizes)} nodes, got {len(order)}")
        # In the order of the scheme; of several levels the innermost scheme has it.
        self._order = np.array(order if order and len(sizes) == 1 else range(N), dtype=np.int64)
        ends = (np.arange(L + 1) * self.parameters // L).tolist()
        shards = [one for one in enumerate(map(slice, ends[:-1], ends[1:])) if one[1].start < one[1].stop]
        self._shards = [(self._order * L + number, shard) for number, shard in shards]
        self._models = [self._made(*one, sizes[1:]) for one in shards]
        there = [one.traits for one in self._models]
        self._set_traits(
            fixed_volume=all(one.fixed_volume for one in there),
            period=max(one.period for one in there),
            searches_threshold=all(one.searches_threshold for one in there),
            **{name: getattr(there[0], name) for name in ("keeps_residual", "conserves", *_OF_ENTRIES)},
        )
        nbytes = self.parameters * self.options.scale * (self.options.value_bytes or 4)
        scatter = registry.collective_by_algorithm("reduce_scatter", self.options.inner_reduce_scatter)
        gather = registry.collective_by_algorithm("all_gather", self.options.inner_all_gather)
        inside = list(np.arange(self.workers).reshape(N, L))
        self._scatter, self._gather = (
            merge_schedules([one] * N, inside, self.workers).in_phase(phase)
            for one, phase in (
                (scatter.schedule(L, nbytes), "reduce-scatter inside"),
                (gather.schedule(L, nbytes / L), "all-gather inside"),
            )
        )
        self._joined: dict[tuple[int, ...], tuple[list[Schedule], Schedule]] = {}

    def _made(self, number: int, shard: slice, levels: Sequence[int]) -> Sparsifier:
        """Return the scheme that exchanges a shard between nodes."""
        scheme, more = self.scheme, {}
        if self.ranks > 1 and self.nodes == 1:
            scheme = Dense
        elif levels:
            scheme = type(self)
            more = {"ranks_per_node": levels, "node_order": self.options.node_order}
        names = {one.name for one in dataclasses.fields(scheme.option_type)} - {"true_shapes", *more}
        if scheme is Dense is not self.scheme:
            names &= {"error_feedback", "value_bytes", "scale"}
        given = {name: getattr(self.options, name) for name in names}
        given |= {"seed": self.options.seed + number, "layers": self._layers_within(shard.start, shard.stop)}
        return scheme(self.nodes, shard.stop - shard.start, self.density, **given, **more)

    def _layers_within(self, first: int, last: int) -> list[tuple[str, int]]:
        """Return the name and the size of each layer's part in entries first .. last - 1."""
        found, end = [], 0
        for name, size in self.layers:
            begin, end = end, end + size
            if (within := min(end, last) - max(begin, first)) > 0:
                found.append((name, within))
        return found

    def _there(self) -> list[Sparsifier]:
        """Set the schemes of all shards to the current density and iteration, and return them."""
        for one in self._models:
            one.density, one.iteration = self.density, self.iteration
        return self._models

    def __copy__(self) -> Self:
        """Return a shallow copy with copies of the schemes of the shards."""
        twin = super().__copy__()
        twin._models = [copy(one) for one in self._models]
        return twin

    @property
    def k_of_model(self) -> int:
        """Number of entries selected of the whole model, over all shards."""
        return sum(one.k_of_model for one in self._there())

    @property
    def k(self) -> int:
        """Number of entries that the ranks of a node select together."""
        return sum(one.k for one in self._there())

    @property
    def enough(self) -> float:
        """Minimum number of selected entries for a representative gradient sample: the sum over shards."""
        return sum(one.enough for one in self._there())

    @property
    def max_selected(self) -> int:
        """Largest number of entries that a rank may select of its shard."""
        return max(one.max_selected for one in self._there())

    @property
    def wire(self) -> Wire:
        """Byte sizes of entries on the wire in the scheme between nodes."""
        return self._there()[0].wire

    def held_bytes(self) -> dict[str, float]:
        """Return the bytes of each array that a rank stores, by name, for the largest shard."""
        return max((one.held_bytes() for one in self._there()), key=lambda held: sum(held.values()))

    @property
    def residual(self) -> Values:
        """Residual of each rank for its shard of the node's sum; float32, shape (P, n), read-only.

        It is settable: the sum of a node's residuals for a shard goes to the shard's owner.
        """
        kept = np.zeros((self.workers, self.parameters), dtype=np.float32)
        for model, place in zip(self._models, self._shards, strict=True):
            kept[place] = model.residual * np.float32(self.ranks)
        kept.flags.writeable = False
        return kept

    @residual.setter
    def residual(self, value: Values) -> None:
        given = self._checked_residual(value)
        for model, (_, shard) in zip(self._models, self._shards, strict=True):
            nothing = np.zeros((self.nodes, model.parameters), np.float32)
            model.residual = nothing if given is None else self._mean(given, shard)

    def _mean(self, rows: Values, shard: slice) -> Values:
        """Return each node's mean over its ranks in a shard, shape (nodes, entries), with nodes as in `node_order`."""
        by_node = rows.reshape(self.nodes, self.ranks, self.parameters)[self._order, :, shard]
        with np.errstate(over="ignore", invalid="ignore"):
            mean: Values = np.add.reduce(by_node, axis=1) / np.float32(self.ranks)
        return mean

    def exchange(self, gradients: Values | Adds, *, overwrite: bool = False) -> Exchange:
        """Exchange one gradient per worker. Gradients are never overwritten, so `overwrite` has no effect."""
        fresh = self._given(gradients)
        for worker, norm in enumerate(squared_norms(fresh)):
            if not math.isfinite(norm):
                raise ValueError(f"gradient of {self._place(fresh, worker)}")
        models, parts = [copy(one) for one in self._there()], list[Exchange]()
        for number, (model, (_, shard)) in enumerate(zip(models, self._shards, strict=True)):
            try:
                parts.append(model.exchange(self._mean(fresh, shard), overwrite=True))
            except ValueError as error:
                raise ValueError(f"between nodes, of part {number}: {error}") from error
        exchange = self._together(parts)
        self._models = models
        self.iteration += 1
        return exchange

    def _communicate(self, corrected: Values, gradients: Values) -> Exchange:
        raise NotImplementedError("parts are exchanged by their schemes")

    def _together(self, parts: Sequence[Exchange]) -> Exchange:
        """Return one exchange that combines the exchanges of all shards."""
        all_owners = [owners for owners, _ in self._shards]
        update = np.zeros(self.parameters, dtype=np.float32)
        selected, sent = np.zeros(self.workers, dtype=np.int64), np.zeros(self.workers)
        replicas = None
        if any(one.replicas is not None for one in parts):
            replicas = np.zeros((self.workers, self.parameters), dtype=np.float32)
        for part, (owners, shard) in zip(parts, self._shards, strict=True):
            update[shard] = part.update
            selected[owners], sent[owners] = part.selected, part.sent * self.ranks**2
            if replicas is not None:
                own = np.broadcast_to(part.update, (self.nodes, part.update.size))
                by_node = replicas.reshape(self.nodes, self.ranks, self.parameters)
                by_node[self._order, :, shard] = (own if part.replicas is None else part.replicas)[:, np.newaxis]
        recurs = all(one.recurs for one in parts)
        kernels = [(one.kernels, owners) for one, owners in zip(parts, all_owners, strict=True)]
        exchange = Exchange(
            update=update,
            schedule=self._schedule([one.schedule for one in parts], all_owners, recurs=recurs),
            selected=selected,
            kernels=tuple(kernels_beside(kernels, self.workers, len(self._scatter.rounds))),
            union=sum(one.union for one in parts),
            sent=sent,
            period=self.traits.period,
            recurs=recurs,
            replicas=replicas,
        )
        exchange.stats = self._merged([(one.stats, owners) for one, owners in zip(parts, all_owners, strict=True)])
        given, kept = (np.square(np.asarray(exchange.stats[one])) for one in ("given_norm", "residual_norm"))
        exchange.stats |= self._statistics(exchange, given, kept)
        return exchange

    def _density_ratio(self, exchange: Exchange) -> float | None:
        return float(np.mean(exchange.stats["density_ratio"])) if "density_ratio" in exchange.stats else None

    def _merged(self, parts: Sequence[tuple[Stats, NDArray[np.int64]]]) -> Stats:
        """Return the combined statistics of all shards."""
        found: Stats = {}
        for name in parts[0][0]:
            values = [stats[name] for stats, _ in parts if name in stats]
            if all(np.shape(one) for one in values):
                together = np.zeros(self.workers)
                for (_, owners), one in zip(parts, values, strict=False):
                    together[owners] = one
                found[name] = together * self.ranks if name.endswith("_norm") else together
            elif name == "lost":
                found[name] = self.ranks * math.sqrt(sum(float(one) ** 2 for one in values))
            elif name == "broadcaster":
                found[name] = float(parts[0][1][int(values[0])])
            else:
                found[name] = float(np.mean([float(one) for one in values]))
        return found

    def _schedule(self, between: list[Schedule], owners: list[NDArray[np.int64]], *, recurs: bool) -> Schedule:
        """Return the messages of a whole exchange, given the messages of each shard's exchange `between` nodes."""
        key = tuple(map(id, between))
        if key in self._joined:
            return self._joined[key][1]
        found = self._scatter.concat(merge_schedules(between, owners, self.workers), self._gather)
        if recurs:
            if len(self._joined) == _RECURRING:
                del self._joined[next(iter(self._joined))]
            self._joined[key] = between, found
        return found

    def save(self) -> State:
        """Return the state that the next exchange depends on; the names of a shard's arrays start with its number."""
        parts = {
            f"shard{number}.{name}": value
            for number, model in enumerate(self._models)
            for name, value in model.save().items()
        }
        return {**super().save(), **parts}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from a state that `save` returned."""
        own: State = {}
        parts: list[State] = [{} for _ in self._models]
        for name, value in state.items() if isinstance(state, Mapping) else ():
            found = _OF_SHARD.fullmatch(name)
            if found and int(found[1]) < len(parts):
                parts[int(found[1])][found[2]] = value
            else:
                own[name] = value
        models = [copy(one) for one in self._models]
        for model, part in zip(models, parts, strict=True):
            model.restore(part)
        super().restore(own if isinstance(state, Mapping) else state)
        self._models = models


@cache
def on_two_levels(scheme: type[Sparsifier]) -> type[TwoLevel]:
    """Return the two-level class that uses `scheme` between nodes.

    Raises ValueError if the scheme works on tensors by their shape, or uses nodes itself.
    """
    if issubclass(scheme, TwoLevel):
        raise ValueError("several levels are several numbers: ranks_per_node: [8, 4]")
    if scheme.traits.by_tensors:
        raise ValueError(
            f"{scheme.name} cannot be on two levels: it works on the rows and columns of tensors, and the part of the "
            "gradient that a rank owns cuts through them"
        )
    if own := [name for name in OWN if name in scheme.option_type.__dataclass_fields__]:
        raise ValueError(f"{scheme.name} cannot be on two levels: it goes over nodes itself, and has its own {own[0]}")
    options = type(f"TwoLevel{scheme.option_type.__name__}", (TwoLevelOptions, scheme.option_type), {})
    attributes: dict[str, Any] = {
        "paper": scheme.paper,
        "__doc__": f"`{scheme.__name__}` on two levels: dense inside nodes, the scheme between them.",
        "name": f"{PREFIX}{scheme.name}",
        "option_type": options,
        "scheme": scheme,
    }
    same = {name: getattr(scheme.traits, name) for name in _SAME}
    return type(f"TwoLevel{scheme.__name__}", (TwoLevel,), attributes, **same)
