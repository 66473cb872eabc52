"""Reads collectives from job traces, one file per rank: PyTorch profiler (Kineto), NCCL inspector, Chakra.

A collective ends on all ranks at nearly the same time, but its kernel on one rank also waits for the others: the
shortest time of a call over ranks is its own. In older Kineto traces the ``record_param_comms`` of the same
``External id`` says what a kernel is of. Chakra traces do not say how many ranks a group has.
"""

# References: PyTorch, ``torch/csrc/profiler/util.h`` and ``torch/csrc/distributed/c10d/ParamCommsUtils.hpp``. NVIDIA,
# nccl, ``ext-profiler/inspector/inspector.cc``. mlcommons/chakra, ``schema/protobuf/et_def.proto``.

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from simnet.base.errors import InputError, is_number
from simnet.cost_models.calibration.readers import conventions, lines, tables
from simnet.cost_models.calibration.readers.nccl_text import ELEMENT_BYTES
from simnet.interchange.chakra import read_nodes

CALL_COLUMNS = ("group", "sequence", "rank")
"""Columns beyond those of every table: the group of ranks that did a call, which call of the group it was, and whose
time this is."""


_OF_RANKS = "times are those of single ranks, which wait for others inside"
WAITING_REMARK = f"{_OF_RANKS}; traces of all ranks tell the shortest of each"
"""Remark that readers of job traces report."""


def _report_waiting(out: tables.RowCollector) -> None:
    """If rows were read, report that their times are of single ranks and may include waiting."""
    if out.rows:
        out.report(None, WAITING_REMARK, dropped=False)


def merge_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Merge the rows of one call on several ranks into a single row: that of the rank with the shortest time.

    Rows without a call number are kept. Traces belong to one job if they are in one folder and state the same number of
    nodes; if a rank has a call number several times, its n-th call matches the n-th of the other ranks.
    """
    if not set(CALL_COLUMNS) <= set(rows) or rows["rank"].nunique() < 2:
        return rows
    known = rows["sequence"].notna() & rows["rank"].notna()
    keys = ["tool", "collective", "ranks", "nodes", "nbytes", "group", "sequence", "job"]
    calls = rows[known].assign(job=[str(PurePath(source).parent) for source in rows.loc[known, "source"]])
    calls["nth"] = calls.groupby([*keys, "rank"], dropna=False).cumcount()
    keys.append("nth")
    calls = calls.sort_values("seconds", kind="stable")
    grouped = calls.groupby(keys, dropna=False)
    shortest = calls[~calls.duplicated(keys)]
    shared = grouped["rank"].transform("nunique").reindex(shortest.index) > 1
    shortest = shortest[rows.columns].assign(statistic=shortest["statistic"].where(~shared, "min"))
    return pd.concat([rows[~known], shortest]).sort_index(kind="stable")


KINETO_WORDS = (b"traceEvents", b"distributedInfo", b"schemaVersion", b"deviceProperties")
"""Keys of which the beginning of a Kineto trace has at least one."""

_EVENTS = re.compile(r'"traceEvents"\s{0,40}:\s{0,40}\[')

_SIZES = ELEMENT_BYTES | {"byte": 1, "bool": 1, "short": 2, "int16": 2, "float16": 2}
_SIZES |= {"float32": 4, "long": 8, "float64": 8, "complexfloat": 8}
_SUFFIX = re.compile(r"(?:_(?:base|into_tensor|tensor|coalesced|oop|async|single|list))+$")
_KINETO_RANK = re.compile(r'"rank"\s{0,9}:\s{0,9}(\d{1,8})')
_META = "Collective name"


@tables.format_reader("kineto")
def read_kineto(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
    """Read a trace of the PyTorch profiler, packed with gzip or not."""
    text = lines.read_trace(path)
    start = _EVENTS.search(text)
    if start is None and not text.lstrip().startswith("["):
        raise InputError("is no trace of the PyTorch profiler: it has no list traceEvents", file=out.file)
    rank = _trace_rank(text)
    asked: dict[int, Mapping[str, Any]] = {}
    kernels: list[tuple[int, float, Mapping[str, Any]]] = []
    for line, event in lines.json_objects(text, out.file, start.end() if start else 0):
        args = event.get("args")
        if not isinstance(args, dict):
            continue
        name, kind = (lines.short_text(event.get(key)) for key in ("name", "cat"))
        lasted, number = event.get("dur"), lines.read_count(args.get("External id"))
        known = _META in args or "ccl" in name.casefold()
        if name == "record_param_comms" and _META in args and number is not None:
            asked[number] = args
        elif kind.casefold() == "kernel" and known and is_number(lasted):
            kernels.append((line, float(lasted), args))
    shared = Counter(lines.read_count(args.get("External id")) for _, _, args in kernels if _META not in args)
    left: dict[str, list[int]] = {}
    for line, micros, own in kernels:
        number = lines.read_count(own.get("External id"))
        args = own if _META in own else asked.get(number, {}) if number is not None and shared[number] == 1 else {}
        row = _kernel_row(args)
        if isinstance(row, str):
            left.setdefault(row, []).append(line)
        else:
            yield line, row | {"seconds": micros * 1e-6, "rank": rank}
    for why, places in left.items():
        yield places[0], f"{why}; {len(places):,} such kernels"
    if not kernels and asked:
        raise InputError("has collectives, but no kernel of them, and so no times; profile with CUDA", file=out.file)
    _report_waiting(out)


def _kernel_row(args: Mapping[str, Any]) -> tables.TableRow | str:
    """Return a table row from the arguments of a kernel event, or an error message."""
    said = lines.short_text(args.get(_META))
    if not said:
        return "a kernel does not say which collective it is of"
    name = conventions.collective_name(_SUFFIX.sub("", said.casefold().lstrip("_")))
    if name is None:
        return f"{said[:40]!r} is no collective that is read"
    dtype = lines.short_text(args.get("dtype")).casefold()
    each = 1 if "float8" in dtype else _SIZES.get(dtype)
    sent, got = lines.read_count(args.get("In msg nelems")), lines.read_count(args.get("Out msg nelems"))
    if not each or sent is None or got is None:
        return f"a kernel of {said[:40]!r} has no number and no type of elements"
    elements = max(sent, got) if name in conventions.PARTED_COLLECTIVES else sent
    return {
        "collective": name,
        "nbytes": min(elements * each, tables.MAX_WHOLE),
        "dtype": dtype,
        "group": _group_name(args),
        "statistic": "rank",
        "tool": "pytorch",
        **lines.record_values(args, "kineto"),
    }


def _group_name(args: Mapping[str, Any]) -> str:
    """Return a name for a process group, made of its name, its description, and a hash of its ranks."""
    numbers = ",".join(re.findall(r"\d+", str(args.get("Process Group Ranks", ""))))
    said = (lines.short_text(args.get(f"Process Group {what}")) for what in ("Name", "Description"))
    name = " ".join(filter(None, said))
    return f"{name[:80]} {zlib.crc32(numbers.encode()):08x}" if numbers else name[:80]


def _trace_rank(text: str) -> int | None:
    """Return the rank in a trace's field ``distributedInfo``; None if there is none."""
    at = text.find('"distributedInfo"')
    found = None if at < 0 else _KINETO_RANK.search(text, at, at + 20_000)
    return int(found[1]) if found else None


_INSPECTOR_PER_RANK = ("all_gather", "reduce_scatter")
# Half of the last digit of a bandwidth [GB/s].
_DIGITS = 5e-7


@tables.format_reader("inspector")
def read_inspector(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
    """Read the output of the NCCL inspector."""
    for line, entry in lines.json_objects(lines.read_trace(path), out.file):
        header, perf, what = entry.get("header"), entry.get("coll_perf"), "coll"
        if not isinstance(perf, dict):
            perf, what = entry.get("p2p_perf"), "p2p"
        if not isinstance(header, dict) or not isinstance(perf, dict):
            continue
        printed_name = lines.short_text(perf.get(what))
        name = "sendrecv" if what == "p2p" else conventions.collective_name(printed_name)
        nbytes = lines.read_count(perf.get(f"{what}_msg_size_bytes"))
        micros, rate = perf.get(f"{what}_exec_time_us"), perf.get(f"{what}_algobw_gbs")
        if name is None or nbytes is None or not is_number(micros):
            yield line, f"{printed_name[:40]!r} has no size and time that are read"
            continue
        algbw = tables.PrintedNumber(rate * 1e9, _DIGITS * 1e9) if is_number(rate) and 0 < rate < 1e9 else None
        row = lines.record_values(header, "inspector") | {
            "sequence": lines.read_count(perf.get(f"{what}_sn")),
            "collective": name,
            "nbytes": nbytes,
            "size_convention": "per_rank" if name in _INSPECTOR_PER_RANK else conventions.nccl_convention(name),
            "statistic": "rank",
            "tool": "nccl",
            # Times are whole microseconds, and bandwidths those of the time before it was rounded down.
            "seconds": tables.PrintedNumber(micros * 1e-6, 1e-6),
            "algbw": algbw,
        }
        yield line, row
    _report_waiting(out)


_CHAKRA_PER_RANK = ("all_gather", "gather")
_ATTRIBUTE = b"\x12"
_CHAKRA_RANK = re.compile(r"\.(\d{1,8})\.et(?:\.gz)?$")


def is_chakra(head: bytes) -> bool:
    """Return whether a file starts like a Chakra trace: with metadata that contain a version such as 1.0.0."""
    begins = re.match(rb"([\x80-\xff]{0,4}[\x00-\x7f])\n([\x05-\x0e])", head)
    if begins is None:
        return False
    said = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(begins[1]))
    start, length = begins.end(), ord(begins[2])
    version = re.fullmatch(rb"\d{1,4}\.\d{1,4}\.\d{1,4}", head[start : start + length])
    # The metadata ends with the version, or goes on with an attribute.
    return version is not None and (
        said == 2 + length or (said > 2 + length and head[start + length : start + length + 1] == _ATTRIBUTE)
    )


@tables.format_reader("chakra")
def read_chakra_collectives(path: Path, out: tables.RowCollector) -> Iterator[tuple[Any, ...]]:
    """Read the collectives of a Chakra execution trace."""
    rank = _CHAKRA_RANK.search(path.name)
    for one in read_nodes(path):
        if one.kind != "collective":
            continue
        name = conventions.collective_name(one.collective)
        where = f"node {one.number}"
        if name is None:
            yield None, f"{where}: {one.collective or one.name!r} is no collective that is read"
            continue
        nbytes = 0 if one.nbytes == -1 else one.nbytes
        if nbytes < 0:
            yield None, f"{where}: its size is {nbytes} bytes"
            continue
        row = {
            "collective": name,
            "nbytes": min(nbytes, tables.MAX_WHOLE),
            "size_convention": "per_rank" if name in _CHAKRA_PER_RANK else conventions.nccl_convention(name),
            "seconds": one.micros * 1e-6,
            "group": one.group,
            "sequence": None,
            "rank": int(rank[1]) if rank else None,
            "statistic": "rank",
            "tool": "chakra",
        }
        yield None, row, where
    _report_waiting(out)
