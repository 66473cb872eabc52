"""Decision maps: which exchange is fastest over two quantities, and where it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.units import format_bandwidth, format_seconds
from simnet.policies import Candidate
from simnet.report.paired import TIE
from simnet.report.summary import Unit
from simnet.report.wording import listed
from simnet.studies.choosing.closed_forms import ClosedForms
from simnet.studies.fastest_map import MapAxis

_SHOWN: Mapping[str, tuple[str, Unit, Callable[[float], str]]] = {
    "latency": ("latency_s", "time", format_seconds),
    "bandwidth": ("bandwidth_Bps", "rate", format_bandwidth),
    "density": ("density", "percent", "{:.3g}".format),
    "workers": ("workers", "number", "{:.0f}".format),
}


class Axis(NamedTuple):
    """An axis of a map: its quantity and its values in SI units, ascending."""

    name: str
    values: Floats

    @property
    def key(self) -> str:
        """Column name."""
        return _SHOWN[self.name][0]

    @property
    def unit(self) -> Unit:
        """Unit of the column."""
        return _SHOWN[self.name][1]

    @property
    def drawn(self) -> MapAxis:
        """The axis as drawn in the figure."""
        return MapAxis(self.name, [_SHOWN[self.name][2](one) for one in self.values.tolist()])


@dataclass(frozen=True, eq=False)
class Map:
    """Fastest exchange over two quantities, from iteration times of shape (exchanges, y values, x values)."""

    among: Sequence[Candidate]
    x: Axis
    y: Axis
    seconds: Floats

    @property
    def which(self) -> NDArray[np.intp]:
        """Index of the fastest exchange in each cell, shape (y, x); ties go to the first."""
        return np.asarray(self.seconds.argmin(axis=0))

    @property
    def tied(self) -> NDArray[np.bool_]:
        """Mask of exchanges tied for fastest, within `simnet.report.paired.TIE`; shape (exchanges, y, x)."""
        close = self.seconds <= (1 + TIE) * self.seconds.min(axis=0)
        return np.asarray(close & (close.sum(axis=0) > 1))

    @property
    def names(self) -> NDArray[np.object_]:
        """Label of the fastest exchange in each cell, or of all tied ones; shape (len(y), len(x))."""
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
        """Return the share of cells in which each exchange, or set of tied ones, is fastest; largest first."""
        shares = pd.Series(self.names.ravel()).value_counts(normalize=True)
        return {str(label): float(share) for label, share in shares.items()}


def map_of(
    forms: ClosedForms | None,
    values: Mapping[str, Floats],
    among: Sequence[Candidate] = (),
    seconds: Floats | None = None,
) -> Map:
    """Return the map of the fastest exchange over two quantities, from closed forms or given `seconds`."""
    (x, along), (y, down) = values.items()
    if forms is not None:
        among = forms.among
        where = forms.point.at(x, along[np.newaxis, :]).at(y, down[:, np.newaxis])
        shape = len(down), len(along)
        seconds = np.stack([np.broadcast_to(forms.model(one, where).seconds, shape) for one in forms.among])
    assert seconds is not None
    return Map(among, Axis(x, along), Axis(y, down), seconds)
