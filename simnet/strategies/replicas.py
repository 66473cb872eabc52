"""The replicas of a model in training, and fragments of the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.errors import check_choice, check_int, check_positive
from simnet.sparsifier_models.options import checked_shapes, named_layers
from simnet.strategies.optimisers import Index, Values


@dataclass(frozen=True, eq=False)
class Replicas:
    """The replicas of a model that workers train. All replicas start from the same parameters.

    `initial` are the first parameters, float32 of shape (n,). `layers` have name and entries of each tensor (or rows
    and columns). Each entry stands for `scale` parameters; `true_shapes` are those that layers are samples of.
    """

    workers: int
    initial: Values
    layers: Sequence[tuple[str, int | Sequence[int]]] = ()
    scale: float = 1.0
    seed: int = 0
    true_shapes: Sequence[int | Sequence[int]] = ()

    def __post_init__(self) -> None:
        check_int(self.workers, "workers", 1)
        check_int(self.seed, "seed", 0)
        check_positive(self.scale, "scale")
        given = self.initial
        if not isinstance(given, np.ndarray) or given.dtype != np.float32 or given.ndim != 1 or not given.size:
            raise ValueError("initial must be an array of float32 with one axis and at least one entry")
        if not np.isfinite(given).all():
            raise ValueError("initial must be finite")
        if not self.layers:
            object.__setattr__(self, "layers", (("parameters", given.size),))
        checked_shapes(self.true_shapes, len(named_layers(self.layers, self.parameters)))

    @cached_property
    def tensors(self) -> tuple[tuple[str, int], ...]:
        """Name and number of entries of each tensor."""
        return named_layers(self.layers, self.parameters)

    @property
    def parameters(self) -> int:
        """Number of parameters n."""
        return int(self.initial.size)


class Fragment(NamedTuple):
    """A part of a model that is exchanged separately: the numbers of its tensors, and the index of its parameters."""

    layers: tuple[int, ...]
    entries: Index


def fragment_of(replicas: Replicas, layers: Sequence[int]) -> Fragment:
    """Return the fragment that consists of the tensors with the given numbers."""
    own = tuple(sorted(layers))
    ends = np.cumsum([size for _, size in replicas.tensors])
    begins = ends - [size for _, size in replicas.tensors]
    if own == tuple(range(own[0], own[-1] + 1)):
        return Fragment(own, slice(int(begins[own[0]]), int(ends[own[-1]])))
    places: NDArray[np.intp] = np.concatenate([np.arange(begins[one], ends[one]) for one in own])
    return Fragment(own, places)


def fragments_of(replicas: Replicas, fragments: int | Sequence[Sequence[str]]) -> list[Fragment]:
    """Return fragments of a model: runs of tensors of about equal size, or one fragment per list of tensor names."""
    names = [name for name, _ in replicas.tensors]
    if isinstance(fragments, int):
        count = check_int(fragments, "fragments", 1, len(names))
        ends = np.cumsum([size for _, size in replicas.tensors])
        cuts = [0]
        for number in range(1, count):
            # The tensor after which the parameters are nearest to their part, with one left for each fragment to come.
            ideal = replicas.parameters * number / count
            places = range(cuts[-1] + 1, len(names) - (count - number) + 1)
            cuts.append(min(places, key=lambda place: abs(float(ends[place - 1]) - ideal)))
        cuts.append(len(names))
        return [fragment_of(replicas, range(first, last)) for first, last in itertools.pairwise(cuts)]
    lists: list[Any] = list(fragments) if isinstance(fragments, list | tuple) else [fragments]
    if not all(isinstance(own, list | tuple) and own and {type(one) for one in own} == {str} for own in lists):
        raise ValueError(f"fragments must be a whole number, or lists of names of layers, got {fragments!r:.200}")
    numbers = {name: number for number, name in enumerate(names)}
    named = [name for own in lists for name in own]
    for name in named:
        check_choice(name, "layer", names)
        if named.count(name) > 1:
            raise ValueError(f"the layer {name!r} must be in one fragment, and is named twice")
    if missing := [name for name in names if name not in named]:
        raise ValueError(f"every layer must be in a fragment; in none: {', '.join(missing)}")
    return [fragment_of(replicas, [numbers[name] for name in own]) for own in lists]
