"""`simnet.sweep`: a scenario over a grid of values of some of its fields."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from rich.table import Table

from simnet.base.errors import InputError, SimnetError, suggest_names
from simnet.base.processes import InlinePool, Pool
from simnet.report.drawing import Plot
from simnet.report.tables import ReprHtml
from simnet.scenario.identity import place_of
from simnet.studies.sweeping import drawing, table, work
from simnet.studies.sweeping.grid import Column
from simnet.verbs.library.asking import Fields, Share, overrides, verb, written

_MEASURES = {"iteration": drawing.ITERATION, "target": drawing.TARGET}


@dataclass(frozen=True, eq=False, repr=False)
class Sweep(ReprHtml):
    """A scenario over a grid of values.

    Parameters
    ----------
    name : str
        The scenario.
    rows : DataFrame
        A row per cell and policy: what sweep.csv holds; ``status`` and ``message`` tell what has no result, and why.
    columns : list of Column
        The parameters.
    bound : str, optional
        The policy that nobody can run.
    zipped : bool
        Whether the parameters change side by side.
    """

    name: str
    rows: pd.DataFrame
    columns: list[Column]
    bound: str | None
    zipped: bool

    def __repr__(self) -> str:
        over = ", ".join(column.name for column in self.columns)
        return f"Sweep({self.name}, {self.rows['cell'].nunique()} cells over {over})"

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per cell and policy."""
        return self.rows.copy()

    def plot(self, measure: str = "iteration") -> Plot:
        """Return the figure: times by one parameter, or who wins where of two.

        Parameters
        ----------
        measure : str
            By which time: ``iteration`` or ``target`` (time to the target accuracy).

        Raises
        ------
        SimnetError
            If there is no such measure, or no figure of these parameters.
        """
        if measure not in _MEASURES:
            raise InputError(f"there is no measure {measure!r}; {suggest_names(measure, _MEASURES)}")
        how = _MEASURES[measure]
        drawn = drawing.draw(self.rows, self.columns, self.name, zipped=self.zipped, measure=how, bound=self.bound)
        if drawn is None:
            raise SimnetError(f"no figure of the {measure}: it takes one or two parameters that are numbers, and times")
        return drawn

    def table(self) -> Table:
        """Return in how many cells each policy was the fastest, and its times."""
        return drawing.sweep_table(self.rows, self.name, self.bound, self.columns)

    def sentences(self) -> list[str]:
        """Return who is first in how many cells, how many rows have no result and why, and what is to be noted."""
        left = self.rows[self.rows["status"].isin(["refused", "failed"])]
        why = [] if left.empty else [f"{len(left)} without result, the first: {left['message'].iloc[0]}"]
        return [one for one in (drawing.headline(self.rows), *why, *drawing.notes(self.rows)) if one]


@verb
def sweep(
    scenario: str | Path,
    param: Mapping[str, str | Sequence[object]] | Sequence[str],
    *,
    zip: bool = False,
    set: Fields = (),
    stack: str | None = None,
    seed: int | None = None,
    seeds: int = 1,
    policies: Sequence[str] | str | None = None,
    out: str | Path | None = None,
    force: bool = False,
    jobs: int | None = 1,
    max_cells: int = 10_000,
    progress: Share | None = None,
) -> Sweep:
    """Run a scenario over a grid of values, as `simnet sweep` does.

    Parameters
    ----------
    scenario : str or Path
        A YAML file, or the name of a scenario that comes with simnet.
    param : mapping of str to values, or sequence of str
        Fields, in full or in short, with their values: ``{"bandwidth": ["1 Gbit/s", "5 Gbit/s"]}``,
        ``{"density": "0.001:0.1:5:log"}``, or as the command has it.
    zip : bool
        Whether first values go together, second ones together, ..., in place of the grid.
    set, stack, seed, policies, jobs, progress
        As of `simnet.run`; processes take a cell each.
    seeds : int
        How many: that of the scenario, and those that follow it.
    out : path, optional
        Folder that has cells which are done, so that they do not run again, and all that the command writes; without
        it nothing is kept.
    force : bool
        Whether to run also the cells that are there.
    max_cells : int
        Refuse a larger grid.

    Raises
    ------
    SimnetError
        If no cell makes sense. Those that do not are rows with a message else.

    Examples
    --------
    >>> from simnet import sweep
    >>> found = sweep("quickstart", {"density": [0.01, 0.1]}, policies=["AG"], set={"job.iterations": 2})
    >>> found
    Sweep(quickstart, 2 cells over density)
    >>> found.to_pandas()[["density", "policy", "status"]].to_numpy().tolist()
    [[0.01, 'AG', 'done'], [0.1, 'AG', 'done']]
    """
    given = parameters(param)
    wanted = policies.split(",") if isinstance(policies, str) else policies
    fields = overrides(set, stack)
    planned = work.plan(str(scenario), given, fields, seed, wanted, zipped=zip, most=max_cells, seeds=seeds)
    with ExitStack() as within:
        place = Path(within.enter_context(TemporaryDirectory()) if out is None else out)
        place_of(place, place, table.request_of(planned.base, planned.axes), force=force)
        pool = within.enter_context(InlinePool() if jobs == 1 else Pool(jobs or os.cpu_count() or 1))
        within.enter_context(work.lock_sweep(place))
        checks = work.check(planned, place, pool, lambda number, share: None)
        work.refuse_all(planned, checks)
        todo = work.Work(planned, checks, place, again=force)
        todo.run(pool, None, work.overall(len(planned.cells), progress or (lambda done: None)))
        rows = todo.table() if out is None else todo.write()
    return Sweep(planned.base.name, rows, planned.columns, planned.base.bound, planned.zipped)


def parameters(param: Mapping[str, str | Sequence[object]] | Sequence[str]) -> list[str]:
    """Return parameters as ``--param`` has them.

    Parameters
    ----------
    param : mapping of str to values, or sequence of str
        Fields with their values, or texts.

    Examples
    --------
    >>> parameters({"bandwidth": ["1 Gbit/s", "5 Gbit/s"], "density": [0.01]})
    ['bandwidth=1 Gbit/s,5 Gbit/s', 'density=0.01']
    """
    if not isinstance(param, Mapping):
        return list(param)
    return [f"{name}={_param_values(values)}" for name, values in param.items()]


def _param_values(values: str | Sequence[object]) -> str:
    """Return values as ``--param`` has them."""
    if isinstance(values, str):
        return values
    texts = [written(one) for one in values]
    if found := [one for one in texts if "," in one]:
        raise InputError(f"cannot hold a comma, got {found[0]!r}", file="--param")
    return ",".join(texts)
