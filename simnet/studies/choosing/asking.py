"""Dispatch of a `simnet choose` request: one job, a comparison of jobs, or a grid of jobs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simnet.base.errors import InputError
from simnet.report.summary import Summary
from simnet.studies.options import factor_off

if TYPE_CHECKING:
    from simnet.scenario import Scenario

# Of links that are off.
_WEIGHED = (
    "is for a ranking of exchanges by the time of an iteration, not for a grid, shardings or a target of training"
)


def choice(
    source: str | Path,
    overrides: Sequence[str],
    policies: Sequence[str] = (),
    axes: Sequence[str] = (),
    exact: bool = False,
    link_uncertainty: float | str | None = None,
    jobs: int | None = None,
) -> Summary:
    """Return the answer to a `simnet choose` request: a ranking, a comparison of jobs, or a grid."""
    from simnet.studies.choosing import answering, grids, ranking, side_by_side

    def again(more: Sequence[str]) -> Scenario:
        return ranking.load_job(source, [*overrides, *more])

    off = None if link_uncertainty is None else factor_off(link_uncertainty, "--link-uncertainty")
    choices_ = [one for one in axes if _is_choice(one)]
    if others := [one for one in axes if not _is_choice(one)]:
        if off is not None:
            raise InputError(_WEIGHED, file="--link-uncertainty")
        return grids.grid_summary(
            grids.CellRequest(source, (*overrides,), exact, (*policies,)), [*others, *choices_], jobs
        )
    variants = [list(one) for one in itertools.product(*map(grids.axis_fields, choices_))]
    job = again(variants[0]).config.job
    if off is not None and (job.shardings or (job.gradients.train and job.gradients.train.target is not None)):
        raise InputError(_WEIGHED, file="--link-uncertainty")
    if job.shardings:
        return side_by_side.sharding_ways(again)
    if job.gradients.train is not None and job.gradients.train.target is not None:
        every = [[side_by_side.EVERY_STEP]] if job.strategy is not None else []
        return side_by_side.time_to_target(again, [*every, *variants])
    how: dict[str, Any] = {"exact": exact, "link_uncertainty": off, "policies": policies}
    if job.strategy is not None:
        return side_by_side.rarer_exchanges(again, variants, **how)
    return answering.ranking_summary(ranking.rank(again, **how))


def _is_choice(axis: str) -> bool:
    """Return whether a grid axis sets the training strategy, a choice rather than a condition."""
    return "strategy" in axis.partition("=")[0].split(".")
