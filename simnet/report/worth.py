"""What time buys: how much of the gradients was sent, or where a model is trained, how far its loss fell.

An exchange that is fast since it sends little is no bargain. The compression gain of an iteration is the share of the
squared norm of gradients and residuals that was sent, so time per gain is the time in which as much is sent as is in
one whole gradient. Where a model is trained, the loss on data held out says better what updates were worth: time per
loss is the time in which it fell by 1, from before the first update to when it was last measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
from matplotlib.figure import Figure

from simnet.base.units import format_seconds
from simnet.policies.pareto import pareto_front
from simnet.report.drawing import SECONDS, style, unit

Measure: TypeAlias = Literal["gain", "loss"]
"""By what it is told what time bought."""

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
_LONGEST = 28


class WorthSummary(TypedDict):
    """What an iteration of a policy was worth, and how long it took for a unit of that [s]; None where nothing was."""

    measure: Measure
    per_iteration: float
    time_per_unit_s: float | None


class Estimate(NamedTuple):
    """A mean and the interval that it is within."""

    mean: float
    low: float
    high: float


def exactly(value: float) -> Estimate:
    """Return a number that has no error."""
    return Estimate(value, value, value)


def condensed(
    measure: Measure, seconds: float, iterations: int, amount: float, rounded: Callable[[float], float]
) -> WorthSummary | None:
    """Return what the time of a policy bought; None if that is no finite number.

    Parameters
    ----------
    measure : {"gain", "loss"}
        What `amount` is.
    seconds : float
        Time [s].
    iterations : int
        Iterations of training in that time.
    amount : float
        What they were worth together.
    rounded : callable
        Rounds a number.

    Examples
    --------
    >>> condensed("gain", 6.0, 4, 2.0, float)
    {'measure': 'gain', 'per_iteration': 0.5, 'time_per_unit_s': 3.0}
    """
    if not iterations or not math.isfinite(amount):
        return None
    per_unit = rounded(seconds / amount) if amount > 0 else None
    return {"measure": measure, "per_iteration": rounded(amount / iterations), "time_per_unit_s": per_unit}


def frontier(places: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the policies than which none is both as fast and worth as much, and better in one; the fastest first.

    Parameters
    ----------
    places : mapping of str to (float, float)
        The time of an iteration of each policy, and what that was worth.

    Examples
    --------
    >>> frontier({"a": (1.0, 0.2), "b": (2.0, 0.1), "c": (2.0, 0.9)})
    ['a', 'c']
    """
    names = list(places)
    if not names:
        return []
    kept = pareto_front([(seconds, -amount) for seconds, amount in places.values()])
    return sorted((names[row] for row in kept), key=lambda name: places[name])


def cell(worth: WorthSummary | None) -> str:
    """Return the time per unit for a table."""
    return "-" if worth is None or worth["time_per_unit_s"] is None else format_seconds(worth["time_per_unit_s"])


def draw(
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
                [x], [y], xerr=np.array(errors[0]) / factor, yerr=errors[1], label=" ".join(policy.split())[:_LONGEST],
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
        axes.set(
            xlim=(0, right), ylim=(low, top or 1.0), xlabel=f"time of an iteration [{name}]", ylabel=_AXES[measure]
        )
    return figure
