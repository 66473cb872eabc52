"""Requests of `simnet choose`: one job, a comparison of jobs, or a grid of jobs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from simnet.base.errors import InputError
from simnet.report.summary import Summary
from simnet.studies.choosing import grids, side_by_side
from simnet.studies.choosing.answering import ranking_summary
from simnet.studies.choosing.ranking import ChooseRequest, rank


def answer(asked: ChooseRequest, axes: Sequence[str] = (), jobs: int | None = None) -> Summary:
    """Return the answer to a `simnet choose` request: a ranking, a comparison of jobs, or a grid over `axes`."""
    choices = [one for one in axes if _is_choice(one)]
    variants = [list(one) for one in itertools.product(*map(grids.axis_fields, choices))]
    grid = len(choices) < len(axes)
    job = None if grid else asked.load(variants[0]).config.job
    trains = job is not None and job.gradients.train is not None and job.gradients.train.target is not None
    if asked.link_uncertainty is not None and (job is None or job.shardings or trains):
        said = "a ranking of exchanges by the time of an iteration, not for a grid, shardings or a target of training"
        raise InputError(f"is for {said}", file="--link-uncertainty")
    if job is None:
        return grids.grid_summary(asked, [*(one for one in axes if one not in choices), *choices], jobs)
    if job.shardings:
        return side_by_side.sharding_ways(asked)
    if trains:
        every = [[side_by_side.EVERY_STEP]] if job.strategy is not None else []
        return side_by_side.time_to_target(asked, [*every, *variants])
    return side_by_side.rarer_exchanges(asked, variants) if job.strategy is not None else ranking_summary(rank(asked))


def _is_choice(axis: str) -> bool:
    """Return whether a grid axis sets the training strategy; a request with only such axes compares strategies."""
    return "strategy" in axis.partition("=")[0].split(".")
