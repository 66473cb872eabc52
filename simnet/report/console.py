"""Tables on the console: the end of a run, and what comes with simnet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from simnet.report import (
    calls,
    cost_summary,
    learning,
    run_events,
    run_setup,
    seeds,
)
from simnet.report.columns import Fields
from simnet.report.run_summary import PHASES, RunSummary
from simnet.report.sentences import (
    HEADINGS,
    colocated_rows,
    cost_rows,
    evidence,
    learning_rows,
    memory_of,
    rows,
    sentence,
    what_happened,
)
from simnet.report.tables import print_fitting, show_listing, text_table

_LEFT = ("policy", "most used choice")
# What a narrow terminal does without, first to last.
_PERCENTILES = ("iteration p50, p90, p99", "exchange p50, p90, p99")
_SPARE = (_PERCENTILES, PHASES, ("regret",), ("bytes sent",), ("most used choice",), ("switches",))

_SPARE_OF_SEEDS = (("bytes sent", "regret"), ("paired interval",), ("fastest with",))
_SPARE_OF_LEARNING = (("loss",), ("statistical eff.",), ("parallel eff.",), ("paired interval",), ("accuracy",))


def show(summary: RunSummary, console: Console | None = None) -> None:
    """Print who won, and the table.

    A terminal too narrow for all columns does without those that matter least, and says which; a file or pipe gets long
    lines, unless the variable COLUMNS gives it a width.
    """
    console = console or Console()
    _print_lines(sentence(summary), [], console)
    if learnt := learning_rows(summary):
        _print_learning("what the training came to", learning.HEADINGS, learnt, console)
    print_fitting(summary_table(summary), _SPARE, console)
    _print_lines("", [*rates(summary), *ran_on(summary), *_trained(summary)], console)
    show_calls([summary.get("calibration")], console)
    held = cost_summary.describe_memory(memory_of(summary), summary.get("memory"))
    _print_lines("", [*_shared(summary), *held, *what_happened(summary)], console)
    for title, headings, cells in (
        ("what inner steps took", cost_summary.cost_headings(summary.get("prices")), cost_rows(summary)),
        ("jobs that shared the network", run_events.SHARE_HEADINGS, colocated_rows(summary)),
    ):
        if cells:
            show_listing(title, headings, cells, console)


def _trained(summary: RunSummary) -> list[str]:
    barrier = [run_setup.describe_barrier(summary["barrier"])] if "barrier" in summary else []
    return barrier + ([run_setup.describe_strategy(**summary["strategy"])] if "strategy" in summary else [])


def _shared(summary: RunSummary) -> list[str]:
    return [f"Links are shared {run_setup.describe_sharing(summary['sharing'])}."] if "sharing" in summary else []


def show_seeds(summary: Fields, console: Console | None = None) -> None:
    """Print who won and the table of a run with several seeds, on a narrow terminal as `show` does."""
    console = console or Console()
    _print_lines(seeds.sentence(summary), [], console)
    if learnt := seeds.learning_rows(summary):
        _print_learning("what the training came to, means over seeds", seeds.LEARNING_HEADINGS, learnt, console)
    print_fitting(_seeds_table(summary), _SPARE_OF_SEEDS, console)
    told = f"Intervals at {100 * summary['interval']['level']:.0f} %: {summary['interval']['method']}."
    _print_lines("", [*ran_on(summary["run"]), told], console)


def _print_learning(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]], console: Console) -> None:
    table = text_table(title, [name.replace(" ", "\n", 1) for name in headings], cells, ["policy"])
    print_fitting(table, _SPARE_OF_LEARNING, console)


def _seeds_table(summary: Fields) -> Table:
    title = f"{summary['scenario']['name']}; {len(summary['seeds'])} seeds"
    if "barrier" in summary["run"]:
        title += f"; {run_setup.barrier_title([summary['run']['barrier']])}"
    cells = seeds.rows(summary)
    best = [one[0] for one in cells if one[2].startswith("best") or one[2].endswith("tied")]
    styles = _styles((one[0] for one in cells), best, summary["bound"])
    return text_table(title, [name.replace(" ", "\n", 1) for name in seeds.HEADINGS], cells, ["policy"], styles)


def _styles(names: Iterable[str], best: Collection[str], bound: str | None) -> list[str]:
    return ["bold" if name in best else "dim" if name == bound else "" for name in names]


def rates(summary: RunSummary) -> list[str]:
    """Return the line that says how much workers go through in a second under each policy; none if not known."""
    known = {name: one for name, one in summary["policies"].items() if name != summary["bound"] and "throughput" in one}
    return cost_summary.throughput_sentences(known)


def ran_on(summary: Mapping[str, Any]) -> list[str]:
    """Return warnings, and the lines that say how messages were sent, what selected, and for how long was computed."""
    device = [f"Device: {run_setup.describe_device(summary['device'])}"] if "device" in summary else []
    computing = [f"Computing: {summary['computing']}"] if "computing" in summary else []
    during = [run_setup.describe_overlap(summary["overlap"])] if "overlap" in summary else []
    warnings = [f"Warning: {one}" for one in summary.get("warnings", ())]
    known = [one] if (one := evidence(summary)) else []
    return [*warnings, *known, f"Stack: {run_setup.describe_stack(summary['stack'])}", *device, *computing, *during]


def _print_lines(bold: str, lines: Iterable[str], console: Console) -> None:
    """Print a sentence that stands out, if there is one, and lines below it."""
    for text in (Text(bold, style="bold"), *map(Text, lines)):
        if text:
            console.print(text, soft_wrap=not console.is_terminal)


def show_calls(calibrations: Iterable[Mapping[str, Any] | None], console: Console | None = None) -> None:
    """Print what is known of the calls of jobs on a calibrated cluster; nothing where there are none."""
    found = [one for one in calibrations if one is not None and one["calls"]]
    if found:
        cells = calls.call_rows(call for one in found for call in one["calls"])
        show_listing(f"calls, by {found[0]['file']}", calls.HEADINGS, cells, console)


def summary_table(summary: RunSummary) -> Table:
    """Return one row per policy, the fastest first."""
    winner, cells = summary["winner"], rows(summary)
    best = () if winner is None else (winner["policy"], *winner["tied_with"])
    headings = {name: "\n".join(name.rsplit(" ", 1)) for name in HEADINGS}
    title = summary["scenario"]["name"] + (f"; device {summary['device']['name']}" if "device" in summary else "")
    styles = _styles((one[0] for one in cells), best, summary["bound"])
    return text_table(title, headings.values(), cells, [headings[name] for name in _LEFT], styles)
