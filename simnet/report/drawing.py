"""Style of figures, and their rendering to PNG and SVG files, which are byte-identical for equal content."""

from __future__ import annotations

import io
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from simnet.report.summary import TEXTS, Column, Plot, Summary, column_cells, common_unit, with_unit

# Okabe and Ito's colours, which the colour-blind can tell apart, without black and yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5230", "#8C8C8C")
_STYLE = files("simnet") / "data" / "simnet.mplstyle"
BOUND_COLOUR = "#111111"
PHASE_COLOURS = {"compute": "#4D5A66", "select": "#E69F00", "communicate": "#56A3D9", "wait": "#D8DCE0"}

# Values further apart than this are drawn on a logarithmic axis.
_WIDE = 12.0
_LONGEST_NAME = 32


def plot(name: str, title: str, explanation: str, figure: Figure) -> Plot:
    """Return a matplotlib figure as a `Plot`, with fixed layout, rendered to PNG and SVG."""
    _fix_layout(figure)
    return Plot(name, title, explanation, _saved_figure(figure, "png"), _saved_figure(figure, "svg"))


@contextmanager
def style() -> Iterator[None]:
    """Use the matplotlib style of simnet inside the ``with`` block, instead of the user's settings."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(mpl.rc_params_from_file(str(_STYLE), use_default_template=False))
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@contextmanager
def canvas(width: float, height: float, *shape: int, **options: Any) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure of `width` x `height` [inch] in simnet's style, with axes made by `Figure.subplots`."""
    with style():
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(*shape, **options)


def policy_looks(policies: Iterable[str], bound: str | None) -> dict[str, dict[str, Any]]:
    """Return matplotlib line styles by policy; the policy `bound`, a lower bound, always has the same style."""
    found: dict[str, dict[str, Any]] = {}
    for policy in dict.fromkeys(policies):
        if policy == bound:
            found[policy] = {"color": BOUND_COLOUR, "linestyle": (0, (3, 2)), "linewidth": 1.1, "zorder": 4}
            continue
        number = len(found) - (bound in found)
        dashes = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)))[number // len(COLOURS) % 3]
        found[policy] = {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes, "zorder": 3}
    return found


def short(name: str) -> str:
    """Return a name on one line, shortened to at most 32 characters."""
    name = " ".join(name.split())
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\u2026"


def scale(axis: Axis, values: NDArray[np.float64]) -> None:
    """Make an axis logarithmic if its largest value exceeds 12 times the smallest; otherwise start the axis at zero."""
    axes, which = axis.axes, "x" if isinstance(axis, XAxis) else "y"
    values = values[values > 0]
    if len(values) and values.max() > _WIDE * values.min():
        axes.set(**{f"{which}scale": "log"})
        decades = math.log10(values.max() / values.min())
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    else:
        axes.set(**{f"{which}lim": (0, None)})


def legend_above(figure: Figure, handles: Sequence[Artist], **options: Any) -> None:
    """Add a legend above the axes, in as many columns as fit; `options` are those of `Figure.legend`."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = min(len(handles), max(1, 120 // (longest + 8)))
    # Beyond two lines of a legend the axes keep their room.
    figure.set_figheight(figure.get_figheight() + 0.22 * max(-(-len(handles) // max(columns, 1)) - 2, 0))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, **options)


def _fix_layout(figure: Figure) -> None:
    """Run the layout of a figure once and freeze it, with axes positions rounded to five decimals."""
    # The solver under matplotlib's layout goes by addresses in memory; its last bits differ from run to run.
    with style():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes in figure.axes:
            left, bottom, width, height = (round(value, 5) for value in axes.get_position().bounds)
            axes.set_position((left, bottom, width, height))


def _texts(figure: Figure) -> list[str]:
    """Return the titles, axis labels and legends of a figure, as a text for screen readers."""
    labels = [one for axes in figure.axes for one in (axes.get_title(), axes.get_xlabel(), axes.get_ylabel())]
    legends = [*figure.legends, *(one for axes in figure.axes if (one := axes.get_legend()) is not None)]
    found = [*labels, *(one.get_text() for legend in legends for one in legend.get_texts())]
    return [" ".join(one.split()) for one in dict.fromkeys(found) if one]


def _saved_figure(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata: dict[str, str | None] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    metadata["Description"] = "; ".join(_texts(figure))
    with style():
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


_PANELS = 2


def draw_table(summary: Summary) -> Plot:
    """Draw a table's numeric columns, with intervals, against its first column: a panel per unit, at most two."""
    first, *others = map(with_unit, summary.columns)
    table = pd.DataFrame([*summary.rows]).apply(pd.to_numeric, errors="coerce").astype(float)
    drawn = [one for one in others if one.unit not in TEXTS and one.name in table and table[one.name].notna().any()]
    panels = sorted(dict.fromkeys(one.unit for one in drawn), key=lambda unit: unit != "time")[:_PANELS]
    names = [
        column_cells(one, summary.rows)[1]
        for one in (first, *itertools.takewhile(lambda one: one.unit in TEXTS, others))
    ]
    labels = [short(", ".join(cells)) for cells in zip(*names, strict=True)]
    lines = first.unit not in TEXTS and len(labels) > 1
    height = 3.6 if lines else 1.4 + 0.28 * len(labels)
    with canvas(4.6 * len(panels), height, 1, len(panels), squeeze=False) as (figure, (grid,)):
        for axes, unit in zip(grid, panels, strict=True):
            columns = [one for one in drawn if one.unit == unit]
            name, factor = _unit_of(table, *columns)
            for one, colour in zip(columns, itertools.cycle(COLOURS), strict=False):
                value = table[one.name] / factor
                low, high = (table.get(end, table[one.name]) / factor for end in one.interval or ("", ""))
                off = np.nan_to_num(np.clip([value - low, high - value], 0.0, None))
                look = {"color": colour, "markersize": 4, "elinewidth": 1.0, "label": one.heading}
                if lines:
                    axes.errorbar(table[first.name] / _unit_of(table, first)[1], value, off, fmt="o-", **look)
                else:
                    axes.errorbar(value, range(len(labels)), xerr=off, fmt="o", **look)
            scale(axes.yaxis if lines else axes.xaxis, table[[one.name for one in columns]].to_numpy().ravel() / factor)
            axes.set(**{"ylabel" if lines else "xlabel": name})
            if lines:
                own, factor = _unit_of(table, first)
                scale(axes.xaxis, table[first.name].to_numpy() / factor)
                axes.set_xlabel(f"{first.heading} [{own}]" if own else first.heading)
            else:
                axes.set_yticks(range(len(labels)), labels if axes is grid[0] else [""] * len(labels))
                axes.set_ylim(len(labels) - 0.5, -0.5)
            axes.legend()
        return plot("table", summary.answer.split(". ")[0], "", figure)


def _unit_of(table: pd.DataFrame, *columns: Column) -> tuple[str, float]:
    """Return the unit in which columns of one quantity are drawn, and the size of that unit in SI units."""
    return common_unit(columns[0].unit or "number", table[[one.name for one in columns]].to_numpy().ravel().tolist())
