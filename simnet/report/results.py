"""The run folder: what a run leaves behind for people, for spreadsheets and for other programs.

Files of a run appear together or not at all, and equal runs leave equal bytes: no dates, no paths, and in the summary
and the iterations no digits that differ between machines.

=====================  ==================================================================================
summary.json           per policy: time, bytes, breakdown, regret, choices; who won; network, seed, versions, hash
iterations.csv         a row per policy and iteration; `purpose` tells training from exploration; `loss` and
                       `accuracy` where a model is trained, empty where they were not measured
iterations.parquet     the same
workers.parquet        a row per policy, iteration and worker
scenario.lock.yaml     the scenario with every default and override written out
figures/               the figures as PNG and SVG
report.html            all of it on one page
spans.parquet          the first iterations: what each resource of a worker did from when to when
messages.parquet       the same iterations: when each message was sent, and had arrived
timeline.json          the first iterations for Perfetto (ui.perfetto.dev) or chrome://tracing
deaths.*               where workers died: a row for each of them, and for each that waited in vain (CSV, Parquet)
company.*              where jobs shared the network: a row per policy and job (CSV, Parquet)
=====================  ==================================================================================
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import simnet
from simnet.base.atomic_replace import FileSet
from simnet.base.spreadsheets import guard_table
from simnet.base.writing import atomic_write, explain_write_errors, temporary_name, write_files
from simnet.report import run_events, run_tables
from simnet.report.kept import Recorded
from simnet.report.summary import (
    RunFacts,
    Summary,
    learning_columns,
    significant,
    summarize,
    with_exploration,
)
from simnet.report.timeline import Bandwidths, LinkNames, write_timeline

if TYPE_CHECKING:
    from simnet.job import PolicyResult


PAGE = FileSet("report", ("report.html", "figures/*.png", "figures/*.svg"), "report.html")
"""The page of a run, or of several, and its figures."""

LOCK, SEEDS = "scenario.lock.yaml", "seeds"
"""The resolved scenario; and the folder of those of single seeds."""

_OF_ONE = (
    *("summary.json", LOCK, "iterations.csv", "timeline.json", *PAGE.names),
    *(f"{name}.parquet" for name in ("iterations", "workers", "spans", "messages")),
    *(f"{name}.{kind}" for name in ("deaths", "company") for kind in ("csv", "parquet")),
)
_OF_SEVERAL = tuple(f"{name}.{kind}" for name in ("seeds", "paired") for kind in ("csv", "parquet"))
_TABLES = tuple(f"{name}.{kind}" for name in ("compare", "sweep") for kind in ("csv", "json", "parquet"))
RESULTS = (*_OF_ONE, *_OF_SEVERAL, *_TABLES, *(f"{SEEDS}/*/{name}" for name in _OF_ONE))
"""The files of a folder of results, whichever command wrote them: those of a request replace those of another."""

RUN = FileSet("run", RESULTS, "summary.json")
"""The files of a run, with one seed or several."""


def write_run(
    folder: str | Path,
    results: Mapping[str, PolicyResult],
    facts: RunFacts,
    scenario_lock: str,
    *,
    links: LinkNames | None = None,
    bandwidths: Bandwidths | None = None,
    report: bool = True,
    setting: Mapping[str, str] | None = None,
) -> Summary:
    """Write the files of a run into an empty folder; see `simnet.base.atomic_replace` for one that is not."""
    folder = prepare_folder(folder)
    lock = scenario_lock.encode()
    summary = summary_of(results, facts, scenario_lock)
    recorded = Recorded(joined(results, lambda one: one.spans), joined(results, lambda one: one.messages), links)
    files, told = {LOCK: lock}, json.dumps(summary, indent=2, sort_keys=True, allow_nan=False)
    if report:
        # Of what the files are going to hold, so that who draws it again from these gets the same.
        iterations = rounded(joined(results, lambda result: result.iterations))
        files |= drawn(json.loads(told), iterations, scenario_lock, setting or {}, recorded)
    write_files(folder, files)
    run_tables.write_table(folder, "iterations", run_tables.iterations_of(results), rounded)
    run_tables.write_table(folder, "workers", run_tables.workers_of(results), lambda table: table, csv=False)
    died = [row for name, result in results.items() for row in run_events.stop_table(name, result.interruptions)]
    shared = [row for name, result in results.items() for row in run_events.share_table(name, result.job_shares)]
    for name, frame in (("spans", recorded.spans), ("messages", recorded.messages)):
        if len(frame):
            _write_table(folder, name, frame, csv=False)
    for name, rows, columns in (
        ("deaths", died, run_events.STOP_COLUMNS),
        ("company", shared, run_events.SHARE_COLUMNS),
    ):
        if rows:
            table = pd.DataFrame(rows, columns=list(columns)).apply(_significant)
            if "round" in table:
                # The dead have none, which would make numbers with fractions of the others.
                table["round"] = pd.array([row["round"] for row in rows], dtype="Int64")
            _write_table(folder, name, table)
    with atomic_write(folder / "timeline.json") as stream:
        ran = {name: len(result.iterations) for name, result in results.items()}
        write_timeline(stream, recorded.spans, recorded.messages, links=links, bandwidths=bandwidths, iterations=ran)
    write_files(folder, {"summary.json": told.encode() + b"\n"})
    return summary


def summary_of(results: Mapping[str, PolicyResult], facts: RunFacts, scenario_lock: str) -> Summary:
    """Return the content of summary.json."""
    whole = replace(
        facts,
        scenario_sha256=hashlib.sha256(scenario_lock.encode()).hexdigest(),
        versions=versions(),
        stops={name: result.interruptions for name, result in results.items()},
        shares={name: result.job_shares for name, result in results.items()},
    )
    return summarize({name: result.iterations for name, result in results.items()}, whole)


def prepare_folder(folder: str | Path) -> Path:
    """Make the run folder and prove that it can be written to, which is better known before a long run than after."""
    folder = Path(folder)
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        trial = temporary_name(folder / "trial")
        trial.touch()
        trial.unlink()
    return folder


def parquet(table: pd.DataFrame) -> bytes:
    """Return a table as a file of Parquet, without the metadata of pandas, which names the versions of everything."""
    plain = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(None)
    buffer = pa.BufferOutputStream()
    pq.write_table(plain, buffer, compression="zstd")
    return bytes(buffer.getvalue())


def versions() -> dict[str, str]:
    """Return the versions of what computes the times: simnet, numpy, SimPy."""
    return {"numpy": np.__version__, "simnet": simnet.__version__, "simpy": importlib.metadata.version("simpy")}


def _write_table(folder: Path, name: str, table: pd.DataFrame, *, csv: bool = True) -> None:
    if csv:
        with atomic_write(folder / f"{name}.csv") as stream:
            guard_table(table).to_csv(stream, index=False, lineterminator="\n", mode="wb")
    write_files(folder, {f"{name}.parquet": parquet(table)})


def joined(results: Mapping[str, PolicyResult], frame: Callable[[PolicyResult], pd.DataFrame]) -> pd.DataFrame:
    """Return the frames of all policies one below the other, with a column ``policy``."""
    return run_tables.joined({name: run_tables.rows_of(frame(one)) for name, one in results.items()})


def rounded(iterations: pd.DataFrame) -> pd.DataFrame:
    """Return iterations without the digits that differ between machines, and whole bytes: iterations.csv."""
    counts = [name for name in iterations.columns if name.endswith("_B")]
    whole = iterations.assign(**{name: iterations[name].round().astype(np.int64) for name in counts})
    return whole.apply(_significant)


def _significant(column: pd.Series) -> pd.Series:
    return pd.Series(significant(column), index=column.index) if column.dtype == np.float64 else column


def drawn(
    summary: Summary, iterations: pd.DataFrame, scenario_lock: str, setting: Mapping[str, str], recorded: Recorded
) -> dict[str, bytes]:
    """Return the figures and the page of a run, by the names of their files."""
    policies = {
        name: summary["policies"][name] for name in dict.fromkeys([*iterations["policy"], *summary["policies"]])
    }
    summary = {**summary, "policies": policies}
    # Imported here because drawing is half a second to load.
    from simnet.report import figures, html

    learnt = learning_columns(summary)
    plots = []
    if len(with_exploration(iterations)):
        plots = figures.render(iterations, summary["bound"], learnt)
    page = html.report(summary, plots, scenario_lock, iterations, setting, recorded)
    files = {"report.html": page.encode()}
    for plot in plots:
        files |= {f"figures/{plot.name}.png": plot.png, f"figures/{plot.name}.svg": plot.svg}
    return files
