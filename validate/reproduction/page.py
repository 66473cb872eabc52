"""Reproductions as text: values, errors, and the page `docs/papers.md`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from simnet.validate.reproduction import KINDS, MISSING, REPRODUCTIONS, Reproduction, Row, outcome
from simnet.validate.reproduction.under_devices import Column, rows

_HEAD = """\
# Papers reproduced

Published figures, tables and claims beside what this repository makes of them.

```sh
simnet reproduce                     # what there is
simnet reproduce artopk-table-vi     # every value of it, beside the published one
simnet reproduce --devices           # headline ratios under each device profile
simnet reproduce --fast --check      # exit code 1 if a value is outside its tolerance
simnet reproduce --all --markdown docs/papers.md --force    # this page, in some minutes
```

Published values are in `validate/published_data`, code in `validate/reproduction`, jobs in `scenarios/papers`.

What agreement means depends on what was published:

"""

_SUMMARY = """\

## Summary

The error is by how much the published value exceeds ours. *Worst* is the largest in parts of its tolerance, which
stands in brackets. Where times were published the tolerance is how far the paper's own values scatter about its
formulas, so that a pass says that simnet's network does what these formulas say, no more.

"""

_RUNS = """\

## Published runs: what is stated, and what is assumed

Written before anything was computed; what came out stands under the names below. Bytes alone say beforehand what to
expect, which is in brackets.

| run | stated | not stated, and what is taken |
|---|---|---|
| INTELLECT-1 (2412.01152, Table 2) | 10 billion parameters; up to 14 nodes on three continents; an exchange each 100 inner steps, by a ring of one byte an entry; 38 min of computing from one to the next; links of 0.5 to 4 Gbit/s; medians of the all-reduce and utilisations of three settings | nodes of each setting (4 and 14), links of each setting (both ends of the range, alike for all nodes), latency (0 and 150 ms from node to node), and what quantising takes on the host (nothing). [15 to 18.6 GB for each node: 30 to 297 s. The median of the United States is inside, the two across the ocean are above, at 382 and 469 s] |
| Covenant-72B (2603.08163; a post of an author) | 72 billion parameters, H 30, 146 times fewer bytes, files of 20 peers through an object store, 70 s for each round, 94.5 % utilisation | links (0.5 to 10 Gbit/s), latency (50 ms; one message a peer), what packing, upload and store take (nothing; the upload is a twentieth of what a peer gets). Computing, 1,200 s, follows from the two published values. [2.8 GB a file as coded, 2.0 at two bits: 19 others are 37 or 53 GB, 30 to 60 s at 10 Gbit/s, 600 to 860 at 0.5] |
| the run of 8 billion parameters before it | 12 s for each round beside 4.5 min of computing, 95.7 % | peers (20, as of the other), the rest likewise. [An eighth to a ninth of the time of the other; published is a sixth, so that no one rate gives both] |
| OpenDiLoCo (2407.07852), 1.1 billion parameters | four sites in three countries, H 500, exchanges of 16 bits, 6.9 % of the time in the all-reduce; links of 127 to 935 Mbit/s (quoted by others) | the time of an inner step, without which 6.9 % says nothing of links. Taken are the links; found is which inner step 6.9 % means. [3.3 GB: 28 to 208 s, 0.8 to 5.6 s for an inner step] |
| OpenDiLoCo, 150 million parameters | eight workers, H 500; perplexities | no time was published; nothing to compare |
| Streaming DiLoCo (2501.18512, Table 1), 1 billion on Dolma | two sites, H 100, hours without limits of links and at 1 Gbit/s, TB exchanged, for 25, 100, 250 billion tokens | steps, which are the hours without limits over the printed 0.1 s; parameters "1B" (10^9); fragments (8, as Table 4). A formula on both sides: the tolerance is what the printed digits leave open. [DDP 16 s a step: 108 h. 2 GB a step and site: 48 TB where 441 are printed, and 441 TB in 109 h would be 9 Gbit/s] |
| Eager DiLoCo (2502.12996, Table 1 and 5) | hours at 1 Gbit/s; bandwidths of 1, 10, 100 billion parameters at H 30 and 100 | how a fragment that may take an outer step is released: here streaming DiLoCo with a delay of H steps. One step of the grid is the tolerance, as in Table 4, for exchanges that overlap an inner step. [Where an outer step is overlapped, bytes over time decide: at H 30 1.3 Gbit/s for 1B; at H 100 0.4, of which 0.2 are published] |
"""

_DEVICES = """\

## Under each device profile

By how many times one scheme is faster than another, time of an iteration: `simnet reproduce --devices`. Scenarios and
settings are those of `oktopk_bert`, `spardl_vgg16` and `exdyna_node`, mean of their last eight iterations, and of Table
IV of the AR-Topk paper for ResNet50 at 1 %. What is selected is the same under each; only the time to select differs,
and by it who is faster. None of the papers says enough of its devices for a row to be the right one: Ok-Topk ran on a
P100 with PyTorch 1.6 and ExDyna on V100 with 1.5, next to which stands v100-torch1.5; SparDL with 1.11 on some GPU.

"""

_MISSING = """\

## What is not reproduced, and why

"""

_FULL = 12
"""Sections of up to so many values show all of them."""


def value(given: float | str) -> str:
    """Return a value as text, to five digits.

    Examples
    --------
    >>> value(1234567.0), value(0.0123456), value(3.0), value("AG")
    ('1,234,567', '0.012346', '3', 'AG')
    """
    if isinstance(given, str):
        return given
    number = float(given)
    if number == round(number) and abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:,.2f}" if abs(number) >= 1000 else f"{number:.5g}"


def error(row: Row) -> str:
    """Return the error of a row as text.

    Examples
    --------
    >>> error(Row("a", 54.0, 55.4, "ms", 0.122)), error(Row("a", 3.0, 2.0, "ms", 2.0, absolute=True))
    ('-2.53 %', '+1 ms')
    """
    if math.isnan(row.error):
        return "-"
    if isinstance(row.ours, str):
        return "none" if row.error == 0 else "other"
    if row.error == 0:
        return "0"
    return f"{row.error:+.3g} {row.unit}".rstrip() if row.absolute else f"{100 * row.error:+.3g} %"


def tolerance(row: Row) -> str:
    """Return the tolerance of a row as text.

    Examples
    --------
    >>> tolerance(Row("a", 54.0, 55.4, "ms", 0.122)), tolerance(Row("a", 3.0, 2.0, "k", 0.0, relation="<="))
    ('12.2 %', 'at most')
    """
    if row.tolerance is None:
        return "-"
    if row.relation != "=":
        return "at most" if row.relation == "<=" else "at least"
    if row.tolerance == 0:
        return "equal"
    return f"{row.tolerance:g} {row.unit}".rstrip() if row.absolute else f"{100 * row.tolerance:g} %"


def worst(rows: Sequence[Row]) -> str:
    """Return the worst error of rows beside its tolerance."""
    row = outcome(rows).worst
    if row is None:
        return "-"
    if row.relation != "=":
        return "bounds hold" if outcome(rows).passed == outcome(rows).judged else f"{error(row)} ({tolerance(row)})"
    limit = tolerance(row)
    return error(row) if limit in ("-", "equal") or row.error == 0 else f"{error(row)} ({limit})"


def section(one: Reproduction, rows: Sequence[Row] | None) -> str:
    """Return the section of a reproduction; without rows it says why there are none."""
    lines = [f"### {one.name}", "", _wrapped(f"{one.paper}, {one.place}: {one.title}. {one.note}"), ""]
    if rows is None:
        return "\n".join([*lines, f"Not run: {one.needs()}.", ""])
    found = outcome(rows)
    head = ["| value | published | ours | unit | error | tolerance | |", "|---|---|---|---|---|---|---|"]
    if len(rows) <= _FULL:
        lines += [*head, *map(_line, rows)]
    elif found.worst is not None:
        within = f"{found.rows} values, {found.passed} of {found.judged} within their tolerance; the worst:"
        shown = [found.worst, *(row for row in rows if row.tolerance is None)]
        lines += [within, "", *head, *map(_line, shown)]
    else:
        lines += [f"{found.rows} values, {found.passed} of {found.judged} the same."]
    return "\n".join([*lines, ""])


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def cells(row: Row) -> tuple[str, ...]:
    """Return what a table says of a row: value, published, ours, unit, error, tolerance, verdict."""
    passes = {True: "pass", False: "FAIL", None: "-"}[row.passes]
    return row.what, value(row.published), value(row.ours), row.unit, error(row), tolerance(row), passes


def _line(row: Row) -> str:
    return f"| {' | '.join(cells(row))} |"


def summary_line(one: Reproduction, rows: Sequence[Row] | None) -> str:
    """Return the row of a reproduction in the summary."""
    if rows is None:
        came: Iterable[str] = ("-", "not run", "-")
    else:
        found = outcome(rows)
        came = (f"{found.passed} / {found.judged}" if found.judged else f"- / {found.rows}", found.status, worst(rows))
    anchor = f"[{one.name}](#{one.name})"
    return f"| {anchor} | {one.paper}, {one.place} | {one.title} | {one.kind} | {' | '.join(came)} |"


def under_devices(columns: Sequence[Column]) -> str:
    """Return the section of headline ratios under each device profile."""
    head, *others = rows(columns)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *others)]
    return _DEVICES + "\n".join(lines) + "\n"


def page(found: Mapping[str, Sequence[Row] | None], columns: Sequence[Column]) -> str:
    """Return the page of reproductions.

    Parameters
    ----------
    found : mapping of str to sequence of Row
        Those that were run, by name; None for those that could not run.
    columns : sequence of Column
        Headline ratios under each device profile; without any the page has no section of them.
    """
    lines = [_wrapped(f"- *{kind}*: {meaning}.", "  ") for kind, meaning in KINDS.items()]
    text = _HEAD + "\n".join(lines) + "\n" + _SUMMARY
    text += "| name | published | values | kind | within tolerance | status | worst |\n|---|---|---|---|---|---|---|\n"
    text += "".join(summary_line(REPRODUCTIONS[name], rows) + "\n" for name, rows in found.items())
    text += _RUNS
    text += under_devices(columns) if columns else ""
    text += _MISSING + "| paper | what | why |\n|---|---|---|\n"
    text += "".join(f"| {one.paper} | {one.what} | {one.why} |\n" for one in MISSING)
    text += "\n## Each in turn\n\n"
    return text + "\n".join(section(REPRODUCTIONS[name], rows) for name, rows in found.items())
