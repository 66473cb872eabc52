"""How likely each exchange is the fastest, at an operating point and over a whole job: by the errors of its parts.

Kernels of an exchange and its messages are off for themselves; so each of them is a part of `chances`. Computing is the
same whatever is exchanged, and so is what it is off by. What goes on beside a backward pass is no part of a job's time
as long as it takes no longer, and no errors are counted of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.job import Job
from simnet.job.job import buckets_of
from simnet.job.local_steps import started
from simnet.network.stack import name_of
from simnet.policies import Candidate
from simnet.studies.choosing.chances import (
    GIVEN,
    Chances,
    Part,
    chances,
    corrected,
    in_job,
    interval,
    kind_of_stack,
)
from simnet.studies.choosing.cost_models import Estimate
from simnet.studies.choosing.forecast import Forecast, error_between

_ENTRIES = 64


def at_point(among: Sequence[Candidate], found: Sequence[Estimate]) -> Chances:
    """Return how likely each exchange is the fastest at an operating point.

    Parameters
    ----------
    among : sequence of Candidate
        The exchanges.
    found : sequence of Estimate
        What each takes, no arrays.
    """
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


def within(one: Estimate) -> tuple[Floats, Floats]:
    """Return the 90 % interval of the time of an exchange [s], as far as intervals of its kind went elsewhere."""
    low, high = corrected(one.kind, one.communicate, one.least, one.most)
    return low + one.selecting.low, high + one.selecting.high


def over_job(rows: Sequence[Forecast], job: Job, error: float | None = None) -> Chances:
    """Return how likely each exchange is the one with which a job takes the least time.

    What a sample of iterations leaves open between the fastest and another adds to what messages may be off by.

    Parameters
    ----------
    rows : sequence of Forecast
        What the job takes with each.
    job : Job
        The job.
    error : float, optional
        Relative error of the time to communicate, in place of what was measured; see `by_closed_form`.

    Examples
    --------
    >>> from simnet.scenario import load
    >>> from simnet.studies.choosing.whole_job import candidates_of, decide_job
    >>> loaded = load("quickstart", ["job.iterations=20"])
    >>> found = decide_job(loaded.build(), candidates_of(loaded)[:2], policies=False)
    >>> float(over_job(found.rows, loaded.build().job).fastest.sum())
    1.0
    """
    among = [row.candidate for row in rows]
    sending = np.array([row.part("communicate") for row in rows])
    each = [0.0] * len(rows)
    if error is None:
        each = [row.iterations * messages(one, job) for row, one in zip(rows, among, strict=True)]
    # Iterations of the same moments meet the same links: what they leave open between two jobs is less than of one.
    best = min(rows, key=_seconds)
    apart = [0.0 if row is best else error_between(row, best) / max(row.seconds, 1e-300) for row in rows]
    left_open = np.minimum(apart, 1.0)
    kernels = [(row.part("select"), row.part("select_low"), row.part("select_high")) for row in rows]
    computing = np.array([row.part("compute") for row in rows])
    parts = of_jobs(sending, each, kernels, computing, [name_of(job.network(0).stack)] * len(rows), error)
    return chances(list(map(off_alike, among)), parts, left_open=left_open)


def of_jobs(
    sending: Floats,
    messages: Sequence[float],
    selecting: Sequence[tuple[float, float, float]],
    computing: Floats,
    stacks: Sequence[str],
    error: float | None = None,
) -> list[Part]:
    """Return the parts of the times of whole jobs, with their intervals.

    Parameters
    ----------
    sending, computing : ndarray, shape (jobs,)
        Time of messages, and of computing [s].
    messages : sequence of float
        Messages of a worker in each job, one after another.
    selecting : sequence of (float, float, float)
        Time of kernels, with its interval by the device's profile [s].
    stacks : sequence of str
        Names of the transport stacks of the jobs.
    error : float, optional
        As of `over_job`.
    """
    kinds, low, high = [GIVEN] * len(sending), sending / (1 + (error or 0.0)), sending * (1 + (error or 0.0))
    if error is None:
        kinds = [kind_of_stack(one) for one in stacks]
        each = zip(stacks, messages, sending.tolist(), strict=True)
        low, high = np.array([interval(one, np.array(many), np.array(took)) for one, many, took in each]).T
    return [
        Part(sending, low, high, kinds),
        in_job(_part(["select"] * len(sending), selecting)),
        Part(computing, computing, computing, [""] * len(sending)),
    ]


def off_alike(one: Candidate) -> str:
    """Return a name that exchanges share which send the same messages, but for small ones, and so are off alike.

    Examples
    --------
    >>> star, var = (Candidate(one, "artopk", {"collective": "ring", "selection": one}) for one in ("star", "var"))
    >>> off_alike(star) == off_alike(var) != off_alike(Candidate("", "artopk", {"collective": "tree"}))
    True
    """
    kept = {name: value for name, value in one.options.items() if name != "selection"}
    return f"{one.scheme} {sorted(kept.items())!r}"


def messages(one: Candidate, job: Job) -> float:
    """Return how many messages a worker sends in an iteration, one after another, as exchanges of zeros have them."""
    workers = job.source.workers
    if job.strategy is not None:
        own = job.strategy
        strategy = started(job.source, own.name, own.options, one, seed=job.seed, bucket=own.bucket)
        zeros = np.zeros((workers, job.source.parameters), dtype=np.float32)
        syncs = [sync for _ in range(own.steps) for sync in strategy.step(zeros).syncs]
        return sum(sync.schedule.n_messages for sync in syncs) / workers
    model = sparsifier_models.create(one.scheme, workers, _ENTRIES, layers=(_ENTRIES,), **one.options)
    found = model.exchange(np.zeros((workers, _ENTRIES), dtype=np.float32))
    return found.schedule.n_messages / workers * len(buckets_of(job, [one]))


def _seconds(row: Forecast) -> float:
    return row.seconds


def _part(kinds: Sequence[str], fields: Iterable[Sequence[Floats | float]]) -> Part:
    seconds, low, high = np.array(list(fields), dtype=float).T
    return Part(seconds, low, high, kinds)
