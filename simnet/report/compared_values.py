"""Figures that compare published values (hollow markers) with values of simnet (coloured by kind of comparison)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simnet.report.drawing import BOUND_COLOUR, COLOURS, canvas, legend_above, scale

Value: TypeAlias = str | Sequence[float]
"""A name; or the low end of an interval, its middle value if that is known, and its high end."""

KIND_COLOURS = {"test": COLOURS[0], "echo": COLOURS[2], "orientation": COLOURS[4]}
"""Colour of simnet's values by kind of comparison."""

_MARKERS = "os^Dv<>P"
# Characters of a line below the panels and above them, and of labels in two columns.
_WRAP, _TITLE, _BROAD = 172, 105, 30


class ComparedValue(NamedTuple):
    """A published value and simnet's, with their place in the figure."""

    # Which value it is.
    what: str
    published: Value
    ours: Value
    # Kind of comparison, which has a colour.
    kind: str
    # Whether the two contradict each other.
    contradicts: bool
    # Of both values; each panel has one.
    unit: str
    panel: str
    series: str
    # Place on the horizontal axis, as a text with a number; or the name of one of categories, one below the other.
    x: str
    # Title of the horizontal axis; empty for categories.
    axis: str


def draw_compared_values(title: str, text: str, values: Sequence[ComparedValue]) -> Figure:
    """Draw published and simulated values in panels, one for each unit and panel name, above a text."""
    panels: dict[tuple[str, str], list[ComparedValue]] = {}
    for one in values:
        panels.setdefault((one.panel, one.unit), []).append(one)
    longest = max((len(one.x) for one in values if not one.axis), default=0)
    columns = min(len(panels), 3 if not longest else 2 if longest < _BROAD else 1)
    groups, lines = [*panels.values()], textwrap.wrap(text, _WRAP)
    heights = [max(map(_height, groups[at : at + columns])) for at in range(0, len(groups), columns)]
    shapes = dict(zip(dict.fromkeys(one.series for one in values if one.axis), _MARKERS, strict=False))
    size = 9.2, sum(heights) + 0.13 * len(lines) + 1.0
    with canvas(*size, len(heights), columns, squeeze=False, height_ratios=heights) as (figure, grid):
        for axes in grid.flat[len(groups) :]:
            axes.remove()
        for axes, ((panel, unit), group) in zip(grid.flat, panels.items(), strict=False):
            _draw_panel(axes, group, shapes)
            axes.set_title(panel, fontsize=9)
            axes.set(**{"ylabel" if group[0].axis else "xlabel": unit})
        handles = _handles(values, shapes)
        title = textwrap.fill(title, _TITLE)
        legend_above(figure, handles, title=title, alignment="left", title_fontsize=10.5, fontsize=8.5)
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7, color="#444444")
    return figure


def _height(group: Sequence[ComparedValue]) -> float:
    """Return the height of a panel [inch]."""
    return 1.0 + max(1.3, 0.15 * len(_names(group))) if group[0].axis else 0.75 + 0.2 * len(group)


def _names(group: Sequence[ComparedValue]) -> list[str]:
    """Return the values of a panel that are texts, in order of appearance; empty if its values are numbers."""
    named = [one for one in group if isinstance(one.ours, str)]
    return [*dict.fromkeys(str(value) for one in named for value in (one.published, one.ours))]


def _draw_panel(axes: Axes, group: Sequence[ComparedValue], shapes: Mapping[str, str]) -> None:
    """Draw a panel: values over a numeric axis with a line for each series, or a row for each value."""
    names, curves, seen = _names(group), bool(group[0].axis), list[float]()
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for order, one in enumerate(group):
        at = float(re.findall(r"[\d.]+(?:e[+-]\d+)?", one.x)[0]) if curves else order
        for who, value in (("published", one.published), ("ours", one.ours)):
            # A name is a place on the axis, or a remark in place of a number.
            ends = value if not isinstance(value, str) else [names.index(value)] * 3 if names else []
            across = [at] * len(ends)
            look = _look(one, who) | {"marker": shapes.get(one.series, "o"), "markevery": [1] * (len(ends) == 3)}
            axes.plot(
                *((across, ends) if curves else (ends, across)), label=f"{who} {one.what}", clip_on=not ends, **look
            )
            seen += ends
        lines.setdefault((one.series, one.kind), []).append((at, ends[len(ends) // 2]))
    along = axes.yaxis if curves else axes.xaxis
    if names:
        along.set_ticks(range(len(names)), names)
    else:
        scale(along, np.array(seen))
    if curves:
        for (_, kind), points in lines.items():
            axes.plot(*zip(*sorted(points), strict=True), color=KIND_COLOURS[kind], linewidth=1, zorder=2)
        scale(axes.xaxis, np.array([at for points in lines.values() for at, _ in points]))
        axes.autoscale(axis="x")
        axes.set_xlabel(group[0].axis)
    else:
        axes.set_yticks(range(len(group)), [one.x for one in group], fontsize=8)
        axes.set_ylim(len(group) - 0.5, -0.5)


def _look(one: ComparedValue, who: str) -> dict[str, Any]:
    """Return the matplotlib style of a value of simnet, if `who` is ``ours``, or of a published value."""
    if who == "ours":
        colour = KIND_COLOURS[one.kind]
        return {"color": (colour, 0.4), "markerfacecolor": colour, "markeredgewidth": 0, "markersize": 4.5,
                "linewidth": 5, "solid_capstyle": "butt", "zorder": 4}  # fmt: skip
    face = BOUND_COLOUR if one.contradicts else "none"
    return {"color": BOUND_COLOUR, "markerfacecolor": face, "markersize": 7.5, "linewidth": 1.2, "zorder": 3}


def _handles(values: Sequence[ComparedValue], shapes: Mapping[str, str]) -> list[Line2D]:
    """Return the entries of the legend: published values (agreeing, contradicting), kinds of comparison, and series."""
    looks = {
        "published" + ", contradicts" * one.contradicts: _look(one, "published")
        for one in sorted(values, key=lambda one: one.contradicts)
    }
    looks |= {f"simnet, {one.kind}": _look(one, "ours") for one in values}
    shown = {label: {"marker": "o", **look} for label, look in looks.items()}
    shown |= {
        name: {"marker": shape, "color": "#777777", "linestyle": "none"} for name, shape in shapes.items() if name
    }
    return [Line2D([], [], label=label, **look) for label, look in shown.items()]
