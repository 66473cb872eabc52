"""Sensitivity of a job's fastest exchanges to jittered start times.

Where computing varies from iteration to iteration, so do the entries, and times are draws of their own. Where it does
not, the same exchange recurs with all workers entering at once, and its time is one draw that counts as often as there
are iterations. Then the first exchange of each leader is timed with jittered entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd

from simnet.base.arrays import Floats
from simnet.network.start_spread import MOST_MESSAGES, StartSpread, offsets_of_sum, start_spread
from simnet.policies import Candidate, Fixed
from simnet.report.paired import NEAR, NO_RANGES, StartRanges
from simnet.scenario import Run
from simnet.strategies import options as strategy_options
from simnet.strategies import strategy
from simnet.training.job.job import Job
from simnet.training.job.loop import JobLoop
from simnet.training.job.record import JobRecord, PolicyResult


def ranges_of(built: Run, results: Mapping[str, PolicyResult]) -> Callable[[Iterable[str]], StartRanges]:
    """Return a function from policy names to their start-time ranges."""

    def found(names: Iterable[str]) -> StartRanges:
        frames = {name: results[name].iterations for name in names}
        exchanges = {one.label: one for name in frames for one in built.policies[name].candidates}
        return job_start_ranges(built, frames, exchanges.values())

    return found


def job_start_ranges(built: Run, frames: Mapping[str, pd.DataFrame], exchanges: Iterable[Candidate]) -> StartRanges:
    """Return how much the times of a job's leading policies vary with start times; empty if irrelevant.

    Rows of `frames` may represent several iterations, as in `simnet.studies.choosing.forecast.JobForecast`.
    """
    job = built.job
    varies = job.compute.spread > 0 or job.compute.straggle > 0
    if varies or not job.network(0).stack.has_software:
        return NO_RANGES
    courses = {
        name: (one["iteration_s"].to_numpy(dtype=np.float64), one["choice"].tolist(), _weights(one))
        for name, one in frames.items()
    }
    constant = _constant_compute(job)
    exchanging = {name: float(((seconds - constant) * times).sum()) for name, (seconds, _, times) in courses.items()}
    leaders = [name for name, total in exchanging.items() if total <= (1 + NEAR) * min(exchanging.values())]
    if len(leaders) < 2:
        return NO_RANGES
    labels = {label for name in leaders for label in courses[name][1]}
    why = "jobs share its network" if built.colocated else "its steps are sharded" if job.steps is not None else ""
    spreads, large = dict[str, StartSpread](), dict[str, str]()
    for one in exchanges:
        if one.label in labels and not why:
            found = _of_exchange(job, one)
            if isinstance(found, StartSpread):
                spreads[one.label] = found
            elif found > MOST_MESSAGES:
                large[one.label] = f"an exchange has more than {MOST_MESSAGES:,} messages"
    offsets, not_sampled = dict[str, tuple[float, float]](), dict[str, str]()
    for name in leaders:
        if reason := why or next((large[label] for label in courses[name][1] if label in large), ""):
            not_sampled[name] = reason
        else:
            offsets[name] = offsets_of_sum(*courses[name], spreads)
    return StartRanges(offsets, not_sampled)


def _weights(frame: pd.DataFrame) -> Floats:
    return frame["stands_for"].to_numpy(dtype=np.float64) if "stands_for" in frame else np.ones(len(frame))


def _constant_compute(job: Job) -> float:
    """Return an iteration's constant compute time without messages [s]; 0 if they overlap."""
    own = None if job.strategy is None else strategy(job.strategy.name)
    delayed = own is not None and (own.delays or "delay" in strategy_options(own))
    if job.overlap is not None or job.steps is not None or delayed:
        return 0.0
    return float(job.computes(0, np.arange(job.source.workers)).max()) + job.update


def _of_exchange(job: Job, candidate: Candidate) -> StartSpread | int:
    """Return the start-time spread of a job's first exchange; its message count if not sampled."""
    requests = JobLoop(job, Fixed(candidate), JobRecord(candidate.label)).run()
    one = next(requests)
    requests.close()
    found = start_spread(
        one.network,
        one.parts,
        np.asarray(one.options["placement"]),
        one.options["origin"],
        ready=one.start,
        computing=one.options["computing"],
        seed=job.seed,
        name=one.options["stream"],
    )
    return sum(schedule.n_messages for schedule, _ in one.parts) if found is None else found
