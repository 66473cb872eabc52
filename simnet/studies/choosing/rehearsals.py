"""Rehearsals: what exchanges of gradients like those of a job send and run, where no formula of the density says it.

Thresholds, unions and fill-in follow the gradients, those before as much as those of the moment, by the residual. So a
job is rehearsed: synthetic gradients with the layers of the model, on a sample of its entries, are drawn once, and all
schemes that follow them exchange them side by side, iteration after iteration, with their own options. The last third
counts: residuals settle in about as many exchanges as it takes to send every entry once.

ExDyna and MiCRO move their threshold by half a per cent an iteration, and take a thousand iterations to get where they
belong. In the first half of a rehearsal they take steps ten times as large, from each worker's own k-th magnitude.

How far a job is from that whose gradients nobody knows was measured: `volumes.csv` has, scheme by scheme, what jobs of
other gradients and other numbers of entries sent, also at their beginning, over what their rehearsal did. `python
benchmarks/expectations.py --volumes FILE` makes it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import sparsifier_models
from simnet.base.errors import InputError
from simnet.base.progress import tracked
from simnet.costs.devices import DeviceOp
from simnet.costs.models import model
from simnet.schedule import Schedule
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.traces import GradientSource, synthetic
from sparsifier_models.base import Sparsifier
from sparsifier_models.partitioned import Partitioned

# Entries of a worker where the scheme keeps k of any gradient, and where it follows them; of all workers together, and
# twice as many where a worker does not keep so many for each other one: regions of few entries are less even.
_SMALL, _LEAST, _TOGETHER, _KEPT_OF_EACH = 64, 4096, 2**18, 10
# Iterations of a rehearsal, and entries of all workers and iterations.
_MOST_ITERATIONS, _LEAST_ITERATIONS, _ENTRIES = 192, 48, 2**18 * 288
_HURRY = 10
_LAYERS = 8
_LARGEST_SAMPLE = 2**26


class Sample(NamedTuple):
    """What an exchange sends and runs, found by doing it on a sample of gradients."""

    schedule: Schedule
    kernels: tuple[DeviceOp, ...]

    def part(self, share: float) -> Sample:
        """Return the exchange of a share of the gradient, taken to be like the whole."""
        return Sample(self.schedule.scaled(share), tuple(one.scaled(share) for one in self.kernels))


def volume(scheme: str) -> tuple[float, float]:
    """Return the least and the most that jobs sent over what rehearsals did: the 5 and 95 % quantiles, 1 between them.

    Of a scheme of which nothing was measured, those of all that were.

    Examples
    --------
    >>> least, most = volume("oktopk")
    >>> least < 1 < most
    True
    """
    rows = _volumes()
    least, most = rows.loc[[scheme]].iloc[0] if scheme in rows.index else (rows["least"].min(), rows["most"].max())
    return min(float(least), 1.0), max(float(most), 1.0)


@cache
def _volumes() -> pd.DataFrame:
    text = (files("simnet.calibration.measured") / "volumes.csv").read_text(encoding="utf-8")
    return pd.read_csv(io.StringIO(text), index_col="scheme")[["least", "most"]]


class Rehearsals:
    """Rehearsals of jobs, each made once, and kept.

    Parameters
    ----------
    among : sequence of Choice
        Those that follow the gradients are rehearsed side by side, whichever is asked for.
    seed : int
        Of the gradients.
    shape : str, optional
        The model whose layers gradients have; where it is of another size, or omitted, they have eight layers alike.
    """

    def __init__(self, among: Sequence[Choice] = (), seed: int = 0, shape: str | None = None) -> None:
        self._among = [one for one in among if one.settled]
        self._seed, self._shape = seed, shape
        self._known: dict[tuple[int, int, float], dict[str, tuple[Sample, ...] | InputError]] = {}

    def of(self, choice: Choice, point: OperatingPoint) -> tuple[Sample, ...]:
        """Return exchanges of a settled period, of the whole gradient; of a choice that follows none, one exchange.

        Parameters
        ----------
        choice : Choice
            The exchange.
        point : OperatingPoint
            The job; its fields are numbers.

        Raises
        ------
        InputError
            If the sample would not fit into memory, or the scheme cannot do with what it is given.
        """
        key = int(point.workers), int(point.parameters), float(point.density)
        known = self._known.setdefault(key, {})
        if choice.label not in known:
            if choice.settled:
                together = [one for one in self._among if one.label != choice.label and one.label not in known]
                known |= _rehearsed([choice, *together], point, self._seed, self._shape)
            else:
                known[choice.label] = (sample(choice, point, self._seed, self._shape),)
        found = known[choice.label]
        if isinstance(found, InputError):
            raise found
        return found

    def of_bucket(self, choice: Choice, point: OperatingPoint, buckets: int) -> Sample:
        """Return the exchange of one of some equal buckets, whose point is given.

        Where a scheme follows the gradients that is a part of the last exchange of the whole.

        Parameters
        ----------
        choice : Choice
            The exchange.
        point : OperatingPoint
            The bucket.
        buckets : int
            How many there are.
        """
        if not choice.settled:
            return sample(choice, point, self._seed, self._shape)
        workers, parameters, density = int(point.workers), int(point.parameters), float(point.density)
        whole = next(
            (one[1] for one in self._known if one[::2] == (workers, density) and -(-one[1] // buckets) == parameters),
            parameters * buckets,
        )
        return self.of(choice, point.at("parameters", whole))[-1].part(parameters / whole)


def sample(choice: Choice, point: OperatingPoint, seed: int = 0, shape: str | None = None) -> Sample:
    """Exchange a sample of synthetic gradients, and return what that sends and runs.

    Bytes and entries count for the whole gradient.

    Parameters
    ----------
    choice : Choice
        The exchange.
    point : OperatingPoint
        The job; its fields are numbers.
    seed, shape
        As of `Rehearsals`.

    Raises
    ------
    InputError
        As `Rehearsals.of` does.
    """
    entries = _entries(point) if choice.kernel_calls is None else min(_SMALL, int(point.parameters))
    layers = shape if choice.kernel_calls is None else None
    source = synthetic(**_gradients(point, entries, seed, layers), iterations=1)
    found = _created(choice, source, float(point.density), seed).exchange(source.gradients(0))
    return Sample(found.schedule, tuple(found.kernels))


def _rehearsed(
    among: Sequence[Choice], point: OperatingPoint, seed: int, shape: str | None
) -> dict[str, tuple[Sample, ...] | InputError]:
    """Return the exchanges of the last third of a rehearsal, or what is wrong, by choice."""
    workers, entries = int(point.workers), _entries(point)
    iterations = int(np.clip(_ENTRIES // (workers * entries), _LEAST_ITERATIONS, _MOST_ITERATIONS))
    source = synthetic(**_gradients(point, entries, seed, shape), iterations=iterations)
    models: dict[str, Sparsifier] = {}
    found: dict[str, tuple[Sample, ...] | InputError] = {}
    for one in among:
        try:
            models[one.label] = _created(one, source, float(point.density), seed, _hurried(one))
        except InputError as error:
            found[one.label] = error
    kept: dict[str, list[Sample]] = {label: [] for label in models}
    choices = {one.label: one for one in among}
    for iteration in tracked(range(iterations)):
        gradients = source.gradients(iteration)
        for label, made in models.items():
            if iteration == iterations // 2 and _hurried(choices[label]):
                own = _created(choices[label], source, float(point.density), seed)
                own.restore(made.save())
                models[label] = made = own
            exchange = made.exchange(gradients)
            if iteration >= iterations - _counted(choices[label], iterations):
                kept[label].append(Sample(exchange.schedule, tuple(exchange.kernels)))
    return found | {label: tuple(samples) for label, samples in kept.items()}


def _counted(choice: Choice, iterations: int) -> int:
    """Return how many exchanges count: the last third, in whole periods."""
    return max(iterations // 3 // choice.period, 1) * choice.period


def _entries(point: OperatingPoint) -> int:
    """Return how many entries of each worker are exchanged."""
    workers, parameters, density = int(point.workers), int(point.parameters), float(point.density)
    even = min(math.ceil(_KEPT_OF_EACH * workers / density), 2 * _TOGETHER // workers)
    wanted = min(parameters, max(_LEAST, _TOGETHER // workers, even, math.ceil(16 / density)))
    if workers * wanted > _LARGEST_SAMPLE:
        raise InputError(
            f"{workers} workers with a density of {density:g} need a sample of {workers * wanted:.3g} entries, at "
            f"most {_LARGEST_SAMPLE:.3g} are taken; use the closed forms, fewer workers or a higher density",
            file="simnet choose",
        )
    return wanted


def _gradients(point: OperatingPoint, entries: int, seed: int, shape: str | None) -> dict[str, Any]:
    """Return the arguments of `synthetic` for so many entries."""
    parameters = int(point.parameters)
    layers: str | list[tuple[str, tuple[int, ...]]]
    if shape is not None and model(shape).parameters == parameters:
        layers = shape
    else:
        count = min(_LAYERS, parameters)
        ends = [number * parameters // count for number in range(count + 1)]
        layers = [(f"layer {number}", (last - first,)) for number, (first, last) in enumerate(pairwise(ends))]
    return {"layers": layers, "workers": int(point.workers), "scale": parameters / entries, "seed": seed}


def _hurried(choice: Choice) -> dict[str, Any]:
    """Return the options by which a threshold gets faster where it belongs; none if the scheme has no such."""
    scheme = sparsifier_models.scheme(choice.candidate.scheme)
    if not issubclass(scheme, Partitioned):
        return {}
    own = scheme.option_type(**choice.candidate.options)
    steps = {name: getattr(own, name) ** _HURRY for name in ("raise_factor", "band_factor", "lower_factor")}
    return {**steps, "initial": "exact", "initial_threshold": None}


def _created(
    choice: Choice, source: GradientSource, density: float, seed: int, instead: Mapping[str, Any] | None = None
) -> Sparsifier:
    """Return the scheme of a choice for gradients, with some options in place of its own."""
    options = {**choice.candidate.options, **(instead or {})}
    try:
        return sparsifier_models.create(
            choice.candidate.scheme,
            source.workers,
            source.parameters,
            density,
            scale=source.scale,
            seed=seed,
            layers=source.layers,
            **options,
        )
    except ValueError as error:
        raise InputError(f"{choice.label}: {error}", file="simnet choose") from None
