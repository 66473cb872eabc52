"""The decision that flags of `simnet choose` ask for: on a whole job, or between exchanges by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.table import Table

from simnet.base import units
from simnet.base.errors import InputError
from simnet.base.processes import InlinePool, Pool
from simnet.calibration import CalibratedCostModel, load_cost_model
from simnet.evidence.chances import Chances
from simnet.evidence.conditions import NEVER_COMPARED
from simnet.job.two_level_placement import job_node_sizes
from simnet.policies import Fixed, density_at
from simnet.scenario import Scenario, load
from simnet.studies import assumptions, options
from simnet.studies.choosing import holding, inputs, job_output, likely, output, whole_job
from simnet.studies.choosing.decision import Decision
from simnet.studies.choosing.flags import (
    Flags,
    assumptions_of,
    device_field,
    fields_of_job,
    job_of,
    named_exchanges,
    scenario_overrides,
)
from simnet.studies.choosing.forecast import WholeJob
from simnet.studies.choosing.holding import Held
from simnet.studies.choosing.inputs import Question
from simnet.studies.choosing.job_flips import job_flips
from simnet.studies.choosing.side_by_side import SideBySide, side_by_side
from simnet.studies.codes import computing_told, costs_told
from simnet.studies.job_totals import computing_factors, evidence_of_job
from simnet.studies.samples import sample_warnings, warning_lines
from simnet.studies.start_times import Course, start_ranges

_OF_NODES = ("multi_gpu_nodes", "wan_of_clusters")
"""Topologies whose workers lie in groups."""


class AtPoint(NamedTuple):
    """A decision at an operating point."""

    question: Question
    decision: Decision
    held: Held

    @property
    def weighed(self) -> str:
        """What `bars` are of."""
        return "time to select and to communicate, with its interval"

    def ranking(self) -> Table:
        """Return the choices as a table, the fastest first."""
        return output.ranking(*self)

    def sentences(self) -> list[str]:
        """Return the decision in words."""
        return output.sentences(*self)

    def figures(self) -> dict[str, Any]:
        """Return the decision for programs."""
        return output.figures(*self)

    def chances(self) -> dict[str, float]:
        """Return how likely each exchange is the fastest, the fastest first."""
        return {row.choice.label: row.chance for row in self.decision.rows}

    def bars(self) -> list[tuple[str, float, float, float]]:
        """Return each exchange with its time and the ends of its interval, if determined [s], the fastest first."""
        found = []
        for row in self.decision.rows:
            ends = (row.low, row.high) if units.determined(row.low, row.high) else (row.seconds, row.seconds)
            found.append((row.choice.label, row.seconds, *ends))
        return found


class OnJob(NamedTuple):
    """A decision on a whole job."""

    asked: job_output.Asked
    found: WholeJob
    likely: Chances
    held: Held

    @property
    def weighed(self) -> str:
        """What `bars` are of."""
        return "an iteration, mean and 5 % to 95 %"

    def ranking(self) -> Table:
        """Return the exchanges as a table, the fastest first."""
        return job_output.ranking(*self)

    def sentences(self) -> list[str]:
        """Return the decision in words."""
        return job_output.sentences(*self)

    def figures(self) -> dict[str, Any]:
        """Return the decision for programs."""
        return job_output.figures(*self)

    def chances(self) -> dict[str, float]:
        """Return how likely each exchange is the fastest, the fastest first."""
        labels = [row.label for row in self.found.rows]
        return dict(zip(labels, self.likely.fastest.tolist(), strict=True))

    def bars(self) -> list[tuple[str, float, float, float]]:
        """Return each exchange with the mean of an iteration and where 90 % of them are [s], the fastest first."""
        return [(row.label, row.seconds / row.iterations, *row.spread()) for row in self.found.rows]


def answer(
    flags: Flags, pool: Pool | None = None, progress: Callable[[float], None] = lambda done: None
) -> AtPoint | OnJob | SideBySide:
    """Return the decision that flags ask for.

    Parameters
    ----------
    flags : Flags
        What is asked.
    pool : Pool, optional
        Where the jobs of a grid are simulated; this process when omitted.
    progress : callable
        Called with the share of the grid that is done.

    Raises
    ------
    InputError
        If flags do not fit each other, or a value is out of range, or something is wrong with a file.
    """
    refuse_ignored(flags)
    if flags.of_exchange:
        return _at_point(flags)
    if flags.param:
        schemes, own = options.words(flags.schemes) or (), fields_of_job(flags)
        error, pool = flags.error, pool or InlinePool()
        return side_by_side(
            flags.source, flags.param, schemes, own, flags.seed, error=error, pool=pool, progress=progress
        )
    return _on_job(flags)


def _at_point(flags: Flags) -> AtPoint:
    """Return the decision between exchanges by themselves, among what a device holds."""
    asked = question(flags)[0]
    limit = holding.limit_of(flags.memory, flags.device)
    shape = None if flags.parameters is not None else flags.model or "resnet50"
    held = holding.at_point(asked.among, asked.point, limit, seed=flags.seed or 0, shape=shape)
    if asked.rehearsals is not None:
        held = held._replace(unsettled=asked.rehearsals.unsettled(asked.among, asked.point))
    asked = replace(asked, among=held.left(asked.among, lambda one: one.label))
    return AtPoint(asked, asked.answer(), held)


def refuse_ignored(flags: Flags, *, decision: bool = True, table: bool = False, tuner: bool = False) -> None:
    """Refuse flags that the answer would not heed, and say what does.

    Parameters
    ----------
    flags : Flags
        What is asked.
    decision : bool
        Whether a ranking is wanted; else it is a map, or a file that decides at run time.
    table, tuner : bool
        Whether that file is a policy table, or NCCL's tuner table.
    """
    if flags.scenario is not None and flags.fabric is not None:
        raise InputError("is either a scenario or --fabric", file="simnet choose")
    options.stack(flags.stack)
    closed = flags.fabric is None and not flags.simulate
    on_job = decision and not flags.of_exchange
    if flags.fabric is not None:
        known = "is not for --fabric, whose measured times stand for the network"
        for option in ("latency", "bandwidth"):
            if getattr(flags, option) is not None:
                way = "--latency and --bandwidth without --fabric ask closed forms, --map latency,bandwidth all of them"
                raise InputError(f"{known}: {way}", file=f"--{option}")
        others = {
            "--gpus-per-node": flags.gpus_per_node,
            "--inner-latency": flags.inner_latency,
            "--inner-bandwidth": flags.inner_bandwidth,
            "--topology": flags.topology,
            "--stack": flags.stack,
            "--set": flags.set_,
            "--simulate": flags.simulate,
            "--all": flags.every,
        }
        for option, value in others.items():
            if value not in (None, False):
                raise InputError(f"{known}; without --fabric it is for closed forms or simulations", file=option)
    options.only("decisions on jobs", on_job, {"--param": flags.param})
    if flags.param:
        simulated = {"--simulate": flags.simulate, "--all": flags.every}
        options.only("decisions without --param, which simulates all of its jobs", False, simulated)
    options.only("a decision", decision, {"--memory": flags.memory})
    heard = decision and closed and not on_job
    options.only("a decision by closed forms", heard, {"--misjudged": flags.misjudged})
    options.only("a decision by closed forms or over a whole job", heard or on_job, {"--error": flags.error})
    drawn = on_job or flags.scenario is not None or flags.simulate or table
    options.only("jobs, simulations and policy tables", drawn, {"--seed": flags.seed})
    messages: dict[str, object] = {"--density": flags.density, "--device": flags.device, "--all": flags.every}
    messages |= {"--schemes": flags.schemes}
    messages |= {"--model": flags.model, "--parameters": flags.parameters}
    messages |= {"--compute": flags.compute, "--batch": flags.batch}
    what = "what weighs exchanges; --export NAME.csv is about messages of all sizes"
    options.only(what, not tuner, messages)


def question(flags: Flags, *, over: bool = False) -> tuple[Question, CalibratedCostModel | None]:
    """Return what is to be decided, and the calibrated cluster that it is about, if it is.

    With `over`, simulations of what flags say have a network at every point, as a map wants.
    """
    given: dict[str, Any] = {
        name: getattr(flags, name)
        for name in (
            "workers",
            "model",
            "parameters",
            "batch",
            "gpus_per_node",
            "device",
            "every",
            "simulate",
            "topology",
        )
    }
    for name in ("latency", "inner_latency", "bandwidth", "inner_bandwidth"):
        read = units.seconds if name.endswith("latency") else units.bandwidth
        given[name] = options.quantity(getattr(flags, name), f"--{name.replace('_', '-')}", read)
    given["parameters"] = options.parameters(flags.parameters)
    given["compute"] = options.quantity(flags.compute, "--compute", units.seconds)
    given["density"] = None if flags.density is None else options.density(flags.density)
    given |= {"fields": flags.set_ or (), "stack": flags.stack, "error": flags.error, "seed": flags.seed or 0}
    given["schemes"] = named_exchanges(flags)
    if flags.misjudged is not None:
        given["misjudged"] = flags.misjudged
    options.only("--simulate", flags.simulate, {"--stack": flags.stack})
    if flags.scenario is not None:
        loaded = load(flags.scenario, [*scenario_overrides(flags), *device_field(flags)], flags.seed)
        return inputs.from_scenario(loaded, inputs.Given(**given)), None
    if flags.fabric is not None:
        fabric = load_cost_model(flags.fabric)
        return inputs.from_fabric(fabric, inputs.Given(**given)), fabric
    ask = inputs.over_networks if over else inputs.from_flags
    return ask(inputs.Given(**given)), None


def _on_job(flags: Flags) -> OnJob:
    """Return what the job of a scenario takes with every exchange."""
    loaded = job_of(flags)
    if loaded.config.job.strategy is not None:
        way = "name fields and values to choose among, as --param job.strategy.period=10,50,100"
        raise InputError(f"under a training strategy jobs are weighed side by side: {way}", field="job.strategy")
    options.of_gradients(loaded, "choices are between exchanges of gradients", ("sharding",))
    run = loaded.build()
    effort = math.inf if flags.simulate else whole_job.EFFORT_OF_ALL if flags.every else whole_job.EFFORT
    nodes = job_node_sizes(run.job) if loaded.config.network.topology.choice[0] in _OF_NODES else ()
    among = whole_job.candidates_of(
        loaded, every=flags.every, per_node=next(iter(nodes), 1), named=named_exchanges(flags)
    )
    held = holding.on_job(run.job, [one for one, _ in among])
    left = held.left(among, lambda one: one[0].label)
    found = whole_job.decide_job(run, left, effort=effort)
    courses = {row.label: Course(row.points.seconds, row.chosen, row.points.stands_for) for row in found.rows}
    found = replace(found, starts=start_ranges(run, courses, [one for one, _ in left]))
    held = held._replace(unsettled={row.label: row.unsettled for row in found.aside})
    density = density_at(run.job.density, run.job.iterations - 1)
    notes = costs_told(run.job.device, [one for one, _ in among], run.job.source.workers)

    def reload(fields: Sequence[str]) -> Scenario:
        return job_of(flags, fields)

    assumed = assumptions.assumed(reload, loaded, run, [one for one, _ in left], found)
    notes += [*computing_told([loaded.computing]), *assumed.sentences(), *assumptions_of(flags, loaded)]
    warned = warning_lines(sample_warnings(run.job, [Fixed(one) for one, _ in among]))
    met = {"latency_s": "latency", "bandwidth_Bps": "bandwidth"}
    links = {name: np.concatenate([getattr(row.points, own) for row in found.rows]) for name, own in met.items()}
    evidence = NEVER_COMPARED if run.colocated else evidence_of_job(run.job, pd.DataFrame(links))
    flips = job_flips(reload, loaded, run, found)
    asked = job_output.Asked(
        loaded.name, loaded.config.seed, run.job, density, tuple(notes), (*loaded.warnings, *warned),
        loaded.compute_time, loaded.samples, evidence, assumed.overlap, tuple(assumed.depends), flips,
    )  # fmt: skip
    return OnJob(asked, found, likely.over_job(found.rows, run.job, flags.error, computing_factors(loaded)), held)
