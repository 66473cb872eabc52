"""Writes traces or parts of them, step by step, as folders or as npz archives for numpy."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from simnet.base.arrays import Values
from simnet.base.errors import InputError
from simnet.base.file_io import explain_write_errors
from simnet.base.progress import track_progress
from simnet.cost_models.costs.models import Layer
from simnet.traces.files import encode_stored, in_memory, write_tensors, write_text
from simnet.traces.metadata import DESCRIPTION, RecordedLayer, RecordedPoint, TraceInfo
from simnet.traces.recorded import RecordedSource, chosen_entries, step_file
from simnet.traces.synthetic import SyntheticSource


class ConvertedSteps(NamedTuple):
    """A trace to be written: its description, and a function from step index to gradients of shape (P, n)."""

    info: TraceInfo
    recorded: Callable[[int], Values]


def trace_part(
    whole: RecordedSource,
    *,
    steps: Sequence[int] | None = None,
    workers: Sequence[int] | None = None,
    entries: int | None = None,
    seed: int = 0,
) -> ConvertedSteps:
    """Return a part of a trace: some recorded steps and workers, and at most `entries` entries of each layer.

    Defaults are all steps, workers and entries; entries are drawn at random by `seed`.
    """
    info = whole.info
    at = {point.step: place for place, point in enumerate(info.points)}
    for step in steps or ():
        if step not in at:
            shown = ", ".join(map(str, list(at)[:20])) + (", ..." if len(at) > 20 else "")
            raise InputError(f"step {step} is not recorded; there are {shown}", file="--steps")
    for worker in workers or ():
        if not 0 <= worker < info.workers:
            raise InputError(f"there are workers 0 to {info.workers - 1}, got {worker}", file="--workers")
    points = [at[step] for step in sorted(set(steps))] if steps is not None else list(at.values())
    rows = slice(None) if workers is None else list(dict.fromkeys(workers))
    layers, columns, begin = [], [], 0
    for layer in info.layers:
        size = prod(layer.shape)
        some = chosen_entries(layer, size, entries or size, seed)
        columns.append(begin + (np.arange(size) if some is None else some))
        if some is not None:
            layer = RecordedLayer(name=layer.name, shape=some.shape, of=layer.of or layer.shape)
        layers.append(layer)
        begin += size
    among: Any = slice(None) if entries is None else np.concatenate(columns)
    described = {
        "workers": info.workers if workers is None else len(set(workers)),
        "points": tuple(info.points[place] for place in points),
        "layers": tuple(layers),
    }
    part = info.model_copy(update=described)
    return ConvertedSteps(part, lambda point: whole.recorded(points[point])[rows][:, among])


def generated(
    source: SyntheticSource, shapes: Sequence[Layer], name: str, iterations: int, steps: Sequence[int], seed: int
) -> ConvertedSteps:
    """Return some iterations of a synthetic source as a trace; one step must fit into memory."""
    sized = zip(shapes, source.layers, strict=True)
    info = TraceInfo(
        version=1,
        name=name,
        how=f"synthetic gradients like {source.like.name}",
        software={},
        seed=seed,
        workers=source.workers,
        steps=iterations,
        layers=tuple(
            RecordedLayer(name=layer.name, shape=shape, of=None if shape == layer.shape else layer.shape)
            for layer, shape in ((one, one.shape if size == one.size else (size,)) for one, (_, size) in sized)
        ),
        points=tuple(RecordedPoint(step=step) for step in steps),
    )
    in_memory(info)
    return ConvertedSteps(info, lambda point: source.gradients(steps[point]))


def write_folder(steps: ConvertedSteps, folder: Path, dtype: str, per_worker: bool = False) -> None:
    """Write a trace into an empty folder."""
    info = steps.info.model_copy(update={"per_worker": per_worker})
    with explain_write_errors(folder, advice=""):
        for place, point in track_progress(list(enumerate(info.points))):
            tensors = _stored_tensors(steps, place, dtype)
            groups = [(worker, slice(worker, worker + 1)) for worker in range(info.workers)]
            for worker, rows in groups if per_worker else [(None, slice(None))]:
                own = {name: one[rows] for name, one in tensors.items()}
                write_tensors(step_file(folder, point.step, worker), own, dtype)
        write_text(folder / DESCRIPTION, info.model_dump_json(indent=1, exclude_none=True) + "\n")


def write_npz(steps: ConvertedSteps, path: Path, dtype: str) -> None:
    """Write a trace as an npz archive with values of type ``fp32`` or ``fp16``."""
    if dtype == "bf16":
        raise InputError("numpy has no bfloat16; take fp32 or fp16 for .npz", file="--dtype")
    info = steps.info.model_copy(update={"per_worker": False})
    with explain_write_errors(path, advice=""), zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(DESCRIPTION), info.model_dump_json(indent=1, exclude_none=True) + "\n")
        for place, point in track_progress(list(enumerate(info.points))):
            for name, stored in _stored_tensors(steps, place, dtype).items():
                member = zipfile.ZipInfo(f"{point.step:06d}/{name}.npy")
                with archive.open(member, "w", force_zip64=True) as file:
                    npy.write_array(file, stored, allow_pickle=False)


def _stored_tensors(steps: ConvertedSteps, place: int, dtype: str) -> dict[str, NDArray[Any]]:
    """Return the gradients of each layer at recorded step number `place`, stored as `dtype`, shape (P, *shape)."""
    info, found = steps.info, {}
    ends = np.cumsum([prod(layer.shape) for layer in info.layers])
    for layer, values in zip(info.layers, np.split(steps.recorded(place), ends[:-1], axis=1), strict=True):
        largest = float(np.abs(values).max(initial=0.0))
        if dtype != "fp32" and largest > (65504.0 if dtype == "fp16" else 3.3895e38):
            step, better = info.points[place].step, "bf16 or fp32" if dtype == "fp16" else "fp32"
            raise InputError(
                f"layer {layer.name!r} has {largest:.3g} at step {step}, too large; take {better}", file="--dtype"
            )
        found[layer.name] = encode_stored(values, dtype).reshape(info.workers, *layer.shape)
    return found
