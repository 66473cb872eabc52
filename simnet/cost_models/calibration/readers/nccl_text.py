"""Reads the text output of nccl-tests and rccl-tests; each row has the out-of-place and in-place times of one size.

Older versions have no ``redop`` or ``root`` where the collective has none, and the largest error instead of the number
of wrong elements; with ``-I 1`` each side ends in ``i_min i_max i_p99 i_cv%``, with ``-S 1`` the row in a timestamp.
Anything may stand between the rows. Numbers may tell what no line says: size over ``count``, which is per rank in an
all-gather, is the number of ranks; bus over algorithm bandwidth is 2 (P - 1) / P in an all-reduce.

Records, too: of nccl-tests (``-J``, versions 1 to 3) and of rccl-tests (``-Z json``, ``-Z csv``). The JSON of
nccl-tests also holds the environment of the job, keys and passwords included, the names of its hosts and its command
line. Two settings (``NCCL_ALGO``, ``NCCL_PROTO``) and counts are taken from these; the rest is dropped after parsing
and appears in no table, message or error. Its truth values are strings, what is no number is ``"nan"``. rccl-tests
writes one record for each side of each size; older versions have no numbers of nodes and ranks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import conventions, lines, tables
from simnet.cost_models.calibration.readers.conventions import collective_name, named_collective
from simnet.cost_models.calibration.readers.csv_tables import csv_records
from simnet.cost_models.calibration.readers.lines import bare_lines

ELEMENT_BYTES = {"int8": 1, "uint8": 1, "char": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
ELEMENT_BYTES |= {"half": 2, "bfloat16": 2, "f16": 2, "int32": 4, "uint32": 4, "int": 4, "float": 4, "f32": 4}
ELEMENT_BYTES |= {"int64": 8, "uint64": 8, "double": 8, "f64": 8}
"""Types that a row may begin with, and bytes of an element of each."""

NCCL_ALGORITHMS = frozenset(("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"))
"""Algorithms of NCCL, as a setting may pin them."""

RANK_STATISTICS = {"0": "rank0", "1": "mean", "2": "min", "3": "max"}
"""Statistic over ranks that times are, by the tests' option ``-a``."""

NCCL_PROTOCOLS = frozenset(("ll", "ll128", "simple"))
"""Protocols of NCCL."""

_HEAD = re.compile(r"\s*(\d{1,19})\s+(\d{1,19})\s+([a-z][a-z0-9_]{2,11})(?:\s+(.*))?$")
_NUMBER = re.compile(
    r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,3})?|N/A|[-+]?nan|[-+]?inf", re.ASCII
)
_ROOT = re.compile(r"-?[0-9]{1,9}")
_OPERATION = re.compile(r"[a-z][a-z0-9_]{1,11}")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_PROGRAM = re.compile(
    r"(?<![A-Za-z_])((?:all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoallv?|sendrecv|gather|scatter"
    r"|hypercube)_perf)(?![A-Za-z_])"
)
_RANK = re.compile(r"#\s+Rank\s+(\d{1,8})\s+(?:Group\s+(\d{1,8})\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
_ITERATIONS = re.compile(r"(?<!warmup )(?<!agg )iters:\s{0,9}(\d{1,12})")
_EXCERPT = re.compile(r"#.*\bnranks=(\d{1,8})\b(?:.*\bnnodes=(\d{1,8})\b)?")
_NCCL_RANKS = re.compile(r"\bnranks (\d{1,8})\b")
_CHOICE = re.compile(r"\bNCCL_(ALGO|PROTO)(?:=| set by environment to )([A-Za-z0-9_]{2,20})(?![\w,;:^])")
_AVERAGE = re.compile(r"_perf\b.* (?:-a|--average)[ =]?([0-3])(?!\S)")
_MESSAGE = re.compile(r"[A-Za-z][\w.-]{0,200}:\d{1,9}:\d{1,9}\s{1,9}(?:\[\d{1,4}\]\s+)?NCCL (?:INFO|WARN|TRACE)\b.*")
# In CSV and Markdown.
_BETWEEN_CELLS = re.compile(r"[,|]")
_OLD_HEADER = re.compile(r"#\s*bytes\s+N\s+type\b")


CPU_TIMES = "is the time of the CPU, which returns before the collective is done; run without -C 1"
"""Why times of a run with ``--report_cputime`` are none of the collective."""

NCCL_ANCHOR = re.compile(
    r"#[^\n#]{0,200}\b(?:cpu)?time\b[^\n#]{0,80}\balgbw\b"
    r"|(?<![\d.])\d{1,19}[ \t,|]+\d{1,19}[ \t,|]+(?:(?:" + "|".join(ELEMENT_BYTES) + r")[ \t,|]"
    r"|[a-z][a-z0-9_]{2,11}[ \t]+(?:[a-z][a-z0-9_]{1,11}[ \t]+)?(?:[\d.]{1,20}[ \t]+){3})"
)
"""The line that names the columns of a table, or the first cells of a row."""


class TableCells(NamedTuple):
    """A table row of nccl-tests or rccl-tests, with cells as printed."""

    nbytes: int
    elements: int
    dtype: str
    reduction: str
    root: int | None
    sides: Sequence[tuple[bool, Sequence[str]]]
    """For each side, whether it is in place, and its printed numbers."""


@dataclass
class _TableContext:
    """Values that apply to a table, read from the lines above it."""

    collective: str | None = None
    named_in_use: bool = False
    groups: dict[int, set[int]] = field(default_factory=dict)
    hosts: dict[int, set[str]] = field(default_factory=dict)
    stated_ranks: int | None = None
    stated_nodes: int | None = None
    iterations: int | None = None
    statistic: str = "mean"
    choices: dict[str, str] = field(default_factory=dict)
    unit: int = -6
    counts_wrong: bool = True
    width: int | None = None
    cpu_times: bool = False

    def restart(self) -> None:
        """Clear the values of the previous test."""
        if self.named_in_use:
            self.collective, self.named_in_use = None, False
        self.groups, self.hosts = {}, {}
        self.stated_ranks = self.stated_nodes = self.iterations = None
        self.unit, self.width, self.counts_wrong, self.cpu_times = -6, None, True, False

    def facts(self) -> dict[str, int | None]:
        """Return ranks, nodes and iterations of the test, or of its first group if the run was split into groups."""
        first = min(self.groups, default=None)
        ranks, nodes = self.stated_ranks, self.stated_nodes
        if first is not None:
            members = self.groups[first]
            ranks = max(members) + 1 if len(self.groups) == 1 else len(members)
            nodes = len(self.hosts[first]) if ranks == len(members) else None
        return {"ranks": ranks, "nodes": nodes, "iterations": self.iterations}


@tables.format_reader("nccl")
def read_nccl_text(path: Path, out: tables.RowCollector) -> Iterator[tuple[Any, ...]]:
    """Read the output of nccl-tests or rccl-tests."""
    context, tool, ended = _TableContext(), "nccl-tests", True
    blocks: list[tuple[_TableContext, list[tuple[int, TableCells]]]] = []
    for at, line in _whole_rows(bare_lines(path, NCCL_ANCHOR)):
        cells = parse_row(line, context.width)
        if isinstance(cells, TableCells) and context.cpu_times:
            yield at, f"cputime {CPU_TIMES}"
        elif isinstance(cells, TableCells):
            if ended:
                context.named_in_use, ended = True, False
                blocks.append((deepcopy(context), []))
            blocks[-1][1].append((at, cells))
        elif cells is not None:
            yield at, cells
        else:
            tool = "rccl-tests" if "rccl" in line.casefold() else tool
            ended = _read_context(line, context) or ended
    for number, (above, listed) in enumerate(blocks, 1):
        name, stated = _table_facts(above, listed, conventions.named_collective(path.name), out)
        common: tables.TableRow = {key: value for key, value in stated.items() if value is not None}
        common |= above.choices | {"tool": tool, "run": str(number)}
        for at, cells in listed:
            for row in _side_rows(cells, name, above):
                yield at, row | common, "in place" if row["in_place"] else "out of place"
    out.problems.sort(key=lambda one: one.line or 0)


def _whole_rows(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield lines, with table rows rejoined that NCCL messages interrupted; each message becomes a line of its own."""
    row: tuple[int, str] | None = None
    for at, line in lines:
        message = _MESSAGE.search(line)
        part = line if message is None else line[: message.start()]
        if message is not None:
            yield at, message[0]
        if row is not None and all(_NUMBER.fullmatch(word) for word in part.split()):
            row = row[0], f"{row[1]} {part}"
            continue
        if row is not None:
            yield row
        row = (at, part) if message is not None and _HEAD.match(part) else None
        if row is None and (message is None or part.strip()):
            yield at, part
    if row is not None:
        yield row


def _table_facts(
    above: _TableContext, listed: Sequence[tuple[int, TableCells]], named: str | None, out: tables.RowCollector
) -> tuple[str, dict[str, int | None]]:
    """Return collective, ranks, nodes and iterations of a table, from the lines above it or inferred from its rows."""
    line, rows = listed[0][0], [cells for _, cells in listed]
    name = above.collective or named or _infer_collective(rows) or out.facts.get("collective")
    if not isinstance(name, str):
        out.refuse("does not say which collective this is; give it, as collective=all_reduce", line)
    stated = above.facts()
    unknown = stated["ranks"] is None
    ranks = None if unknown and "ranks" in out.facts else _infer_ranks(rows, name, stated["ranks"])
    if ranks is not None:
        why = "no line says how many ranks" if unknown else "the list of ranks is cut"
        out.report(line, f"{why}; sizes, counts and bandwidths say {ranks}", dropped=False)
        stated |= {"ranks": ranks, "nodes": above.stated_nodes}
    return name, stated


def parse_row(line: str, width: int | None = None) -> TableCells | str | None:
    """Return the cells of a table row, an error message for a damaged row, or None for a line that is not a row.

    `width` is the number of columns of each side in the header; by default 4, or 8 where there are that many.
    """
    text = _BETWEEN_CELLS.sub(" ", line).rstrip()
    head = _HEAD.match(text[:-19].rstrip() if _STAMP.fullmatch(text[-19:]) else text)
    if head is None:
        return None
    rest = head[4] or ""
    words = rest.split()
    certain = head[3] in ELEMENT_BYTES
    reduction = ""
    if words and not _NUMBER.fullmatch(words[0]) and _OPERATION.fullmatch(words[0]):
        reduction = words.pop(0)
    if not certain and (len(words) < 4 or not all(_NUMBER.fullmatch(word) for word in words)):
        return None
    numbers = words[: next((k for k, word in enumerate(words) if not _NUMBER.fullmatch(word)), len(words))]
    each = width or (8 if len(numbers) > 9 else 4)
    rooted = len(numbers) % each == 1 and _ROOT.fullmatch(numbers[0]) is not None
    values = numbers[1:] if rooted else numbers
    nbytes, elements = tables.parse_whole(head[1]), tables.parse_whole(head[2])
    noisy = len(numbers) != len(words)
    if nbytes is None or elements is None or len(values) not in (each, 2 * each) or (noisy and len(values) == each):
        most = 2 * each
        whole = f"a whole one {most}, or {most + 1} with root"
        return f"the row has {len(numbers)} numbers after type and operation; {whole}"
    root = int(numbers[0]) if rooted and int(numbers[0]) >= 0 else None
    sides = [(False, values[:each]), (True, values[each:])]
    if len(values) == each:
        gap = re.search(r"\s{24,}\S", rest)
        sides = [(gap is not None, values)]
    return TableCells(nbytes, elements, head[3], reduction.replace("none", ""), root, sides)


def _read_context(line: str, context: _TableContext) -> bool:
    """Update the context with values stated in a line; return whether the line begins another table."""
    starts = "nThread" in line or "Collective test starting" in line
    if starts:
        context.restart()
    if "Collective test concluded" in line:
        return False
    cells = _BETWEEN_CELLS.sub(" ", line).replace("timestamp", "").replace("cputime", "time").split()
    excerpt, heads = _EXCERPT.match(line.lstrip()), {"algbw", "busbw", "time"} <= set(cells)
    if excerpt:
        context.restart()
        ranks, nodes = (tables.parse_whole(one or "", tables.MAX_RANKS) for one in excerpt.groups())
        context.stated_ranks, context.stated_nodes = ranks, nodes
        context.collective = conventions.named_collective(line.rpartition("|")[2]) or context.collective
    programs = set(_PROGRAM.findall(line))
    if len(programs) == 1:
        context.collective, context.named_in_use = conventions.collective_name(*programs), False
        average = _AVERAGE.search(line)
        context.statistic = RANK_STATISTICS[average[1] if average else "1"]
    if "iters:" in line and (iterations := _ITERATIONS.search(line)):
        context.iterations = int(iterations[1])
    if "Rank" in line and (rank := _RANK.search(line)):
        group = int(rank[2] or 0)
        context.groups.setdefault(group, set()).add(min(int(rank[1]), tables.MAX_RANKS))
        context.hosts.setdefault(group, set()).add(rank[3])
    if "NCCL INFO" in line and context.stated_ranks is None and (ranks_said := _NCCL_RANKS.search(line)):
        context.stated_ranks = int(ranks_said[1])
    if "NCCL_" in line:
        for what, value in _CHOICE.findall(line):
            context.choices |= pinned_setting(what, value)
    if heads:
        context.unit = -3 if _OLD_HEADER.search(line) else -6
        context.cpu_times = "cputime" in line
        first = cells.index("time")
        context.width = cells[first + 1 :].index("time") + 1 if cells.count("time") > 1 else len(cells) - first
        context.counts_wrong = "wrong" in line
    if not line.lstrip().startswith("#"):
        return bool(programs)
    return starts or heads or excerpt is not None or "Using devices" in line


def pinned_setting(what: str, value: str) -> dict[str, str]:
    """Return the column and value pinned by ``NCCL_ALGO`` or ``NCCL_PROTO``; {} if NCCL has no such value."""
    word = value.casefold().replace("_", "")
    if what == "ALGO":
        return {"algorithm": word} if word in NCCL_ALGORITHMS else {}
    return {"protocol": word} if word in NCCL_PROTOCOLS else {}


def _side_rows(cells: TableCells, name: str, context: _TableContext) -> Iterator[tables.TableRow]:
    """Yield two table rows for a printed row: the out-of-place times and the in-place times."""
    for in_place, words in cells.sides:
        error = tables.parse_printed(words[3]) if len(words) > 3 else None
        row: tables.TableRow = {
            "collective": name,
            "nbytes": cells.nbytes,
            "dtype": cells.dtype,
            "reduction": cells.reduction,
            "root": cells.root,
            "in_place": in_place,
            "statistic": context.statistic,
            "seconds": tables.parse_printed(words[0], context.unit),
            "algbw": tables.parse_printed(words[1], 9),
            "busbw": tables.parse_printed(words[2], 9),
        }
        if error is not None:
            count = context.counts_wrong and error.value == int(error.value) and "e-" not in words[3]
            row["wrong" if count else "max_error"] = error.value
        if len(words) == 8:
            printed = (tables.parse_printed(word, context.unit) for word in words[4:7])
            row |= zip(("seconds_min", "seconds_max", "seconds_p99"), printed, strict=True)
        yield row


def _infer_collective(rows: Sequence[TableCells]) -> str | None:
    """Return the only collective that fits counts, roots, operations and bandwidths of rows; None if unclear."""
    shares = {share for cells in rows if (share := _size_per_count(cells)) is not None}
    reduces, rooted = rows[0].reduction != "", rows[0].root is not None
    if _bandwidth_ratios(rows)[0] > 1.001:
        return "all_reduce"
    if len(shares) != 1 or any((one.reduction != "", one.root is not None) != (reduces, rooted) for one in rows):
        return None
    if shares == {1}:
        return {(True, False): "all_reduce", (True, True): "reduce", (False, True): "broadcast"}.get((reduces, rooted))
    return "reduce_scatter" if reduces and not rooted else None


def _infer_ranks(rows: Sequence[TableCells], name: str, stated: int | None) -> int | None:
    """Return the number of ranks that sizes or bandwidths imply; None if unclear, or if `stated` is valid."""
    shares = {share for cells in rows if (share := _size_per_count(cells)) is not None}
    found = shares.pop() if len(shares) == 1 and name in conventions.PARTED_COLLECTIVES else None
    low, high = _bandwidth_ratios(rows)
    # No number of ranks has twice the algorithm bandwidth.
    if name == "all_reduce" and low < 2:
        least, most = math.ceil(2 / (2 - low)), 2 / (2 - high) if high < 2 else math.inf
        found = least if least == math.floor(min(most, tables.MAX_RANKS)) else None
    if found is None or found < 2:
        return None
    return found if stated is None or (stated < found and len(rows) > 1) else None


def _size_per_count(cells: TableCells) -> int | None:
    """Return the ratio of a row's size to the bytes of its element count; None if it is not a whole number."""
    each = ELEMENT_BYTES.get(cells.dtype)
    if each is None or not cells.elements or cells.nbytes % (each * cells.elements):
        return None
    return cells.nbytes // (each * cells.elements)


def _bandwidth_ratios(rows: Sequence[TableCells]) -> tuple[float, float]:
    """Return bounds of the ratio of bus to algorithm bandwidth, given the rounded bandwidths in all rows."""
    low, high = 0.0, math.inf
    for cells in rows:
        for _, words in cells.sides:
            algbw, busbw = tables.parse_printed(words[1]), tables.parse_printed(words[2])
            if algbw is not None and busbw is not None and algbw.value >= 20 * algbw.half > 0:
                low = max(low, (busbw.value - busbw.half) / (algbw.value + algbw.half))
                high = min(high, (busbw.value + busbw.half) / (algbw.value - algbw.half))
    return low, high


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
            if "cpu_time" in body:
                yield None, f"{where}.{side}.cpu_time {CPU_TIMES}"
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
