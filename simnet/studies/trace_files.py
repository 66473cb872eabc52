"""Files of gradient traces: how they are opened within memory, synthesised, and converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simnet import traces
from simnet.base.errors import InputError, refuse_values
from simnet.base.file_io import stage_files
from simnet.base.progress import progress_stage
from simnet.scenario import Scenario
from simnet.traces import RecordedSource, comparing, recording
from simnet.traces.files import LARGEST, in_memory
from simnet.traces.metadata import SHIPPED, SyntheticParameters
from simnet.traces.synthetic import SyntheticSource

OF_TRACES = (".safetensors", ".json")
"""File suffixes of a trace; a folder with other files is not replaced."""

_TYPES = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


def is_trace(name: str) -> bool:
    """Return whether a name is that of a gradient trace (shipped, a folder or an archive) or of a file of tensors."""
    return (
        name in {path.name for path in SHIPPED.iterdir() if path.is_dir()}
        or name.endswith((".npz", ".npy", ".pt", ".pth", ".safetensors", ".pkl", ".h5"))
        or (Path(name) / "trace.json").is_file()
    )


def open_trace(trace: str, scale: float = 1.0, seed: int = 0, *, all_steps: bool = False) -> RecordedSource:
    """Return a gradient trace. InputError: a step, or with `all_steps` the whole trace, does not fit into memory."""
    # A folder in the working directory is meant where no trace has that name.
    given = Path(trace) if trace not in traces.trace_names() and Path(trace).exists() else trace
    with refuse_values(trace):
        source = traces.recorded(given, scale=scale, seed=seed)
    in_memory(source.info, source.parameters, 4.0 * (len(source.info.points) if all_steps else 2))
    return source


def convert_trace(
    trace: str, out: Path, part: Mapping[str, str], dtype: str | None, *, seed: int = 0, force: bool = False
) -> str:
    """Write a trace, or a part of it, in another dtype or file format; return a sentence on the files.

    `part` has the keys ``steps`` and ``workers``, numbers and ranges joined by ``+``, ``entries``, the maximum per
    layer, and ``per-worker``, for one file per worker and step.
    """
    archive = out.suffix == ".npz"
    if archive and "per-worker" in part:
        raise InputError("per-worker is for folders", file="--part")
    whole = open_trace(trace)
    kinds = whole.dtypes()
    kept = _TYPES.get(kinds[0], "fp32") if len(kinds) == 1 else "fp32"
    written = dtype or ("fp32" if archive and kept == "bf16" else kept)
    chosen = recording.trace_part(
        whole,
        steps=read_indices(part.get("steps"), [point.step for point in whole.info.points]),
        workers=read_indices(part.get("workers"), range(whole.info.workers)),
        entries=int(part["entries"]) if "entries" in part else None,
        seed=seed,
    )
    with stage_files([out], force, () if archive else OF_TRACES) as folder:
        if archive:
            recording.write_npz(chosen, folder / out.name, written)
        else:
            (folder / out.name).mkdir()
            recording.write_folder(chosen, folder / out.name, written, "per-worker" in part)
    return f"{len(chosen.info.points)} steps, {chosen.info.workers} workers, {written}"


def write_synthetic(scenario: Scenario, out: Path, dtype: str, *, every: int = 20, force: bool = False) -> str:
    """Write a trace of a scenario's synthetic gradients; return a sentence on the files.

    Model, workers, scale, iterations and `like` are the scenario's; every `every`-th iteration is written.
    """
    config, source = scenario.config, scenario.build().job.source
    if not isinstance(source, SyntheticSource):
        raise InputError("must be synthetic for a trace to be made of them", field="job.gradients")
    steps = range(0, config.job.iterations, every)
    if len(steps) > 100_000:
        raise InputError(f"gives {len(steps):,} steps, more than 100,000; take a larger every", file="--part")
    needed = 4 * source.parameters * (source.workers + 4)
    if needed > LARGEST:
        said = f"{needed / 2**30:,.1f} GiB of memory, more than {LARGEST / 2**30:g} GiB"
        raise InputError(f"{source.workers} workers with {source.parameters:,} entries need {said}", field="job.scale")
    shapes = source.made_of[0]
    made = recording.generated(source, shapes, scenario.name, config.job.iterations, list(steps), config.seed)
    with stage_files([out], force, OF_TRACES) as folder:
        (folder / out.name).mkdir()
        recording.write_folder(made, folder / out.name, dtype)
    return f"{len(steps)} steps, {source.workers} workers, {source.parameters:,} entries"


def fit_trace(
    trace: str, scale: float, densities: Sequence[float], seed: int
) -> tuple[SyntheticParameters, dict[str, Any]]:
    """Fit the generator of synthetic gradients to a trace; return its parameters, and its errors by density."""
    source = open_trace(trace, scale, seed, all_steps=True)
    with refuse_values(trace), progress_stage(0.8):
        parameters = traces.fit(source)
    return parameters, comparing.compare_with_synthetic(source, parameters, densities, seed=seed)


def read_indices(text: str | None, there: Sequence[int]) -> list[int] | None:
    """Return the step or worker numbers in a text such as ``0+20+100:200``; a range selects recorded numbers only.

    Examples
    --------
    >>> read_indices("0+4:8", range(0, 20, 5))
    [0, 5]
    """
    if text is None:
        return None
    found: list[int] = []
    for word in text.split("+"):
        first, colon, last = word.strip().partition(":")
        digits = all(part.isascii() and part.isdigit() and len(part) < 14 for part in (first, last) if part)
        if not digits or not (first or colon):
            raise InputError(f"must be whole numbers and ranges such as 0+20+100:200, got {word!r}", file="--part")
        if not colon:
            found.append(int(first))
            continue
        inside = [one for one in there if int(first or 0) <= one and (not last or one < int(last))]
        if not inside:
            raise InputError(f"nothing is recorded within {word}", file="--part")
        found += inside
    return found
