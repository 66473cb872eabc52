"""What predictions are off by: the table `simnet.cost_models.evidence.intervals` has its bounds from.

    python benchmarks/measured_jobs.py FOLDER errors > simnet/cost_models/calibration/measured/jobs/errors.csv

Bounds of links come from the shipped collectives up to 100 Mbit/s, each repetition beside the prediction of the stack
as it is named, with the second measurement of what was measured twice; every setting counts alike. A bound on the error
`e` of a call of `m` messages and `T` seconds is `a m + b T`, a and b >= 0, the pair with the least pinball loss of
`e / T` at a quantile: quantile regression [1]_. So short calls tell the seconds a message, and long ones the share. Of
all pairs of quantiles that are 90 % apart, the narrowest tells.

Nothing but jobs shows how much longer a process takes in a job than by itself. These bounds come from every second
setting of `measuring_jobs.settings`, and how many iterations intervals hold is told of the others.

References
----------
.. [1] R. Koenker, G. Bassett, "Regression Quantiles", Econometrica 46, 1978.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pandas as pd

from measuring_jobs.settings import CORES, TELLING
from simnet.base.arrays import Floats
from simnet.cost_models.calibration.measured import load_dataset
from simnet.cost_models.costs.devices import IntervalEnd
from simnet.cost_models.evidence.intervals import ERROR_COLUMNS
from simnet.network import STACKS
from simnet.validate.jobs import report
from simnet.validate.shapednet.libraries import Case, bare_stack, cases, library, repetitions

OUTSIDE = 0.1
"""Part of what was measured that may be outside."""

MOST = 0.99
"""Of the factor that no bound goes beyond."""

ENOUGH = 20
"""Settings that it takes to tell such a quantile."""

COLLECTIVES = ("shaped_gloo", "shaped_gloo_ranks", "shaped_gloo_again", "shaped_mpich", "shaped_unequal")
"""Shipped measurements that bounds of links come from."""

FASTEST = 12.5e6
"""Bytes per second of the fastest links that count: on faster ones the switch, which is software, is at its limits."""

PARTS = ("compute", "select", "messages", "merge", "update")

_ABOVE = np.arange(1, 10) / 100
_SHARES = np.append(0.0, np.geomspace(1e-3, 1.0, 121))
_DIGITS = 3


def calls() -> pd.DataFrame:
    """Return each measured call with its prediction.

    Returns
    -------
    DataFrame
        Columns ``stack``, ``workers_per_device``, ``messages`` of a rank, ``seconds``, ``ours`` [s], and ``weight``,
        one over the repetitions of the setting.
    """
    return pd.DataFrame([one for name in COLLECTIVES for one in _calls(name)])


def _calls(name: str) -> Iterator[dict[str, float | str]]:
    table = repetitions(load_dataset(name).rows)
    every = cases(table)
    settings = [one._replace(seconds=0.0) for one in every]
    counts, ours = Counter(settings), dict[Case, float]()
    for one, setting in zip(every, settings, strict=True):
        stack = one.tool.removeprefix("replay-")
        fastest = max(bandwidth for _, bandwidth in one.links.of_hosts(one.ranks))
        if stack not in ("gloo", "mpich") or fastest > FASTEST:
            continue
        if setting not in ours:
            ours[setting] = one.takes(STACKS[stack] if stack == one.tool else bare_stack(stack))
        messages = one.schedule(library(one.tool).piece).n_messages / one.ranks
        yield {
            "stack": stack,
            "workers_per_device": -(-one.ranks // CORES),
            "messages": messages,
            "seconds": one.seconds,
            "ours": ours[setting],
            "weight": 1 / counts[setting],
        }


def bound(messages: Floats, seconds: Floats, errors: Floats, weights: Floats, quantile: float) -> tuple[float, float]:
    """Return seconds a message and a share, >= 0, that together bound errors of calls; see the module.

    Examples
    --------
    >>> seconds = np.geomspace(1e-3, 1, 50)
    >>> found = bound(np.ones(50), seconds, 2e-4 + 0.01 * seconds, np.ones(50), 0.9)
    >>> [round(float(one), 5) for one in found]
    [0.0002, 0.01]
    """
    found = []
    for share in _SHARES.tolist():
        left = errors - share * seconds
        message = max(weighted_quantile(left / messages, weights * messages / seconds, quantile), 0.0)
        off = (left - message * messages) / seconds
        loss = float((weights * np.where(off > 0, quantile, quantile - 1) * off).sum())
        found.append((loss, message, share))
    _, message, share = min(found)
    return message, share


def weighted_quantile(values: Floats, weights: Floats, quantile: float) -> float:
    """Return the least of the values up to which there is this part of the weights.

    Examples
    --------
    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 8.0, 1.0]), 0.85)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, quantile * reached[-1])])


def of_links(measured: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """Yield the rows of links, given `calls`."""
    for (stack, share), own in measured.groupby(["stack", "workers_per_device"]):
        if own["weight"].sum() < ENOUGH:
            continue
        messages, seconds, ours, weights = (
            own[name].to_numpy(dtype=float) for name in ("messages", "seconds", "ours", "weight")
        )
        found = []
        for above in _ABOVE.tolist():
            low = bound(messages, ours, ours - seconds, weights, 1 - (OUTSIDE - above))
            high = bound(messages, ours, seconds - ours, weights, 1 - above)
            found.append((float((weights * sum(a * messages / ours + b for a, b in (low, high))).sum()), low, high))
        _, *bounds = min(found)
        for end, sign, (message, part) in zip(get_args(IntervalEnd), (-1.0, 1.0), bounds, strict=True):
            most = 1 + sign * max(weighted_quantile(sign * (seconds - ours) / ours, weights, MOST), 0.0)
            yield ("links", stack, share, end, message, part, most)


def of_parts(both: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """Yield the rows of parts of measured jobs with their predictions, as in `report.shipped`."""
    own = both[both["setting"].isin(TELLING) & (both["policy"] != "flexible")]
    weights = 1 / own.groupby(["setting", "policy"])["iteration"].transform("size").to_numpy(dtype=float)
    for part in PARTS:
        ratios = (own[f"{part}_s"] / own[f"{part}_s_ours"]).to_numpy(dtype=float)
        known = np.isfinite(ratios)
        found = []
        for above in _ABOVE.tolist():
            low = min(weighted_quantile(ratios[known], weights[known], OUTSIDE - above), 1.0)
            high = max(weighted_quantile(ratios[known], weights[known], 1 - above), 1.0)
            found.append((high / low, low, high))
        for end, factor in zip(get_args(IntervalEnd), min(found)[1:], strict=True):
            yield ("part", part, None, end, None, None, factor)


def table() -> str:
    """Return the table, as CSV."""
    rows = pd.DataFrame([*of_links(calls()), *of_parts(report.shipped_jobs())], columns=ERROR_COLUMNS)
    rows["workers_per_device"] = rows["workers_per_device"].astype("Int64")
    return rows.to_csv(index=False, float_format=f"%.{_DIGITS}g", lineterminator="\n")
