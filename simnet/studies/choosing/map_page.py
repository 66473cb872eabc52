"""What the page of a map shows: at every computed point what `simnet choose` says there, in the same words.

Texts stand once and points have their numbers, since most of them come again. The page only picks: it computes nothing,
and between two points it says the nearer one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.progress import track_progress
from simnet.studies.choosing import output
from simnet.studies.choosing.cost_models import Estimate, Selecting
from simnet.studies.choosing.decision import Decision, ranked
from simnet.studies.choosing.maps import TIED, TIED_COLOUR, Axis, colours, over
from simnet.studies.choosing.operating_point import FORMATS
from simnet.studies.choosing.problem import Problem

CELLS = 32
"""The most points along each axis, besides that of the problem; chances take most of the time."""

SHADED = 1.0
"""The margin from which on a colour is full."""

# One in the unit whose powers of ten are marked; workers come in powers of two.
_MARKS = {"latency": (1.0, 10), "bandwidth": (0.125, 10), "density": (1.0, 10), "workers": (1.0, 2), "model": (1.0, 10)}


def points(one: Axis, problem: Problem) -> Axis:
    """Return the points of a page along an axis of its map: some of those of the map, and that of the problem."""
    some = np.unique(np.linspace(0, len(one.values) - 1, min(len(one.values), CELLS)).round().astype(int))
    return with_own(Axis(one.name, one.values[some]), problem)


def with_own(one: Axis, problem: Problem) -> Axis:
    """Return an axis with the value of the problem among its own, if that is within its range.

    Examples
    --------
    >>> from simnet.studies.choosing.problem import ChooseRequest, problem_from_flags
    >>> with_own(Axis("workers", np.array([2.0, 4.0, 16.0])), problem_from_flags(ChooseRequest(workers=8))).values
    array([ 2.,  4.,  8., 16.])
    """
    own = _own_place(one, problem)
    inside = one.values[0] <= own <= one.values[-1]
    return Axis(one.name, np.unique(np.append(one.values, own))) if inside else one


def weighed(problem: Problem, x: Axis, y: Axis) -> list[Estimate]:
    """Return what each choice takes at every point of two axes; fields broadcast to shape (len(y), len(x))."""
    where = over(problem.point, x, y)
    return [problem.cost_model(choice, where) for choice in track_progress(problem.among, 0.2)]


def page_data(problem: Problem, x: Axis, y: Axis, found: Sequence[Estimate]) -> dict[str, Any]:
    """Return what the page of a map shows."""
    shape = len(y.values), len(x.values)
    each = [_cell_spread(one, shape) for one in found]
    places = {choice.label: place for place, choice in enumerate(problem.among)}
    texts: dict[str, int] = {}
    cells = []
    for cell in track_progress(range(shape[0] * shape[1])):
        decision = Decision(problem.point, ranked(problem.among, [one(cell) for one in each]), (), (), {}, None)
        take, *warning = output.recommendation_lines(decision)
        margin = float(f"{decision.margin:.3g}") if math.isfinite(decision.margin) else -1
        margin = 0.0 if decision.tied_with else margin
        said = [_text_place(take, texts), _text_place(warning[0], texts) if warning else -1, margin]
        for row in decision.rows:
            label, *rest = output.cells(decision, row)
            said += [places[label], *(_text_place(text, texts) for text in rest)]
        cells.append(said)
    seen = problem.trajectory if {x.name, y.name} == {"latency", "bandwidth"} else None
    return {
        "x": _axis_data(x),
        "y": _axis_data(y),
        "choices": [*zip(places, colours(problem), strict=True), (TIED, TIED_COLOUR)],
        "headings": [one.replace("-\n", "").replace("\n", " ") for one in output.HEADINGS[1:-1]],
        "texts": list(texts),
        "cells": cells,
        "own": _own_cell(problem, x, y),
        "links": [] if seen is None else [getattr(seen, one.name).tolist() for one in (x, y)],
        "shaded": SHADED,
    }


def _own_place(one: Axis, problem: Problem) -> float:
    return float(getattr(problem.point, one.quantity.field))


def _own_cell(problem: Problem, x: Axis, y: Axis) -> int | None:
    column, row = (np.flatnonzero(one.values == _own_place(one, problem)) for one in (x, y))
    return int(row[0]) * len(x.values) + int(column[0]) if len(column) and len(row) else None


def _cell_spread(one: Estimate, shape: tuple[int, int]) -> Callable[[int], Estimate]:
    """Return what makes the estimate of a cell."""

    def flat(values: Any) -> Any:
        return np.broadcast_to(values, shape).ravel()

    communicate, least, most, beyond = map(flat, (one.communicate, one.least, one.most, one.beyond))
    selecting = [flat(part) for part in one.selecting]

    def of(cell: int) -> Estimate:
        select = Selecting(*(part[cell] for part in selecting))
        times: tuple[Floats, Selecting, Floats, Floats] = communicate[cell], select, least[cell], most[cell]
        return Estimate(*times, one.kind, follows=one.follows, beyond=beyond[cell], known=one.known)

    return of


def _text_place(text: str, texts: dict[str, int]) -> int:
    return texts.setdefault(text, len(texts))


def _axis_data(one: Axis) -> dict[str, Any]:
    written = FORMATS[one.name]
    low, high = float(one.values[0]), float(one.values[-1])
    unit, base = _MARKS[one.name]
    powers = range(math.ceil(math.log(low / unit, base) - 1e-9), math.floor(math.log(high / unit, base) + 1e-9) + 1)
    marks = [unit * base**power for power in powers]
    marks = marks if len(marks) > 1 else [low, high]
    return {
        "name": one.name,
        "label": "parameters" if one.name == "model" else one.name,
        "values": one.values.tolist(),
        "texts": [written(value) for value in one.values.tolist()],
        "marks": [[value, written(value)] for value in marks],
    }
