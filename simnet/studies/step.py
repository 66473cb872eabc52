"""Time of a training step (replicated, sharded or traced) by part, with its collectives and memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simnet.base.errors import InputError
from simnet.base.units import determined, finite, format_bytes, interval_figures
from simnet.cost_models.evidence.conditions import NEVER_COMPARED
from simnet.network.stack import name_of
from simnet.report.columns import Fields
from simnet.report.cost_summary import throughput, throughput_sentences
from simnet.report.run_setup import calibration_summary, calls_evidence
from simnet.report.summary import Summary, interval_text, percent, table_columns
from simnet.scenario import Scenario
from simnet.scenario.job_parts import Sharding
from simnet.studies import job_totals
from simnet.studies.assumptions import assumed_text
from simnet.studies.timing import Timed
from simnet.training.job.job import Job
from simnet.training.parallel.graph import CollectiveCall, StepMemory, StepTiming
from simnet.training.parallel.placing import PlacedStep
from simnet.training.parallel.plan import TrainingSteps
from simnet.training.parallel.traced import TracedStep

SLOWDOWNS = (1.0, 2.5)
"""Minimum and maximum factor on compute time during collectives; see `describe_slowdown`."""


@dataclass(frozen=True)
class ShardedStep:
    """Training step of a policy in a job whose model is sharded, after start-up effects have ended."""

    job: Job
    policy: str
    label: str
    sharding: Sharding
    computing: tuple[float, float]

    @cached_property
    def timing(self) -> StepTiming:
        """Start and end of each node of the step's graph [s]."""
        return self._timed(self._placed)

    @cached_property
    def call_errors(self) -> dict[int, tuple[float, float]]:
        """90 % interval of actual / predicted duration of each collective, by graph node number; NaN if unknown."""
        known: dict[tuple[int, bytes], tuple[float, float]] = {}
        found = {}
        for number, schedule in self._placed.schedules.items():
            hosts = self._placed.hosts[self._placed.groups[number][0]]
            key = id(schedule), hosts.tobytes()
            if key not in known:
                timed = Timed(self._placed.network, hosts.tolist(), schedule)
                (low, high, _), took = timed.predicted(), timed.timing.duration
                known[key] = (low / took, high / took) if took else (1.0, 1.0)
            found[number] = known[key]
        return found

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Interval of the step time [s], from lower and upper bounds of compute and collective times; NaN if unknown.

        Errors are taken as common: computing and all calls are at their lower ends, or all at their upper ends.
        """
        if any(map(math.isnan, itertools.chain(*self.call_errors.values()))):
            return math.nan, math.nan
        slowed = (self._placed.slowdown,) * 2 if self.sharding.trace is not None else SLOWDOWNS
        offs = ({number: one[end] for number, one in self.call_errors.items()} for end in (0, 1))
        low, high = map(self._timed, map(self._place, slowed, offs), self.computing)
        return low.duration, high.duration

    @cached_property
    def memory(self) -> StepMemory:
        """Memory of a worker by part [byte], each part as the largest over the workers."""
        return self.timing.memory()

    @property
    def assumed(self) -> tuple[str, ...]:
        """Texts on the assumed slowdown of computing or, of a traced step, on content that it leaves out."""
        step = self._steps.step(self._number)
        slowed = f"slowed {self.sharding.slowdown or 1:.3g}x ({SLOWDOWNS[0]:g}-{SLOWDOWNS[1]:g})"
        return step.notes if isinstance(step, TracedStep) else (slowed,)

    @property
    def utilisation(self) -> float:
        """Share of the step in which workers compute, as a mean; slowdown of compute by collectives is not counted."""
        alone = self.timing.computing - self.timing.slowed
        return float(alone.mean()) / self.timing.duration if self.timing.duration else 1.0

    def row(self) -> dict[str, Any]:
        """Return the table row of the step for a comparison of shardings."""
        ends = interval_figures(*self.ends, "_s")
        took = {"step_s": self.timing.duration, **ends, "utilisation": self.utilisation}
        waits = {name: float(getattr(self.timing, name).max()) for name in ("exposed", "slowed")}
        held = {} if self.sharding.trace is not None else {"memory_B": self.memory.peak}
        return {"policy": self.policy, **took, **{f"{name}_s": one for name, one in waits.items()}, **held}

    def calls(self) -> list[dict[str, Any]]:
        """Return a row per collective call: its start, its end, and the longest time that a worker waits for it."""
        timing, waits, does = self.timing, self.timing.waits().max(axis=1), self.timing.graph.does()
        rows = []
        for number, node in enumerate(timing.graph.nodes):
            if not isinstance(call := node.does, CollectiveCall):
                continue
            begin, end = float(timing.begun[number, does[number]].min()), float(timing.ended[number].max())
            sizes = {"in_B": call.in_bytes, "out_B": call.out_bytes}
            when = {"begin_s": begin, "end_s": end, "takes_s": end - begin, "exposed_s": float(waits[number])}
            rows.append({**call._asdict(), **sizes, **when})
        return rows

    def parts(self) -> list[dict[str, Any]]:
        """Return a row per part of the step, with the compute and wait times of the worker that finishes last."""
        timing = self.timing
        worker = int(timing.ended.max(axis=0).argmax())
        slowed = float(timing.slowed[worker])
        alone = float(timing.computing[worker]) - slowed
        rows: dict[str, dict[str, Any]] = {"compute": {"takes_s": alone, "of_step_s": alone}}
        if slowed:
            rows["slowed by collectives"] = {"of_step_s": slowed}
        lasts, waits, does = timing.lasts[:, worker], timing.waits()[:, worker], timing.graph.does()[:, worker]
        for number, node in enumerate(timing.graph.nodes):
            if does[number] and isinstance(call := node.does, CollectiveCall):
                row = rows.setdefault(f"{call.phase} {call.operation}", dict.fromkeys(_SUMS, 0))
                found = (1, max(call.in_bytes, call.out_bytes), float(lasts[number]), float(waits[number]))
                row.update({name: row[name] + one for name, one in zip(_SUMS, found, strict=True)})
        return [{"part": name, **dict.fromkeys(_SUMS), **row} for name, row in rows.items()]

    def calibration(self) -> Fields | None:
        """Return a summary of the measured cost model that times the step's collectives; None if there is none."""
        placed = self._placed
        groups = ((schedule, one) for number, schedule in placed.schedules.items() for one in placed.groups[number])
        sent = ((schedule, placed.hosts[one]) for schedule, one in groups)
        return calibration_summary(placed.network, {self.label: sent})

    @property
    def _steps(self) -> TrainingSteps:
        assert self.job.steps is not None
        return self.job.steps[self.label]

    @property
    def _number(self) -> int:
        return max(self.job.iterations - 1, 0)

    @cached_property
    def _placed(self) -> PlacedStep:
        return self._place(self._steps.slowdown)

    def _place(self, slowdown: float, off: Mapping[int, float] = {}) -> PlacedStep:
        steps, network = self._steps, self.job.network(self._number)
        return PlacedStep(steps.step(self._number).graph, network, steps.algorithms, self.job.placement, slowdown, off)

    def _timed(self, placed: PlacedStep, off: float = 1.0) -> StepTiming:
        compute = self.job.compute
        computes = off * compute.mean * np.array([compute.slow.get(one, 1.0) for one in range(self.job.source.workers)])
        return placed.time(self._steps.step(self._number).seconds(computes), 0.0, self._number)


_MEMORY = (
    "A worker needs {peak} at most, activations apart: parameters {parameters}, gradients {gradients}, optimiser "
    "{optimizer}, and for a while gathered parameters {gathered}, gradients to be reduced {reduced}."
)
_RANGE = (
    "The range has computing at {:.2g} to {:.2g} times, slow-down by collectives at {:g} to {:g} times (unless traced) "
    "and each collective at the ends of its interval: all low, or all high, as their causes are common."
)
_SUMS = ("calls", "vector_B", "takes_s", "of_step_s")


def sharded_steps(scenario: Scenario) -> list[ShardedStep]:
    """Return the steps of a sharded scenario's policies, the fastest first."""
    run = scenario.build()
    ways = scenario.config.job.shardings
    found = []
    for name, policy in run.policies.items():
        (one,) = policy.candidates
        computing = (1.0, 1.0) if ways[one.label].trace is not None else job_totals.computing_factors(scenario)
        found.append(ShardedStep(run.job, name, one.label, ways[one.label], computing))
    return sorted(found, key=lambda one: one.timing.duration)


def step_summary(scenario: Scenario, *, calls: bool = False) -> Summary:
    """Return a summary of the step time: by part for a single sharding, otherwise a row per sharding.

    With `calls` a single sharding has a row per collective call.
    """
    best, *others = sharded_steps(scenario)
    if calls and others:
        raise InputError("is for one way of sharding; --policies names it", file="--calls")
    answer, notes, evidence = _step_answer(best), _notes(scenario, best), NEVER_COMPARED.line()
    details = {**_shared_figures(scenario, best), **NEVER_COMPARED.figures()}
    if others:
        second = percent(others[0].timing.duration / best.timing.duration - 1, "+")
        answer = f"{best.policy} takes {answer} Next is {others[0].policy}, {second}."
        table, rows = "step ways", [one.row() | _limit_figures(one) for one in (best, *others)]
    else:
        table, rows = ("step calls", best.calls()) if calls else ("step parts", best.parts())
        details |= _own_figures(best) | ({} if calls else {"calls": best.calls()})
        if best.sharding.trace is None:
            notes.append(_MEMORY.format(**{name: format_bytes(one) for name, one in best.memory._asdict().items()}))
        if (calibration := best.calibration()) is not None:
            details["cost_model"] = calibration["file"]
            known = calls_evidence(calibration["calls"]).line()
            evidence += f" Collectives by the cost model of {calibration['file']}, {known}"
    return Summary(
        answer=answer, columns=table_columns(table), rows=rows, evidence=evidence,
        assumed=", ".join(filter(None, [assumed_text(scenario), *best.assumed])),
        details=details, notes=notes,
    )  # fmt: skip


def _own_figures(one: ShardedStep) -> dict[str, Any]:
    """Return the JSON fields of one sharded step, or of a step read from traces."""
    found = {name: value for name, value in one.row().items() if name not in ("policy", "memory_B")}
    found |= {"replicas": one.timing.graph.replicas, "most_compute_s": float(one.timing.computing.max())}
    if one.sharding.trace is None:
        found["memory"] = {f"{name}_B": size for name, size in one.memory._asdict().items()}
        found |= {"compute_slowdown": one.sharding.slowdown, "backward_fraction": one.sharding.backward}
    return found | _limit_figures(one)


def _step_answer(one: ShardedStep) -> str:
    ends, limit = map(finite, one.ends), one.job.device_memory
    took = interval_text(one.timing.duration, *ends, each=" a step", by=" if all errors go one way")
    held = "" if determined(*one.ends) else " (range not known, as errors of its collectives are not)"
    if one.sharding.trace is None:
        held += f"; {format_bytes(one.memory.peak)} + activations"
        held += f", {'fits' if one.memory.peak <= limit else 'does not fit'} {format_bytes(limit)}" if limit else ""
    return f"{took}, {percent(one.utilisation)} utilisation{held}."


def _shared_figures(scenario: Scenario, one: ShardedStep) -> dict[str, Any]:
    """Return the JSON fields common to all shardings of a scenario."""
    given, known = scenario.config.job, scenario.compute_time
    found: dict[str, Any] = {"workers": one.job.source.workers, "stack": name_of(one.job.network(0).stack)}
    if one.sharding.trace is not None:
        return {"trace": one.sharding.trace, **found}
    found |= {"model": given.model, "sharding": one.sharding.way, "parameters": one.job.source.true_parameters}
    found |= {"microbatch_s": one.job.compute.mean, "source": scenario.computing}
    found |= {
        "compute_time": None if known is None else known.figures(),
        **throughput(scenario.samples, one.timing.duration),
    }
    return found | ({"warnings": scenario.warnings} if scenario.warnings else {})


def _limit_figures(one: ShardedStep) -> dict[str, Any]:
    limit = one.job.device_memory
    if limit is None or one.sharding.trace is not None:
        return {}
    return {"memory_limit_B": limit, "fits": one.memory.peak <= limit}


def _notes(scenario: Scenario, one: ShardedStep) -> list[str]:
    """Return notes on a step: the source of compute times, throughput, and what is not modelled."""
    codes = any(call.dtype == "int8" for call in one.timing.graph.calls)
    return [
        *(f"Warning: {said}" for said in scenario.warnings),
        *([f"Computing: {scenario.computing}."] if scenario.computing else []),
        *throughput_sentences({one.policy: throughput(scenario.samples, one.timing.duration)}),
        *([_RANGE.format(*one.computing, *SLOWDOWNS)] if determined(*one.ends) else []),
        *(["Quantising takes no time."] if codes else []),
        f"Messages go by the stack {name_of(one.job.network(0).stack)}.",
    ]
