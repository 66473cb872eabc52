"""Comparison of measured and predicted iteration times of jobs: errors, intervals, and which policies are faster."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from simnet.base import units
from simnet.base.errors import InputError, suggest_names
from simnet.studies.iteration import COVERAGE, PARTS, JobPrediction

SKIPPED = 2
"""Number of first iterations left out, since DDP rebuilds its buckets in the second one."""

MARGIN = 0.05
"""Minimum relative difference of two policies for their order to count."""


@dataclass(frozen=True)
class Comparison:
    """Measured and predicted iterations of a job, by policy and part of the iteration."""

    # What was predicted.
    prediction: JobPrediction
    # A row per policy and part: ``policy``, ``part``, medians over iterations ``measured``, ``predicted`` [s],
    # ``error`` relative to measured, ``low``, ``high`` [s], and ``inside``, the share of iterations inside their
    # interval.
    parts: pd.DataFrame
    # A row per policy: ``policy``, whether it is ``fixed``, the share of iterations whose exchange was that predicted
    # as ``same``, and how long all iterations took, ``measured`` and ``predicted`` [s], with ``error``.
    policies: pd.DataFrame

    @property
    def totals(self) -> pd.DataFrame:
        """Times of whole iterations, a row per policy, for policies with one fixed exchange."""
        fixed = self.policies.loc[self.policies["fixed"], "policy"]
        found = self.parts[(self.parts["part"] == "total") & self.parts["policy"].isin(fixed)]
        return found.set_index("policy")

    def winner_is_right(self) -> bool | None:
        """Return whether the policy predicted to be fastest was measured at most `MARGIN` slower than the fastest."""
        totals = self.totals
        if len(totals) < 2:
            return None
        measured, predicted = (totals[name].to_numpy() for name in ("measured", "predicted"))
        return bool(measured[predicted.argmin()] <= (1 + MARGIN) * measured.min())

    def pairs(self) -> tuple[int, int]:
        """Return how many pairs of policies differ by more than `MARGIN`, and how many have the predicted order."""
        return pairs_in_order(*(self.totals[name].tolist() for name in ("measured", "predicted")))

    def sentences(self) -> list[str]:
        """Return sentences on how well the fastest policy, the order of policies, and adaptive ones are predicted."""
        totals = self.totals
        found = []
        if (right := self.winner_is_right()) is not None:
            fastest, predicted = totals["measured"].idxmin(), totals["predicted"].idxmin()
            verdict = f"as predicted: {fastest}" if fastest == predicted else f"{fastest}, predicted {predicted}"
            close = f", within {100 * MARGIN:.0f} %" if right and fastest != predicted else ""
            found.append(f"Fastest is {verdict}{close}.")
            judged, ordered = self.pairs()
            if judged:
                found.append(
                    f"Of {judged} pairs that differ by more than {100 * MARGIN:.0f} % {ordered} are in the right order."
                )
        for one in self.policies[~self.policies["fixed"]].to_dict("records"):
            measured, predicted = (units.format_seconds(float(one[name])) for name in ("measured", "predicted"))
            found += [
                f"{one['policy']}: the exchange was that predicted in {100 * one['same']:.0f} % of the iterations; all "
                f"took {measured}, predicted {predicted} ({100 * one['error']:+.1f} %)."
            ]
        return found

    def figures(self) -> dict[str, Any]:
        """Return the comparison as JSON types."""
        judged, ordered = self.pairs()
        job = self.prediction.run.job

        def plain(rows: pd.DataFrame) -> list[dict[Hashable, Any]]:
            return rows.astype(object).where(rows.notna(), None).to_dict("records")

        return {
            "scenario": self.prediction.scenario.name,
            "workers": job.source.workers,
            "stack": self.prediction.stack,
            "device": job.device.name,
            "coverage": COVERAGE,
            "parts": plain(self.parts),
            "policies": plain(self.policies),
            "winner_is_right": self.winner_is_right(),
            "pairs": {"judged": judged, "in_order": ordered},
        }


def pairs_in_order(measured: Sequence[float], predicted: Sequence[float]) -> tuple[int, int]:
    """Return how many pairs of measured times differ by more than `MARGIN`, and how many have the predicted order."""
    pairs = combinations(sorted(zip(measured, predicted, strict=True)), 2)
    judged = [ours < other for (fast, ours), (slow, other) in pairs if slow > (1 + MARGIN) * fast]
    return len(judged), sum(judged)


def compare_iterations(measured: pd.DataFrame, prediction: JobPrediction, skip: int = SKIPPED) -> Comparison:
    """Compare measured and predicted iterations, without the first `skip` iterations."""
    parts, policies = [], []
    for policy, own in measured.groupby("policy", sort=False):
        predicted = prediction.iterations[prediction.iterations["policy"] == policy]
        if predicted.empty:
            known = prediction.iterations["policy"].unique().tolist()
            raise InputError(f"is not in the scenario; {suggest_names(str(policy), known)}", field=str(policy))
        both = own.merge(predicted, on=["policy", "iteration"], suffixes=("", "_ours"))
        both = both[both["iteration"] >= skip]
        if both.empty:
            raise InputError(f"has no iteration from number {skip} on that was predicted", field=str(policy))
        for part in PARTS:
            column = f"{part}_s"
            if column in own and own[column].notna().any():
                parts.append(_compare_part(str(policy), part, both, column))
        fixed = predicted["exchange"].nunique() == 1 and own["exchange"].nunique() == 1
        total, ours = float(both["total_s"].sum()), float(both["total_s_ours"].sum())
        same = float((both["exchange"] == both["exchange_ours"]).mean())
        policies.append((str(policy), fixed, same, total, ours, ours / total - 1))
    columns = ["policy", "fixed", "same", "measured", "predicted", "error"]
    return Comparison(prediction, pd.DataFrame(parts), pd.DataFrame(policies, columns=columns))


def _compare_part(policy: str, part: str, both: pd.DataFrame, column: str) -> dict[str, Any]:
    measured = both[column]
    ours, low, high = (both[name] for name in (f"{column}_ours", f"{part}_low_s", f"{part}_high_s"))
    middle, predicted = float(measured.median()), float(ours.median())
    return {
        "policy": policy,
        "part": part,
        "measured": middle,
        "predicted": predicted,
        "error": predicted / middle - 1 if middle > 0 else math.nan,
        "low": float(low.median()),
        "high": float(high.median()),
        "inside": float(np.mean((measured >= low) & (measured <= high))),
    }
