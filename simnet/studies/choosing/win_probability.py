"""How likely each exchange and policy is the fastest over a whole job: by the errors of its parts.

Kernels of an exchange and its messages are off for themselves; so each of them is a part of `chances`. What goes on
beside a backward pass is no part of a job's time as long as it takes no longer, and no errors are counted of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simnet.cost_models.evidence.chances import Chances
from simnet.network.stack import name_of
from simnet.policies import Candidate
from simnet.studies.choosing.forecast import Forecast, error_between
from simnet.studies.job_totals import JobTotal, Spent, judged, messages, off_alike
from simnet.training.job.job import Job


def over_job(
    rows: Sequence[Forecast],
    job: Job,
    among: Mapping[str, Candidate] | None = None,
    computes: tuple[float, float] = (1.0, 1.0),
) -> Chances:
    """Return how likely each exchange or policy is the one with which a job takes the least time.

    What a sample of iterations leaves open between the fastest and another adds to what messages may be off by. `among`
    are the exchanges that policies choose from, by label; those of rows are known.

    Examples
    --------
    >>> from simnet.scenario import load
    >>> from simnet.studies.choosing.whole_job import candidates_of, decide_job
    >>> loaded = load("quickstart", ["job.iterations=20"])
    >>> found = decide_job(loaded.build(), candidates_of(loaded)[:2], policies=False)
    >>> float(over_job(found.rows, loaded.build().job).fastest.sum())
    1.0
    """
    # Iterations of the same moments meet the same links: what they leave open between two jobs is less than of one.
    best = min(rows, key=lambda row: row.seconds)
    known = {**(among or {}), **{row.label: row.candidate for row in rows if row.candidate.scheme}}
    totals = []
    for row in rows:
        apart = 0.0 if row is best else error_between(row, best) / max(row.seconds, 1e-300)
        stack = name_of(job.network(0).stack)
        totals.append(
            JobTotal(row.label, row.part("compute"), _spent_by_exchange(row, job, known), stack, min(apart, 1.0))
        )
    return judged(totals, computes)


def chance_to_beat(
    best: Forecast, row: Forecast, job: Job, among: Mapping[str, Candidate], computes: tuple[float, float]
) -> float:
    """Return how likely a row is faster than another."""
    return float(over_job([best, row], job, among, computes).fastest[1])


def _spent_by_exchange(row: Forecast, job: Job, known: Mapping[str, Candidate]) -> dict[str, Spent]:
    """Return the seconds of a job on each of its exchanges, by names of `off_alike`."""
    found: dict[str, Spent] = {}
    chosen = np.array(row.chosen)
    for label in dict.fromkeys(row.chosen):
        times = np.where(chosen == label, row.points.stands_for, 0)
        send, select, low, high = (
            float((getattr(row.points, name) * times).sum())
            for name in ("communicate", "select", "select_low", "select_high")
        )
        one = known[label]
        spent = Spent(send, select, low, high, float(times.sum()) * messages(one, job))
        before = found.get(off_alike(one), Spent(0.0, 0.0, 0.0, 0.0, 0.0))
        found[off_alike(one)] = Spent(*(float(a + b) for a, b in zip(before, spent, strict=True)))
    return found
