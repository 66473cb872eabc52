"""Decision maps: which exchange is fastest over two quantities, and where it changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.policies import Candidate
from simnet.report.paired import TIE
from simnet.report.summary import Unit
from simnet.report.wording import listed
from simnet.studies.choosing.closed_forms import ClosedForms

if TYPE_CHECKING:
    from simnet.report.drawing import Plot

TIED, TIED_COLOUR = "tied", "#9A9A9A"
"""What a legend says of cells in which several exchanges are the fastest, and their colour."""

_FURTHER = ("#F0E442", "#999933", "#882255", "#44AA99", "#332288", "#DDCC77", "#AA4499", "#117733")
_SHOWN: Mapping[str, tuple[str, float, str, Unit]] = {
    "latency": ("latency_s", 1e-3, "latency [ms]", "time"),
    "bandwidth": ("bandwidth_Bps", 1.25e8, "bandwidth [Gbit/s]", "rate"),
    "density": ("density", 1.0, "density (fraction kept)", "percent"),
    "workers": ("workers", 1.0, "workers", "number"),
}


class Axis(NamedTuple):
    """An axis of a map: its quantity and its values in SI units, ascending."""

    name: str
    values: Floats

    @property
    def key(self) -> str:
        """Its column."""
        return _SHOWN[self.name][0]

    @property
    def unit(self) -> Unit:
        """What the column holds."""
        return _SHOWN[self.name][3]

    @property
    def shown(self) -> Floats:
        """The values in the unit of the figure."""
        return self.values / _SHOWN[self.name][1]


@dataclass(frozen=True, eq=False)
class Map:
    """Which exchange is fastest, cell by cell.

    Parameters
    ----------
    among : sequence of Candidate
        The exchanges.
    x, y : Axis
        The axes.
    seconds : ndarray, shape (exchanges, len(y), len(x))
        An iteration with each [s].
    """

    among: Sequence[Candidate]
    x: Axis
    y: Axis
    seconds: Floats

    @property
    def which(self) -> NDArray[np.intp]:
        """Place of the fastest, cell by cell; of equals the first."""
        return np.asarray(self.seconds.argmin(axis=0))

    @property
    def tied(self) -> NDArray[np.bool_]:
        """Which exchanges are tied as the fastest, by `simnet.report.paired.TIE`; none where one is alone."""
        close = self.seconds <= (1 + TIE) * self.seconds.min(axis=0)
        return np.asarray(close & (close.sum(axis=0) > 1))

    @property
    def names(self) -> NDArray[np.object_]:
        """The fastest, cell by cell, shape (len(y), len(x)); all that are tied where some are, and that they are."""
        labels = [one.label for one in self.among]
        tied, found = self.tied, np.array(labels, dtype=object)[self.which]
        close = tied.any(axis=0)
        groups, group = np.unique(tied[:, close].T, axis=0, return_inverse=True)
        each = [f"{listed([labels[one] for one in np.flatnonzero(own)])}, tied" for own in groups]
        found[close] = np.array(each, dtype=object)[group.ravel()]
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per cell: both quantities, the fastest exchange, its time, and the margin of the next."""
        order = np.sort(self.seconds, axis=0)
        names = self.names
        return [
            {
                self.x.key: self.x.values[column].item(),
                self.y.key: self.y.values[row].item(),
                "exchange": str(names[row, column]),
                "iteration_s": float(order[0, row, column]),
                "margin": float(order[1, row, column] / order[0, row, column] - 1) if len(order) > 1 else None,
            }
            for row, column in np.ndindex(names.shape)
        ]

    def shares(self) -> dict[str, float]:
        """Return the share of the cells in which each exchange is the fastest, or some are tied, the largest first."""
        labels, counts = np.unique(self.names.astype(str), return_counts=True)
        found = {str(label): float(count / counts.sum()) for label, count in zip(labels, counts, strict=True)}
        return dict(sorted(found.items(), key=lambda one: -one[1]))


def map_of(
    forms: ClosedForms | None,
    values: Mapping[str, Floats],
    among: Sequence[Candidate] = (),
    seconds: Floats | None = None,
) -> Map:
    """Return the map of closed forms over two quantities, or of times that are known."""
    (x, along), (y, down) = values.items()
    if forms is not None:
        among = forms.among
        where = forms.point.at(x, along[np.newaxis, :]).at(y, down[:, np.newaxis])
        shape = len(down), len(along)
        seconds = np.stack([np.broadcast_to(forms.model(one, where).seconds, shape) for one in forms.among])
    assert seconds is not None
    return Map(among, Axis(x, along), Axis(y, down), seconds)


def plot_map(made: Map, name: str) -> Plot:
    """Draw a map: an area per exchange, and lines where the fastest changes."""
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from simnet.report.drawing import COLOURS, plot, style

    x, y = made.x, made.y
    own = [*itertools.islice(itertools.cycle((*COLOURS, *_FURTHER)), len(made.among)), TIED_COLOUR]
    places = np.where(made.tied.any(axis=0), len(made.among), made.which)
    present = np.unique(places).tolist()
    labels = [*(one.label for one in made.among), TIED]
    with style():
        figure = Figure(figsize=(7.6, 5.6), layout="constrained")
        axes = figure.subplots()
        look: dict[str, Any] = {"alpha": 0.55, "shading": "nearest", "rasterized": True}
        look |= {"cmap": ListedColormap(own), "norm": BoundaryNorm(np.arange(len(own) + 1) - 0.5, len(own))}
        axes.pcolormesh(x.shown, y.shown, places, **look)
        for one in present[:-1]:
            axes.contour(
                x.shown, y.shown, (places == one).astype(float), levels=[0.5], colors="#222222", linewidths=0.9
            )
        axes.set(xscale="log", yscale="log", xlabel=_SHOWN[x.name][2], ylabel=_SHOWN[y.name][2])
        axes.grid(visible=False)
        for one in (axes.xaxis, axes.yaxis):
            one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            one.set_minor_formatter(NullFormatter())
        figure.legend(
            handles=[Patch(color=own[one], alpha=0.55, label=labels[one]) for one in present], loc="outside right upper"
        )
        figure.suptitle(f"Fastest exchange: {name}", x=0.01, ha="left")
    return plot("map", f"fastest exchange over {x.name} and {y.name}", "", figure)
