"""Co-located jobs: how far each came on the shared network, and its slow-down against running alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from simnet.base.units import format_seconds

if TYPE_CHECKING:
    from simnet.job import JobShare

COLUMNS = ("policy", "job", "workers", "iterations", "planned", "mean_iteration_s", "alone_s", "slowdown")
"""Of the table of jobs: a row per policy and job."""

HEADINGS = ("policy", "job", "workers", "iterations", "mean iteration", "alone", "slow-down")
"""Of the table that people see."""


class ShareSummary(TypedDict):
    """A job that shares the network: its iterations, their mean time [s], and the time that it takes alone."""

    job: str
    workers: int
    iterations: int
    planned: int
    mean_iteration_s: float | None
    alone_s: float | None
    slowdown: float | None


def share_summary(share: JobShare, rounded: Callable[[float], float]) -> ShareSummary:
    """Return how a job fared as the summary holds it, its times rounded; None where it did no iteration."""

    def known(value: float) -> float | None:
        return rounded(value) if math.isfinite(value) else None

    return {
        "job": share.job,
        "workers": share.workers,
        "iterations": share.iterations,
        "planned": share.planned,
        "mean_iteration_s": known(share.mean_iteration_s),
        "alone_s": known(share.alone_s),
        "slowdown": known(share.slowdown),
    }


def share_table(policy: str, shares: Iterable[JobShare]) -> list[dict[str, Any]]:
    """Return the rows of the table of jobs for a policy; see `COLUMNS`."""
    return [{"policy": policy, **share._asdict()} for share in shares]


def share_rows(shares: Mapping[str, Sequence[ShareSummary]]) -> list[tuple[str, ...]]:
    """Return the cells of the table that people see, policy by policy."""

    def time(seconds: float | None) -> str:
        return "-" if seconds is None else format_seconds(seconds)

    return [
        (
            policy,
            one["job"],
            str(one["workers"]),
            f"{one['iterations']} of {one['planned']}",
            time(one["mean_iteration_s"]),
            time(one["alone_s"]),
            "-" if one["slowdown"] is None else f"{one['slowdown']:.3g}x",
        )
        for policy, all_of_them in shares.items()
        for one in all_of_them
    ]
