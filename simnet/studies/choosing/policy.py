"""Construction of policy tables, which give the exchange and the density by latency and bandwidth at run time.

The plane of latency and bandwidth is cut into cells, evenly in logarithms. A cell has the choice that is right at its
centre: the fastest exchange or, with several densities, the density that the multi-objective choice of
`simnet.policies.moo` takes at the gains of these gradients, with the exchange that is fastest there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.base.errors import InputError, refuse_values
from simnet.base.progress import track_progress
from simnet.policies import Candidate, moo
from simnet.scenario import Scenario
from simnet.sparsifier_models.two_level import PREFIX
from simnet.studies.choosing.closed_forms import ClosedForms, by_closed_form
from simnet.studies.choosing.forecast import exchange_kind
from simnet.studies.choosing.policy_file import CellEdges, MadeFor, PolicyTable, TableEntry
from simnet.traces.source import tensor_options
from simnet.training.job.job import Job

if TYPE_CHECKING:
    from simnet.studies.choosing.grids import Map

TRIES = 10
"""Iterations over which a gain is averaged."""

# Options that make no difference to what is kept.
_WHERE = ("allgather", "collective")


def table_of_map(made: Map, loaded: Scenario, job: Job) -> PolicyTable:
    """Return the policy table of the fastest exchanges in a simulated map of times over latency and bandwidth."""
    seconds = made.seconds if [*made.values][1] == "latency" else made.seconds.swapaxes(1, 2)
    levelled = [one.scheme.startswith(PREFIX) for one in made.among]
    # Who reads the table at run time has no two levels.
    which = np.where(np.array(levelled)[:, np.newaxis, np.newaxis], np.inf, seconds).argmin(axis=0)
    density = job.density[-1].end
    made_for = _made_for(loaded, job, "simulated", (density,))
    return _table(made_for, made.among, which, np.full(which.shape, density), **made.values)


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
    """Return a policy table by closed forms, with cells around the given latencies [s] and bandwidths [byte/s].

    Among several densities the weighted choice is taken, or the knee of the objectives without weights.
    """
    rates, among = np.array(tuple(densities) or (float(forms.point.density),)), forms.among
    if len(set(densities)) < len(densities):
        raise InputError("must be no two alike", file="--grid density")
    alpha, rate = (one.ravel() for one in np.meshgrid(latency, bandwidth, indexing="ij"))
    point = replace(forms.point, latency=alpha, bandwidth=rate, density=rates[:, np.newaxis])
    shape, device = (len(rates), len(alpha)), by_closed_form(job.device)
    seconds = [np.broadcast_to(forms.model(one, point).seconds, shape) for one in track_progress(among, 0.5)]
    fastest, chosen = np.argmin(seconds, axis=0), np.zeros(len(alpha), dtype=np.intp)
    if len(rates) > 1:
        parts = [device(one, point) for one in among]
        select, send = (
            np.stack([np.broadcast_to(getattr(one, name), shape) for one in parts])
            for name in ("select", "communicate")
        )
        gains: dict[tuple[object, ...], float] = {}
        for state in track_progress(range(len(alpha))):
            places = fastest[:, state]
            tried = zip(places.tolist(), rates.tolist(), strict=True)
            gain = [_mean_gain(among[place], density, job, loaded, gains) for place, density in tried]
            of = (places, range(len(rates)), state)
            chosen[state] = moo.choose_candidate(gain, select[of], send[of], weights)
    cells = len(latency), len(bandwidth)
    which, density = fastest[chosen, range(len(alpha))].reshape(cells), rates[chosen].reshape(cells)
    made_for = _made_for(loaded, job, "closed forms", tuple(rates.tolist()), weights)
    return _table(made_for, among, which, density, latency, bandwidth)


def _made_for(
    loaded: Scenario, job: Job, method: str, densities: tuple[float, ...], weights: moo.ObjectiveWeights | None = None
) -> MadeFor:
    return MadeFor(
        title=f"{loaded.name}, {job.source.workers} workers"[:300],
        workers=job.source.workers,
        parameters=int(job.source.true_parameters),
        device=job.device.name,
        method=method,
        densities=densities,
        weights=None if weights is None else weights._asdict(),
        seed=loaded.config.seed,
    )


def _table(
    made_for: MadeFor,
    among: Sequence[Candidate],
    which: NDArray[np.intp],
    density: Floats,
    latency: Floats,
    bandwidth: Floats,
) -> PolicyTable:
    """Return a policy table whose cells have exchange `among[which]` and `density`, shape (latencies, bandwidths)."""
    # Whatever is asked for, the whole gradient is sent whole.
    sparse = np.array([exchange_kind(one) == "sparse" for one in among])
    cells = list(zip(which.ravel().tolist(), np.where(sparse[which], density, 1.0).ravel().tolist(), strict=True))
    pairs = sorted(set(cells), key=lambda pair: (pair[0], -pair[1]))
    number = {pair: place for place, pair in enumerate(pairs)}
    matrix = np.array([number[pair] for pair in cells]).reshape(which.shape)
    return PolicyTable(
        made_for=made_for,
        edges=CellEdges(latency_s=edges_around(latency), bandwidth_B_per_s=edges_around(bandwidth)),
        choices=tuple(entry(among[place], kept) for place, kept in pairs),
        matrix=tuple(map(tuple, matrix.tolist())),
    )


def edges_around(centres: Floats) -> tuple[float, ...]:
    """Return the edges of table cells: geometric means of neighbouring cells' centres, rounded to six digits.

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


def entry(candidate: Candidate, density: float) -> TableEntry:
    """Return the entry of a policy table for an exchange at a density."""
    kind = exchange_kind(candidate)
    kept = density if kind == "sparse" else 1.0
    options: dict[str, Any] = dict(candidate.options)
    return TableEntry(label=candidate.label, scheme=candidate.scheme, options=options, kind=kind, density=kept)


def _mean_gain(
    one: Candidate, density: float, job: Job, loaded: Scenario, known: dict[tuple[object, ...], float]
) -> float:
    """Return the mean share of gradients' squared norm that an exchange sends, simulated unless it is in `known`."""
    if exchange_kind(one) != "sparse":
        # What half precision rounds off is less than 1e-6 of the squares.
        return 1.0
    options = {name: value for name, value in one.options.items() if name not in _WHERE}
    key = (one.scheme, repr(sorted(options.items())), density)
    if key not in known:
        source = job.source
        fixed: dict[str, Any] = {"scale": source.scale, "seed": loaded.config.seed, **tensor_options(source)}
        with refuse_values(file="--grid density", before=f"{one.label}: "):
            model = sparsifier_models.create(
                one.scheme, source.workers, source.parameters, density, **fixed, **one.options
            )
        seen = []
        first, end = measured_at(density)
        for model.iteration in range(end):
            seen.append(float(np.asarray(model.exchange(source.gradients(model.iteration)).stats["gain"])))
        known[key] = math.fsum(seen[first:]) / TRIES
    return known[key]


def measured_at(density: float) -> tuple[int, int]:
    """Return the iterations (first, one past the last) in which to measure what a sparsifier sends at a `density`.

    Residuals need longer to reach equilibrium the lower the density is.

    Examples
    --------
    >>> measured_at(0.1), measured_at(0.01), measured_at(1e-4)
    ((10, 20), (20, 30), (200, 210))
    """
    first = min(max(math.ceil(0.2 / density - 1e-9), 10), 200)
    return first, first + TRIES
