"""The report of a run: one HTML page that stands alone, with the figures inside it and nothing to load or execute."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from simnet.base.units import format_bandwidth, format_seconds
from simnet.report import barriers, calibrated, co_located, devices, learning, sentences, sharing, stacks
from simnet.report.drawing import Plot
from simnet.report.summary import PHASES, Summary

_SHOWN_SWITCHES = 12


def report(summary: Summary, plots: Sequence[Plot], scenario: str) -> str:
    """Return the page.

    Parameters
    ----------
    summary : Summary
        See `simnet.report.summary.summarize`.
    plots : sequence of Plot
        The figures, in the order of the page.
    scenario : str
        Text of the resolved scenario.
    """
    changed = sentences.switching(summary)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            summary=summary,
            sentence=sentences.sentence(summary),
            headings=sentences.HEADINGS,
            rows=sentences.rows(summary),
            stack_properties=stacks.distinct(summary["stack"]),
            device=devices.told(summary["device"]) if "device" in summary else "",
            barrier=barriers.told(summary["barrier"]) if "barrier" in summary else "",
            calibration=summary.get("calibration"),
            call_headings=calibrated.HEADINGS,
            call_rows=calibrated.rows(summary["calibration"]["calls"]) if "calibration" in summary else [],
            shared=sharing.told(summary["sharing"]) if "sharing" in summary else "",
            happened=sentences.what_happened(summary),
            learning_headings=learning.HEADINGS,
            learning_rows=sentences.learning_rows(summary),
            colocated_headings=co_located.HEADINGS,
            colocated_rows=sentences.colocated_rows(summary),
            ranking=sentences.ranking(summary),
            phases=PHASES,
            figures=_inside(plots),
            changed=changed,
            switches=summary["policies"][changed]["switches"][:_SHOWN_SWITCHES] if changed is not None else [],
            scenario=scenario,
        )
    )


def seeds_report(
    summary: Mapping[str, Any],
    plots: Sequence[Plot],
    sentence: str,
    tables: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]],
    scenario: str,
) -> str:
    """Return the page of a run with several seeds.

    Parameters
    ----------
    summary : mapping
        See `simnet.report.seeds.summarize`.
    plots : sequence of Plot
        The figures, in the order of the page.
    sentence : str
        Who won.
    tables : sequence of (headings, rows)
        The cells of the table of the policies, and of that of how trainings went.
    scenario : str
        Text of the resolved scenario, with its own seed.
    """
    return (
        _environment()
        .get_template("seeds.html.j2")
        .render(summary=summary, sentence=sentence, tables=tables, figures=_inside(plots), scenario=scenario)
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
