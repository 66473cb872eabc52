"""How well the model did that was trained: loss and accuracy at the end, and the time to a target accuracy.

Time to a target is made of two things: how many iterations it takes, and how long an iteration takes. So there are two
efficiencies. The *statistical* one is the number of iterations that the reference, the first policy, needed to the
target over those of a policy: 1 if its updates are worth as much. The *parallel* one is the share of the simulated time
in which workers compute gradients to train with: 1 if exchanging took no time and nothing was explored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from simnet.base.units import format_seconds
from simnet.report.paired import fastest
from simnet.report.wording import listed, standing

if TYPE_CHECKING:
    import pandas as pd

HEADINGS = (
    *("policy", "time to target", "iterations to target", "accuracy", "loss"),
    *("statistical eff.", "parallel eff."),
)
"""Of the table that people see."""

COLUMNS = (
    *("loss", "accuracy", "best_loss", "best_accuracy", "target_accuracy", "iterations_to_target"),
    *("time_to_target_s", "statistical_efficiency", "parallel_efficiency", "first_to_target"),
)
"""Columns of tables that have a row per policy; see `learning_table`."""

ONE_SEED = "One seed; --seeds 3 says how sure that is."
"""What an answer says after who is first to a target."""

IGNORED = "Accuracy is ignored."
"""What is said of progress where no model is trained."""

NOT_EVALUATED = "The accuracy was not measured: the job is shorter than job.gradients.train.evaluate."
"""Said in place of the time to the target where no iteration was evaluated."""

_OF_THE_BEST = 0.99
_NEEDED = ("start_s", "iteration_s", "loss", "accuracy")


class LearningSummary(TypedDict):
    """How a policy's training went; None for what was not measured, or for a target that was not reached.

    Loss and accuracy are the last that were measured, the best ones the lowest loss and the highest accuracy. A loss
    that is no finite number is None. The time to the target ends with the first measurement at which the accuracy was
    reached, and includes exploration.
    """

    loss: float | None
    accuracy: float | None
    best_loss: float | None
    best_accuracy: float | None
    target_accuracy: float | None
    iterations_to_target: int | None
    time_to_target_s: float | None
    statistical_efficiency: float | None
    parallel_efficiency: float | None


def learning_summaries(
    iterations: Mapping[str, pd.DataFrame],
    computed: Mapping[str, float],
    target: float | None,
    rounded: Callable[[float], float],
    reference: str | None = None,
) -> dict[str, LearningSummary]:
    """Return how the training of each policy went; empty where nothing was trained."""
    if not any("accuracy" in frame for frame in iterations.values()):
        return {}
    # Where workers die in the first iteration nothing is measured.
    frames = {policy: frame.reindex(columns=[*_NEEDED]) for policy, frame in iterations.items()}
    compared = frames.get(next(iter(frames)) if reference is None else reference)
    if target is None and compared is not None:
        best = float(compared["accuracy"].max())
        target = _OF_THE_BEST * best if math.isfinite(best) else None
    needed = None if compared is None else _reached(compared, target)[0]
    return {policy: _one(frame, computed[policy], target, needed, rounded) for policy, frame in frames.items()}


def first_to_target(trained: Mapping[str, LearningSummary], bound: str | None = None) -> list[str]:
    """Return the policies that can be run, all but the bound, the first to reach the target, or tied as such.

    What has not settled takes part: a time to a target is that of the whole run, its first iterations among them.
    """
    times = {policy: one["time_to_target_s"] for policy, one in trained.items() if policy != bound}
    reached = {policy: time for policy, time in times.items() if time is not None}
    return fastest(reached) if reached else []


def learning_table(trained: Mapping[str, LearningSummary], bound: str | None = None) -> dict[str, dict[str, Any]]:
    """Return `COLUMNS` for each policy, None where missing; the bound does not compete."""
    soonest = first_to_target(trained, bound)
    found: dict[str, dict[str, Any]] = {}
    for policy, one in trained.items():
        won = None if one["target_accuracy"] is None else policy in soonest
        found[policy] = {name: won if name == "first_to_target" else one[name] for name in COLUMNS}  # type: ignore[literal-required]
    return found


def learning_cells(trained: Mapping[str, LearningSummary]) -> list[tuple[str, ...]]:
    """Return the cells of the table that people see, the first to reach the target first."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f} %"

    def order(policy: str) -> tuple[float, float]:
        time, accuracy = trained[policy]["time_to_target_s"], trained[policy]["accuracy"]
        return math.inf if time is None else time, -(accuracy or 0.0)

    return [
        (
            policy,
            "not reached" if one["time_to_target_s"] is None else format_seconds(one["time_to_target_s"]),
            "-" if one["iterations_to_target"] is None else str(one["iterations_to_target"]),
            share(one["accuracy"]),
            "-" if one["loss"] is None else f"{one['loss']:.4g}",
            share(one["statistical_efficiency"]),
            share(one["parallel_efficiency"]),
        )
        for policy, one in ((policy, trained[policy]) for policy in sorted(trained, key=order))
    ]


def learning_headline(trained: Mapping[str, LearningSummary], bound: str | None = None) -> str:
    """Say who reaches the target first, how far ahead of the next, and who never does; empty where nothing was trained.

    The bound counts only if there is nobody else, as nobody can run it.

    Examples
    --------
    >>> one = dict.fromkeys(LearningSummary.__annotations__) | {"accuracy": 0.5}
    >>> print(learning_headline({"AG": {**one, "target_accuracy": 0.9, "time_to_target_s": 20.0},
    ...     "SparDL": {**one, "target_accuracy": 0.9, "time_to_target_s": 42.0},
    ...     "dense": {**one, "target_accuracy": 0.9}}))
    AG reaches 90 % accuracy first: 20 s, 2.1x before SparDL (42 s). dense does not reach it.
    """
    trained = {policy: one for policy, one in trained.items() if policy != bound} or dict(trained)
    target = next((one["target_accuracy"] for one in trained.values()), None)
    if target is None:
        return ""
    goal = f"{100 * target:.3g} % accuracy"
    times = {policy: one["time_to_target_s"] for policy, one in trained.items()}
    reached = {policy: time for policy, time in times.items() if time is not None}
    if all(one["accuracy"] is None for one in trained.values()):
        return NOT_EVALUATED
    if not reached:
        return f"No policy reaches {goal}."
    said = standing(reached, first_to_target(trained), f"reaches {goal} first", f"are tied as first to reach {goal}")
    never = [policy for policy, time in times.items() if time is None]
    return said + (f" {listed(never)} {'does' if len(never) == 1 else 'do'} not reach it." if never else "")


def _one(
    frame: pd.DataFrame,
    computed: float,
    target: float | None,
    needed: int | None,
    rounded: Callable[[float], float],
) -> LearningSummary:
    measured = frame.dropna(subset=["accuracy"])
    losses, accuracies = (measured[column].to_list() for column in ("loss", "accuracy"))
    finite = [loss for loss in losses if math.isfinite(loss)]
    count, seconds = _reached(frame, target)
    total = math.fsum(frame["iteration_s"])
    return {
        "loss": rounded(losses[-1]) if losses and math.isfinite(losses[-1]) else None,
        "accuracy": rounded(accuracies[-1]) if accuracies else None,
        "best_loss": rounded(min(finite)) if finite else None,
        "best_accuracy": rounded(max(accuracies)) if accuracies else None,
        "target_accuracy": None if target is None else rounded(target),
        "iterations_to_target": count,
        "time_to_target_s": None if seconds is None else rounded(seconds),
        "statistical_efficiency": None if not count or needed is None else rounded(needed / count),
        "parallel_efficiency": rounded(computed / total) if total > 0 else None,
    }


def _reached(frame: pd.DataFrame, target: float | None) -> tuple[int | None, float | None]:
    """Return after how many iterations and seconds an accuracy was first measured."""
    if target is None or not len(frame):
        return None, None
    there = (frame["accuracy"] >= target).to_numpy()
    if not there.any():
        return None, None
    row = int(there.argmax())
    end = frame["start_s"].iloc[row] + frame["iteration_s"].iloc[row]
    return row + 1, float(end - frame["start_s"].iloc[0])
