"""Runs of a scenario's policies into one results folder, with resumption.

While they run, the folder has checkpoints, of policies that are done and of those under way. The same command resumes
from them after a kill, Ctrl-C or an error; when all is done they go.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simnet.base import writing
from simnet.base.arrays import significant
from simnet.base.errors import SimnetError
from simnet.base.rng import stream
from simnet.base.writing import finish_replacement, replace_files
from simnet.interchange import kind_of
from simnet.network import MAX_MIN
from simnet.policies import Fixed, density_at
from simnet.report import cost_summary, run_setup, seeds
from simnet.report.columns import Fields
from simnet.report.results import PAGE, RUN, SEEDS, prepare_folder, write_run
from simnet.report.run_setup import calibration_summary
from simnet.report.run_summary import RunFacts, RunSummary
from simnet.scenario import Run, Scenario
from simnet.scenario.resolve import candidate
from simnet.scenario.runner import request
from simnet.scenario.topology_parts import cluster_file
from simnet.studies import assumptions
from simnet.studies.job_totals import judgement, ranges_of, rivals
from simnet.training.job.checkpoint import EVERY, Checkpoint
from simnet.training.job.job import Job, create_sparsifier, gradient_buckets, job_buckets
from simnet.training.job.memory import WorkerMemory, candidates_memory, is_measurable, with_shared_gradients
from simnet.training.job.record import PolicyResult
from simnet.training.job.steady import common_start, steady_part

if TYPE_CHECKING:
    import pandas as pd

    from simnet.cost_models.calibration.software import CallPrediction
    from simnet.report.drawing import Plot
from simnet.scenario.finding import Source
from simnet.scenario.runner import Outcome, Progress, Task, checkpoints, run_policies

CHECKPOINTS = "checkpoints"
"""Name of the checkpoint folder in a results folder."""

_A_CHECKPOINT = re.compile(r"[0-9a-f]{32}\.(npz|[a-z]+\.rows)")


class Batch:
    """Runs of a scenario's policies under consecutive seeds, with their checkpoints."""

    def __init__(self, source: Source, loaded: Scenario, folder: Path, seeds: int = 1) -> None:
        self.folder, self.place = folder, folder / CHECKPOINTS
        self._before = ""
        self.built = loaded.build()
        self._tasks: dict[int, Task] = {}
        self.labels: dict[str, tuple[str, int]] = {}
        """Policy and seed of each run by label."""
        resumed = checkpoints(loaded, self.place, EVERY)
        for later in range(seeds):
            seed = loaded.config.seed + later
            own = resumed.with_seed(seed) if later else resumed
            self._tasks[seed] = Task(replace(source, later=later), loaded.with_seed(seed), self.built, own)
            told = f" with seed {seed}" if seeds > 1 else ""
            self.labels |= {name + told: (name, seed) for name in self.built.policies}
        self._label = {where: label for label, where in self.labels.items()}
        self.own = {label: self._checkpoint(*where) for label, where in self.labels.items()}
        """Checkpoint of each run by label."""
        self.iterations = self.built.job.iterations

    def _checkpoint(self, name: str, seed: int) -> Checkpoint:
        kept = self._tasks[seed].checkpoints
        assert kept is not None
        return kept.of(name)

    def resumed(self) -> Iterator[str]:
        """Yield sentences on the resumed runs, and on checkpoints of other runs."""
        done = {label: one.done() for label, one in self.own.items()}
        parts = [
            f"{label} {'done' if found[1] else f'after {found[0]:,} of {self.iterations:,} iterations'}"
            for label, found in done.items()
            if found is not None
        ]
        if parts:
            yield f"goes on where it had stopped: {', '.join(parts)}"
        own = {one.path.stem for one in self.own.values()}
        if any(_A_CHECKPOINT.fullmatch(one.name) and one.name[:32] not in own for one in self.place.iterdir()):
            yield f"{self.place} has checkpoints of other runs, too, which stay; --force takes them away"

    def outcomes(self, jobs: int | None, progress: Progress, on: str | None = None) -> Iterator[tuple[str, Outcome]]:
        """Run all policies; yield each label with its outcome when it ends."""
        for seed, name, outcome in run_policies(
            self._tasks, jobs, lambda seed, name, done: progress(self._label[name, seed], done), on
        ):
            label = self._label[name, seed]
            where = label.removeprefix(name).strip()
            said = f"{where}: " if where else ""
            yield label, SimnetError(said + str(outcome)) if isinstance(outcome, SimnetError) else outcome

    def mark_begun(self) -> None:
        """Write a marker file: a run is in progress in the folder, or was killed."""
        file = self.folder / writing.INCOMPLETE
        self._before = file.read_text(encoding="utf-8", errors="replace").rstrip() if file.is_file() else ""
        writing.mark_incomplete(
            self.folder,
            "A run is at work here, or was killed: the same command goes on. Results beside this file are older ones.",
        )

    def mark_nothing(self) -> None:
        """Restore the marker file of the previous run, if no checkpoint was written."""
        if not any(self.place.iterdir()):
            writing.mark_incomplete(self.folder, self._before)

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints of these runs."""
        own = {one.path.stem for one in self.own.values()}
        _unlink_files(one for one in self.place.iterdir() if _A_CHECKPOINT.fullmatch(one.name) and one.name[:32] in own)

    @contextmanager
    def alone(self, force: bool) -> Iterator[None]:
        """Create and lock the output folder and its checkpoint folder for the block.

        `force` removes all checkpoints present. Raises InputError if another run uses the folder.
        """
        with writing.lock_folder(prepare_folder(self.folder), "run", (CHECKPOINTS,)):
            # Of a report of an earlier run that was killed; it would take the place of this one's later.
            finish_replacement(self.folder, PAGE)
            with writing.explain_write_errors(self.place):
                self.place.mkdir(exist_ok=True)
            if force:
                _unlink_files(one for one in self.place.iterdir() if _A_CHECKPOINT.fullmatch(one.name))
            try:
                yield
            finally:
                # If nothing is left in it, which may also be files of somebody else.
                with suppress(OSError):
                    self.place.rmdir()


class Seeds:
    """Results of a run under several seeds: a folder per seed, and a joint summary."""

    def __init__(self, folder: Path, loaded: Scenario, lock: str, *, report: bool) -> None:
        self._folder, self._loaded, self._lock, self._report = folder, loaded, lock, report
        self._begun = ExitStack()
        self._stage: Path | None = None
        self._waiting: dict[int, dict[str, PolicyResult]] = {}
        self.summaries: dict[int, RunSummary] = {}
        self.joint: Fields = {}

    def take(self, name: str, seed: int, result: PolicyResult) -> None:
        """Add the result of a policy; after the last policy of a seed, write the seed's folder."""
        if self._stage is None:
            self._stage = self._begun.enter_context(replace_files(self._folder, RUN))
        results = self._waiting.setdefault(seed, {})
        results[name] = result
        if len(results) == len(self._loaded.config.policies):
            self._write(seed)

    def figures(self) -> list[Plot]:
        """Return the figures of the joint summary, once it is written."""
        from simnet.report.figures import seed_comparison

        return seed_comparison(self.joint, seeds.by_seed(self.summaries))

    def write(self, done: Sequence[str], missing: Sequence[str]) -> Fields:
        """Write the remaining seeds and the joint summary, publish all files atomically, and return the summary."""
        assert self._stage is not None
        with self._begun:
            for seed in list(self._waiting):
                self._write(seed)
            _with_inputs(self._stage, self._loaded)
            ordered = {seed: self.summaries[seed] for seed in sorted(self.summaries)}
            mark(self._stage, done, missing)
            self.joint = seeds.write_seeds(self._stage, ordered, self._lock, missing, report=self._report)
        return self.joint

    def _write(self, seed: int) -> None:
        one = self._loaded.with_seed(seed)
        assert self._stage is not None
        place = self._stage / SEEDS / str(seed)
        try:
            self.summaries[seed] = fill(place, one, one.build(), self._waiting.pop(seed), report=False)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise


def _with_inputs(folder: Path, loaded: Scenario) -> None:
    """Copy a scenario's input files into its results folder."""
    for name, path in loaded.inputs().items():
        writing.write_files(folder, {name: path.read_bytes()})


def write(
    folder: Path,
    loaded: Scenario,
    built: Run,
    results: Mapping[str, PolicyResult],
    missing: Sequence[str],
    source: Source,
    *,
    report: bool,
) -> RunSummary:
    """Write a run's files, replacing those of an earlier run atomically."""
    with replace_files(folder, RUN) as stage:
        mark(stage, list(results), missing)
        return fill(stage, loaded, built, results, source, report=report)


def fill(
    folder: Path,
    loaded: Scenario,
    built: Run,
    results: Mapping[str, PolicyResult],
    source: Source | None = None,
    *,
    report: bool,
) -> RunSummary:
    """Write a run's files and its scenario's input files into an empty folder.

    With a `source` the defaults that affect the fastest exchange are determined, too.
    """
    _with_inputs(folder, loaded)
    done = {name: results[name] for name in built.policies if name in results}
    return write_run(
        folder,
        done,
        _run_facts(loaded, built, done, source),
        request(loaded, "run").lock,
        links=built.links,
        report=report,
        setting=setting(loaded, built.job),
    )


def _run_facts(loaded: Scenario, built: Run, results: Mapping[str, PolicyResult], source: Source | None) -> RunFacts:
    """Return what the summary of a run says besides iteration times: setting, memory, judgements, assumptions."""
    trained, own = loaded.config.job.gradients.train, built.job.strategy
    settled = rivals(built, results)
    judgements, evidence = judgement(loaded, built, settled)
    if keeps_to_one(built):
        judgements = _with_iterations(loaded, built, results, settled, judgements)
    network, calibration = built.job.network(0), calibration_of(loaded, built.job)
    said, each = worker_memory(built, results) if is_measurable(built.job, elsewhere=loaded.elsewhere) else (None, {})
    deadline = {} if built.job.deadline is None else {"deadline_s": built.job.deadline}
    setup = {
        "sharing": None if network.sharing == MAX_MIN else run_setup.sharing_summary(network.sharing),
        "calibration": calibration,
        "device": _relevant_device(loaded, built.job),
        "computing": loaded.computing,
        "compute_time": None if loaded.compute_time is None else loaded.compute_time.figures(),
        "assumed": f"{assumptions.assumed_text(loaded, built, written=True)}.",
        "overlap": assumptions.overlap_of_policies(loaded, built),
        "barrier": built.job.barrier,
        "strategy": None if own is None else {"name": own.name, "steps": own.steps, **deadline},
        "prices": loaded.prices,
        "local_stages": {
            label: {stage: float(significant(seconds)) for stage, seconds in stages.items()}
            for one in results.values()
            for label, stages in one.local_stages.items()
        },
        "memory": said,
        "warnings": [*loaded.warnings, *assumptions.sample_warnings(built.job, built.policies.values())] or None,
        "depends_on": None if source is None else _dependences(loaded, built, source),
        **evidence.figures(),
    }
    return RunFacts(
        scenario=loaded.name,
        seed=loaded.config.seed,
        workers=built.job.source.workers,
        stack=run_setup.stack_summary(network.stack, calibration),
        setup=setup,
        samples=loaded.samples,
        held=each,
        judgements=judgements,
        bound=built.bound,
        missing=[name for name in built.policies if name not in results],
        target=None if trained is None else trained.target,
        reference=next(iter(built.policies)),
        starts=ranges_of(built, results),
    )


def _dependences(loaded: Scenario, built: Run, source: Source) -> list[Fields] | None:
    """Return the defaults that affect the fastest exchange; None under a strategy or switching policies."""
    if not keeps_to_one(built) or len(built.policies) < 2 or built.job.strategy is not None:
        return None
    again = lambda fields: replace(source, overrides=[*source.overrides, *fields]).load()  # noqa: E731
    return assumptions.default_effects(again, loaded, built) or None


def keeps_to_one(built: Run) -> bool:
    """Return whether each policy, except the lower bound, uses a single exchange."""
    return all(isinstance(one, Fixed) for name, one in built.policies.items() if name != built.bound)


def _with_iterations(
    loaded: Scenario,
    built: Run,
    results: Mapping[str, PolicyResult],
    settled: Mapping[str, pd.DataFrame],
    whole: dict[str, Fields],
) -> dict[str, Fields]:
    """Return the judgements of whole jobs, extended by interval and tie of the mean steady iteration."""
    first = common_start(steady_part(one.iterations) for one in results.values())
    frames = {name: frame.iloc[first:] for name, frame in settled.items()}
    found = judgement(loaded, built, frames)[0] if first else whole
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
    """Return the summary of a job's device; None if neither its kernels nor its memory matter."""
    given = loaded.config.job
    if given.shardings and given.device_memory != "device" and job.device.beside_collectives is None:
        return None
    return assumptions.with_codes(job.device, loaded.config.exchanges.values(), job.source.workers)


def worker_memory(built: Run, policies: Iterable[str]) -> tuple[Fields, dict[str, Fields]]:
    """Return the memory of a worker under each policy, and the assumptions."""
    job, known = with_shared_gradients(built.job), dict[str, WorkerMemory]()
    limit = job.device_memory
    said: Fields = {"assumed": cost_summary.memory_assumed(job), "limit_B": None if limit is None else round(limit)}
    each = {name: candidates_memory(job, built.policies[name].candidates, known) for name in policies}
    return said, {name: cost_summary.memory_summary(one, limit) for name, one in each.items()}


def setting(loaded: Scenario, job: Job) -> dict[str, str]:
    """Return model, workers and density as texts for the report."""
    entries, model = f"{job.source.true_parameters:,} parameters", loaded.config.job.model
    if job.steps is not None:
        ways = [one.way or f"trace {one.trace}" for one in loaded.config.job.shardings.values()]
        trained = {} if model is None else {"model": f"{Path(model).name}, {entries}"}
        return {**trained, "workers": str(job.source.workers), "sharding": ", ".join(dict.fromkeys(ways))}
    first, last = (f"{100 * density_at(job.density, at):.3g} %" for at in (0, job.iterations - 1))
    parts = gradient_buckets(job.source, job.overlap)
    whole = job.source.scale * sum(one.entries.stop - one.entries.start for one in parts if one.dense)
    share = f"{100 * whole / job.source.true_parameters:.2g} %"
    dense = f"{sum(one.dense for one in parts)} of {len(parts)} buckets, {share} of the gradient"
    return {
        "model": entries if model is None else f"{Path(model).name}, {entries}",
        "workers": str(job.source.workers),
        "density": first if first == last else f"{first} to {last}",
        **({"stays dense": dense} if whole else {}),
    }


def calibration_of(loaded: Scenario, job: Job) -> Fields | None:
    """Return the summary of a calibrated cluster; None for other networks.

    Its calls are those of an exchange of random gradients at the job's first density.
    """
    network, file = job.network(0), cluster_file(loaded.config.network.topology)
    if file is None or kind_of(path := Path(file)) != "fabric":
        return None
    from simnet.cost_models.calibration.cost_model_file import has_curves, load_cost_model
    from simnet.cost_models.calibration.software import CalibratedSoftware

    if not isinstance(network.software, CalibratedSoftware):
        if not has_curves(path):
            return None
        model = load_cost_model(path)
        return {
            "file": path.name,
            "stack": model.stack,
            "used": False,
            "coverage": model.coverage,
            "calls": [],
        }
    exchanges: dict[str, list[CallPrediction]] = {}
    # Under a strategy, and of sharded steps, the calls are others than of a gradient, in pieces of their own.
    of_gradients = loaded.config.exchanges if job.strategy is None else {}
    for label, exchange in of_gradients.items():
        one = candidate(label, exchange)
        for bucket in job_buckets(job, [one]):
            sparsifier = create_sparsifier(one, bucket, job)
            sparsifier.density = density_at(job.density, 0)
            shape = job.source.workers, bucket.entries.stop - bucket.entries.start
            gradients = stream(job.seed, "calls").standard_normal(shape, dtype=np.float32)
            exchanges.setdefault(label, []).extend(
                network.software.known(sparsifier.exchange(gradients).schedule, job.hosts)
            )
    return calibration_summary(network.software, exchanges)


def mark(folder: Path, done: Sequence[str], missing: Sequence[str]) -> None:
    """Write a marker file with the finished and missing runs; remove it if none is missing."""
    writing.mark_incomplete(folder, f"done: {', '.join(done)}\nmissing: {', '.join(missing)}" if missing else "")


def _unlink_files(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink()
