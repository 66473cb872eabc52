"""Conversion of message schedules and networks to files for other simulators (``simnet convert``).

What a format cannot carry is said with what was written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from simnet.base.errors import InputError, check_choice, refuse_values, suggest_names
from simnet.base.file_io import explain_write_errors, stage_files
from simnet.base.units import format_bytes
from simnet.interchange import chakra, goal, messages_csv, xmlfile
from simnet.interchange.simgrid_writing import write_platform
from simnet.schedule import Round, Schedule
from simnet.studies import options

if TYPE_CHECKING:
    from simnet.scenario import Scenario
    from simnet.scenario.network import Stages
    from simnet.sparsifier_models import Exchange

ScheduleFormat: TypeAlias = Literal["goal", "chakra", "csv"]
Routing: TypeAlias = Literal["Full", "Dijkstra"]
ROUTING: tuple[Routing, ...] = get_args(Routing)
"""Routing in exported SimGrid platforms: explicit routes of all host pairs, or SimGrid's shortest paths."""


class FileFormat(NamedTuple):
    """File format of an export: its name for users, size limits, and the function that writes files.

    A file has at most `largest` bytes, the limit of its reader; in Chakra a rank has its own file. A message takes at
    least `least` bytes of files, at sender and receiver together.
    """

    what: str
    largest: int
    least: int = 0
    write: Callable[[Schedule, Path], object] | None = None


def _write_traces(schedule: Schedule, folder: Path) -> None:
    folder.mkdir()
    chakra.write_chakra(schedule, folder / "trace")


FORMATS = {
    "goal": FileFormat("GOAL text", goal.MAX_BYTES, 46, goal.write_goal),
    "chakra": FileFormat("Chakra traces, one per rank", chakra.MAX_BYTES, 150, _write_traces),
    "csv": FileFormat("a table of messages", messages_csv.MAX_BYTES, 9, messages_csv.write_messages),
    "simgrid": FileFormat("a SimGrid platform", xmlfile.MAX_BYTES),
}

# What a folder that is replaced may hold.
_FILES_OF_FOLDERS = (".et", ".profile")


class Exported(NamedTuple):
    """Result of an export: a sentence on the files written, and sentences on what the format leaves out."""

    what: str
    missing: list[str]


class ExportedSchedule(NamedTuple):
    """Schedule to export, its name, and sentences on what the schedule leaves out of an exchange."""

    schedule: Schedule
    name: str
    missing: list[str]


def exchange(scenario: Scenario, label: str | None, iteration: int, *, compute: bool = False) -> ExportedSchedule:
    """Return the schedule of the exchange that a scenario makes in an iteration.

    Under a training strategy it is the sequence of all exchanges that begin in the iteration.
    """
    # Collectives and networks do without all that a job is made of.
    from simnet.policies import density_at
    from simnet.scenario.resolve import candidate
    from simnet.training.job.job import create_sparsifier, job_buckets
    from simnet.training.job.local_steps import strategy_syncs

    options.refuse_sharding(scenario, "what is exported is the exchange of one iteration's gradients")
    labels = scenario.config.exchanges
    if label is None and len(labels) > 1:
        raise InputError(f"exchange is missing: which of {scenario.name}? {suggest_names('', labels)}", file="--part")
    label = next(iter(labels)) if label is None else label
    check_choice(label, "exchange", labels, file="--part")
    job = scenario.build().job
    if not 0 <= iteration < job.iterations:
        said = f"must be in 0..{job.iterations - 1}, the iterations of {scenario.name}, got {iteration}"
        raise InputError(said, file="--iteration")
    one = candidate(label, labels[label])
    workers, parts, missing = job.source.workers, job_buckets(job, [one]), []
    if job.strategy is None:
        models = [create_sparsifier(one, part, job) for part in parts]
        exchanges: list[Exchange] = []
        for index in range(iteration + 1):
            gradients = job.source.gradients(index)
            exchanges = []
            for part, model in zip(parts, models, strict=True):
                model.density, model.iteration = density_at(job.density, index), index
                exchanges.append(model.exchange(gradients[:, part.entries]))
        sent = [(done.schedule, done.kernels) for done in exchanges]
    else:
        syncs = strategy_syncs(job, one, iteration)
        sent = [(sync.schedule, sync.kernels) for sync in syncs]
        if any(sync.delay for sync in syncs):
            missing.append("what is computed beside exchanges: they stand after all inner steps of the iteration")
    schedules = [schedule for schedule, _ in sent]
    if compute:
        computed = Round([], [], [], job.computes(iteration, np.arange(workers)))
        schedules = [Schedule(workers, [computed])]
        for schedule, kernels in sent:
            selecting, between = job.device.work(kernels, workers)
            schedules.append(schedule.with_work({0: selecting, **between}))
    else:
        missing.append("the time to compute, to select and to merge; --part compute adds it to the rounds")
    if len(parts) > 1:
        missing.append(f"overlap: the {len(parts)} buckets are exchanged one after another, after the backward pass")
    given = scenario.config.job
    names = {
        "the other jobs": scenario.config.other_jobs,
        "deaths of workers": given.deaths,
        "workers that come and go": given.absences or given.churn or given.deadline,
    }
    missing += [name for name, given in names.items() if given]
    if job.placement is not None and list(job.placement) != list(range(workers)):
        missing.append("placement: ranks are workers, not the hosts that they are on")
    schedule = Schedule(workers).concat(*schedules)
    return ExportedSchedule(schedule, f"{scenario.name}-{label}-{iteration}", missing)


def write_schedule(sent: ExportedSchedule, to: ScheduleFormat, target: Path, *, force: bool = False) -> Exported:
    """Write a schedule to a file (Chakra: a folder); return what was written and what was left out."""
    schedule, made = sent.schedule, FORMATS[to]
    assert made.write is not None

    def refuse_above(nbytes: float, least: str = "") -> None:
        if nbytes > made.largest:
            message = f"takes {least}{format_bytes(nbytes)}, more than {format_bytes(made.largest)}"
            raise InputError(message, file=sent.name)

    parts = schedule.n_ranks if to == "chakra" else 1
    refuse_above(made.least * schedule.n_messages / parts, "at least ")
    _refuse_target(target, folder=to == "chakra")
    with stage_files([target], force, _FILES_OF_FOLDERS) as folder:
        with refuse_values(file=sent.name):
            made.write(schedule, folder / target.name)
        written = folder / target.name
        refuse_above(max(one.stat().st_size for one in (written.iterdir() if written.is_dir() else [written])))
    what = f"{made.what}: {schedule.n_messages:,} messages of {schedule.n_ranks:,} ranks"
    what += f" in {len(schedule.rounds):,} rounds, {format_bytes(schedule.nbytes)}"
    return Exported(what, [*sent.missing, *_lost_of_schedule(schedule, to)])


def write_network(
    scenario: Scenario,
    target: Path,
    *,
    iteration: int = 0,
    duration: float | None = None,
    routing: Routing = "Full",
    force: bool = False,
) -> Exported:
    """Write a scenario's network as a SimGrid platform; return what was written and what was left out."""
    # Links without the curves of a calibrated cluster are those of its file.
    given = scenario.config.network.with_fields(stack="ideal")
    stages = network_of(replace(scenario, config=scenario.config.with_fields(network=given)))
    stage = stage_at(stages, iteration)
    network, weather = stages.networks[stage][1], stages.weather[stage]
    missing = _lost_of_network(scenario, stages)
    if network_of(scenario).networks[0][1].software is not None:
        missing.append("the stack and the curves of the calibrated cluster")
    _refuse_target(target)
    targets = [target]
    count = f"{network.routes.n_hosts:,} hosts, {len(network.routes.links):,} links"
    if duration == 0:
        raise InputError("duration must be > 0 s, got 0 s", file="--part")
    if weather and duration is None:
        raise InputError(
            f"duration is missing: how much of the weather of {scenario.name} to write, such as 'duration=10 min'",
            file="--part",
        )
    if weather:
        targets.append(target.with_name(f"{target.stem}_profiles"))
        missing.append(f"weather after {duration:g} s: from then on its last values hold")
    if routing == "Dijkstra":
        missing.append("the choice between equally short routes: SimGrid finds its own")
    with stage_files(targets, force, _FILES_OF_FOLDERS) as folder:
        try:
            write_platform(
                network.graph,
                folder / target.name,
                weather,
                duration=duration if weather else None,
                routing=routing,
                routes=network.routes,
                largest=FORMATS["simgrid"].largest,
            )
        except ValueError as error:
            message = str(error).replace("routing='Dijkstra'", "--part routing=Dijkstra")
            raise InputError(message, file=scenario.name) from None
    profiles = f", profiles of {len(weather):,} links" if weather else ""
    return Exported(f"a SimGrid platform: {count}{profiles}", missing)


def network_of(scenario: Scenario) -> Stages:
    """Return the networks that a scenario uses over its iterations; no job is built. InputError: they are invalid."""
    from simnet.scenario.loader import Findings
    from simnet.scenario.network import build_network

    found = Findings(scenario.document)
    stages = build_network(scenario.config, found)
    found.refuse()
    assert stages is not None
    return stages


def stage_at(stages: Stages, iteration: int) -> int:
    """Return the index in `stages.networks` of the network in use in an iteration."""
    return max(place for place, (first, _) in enumerate(stages.networks) if first <= iteration)


def _refuse_target(target: Path, *, folder: bool = False) -> None:
    """Raise InputError for a target that cannot be the name of a file or, if `folder`, of a folder."""
    if not target.name or target.name == "..":
        raise InputError("must be the name of a file", file="--out")
    with explain_write_errors(target, advice=""):
        if target.is_dir() and not folder:
            raise InputError("is a folder; name a file in it", file=str(target))
        if target.is_file() and folder:
            raise InputError("is a file; Chakra traces, one per rank, go to a folder", file=str(target))


def _lost_of_schedule(schedule: Schedule, to: ScheduleFormat) -> list[str]:
    """Return sentences on the content of a schedule that a file format cannot represent."""
    rounds = {id(one): one for one in schedule.rounds}.values()
    works = any(np.any(one.compute) for one in rounds)
    lost = []
    if to == "csv":
        if works:
            lost.append("computation: a table has messages only")
        active = max((int(max(one.src.max(), one.dst.max())) for one in rounds if len(one)), default=-1) + 1
        if active < schedule.n_ranks:
            lost.append(f"ranks {active} to {schedule.n_ranks - 1}, which have no messages; give --ranks on reading")
        return lost
    if any(not np.array_equal(one.nbytes, np.rint(one.nbytes)) for one in rounds):
        lost.append("fractions of a byte: sizes are rounded")
    goal = to == "goal"
    unit, name = (1e-9, "nanosecond") if goal else (1e-6, "microsecond")
    if works and any(np.any(np.abs(c - np.rint(c)) > 1e-6) for c in (np.asarray(one.compute) / unit for one in rounds)):
        lost.append(f"fractions of a {name}: times of computation are rounded")
    if any(one.phase for one in rounds):
        lost.append("phases: the format has none" if goal else "phases, except in the names of nodes")
    return lost


def _lost_of_network(scenario: Scenario, stages: Stages) -> list[str]:
    """Return sentences on the content of a scenario's network that no file format can represent."""
    given = scenario.config.network
    carried = ["topology", "weather", "faults", "engine", "placement"]
    if given.stack in (None, "ideal"):
        carried.append("stack")
    if given.routing in ("hash", "single"):
        carried.append("routing")
    lost = []
    others: dict[str, Any] = {name: getattr(given, name) for name in type(given).model_fields if name not in carried}
    different = [name for name, value in others.items() if value != type(given).model_fields[name].default]
    if different:
        lost.append(f"{', '.join(different)} of the network, which the format has no place for")
    if scenario.config.other_jobs:
        lost.append("the other jobs")
    workers = scenario.config.workers
    if stages.placement != list(range(workers)):
        lost.append(f"placement: worker 0 is on host {stages.placement[0]}, and so on")
    if len(stages.networks) > 1:
        lost.append("weather by iteration: one network is written, that of --part iteration=N")
    return lost
