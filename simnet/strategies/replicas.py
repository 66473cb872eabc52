"""The replicas of a model in training, fragments of the model, and averages over the replicas.

Averages are formed by any scheme of `simnet.sparsifier_models`, per tensor or bucket.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet import sparsifier_models
from simnet.base.arrays import FLOAT_BYTES, Values
from simnet.base.errors import check_choice, check_int, check_positive
from simnet.base.quantities import Density, Size, check_bounds
from simnet.collectives import registry
from simnet.cost_models.costs.devices import DeviceOp
from simnet.schedule import Schedule
from simnet.sparsifier_models import Exchange, Sparsifier
from simnet.sparsifier_models.options import checked_shapes, named_layers
from simnet.strategies.optimisers import Index


@dataclass(frozen=True, eq=False)
class Replicas:
    """The replicas of a model that workers train. All replicas start from the same parameters.

    `initial` are the first parameters, float32 of shape (n,). `layers` has the name of each tensor and its entries (or
    rows and columns). If layers are samples, each entry stands for `scale` parameters of the model's tensors, whose
    shapes are `true_shapes`.
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


@dataclass(frozen=True)
class Averaging:
    """How strategies average workers' gradients or parameters: a scheme with density and options, and a bucket size.

    Tensors are exchanged together up to `bucket` bytes in float32; 0 is tensor by tensor, None a fragment as a whole.
    """

    scheme: str = "dense"
    density: Density = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    bucket: Size | None = None

    def __post_init__(self) -> None:
        if self.bucket not in (None, np.inf):
            check_bounds(self.bucket, Size, "bucket")


class Sync(NamedTuple):
    """One exchange of a named quantity, such as ``gradients``: its message schedule and the workers' kernels.

    It begins after the inner step `begin`, from 0, and must arrive `delay` inner steps later (0: workers wait).
    `exchange` and `scheme` are those of `simnet.sparsifier_models`, if one made it.
    """

    what: str
    schedule: Schedule
    kernels: tuple[DeviceOp, ...]
    begin: int
    delay: int = 0
    exchange: Exchange | None = None
    scheme: Sparsifier | None = None

    @property
    def payload(self) -> float:
        """Number of bytes as nccl-tests counts them: the vector of an all-reduce, or the data of a broadcast."""
        return sum(one.nbytes for one in self.schedule.calls)


NOBODY: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
"""An empty array of worker numbers."""


class _AveragingOffer(NamedTuple):
    """Settings for averaging parameters, the pieces in which they are sent, and a compression scheme for each piece."""

    averaging: Averaging
    pieces: list[tuple[list[int], slice]]
    models: list[Sparsifier]


class Averager:
    """Averages workers' vectors over a fragment of the model, piece by piece, with one scheme for each piece."""

    def __init__(self, replicas: Replicas, averaging: Averaging, fragment: Fragment, what: str) -> None:
        self.what = what
        self._replicas, self._fragment = replicas, fragment
        self.offers: list[_AveragingOffer] = []
        self.offer(averaging)
        self.number = 0

    @property
    def in_force(self) -> _AveragingOffer:
        """The averaging configuration in use: the one that `switch` selected last, or initially the first one."""
        return self.offers[self.number]

    def offer(self, averaging: Averaging) -> None:
        """Add an averaging configuration for `switch`; ValueError if it keeps residuals but averages parameters."""
        pieces = list(_fragment_pieces(self._replicas, self._fragment, averaging.bucket))
        models = [self._model(averaging, layers, self._replicas.workers) for layers, _ in pieces]
        if self.what == "parameters" and any(model.keeps for model in models):
            raise ValueError(
                f"parameters are averaged as they are: {averaging.scheme} keeps back a part of what it is given, "
                "which is for gradients and pseudo-gradients"
            )
        self.offers.append(_AveragingOffer(averaging, pieces, models))

    def switch(self, number: int) -> None:
        """Switch to averaging configuration `number` and pass residuals on to it; ValueError if it cannot keep any."""
        before, now = self.in_force, self.offers[number]
        if before is now:
            return
        rows = [model.residual for model in before.models]
        if [columns for _, columns in before.pieces] != [columns for _, columns in now.pieces]:
            whole = np.concatenate(rows, axis=1)
            rows = [np.ascontiguousarray(whole[:, columns]) for _, columns in now.pieces]
        for model, residual in zip(now.models, rows, strict=True):
            model.residual, model.iteration = residual, before.models[0].iteration
        self.number = number

    def __call__(
        self, rows: Values, begin: int, delay: int, active: Index, late: NDArray[np.intp] = NOBODY
    ) -> tuple[Values, list[Sync]]:
        """Return the average vector of `active` workers that are not `late`, shape (columns,), and its exchanges."""
        average = np.empty(rows.shape[1], dtype=np.float32)
        syncs = []
        averaging, pieces, models = self.in_force
        if late.size:
            numbers = np.arange(self._replicas.workers)[active]
            behind = np.isin(numbers, late)
            self._keep_back(rows[behind], late)
            rows, active = rows[~behind], numbers[~behind]
        for model, (layers, columns) in zip(models, pieces, strict=True):
            if isinstance(active, slice):
                exchange = model.exchange(rows[:, columns])
            else:
                exchange = _exchange_among(model, self._model(averaging, layers, len(rows)), rows[:, columns], active)
            average[columns] = exchange.update
            syncs.append(Sync(self.what, exchange.schedule, exchange.kernels, begin, delay, exchange, model))
        return average, syncs

    def _keep_back(self, rows: Values, late: NDArray[np.intp]) -> None:
        """Add the vectors of late workers to these workers' residuals, if the scheme has residuals."""
        for model, (_, columns) in zip(self.in_force.models, self.in_force.pieces, strict=True):
            if model.keeps:
                decay, gain = map(np.float32, model.traits.weights)
                residual = model.residual.copy()
                residual[late] = decay * residual[late] + gain * rows[:, columns]
                model.residual = residual

    @property
    def keeps(self) -> bool:
        """Whether the vectors of late workers enter these workers' residuals; if not, they are lost."""
        return all(model.keeps for model in self.in_force.models)

    def _model(self, averaging: Averaging, layers: Sequence[int], workers: int) -> Sparsifier:
        """Return a new scheme for a number of workers and a piece of the model, the tensors `layers`."""
        replicas = self._replicas
        given = {
            "layers": [replicas.layers[one] for one in layers],
            "true_shapes": [replicas.true_shapes[one] for one in layers if replicas.true_shapes],
            "scale": replicas.scale,
            "seed": replicas.seed,
            **averaging.options,
        }
        size = sum(replicas.tensors[one][1] for one in layers)
        return sparsifier_models.create(averaging.scheme, workers, size, averaging.density, **given)


def _exchange_among(model: Sparsifier, fewer: Sparsifier, rows: Values, active: Index) -> Exchange:
    """Exchange vectors of the `active` workers by the scheme `fewer`; the scheme `model` has all workers' residuals."""
    fewer.density, fewer.iteration = model.density, model.iteration
    kept = ("residual", *model.traits.auxiliary_state) if model.keeps else ()
    for name in kept:
        setattr(fewer, name, getattr(model, name)[active])
    exchange = fewer.exchange(rows)
    for name in kept:
        of_all = getattr(model, name).copy()
        of_all[active] = getattr(fewer, name)
        setattr(model, name, of_all)
    model.iteration += 1
    return exchange


def _fragment_pieces(replicas: Replicas, fragment: Fragment, bucket: float | None) -> Iterator[tuple[list[int], slice]]:
    """Yield the tensor numbers of each piece of a fragment, and its columns within the fragment."""
    piece: list[int] = []
    begin = end = 0
    for number in fragment.layers:
        size = replicas.tensors[number][1]
        if piece and bucket is not None and FLOAT_BYTES * replicas.scale * (end + size - begin) > bucket:
            yield piece, slice(begin, end)
            piece, begin = [], end
        piece.append(number)
        end += size
    yield piece, slice(begin, end)


def broadcast_tensors(
    replicas: Replicas, what: str, width: float, algorithm: str, workers: int, begin: int
) -> list[Sync]:
    """Return a broadcast from the first worker for each tensor, with `width` bytes per parameter."""
    chosen = registry.collective_by_algorithm("broadcast", algorithm)
    schedules = (chosen.schedule(workers, width * size * replicas.scale) for _, size in replicas.tensors)
    return [Sync(what, schedule, (), begin) for schedule in schedules]
