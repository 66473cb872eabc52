"""Jobs side by side over a grid of their fields: how often to exchange, in how many fragments, how much, by what.

Every cell of the grid is the scenario's job with other values of some fields, under each of its exchanges; all of them
train for as many inner steps, over the links of the scenario as they change. They are simulated in full, cell by cell
as a sweep does, and ranked by the time that those steps take; where a model is trained, by the time until it is as good
as asked. Chances come of what messages and kernels may be off by, as for the jobs that `simnet choose` weighs
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table
from rich.text import Text

from simnet.base.errors import InputError, SimnetError
from simnet.base.processes import Pool
from simnet.base.units import finite, format_bytes, format_seconds, format_within, interval_figures
from simnet.cost_models.evidence.chances import Chances
from simnet.network.stack import name_of
from simnet.policies import Candidate
from simnet.report import learning, run_setup
from simnet.report.cost_summary import format_amount, memory_assumed, memory_refusal, memory_summary, price_of
from simnet.report.paired import fastest
from simnet.report.tables import empty_table
from simnet.scenario import Scenario
from simnet.scenario.resolve import candidate
from simnet.studies.choosing.memory_filter import HEADING
from simnet.studies.choosing.output import advice, lead, share, undetermined
from simnet.studies.codes import computing_told, costs_told
from simnet.studies.comparison import each_fixed
from simnet.studies.job_totals import JobTotal, Spent, computing_factors, judged, messages, off_alike
from simnet.studies.options import of_gradients
from simnet.studies.sweeping import work
from simnet.training.job.job import Job
from simnet.training.job.memory import WorkerMemory, exchange_memory

NEAR = 0.05
"""Rows that take at most this share longer than the fastest are near it."""

ANY = "any"
"""Stands for values that make no difference to a row."""


class Row(NamedTuple):
    """A job of the grid under one exchange.

    Parameters
    ----------
    values : tuple of str
        Of the parameters, as they were given.
    candidate : Candidate
        The exchange.
    seconds : float
        Time of the inner steps that all train for, or until the target [s]; infinite if that is not reached.
    compute, select, select_low, select_high, communicate : float
        Its parts, means over the workers [s]: forward and backward pass and update; kernels, with their interval; what
        is left for messages, and waiting for others.
    messages : float
        Of a worker, one after another.
    step_s, utilisation : float
        As of `simnet.report.cost_summary`.
    sent : float
        Bytes that a worker sends in an inner step, in the mean.
    money : float or None
        Of those seconds, in the currency of the prices; None without prices.
    workers : int
        How many there are.
    stack : str
        Name of the transport stack.
    memory : WorkerMemory
        What a worker holds.
    low, high : float
        The 90 % interval of the time, by what messages and kernels may be off by [s].
    """

    values: tuple[str, ...]
    candidate: Candidate
    seconds: float
    compute: float
    select: float
    select_low: float
    select_high: float
    communicate: float
    messages: float
    step_s: float
    utilisation: float
    sent: float
    money: float | None
    workers: int
    stack: str
    memory: WorkerMemory
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class JobGrid:
    """The decision: every job of the grid under every exchange, the fastest first.

    Parameters
    ----------
    name : str
        The scenario.
    seed : int
        Its seed.
    job : Job
        The job of its first cell.
    parameters : tuple of str
        The fields that jobs differ in.
    inner_steps : int
        For how many all train, at least.
    target : float or None
        The accuracy until which all train; None if nothing is trained.
    rows : tuple of Row
        The jobs.
    likely : Chances
        How likely each of them is the fastest.
    prices : Prices or None
        What is paid.
    refused : tuple of str
        Cells that have no result, and why.
    notes : tuple of str
        How costs of codes are known, and where the time of computing is from.
    warnings : tuple of str
        For which exchanges samples are too small.
    """

    name: str
    seed: int
    job: Job
    parameters: tuple[str, ...]
    inner_steps: int
    target: float | None
    rows: tuple[Row, ...]
    likely: Chances
    prices: Mapping[str, Any] | None
    refused: tuple[str, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def weighed(self) -> str:
        """What `bars` are of."""
        until = f"until an accuracy of {self.target:g}" if self.target is not None else "of all inner steps"
        return f"time {until}, with its interval"

    def label(self, row: Row) -> str:
        """Return a row in words."""
        return ", ".join([*map(" ".join, zip(self._names, row.values, strict=True)), row.candidate.label])

    @property
    def _names(self) -> list[str]:
        short = [name.rpartition(".")[2] for name in self.parameters]
        return [one if short.count(one) == 1 else name for one, name in zip(short, self.parameters, strict=True)]

    @property
    def title(self) -> str:
        """What is asked, on one line."""
        job = self.job
        trained = f"{self.inner_steps:,} inner steps"
        until = "" if self.target is None else f" or until an accuracy of {self.target:g}"
        differ = {"strategy", "name"} & {one.rpartition(".")[2] for one in self.parameters}
        strategy = "" if job.strategy is None or differ else f" by {job.strategy.name}"
        counts = " or ".join(f"{one:,}" for one in sorted({row.workers for row in self.rows}))
        stacks = " or ".join(sorted({row.stack for row in self.rows}))
        return (
            f"{self.name}, {counts} workers, {trained}{strategy}{until}; simulated with seed {self.seed} by the stack "
            f"{stacks}; device {job.device.name}; {run_setup.barrier_note(job.barrier)}"
        )

    @property
    def tied_with(self) -> list[str]:
        """The jobs that take as long as the fastest, by `simnet.report.paired.fastest`."""
        times = {self.label(row): row.seconds for row in self.rows if math.isfinite(row.seconds)}
        return [label for label in fastest(times) if label != self.label(self.rows[0])] if times else []

    def ranking(self) -> Table:
        """Return the jobs as a table, the fastest first."""
        headings = [
            *self._names, "exchange", "to the target" if self.target is not None else "all steps", "over the\nfastest",
            "chance to\nbe fastest", "regret\nof job", "an inner\nstep", "utili-\nsation",
            "sent by a worker\nin a step", HEADING,
        ]  # fmt: skip
        if self.prices is not None:
            headings.append("money")
        table = empty_table(self.title, headings, [*self._names, "exchange"])
        best, tied = self.rows[0].seconds, self.tied_with
        for place, row in enumerate(self.rows):
            reached = math.isfinite(row.seconds)
            more = f"+{100 * (row.seconds / best - 1):.3g} %" if place and reached and best else ""
            cells = [
                *row.values,
                row.candidate.label,
                format_within(row.seconds, row.low, row.high) if reached else "not reached",
                "tied" if self.label(row) in tied else more,
                share(float(self.likely.fastest[place])),
                share(float(self.likely.regret[place])) if reached else "-",
                format_seconds(row.step_s),
                f"{100 * row.utilisation:.3g} %",
                format_bytes(row.sent),
                format_bytes(row.memory.peak),
            ]
            if self.prices is not None:
                cells.append("-" if row.money is None else format_amount(row.money, self.prices["currency"]))
            table.add_row(*map(Text, cells), style="bold" if place == 0 else "")
        return table

    def sentences(self) -> list[str]:
        """Return the decision in words: what, by how much, how sure, what is cheapest, and what is not known."""
        best, said = self.rows[0], []
        if not math.isfinite(best.seconds):
            return [
                f"No job reaches an accuracy of {self.target:g} in {self.inner_steps:,} inner steps.",
                *self.refused,
            ]
        if len(self.rows) > 1:
            second = self.rows[1]
            behind = second.seconds / best.seconds - 1 if best.seconds else 0.0
            margin = (
                lead(self.tied_with, behind, self.label(second)) if math.isfinite(behind) else "no other gets there"
            )
            others = dict(zip(map(self.label, self.rows[1:]), self.likely.fastest[1:].tolist(), strict=True))
            odds = float(self.likely.fastest[0]), float(self.likely.regret[0])
            said.append(advice(self.label(best), *odds, margin, others, sure=self.likely.sure[0]))
        near = [row for row in self.rows if row.seconds <= (1 + NEAR) * best.seconds]
        most = max(near, key=lambda row: row.sent)
        if most is not best and most.sent > best.sent:
            said.append(
                f"Of those within {100 * NEAR:g} % of it, {self.label(most)} sends the most for each step: "
                f"{format_bytes(most.sent)} against {format_bytes(best.sent)}."
            )
        paid = [row for row in self.rows if row.money is not None and math.isfinite(row.seconds)]
        if self.prices is not None and paid:
            cheapest = min(paid, key=lambda row: row.money or 0.0)
            told = format_amount(cheapest.money or 0.0, self.prices["currency"])
            longer = (
                f", and takes {100 * (cheapest.seconds / best.seconds - 1):.3g} % longer"
                if cheapest is not best
                else ""
            )
            said.append(f"Cheapest is {self.label(cheapest)}: {told}{longer}.")
        if self.target is None:
            said.append(
                f"{learning.IGNORED} With job.gradients.train a model is trained, and jobs are ranked by the time to "
                "an accuracy."
            )
        reached = [row for row in self.rows if math.isfinite(row.seconds)]
        said += undetermined((self.label(row), row.low, row.high) for row in reached)
        warnings = [f"Warning: {one}" for one in self.warnings]
        return [*said, *warnings, *self.refused, *self.notes, memory_assumed(self.job)]

    def figures(self) -> dict[str, Any]:
        """Return the decision for programs; names end in units."""
        return {
            "question": {
                "title": self.title,
                "method": "simulated",
                "workers": sorted({row.workers for row in self.rows}),
                "parameters": int(self.job.source.true_parameters),
                "inner_steps": self.inner_steps,
                "target_accuracy": self.target,
                "seed": self.seed,
                "stack": sorted({row.stack for row in self.rows}),
                "device": self.job.device.name,
                "barrier": self.job.barrier,
                "prices": self.prices,
            },
            "ranking": [
                {
                    "label": self.label(row),
                    "parameters": dict(zip(self._names, row.values, strict=True)),
                    "exchange": row.candidate.label,
                    "scheme": row.candidate.scheme,
                    "options": dict(row.candidate.options),
                    "job_s": finite(row.seconds),
                    **(
                        interval_figures(row.low, row.high, "_s")
                        if math.isfinite(row.seconds)
                        else {"low_s": None, "high_s": None, "interval": "the target is not reached"}
                    ),
                    "total_compute_s": finite(row.compute),
                    "total_select_s": finite(row.select),
                    "total_communicate_and_wait_s": finite(row.communicate),
                    "step_s": row.step_s,
                    "utilisation": row.utilisation,
                    "bytes_sent_per_worker_step_B": row.sent,
                    "memory": memory_summary(row.memory, self.job.device_memory),
                    "money": None if row.money is None else finite(row.money),
                    "chance_to_be_fastest": float(chance),
                    "regret_of_job": finite(float(regret)),
                }
                for row, chance, regret in zip(self.rows, self.likely.fastest, self.likely.regret, strict=True)
            ],
            "decision": self.label(self.rows[0]) if math.isfinite(self.rows[0].seconds) else None,
            "tied_with": self.tied_with,
            "sure": bool(self.likely.sure[0]),
            "refused": list(self.refused),
            "warnings": list(self.warnings),
        }

    def chances(self) -> dict[str, float]:
        """Return how likely each job is the fastest, the fastest first."""
        return dict(zip(map(self.label, self.rows), self.likely.fastest.tolist(), strict=True))

    def bars(self) -> list[tuple[str, float, float, float]]:
        """Return each job that gets there with its time and the ends of its interval [s], the fastest first."""
        return [(self.label(row), row.seconds, row.low, row.high) for row in self.rows if math.isfinite(row.seconds)]


def rank_job_grid(
    scenario: str,
    parameters: Sequence[str],
    schemes: Sequence[str] = (),
    overrides: Sequence[str] = (),
    seed: int | None = None,
    *,
    error: float | None = None,
    pool: Pool,
    progress: Callable[[float], None] = lambda done: None,
) -> JobGrid:
    """Simulate the jobs of a grid, and rank them.

    Examples
    --------
    >>> from simnet.base.processes import InlinePool
    >>> fields = ["job.iterations=2", "job.scale=200000", "exchanges={dense: {scheme: dense}, topk: {scheme: topk}}"]
    >>> found = rank_job_grid("local_steps_wan", ["job.strategy.period=5,20"], overrides=fields, pool=InlinePool())
    >>> [found.label(row) for row in found.rows][0], found.inner_steps
    ('period 20, topk', 200)
    """
    planned = work.plan(scenario, parameters, each_fixed(scenario, schemes, overrides, seed), seed)
    _refuse_common(planned)
    base = planned.base.build().job
    wanted = base.iterations * _steps(base)
    loaded: dict[int, Scenario] = {}
    built: dict[int, Job] = {}
    tasks = []
    for number, task in enumerate(planned.tasks):
        try:
            loaded[number] = task.load()
            built[number] = loaded[number].build().job
        except InputError:
            # Checking says what is wrong with it.
            tasks.append(task)
            continue
        rounds = math.ceil(wanted / _steps(built[number]))
        tasks.append(replace(task, overrides=(*task.overrides, f"job.iterations={rounds}")))
    done = _simulated(replace(planned, tasks=tasks), pool, progress)
    # A time to a target is that of the whole run, settled or not.
    counts = ["done"] if planned.base.config.job.gradients.train is None else ["done", "unsettled"]
    rows: list[Row] = []
    refused: list[str] = []
    warnings: dict[str, None] = {}
    for number, cell in enumerate(planned.cells):
        for result in done[number]:
            if result["status"] in counts:
                warnings |= {result["warning"]: None} if result["warning"] else {}
                row = _row(cell.values, result, loaded[number], built[number], wanted)
                limit = built[number].device_memory
                if limit is None or row.memory.peak <= limit:
                    rows.append(row)
                else:
                    refused.append(f"{cell}, {row.candidate.label}: {memory_refusal(row.memory, limit)}")
            else:
                refused.append(f"{cell}{', ' + result['policy'] if result['policy'] else ''}: {result['message']}")
    if not rows:
        raise SimnetError("; ".join(refused))
    rows = sorted(_alike(rows), key=lambda row: row.seconds)
    config, prices = planned.base.config, planned.base.prices
    target = None if config.job.gradients.train is None else config.job.gradients.train.target
    low, high = zip(*map(computing_factors, loaded.values()), strict=True)
    rows, odds = _weighed(rows, (min(low), max(high)), error)
    names = tuple(one.name for one in planned.axes)
    notes = costs_told(base.device, [row.candidate for row in rows], base.source.workers)
    notes += computing_told(one.computing for one in loaded.values())
    warnings |= dict.fromkeys(told for one in loaded.values() for told in one.warnings)
    return JobGrid(
        planned.base.name, config.seed, base, names, wanted, target, tuple(rows), odds, prices, tuple(refused),
        tuple(notes), tuple(warnings),
    )  # fmt: skip


def _refuse_common(planned: work.Plan) -> None:
    """Refuse parameters that all jobs have in common, a target that is not the same for all, and sharded steps."""
    of_gradients(planned.base, "choices are between exchanges of gradients", ("sharding",))
    for one in planned.axes:
        if one.name.split(".")[-1] in ("iterations", "seed", "target"):
            raise InputError("is what jobs have in common here; give it by --set", file=f"--param {one.name}")
    trained = planned.base.config.job.gradients.train
    if trained is not None and trained.target is None:
        raise InputError("is missing: the accuracy until which all train", field="job.gradients.train.target")


def _steps(job: Job) -> int:
    """Return the inner steps of an iteration."""
    return 1 if job.strategy is None else job.strategy.steps


def _simulated(planned: work.Plan, pool: Pool, progress: Callable[[float], None]) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of all cells, as of `simnet.studies.sweeping.cell`, by the number of the cell."""
    with TemporaryDirectory() as folder:
        checks = work.check(planned, Path(folder), pool, lambda number, part: None)
        work.refuse_all(planned, checks)
        todo = work.Work(planned, checks, Path(folder))
        todo.run(pool, None, work.overall(len(planned.cells), progress))
    return todo.results


def _row(values: tuple[str, ...], result: dict[str, Any], loaded: Scenario, job: Job, wanted: int) -> Row:
    """Return a job of the grid under an exchange, for as many inner steps as all train for, or until the target."""
    label = result["policy"]
    one = candidate(label, loaded.config.exchanges[label])
    # Iterations are whole, so that some make a few steps more.
    times = wanted / result["inner_steps"]
    if loaded.config.job.gradients.train is not None:
        reached = result["time_to_target_s"]
        times = math.inf if reached is None else reached / result["simulated_s"]
    iterations, workers = result["iterations"] * times, job.source.workers
    seconds, nbytes = result["simulated_s"] * times, result["total_bytes_sent_B"] * times
    money = None if loaded.prices is None else price_of(loaded.prices, workers, seconds, nbytes)["together"]
    parts = {name: iterations * result[f"{name}_s"] for name in ("compute", "select", "select_low", "select_high")}
    return Row(
        values,
        one,
        seconds,
        **parts,
        communicate=max(seconds - parts["compute"] - parts["select"], 0.0) if math.isfinite(seconds) else math.inf,
        messages=iterations * messages(one, job),
        step_s=result["step_s"],
        utilisation=result["utilisation"],
        sent=result["total_bytes_sent_B"] / workers / result["inner_steps"],
        money=money,
        workers=workers,
        stack=name_of(job.network(0).stack),
        memory=exchange_memory(job, one),
    )


def _alike(rows: Sequence[Row]) -> list[Row]:
    """Return rows without those that differ in values alone, as of a density that an exchange does not heed."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = row.candidate.label, row.seconds, row.compute, row.select, row.messages, row.sent, row.money
        before = found.setdefault(key, row)
        values = (own if own == other else ANY for own, other in zip(row.values, before.values, strict=True))
        found[key] = row._replace(values=tuple(values))
    return list(found.values())


def _weighed(rows: Sequence[Row], computes: tuple[float, float], error: float | None) -> tuple[list[Row], Chances]:
    """Return the rows with their intervals, and how likely each is the fastest; those that get nowhere are not."""
    there = [row for row in rows if math.isfinite(row.seconds)]
    if not there:
        nothing, never = np.zeros(len(rows)), np.full(len(rows), math.inf)
        return list(rows), Chances(nothing, never, nothing, never, never)
    totals = []
    for row in there:
        spent = Spent(row.communicate, row.select, row.select_low, row.select_high, row.messages)
        exchange = off_alike(row.candidate)
        totals.append(JobTotal(exchange, row.compute, {exchange: spent}, row.stack))
    found = judged(totals, computes, error)
    ends = zip(there, found.low.tolist(), found.high.tolist(), strict=True)
    shown = [row._replace(low=least, high=most) for row, least, most in ends]
    left = len(rows) - len(there)
    nowhere = (0.0, math.inf, 0.0, math.inf, math.inf)
    padded = [np.append(one, np.full(left, fill)) for one, fill in zip(found, nowhere, strict=True)]
    return [*shown, *rows[len(there) :]], Chances(*padded)
