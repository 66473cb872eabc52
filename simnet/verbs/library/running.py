"""`simnet.run`: the policies of a scenario side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.table import Table

from simnet.base.errors import InputError, SimnetError, suggest_names
from simnet.base.units import format_seconds
from simnet.report import console, figures, sentences
from simnet.report.drawing import Plot
from simnet.report.results import joined, rounded
from simnet.report.run_summary import RunSummary, learning_columns, with_exploration
from simnet.report.tables import ReprHtml
from simnet.scenario import Run, Scenario
from simnet.scenario.runner import Task, run_policies
from simnet.scenario.source import Source
from simnet.studies import runs
from simnet.training.job.record import PolicyResult
from simnet.verbs.library.asking import Fields, Share, overrides, verb


@dataclass(frozen=True, eq=False, repr=False)
class RunResult(ReprHtml):
    """What came of the policies of a scenario.

    Parameters
    ----------
    scenario : Scenario
        The scenario, with all that was set.
    built : Run
        Its job and its policies.
    policies : mapping of str to PolicyResult
        What each left, in the order of the scenario: iterations, workers, messages.
    summary : RunSummary
        What summary.json holds: who won, times, bytes, regret, versions.
    """

    scenario: Scenario
    built: Run
    policies: Mapping[str, PolicyResult]
    summary: RunSummary

    def __repr__(self) -> str:
        winner = self.summary["winner"]
        first = f", {winner['policy']} first" if winner is not None else ""
        return f"RunResult({self.scenario.name}, {len(self.policies)} policies{first})"

    def to_pandas(self) -> pd.DataFrame:
        """Return the iterations, a row per policy and iteration: what iterations.csv holds."""
        return rounded(joined(self.policies, lambda result: result.iterations))

    def workers(self) -> pd.DataFrame:
        """Return a row per policy, iteration and worker: what workers.parquet holds."""
        return joined(self.policies, lambda result: result.workers)

    def plots(self) -> dict[str, Plot]:
        """Return all figures of the report, by name; none where no iteration was done."""
        iterations = joined(self.policies, lambda result: result.iterations)
        if not len(with_exploration(iterations)):
            return {}
        summary = self.summary
        drawn = figures.render(iterations, summary["bound"], learning_columns(summary))
        return {one.name: one for one in drawn}

    def plot(self, name: str = "iteration_time") -> Plot:
        """Return a figure of the report.

        Parameters
        ----------
        name : str
            Which: ``iteration_time``, ``cumulative_time``, ``breakdown``, ``choices``, ...

        Raises
        ------
        InputError
            If there is none of that name.
        """
        found = self.plots()
        if name not in found:
            raise InputError(f"there is no figure {name!r}; {suggest_names(name, found)}")
        return found[name]

    def table(self) -> Table:
        """Return a row per policy, the fastest first."""
        return console.summary_table(self.summary)

    def sentences(self) -> list[str]:
        """Return who won, and on what it ran."""
        return [
            sentences.sentence(self.summary),
            *console.rates(self.summary),
            *console.ran_on(self.summary),
            *sentences.what_happened(self.summary),
        ]

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Write the folder that `simnet run` writes, with the report; return where that is.

        Parameters
        ----------
        folder : path
            Made when it is not there; earlier results of the same request in it are replaced.
        force : bool
            Whether those of another request go.

        Raises
        ------
        InputError
            If the folder has results of another request, or something cannot be written.
        """
        from simnet.report.results import prepare_folder
        from simnet.scenario.identity import place_of, request

        asked = request(self.scenario, "run")
        place = prepare_folder(place_of(Path(folder), Path(folder), asked, force=force))
        runs.write(place, self.scenario, self.built, self.policies)
        return place / ("report.html" if self.scenario.config.output.report else "summary.json")

    @property
    def seconds(self) -> dict[str, float]:
        """The mean time of an iteration of each policy [s], the fastest first."""
        means = {name: float(one.iterations["iteration_s"].mean()) for name, one in self.policies.items()}
        return dict(sorted(means.items(), key=lambda one: one[1]))

    def __str__(self) -> str:
        each = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in self.seconds.items())
        return f"{self.scenario.name}: {each} an iteration"


@verb
def run(
    scenario: str | Path,
    *,
    compute: float | str | None = None,
    batch: int | None = None,
    set: Fields = (),
    stack: str | None = None,
    seed: int | None = None,
    policies: Sequence[str] | str | None = None,
    jobs: int | None = 1,
    progress: Share | None = None,
) -> RunResult:
    """Run the policies of a scenario side by side, as `simnet run` does, and keep the results here.

    Parameters
    ----------
    scenario : str or Path
        A YAML file, or the name of a scenario that comes with simnet.
    compute : float or str, optional
        Forward and backward of an iteration, as ``"120 ms"`` or seconds; that of the model on the device when omitted.
    batch : int, optional
        Samples of a worker in an iteration.
    set : mapping of str to value, or sequence of str
        Fields of the scenario with other values, as ``{"job.iterations": 20}`` or ``["job.iterations=20"]``.
    stack : str, optional
        How messages are sent: a name of `simnet list stacks`.
    seed : int, optional
        In place of that of the scenario.
    policies : sequence of str, optional
        Only these of its policies.
    jobs : int, optional
        How many processes; one per processor if None. 1, the default, is this process. Never alters results.
    progress : callable, optional
        Called now and then with the share that is done, in [0, 1].

    Raises
    ------
    SimnetError
        If something is wrong with the scenario, or a policy cannot go on.

    Examples
    --------
    >>> from simnet import run
    >>> found = run("quickstart", set={"job.iterations": 2}, policies=["AG", "ART-ring"])
    >>> found
    RunResult(quickstart, 2 policies, AG first)
    >>> found.to_pandas()[["policy", "iteration"]].to_numpy().tolist()
    [['AG', 0], ['AG', 1], ['ART-ring', 0], ['ART-ring', 1]]
    """
    wanted = policies.split(",") if isinstance(policies, str) else policies
    source = Source(scenario, overrides(set, stack, compute, batch), seed, wanted)
    loaded = source.load()
    built = loaded.build()
    results = results_of({"": Task(source, loaded, built)}, jobs, progress)
    ordered = {name: results["", name] for name in built.policies}
    return RunResult(loaded, built, ordered, runs.summary(loaded, built, ordered))


def results_of(
    tasks: Mapping[str, Task], jobs: int | None, progress: Share | None
) -> dict[tuple[str, str], PolicyResult]:
    """Return the result of each policy of scenarios, by the key of the scenario and its name.

    Parameters
    ----------
    tasks : mapping of str to Task
        The scenarios.
    jobs, progress
        As of `run`.

    Raises
    ------
    SimnetError
        The first with which a policy ended.
    """
    done: dict[tuple[str, str], int] = {}
    total = sum(task.run.job.iterations * len(task.run.policies) for task in tasks.values())

    def told(key: str, name: str, iterations: int) -> None:
        done[key, name] = iterations
        if progress is not None:
            progress(min(sum(done.values()) / total, 1.0))

    found = {}
    for key, name, outcome in run_policies(tasks, jobs, told):
        if isinstance(outcome, SimnetError):
            raise outcome
        found[key, name] = outcome
    return found
