"""Summary of a run: each policy's times and their parts, the fastest policy and its lead, and switches.

Totals are over the iterations; the breakdown is the mean over workers. Regret is the time that a policy loses against
the one-step oracle (the bound), which takes the best exchange of each iteration; over a whole job a policy can still be
faster than this oracle. Numbers are rounded to twelve significant digits, so that the last bits, which differ between
machines, do not show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import PERCENTS, percentiles, significant
from simnet.cost_models.costs.computing import SampleCount
from simnet.network import STACKS
from simnet.report import learning
from simnet.report.columns import Fields
from simnet.report.cost_summary import cost_summary, throughput
from simnet.report.paired import NO_RANGES, StartRanges, fastest
from simnet.report.run_setup import stack_summary, stop_summary
from simnet.report.summary import json_value
from simnet.training.job.record import EXPLORE, MAIN, Interruption, JobShare
from simnet.training.job.steady import SteadyPart, common_start, steady_part

if TYPE_CHECKING:
    import pandas as pd

PHASES = ("compute", "select", "communicate", "wait")
"""Where the time of an iteration goes; the frames' columns are these names with ``_s``."""

INTERVAL = ("select_low_s", "select_high_s")
"""Columns of the interval of the selection time, which follows from the uncertainty of kernel costs."""

DENSITIES = (
    *("selected", "actual_density", "build_up", "density_ratio", "threshold", "blocks_moved", "imbalance"),
    "global_error",
)
"""Columns on what was selected and sent in an iteration."""

MEANS = ("iteration_s", *(f"{phase}_s" for phase in PHASES), *INTERVAL, *DENSITIES)
"""Columns of iterations whose means a summary has; beside them are ``communicate_and_wait_s`` and
``bytes_sent_per_worker_B``."""

MAX_SWITCHES = 50
"""Maximum number of changes of choice that the summary lists per policy; the count includes all."""


RunSummary: TypeAlias = Fields
"""What ``summary.json`` holds; ``simnet/data/columns.csv`` explains each value.

Times, bytes, breakdown and the interval of the time to select include exploration; all else is of the training alone.
Densities, `spread` and `means` are of the iterations from `steady_from` on. `unsettled` says why a policy has no steady
part, by `simnet.training.job.steady`. Keys of what was not asked for, such as `learning` or `spent`, are missing.
"""


def plain(value: Any) -> Any:
    """Return a value as JSON types. Floats have twelve significant digits; non-finite floats become None."""
    return json_value(value, lambda one: float(significant(one)))


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts that a run's summary states but its table of iterations lacks; None or empty if unknown.

    `setup` are entries of the summary, of which those that are None are left out: by default an unnamed scenario, seed
    0 and stack ideal. `bound` is the policy against which regret is measured, `held` the memory of a worker under each
    policy, `target` the accuracy to which the time is reported, by default 99 % of the best accuracy of policy
    `reference`. `starts` returns how much the times of given policies vary with start times.
    """

    setup: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1
    samples: SampleCount | None = None
    held: Mapping[str, Fields] = field(default_factory=dict)
    judgements: Mapping[str, Fields] = field(default_factory=dict)
    bound: str | None = "oracle"
    stops: Mapping[str, Sequence[Interruption]] = field(default_factory=dict)
    shares: Mapping[str, Sequence[JobShare]] = field(default_factory=dict)
    target: float | None = None
    reference: str | None = None
    starts: Callable[[Iterable[str]], StartRanges] | None = None


def summarize(iterations: Mapping[str, pd.DataFrame], facts: RunFacts = RunFacts()) -> RunSummary:
    """Return the summary of a run, given the iterations of several policies on the same network.

    Examples
    --------
    >>> import pandas as pd
    >>> fast = pd.DataFrame({"iteration": [0, 1], "start_s": [0.0, 1.0], "iteration_s": 1.0, "compute_s": 0.5,
    ...     "select_s": 0.0, "communicate_s": 0.5, "wait_s": 0.0, "bytes_sent_B": 1e6, "choice": ["AG", "ART-Ring"],
    ...     "density": 0.01, "latency_s": 0.01, "bandwidth_Bps": [1.25e9, 1.25e8]})
    >>> slow = fast.assign(start_s=[0.0, 1.25], iteration_s=1.25, choice="AG")
    >>> summary = summarize({"flexible": fast, "AG": slow})
    >>> summary["winner"]["policy"], summary["winner"]["margin_s"], summary["policies"]["flexible"]["switch_count"]
    ('flexible', 0.5, 1)
    """
    ended = _ended_early(iterations, facts)
    bound = facts.bound if facts.bound in iterations else None
    steady = {
        name: _steady_part(one, facts.stops.get(name, ())) for name, one in iterations.items() if name not in ended
    }
    steady_from = common_start(steady.values())
    learnt = learnt_by(iterations, facts.target, facts.reference)
    policies: dict[str, Fields] = {}
    for name, frame in iterations.items():
        one = _policy_summary(frame, steady_from if name in steady else 0)
        one["ended"] = name in ended
        if name in steady:
            start, unsettled = steady[name]
            one["settled_after"], one["unsettled"] = (None, unsettled) if unsettled else (start, None)
        one["means"] = _means(with_exploration(frame).iloc[steady_from if name in steady else 0 :], facts.workers)
        policies[name] = {**one, **_known_of(name, one, facts), **({"learning": learnt[name]} if learnt else {})}
    if bound is not None and bound not in ended:
        least = policies[bound]["simulated_s"]
        for name in policies.keys() - ended:
            lost = policies[name]["simulated_s"] - least
            policies[name]["regret"] = plain({"seconds": lost, "fraction": lost / least if least else 0.0})
    rivals = {name: one["simulated_s"] for name, one in policies.items() if name != bound and ranked(one)}
    entered = NO_RANGES if facts.starts is None else facts.starts(rivals)
    ranges = entered.around(rivals)
    for name, range_ in ranges.items():
        policies[name]["start_low_s"], policies[name]["start_high_s"] = plain(range_)
    made: RunSummary = {
        "scenario": {"name": "", "sha256": ""},
        "seed": 0,
        "stack": stack_summary(STACKS["ideal"]),
        "versions": {},
        "missing": [],
        **{name: one for name, one in facts.setup.items() if one is not None},
        "bound": bound,
        "steady_from": steady_from,
        "winner": _winner_of(rivals, ranges, [name for name, one in facts.judgements.items() if one["tied"]]),
        "policies": policies,
    }
    if learnt:
        times = {name: one["time_to_target_s"] for name, one in learnt.items() if name != bound}
        made["first_to_target"] = _winner_of({name: time for name, time in times.items() if time is not None})
    if entered.not_sampled:
        made["starts_not_sampled"] = dict(entered.not_sampled)
    return made


def _ended_early(iterations: Mapping[str, pd.DataFrame], facts: RunFacts) -> set[str]:
    """Return the policies that failures ended; ValueError if the others differ in their numbers of iterations."""
    if not iterations:
        raise ValueError("a run needs at least one policy, got none")
    stops = facts.stops
    ended = {name for name in iterations if any(one.job == MAIN and one.resumed is None for one in stops.get(name, ()))}
    counts = {name: len(with_exploration(frame)) for name, frame in iterations.items() if name not in ended}
    if counts and (min(counts.values()) < 1 or len(set(counts.values())) > 1):
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise ValueError(f"all policies must run the same number of iterations, at least 1, got {listed}")
    return ended


def _known_of(name: str, one: Fields, facts: RunFacts) -> Fields:
    """Return a policy's summary entries that are not computed from iterations, such as failures and memory."""
    found: Fields = plain(
        {
            "stops": [stop_summary(stop) for stop in facts.stops.get(name, ())],
            "shares": [share._asdict() for share in facts.shares.get(name, ())],
        }
    )
    for key, known in (("memory", facts.held), ("judgement", facts.judgements)):
        found |= {key: known[name]} if name in known else {}
    strategy, prices = facts.setup.get("strategy"), facts.setup.get("prices")
    steps = one["iterations"] * (1 if strategy is None else strategy["steps"])
    found |= throughput(facts.samples, one["simulated_s"] / steps) if steps else {}
    if (strategy is not None or prices is not None) and steps:
        took = one["simulated_s"], one["breakdown_s"]["compute"], one["total_bytes_sent_B"]
        found["spent"] = plain(cost_summary(*took, steps, facts.workers, prices))
    return found


def learnt_by(
    iterations: Mapping[str, pd.DataFrame], target: float | None = None, reference: str | None = None
) -> dict[str, Fields]:
    """Return each policy's loss, accuracy and time to target, rounded; empty if no model is trained.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"start_s": [0.0, 1.0], "iteration_s": 1.0, "compute_s": 0.5, "loss": [0.9, 0.4],
    ...     "accuracy": [0.7, 0.9]})
    >>> one = learnt_by({"AG": frame}, target=0.8)["AG"]
    >>> one["iterations_to_target"], one["time_to_target_s"], one["parallel_efficiency"], one["best_loss"]
    (2, 2.0, 0.5, 0.4)
    """
    trained = {name: with_exploration(frame) for name, frame in iterations.items()}
    computed = {name: math.fsum(every["compute_s"][trained[name].index]) for name, every in iterations.items()}
    found: dict[str, Fields] = plain(learning.learning_summaries(trained, computed, target, reference))
    return found


def with_exploration(iterations: pd.DataFrame) -> pd.DataFrame:
    """Return the training iterations, each with the time and bytes of the trial exchanges that came just before.

    Exploration without a later training iteration, before a failure that ended the job, is left out.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"iteration": [0, 1, 1], "purpose": ["train", "explore", "train"],
    ...     "start_s": [0.0, 1.0, 3.0], "iteration_s": [1.0, 2.0, 0.5], "density": [0.1, 0.01, 0.1]})
    >>> with_exploration(frame)[["iteration", "start_s", "iteration_s", "density"]].to_numpy().tolist()
    [[0.0, 0.0, 1.0, 0.1], [1.0, 1.0, 2.5, 0.1]]
    """
    if "purpose" not in iterations or not (iterations["purpose"] == EXPLORE).any():
        return iterations
    by = [name for name in ("policy", "iteration") if name in iterations]
    groups = iterations.groupby(by, sort=False)
    summed = ("iteration_s", "bytes_sent_B", *(f"{phase}_s" for phase in PHASES), *INTERVAL)
    sums = [name for name in summed if name in iterations]
    rows = iterations["purpose"] != EXPLORE
    return iterations.assign(start_s=groups["start_s"].transform("min"), **groups[sums].transform("sum"))[rows]


def ranked(one: Fields) -> bool:
    """Return whether a policy is ranked: it completed its last iteration and reached a steady state."""
    return not one["ended"] and one["unsettled"] is None


def learning_columns(summary: RunSummary) -> dict[str, Fields]:
    """Return the training results of each policy as table columns; empty if no model is trained."""
    trained, first = known_of(summary, "learning"), summary.get("first_to_target")
    soonest = [] if first is None else [first["policy"], *first["tied_with"]]
    return {
        policy: {**one, "first_to_target": None if one["target_accuracy"] is None else policy in soonest}
        for policy, one in trained.items()
    }


def policy_columns(one: Fields) -> Fields:
    """Return a policy's table columns: time with interval, chance to be the fastest, bytes, and switches."""
    judged = one.get("judgement", {})
    return {
        **{name: one[name] for name in ("iterations", "simulated_s", "total_bytes_sent_B", "switch_count")},
        **{f"simulated_prediction_{end}": judged.get(end) for end in ("low_s", "high_s")},
        "chance_to_be_fastest": judged.get("chance_to_be_fastest"),
        "regret_s": None if one["regret"] is None else one["regret"]["seconds"],
        "choice": next(iter(one["choices"]), None),
    }


def known_of(summary: RunSummary, key: str) -> dict[str, Fields]:
    """Return the entry `key`, such as ``learning``, of each policy whose summary has that entry."""
    policies: Mapping[str, Any] = summary["policies"]
    return {name: one[key] for name, one in policies.items() if key in one}


def spread_summary(iterations: pd.DataFrame) -> Fields | None:
    """Return how iteration and exchange times spread, as percentiles [s]; None without iterations.

    A percentile is an observed time: the least one that the given share of iterations does not exceed.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"iteration_s": [1.0, 2.0, 3.0, 9.0], "select_s": 0.0, "communicate_s": 0.5,
    ...     "wait_s": 0.0})
    >>> spread_summary(frame)["iteration_s"]
    {'p50': 2.0, 'p90': 9.0, 'p99': 9.0}
    """
    if iterations.empty:
        return None
    exchange = iterations[["select_s", "communicate_s", "wait_s"]].to_numpy(dtype=np.float64).sum(axis=1)
    times = {"iteration_s": iterations["iteration_s"].to_numpy(dtype=np.float64), "exchange_s": exchange}
    names = [f"p{percent}" for percent in PERCENTS]
    return {what: dict(zip(names, percentiles(one), strict=True)) for what, one in times.items()}


def _means(steady: pd.DataFrame, workers: int) -> dict[str, float | None]:
    """Return means over steady-state iterations of the columns `MEANS`, of exposed communication, and of bytes sent."""
    if steady.empty:
        return {}
    means = steady[[name for name in MEANS if name in steady]].mean().to_dict()
    means["communicate_and_wait_s"] = means["communicate_s"] + means["wait_s"]
    means["bytes_sent_per_worker_B"] = steady["bytes_sent_B"].mean() / workers
    found: dict[str, float | None] = plain({str(name): float(one) for name, one in means.items()})
    return found


def _steady_part(every: pd.DataFrame, stops: Sequence[Interruption]) -> SteadyPart:
    """Return which iterations are in steady state, among those after the last failure of a worker."""
    since = max((stop.iteration for stop in stops if stop.job == MAIN), default=0)
    found = steady_part(every[every["iteration"] >= since] if since else every)
    return found._replace(start=found.start + since)


def _policy_summary(every: pd.DataFrame, steady_from: int) -> Fields:
    frame = with_exploration(every)
    steady = frame.iloc[steady_from:]
    aside = every["iteration_s"][every["purpose"] == EXPLORE] if "purpose" in every else every["iteration_s"][:0]
    start, duration = frame["start_s"].to_numpy(), frame["iteration_s"].to_numpy()
    # Numbers in place of labels, which would take much memory as a column of their own.
    codes, labels = frame["choice"].factorize(sort=True)
    counts = np.bincount(codes, minlength=len(labels))
    switched = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    low, high = (name if name in frame else "select_s" for name in INTERVAL)
    found: Fields = plain(
        {
            "iterations": len(frame),
            "simulated_s": start[-1] + duration[-1] - start[0] if len(frame) else 0.0,
            "exploration": {"iterations": len(aside), "seconds": math.fsum(aside)},
            "settled_after": None,
            "unsettled": None,
            "density": steady["density"].mean() if len(frame) else 0.0,
            "total_bytes_sent_B": int(frame["bytes_sent_B"].astype(np.float64).round().sum()),
            "breakdown_s": {phase: math.fsum(frame[f"{phase}_s"]) for phase in PHASES},
            "total_select_low_s": math.fsum(frame[low]),
            "total_select_high_s": math.fsum(frame[high]),
            "spread": spread_summary(steady),
            "regret": None,
            "choices": {str(labels[at]): int(counts[at]) for at in np.argsort(-counts, kind="stable")},
            "switch_count": len(switched),
            "switches": _switch_rows(frame, switched),
        }
    )
    return found


def _switch_rows(frame: pd.DataFrame, switched: NDArray[np.intp]) -> list[Fields]:
    """Return a policy's first switches of exchange: when, from, to, and link bandwidth and latency before and after."""
    found: list[Fields] = []
    made = 0
    for row in switched[:MAX_SWITCHES].tolist():
        now, before, last = frame.iloc[row], frame.iloc[made], frame.iloc[row - 1]
        change: Fields = {"iteration": int(now["iteration"]), "at_s": float(now["start_s"])}
        change |= {"from": str(last["choice"]), "to": str(now["choice"])}
        for stem, end in (("bandwidth", "_Bps"), ("latency", "_s"), ("density", "")):
            change[stem + end] = float(now[stem + end])
            change[f"{stem}_before{end}"] = float(before[stem + end])
        found.append(change)
        made = row
    return found


def _winner_of(
    seconds: Mapping[str, float],
    ranges: Mapping[str, tuple[float, float]] | None = None,
    judged: Sequence[str] = (),
) -> Fields | None:
    """Return the winner entry of a summary; policies with equal times, and those listed in `judged`, count as tied."""
    equal = fastest(seconds, ranges)
    order = [*equal, *sorted(seconds.keys() - set(equal), key=lambda name: (seconds[name], name))]
    tied = {*equal, *judged}
    return winner_among(order, tied, lambda name: seconds[name] - seconds[order[0]], seconds)


def winner_among(
    order: Sequence[str], tied: Collection[str], margin: Callable[[str], float], seconds: Mapping[str, float]
) -> Fields | None:
    """Return the winner entry of a summary: first policy, ties, runner-up, margin [s] and relative margin."""
    if not order:
        return None
    runner_up = next((name for name in order[1:] if name not in tied), None)
    more = None if runner_up is None else margin(runner_up)
    return {
        "policy": order[0],
        "tied_with": [name for name in order[1:] if name in tied],
        "runner_up": runner_up,
        "margin_s": plain(more),
        "margin_fraction": None if runner_up is None or more is None else plain(more / seconds[runner_up]),
    }
