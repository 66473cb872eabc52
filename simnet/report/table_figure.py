"""The figure drawn from the table of an answer."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from simnet.report.drawing import COLOURS, Plot, canvas, plot, scale, short
from simnet.report.summary import TEXTS, Column, Summary, column_cells, common_unit, with_unit

_PANELS = 2


def draw_table(summary: Summary) -> Plot:
    """Draw a table's numbers with intervals against its first column: one panel for times, one for another unit."""
    first, *others = map(with_unit, summary.columns)
    table = pd.DataFrame([*summary.rows]).apply(pd.to_numeric, errors="coerce").astype(float)
    drawn = [one for one in others if one.unit not in TEXTS and one.name in table and table[one.name].notna().any()]
    panels = sorted(dict.fromkeys(one.unit for one in drawn), key=lambda unit: unit != "time")[:_PANELS]
    labels = [short(one) for one in column_cells(first, summary.rows)[1]]
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
    """Return the display unit shared by columns of one kind, and its size in SI units."""
    return common_unit(columns[0].unit or "number", table[[one.name for one in columns]].to_numpy().ravel().tolist())
