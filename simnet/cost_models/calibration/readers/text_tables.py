"""Reads the tables in the text output of benchmarks, by the names of their columns.

``data/text_tables.csv`` has the benchmarks, with what heads their tables, and ``data/log_columns.csv`` their columns.
"""

# References: pytorch/gloo, ``gloo/benchmark/runner.cc``. facebookresearch/param, ``train/comms/pt/comms.py``.
# openucx/ucc, ``tools/perf/ucc_pt_benchmark.cc``. DeepSpeedExamples, ``benchmarks/communication``; DeepSpeed,
# ``deepspeed/utils/comms_logging.py``. Ascend, HCCL Test User Guide. microsoft/mscclpp, ``test/mscclpp-test/common.cc``
# and ``python/mscclpp_benchmark``. esnet/iperf, ``src/iperf_locale.c``. iputils, ``ping/ping_common.c``.

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from simnet.base.file_io import read_shipped_rows
from simnet.cost_models.calibration.readers import conventions, lines, tables


class TextTable(NamedTuple):
    """The layout of a benchmark's text output, from a row of ``data/text_tables.csv``."""

    what: str
    """Whose output it is, and of which releases."""

    anchor: re.Pattern[str]
    """The line that names the columns, or rows with named groups, where these are no words in columns."""

    above: re.Pattern[str]
    """What lines say of the rows below, in groups named as columns of the table, or as what a variant counts."""

    title: re.Pattern[str] | None
    """The line that begins another benchmark, of which nothing is known that was said before."""

    heads: Sequence[str]
    """Names of the columns, where the line of the anchor does not name them one by one."""

    unnamed: Sequence[Sequence[str]]
    """Names of the columns of tables without such a line, of which some have as many."""

    wanted: Sequence[str]
    """Patterns of rows that count; the first that fits any row, and all rows if none does."""

    same: tables.TableRow
    """What holds for all rows."""

    sizes: str
    """Whose convention sizes follow: "nccl", "mpi", or "gathered", nccl's but per rank in an all-gather."""

    names: re.Pattern[str]
    """Names of files with tables that nothing else tells of."""

    @property
    def headings(self) -> re.Pattern[str]:
        """Pattern for the start of a table's heading or rows, which identifies the format."""
        return self.anchor if self.title is None else re.compile(f"{self.title.pattern}|{self.anchor.pattern}", re.M)

    def size_convention(self, name: str) -> str:
        """Return this benchmark's convention for the size of a collective."""
        if self.sizes == "gathered" and name.startswith("all_gather"):
            return "per_rank"
        return conventions.mpi_convention(name) if self.sizes == "mpi" else conventions.nccl_convention(name)


def _text_table(row: Mapping[str, str]) -> TextTable:
    ranks = tables.parse_whole(row["ranks"])
    same: tables.TableRow = {"statistic": row["statistic"], "tool": row["format"].partition("-")[0]}
    same |= {"collective": row["collective"], "ranks": ranks, "nodes": ranks} if ranks else {}
    same |= {"in_place": False} if row["title"] else {}
    anchor, above, names = (re.compile(row[name] or r"(?!)", re.M) for name in ("anchor", "above", "names"))
    heads, wanted = (row[name].split(";") if row[name] else () for name in ("heads", "wanted"))
    unnamed = [one.split(";") for one in row["unnamed"].split("|")]
    title = re.compile(row["title"], re.M) if row["title"] else None
    return TextTable(row["what"], anchor, above, title, heads, unnamed, wanted, same, row["sizes"], names)


TEXT_TABLES = {row["format"]: _text_table(row) for row in read_shipped_rows("data/text_tables.csv")}
"""The tables by the name of their format."""

_CELL = re.compile(r"[^\s|]+(?: (?:[KMGT]?i?B|[mun]?s)(?![^\s|]))?")
_UNIT_HEAD = re.compile(
    r"(?:#\w[\w/]*|[A-Za-z_][\w/]*(?: (?:average\b|\w+(?=\[)))?)(?:\[[^\]]*\])?|\d[\d.]*% percentile\[usec\]"
)
_FAILED = re.compile(r"\b(?:failed|FAIL|Fail)\b")
_TYPES = {"CHAR": "int8", "INT": "int32"}
_RATE = "MsgRate[Mpps]"
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
# Messages of the size that a process sends and receives in the time, as throughputs of Intel MPI benchmarks count.
_MESSAGES = {"p2p_latency": 1, "pingping": 1, "sendrecv": 2, "exchange": 4}


def _read(kind: str, path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
    """Yield the rows of a benchmark's tables."""
    table, titled = TEXT_TABLES[kind], TEXT_TABLES[kind].title is not None
    numbered = list(lines.bare_lines(path, table.headings))
    found = [line for _, line in numbered if table.anchor.search(line)] if table.anchor.groups else []
    wanted = next((one for one in table.wanted if any(re.search(one, line) for line in found)), "")
    stated, heads, run, reported = dict(table.same), table.heads[:0], int(titled), False
    launched: dict[str, int] = {}
    for at, line in [(0, path.name)] * titled + numbered:
        launched = lines.launch_facts(line) or launched
        for said in (*(table.title.finditer(line) if table.title else ()), *table.above.finditer(line)):
            values = _stated_values(said.groupdict(), titled)
            if titled and "collective" in values:
                lasting = ("dtype", "reduction") if "reduction" in stated else ()
                stated = table.same | {name: stated.get(name, "") for name in lasting}
                heads, run, reported = (), run + (at > 0), False
            stated |= values
        if not table.anchor.groups and table.anchor.search(line):
            heads = table.heads or _column_names(line)
            run, reported = run + (not titled), False
            continue
        named = stated.get("variant") or None
        name = stated.get("collective") or (None if named else _given_collective(path, out))
        row = _table_row(kind, line, heads, stated, str(name or ""))
        if isinstance(row, str):
            yield at, row
        elif row and name is None:
            if not reported:
                why = "nothing says of which collective; give it, as collective=all_reduce"
                yield at, f"a table begins, but {why if named is None else f'{named!r} is no collective that is read'}"
            reported = True
        elif row and re.search(wanted, line):
            if stated.get("reduction") and name not in _REDUCING:
                row |= {"dtype": "", "reduction": ""}
            row = stated | row | {"collective": name, "size_convention": table.size_convention(str(name))}
            placed = launched if row.get("ranks") in (None, launched.get("ranks", row.get("ranks"))) else {}
            yield at, placed | row | {"run": str(run or 1)}


def _column_names(line: str) -> list[str]:
    return _UNIT_HEAD.findall(line.replace("# ", "#")) if "[" in line else lines.HEADS.split(line.strip(" \t#|"))


def _given_collective(path: Path, out: tables.RowCollector) -> str | None:
    given = out.facts.get("collective")
    return conventions.named_collective(path.name) or (given if isinstance(given, str) else None)


def _stated_values(groups: Mapping[str, str | None], titled: bool) -> tables.TableRow:
    """Return the column values stated above a table; the name of an unknown collective becomes the ``variant``."""
    row: tables.TableRow = {}
    for column, text in groups.items():
        form = tables.TABLE_COLUMNS.get(column)
        if not text:
            continue
        if column == "collective" and titled:
            row["collective"], row["variant"] = conventions.named_benchmark(text)
        elif column == "collective":
            plain = conventions.collective_name(text)
            row["collective"] = plain or conventions.named_collective(text)
            row["variant"] = "" if plain else text.casefold()
        elif form == "text":
            row[column] = _TYPES.get(text, text.lower() if text.isupper() else text)
        elif (number := tables.parse_whole(text, tables.largest_whole(column if form else "ranks"))) is not None:
            counted = f"{number} {column.replace('_', ' ')}" if number > 1 else ""
            row |= {column: number} if form else {"variant": counted}
    return row


def _row_cells(kind: str, line: str, heads: Sequence[str], name: str, variant: str) -> dict[str, str]:
    """Return the cells of a row by column; {} for a line that is not a row."""
    table, words = TEXT_TABLES[kind], _CELL.findall(line)
    if table.anchor.groups:
        found = table.anchor.search(line)
        return {head: text or "" for head, text in found.groupdict().items()} if found else {}
    cells = dict(zip(heads or _unnamed_columns(kind, words, name, variant), words, strict=False))
    if table.title is None:
        return cells if len(words) > 1 else {}
    benchmark = cells.get("#Benchmarking")
    starts = tables.parse_printed("".join(words[:1])) is not None
    return cells if (starts if benchmark is None else conventions.named_benchmark(benchmark)[0] == name) else {}


def _unnamed_columns(kind: str, words: Sequence[str], name: str, variant: str) -> Sequence[str]:
    """Return the columns of a table without headings, chosen by the number and kind of its values; () if unknown."""
    columns, overlaps = tables.log_columns(kind), variant == conventions.NON_BLOCKING
    for heads in TEXT_TABLES[kind].unnamed if "." in "".join(words) else ():
        rates = any("MB/s" in head for head in heads)
        if len(heads) == len(words) and rates == name.endswith("bw") and ("Overall(us)" in heads) == overlaps:
            read = (columns[head].value if head in columns else tables.parse_printed for head in heads)
            return heads if all(one(word) is not None for one, word in zip(read, words, strict=True)) else ()
    return ()


def _table_row(
    kind: str, line: str, heads: Sequence[str], stated: tables.TableRow, name: str
) -> tables.TableRow | str | None:
    """Return the values of a row, an error message if size or time is missing, or None for a line that is not a row."""
    table, columns, variant = TEXT_TABLES[kind], tables.log_columns(kind), str(stated.get("variant") or "")
    cells = _row_cells(kind, line, heads, name, variant)
    row = tables.cell_values(cells, kind)
    short = bool(table.title and heads) and len(cells) < len(heads) - (heads[-1] == _RATE)
    if table.title and not any(head in columns and columns[head].name == "nbytes" for head in cells):
        row["nbytes"] = 0
    size, rate = row.setdefault("nbytes", stated.get("nbytes")), row.get("algbw")
    if isinstance(size, int) and isinstance(rate, float) and rate > 0:
        row["seconds"] = size / rate
    row.setdefault("seconds", row.get("seconds_p50"))
    if isinstance(size, int) and row["seconds"] is not None and not short:
        row |= {"wrong": 1.0} if _FAILED.search(line) else {}
        return (name and _contradiction(cells, size, name)) or row | _of_pairs(row, name, stated)
    if not table.anchor.groups and tables.parse_printed(next(iter(cells.values()), "")) is not None:
        said = f"the row has {len(_CELL.findall(line))} values under {len(heads)} columns"
        return f"{said}: its size or its time is no number"
    return None


def _of_pairs(row: tables.TableRow, name: str, stated: tables.TableRow) -> tables.TableRow:
    """Return the ranks of a test in which pairs of ranks send at the same time, and one pair's rate and time."""
    variant, rate, seconds = str(stated.get("variant") or ""), row.get("algbw"), row["seconds"]
    if stated.get("ranks") or variant == conventions.SEVERAL_PAIRS or not name.endswith(("_latency", "bw")):
        return {}
    pairs = int(variant.removesuffix(" pairs")) if re.fullmatch(r"\d+ pairs", variant) else 1
    if isinstance(rate, float) and isinstance(seconds, float):
        return {"ranks": 2 * pairs, "seconds": seconds * pairs, "algbw": rate / pairs}
    return {"ranks": 2 * pairs}


def _contradiction(cells: Mapping[str, str], size: int, name: str) -> str | None:
    """Return an error message if a row's rate contradicts its times or message rate; None if they are consistent."""
    printed = {head: number for head, text in cells.items() if (number := tables.parse_printed(text)) is not None}
    number, unit = printed.get(_RATE), next((head for head in printed if head.startswith("BW average")), "")
    if number is not None and unit and size:
        rate, byte = printed[unit], 8e-9 if "Gb" in unit else 2.0**-20
        low, high = ((number.value + sign * number.half) * 1e6 * size * byte for sign in (-1, 1))
        if not rate.may_be_within(low, high):
            return f"{rate.value:g} is not {number.value:g} million messages of {size} bytes a second"
    time = printed.get("t_max[usec]", printed.get("t[usec]"))
    if "Mbytes/sec" not in printed or time is None or time.value <= 0 or name not in _MESSAGES:
        return None
    rate, sent = printed["Mbytes/sec"], float(_MESSAGES[name] * size)
    if "Msg/sec" in printed:
        sent *= max(round(min(printed["Msg/sec"].value * time.value / 1e6, tables.MAX_WHOLE)), 1)
    low, high = (sent / (time.value + sign * time.half) * 1e6 for sign in (1, -1))
    if any(rate.may_be_within(low / megabyte, high / megabyte) for megabyte in (1e6, 2**20)):
        return None
    found = f"{sent:g} bytes in {time.value / 1e6:.5g} s are {sent / time.value:.5g}"
    return f"throughput is {rate.value:g} MB/s, but {found}"


def _text_reader(kind: str, what: str) -> Callable[..., tables.Measurements]:
    def fill(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
        return _read(kind, path, out)

    fill.__doc__ = what
    return tables.format_reader(kind)(fill)


TEXT_READERS = {kind: _text_reader(kind, one.what) for kind, one in TEXT_TABLES.items()}
"""Readers of the tables by the name of their format."""


@tables.format_reader("iperf3")
def read_iperf3_json(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
    """Read the JSON output of iperf3 (``-J``)."""
    for line, result in lines.json_objects(lines.read_trace(path), out.file):
        end = result.get("end")
        ends: dict[str, object] = end if isinstance(end, dict) else {}
        row = lines.record_values(ends.get("sum_received", sent := ends.get("sum")), "iperf3-json")
        # Up to version 3.9, UDP has but one sum: what was sent, and the share of it that was lost.
        lost = sent.get("lost_percent") if isinstance(sent, dict) and "sum_received" not in ends else 0
        if "nbytes" in row and isinstance(lost, int | float) and 0 < lost <= 100:
            row["nbytes"] = round(cast(int, row["nbytes"]) * (1 - lost / 100))
        if not {"nbytes", "seconds"} <= row.keys():
            why = lines.short_text(result.get("error")) or "no end.sum_received with bytes and seconds"
            yield line, f"has no result: {why}"
        else:
            yield line, row | TEXT_TABLES["iperf3"].same
