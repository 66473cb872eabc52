"""Figure of differences between policies seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from simnet.report.drawing import Plot, plot, policy_colours, short, style
from simnet.report.seeds import MORE, ranking

if TYPE_CHECKING:
    from simnet.report.seeds import SeedsSummary
    from simnet.report.summary import Winner

_EXPLANATION = (
    "How much longer each policy took than the one that was the fastest on average: a dot per seed, and the mean with "
    "its paired interval. Where an interval includes 0 the two are tied. The one-step oracle takes no part."
)


def figures(summary: SeedsSummary, table: pd.DataFrame) -> list[Plot]:
    """Draw the differences seed by seed of a summary and what `by_seed` returned."""
    drawn = []
    each, bound, winner = summary["policies"], summary["bound"], summary["winner"]
    looks = policy_colours(dict.fromkeys(each), bound)
    if winner is not None and len(each) > 1:
        drawn.append(
            plot("paired", "Differences seed by seed", _EXPLANATION, _differences(summary, table, winner, looks))
        )
    return drawn


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
