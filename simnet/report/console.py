"""Tables on the console: the end of a run, and what comes with simnet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from simnet.report.summary import PHASES, Summary
from simnet.report.tables import empty_table, print_fitting, show_listing

_LEFT = ("policy", "most used choice")
# What a narrow terminal does without, first to last.
_PERCENTILES = ("iteration p50, p90, p99", "exchange p50, p90, p99")
_SPARE = (_PERCENTILES, PHASES, ("regret",), ("bytes sent",), ("most used choice",), ("switches",))

_SPARE_OF_SEEDS = (("bytes sent", "regret"), ("paired interval",), ("fastest with",))
_SPARE_OF_LEARNING = (("loss",), ("statistical eff.",), ("parallel eff.",), ("paired interval",), ("accuracy",))


def show(summary: Summary, console: Console | None = None) -> None:
    """Print who won, and the table.

    A terminal too narrow for all columns does without those that matter least, and says which; a file or pipe gets long
    lines, unless the variable COLUMNS gives it a width.
    """
    console = console or Console()
    _print_lines(sentence(summary), [], console)
    if learnt := learning_rows(summary):
        _print_learning("what the training came to", learning.HEADINGS, learnt, console)
    print_fitting(summary_table(summary), _SPARE, console)
    barrier = [run_setup.describe_barrier(summary["barrier"])] if "barrier" in summary else []
    if "strategy" in summary:
        barrier.append(run_setup.describe_strategy(**summary["strategy"]))
    _print_lines("", [*rates(summary), *ran_on(summary), *barrier], console)
    show_calls([summary.get("calibration")], console)
    shared_by = [f"Links are shared {run_setup.describe_sharing(summary['sharing'])}."] if "sharing" in summary else []
    held = cost_summary.describe_memory(memory_of(summary), summary.get("memory"))
    _print_lines("", [*shared_by, *held, *what_happened(summary)], console)
    if costs := cost_rows(summary):
        show_listing("what inner steps took", cost_summary.cost_headings(summary.get("prices")), costs, console)
    if shared := colocated_rows(summary):
        show_listing("jobs that shared the network", run_events.SHARE_HEADINGS, shared, console)


def show_seeds(summary: seeds.SeedsSummary, console: Console | None = None) -> None:
    """Print who won and the table of a run with several seeds, on a narrow terminal as `show` does."""
    console = console or Console()
    _print_lines(seeds.sentence(summary), [], console)
    if learnt := seeds.learning_rows(summary):
        _print_learning("what the training came to, means over seeds", seeds.LEARNING_HEADINGS, learnt, console)
    print_fitting(_seeds_table(summary), _SPARE_OF_SEEDS, console)
    told = f"Intervals at {100 * summary['interval']['level']:.0f} %: {summary['interval']['method']}."
    _print_lines("", [*ran_on(summary["run"]), told], console)


def _print_learning(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]], console: Console) -> None:
    table = empty_table(title, [name.replace(" ", "\n", 1) for name in headings], ["policy"])
    for row in cells:
        table.add_row(*map(Text, row))
    print_fitting(table, _SPARE_OF_LEARNING, console)


def _seeds_table(summary: seeds.SeedsSummary) -> Table:
    title = f"{summary['scenario']['name']}; {len(summary['seeds'])} seeds"
    if "barrier" in summary["run"]:
        title += f"; {run_setup.barrier_title([summary['run']['barrier']])}"
    table = empty_table(title, [name.replace(" ", "\n", 1) for name in seeds.HEADINGS], ["policy"])
    for cells in seeds.rows(summary):
        best = cells[2].startswith("best") or cells[2].endswith("tied")
        table.add_row(*map(Text, cells), style="bold" if best else "dim" if cells[0] == summary["bound"] else "")
    return table


def rates(summary: Summary) -> list[str]:
    """Return the line that says how much workers go through in a second under each policy; none if not known."""
    return cost_summary.throughput_sentences(
        {
            name: {"throughput": one["throughput"], "throughput_unit": one["throughput_unit"]}
            for name, one in summary["policies"].items()
            if name != summary["bound"] and "throughput" in one
        }
    )


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


def summary_table(summary: Summary) -> Table:
    """Return one row per policy, the fastest first."""
    winner = summary["winner"]
    best = () if winner is None else (winner["policy"], *winner["tied_with"])
    headings = {name: "\n".join(name.rsplit(" ", 1)) for name in HEADINGS}
    device = f"; device {summary['device']['name']}" if "device" in summary else ""
    table = empty_table(summary["scenario"]["name"] + device, headings.values(), [headings[name] for name in _LEFT])
    for cells in rows(summary):
        style = "bold" if cells[0] in best else "dim" if cells[0] == summary["bound"] else ""
        table.add_row(*map(Text, cells), style=style)
    return table
