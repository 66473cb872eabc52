"""Calibrates a cost model from logs and summarises it: held-out errors, chosen models, fitted network."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simnet.base.arrays import Floats
from simnet.base.errors import InputError, suggest_names
from simnet.base.units import format_bandwidth, format_seconds
from simnet.cost_models.calibration import cards, measured
from simnet.cost_models.calibration.cost_model import CalibratedCostModel, calibrate
from simnet.cost_models.calibration.cost_model_file import cost_model_yaml
from simnet.cost_models.calibration.crossval import MIXTURE_NAME, ModelChoice, choose_models
from simnet.cost_models.calibration.curves import chosen_rows, curves_of, differing_columns, rows_on_curves
from simnet.cost_models.calibration.predictor import FittedCurve
from simnet.cost_models.calibration.readers.kinds import read_logs
from simnet.cost_models.calibration.readers.tables import LogFacts, LogProblem, constant_facts
from simnet.cost_models.calibration.software import eager_measured, stack_measured
from simnet.cost_models.calibration.step_model import CARD_PER_RANK, PARAMETERS, undetermined_parameters
from simnet.cost_models.calibration.topology_links import FittedLinks, Placement, fill_nodes_of, fit_topology_links
from simnet.cost_models.evidence.intervals import SCORE_95, Basis, HeldOut

MAX_CURVES = 1000
"""The most curves that are fitted at once."""

_BUILT_WITH_MPI = ("nccl-tests", "rccl-tests")

MAX_SIZES = 10_000
"""The most sizes of a curve; of all curves together ten times as many."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """A cost model fitted to logs, and the data that its summary needs.

    `rows` of the logs were used, `problems` are those of the logs, `mixed` has columns, such as a variant, whose
    different values were fitted together as one system. `links` is the network in the file, `logged_stack` the stack
    that the logs name.
    """

    cost_model: CalibratedCostModel
    chosen: ModelChoice
    rows: int
    problems: tuple[str, ...]
    mixed: Mapping[str, Sequence[str]]
    links: FittedLinks | None = None
    logged_stack: str = ""

    @property
    def yaml(self) -> str:
        """The fabric file as YAML."""
        return cost_model_yaml(self.cost_model)

    def inside_note(self) -> str:
        """Return a sentence that asks for the bandwidth inside nodes of several ranks, if no log has measured it."""
        model = self.cost_model.model
        if model.steps is None or model.steps.measured_inside or not any(c.ranks > c.nodes > 1 for c in model.known):
            return ""
        given = "--network multi_gpu_nodes:gpus_per_node=8,intra_bandwidth=300GB/s, or a platform"
        return f" Inside a node nothing was measured: add a log of one node, or say how fast its links are ({given})."

    def link_note(self) -> str:
        """Return the measured latency and bandwidth of a link as a phrase; "" if collectives were measured."""
        flags = link_flags(self.cost_model.model.known)
        return f": a link, which every verb takes as {flags}" if flags else ""

    def next_question(self) -> str:
        """Return a suggested next command; in it, ``{out}`` stands for the name of the calibrated model's file."""
        curves = self.cost_model.model.known
        if self.links:
            return "simnet choose --network {out}"
        if flags := link_flags(curves):
            return f"simnet time all_reduce {flags}"
        names = [one.collective for one in curves]
        asked = "all_reduce" if "all_reduce" in names else next(name for name in names if not name.startswith("p2p_"))
        return f"simnet time {asked} --network {{out}}"

    def figures(self) -> dict[str, Any]:
        """Return the fields that ``simnet calibrate --json`` prints."""
        steps = self.cost_model.model.steps
        return {
            "rows_read": self.rows,
            "curves": len(self.cost_model.model.known),
            "problems": list(self.problems),
            "mixed": {name: list(values) for name, values in self.mixed.items()},
            "model": self.cost_model.model.curve_model,
            "held_out_sizes": {name: held_out_errors(one) for name, one in self.chosen.by_curve_model.items() if one},
            "held_out_ranks": held_out_errors([*self.chosen.held["ranks"], *self.chosen.held["beyond"]]),
            "held_out_collectives": held_out_errors(self.chosen.held["collectives"]),
            "steps": None if steps is None else dict(zip(PARAMETERS, steps.values, strict=True)),
            "cards_of_a_node": [
                {"number": None if one.number == CARD_PER_RANK else one.number, "chance": one.chance}
                for one in self.cost_model.model.cards
            ],
            "network": None if self.links is None else self.links.parameters,
            "stack": self.cost_model.stack or None,
            "stack_told_by_logs": self.logged_stack or None,
            "eager": self.cost_model.eager,
        }

    def errors(self) -> list[dict[str, Any]]:
        """Return rows with held-out errors of each curve model, and of predictions for new ranks and collectives."""
        models = {f"sizes, {name}": (held, name == MIXTURE_NAME) for name, held in self.chosen.by_curve_model.items()}
        kinds: dict[str, Basis] = {"ranks": "ranks", "outermost ranks": "beyond", "collectives": "collectives"}
        every = models | {name: (self.chosen.held[kind], False) for name, kind in kinds.items()}
        return [
            {"left_out": f"{name} (chosen)" if chosen else name, "chosen": chosen, **found}
            for name, (held, chosen) in every.items()
            if (found := held_out_errors(held)) is not None
        ]

    def notes(self) -> list[str]:
        """Return lines of text on problems, step-model parameters, network and transport stack."""
        lines = problem_lines(self.problems)
        lines += [
            f"warning: rows of {len(one)} values of {name} were put together; --where {name}={one[0]} takes one of them"
            for name, one in self.mixed.items()
        ]
        steps = self.cost_model.model.steps
        if steps is not None:
            # Of a node inside which nothing was measured, the usual rate is said.
            steps = steps.inside()[1]
            unknown = undetermined_parameters(steps)
            for (name, what), value, error in zip(PARAMETERS.items(), steps.values, steps.errors, strict=True):
                within = f"within a factor of {np.exp(SCORE_95 * error):.2f}"
                said = "not determined by these data" if name in unknown else within
                lines.append(f"a step: {name} {value:.3g}, {said} ({what})")
            if doubt := cards.describe_card_counts(self.cost_model.model.cards, self.cost_model.model.each):
                lines.append(doubt)
        if self.links is not None:
            for family, parameters in self.links.parameters.items():
                shown = [f"{name} {value:.3g}" for name, value in parameters.items()]
                lines.append(", ".join([f"network: {family}", *shown]))
            if self.links.undetermined:
                named = ", ".join(self.links.undetermined)
                lines.append(f"warning: the measurements do not determine {named}; the network takes typical values")
            no_library = "not known, so that simulations take ideal; --stack names that of the library"
            eager = ", its eager limit raised above every message" if self.cost_model.eager else ""
            lines.append(f"stack: {self.cost_model.stack or no_library}{eager}")
        if self.logged_stack and self.cost_model.stack != self.logged_stack:
            taken = f"simulations take {self.cost_model.stack}, by --stack"
            lines.append(f"warning: the logs are of {self.logged_stack}, and {taken}")
        return lines


def link_flags(curves: Sequence[FittedCurve]) -> str:
    """Return ``--latency`` and ``--bandwidth`` from measured point-to-point messages; "" if logs have collectives."""
    found = {one.collective: one for one in curves}
    if not all(name.startswith("p2p_") for name in found):
        return ""
    slow, wide = (found.get(f"p2p_{name}") for name in ("latency", "bw"))
    latency = f"--latency '{format_seconds(slow.at(slow.smallest).item())}'" if slow else ""
    bandwidth = f"--bandwidth '{format_bandwidth(wide.largest / wide.at(wide.largest).item())}'" if wide else ""
    return f"{latency} {bandwidth}".strip()


def held_out_errors(held: Sequence[HeldOut]) -> dict[str, float] | None:
    """Return count, median, 90 % quantile and maximum of absolute relative errors; None if nothing was held out."""
    if not held:
        return None
    return error_quantiles(np.abs(np.expm1(np.concatenate([one.log_errors for one in held]))))


def error_quantiles(values: Floats) -> dict[str, float]:
    """Return count, median, 90 % quantile and maximum of a non-empty sample of errors."""
    median, p90, worst = np.quantile(values, (0.5, 0.9, 1.0)).tolist()
    return {"count": len(values), "median": median, "p90": p90, "worst": worst}


def read_rows(source: str, facts: LogFacts | Mapping[str, Any]) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the rows, and the problems as text, of a shipped data set, a log, or a folder of logs."""
    shipped = measured.datasets()
    if source in shipped:
        found = measured.load_dataset(source)
        return found.rows, tuple(str(one) for one in found.problems)
    if Path(source).name == source and not Path(source).suffix and not os.path.exists(source):  # noqa: PTH110 - no error for a name that is too long
        named = f"{source[:60]!r}; {suggest_names(source, shipped)}"
        raise InputError(f"there is no such file, and no shipped measurements {named}")
    found = read_logs(source, facts if isinstance(facts, LogFacts) else constant_facts(facts))
    return found.rows, tuple(str(one) for one in (*found.problems, *_unusable_logs(found.rows)))


def _unusable_logs(rows: pd.DataFrame) -> list[LogProblem]:
    """Return a problem for each log without usable rows: ranks are unknown or 1, or sizes are 0 bytes."""
    unknown, one, found = rows["ranks"].isna(), _of_one_rank(rows), []
    nothing = ~unknown & ~one & (rows["nbytes"].fillna(0) == 0)
    lacks = "have no number of ranks; --fact ranks=16 says it, --fact 'NAME:ranks=16' of this log alone"
    for missing, why in ((unknown, lacks), (one, None), (nothing, "have 0 bytes")):
        for source, part in rows[missing].groupby("source", sort=False):
            line = part["line"].dropna().min()
            at = None if pd.isna(line) else int(line)
            said = f"{len(part):,} rows from here on {why or f'are of {_single_rank(part)}'}"
            found.append(LogProblem(str(source), at, said, True))
    return found


def _of_one_rank(rows: pd.DataFrame) -> pd.Series[bool]:
    return (rows["ranks"] == 1).fillna(False).astype(bool)


def _single_rank(rows: pd.DataFrame) -> str:
    """Return a phrase that says that each test had one rank, and the likely cause."""
    tests = int(rows.groupby(["collective", "nbytes", "in_place", "dtype"], dropna=False).size().max())
    said = f"{tests:,} tests of one rank each" if tests > 1 else "a test of one rank"
    if rows["tool"].isin(_BUILT_WITH_MPI).any() and tests > 1:
        said += " (nccl-tests built without MPI; make MPI=1)"
    return f"{said}: nothing went over a link, so they say nothing of several ranks"


def problem_lines(problems: Sequence[str]) -> list[str]:
    """Return up to 20 problems as lines of text, with a heading and the number of problems not shown."""
    if not problems:
        return []
    shown, rest = [f"  {one}" for one in problems[:20]], len(problems) - 20
    more = [f"  and {rest:,} more, which --json lists"] if rest > 0 else []
    return [f"{len(problems):,} {'remark' if len(problems) == 1 else 'remarks'} on the logs:", *shown, *more]


def calibrate_logs(
    logs: Sequence[str],
    where: Mapping[str, str],
    facts: LogFacts | Mapping[str, Any],
    in_place: bool,
    topology: Placement | None,
    coverage: float,
    stack: str | None = None,
) -> Calibration:
    """Read logs (files, folders or names of shipped data sets) and fit a cost model to them.

    Only rows with the values of `where` (by column) are used; `facts` are values that the logs lack; times are in place
    or out of place; `topology` places the ranks; intervals contain a share `coverage` of measurements; `stack` replaces
    that of the logs. Raises InputError if a log cannot be read, or the rows left are none or of several systems.
    """
    known = facts if isinstance(facts, LogFacts) else constant_facts(facts)
    parts = [read_rows(log, known) for log in logs]
    known.refuse_idle()
    all_rows = chosen_rows(pd.concat([part for part, _ in parts], ignore_index=True), where, in_place)
    rows = rows_on_curves(all_rows)
    if rows.empty and len(all_rows) and _of_one_rank(all_rows).all():
        raise InputError(f"holds {_single_rank(all_rows)}", file=", ".join(logs))
    if rows.empty:
        raise InputError("no row has a size above 0 and a number of ranks; --fact ranks=16 says what the logs do not")
    if topology is not None:
        rows = fill_nodes_of(rows, topology)
    curves = curves_of(rows)
    if len(curves) > MAX_CURVES:
        most = f"at most {MAX_CURVES:,} are fitted at once, --where takes some"
        raise InputError(f"{len(curves):,} curves are there; {most}")
    points = [len(one.sizes) for one in curves]
    if max(points) > MAX_SIZES or sum(points) > 10 * MAX_SIZES:
        most = f"{MAX_SIZES:,} of a curve and {10 * MAX_SIZES:,} of all are fitted"
        raise InputError(f"{max(points):,} sizes of one curve, {sum(points):,} of all; at most {most}")
    chosen = choose_models(curves)
    system = ", ".join(f"{name}={value}" for name, value in where.items())
    name = "" if topology is None else topology.name
    cost_model = calibrate(curves, coverage=coverage, sources=logs, system=system, topology=name, chosen=chosen)
    given = topology is not None and topology.inner_rate
    if given and (steps := cost_model.model.steps) is not None and not steps.measured_inside:
        cost_model.model = dataclasses.replace(cost_model.model, steps=steps.with_inner_rate(given))
    if topology is not None and (flags := link_flags(cost_model.model.known)):
        raise InputError(f"these logs are of one link alone: leave --network out, and give {flags} to other verbs",
                         file="--network")  # fmt: skip
    network = None if topology is None else fit_topology_links(topology, cost_model.model.steps, curves)
    cost_model.network = None if network is None else network.parameters
    logged = stack_measured(rows)
    cost_model.stack, cost_model.eager = (logged, eager_measured(rows)) if stack is None else (stack, False)
    problems = tuple(problem for _, found in parts for problem in found)
    return Calibration(cost_model, chosen, len(rows), problems, differing_columns(rows), network, logged)
