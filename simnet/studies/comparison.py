"""Schemes side by side: what an exchange of each costs on one trace and network, for several numbers of workers.

A comparison takes a scenario, one exchange after the other and one number of workers after the other, and runs the job
under each as a fixed policy. Means leave out the iterations until all exchanges had settled, as
`simnet.training.job.steady` has it; one that has not has no rank. Where the scenario trains a model, the table also
tells what each exchange made of it, from the first iteration on.

=====================  ==================================================================================
compare.csv            a row per exchange and number of workers; where a model is trained, with what was learnt
compare.json           the same, with seed, versions and hash of the scenario
scenario.lock.yaml     the scenario with the most workers, every default and override written out
paired.csv             with several seeds, of which compare.csv has a row each: means over seeds with their intervals,
                       and how much more than the fastest with as many workers each took
figures/compare.*      time split into select and communicate, volume, density, build-up, time to target
=====================  ==================================================================================

It is long, as rows, their means, their judgement and their files belong together.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simnet.base.atomic_replace import FileSet, replace_files
from simnet.base.spreadsheets import guard_table
from simnet.base.writing import write_files
from simnet.cost_models.costs.devices import DeviceProfile
from simnet.cost_models.evidence.conditions import NEVER_COMPARED
from simnet.report import cost_summary, learning, paired, run_setup
from simnet.report.columns import Fields
from simnet.report.comparison import COLUMNS, draw
from simnet.report.results import LOCK, RESULTS, prepare_folder, versions
from simnet.report.run_summary import INTERVAL, learnt_by, significant
from simnet.report.seeds import times_to_target
from simnet.scenario import Run, Scenario, load
from simnet.scenario.named_exchanges import named_exchanges
from simnet.scenario.source import Source
from simnet.studies.assumptions import Assumed
from simnet.studies.codes import computing_told, with_codes
from simnet.studies.job_totals import judgement
from simnet.studies.runs import mark
from simnet.studies.samples import warning_lines
from simnet.studies.start_times import Course, start_ranges
from simnet.training.job.memory import WorkerMemory, exchange_memory, is_measurable, with_shared_gradients
from simnet.training.job.steady import MOVED, SteadyPart, common_start, steady_part

if TYPE_CHECKING:
    from simnet.policies import Policy
    from simnet.training.job.job import Job
    from simnet.training.job.record import PolicyResult

# The keys of a row under which are its iterations, their steady part, and what its training is judged by.
_ITERATIONS, _STEADY, _TRAINING, _TIMED = "iterations", "steady", "training", "timed"
_BECAUSE = "because"
_AVERAGED = (
    *("iteration_s", "select_s", *INTERVAL, "communicate_s", "wait_s", "bytes_sent_B", "density"),
    *("selected", "actual_density", "build_up", "density_ratio", "imbalance", "global_error"),
)
_PARTS = ("iteration_s", "compute_s", "select_s", *INTERVAL, "choice", "latency_s", "bandwidth_Bps")
_JUDGED = ("start_s", "iteration_s", "compute_s", "loss", "accuracy")


def sources(
    scenario: str | Path,
    workers: Sequence[int] = (),
    schemes: Sequence[str] = (),
    density: str | None = None,
    overrides: Sequence[str] = (),
    seed: int | None = None,
) -> dict[int, Source]:
    """Return, for each number of workers, the scenario in which every exchange is a policy of its own.

    Examples
    --------
    >>> found = sources("quickstart", workers=[2, 3], schemes=["topk", "spardl"], density="2 %")
    >>> list(found), list(found[3].load().build().policies)
    ([2, 3], ['topk', 'spardl'])
    """
    set_density = [] if density is None else [f"job.density={density}", "job.compression_ratio=null"]
    fields = each_fixed(scenario, schemes, [*set_density, *overrides], seed)
    fields.append("output={timeline: 0, report: false}")
    counts = workers or [load(scenario, fields, seed).config.workers]
    return {count: Source(scenario, (*fields, f"workers={count}"), seed) for count in counts}


def each_fixed(
    scenario: str | Path, schemes: Sequence[str] = (), overrides: Sequence[str] = (), seed: int | None = None
) -> list[str]:
    """Return the fields, as of ``--set``, that make every exchange a fixed policy without deaths.

    Examples
    --------
    >>> each_fixed("quickstart", ["topk"])[1]
    'policies={"topk": {"fixed": "topk"}}'
    """
    fields: list[str] = []
    if schemes:
        found = named_exchanges(schemes)
        labels = [one.label for one in found]
        exchanges = {one.label: {"scheme": one.scheme, **one.options} for one in found}
        fields.append("exchanges=" + json.dumps(exchanges))
    # What the user sets may be about these exchanges.
    fields += overrides
    if not schemes:
        labels = load(scenario, [*fields, "policies={}"], seed).config.choices
    fields.append("policies=" + json.dumps({name: {"fixed": name} for name in labels}))
    # Means over iterations want all workers in all of them. Those that leave and come back are another matter.
    job = load(scenario, [*fields], seed).config.job
    return [*fields, *(["job.deaths=null", "job.on_death=null"] if job.deaths is not None else [])]


def row(
    workers: int, label: str, result: PolicyResult, held: WorkerMemory | None = None, warning: str | None = None
) -> dict[str, Any]:
    """Return a run's row of the comparison, from which `as_table` makes `COLUMNS`."""
    steady = steady_part(result.iterations)
    return {
        "exchange": label,
        "workers": workers,
        "settled_after": None if steady.unsettled else steady.start,
        "unsettled": steady.unsettled,
        _STEADY: steady,
        **(dict.fromkeys(cost_summary.MEMORY_COLUMNS, math.nan) if held is None else cost_summary.memory_columns(held)),
        _ITERATIONS: result.iterations[list(_AVERAGED)],
        _TIMED: result.iterations[list(_PARTS)],
        **({_TRAINING: result.iterations[list(_JUDGED)]} if "accuracy" in result.iterations else {}),
        **({} if warning is None else {"warning": warning}),
    }


class Held:
    """What workers hold in the jobs of a comparison, each found once.

    Parameters
    ----------
    elsewhere : bool
        Whether workers live on other machines, so that little may be found here.
    """

    def __init__(self, *, elsewhere: bool = False) -> None:
        self._elsewhere = elsewhere
        self._known: dict[tuple[int, str], WorkerMemory] = {}
        self._too_much: dict[str, None] = {}
        self._assumed = ""
        # The job that was asked for last, and the same with its gradients made once.
        self._last: tuple[Job, Job] | None = None

    def of(self, job: Job, policy: Policy) -> WorkerMemory | None:
        """Return what a worker holds in a job under a policy that keeps to one exchange."""
        if not is_measurable(job, elsewhere=self._elsewhere):
            return None
        (candidate,), workers, limit = policy.candidates, job.source.workers, job.device_memory
        key = workers, candidate.label
        if key not in self._known:
            if self._last is None or job is not self._last[0]:
                self._last = job, with_shared_gradients(job)
            self._known[key] = exchange_memory(self._last[1], candidate)
            self._assumed = cost_summary.memory_assumed(job)
            if limit is not None and self._known[key].peak > limit:
                why = cost_summary.memory_refusal(self._known[key], limit)
                self._too_much[f"{candidate.label} with {workers} workers does not fit: it {why}."] = None
        return self._known[key]

    def sentences(self) -> list[str]:
        """Return what is assumed, and which exchanges do not fit the device."""
        return [*([self._assumed] if self._assumed else []), *self._too_much]


FILES = FileSet("comparison", RESULTS, "compare.json")
"""The files of a comparison."""


def write(
    folder: str | Path,
    done: Mapping[str, Mapping[str, Any]],
    loaded: Scenario,
    lock: str,
    device: Fields,
    missing: Sequence[str] = (),
    held: Sequence[str] = (),
    skip: int | None = None,
    assumed: Assumed | None = None,
    built: Mapping[int, Run] | None = None,
) -> pd.DataFrame:
    """Write the comparison into its folder, and return it as a table: with several seeds, the means over them.

    Where a model was trained, it has the columns of `simnet.report.learning.COLUMNS`, too. The first exchange is the
    reference of those with as many workers and the same seed.
    """
    folder, rows = prepare_folder(folder), list(done.values())
    several = "seed" in rows[0]
    table = as_table(rows, loaded, skip, built)
    shown = over_seeds(table) if several else table
    drawn = draw(shown, loaded.name)
    content = {
        "scenario": loaded.name,
        "scenario_sha256": hashlib.sha256(lock.encode()).hexdigest(),
        "seed": loaded.config.seed,
        **({"seeds": table["seed"].unique().tolist()} if several else {}),
        "device": device,
        **({} if loaded.computing is None else {"computing": loaded.computing}),
        **({} if loaded.compute_time is None else {"compute_time": loaded.compute_time.figures()}),
        **({} if assumed is None or assumed.overlap is None else {"overlap": assumed.overlap}),
        **({} if assumed is None else {"depends_on": list(assumed.depends)}),
        "barrier": loaded.config.job.barrier,
        **({"memory": list(held)} if held else {}),
        "versions": versions(),
        "rows": table.astype(object).where(table.notna(), None).to_dict(orient="records"),
    }
    written = {
        LOCK: lock.encode(),
        "figures/compare.png": drawn.png,
        "figures/compare.svg": drawn.svg,
        "compare.csv": _csv_table(table),
        **({"paired.csv": _csv_table(shown)} if several else {}),
        "compare.json": json.dumps(content, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n",
    }
    with replace_files(folder, FILES) as stage:
        mark(stage, list(done), missing)
        write_files(stage, written)
    return shown


def as_table(
    rows: Sequence[Mapping[str, Any]],
    loaded: Scenario,
    skip: int | None = None,
    built: Mapping[int, Run] | None = None,
) -> pd.DataFrame:
    """Return the rows of a comparison as a table: compare.csv; parameters are as of `write`.

    Where an exchange has a warning, there is a column of them; where times depend on when workers enter, those of
    `simnet.report.paired.START_COLUMNS`, and ``starts_not_sampled``, why that is not known.
    """
    beside: dict[Any, list[SteadyPart]] = defaultdict(list)
    for one in rows:
        beside[_row_group(one)].append(one[_STEADY])
    skips = {group: common_start(found) if skip is None else skip for group, found in beside.items()}
    made = [{**one, "steady_from": skips[_row_group(one)], **_row_means(one, skips[_row_group(one)])} for one in rows]
    _judge_rows(made, loaded, built or {})
    table = pd.DataFrame(made, columns=["seed", *COLUMNS] if "seed" in rows[0] else list(COLUMNS))
    texts = ("exchange", "workers", "unsettled", "settled_after", "steady_from", "evidence")
    numbers = [name for name in COLUMNS if name not in texts]
    table[numbers] = table[numbers].apply(lambda column: pd.Series(significant(column), index=column.index))
    if (samples := loaded.samples) is not None:
        each = samples.number / loaded.config.workers
        rates = significant(each * table["workers"] / table["iteration_s"])
        table = table.assign(throughput=rates, throughput_unit=f"{samples.unit}/s")
    table = table.astype({"settled_after": "Int64"}).assign(**_learning_columns(rows, loaded))
    if any("warning" in one for one in rows):
        table["warning"] = pd.Series([one.get("warning") for one in rows], dtype="object")
    table.attrs["known"] = list(dict.fromkeys(one[_BECAUSE] for one in made if _BECAUSE in one))
    return table.assign(**_start_columns(made, built or {}))


def _judge_rows(made: Sequence[dict[str, Any]], loaded: Scenario, built: Mapping[int, Run]) -> None:
    """Give rows that have settled the interval of their mean iteration, and the chance to be the fastest."""
    groups = defaultdict[Any, list[dict[str, Any]]](list)
    for one in made:
        one |= {
            "iteration_prediction_low_s": math.nan,
            "iteration_prediction_high_s": math.nan,
            "chance_of_fastest_iteration": math.nan,
        }
        one["evidence"] = NEVER_COMPARED.level
        if one["workers"] in built and not one["unsettled"]:
            groups[_row_group(one)].append(one)
    for group in groups.values():
        frames = {one["exchange"]: one[_TIMED].iloc[one["steady_from"] :] for one in group}
        found, known = judgement(loaded, built[group[0]["workers"]], frames)
        for one in group if found else ():
            own, count = found[one["exchange"]], len(frames[one["exchange"]])
            low, high = (math.nan if end is None else end / count for end in (own["low_s"], own["high_s"]))
            one |= {"iteration_prediction_low_s": low, "iteration_prediction_high_s": high}
            one |= {"chance_of_fastest_iteration": own["chance_to_be_fastest"], "evidence": known.level}
            one[_BECAUSE] = known.sentence()


def _start_columns(made: Sequence[Mapping[str, Any]], built: Mapping[int, Run]) -> dict[str, pd.Series]:
    """Return the columns that say how far iterations depend on when workers enter; none where nothing does."""
    low, high = paired.START_COLUMNS
    found: list[dict[str, Any]] = [{} for _ in made]
    for workers, run in built.items():
        settled = [number for number, one in enumerate(made) if one["workers"] == workers and not one["unsettled"]]
        lasted = defaultdict[str, list[pd.Series]](list)
        for one in (made[number] for number in settled):
            lasted[one["exchange"]].append(one[_ITERATIONS]["iteration_s"].iloc[one["steady_from"] :])
        seconds = {label: pd.concat(each).to_numpy(dtype=np.float64) for label, each in lasted.items()}
        courses = {label: Course(each, [label] * each.size, np.ones(each.size)) for label, each in seconds.items()}
        exchanges = [one for policy in run.policies.values() for one in policy.candidates]
        ranges = start_ranges(run, courses, exchanges)
        for number in settled:
            label, mean = made[number]["exchange"], made[number]["iteration_s"]
            if label in ranges.offsets:
                less, more = np.array(ranges.offsets[label]) / seconds[label].size
                found[number] |= {low: float(significant(mean + less)), high: float(significant(mean + more))}
            elif label in ranges.not_sampled:
                found[number]["starts_not_sampled"] = ranges.not_sampled[label]
    columns = {low: "float64", high: "float64", "starts_not_sampled": "object"}
    return {
        name: pd.Series([one.get(name) for one in found], dtype=kind)
        for name, kind in columns.items()
        if any(name in one for one in found)
    }


def _row_group(one: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return what rows have in common that are compared: number of workers, and seed."""
    return one["workers"], one.get("seed")


def _row_means(one: Mapping[str, Any], skip: int) -> dict[str, float]:
    """Return the means of a row over its iterations from `skip` on."""
    means = one[_ITERATIONS].iloc[skip:].mean().to_dict()
    return {
        **means,
        "communicate_and_wait_s": means["communicate_s"] + means["wait_s"],
        "bytes_sent_per_worker_B": means["bytes_sent_B"] / one["workers"],
    }


def device_facts(loaded: Scenario, device: DeviceProfile) -> Fields:
    """Return what is said of the device of a comparison, with the codes that are made and read there."""
    return with_codes(device, loaded.config.exchanges.values(), loaded.config.workers)


def title(loaded: Scenario, device: Fields, seeds: int) -> str:
    """Return what stands above the table of a comparison with so many seeds."""
    known = f"{device['name']}{run_setup.describe_codes(device)}"
    said = f"{loaded.name}; device {known}; {run_setup.barrier_title([loaded.config.job.barrier])}"
    return f"{said}; {seeds} seeds" if seeds > 1 else said


def sentences(loaded: Scenario, held: Held, table: pd.DataFrame) -> list[str]:
    """Return what is to be said below the table: warnings, what has not settled, is left out, ignored or assumed."""
    count = " with {} workers" if table["workers"].nunique() > 1 else ""
    names = [one["exchange"] + count.format(one["workers"]) for _, one in table.iterrows()]
    warned = table["warning"] if "warning" in table else [None] * len(table)
    warnings = {name: one for name, one in zip(names, warned, strict=True) if isinstance(one, str)}
    said = [f"Warning: {one}" for one in (*loaded.warnings, *warning_lines(warnings))]
    for name, why in zip(names, table["unsettled"], strict=True):
        if why:
            said.append(f"{name} has not settled, and has no rank: {why}.")
    for name, one in zip(names, table.to_dict(orient="records"), strict=True):
        if not one["unsettled"] and abs(one["density_ratio"] - 1) > MOVED:
            asked = 100 * one["density"]
            said.append(f"{name} selects {asked * one['density_ratio']:.3g} % of the entries, {asked:.3g} % asked.")
    least, most = table["steady_from"].min(), table["steady_from"].max()
    if most:
        first = f"{least} to {most}" if least < most else most
        said.append(
            f"Means, their intervals and chances leave out the first {first} of {loaded.config.job.iterations} "
            "iterations; a run judges the whole job."
        )
    ignored = [learning.IGNORED] if loaded.config.job.gradients.train is None else []
    rates: dict[str, Fields | None] = {}
    if "throughput_unit" in table:
        for _, row in table.iterrows():
            rate: Fields = {"throughput": row["throughput"], "throughput_unit": row["throughput_unit"]}
            rates[row["exchange"] + count.format(row["workers"])] = rate
    return [
        *cost_summary.throughput_sentences(rates),
        *said,
        *ignored,
        *table.attrs.get("known", ()),
        *held.sentences(),
        *computing_told([loaded.computing]),
    ]


def over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Return the means over seeds of a comparison, with the columns of `simnet.report.paired.comparison`.

    There is no mean time to a target that some seeds did not reach: that of the others would be too short. An exchange
    that has not settled with one of the seeds has no rank; ``settled_after`` is the most.
    """
    by = ["workers", "exchange"]
    groups = table.groupby(by, sort=False)
    most = ["settled_after", "unsettled", "steady_from"]
    means = groups.mean(numeric_only=True).drop(columns=["seed", "iteration_s", *most], errors="ignore")
    means = means.where(groups[list(means)].count().eq(groups.size(), axis=0)).join(groups[most].max()).reset_index()
    found = paired.comparison(table, ["workers"], "iteration_s", policy="exchange").merge(means, on=by)
    for name in [one for one in ("evidence", "warning", "starts_not_sampled") if one in table]:
        found = found.merge(groups[name].first().reset_index(), on=by)
    if "time_to_target_s" in table:
        found = found.drop(columns="time_to_target_s").merge(
            times_to_target(table, ["workers"], policy="exchange"), on=by
        )
    found.attrs |= table.attrs
    numbers = found.select_dtypes("float64").columns
    found[numbers] = found[numbers].apply(lambda column: pd.Series(significant(column), index=column.index))
    return found


def _csv_table(table: pd.DataFrame) -> bytes:
    return guard_table(table).to_csv(index=False, lineterminator="\n").encode()


def _learning_columns(rows: Sequence[Mapping[str, Any]], loaded: Scenario) -> dict[str, pd.Series]:
    """Return the columns that tell how the training went; none where there was none."""
    trained = loaded.config.job.gradients.train
    if trained is None:
        return {}
    reference = next(iter(loaded.config.policies))
    found: dict[tuple[int, int | None, str], dict[str, Any]] = {}
    for group in dict.fromkeys(map(_row_group, rows)):
        frames = {row["exchange"]: row[_TRAINING] for row in rows if _row_group(row) == group}
        for label, one in learning.learning_table(learnt_by(frames, trained.target, reference)).items():
            found[*group, label] = one
    table = pd.DataFrame([found[*_row_group(row), row["exchange"]] for row in rows], columns=list(learning.COLUMNS))
    kinds = dict.fromkeys(learning.COLUMNS, "float64")
    kinds |= {"iterations_to_target": "Int64", "first_to_target": "boolean"}
    return {str(name): column for name, column in table.astype(kinds).items()}
