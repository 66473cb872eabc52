"""Parts of a scenario's job: gradients, sharding, and workers that stop, leave or return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from simnet import traces
from simnet.base.quantities import Duration, PositiveShare, Seconds, Share
from simnet.scenario.fields import File, NameOrFile
from simnet.scenario.parts import Named, NameOr, OneOf, Part, configures, exactly_one, kinds
from simnet.traces import live
from simnet.training.job import job as training_job
from simnet.training.parallel.units import UNIT_NAME, ListedUnit, unit_name


class WithOptions(Named):
    """Base class of scenario parts that name a scheme, strategy or sharding and also hold its options."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """All given fields that the class itself does not define."""
        return self.__pydantic_extra__


@configures(traces.synthetic, only=("like", "iterations"), iterations="training")
class Synthetic(Part):
    """Made-up gradients with the statistics of recorded ones: heavy-tailed, correlated between workers and in time."""

    like: NameOrFile


@configures(traces.recorded, only=("trace", "iterations"), iterations="training")
class Recorded(Named):
    """Gradients recorded in a real training run, with the layers of its model."""

    named = "trace"
    trace: NameOrFile


class Logistic(Part):
    """Multinomial logistic regression."""


@configures(live.train, only=("hidden",))
class Mlp(Part):
    """Fully connected layers with ReLU between them."""


class Conv(Part):
    """Three convolutions and two fully connected layers, for images; needs PyTorch."""


@configures(live.train, only=("width", "blocks"))
class Transformer(Part):
    """A decoder like GPT-2 that predicts the next word at every position; needs PyTorch."""


@kinds(logistic=Logistic, mlp=Mlp, conv=Conv, transformer=Transformer)
class TrainedModel(OneOf):
    """The model that is trained."""


@kinds(digits=live.digits, classification=live.classification, words=live.words)
class TrainingData(OneOf):
    """The data set that the model is trained on."""


@configures(live.train, only=("dirichlet",), required=("dirichlet",))
class Dirichlet(Part):
    """Training data split unevenly by class among workers; the smaller the parameter, the more uneven."""


@configures(live.LearningRate, omit=("rate",), factor="drop")
@configures(live.train, only=("batch", "learning_rate", "momentum", "weight_decay", "evaluate", "device"))
class Train(Part):
    """Gradients of a model trained in the simulation with the scheme's updates; each policy trains its own model.

    shards: how the data is dealt out to the workers: at random, or by classes
    target: accuracy whose time is reported; default: 99 % of the best of the first policy
    """

    model: TrainedModel = TrainedModel.model_validate({"mlp": {}})
    data: TrainingData = TrainingData.model_validate({"digits": {}})
    shards: NameOr[Literal["iid"], Dirichlet] = "iid"
    target: PositiveShare | None = None


class Gradients(OneOf):
    """Source of the gradients; a text in its place is the name of a recorded trace."""

    otherwise = "recorded"

    synthetic: Synthetic | None = None
    recorded: Recorded | None = None
    train: Train | None = None


_GONE = "without some of the workers nobody has all parameters"

MEANINGLESS: Mapping[str, str] = {
    "density": "whole tensors are sent",
    "strategy": "a strategy has exchanges of its own",
    "overlap": "its own options say what goes beside computing",
    "gradients": "it makes none: how much is sent follows from the tensors",
    "scale": "it makes no gradients of which there could be a sample",
    "optimizer": "its memory is that of Adam",
    **dict.fromkeys(("deaths", "absences", "churn", "on_death"), _GONE),
    "deadline": "its collectives wait for all",
    "barrier": "its steps begin when all workers are done",
}
"""Fields of a job that mean nothing beside sharding, and why."""


MOST_UNITS = 1_000
"""How many units a model may have: what a step takes to be timed grows with their square."""


class ModelUnit(Part):
    """A unit of a model (tensors that are sharded together), or several equal units in a row.

    seconds: of both passes of a microbatch
    flops: operations of both passes, in place of seconds; compute.mean is then that of all
    times: how many follow each other
    """

    name: Annotated[str, AfterValidator(unit_name), Field(json_schema_extra={"pattern": f"^{UNIT_NAME}$"})]
    parameters: Annotated[int, Field(ge=1, le=10**13)]
    seconds: Seconds | None = None
    flops: Annotated[float, Field(ge=0, le=1e24)] | None = None
    times: Annotated[int, Field(ge=1, le=MOST_UNITS)] = 1

    def _check(self) -> None:
        if (self.seconds is None) == (self.flops is None):
            raise ValueError(f"needs either seconds or flops, got {'neither' if self.flops is None else 'both'}")


class Sharding(WithOptions):
    """How a model is sharded over workers, with the options of `--sharding`.

    way: ddp, fsdp2, hsdp, zero1, zero2 or zero3
    trace: a folder of Chakra traces of all ranks, in place of a model
    units: the model as a list of units in the order of the forward pass, in place of job.model
    algorithms: by which algorithm operations go; default: rings
    slowdown: how many times as long computing takes while collectives are under way beside it; default: what
        the device profile says of that (beside_collectives), else 1; of a trace 1
    backward: share of the backward pass; default: that of the model
    """

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["as"]}, {"required": ["trace"]}]})

    named = "as"
    way: str | None = Field(default=None, alias="as")
    trace: File | None = None
    units: Annotated[list[ModelUnit], Field(min_length=1)] | None = None
    algorithms: dict[str, str] = Field(default={})
    slowdown: float | None = Field(default=None, ge=1, le=100)
    backward: Share | None = None

    @property
    def listed(self) -> list[ListedUnit]:
        """Units of the model, if it is given as a list of units."""
        return [
            ListedUnit(one.name, one.parameters, (one.flops if one.seconds is None else one.seconds) or 0.0, one.times)
            for one in self.units or ()
        ]

    @property
    def seconds(self) -> float | None:
        """Total compute seconds of the listed units; None if their work is given in operations."""
        if self.units is None or self.units[0].seconds is None:
            return None
        whole = math.fsum(one.work * one.times for one in self.listed)
        # People read it, and their milliseconds are no sums of powers of two.
        return float(f"{whole:.12g}")

    def _check(self) -> None:
        self._check_units()
        if (self.way is None) == (self.trace is None):
            raise ValueError("needs either as, such as {as: fsdp2}, or trace")
        if self.trace is not None and (self.options or self.backward is not None or self.units):
            first = next(iter(self.options), "units" if self.units else "backward")
            raise ValueError(f"takes no {first} beside trace, which says what is computed and called")

    def _check_units(self) -> None:
        units = self.units or []
        if (found := sum(one.times for one in units)) > MOST_UNITS:
            _refuse_units(f"must be at most {MOST_UNITS:,} with those that follow by times, got {found:,}")
        firsts: dict[str, int] = {}
        for place, one in enumerate(units):
            if (first := firsts.setdefault(one.name, place)) != place:
                said = f"is that of units[{first}], too, got {one.name!r}; times says how many follow"
                _refuse_units(said, place, "name")
            if (one.seconds is None) != (units[0].seconds is None):
                wanted = "flops" if units[0].seconds is None else "seconds"
                _refuse_units(f"needs {wanted}, as units[0] has: seconds of all units, or flops of all", place)
        if units and not any(one.work for one in self.listed):
            _refuse_units("must have one that takes any time, got 0 of all")


def _refuse_units(why: str, *place: int | str) -> NoReturn:
    """Raise ValidationError located at the field `units`, or at one entry of it."""
    error = PydanticCustomError("value_error", "{error}", {"error": why})
    details: list[InitErrorDetails] = [InitErrorDetails(type=error, loc=("units", *place), input=None)]
    raise ValidationError.from_exception_data("Sharding", details)


def one_or_several(value: object) -> str:
    """Return the tag by which pydantic distinguishes one sharding from a mapping of several by name."""
    several = isinstance(value, dict) and value and not {"as", "trace", "way"} & value.keys()
    return "<several>" if several else "<one>"


class Death(Part):
    """A worker that stops for good.

    at: on the clock of the scenario, which starts at 0 s
    """

    worker: Annotated[int, Field(ge=0)]
    at: Seconds


@configures(training_job.Absence, begin="leaves", end="returns")
class Absence(Part):
    """A period in which a worker is absent.

    leaves: on the clock of the scenario, which starts at 0 s
    returns: default: never
    notice: whether it finishes the iteration that is under way
    """

    worker: Annotated[int, Field(ge=0)]
    leaves: Seconds
    returns: Seconds | None = None
    notice: bool = True

    def _check(self) -> None:
        if self.returns is not None and self.returns <= self.leaves:
            raise ValueError(f"returns must be later than leaves, {self.leaves:g} s, got {self.returns:g} s")


@configures(training_job.Churn)
class Churning(Part):
    """Workers that leave and return at random, after exponentially distributed times."""


class Deadline(Part):
    """How long an exchange waits for slower workers after the first worker has computed.

    quantile: wait for the time within which this share of the job's compute times lies
    """

    after: Duration | None = None
    quantile: Share | None = None

    def _check(self) -> None:
        exactly_one(self, ("after", "quantile"))


class Continue(Part):
    """The other workers continue without the worker that stopped.

    after: time until they notice, such as a time-out, counted from when they all wait for the stopped worker
    """

    after: Seconds


class OnDeath(Part):
    """What the other workers do after a worker has stopped for good."""

    go_on: Continue = Field(alias="continue")
