"""``simnet trace``: gradient traces described, made, fitted and converted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from simnet.base.errors import InputError
from simnet.studies import options
from simnet.verbs.commands import completion, terminal
from simnet.verbs.commands.options import Force, Json, Size

if TYPE_CHECKING:
    from simnet.traces import RecordedSource

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
# What a trace consists of: a folder with anything else is not replaced.
_OF_TRACES = (".safetensors", ".json")

Chosen: TypeAlias = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]


class Dtype(StrEnum):
    """Types of recorded entries."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


def info(
    trace: Trace,
    density: Densities = None,
    scale: Scale = 1.0,
    seed: Chosen = 0,
    figure: Draw = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Describe a gradient trace: tail, scales of layers, overlap of what top-k selects, build-up."""
    from simnet.report.traces import description_plot
    from simnet.traces import comparing

    densities = _read_densities(density)
    source = _open_trace(trace, scale, seed)
    options.figure(figure, force)
    with terminal.progress("steps"):
        found = comparing.describe_trace(source, densities)
    if figure is not None:
        description_plot(found).save(figure, force)
    if json_:
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    typer.echo(
        f"{found['name']}: {found['workers']} workers, {found['parameters']:,} parameters in {len(found['layers'])} "
        f"layers, {found['points']} recorded steps of {found['iterations']:,}, {', '.join(found['dtypes'])}"
    )
    if found["entries"] != found["parameters"]:
        typer.echo(f"figures are of {found['entries']:,} of the entries")
    typer.echo(
        f"tail index {_number_text(found['tail_index'])} (Hill's estimate from the largest "
        f"{100 * found['tail_share']:g} % of the magnitudes of each worker; smaller is heavier)"
    )
    columns = ("density", "gain", "build-up", "overlap of workers", "next step", "recorded steps", "first and last")
    keys = ("gain", "build_up", "overlap_workers", "overlap_next", "overlap_time", "overlap_first_last")
    _print_table(
        "what top-k selects, means over steps; overlap as share of k",
        columns,
        [[f"{one['density']:g}", *(_number_text(one[key]) for key in keys)] for one in found["densities"]],
    )
    _print_table(
        "layers",
        ("layer", "shape", "entries", "rms", "of the squared norm", "zeros", "tail index"),
        [
            [
                one["name"], "x".join(map(str, one["shape"])), f"{one['entries']:,}", f"{one['rms']:.3g}",
                f"{100 * one['share']:.1f} %", f"{100 * one['zeros']:.1f} %", _number_text(one["tail_index"]),
            ]
            for one in found["layers"]
        ],
    )  # fmt: skip


def synth(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the trace shall lie.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A model of `simnet list models`, or its config.json.",
            autocompletion=completion.one_of(completion.models),
        ),
    ] = None,
    parameters: Size = None,
    like: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="What they are like: a trace, or a file of `simnet trace fit`.")
    ] = "digits",
    workers: Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="Workers.")] = 8,
    iterations: Annotated[int, typer.Option(min=1, max=2**40, metavar="N", help="Length of the run.")] = 200,
    every: Annotated[int, typer.Option(min=1, metavar="N", help="Steps from one that is written to the next.")] = 20,
    scale: Annotated[float, typer.Option(min=1, help="Generate 1/SCALE of the entries of each layer.")] = 1.0,
    seed: Chosen = 0,
    dtype: Annotated[Dtype, typer.Option(help="Type of the entries.")] = Dtype.FP32,
    force: Force = False,
) -> None:
    """Write a trace of synthetic gradients."""
    from simnet.base.writing import stage_files
    from simnet.cost_models.costs import models
    from simnet.cost_models.costs.layers import Layer
    from simnet.traces import converting, synthetic

    if (model is None) == (parameters is None):
        raise InputError("needs --model or --parameters, and not both", file="simnet trace synth")
    steps = range(0, iterations, every)
    if len(steps) > 100_000:
        raise InputError(f"gives {len(steps):,} steps, more than 100,000; take a larger one", file="--every")
    size = options.parameters(parameters)
    with _refused_values("simnet trace synth"):
        shapes = [Layer("weight", (1, size))] if size else list(models.load_model(str(model)).layers)
        entries = sum(max(1, round(layer.size / scale)) for layer in shapes)
        _check_memory(workers, entries)
        source = synthetic(
            [(layer.name, layer.shape) for layer in shapes], workers,
            like=like, iterations=iterations, scale=scale, seed=seed,
        )  # fmt: skip
    made = converting.generated(source, shapes, model or "synthetic", iterations, list(steps), seed)
    with stage_files([out], force, _OF_TRACES) as folder:
        (folder / out.name).mkdir()
        with terminal.progress("steps"):
            converting.write_folder(made, folder / out.name, dtype.value)
    terminal.say(f"Written: {out}: {len(steps)} steps, {workers} workers, {source.parameters:,} entries")


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
    from simnet.traces import comparing
    from simnet.traces import fit as fitted

    if out.suffix != ".json":
        raise InputError(f"must end with .json, got {out.name!r}", file="--out")
    densities = _read_densities(density)
    source = _open_trace(trace, scale, seed, all_steps=True)
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


def convert(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="A trace, its folder, or an .npz archive.",
            autocompletion=completion.one_of(completion.traces),
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="NAME.npz, or a folder.")],
    dtype: Annotated[Dtype | None, typer.Option(help="Type of the entries; default: as they are.")] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="0,20,100:200", help="Recorded steps; A:B means from A, before B.")
    ] = None,
    workers: Annotated[str | None, typer.Option(metavar="0,2,4:8", help="Workers, from 0.")] = None,
    entries: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many entries of each layer, at random.")
    ] = None,
    per_worker: Annotated[bool, typer.Option("--per-worker", help="A file for each worker at each step.")] = False,
    seed: Chosen = 0,
    force: Force = False,
) -> None:
    """Write a trace, or part of it, with another type or as another kind of file."""
    from simnet.base.writing import stage_files
    from simnet.traces import converting

    archive = out.suffix == ".npz"
    options.only("folders", not archive, {"--per-worker": per_worker})
    whole: converting.Steps
    if trace.endswith(".npz"):
        whole, kinds = converting.ReadArchive(Path(trace)), ["F32"]
    else:
        source = _open_trace(trace)
        whole, kinds = source, source.dtypes()
    kept = {"F16": Dtype.FP16, "BF16": Dtype.BF16}.get(kinds[0], Dtype.FP32) if len(kinds) == 1 else Dtype.FP32
    if dtype is None and archive and kept is Dtype.BF16:
        kept = Dtype.FP32
    part = converting.part_of(
        whole,
        steps=_read_indices(steps, "--steps", [point.step for point in whole.info.points]),
        workers=_read_indices(workers, "--workers", range(whole.info.workers)),
        entries=entries,
        seed=seed,
    )
    with stage_files([out], force, () if archive else _OF_TRACES) as folder, terminal.progress("steps"):
        if archive:
            converting.write_npz(part, folder / out.name, (dtype or kept).value)
        else:
            (folder / out.name).mkdir()
            converting.write_folder(part, folder / out.name, (dtype or kept).value, per_worker)
    terminal.say(f"Written: {out}: {len(part.info.points)} steps, {part.info.workers} workers, {(dtype or kept).value}")


def _open_trace(trace: str, scale: float = 1.0, seed: int = 0, *, all_steps: bool = False) -> RecordedSource:
    """Return a trace, of which a step, or all of them, fits memory with what is computed of it."""
    from simnet import traces
    from simnet.traces import converting

    # A folder in the working directory is meant where no trace has that name.
    given = Path(trace) if trace not in traces.trace_names() and Path(trace).is_dir() else trace
    with _refused_values(trace):
        source = traces.recorded(given, scale=scale, seed=seed)
    times = 4.0 * (len(source.info.points) if all_steps else 2)
    converting.in_memory(source.info, source.parameters, times)
    return source


def _check_memory(workers: int, entries: int) -> None:
    from simnet.traces.converting import LARGEST

    needed = 4 * entries * (workers + 4)
    if needed > LARGEST:
        raise InputError(
            f"{workers} workers with {entries:,} entries need {needed / 2**30:,.1f} GiB of memory, more than "
            f"{LARGEST / 2**30:g} GiB; take a larger --scale",
            file="simnet trace synth",
        )


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


def _read_indices(text: str | None, option: str, there: Sequence[int]) -> list[int] | None:
    """Read whole numbers and ranges, of which those that are there are meant."""
    if text is None:
        return None
    found: list[int] = []
    for word in text.split(","):
        first, colon, last = word.strip().partition(":")
        if not all(part.isascii() and part.isdigit() and len(part) < 14 for part in (first, last) if part) or not (
            first or colon
        ):
            raise InputError(f"must be whole numbers and ranges such as 0,20,100:200, got {word!r}", file=option)
        if not colon:
            found.append(int(first))
            continue
        inside = [one for one in there if int(first or 0) <= one and (not last or one < int(last))]
        if not inside:
            raise InputError(f"nothing is recorded within {word}", file=option)
        found += inside
    return found


def _number_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from simnet.report.tables import show_listing

    show_listing(title, columns, rows)
