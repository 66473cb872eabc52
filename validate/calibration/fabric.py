"""The fabric file: a calibrated system as YAML, written once and asked for times ever after.

Its fields are explained in ``docs/calibration.md``. A file is data from a stranger: its size is checked before it is
read, tags are refused, and every field is checked.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
import pydantic
from pydantic import ConfigDict, Field
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from simnet.errors import InputError, nearest
from simnet.reading import read_text
from validate.calibration.crossval import Chosen, choose, score
from validate.calibration.curves import Curve, Floats, Setting
from validate.calibration.intervals import BINS, bin_of, intervals
from validate.calibration.per_step import PARAMETERS, Steps
from validate.calibration.predictor import Across, Known, Model, Transfer, Way, fit
from validate.calibration.shapes import FITS, Mixture, Part, Shape
from validate.calibration.specification import (
    COLLECTIVES,
    HELD_OUT,
    Platform,
    Specified,
    is_platform,
    load_platform,
    platform_names,
    widths,
)
from validate.calibration.specification import specified as steps_of

VERSION = 1
"""The version of fabric files that is written and read."""

MAX_BYTES = 8 * 2**20
"""The largest fabric file that is read."""

MAX_DEPTH = 20
"""The deepest nesting of brackets in a fabric file."""

COVERAGE = 0.9
"""Share of measurements that intervals shall hold."""

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Any = Annotated[float, Field(allow_inf_nan=False, ge=-50, le=50)]
_Name = Annotated[str, Field(max_length=200)]


class _Part(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelEntry(_Part):
    """A model of a curve and its weight."""

    model: str
    weight: Annotated[float, Field(ge=0, le=1)]
    segments: Annotated[list[tuple[_NotNegative, _NotNegative, _NotNegative]], Field(max_length=20_000)] = []
    points: Annotated[list[tuple[_Positive, _Positive]], Field(max_length=10_000)] = []
    corrections: Annotated[list[tuple[_Positive, _Any]], Field(max_length=10_000)] = []

    @pydantic.model_validator(mode="after")
    def _is_a_model(self) -> ModelEntry:
        if self.model not in FITS:
            raise ValueError(f"there is no model {self.model!r}; {nearest(self.model, FITS)}")
        if bool(self.segments) == bool(self.points):
            raise ValueError("needs either segments or points")
        for name in ("segments", "points", "corrections"):
            starts = [one[0] for one in getattr(self, name)]
            if any(later <= earlier for earlier, later in itertools.pairwise(starts)):
                raise ValueError(f"{name} must ascend in size")
        if self.segments and (self.segments[0][0] != 0 or any(one[1] + one[2] <= 0 for one in self.segments)):
            raise ValueError("segments must begin at size 0, each with a latency or seconds per byte above 0")
        return self


class CurveEntry(_Part):
    """A measured curve and its models."""

    collective: _Name
    ranks: Annotated[int, Field(ge=1, le=10**7)]
    nodes: Annotated[int, Field(ge=0, le=10**7)] = 0
    algorithm: _Name = ""
    protocol: _Name = ""
    smallest: _Positive
    largest: _Positive
    measured_sizes: Annotated[int, Field(ge=1)]
    models: Annotated[list[ModelEntry], Field(min_length=1, max_length=len(FITS))]

    @pydantic.model_validator(mode="after")
    def _is_consistent(self) -> CurveEntry:
        if abs(sum(one.weight for one in self.models) - 1) > 1e-6:
            raise ValueError("weights of models must add to 1")
        if self.smallest > self.largest:
            raise ValueError("smallest must not be above largest")
        return self


class Parameter(_Part):
    """A parameter of the model of steps, with its relative standard error."""

    value: _Positive
    relative_error: _NotNegative = 0.0


class StepsEntry(_Part):
    """The model of steps."""

    counted: Literal["through the schedule", "as NCCL does", "as NCCL does, with in-switch reduction"]
    parameters: dict[str, Parameter]

    @pydantic.model_validator(mode="after")
    def _has_all(self) -> StepsEntry:
        for name in self.parameters:
            if name not in PARAMETERS:
                raise ValueError(f"there is no parameter {name!r}; {nearest(name, PARAMETERS)}")
        missing = [name for name in PARAMETERS if name not in self.parameters]
        if missing:
            raise ValueError(f"lacks {', '.join(missing)}")
        return self


class IntervalEntry(_Part):
    """Widths of intervals by bin of sizes, for predictions of one kind."""

    held_out: Annotated[int, Field(ge=0)]
    below: Annotated[list[_NotNegative], Field(min_length=len(BINS), max_length=len(BINS))]
    above: Annotated[list[_NotNegative], Field(min_length=len(BINS), max_length=len(BINS))]


class FabricFile(_Part):
    """The fabric file as it is written."""

    version: Literal[1]
    sources: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=1000)] = []
    system: Annotated[str, Field(max_length=1000)] = ""
    topology: Annotated[str, Field(max_length=1000)] = ""
    network: dict[Literal["star", "multi_gpu_nodes"], dict[_Name, int | _NotNegative]] | None = None
    model: str
    across_ranks: Across
    beyond_ranks: Across = "blended"
    across_collectives: Transfer = "steps"
    scores: dict[_Name, _NotNegative] = {}
    coverage: Annotated[float, Field(gt=0, lt=1)]
    intervals: dict[Way, IntervalEntry]
    steps: StepsEntry | None = None
    platform: Platform | None = None
    curves: Annotated[list[CurveEntry], Field(max_length=10_000)]

    @pydantic.model_validator(mode="after")
    def _is_known(self) -> FabricFile:
        if self.model not in FITS:
            raise ValueError(f"there is no model {self.model!r}; {nearest(self.model, FITS)}")
        missing = [way for way in get_args(Way) if way not in self.intervals]
        if missing:
            raise ValueError(f"intervals lack {', '.join(missing)}")
        if self.platform is None and not self.curves:
            raise ValueError("needs curves that were measured, or a platform")
        if self.platform is not None and (self.curves or self.steps is not None):
            raise ValueError("has a platform, of which nothing was measured, and curves or steps")
        settings = [_setting(one) for one in self.curves]
        if len(set(settings)) < len(settings):
            raise ValueError("two curves are of the same setting")
        return self


class Prediction(NamedTuple):
    """A predicted time.

    Parameters
    ----------
    seconds, low, high : float
        The time and its interval [s].
    extrapolates : bool
        Whether it is outside the sizes, ranks or collectives that were measured.
    why : str
        What it rests on and, if it extrapolates, what was not measured.
    """

    seconds: float
    low: float
    high: float
    extrapolates: bool
    why: str


class Fabric:
    """A calibrated system.

    Parameters
    ----------
    model : Model
        What is known of it.
    intervals : mapping of str to sequence of (float, float)
        Widths by what a prediction rests on and bin of sizes; see `validate.calibration.intervals.widths`.
    held_out : mapping of str to int
        How many held-out predictions each rests on.
    scores : mapping of str to float
        Mean error of held-out sizes by model.
    coverage : float
        Share of measurements that the intervals shall hold.
    sources, system, topology : sequence of str, str, str
        Where the measurements are from, which of the systems in them, and on which topology.
    network : dict, optional
        The topology with the latencies [s] and bandwidths [byte/s] of its links; see `validate.calibration.network`.
    """

    def __init__(
        self,
        model: Model,
        intervals: dict[Way, list[tuple[float, float]]],
        held_out: dict[Way, int],
        scores: dict[str, float],
        coverage: float = COVERAGE,
        sources: Sequence[str] = (),
        system: str = "",
        topology: str = "",
        network: dict[str, dict[str, int | float]] | None = None,
    ) -> None:
        self.model, self.intervals, self.held_out = model, intervals, held_out
        self.scores, self.coverage = scores, coverage
        self.sources, self.system, self.topology, self.network = tuple(sources), system, topology, network

    @property
    def platform(self) -> Platform | None:
        """The platform of which nothing was measured, if it is one."""
        return self.model.steps.platform if isinstance(self.model.steps, Specified) else None

    def predict(
        self,
        collective: str,
        ranks: int,
        nbytes: float,
        *,
        nodes: int | None = None,
        algorithm: str | None = None,
        protocol: str | None = None,
        strict: bool = False,
    ) -> Prediction:
        """Return the predicted time of a collective, with its interval.

        Parameters
        ----------
        collective : str
            As nccl-tests names it.
        ranks : int
            Number of ranks, >= 1.
        nbytes : float
            Total size as nccl-tests counts it [byte], > 0.
        nodes : int, optional
            Nodes that the ranks are on; where omitted, as in the measurements.
        algorithm, protocol : str, optional
            Pinned ones; where omitted, those that were measured, if there is one choice only.
        strict : bool
            Refuse to extrapolate.

        Raises
        ------
        InputError
            If nothing is known of the collective, a value is outside its range, or `strict` and it would extrapolate.
        """
        if not (math.isfinite(nbytes) and nbytes > 0):
            raise InputError(f"must be a finite number of bytes > 0, got {nbytes}", field="nbytes")
        if not 1 <= ranks <= 10**7:
            raise InputError(f"must be a whole number from 1 to 10,000,000, got {ranks}", field="ranks")
        if nodes is not None and not 1 <= nodes <= ranks:
            raise InputError(f"must be a whole number from 1 to {ranks:,}, the ranks, got {nodes}", field="nodes")
        setting = self._setting(collective, ranks, nodes, algorithm, protocol)
        found = self.model.at(setting, [nbytes])
        if found is None:
            known = {one.setting.collective for one in self.model.known} or set(COLLECTIVES)
            raise InputError(f"nothing is known of {collective!r}; {nearest(collective, known)}", field="collective")
        way = self.model.way(setting)
        reasons = self._beyond(setting, way, nbytes)
        if strict and reasons:
            raise InputError(f"{setting}, {nbytes:g} bytes would be an extrapolation: {'; '.join(reasons)}")
        bounds = np.array(self.intervals[way][int(bin_of(np.array([nbytes]))[0])])
        below, above = (bounds * self.model.reach(setting)).tolist()
        seconds = float(found[0])
        rests = {
            "sizes": "the curve itself",
            "ranks": "other numbers of ranks",
            "beyond": "other numbers of ranks",
            "collectives": "other collectives",
        }
        what = rests[way] if self.platform is None else f"the specification of {self.platform.name} alone"
        why = "; ".join([f"rests on {what}", *reasons])
        return Prediction(seconds, seconds * math.exp(-below), seconds * math.exp(above), bool(reasons), why)

    def _setting(
        self, collective: str, ranks: int, nodes: int | None, algorithm: str | None, protocol: str | None
    ) -> Setting:
        """Return the setting that is meant, what was left open taken from the curves."""
        given = {"algorithm": algorithm, "protocol": protocol}
        matching = [
            one.setting
            for one in self.model.known
            if one.setting.collective == collective
            and all(value is None or getattr(one.setting, name) == value for name, value in given.items())
        ]
        words = {}
        for name, value in given.items():
            choices = {getattr(one, name) for one in matching}
            if value is None and len(choices) > 1 and "" not in choices:
                listed = ", ".join(sorted(choices))
                raise InputError(f"several were measured of {collective}: {listed}; name one", field=name)
            words[name] = value if value is not None else "" if len(choices) != 1 else choices.pop()
        if self.platform is not None:
            least = self.platform.nodes(ranks)
            if nodes is not None and nodes < least:
                what = f"{ranks} ranks need {least} nodes of {self.platform.name}"
                raise InputError(f"{what}, got {nodes}", field="nodes")
            nodes = nodes or least
        if nodes is None:
            family = [one for one in matching if (one.algorithm, one.protocol) == tuple(words.values())]
            family = family or [one.setting for one in self.model.known]
            same = [one for one in family if one.ranks == ranks]
            close = min(family, key=lambda one: abs(math.log(one.ranks / ranks)))
            nodes = max(one.nodes for one in same) if same else _nodes(close, ranks)
        return Setting(collective, ranks, nodes, words["algorithm"], words["protocol"])

    def _beyond(self, setting: Setting, way: Way, nbytes: float) -> list[str]:
        """Return in which respects a prediction is outside what was measured."""
        if self.platform is not None:
            return ["nothing was measured"]
        family = self.model.family(setting)
        if not family:
            what = ", ".join(word for word in setting.family if word)
            return [f"{what} was not measured"]
        reasons = []
        ranks = sorted({one.setting.ranks for one in family})
        if way == "beyond":
            reasons.append(f"{setting.ranks} ranks, measured were {ranks[0]} to {ranks[-1]}")
        near = [one for one in family if one.setting == setting] or family
        low, high = min(one.smallest for one in near), max(one.largest for one in near)
        if not low <= nbytes <= high:
            reasons.append(f"{nbytes:g} bytes, measured were {low:g} to {high:g}")
        return reasons


def calibrate(
    curves: Sequence[Curve],
    *,
    coverage: float = COVERAGE,
    sources: Sequence[str] = (),
    system: str = "",
    topology: str = "",
    chosen: Chosen | None = None,
) -> Fabric:
    """Fit a fabric to the curves of one system: models chosen by cross-validation, intervals from what it saw.

    Parameters
    ----------
    curves : sequence of Curve
        What was measured.
    coverage : float
        Share of measurements that intervals shall hold, in (0, 1).
    sources, system, topology : sequence of str, str, str
        Kept with it; see `Fabric`.
    chosen : Chosen, optional
        The choice, if it is made already.

    Raises
    ------
    InputError
        If there are no curves.

    Examples
    --------
    >>> sizes = 2.0 ** np.arange(10, 20)
    >>> fabric = calibrate([Curve(Setting("all_reduce", p), sizes, p * 1e-5 + sizes * 1e-9) for p in (4, 8, 16)])
    >>> round(fabric.predict("all_reduce", 8, 100_000).seconds, 6)
    0.00018
    >>> fabric.predict("all_reduce", 8, 1e9).extrapolates
    True
    """
    if not curves:
        raise InputError("there is no curve to calibrate on: no row has a size above 0 and a number of ranks")
    made = choose(curves) if chosen is None else chosen
    choices = made.form, made.across, made.nccl, made.transfer, made.beyond
    model = fit(curves, *choices, weights=made.weights)
    bounds = intervals(made.held, coverage)
    counts = {way: sum(len(one.sizes) for one in held) for way, held in made.held.items()}
    scores = {name: score(held) for name, held in made.forms.items() if held}
    return Fabric(model, bounds, counts, scores, coverage, sources, system, topology)


def specified(platform: Platform, coverage: float = COVERAGE) -> Fabric:
    """Return a fabric from a specification alone; whatever it predicts is an extrapolation.

    Parameters
    ----------
    platform : Platform
        The specification.
    coverage : float
        Share of measurements that the intervals shall hold, in (0, 1).

    Examples
    --------
    >>> found = specified(load_platform("dgx-h100")).predict("all_reduce", 16, 2**30)
    >>> found.extrapolates, found.low < found.seconds < found.high
    (True, True)
    """
    bounds = widths(platform, coverage)
    intervals_: dict[Way, list[tuple[float, float]]] = dict.fromkeys(get_args(Way), bounds)
    model = Model("interpolated", "steps", "steps", "steps", (), steps_of(platform))
    held_out: dict[Way, int] = {"sizes": 0, "ranks": 0, "beyond": 0, "collectives": HELD_OUT[platform.counted]}
    return Fabric(model, intervals_, held_out, {}, coverage, platform.sources, platform.description)


def written(fabric: Fabric) -> str:
    """Return a fabric as YAML."""
    model = fabric.model
    steps = None
    if model.steps is not None and fabric.platform is None:
        errors = model.steps.errors or (0.0,) * len(PARAMETERS)
        listed = zip(PARAMETERS, model.steps.values, errors, strict=True)
        steps = StepsEntry(
            counted=_counted(model.steps),
            parameters={name: Parameter(value=value, relative_error=error) for name, value, error in listed},
        )
    file = FabricFile(
        version=1,
        sources=list(fabric.sources),
        system=fabric.system,
        topology=fabric.topology,
        network=fabric.network,  # type: ignore[arg-type]
        model=model.form,
        across_ranks=model.across,
        beyond_ranks=model.beyond,
        across_collectives=model.transfer,
        scores=fabric.scores,
        coverage=fabric.coverage,
        intervals={
            way: IntervalEntry(
                held_out=fabric.held_out[way], below=[one[0] for one in bins], above=[one[1] for one in bins]
            )
            for way, bins in fabric.intervals.items()
        },
        steps=steps,
        platform=fabric.platform,
        curves=[_entry(one) for one in model.known],
    )
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 110
    stream = io.StringIO()
    stream.write("# A fabric calibrated by simnet; docs/calibration.md explains the fields. Units: s, byte.\n")
    yaml.dump(file.model_dump(mode="json", exclude_defaults=False), stream)
    return stream.getvalue()


def fabric_of(source: str) -> Fabric:
    """Return the fabric of a file that `written` made, or of a platform: the name of a shipped one, or its file.

    Raises
    ------
    InputError
        As `load_fabric` and `load_platform` do.

    Examples
    --------
    >>> fabric_of("dgx-h100").platform.devices_per_node
    8
    """
    path = Path(source)
    if source in platform_names():
        return specified(load_platform(source))
    if not path.exists() and not path.suffix:
        raise InputError(f"there is no such file, and no platform {source!r}; {nearest(source, platform_names())}")
    return specified(load_platform(path)) if is_platform(path) else load_fabric(path)


def load_fabric(path: str | Path) -> Fabric:
    """Read a fabric file.

    Raises
    ------
    InputError
        If it cannot be read, is too large, no YAML, or a field of it is not as it must be.
    """
    text = read_text(Path(path), MAX_BYTES)
    name = str(path)
    if _depth(text) > MAX_DEPTH:
        raise InputError("is nested deeper than any fabric file", file=name)
    try:
        if any(_is_marked(event) for event in YAML(typ="safe", pure=True).parse(text)):
            raise InputError("has anchors or tags, which a fabric file has not", file=name)
        loaded: Any = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"is no YAML: {str(error).splitlines()[0]}", file=name) from None
    if not isinstance(loaded, dict):
        raise InputError("is no fabric file: it has no fields", file=name)
    if loaded.get("version") != VERSION:
        found = str(loaded.get("version"))[:40]
        raise InputError(f"must be {VERSION}, the version that is read, got {found}", file=name, field="version")
    try:
        file = FabricFile.model_validate(loaded)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(first["msg"].removeprefix("Value error, "), file=name, field=where or None) from None
    steps: Steps | None = None if file.platform is None else steps_of(file.platform)
    if file.steps is not None:
        chosen = [file.steps.parameters[one] for one in PARAMETERS]
        values, errors = tuple(one.value for one in chosen), tuple(one.relative_error for one in chosen)
        counted = file.steps.counted
        steps = Steps(counted != "through the schedule", values, errors, counted.endswith("in-switch reduction"))
    known = tuple(_known(one) for one in file.curves)
    return Fabric(
        Model(file.model, file.across_ranks, file.beyond_ranks, file.across_collectives, known, steps),
        {way: list(zip(one.below, one.above, strict=True)) for way, one in file.intervals.items()},
        {way: one.held_out for way, one in file.intervals.items()},
        dict(file.scores),
        file.coverage,
        file.sources,
        file.system,
        file.topology,
        None if file.network is None else {str(name): dict(one) for name, one in file.network.items()},
    )


def _counted(steps: Steps) -> Literal["through the schedule", "as NCCL does", "as NCCL does, with in-switch reduction"]:
    if not steps.nccl:
        return "through the schedule"
    return "as NCCL does, with in-switch reduction" if steps.switch else "as NCCL does"


def _entry(one: Known) -> CurveEntry:
    setting = one.setting
    return CurveEntry(
        collective=setting.collective,
        ranks=setting.ranks,
        nodes=setting.nodes,
        algorithm=setting.algorithm,
        protocol=setting.protocol,
        smallest=one.smallest,
        largest=one.largest,
        measured_sizes=one.count,
        models=[
            ModelEntry(
                model=name,
                weight=weight,
                segments=list(shape.segments),
                points=list(shape.points),
                corrections=list(shape.corrections),
            )
            for name, weight, shape in one.shape.parts
        ],
    )


def _known(one: CurveEntry) -> Known:
    parts = tuple(
        Part(each.model, each.weight, Shape(tuple(each.segments), tuple(each.points), tuple(each.corrections)))
        for each in one.models
    )
    return Known(_setting(one), Mixture(parts), one.smallest, one.largest, one.measured_sizes)


def _is_marked(event: Any) -> bool:
    """Return whether a part of a YAML file has an anchor, is an alias, or has a tag."""
    return getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None


def _depth(text: str) -> int:
    """Return how deep brackets are nested, before a parser spends time on them."""
    depth = deepest = 0
    for one in re.findall(r"[\[\]{}]", text):
        depth += 1 if one in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _setting(one: CurveEntry) -> Setting:
    return Setting(one.collective, one.ranks, one.nodes, one.algorithm, one.protocol)


def _nodes(like: Setting, ranks: int) -> int:
    """Return on how many nodes ranks are if a node holds as many of them as in another setting; 0 if not known."""
    return 0 if not like.nodes else max(1, round(ranks * like.nodes / like.ranks))


__all__ = [
    "COVERAGE",
    "VERSION",
    "Fabric",
    "FabricFile",
    "Floats",
    "Prediction",
    "calibrate",
    "fabric_of",
    "load_fabric",
    "specified",
    "written",
]
