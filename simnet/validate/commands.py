"""``simnet validate`` and ``simnet reproduce``: predictions beside what was measured, and papers beside simnet.

They reach the command line through the entry-point group ``simnet.commands``, as commands of other packages may.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simnet.base.errors import InputError
from simnet.studies import options
from simnet.verbs.commands import completion, terminal
from simnet.verbs.commands.options import Changes, Force, Json

if TYPE_CHECKING:
    from simnet.validate.reproduction import Reproduction, Row


class Split(StrEnum):
    """What `simnet validate` leaves out."""

    SIZES = "sizes"
    RANKS = "ranks"
    COLLECTIVES = "collectives"
    LINKS = "links"


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.command(epilog="Example: simnet reproduce artopk-table-vi --check")(reproduce)
    app.command(epilog="Example: simnet validate h100_cluster01_multi --split sizes")(validate)
    app.command("validate job", epilog="Example: simnet validate job logs --scenario job.yaml")(validate_job)


@terminal.explained
def validate(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DATASET|LOG]...",
            help="Shipped measurements or logs; default: all that are shipped.",
            autocompletion=completion.one_of(completion.measured, "job"),
        ),
    ] = None,
    split: Annotated[
        list[Split] | None, typer.Option(help="What is left out; repeatable; default: each in turn.")
    ] = None,
    fabric: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with this fabric file; nothing is fitted.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="With --fabric: refuse to extrapolate.")] = False,
    fact: Annotated[list[str] | None, typer.Option(metavar="[NAMES:]COLUMN=VALUE", help=options.FACT)] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw predicted against measured, as .png or .svg; one source.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="End with 1 if a figure is worse than recorded.")] = False,
    learned: Annotated[
        bool, typer.Option("--learned", help="Also a Gaussian process and gradient boosting, of scikit-learn; slower.")
    ] = False,
    json_: Json = False,
    force: Force = False,
) -> None:
    """Evaluate predictions on held-out measurements, next to baseline models."""
    from simnet.cost_models.calibration.measured import datasets
    from simnet.cost_models.calibration.readers.facts import parse_facts
    from simnet.validate import evaluation, evaluation_figures

    options.only("--fabric", fabric is not None, {"--strict": strict})
    own = {"--split": split, "--check": check, "--learned": learned}
    options.only("what is left out, which --fabric does without", fabric is None, own)
    names = list(sources or datasets())
    options.only("shipped measurements", set(names) <= set(datasets()), {"--check": check})
    options.figure(figure, force)
    if figure is not None and len(names) != 1:
        raise InputError("needs one source", file="--figure")
    facts = parse_facts(fact or ())
    splits = [one.value for one in split or Split]
    found = []
    for number, name in enumerate(names, 1):
        with terminal.progress(f"{number} of {len(names)}: {name}"):
            found.append(
                evaluation.evaluate(name, facts, splits, learned=learned)
                if fabric is None
                else evaluation.compare(fabric, name, facts, strict=strict)
            )
        if not json_:
            typer.echo("\n".join([*found[-1].sentences(), ""]))
    facts.refuse_idle()
    figures = [one.figures() for one in found]
    if json_:
        typer.echo(json.dumps(figures, indent=2))
    if figure is not None:
        evaluation_figures.draw_evaluation(found[0]).save(figure, force)
    if check:
        _check_recorded(figures, splits)


def _check_recorded(figures: Sequence[Mapping[str, Any]], splits: Sequence[str]) -> None:
    """End with 1 if a dataset is worse than recorded."""
    from simnet.validate.evaluation_figures import recorded_figures, worse_figures

    said = [line for one in figures for line in worse_figures(one, recorded_figures(one["dataset"], splits))]
    for line in said:
        typer.echo(f"worse: {line}", err=True)
    if said:
        raise typer.Exit(1)


@terminal.explained
def validate_job(
    logs: Annotated[
        Path | None,
        typer.Argument(metavar="[LOGS]", help="A folder with rank_<r>.csv, or with one such folder per policy."),
    ] = None,
    scenario: Annotated[
        str | None, typer.Option("--scenario", metavar="SCENARIO", help="The scenario of the job.")
    ] = None,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="The jobs that come with simnet, as a page, in place of LOGS.")
    ] = False,
    set_: Changes = None,
    skip: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Iterations at the beginning that do not count; default: 2.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw measured beside predicted, as .png or .svg.")
    ] = None,
    json_: Json = False,
    force: Force = False,
) -> None:
    """Compare the logs of a real job with the prediction of its scenario, by exchange and part."""
    from simnet.report.tables import show_listing
    from simnet.scenario import load
    from simnet.studies.iteration import predict_job
    from simnet.validate.jobs import comparing, report, tables

    if shipped:
        own = {"LOGS": logs, "--scenario": scenario, "--set": set_, "--skip": skip, "--figure": figure}
        options.only("logs, not for --shipped", False, own | {"--force": force})
        typer.echo(json.dumps(report.figures(report.shipped()), indent=2) if json_ else report.section(), nl=json_)
        return
    if logs is None:
        raise InputError("is missing: a folder of logs, or --shipped for the jobs that come with simnet", file="LOGS")
    if scenario is None:
        raise InputError("is missing: the scenario of the job", file="--scenario")
    options.figure(figure, force)
    measured = tables.over_ranks(tables.read_logs(logs))
    with terminal.progress("iterations"):
        loaded = load(scenario, set_ or ())
        prediction = predict_job(loaded, tables.policies_of(measured, loaded))
    found = comparing.compared(measured, prediction, comparing.SKIPPED if skip is None else skip)
    if json_:
        typer.echo(json.dumps(found.figures(), indent=2))
    else:
        show_listing(f"iterations of {prediction.scenario}", comparing.HEADINGS, found.rows())
        for line in found.sentences():
            typer.echo(line)
    if figure is not None:
        found.drawn().save(figure, force)


@terminal.explained
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="What to reproduce; without: list what there is.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them, the slow ones too: a few minutes.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="All but those that take more than a few seconds.")] = False,
    devices: Annotated[
        bool, typer.Option("--devices", help="Headline ratios under each device profile: a few minutes.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if a value is outside its tolerance, or has changed.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the values as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Write the values as a table.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Write the page docs/papers.md.")] = None,
    force: Force = False,
) -> None:
    """Reproduce figures, tables and claims of papers: published value, ours, error, tolerance."""
    from simnet.base.progress import track_progress
    from simnet.base.writing import refuse_existing
    from simnet.validate.reproduction import REPRODUCTIONS, reproduction, under_devices

    if names and (every or fast):
        raise InputError("is either names or --all or --fast", file="simnet reproduce")
    if every and fast:
        raise InputError("is either --all or --fast", file="simnet reproduce")
    if devices:
        options.only("reproductions, not for --devices", False, {"NAME": names, "--all": every, "--fast": fast})
        options.only("reproductions", False, {"--check": check, "--out": out, "--markdown": markdown, "--json": json_})
        with terminal.progress("ratios"):
            head, *others = under_devices.rows(under_devices.columns())
        _show_table("Headline ratios under each device profile", head, head[:1], others)
        return
    if names:
        wanted = [reproduction(name) for name in dict.fromkeys(names)]
    else:
        wanted = [one for one in REPRODUCTIONS.values() if every or (fast and not one.slow)]
    options.only("a NAME, --all or --fast", bool(wanted), {"--check": check, "--out": out, "--markdown": markdown})
    options.only("--out and --markdown", out is not None or markdown is not None, {"--force": force})
    files = {"--out": (out, ".csv"), "--markdown": (markdown, ".md")}
    for option, (path, ending) in files.items():
        if path is not None and path.suffix != ending:
            raise InputError(f"must end in {ending}, got {path.name!r}", file=option)
    if not wanted:
        _list_reproductions(json_)
        return
    refuse_existing([path for path, _ in files.values() if path is not None], force)
    found: dict[str, Sequence[Row] | None] = {}
    with terminal.progress("reproductions"):
        for one in track_progress(wanted):
            found[one.name] = _run_reproduction(one)
    if json_:
        typer.echo(json.dumps([_json_figures(REPRODUCTIONS[name], rows) for name, rows in found.items()], indent=2))
    elif not terminal.quiet():
        _print_values(found)
    _write_all(found, out, markdown, force)
    if check:
        _check_values(found)


def _check_values(found: Mapping[str, Sequence[Row] | None]) -> None:
    """End with 1 if a value is outside its tolerance, and is not said to be, or is another than was frozen."""
    from simnet.validate.reproduction.table import changed

    outside = [f"{name}: {row.what}" for name, rows in found.items() for row in rows or () if row.fails]
    others = [f"{name}: {what}" for name, rows in found.items() if rows for what in changed(name, rows)]
    for said, values in (("outside its tolerance", outside), ("changed", others)):
        if values:
            typer.echo(f"{said}: {'; '.join(values)}", err=True)
    if outside or others:
        raise typer.Exit(1)


def _run_reproduction(one: Reproduction) -> list[Row] | None:
    reason = one.needs()
    if reason:
        typer.echo(f"{one.name} is left out: it {reason}", err=True)
        return None
    if one.slow:
        terminal.say(f"{one.name} takes a while", err=True)
    return one.rows()


def _list_reproductions(json_: bool) -> None:
    """Show what there is."""
    from simnet.validate.reproduction import KINDS, MISSING, REPRODUCTIONS, page

    every = REPRODUCTIONS.values()

    def status(one: Reproduction) -> str:
        return one.needs() or ("takes longer" if one.slow else "ready")

    if json_:
        shown = ("name", "paper", "place", "title", "values")
        rows = [{key: getattr(one, key) for key in shown} | {"status": status(one)} for one in every]
        typer.echo(json.dumps({"reproductions": rows, "missing": [one._asdict() for one in MISSING]}, indent=2))
        return
    columns = ("name", "paper", "published", "what", "values", "status")
    cells = [(one.name, one.paper, one.place, one.title, page.kinds(one), status(one)) for one in every]
    _show_table("Reproductions", columns, columns, cells)
    for kind, meaning in KINDS.items():
        typer.echo(f"{kind}: {meaning}")
    typer.echo(f"{len(MISSING)} figures, tables and claims are not reproduced; docs/papers.md and --json say why")


def _print_values(found: Mapping[str, Sequence[Row] | None]) -> None:
    """Print the values of each, and how it came out."""
    from simnet.validate.reproduction import REPRODUCTIONS, page

    columns = ("value", "published", "ours", "unit", "error", "tolerance", "")
    for name, rows in found.items():
        if rows is None:
            continue
        one = REPRODUCTIONS[name]
        left = ("value", "unit", "tolerance", "")
        _show_table(f"{one.paper}, {one.place}: {one.title}", columns, left, [page.cells(row) for row in rows])
        typer.echo(one.note)
        typer.echo(f"{name}: {page.kinds(one)}; worst {page.worst(rows)}\n")
    for line in page.summary(found):
        typer.echo(textwrap.fill(line, 80, break_long_words=False, break_on_hyphens=False))


def _show_table(title: str, columns: Sequence[str], left: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.text import Text

    from simnet.report.tables import empty_table, print_wide

    table = empty_table(title, columns, left)
    for row in cells:
        table.add_row(*map(Text, row))
    print_wide(table)


def _json_figures(one: Reproduction, rows: Sequence[Row] | None) -> dict[str, Any]:
    """Return a reproduction for JSON."""
    from simnet.validate.reproduction.table import counts, figures

    head = {key: getattr(one, key) for key in ("name", "paper", "place", "title", "note")}
    if rows is None:
        return {**head, "left_out": f"it {one.needs()}", "kinds": {}, "contradictions": 0, "values": []}
    plain = [
        {key: None if isinstance(cell, float) and not math.isfinite(cell) else cell for key, cell in row.items()}
        for row in map(figures, rows)
    ]
    against = sum(row.contradicts for row in rows)
    return {**head, "left_out": None, "kinds": counts(rows), "contradictions": against, "values": plain}


def _write_all(found: Mapping[str, Sequence[Row] | None], out: Path | None, markdown: Path | None, force: bool) -> None:
    """Write the table and the page that were asked for."""
    from simnet.base.spreadsheets import guard_table
    from simnet.base.writing import write_new
    from simnet.validate.reproduction import REPRODUCTIONS, as_frame, page, under_devices

    if out is not None:
        import pandas as pd

        parts = [as_frame(rows).assign(name=name) for name, rows in found.items() if rows]
        frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        if parts:
            frame.insert(0, "name", frame.pop("name"))
        write_new({out: guard_table(frame).to_csv(index=False)}, force)
    if markdown is not None:
        columns = under_devices.columns() if set(found) == set(REPRODUCTIONS) else []
        write_new({markdown: page.page(found, columns)}, force)
