"""Figures of a run: training results, iteration time, time by part, choices of exchanges.

Each function takes the iterations of all policies (one frame, see `simnet.training.job.record.PolicyResult`) and
returns a matplotlib figure; `render` draws all of them to PNG and SVG, byte-identical for equal input. Long runs are
thinned before they are drawn: a line is the mean over a stretch of iterations, its band the extremes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.file_io import read_shipped_rows
from simnet.base.units import format_seconds
from simnet.report import drawing
from simnet.report.drawing import COLOURS, canvas, legend_above, plot, policy_looks, scale, short
from simnet.report.run_summary import PHASES, with_exploration
from simnet.report.seeds import MORE, ranking_over_seeds
from simnet.report.summary import Plot, Unit, common_unit

# Title and explanation of each figure.
_CAPTIONS = {row["name"]: (row["title"], row["explanation"]) for row in read_shipped_rows("data/figures.csv")}
_WEATHER_COLOUR = "#5B6B7A"
_BINS = 250
# Policies this many times slower than the fastest may leave the picture, so that they do not flatten the others.
_FAR = 2.0
# Trainings whose times differ by more than this are drawn on a logarithmic axis of time.
_WIDE = 8.0


def render(
    iterations: pd.DataFrame,
    bound: str | None = None,
    names: Collection[str] | None = None,
) -> list[Plot]:
    """Return the figures of a run, or only those in `names`; the policy `bound` is marked as a lower bound."""
    drawn = [learning] * ("accuracy" in iterations) + [iteration_time, breakdown, choices]
    return [
        plot(draw.__name__, *_CAPTIONS[draw.__name__], draw(iterations, bound))
        for draw in drawn
        if names is None or draw.__name__ in names
    ]


def iteration_time(iterations: pd.DataFrame, bound: str | None = None) -> Figure:
    """Draw the time per iteration of each policy (`bound` as a lower bound), and below it bandwidth and latency.

    The axis is the iteration if all policies meet the same network at the same iteration, else simulated time.
    """
    with canvas(9.2, 6.0, 3, 1, sharex=True, height_ratios=(3.4, 1, 1)) as (figure, (top, middle, bottom)):
        iterations, label = _with_positions(iterations)
        looks, frames = policy_looks(iterations["policy"], bound), _by_policy(iterations)
        ends = {policy: float(frame["x_end"].iloc[-1]) for policy, frame in frames.items()}
        # The slowest policy that is not far slower than the fastest.
        last = max(end for end in ends.values() if end <= _FAR * min(ends.values()))
        shown = iterations[iterations["x"] <= last]
        name, factor = common_unit("time", [float(shown["iteration_s"].max())])
        for policy, frame in _by_policy(shown).items():
            x, y = frame["x"].to_numpy(), frame["iteration_s"].to_numpy() / factor
            _draw_line(top, x, y, band=policy != bound, **looks[policy])
        top.set_ylabel(f"iteration time [{name}]")
        scale(top.yaxis, shown["iteration_s"].to_numpy() / factor)
        _note_cut(top, [policy for policy, end in ends.items() if end > last], frames)
        _draw_network((middle, bottom), shown, label, last)
        figure.align_ylabels()
        legend_above(figure, _legend_handles(looks))
    return figure


def breakdown(iterations: pd.DataFrame, bound: str | None = None) -> Figure:
    """Draw the simulated time of each policy as bars of compute, select, communicate and wait (means over workers)."""
    totals = iterations.groupby("policy", sort=False)[[f"{phase}_s" for phase in PHASES]].sum()
    ends = totals.sum(axis=1)
    order = sorted(ends.index, key=lambda policy: (float(ends[policy]), policy != bound))
    with canvas(9.2, 1.2 + 0.42 * len(order)) as (figure, axes):
        name, factor = common_unit("time", [float(ends.max())])
        widths = totals.loc[order] / factor
        starts = widths.cumsum(axis=1).shift(1, axis=1, fill_value=0.0)
        for phase, column in zip(PHASES, widths, strict=True):
            look = {"color": drawing.PHASE_COLOURS[phase], "edgecolor": "white", "linewidth": 0.6}
            axes.barh(range(len(order)), widths[column], left=starts[column], height=0.62, **look)
        for row, policy in enumerate(order):
            place = {"xy": (widths.loc[policy].cumsum().iloc[-1], row), "xytext": (5, 0), "textcoords": "offset points"}
            axes.annotate(format_seconds(float(ends[policy])), va="center", **place)
        _label_policies(axes, order, bound)
        axes.invert_yaxis()
        axes.set_xlabel(f"simulated time [{name}], mean over workers")
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        handles = [Patch(color=drawing.PHASE_COLOURS[phase], label=phase) for phase in PHASES]
        legend_above(figure, handles)
    return figure


def choices(iterations: pd.DataFrame, bound: str | None = None) -> Figure:
    """Draw which exchange was in use over time for each policy that switches, and below it bandwidth and latency.

    If no policy changed its choice, all policies are drawn.
    """
    iterations, label = _with_positions(iterations)
    frames = _by_policy(iterations)
    changing = {policy: frame for policy, frame in frames.items() if frame["choice"].nunique() > 1} or frames
    labels = list(dict.fromkeys(iterations["choice"]))
    colours = choice_colours(frames, labels, policy_looks(iterations["policy"], bound))
    ratios = (0.5 * len(changing), 0.8, 0.8)
    with canvas(9.2, 3.0 + 0.5 * len(changing), 3, 1, sharex=True, height_ratios=ratios) as (figure, panels):
        strips, middle, bottom = panels
        last = max(float(frame["x_end"].iloc[-1]) for frame in changing.values())
        shown = iterations[iterations["x"] <= last]
        for row, frame in enumerate(changing.values()):
            for choice, bars in _choice_stretches(frame).items():
                strips.broken_barh(bars, (row - 0.36, 0.72), color=colours[choice], linewidth=0)
        _label_policies(strips, changing, bound)
        strips.set_ylim(len(changing) - 0.5, -0.5)
        _draw_network((middle, bottom), shown, label, last)
        figure.align_ylabels([middle, bottom])
        seen = {choice for frame in changing.values() for choice in frame["choice"]}
        handles = [Patch(color=colours[choice], label=short(choice)) for choice in labels if choice in seen]
        legend_above(figure, handles)
    return figure


def learning(iterations: pd.DataFrame, bound: str | None = None) -> Figure:
    """Draw loss and accuracy on held-out data against simulated time and against iterations."""
    iterations = with_exploration(iterations)
    looks, frames = policy_looks(iterations["policy"], bound), _by_policy(iterations)
    ends = {policy: _elapsed_time(frame) for policy, frame in frames.items()}
    totals = [float(end[-1]) for end in ends.values()]
    name, factor = common_unit("time", [max(totals)])
    with canvas(9.2, 5.6, 2, 2, sharex="col", sharey="row") as (figure, grid):
        for policy, frame in frames.items():
            rows = np.flatnonzero(frame["accuracy"].notna())
            for line, (column, share) in zip(grid, (("loss", 1.0), ("accuracy", 100.0)), strict=True):
                values = share * frame[column].to_numpy()[rows]
                for axes, x in zip(line, (ends[policy][rows] / factor, rows + 1), strict=True):
                    axes.plot(x, values, marker="o" if len(rows) == 1 else None, **looks[policy])
        grid[0][0].set_ylabel("loss on data held out")
        grid[1][0].set_ylabel("accuracy [%]")
        # Losses of trainings that go wrong would flatten all others.
        losses = iterations["loss"].to_numpy(dtype=np.float64)
        scale(grid[0][0].yaxis, losses[np.isfinite(losses)])
        grid[1][0].set_xlabel(f"simulated time [{name}]")
        if iterations["accuracy"].notna().any() and max(totals) > _WIDE * min(totals):
            grid[1][0].set_xscale("log")
        grid[1][1].set_xlabel("iterations done")
        grid[1][1].xaxis.set_major_locator(MaxNLocator(6, integer=True))
        legend_above(figure, _legend_handles(looks))
    return figure


def _label_policies(axes: Axes, policies: Collection[str], bound: str | None) -> None:
    axes.set_yticks(range(len(policies)), [short(one) + (" (bound)" if one == bound else "") for one in policies])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def _by_policy(iterations: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(policy): frame for policy, frame in iterations.groupby("policy", sort=False)}


def choice_colours(
    frames: Mapping[str, pd.DataFrame], labels: Sequence[str], looks: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return a colour for each exchange: the colour of the policy that always uses it, or a free colour."""
    colours: dict[str, str] = {}
    for policy, frame in frames.items():
        kept = set(frame["choice"])
        if len(kept) == 1 and looks[policy]["color"] != drawing.BOUND_COLOUR:
            colours.setdefault(kept.pop(), looks[policy]["color"])
    free = [colour for colour in COLOURS if colour not in colours.values()] or list(COLOURS)
    for label in labels:
        if label not in colours:
            colours[label] = free[0]
            free = [*free[1:], free[0]]
    return colours


def _with_positions(iterations: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return iterations with their start ``x`` and end ``x_end`` on the horizontal axis, and the label of the axis."""
    frames = _by_policy(iterations).values()
    network = [frame[["latency_s", "bandwidth_Bps"]].to_numpy() for frame in frames]
    if all(np.array_equal(one, network[0], equal_nan=True) for one in network):
        number = iterations["iteration"].astype(np.float64)
        return iterations.assign(x=number, x_end=number + 1), "iteration"
    name, factor = common_unit("time", [min(float(_elapsed_time(frame)[-1]) for frame in frames)])
    start = iterations["start_s"]
    end = (start + iterations["iteration_s"]) / factor
    return iterations.assign(x=start / factor, x_end=end), f"simulated time [{name}]"


def _choice_stretches(frame: pd.DataFrame) -> dict[str, list[tuple[float, float]]]:
    """Return time bars (start, length) by exchange; in long runs a bar shows the most frequent exchange within it."""
    code, labels = pd.factorize(frame["choice"])
    starts = np.flatnonzero(np.diff(code, prepend=-1))
    if len(starts) > 2 * _BINS:
        starts = -(-np.arange(2 * _BINS) * len(code) // (2 * _BINS))
        code = np.repeat(most_used(code, starts, len(labels)), np.diff(np.append(starts, len(code))))
    left = np.append(frame["x"].to_numpy()[starts], frame["x_end"].iloc[-1])
    bars: dict[str, list[tuple[float, float]]] = {}
    for start, first, last in zip(starts, left[:-1], left[1:], strict=True):
        bars.setdefault(str(labels[code[start]]), []).append((float(first), float(last - first)))
    return bars


def most_used(code: NDArray[np.intp], starts: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return the most frequent integer below `count` in each stretch of `code`; stretches begin at indices `starts`."""
    counts = np.zeros((len(starts), count), np.intp)
    np.add.at(counts, (np.searchsorted(starts, np.arange(len(code)), side="right") - 1, code), 1)
    return np.asarray(counts.argmax(axis=1))


def _note_cut(axes: Axes, cut: Sequence[str], frames: Mapping[str, pd.DataFrame]) -> None:
    """Note above the axes which policies run on after the end of the horizontal axis, and when they end."""
    if cut:
        ends = (f"{short(policy)} until {format_seconds(float(_elapsed_time(frames[policy])[-1]))}" for policy in cut)
        axes.set_title(f"goes on beyond the axis: {', '.join(ends)}", loc="right", fontsize=8, color="#555555")


def _elapsed_time(frame: pd.DataFrame) -> Floats:
    """Return the simulated time [s] from the start of the first iteration to the end of each iteration."""
    start = frame["start_s"].to_numpy()
    elapsed: Floats = start + frame["iteration_s"].to_numpy() - start[0]
    return elapsed


def _draw_line(axes: Axes, x: Floats, y: Floats, *, band: bool = True, **look: Any) -> None:
    """Draw a line. From 500 points on, draw means over equal stretches, with a band from minimum to maximum."""
    # Step lines show the first value of a stretch, since a mean may be a value that never occurred.
    step: Literal["post"] | None = "post" if look.get("drawstyle") == "steps-post" else None
    if len(x) > 2 * _BINS:
        starts = np.unique(np.searchsorted(x, np.linspace(x[0], x[-1], _BINS, endpoint=False)))
        if band:
            low, high = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
            axes.fill_between(x[starts], low, high, step=step, color=look["color"], alpha=0.14, linewidth=0)
        lengths = np.diff(np.append(starts, len(x)))
        x = x[starts] if step else np.add.reduceat(x, starts) / lengths
        y = y[starts] if step else np.add.reduceat(y, starts) / lengths
    alone = len(x) == 1
    axes.plot(x, y, marker="o" if alone else None, clip_on=not alone, **look)


def _draw_network(axes: tuple[Axes, Axes], iterations: pd.DataFrame, label: str, last: float) -> None:
    """Draw bandwidth and latency during the run on a labelled horizontal axis that ends at `last`."""
    both: tuple[tuple[str, str, Unit], ...] = (("bandwidth_Bps", "bandwidth", "rate"), ("latency_s", "latency", "time"))
    for one, (column, what, unit) in zip(axes, both, strict=True):
        x, y = iterations["x"].to_numpy(), iterations[column].to_numpy(dtype=np.float64)
        order = np.argsort(x, kind="stable")
        order = order[np.isfinite(y[order])]
        x, first = np.unique(x[order], return_index=True)
        y = y[order][first]
        name, factor = common_unit(unit, [float(y.max())] if len(y) else [])
        if len(y):
            x, y = np.append(x, last), np.append(y, y[-1])
            _draw_line(one, x, y / factor, color=_WEATHER_COLOUR, linewidth=1.2, drawstyle="steps-post")
            one.set_ylim(0, 1.12 * float(y.max()) / factor or 1.0)
        one.set_ylabel(f"{what}\n[{name}]")
    axes[1].set_xlabel(label)
    axes[1].xaxis.set_major_locator(MaxNLocator(9, integer=label == "iteration"))
    axes[1].set_xlim(float(iterations["x"].min()), last)


def _legend_handles(looks: Mapping[str, Mapping[str, Any]]) -> list[Line2D]:
    return [
        Line2D([], [], color=look["color"], linestyle=look["linestyle"], label=short(policy))
        for policy, look in looks.items()
    ]


def seed_comparison(summary: Mapping[str, Any], table: pd.DataFrame) -> list[Plot]:
    """Return the figure of each policy's time minus the fastest policy's time, by seed; empty without a winner."""
    each, winner = summary["policies"], summary["winner"]
    if winner is None or len(each) < 2:
        return []
    first, looks = winner["policy"], policy_looks(each, summary["bound"])
    shown = [name for name in ranking_over_seeds(each) if each[name]["simulated_rank"] is not None and name != first]
    times = table.pivot(index="seed", columns="policy", values="simulated_s")
    percent = 100 / (each[first]["simulated_s"] or 1.0)
    with canvas(9.2, 1.4 + 0.5 * max(len(shown), 1)) as (figure, axes):
        axes.axvline(0, color="#333333", linewidth=0.9)
        for row, name in enumerate(shown):
            colour = looks[name]["color"]
            differences = percent * (times[name] - times[first]).dropna().to_numpy()
            axes.plot(differences, np.full(len(differences), row), "o", color=colour, markersize=3.5, alpha=0.45)
            mean, low, high = (each[name][f"simulated_{end}_s"] for end in MORE)
            if low is not None and high is not None:
                axes.plot([percent * low, percent * high], [row - 0.22] * 2, color=colour, linewidth=2.2)
            axes.plot([percent * mean], [row - 0.22], "D", color=colour, markersize=5)
        axes.set_yticks(range(len(shown)), [short(name) for name in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"more than {short(first)} [% of its mean time]")
    return [plot("paired", *_CAPTIONS["paired"], figure)]
