"""The report of a run: one HTML page that stands alone and asks no host for anything.

Its charts are drawn by `page.js` on uPlot, both inside the page; the policy of the page lets scripts with their hashes
run and no others. Without scripts the figures are shown as pictures.
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
from simnet.report import (
    calls,
    cost_summary,
    learning,
    run_events,
    run_setup,
    sentences,
)
from simnet.report.drawing import Plot
from simnet.report.kept import Recorded
from simnet.report.page_data import embedded, keys, page_data
from simnet.report.summary import PHASES, Summary

_SHOWN_SWITCHES = 12
# Figures whose content the charts show, or bars on the page.
_DRAWN_AGAIN = ("iteration_time", "cumulative_time", "breakdown", "choices", "learning")


def report(
    summary: Summary,
    plots: Sequence[Plot],
    scenario: str,
    iterations: pd.DataFrame,
    setting: Mapping[str, str] | None = None,
    recorded: Recorded | None = None,
) -> str:
    """Return the page."""
    changed = sentences.switching(summary)
    inside = _inside(plots)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            summary=summary,
            sentence=sentences.sentence(summary),
            headings=sentences.HEADINGS,
            rows=[list(zip(*both, strict=True)) for both in zip(sentences.rows(summary), keys(summary), strict=True)],
            setting=_setting(summary, setting or {}),
            terms=TERMS,
            data=markupsafe.Markup(embedded(page_data(summary, iterations, recorded))),  # noqa: S704
            scripts=_marked("uplot/uPlot.iife.min.js", "common.js", "page.js"),
            chart_style=markupsafe.Markup(_text("uplot/uPlot.min.css")),  # noqa: S704
            stack_properties=run_setup.distinct_properties(summary["stack"]),
            device=run_setup.describe_device(summary["device"]) if "device" in summary else "",
            barrier=run_setup.describe_barrier(summary["barrier"]) if "barrier" in summary else "",
            overlap=run_setup.describe_overlap(summary["overlap"]) if "overlap" in summary else "",
            evidence=sentences.evidence(summary),
            strategy=run_setup.describe_strategy(**summary["strategy"]) if "strategy" in summary else "",
            calibration=summary.get("calibration"),
            call_headings=calls.HEADINGS,
            call_rows=calls.call_rows(summary["calibration"]["calls"]) if "calibration" in summary else [],
            shared=run_setup.describe_sharing(summary["sharing"]) if "sharing" in summary else "",
            happened=sentences.what_happened(summary),
            learning_headings=learning.HEADINGS,
            learning_rows=sentences.learning_rows(summary),
            spent_headings=cost_summary.cost_headings(summary.get("prices")),
            spent_rows=sentences.cost_rows(summary),
            memory_headings=cost_summary.MEMORY_HEADINGS,
            memory_rows=cost_summary.memory_rows(sentences.memory_of(summary)),
            memory_said=cost_summary.describe_memory(sentences.memory_of(summary), summary.get("memory")),
            colocated_headings=run_events.SHARE_HEADINGS,
            colocated_rows=sentences.colocated_rows(summary),
            ranking=sentences.ranking(summary),
            phases=PHASES,
            longest=max(sum(one["breakdown_s"].values()) for one in summary["policies"].values()),
            pictures=[one for one in inside if one[0].name in _DRAWN_AGAIN],
            figures=[one for one in inside if one[0].name not in _DRAWN_AGAIN],
            changed=changed,
            switches=summary["policies"][changed]["switches"][:_SHOWN_SWITCHES] if changed is not None else [],
            scenario=scenario,
        )
    )


def map_report(title: str, asked: str, plot: Plot, data: Mapping[str, Any]) -> str:
    """Return the page of a map of decisions."""
    x, y, own = data["x"], data["y"], data["own"]
    across = len(x["values"])
    (row, column), cell = (0, 0) if own is None else divmod(own, across), [] if own is None else data["cells"][own]
    ranges = (f"{one['label']} {one['texts'][0]} to {one['texts'][-1]}" for one in (x, y))
    here = f"{x['label']} {x['texts'][column]}, {y['label']} {y['texts'][row]}, as asked"
    return (
        _environment()
        .get_template("map.html.j2")
        .render(
            title=title,
            asked=asked,
            ignored=learning.IGNORED,
            points=f"{len(data['cells']):,}",
            ranges=" and ".join(ranges),
            own_inside=own is not None,
            axes=f"{x['label']} and {y['label']}",
            here=here if cell else "",
            take=data["texts"][cell[0]] if cell else "",
            warning=data["texts"][cell[1]] if cell and cell[1] >= 0 else "",
            headings=data["headings"],
            rows=_rows(data, cell),
            plot=plot,
            picture=_inside([plot])[0][1],
            data=markupsafe.Markup(embedded(data)),  # noqa: S704
            scripts=_marked("common.js", "map.js"),
        )
    )


def _rows(data: Mapping[str, Any], cell: Sequence[int]) -> list[list[str]]:
    """Return the table of a map cell: label and texts of each choice."""
    width = 1 + len(data["headings"])
    each = (cell[start : start + width] for start in range(3, len(cell), width))
    return [[data["choices"][label][0], *(data["texts"][one] for one in texts)] for label, *texts in each]


def seeds_report(
    summary: Mapping[str, Any],
    plots: Sequence[Plot],
    sentence: str,
    tables: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]],
    scenario: str,
) -> str:
    """Return the page of a run with several seeds."""
    return (
        _environment()
        .get_template("seeds.html.j2")
        .render(
            summary=summary, sentence=sentence, tables=tables, figures=_inside(plots), scenario=scenario, scripts=()
        )
    )


def compared_report(
    summary: Summary, plots: Sequence[Plot], runs: Sequence[str], differences: Mapping[str, Mapping[str, str]]
) -> str:
    """Return the page of several runs."""
    return (
        _environment()
        .get_template("compared.html.j2")
        .render(
            summary=summary,
            sentence=sentences.sentence(summary),
            headings=sentences.HEADINGS,
            rows=sentences.rows(summary),
            runs=runs,
            differences=differences,
            figures=_inside(plots),
            scripts=(),
        )
    )


TERMS = {
    "model": "whose gradients are exchanged; its size decides how much there is to send",
    "workers": "processes that each compute a gradient and exchange it with the others in every iteration",
    "density": "fraction of the entries of a gradient that a worker sends; what it keeps back it adds next time",
    "sharding": "how the model is shared between workers, whose steps are graphs of computing and collectives",
    "stays dense": "buckets that are exchanged as a whole, whatever the exchange, as job.overlap says",
    "device": "what selects and merges entries, which takes its time, too",
    "stack": "the software that sends messages; it decides what is added to bytes and when a sender may go on",
    "seed": "of everything random: the same seed gives the same run, to the bit",
    "version": "of simnet, which computed the times",
    "policy": "how the exchange of each iteration is chosen: always the same, or anew as the network changes",
    "simulated time": "from the start of the run to the end of its last iteration, exploration included",
    "vs best": "how much longer than the fastest policy that can be run",
    "fastest with": "how likely it is that the job takes the least time with it, by what such predictions were off by",
    "bytes sent": "by all workers over the run",
    "compute": "forward and backward pass, mean over workers",
    "select": "selecting and merging entries, mean over workers",
    "communicate": "having a message of one's own in flight, mean over workers",
    "wait": "for others, mean over workers",
    "iteration p50, p90, p99": "time within which half of the iterations are, nine of ten, and 99 of 100",
    "exchange p50, p90, p99": "the same of what iterations take beside computing, mean over workers",
    "regret": "time lost against the bound, which knows the network as it is going to be",
    "most used choice": "the exchange, a scheme with its collective, that was used in most iterations",
    "switches": "how often the choice changed from one iteration to the next",
    "iteration time": "from when workers begin an iteration until the last of them is done with it",
    "bandwidth, latency": "the worst between neighbouring workers when an iteration begins: the weather of the network",
}
"""What the page's words mean, in the order in which they come."""


def _setting(summary: Summary, given: Mapping[str, str]) -> dict[str, str]:
    device = {"device": summary["device"]["name"]} if "device" in summary else {}
    rest = {"stack": summary["stack"]["name"], "seed": str(summary["seed"])}
    version = summary["versions"].get("simnet")
    return {**given, **device, **rest, **({} if version is None else {"version": f"simnet {version}"})}


@cache
def _text(name: str) -> str:
    return files("simnet.report").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


@cache
def _marked(*names: str) -> tuple[tuple[markupsafe.Markup, str], ...]:
    """Return scripts of a page, each with its hash for the Content-Security-Policy."""
    digests = (hashlib.sha256(_text(name).encode()).digest() for name in names)
    return tuple(
        (markupsafe.Markup(_text(name)), base64.b64encode(digest).decode("ascii"))  # noqa: S704
        for name, digest in zip(names, digests, strict=True)
    )


def _environment() -> jinja2.Environment:
    # Names and texts come from the scenario: every one of them is escaped.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simnet", "data/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=sentences.percent, seconds=format_seconds, bandwidth=format_bandwidth)
    return environment


def _inside(plots: Sequence[Plot]) -> list[tuple[Plot, str]]:
    # As an image a figure can neither run scripts nor clash with the names inside another one.
    return [(plot, base64.b64encode(plot.svg).decode("ascii")) for plot in plots]
