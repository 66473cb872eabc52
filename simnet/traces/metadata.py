"""Pydantic models of untrusted JSON files: descriptions of traces, and parameters of synthetic gradients."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from simnet.base.errors import suggest_names
from simnet.base.file_io import read_text
from simnet.base.yaml_loader import validation_refusal
from simnet.cost_models.costs.models import Layer
from simnet.traces import ordering
from simnet.traces.refining import BANDS, BEYOND

SHIPPED = Path(__file__).parents[1] / "data" / "traces"
"""Folder of the shipped traces, each in a subfolder of its name."""

MAX_BYTES = 8_000_000
"""Maximum size of a description [byte]."""


DESCRIPTION = "trace.json"
"""Name of the description file of a trace."""

_Whole = Annotated[int, Field(ge=0, le=2**40)]
_Positive = Annotated[int, Field(ge=1, le=2**40)]


class Description(BaseModel):
    """Base class of JSON descriptions: immutable, and unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


class RecordedLayer(Description):
    """A recorded parameter tensor: name, recorded shape and, if only some entries are recorded, the full shape `of`."""

    name: Annotated[str, Field(min_length=1)]
    shape: tuple[_Positive, ...]
    of: tuple[_Positive, ...] | None = None

    @model_validator(mode="after")
    def _part(self) -> RecordedLayer:
        if self.of is not None and (len(self.shape) != 1 or self.shape[0] > prod(self.of)):
            raise ValueError(f"{list(self.shape)} is no part of {list(self.of)}: one axis, no more entries")
        return self


class RecordedPoint(Description):
    """A recorded step: its number, the mean loss over workers, and the accuracy before the step."""

    step: _Whole
    loss: float | None = None
    accuracy: float | None = None


class Recording(Description):
    """Settings of the recorder that took a trace, and its overhead."""

    # Steps from one sample to the next, and consecutive steps of a sample.
    every: _Positive
    consecutive: _Positive
    # Share of the entries of each layer, and seed of their choice.
    fraction: Annotated[float, Field(gt=0, le=1)]
    seed: _Whole
    # Samples left out because a value was not finite.
    skipped: _Whole
    # Time of the recorder, and of the whole run up to the last sample [s].
    own_seconds: Annotated[float, Field(ge=0)]
    run_seconds: Annotated[float, Field(ge=0)]


class TraceInfo(Description):
    """The content of `trace.json`: the training run, its layers, and the recorded steps."""

    # Of this format.
    version: Literal[1]
    # Description of the run, and the licence of the trace.
    name: str
    model: str = ""
    data: str = ""
    how: str = ""
    license: str = ""
    date: str = ""
    # Versions.
    software: Annotated[dict[str, str], Field(default_factory=dict)]
    # Seed of the run.
    seed: int | None = None
    # P, and length of the run.
    workers: _Positive
    steps: _Positive
    # In the order of the gradient.
    layers: Annotated[tuple[RecordedLayer, ...], Field(min_length=1)]
    # The recorded steps, ascending.
    points: Annotated[tuple[RecordedPoint, ...], Field(min_length=1)]
    # If true, each worker has a file of its own at each step.
    per_worker: bool = False
    # How `simnet.traces.record` took it.
    recording: Recording | None = None

    @field_validator("layers")
    @classmethod
    def _distinct(cls, layers: tuple[RecordedLayer, ...]) -> tuple[RecordedLayer, ...]:
        if again := [name for name, count in Counter(layer.name for layer in layers).items() if count > 1]:
            raise ValueError(f"two layers are called {again[0]!r}")
        return layers

    @field_validator("points")
    @classmethod
    def _ascending(cls, points: tuple[RecordedPoint, ...]) -> tuple[RecordedPoint, ...]:
        steps = [point.step for point in points]
        if sorted(set(steps)) != steps:
            raise ValueError(f"steps must ascend, got {', '.join(map(str, steps))}")
        return points


D = TypeVar("D", bound=Description)


def read_description(kind: type[D], path: Path) -> D:
    """Return the description in a JSON file, validated by the model class `kind`."""
    return parse_description(kind, read_text(path, MAX_BYTES), str(path))


def parse_description(kind: type[D], content: str | bytes, file: str) -> D:
    """Return the description in a JSON text; InputError, with `file`, for missing, unknown or invalid fields."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise validation_refusal(error, file, names=kind.model_fields) from None


def is_name(given: str | os.PathLike[str]) -> bool:
    """Return whether `given` is the name of a trace: a string without folder and file extension."""
    return isinstance(given, str) and given == Path(given).stem


AUTO = "auto"
"""The name that stands for the trace of a model's family."""

_FILE = "synthetic.json"

FURTHEST = 8
"""No standard normal is larger in as many draws as are ever made: one in 10^15 is."""

COMPONENTS = 3
"""Maximum number of constant normals, the factors of lasting correlation."""

TABLES = ("rms", "dead", "spread", "tail", "shared")
"""Parameters of a layer with a value at each knot."""

ORDERED = ("magnitudes", "kinds", "shares", "agree_bands", "against")
"""Parameters of a layer whose magnitudes are given, and their order."""

_ROWS = ("magnitudes", "shares", "agree_bands", "against", "lasting", "own_lasting")

LARGEST_DEVIATION = 5.0
"""Maximum standard deviation of log scales and of log worker sizes."""

LARGEST_SIZE = 1e12
"""Maximum size of a worker's gradient relative to the typical one."""

Between: TypeAlias = Literal["linear", "logarithmic"]
"""Interpolation of tables between knots."""

_Share = Annotated[float, Field(ge=0, le=1)]
_Deviation = Annotated[float, Field(ge=0, le=LARGEST_DEVIATION)]
_Size = Annotated[float, Field(gt=0, le=LARGEST_SIZE)]
_Weight = Annotated[float, Field(ge=0, le=1e6)]
_Kind = tuple[
    # No |x| is beyond 8, so that entries with a shift of as much would have no magnitudes.
    Annotated[float, Field(ge=-100, le=FURTHEST - 1)],
    Annotated[float, Field(ge=-ordering.LARGEST_LOG, le=ordering.LARGEST_LOG)],
]
_Magnitude = Annotated[float, Field(ge=0, le=3e38)]
_Bands = Annotated[tuple[_Share, ...], Field(min_length=len(BANDS) + 1, max_length=len(BANDS) + 1)]
_Loadings = Annotated[tuple[Annotated[float, Field(ge=-1, le=1)], ...], Field(max_length=COMPONENTS)]
_Quantiles = Annotated[tuple[_Magnitude, ...], Field(min_length=len(BEYOND), max_length=len(BEYOND))]


class LayerParameters(Description):
    """Parameters of the distribution of a layer's entries at each fitted step (knot)."""

    # The fitted layer, and whether it has two dimensions or more.
    name: str
    matrix: bool
    # Root mean square of the entries, at a worker with a = 1.
    rms: tuple[_Magnitude, ...]
    # Share of entries that are zero, in [0, 1), and standard deviation of log s of the others.
    dead: tuple[Annotated[float, Field(ge=0, lt=1)], ...]
    spread: tuple[_Deviation, ...]
    # Weight of x |x|, and correlation between two workers, in [0, 1].
    tail: tuple[_Weight, ...]
    shared: tuple[_Share, ...]
    # Quantiles of the magnitude, as in `simnet.traces.refining`, which replace all above but shared, and what decides
    # the order: all of the next five, or none.
    magnitudes: tuple[_Quantiles, ...] | None = None
    # Shift and log scale of each kind of entries; see `simnet.traces.ordering`.
    kinds: Annotated[tuple[_Kind, ...], Field(min_length=1)] | None = None
    # Share of each kind.
    shares: tuple[tuple[_Share, ...], ...] | None = None
    # Mean product of the signs of two workers in bands of kinds, from the smallest on, if they share nothing else.
    agree_bands: tuple[_Bands, ...] | None = None
    # Correlation of the sign of an entry that is large for its kind with that of small ones at other workers.
    against: tuple[Annotated[float, Field(ge=-1, le=1)], ...] | None = None
    # Loadings of constant normals of c, and of e; squares sum to one at most.
    lasting: tuple[_Loadings, ...] | None = None
    own_lasting: tuple[_Loadings, ...] | None = None


class SyntheticParameters(Description):
    """The parameters of synthetic gradients, as `simnet.traces.fit` returns them."""

    version: Literal[2] = 2
    # The fitted trace, and length of the recorded run.
    name: str
    steps: Annotated[int, Field(ge=1)]
    # Progress of training, from 0 to 1, ascending, at which the tables hold.
    knots: Annotated[tuple[_Share, ...], Field(min_length=1)]
    # Interpolation in the step, or in the logarithm of 1 + step.
    between: Between = "linear"
    # Standard deviation of log a.
    worker_spread: tuple[_Deviation, ...]
    # Values of a, ascending, > 0; each group of so many workers has them in random order. Without them a is
    # lognormal.
    worker_sizes: tuple[Annotated[tuple[_Size, ...], Field(min_length=1)], ...] | None = None
    # Correlation of the rest of c between consecutive iterations, in [0, 0.9].
    memory: Annotated[float, Field(ge=0, le=0.9)]
    # If true, the rest of c turns back rather than decays, and signs follow c per worker by chance; otherwise at
    # all workers or at none.
    turns: bool = False
    # Share of the variance of log s that never changes, in [0, 1].
    fixed: _Share
    # The rest is new when log(1 + iteration) has grown by this, > 0.
    period: Annotated[float, Field(ge=1e-3, le=1e9)]
    # In the order of the gradient.
    layers: Annotated[tuple[LayerParameters, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _tables(self) -> SyntheticParameters:
        if any(later <= earlier for earlier, later in pairwise(self.knots)):
            raise ValueError("knots must ascend")
        tables: dict[str, Any] = {"worker_spread": self.worker_spread, "worker_sizes": self.worker_sizes}
        for layer in self.layers:
            tables |= {f"{name} of layer {layer.name!r}": getattr(layer, name) for name in (*TABLES, *_ROWS)}
        for name, table in tables.items():
            if table is not None and len(table) != len(self.knots):
                raise ValueError(f"{name} must have {len(self.knots)} values, one for each knot")
            if len({len(row) for row in table or () if isinstance(row, tuple)}) > 1:
                raise ValueError(f"{name} must have as many values at each knot")
        for layer in self.layers:
            for quantiles in layer.magnitudes or ():
                if any(later < earlier for earlier, later in pairwise(quantiles)):
                    raise ValueError(f"magnitudes of layer {layer.name!r} must ascend")
            for name in ("lasting", "own_lasting"):
                if any(sum(one**2 for one in row) > 1 + 1e-3 for row in getattr(layer, name) or ()):
                    raise ValueError(f"squares of {name} of layer {layer.name!r} must add up to at most 1 at each knot")
            if layer.own_lasting and layer.magnitudes is None:
                raise ValueError(f"layer {layer.name!r} must have magnitudes where it has own_lasting")
            ordered = {name: getattr(layer, name) is None for name in ORDERED}
            if len(set(ordered.values())) > 1:
                raise ValueError(f"layer {layer.name!r} must have all of {', '.join(ORDERED)}, or none")
            if any(len(row) != len(layer.kinds or ()) or not sum(row) for row in layer.shares or ()):
                raise ValueError(
                    f"shares of layer {layer.name!r} must have {len(layer.kinds or ())} values, not all zero"
                )
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters as a JSON file that `synthetic` reads."""
        content = self.model_dump_json(indent=1, exclude_none=True)
        Path(path).write_text(content + "\n", encoding="utf-8")


def load_parameters(like: str | os.PathLike[str], layers: Sequence[Layer]) -> SyntheticParameters:
    """Return parameters of synthetic gradients from the file or shipped trace `like`; ``auto`` selects by `layers`."""
    if not is_name(like):
        return read_description(SyntheticParameters, Path(like))
    known = {path.parent.name: path for path in SHIPPED.glob(f"*/{_FILE}")}
    name = model_family(layers) if like == AUTO else like
    if name not in known:
        allowed = [*known, AUTO]
        raise ValueError(f"no trace {like!r} to be like (nor is it a .json file): {suggest_names(str(like), allowed)}")
    return read_description(SyntheticParameters, known[name])


def model_family(layers: Sequence[Layer]) -> str:
    """Return which shipped trace is most like a model, by layers: ``transformer``, ``convolutional`` or ``digits``."""
    if any(re.search("attn|attention", layer.name) for layer in layers):
        return "transformer"
    return "convolutional" if any(len(layer.shape) > 3 for layer in layers) else "digits"


def most_similar_layer(layers: Sequence[LayerParameters], name: str, matrix: bool, depth: float) -> LayerParameters:
    """Return the fitted layer most similar to a layer with this name and relative depth, in [0, 1].

    It is the nearest in depth among layers of the same kind: matrix or not, and embedding of words or places or none.
    """
    kind = [one for one, fitted in enumerate(layers) if fitted.matrix == matrix]
    role = [one for one in kind if _embedding_kind(layers[one].name) == _embedding_kind(name)]
    among = role or kind or range(len(layers))
    return layers[min(among, key=lambda one: abs((one + 0.5) / len(layers) - depth))]


def _embedding_kind(name: str) -> str:
    """Return what a layer embeds by its PyTorch name: ``words``, ``places`` (positions), or "" for no embedding."""
    if re.search("wpe|pos(ition)?_emb", name):
        return "places"
    return "words" if re.search("wte|word_emb|tok(en)?_emb", name) else ""
