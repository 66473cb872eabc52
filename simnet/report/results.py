"""Files of a run folder: its summary, tables, figures and page.

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
=====================  ==================================================================================
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import simnet
from simnet.base.arrays import significant
from simnet.base.file_io import FileSet, atomic_write, explain_write_errors, temporary_name, write_files
from simnet.base.spreadsheets import guard_table
from simnet.report.run_summary import RunFacts, RunSummary, summarize, with_exploration
from simnet.report.summary import Plot
from simnet.report.timeline import LinkNames, RecordedTimeline, write_timeline
from simnet.training.job.record import PolicyResult

PAGE = FileSet("report", ("report.html", "figures/*.png", "figures/*.svg"), "report.html")
"""Files of the report: the page of one run or several, and its figures."""

LOCK, SEEDS = "scenario.lock.yaml", "seeds"
"""Names of the resolved scenario file, and of the folder with a subfolder per seed."""

_OF_ONE = (
    *("summary.json", LOCK, "iterations.csv", "timeline.json", *PAGE.names),
    *(f"{name}.parquet" for name in ("iterations", "workers", "spans", "messages")),
)
_OF_SEVERAL = tuple(f"{name}.{kind}" for name in ("seeds", "paired") for kind in ("csv", "parquet"))
_TABLES = tuple(f"{name}.{kind}" for name in ("sweep",) for kind in ("csv", "json", "parquet"))
RESULTS = (*_OF_ONE, *_OF_SEVERAL, *_TABLES, *(f"{SEEDS}/*/{name}" for name in _OF_ONE))
"""All files that commands write into a results folder; a new request replaces those of an earlier one."""

RUN = FileSet("run", RESULTS, "summary.json")
"""The files of a run, with one seed or several."""


# Rows that are in memory at a time, and a group of Parquet.
_PIECE = 1 << 16


class ResultRows(NamedTuple):
    """Rows of a policy that are created on demand: their number, and a function that returns a range of the rows."""

    total: int
    between: Callable[[int, int], pd.DataFrame]


def write_run(
    folder: str | Path,
    results: Mapping[str, PolicyResult],
    facts: RunFacts,
    scenario_lock: str,
    *,
    links: LinkNames | None = None,
    report: bool = True,
    setting: Mapping[str, str] | None = None,
) -> RunSummary:
    """Write the files of a run into an empty folder, and return the summary."""
    folder = prepare_folder(folder)
    sha256 = hashlib.sha256(scenario_lock.encode()).hexdigest()
    named = {"scenario": facts.setup["scenario"] | {"sha256": sha256}, "versions": versions()}
    frames = {name: result.iterations for name, result in results.items()}
    summary = summarize(frames, replace(facts, setup={**facts.setup, **named}))
    recorded = RecordedTimeline(
        joined(results, lambda one: one.spans), joined(results, lambda one: one.messages), links
    )
    files, text = {LOCK: scenario_lock.encode()}, json.dumps(summary, indent=2, sort_keys=True, allow_nan=False)
    if report:
        # Of what the files are going to hold, so that who draws it again from these gets the same.
        iterations = round_iterations(joined(results, lambda result: result.iterations))
        files |= draw_run(json.loads(text), iterations, scenario_lock, setting or {}, recorded)
    write_files(folder, files)
    write_table(
        folder, "iterations", {name: table_rows(one.iterations) for name, one in results.items()}, round_iterations
    )
    by_worker = {name: ResultRows(len(one.worker_rows), one.worker_rows.frame) for name, one in results.items()}
    write_table(folder, "workers", by_worker, csv=False)
    for name, frame in (("spans", recorded.spans), ("messages", recorded.messages)):
        if len(frame):
            write_frame(folder, name, frame, csv=False)
    with atomic_write(folder / "timeline.json") as stream:
        ran = {name: len(result.iterations) for name, result in results.items()}
        write_timeline(stream, *recorded[:2], links=links, iterations=ran)
    write_files(folder, {"summary.json": text.encode() + b"\n"})
    return summary


def prepare_folder(folder: str | Path) -> Path:
    """Create the run folder, and check that files can be written to it before a long run starts."""
    folder = Path(folder)
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        trial = temporary_name(folder / "trial")
        trial.touch()
        trial.unlink()
    return folder


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect simulated times: simnet, numpy, SimPy."""
    return {"numpy": np.__version__, "simnet": simnet.__version__, "simpy": importlib.metadata.version("simpy")}


def table_rows(table: pd.DataFrame) -> ResultRows:
    """Return a table as `ResultRows`."""
    return ResultRows(len(table), lambda first, last: table.iloc[first:last])


def write_table(
    folder: Path,
    name: str,
    rows: Mapping[str, ResultRows],
    finish: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table,
    *,
    csv: bool = True,
) -> None:
    """Write the rows of all policies to a CSV file and a Parquet file, which has one row group per chunk."""
    with ExitStack() as files:
        text = files.enter_context(atomic_write(folder / f"{name}.csv")) if csv else None
        stream, writer = files.enter_context(atomic_write(folder / f"{name}.parquet")), None
        for piece in map(finish, _pieces(rows)):
            if text is not None:
                guard_table(piece).to_csv(text, index=False, lineterminator="\n", mode="wb", header=writer is None)
            # The metadata of pandas have version numbers, which would make files differ.
            table = pa.Table.from_pandas(piece, preserve_index=False).replace_schema_metadata(None)
            writer = writer or files.enter_context(pq.ParquetWriter(stream, table.schema, compression="zstd"))
            writer.write_table(table)


def write_frame(folder: Path, name: str, table: pd.DataFrame, *, csv: bool = True) -> None:
    """Write a table to a CSV file and a Parquet file."""
    write_table(folder, name, {"": table_rows(table)}, csv=csv)


def _pieces(rows: Mapping[str, ResultRows]) -> Iterator[pd.DataFrame]:
    """Yield the rows of all policies in chunks. Every chunk has the columns and dtypes of the full table."""
    like = join_frames({name: one.between(0, min(one.total, 1)) for name, one in rows.items()})
    for name, one in rows.items():
        for first in range(0, one.total, _PIECE):
            piece = join_frames({name: one.between(first, min(one.total, first + _PIECE))})
            yield piece.reindex(columns=like.columns).astype(like.dtypes.to_dict())
    if not any(one.total for one in rows.values()):
        yield like


def join_frames(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the data frames of all policies as one table, with the policies' names in a column ``policy``."""
    named = [frame.assign(policy=name) if name else frame for name, frame in frames.items()]
    # An empty frame has no types of its own and would spoil those of the others.
    return pd.concat([one for one in named if len(one)] or named[:1], ignore_index=True)


def joined(results: Mapping[str, PolicyResult], frame: Callable[[PolicyResult], pd.DataFrame]) -> pd.DataFrame:
    """Return one table with the rows of all policies, from the data frame that `frame` returns for each result."""
    return join_frames({name: frame(one) for name, one in results.items()})


def round_iterations(iterations: pd.DataFrame) -> pd.DataFrame:
    """Return iterations rounded as in iterations.csv: to twelve significant digits and whole bytes."""
    counts = [name for name in iterations.columns if name.endswith("_B")]
    whole = iterations.assign(**{name: iterations[name].round().astype(np.int64) for name in counts})
    return rounded_table(whole)


def rounded_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with floats rounded to twelve significant digits."""
    return table.assign(**{str(name): significant(one) for name, one in table.select_dtypes("float64").items()})


def draw_run(
    summary: RunSummary,
    iterations: pd.DataFrame,
    scenario_lock: str,
    setting: Mapping[str, str],
    recorded: RecordedTimeline,
) -> dict[str, bytes]:
    """Return the figures and the HTML page of a run, as bytes by file name."""
    names = dict.fromkeys([*iterations["policy"], *summary["policies"]])
    summary = {**summary, "policies": {name: summary["policies"][name] for name in names}}
    # Imported here because drawing is half a second to load.
    from simnet.report import figures, html

    trained = len(with_exploration(iterations))
    plots = figures.render(iterations, summary["bound"]) if trained else []
    page = html.report(summary, plots, scenario_lock, iterations, setting, recorded)
    return {"report.html": page.encode(), **picture_files(plots)}


def picture_files(plots: Iterable[Plot]) -> dict[str, bytes]:
    """Return the PNG and SVG files of figures, as bytes by file name."""
    return {f"figures/{one.name}.{kind}": getattr(one, kind) for one in plots for kind in ("png", "svg")}
