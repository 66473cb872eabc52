"""Which measurements are validated, what is known of each set, and what was predicted of it, as values for JSON."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from simnet.base.errors import InputError
from simnet.base.file_io import atomic_write
from simnet.cost_models.calibration import measured
from simnet.cost_models.calibration.cost_model import DEFAULT_COVERAGE
from simnet.cost_models.calibration.readers.kinds import log_format
from simnet.cost_models.calibration.specification import specified_half_widths
from simnet.cost_models.calibration.summary import read_rows
from simnet.cost_models.evidence.intervals import bin_of
from simnet.validate.evaluation import HALVES, SPLITS, evaluate
from validating.learned import fit_learned
from validating.platforms import Case, cases_of, predicted

MAX_META = 2**20
"""The largest description of a set that is read [byte]."""

_TEXTS = ("split", "place", "system", "setting")
_KEPT = (*_TEXTS, "size", "measured", "ours", "low", "high")


@dataclass(frozen=True)
class Set:
    """A set of measurements.

    Parameters
    ----------
    name : str
        What it is called.
    source : str
        What `simnet.validate.evaluation.evaluate` takes: a shipped name, or a folder.
    title, hardware, interconnect, tool, origin, licence : str
        What was measured, on what, with what, by whom, and on which terms; empty if not stated.
    shipped : bool
        Whether it comes with simnet.
    """

    name: str
    source: str
    title: str = ""
    hardware: str = ""
    interconnect: str = ""
    tool: str = ""
    origin: str = ""
    licence: str = ""
    shipped: bool = False


def sets(folder: Path | None) -> tuple[list[Set], dict[str, str]]:
    """Return the shipped sets and those in a folder, and why others of its folders are left out.

    A set is a folder with a ``data.csv`` and, beside it, a ``meta.yaml`` that describes it. One that is shipped too,
    thinned, is read from the folder.

    Raises
    ------
    InputError
        If there is no such folder.
    """
    found: dict[str, Set] = {}
    for one in measured.datasets().values():
        tool, told = str(one.facts.get("tool", "")), (one.title, one.hardware, one.interconnect)
        found[one.name] = Set(one.name, one.name, *told, tool, one.source, one.licence, shipped=True)
    left_out: dict[str, str] = {}
    if folder is None:
        return list(found.values()), left_out
    if not folder.is_dir():
        raise InputError("is no folder", file=str(folder))
    for table in sorted(folder.glob("*/data.csv")):
        place = table.parent
        try:
            if log_format(table) is None:
                left_out[place.name] = "no collectives: a series or matrix of links"
                continue
        except InputError as error:
            left_out[place.name] = str(error.message)
            continue
        meta = _described(place / "meta.yaml")
        origin = " at ".join(part for part in (meta.get("source_repo", ""), meta.get("source_commit", "")[:10]) if part)
        library = "; ".join(part for part in (meta.get("tool", ""), meta.get("library", "")) if part)
        told = {name: meta.get(name, "") for name in ("title", "hardware", "interconnect", "licence")}
        ours = measured.datasets().get(place.name)
        if ours is not None:
            told |= {"hardware": ours.hardware, "licence": ours.licence}
        found[place.name] = Set(place.name, str(place), tool=library, origin=origin, shipped=ours is not None, **told)
    return list(found.values()), left_out


def validated(one: Set) -> dict[str, Any]:
    """Return what was predicted of a set, as values for JSON: its figures, each prediction, and how long it took."""
    begin = time.process_time()
    entry: dict[str, Any] = asdict(one)
    del entry["source"]
    try:
        made = evaluate(one.source, splits=[*SPLITS, HALVES], fit=fit_learned)
    except InputError as error:
        return entry | {"error": error.message, "seconds": time.process_time() - begin}
    models = [name for name in made.held if name not in _KEPT]
    held = {name: _plain(made.held[name]) for name in (*_KEPT, *models)}
    entry |= {"figures": made.figures(), "held": held}
    entry["nccl"] = any(name in one.tool.casefold() for name in ("nccl", "rccl"))
    cases = cases_of(one.name)
    if cases:
        entry["specified"] = _specified(cases, one.source)
    return entry | {"seconds": time.process_time() - begin}


def _specified(cases: Sequence[Case], source: str) -> dict[str, list[Any]]:
    """Return what the specification of its platforms says of a set, as values for JSON."""
    rows, _ = read_rows(source, {})
    tables = []
    for case in cases:
        bounds = specified_half_widths(case.platform, DEFAULT_COVERAGE)
        for setting, sizes, seconds, true in predicted(case, rows):
            below, above = np.array(bounds)[bin_of(sizes)].T
            fields = {"size": sizes, "measured": true, "ours": seconds}
            fields |= {"low": seconds * np.exp(-below), "high": seconds * np.exp(above)}
            texts = {"split": "specified", "place": "", "system": case.variant, "setting": str(setting)}
            tables.append(pd.DataFrame(fields).assign(**texts))
    table = pd.concat(tables, ignore_index=True)
    return {name: _plain(table[name]) for name in _KEPT}


def run(wanted: Sequence[Set], done: Mapping[str, Any], processes: int) -> Iterator[dict[str, Any]]:
    """Yield the entry of each set that is not done, as they are finished; the longest tables come first.

    An error that is not about the measurements costs its set, and no other.
    """
    todo = sorted((one for one in wanted if one.name not in done), key=_length, reverse=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(validated, one): one for one in todo}
        for future in as_completed(futures):
            error = future.exception()
            one = futures[future]
            yield future.result() if error is None else asdict(one) | {"error": f"failed: {error!r}", "seconds": 0.0}


def load(path: Path) -> dict[str, Any]:
    """Return results that were written before.

    Raises
    ------
    InputError
        If the file cannot be read or is none of these.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None
    if not isinstance(found, dict) or not isinstance(found.get("sets"), dict):
        raise InputError("has no results of benchmarks/validation.py", file=str(path))
    return found


def save(results: Mapping[str, Any], path: Path) -> None:
    """Write results; a run that is interrupted leaves those of the last set that was finished."""
    with atomic_write(path) as stream:
        stream.write(json.dumps(results, separators=(",", ":")).encode())


def _described(path: Path) -> dict[str, str]:
    """Return the fields of a description that are text; nothing if there is none."""
    if not path.is_file() or path.stat().st_size > MAX_META:
        return {}
    try:
        found = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (YAMLError, ValueError, OSError):
        return {}
    return {str(key): " ".join(value.split()) for key, value in found.items() if isinstance(value, str)}


def _length(one: Set) -> int:
    table = Path(one.source, "data.csv")
    return table.stat().st_size if table.is_file() else 0


def _plain(column: pd.Series[Any]) -> list[Any]:
    """Return a column of texts, or of numbers with six digits and None where there is none."""
    if column.name in _TEXTS:
        return ["" if pd.isna(value) else str(value) for value in column]
    numbers = column.to_numpy(dtype=np.float64, na_value=math.nan)
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in numbers.tolist()]
