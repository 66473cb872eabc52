"""Answers of `simnet choose` to one job, a comparison of jobs, or a grid of jobs.

Compared are fully simulated jobs: strategies that exchange less often, shardings, and jobs trained to a target.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.base.units import format_seconds
from simnet.policies import Candidate, Fixed
from simnet.report.run_summary import learnt_by
from simnet.report.summary import Summary, percent, table_columns
from simnet.report.wording import lead_text, listed, to_best
from simnet.scenario import Run, Scenario
from simnet.studies import job_totals
from simnet.studies.assumptions import assumed_text
from simnet.studies.choosing import grids
from simnet.studies.choosing.answering import COLUMNS, ranking_summary
from simnet.studies.choosing.ranking import ChooseRequest, held_on_job, rank
from simnet.training.job.local_steps import RecordedRounds
from simnet.training.job.running import run_policy

if TYPE_CHECKING:
    import pandas as pd

_UNSHARDED = (
    "job.sharding=null",
    "job.density=1%",
    "job.scale=1000",
    "exchanges={AG-Topk: {scheme: topk}, ART-ring: {scheme: artopk, collective: ring}, "
    "dense ring: {scheme: dense, algorithm: ring}}",
    "policies={}",
)

EVERY_STEP = "job.strategy=null"
"""Override for a job that exchanges in every step."""


def strategy_label(loaded: Scenario) -> str:
    """Return the strategy of a job in the notation of ``--strategy``."""
    given = loaded.document.found(("job", "strategy"))
    if not isinstance(given, dict):
        return str(given)
    options = ",".join(
        f"{key}={value}" for key, value in given.items() if key != "name" and not isinstance(value, dict)
    )
    return f"{given.get('name')}{':' if options else ''}{options}"


def rarer_exchanges(asked: ChooseRequest, variants: Sequence[Sequence[str]]) -> Summary:
    """Return a summary that ranks exchanges made in every step, and lists strategies that exchange less often.

    Strategies have no rank, as their loss of accuracy is unknown without training.
    """
    found = rank(asked, [EVERY_STEP])
    ranked = ranking_summary(found)
    every = found.best.seconds / found.best.iterations
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    rounds: list[str] = []
    for variant in track_progress(variants):
        loaded = asked.load([*variant, *([] if asked.load(variant).config.network.weather else ["job.iterations=1"])])
        run = loaded.build()
        among = list(run.candidates.values())
        held = held_on_job(run.job, among)
        notes += [f"{strategy_label(loaded)}, {label} is ruled out: it {why}." for label, why in held.ruled_out.items()]
        own = [
            _rarer_row(loaded, run, one, every) | held.of(one.label) for one in among if one.label not in held.ruled_out
        ]
        own.sort(key=lambda row: row["mean_iteration_s"])
        if run.job.strategy is not None and run.job.strategy.steps > 1:
            rounds.append(run.job.strategy.name)
        rows += own
    if not rows:
        raise InputError(f"leaves nothing to choose from: {'; '.join(notes)}", field="job.strategy")
    took, label = min((row["mean_iteration_s"], row["exchange"]) for row in rows)
    less = "no" if every <= took else lead_text(every / took) if every >= 2 * took else percent(1 - took / every)
    rarer = f"{label}: {format_seconds(took)} a step, {less} less; accuracy ignored: not ranked."
    names = listed([*dict.fromkeys(rounds)])
    return replace(
        ranked,
        answer=f"In every step {ranked.answer.split(';')[0].split(', fastest')[0].rstrip('.')}. {rarer}",
        rows=[*ranked.rows, *rows],
        evidence=f"extrapolated for rounds of {names}, never measured; in every step " * bool(rounds) + ranked.evidence,
        depends_on=ranked.depends_on or "how much accuracy rarer exchanges cost, which is not known without training.",
        next="--gradients train with job.gradients.train.target ranks by the time to an accuracy",
        notes=[*ranked.notes, *notes],
        details={**ranked.details, "accuracy": "ignored"},
    )


def _rarer_row(loaded: Scenario, run: Run, one: Candidate, every: float) -> dict[str, Any]:
    """Return a strategy's table row: means per training step, and relative excess over a step time of `every` [s]."""
    strategy = run.job.strategy
    assert strategy is not None
    frame, total = _simulated(run, one.label, one)
    steps = len(frame) * strategy.steps
    low, high = job_totals.interval_ends(job_totals.judged([total], job_totals.computing_factors(loaded)), 0, steps)
    return {
        "exchange": f"{strategy_label(loaded)}, {one.label}",
        "scheme": one.scheme,
        "options": dict(one.options),
        "kind": "rarer",
        "steps_per_exchange": strategy.steps,
        **_step_means(frame, steps, run.job.source.workers),
        "iteration_low_s": low,
        "iteration_high_s": high,
        "over_the_fastest": total.seconds / steps / every - 1,
        "to_best": "not ranked",
        "iterations_simulated": len(frame),
    }


def _step_means(frame: pd.DataFrame, steps: int, workers: int) -> dict[str, float]:
    """Return the mean times of the parts of a step [s], and the mean bytes that a worker sends in a step."""
    step, compute, select = (math.fsum(frame[f"{name}_s"]) / steps for name in ("iteration", "compute", "select"))
    return {
        "mean_iteration_s": step,
        "mean_compute_s": compute,
        "mean_select_s": select,
        "mean_communicate_and_wait_s": max(step - compute - select, 0.0),
        "mean_bytes_sent_per_worker_B": math.fsum(frame["bytes_sent_B"]) / workers / steps,
    }


def _simulated(run: Run, label: str, one: Candidate) -> tuple[pd.DataFrame, job_totals.JobTotal]:
    frame = run_policy(run.job, label, Fixed(one), sparsifiers=RecordedRounds.of(run.job, [one])).iterations
    return frame, job_totals.total_of(label, frame, run.job, job_totals.messages_of(run, [one]), [one])


def time_to_target(asked: ChooseRequest, variants: Sequence[Sequence[str]]) -> Summary:
    """Rank exchanges and strategies by the simulated time to train a model to the scenario's target accuracy."""
    frames: dict[str, pd.DataFrame] = {}
    totals: dict[str, job_totals.JobTotal] = {}
    for variant in variants:
        loaded = asked.load(variant)
        run = loaded.build()
        rarer = run.job.strategy is not None
        for one in track_progress(list(run.candidates.values()), 1 / len(variants)):
            label = f"{strategy_label(loaded)}, {one.label}" if rarer else one.label
            frames[label], totals[label] = _simulated(run, label, one)
    train = loaded.config.job.gradients.train
    assert train is not None
    assert train.target is not None
    learnt = learnt_by(frames, train.target)
    times = {label: one["time_to_target_s"] for label, one in learnt.items() if one["time_to_target_s"] is not None}
    order = sorted(times, key=lambda label: times[label])
    target = f"an accuracy of {percent(train.target)}"
    answer = f"Nothing reaches {target} in {asked.load(variants[0]).build().job.iterations:,} iterations."
    if order:
        second = f", {lead_text(times[order[1]] / times[order[0]])} before {order[1]}" if len(order) > 1 else ""
        answer = f"{order[0]} reaches {target} first: {format_seconds(times[order[0]])}{second}. One seed."
    likely = (
        job_totals.judged([totals[label] for label in order], job_totals.computing_factors(loaded)) if order else None
    )
    rows = []
    for place, label in enumerate([*order, *(one for one in frames if one not in times)]):
        row = {"exchange": label, "to_best": "not reached", "accuracy": learnt[label]["accuracy"]}
        if likely is not None and label in times:
            took = times[label]
            low, high = job_totals.interval_ends(likely, place, totals[label].seconds / took if took else 1.0)
            row |= {"time_to_target_s": took, "low_s": low, "high_s": high}
            row |= {"to_best": to_best(label, order[:1], took, times[order[0]])}
            row |= {"iterations_to_target": learnt[label]["iterations_to_target"]}
        rows.append(row)
    return Summary(
        answer=answer,
        columns=table_columns("choose target"),
        rows=rows,
        evidence=job_totals.evidence_of_job(run.job, frames.values()).line(),
        assumed=assumed_text(loaded),
        next="simnet run --seeds 10   says whether other seeds agree",
        details={"decision": order[0] if order else None, "target_accuracy": train.target},
    )


def sharding_ways(asked: ChooseRequest) -> Summary:
    """Return the shardings of a job, and the exchanges of the same job without sharding, ranked by step time.

    Unsharded exchanges are left out with tensor or pipeline parallelism, as a step then has other samples.
    """
    loaded = asked.load(["job.iterations=1"])
    run = loaded.build()
    rows: list[dict[str, Any]] = []
    for name, policy in track_progress(list(run.policies.items()), 0.5):
        frame = run_policy(run.job, name, policy).iterations
        rows.append({"exchange": name, "kind": "sharded", **_step_means(frame, len(frame), loaded.config.workers)})
    plain = all(
        one.trace is None and not one.units and not _is_parallel(one.options)
        for one in loaded.config.job.shardings.values()
    )
    beside = ranking_summary(rank(replace(asked, exact=False, policies=()), _UNSHARDED, flips=False)) if plain else None
    rows += [dict(one) for one in beside.rows] if beside else []
    rows.sort(key=lambda row: row["mean_iteration_s"])
    best = rows[0]["mean_iteration_s"]
    for row in rows:
        row["to_best"] = to_best(row["exchange"], [rows[0]["exchange"]], row["mean_iteration_s"], best)
    lead = f", {lead_text(rows[1]['mean_iteration_s'] / best)} before {rows[1]['exchange']}" if len(rows) > 1 else ""
    whole = f"no step of {listed(list(run.policies))} was measured"
    return Summary(
        answer=f"{rows[0]['exchange']}: {format_seconds(best)} a step{lead}.",
        columns=[one for one in COLUMNS if one.name in rows[0] or beside],
        rows=rows,
        evidence=f"assumed: {whole}" + (f"; of exchanges {beside.evidence}" if beside else "."),
        assumed=assumed_text(loaded),
        next="simnet step --calls   lists the collectives of a step",
        details={"decision": rows[0]["exchange"]},
    )


def _is_parallel(options: Mapping[str, Any]) -> bool:
    """Return whether a sharding has tensor, pipeline or expert parallelism, or several microbatches."""
    ways = ("tensor_parallel", "pipeline", "expert_parallel", "microbatches")
    return any(options.get(name, 1) not in (1, None) for name in ways)


def answer(asked: ChooseRequest, axes: Sequence[str] = (), jobs: int | None = None) -> Summary:
    """Return the answer to a `simnet choose` request: a ranking, a comparison of jobs, or a grid over `axes`."""
    choices = [one for one in axes if "strategy" in one.partition("=")[0].split(".")]
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
        return sharding_ways(asked)
    if trains:
        every = [[EVERY_STEP]] if job.strategy is not None else []
        return time_to_target(asked, [*every, *variants])
    return rarer_exchanges(asked, variants) if job.strategy is not None else ranking_summary(rank(asked))
