"""Records of nccl-tests (``-J``, versions 1 to 3) and of rccl-tests (``-Z json``, ``-Z csv``).

The JSON of nccl-tests also holds the environment of the job, keys and passwords included, the names of its hosts and
its command line. Two settings (``NCCL_ALGO``, ``NCCL_PROTO``) and counts are taken from these; the rest is dropped
after parsing and appears in no table, message or error. Its truth values are strings, what is no number is ``"nan"``.

rccl-tests writes one record for each side of each size; older versions have no numbers of nodes and ranks.
"""

# References: NVIDIA, nccl-tests, ``src/util.cu``, ``JSON_FILE_VERSION``. AMD, rccl-tests, ``src/common.cu``
# (``Reporter``).

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import lines, tables
from simnet.cost_models.calibration.readers.conventions import collective_name, named_collective
from simnet.cost_models.calibration.readers.csv_tables import csv_records
from simnet.cost_models.calibration.readers.nccl_text import RANK_STATISTICS, pinned_setting

NEWEST_VERSION = 3
"""The latest version of the format that is read."""


@tables.format_reader("nccl-json")
def read_nccl_json(path: Path, out: tables.RowCollector) -> Iterator[tuple[Any, ...]]:
    """Read the JSON of nccl-tests."""
    data = load_nccl_json(path)
    version = data.get("version")
    if version is None:
        out.refuse("is JSON of no tool that is read; that of nccl-tests (-J) has version and results")
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= NEWEST_VERSION:
        out.refuse(f"must be a whole number in 1..{NEWEST_VERSION}, got {_kind_of_value(version)}", name="version")
    results = data.get("results")
    if not isinstance(results, list):
        out.refuse(f"must be a list, got {_kind_of_value(results)}", name="results")
    stated, name = _stated_values(data)
    name = name or named_collective(path.name) or lines.short_text(out.facts.get("collective"))
    if not name:
        out.refuse("does not say which collective this is; give it, as collective=all_reduce", name="args")
    for number, one in enumerate(results):
        where = f"results[{number}]"
        if not isinstance(one, dict):
            yield None, f"{where} must be an object, got {_kind_of_value(one)}"
            continue
        common = stated | lines.record_values(one, "nccl-json") | {"collective": name}
        if "nbytes" not in common:
            yield None, f"{where}.size must be a whole number >= 0, got {_kind_of_value(one.get('size'))}"
            continue
        for side, in_place in (("out_of_place", False), ("in_place", True)):
            body = one.get(side)
            if body is None:
                continue
            if not isinstance(body, dict):
                yield None, f"{where}.{side} must be an object, got {_kind_of_value(body)}"
                continue
            each = lines.record_values(one.get(f"{side}_per_iter", body.get("per_iter")), "nccl-json-iterations")
            printed = lines.record_values(body, "nccl-json-side", decimals=6)
            row = common | each | printed | {"in_place": in_place, "tool": "nccl-tests", "run": "1"}
            yield None, row, f"{where}.{side}"


def load_nccl_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; of its environment, only the pinned algorithm and protocol are kept."""
    file = str(path)
    text = "\n".join(lines.read_lines(path))
    objects = [one for _, one in lines.json_objects(text, file)]
    if len(objects) != 1:
        raise InputError(f"must be a JSON object, got {len(objects)} of them", file=file)
    (data,) = objects
    environment = data.pop("env", None)
    pinned: dict[str, str] = {}
    for entry in environment if isinstance(environment, list) else ():
        if isinstance(entry, str) and entry.startswith(("NCCL_ALGO=", "NCCL_PROTO=")):
            what, _, value = entry.removeprefix("NCCL_").partition("=")
            pinned |= pinned_setting(what, value)
    return data | {"pinned": pinned}


def _stated_values(data: Mapping[str, Any]) -> tuple[dict[str, object], str | None]:
    """Return the column values that hold for all rows, and the collective (None if unknown)."""
    listed = data.get("args")
    args = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    name = collective_name(PurePosixPath(args[0]).name) if args else None
    average = next((args[at + 1] for at, one in enumerate(args[:-1]) if one in ("-a", "--average")), "1")
    given = data.get("config")
    config: Mapping[str, Any] = given if isinstance(given, dict) else {}
    devices = data.get("devices", config.get("devices"))
    devices = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    first = [(lines.read_count(one.get("rank")), one) for one in devices if not lines.read_count(one.get("group"))]
    known = [(rank, one.get("hostname")) for rank, one in first if rank is not None and rank < tables.MAX_RANKS]
    ranks, hosts = {rank for rank, _ in known}, {lines.short_text(host) for _, host in known}
    stated: dict[str, object] = {"statistic": RANK_STATISTICS.get(average, "mean")} | data["pinned"]
    stated |= {"ranks": len(ranks), "nodes": len(hosts)} if ranks else {}
    return stated | {"iterations": lines.read_count(config.get("iterations"))}, name


def _kind_of_value(value: object) -> str:
    """Return a description of an invalid value, without the text itself, which may be secret."""
    if value is None:
        return "nothing"
    if isinstance(value, bool | int | float):
        return str(value)[:40]
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"


RCCL_KEYS = ("name", "size", "inPlace", "time", "algBw", "busBw")
"""Required keys or columns, by which the format is recognised."""


@tables.format_reader("rccl")
def read_rccl_records(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
    """Read records of rccl-tests, as JSON or as CSV."""
    printed = lines.read_lines(path)
    text = "\n".join(printed)
    records: Iterable[tuple[int, Mapping[str, Any]]] = lines.json_objects(text, out.file)
    if text.lstrip()[:1] not in ("{", "["):
        records = csv_records(printed, RCCL_KEYS, out.file)[2]
    for line, one in records:
        if not set(RCCL_KEYS) <= set(one):
            continue
        name, row = collective_name(lines.short_text(one["name"])), lines.record_values(one, "rccl")
        if name is None or "nbytes" not in row:
            yield line, f"{lines.short_text(one['name'])[:40]!r} of {one['size']!s:.20} bytes is nothing that is read"
            continue
        processes, each = (lines.read_count(one.get(key)) for key in ("ranks", "gpusPerRank"))
        ranks = (processes or 0) * (each or 1)
        row |= {"collective": name, "in_place": str(one["inPlace"]).strip() in ("1", "true", "True")}
        row |= {"ranks": ranks} if 0 < ranks <= tables.MAX_RANKS else {}
        row |= {"statistic": "mean", "tool": "rccl-tests", "run": str(one.get("numCycle", "1"))[:20]}
        yield line, row
