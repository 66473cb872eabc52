"""Runs of a scenario's policies in one or several processes, and hashes of the inputs that identify results."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from simnet.base import plugins
from simnet.base.errors import InputError, SimnetError
from simnet.base.processes import Pool, TaskOutcome
from simnet.interchange.chakra import trace_paths
from simnet.interchange.kinds import trace_prefix
from simnet.report.results import LOCK, versions
from simnet.scenario import Run, Scenario
from simnet.scenario.fields import is_file
from simnet.scenario.finding import Source
from simnet.scenario.schema import Output
from simnet.training.job.checkpoint import EVERY, Checkpoint
from simnet.training.job.record import PolicyResult
from simnet.training.job.running import run_in_step, workers_in_shards

_HEADING = re.compile(r"# (.+); request ([0-9a-f]{32})")


def identity(loaded: Scenario, what: str) -> str:
    """Return a hash of all that determines a scenario's results: fields, files, versions; `what` names the results.

    Examples
    --------
    >>> from simnet.scenario import load
    >>> one, same, other = (load("quickstart", [f"workers={n}"]) for n in (2, 2, 3))
    >>> identity(one, "x") == identity(same, "x"), identity(one, "x") == identity(other, "x")
    (True, False)
    """
    # A name that others have registered counts, whatever it stands for. Files of schemes are in the lock, by content.
    texts = re.findall(r'"([^"]*)"', json.dumps(loaded.config.model_dump(mode="json"), ensure_ascii=False))
    others = plugins.installed_under({*texts})
    parts = (what, loaded.lock(), *_recorded_hashes(loaded), *others, *_training_versions(loaded))
    return _parts_digest([versions(), *parts])


def _parts_digest(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


class Request(NamedTuple):
    """A request for results: the command and options in words, and a hash that identifies the request.

    `title` is for people; `digest` is a hash of the request, without page and versions; `lock` is the resolved scenario
    below a heading with the request and the recorded inputs by content.
    """

    title: str
    digest: str
    lock: str


def request(loaded: Scenario, command: str, *options: object) -> Request:
    """Return a command as a request, with a hash of the scenario and of the options that affect results.

    Examples
    --------
    >>> from simnet.scenario import load
    >>> one, page, other = (load("quickstart", [field]) for field in ("seed=2026", "output.report=false", "workers=3"))
    >>> request(one, "run").title, request(one, "run").digest == request(page, "run").digest
    ('simnet run quickstart, seed 2026', True)
    >>> request(one, "run").digest == request(other, "run").digest
    False
    """
    alike = replace(loaded, config=loaded.config.with_fields(output=Output()))
    recorded = list(_recorded_hashes(loaded))
    title = f"simnet {command} {loaded.name}, seed {loaded.config.seed}"
    found = _parts_digest([command, alike.lock(), *recorded, *map(repr, options)])
    heading = "".join(f"# {line}\n" for line in (f"{title}; request {found}", *(f"input {one}" for one in recorded)))
    return Request(title, found, heading + loaded.lock())


def place_of(out: Path | None, usual: Path, asked: Request, *, force: bool) -> Path:
    """Return the output folder for a request; it holds no results of another request unless `force` is true.

    If nobody asked for one and the usual one has results of another request, it is the first free one of ``usual-2``,
    ``usual-3`` and so on. InputError: `out` has results of another request, and `force` is false.
    """
    folder = usual if out is None else out
    there = _answered_request(folder)
    if force or there is None or there.digest == asked.digest:
        return folder
    if out is None:
        later = (usual.with_name(f"{usual.name}-{number}") for number in count(2))
        return next(one for one in later if (found := _answered_request(one)) is None or found.digest == asked.digest)
    raise InputError(f"has the results of another request, {there.title}; --force replaces them", file=f"--out {out}")


def _answered_request(folder: Path) -> Request | None:
    """Return the request whose results a folder holds; None for a folder without results."""
    try:
        with (folder / LOCK).open(encoding="utf-8", errors="replace") as stream:
            heading = stream.readline(1000)
    except OSError:
        return None
    found = _HEADING.fullmatch(heading.rstrip("\n"))
    return Request("which is not named", "", "") if found is None else Request(found[1], found[2], "")


def _recorded_hashes(loaded: Scenario) -> Iterator[str]:
    """Yield hashes of the contents of recorded inputs, of which the resolved scenario has only the paths."""
    traces = (one.trace for one in loaded.config.job.shardings.values() if one.trace is not None)
    files = [path for trace in traces for path in trace_paths(trace_prefix(trace))]
    for job in loaded.config.jobs:
        recorded = job.gradients.recorded
        if recorded is not None and is_file(recorded.trace):
            place = Path(recorded.trace)
            files += sorted(one for one in place.rglob("*") if one.is_file()) or [place] * place.is_file()
    # Large files are read once for all scenarios, as long as nobody touches them.
    yield from (_content_hash(str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in files)


@lru_cache(maxsize=4096)
def _content_hash(path: str, changed: int, size: int) -> str:
    with Path(path).open("rb") as stream:
        return f"{Path(path).name} {hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _training_versions(loaded: Scenario) -> Iterator[str]:
    """Yield the versions of Python and of training packages, if a job trains a model."""
    if any(job.gradients.train is not None for job in loaded.config.jobs):
        yield f"Python {platform.python_version()}"
        for package in ("scikit-learn", "torch"):
            try:
                yield f"{package} {version(package)}"
            except PackageNotFoundError:
                yield f"no {package}"


K = TypeVar("K")

Progress: TypeAlias = Callable[[str, int], None]
"""Callback with a policy's name and its number of finished iterations."""

Outcome: TypeAlias = PolicyResult | SimnetError
"""Outcome of a policy's run: its result or its error."""

# Starting processes takes about this long [s]; what is done sooner is done here.
_WORTH_PROCESSES = 3.0


@dataclass(frozen=True)
class Checkpoints:
    """Folder and interval [s] of checkpoints, and by policy the hash of its inputs, which names its checkpoint file."""

    folder: Path
    identities: Mapping[str, str]
    every: float = EVERY

    def with_seed(self, seed: int) -> Checkpoints:
        """Return the checkpoints of the same policies for another seed."""
        described = {name: f"{one} with seed {seed}" for name, one in self.identities.items()}
        hashed = {name: hashlib.sha256(one.encode()).hexdigest()[:32] for name, one in described.items()}
        return replace(self, identities=hashed)

    def of(self, policy: str, beside: int = 1) -> Checkpoint:
        """Return the checkpoint of a policy in a process that runs `beside` policies, including this one."""
        identity = self.identities[policy]
        return Checkpoint(self.folder / f"{identity}.npz", identity, self.every, beside)


def checkpoints(loaded: Scenario, folder: Path, every: float = EVERY) -> Checkpoints:
    """Return where a scenario's policies keep checkpoints; each policy is identified by a hash of its inputs."""
    identities = {name: identity(loaded.only([name]), f"rows of policy {name}") for name in loaded.config.policies}
    return Checkpoints(folder, identities, every)


@dataclass(frozen=True)
class Task:
    """A scenario to run: how other processes load it, the loaded scenario, the job and its policies, checkpoints."""

    source: Source
    loaded: Scenario
    run: Run
    checkpoints: Checkpoints | None = None


def run_policies(
    tasks: Mapping[K, Task], jobs: int | None, progress: Callable[[K, str, int], None], workers_on: str | None = None
) -> Iterator[tuple[K, str, Outcome]]:
    """Run the policies of scenarios, in parallel processes if that is faster; yield each outcome as it ends.

    Policies of a scenario run in one process and share its gradients, unless a processor would then be idle. Results
    depend neither on that nor on the number of processes: `jobs`, or one per processor, fewer if memory is short. With
    `workers_on`, the shards of `simnet.training.job.running.workers_in_shards`, policies run one by one.
    """
    efforts = {key: sum(map(task.run.effort, task.run.policies)) for key, task in tasks.items()}
    total = sum(efforts.values())
    wanted = min(jobs or os.cpu_count() or 1, sum(len(task.run.policies) for task in tasks.values()))
    at_once = min(task.loaded.at_once(wanted) for task in tasks.values())
    if workers_on is not None and jobs not in (None, 1):
        raise InputError("runs one policy after the other, not several at a time", file=f"--on {workers_on}")
    if workers_on is not None or at_once == 1 or (jobs is None and total < _WORTH_PROCESSES):
        for key, task in tasks.items():
            own = task.run.job.seed == task.loaded.config.seed
            run = task.run if own else task.loaded.build()
            with workers_in_shards(run.job, run.policies, workers_on) as job:
                for name, outcome in run_here(replace(run, job=job), partial(progress, key), task.checkpoints):
                    yield key, name, outcome
        return
    shares = {key: math.ceil(at_once * effort / total) if total else at_once for key, effort in efforts.items()}
    parts = [(key, names) for key, task in tasks.items() for names in task.run.in_step(shares[key], processes=at_once)]
    parts.sort(key=lambda part: -sum(map(tasks[part[0]].run.effort, part[1])))
    given = [(tasks[key].source, names, tasks[key].checkpoints) for key, names in parts]

    def report_iterations(number: int, done: Mapping[str, int]) -> None:
        for name, iterations in done.items():
            progress(parts[number][0], name, iterations)

    with Pool(at_once) as pool:
        for number, found in pool.each(_read_and_run, given, report_iterations):
            key, names = parts[number]
            yield from ((key, name, one) for name, one in _outcomes(names, found).items())


def run_here(
    run: Run, progress: Progress, checkpoints: Checkpoints | None = None, policies: Sequence[str] | None = None
) -> Iterator[tuple[str, Outcome]]:
    """Run policies in this process; yield the name and outcome of each policy."""
    for names in run.in_step(1) if policies is None else [policies]:
        kept = {} if checkpoints is None else {name: checkpoints.of(name, len(names)) for name in names}
        yield from run_in_step(
            run.job,
            {name: run.policies[name] for name in names},
            timeline=run.timeline,
            progress=progress,
            colocated=run.colocated,
            checkpoints=kept,
        )


def results_of(run: Run) -> dict[str, PolicyResult]:
    """Return the results of all policies by name, run in this process; raise the first SimnetError."""
    found = {}
    for name, outcome in run_here(run, lambda name, done: None):
        if isinstance(outcome, SimnetError):
            raise outcome
        found[name] = outcome
    return {name: found[name] for name in run.policies}


def _outcomes(names: Sequence[str], found: TaskOutcome) -> dict[str, Outcome]:
    """Return the outcome of each policy that a process ran; an error of the process is the outcome of all of them."""
    if found.kind == "done":
        outcomes: dict[str, Outcome] = found.content
        return outcomes
    text = f"polic{'y' if len(names) == 1 else 'ies'} {', '.join(map(repr, names))}"
    if found.kind == "failed":
        raise RuntimeError(f"{text} failed in its process:\n{found.content}")
    return dict.fromkeys(names, SimnetError(f"{text}: {found.content}" if found.kind == "lost" else found.content))


def _read_and_run(
    source: Source, policies: Sequence[str], checkpoints: Checkpoints | None, report: Callable[[dict[str, int]], None]
) -> dict[str, Outcome]:
    done = dict.fromkeys(policies, 0)

    def progress(name: str, count: int) -> None:
        done[name] = count
        report(done)

    return dict(run_here(source.load().build(), progress, checkpoints, policies))
