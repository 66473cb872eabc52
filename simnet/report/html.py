"""HTML pages of runs and maps of the fastest exchange, each a self-contained file that loads nothing from elsewhere.

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
import numpy as np
import pandas as pd
from jinja2.utils import htmlsafe_json_dumps

from simnet.base.terms import all_terms, meaning
from simnet.base.units import format_bandwidth, format_seconds
from simnet.report import answers
from simnet.report.answers import ranking
from simnet.report.drawing import policy_looks
from simnet.report.figures import choice_colours, most_used
from simnet.report.run_summary import PHASES, RunSummary, ranked, with_exploration
from simnet.report.summary import Plot, Summary, column_cells, json_value, percent
from simnet.report.timeline import RecordedTimeline, message_sample

POINTS = 2_000
"""Maximum number of points of a line; longer runs are thinned."""

_DIGITS = 7


def page_data(
    summary: RunSummary, iterations: pd.DataFrame, recorded: RecordedTimeline | None = None
) -> dict[str, Any]:
    """Return the chart data of a run's page: iterations by policy, choices, training results, recorded messages.

    Returns
    -------
    dict
        `policies`, each with its name, its colour (None for the bound) and the columns of its iterations: number,
        start [s], time [s], choice as an index into `choices`, bandwidth [byte/s] and latency [s], and the elapsed time
        after the iteration [s]. If a point stands for `stretch` iterations, its time is their mean, `low` and `high`
        are the extremes, its choice is the most used one, and other values are those of the first. Lags are measured
        from the policy `reference`; `learnt` has losses and accuracies, `kept` the recorded messages.
    """
    trained = with_exploration(iterations)
    frames = {str(name): frame for name, frame in trained.groupby("policy", sort=False) if len(frame)}
    choices = list(dict.fromkeys(str(choice) for choice in trained["choice"]))
    bound = summary["bound"]
    looks = policy_looks(iterations["policy"], bound)
    of_choices = choice_colours(frames, choices, looks)
    longest = max((len(frame) for frame in frames.values()), default=0)
    stretch = -(-longest // POINTS) if longest > POINTS else 1
    whole = [name for name in ranking(summary) if name in frames and ranked(summary["policies"][name])]
    return {
        "policies": [
            {"name": name, "colour": None if name == bound else looks[name]["color"]}
            | _iteration_columns(frame, choices, stretch)
            for name, frame in frames.items()
        ],
        "choices": [[one, of_choices[one]] for one in choices],
        "reference": bound if bound in whole else next(iter(whole), None),
        "stretch": stretch,
        "learnt": {name: _learning_points(frame) for name, frame in frames.items()} if "accuracy" in trained else {},
        "kept": {"policies": {}, "routes": {}, "links": []} if recorded is None else message_sample(recorded),
    }


def embedded(data: Any) -> markupsafe.Markup:
    r"""Return data as JSON that is safe in an HTML script. Floats have seven digits; non-finite floats become null.

    Examples
    --------
    >>> print(embedded(["</script><!--", 0.1 + 0.2]))
    ["\u003c/script\u003e\u003c!--",0.3]
    """
    rounded = json_value(data, lambda one: float(f"{one:.{_DIGITS}g}"))
    return htmlsafe_json_dumps(rounded, allow_nan=False, separators=(",", ":"))


def _iteration_columns(frame: pd.DataFrame, choices: Sequence[str], stretch: int) -> dict[str, list[Any]]:
    first, which = frame.iloc[::stretch], np.arange(len(frame)) // stretch
    times, done = frame["iteration_s"].groupby(which), frame["start_s"] + frame["iteration_s"]
    code = pd.Categorical(frame["choice"].astype(str), categories=list(choices)).codes.astype(np.intp)
    columns = {
        "iteration": first["iteration"],
        "start": first["start_s"],
        "time": times.mean(),
        "choice": most_used(code, np.arange(0, len(frame), stretch), len(choices)),
        "bandwidth": first["bandwidth_Bps"].astype(float),
        "latency": first["latency_s"].astype(float),
        "after": (done - frame["start_s"].iloc[0]).groupby(which).last(),
        **({"low": times.min(), "high": times.max()} if stretch > 1 else {}),
    }
    return {name: one.tolist() for name, one in columns.items()}


def _learning_points(frame: pd.DataFrame) -> dict[str, list[Any]]:
    """Return loss and accuracy at each evaluation, with the iterations done and the time elapsed [s]."""
    measured = np.flatnonzero(frame["accuracy"].notna().to_numpy())
    measured = measured[:: max(1, -(-len(measured) // POINTS))]
    rows = frame.iloc[measured]
    ends = rows["start_s"] + rows["iteration_s"] - float(frame["start_s"].iloc[0])
    return {
        "done": (measured + 1).tolist(),
        "after": ends.tolist(),
        **{name: rows[name].to_numpy(dtype=np.float64).tolist() for name in ("loss", "accuracy")},
    }


# Columns of the table at the top: on a screen, and on a narrow one.
_MOST, _NARROW = 7, 3

TERMS = {one.term: meaning(one.term) for one in all_terms() if one.report}
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
    return page(
        "report",
        summary,
        answer,
        plots,
        table=_table(answer, names),
        leaders=answers.leaders(summary),
        names=names,
        scenario=scenario,
        setting=_setting_rows(summary, setting or {}),
        data=embedded(page_data(summary, iterations, recorded)),
        scripts=_hashed_scripts("uplot/uPlot.iife.min.js", "common.js", "page.js"),
        chart_style=markupsafe.Markup(_resource_text("uplot/uPlot.min.css")),  # noqa: S704
        longest=max(sum(one["breakdown_s"].values()) for one in summary["policies"].values()),
    )


def answer_html(answer: Summary, template: str = "answer", plots: Sequence[Plot] = ()) -> str:
    """Return the HTML of an answer for a notebook. The template ``page`` makes it a page with figures."""
    columns, rows = answer.shown()
    cells = [column_cells(one, rows) for one in columns]
    return _rendered(template, answer=answer, rows=rows, cells=cells, figures=_pictures(plots))


def _table(answer: Summary, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the headings and rows of an answer for HTML, with low-priority columns left out or hidden on phones."""
    # Each row is the name of its policy, and cells as pairs of text and sort key.
    kept = sorted(answer.columns, key=lambda one: one.priority)[:_MOST]
    columns = [one for one in answer.columns if one in kept]
    cells = [column_cells(one, answer.rows) for one in columns]
    narrow = {one.name for one in kept[:_NARROW]}
    texts = {one.name for one in columns if one.unit == "text"}
    heads = [
        (heading, meaning(one.heading), one.name in texts, one.name not in narrow)
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
    """Return each script with its base64 SHA-256 hash, as the Content-Security-Policy of a page lists it."""
    digests = (hashlib.sha256(_resource_text(name).encode()).digest() for name in names)
    return tuple(
        (markupsafe.Markup(_resource_text(name)), base64.b64encode(digest).decode("ascii"))  # noqa: S704
        for name, digest in zip(names, digests, strict=True)
    )


def page(template: str, summary: Mapping[str, Any], answer: Summary, plots: Sequence[Plot], **values: Any) -> str:
    """Return an HTML page: a named template filled with a summary, its answer and its figures."""
    own = {"summary": summary, "answer": answer, "table": _table(answer), "figures": _pictures(plots), "scripts": ()}
    return _rendered(template, **own | values)


def _pictures(plots: Sequence[Plot]) -> list[tuple[Plot, str]]:
    """Return figures with their SVG in base64. As embedded images they cannot run scripts or clash in names."""
    return [(plot, base64.b64encode(plot.svg).decode("ascii")) for plot in plots]


def _rendered(template: str, **values: Any) -> str:
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
    return environment.get_template(f"{template}.html.j2").render(values)
