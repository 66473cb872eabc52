"""Exchanges of sampled gradients like those of a job, where no formula of the density says what is sent.

Thresholds, unions and fill-in follow the gradients, those before as much as those of the moment, by the residual. So a
job is rehearsed: synthetic gradients with the layers of the model, on a sample of its entries, are drawn once, and all
schemes that follow them exchange them side by side, iteration after iteration, with their own options. What counts is
the last half, in whole periods: by then all have settled that do, by the rule of `simnet.training.job.steady`, which
judges it.

How far a job is from that whose gradients nobody knows was measured: `volumes.csv` has, scheme by scheme, what messages
and kernels of jobs of other gradients and other numbers of entries took, also at their beginning, over what those of
their rehearsal did. Where many workers keep few entries, a rehearsal has not as many for each pair of workers as the
model; so the file also has what rehearsals of more entries took over those of few, and what is expected is corrected by
that. `python benchmarks/expectations.py --volumes FILE` makes the file.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from simnet import sparsifier_models
from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.cost_models.costs.devices import DeviceOp
from simnet.cost_models.costs.models import load_model
from simnet.cost_models.evidence.intervals import factor_for_another
from simnet.schedule import Schedule
from simnet.sparsifier_models.base import Sparsifier
from simnet.sparsifier_models.samples import sample_size
from simnet.sparsifier_models.two_level import without_network
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.traces import GradientSource, synthetic
from simnet.traces.source import Values, tensor_options
from simnet.training.job.steady import detect_steady_part, last_half

KEPT_EACH = 10
"""Entries that a worker of a rehearsal keeps for each worker, where there is time: regions of fewer are less even."""

# Entries of a worker where the scheme keeps k of any gradient, and where it follows them; of all workers together, and
# twice as many where a worker does not keep `KEPT_EACH`.
_SMALL, _LEAST, _TOGETHER = 64, 4096, 2**18
# Iterations of a rehearsal, and entries of all workers and iterations.
_MOST_ITERATIONS, _LEAST_ITERATIONS, _ENTRIES = 192, 96, 2**18 * 288
# How far the share that a sample keeps may be from the density where nothing but that matters.
_ROUNDED = 0.01
_LAYERS = 8
_LARGEST_SAMPLE = 2**26


class Sample(NamedTuple):
    """What an exchange sends and runs, found by doing it on a sample of gradients."""

    schedule: Schedule
    kernels: tuple[DeviceOp, ...]

    def part(self, share: float) -> Sample:
        """Return the exchange of a share of the gradient, taken to be like the whole."""
        return Sample(self.schedule.scaled(share), tuple(one.scaled(share) for one in self.kernels))


Part: TypeAlias = Literal["messages", "kernels"]
"""What of an exchange follows the gradients."""


class Ratio(NamedTuple):
    """What jobs took over what their rehearsals did.

    Parameters
    ----------
    middle : float
        What is expected: 1 where rehearsals keep enough entries.
    least, most : float
        The 5 and 95 % quantiles, the middle between them, as far as those of a further cell of workers and density go.
    """

    middle: float
    least: float
    most: float


def ratio(scheme: str, part: Part, kept_each: float = math.inf) -> Ratio:
    """Return how far jobs of other gradients, and of all entries of the model, are from a rehearsal.

    Examples
    --------
    >>> enough, few = (ratio("oktopk", "messages", kept) for kept in (100, 2))
    >>> enough.middle, enough.least < 1 < enough.most, few.middle < 1
    (1.0, True, True)
    """
    rows = _volumes()
    rows = rows[rows["part"] == part]
    if scheme in rows["scheme"].to_numpy():
        rows = rows[rows["scheme"] == scheme]
    most_kept = rows["kept_each"].max()
    enough, few = rows[rows["kept_each"] == most_kept], rows[rows["kept_each"] < most_kept]
    least, most = min(float(enough["least"].min()), 1.0), max(float(enough["most"].max()), 1.0)
    if kept_each >= most_kept or few.empty:
        return Ratio(1.0, least, most)
    known = few.groupby("kept_each").agg({"middle": "median", "least": "min", "most": "max"})
    at = np.log([*known.index, most_kept])
    logs = {name: float(np.interp(math.log(kept_each), at, [*np.log(known[name]), 0.0])) for name in known.columns}
    # The two are independent of each other.
    below = math.hypot(math.log(least), logs["middle"] - logs["least"])
    above = math.hypot(math.log(most), logs["most"] - logs["middle"])
    return Ratio(math.exp(logs["middle"]), math.exp(logs["middle"] - below), math.exp(logs["middle"] + above))


def kept_each(point: OperatingPoint) -> float:
    """Return how many entries a worker of a rehearsal keeps for each worker; infinite if they are all of the model's.

    Examples
    --------
    >>> kept_each(OperatingPoint(8, 25_557_032, 0.01, 1e-3, 1.25e9)) > KEPT_EACH
    True
    """
    entries = _entries(point)
    return math.inf if entries >= int(point.parameters) else entries * float(point.density) / int(point.workers)


@cache
def _volumes() -> pd.DataFrame:
    text = (files("simnet.cost_models.calibration.measured") / "volumes.csv").read_text(encoding="utf-8")
    rows = pd.read_csv(io.StringIO(text))
    wider = rows["cells"].map(factor_for_another)
    known = rows["kept_each"] < rows["kept_each"].max()
    middle = rows["middle"].where(known, 1.0)
    return rows.assign(**{end: middle * (rows[end] / middle) ** wider for end in ("least", "most")})


class SampledExchanges:
    """SampledExchanges of jobs, each made once, and kept.

    Parameters
    ----------
    among : sequence of Choice
        Those that follow the gradients are rehearsed side by side, whichever is asked for.
    seed : int
        Of the gradients.
    shape : str, optional
        The model whose layers gradients have; where it is of another size, or omitted, they have eight layers alike.
    size : (int, int), optional
        Entries of each worker, and iterations; by default as many as there is time for. Of a size that is given
        nothing is corrected.
    """

    def __init__(
        self,
        among: Sequence[Choice] = (),
        seed: int = 0,
        shape: str | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        self._among = [one for one in among if one.follows_gradients]
        self._seed, self._shape, self._size = seed, shape, size
        self._known: dict[tuple[int, int, float], dict[str, tuple[Sample, ...] | InputError]] = {}
        # Why exchanges had not settled in the end, by labels.
        self._unsettled: dict[tuple[int, int, float], dict[str, str]] = {}

    def of(self, choice: Choice, point: OperatingPoint) -> tuple[Sample, ...]:
        """Return exchanges of a settled period, of the whole gradient; of a choice that follows none, one exchange."""
        key = int(point.workers), int(point.parameters), float(point.density)
        known = self._known.setdefault(key, {})
        if choice.label not in known:
            if choice.follows_gradients:
                together = [one for one in self._among if one.label != choice.label and one.label not in known]
                among = [choice, *together]
                made, judged = _rehearsed(among, point, self._size or _size(point), self._seed, self._shape)
                self._unsettled.setdefault(key, {}).update(judged)
                known |= {one.label: _corrected(one, made[one.label], self.kept_each(point)) for one in among}
            else:
                known[choice.label] = (sample(choice, point, self._seed, self._shape),)
        found = known[choice.label]
        if isinstance(found, InputError):
            raise found
        return found

    def unsettled(self, among: Sequence[Choice], point: OperatingPoint) -> dict[str, str]:
        """Return which choices have not settled when their sample ends, by `simnet.training.job.steady`, and why."""
        for one in among:
            if one.follows_gradients:
                # Who asks for the time of one that cannot be rehearsed is told why.
                with suppress(InputError):
                    self.of(one, point)
        key = int(point.workers), int(point.parameters), float(point.density)
        labels = {one.label for one in among}
        return {label: why for label, why in self._unsettled.get(key, {}).items() if label in labels}

    def kept_each(self, point: OperatingPoint) -> float:
        """Return the entries that a worker keeps for each worker; infinite if they need no correction."""
        return math.inf if self._size else kept_each(point)


def sample(choice: Choice, point: OperatingPoint, seed: int = 0, shape: str | None = None) -> Sample:
    """Exchange a sample of synthetic gradients, and return what that sends and runs.

    Bytes and entries count for the whole gradient.
    """
    scheme, rows = first_rows(choice, point, seed, shape, _SMALL)
    found = scheme.exchange(rows)
    # Asked is about the model, with which nobody trains here: what whole entries of the sample are off by is left out.
    schedule = found.schedule if choice.follows_gradients else found.schedule.scaled(1 / scheme.selected_share)
    return Sample(schedule, tuple(found.kernels))


def first_rows(
    choice: Choice, point: OperatingPoint, seed: int = 0, shape: str | None = None, least: int = _LEAST
) -> tuple[Sparsifier, Values]:
    """Return the scheme of a choice and the first gradients that it exchanges, float32 of shape (P, entries)."""
    parameters, density = int(point.parameters), float(point.density)
    entries = _entries(point) if choice.kernel_calls is None else min(least, parameters)
    layers = (shape, _LAYERS) if choice.kernel_calls is None else (None, 1)
    # Parts of a sample that are not of one size come out of step more than those of the model.
    ranks = without_network(choice.candidate.scheme, choice.candidate.options)[1]
    while True:
        if entries < parameters:
            entries = min(sample_size(entries / ranks, density) * ranks, parameters)
        source = synthetic(**_gradients(point, entries, seed, *layers))
        made = _created(choice, source, density, seed)
        enough = choice.follows_gradients or abs(made.selected_share - 1) <= _ROUNDED or entries == parameters
        if enough or 2 * int(point.workers) * entries > _LARGEST_SAMPLE:
            return made, source.gradients(0)
        entries = min(2 * entries, parameters)


def _rehearsed(
    among: Sequence[Choice], point: OperatingPoint, size: tuple[int, int], seed: int, shape: str | None
) -> tuple[dict[str, tuple[Sample, ...] | InputError], dict[str, str]]:
    """Return the exchanges of the last half, or what is wrong, by choice; and why some had not settled."""
    entries, iterations = size
    source = synthetic(**_gradients(point, entries, seed, shape))
    models: dict[str, Sparsifier] = {}
    found: dict[str, tuple[Sample, ...] | InputError] = {}
    for one in among:
        try:
            models[one.label] = _created(one, source, float(point.density), seed)
        except InputError as error:
            found[one.label] = error
    kept: dict[str, list[Sample]] = {label: [] for label in models}
    sent: dict[str, list[tuple[float, ...]]] = {label: [] for label in models}
    choices = {one.label: one for one in among}
    for iteration in track_progress(range(iterations)):
        gradients = source.gradients(iteration)
        for label, made in models.items():
            exchange = made.exchange(gradients)
            stats = exchange.stats
            ratio_asked = float(np.mean(stats.get("density_ratio", math.nan)))
            sent[label].append((float(np.sum(stats["bytes_sent"])), ratio_asked, float(np.mean(stats["build_up"]))))
            if iteration >= last_half(iterations, choices[label].period):
                kept[label].append(Sample(exchange.schedule, tuple(exchange.kernels)))
    unsettled = {}
    for label, rows in sent.items():
        columns = dict(zip(("bytes_sent_B", "density_ratio", "build_up"), np.array(rows).T, strict=True))
        judged = detect_steady_part(columns, iterations, choices[label].period, float(point.density))
        if judged.unsettled:
            unsettled[label] = judged.unsettled
    return found | {label: tuple(samples) for label, samples in kept.items()}, unsettled


def _corrected(
    choice: Choice, made: tuple[Sample, ...] | InputError, kept_each: float
) -> tuple[Sample, ...] | InputError:
    """Return exchanges as they are expected with as many entries for each pair of workers as the model has."""
    if isinstance(made, InputError) or kept_each >= KEPT_EACH:
        return made
    middle = ratio(choice.candidate.scheme, "messages", kept_each).middle
    return tuple(one._replace(schedule=one.schedule.scaled(middle)) for one in made)


def _size(point: OperatingPoint) -> tuple[int, int]:
    """Return how many entries of each worker are exchanged, and how often."""
    entries = _entries(point)
    return entries, int(np.clip(_ENTRIES // (int(point.workers) * entries), _LEAST_ITERATIONS, _MOST_ITERATIONS))


def _entries(point: OperatingPoint) -> int:
    """Return how many entries of each worker are exchanged."""
    workers, parameters, density = int(point.workers), int(point.parameters), float(point.density)
    even = min(math.ceil(KEPT_EACH * workers / density), 2 * _TOGETHER // workers)
    wanted = min(parameters, max(_LEAST, _TOGETHER // workers, even, math.ceil(16 / density)))
    if workers * wanted > _LARGEST_SAMPLE:
        raise InputError(
            f"{workers} workers with a density of {density:g} need a sample of {workers * wanted:.3g} entries, at "
            f"most {_LARGEST_SAMPLE:.3g} are taken; use the closed forms, fewer workers or a higher density",
            file="simnet choose",
        )
    return wanted


def _gradients(
    point: OperatingPoint, entries: int, seed: int, shape: str | None, alike: int = _LAYERS
) -> dict[str, Any]:
    """Return the arguments of `synthetic` for so many entries, of a model or of so many layers alike."""
    parameters = int(point.parameters)
    layers: str | list[tuple[str, tuple[int, ...]]]
    if shape is not None and load_model(shape).parameters == parameters:
        layers = shape
    else:
        count = min(alike, parameters)
        ends = [number * parameters // count for number in range(count + 1)]
        layers = [(f"layer {number}", (last - first,)) for number, (first, last) in enumerate(pairwise(ends))]
    return {"layers": layers, "workers": int(point.workers), "scale": parameters / entries, "seed": seed}


def _created(choice: Choice, source: GradientSource, density: float, seed: int) -> Sparsifier:
    """Return the scheme of a choice for gradients."""
    try:
        return sparsifier_models.create(
            choice.candidate.scheme,
            source.workers,
            source.parameters,
            density,
            scale=source.scale,
            seed=seed,
            **tensor_options(source),
            **choice.candidate.options,
        )
    except ValueError as error:
        raise InputError(f"{choice.label}: {error}", file="simnet choose") from None
