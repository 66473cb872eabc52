"""Training results of policies: final and best loss and accuracy, and the time to a target accuracy.

The time to a target depends on how many iterations are needed and how long an iteration takes, so there are two
efficiencies. The *statistical* one is the number of iterations that the reference, the first policy, needed to the
target over those of a policy: 1 if its updates are worth as much. The *parallel* one is the share of the simulated time
in which workers compute gradients to train with: 1 if exchanging took no time and nothing was explored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simnet.base.units import format_seconds
from simnet.report.columns import Fields
from simnet.report.paired import TIE, fastest
from simnet.report.wording import lead_text, listed

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("loss", "accuracy", "worst_worker_accuracy", "best_loss", "best_accuracy", "target_accuracy"),
    *("iterations_to_target", "time_to_target_s", "statistical_efficiency", "parallel_efficiency", "first_to_target"),
)
"""Training columns of tables with a row per policy; see `simnet.report.run_summary.learning_columns`."""

ONE_SEED = "One seed; --seeds 10 says how sure that is."
"""The note after the sentence on the first policy to reach the target, in a run with one seed."""

NOT_EVALUATED = "The accuracy was not measured: the job is shorter than job.gradients.train.evaluate."
"""The text in place of the time to the target if no iteration was evaluated."""

_OF_THE_BEST = 0.99
_NEEDED = ("start_s", "iteration_s", "loss", "accuracy", "worst_worker_accuracy")


def learning_summaries(
    iterations: Mapping[str, pd.DataFrame],
    computed: Mapping[str, float],
    target: float | None,
    reference: str | None = None,
) -> dict[str, Fields]:
    """Return each policy's loss, accuracy, time to target, and statistical and parallel efficiency; empty if untrained.

    Loss and accuracy are the last measured ones; best values are the lowest loss and the highest accuracy. The time to
    the target ends at the first evaluation that reaches it, and includes exploration. Values that were not measured or
    not reached, and losses that are not finite, are None.
    """
    if not any("accuracy" in frame for frame in iterations.values()):
        return {}
    # Where workers die in the first iteration nothing is measured.
    frames = {policy: frame.reindex(columns=[*_NEEDED]) for policy, frame in iterations.items()}
    compared = frames.get(next(iter(frames)) if reference is None else reference)
    if target is None and compared is not None:
        best = float(compared["accuracy"].max())
        target = _OF_THE_BEST * best if math.isfinite(best) else None
    needed = None if compared is None else _reached_after(compared, target)[0]
    return {policy: _learning_curve(frame, computed[policy], target, needed) for policy, frame in frames.items()}


def _learning_curve(frame: pd.DataFrame, computed: float, target: float | None, needed: int | None) -> Fields:
    measured = frame.dropna(subset=["accuracy"])
    losses, accuracies, worst = (measured[column].to_list() for column in _NEEDED[2:])
    count, seconds = _reached_after(frame, target)
    total = math.fsum(frame["iteration_s"])
    return {
        "loss": losses[-1] if losses else None,
        "accuracy": accuracies[-1] if accuracies else None,
        "worst_worker_accuracy": worst[-1] if worst and math.isfinite(worst[-1]) else None,
        "best_loss": min((loss for loss in losses if math.isfinite(loss)), default=None),
        "best_accuracy": max(accuracies, default=None),
        "target_accuracy": target,
        "iterations_to_target": count,
        "time_to_target_s": seconds,
        "statistical_efficiency": None if not count or needed is None else needed / count,
        "parallel_efficiency": computed / total if total > 0 else None,
    }


def _reached_after(frame: pd.DataFrame, target: float | None) -> tuple[int | None, float | None]:
    """Return the iterations and the seconds until the accuracy first reaches a target; (None, None) if never."""
    there = (frame["accuracy"] >= (math.inf if target is None else target)).to_numpy()
    if not there.any():
        return None, None
    row = int(there.argmax())
    end = frame["start_s"].iloc[row] + frame["iteration_s"].iloc[row]
    return row + 1, float(end - frame["start_s"].iloc[0])


def target_sentence(
    target: float | None, seconds: Mapping[str, float], winners: Sequence[str], each: str = "", among: str = ""
) -> str:
    """Return text on the policies that first reach a target accuracy (`winners`), their time, and the next policy."""
    goal = "the target accuracy" if target is None else f"{100 * target:.3g} % accuracy"
    if not seconds:
        return f"No policy reaches {goal}{among}."
    least, most = seconds[winners[0]], max(seconds[name] for name in winners)
    does = f"reaches {goal} first" if len(winners) == 1 else f"are tied as first to reach {goal}"
    took = f"{winners[0]} takes " * (most > (1 + TIE) * least) + f"{format_seconds(least)}{each}"
    later = min(((time, name) for name, time in seconds.items() if name not in winners), default=None)
    if later is not None and least > 0:
        took += f", {lead_text(later[0] / least)} before {later[1]} ({format_seconds(later[0])})"
    return f"{listed(winners)} {does}: {took}."


def learning_headline(trained: Mapping[str, Mapping[str, Any]], bound: str | None = None) -> str:
    """Return a sentence on which policies reach the target accuracy first or never; empty without a target.

    The bound, which is not a runnable policy, counts only if it is the only policy.

    Examples
    --------
    >>> one = dict.fromkeys(COLUMNS) | {"accuracy": 0.5}
    >>> print(learning_headline({"AG": {**one, "target_accuracy": 0.9, "time_to_target_s": 20.0},
    ...     "SparDL": {**one, "target_accuracy": 0.9, "time_to_target_s": 42.0},
    ...     "dense": {**one, "target_accuracy": 0.9}}))
    AG reaches 90 % accuracy first: 20 s, 2.10x before SparDL (42 s). dense does not reach it.
    """
    trained = {policy: one for policy, one in trained.items() if policy != bound} or dict(trained)
    target = next((one["target_accuracy"] for one in trained.values()), None)
    if target is None:
        return ""
    times = {policy: one["time_to_target_s"] for policy, one in trained.items()}
    reached = {policy: time for policy, time in times.items() if time is not None}
    if all(one["accuracy"] is None for one in trained.values()):
        return NOT_EVALUATED
    never = [policy for policy in times if policy not in reached] if reached else []
    rest = f" {listed(never)} {'does' if len(never) == 1 else 'do'} not reach it." if never else ""
    return target_sentence(target, reached, fastest(reached)) + rest
