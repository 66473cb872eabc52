"""`simnet.compare`: schemes on one trace and network, for several numbers of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from rich.table import Table

from simnet.base.errors import InputError
from simnet.report import paired
from simnet.report.comparison import comparison_table, draw, headline
from simnet.report.drawing import Plot
from simnet.report.tables import ReprHtml
from simnet.scenario.runner import Task
from simnet.studies import assumptions, comparison, options
from simnet.studies.samples import sample_warnings
from simnet.verbs.library.asking import Fields, Share, overrides, quantity, verb, words
from simnet.verbs.library.running import results_of


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(ReprHtml):
    """Schemes side by side.

    Parameters
    ----------
    name, title : str
        The scenario, and what stands above the table.
    rows : DataFrame
        A row per exchange, number of workers and seed: what compare.csv holds; see `simnet.report.comparison.COLUMNS`.
    held : tuple of str
        What is assumed of memory, and which exchanges do not fit the device.
    """

    name: str
    title: str
    rows: pd.DataFrame
    held: tuple[str, ...] = ()

    def __repr__(self) -> str:
        workers = ", ".join(map(str, sorted(self.rows["workers"].unique())))
        return f"Comparison({self.name}, {self.rows['exchange'].nunique()} exchanges, workers {workers})"

    @property
    def _shown(self) -> pd.DataFrame:
        return comparison.over_seeds(self.rows) if "seed" in self.rows else self.rows

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per exchange and number of workers; of several seeds each."""
        return self.rows.copy()

    def paired(self) -> pd.DataFrame:
        """Return means over seeds with their paired intervals: what paired.csv holds.

        Raises
        ------
        InputError
            If there is one seed.
        """
        if "seed" not in self.rows:
            raise InputError("needs several seeds: compare(seeds=...)")
        return self._shown

    def plot(self) -> Plot:
        """Return the figure: times, volume, density and build-up."""
        return draw(self._shown, self.name)

    def table(self) -> Table:
        """Return the comparison by number of workers and then by time."""
        return comparison_table(self._shown, self.title)

    def sentences(self) -> list[str]:
        """Return who is fastest, how intervals were found, if there are some, and what is said of memory."""
        several = "seed" in self.rows
        said = headline(self._shown, self.rows["seed"].nunique() if several else 1)
        return [
            *([said] if said else []),
            *([f"Intervals at {100 * paired.LEVEL:.0f} %: {paired.METHOD}."] if several else []),
            *self.held,
        ]


@verb
def compare(
    scenario: str | Path = "compare",
    *,
    schemes: Sequence[str] | str | None = None,
    workers: int | Sequence[int] | None = None,
    density: float | str | None = None,
    skip: int | None = None,
    compute: float | str | None = None,
    batch: int | None = None,
    memory: float | str | None = None,
    set: Fields = (),
    stack: str | None = None,
    seed: int | None = None,
    seeds: int = 1,
    jobs: int | None = 1,
    progress: Share | None = None,
) -> Comparison:
    """Compare schemes on one trace and network, as `simnet compare` does.

    Parameters
    ----------
    scenario : str or Path
        A YAML file, or the name of a scenario that comes with simnet.
    schemes : sequence of str, optional
        As ``artopk`` or ``artopk:collective=tree``, in place of the exchanges of the scenario.
    workers : int or sequence of int, optional
        Numbers of workers; that of the scenario when omitted.
    density : float or str, optional
        In place of that of the scenario, as ``0.01`` or ``"1 %"``.
    skip : int, optional
        First iterations that means leave out; when omitted, until all have settled that do.
    memory : float or str, optional
        What a worker's device holds, as ``"16 GB"`` or bytes, or ``"device"`` for what its profile says.
    compute, batch, set, stack, seed, jobs, progress
        As of `simnet.run`.
    seeds : int
        How many: that of the scenario, and those that follow it.

    Raises
    ------
    SimnetError
        If something is wrong with the scenario or a scheme, or one cannot go on.

    Examples
    --------
    >>> from simnet import compare
    >>> found = compare("quickstart", schemes=["topk", "spardl"], workers=[2, 4], set={"job.iterations": 2})
    >>> found
    Comparison(quickstart, 2 exchanges, workers 2, 4)
    >>> found.to_pandas()[["workers", "exchange"]].to_numpy().tolist()
    [[2, 'topk'], [2, 'spardl'], [4, 'topk'], [4, 'spardl']]
    """
    counts = [] if workers is None else [workers] if isinstance(workers, int) else list(workers)
    if seeds < 1:
        raise InputError(f"must be >= 1, got {seeds}", file="--seeds")
    named = options.words(words(schemes)) or []
    fraction = None if density is None else str(density)
    checked = options.counts(words(counts), "--workers") if counts else []
    fields = [*overrides(set, stack, compute, batch), *options.memory(quantity(memory, "B"))]
    sources = comparison.sources(scenario, checked, named, fraction, fields, seed)
    tasks, of = {}, {}
    for later in range(seeds):
        for count, first in sources.items():
            source = first if not later else replace(first, later=later)
            loaded = source.load()
            key = f"{count} {later}"
            tasks[key], of[key] = Task(source, loaded, loaded.build()), (count, loaded.config.seed)
    largest = tasks[f"{max(sources)} 0"]
    job = largest.run.job
    if skip is not None and not 0 <= skip < job.iterations:
        raise InputError(f"must be >= 0 and less than the {job.iterations} iterations, got {skip}", file="--skip")
    results = results_of(tasks, jobs, progress)
    rows, held = [], comparison.Held()
    for key, task in tasks.items():
        count, own = of[key]
        warnings = sample_warnings(task.run.job, task.run.policies.values())
        for name, policy in task.run.policies.items():
            known = held.of(task.run.job, policy)
            row = comparison.row(count, name, results[key, name], known, warnings.get(name))
            rows.append({"seed": own} | row if seeds > 1 else row)
    title = comparison.title(largest.loaded, comparison.device_facts(largest.loaded, job.device), seeds)
    table = comparison.as_table(rows, largest.loaded, skip, {count: tasks[f"{count} 0"].run for count in sources})
    source = largest.source
    assumed = assumptions.assumed(
        lambda fields: replace(source, overrides=[*source.overrides, *fields]).load(), largest.loaded, largest.run
    )
    said = [*comparison.sentences(largest.loaded, held, table), *assumed.sentences()]
    return Comparison(largest.loaded.name, title, table, tuple(said))
