"""Events of a run: worker failures (fail-stop) with the workers that waited, and jobs that share the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simnet.base.units import format_seconds
from simnet.report.columns import Fields

if TYPE_CHECKING:
    from simnet.training.job.record import Interruption

MAX_WAITING = 20
"""Maximum number of waiting workers that the summary lists per stop; the count includes all."""


def stop_summary(stop: Interruption) -> Fields:
    """Return the summary entry of a failure stop; `resumed_s` is None if the job ended."""
    return {
        "job": stop.job,
        "iteration": stop.iteration,
        "stopped_s": stop.stopped,
        "resumed_s": stop.resumed,
        "workers_left": stop.left,
        "died": [{"worker": worker, "at_s": at} for worker, at in stop.failed.items()],
        "waited_count": len(stop.blocked),
        "waited": [
            {"worker": one.worker, "round": one.round, "phase": one.phase, "waits_for": list(one.workers)[:MAX_WAITING]}
            for one in stop.blocked[:MAX_WAITING]
        ],
    }


def describe_stop(policy: str, stop: Mapping[str, Any], main: str) -> str:
    r"""Return sentences on a stop: which workers failed and when, who waited, and how the job continued.

    Examples
    --------
    >>> stop = {"job": "job", "iteration": 12, "stopped_s": 10.2, "resumed_s": None, "workers_left": 7,
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
    died = " and ".join(f"{_worker_text(workers)} died at {at}" for at, workers in when.items())
    who = policy if stop["job"] == main else f"{stop['job']}, beside {policy}"
    halted = f"Iteration {stop['iteration']} stopped at {format_seconds(stop['stopped_s'])}"
    if stop["waited"]:
        first, others = stop["waited"][0], stop["waited_count"] - 1
        where = f"round {first['round']}" + (f" ({first['phase']})" if first["phase"] else "")
        halted += f": worker {first['worker']} waited in {where} for {_worker_text(first['waits_for'])}"
        halted += f", and {others} other{'s' * (others > 1)} waited too" if others else ""
    done, left = stop["iteration"], stop["workers_left"]
    end = f"The job ended there, after {done} complete iteration{'s' * (done != 1)}."
    if stop["resumed_s"] is not None:
        end = (
            f"The others noticed at {format_seconds(stop['resumed_s'])} and went on as {left} "
            f"worker{'s' * (left != 1)}, without the gradients and residuals of the dead."
        )
    return f"{who}: {died}. {halted}. {end}"


def _worker_text(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    return f"worker{'s' * (len(numbers) != 1)} {shown}"


def event_share_rows(shares: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    """Return table rows, as text cells, of each policy's jobs that shared the network."""
    rows = ((policy, one) for policy, jobs in shares.items() for one in jobs)
    return [
        (
            policy,
            one["job"],
            f"{one['workers']}",
            f"{one['iterations']} of {one['planned']}",
            *("-" if one[name] is None else format_seconds(one[name]) for name in ("mean_iteration_s", "alone_s")),
            "-" if one["slowdown"] is None else f"{one['slowdown']:.3g}x",
        )
        for policy, one in rows
    ]
