"""HTML pages of runs and maps: each is one self-contained file that loads nothing from the network.

Charts are drawn by `page.js` on uPlot, both inside the page; the policy of the page lets scripts with their hashes run
and no others. Without scripts the figures are shown as pictures.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
import markupsafe
import pandas as pd

from simnet.base.reading import read_shipped_rows
from simnet.base.units import format_bandwidth, format_seconds
from simnet.report import answers
from simnet.report.drawing import Plot
from simnet.report.page_data import embedded, page_data
from simnet.report.run_summary import PHASES, RunSummary
from simnet.report.summary import Summary, column_cells, percent
from simnet.report.timeline import RecordedTimeline

# Columns of the table at the top: on a screen, and on a narrow one.
_MOST, _NARROW = 7, 3

TERMS = {row["term"]: row["meaning"] for row in read_shipped_rows("data/terms.csv")}
"""Terms of the page with their meanings, in order of appearance."""


def report(
    summary: RunSummary,
    plots: Sequence[Plot],
    scenario: str,
    iterations: pd.DataFrame,
    setting: Mapping[str, str] | None = None,
    recorded: RecordedTimeline | None = None,
) -> str:
    """Return the HTML page of a run with one seed."""
    answer, names = answers.run_answer(summary), answers.ranking(summary)
    return _page(
        "report",
        summary,
        answer,
        plots,
        table=_table(answer, names),
        leaders=answers.leaders(summary),
        names=names,
        scenario=scenario,
        setting=_setting_rows(summary, setting or {}),
        data=markupsafe.Markup(embedded(page_data(summary, iterations, recorded))),  # noqa: S704
        scripts=_hashed_scripts("uplot/uPlot.iife.min.js", "common.js", "page.js"),
        chart_style=markupsafe.Markup(_resource_text("uplot/uPlot.min.css")),  # noqa: S704
        longest=max(sum(one["breakdown_s"].values()) for one in summary["policies"].values()),
    )


def seeds_report(summary: Mapping[str, Any], plots: Sequence[Plot], scenario: str) -> str:
    """Return the HTML page of a run over several seeds."""
    return _page("seeds", summary, answers.seeds_answer(dict(summary)), plots, scenario=scenario)


def compared_report(
    summary: RunSummary, plots: Sequence[Plot], runs: Sequence[str], differences: Mapping[str, Mapping[str, str]]
) -> str:
    """Return the HTML page that compares several runs."""
    return _page("compared", summary, answers.run_answer(summary), plots, runs=runs, differences=differences)


def _table(answer: Summary, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return headings and rows of an answer for HTML: its `_MOST` columns of highest priority, `_NARROW` on a phone.

    Each row is the name of its policy, and cells as pairs of text and sort key.
    """
    kept = sorted(answer.columns, key=lambda one: one.priority)[:_MOST]
    columns = [one for one in answer.columns if one in kept]
    cells = [column_cells(one, answer.rows) for one in columns]
    narrow = {one.name for one in kept[:_NARROW]}
    texts = {one.name for one in columns if one.unit == "text"}
    heads = [
        (heading, TERMS.get(one.heading), one.name in texts, one.name not in narrow)
        for one, (heading, _) in zip(columns, cells, strict=True)
    ]
    rows = [
        (
            names[place] if names else row[columns[0].name],
            [(cells[at][1][place], row.get(one.name)) for at, one in enumerate(columns)],
        )
        for place, row in enumerate(answer.rows)
    ]
    return {"heads": heads, "rows": rows}


def _setting_rows(summary: RunSummary, given: Mapping[str, str]) -> dict[str, str]:
    device = {"device": summary["device"]["name"]} if "device" in summary else {}
    rest = {"stack": summary["stack"]["name"], "seed": str(summary["seed"])}
    version = summary["versions"].get("simnet")
    return {**given, **device, **rest, **({} if version is None else {"version": f"simnet {version}"})}


@cache
def _resource_text(name: str) -> str:
    return files("simnet.report").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


@cache
def _hashed_scripts(*names: str) -> tuple[tuple[markupsafe.Markup, str], ...]:
    """Return (script, SHA-256) pairs of files, with base64 hashes for the Content-Security-Policy."""
    digests = (hashlib.sha256(_resource_text(name).encode()).digest() for name in names)
    return tuple(
        (markupsafe.Markup(_resource_text(name)), base64.b64encode(digest).decode("ascii"))  # noqa: S704
        for name, digest in zip(names, digests, strict=True)
    )


def _page(template: str, summary: Mapping[str, Any], answer: Summary, plots: Sequence[Plot], **values: Any) -> str:
    """Return the HTML that a template renders from a summary, its answer and its figures."""
    # Names and texts come from the scenario: every one of them is escaped.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simnet", "data/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, seconds=format_seconds, bandwidth=format_bandwidth)
    environment.globals.update(words=answers, terms=TERMS, phases=PHASES)
    # As an image a figure can neither run scripts nor clash with the names inside another one.
    figures = [(plot, base64.b64encode(plot.svg).decode("ascii")) for plot in plots]
    own = {"summary": summary, "answer": answer, "table": _table(answer), "figures": figures, "scripts": ()}
    return environment.get_template(f"{template}.html.j2").render(own | values)
