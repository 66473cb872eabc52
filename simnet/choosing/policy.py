"""A policy table: which exchange at which density, by latency and bandwidth, to be looked up while a job runs.

The plane of latency and bandwidth is cut into cells, evenly in logarithms. A cell has the choice that is right at its
centre: the fastest exchange or, with several densities, the density that the multi-objective choice of `simnet.moo`
takes at the gains of these gradients, with the exchange that is fastest there. What that loses inside cells is measured
at random points when the table is made, and stands in it.

The file is JSON: edges of the cells in SI units, choices, and a matrix with a row per latency and a column per
bandwidth, whose numbers say which choice, from 0.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

import sparsifier_models
from simnet import moo
from simnet.checks import is_number
from simnet.choosing.asking import Question
from simnet.choosing.choices import Choice
from simnet.choosing.point import Point
from simnet.errors import InputError, nearest
from simnet.reading import read_text
from simnet.rng import stream
from simnet.schedule import Floats
from simnet.traces import GradientSource

VERSION = 1
"""The version of the file that is written and read."""

MAX_BYTES = 8 * 2**20
"""The largest file that is read."""

MOST_CELLS = 40_000
"""The most cells of a table that is made."""

PROBED = 2000
"""Random points at which the loss inside cells is looked at."""

TRIES = 10
"""Iterations over which a gain is averaged."""

LARGEST_SAMPLE = 2**24
"""The most entries of gradients of all workers together, of which gains are measured."""

_NO_LATENCY = 1e-5

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Text = Annotated[str, Field(max_length=300)]


class _Part(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Entry(_Part):
    """A choice of a table.

    Parameters
    ----------
    label : str
        Its name for people.
    scheme, options : str, dict
        Of the sparsifier.
    kind : {"dense", "half", "sparse"}
        What is sent.
    density : float
        Fraction that is kept; 1 of the whole gradient.
    """

    label: _Text
    scheme: _Text
    options: Annotated[dict[_Text, _Text | int | float | bool], Field(max_length=50)] = {}
    kind: Literal["dense", "half", "sparse"]
    density: Annotated[float, Field(gt=0, le=1)]

    @pydantic.field_validator("scheme")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in sparsifier_models.names():
            raise ValueError(f"there is no scheme {name!r}; {nearest(name, sparsifier_models.names())}")
        return name


class Gain(_Part):
    """The mean compression gain of an exchange at a density, over iterations from the first to before the second."""

    exchange: _Text
    density: Annotated[float, Field(gt=0, le=1)]
    gain: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    iterations: tuple[int, int]


class Gains(_Part):
    """On what gains were measured, and what they are."""

    source: _Text
    workers: Annotated[int, Field(ge=1)]
    entries: Annotated[int, Field(ge=1)]
    of: Annotated[tuple[Gain, ...], Field(max_length=10_000)]


class Loss(_Part):
    """By how much the table is slower than the exact choice, at random points inside its cells.

    Parameters
    ----------
    points : int
        How many.
    mean, worst : float
        As a fraction of the fastest at the density that the table has there.
    latency_s, bandwidth_B_per_s : float
        Where it is worst.
    same_exchange, same_density : float
        In which share of the points the exact choice is the same.
    """

    points: Annotated[int, Field(ge=1)]
    mean: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    worst: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    latency_s: _Positive
    bandwidth_B_per_s: _Positive  # noqa: N815
    same_exchange: _Share
    same_density: _Share


class MadeFor(_Part):
    """What a table was made for."""

    title: _Text
    workers: Annotated[int, Field(ge=1)]
    parameters: Annotated[int, Field(ge=1)]
    gpus_per_node: Annotated[int, Field(ge=1)] = 1
    device: _Text
    method: _Text
    densities: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1, max_length=1000)]
    weights: moo.Weights | None = None
    seed: Annotated[int, Field(ge=0)] = 0


class Edges(_Part):
    """Where cells begin and end, ascending; one more than there are cells."""

    latency_s: Annotated[tuple[_Positive, ...], Field(min_length=2, max_length=10_000)]
    bandwidth_B_per_s: Annotated[tuple[_Positive, ...], Field(min_length=2, max_length=10_000)]  # noqa: N815

    @pydantic.field_validator("latency_s", "bandwidth_B_per_s")
    @classmethod
    def _ascend(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if any(later <= earlier for earlier, later in itertools.pairwise(values)):
            raise ValueError("must ascend")
        return values


class PolicyFile(_Part):
    """The file as it is written."""

    version: Literal[1]
    made_for: MadeFor
    edges: Edges
    choices: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=1000)]
    gains: Gains | None = None
    regret: Loss | None = None
    matrix: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...]

    @pydantic.model_validator(mode="after")
    def _fits(self) -> PolicyFile:
        rows, columns = len(self.edges.latency_s) - 1, len(self.edges.bandwidth_B_per_s) - 1
        if len(self.matrix) != rows or any(len(row) != columns for row in self.matrix):
            raise ValueError(f"matrix must have {rows} rows of {columns} numbers, one less than there are edges")
        most = max(max(row) for row in self.matrix)
        if most >= len(self.choices):
            raise ValueError(f"matrix has the number {most}, but there are {len(self.choices)} choices, from 0")
        return self


class Found(NamedTuple):
    """What a table says of a state of the network.

    Parameters
    ----------
    entry : Entry
        The choice.
    outside : str
        In which respect the state is outside the table, whose nearest cell was taken; "" if it is inside.
    """

    entry: Entry
    outside: str


@dataclass(frozen=True)
class PolicyTable:
    """A policy table.

    Parameters
    ----------
    file : PolicyFile
        What stands in it.
    """

    file: PolicyFile
    _matrix: NDArray[np.intp] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_matrix", np.array(self.file.matrix, dtype=np.intp))

    @property
    def latency(self) -> Floats:
        """Edges of the cells [s]."""
        return np.array(self.file.edges.latency_s)

    @property
    def bandwidth(self) -> Floats:
        """Edges of the cells [byte/s]."""
        return np.array(self.file.edges.bandwidth_B_per_s)

    def lookup(self, latency: float, bandwidth: float) -> Found:
        """Return the choice for a state of the network; outside the table that of the nearest cell.

        Parameters
        ----------
        latency, bandwidth : float
            [s] >= 0, [byte/s] > 0.

        Raises
        ------
        ValueError
            If one of them is no such number.
        """
        if not is_number(latency) or not 0 <= latency < math.inf:
            raise ValueError(f"latency must be a number of seconds >= 0 and finite, got {latency!r}")
        if not is_number(bandwidth) or not 0 < bandwidth < math.inf:
            raise ValueError(f"bandwidth must be a number of byte/s > 0 and finite, got {bandwidth!r}")
        said = []
        for name, value, edges in (("latency", latency, self.latency), ("bandwidth", bandwidth, self.bandwidth)):
            if value < edges[0]:
                said.append(f"{name} below the table")
            elif value > edges[-1]:
                said.append(f"{name} above the table")
        which = int(self.which(np.array([latency]), np.array([bandwidth]))[0])
        return Found(self.file.choices[which], ", ".join(said))

    def which(self, latency: Floats, bandwidth: Floats) -> NDArray[np.intp]:
        """Return the numbers of the choices for arrays of states, which broadcast."""
        # Of the inner edges alone, so that what is outside falls into the nearest cell.
        row = np.searchsorted(self.latency[1:-1], latency, side="right")
        column = np.searchsorted(self.bandwidth[1:-1], bandwidth, side="right")
        return np.asarray(self._matrix[row, column], dtype=np.intp)

    def shares(self) -> dict[str, float]:
        """Return the share of the cells of each choice, by its name and density, the largest first."""
        counts = np.bincount(self._matrix.ravel(), minlength=len(self.file.choices)) / self._matrix.size
        order = np.argsort(-counts, kind="stable").tolist()
        return {_named(self.file.choices[one]): float(counts[one]) for one in order}

    def json(self) -> str:
        """Return the file: a line per choice and per row of the matrix."""
        shown = self.file.model_dump(mode="json")
        if self.file.made_for.weights is not None:
            shown["made_for"]["weights"] = self.file.made_for.weights._asdict()
        parts = []
        for name, value in shown.items():
            if name in ("choices", "matrix"):
                listed = ",\n".join(f"    {json.dumps(one)}" for one in value)
                text = f"[\n{listed}\n  ]"
            else:
                text = _lines(value)
            parts.append(f'  "{name}": {text}')
        return "{\n" + ",\n".join(parts) + "\n}\n"


def make(
    question: Question,
    latency: tuple[float, float] | None = None,
    bandwidth: tuple[float, float] | None = None,
    *,
    cells: int = 24,
    densities: Sequence[float] = (),
    weights: moo.Weights | None = None,
    seed: int = 0,
) -> PolicyTable:
    """Make the table of a question.

    Parameters
    ----------
    question : Question
        Whose clock heeds latency, bandwidth and density.
    latency, bandwidth : (float, float), optional
        Ranges [s], [byte/s]; by default those of the question's trajectory and a quarter beyond, else from a tenth to
        ten times its point.
    cells : int
        Along each axis, >= 1.
    densities : sequence of float
        Candidates; by default the one of the question.
    weights : Weights, optional
        The weighted choice among densities in place of the knee.
    seed : int
        Of gradients and of the points at which the loss is looked at.

    Raises
    ------
    InputError
        If the clock does not heed what it must, or a value is out of range.

    Examples
    --------
    >>> from simnet.choosing.asking import Given, from_flags
    >>> table = make(from_flags(Given(workers=8, model="resnet50")), cells=6)
    >>> table.lookup(1e-4, 1.25e9).entry.label, table.lookup(1e-2, 1.25e9).entry.label
    ('ART-ring', 'AG-Topk')
    >>> table.lookup(9.0, 1.25e9).outside
    'latency above the table'
    """
    for name in ("latency", "bandwidth"):
        if name not in question.varies:
            raise InputError(f"cannot go over {name}: {question.method} does not heed it", file="--export")
    if int(question.point.workers) < 2:
        raise InputError(f"must be at least 2 for a policy table, got {question.point.workers}", file="--workers")
    if cells < 1 or cells**2 > MOST_CELLS:
        raise InputError(f"must be from 1 to {math.isqrt(MOST_CELLS)} for a table, got {cells}", file="--cells")
    rates = tuple(densities) or (float(question.point.density),)
    if len(set(rates)) < len(rates):
        raise InputError("must be no two alike", file="--ratios")
    edges = Edges(
        latency_s=_edges(latency or _range(question, "latency"), cells),
        bandwidth_B_per_s=_edges(bandwidth or _range(question, "bandwidth"), cells),
    )
    exact = Exact(question, rates, weights, seed)
    row, column = (_centres(np.array(one)) for one in (edges.latency_s, edges.bandwidth_B_per_s))
    grid = np.meshgrid(row, column, indexing="ij")
    choice, rate = (one.reshape(cells, cells) for one in exact(grid[0].ravel(), grid[1].ravel()))
    pairs, matrix = _numbered(question, rates, choice, rate)
    point = question.point
    file = PolicyFile(
        version=1,
        made_for=MadeFor(
            title=_clean(question.title),
            workers=int(point.workers),
            parameters=int(point.parameters),
            gpus_per_node=point.per_node,
            device=_clean(question.device),
            method=_clean(question.method),
            densities=rates,
            weights=weights,
            seed=seed,
        ),
        edges=edges,
        choices=tuple(entry(question.among[one], density) for one, density in pairs),
        matrix=tuple(tuple(one) for one in matrix.tolist()),
    )
    loss = _loss(PolicyTable(file), pairs, exact, seed)
    return PolicyTable(file.model_copy(update={"regret": loss, "gains": exact.gains()}))


def entry(choice: Choice, density: float) -> Entry:
    """Return a choice as it stands in a table."""
    candidate = choice.candidate
    kept = density if choice.kind == "sparse" else 1.0
    options: dict[str, Any] = dict(candidate.options)
    return Entry(label=choice.label, scheme=candidate.scheme, options=options, kind=choice.kind, density=kept)


class Exact:
    """The exact choice at states of the network: place among the exchanges, and place among the densities.

    Parameters
    ----------
    question : Question
        What is asked.
    densities : sequence of float
        Candidates.
    weights : Weights, optional
        In place of the knee.
    seed : int
        Of the gradients.
    """

    def __init__(
        self, question: Question, densities: Sequence[float], weights: moo.Weights | None = None, seed: int = 0
    ) -> None:
        self.question, self.densities, self.weights, self.seed = question, tuple(densities), weights, seed
        self._gains: dict[tuple[str, float], float] = {}
        self._of: dict[tuple[object, ...], float] = {}
        self._source: GradientSource | None = None

    def times(self, latency: Floats, bandwidth: Floats) -> tuple[Floats, Floats]:
        """Return seconds to communicate and to select, each of shape (exchanges, densities, states)."""
        column = np.array(self.densities)[:, np.newaxis]
        where: Point = self.question.point._replace(latency=latency, bandwidth=bandwidth, density=column)
        shape = (len(self.densities), len(latency))
        found = [self.question.clock(one, where) for one in self.question.among]
        communicate = np.stack([np.broadcast_to(one.communicate, shape) for one in found])
        return communicate, np.stack([np.broadcast_to(one.select, shape) for one in found])

    def __call__(self, latency: Floats, bandwidth: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the places of the exchanges and of the densities, each of shape (states,)."""
        communicate, select = self.times(latency, bandwidth)
        fastest = (communicate + select).argmin(axis=0)
        states = np.arange(len(latency))
        if len(self.densities) == 1:
            return fastest[0], np.zeros(len(latency), dtype=np.intp)
        rates = np.zeros(len(latency), dtype=np.intp)
        for state in states:
            places = fastest[:, state].tolist()
            gain = [self._gain(place, density) for place, density in zip(places, self.densities, strict=True)]
            of = (places, range(len(places)), state)
            rates[state] = moo.choose(gain, select[of], communicate[of], self.weights)
        return fastest[rates, states], rates

    def gains(self) -> Gains | None:
        """Return the gains that were needed; None if there were none."""
        if self._source is None:
            return None
        listed = [
            Gain(exchange=label, density=density, gain=float(f"{gain:.6g}"), iterations=measured_at(density))
            for (label, density), gain in sorted(self._gains.items())
        ]
        source = self._source
        return Gains(
            source=_clean(self.question.gradients_name),
            workers=source.workers,
            entries=source.parameters,
            of=tuple(listed),
        )

    def _gain(self, place: int, density: float) -> float:
        choice = self.question.among[place]
        if choice.kind != "sparse":
            # What half precision rounds off is less than 1e-6 of the squares.
            return 1.0
        key = (choice.label, density)
        if key not in self._gains:
            # Over which collective values go makes no difference to what is kept.
            options = {name: one for name, one in choice.candidate.options.items() if name not in _WHERE}
            same = (choice.candidate.scheme, tuple(sorted(options.items())), density)
            if same not in self._of:
                self._of[same] = self._measured(choice, density)
            self._gains[key] = self._of[same]
        return self._gains[key]

    def _measured(self, choice: Choice, density: float) -> float:
        if self._source is None:
            if self.question.gradients is None:
                raise InputError("there are no gradients to measure gains on", file="--ratios")
            self._source = self.question.gradients()
        source = self._source
        if source.workers * source.parameters > LARGEST_SAMPLE:
            found = f"{source.workers} x {source.parameters:,} entries of gradients"
            raise InputError(f"needs fewer than {found}, at most {LARGEST_SAMPLE:,} are tried", file="--ratios")
        try:
            model = sparsifier_models.create(
                choice.candidate.scheme,
                source.workers,
                source.parameters,
                density,
                scale=source.scale,
                seed=self.seed,
                layers=tuple(entries for _, entries in source.layers),
                **choice.candidate.options,
            )
        except ValueError as error:
            raise InputError(f"{choice.label}: {error}", file="--ratios") from None
        seen = []
        first, end = measured_at(density)
        for iteration in range(end):
            model.iteration = iteration
            exchange = model.exchange(source.gradients(iteration))
            if iteration >= first:
                seen.append(float(np.asarray(exchange.stats["gain"])))
        return math.fsum(seen) / len(seen)


_WHERE = ("allgather", "collective")


def measured_at(density: float) -> tuple[int, int]:
    """Return from which iteration to before which one a gain is measured.

    Residuals grow until what is sent balances what is new, which takes the longer the less is sent.

    Examples
    --------
    >>> measured_at(0.1), measured_at(0.01), measured_at(1e-4)
    ((10, 20), (20, 30), (200, 210))
    """
    first = min(max(math.ceil(0.2 / density - 1e-9), 10), 200)
    return first, first + TRIES


def load_policy(path: str | Path) -> PolicyTable:
    """Read a table.

    Raises
    ------
    InputError
        If it cannot be read, is too large, no JSON, or a field of it is not as it must be.
    """
    name = str(path)
    text = read_text(Path(path), MAX_BYTES)
    try:
        loaded: Any = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no JSON: {error}", file=name) from None
    if not isinstance(loaded, dict) or "version" not in loaded:
        raise InputError("is no policy table: it has no version", file=name)
    if loaded["version"] != VERSION or not is_number(loaded["version"]):
        found = str(loaded["version"])[:40]
        raise InputError(f"must be {VERSION}, the version that is read, got {found}", file=name, field="version")
    try:
        return PolicyTable(PolicyFile.model_validate(loaded))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"there is no such field; {nearest(str(first['loc'][-1]), _siblings(first['loc']))}"
        raise InputError(message, file=name, field=where[:200] or None) from None


def _siblings(where: tuple[int | str, ...]) -> list[str]:
    """Return the fields that there are beside one."""
    parts: dict[str, type[_Part]] = {
        "made_for": MadeFor,
        "edges": Edges,
        "choices": Entry,
        "gains": Gains,
        "of": Gain,
        "regret": Loss,
    }
    above = [one for one in where[:-1] if isinstance(one, str)]
    return list(parts.get(above[-1] if above else "", PolicyFile).model_fields)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _edges(between: tuple[float, float], cells: int) -> tuple[float, ...]:
    """Return edges of cells, six digits each, so that the file says what was computed."""
    return tuple(float(f"{one:.6g}") for one in np.geomspace(*between, cells + 1))


def _centres(edges: Floats) -> Floats:
    return np.asarray(np.sqrt(edges[1:] * edges[:-1]))


def _range(question: Question, name: Literal["latency", "bandwidth"]) -> tuple[float, float]:
    """Return the range of an axis if none is asked for."""
    beyond = 10.0 if question.trajectory is None else 1.25
    seen = np.atleast_1d(getattr(question.point if question.trajectory is None else question.trajectory, name))
    # Of links without latency alone there is no range in logarithms.
    known = seen[seen > 0] if (seen > 0).any() else np.array([_NO_LATENCY])
    return float(known.min()) / beyond, float(known.max()) * beyond


def _numbered(
    question: Question, densities: Sequence[float], choice: NDArray[np.intp], rate: NDArray[np.intp]
) -> tuple[list[tuple[int, float]], NDArray[np.intp]]:
    """Return the pairs of exchange and density that occur, and the number of each cell's."""
    sparse = np.array([one.kind == "sparse" for one in question.among])
    # Whatever is asked for, the whole gradient is sent whole.
    density = np.where(sparse[choice], np.array(densities)[rate], 1.0)
    cells = list(zip(choice.ravel().tolist(), density.ravel().tolist(), strict=True))
    pairs = sorted(set(cells), key=lambda pair: (pair[0], -pair[1]))
    number = {pair: place for place, pair in enumerate(pairs)}
    matrix = np.array([number[pair] for pair in cells], dtype=np.intp).reshape(choice.shape)
    return pairs, matrix


def _loss(table: PolicyTable, pairs: Sequence[tuple[int, float]], exact: Exact, seed: int) -> Loss:
    """Compare a table with the exact choice at random points of it."""
    draws = stream(seed, "choose", "policy").random((2, PROBED))
    latency, bandwidth = (
        np.exp(np.log(edges[0]) + one * np.log(edges[-1] / edges[0]))
        for one, edges in zip(draws, (table.latency, table.bandwidth), strict=True)
    )
    lost, place, rate = lost_at(table, pairs, exact, latency, bandwidth)
    worst = int(lost.argmax())
    densities = np.array([density for _, density in pairs])
    chosen = table.which(latency, bandwidth)
    sparse = np.array([one.kind == "sparse" for one in exact.question.among])
    wanted = np.where(sparse[place], np.array(exact.densities)[rate], 1.0)
    return Loss(
        points=PROBED,
        mean=float(f"{lost.mean():.6g}"),
        worst=float(f"{lost[worst]:.6g}"),
        latency_s=float(f"{latency[worst]:.6g}"),
        bandwidth_B_per_s=float(f"{bandwidth[worst]:.6g}"),
        same_exchange=float((np.array([one for one, _ in pairs])[chosen] == place).mean()),
        same_density=float((densities[chosen] == wanted).mean()),
    )


def lost_at(
    table: PolicyTable, pairs: Sequence[tuple[int, float]], exact: Exact, latency: Floats, bandwidth: Floats
) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp]]:
    """Return by how much a table is slower than the fastest at its density, and the exact choices.

    Of the whole gradient, sent where the exact choice sends a part of it, it is that density's fastest.

    Returns
    -------
    lost : ndarray, shape (states,)
        As a fraction of the fastest.
    place, rate : ndarray of int, shape (states,)
        The exact exchange and density, as `Exact` returns them.
    """
    place, rate = exact(latency, bandwidth)
    communicate, select = exact.times(latency, bandwidth)
    seconds = communicate + select
    chosen = table.which(latency, bandwidth)
    exchange = np.array([one for one, _ in pairs])[chosen]
    known = {density: at for at, density in enumerate(exact.densities)}
    own = np.array([known.get(density, -1) for _, density in pairs])[chosen]
    own = np.where(own < 0, rate, own)
    states = np.arange(len(latency))
    least = seconds.min(axis=0)[own, states]
    return np.asarray(seconds[exchange, own, states] / least - 1), place, rate


def _named(one: Entry) -> str:
    return f"{one.label} at {100 * one.density:.3g} %" if one.kind == "sparse" else one.label


def _clean(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)[:300]


def _lines(value: Any) -> str:
    """Return JSON: a line per field of what has fields, lists on one line unless of what has fields."""
    if not isinstance(value, dict):
        return json.dumps(value)
    parts = []
    for name, one in value.items():
        if isinstance(one, list) and one and isinstance(one[0], dict):
            listed = ",\n".join(f"      {json.dumps(each)}" for each in one)
            parts.append(f'    "{name}": [\n{listed}\n    ]')
        else:
            parts.append(f'    "{name}": {json.dumps(one)}')
    return "{\n" + ",\n".join(parts) + "\n  }"
