"""Runs the policies of a scenario, in this process or side by side in processes of their own.

Each process reads the scenario itself, so the results do not depend on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from simnet.base.errors import SimnetError
from simnet.base.processes import Pool
from simnet.job import EVERY, Checkpoint, PolicyResult, run_policy
from simnet.scenario import Run, Scenario, load
from simnet.scenario.identity import identity

Progress: TypeAlias = Callable[[str, int], None]
"""Called with the name of a policy and the number of its iterations that are done."""

Outcome: TypeAlias = PolicyResult | SimnetError
"""What became of a policy: its result, or why it has none."""

# Starting processes takes about this long [s]; what is done sooner is done here.
_WORTH_PROCESSES = 3.0


@dataclass(frozen=True)
class Source:
    """What a process needs to read a scenario for itself.

    Parameters
    ----------
    path, overrides, seed
        As for `simnet.scenario.load`.
    policies : sequence of str, optional
        Only these of its policies.
    """

    path: str | Path
    overrides: Sequence[str] = ()
    seed: int | None = None
    policies: Sequence[str] | None = None

    def load(self) -> Scenario:
        """Read the scenario."""
        loaded = load(self.path, self.overrides, self.seed)
        return loaded if self.policies is None else loaded.only(self.policies)


@dataclass(frozen=True)
class Checkpoints:
    """Where the policies of a scenario leave their checkpoints.

    Parameters
    ----------
    folder : Path
        The folder, which is there when they are written.
    identities : mapping of str to str
        What the result of each policy depends on; see `simnet.scenario.identity`.
    every : float
        Seconds between two of a policy.
    """

    folder: Path
    identities: Mapping[str, str]
    every: float = EVERY

    def of(self, policy: str) -> Checkpoint:
        """Return the checkpoint of a policy."""
        identity = self.identities[policy]
        return Checkpoint(self.folder / f"{identity}.safetensors", identity, self.every)


def checkpoints(loaded: Scenario, folder: Path, every: float = EVERY) -> Checkpoints:
    """Return where the policies of a scenario have their checkpoints, of which each is for itself.

    Parameters
    ----------
    loaded, folder, every
        The scenario, and as of `Checkpoints`.
    """
    identities = {name: identity(loaded.only([name]), f"policy {name}") for name in loaded.config.policies}
    return Checkpoints(folder, identities, every)


def run_policies(
    source: Source,
    loaded: Scenario,
    run: Run,
    jobs: int | None,
    progress: Progress,
    checkpoints: Checkpoints | None = None,
) -> Iterator[tuple[str, Outcome]]:
    """Run the policies of a scenario, side by side where that is worth it; yield each, when it ends, with its outcome.

    Parameters
    ----------
    source : Source
        The scenario, for processes.
    loaded : Scenario
        The same, read.
    run : Run
        The same, built.
    jobs : int, optional
        How many at a time; one per processor when omitted. Fewer if all would not fit the memory.
    progress : callable
        Called now and then.
    checkpoints : Checkpoints, optional
        From where policies resume, and where they leave what they have done.
    """
    at_once = loaded.at_once(min(jobs or os.cpu_count() or 1, len(run.policies)))
    if at_once == 1 or (jobs is None and sum(map(run.effort, run.policies)) < _WORTH_PROCESSES):
        yield from run_here(run, progress, checkpoints)
        return
    longest_first = sorted(run.policies, key=run.effort, reverse=True)
    yield from run_apart(source, longest_first, at_once, progress, checkpoints)


def run_here(run: Run, progress: Progress, checkpoints: Checkpoints | None = None) -> Iterator[tuple[str, Outcome]]:
    """Run one policy after the other in this process; yield each with its outcome.

    Parameters
    ----------
    run, progress, checkpoints
        As for `run_policies`.
    """
    for name in run.policies:
        try:
            yield name, _run(run, name, checkpoints, partial(progress, name))
        except SimnetError as error:
            yield name, error


def results_of(run: Run) -> dict[str, PolicyResult]:
    """Return the results of all policies, run in this process one after the other; raise the SimnetError of one."""
    found = {}
    for name, outcome in run_here(run, lambda name, done: None):
        if isinstance(outcome, SimnetError):
            raise outcome
        found[name] = outcome
    return found


def run_apart(
    source: Source, policies: Sequence[str], jobs: int, progress: Progress, checkpoints: Checkpoints | None = None
) -> Iterator[tuple[str, Outcome]]:
    """Run policies in other processes, at most `jobs` at a time; yield each, when it ends, with its outcome.

    Parameters
    ----------
    source, jobs, progress, checkpoints
        As for `run_policies`.
    policies : sequence of str
        Which of its policies, the ones that take longest first.

    Raises
    ------
    RuntimeError
        If a policy failed otherwise than with a `SimnetError`; the message holds the traceback.
    """
    tasks = [(source, name, checkpoints) for name in policies]
    with Pool(jobs) as pool:
        for number, outcome in pool.each(_read_and_run, tasks, lambda number, done: progress(policies[number], done)):
            name = policies[number]
            if outcome.kind == "failed":
                raise RuntimeError(f"policy {name!r} failed in its process:\n{outcome.content}")
            if outcome.kind == "done":
                yield name, outcome.content
            else:
                lost = f"policy {name!r}: " if outcome.kind == "lost" else ""
                yield name, SimnetError(f"{lost}{outcome.content}")


def _read_and_run(
    source: Source, policy: str, checkpoints: Checkpoints | None, report: Callable[[int], None]
) -> PolicyResult:
    return _run(source.load().build(), policy, checkpoints, report)


def _run(run: Run, name: str, checkpoints: Checkpoints | None, report: Callable[[int], None]) -> PolicyResult:
    return run_policy(
        run.job,
        name,
        run.policies[name],
        timeline=run.timeline,
        progress=report,
        colocated=run.colocated,
        checkpoint=None if checkpoints is None else checkpoints.of(name),
    )
