"""Output of the OSU micro-benchmarks: collectives, and point-to-point messages of ranks or pairs.

``# OSU MPI Allreduce Latency Test v7.5`` heads a table whose columns its second line names; ``-f`` adds the fastest and
the slowest rank and the number of iterations. Only the command that started it tells the number of ranks. Of
non-blocking collectives ``Pure Comm.`` is the time of a call and its wait, with nothing computed between. A table
without heading is of the program in the line above or in the name of the file.
"""

# References: OSU Micro-Benchmarks, ``c/mpi/collective`` and ``c/util/osu_util_mpi.c``.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from simnet.cost_models.calibration.readers import conventions, tables
from simnet.cost_models.calibration.readers.lines import HEADS, bare_lines, launch_facts

OSU_TITLE = re.compile(r"#[ \t]*OSU (?:One Sided )?(MPI|[A-Za-z]{0,4}CCL)(\S{0,30}) (.{1,60}?)(?: [Ll]atency)? Test\b")
"""The title line of a table."""

OSU_ANCHOR = re.compile(OSU_TITLE.pattern + r"|#[ \t]*(?:Transfer )?Size[ \t]")
"""The title of a table, or the line that names its columns."""

_LONGEST_FIRST = "|".join(sorted(conventions.OSU_PROGRAMS, key=len, reverse=True))
OSU_PROGRAM = re.compile(rf"(?<![a-z])osu_(?:(?:xccl_)?(i?)({_LONGEST_FIRST})(?![a-z])|[a-z])")
"""The OSU program's name in a command or file name."""

SEVERAL_PAIRS = "several pairs"
"""Value of the column ``variant`` for an unknown number of simultaneous pairs of ranks."""

_ONE_SIDED = {"latency": "latency", "bandwidth": "bw", "bidirectionalbandwidth": "bibw"}
_COLUMNS = re.compile(r"Lat(?:ency)?\s?\(us\)|MB/s|Overall\(us\)")
_FULL = ("Size", "Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations")
_OVERLAP = ("Size", "Overall(us)", "Compute(us)", "Pure Comm.(us)", "Overlap(%)")
_PAIRS = re.compile(r"#\s*\[ pairs: (\d{1,8}) \]|#\s*Pairs:\s*(\d{1,8})")
_TYPE = re.compile(r"#\s*Datatype:\s*MPI_(\w{1,20})")
_SHORT = {"CHAR": "int8", "INT": "int32", "FLOAT": "float", "DOUBLE": "double"}


@tables.format_reader("osu")
def read_osu(path: Path, out: tables.RowCollector) -> Iterator[tuple[int, tables.TableRow | str]]:
    """Read the output of OSU micro-benchmarks."""
    name, variant = _name_by_program(path.name)
    if name is None and isinstance(given := out.facts.get("collective"), str):
        name = given
    dtype = ""
    columns: Sequence[str] = ()
    pairs = 0
    started: dict[str, int] = {}
    table = 1
    reported = False
    for at, line in bare_lines(path, OSU_ANCHOR):
        if title := OSU_TITLE.search(line):
            name, variant = _name_by_title(title)
            columns, dtype, pairs, table, reported = (), "", 0, table + 1, name is None
            if reported:
                yield at, f"{title[3]!r} is no benchmark that is read"
            continue
        started = launch_facts(line) or started
        if line.lstrip().startswith("#"):
            if found := _TYPE.search(line):
                dtype = _SHORT.get(found[1], found[1].lower())
            elif several := _PAIRS.search(line):
                pairs = tables.parse_whole(several[1] or several[2], tables.MAX_RANKS) or 0
            elif "=" not in line and _COLUMNS.search(line):
                columns = [head.replace(" (us)", "(us)") for head in HEADS.split(line.strip(" \t#"))]
            continue
        if OSU_PROGRAM.search(line):
            name, variant = _name_by_program(line)
            columns, dtype, pairs, table, reported = (), "", 0, table + 1, False
            continue
        words = line.split()
        if not words or tables.parse_printed(words[0]) is None:
            continue
        columns = columns or _guess_columns(words, name or "", variant)
        if not columns:
            continue
        if name is None:
            if not reported:
                yield at, "a table begins, but nothing says of which benchmark; give it, as collective=all_reduce"
            reported = True
            continue
        row = _osu_row(words, columns, name, max(pairs, 1))
        if isinstance(row, str):
            yield at, row
            continue
        if name.endswith(("_latency", "bw")) and (pairs or variant != SEVERAL_PAIRS):
            row["ranks"] = 2 * max(pairs, 1)
        row = started | row | {"dtype": dtype, "run": str(table), "tool": "osu"}
        shown = f"{pairs} pairs" if pairs > 1 else "" if pairs else variant
        yield at, row | ({"variant": shown} if shown else {})


def _name_by_title(title: re.Match[str]) -> tuple[str | None, str]:
    """Return the collective in a benchmark's title, and its variant: non-blocking, persistent, several pairs or ""."""
    _, suffix, what = title.groups()
    what = re.sub(r" [Ll]atency$", "", what)
    if suffix.startswith("_"):
        kind = _ONE_SIDED.get(re.sub(r"[^a-z]", "", what.casefold()))
        name = f"{suffix[1:].casefold()}_{kind}"
        return (name if name in conventions.COLLECTIVES else None), ""
    for word in ("Non-blocking", "Persistent"):
        if what.startswith(word):
            return conventions.collective_name(
                what.removeprefix(word)
            ), conventions.NON_BLOCKING if word == "Non-blocking" else "persistent"
    if what == "Multi" or what.startswith("Multiple Bandwidth"):
        return ("p2p_latency" if what == "Multi" else "p2p_bw"), SEVERAL_PAIRS
    return conventions.collective_name(what), ""


def _name_by_program(text: str) -> tuple[str | None, str]:
    """Return the collective of the last OSU program named in a text, None if unknown, and its variant."""
    found = OSU_PROGRAM.findall(text[-400:])
    if not found:
        return None, ""
    starts, program = found[-1]
    several = SEVERAL_PAIRS if program in ("multi_lat", "mbw_mr") else ""
    return conventions.OSU_PROGRAMS.get(program), conventions.NON_BLOCKING if starts else several


def _guess_columns(words: Sequence[str], name: str, variant: str) -> Sequence[str]:
    """Return the columns of a table without a header, by their number; empty if no match."""
    if not all(tables.parse_printed(word) for word in words) or "." not in "".join(words[1:]):
        return ()
    if len(words) == 2:
        return ("Size", "Bandwidth (MB/s)" if name.endswith("bw") else "Latency(us)")
    if name.endswith("bw"):
        return ("Size", "MB/s", "Messages/s") if len(words) == 3 else ()
    return (_OVERLAP if variant else _FULL) if len(words) == 5 else ()


def _osu_row(words: Sequence[str], columns: Sequence[str], name: str, pairs: int) -> tables.TableRow | str:
    """Return a table row from a line's words, or an error message; rates are per pair."""
    if len(words) < len(columns):
        return f"the row has {len(words)} values, but there are {len(columns)} columns"
    cells = dict(zip(columns, words, strict=False))
    size = tables.parse_whole(cells.get("Size", cells.get("Transfer Size", "0")))
    row = tables.mpi_row(name, size or 0, cells, "osu")
    rate = tables.parse_printed(cells.get("Bandwidth (MB/s)", cells.get("MB/s", "")), 6)
    if size is not None and rate is not None and rate.value > 0:
        row |= {"seconds": size * pairs / rate.value, "algbw": rate.value / pairs}
    if cells.get("Validation", "Pass").casefold() != "pass":
        row["wrong"] = 1.0
    if size is None or "seconds" not in row:
        return f"the row is not of {name}: its size or its time is no number"
    return row
