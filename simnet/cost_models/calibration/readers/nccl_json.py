"""The JSON that nccl-tests writes with ``-J``, versions 1 to 3.

Truth values are strings, and what is no number is ``"nan"``. The file also holds the environment of the job, keys and
passwords included, the names of its hosts and its command line. Two settings (``NCCL_ALGO``, ``NCCL_PROTO``) and counts
are taken from these; the rest is dropped after parsing and appears in no table, message or error.

References
----------
NVIDIA, nccl-tests, ``src/util.cu``, ``JSON_FILE_VERSION``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers.conventions import collective_name, named_collective, nccl_convention
from simnet.cost_models.calibration.readers.lines import read_lines
from simnet.cost_models.calibration.readers.nccl_text import RANK_STATISTICS, pinned_setting
from simnet.cost_models.calibration.readers.tables import (
    MAX_RANKS,
    MAX_WHOLE,
    PrintedNumber,
    RowCollector,
    TableRow,
    format_reader,
)

MAX_VALUES = 4_000_000
"""The most values that a file may hold."""

MAX_CONTAINERS = 1_000_000
"""The most lists and objects that a file may hold."""

NEWEST_VERSION = 3
"""The latest version of the format that is read."""


@format_reader("nccl-json")
def read_nccl_json(path: Path, out: RowCollector) -> None:
    """Read the JSON of nccl-tests."""
    data = load_nccl_json(path)
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= NEWEST_VERSION:
        out.refuse(f"must be a whole number in 1..{NEWEST_VERSION}, got {_kind_of_value(version)}", name="version")
    results = data.get("results")
    if not isinstance(results, list):
        out.refuse(f"must be a list, got {_kind_of_value(results)}", name="results")
    stated, name = _stated_values(data)
    name = name or named_collective(path.name) or _short_text(out.facts.get("collective"))
    if not name:
        out.refuse("does not say which collective this is; give it, as collective=all_reduce", name="args")
    for number, one in enumerate(results):
        where = f"results[{number}]"
        if not isinstance(one, dict):
            out.report(None, f"{where} must be an object, got {_kind_of_value(one)}")
            continue
        nbytes = _whole_number(one.get("size"))
        if nbytes is None:
            out.report(None, f"{where}.size must be a whole number >= 0, got {_kind_of_value(one.get('size'))}")
            continue
        for side, in_place in (("out_of_place", False), ("in_place", True)):
            body = one.get(side)
            if body is None:
                continue
            if not isinstance(body, dict):
                out.report(None, f"{where}.{side} must be an object, got {_kind_of_value(body)}")
                continue
            time = _printed_number(body.get("time", body.get("cpu_time")), -6)
            algbw, busbw = _printed_number(body.get("alg_bw"), 9), _printed_number(body.get("bus_bw"), 9)
            row: TableRow = stated | {
                "collective": name,
                "nbytes": nbytes,
                "size_convention": nccl_convention(name),
                "dtype": _short_text(one.get("type")),
                "reduction": _short_text(one.get("redop")).replace("none", ""),
                "root": _whole_number(one.get("root")),
                "in_place": in_place,
                "wrong": _json_number(body.get("nwrong")),
                "iterations": _whole_number(one.get("actual_iterations")) or stated.get("iterations"),
                "tool": "nccl-tests",
                "run": "1",
            }
            each = one.get(f"{side}_per_iter", body.get("per_iter"))
            for statistic in ("min", "max", "p50", "p99") if isinstance(each, dict) else ():
                value = _json_number((each or {}).get(f"{statistic}_us"))
                row[f"seconds_{statistic}"] = None if value is None else _scale_number(value, -6)
            out.add(row, None, time=time, algbw=algbw, busbw=busbw, where=f"{where}.{side}")


def load_nccl_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, without its environment but for the pinned algorithm and protocol."""
    file = str(path)
    text = "\n".join(read_lines(path))
    for count, most, what in (
        (text.count("[") + text.count("{"), MAX_CONTAINERS, "lists and objects"),
        (text.count(","), MAX_VALUES, "values"),
    ):
        if count > most:
            raise InputError(f"has some {count:,} {what}; at most {most:,} are read", file=file)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        goes_on = error.msg == "Extra data"
        message = "goes on after the end of the JSON object" if goes_on else f"is not JSON, or was cut: {error.msg}"
        raise InputError(message, file=file, line=error.lineno) from None
    except RecursionError:
        raise InputError("is not JSON of nccl-tests: it is nested too deeply", file=file) from None
    except ValueError:
        raise InputError("is not JSON of nccl-tests: a number has thousands of digits", file=file) from None
    if not isinstance(data, dict):
        raise InputError(f"must be a JSON object, got {_kind_of_value(data)}", file=file, line=1)
    environment = data.pop("env", None)
    pinned: dict[str, str] = {}
    for entry in environment if isinstance(environment, list) else ():
        if isinstance(entry, str) and entry.startswith(("NCCL_ALGO=", "NCCL_PROTO=")):
            what, _, value = entry.removeprefix("NCCL_").partition("=")
            pinned |= pinned_setting(what, value)
    return data | {"pinned": pinned}


def _stated_values(data: Mapping[str, Any]) -> tuple[dict[str, object], str | None]:
    """Return the values of all rows, and the collective."""
    listed = data.get("args")
    args = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    name = collective_name(PurePosixPath(args[0]).name) if args else None
    average = next((args[at + 1] for at, one in enumerate(args[:-1]) if one in ("-a", "--average")), "1")
    config = data.get("config") if isinstance(data.get("config"), dict) else {}
    devices = data.get("devices", config.get("devices") if isinstance(config, dict) else None)
    ranks: set[int] = set()
    hosts: set[str] = set()
    for one in devices if isinstance(devices, list) else ():
        rank = _whole_number(one.get("rank")) if isinstance(one, dict) else None
        if rank is not None and rank < MAX_RANKS and _whole_number(one.get("group")) in (None, 0):
            ranks.add(rank)
            hosts.add(_short_text(one.get("hostname")))
    stated: dict[str, object] = {"statistic": RANK_STATISTICS.get(average, "mean")} | data["pinned"]
    if ranks:
        stated["ranks"] = len(ranks)
        stated["nodes"] = len(hosts)
    stated["iterations"] = _whole_number(config.get("iterations")) if isinstance(config, dict) else None
    return stated, name


def _printed_number(value: object, power: int) -> PrintedNumber | None:
    number = _json_number(value)
    return None if number is None else PrintedNumber(_scale_number(number, power), float(f"5e{power - 7}"))


def _scale_number(number: float, power: int) -> float:
    """Return a number in SI units without the rounding of a product."""
    return float(Decimal(repr(number)).scaleb(power))


def _json_number(value: object) -> float | None:
    """Return a number, also from a string; None if it is none or not finite."""
    if isinstance(value, str) and len(value) <= 60 and "_" not in value:
        try:
            value = float(value)
        except ValueError:
            return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, int) and abs(value) > MAX_WHOLE)
    ):
        return None
    return float(value) if math.isfinite(value) else None


def _whole_number(value: object) -> int | None:
    number = _json_number(value)
    return int(number) if number is not None and 0 <= number <= MAX_WHOLE and number == int(number) else None


def _short_text(value: object) -> str:
    return value[:60] if isinstance(value, str) else ""


def _kind_of_value(value: object) -> str:
    """Return the kind of a value without showing it: it may be a secret."""
    if value is None:
        return "nothing"
    if isinstance(value, bool | int | float):
        return str(value)[:40]
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
