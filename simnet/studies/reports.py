"""Reports on finished runs: the redrawn page of a run, and a page that compares several runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from simnet.base import file_io
from simnet.base.errors import InputError, SimnetError
from simnet.base.file_io import read_bytes, read_text
from simnet.report import answers, html
from simnet.report.columns import Fields
from simnet.report.results import LOCK, PAGE, RUN, draw_run, picture_files, prepare_folder
from simnet.report.run_summary import RunFacts, RunSummary, summarize, with_exploration
from simnet.report.timeline import RecordedTimeline
from simnet.scenario import Run, Scenario
from simnet.scenario.finding import Source
from simnet.scenario.loader import MAX_BYTES
from simnet.studies.assumptions import setting

SUMMARY = "summary.json"

# Bytes of a summary, and numbers of a table, that a folder may have: 64 policies of a million iterations have fewer.
_LARGEST, _MOST_NUMBERS = 1 << 28, 1 << 31
# Numbers that a table of any size may have, and how many more for each byte of its file. Of 22 numbers of a row, one at
# least takes a byte: the time at which the iteration began.
_SMALL, _PACKED = 1 << 22, 100

_TEXT = frozenset({"policy", "purpose", "choice", "resource", "what", "phase"})
_TEXT_TYPES = pa.types.is_dictionary, pa.types.is_null
_ITERATIONS = (
    *("policy", "iteration", "start_s", "iteration_s", "compute_s", "select_s", "communicate_s", "wait_s"),
    *("bytes_sent_B", "choice", "density", "latency_s", "bandwidth_Bps"),
)
_SPANS = ("policy", "iteration", "worker", "resource", "what", "start_s", "finish_s")
_MESSAGES = ("policy", "iteration", "round", "phase", "src", "dst", "nbytes_B", "start_s", "finish_s")


@contextmanager
def refuse_other_content(folder: Path) -> Iterator[None]:
    """Convert errors from a malformed run summary inside the ``with`` block to InputError."""
    try:
        yield
    except SimnetError:
        raise
    except Exception as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
        what = f"it is no summary of a run with one seed: {why}"
        raise InputError(what, file=str(folder / SUMMARY)) from error


@dataclass(frozen=True)
class RunFolder:
    """Output folder of `simnet run`, with its summary and the complete scenario."""

    folder: Path
    summary: RunSummary
    lock: str

    @classmethod
    def read(cls, folder: Path) -> RunFolder:
        """Read the summary and the scenario of a run's output folder."""
        if not folder.is_dir():
            raise InputError("there is no such folder", file=str(folder))
        file_io.refuse_incomplete_replacement(folder, (RUN, PAGE))
        content, lock = read_bytes(folder / SUMMARY, _LARGEST), read_text(folder / LOCK, MAX_BYTES)
        with refuse_other_content(folder):
            summary = TypeAdapter(Fields).validate_json(content)
            known = summary["seed"], summary["policies"].keys(), summary["scenario"]["sha256"]
        if known[-1] != hashlib.sha256(lock.encode()).hexdigest():
            raise InputError(f"is not the scenario of which {SUMMARY} tells", file=str(folder / LOCK))
        return cls(folder, summary, lock)

    @cached_property
    def iterations(self) -> pd.DataFrame:
        """Table of the iterations of all policies."""
        table = _read_table(self.folder / "iterations.parquet", _ITERATIONS)
        strangers = set(table["policy"]) - set(self.summary["policies"])
        if strangers:
            raise InputError(
                f"has policies of which {SUMMARY} does not tell: {', '.join(sorted(map(str, strangers)))}",
                file=str(self.folder / "iterations.parquet"),
            )
        return table

    def recorded(self, built: Run) -> RecordedTimeline:
        """Return the recorded spans and messages. `built` gives the names of links."""
        spans, messages = (
            _read_table(file, columns) if (file := self.folder / name).exists() else pd.DataFrame(columns=list(columns))
            for name, columns in (("spans.parquet", _SPANS), ("messages.parquet", _MESSAGES))
        )
        return RecordedTimeline(spans, messages, built.links)

    def scenario(self) -> Scenario:
        """Return the scenario of the run."""
        return Source(self.folder / LOCK).load()


def redraw(folder: Path, place: Path) -> answers.RunAnswer:
    """Redraw the figures and the page of a run, and return its answer. The same version of simnet gives the same bytes.

    The files appear in the folder `place`. The answer has no tables of iterations.
    """
    file_io.finish_replacement(place, PAGE)
    run = RunFolder.read(folder)
    built = (loaded := run.scenario()).build()
    with refuse_other_content(folder):
        files = draw_run(run.summary, run.iterations, run.lock, setting(loaded, built.job), run.recorded(built))
        each = dict.fromkeys(run.iterations["policy"]) | run.summary["policies"]
        found = answers.run_answer(run.summary | {"policies": each})
    _write_page(place, files)
    return found


def compare_runs(folders: Sequence[Path], out: Path) -> tuple[RunSummary, Path]:
    """Write a page that compares the policies of several runs, and lists how their scenarios differ.

    Lower bounds are left out, as each belongs to its own run. Runs with other seeds or weather differ by these, too.
    """
    file_io.finish_replacement(out, PAGE)
    found = dict(zip(_folder_labels(folders), map(RunFolder.read, folders), strict=True))
    frames = dict(_run_policies(found))
    lengths = {label: len(with_exploration(frame)) for label, frame in frames.items()}
    if len(set(lengths.values())) > 1:
        told = "; ".join(f"{label} has {count:,}" for label, count in lengths.items())
        raise InputError(f"runs of as many iterations each can be compared; {told}")
    summary = summarize(frames, RunFacts(setup={"scenario": {"name": ", ".join(found)}}, bound=None))
    joined = pd.concat([frame.assign(policy=label) for label, frame in frames.items()], ignore_index=True)
    from simnet.report import figures

    plots = figures.render(joined, None)
    known = {"runs": list(found), "differences": _differing_fields(found)}
    page = html.page("compared", summary, answers.run_answer(summary), plots, **known)
    return summary, _write_page(out, {PAGE.last: page.encode()} | picture_files(plots))


def _write_page(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write a page and its figures, and return the path of the page."""
    place = prepare_folder(folder)
    with file_io.replace_files(place, PAGE) as stage:
        # A page makes no run complete of which some is missing.
        if (place / file_io.INCOMPLETE).is_file():
            file_io.write_files(stage, {file_io.INCOMPLETE: (place / file_io.INCOMPLETE).read_bytes()})
        file_io.write_files(stage, files)
    return place / PAGE.last


def _folder_labels(folders: Sequence[Path]) -> list[str]:
    """Return short unique names of folders: the last parts of their paths."""
    parts = [path.resolve().parts for path in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise InputError("a run is named twice")


def _run_policies(found: Mapping[str, RunFolder]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield a label and the iterations of each policy in each run, except oracles that know times beforehand."""
    for label, run in found.items():
        for name, one in run.summary["policies"].items():
            if one["ended"]:
                raise InputError(
                    f"policy {name} ended early; only whole runs can be compared", file=str(run.folder / SUMMARY)
                )
            if name != run.summary["bound"]:
                own = run.iterations[run.iterations["policy"] == name]
                yield f"{label}: {name}", own.drop(columns="policy").reset_index(drop=True)


def _differing_fields(found: Mapping[str, RunFolder]) -> Mapping[Any, Any]:
    """Return scenario fields that differ between runs, and versions of simnet if these differ, by run."""
    fields = {}
    for label, run in found.items():
        own = pd.json_normalize(run.scenario().document.data).iloc[0]
        own["version of simnet"] = run.summary["versions"].get("simnet", "unknown")
        fields[label] = own.astype(str)
    rows = pd.concat(fields, axis=1, sort=False).fillna("-")
    return rows[rows.nunique(axis=1) > 1].to_dict("index")


def _read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read a table of texts and numbers that must have the given columns."""
    if not path.is_file():
        raise InputError("there is no such file; run the scenario again with this version of simnet", file=str(path))
    try:
        most = min(_MOST_NUMBERS, _SMALL + _PACKED * path.stat().st_size)
        # Texts that stand many times in a row are read once.
        names = pq.read_schema(path).names
        with pq.ParquetFile(path, read_dictionary=[one for one in names if one in _TEXT]) as file:
            numbers = file.metadata.num_rows * file.metadata.num_columns
            if numbers > most:
                raise InputError(f"has {numbers:,} numbers; at most {most:,} are read of its size", file=str(path))
            for name in (*columns, *names):
                if (count := names.count(name)) != 1:
                    raise InputError(f"has {'more than one' if count else 'no'} column {name}", file=str(path))
            table = file.read()
        for field in table.schema:
            kinds = _TEXT_TYPES if field.name in _TEXT else (pa.types.is_integer, pa.types.is_floating)
            if not any(is_kind(field.type) for is_kind in kinds):
                said = f"column {field.name} should be {'text' if field.name in _TEXT else 'numbers'}"
                raise InputError(said, file=str(path))
        found: pd.DataFrame = table.to_pandas()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None
    return found.astype(dict.fromkeys(found.select_dtypes("category"), object))
