"""A policy table of a calibrated cluster: which exchange, by workers, density and parameters.

A cluster that was measured knows sizes and numbers of ranks, and neither latency nor bandwidth. For each number of
workers the plane of density and parameters is cut into cells, evenly in logarithms; a cell has the exchange that is the
fastest at its centre. What that loses inside cells is measured at random points, and stands in the table, as does how
far its choices rest on sizes and numbers of ranks that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.base.rng import stream
from simnet.base.units import format_bytes
from simnet.studies.choosing.choices import choices
from simnet.studies.choosing.policy import MOST_CELLS, PROBED, centres, clean, edges_between, entry
from simnet.studies.choosing.policy_file import Edges, Loss, MadeFor, Measured, PolicyTable
from simnet.studies.choosing.problem import Problem

if TYPE_CHECKING:
    from simnet.calibration import CalibratedCostModel

BEYOND = 10.0
"""A table goes from a tenth to ten times what is asked for, unless ranges are given."""

_MOST_REASONS = 100


def make(
    problem: Problem,
    fabric: CalibratedCostModel,
    workers: Sequence[int] = (),
    ranges: Mapping[str, tuple[float, float]] | None = None,
    *,
    cells: int = 24,
    seed: int = 0,
) -> PolicyTable:
    """Make the table of a problem that is about a calibrated cluster.

    Examples
    --------
    >>> from simnet.calibration import Curve, Setting, calibrate
    >>> from simnet.studies.choosing.problem import ChooseRequest, problem_from_fabric
    >>> sizes = 2.0 ** np.arange(10, 28)
    >>> names = ("all_reduce", "all_gather", "broadcast")
    >>> asked = [Setting(name, ranks) for name in names for ranks in (4, 8)]
    >>> fabric = calibrate([Curve(one, sizes, one.ranks * 1e-4 + sizes * 1e-9) for one in asked])
    >>> table = make(problem_from_fabric(fabric, ChooseRequest()), fabric, cells=4)
    >>> table.axes, table.shape, table.lookup(workers=8, density=0.01, parameters=1e7).entry.label
    (('workers', 'density', 'parameters'), (2, 4, 4), 'ART-ring')
    """
    counts = sorted(set(workers) or {one.setting.ranks for one in fabric.model.known} - {1} or {_asked(problem)})
    if counts[0] < 2:
        raise InputError(f"must be at least 2 for a policy table, got {counts[0]}", file="--workers")
    if cells < 1 or cells**2 * len(counts) > MOST_CELLS:
        most = math.isqrt(MOST_CELLS // len(counts))
        raise InputError(
            f"must be from 1 to {most} for a table of {len(counts)} numbers of workers, got {cells}", file="--cells"
        )
    ends = {name: _range(problem, name) for name in ("density", "parameters")} | dict(ranges or {})
    edges = {name: edges_between(one, cells) for name, one in ends.items()}
    density, parameters = (centres(np.array(edges[name])) for name in ("density", "parameters"))
    grid = [one.ravel() for one in np.meshgrid(np.array(counts, dtype=float), density, parameters, indexing="ij")]
    fastest = _times(problem, *grid).argmin(axis=0)
    present = np.unique(fastest)
    point = problem.point
    table = PolicyTable(
        version=2,
        made_for=MadeFor(
            title=clean(problem.title),
            workers=_asked(problem),
            parameters=int(point.parameters),
            device=clean(problem.device.name),
            method=clean(_method(problem, fabric)),
            densities=(float(point.density),),
            seed=seed,
        ),
        edges=Edges(workers=tuple(counts), density=edges["density"], parameters=edges["parameters"]),
        choices=tuple(entry(problem.among[one], float(point.density)) for one in present.tolist()),
        matrix=tuple(tuple(row) for row in np.searchsorted(present, fastest).reshape(-1, cells).tolist()),
    )
    found = {"regret": _loss(table, problem, present, seed), "measured": _measured(problem, fabric, grid, fastest)}
    return table.model_copy(update=found)


def left_out(problem: Problem) -> list[str]:
    """Return the exchanges that are not weighed on a cluster, as nothing of their algorithm was measured."""
    weighed = {one.label for one in problem.among}
    return [one.label for one in choices() if one.label not in weighed]


def _asked(problem: Problem) -> int:
    return int(problem.point.workers)


def _method(problem: Problem, fabric: CalibratedCostModel) -> str:
    """Return where times are from: the fabric, and what it was fitted to."""
    of = fabric.platform.name if fabric.platform is not None else ", ".join(fabric.sources)
    return f"{problem.method}{' of ' if of else ''}{of}"


def _range(problem: Problem, name: str) -> tuple[float, float]:
    """Return the range of an axis if none is asked for."""
    own = float(getattr(problem.point, name))
    low, high = own / BEYOND, own * BEYOND
    return (low, min(high, 1.0)) if name == "density" else (max(low, 1.0), high)


def _times(problem: Problem, workers: Floats, density: Floats, parameters: Floats) -> Floats:
    """Return what each exchange takes [s], shape (exchanges, states)."""
    where = replace(problem.point, workers=workers, density=density, parameters=parameters)
    found = [problem.cost_model(one, where).seconds for one in track_progress(problem.among, 0.5)]
    return np.stack([np.broadcast_to(one, workers.shape) for one in found])


def _loss(table: PolicyTable, problem: Problem, present: NDArray[np.intp], seed: int) -> Loss:
    """Compare a table with the exact choice at random points of it."""
    counts, *planes = (table.along(name) for name in table.axes)
    draws = stream(seed, "choose", "policy").random((3, PROBED))
    workers = counts[(draws[0] * len(counts)).astype(int)]
    density, parameters = (
        np.exp(np.log(edges[0]) + one * np.log(edges[-1] / edges[0]))
        for one, edges in zip(draws[1:], planes, strict=True)
    )
    seconds = _times(problem, workers, density, parameters)
    chosen = present[table.which(workers, density, parameters)]
    lost = seconds[chosen, np.arange(PROBED)] / seconds.min(axis=0) - 1
    worst = int(lost.argmax())
    return Loss(
        points=PROBED,
        mean=float(f"{lost.mean():.6g}"),
        worst=float(f"{lost[worst]:.6g}"),
        workers=int(workers[worst]),
        density=float(f"{density[worst]:.6g}"),
        parameters=float(f"{parameters[worst]:.6g}"),
        same_exchange=float((seconds.argmin(axis=0) == chosen).mean()),
        same_density=1.0,
    )


def _measured(
    problem: Problem, fabric: CalibratedCostModel, grid: Sequence[Floats], fastest: NDArray[np.intp]
) -> Measured:
    """Return in which share of the cells the choice rests on what was measured, and what it rests on elsewhere."""
    beyond = np.zeros(len(fastest), dtype=bool)
    reasons: dict[tuple[str, int], str] = {}
    for place in np.unique(fastest).tolist():
        calls = problem.among[place].collective_calls
        assert calls is not None, "it was weighed by its collectives"
        for ranks in np.unique(grid[0]).tolist():
            cells = np.flatnonzero((fastest == place) & (grid[0] == ranks))
            if not len(cells):
                continue
            workers, density, parameters = (one[cells] for one in grid)
            where = replace(problem.point, workers=workers, density=density, parameters=parameters)
            for part in calls(where):
                sizes = np.broadcast_to(part.nbytes, cells.shape)
                outside = fabric.fastest_of(part.collective, part.algorithm, int(ranks), sizes).extrapolates
                beyond[cells[outside]] = True
                if outside.any() and (part.collective, int(ranks)) not in reasons:
                    largest = float(sizes[outside].max())
                    why = fabric.fastest(part.collective, part.algorithm, int(ranks), largest).why
                    name = f"{part.collective} of {ranks:.0f} ranks, {format_bytes(largest)}"
                    reasons[part.collective, int(ranks)] = clean(f"{name}: {why}")
    return Measured(share=float(1 - beyond.mean()), beyond=tuple(reasons.values())[:_MOST_REASONS])
