"""The fields of a scenario: one class per part, in the order of the file.

Where there is a choice of kinds, the kind is the key: ``topology: {star: {...}}``. It is long, so that all fields stand
on one page.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializeAsAny,
    Tag,
    model_validator,
)

import simnet.job
from simnet import advise, policies, strategies, traces
from simnet.base.quantities import (
    Count,
    Density,
    Duration,
    Host,
    Parameters,
    PositiveShare,
    PositiveSize,
    Seconds,
    Share,
    Slowdown,
)
from simnet.costs.devices import DEFAULT_DEVICE, GLOO_DEVICE
from simnet.job.elastic import Churn
from simnet.policies import moo
from simnet.scenario.fields import File, FileName, Label
from simnet.scenario.network_parts import Network
from simnet.scenario.parts import (
    OneOf,
    Part,
    Target,
    configures,
    either,
    exactly_one,
    kinds,
    part_of,
)
from simnet.scenario.sharding_parts import MEANINGLESS, Sharding, one_or_several
from simnet.traces import live


@configures(policies.Ramp, optional={"iterations": "none, the last stretch never ends"})
class Ramp(Part):
    """A stretch of iterations at one density, or over which it goes from one to another."""

    iterations: Any
    at: Density | None = None
    start: Any = Field(default=None, alias="from")
    end: Any = Field(default=None, alias="to")

    @model_validator(mode="after")
    def _at_or_from_to(self) -> Self:
        given = [name for name in ("at", "start", "end") if getattr(self, name) is not None]
        if given not in (["at"], ["start", "end"]):
            raise ValueError("takes either at, or from and to")
        if given != ["at"] and self.iterations is None:
            raise ValueError("needs iterations to go from one density to another")
        return self


Densities: TypeAlias = Annotated[
    Annotated[Density, Tag("<number>")] | Annotated[list[Ramp], Field(min_length=1), Tag("<list>")],
    either(scalar="<number>", list="<list>"),
]


@configures(
    simnet.job.Compute, only=("straggle", "slowdown"), required=("straggle", "slowdown"), straggle="probability"
)
class Straggle(Part):
    """A worker is slow for an iteration now and then."""


@configures(simnet.job.Compute, only=("mean", "spread", "slow"), optional={"mean": "that of the model on the device"})
class Compute(Part):
    """How long the forward and backward pass take on each worker."""

    mean: Any
    spread: Any
    slow: dict[str, Slowdown]
    straggle: Straggle | None = None


@configures(
    simnet.job.Overlap,
    only=("bucket", "first", "exchanges", "backward"),
    optional={"backward": "that of the model"},
)
class Overlap(Part):
    """Exchange buckets of layers during back-propagation."""

    bucket: Any
    first: Any
    exchanges: Any
    backward: Any
    dense_below: Count | None = Field(
        default=None, description="buckets of fewer entries stay dense, whatever the exchange; default: none"
    )
    dense: list[str] | None = Field(default=None, description="names of layers whose buckets stay dense, too")
    dense_algorithm: str | None = Field(default=None, description="the all-reduce of these; default: ring")


@configures(traces.synthetic, only=("like", "iterations"), iterations="training")
class Synthetic(Part):
    """Made-up gradients with the statistics of recorded ones: heavy-tailed, correlated between workers and in time."""

    like: File
    training: Any


@configures(traces.recorded, only=("trace", "iterations"), iterations="training")
class Recorded(Part):
    """Gradients of a real training run, which brings its own layers."""

    trace: File
    training: Any


def _read_recorded(value: object) -> object:
    return {"trace": value} if isinstance(value, str) else value


class Logistic(Part):
    """Multinomial logistic regression."""


@configures(live.train, only=("hidden",))
class Mlp(Part):
    """Fully connected layers with ReLU between them."""


class Conv(Part):
    """Three convolutions and two fully connected layers, for images; needs PyTorch."""


@configures(live.train, only=("channels",))
class ResidualNetwork(Part):
    """A residual network with group norm, two blocks a stage, for images; needs PyTorch."""


@configures(live.train, only=("width", "blocks"))
class Transformer(Part):
    """A decoder like GPT-2 that foretells the next word at every place; needs PyTorch."""


class TrainedModel(OneOf):
    """What is trained."""

    logistic: Logistic | None = None
    mlp: Mlp | None = None
    conv: Conv | None = None
    residual: ResidualNetwork | None = None
    transformer: Transformer | None = None


@kinds(
    digits=live.digits,
    classification=live.classification,
    letters=live.letters,
    words=live.words,
)
class TrainingData(OneOf):
    """What it is trained on."""


@configures(live.train, only=("dirichlet",), required=("dirichlet",))
class Dirichlet(Part):
    """Shards that differ in their classes; the smaller the parameter, the more."""

    dirichlet: Any


def _read_kind(value: object) -> object:
    return {value: {}} if isinstance(value, str) else value


@configures(live.LearningRate, omit=("rate",), factor="drop")
@configures(live.train, only=("batch", "learning_rate", "momentum", "weight_decay", "evaluate", "device"))
class Train(Part):
    """Gradients of a model that is really trained, with the updates of the scheme; every policy trains its own."""

    model: Annotated[
        TrainedModel,
        BeforeValidator(
            _read_kind,
            json_schema_input_type=Literal["logistic", "mlp", "conv", "residual", "transformer"] | TrainedModel,
        ),
    ] = TrainedModel.model_validate({"mlp": {}})
    data: Annotated[
        TrainingData,
        BeforeValidator(
            _read_kind,
            json_schema_input_type=Literal["digits", "classification", "letters", "words"] | TrainingData,
        ),
    ] = TrainingData.model_validate({"digits": {}})
    device: Any
    shards: Annotated[
        Annotated[Literal["iid"], Tag("<name>")] | Annotated[Dirichlet, Tag("<mapping>")],
        either(scalar="<name>", mapping="<mapping>"),
    ] = Field(default="iid", description="how the data is dealt out to the workers: at random, or by classes")
    batch: Any
    learning_rate: Any
    momentum: Any
    weight_decay: Any
    warm_up: Any
    drops: Any
    drop: Any
    evaluate: Any
    target: PositiveShare | None = Field(
        default=None, description="accuracy whose time is reported; default: 99 % of the best of the first policy"
    )


class Gradients(OneOf):
    """Where the gradients come from."""

    synthetic: Synthetic | None = None
    recorded: Annotated[Recorded, BeforeValidator(_read_recorded, json_schema_input_type=str | Recorded)] | None = None
    train: Train | None = None


class Death(Part):
    """A worker that stops for good."""

    worker: Annotated[int, Field(ge=0)]
    at: Seconds = Field(description="on the clock of the scenario, which starts at 0 s")


class Absence(Part):
    """A time in which a worker is away."""

    worker: Annotated[int, Field(ge=0)]
    leaves: Seconds = Field(description="on the clock of the scenario, which starts at 0 s")
    returns: Seconds | None = Field(default=None, description="default: never")
    notice: bool = Field(default=True, description="whether it finishes the iteration that is under way")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.returns is not None and self.returns <= self.leaves:
            raise ValueError(f"returns must be later than leaves, {self.leaves:g} s, got {self.returns:g} s")
        return self


@configures(Churn)
class Churning(Part):
    """Workers that leave and come back at random, after times that are exponentially distributed."""

    notice: Any = Field(description="whether they finish the iteration that is under way")


class Deadline(Part):
    """How long an exchange waits for workers that compute, counted from the first that is done."""

    after: Duration | None = None
    quantile: Share | None = Field(
        default=None, description="as long as this share of the workers takes, of the compute times of the job"
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        exactly_one(self, ("after", "quantile"))
        return self


class Continue(Part):
    """The others go on without the dead."""

    after: Seconds = Field(description="until they notice, as by a time-out, counted from when everything has stopped")


class OnDeath(Part):
    """What the others do."""

    go_on: Continue = Field(alias="continue")


@kinds(sgd=strategies.SGD, adamw=strategies.AdamW)
class Optimiser(OneOf):
    """What moves parameters."""


class Strategy(Part):
    """How workers train between exchanges, and its options; `simnet list strategies` shows them."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]

    name: str
    inner: Optimiser | None = Field(default=None, description="of each worker; default: that of the strategy")
    outer: Optimiser | None = Field(default=None, description="of the global parameters; default: the strategy's")
    bucket: PositiveSize | None = Field(
        default=None,
        description="up to how many bytes tensors go together, as 1 B for one by one; default: all",
    )

    @property
    def options(self) -> dict[str, Any]:
        """What the strategy takes beside how it averages."""
        given = {name: getattr(self, name) for name in ("inner", "outer")}
        return self.__pydantic_extra__ | {name: one.choice[1].build() for name, one in given.items() if one is not None}


class Prices(Part):
    """What is paid for a job."""

    device_hour: Annotated[float, Field(ge=0, le=1e9)] = Field(
        default=0.0, description="of a worker's device, by the hour"
    )
    gigabyte: Annotated[float, Field(ge=0, le=1e9)] = Field(
        default=0.0, description="of 10^9 bytes that a worker sends"
    )
    currency: Annotated[str, Field(min_length=1, max_length=12)] = Field(description="of both, such as USD")

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.device_hour and not self.gigabyte:
            raise ValueError("needs a price: device_hour or gigabyte, > 0")
        return self


def _which_memory(value: object) -> str:
    return "<device>" if value == "device" else "<size>"


DeviceMemory: TypeAlias = Annotated[
    Annotated[Literal["device"], Tag("<device>")] | Annotated[PositiveSize, Tag("<size>")],
    Discriminator(_which_memory),
]
"""Bytes that a device holds."""


@configures(simnet.job.Job, only=("iterations", "update", "barrier"))
@configures(traces.synthetic, only=("scale",))
class Job(Part):
    """What is trained, for how long, and how much of the gradient is sent."""

    model: File | None = Field(
        default=None, description="a model profile, or the config.json of one: layers, and time of an iteration"
    )
    parameters: Parameters | None = Field(default=None, description="of a model that has no profile")
    gradients: Gradients = Gradients.model_validate({"synthetic": {}})
    scale: Any = Field(
        description="run the logic on a sample, one entry in this many; bytes and times count as for all"
    )
    iterations: Any
    epoch: Count | None = Field(default=None, description="iterations of an epoch, to count in epochs")
    density: Densities | None = None
    compression_ratio: Densities | None = Field(default=None, description="another name for density: the fraction kept")
    compute: Compute = Compute.model_validate({})
    batch: Count | None = Field(
        default=None, description="samples of a worker in an iteration; default: that of the time that is known"
    )
    tokens: Count | None = Field(
        default=None, description="tokens of a sample, where passes are estimated by operations; default: the model's"
    )
    precision: Literal["fp32", "tf32", "fp16", "bf16"] | None = Field(
        default=None,
        description="in what passes compute, where their time is not given; default: in what people train on the "
        "device; gradients are sent as the exchange has them",
    )
    device: File | None = Field(
        default=None,
        description="a device profile, or the file of one: what selecting costs, and how long a model computes; "
        f"default: {DEFAULT_DEVICE}, under the stack gloo {GLOO_DEVICE}",
    )
    overlap: Overlap | Literal["none"] | None = Field(
        default=None,
        description="default: what PyTorch's DistributedDataParallel does, of exchanges whose implementation can; "
        "none: gradients are exchanged after the backward pass",
    )
    strategy: Strategy | None = Field(
        default=None,
        description="default: gradients are exchanged in every iteration; else one is several inner steps, and the "
        "strategy's optimisers move what is trained",
    )
    sharding: (
        Annotated[
            Annotated[Sharding, Tag("<one>")] | Annotated[dict[Label, Sharding], Tag("<several>")],
            Discriminator(one_or_several),
        ]
        | None
    ) = Field(
        default=None,
        description="iterations are steps of a replicated or sharded model, in one way or in several by name, which "
        "policies take in place of exchanges; compute is then of a microbatch through the whole model",
    )
    optimizer: Literal["adam", "momentum", "sgd"] | None = Field(
        default=None,
        description="what memory is counted for: Adam, or SGD with momentum or without; default: that which trains a "
        "model, else Adam; a strategy has its own",
    )
    device_memory: DeviceMemory | None = Field(
        default=None,
        description="what a worker's device holds, or device for what the profile says; exchanges that need more, "
        "activations apart, are ruled out",
    )
    prices: Prices | None = Field(default=None, description="what devices and traffic cost, to tell the money")
    update: Any
    barrier: Any
    workers_per_device: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=1, description="workers that take turns on a device, as processes on one processor do"
    )
    deaths: Annotated[list[Death], Field(min_length=1)] | None = Field(
        default=None, description="workers that die, and when"
    )
    absences: Annotated[list[Absence], Field(min_length=1)] | None = Field(
        default=None, description="workers that leave and come back, under a strategy"
    )
    churn: Churning | None = Field(default=None, description="the same at random")
    deadline: Deadline | None = Field(
        default=None, description="under a strategy; default: an exchange waits for all workers"
    )
    on_death: (
        Annotated[
            Annotated[Literal["stop"], Tag("<name>")] | Annotated[OnDeath, Tag("<mapping>")],
            either(scalar="<name>", mapping="<mapping>"),
        ]
        | None
    ) = Field(default=None, description="default: stop, the job ends; or continue: the others go on without the dead")

    @property
    def shardings(self) -> dict[str, Sharding]:
        """The ways of sharding, by the names that policies take; one alone has the name of what it is."""
        given = self.sharding
        return {given.way or "trace": given} if isinstance(given, Sharding) else given or {}

    @property
    def traced(self) -> bool:
        """Whether its steps are those of traces, which say for how long ranks compute."""
        return any(one.trace is not None for one in self.shardings.values())

    def sharding_at(self, label: str) -> tuple[str, ...]:
        """Return the place of a way of sharding."""
        return ("job", "sharding") if isinstance(self.sharding, Sharding) else ("job", "sharding", label)

    @model_validator(mode="after")
    def _fits_sharding(self) -> Self:
        if self.sharding is None:
            return self
        fields, traced = type(self).model_fields, self.traced
        meaningless = {
            **MEANINGLESS,
            **(dict.fromkeys(("model", "parameters"), "a trace says what is called") if traced else {}),
        }
        for name, why in meaningless.items():
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"takes no {name} beside sharding: {why}")
        units = [one.units for one in self.shardings.values()]
        if any(one != units[0] for one in units):
            raise ValueError("needs the same units in all ways of sharding")
        if units[0] is not None and (self.model is not None or self.parameters is not None):
            raise ValueError("takes no model and no parameters beside units of sharding, which are the model")
        if not traced and self.model is None and units[0] is None:
            raise ValueError("needs model beside sharding, whose tensors are shared, or units in it")
        whole, mean = next(iter(self.shardings.values())).seconds, self.compute.mean
        if whole is not None and mean is not None and not math.isclose(mean, whole, rel_tol=1e-9):
            raise ValueError("takes no compute.mean beside units that say their seconds; flops go with it")
        if traced and self.compute.mean is not None:
            raise ValueError("takes no compute.mean beside a trace, which says for how long ranks compute")
        return self

    @model_validator(mode="after")
    def _one_density(self) -> Self:
        if self.sharding is not None:
            return self
        if (self.density is None) == (self.compression_ratio is None):
            found = "neither" if self.density is None else "both"
            raise ValueError(f"needs density or compression_ratio, which mean the same, got {found}")
        return self

    @model_validator(mode="after")
    def _fits_strategy(self) -> Self:
        elastic = [name for name in ("absences", "churn", "deadline") if getattr(self, name) is not None]
        if self.strategy is None:
            if elastic:
                raise ValueError(
                    f"takes {elastic[0]} under a strategy alone; strategy: {{name: dataparallel, ...}} exchanges in "
                    "every iteration"
                )
            return self
        if isinstance(self.overlap, Overlap):
            why = "buckets are exchanged while gradients are computed only where each iteration has an exchange"
            raise ValueError(f"takes no overlap beside strategy: {why}")
        if elastic and self.barrier is False:
            raise ValueError(f"takes {elastic[0]} with barrier: true alone, got false")
        if elastic and self.deaths is not None:
            raise ValueError(f"takes either deaths or {elastic[0]}: an absence that does not return is a death")
        if self.absences is not None and self.churn is not None:
            raise ValueError("takes either absences or churn")
        return self

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        given = [name for name in ("model", "parameters") if getattr(self, name) is not None]
        if self.gradients.recorded is not None and given:
            raise ValueError(f"takes no {given[0]} with recorded gradients, which have layers of their own")
        if self.gradients.train is not None and given:
            raise ValueError(f"takes no {given[0]} beside gradients.train, which says what is trained")
        if self.gradients.train is not None and self.batch is not None:
            raise ValueError("takes no batch beside gradients.train, whose batch it is")
        if self.sharding is not None:
            return self
        if self.gradients.synthetic is not None and len(given) != 1:
            raise ValueError(f"needs either model or parameters, got {' and '.join(given) or 'neither'}")
        return self


class Exchange(Part):
    """A sparsifier and its options; `simnet list sparsifiers` shows them."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]

    scheme: str

    @property
    def options(self) -> dict[str, Any]:
        """What is given beside the scheme."""
        return self.__pydantic_extra__


class Among(Part):
    """A policy that chooses between exchanges."""

    among: Annotated[list[Label], Field(min_length=1)] | None = Field(
        default=None, description="default: every exchange of the scenario"
    )


@configures(policies.Monitor, omit=("seed",), every="probe_every")
@configures(policies.Flexible, only=("decide_every", "probe_bytes", "probe_times"))
class Flexible(Among):
    """The arg-min of the closed-form costs at the latency and bandwidth last probed."""


@configures(
    policies.Monitor,
    omit=("seed",),
    optional={"every": "10 s, published: 0 s", "change": "10 %, published: 0"},
    every="probe_every",
)
@configures(moo.DensitySearch, optional={"warm_up": "none, published: 5 epochs"})
class Moo(Among):
    """Density and exchange by gain, compression and communication time, explored and searched as the job runs."""

    mode: Any
    densities: Any
    tries: Any
    weights: Any
    gain_change: Any
    warm_up: Any

    @model_validator(mode="after")
    def _fits_mode(self) -> Self:
        self.build(moo.DensitySearch, warm_up=0)
        return self


@configures(advise.Advised, omit=("candidates",))
class Advise(Among):
    """The exchange that an adviser takes, which learns from what iterations take while the job runs."""


class Oracle(Among):
    """The one-step oracle: the exchange that is fastest on the true weather, against which regret is measured."""


class Policy(OneOf):
    """Which exchange next."""

    registry = "policies"

    @classmethod
    def derived(cls, target: Target, name: str | None = None) -> type[Part]:
        """Return the part of a policy, given its class: the candidates are exchanges of the scenario."""
        return part_of(target, name, omit=("candidates", "seed"), base=Among)

    fixed: Label | None = None
    flexible: Flexible | None = None
    moo: Moo | None = None
    advise: Advise | None = None
    oracle: Oracle | None = None


class OtherJob(Part):
    """A job that shares the network, always with the same exchange, from its start until it or the main job is done."""

    workers: Annotated[int, Field(ge=1, le=1_000_000)]
    placement: list[Host] | None = Field(
        default=None, description="a list of hosts, also of other jobs; default: the first that no job has taken"
    )
    start: Seconds = 0.0
    job: Job
    exchange: Exchange


class Output(Part):
    """What the run folder holds."""

    timeline: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=3, description="first iterations drawn message by message, if they have no more than 200,000"
    )
    report: bool = Field(default=True, description="whether to draw the figures and write report.html")


class Config(Part):
    """A job on a network, under several policies."""

    name: FileName | None = Field(default=None, description="default: the name of the file")
    description: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    workers: Annotated[int, Field(ge=1, le=1_000_000)]
    network: Network
    job: Job
    exchanges: Annotated[dict[Label, Exchange], Field(min_length=1)] = Field(
        default={}, description="needed but where job.sharding says what is sent"
    )
    policies: dict[Label, SerializeAsAny[Policy]] = Field(
        default={},
        description="default: each exchange for itself, and an oracle if there are no other jobs and no strategy",
    )
    other_jobs: dict[Label, OtherJob] | None = Field(
        default=None, description="jobs that share the network; they run beside every policy"
    )
    output: Output = Output()
    memory: PositiveSize = Field(default=8 * 2.0**30, description="refuse to run what needs more")

    @property
    def choices(self) -> list[str]:
        """The names of what policies take: of exchanges, or of ways of sharding."""
        return list(self.job.shardings or self.exchanges)
