"""Map of a grid: where each policy is fastest, as text and as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.report import wording
from simnet.report.paired import TIE
from simnet.report.summary import Column, Plot, Summary, Unit, interval_text
from simnet.studies.sweeping.grid import AxisColumn


class GridTimes(NamedTuple):
    """Grid cell: axis values, seconds by policy, fastest policies, and an oracle that knows all times beforehand."""

    values: tuple[Any, ...]
    seconds: dict[str, float]
    first: list[str]
    bound: str | None = None

    @property
    def rivals(self) -> list[str]:
        """Policies that have a time in this cell, without the oracle, which knows each exchange's time beforehand."""
        return [name for name in self.seconds if name != self.bound]

    @property
    def leading(self) -> set[str]:
        """Winners whose time is the least, or as good as equal to it."""
        least = min(self.seconds[name] for name in self.first)
        return {name for name in self.first if self.seconds[name] <= (1 + TIE) * least}

    @property
    def next(self) -> tuple[str, float] | None:
        """Fastest policy after the winners, and its time divided by the winners' time; None if there is none."""
        later = [(self.seconds[name], name) for name in self.rivals if name not in self.first]
        return (min(later)[1], min(later)[0] / self.seconds[self.first[0]]) if later and self.first else None


def where_fastest(
    cells: Sequence[GridTimes], by: Sequence[AxisColumn], each: str = " an iteration", unit: Unit = "time"
) -> str:
    """Return a text on where in a grid each policy is fastest or, for a single policy, on the range of its times.

    `each` says what the times are of; another quantity than time, of which the least is best, has its own `unit`.

    Examples
    --------
    >>> slow, fast = {"AG": 1.0, "ring": 1.2}, {"AG": 0.9, "ring": 0.3}
    >>> cells = [GridTimes((8e6,), slow, ["AG"]), GridTimes((8e9,), fast, ["ring"])]
    >>> where_fastest(cells, [AxisColumn("bandwidth_Bps", [8e6, 8e9])])
    'It depends: AG at 64 Mbit/s (ring +20 %), ring at 64 Gbit/s (AG 3.00x).'
    >>> cells = [GridTimes((8e6,), slow, ["AG"]), GridTimes((8e9,), {"AG": 0.8, "ring": 0.9}, ["AG", "ring"])]
    >>> where_fastest(cells, [AxisColumn("bandwidth_Bps", [8e6, 8e9])])
    'AG: fastest in all 2 cells, 800 ms to 1.00 s an iteration (ring +20 %). Tied: ring at 64 Gbit/s.'
    """
    done = [one for one in cells if one.rivals]
    if not done:
        return ""
    if len({name for one in done for name in one.rivals}) == 1:
        (name,) = done[0].rivals
        ends = [end(done, key=lambda one: one.seconds[name]) for end in (min, max)]
        told = [
            f"{interval_text(one.seconds[name], unit=unit)} at {', '.join(map(value_text, one.values, by))}"
            for one in ends
        ]
        return f"{name}: {' to '.join(dict.fromkeys(told))}{each}."
    won = [one for one in done if one.first]
    if not won:
        return f"No policy has settled in any of {len(cells)} cells."
    always = set.intersection(*(set(one.first) for one in won))
    alike = all(set(one.first) == always for one in won)
    leading = always if alike else set.intersection(*(one.leading for one in won))
    groups: dict[tuple[str, ...], list[GridTimes]] = {}
    for one in won:
        groups.setdefault(tuple(name for name in one.first if name not in leading), []).append(one)
    places = group_places([[one.values for one in members] for members in groups.values()], by, len(cells))
    join, more = (wording.listed, lambda _: "") if leading else (wording.alternatives_text, _lead)
    there = zip(groups.items(), places, strict=True)
    parts = ", ".join(f"{join(names)} {where}{more(members)}" for (names, members), where in there if names)
    if not leading:
        return f"It depends: {parts}." + (f" {wording.listed(sorted(always))}: first or tied in all." if always else "")
    names = [name for name in won[0].first if name in leading]
    how = ": fastest" * (not alike) or ": tied" * (len(names) > 1)
    where = f" in {'all ' if len(won) == len(cells) else f'{len(won)} of '}{len(cells)} cells" if len(cells) > 1 else ""
    took = [min(one.seconds[name] for name in names) for one in won]
    between = " to ".join(dict.fromkeys(interval_text(end(took), unit=unit) for end in (min, max)))
    text = f"{wording.alternatives_text(names)}{how}{where}, {between}{each}{_lead(won)}."
    return f"{text} Tied: {parts}." if parts else text


def lost_cells_text(lost: int, total: int, why: Sequence[str]) -> str:
    """Return a sentence on `lost` of a grid's cells, with the first reason in `why` in short; empty if none is lost."""
    return f" {lost} of {total} cells without result: {why[0].partition(';')[0]}." if why else ""


def group_places(groups: Sequence[Sequence[tuple[Any, ...]]], by: Sequence[AxisColumn], total: int) -> list[str]:
    """Return a text on where in a grid each group of cells lies, given the cells' values on the axes `by`.

    It states the group's values on the first axis that separates the groups, or its share of the `total` cells.

    Examples
    --------
    >>> rates = AxisColumn("bandwidth_Bps", [125e6, 250e6, 375e6])
    >>> group_places([[(125e6,), (250e6,)], [(375e6,)]], [rates], 3)
    ['at 1 Gbit/s and 2 Gbit/s', 'at 3 Gbit/s']
    """
    if len(groups) == 1 and len(groups[0]) == total:
        return [f"in all {total} cells" if total > 1 else ""]
    for at, axis in enumerate(by):
        each = [{values[at] for values in group} for group in groups]
        if len(groups) > 1 and len(set.union(*each)) == sum(map(len, each)):
            return [f"at {_range_text([values[at] for values in group], axis)}" for group in groups]
    return [f"in {len(group)} of {total} cells{_common_values(group, by)}" for group in groups]


def _common_values(group: Sequence[tuple[Any, ...]], by: Sequence[AxisColumn]) -> str:
    """Return text on the axis values that all cells of a group share, without values that the whole grid shares."""
    each = [{*values} for values in zip(*group, strict=True)]
    pairs = zip(each, by, strict=True)
    only = [value_text(next(iter(own)), axis) for own, axis in pairs if len(own) == 1 < len({*axis.values})]
    return f", {'all ' * (len(group) > 1)}at {wording.listed(only)}" if only else ""


def _lead(cells: Sequence[GridTimes]) -> str:
    """Return a text in brackets on how much faster the winners are than the next policy; empty if there is none."""
    later = [one.next for one in cells if one.next is not None]
    if not later:
        return ""
    ratios = [ratio for _, ratio in later]
    texts = [wording.to_best("", (), ratio, 1.0) for ratio in (min(ratios), max(ratios))]
    names = dict.fromkeys(name for name, _ in later)
    return f" ({next(iter(names)) if len(names) == 1 else 'the next'} {' to '.join(dict.fromkeys(texts))})"


def value_text(value: Any, column: AxisColumn) -> str:
    """Return a value of a grid axis as text; the name of the axis precedes a value without unit."""
    return column.text(value) if column.unit else f"{column.heading} {column.text(value)}"


def _range_text(values: Sequence[Any], column: AxisColumn) -> str:
    """Return values of a grid axis as text, with consecutive values as a range."""
    known = list(dict.fromkeys(column.values))
    places = sorted({known.index(one) for one in values})
    if len(places) > 2 and places == list(range(places[0], places[-1] + 1)):
        return f"{value_text(known[places[0]], column)} to {value_text(known[places[-1]], column)}"
    return " and ".join(value_text(known[one], column) for one in places)


def axis_heads(by: Sequence[AxisColumn]) -> list[Column]:
    """Return the table columns of grid axes."""
    units: list[Unit | None] = ["percent" if one.is_density else None if one.numeric else "text" for one in by]
    return [Column(one.name, one.heading, unit) for one, unit in zip(by, units, strict=True)]


def times_by_cell(cells: Sequence[GridTimes], by: Sequence[AxisColumn], bound: str | None) -> dict[str, Any]:
    """Return the columns and rows of a table with the axis values and each policy's time in every cell."""
    names = list(dict.fromkeys(name for one in cells for name in one.seconds))
    means = {name: [one.seconds[name] for one in cells if name in one.seconds] for name in names}
    order = sorted(names, key=lambda name: (name == bound, sum(means[name]) / max(len(means[name]), 1)))
    shown = {name: f"({name})" if name == bound else name for name in order}
    columns = [
        *axis_heads(by),
        *(Column(f"{name}_s", shown[name], "time", place) for place, name in enumerate(order)),
    ]
    rows = [
        dict(zip([one.name for one in by], cell.values, strict=True))
        | {f"{name}_s": cell.seconds.get(name) for name in order}
        for cell in cells
    ]
    return {"columns": columns, "rows": rows}


def grid_plot(
    title: str, cells: Sequence[GridTimes], by: Sequence[AxisColumn], bound: str | None = None, zipped: bool = False
) -> Plot:
    """Draw each policy's time over an axis, or axes that vary together; over two axes, draw the fastest policies."""
    if len(by) == 1 or zipped:
        from simnet.report.drawing import draw_table

        first = [one._replace(values=one.values[:1]) for one in cells]
        return draw_table(Summary(answer=title, **times_by_cell(first, by[:1], bound)))
    values: list[list[Any]] = [sorted({*one.values}) for one in by]
    names = np.full([len(one) for one in values], "-", dtype=object)
    for one in cells:
        if one.first:
            place = tuple(each.index(value) for each, value in zip(values, one.values, strict=True))
            names[place] = wording.listed(one.first) + ", tied" * (len(one.first) > 1)
    texts = {one.heading: [one.text(value) for value in each] for one, each in zip(by, values, strict=True)}
    return draw_fastest(f"Fastest by {title}", dict(reversed(texts.items())), names)


# With more values than this, not every one is named.
_NAMED = 14


def draw_fastest(title: str, texts: Mapping[str, Sequence[str]], names: NDArray[np.object_]) -> Plot:
    """Draw a map with an area per name. `names` has shape (y values, x values), with the lowest y value first.

    `texts` has the values of the x axis, then those of the y axis, by the heading of the axis.
    """
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    from simnet.report.drawing import COLOURS, canvas, plot

    labels, which = np.unique(names.astype(str), return_inverse=True)
    colours = [*COLOURS, *colormaps["tab20b"].colors][: len(labels)]  # type: ignore[attr-defined]
    colours += ["#9A9A9A"] * (len(labels) - len(colours))
    with canvas(7.6, 5.6) as (figure, axes):
        look: dict[str, Any] = {"vmin": -0.5, "vmax": len(labels) - 0.5, "rasterized": True, "alpha": 0.7}
        axes.pcolormesh(which.reshape(names.shape), cmap=ListedColormap(colours), **look)
        for axis, (heading, values) in zip((axes.xaxis, axes.yaxis), texts.items(), strict=True):
            named = range(0, len(values), 1 + (len(values) - 1) // _NAMED)
            axis.set_ticks([one + 0.5 for one in named], [values[one] for one in named])
            axis.set_label_text(heading)
        axes.grid(visible=False)
        axes.tick_params(axis="x", rotation=45)
        handles = [Patch(color=colour, alpha=0.7, label=label) for colour, label in zip(colours, labels, strict=True)]
        figure.legend(handles=handles, loc="outside right center")
        figure.suptitle(title, x=0.01, ha="left")
    return plot("map", title, "", figure)
