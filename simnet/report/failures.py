"""Failed workers (fail-stop): in which iteration, who was blocked by them in which round, and how the job went on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from simnet.base.units import format_seconds

if TYPE_CHECKING:
    from simnet.job import Interruption

MAX_WAITING = 20
"""Waiting workers that the summary lists per stop; all of them are counted, and stand in deaths.csv."""

COLUMNS = (
    "policy", "job", "iteration", "worker", "what", "at_s", "round", "phase", "waits_for", "resumed_s", "workers_left",
)  # fmt: skip
"""Of the table of deaths: a row per worker that died (`at_s`: when) or waited (`at_s`: when everything had stopped)."""


class DiedSummary(TypedDict):
    """A worker that died, and when."""

    worker: int
    at_s: float


class WaitSummary(TypedDict):
    """A worker that waited for others, in a round of a phase of the exchange."""

    worker: int
    round: int
    phase: str
    waits_for: list[int]


class StopSummary(TypedDict):
    """An iteration that stopped for its dead; `resumed_s` is None where the job ended."""

    job: str
    iteration: int
    stopped_s: float
    resumed_s: float | None
    workers_left: int
    died: list[DiedSummary]
    waited_count: int
    waited: list[WaitSummary]


def stop_summary(stop: Interruption, rounded: Callable[[float], float]) -> StopSummary:
    """Return a stop as the summary holds it, its times rounded."""
    return {
        "job": stop.job,
        "iteration": stop.iteration,
        "stopped_s": rounded(stop.stopped),
        "resumed_s": None if stop.resumed is None else rounded(stop.resumed),
        "workers_left": stop.left,
        "died": [{"worker": worker, "at_s": rounded(at)} for worker, at in stop.failed.items()],
        "waited_count": len(stop.blocked),
        "waited": [
            {"worker": one.worker, "round": one.round, "phase": one.phase, "waits_for": list(one.workers)[:MAX_WAITING]}
            for one in stop.blocked[:MAX_WAITING]
        ],
    }


def stop_table(policy: str, stops: Iterable[Interruption]) -> list[dict[str, Any]]:
    """Return the rows of the table of deaths for a policy; see `COLUMNS`."""
    rows: list[tuple[Any, ...]] = []
    for stop in stops:
        before = policy, stop.job, stop.iteration
        after = math.nan if stop.resumed is None else stop.resumed, stop.left
        rows += [(*before, worker, "died", at, None, "", "", *after) for worker, at in stop.failed.items()]
        for one in stop.blocked:
            peers = " ".join(map(str, one.workers))
            rows.append((*before, one.worker, "waited", stop.stopped, one.round, one.phase, peers, *after))
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def describe_stop(policy: str, stop: StopSummary, main: str) -> str:
    r"""Say what happened.

    Examples
    --------
    >>> stop: StopSummary = {"job": "job", "iteration": 12, "stopped_s": 10.2, "resumed_s": None, "workers_left": 7,
    ...     "died": [{"worker": 3, "at_s": 10.0}], "waited_count": 7,
    ...     "waited": [{"worker": 0, "round": 1, "phase": "gather", "waits_for": [3]}]}
    >>> print(describe_stop("AG", stop, "job").replace(". ", ".\n"))
    AG: worker 3 died at 10 s.
    Iteration 12 stopped at 10.2 s: worker 0 waited in round 1 (gather) for worker 3, and 6 others waited too.
    The job ended there, after 12 complete iterations.
    """
    when: dict[str, list[int]] = {}
    for one in stop["died"]:
        when.setdefault(format_seconds(one["at_s"]), []).append(one["worker"])
    died = " and ".join(f"{_workers(workers)} died at {at}" for at, workers in when.items())
    who = policy if stop["job"] == main else f"{stop['job']}, beside {policy}"
    halted = f"Iteration {stop['iteration']} stopped at {format_seconds(stop['stopped_s'])}"
    if stop["waited"]:
        first, others = stop["waited"][0], stop["waited_count"] - 1
        phase = f" ({first['phase']})" if first["phase"] else ""
        halted += (
            f": worker {first['worker']} waited in round {first['round']}{phase} for {_workers(first['waits_for'])}"
        )
        if others:
            halted += f", and {others} other{'s' * (others > 1)} waited too"
    done, left = stop["iteration"], stop["workers_left"]
    if stop["resumed_s"] is None:
        end = f"The job ended there, after {done} complete iteration{'s' * (done != 1)}."
    else:
        end = (
            f"The others noticed at {format_seconds(stop['resumed_s'])} and went on as {left} "
            f"worker{'s' * (left != 1)}, without the gradients and residuals of the dead."
        )
    return f"{who}: {died}. {halted}. {end}"


def _workers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    return f"worker{'s' * (len(numbers) != 1)} {shown}"
