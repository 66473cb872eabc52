"""Collectives in traces of the PyTorch profiler (Kineto), one file per rank.

A kernel of NCCL, RCCL or their kin carries in ``args``: ``Collective name``, ``In msg nelems``, ``Out msg nelems``,
``dtype``, ``Group size``, ``Process Group Name``, ``Seq``. In older traces the ``record_param_comms`` of the same
``External id`` has them. The time is that of the kernel. Other events are skipped, one at a time.

References
----------
PyTorch, ``torch/csrc/profiler/util.h`` (names of ``args``) and ``torch/csrc/distributed/c10d/ParamCommsUtils.hpp``;
pytorch/kineto, ``libkineto/src/output_json.cpp``.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simnet.base.checks import is_number
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers.conventions import PARTED_COLLECTIVES, collective_name
from simnet.cost_models.calibration.readers.jobs import finish_trace
from simnet.cost_models.calibration.readers.json_values import json_objects, read_count, read_rank_count, short_text
from simnet.cost_models.calibration.readers.lines import read_trace
from simnet.cost_models.calibration.readers.nccl_text import ELEMENT_BYTES
from simnet.cost_models.calibration.readers.tables import MAX_WHOLE, RowCollector, TableRow, format_reader

KINETO_WORDS = (b"traceEvents", b"distributedInfo", b"schemaVersion", b"deviceProperties")
"""Names at the top of a trace, of which its beginning has one."""

_EVENTS = re.compile(r'"traceEvents"\s{0,40}:\s{0,40}\[')

_SIZES = ELEMENT_BYTES | {"byte": 1, "bool": 1, "short": 2, "int16": 2, "float16": 2}
_SIZES |= {"float32": 4, "long": 8, "float64": 8, "complexfloat": 8}
_SUFFIX = re.compile(r"(?:_(?:base|into_tensor|tensor|coalesced|oop|async|single|list))+$")
_RANK = re.compile(r'"rank"\s{0,9}:\s{0,9}(\d{1,8})')
_META = "Collective name"


@format_reader("kineto")
def read_kineto(path: Path, out: RowCollector) -> Mapping[str, bool]:
    """Read a trace of the PyTorch profiler, packed with gzip or not."""
    text = read_trace(path)
    start = _EVENTS.search(text)
    if start is None and not text.lstrip().startswith("["):
        raise InputError("is no trace of the PyTorch profiler: it has no list traceEvents", file=out.file)
    rank = _trace_rank(text)
    asked: dict[int, Mapping[str, Any]] = {}
    kernels: list[tuple[int, float, Mapping[str, Any]]] = []
    for line, event in json_objects(text, out.file, start.end() if start else 0):
        args = event.get("args")
        if not isinstance(args, dict):
            continue
        name, number = short_text(event.get("name")), read_count(args.get("External id"))
        if event.get("name") == "record_param_comms" and _META in args and number is not None:
            asked[number] = args
        elif short_text(event.get("cat")).casefold() == "kernel" and (_META in args or "ccl" in name.casefold()):
            lasted = event.get("dur")
            if is_number(lasted):
                kernels.append((line, float(lasted), args))
    shared = Counter(read_count(args.get("External id")) for _, _, args in kernels if _META not in args)
    left: dict[str, tuple[int, int]] = {}
    for line, micros, own in kernels:
        number = read_count(own.get("External id"))
        args = own if _META in own else asked.get(number, {}) if number is not None and shared[number] == 1 else {}
        row = _kernel_row(args)
        if isinstance(row, str):
            first, count = left.get(row, (line, 0))
            left[row] = first, count + 1
            continue
        out.add(row | {"seconds": micros * 1e-6, "rank": rank}, line)
    for why, (line, count) in left.items():
        out.report(line, f"{why}; {count:,} such kernels")
    if not kernels and asked:
        raise InputError("has collectives, but no kernel of them, and so no times; profile with CUDA", file=out.file)
    return finish_trace(out)


def _kernel_row(args: Mapping[str, Any]) -> TableRow | str:
    """Return the collective in the arguments of a kernel, or why there is none."""
    said = short_text(args.get(_META))
    if not said:
        return "a kernel does not say which collective it is of"
    name = collective_name(_SUFFIX.sub("", said.casefold().lstrip("_")))
    if name is None:
        return f"{said[:40]!r} is no collective that is read"
    dtype = short_text(args.get("dtype")).casefold()
    each = 1 if "float8" in dtype else _SIZES.get(dtype)
    sent, got = read_count(args.get("In msg nelems")), read_count(args.get("Out msg nelems"))
    if not each or sent is None or got is None:
        return f"a kernel of {said[:40]!r} has no number and no type of elements"
    elements = max(sent, got) if name in PARTED_COLLECTIVES else sent
    return {
        "collective": name,
        "nbytes": min(elements * each, MAX_WHOLE),
        "dtype": dtype,
        "ranks": read_rank_count(args.get("Group size")),
        "group": _group_name(args),
        "sequence": read_count(args.get("Seq")),
        "statistic": "rank",
        "tool": "pytorch",
    }


def _group_name(args: Mapping[str, Any]) -> str:
    """Return the name of a group of ranks: its own, its description, and a number of its ranks."""
    ranks = str(args.get("Process Group Ranks", ""))
    numbers = ",".join(re.findall(r"\d+", ranks))
    name = " ".join(
        filter(None, (short_text(args.get("Process Group Name")), short_text(args.get("Process Group Description"))))
    )
    return f"{name[:80]} {zlib.crc32(numbers.encode()):08x}" if numbers else name[:80]


def _trace_rank(text: str) -> int | None:
    """Return the rank of a trace, or None."""
    at = text.find('"distributedInfo"')
    found = None if at < 0 else _RANK.search(text, at, at + 20_000)
    return int(found[1]) if found else None
