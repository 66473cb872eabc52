"""The pages of runs and maps: each is one HTML file that stands alone and asks no host for anything.

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

from simnet.base.units import format_bandwidth, format_seconds
from simnet.report import calls, cost_summary, learning, run_events, run_setup, seeds, sentences
from simnet.report.columns import read_data
from simnet.report.drawing import Plot
from simnet.report.page_data import embedded, page_data
from simnet.report.run_summary import PHASES, RunSummary
from simnet.report.timeline import Recorded

# Figures whose content the charts show, or bars on the page.
_DRAWN_AGAIN = ("iteration_time", "cumulative_time", "breakdown", "choices", "learning")

TERMS = {row["term"]: row["meaning"] for row in read_data("terms.csv")}
"""What the page's words mean, in the order in which they come."""


def report(
    summary: RunSummary,
    plots: Sequence[Plot],
    scenario: str,
    iterations: pd.DataFrame,
    setting: Mapping[str, str] | None = None,
    recorded: Recorded | None = None,
) -> str:
    """Return the page of a run."""
    inside = _inline_plots(plots)
    return _page(
        "report",
        summary=summary,
        scenario=scenario,
        setting=_setting_rows(summary, setting or {}),
        data=markupsafe.Markup(embedded(page_data(summary, iterations, recorded))),  # noqa: S704
        scripts=_hashed_scripts("uplot/uPlot.iife.min.js", "common.js", "page.js"),
        chart_style=markupsafe.Markup(_resource_text("uplot/uPlot.min.css")),  # noqa: S704
        longest=max(sum(one["breakdown_s"].values()) for one in summary["policies"].values()),
        pictures=[one for one in inside if one[0].name in _DRAWN_AGAIN],
        figures=[one for one in inside if one[0].name not in _DRAWN_AGAIN],
    )


def map_report(title: str, asked: str, plot: Plot, data: Mapping[str, Any]) -> str:
    """Return the page of a map of decisions."""
    x, y, own = data["x"], data["y"], data["own"]
    row, column = divmod(own or 0, len(x["values"]))
    cell = [] if own is None else data["cells"][own]
    here = f"{x['label']} {x['texts'][column]}, {y['label']} {y['texts'][row]}, as asked"
    width = 1 + len(data["headings"])
    each = (cell[start : start + width] for start in range(3, len(cell), width))
    return _page(
        "map",
        title=title,
        asked=asked,
        points=f"{len(data['cells']):,}",
        ranges=" and ".join(f"{one['label']} {one['texts'][0]} to {one['texts'][-1]}" for one in (x, y)),
        own_inside=own is not None,
        axes=f"{x['label']} and {y['label']}",
        here=here if cell else "",
        take=data["texts"][cell[0]] if cell else "",
        warning=data["texts"][cell[1]] if cell and cell[1] >= 0 else "",
        headings=data["headings"],
        rows=[[data["choices"][label][0], *(data["texts"][one] for one in texts)] for label, *texts in each],
        plot=plot,
        picture=_inline_plots([plot])[0][1],
        data=markupsafe.Markup(embedded(data)),  # noqa: S704
        scripts=_hashed_scripts("common.js", "map.js"),
    )


def seeds_report(summary: Mapping[str, Any], plots: Sequence[Plot], scenario: str) -> str:
    """Return the page of a run with several seeds."""
    return _page("seeds", summary=summary, figures=_inline_plots(plots), scenario=scenario, scripts=())


def compared_report(
    summary: RunSummary, plots: Sequence[Plot], runs: Sequence[str], differences: Mapping[str, Mapping[str, str]]
) -> str:
    """Return the page of several runs."""
    return _page(
        "compared", summary=summary, runs=runs, differences=differences, figures=_inline_plots(plots), scripts=()
    )


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
    """Return scripts of a page, each with its hash for the Content-Security-Policy."""
    digests = (hashlib.sha256(_resource_text(name).encode()).digest() for name in names)
    return tuple(
        (markupsafe.Markup(_resource_text(name)), base64.b64encode(digest).decode("ascii"))  # noqa: S704
        for name, digest in zip(names, digests, strict=True)
    )


def _page(template: str, **values: Any) -> str:
    """Return a page of a template, which asks for texts and tables itself."""
    # Names and texts come from the scenario: every one of them is escaped.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simnet", "data/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=sentences.percent, seconds=format_seconds, bandwidth=format_bandwidth)
    environment.globals.update(words=sentences, setup=run_setup, cost=cost_summary, events=run_events, seeds=seeds)
    environment.globals.update(learning=learning, calls=calls, terms=TERMS, phases=PHASES)
    return environment.get_template(f"{template}.html.j2").render(values)


def _inline_plots(plots: Sequence[Plot]) -> list[tuple[Plot, str]]:
    # As an image a figure can neither run scripts nor clash with the names inside another one.
    return [(plot, base64.b64encode(plot.svg).decode("ascii")) for plot in plots]
