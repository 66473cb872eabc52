"""Records gradients during training as a trace, which is valid after every step even if the run is killed.

Each sampled step is a file, or one for each worker if workers are processes. It is in memory until it is complete; then
the description is rewritten. Errors of the recording do not end the training: a step with a value that is not finite is
left out; when the disk is full, the recording ends. `Recorder` takes numpy arrays;
`simnet.traces.record` serves PyTorch. Traces, or parts of them, are also written anew, as folders or as npz archives.
"""

from __future__ import annotations

import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from simnet.base.arrays import Values
from simnet.base.errors import InputError, check_choice, check_int
from simnet.base.file_io import explain_write_errors, sync_to_disk, write_files
from simnet.base.progress import track_progress
from simnet.base.quantities import Count, PositiveShare, WholeNumber, check_fields
from simnet.base.rng import stream
from simnet.cost_models.costs.models import Layer
from simnet.traces.files import STORED, encode_stored, in_memory, write_tensors, write_text
from simnet.traces.metadata import DESCRIPTION, RecordedLayer, RecordedPoint, Recording, TraceInfo
from simnet.traces.recorded import RecordedSource, chosen_entries, step_file
from simnet.traces.synthetic import SyntheticSource

ENTRIES = "entries.safetensors"
"""The file that says which entries of each layer are recorded, where not all are; int64, in the layer flattened."""

# For so many steps, files of other workers are looked for after each; then with the next sample.
_PATIENCE = 3


@dataclass(eq=False, repr=False)
class Recorder:
    """Records gradients into a trace; a ``with`` block closes the recording at its end.

    Parameters
    ----------
    folder : str or Path
        Folder of the trace, without a trace in it.
    layers : mapping of str to sequence of int
        Shapes of the layers, in the order of the gradient.
    workers : int
        P, >= 1.
    worker : int, optional
        This process, if each writes files of its own; worker 0 writes the description. If not given, this process
        records all workers.
    every : int
        Steps from one sample to the next, >= 1.
    consecutive : int
        Consecutive steps of a sample, from 1 to `every`; with 2 or more, the correlation between steps can be measured.
    samples : int, optional
        Maximum number of recorded steps.
    fraction : float
        Share of the entries of each layer to record, at least one, chosen at random once.
    dtype : str
        ``fp32``, ``fp16`` or ``bf16``.
    seed : int
        Seed of the entries.
    name, model, data, how : str
        For the description; the name is that of the folder by default.
    software : mapping of str to str, optional
        Versions, for the description.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    InputError
        If there is a trace already, or the folder cannot be made.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from simnet.traces import recorded
    >>> with TemporaryDirectory() as folder:
    ...     with Recorder(folder, {"weight": (2, 3)}, workers=2, every=10) as recorder:
    ...         for step in range(25):
    ...             for worker in range(2):
    ...                 recorder.take({"weight": np.full((2, 3), step + worker)}, worker)
    ...             recorder.end_step(loss=1.0)
    ...     source = recorded(Path(folder))
    ...     [point.step for point in source.info.points], source.gradients(20)[1]
    ([0, 10, 20], array([21., 21., 21., 21., 21., 21.], dtype=float32))
    """

    folder: str | PathLike[str]
    layers: Mapping[str, Sequence[int]]
    _: KW_ONLY
    workers: Count = 1
    worker: WholeNumber | None = None
    every: Count = 20
    consecutive: Count = 1
    samples: Count | None = None
    fraction: PositiveShare = 1.0
    dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    seed: WholeNumber = 0
    name: str | None = None
    model: str = ""
    data: str = ""
    how: str = ""
    software: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        self._began = time.perf_counter()
        check_fields(self)
        check_int(self.worker or 0, "worker", 0, self.workers - 1)
        check_int(self.consecutive, "consecutive", 1, self.every)
        self._path = Path(self.folder)
        self.shapes = {one: tuple(int(size) for size in shape) for one, shape in self.layers.items()}
        if not self.shapes or any(size < 1 for shape in self.shapes.values() for size in shape):
            raise ValueError("there must be a layer, and each must have at least one entry")
        self.entries = {
            one: _recorded_entries(one, prod(shape), self.fraction, self.seed) for one, shape in self.shapes.items()
        }
        self._parts = {
            one: shape if (part := self.entries[one]) is None else (part.size,) for one, shape in self.shapes.items()
        }
        self.step = 0
        self.skipped = 0
        self.stopped = False
        self._points: list[RecordedPoint] = []
        # Steps of which the files of other workers were not there yet.
        self._pending: set[int] = set()
        self._taken: dict[str, NDArray[Any]] = {}
        self._bad = ""
        self._disk: ThreadPoolExecutor | None = None
        self._make_folder()
        self.own_seconds = time.perf_counter() - self._began

    @property
    def wanted(self) -> bool:
        """Whether the gradients of the current step are recorded."""
        enough = self.samples is not None and len(self._points) >= self.samples
        return not (self.stopped or enough) and self.step % self.every < self.consecutive

    @property
    def run_seconds(self) -> float:
        """Time since the recording began [s], including the recorder's own time."""
        return time.perf_counter() - self._began

    @property
    def overhead(self) -> float:
        """Time spent in the recorder, divided by the time of the rest of the run."""
        return self.own_seconds / max(self.run_seconds - self.own_seconds, 1e-9)

    def take(self, gradients: Mapping[str, NDArray[Any]], worker: int = 0, *, chosen: bool = False) -> None:
        """Record gradients of one worker's layers, if the current step is recorded; may be called repeatedly.

        A layer without gradients is recorded as zero. `chosen` ones are the entries that `entries` lists, not whole
        layers. ValueError if there is no such layer or worker, or a layer has another number of entries.
        """
        if not self.wanted:
            return
        with self.timed():
            self._take(gradients, worker, chosen)

    def _take(self, gradients: Mapping[str, NDArray[Any]], worker: int, chosen: bool) -> None:
        row = check_int(worker, "worker", 0, (self.workers if self.worker is None else 1) - 1)
        for name, values in gradients.items():
            check_choice(name, "layer", self.shapes)
            part, size = self.entries[name], prod(self._parts[name])
            flat = np.asarray(values).reshape(-1)
            if flat.size != (size if chosen else prod(self.shapes[name])):
                raise ValueError(f"layer {name!r} has shape {self.shapes[name]}, got {np.shape(values)}")
            if part is not None and not chosen:
                flat = flat[part]
            stored = encode_stored(flat, self.dtype)
            exponent = {"fp32": 0x7F800000, "fp16": 0x7C00, "bf16": 0x7F80}[self.dtype]
            if ((stored.view(f"<u{stored.itemsize}") & exponent) == exponent).any():
                self._bad = self._bad or f"a gradient of layer {name!r}"
            self._layer(name)[row] = stored.reshape(self._parts[name])

    def end_step(self, loss: float | None = None) -> None:
        """End the current step, given its mean loss over workers, and add it to the trace if it was recorded."""
        if not self.wanted:
            self.step += 1
            # A worker that left the step out never brings its file.
            if self._pending and max(self._pending) >= self.step - _PATIENCE:
                with self.timed():
                    self._describe()
            return
        with self.timed():
            if self._bad:
                self.skipped += 1
                if self.skipped == 1:
                    why = f"{self._bad} is not finite in {self.dtype} at step {self.step}"
                    warnings.warn(f"{why}; such steps are not recorded", stacklevel=2)
            else:
                self._write_step(float(loss) if loss is not None and np.isfinite(loss) else None)
            self._taken, self._bad = {}, ""
            self.step += 1
            self._describe()

    def _write_step(self, loss: float | None) -> None:
        with self._tolerant():
            path = step_file(self._path, self.step, self.worker)
            write_tensors(path, {one: self._layer(one) for one in self.shapes}, self.dtype, sync=False)
            self._to_disk(path)
            self._points.append(RecordedPoint(step=self.step, loss=loss))
            if self.worker is not None:
                self._pending.add(self.step)

    def close(self) -> None:
        """Finish the recording; a step that `end_step` has not ended is left out."""
        if not self.stopped:
            self._describe()
        self.stopped = True
        if self._disk is not None:
            self._disk.shutdown()
            self._disk = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time of the block to the recorder's own time, for which the training waits; blocks may nest."""
        start, before = time.perf_counter(), self.own_seconds
        yield
        self.own_seconds = before + time.perf_counter() - start

    def _make_folder(self) -> None:
        with explain_write_errors(self._path, advice=""):
            self._path.mkdir(parents=True, exist_ok=True)
            if self.worker:
                return
            if any(path.name == DESCRIPTION or path.suffix == ".safetensors" for path in self._path.iterdir()):
                raise InputError("holds a trace already; take another folder", file=str(self._path))
            if any(part is not None for part in self.entries.values()):
                from safetensors.numpy import save

                every = {
                    name: np.arange(prod(self.shapes[name])) if part is None else part
                    for name, part in self.entries.items()
                }
                write_files(self._path, {ENTRIES: save(every)})

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        """If a file cannot be written in the block, stop the recording with a warning instead of the training."""
        try:
            yield
        except OSError as error:
            self.stopped = True
            why = error.strerror or error
            warnings.warn(f"the recording in {self._path} ends at step {self.step}: {why}", stacklevel=5)

    def _layer(self, name: str) -> NDArray[Any]:
        """Return the buffer of a layer for all workers of this process in the current step; a new buffer is zero."""
        if name not in self._taken:
            rows = self.workers if self.worker is None else 1
            self._taken[name] = np.zeros((rows, *self._parts[name]), STORED[self.dtype])
        return self._taken[name]

    def _describe(self) -> None:
        """Write the description file with the steps for which all workers have written their files."""
        if self.worker or not self._points:
            return
        files = {step: [step_file(self._path, step, one) for one in range(self.workers)] for step in self._pending}
        self._pending = {step for step, paths in files.items() if not all(path.exists() for path in paths)}
        points = tuple(point for point in self._points if point.step not in self._pending)
        if not points:
            return
        layers = (
            RecordedLayer(name=name, shape=self._parts[name], of=None if self.entries[name] is None else shape)
            for name, shape in self.shapes.items()
        )
        same = ("every", "consecutive", "fraction", "seed", "skipped", "own_seconds", "run_seconds")
        info = TraceInfo(
            version=1,
            name=self.name or self._path.resolve().name or "trace",
            **{name: getattr(self, name) for name in ("model", "data", "how")},
            software=dict(self.software or {}),
            date=time.strftime("%Y-%m-%d"),
            workers=self.workers,
            steps=max(self.step, points[-1].step + 1),
            layers=tuple(layers),
            points=points,
            per_worker=self.worker is not None,
            recording=Recording(**{name: getattr(self, name) for name in same}),
        )
        with self._tolerant():
            write_text(self._path / DESCRIPTION, info.model_dump_json(indent=1, exclude_none=True) + "\n", sync=False)
            self._to_disk(self._path / DESCRIPTION)

    def _to_disk(self, path: Path) -> None:
        """Flush a file to disk, in a background thread."""
        if self._disk is None:
            self._disk = ThreadPoolExecutor(1, "simnet-recorder")
        self._disk.submit(sync_to_disk, path)


def _recorded_entries(name: str, size: int, fraction: float, seed: int) -> NDArray[np.int64] | None:
    """Return the ascending indices of a layer's recorded entries; None if all entries are recorded."""
    count = max(1, round(fraction * size))
    if count == size:
        return None
    generator = stream(seed, "traces", "recorded", name)
    return np.sort(generator.choice(size, count, replace=False, shuffle=False)).astype(np.int64)


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
