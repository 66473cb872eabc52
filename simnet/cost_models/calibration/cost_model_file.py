"""The fabric file: a calibrated cost model in YAML; ``docs/calibration.md`` explains its fields.

A file is untrusted data: its size is checked before it is read, tags are refused, and every field is checked.
"""

from __future__ import annotations

import itertools
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

import pydantic
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AfterValidator, ConfigDict

from simnet.base.errors import InputError, suggest_names
from simnet.base.file_io import read_text
from simnet.base.yaml_loader import load_yaml_mapping, validation_refusal, yaml_text
from simnet.cost_models.calibration.cards import RAIL_CARDS, CardCount
from simnet.cost_models.calibration.cost_model import CalibratedCostModel, specified_cost_model
from simnet.cost_models.calibration.curves import CurveModel, CurveModelName, NotNegative, Positive, ShortText
from simnet.cost_models.calibration.platform import Platform, is_platform, load_platform, one_of, platform_names
from simnet.cost_models.calibration.predictor import FittedCurve, Predictor, Transfer
from simnet.cost_models.calibration.specification import specified_step_model
from simnet.cost_models.calibration.step_model import PARAMETERS, StepModel
from simnet.cost_models.evidence.intervals import BINS, Basis
from simnet.network import STACKS

FILE_VERSION: Literal[2] = 2
"""The version of fabric files that is written and read."""

MAX_BYTES = 2 * 2**20
"""The largest fabric file that is read."""

_Widths = Annotated[list[Annotated[float, Ge(0), Le(50)]], MinLen(len(BINS)), MaxLen(len(BINS))]
_Text = Annotated[str, MaxLen(1000)]
_StepCounting: TypeAlias = Literal["through the schedule", "as NCCL does", "as NCCL does, with in-switch reduction"]
# Whether steps are counted as NCCL does, and with in-switch reduction.
_COUNTINGS = dict(zip(get_args(_StepCounting), ((False, False), (True, False), (True, True)), strict=True))


def _check_model(model: CurveModel) -> None:
    if bool(model.segments) == bool(model.points):
        raise ValueError("needs either segments or points")
    for name in ("segments", "points", "corrections"):
        if any(later[0] <= earlier[0] for earlier, later in itertools.pairwise(getattr(model, name))):
            raise ValueError(f"{name} must ascend in size")
    if model.segments and (model.segments[0][0] != 0 or any(one[1] + one[2] <= 0 for one in model.segments)):
        raise ValueError("segments must begin at size 0, each with a latency or seconds per byte above 0")


def _check_curve(curve: FittedCurve) -> FittedCurve:
    for one in curve.models:
        _check_model(one)
    if abs(sum(one.weight for one in curve.models) - 1) > 1e-6:
        raise ValueError("weights of models must add to 1")
    if curve.smallest > curve.largest:
        raise ValueError("smallest must not be above largest")
    return curve


def _check_cards(cards: tuple[CardCount, ...]) -> tuple[CardCount, ...]:
    if abs(sum(one.chance for one in cards) - 1) > 1e-6:
        raise ValueError("chances of cards must add to 1")
    if len({one.number for one in cards}) < len(cards):
        raise ValueError("names a number of cards twice")
    if any(one.chance > cards[0].chance for one in cards):
        raise ValueError("must begin with the likeliest number of cards")
    return cards


class _FilePart(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid")


class ParameterEntry(_FilePart):
    """The fitted value of a cost parameter, such as the latency of a step, and its relative standard error."""

    value: Positive
    relative_error: NotNegative = 0.0


class StepModelEntry(_FilePart):
    """Costs per step and per byte that a fabric file holds; network cards a node may have; ranks per node measured."""

    counted: _StepCounting
    cards: Annotated[tuple[CardCount, ...], MinLen(1), MaxLen(100), AfterValidator(_check_cards)] = RAIL_CARDS
    ranks_on_a_node: Annotated[float, Ge(1), Le(10**7)] = 1.0
    parameters: dict[Annotated[str, one_of("parameter", PARAMETERS)], ParameterEntry]

    @pydantic.field_validator("parameters")
    @classmethod
    def _has_all(cls, parameters: dict[str, ParameterEntry]) -> dict[str, ParameterEntry]:
        if missing := [name for name in PARAMETERS if name not in parameters]:
            raise ValueError(f"lacks {', '.join(missing)}")
        return parameters


class IntervalEntry(_FilePart):
    """Half-widths of prediction intervals by size, for one kind of extrapolation (`Basis`), such as over "ranks"."""

    held_out: Annotated[int, Ge(0)]
    below: _Widths
    above: _Widths


# Of a cost model and its file.
_SHARED_FIELDS = ("sources", "system", "topology", "network", "stack", "eager", "scores", "coverage", "platform")


class CostModelFile(_FilePart):
    """The schema of the file that ``simnet calibrate`` writes: a calibrated cost model of collectives (fabric file)."""

    version: Literal[2]
    sources: Annotated[list[_Text], MaxLen(1000)] = []
    system: _Text = ""
    topology: _Text = ""
    network: dict[Literal["star", "multi_gpu_nodes"], dict[ShortText, int | NotNegative]] | None = None
    stack: Annotated[str, one_of("stack", ("", *STACKS))] = ""
    eager: bool = False
    model: CurveModelName
    across_collectives: Transfer = "steps"
    scores: dict[ShortText, NotNegative] = {}
    coverage: Annotated[float, Gt(0), Lt(1)]
    intervals: dict[Basis, IntervalEntry]
    steps: StepModelEntry | None = None
    platform: Platform | None = None
    curves: Annotated[tuple[Annotated[FittedCurve, AfterValidator(_check_curve)], ...], MaxLen(10_000)]

    @pydantic.model_validator(mode="after")
    def _is_known(self) -> CostModelFile:
        missing = [basis for basis in get_args(Basis) if basis not in self.intervals]
        if missing:
            raise ValueError(f"intervals lack {', '.join(missing)}")
        if self.platform is None and not self.curves:
            raise ValueError("needs curves that were measured, or a platform")
        if self.platform is not None and (self.curves or self.steps is not None):
            raise ValueError("has a platform, of which nothing was measured, and curves or steps")
        if len({one.setting for one in self.curves}) < len(self.curves):
            raise ValueError("two curves are of the same setting")
        return self


def cost_model_yaml(cost_model: CalibratedCostModel) -> str:
    """Return a cost model as YAML of a fabric file; raise InputError if reading it back would fail."""
    try:
        file = _file_of(cost_model)
    except pydantic.ValidationError as error:
        raise validation_refusal(error) from None
    text = "# A fabric calibrated by simnet; docs/calibration.md explains the fields. Units: s, byte.\n"
    text += yaml_text(file.model_dump(mode="json"), width=110)
    if len(text.encode()) > MAX_BYTES:
        size = f"{len(text.encode()) / 2**20:.0f} MiB, of which {MAX_BYTES // 2**20} are read"
        raise InputError(f"the fabric file would have {size}; --where takes some of the curves")
    return text


def _file_of(cost_model: CalibratedCostModel) -> CostModelFile:
    model = cost_model.model
    steps = None
    if model.steps is not None and cost_model.platform is None:
        errors = model.steps.errors or (0.0,) * len(PARAMETERS)
        listed = zip(PARAMETERS, model.steps.values, errors, strict=True)
        steps = StepModelEntry(
            counted=next(name for name, both in _COUNTINGS.items() if both == (model.steps.nccl, model.steps.switch)),
            cards=model.cards,
            ranks_on_a_node=model.each,
            parameters={name: ParameterEntry(value=value, relative_error=error) for name, value, error in listed},
        )
    intervals = {}
    for basis, bins in cost_model.intervals.items():
        below, above = map(list, zip(*bins, strict=True))
        intervals[basis] = IntervalEntry(held_out=cost_model.held_out[basis], below=below, above=above)
    return CostModelFile(
        version=FILE_VERSION,
        **{name: getattr(cost_model, name) for name in _SHARED_FIELDS},
        model=model.curve_model,
        across_collectives=model.transfer,
        intervals=intervals,
        steps=steps,
        curves=model.known,
    )


def cost_model_of(source: str) -> CalibratedCostModel:
    """Return the cost model from a fabric file, a platform file, or the name of a shipped platform."""
    path = Path(source)
    if source in platform_names() or is_platform(path):
        return specified_cost_model(load_platform(source))
    if not path.exists() and not path.suffix:
        allowed = suggest_names(source, platform_names())
        raise InputError(f"there is no such file, and no platform {source!r}; {allowed}")
    return load_cost_model(path)


def has_curves(path: str | Path) -> bool:
    """Return whether a fabric file contains times measured over size; raise InputError if it cannot be read."""
    lines = read_text(Path(path), MAX_BYTES).splitlines()
    return any(line.startswith("curves:") and line.partition(":")[2].strip() != "[]" for line in lines)


def load_cost_model(path: str | Path) -> CalibratedCostModel:
    """Read a cost model from a fabric file; raise InputError for an unreadable file or an invalid field."""
    read = load_yaml_mapping(read_text(Path(path), MAX_BYTES), str(path), "a fabric file")
    version = read.value.get("version")
    if version != FILE_VERSION:
        read.refuse(f"must be {FILE_VERSION}, the version that is read, got {str(version)[:40]}", "version")
    names = [one.name for part in (FittedCurve, CurveModel, CardCount) for one in fields(part)]
    file = read.validated(CostModelFile, names)
    steps: StepModel | None = None if file.platform is None else specified_step_model(file.platform)
    cards, each = RAIL_CARDS, 1.0
    if file.steps is not None:
        known = [(file.steps.parameters[one].value, file.steps.parameters[one].relative_error) for one in PARAMETERS]
        (values, errors), (nccl, switch) = zip(*known, strict=True), _COUNTINGS[file.steps.counted]
        cards, each = file.steps.cards, file.steps.ranks_on_a_node
        steps = StepModel(nccl, values, errors, switch, cards[0].number)
    return CalibratedCostModel(
        Predictor(file.model, file.across_collectives, file.curves, steps, cards, each),
        {basis: list(zip(one.below, one.above, strict=True)) for basis, one in file.intervals.items()},
        {basis: one.held_out for basis, one in file.intervals.items()},
        **{name: getattr(file, name) for name in _SHARED_FIELDS if name != "platform"},
    )
