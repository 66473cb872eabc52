"""``simnet trace fit``: the synthetic generator fitted to a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from simnet.base.errors import InputError
from simnet.studies import options
from simnet.verbs.commands import completion, terminal
from simnet.verbs.commands.options import Force, Json

Trace: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace of `simnet list traces`, or the folder of one.",
        autocompletion=completion.one_of(completion.traces),
    ),
]
Densities: TypeAlias = Annotated[
    str | None, typer.Option("--density", metavar="0.01,1%,...", help="Densities; default: 0.001,0.01,0.1.")
]
Scale: TypeAlias = Annotated[
    float, typer.Option(min=1, help="Look at 1/SCALE of the entries of each layer, for large traces.")
]
Draw: TypeAlias = Annotated[
    Path | None, typer.Option("--figure", metavar="FILE", help="Draw the figures: NAME.png or NAME.svg.")
]
Chosen: TypeAlias = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]


def fit(
    trace: Trace,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The parameters, as JSON.")],
    density: Densities = None,
    scale: Scale = 1.0,
    seed: Chosen = 0,
    figure: Draw = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Fit the synthetic generator to a trace, and say how close it comes."""
    from simnet.base.progress import progress_stage
    from simnet.base.writing import stage_files
    from simnet.report.traces import closeness_plot
    from simnet.studies.trace_files import open_trace
    from simnet.traces import comparing
    from simnet.traces import fit as fitted

    if out.suffix != ".json":
        raise InputError(f"must end with .json, got {out.name!r}", file="--out")
    densities = _read_densities(density)
    source = open_trace(trace, scale, seed, all_steps=True)
    options.figure(figure, force)
    with stage_files([out], force) as folder:
        with terminal.progress("fit"):
            with _refused_values(trace), progress_stage(0.8):
                parameters = fitted(source)
            found = comparing.compare_with_synthetic(source, parameters, densities, seed=seed)
        if figure is not None:
            closeness_plot(found).save(figure, force)
        parameters.save(folder / out.name)
    if json_:
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
    if json_ or terminal.quiet():
        return
    names = {
        "gain": "gain", "build_up": f"build-up, P = {found['workers']}", "overlap_workers": "overlap of workers",
        "overlap_time": "overlap over time", "threshold": "threshold", "threshold_drift": "threshold drift",
    }  # fmt: skip
    rows = [
        [
            f"{one['density']:g}",
            label,
            *(_number_text(one[key][side]) for side in ("real", "synthetic", "ratio", "error")),
        ]
        for one in found["densities"]
        for key, label in names.items()
    ]
    columns = ("density", "figure", "recorded", "synthetic", "ratio", "±")
    _print_table("recorded and synthetic, means over steps", columns, rows)
    few = [one for one in found["densities"] if one["selected"] < comparing.FEW]
    if few:
        said = ", ".join(f"{one['selected']} at {one['density']:g}" for one in few)
        typer.echo(f"A worker selects few entries ({said}), so chance decides much of these figures.")
    terminal.say(f"Written: {out}")


@contextmanager
def _refused_values(what: str) -> Iterator[None]:
    """Turn refusals of values into errors for people."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error), file=what) from None


def _read_densities(text: str | None) -> list[float]:
    from simnet.traces.comparing import DENSITIES

    return list(DENSITIES) if text is None else sorted({options.density(word) for word in text.split(",")})


def _number_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from simnet.report.tables import show_listing

    show_listing(title, columns, rows)
