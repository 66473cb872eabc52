"""The decision that a request asks for: on a whole job, on a grid of jobs, or between exchanges by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from simnet.base import units
from simnet.base.errors import InputError
from simnet.base.processes import InlinePool, Pool
from simnet.cost_models.calibration import load_cost_model
from simnet.cost_models.evidence.conditions import NEVER_COMPARED
from simnet.policies import Fixed, density_at
from simnet.scenario import Scenario, load
from simnet.studies import assumptions, options
from simnet.studies.choosing import job_output, memory_filter, output, whole_job, win_probability
from simnet.studies.choosing.job_flips import job_flips
from simnet.studies.choosing.job_grid import rank_job_grid
from simnet.studies.choosing.problem import Problem, problem_from_fabric, problem_from_flags, problem_from_scenario
from simnet.studies.choosing.request import (
    ChooseRequest,
    assumptions_of,
    device_field,
    fields_of_job,
    job_of,
    named_exchanges,
    scenario_overrides,
)
from simnet.studies.codes import computing_told, costs_told
from simnet.studies.job_totals import computing_factors, evidence_of_job
from simnet.studies.samples import sample_warnings, warning_lines
from simnet.studies.start_times import Course, start_ranges
from simnet.training.job.job import job_node_sizes

_OF_NODES = ("multi_gpu_nodes", "wan_of_clusters")
"""Topologies whose workers lie in groups."""


@dataclass(frozen=True)
class ChooseAnswer:
    """A decision, for people and for programs.

    Parameters
    ----------
    ranking : Table
        The choices, the fastest first.
    sentences : list of str
        The decision in words; the first one is the answer.
    figures : dict
        The decision for JSON.
    chances : dict of str to float
        The probability of each to be the fastest, the fastest first.
    bars : list of (str, float, float, float)
        Each choice with its time and the ends of its interval [s].
    weighed : str
        What the times are of.
    """

    ranking: Table
    sentences: list[str]
    figures: dict[str, Any]
    chances: dict[str, float]
    bars: list[tuple[str, float, float, float]]
    weighed: str


def answer(
    request: ChooseRequest, pool: Pool | None = None, progress: Callable[[float], None] = lambda done: None
) -> ChooseAnswer:
    """Return the decision that a request asks for."""
    refuse_ignored(request)
    if request.of_exchange:
        return _on_exchange(request)
    if not request.param:
        return _on_job(request)
    schemes, own = options.words(request.schemes) or (), fields_of_job(request)
    found = rank_job_grid(
        request.source, request.param, schemes, own, request.seed,
        error=request.error, pool=pool or InlinePool(), progress=progress,
    )  # fmt: skip
    return ChooseAnswer(
        found.ranking(), found.sentences(), found.figures(), found.chances(), found.bars(), found.weighed
    )


def _on_exchange(request: ChooseRequest) -> ChooseAnswer:
    """Return the decision between exchanges by themselves, among what a device holds."""
    problem = problem_of(request)
    limit = memory_filter.limit_of(request.memory, request.device)
    held = memory_filter.at_point(problem.among, problem.point, limit, seed=request.seed or 0, shape=request.shape)
    if problem.sampled is not None:
        held = held._replace(unsettled=problem.sampled.unsettled(problem.among, problem.point))
    problem = replace(problem, among=held.left(problem.among, lambda one: one.label))
    rows = (decision := problem.answer()).rows
    ends = [(one.low, one.high) if units.determined(one.low, one.high) else (one.seconds,) * 2 for one in rows]
    return ChooseAnswer(
        output.ranking(problem, decision, held),
        output.sentences(problem, decision, held),
        output.figures(problem, decision, held),
        {row.choice.label: row.chance for row in rows},
        [(row.choice.label, row.seconds, *own) for row, own in zip(rows, ends, strict=True)],
        "time to select and to communicate, with its interval",
    )


def refuse_ignored(request: ChooseRequest, *, decision: bool = True, table: bool = False) -> None:
    """Refuse flags that the answer would not heed, and say what does."""
    if request.scenario is not None and request.fabric is not None:
        raise InputError("is either a scenario or --fabric", file="simnet choose")
    options.stack(request.stack)
    if request.fabric is not None:
        known = "is not for --fabric, whose measured times stand for the network"
        for option in ("latency", "bandwidth"):
            if getattr(request, option) is not None:
                way = "--latency and --bandwidth without --fabric ask closed forms, --map latency,bandwidth all of them"
                raise InputError(f"{known}: {way}", file=f"--{option}")
        others = {
            "--gpus-per-node": request.gpus_per_node,
            "--inner-latency": request.inner_latency,
            "--inner-bandwidth": request.inner_bandwidth,
            "--topology": request.topology,
            "--stack": request.stack,
            "--set": request.set_,
            "--simulate": request.simulate or None,
            "--all": request.every or None,
        }
        for option, value in others.items():
            if value is not None:
                raise InputError(f"{known}; without --fabric it is for closed forms or simulations", file=option)
    on_job = decision and not request.of_exchange
    closed = decision and request.fabric is None and not request.simulate and not on_job
    drawn = on_job or request.scenario is not None or request.simulate or table
    grid = {"--simulate": request.simulate, "--all": request.every} if request.param else {}
    for what, given, flags in (
        ("decisions on jobs", on_job, {"--param": request.param}),
        ("decisions without --param, which simulates all of its jobs", False, grid),
        ("a decision", decision, {"--memory": request.memory}),
        ("a decision by closed forms", closed, {"--misjudged": request.misjudged}),
        ("a decision by closed forms or over a whole job", closed or on_job, {"--error": request.error}),
        ("jobs, simulations and policy tables", drawn, {"--seed": request.seed}),
    ):
        options.only(what, given, flags)


def problem_of(request: ChooseRequest, *, over: bool = False) -> Problem:
    """Return the choice between exchanges by themselves that a request asks for; `over` is as of problem_from_flags."""
    options.only("--simulate", request.simulate, {"--stack": request.stack})
    # What is wrong with names is said before files are read.
    named_exchanges(request)
    if request.scenario is not None:
        loaded = load(request.scenario, [*scenario_overrides(request), *device_field(request)], request.seed)
        return problem_from_scenario(loaded, request)
    if request.fabric is not None:
        return problem_from_fabric(load_cost_model(request.fabric), request)
    return problem_from_flags(request, over=over)


def _on_job(request: ChooseRequest) -> ChooseAnswer:
    """Return what the job of a scenario takes with every exchange."""
    loaded = job_of(request)
    if loaded.config.job.strategy is not None:
        way = "name fields and values to choose among, as --param job.strategy.period=10,50,100"
        raise InputError(f"under a training strategy jobs are weighed side by side: {way}", field="job.strategy")
    options.of_gradients(loaded, "choices are between exchanges of gradients", ("sharding",))
    run = loaded.build()
    effort = math.inf if request.simulate else whole_job.EFFORT_OF_ALL if request.every else whole_job.EFFORT
    nodes = job_node_sizes(run.job) if loaded.config.network.topology.choice[0] in _OF_NODES else ()
    among = whole_job.candidates_of(
        loaded, every=request.every, per_node=next(iter(nodes), 1), named=named_exchanges(request)
    )
    candidates = [one for one, _ in among]
    held = memory_filter.on_job(run.job, candidates)
    left = held.left(among, lambda one: one[0].label)
    fitting = [one for one, _ in left]
    found = whole_job.decide_job(run, left, effort=effort)
    courses = {row.label: Course(row.points.seconds, row.chosen, row.points.stands_for) for row in found.rows}
    found = replace(found, starts=start_ranges(run, courses, fitting))
    held = held._replace(unsettled={row.label: row.unsettled for row in found.aside})

    def reload(fields: Sequence[str]) -> Scenario:
        return job_of(request, fields)

    assumed = assumptions.assumed(reload, loaded, run, fitting, found)
    notes = [
        *costs_told(run.job.device, candidates, run.job.source.workers), *computing_told([loaded.computing]),
        *assumed.sentences(), *assumptions_of(request, loaded),
    ]  # fmt: skip
    warned = warning_lines(sample_warnings(run.job, map(Fixed, candidates)))
    met = {"latency_s": "latency", "bandwidth_Bps": "bandwidth"}
    links = {name: np.concatenate([getattr(row.points, own) for row in found.rows]) for name, own in met.items()}
    asked = job_output.Asked(
        loaded.name, loaded.config.seed, run.job, density_at(run.job.density, run.job.iterations - 1), tuple(notes),
        (*loaded.warnings, *warned), loaded.compute_time, loaded.samples,
        NEVER_COMPARED if run.colocated else evidence_of_job(run.job, pd.DataFrame(links)),
        assumed.overlap, tuple(assumed.depends), job_flips(reload, loaded, run, found),
    )  # fmt: skip
    likely = win_probability.over_job(found.rows, run.job, request.error, computing_factors(loaded))
    return ChooseAnswer(
        job_output.ranking(asked, found, likely, held),
        job_output.sentences(asked, found, likely, held),
        job_output.figures(asked, found, likely, held),
        dict(zip([row.label for row in found.rows], likely.fastest.tolist(), strict=True)),
        [(row.label, row.seconds / row.iterations, *row.spread()) for row in found.rows],
        "an iteration, mean and 5 % to 95 %",
    )
