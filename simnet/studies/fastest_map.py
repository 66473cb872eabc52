"""Figure of the fastest choice over two axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from simnet.report.drawing import Plot

# With more values than this, not every one is named.
_NAMED = 14


def draw_fastest(title: str, texts: Mapping[str, Sequence[str]], names: NDArray[np.object_]) -> Plot:
    """Draw a map with an area per name; `names` has shape (values down, values across), from bottom to top.

    `texts` are the values of the axes by heading, the one across first.
    """
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from simnet.report.drawing import COLOURS, plot, style

    labels, which = np.unique(names.astype(str), return_inverse=True)
    colours = [*COLOURS, *colormaps["tab20b"].colors][: len(labels)]  # type: ignore[attr-defined]
    colours += ["#9A9A9A"] * (len(labels) - len(colours))
    with style():
        figure = Figure(figsize=(7.6, 5.6), layout="constrained")
        axes = figure.subplots()
        look: dict[str, Any] = {"vmin": -0.5, "vmax": len(labels) - 0.5, "rasterized": True, "alpha": 0.7}
        axes.pcolormesh(which.reshape(names.shape), cmap=ListedColormap(colours), **look)
        for axis, (heading, values) in zip((axes.xaxis, axes.yaxis), texts.items(), strict=True):
            named = range(0, len(values), 1 + (len(values) - 1) // _NAMED)
            axis.set_ticks([one + 0.5 for one in named], [values[one] for one in named])
            axis.set_label_text(heading)
        axes.grid(visible=False)
        axes.tick_params(axis="x", rotation=45)
        handles = [Patch(color=colour, alpha=0.7, label=label) for colour, label in zip(colours, labels, strict=True)]
        figure.legend(handles=handles, loc="outside right upper")
        figure.suptitle(title, x=0.01, ha="left")
    return plot("map", title, "", figure)
