"""The fabric file: a calibrated cost model as YAML; ``docs/calibration.md`` explains its fields.

A file is untrusted data: its size is checked before it is read, tags are refused, and every field is checked.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

import pydantic
from pydantic import ConfigDict, Field

from simnet.base.errors import InputError, suggest_names
from simnet.base.reading import read_text
from simnet.base.yaml_loader import load_yaml_mapping, validation_refusal, yaml_text
from simnet.cost_models.calibration.cards import CARD_PER_RANK, RAIL_CARDS, CardCount
from simnet.cost_models.calibration.cost_model import CalibratedCostModel, specified_cost_model
from simnet.cost_models.calibration.curve_models import CURVE_FITS, CurveModel, Mixture, MixtureComponent
from simnet.cost_models.calibration.curves import Setting
from simnet.cost_models.calibration.jitter import FittedJitter
from simnet.cost_models.calibration.platform import Platform, is_platform, load_platform, one_of, platform_names
from simnet.cost_models.calibration.predictor import FittedCurve, Interpolation, Predictor, Transfer
from simnet.cost_models.calibration.specification import specified_step_model as steps_of
from simnet.cost_models.calibration.step_model import PARAMETERS, StepModel
from simnet.cost_models.evidence.intervals import BINS, Basis
from simnet.network import STACKS

FILE_VERSION: Literal[1] = 1
"""The version of fabric files that is written and read."""

MAX_BYTES = 2 * 2**20
"""The largest fabric file that is read."""

# Wider than any machine, and narrow enough that no product of some of them overflows.
_Positive = Annotated[float, Field(ge=1e-30, le=1e30)]
_NotNegative = Annotated[float, Field(ge=0, le=1e30)]
_Log = Annotated[float, Field(ge=-50, le=50)]
_Width = Annotated[float, Field(ge=0, le=50)]
_Name = Annotated[str, Field(max_length=200)]


_Model = Annotated[str, one_of("model", CURVE_FITS)]
_StepCounting: TypeAlias = Literal["through the schedule", "as NCCL does", "as NCCL does, with in-switch reduction"]


_COUNTINGS: dict[_StepCounting, tuple[bool, bool]] = {
    "through the schedule": (False, False),
    "as NCCL does": (True, False),
    "as NCCL does, with in-switch reduction": (True, True),
}
"""Whether steps are counted as NCCL does, and with in-switch reduction."""


class _FilePart(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid")


class ModelEntry(_FilePart):
    """A model of a curve, with its weight."""

    model: _Model
    weight: Annotated[float, Field(ge=0, le=1)]
    segments: Annotated[list[tuple[_NotNegative, _NotNegative, _NotNegative]], Field(max_length=20_000)] = []
    points: Annotated[list[tuple[_Positive, _Positive]], Field(max_length=10_000)] = []
    corrections: Annotated[list[tuple[_Positive, _Log]], Field(max_length=10_000)] = []

    @pydantic.model_validator(mode="after")
    def _is_a_model(self) -> ModelEntry:
        if bool(self.segments) == bool(self.points):
            raise ValueError("needs either segments or points")
        for name in ("segments", "points", "corrections"):
            starts = [one[0] for one in getattr(self, name)]
            if any(later <= earlier for earlier, later in itertools.pairwise(starts)):
                raise ValueError(f"{name} must ascend in size")
        if self.segments and (self.segments[0][0] != 0 or any(one[1] + one[2] <= 0 for one in self.segments)):
            raise ValueError("segments must begin at size 0, each with a latency or seconds per byte above 0")
        return self


class CurveEntry(_FilePart):
    """A measured curve and its models."""

    collective: _Name
    ranks: Annotated[int, Field(ge=1, le=10**7)]
    nodes: Annotated[int, Field(ge=0, le=10**7)] = 0
    algorithm: _Name = ""
    protocol: _Name = ""
    smallest: _Positive
    largest: _Positive
    measured_sizes: Annotated[int, Field(ge=1)]
    models: Annotated[list[ModelEntry], Field(min_length=1, max_length=len(CURVE_FITS))]

    @pydantic.model_validator(mode="after")
    def _is_consistent(self) -> CurveEntry:
        if abs(sum(one.weight for one in self.models) - 1) > 1e-6:
            raise ValueError("weights of models must add to 1")
        if self.smallest > self.largest:
            raise ValueError("smallest must not be above largest")
        return self


class ParameterEntry(_FilePart):
    """A parameter of the step model, with its relative standard error."""

    value: _Positive
    relative_error: _NotNegative = 0.0


class CardsEntry(_FilePart):
    """How many network cards a node may have, and how likely; null is one for each rank."""

    number: Annotated[float, Field(ge=1, le=10**6)] | None
    chance: Annotated[float, Field(gt=0, le=1)]


class StepModelEntry(_FilePart):
    """The step model, the possible numbers of cards of a node, the likeliest first, and the ranks on a node."""

    counted: _StepCounting
    cards: Annotated[list[CardsEntry], Field(min_length=1, max_length=100)] = [CardsEntry(number=None, chance=1.0)]

    @pydantic.field_validator("cards")
    @classmethod
    def _add_up(cls, cards: list[CardsEntry]) -> list[CardsEntry]:
        if abs(sum(one.chance for one in cards) - 1) > 1e-6:
            raise ValueError("chances of cards must add to 1")
        if len({one.number for one in cards}) < len(cards):
            raise ValueError("names a number of cards twice")
        if any(one.chance > cards[0].chance for one in cards):
            raise ValueError("must begin with the likeliest number of cards")
        return cards

    ranks_on_a_node: Annotated[float, Field(ge=1, le=10**7)] = 1.0
    parameters: dict[Annotated[str, one_of("parameter", PARAMETERS)], ParameterEntry]

    @pydantic.model_validator(mode="after")
    def _has_all(self) -> StepModelEntry:
        missing = [name for name in PARAMETERS if name not in self.parameters]
        if missing:
            raise ValueError(f"lacks {', '.join(missing)}")
        return self


class IntervalEntry(_FilePart):
    """Half-widths of prediction intervals by bin of sizes, for predictions of one basis."""

    held_out: Annotated[int, Field(ge=0)]
    below: Annotated[list[_Width], Field(min_length=len(BINS), max_length=len(BINS))]
    above: Annotated[list[_Width], Field(min_length=len(BINS), max_length=len(BINS))]


class JitterEntry(_FilePart):
    """The extra latency of each message, log-normal, and the size of the sample."""

    median: _Positive
    sigma: Annotated[float, Field(ge=0, le=10)]
    settings: Annotated[int, Field(ge=1)]
    repetitions: Annotated[int, Field(ge=1)]


class CostModelFile(_FilePart):
    """The content of a fabric file."""

    version: Literal[1]
    sources: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=1000)] = []
    system: Annotated[str, Field(max_length=1000)] = ""
    topology: Annotated[str, Field(max_length=1000)] = ""
    network: dict[Literal["star", "multi_gpu_nodes"], dict[_Name, int | _NotNegative]] | None = None
    stack: Annotated[str, one_of("stack", ("", *STACKS))] = ""
    eager: bool = False
    jitter: JitterEntry | None = None
    model: _Model
    across_ranks: Interpolation
    beyond_ranks: Interpolation = "blended"
    across_collectives: Transfer = "steps"
    scores: dict[_Name, _NotNegative] = {}
    coverage: Annotated[float, Field(gt=0, lt=1)]
    intervals: dict[Basis, IntervalEntry]
    steps: StepModelEntry | None = None
    platform: Platform | None = None
    curves: Annotated[list[CurveEntry], Field(max_length=10_000)]

    @pydantic.model_validator(mode="after")
    def _is_known(self) -> CostModelFile:
        missing = [basis for basis in get_args(Basis) if basis not in self.intervals]
        if missing:
            raise ValueError(f"intervals lack {', '.join(missing)}")
        if self.platform is None and not self.curves:
            raise ValueError("needs curves that were measured, or a platform")
        if self.platform is not None and (self.curves or self.steps is not None):
            raise ValueError("has a platform, of which nothing was measured, and curves or steps")
        settings = [_curve_setting(one) for one in self.curves]
        if len(set(settings)) < len(settings):
            raise ValueError("two curves are of the same setting")
        return self


def cost_model_yaml(cost_model: CalibratedCostModel) -> str:
    """Return a cost model as a fabric file; raise InputError if it could not be read again, as too large, say."""
    try:
        file = _file_of(cost_model)
    except pydantic.ValidationError as error:
        raise validation_refusal(error) from None
    text = "# A fabric calibrated by simnet; docs/calibration.md explains the fields. Units: s, byte.\n"
    fields = file.model_dump(mode="json", exclude_defaults=False)
    if file.jitter is None:
        del fields["jitter"]
    text += yaml_text(fields, width=110)
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
            cards=[
                CardsEntry(number=None if one.number == CARD_PER_RANK else one.number, chance=one.chance)
                for one in model.cards
            ],
            ranks_on_a_node=model.each,
            parameters={name: ParameterEntry(value=value, relative_error=error) for name, value, error in listed},
        )
    return CostModelFile(
        version=FILE_VERSION,
        sources=list(cost_model.sources),
        system=cost_model.system,
        topology=cost_model.topology,
        network=cost_model.network,  # type: ignore[arg-type]
        stack=cost_model.stack,
        eager=cost_model.eager,
        jitter=None if cost_model.jitter is None else JitterEntry(**cost_model.jitter._asdict()),
        model=model.curve_model,
        across_ranks=model.interpolation,
        beyond_ranks=model.extrapolation,
        across_collectives=model.transfer,
        scores=cost_model.scores,
        coverage=cost_model.coverage,
        intervals={
            basis: IntervalEntry(
                held_out=cost_model.held_out[basis], below=[one[0] for one in bins], above=[one[1] for one in bins]
            )
            for basis, bins in cost_model.intervals.items()
        },
        steps=steps,
        platform=cost_model.platform,
        curves=[_curve_entry(one) for one in model.known],
    )


def cost_model_of(source: str) -> CalibratedCostModel:
    """Return the cost model of a fabric file, or of a platform: the name of a shipped one, or its file."""
    path = Path(source)
    if source in platform_names():
        return specified_cost_model(load_platform(source))
    if not path.exists() and not path.suffix:
        raise InputError(
            f"there is no such file, and no platform {source!r}; {suggest_names(source, platform_names())}"
        )
    return specified_cost_model(load_platform(path)) if is_platform(path) else load_cost_model(path)


def has_curves(path: str | Path) -> bool:
    """Return whether a fabric file has measured curves; raise InputError if it cannot be read."""
    lines = read_text(Path(path), MAX_BYTES).splitlines()
    return any(line.startswith("curves:") and line.partition(":")[2].strip() != "[]" for line in lines)


def load_cost_model(path: str | Path) -> CalibratedCostModel:
    """Read a cost model from a fabric file; raise InputError for a file that cannot be read, or a wrong field."""
    name = str(path)
    read = load_yaml_mapping(read_text(Path(path), MAX_BYTES), name, "a fabric file")
    version = read.value.get("version")
    if version != FILE_VERSION:
        message = f"must be {FILE_VERSION}, the version that is read, got {str(version)[:40]}"
        raise InputError(message, file=name, line=read.line(["version"]), field="version")
    try:
        file = CostModelFile.model_validate(read.value)
    except pydantic.ValidationError as error:
        raise validation_refusal(error, name, read) from None
    steps: StepModel | None = None if file.platform is None else steps_of(file.platform)
    cards, each = RAIL_CARDS, 1.0
    if file.steps is not None:
        chosen = [file.steps.parameters[one] for one in PARAMETERS]
        values, errors = tuple(one.value for one in chosen), tuple(one.relative_error for one in chosen)
        nccl, switch = _COUNTINGS[file.steps.counted]
        cards = tuple(
            CardCount(CARD_PER_RANK if one.number is None else one.number, one.chance) for one in file.steps.cards
        )
        each = file.steps.ranks_on_a_node
        steps = StepModel(nccl, values, errors, switch, cards[0].number)
    known = tuple(_fitted_curve(one) for one in file.curves)
    return CalibratedCostModel(
        Predictor(file.model, file.across_ranks, file.beyond_ranks, file.across_collectives, known, steps, cards, each),
        {basis: list(zip(one.below, one.above, strict=True)) for basis, one in file.intervals.items()},
        {basis: one.held_out for basis, one in file.intervals.items()},
        dict(file.scores),
        file.coverage,
        file.sources,
        file.system,
        file.topology,
        None if file.network is None else {str(name): dict(one) for name, one in file.network.items()},
        file.stack,
        file.eager,
        None if file.jitter is None else FittedJitter(**file.jitter.model_dump()),
    )


def _curve_entry(one: FittedCurve) -> CurveEntry:
    return CurveEntry(
        **asdict(one.setting),
        smallest=one.smallest,
        largest=one.largest,
        measured_sizes=one.count,
        models=[ModelEntry(model=name, weight=weight, **asdict(shape)) for name, weight, shape in one.shape.parts],
    )


def _fitted_curve(one: CurveEntry) -> FittedCurve:
    parts = tuple(
        MixtureComponent(
            each.model, each.weight, CurveModel(tuple(each.segments), tuple(each.points), tuple(each.corrections))
        )
        for each in one.models
    )
    return FittedCurve(_curve_setting(one), Mixture(parts), one.smallest, one.largest, one.measured_sizes)


def _curve_setting(one: CurveEntry) -> Setting:
    return Setting(one.collective, one.ranks, one.nodes, one.algorithm, one.protocol)
