"""A policy table: which exchange at which density, by latency and bandwidth, to be looked up while a job runs.

The plane of latency and bandwidth is cut into cells, evenly in logarithms. A cell has the choice that is right at its
centre: the fastest exchange or, with several densities, the density that the multi-objective choice of
`simnet.policies.moo` takes at the gains of these gradients, with the exchange that is fastest there. What that loses
inside cells is measured at random points when the table is made, and stands in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.base.rng import stream
from simnet.policies import moo
from simnet.sparsifier_models.two_level import PREFIX
from simnet.studies.choosing.choices import Choice
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.policy_file import Edges, Entry, Gain, Gains, Loss, MadeFor, PolicyTable
from simnet.studies.choosing.problem import Problem
from simnet.traces import GradientSource
from simnet.traces.source import tensor_options

MOST_CELLS = 40_000
"""The most cells of a table that is made."""

PROBED = 2000
"""Random points at which the loss inside cells is looked at."""

TRIES = 10
"""Iterations over which a gain is averaged."""

LARGEST_SAMPLE = 2**24
"""The most entries of gradients of all workers together, of which gains are measured."""

_NO_LATENCY = 1e-5
_WAY_OUT = "closed forms do, without --fabric and --simulate"


def make(
    problem: Problem,
    latency: tuple[float, float] | None = None,
    bandwidth: tuple[float, float] | None = None,
    *,
    cells: int = 24,
    densities: Sequence[float] = (),
    weights: moo.ObjectiveWeights | None = None,
    seed: int = 0,
) -> PolicyTable:
    """Make the table of a problem.

    Examples
    --------
    >>> from simnet.studies.choosing.problem import ChooseRequest, problem_from_flags
    >>> table = make(problem_from_flags(ChooseRequest(workers=8, model="resnet50")), cells=6)
    >>> table.lookup(1e-4, 1.25e9).entry.label, table.lookup(1e-2, 1.25e9).entry.label
    ('ART-ring', 'AG-Topk')
    >>> table.lookup(9.0, 1.25e9).outside
    'latency above the table'
    """
    for name in ("latency", "bandwidth"):
        if name not in problem.varies:
            raise InputError(f"cannot go over {name}: {problem.method} does not heed it; {_WAY_OUT}", file="--export")
    if int(problem.point.workers) < 2:
        raise InputError(f"must be at least 2 for a policy table, got {problem.point.workers}", file="--workers")
    if cells < 1 or cells**2 > MOST_CELLS:
        raise InputError(f"must be from 1 to {math.isqrt(MOST_CELLS)} for a table, got {cells}", file="--cells")
    rates = tuple(densities) or (float(problem.point.density),)
    if len(set(rates)) < len(rates):
        raise InputError("must be no two alike", file="--ratios")
    # Who reads the table at run time has no two levels.
    among = tuple(one for one in problem.among if not one.candidate.scheme.startswith(PREFIX))
    problem = replace(problem, among=among)
    edges = Edges(
        latency_s=edges_between(latency or _default_range(problem, "latency"), cells),
        bandwidth_B_per_s=edges_between(bandwidth or _default_range(problem, "bandwidth"), cells),
    )
    exact = Exact(problem, rates, weights, seed)
    row, column = (centres(np.array(one)) for one in (edges.latency_s, edges.bandwidth_B_per_s))
    grid = np.meshgrid(row, column, indexing="ij")
    choice, rate = (one.reshape(cells, cells) for one in exact(grid[0].ravel(), grid[1].ravel()))
    pairs, matrix = _number_pairs(problem, rates, choice, rate)
    point = problem.point
    table = PolicyTable(
        made_for=MadeFor(
            title=clean(problem.title),
            workers=int(point.workers),
            parameters=int(point.parameters),
            gpus_per_node=point.per_node,
            device=clean(problem.device.name),
            method=clean(problem.method),
            densities=rates,
            weights=weights,
            seed=seed,
        ),
        edges=edges,
        choices=tuple(entry(problem.among[one], density) for one, density in pairs),
        matrix=tuple(tuple(one) for one in matrix.tolist()),
    )
    return table.model_copy(update={"regret": _table_loss(table, pairs, exact, seed), "gains": exact.gains()})


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
    problem : Problem
        What is asked.
    densities : sequence of float
        Candidates.
    weights : Weights, optional
        In place of the knee.
    seed : int
        Of the gradients.
    """

    def __init__(
        self, problem: Problem, densities: Sequence[float], weights: moo.ObjectiveWeights | None = None, seed: int = 0
    ) -> None:
        self.problem, self.densities, self.weights, self.seed = problem, tuple(densities), weights, seed
        self._gains: dict[tuple[str, float], float] = {}
        self._of: dict[tuple[object, ...], float] = {}
        self._source: GradientSource | None = None

    def times(self, latency: Floats, bandwidth: Floats) -> tuple[Floats, Floats]:
        """Return seconds to communicate and to select, each of shape (exchanges, densities, states)."""
        column = np.array(self.densities)[:, np.newaxis]
        where: OperatingPoint = replace(self.problem.point, latency=latency, bandwidth=bandwidth, density=column)
        shape = (len(self.densities), len(latency))
        found = [self.problem.cost_model(one, where) for one in track_progress(self.problem.among, 0.5)]
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
        for state in track_progress(states):
            places = fastest[:, state].tolist()
            gain = [self._gain(place, density) for place, density in zip(places, self.densities, strict=True)]
            of = (places, range(len(places)), state)
            rates[state] = moo.choose_candidate(gain, select[of], communicate[of], self.weights)
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
            source=clean(self.problem.gradients_name),
            workers=source.workers,
            entries=source.parameters,
            of=tuple(listed),
        )

    def _gain(self, place: int, density: float) -> float:
        choice = self.problem.among[place]
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
            if self.problem.gradients is None:
                raise InputError("there are no gradients to measure gains on", file="--ratios")
            self._source = self.problem.gradients()
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
                **tensor_options(source),
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


def edges_between(between: tuple[float, float], cells: int) -> tuple[float, ...]:
    """Return edges of cells, six digits each, so that the file says what was computed."""
    return tuple(float(f"{one:.6g}") for one in np.geomspace(*between, cells + 1))


def centres(edges: Floats) -> Floats:
    """Return the centres of cells, in logarithms."""
    return np.asarray(np.sqrt(edges[1:] * edges[:-1]))


def _default_range(problem: Problem, name: Literal["latency", "bandwidth"]) -> tuple[float, float]:
    """Return the range of an axis if none is asked for."""
    beyond = 10.0 if problem.trajectory is None else 1.25
    seen = np.atleast_1d(getattr(problem.point if problem.trajectory is None else problem.trajectory, name))
    # Of links without latency alone there is no range in logarithms.
    known = seen[seen > 0] if (seen > 0).any() else np.array([_NO_LATENCY])
    return float(known.min()) / beyond, float(known.max()) * beyond


def _number_pairs(
    problem: Problem, densities: Sequence[float], choice: NDArray[np.intp], rate: NDArray[np.intp]
) -> tuple[list[tuple[int, float]], NDArray[np.intp]]:
    """Return the pairs of exchange and density that occur, and the number of each cell's."""
    sparse = np.array([one.kind == "sparse" for one in problem.among])
    # Whatever is asked for, the whole gradient is sent whole.
    density = np.where(sparse[choice], np.array(densities)[rate], 1.0)
    cells = list(zip(choice.ravel().tolist(), density.ravel().tolist(), strict=True))
    pairs = sorted(set(cells), key=lambda pair: (pair[0], -pair[1]))
    number = {pair: place for place, pair in enumerate(pairs)}
    matrix = np.array([number[pair] for pair in cells], dtype=np.intp).reshape(choice.shape)
    return pairs, matrix


def _table_loss(table: PolicyTable, pairs: Sequence[tuple[int, float]], exact: Exact, seed: int) -> Loss:
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
    sparse = np.array([one.kind == "sparse" for one in exact.problem.among])
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


def clean(text: str) -> str:
    """Return a text as it may stand in a file."""
    return "".join(one if one.isprintable() else "?" for one in text)[:300]
