"""Figures of contests: what time buys, and differences seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from simnet.report.drawing import SECONDS, Plot, plot, policy_colours, short, style, unit
from simnet.report.paired import Estimate
from simnet.report.seeds import MORE, ranking
from simnet.report.worth import Measure, frontier

if TYPE_CHECKING:
    from simnet.report.seeds import SeedsSummary
    from simnet.report.summary import Winner

TITLES = {
    "gain": (
        "What time buys",
        "The mean time of an iteration against its gain, the share of the squared norm of gradients and residuals that "
        "was sent. Black: the frontier, on which no policy that can be run is both faster and worth more. Along a line "
        "through the origin the time per gain is the same; the steeper, the less.",
    ),
    "loss": (
        "What time buys",
        "The mean time of an iteration against how far the loss on data held out fell per iteration. Black: the "
        "frontier, on which no policy that can be run is both faster and worth more. Along a line through the origin "
        "the time per loss is the same; the steeper, the less.",
    ),
}
"""Title and explanation of the figure."""

_AXES = {"gain": "gain of an iteration", "loss": "fall of the loss per iteration"}
_MARGIN = 0.1

_EXPLANATION = (
    "How much longer each policy took than the one that was the fastest on average: a dot per seed, and the mean with "
    "its paired interval. Where an interval includes 0 the two are tied. The one-step oracle takes no part."
)


def draw_frontier(
    measure: Measure,
    places: Mapping[str, tuple[Estimate, Estimate]],
    colours: Mapping[str, str],
    bound: str | None = None,
) -> Figure:
    """Draw the time of an iteration against what it is worth, the frontier, and lines of equal time per unit.

    Parameters
    ----------
    measure : {"gain", "loss"}
        What it is worth in.
    places : mapping of str to (Estimate, Estimate)
        Time of an iteration [s] and its worth, of each policy, at least one.
    colours : mapping of str to str
        Of each policy.
    bound : str, optional
        The policy that nobody can run, and which is not on the frontier.
    """
    name, factor = unit(max(seconds.mean for seconds, _ in places.values()), SECONDS)
    means = {policy: (seconds.mean / factor, amount.mean) for policy, (seconds, amount) in places.items()}
    with style():
        figure = Figure(figsize=(9.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for policy, (seconds, amount) in places.items():
            x, y = means[policy]
            errors = [[[one.mean - one.low], [one.high - one.mean]] for one in (seconds, amount)]
            axes.errorbar(
                [x], [y], xerr=np.array(errors[0]) / factor, yerr=errors[1], label=short(policy),
                linestyle="", color=colours[policy], marker="o", markersize=6, elinewidth=1, zorder=4,
                markerfacecolor="white" if policy == bound else colours[policy],
            )  # fmt: skip
        edge = [means[policy] for policy in frontier({one: at for one, at in means.items() if one != bound})]
        x, y = np.array(edge or [(0.0, 0.0)]).T
        axes.step(x, y, where="post", color="#333333", linewidth=1.1, zorder=3)
        right = (1 + _MARGIN) * max(x for x, _ in means.values())
        top = (1 + _MARGIN) * max(max(y for _, y in means.values()), 0.0)
        low = min(0.0, (1 + _MARGIN) * min(y for _, y in means.values()))
        for policy, (x, y) in means.items():
            if y > 0 and policy != bound:
                axes.plot([0, right], [0, right * y / x], color=colours[policy], linewidth=0.6, alpha=0.5, zorder=1)
        axes.set(xlim=(0, right), ylim=(low, top or 1.0))
        axes.set(xlabel=f"time of an iteration [{name}]", ylabel=_AXES[measure])
        figure.legend(loc="outside right upper", labelspacing=0.9)
    return figure


def figures(summary: SeedsSummary, table: pd.DataFrame) -> list[Plot]:
    """Draw the differences seed by seed, and the frontier, of a summary and what `by_seed` returned."""
    drawn = []
    each, bound, winner = summary["policies"], summary["bound"], summary["winner"]
    looks = policy_colours(dict.fromkeys(each), bound)
    if winner is not None and len(each) > 1:
        drawn.append(
            plot("paired", "Differences seed by seed", _EXPLANATION, _differences(summary, table, winner, looks))
        )
    if summary["worth"] is not None:
        measure = summary["worth"]["measure"]
        iterations = table.groupby("policy")["iterations"].mean()
        places = {
            name: (
                Estimate(*(_end(one, "simulated", end, "_s") / iterations[name] for end in _ENDS)),
                Estimate(*(_end(one, "worth", end, "") for end in _ENDS)),
            )
            for name, one in each.items()
            if one["time_per_unit_s"] is not None and one["simulated_s"] is not None
        }
        title, said = TITLES[measure]
        drawn.append(plot("frontier", title, f"{said} Bars: intervals of the means over seeds.",
            draw_frontier(measure, places, looks, bound)))  # fmt: skip
    return drawn


_ENDS = ("", "_low", "_high")


def _end(one: Mapping[str, Any], stem: str, end: str, unit: str) -> float:
    """Return an end of an interval; the mean where it has none."""
    value = one[f"{stem}{end}{unit}"]
    return float(one[f"{stem}{unit}"] if value is None else value)


def _differences(summary: SeedsSummary, table: pd.DataFrame, winner: Winner, looks: Mapping[str, str]) -> Figure:
    each, first = summary["policies"], winner["policy"]
    shown = [name for name in ranking(summary) if each[name]["simulated_rank"] is not None and name != first]
    times = table.pivot(index="seed", columns="policy", values="simulated_s")
    best = each[first]["simulated_s"] or 1.0
    with style():
        figure = Figure(figsize=(9.2, 1.4 + 0.5 * max(len(shown), 1)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color="#333333", linewidth=0.9)
        for row, name in enumerate(shown):
            differences = 100 * (times[name] - times[first]).dropna().to_numpy() / best
            axes.plot(differences, np.full(len(differences), row), "o", color=looks[name], markersize=3.5, alpha=0.45)
            mean, low, high = (each[name][f"simulated_{end}_s"] for end in MORE)
            if low is not None and high is not None:
                axes.plot([100 * low / best, 100 * high / best], [row - 0.22] * 2, color=looks[name], linewidth=2.2)
            axes.plot([100 * mean / best], [row - 0.22], "D", color=looks[name], markersize=5)
        axes.set_yticks(range(len(shown)), [short(name) for name in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"more than {short(first)} [% of its mean time]")
    return figure
