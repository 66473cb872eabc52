"""A policy table: which exchange at which density, by latency and bandwidth, to be looked up while a job runs.

The plane of latency and bandwidth is cut into cells, evenly in logarithms. A cell has the choice that is right at its
centre: the fastest exchange or, with several densities, the density that the multi-objective choice of
`simnet.policies.moo` takes at the gains of these gradients, with the exchange that is fastest there. What that loses
inside cells is measured at random points when the table is made by closed forms, and stands in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.base.rng import stream
from simnet.policies import Candidate, moo
from simnet.scenario import Scenario
from simnet.sparsifier_models.two_level import PREFIX
from simnet.studies.choosing.choices import Choice, exchange_kind
from simnet.studies.choosing.cost_models import by_closed_form
from simnet.studies.choosing.flips import ClosedForms
from simnet.studies.choosing.maps import Map
from simnet.studies.choosing.policy_file import Edges, Entry, Gain, Gains, Loss, MadeFor, PolicyTable
from simnet.traces.source import tensor_options
from simnet.training.job.job import Job

PROBED = 2000
"""Random points at which the loss inside cells is looked at."""

TRIES = 10
"""Iterations over which a gain is averaged."""

LARGEST_SAMPLE = 2**24
"""The most entries of gradients of all workers together, of which gains are measured."""


def table_of_map(made: Map, loaded: Scenario, job: Job) -> PolicyTable:
    """Return the table of a map over latency and bandwidth whose cells were simulated."""
    order = ("latency", "bandwidth")
    seconds = made.seconds if made.y.name == "latency" else made.seconds.swapaxes(1, 2)
    levelled = [one.scheme.startswith(PREFIX) for one in made.among]
    # Who reads the table at run time has no two levels.
    which = np.where(np.array(levelled)[:, np.newaxis, np.newaxis], np.inf, seconds).argmin(axis=0)
    centres = {one.name: one.values for one in (made.x, made.y)}
    density = job.density[-1].end
    pairs, matrix = _number_pairs(made.among, (density,), which, np.zeros_like(which))
    return PolicyTable(
        made_for=_made_for(loaded, job, (density,), "simulated"),
        edges=_edges(*(centres[one] for one in order)),
        choices=tuple(entry(made.among[one], rate) for one, rate in pairs),
        matrix=tuple(tuple(one) for one in matrix.tolist()),
    )


def make(
    forms: ClosedForms,
    loaded: Scenario,
    job: Job,
    latency: Floats,
    bandwidth: Floats,
    *,
    densities: Sequence[float] = (),
    weights: moo.ObjectiveWeights | None = None,
) -> PolicyTable:
    """Return the table of closed forms whose cells have these centres [s], [byte/s]."""
    rates, seed = tuple(densities) or (float(forms.point.density),), loaded.config.seed
    if len(set(rates)) < len(rates):
        raise InputError("must be no two alike", file="--grid density")
    exact = Exact(forms, job, rates, weights, seed)
    grid = np.meshgrid(latency, bandwidth, indexing="ij")
    choice, rate = (one.reshape(grid[0].shape) for one in exact(grid[0].ravel(), grid[1].ravel()))
    among = [one.candidate for one in forms.among]
    pairs, matrix = _number_pairs(among, rates, choice, rate)
    table = PolicyTable(
        made_for=_made_for(loaded, job, rates, "closed forms", weights),
        edges=_edges(latency, bandwidth),
        choices=tuple(entry(among[one], density) for one, density in pairs),
        matrix=tuple(tuple(one) for one in matrix.tolist()),
    )
    return table.model_copy(
        update={"regret": _table_loss(table, pairs, exact, seed), "gains": exact.gains(loaded.name)}
    )


def _made_for(
    loaded: Scenario, job: Job, densities: tuple[float, ...], method: str, weights: moo.ObjectiveWeights | None = None
) -> MadeFor:
    return MadeFor(
        title=clean(f"{loaded.name}, {job.source.workers} workers"),
        workers=job.source.workers,
        parameters=int(job.source.true_parameters),
        device=clean(job.device.name),
        method=method,
        densities=densities,
        weights=weights,
        seed=loaded.config.seed,
    )


def _edges(latency: Floats, bandwidth: Floats) -> Edges:
    return Edges(latency_s=edges_around(latency), bandwidth_B_per_s=edges_around(bandwidth))


def edges_around(centres: Floats) -> tuple[float, ...]:
    """Return edges of cells by their centres, six digits each, so that the file says what was computed.

    Examples
    --------
    >>> edges_around(np.array([1.0, 4.0, 16.0]))
    (0.5, 2.0, 8.0, 32.0)
    """
    if len(centres) < 2 or centres[0] <= 0:
        raise InputError("needs two values or more above 0 for a table", file="--grid")
    inner = np.sqrt(centres[1:] * centres[:-1])
    ends = [centres[0] ** 2 / inner[0], *inner, centres[-1] ** 2 / inner[-1]]
    return tuple(float(f"{one:.6g}") for one in ends)


def entry(candidate: Candidate, density: float) -> Entry:
    """Return an exchange as it stands in a table."""
    kind = exchange_kind(candidate)
    kept = density if kind == "sparse" else 1.0
    options: dict[str, Any] = dict(candidate.options)
    return Entry(label=candidate.label, scheme=candidate.scheme, options=options, kind=kind, density=kept)


class Exact:
    """The exact choice at states of the network: place among the exchanges, and place among the densities.

    Parameters
    ----------
    forms : ClosedForms
        What is asked.
    job : Job
        Whose gradients and device they are.
    densities : sequence of float
        Candidates.
    weights : ObjectiveWeights, optional
        In place of the knee.
    seed : int
        Of the schemes.
    """

    def __init__(
        self,
        forms: ClosedForms,
        job: Job,
        densities: Sequence[float],
        weights: moo.ObjectiveWeights | None = None,
        seed: int = 0,
    ) -> None:
        self.forms, self.job, self.densities = forms, job, tuple(densities)
        self.weights, self.seed = weights, seed
        self._gains: dict[tuple[str, float], float] = {}
        self._of: dict[tuple[object, ...], float] = {}

    def times(self, latency: Floats, bandwidth: Floats) -> tuple[Floats, Floats, Floats]:
        """Return seconds of an iteration, to communicate and to select, each (exchanges, densities, states)."""
        column = np.array(self.densities)[:, np.newaxis]
        where = replace(self.forms.point, latency=latency, bandwidth=bandwidth, density=column)
        shape, exchange = (len(self.densities), len(latency)), by_closed_form(self.job.device)
        whole = [self.forms.model(one, where).seconds for one in track_progress(self.forms.among, 0.5)]
        parts = [exchange(one, where) for one in self.forms.among]
        found = (whole, [one.communicate for one in parts], [one.select for one in parts])
        seconds, communicate, select = (np.stack([np.broadcast_to(one, shape) for one in each]) for each in found)
        return seconds, communicate, select

    def __call__(self, latency: Floats, bandwidth: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the places of the exchanges and of the densities, each of shape (states,)."""
        seconds, communicate, select = self.times(latency, bandwidth)
        fastest = seconds.argmin(axis=0)
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

    def gains(self, name: str) -> Gains | None:
        """Return the gains that were needed; None if there were none."""
        if not self._gains:
            return None
        listed = [
            Gain(exchange=label, density=density, gain=float(f"{gain:.6g}"), iterations=measured_at(density))
            for (label, density), gain in sorted(self._gains.items())
        ]
        source = self.job.source
        return Gains(
            source=clean(f"those of {name}"), workers=source.workers, entries=source.parameters, of=tuple(listed)
        )

    def _gain(self, place: int, density: float) -> float:
        choice = self.forms.among[place]
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
        source = self.job.source
        if source.workers * source.parameters > LARGEST_SAMPLE:
            found = f"{source.workers} x {source.parameters:,} entries of gradients"
            raise InputError(f"needs fewer than {found}, at most {LARGEST_SAMPLE:,} are tried", file="--grid density")
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
            raise InputError(f"{choice.label}: {error}", file="--grid density") from None
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


def _number_pairs(
    among: Sequence[Candidate], densities: Sequence[float], choice: NDArray[np.intp], rate: NDArray[np.intp]
) -> tuple[list[tuple[int, float]], NDArray[np.intp]]:
    """Return the pairs of exchange and density that occur, and the number of each cell's."""
    sparse = np.array([exchange_kind(one) == "sparse" for one in among])
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
    sparse = np.array([one.kind == "sparse" for one in exact.forms.among])
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
    seconds, _, _ = exact.times(latency, bandwidth)
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
