"""Runs of a scenario's policies, with checkpoints and a results folder.

While they run, the folder has checkpoints, of policies that are done and of those under way. The same command resumes
from them after a kill, Ctrl-C or an error; when all is done they go.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pandas as pd

from simnet.base import file_io
from simnet.base.arrays import Columns, significant
from simnet.base.errors import SimnetError
from simnet.base.file_io import finish_replacement, replace_files
from simnet.interchange.kinds import kind_of
from simnet.network import MAX_MIN
from simnet.policies import Fixed
from simnet.report import answers, cost_summary, run_setup, seeds
from simnet.report.answers import RunAnswer
from simnet.report.columns import Fields
from simnet.report.results import PAGE, RUN, SEEDS, prepare_folder, write_run
from simnet.report.run_setup import calibration_summary
from simnet.report.run_summary import RunFacts, RunSummary
from simnet.scenario import Run, Scenario
from simnet.scenario.finding import Source
from simnet.scenario.resolve import candidate
from simnet.scenario.runner import Task, checkpoints, request, run_policies
from simnet.scenario.topology_parts import cluster_file
from simnet.studies import assumptions
from simnet.studies.job_totals import judgement, rivals, run_facts
from simnet.training.job.checkpoint import EVERY, Checkpoint
from simnet.training.job.job import Job
from simnet.training.job.loop import first_exchange
from simnet.training.job.memory import WorkerMemory, candidates_memory, is_measurable, with_shared_gradients
from simnet.training.job.record import PolicyResult
from simnet.training.job.steady import common_start, steady_part

CHECKPOINTS = "checkpoints"
"""Name of the checkpoint folder in a results folder."""

_A_CHECKPOINT = re.compile(r"[0-9a-f]{32}\.(npz|[a-z]+\.rows)")


class Batch:
    """Runs of a scenario's policies under consecutive seeds, with their checkpoints and the files of their results."""

    unit = "iterations"

    def __init__(
        self,
        source: Source,
        loaded: Scenario,
        folder: Path,
        seeds: int = 1,
        jobs: int | None = 1,
        on: str | None = None,
    ) -> None:
        self.folder, self.place, self.built = folder, folder / CHECKPOINTS, loaded.build()
        self.report, self.errors = loaded.config.output.report, dict[str, None]()
        """Whether a page is written; messages of the runs that failed."""
        self._source, self._loaded, self._jobs, self._on, self._before = source, loaded, jobs, on, ""
        self._tasks: dict[int, Task] = {}
        self.labels: dict[tuple[str, int], str] = {}
        """Label of each run by policy and seed."""
        resumed = checkpoints(loaded, self.place, EVERY)
        self.own: dict[str, Checkpoint] = {}
        """Checkpoint of each run by label."""
        for later in range(seeds):
            seed = loaded.config.seed + later
            own = resumed.with_seed(seed) if later else resumed
            self._tasks[seed] = Task(replace(source, later=later), loaded.with_seed(seed), self.built, own)
            told = f" with seed {seed}" if seeds > 1 else ""
            self.labels |= {(name, seed): name + told for name in self.built.policies}
            self.own |= {name + told: own.of(name) for name in self.built.policies}
        self.total = self.built.job.iterations * len(self.labels)
        self._begun = ExitStack()
        self._stage: Path | None = None
        self._summaries: dict[int, RunSummary] = {}
        # Of seeds that are written only that they are done.
        self._results: dict[tuple[str, int], PolicyResult | None] = {}

    def begin(self, force: bool = False) -> list[str]:
        """Mark the folder as in use; return sentences on runs that resume and on checkpoints of other runs.

        `force` removes all checkpoints present.
        """
        # Of a report of an earlier run that was killed; it would take the place of this one's later.
        finish_replacement(self.folder, PAGE)
        there = [one for one in self.place.iterdir() if _A_CHECKPOINT.fullmatch(one.name)]
        if force:
            _unlink_files(there)
        done, iterations = {label: one.done() for label, one in self.own.items()}, self.built.job.iterations
        parts = [
            f"{label} {'done' if found[1] else f'after {found[0]:,} of {iterations:,} iterations'}"
            for label, found in done.items()
            if found is not None
        ]
        said = [f"goes on where it had stopped: {', '.join(parts)}"] if parts else []
        if not force and set(there) - set(self._own_files()):
            said.append(f"{self.place} has checkpoints of other runs, too, which stay; --force takes them away")
        file = self.folder / file_io.INCOMPLETE
        self._before = file.read_text(encoding="utf-8", errors="replace").rstrip() if file.is_file() else ""
        file_io.mark_incomplete(
            self.folder,
            "A run is at work here, or was killed: the same command goes on. Results beside this file are older ones.",
        )
        return said

    def run(self, progress: Callable[[str, float], None]) -> None:
        """Run all policies and keep their results. With several seeds, write the files of each seed when it ends."""
        for seed, name, outcome in run_policies(
            self._tasks, self._jobs, lambda seed, name, done: progress(self.labels[name, seed], done), self._on
        ):
            label = self.labels[name, seed]
            if isinstance(outcome, SimnetError):
                where = label.removeprefix(name).strip()
                self.errors[f"{where}: {outcome}" if where else str(outcome)] = None
                continue
            self._results[name, seed] = outcome
            if len(self._tasks) > 1 and len(self._of_seed(seed)) == len(self.built.policies):
                self._write_seed(seed)
        if self.errors:
            raise SimnetError("\n".join(self.errors))

    @property
    def missing(self) -> list[str]:
        """Labels of the runs without a result."""
        return [label for where, label in self.labels.items() if where not in self._results]

    @property
    def resumes(self) -> bool:
        """Whether checkpoints remain, from which the same command would resume."""
        return self.place.is_dir() and any(self.place.iterdir())

    def write(self, why: str = "") -> RunAnswer | None:
        """Replace earlier result files atomically by those of this run, and return its answer; None without results."""
        if not self._results:
            if not self.resumes:
                file_io.mark_incomplete(self.folder, self._before)
            return None
        stage, missing = self._staged(), self.missing
        with self._begun:
            done = ", ".join(label for label in self.labels.values() if label not in missing)
            file_io.mark_incomplete(stage, f"done: {done}\nmissing: {', '.join(missing)}" if missing else "")
            if len(self._tasks) > 1:
                answer = self._write_joint(stage)
            else:
                results = self._of_seed(self._loaded.config.seed)
                summary = fill(stage, self._loaded, self.built, results, self._source, report=self.report)
                answer = answers.run_answer(summary, results)
        if not missing:
            _unlink_files(self._own_files())
        return answer

    def _write_joint(self, stage: Path) -> RunAnswer:
        for seed in {seed for _, seed in self._results} - self._summaries.keys():
            self._write_seed(seed)
        _with_inputs(stage, self._loaded)
        ordered = {seed: self._summaries[seed] for seed in sorted(self._summaries)}
        lock = request(self._loaded, "run", len(self._tasks)).lock
        return answers.seeds_answer(*seeds.write_seeds(stage, ordered, lock, self.missing, report=self.report))

    def _write_seed(self, seed: int) -> None:
        place, results = self._staged() / SEEDS / str(seed), self._of_seed(seed)
        try:
            one = self._loaded.with_seed(seed)
            self._summaries[seed] = fill(place, one, one.build(), results)
            self._results |= dict.fromkeys(((name, seed) for name in results), None)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def _of_seed(self, seed: int) -> dict[str, PolicyResult]:
        """Return the existing results for a seed, by policy."""
        found = {name: self._results.get((name, seed)) for name in self.built.policies}
        return {name: one for name, one in found.items() if one is not None}

    def _staged(self) -> Path:
        """Return the folder in which new files wait until all are written."""
        if self._stage is None:
            self._stage = self._begun.enter_context(replace_files(self.folder, RUN))
        return self._stage

    def _own_files(self) -> list[Path]:
        """Return the checkpoint files of these runs."""
        own = {one.path.stem for one in self.own.values()}
        return [one for one in self.place.iterdir() if _A_CHECKPOINT.fullmatch(one.name) and one.name[:32] in own]


@contextmanager
def locked_folder(folder: Path, what: str, inside: str) -> Iterator[None]:
    """Create and lock a results folder with a subfolder `inside`; after the block, remove the subfolder if empty.

    InputError if another process, which the message calls `what`, works in the folder.
    """
    place = folder / inside
    with file_io.lock_folder(prepare_folder(folder), what, (inside,)):
        with file_io.explain_write_errors(place):
            place.mkdir(exist_ok=True)
        try:
            yield
        finally:
            # What is left may also be files of somebody else.
            with suppress(OSError):
                place.rmdir()


def _with_inputs(folder: Path, loaded: Scenario) -> None:
    """Copy a scenario's input files into its results folder."""
    file_io.write_files(folder, {name: path.read_bytes() for name, path in loaded.inputs().items()})


def fill(
    folder: Path,
    loaded: Scenario,
    built: Run,
    results: Mapping[str, PolicyResult],
    source: Source | None = None,
    *,
    report: bool = False,
) -> RunSummary:
    """Write a run's files, and the input files of its scenario, into an empty folder.

    If `source` is given, exchanges are also timed with other values of defaults, to name those that decide the fastest.
    """
    _with_inputs(folder, loaded)
    return write_run(
        folder,
        results,
        _run_facts(loaded, built, results, source),
        request(loaded, "run").lock,
        links=built.links,
        report=report,
        setting=assumptions.setting(loaded, built.job),
    )


def _run_facts(loaded: Scenario, built: Run, results: Mapping[str, PolicyResult], source: Source | None) -> RunFacts:
    """Return the parts of a run's summary other than iteration times, such as setting, memory and assumptions."""
    settled = rivals(built, results)
    judgements, evidence = judgement(loaded, built, settled)
    first = common_start(steady_part(one.iterations) for one in results.values())
    frames = {name: frame.iloc[first:] for name, frame in settled.items()}
    if keeps_to_one(built):
        whole = judgement(loaded, built, frames)[0] if first else judgements
        judgements = _with_iterations(frames, whole, judgements)
    said, each = worker_memory(built, results) if is_measurable(built.job, elsewhere=loaded.elsewhere) else (None, {})
    setup = {
        **setup_of(loaded, built, written=True, met=frames),
        "scenario": {"name": loaded.name},
        "seed": loaded.config.seed,
        "missing": [name for name in built.policies if name not in results],
        "prices": loaded.prices,
        "local_stages": {
            label: {stage: float(significant(seconds)) for stage, seconds in stages.items()}
            for one in results.values()
            for label, stages in one.local_stages.items()
        },
        "memory": said,
        "depends_on": None if source is None else _dependences(loaded, built, source),
        **evidence.figures(),
    }
    return run_facts(loaded, built, results, setup, judgements, samples=loaded.samples, held=each)


def setup_of(loaded: Scenario, built: Run, *, written: bool = False, met: Mapping[str, Columns] = {}) -> Fields:
    """Return summary entries on the setting of a job: network, device, strategy. Irrelevant entries are None.

    `written` and `met` are as for `simnet.studies.assumptions.assumed_text`.
    """
    job, own, calibration = built.job, built.job.strategy, calibration_of(loaded, built.job)
    network, deadline = job.network(0), {} if job.deadline is None else {"deadline_s": job.deadline}
    fixed = {name: one.candidates[0] for name, one in built.policies.items() if isinstance(one, Fixed)}
    own_exchanges = [replace(one, label=name) for name, one in fixed.items()]
    return {
        "stack": run_setup.stack_summary(network.stack, calibration),
        "sharing": None if network.sharing == MAX_MIN else run_setup.sharing_summary(network.sharing),
        "calibration": calibration,
        "device": _relevant_device(loaded, job),
        "computing": loaded.computing,
        "compute_time": None if loaded.compute_time is None else loaded.compute_time.figures(),
        "assumed": f"{assumptions.assumed_text(loaded, built, written=written, met=met)}.",
        "iterations_to_accuracy": assumptions.iterations_to_accuracy(job, fixed) or None,
        "overlap": assumptions.overlap_of(built, own_exchanges or assumptions.exchanges_of(loaded)),
        "barrier": job.barrier,
        "strategy": None if own is None else {"name": own.name, "steps": own.steps, **deadline},
        "warnings": [*loaded.warnings, *built.warnings, *assumptions.sample_warnings(job, built.policies.values())]
        or None,
    }


def _dependences(loaded: Scenario, built: Run, source: Source) -> list[Fields] | None:
    """Return default inputs that decide which exchange is fastest; None if policies switch or a strategy is given."""
    if not keeps_to_one(built) or len(built.policies) < 2 or built.job.strategy is not None:
        return None
    again = lambda fields: replace(source, overrides=[*source.overrides, *fields]).load()  # noqa: E731
    return assumptions.default_effects(again, loaded, built) or None


def keeps_to_one(built: Run) -> bool:
    """Return whether every policy uses one exchange throughout, except an oracle that knows times beforehand."""
    return all(isinstance(one, Fixed) for name, one in built.policies.items() if name != built.bound)


def _with_iterations(
    frames: Mapping[str, pd.DataFrame], found: Mapping[str, Fields], whole: dict[str, Fields]
) -> dict[str, Fields]:
    """Add each policy's interval of iteration time [s], probability of being fastest, and tie flag to `whole`."""
    for name, one in found.items():
        count = len(frames[name])
        low, high = (None if end is None else float(significant(end / count)) for end in (one["low_s"], one["high_s"]))
        whole[name] |= {
            "iteration_prediction_low_s": low,
            "iteration_prediction_high_s": high,
            "chance_of_fastest_iteration": one["chance_to_be_fastest"],
            "tied": one["tied"],
        }
    return whole


def _relevant_device(loaded: Scenario, job: Job) -> Fields | None:
    """Return a summary of a job's GPU or CPU; None if neither its kernel times nor its memory affect the job."""
    given = loaded.config.job
    if given.shardings and given.device_memory != "device" and job.device.beside_collectives is None:
        return None
    return assumptions.with_codes(job.device, loaded.config.exchanges.values(), job.source.workers)


def worker_memory(built: Run, policies: Iterable[str]) -> tuple[Fields, dict[str, Fields]]:
    """Return the assumptions about a worker's memory, and its memory under each policy."""
    job, known = with_shared_gradients(built.job), dict[str, WorkerMemory]()
    limit = job.device_memory
    said: Fields = {"assumed": cost_summary.memory_assumed(job), "limit_B": None if limit is None else round(limit)}
    each = {name: candidates_memory(job, built.policies[name].candidates, known) for name in policies}
    return said, {name: cost_summary.memory_summary(one, limit) for name, one in each.items()}


def calibration_of(loaded: Scenario, job: Job) -> Fields | None:
    """Return a summary of the measured cost model that times a job's collectives; None if the network has none.

    Its calls are those of the first exchange.
    """
    network, file = job.network(0), cluster_file(loaded.config.network.topology)
    if file is None or kind_of(path := Path(file)) != "fabric":
        return None
    from simnet.cost_models.calibration.cost_model_file import has_curves, load_cost_model

    if network.software is None:
        if not has_curves(path):
            return None
        model = load_cost_model(path)
        return {"file": path.name, "stack": model.stack, "used": False, "coverage": model.coverage, "calls": []}

    # Under a strategy, and of sharded steps, the calls are others than of a gradient, in pieces of their own.
    of_gradients = loaded.config.exchanges if job.strategy is None else {}
    asked = {label: first_exchange(job, candidate(label, one)) for label, one in of_gradients.items()}
    sent = {label: [(schedule, job.hosts) for schedule, _ in one.parts] for label, one in asked.items()}
    return calibration_summary(network, sent)


def _unlink_files(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()
