"""What time buys: how much of the gradients was sent, or where a model is trained, how far its loss fell.

An exchange that is fast since it sends little is no bargain. The compression gain of an iteration is the share of the
squared norm of gradients and residuals that was sent, so time per gain is the time in which as much is sent as is in
one whole gradient. Where a model is trained, the loss on data held out says better what updates were worth: time per
loss is the time in which it fell by 1, from before the first update to when it was last measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from typing_extensions import TypedDict

from simnet.base.units import format_seconds
from simnet.policies.pareto import pareto_front

Measure: TypeAlias = Literal["gain", "loss"]
"""By what it is told what time bought."""


class WorthSummary(TypedDict):
    """What an iteration of a policy was worth, and how long it took for a unit of that [s]; None where nothing was."""

    measure: Measure
    per_iteration: float
    time_per_unit_s: float | None


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

    `places` has the time of an iteration of each policy, and what that was worth.

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
