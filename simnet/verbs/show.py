"""``simnet show``: description of a name in simnet, a trace, a run folder or a file."""

from __future__ import annotations

import json
from inspect import getdoc
from pathlib import Path
from typing import Any

from simnet.base.errors import InputError, did_you_mean
from simnet.base.file_io import read_text
from simnet.base.plugins import names_file
from simnet.report.summary import Summary, table_columns
from simnet.scenario.finding import shipped
from simnet.verbs import terminal
from simnet.verbs.request import Words, verb, word_list


@verb
def show(*names: str, density: Words = "0.001,0.01,0.1", out: str | None = None, force: bool = False) -> Summary | str:
    """Describe a name, trace, run, network or scenario; ``simnet show schema`` prints the schema of scenario files.

    Parameters
    ----------
    names
        Names, files, or run folders.

        Several runs share a page. A scheme with a model, device or implementation shows its cost.
    density
        Densities at which to describe a trace.
    out
        Folder for the page of runs; otherwise a file, such as .json or .svg.
    force
        Overwrite existing files.

    Raises
    ------
    InputError
        If there is nothing of that name.

    Examples
    --------
    >>> print(show("gloo").answer)
    gloo: a stack and a reader and a word.
    """
    from simnet.sparsifier_models import names as scheme_names
    from simnet.studies import reports

    if not names:
        raise InputError("needs a name, a trace, a folder of a run or a file", file="simnet show")
    name = names[0]
    if len(names) > 1 and name.partition(":")[0] in scheme_names():
        from simnet.studies.local_costs import local_cost_summary

        return local_cost_summary(name, names[1:])
    if (Path(name) / reports.SUMMARY).is_file() or len(names) > 1:
        return _runs_page([Path(one) for one in names], out, force)
    found = _described(name, density)
    if out is not None:
        if isinstance(found, str):
            raise InputError(f"is for tables; redirect what 'simnet show {name}' prints", file="--out")
        found.save(out, force=force)
    return found


def _described(name: str, density: Words) -> Summary | str:
    from simnet.cost_models.costs.models import MAX_BYTES, is_config, load_model
    from simnet.interchange.kinds import kind_of
    from simnet.scenario import json_schema
    from simnet.scenario.named_choices import network_taken_for, read_network_text
    from simnet.sparsifier_models import scheme
    from simnet.studies.listing import LISTS, describe, listing, scenario_text
    from simnet.studies.trace_files import is_trace
    from simnet.traces import trace_names

    if name == "schema":
        return json.dumps(json_schema(), indent=2)
    if name in shipped():
        return scenario_text(name)
    if is_trace(name):
        return _trace_answer(name, density)
    if names_file(name):
        own = scheme(name)
        rows = [{"field": "what it is", "value": getdoc(own) or ""}, {"field": "after", "value": own.paper}]
        following = f"simnet run --schemes topk,{name}"
        return Summary(answer=f"{name}: a scheme.", columns=table_columns("show"), rows=rows, next=following)
    answer, fields = describe(name)
    if answer:
        rows = [{"field": field, "value": text} for field, text in fields]
        return Summary(answer=answer, columns=table_columns("show") if rows else (), rows=rows)
    is_small = is_config(name) and Path(name).is_file() and Path(name).stat().st_size <= MAX_BYTES
    if is_small and '"model_type"' in read_text(Path(name), MAX_BYTES):
        model = load_model(name)
        answer = f"{name}: a model of {model.parameters:,} parameters in {len(model.layers):,} tensors."
        return Summary(answer=answer, next=f"simnet choose --model {name} --compute 120ms")
    if Path(name).suffix == ".csv" and Path(name).is_file():
        return _weather_answer(name)
    if Path(name).is_file():
        # Of a scenario, this refuses what --network would.
        read_network_text(name, Path())
        following = f"simnet time all_reduce --network {name}{' --latency 1us' * (kind_of(name) == 'nccl')}"
        return Summary(answer=f"{name}: {network_taken_for(name)}.", next=following)
    known = [*shipped(), *trace_names(), *(row[0] for kind in LISTS for row in listing(kind)[1])]
    close = did_you_mean(name, known)
    raise InputError(f"there is no {name!r}, nor a file of that name; {close}See simnet list", file="simnet show")


def _runs_page(folders: list[Path], out: str | None, force: bool) -> Summary:
    """Redraw the page of one run and return its answer, or write a page that compares several runs."""
    from simnet.base.file_io import refuse_existing
    from simnet.report.answers import sentence
    from simnet.studies import reports

    place = Path(out) if out is not None else folders[0] if len(folders) == 1 else Path("runs") / "report"
    if place != folders[0]:
        refuse_existing([place / "report.html"], force)
    if len(folders) == 1:
        found = reports.redraw(folders[0], place)
        terminal.say(f"wrote {place / 'report.html'}")
        return found
    summary, page = reports.compare_runs(folders, place)
    return Summary(answer=f"{sentence(summary)} Page: {page}")


def _weather_answer(file: str) -> Summary:
    from simnet.base.units import format_bandwidth, format_seconds
    from simnet.network.weather import trace_csv

    weather, said = trace_csv(file), []
    for what, signal, shown in (
        ("bandwidth", weather.bandwidth, format_bandwidth),
        ("latency", weather.latency, format_seconds),
    ):
        if signal is not None:
            times, values = signal.window(0.0, 1e12)
            said.append(f"{what} {shown(float(values.min()))} to {shown(float(values.max()))}, {len(times):,} steps")
    setting = f"[{{links: host, trace: {{file: {file}}}}}]"
    return Summary(answer=f"{file}: weather of a link; {'; '.join(said)}.",
                   next=f'simnet run quickstart --set "network.weather={setting}"')  # fmt: skip


def _trace_answer(trace: str, density: Words) -> Summary:
    from simnet.studies import options
    from simnet.studies.trace_files import open_trace
    from simnet.traces.comparing import describe_trace

    found: dict[str, Any] = describe_trace(open_trace(trace), options.densities(word_list(density)))
    layers, tail = len(found["layers"]), found["tail_index"]
    answer = (
        f"{found['name']}: {found['workers']} workers, {found['parameters']:,} parameters in {layers} "
        f"layer{'s' * (layers != 1)}, {found['points']} recorded steps of {found['iterations']:,}; tail index "
        f"{'-' if tail is None else format(tail, '.3g')} (smaller is heavier)."
    )
    notes = [
        f"{one['name']}: {'x'.join(map(str, one['shape']))}, rms {one['rms']:.3g}, {100 * one['share']:.1f} % of the "
        f"squared norm, {100 * one['zeros']:.1f} % zeros"
        for one in found["layers"]
    ]
    assumed = "what top-k selects, means over recorded steps; overlaps are shares of k"
    if found["entries"] != found["parameters"]:
        assumed += f"; {found['entries']:,} of the entries are looked at"
    return Summary(answer=answer, columns=table_columns("show trace"), rows=found["densities"], assumed=assumed,
                   notes=notes, details=found)  # fmt: skip
