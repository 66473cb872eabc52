"""Decision maps: which exchange is fastest over two quantities, where it changes, and where the user is."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

from simnet.base import units
from simnet.base.arrays import Floats
from simnet.base.errors import InputError, suggest_names
from simnet.base.progress import track_progress
from simnet.base.spreadsheets import guard_table
from simnet.network.compiled_loop import load_kept_loop
from simnet.report.drawing import COLOURS, Plot, plot, style
from simnet.report.paired import TIE
from simnet.report.wording import listed
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.problem import Problem
from simnet.studies.choosing.sampled_exchanges import sample

MOST_CELLS = 4_000_000
"""The most cells of a map."""

MOST_SECONDS, USUAL_SECONDS, USUAL_CELLS = 600.0, 30.0, 24
"""About how long a map of simulations may take [s], and takes unless cells are asked for; these are at most so many."""

# About what an exchange of a cell takes to be simulated [s], and each of its messages, compiled or not.
_EXCHANGE, _MESSAGE = 3e-3, 1e-5

TIED, TIED_COLOUR = "tied", "#9A9A9A"
"""What a legend says of cells in which several choices are the fastest, and their colour."""

_FURTHER = ("#F0E442", "#999933", "#882255", "#44AA99", "#332288", "#DDCC77", "#AA4499", "#117733")


class Quantity(NamedTuple):
    """What an axis may be.

    Parameters
    ----------
    field : str
        Of `OperatingPoint`.
    heading, label : str
        Of the column, and of the axis, with the unit.
    factor : float
        SI units in one of the heading's.
    read : callable
        From text to SI.
    low, high : float
        Range if none is asked for, SI.
    least, most : float
        The widest range that may be asked for, SI.
    whole : bool
        Whether it takes whole numbers alone.
    """

    field: str
    heading: str
    label: str
    factor: float
    read: Callable[[str], float]
    low: float
    high: float
    least: float
    most: float
    whole: bool = False


def _number_text(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must be a number, got {text!r}") from None


AXES: MappingProxyType[str, Quantity] = MappingProxyType(
    {
        "latency": Quantity("latency", "latency_ms", "latency [ms]", 1e-3, units.seconds, 1e-5, 0.2, 1e-12, 1e6),
        "bandwidth": Quantity(
            "bandwidth", "bandwidth_Gbit_per_s", "bandwidth [Gbit/s]", 1.25e8, units.bandwidth, 1.25e6, 5e10, 1.0, 1e18
        ),
        "density": Quantity(
            "density", "density", "density (fraction kept)", 1.0, units.fraction, 1e-4, 0.3, 1e-12, 1.0
        ),
        "workers": Quantity("workers", "workers", "workers", 1.0, _number_text, 2, 256, 1, 1e6, whole=True),
        "model": Quantity(
            "parameters", "parameters", "parameters (4 bytes each)", 1.0, _number_text, 1e6, 1e9, 1, 1e13
        ),
    }
)
"""What a map may go over."""


class Axis(NamedTuple):
    """An axis of a map: its quantity and its values in SI units, ascending."""

    name: str
    values: Floats

    @property
    def quantity(self) -> Quantity:
        """What it is."""
        return AXES[self.name]

    @property
    def shown(self) -> Floats:
        """The values in the unit of the heading."""
        return self.values / self.quantity.factor


@dataclass(frozen=True, eq=False)
class Map:
    """Which choice is fastest, cell by cell.

    Parameters
    ----------
    problem : Problem
        What is asked.
    x, y : Axis
        The axes.
    which : ndarray of int, shape (len(y), len(x))
        Place of the fastest among the choices; of equals the first.
    seconds : ndarray, shape (len(y), len(x))
        Its time [s].
    runner_up : ndarray, shape (len(y), len(x))
        Time of the second [s].
    tied : ndarray of bool, shape (choices, len(y), len(x))
        Which choices are tied as the fastest, by `simnet.report.paired.TIE`; none where one of them is it alone.
    """

    problem: Problem
    x: Axis
    y: Axis
    which: NDArray[np.intp]
    seconds: Floats
    runner_up: Floats
    tied: NDArray[np.bool_]

    @property
    def places(self) -> NDArray[np.intp]:
        """The place of the fastest among the choices, cell by cell; one past the last where some are tied."""
        return np.where(self.tied.any(axis=0), len(self.problem.among), self.which)

    @property
    def names(self) -> NDArray[np.object_]:
        """The fastest, cell by cell, shape (len(y), len(x)); all that are tied where some are, and that they are."""
        labels, close = [one.label for one in self.problem.among], self.tied.any(axis=0)
        found: NDArray[np.object_] = np.array(labels, dtype=object)[self.which]
        groups, group = np.unique(self.tied[:, close].T, axis=0, return_inverse=True)
        each = [f"{listed([labels[one] for one in np.flatnonzero(own)])}, tied" for own in groups]
        found[close] = np.array(each, dtype=object)[group.ravel()]
        return found

    def table(self) -> pd.DataFrame:
        """Return a row per cell: both quantities, the fastest exchange, its time, and the margin of the runner-up."""
        rows, columns = np.indices(self.which.shape)
        return pd.DataFrame(
            {
                self.x.quantity.heading: self.x.shown[columns.ravel()],
                self.y.quantity.heading: self.y.shown[rows.ravel()],
                "exchange": self.names.ravel(),
                "exchange_s": self.seconds.ravel(),
                "margin": (self.runner_up / self.seconds - 1).ravel(),
            }
        )

    def shares(self) -> dict[str, float]:
        """Return the share of the cells in which each exchange is the fastest, or some are tied, the largest first."""
        counted = pd.Series(self.names.ravel()).value_counts(normalize=True)
        return {str(name): float(share) for name, share in counted.items()}

    def csv(self) -> bytes:
        """Return the table as CSV, six significant digits."""
        text = io.StringIO()
        guard_table(self.table()).to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
        return text.getvalue().encode()


def axis(name: str, text: str | None, cells: int) -> Axis:
    """Return an axis of a map: values evenly spread over the logarithm of a range such as ``10 us:200 ms``.

    Examples
    --------
    >>> axis("workers", "2:8", 100).values
    array([2., 3., 4., 5., 6., 7., 8.])
    """
    if name not in AXES:
        raise InputError(f"there is no quantity {name!r}; {suggest_names(name, AXES)}", file="--map")
    quantity = AXES[name]
    low, high = quantity.low, quantity.high
    if text is not None:
        parts = text.split(":")
        if len(parts) != 2:
            raise InputError(f"must be LOW:HIGH, got {text!r}", file=f"--range {name}")
        try:
            low, high = (quantity.read(part.strip()) for part in parts)
        except ValueError as error:
            raise InputError(str(error), file=f"--range {name}") from None
    if not quantity.least <= low < high <= quantity.most:
        wanted = f"LOW < HIGH, both from {quantity.least:g} to {quantity.most:g}"
        raise InputError(f"must be {wanted} in SI units, got {text!r}", file=f"--range {name}")
    if quantity.whole and high - low < cells:
        return Axis(name, np.arange(math.ceil(low), high + 1))
    values = np.geomspace(low, high, cells)
    return Axis(name, np.unique(values.round()) if quantity.whole else values)


def cells_within(problem: Problem, names: Sequence[str], ranges: Mapping[str, str], seconds: float) -> int:
    """Return how many cells along each axis may be simulated in about so many seconds.

    What it takes is counted in messages, so that the same map has the same cells on every machine.
    """
    point = problem.point
    if "workers" in names:
        point = point.at("workers", round(float(axis("workers", ranges.get("workers"), 2).values[-1])))
    messages = sum(sample(one, point).schedule.n_messages for one in problem.among)
    load_kept_loop()
    each = _EXCHANGE * len(problem.among) + _MESSAGE * messages
    return int(math.sqrt(seconds / each))


def draw_map(problem: Problem, x: Axis, y: Axis) -> Map:
    """Weigh the choices of a problem in every cell."""
    if x.name == y.name:
        raise InputError(f"needs two quantities, got {x.name} twice", file="--map")
    if len(x.values) * len(y.values) > MOST_CELLS:
        raise InputError(f"is {len(x.values) * len(y.values):,} cells, at most {MOST_CELLS:,}", file="--cells")
    for one in (x, y):
        if one.name != "model" and one.name not in problem.varies:
            heeded = ", ".join([*problem.varies, "model"]) if problem.varies else "nothing that a map goes over"
            raise InputError(
                f"cannot go over {one.name}: {problem.method} does not heed it, but {heeded}; closed forms heed all, "
                "and so does --simulate of what flags say",
                file="--map",
            )
    per_node = problem.point.per_node
    x, y = (_of_whole_nodes(one, per_node) if one.name == "workers" else one for one in (x, y))
    if not (len(x.values) and len(y.values)):
        raise InputError(f"holds no number of workers that fills nodes of {per_node}", file="--range workers")
    where = over(problem.point, x, y)
    best: NDArray[np.intp] | None = None
    for place, choice in track_progress(list(enumerate(problem.among))):
        found = np.broadcast_to(problem.cost_model(choice, where).seconds, (len(y.values), len(x.values)))
        if best is None:
            best = np.zeros(found.shape, dtype=np.intp)
            least, second = found.copy(), np.full(found.shape, np.inf)
            continue
        better = found < least
        np.minimum(second, np.maximum(least, found), out=second)
        np.minimum(least, found, out=least)
        np.copyto(best, place, where=better)
    assert best is not None, "there is nothing to choose from"
    tied = np.zeros((len(problem.among), *best.shape), dtype=bool)
    if (close := second <= (1 + TIE) * least).any():
        for place, choice in enumerate(problem.among):
            tied[place] = close & (problem.cost_model(choice, where).seconds <= (1 + TIE) * least)
    return Map(problem, x, y, best, least, second, tied)


def plot_map(made: Map) -> Plot:
    """Draw a map: an area per exchange, lines where the fastest changes, the operating point and its trajectory."""
    problem, x, y = made.problem, made.x, made.y
    places, own = made.places, [*colours(problem), TIED_COLOUR]
    present = np.unique(places).tolist()
    labels = [*(one.label for one in problem.among), TIED]
    with style():
        figure = Figure(figsize=(7.6, 5.6), layout="constrained")
        axes = figure.subplots()
        norm = BoundaryNorm(np.arange(len(own) + 1) - 0.5, len(own))
        palette = ListedColormap(own)
        look: dict[str, Any] = {"cmap": palette, "norm": norm, "alpha": 0.55, "shading": "nearest", "rasterized": True}
        axes.pcolormesh(x.shown, y.shown, places, **look)
        for one in present[:-1]:
            area = (places == one).astype(float)
            axes.contour(x.shown, y.shown, area, levels=[0.5], colors="#222222", linewidths=0.9)
        axes.set(xscale="log", yscale="log", xlabel=x.quantity.label, ylabel=y.quantity.label)
        axes.grid(visible=False)
        for one in (axes.xaxis, axes.yaxis):
            one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            one.set_minor_formatter(NullFormatter())
        handles: list[Artist] = [Patch(color=own[one], alpha=0.55, label=labels[one]) for one in present]
        handles += _draw_place(axes, problem, x, y)
        axes.set_xlim(x.shown[0], x.shown[-1])
        axes.set_ylim(y.shown[0], y.shown[-1])
        figure.legend(handles=handles, loc="outside right upper")
        figure.suptitle(f"Fastest exchange: {problem.title}", x=0.01, ha="left")
    return plot("map", f"fastest exchange over {x.name} and {y.name}", "", figure)


def colours(problem: Problem) -> list[str]:
    """Return the colour of each choice of a problem, the same wherever it is drawn."""
    return list(itertools.islice(itertools.cycle((*COLOURS, *_FURTHER)), len(problem.among)))


def _of_whole_nodes(one: Axis, per_node: int) -> Axis:
    """Return an axis of workers without those numbers that would leave nodes half empty."""
    return Axis(one.name, one.values[(one.values % per_node == 0) | (one.values < per_node)])


def over(point: OperatingPoint, x: Axis, y: Axis) -> OperatingPoint:
    """Return a point whose fields go along two axes, in shapes that broadcast to (len(y), len(x))."""
    return point.at(x.quantity.field, x.values[np.newaxis, :]).at(y.quantity.field, y.values[:, np.newaxis])


def _draw_place(axes: Axes, problem: Problem, x: Axis, y: Axis) -> list[Line2D]:
    """Draw where the user is, and the links over time if they change; return what the legend says of it."""
    seen = problem.trajectory
    here = [float(getattr(problem.point, one.quantity.field)) / one.quantity.factor for one in (x, y)]
    handles: list[Line2D] = []
    if seen is not None and {x.name, y.name} <= {"latency", "bandwidth"}:
        links = [getattr(seen, one.name) / one.quantity.factor for one in (x, y)]
        handles += axes.plot(*links, color="black", linewidth=0.7, marker=".", markersize=4, label="links over time")
    handles += axes.plot(*[[one] for one in here], color="black", marker="X", markersize=9, linestyle="", label="here")
    return handles
