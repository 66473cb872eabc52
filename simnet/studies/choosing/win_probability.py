"""How likely each exchange is the fastest, at an operating point and over a whole job: by the errors of its parts.

Kernels of an exchange and its messages are off for themselves; so each of them is a part of `chances`. What goes on
beside a backward pass is no part of a job's time as long as it takes no longer, and no errors are counted of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.evidence.chances import Chances, Part, chances, in_job
from simnet.cost_models.evidence.intervals import corrected
from simnet.network.stack import name_of
from simnet.policies import Candidate
from simnet.studies.choosing.cost_models import Estimate
from simnet.studies.choosing.forecast import Forecast, error_between
from simnet.studies.job_totals import JobTotal, Spent, judged, messages, off_alike
from simnet.training.job.job import Job


def at_point(among: Sequence[Candidate], found: Sequence[Estimate]) -> Chances:
    """Return how likely each exchange is the fastest at an operating point."""
    sending = _part([one.kind for one in found], ((one.communicate, one.least, one.most) for one in found))
    selecting = _part(["select"] * len(among), (one.selecting for one in found))
    parts = [
        _by_gradients(sending, [one.follows.sent for one in found]),
        _by_gradients(in_job(selecting), [one.follows.ran for one in found]),
    ]
    return chances(list(map(off_alike, among)), parts)


def _by_gradients(part: Part, spread: Sequence[tuple[float, float]]) -> Part:
    """Return a part whose intervals are free of what gradients do, which is drawn for itself."""
    least, most = np.array(spread).T
    return part._replace(low=part.low / least, high=part.high / most, spread=spread)


def corrected_interval(one: Estimate) -> tuple[Floats, Floats]:
    """Return the 90 % interval of the time of an exchange [s], as far as intervals of its kind went elsewhere."""
    low, high = corrected(one.kind, one.communicate, one.least, one.most)
    return low + one.selecting.low, high + one.selecting.high


def over_job(
    rows: Sequence[Forecast], job: Job, error: float | None = None, computes: tuple[float, float] = (1.0, 1.0)
) -> Chances:
    """Return how likely each exchange is the one with which a job takes the least time.

    What a sample of iterations leaves open between the fastest and another adds to what messages may be off by.

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
    best = min(rows, key=_seconds)
    totals = []
    for row in rows:
        apart = 0.0 if row is best else error_between(row, best) / max(row.seconds, 1e-300)
        send, *select = (row.part(name) for name in ("communicate", "select", "select_low", "select_high"))
        count = row.iterations * messages(row.candidate, job) if error is None else 0.0
        spent = Spent(send, select[0], select[1], select[2], count)
        exchanges = {off_alike(row.candidate): spent}
        stack = name_of(job.network(0).stack)
        totals.append(JobTotal(row.label, row.part("compute"), exchanges, stack, min(apart, 1.0)))
    return judged(totals, computes, error)


def _seconds(row: Forecast) -> float:
    return row.seconds


def _part(kinds: Sequence[str], fields: Iterable[Sequence[Floats | float]]) -> Part:
    seconds, low, high = np.array(list(fields), dtype=float).T
    return Part(seconds, low, high, kinds)
