"""Fields of a scenario: one class per part, in the order of the file.

Where there is a choice of kinds, the kind is the key: ``topology: {star: {...}}``. It is long, to have all fields on
one page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, SerializeAsAny, Tag, model_validator

from simnet import policies, strategies, traces
from simnet.base import units
from simnet.base.quantities import Count, Density, Host, Parameters, PositiveSize, Seconds, Slowdown
from simnet.cost_models.costs.devices import DEFAULT_DEVICE, GLOO_DEVICE
from simnet.policies import moo
from simnet.scenario import job_parts, parts
from simnet.scenario.fields import FileName, Label, NameOrClass, NameOrFile
from simnet.scenario.network_parts import Network
from simnet.scenario.parts import FieldError, Named, NameOr, OneOf, Part, Target, ValueOrList, configures, kinds
from simnet.training.advise import adviser as advise
from simnet.training.job import job as training_job


@configures(policies.Ramp, optional={"iterations": "none, the last stretch never ends"})
class Ramp(Part):
    """Iterations with one density, or over which the density changes linearly."""

    at: Density | None = None
    start: Any = Field(default=None, alias="from")
    end: Any = Field(default=None, alias="to")

    def _check(self) -> None:
        given = [name for name in ("at", "start", "end") if getattr(self, name) is not None]
        if given not in (["at"], ["start", "end"]):
            raise ValueError("takes either at, or from and to")
        if given != ["at"] and self.iterations is None:
            raise ValueError("needs iterations to go from one density to another")


Densities: TypeAlias = ValueOrList[Density, Annotated[list[Ramp], Field(min_length=1)]]


@configures(
    training_job.Compute,
    only=("straggle", "slowdown"),
    required=("straggle", "slowdown"),
    straggle="probability",
)
class Straggle(Part):
    """Stragglers: with some probability a worker is slow for an iteration."""


@configures(training_job.Compute, only=("mean", "spread", "slow"), optional={"mean": "that of the model on the device"})
class Compute(Named):
    """How long the forward and backward pass take on each worker."""

    named = "mean"
    mean: Any
    spread: Any
    slow: dict[str, Slowdown]
    straggle: Straggle | None = None


@configures(
    training_job.Overlap,
    optional={"backward": "that of the model"},
)
class Overlap(Part):
    """Exchange of gradient buckets during back-propagation.

    dense_below: buckets of fewer entries stay dense, whatever the exchange; default: none
    dense: names of layers whose buckets stay dense, too
    dense_algorithm: the all-reduce of these; default: ring
    """

    dense_below: Count | None = None
    dense: list[str] | None = None
    dense_algorithm: str | None = None


@kinds(sgd=strategies.SGD, adamw=strategies.AdamW)
class Optimiser(OneOf):
    """The optimiser, which updates the parameters."""


class Strategy(job_parts.WithOptions):
    """Training strategy: how workers train between exchanges. `simnet list strategies` shows them and their options.

    inner: optimiser of each worker; default: that of the strategy
    outer: optimiser of the global parameters; default: that of the strategy
    bucket: up to how many bytes tensors go together, as 1 B for one by one; default: all
    bits: of a value on the link, of exchanges without value_bytes; default: those of the scheme
    """

    named = "name"
    name: NameOrClass
    inner: Optimiser | None = None
    outer: Optimiser | None = None
    bucket: PositiveSize | None = None
    bits: Annotated[float, Field(ge=0.01, le=1024)] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for the training strategy's class, from the options that the scenario gives."""
        given = {name: getattr(self, name) for name in ("inner", "outer")}
        return super().options | {name: one.choice[1].build() for name, one in given.items() if one is not None}


class Prices(Part):
    """Prices of devices and of traffic.

    device_hour: of a worker's device, by the hour
    gigabyte: of 10^9 bytes that a worker sends
    currency: of both, such as USD
    """

    device_hour: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    gigabyte: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    currency: Annotated[str, Field(min_length=1, max_length=12)]

    def _check(self) -> None:
        if not self.device_hour and not self.gigabyte:
            raise ValueError("needs a price: device_hour or gigabyte, > 0")


def _which_memory(value: object) -> str:
    return "<device>" if value == "device" else "<size>"


DeviceMemory: TypeAlias = Annotated[
    Annotated[Literal["device"], Tag("<device>")] | Annotated[PositiveSize, Tag("<size>")],
    Discriminator(_which_memory),
]
"""Bytes that a device holds."""


@configures(training_job.Job, only=("iterations", "update", "barrier"))
@configures(traces.synthetic, only=("scale",))
class Job(Part):
    """The training job: its gradients or model, iterations, density, compute and workers.

    model: a model profile, or the config.json of one: layers, and time of an iteration; or its parameters, as 7B
    parameters: of a model that has no profile
    scale: run the scheme on a sample, one entry in this many; bytes and times count as for all
    epoch: iterations of an epoch, to count in epochs
    batch: samples of a worker in an iteration; default: that of the time that is known
    tokens: tokens of a sample, where passes are estimated by operations; default: the model's
    precision: in what passes compute, where their time is not given; default: in what people train on the
        device; gradients are sent as the exchange has them
    implementation: what compressing costs on a worker: fused, kernels alone; framework, as PyTorch runs each operation
        of a hook; or an implementation, as grace, or torch-1.10 by its release; default: framework under the stacks
        nccl and gloo, else fused
    overlap: default: what PyTorch's DistributedDataParallel does, of exchanges whose implementation can; none:
        gradients are exchanged after the backward pass
    strategy: default: gradients are exchanged in every iteration; else one is several inner steps, and the
        strategy's optimisers move what is trained
    sharding: iterations are steps of a replicated or sharded model, in one way or in several by name, which
        policies take in place of exchanges; compute is then of a microbatch through the whole model
    optimizer: what memory is counted for: Adam, or SGD with momentum or without; default: that which trains a
        model, else Adam; a strategy has its own
    device_memory: what a worker's device holds, or device for what the profile says; exchanges that need more,
        activations apart, are ruled out
    prices: what devices and traffic cost, to tell the money
    workers_per_device: workers that take turns on a device, as processes on one processor do
    deaths: workers that die, and when
    absences: workers that leave and come back, under a strategy
    churn: the same at random
    deadline: under a strategy; default: an exchange waits for all workers
    on_death: default: stop, the job ends; or continue: the others go on without the dead
    """

    model: NameOrFile | None = None
    parameters: Parameters | None = None
    gradients: job_parts.Gradients = job_parts.Gradients.model_validate({"synthetic": {}})
    scale: Any
    iterations: Any
    epoch: Count | None = None
    density: Densities | None = None
    compute: Compute = Compute.model_validate({})
    batch: Count | None = None
    tokens: Count | None = None
    precision: Literal["fp32", "tf32", "fp16", "bf16"] | None = None
    device: NameOrFile | None = Field(
        default=None,
        description="a device profile, or the file of one: what selecting costs, and how long a model computes; "
        f"default: that of a platform's chip, else {DEFAULT_DEVICE}, under the stack gloo {GLOO_DEVICE}",
    )
    implementation: Label | None = None
    overlap: NameOr[Literal["none"], Overlap] | None = None
    strategy: Strategy | None = None
    sharding: (
        Annotated[
            Annotated[job_parts.Sharding, Tag("<one>")] | Annotated[dict[Label, job_parts.Sharding], Tag("<several>")],
            Discriminator(job_parts.one_or_several),
        ]
        | None
    ) = None
    optimizer: Literal["adam", "momentum", "sgd"] | None = None
    device_memory: DeviceMemory | None = None
    prices: Prices | None = None
    workers_per_device: Annotated[int, Field(ge=1, le=10_000)] = 1
    deaths: Annotated[list[job_parts.Death], Field(min_length=1)] | None = None
    absences: Annotated[list[job_parts.Absence], Field(min_length=1)] | None = None
    churn: job_parts.Churning | None = None
    deadline: job_parts.Deadline | None = None
    on_death: NameOr[Literal["stop"], job_parts.OnDeath] | None = None

    @model_validator(mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        """Accept a model's size in place of its name, as in ``model: 7B``."""
        if isinstance(value, dict) and units.is_count(str(value.get("model"))) and value.get("parameters") is None:
            return {**value, "model": None, "parameters": value["model"]}
        return value

    @property
    def shardings(self) -> dict[str, job_parts.Sharding]:
        """Shardings by policy label; a single sharding is labelled by its kind."""
        given = self.sharding
        return {given.way or "trace": given} if isinstance(given, job_parts.Sharding) else given or {}

    @property
    def traced(self) -> bool:
        """Whether training steps are read from execution traces, which include compute times."""
        return any(one.trace is not None for one in self.shardings.values())

    def sharding_at(self, label: str) -> tuple[str, ...]:
        """Return the keys that lead to a sharding in the scenario, such as ``("job", "sharding", label)``."""
        return ("job", "sharding") if isinstance(self.sharding, job_parts.Sharding) else ("job", "sharding", label)

    def _check(self) -> None:
        self._check_conflicts()
        self._check_strategy()
        given = [name for name in ("model", "parameters") if getattr(self, name) is not None]
        if self.sharding is not None:
            self._check_sharding()
        elif self.density is None:
            raise ValueError("needs density, the fraction of the entries that a worker keeps; write density: 1%")
        elif self.gradients.synthetic is not None and len(given) != 1:
            raise FieldError(f"needs either model or parameters, got {' and '.join(given) or 'neither'}", "model")

    def _check_conflicts(self) -> None:
        """Raise FieldError if two fields of the job exclude each other, such as `batch` and `gradients.train`."""
        recorded, train = self.gradients.recorded, self.gradients.train
        listed = any(one.units for one in self.shardings.values())
        sized = ("model", "parameters")
        rules: list[tuple[object, Iterable[str], str]] = [
            *((self.sharding, [name], f"sharding: {why}") for name, why in job_parts.MEANINGLESS.items()),
            (self.traced, sized, "sharding: a trace says what is called"),
            (listed, sized, "units of sharding, which are the model"),
            (recorded, sized, "recorded gradients, which have layers of their own"),
            (train, sized, "gradients.train, which says what is trained"),
            (train, ["batch"], "gradients.train, whose batch it is"),
        ]
        for there, names, what in rules:
            for name in names if there else ():
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise FieldError(f"takes no {name} beside {what}", name)

    def _check_sharding(self) -> None:
        ways = list(self.shardings.values())
        units, whole, mean = ways[0].units, ways[0].seconds, self.compute.mean
        if any(one.units != units for one in ways):
            raise ValueError("needs the same units in all ways of sharding")
        if not self.traced and self.model is None and units is None:
            known = "a model of known layers, such as gpt-24x2048, its config.json, or units in sharding"
            raise FieldError(f"sharding needs tensors, which a size has not: take {known}", "model")
        if whole is not None and mean is not None and not math.isclose(mean, whole, rel_tol=1e-9):
            raise FieldError("takes no compute.mean beside units that say their seconds; flops go with it", "compute")
        if self.traced and mean is not None:
            raise FieldError("takes no compute.mean beside a trace, which says for how long ranks compute", "compute")

    def _check_strategy(self) -> None:
        elastic = [name for name in ("absences", "churn", "deadline") if getattr(self, name) is not None]
        if self.strategy is None:
            if elastic:
                also = "strategy: {name: dataparallel, ...} exchanges in every iteration"
                raise FieldError(f"takes {elastic[0]} under a strategy alone; {also}", elastic[0])
            return
        if isinstance(self.overlap, Overlap):
            why = "buckets are exchanged while gradients are computed only where each iteration has an exchange"
            raise FieldError(f"takes no overlap beside strategy: {why}", "overlap")
        if elastic and self.barrier is False:
            raise FieldError(f"takes {elastic[0]} with barrier: true alone, got false", "barrier")
        if elastic and self.deaths is not None:
            raise FieldError(
                f"takes either deaths or {elastic[0]}: an absence that does not return is a death", "deaths"
            )
        if self.absences is not None and self.churn is not None:
            raise FieldError("takes either absences or churn", "churn")


class Exchange(job_parts.WithOptions):
    """A sparsifier and its options; `simnet list schemes` shows them."""

    named = "scheme"
    scheme: NameOrClass


class Among(Part):
    """A policy that chooses between exchanges.

    among: default: every exchange of the scenario
    """

    among: Annotated[list[Label], Field(min_length=1)] | None = None


@configures(policies.Monitor, omit=("seed",), every="probe_every")
@configures(policies.Flexible, only=("decide_every", "probe_bytes", "probe_times"))
class Flexible(Among):
    """Picks the exchange with the smallest closed-form cost at the last probed latency and bandwidth."""


@configures(
    policies.Monitor,
    omit=("seed",),
    optional={"every": "10 s, published: 0 s", "change": "10 %, published: 0"},
    every="probe_every",
)
@configures(moo.DensitySearch, optional={"warm_up": "none, published: 5 epochs"})
class Moo(Among):
    """Searches for the density and exchange that best balance compression gain, compression and communication time."""

    def _check(self) -> None:
        self.build(moo.DensitySearch, warm_up=0)


@configures(advise.Advised, omit=("candidates",))
class Advise(Among):
    """Picks the exchange that an adviser recommends; the adviser learns exchange costs from iteration times."""


@configures(policies.OneStepOracle, omit=("candidates",))
class Oracle(Among):
    """Picks the fastest exchange, knowing how links vary: the one-step oracle, against which regret is measured."""


class Policy(OneOf):
    """A policy, which chooses the exchange of each iteration."""

    registry = "policies"

    @classmethod
    def derived(cls, target: Target, name: str | None = None) -> type[Part]:
        """Return the configuration class of a policy, with one field for each option of the policy class `target`."""
        return parts.part_of(target, name, omit=("candidates", "seed"), base=Among)

    fixed: Label | None = None
    flexible: Flexible | None = None
    moo: Moo | None = None
    advise: Advise | None = None
    oracle: Oracle | None = None


class OtherJob(Part):
    """A job that shares the network, always with the same exchange, from its start until it or the main job is done.

    placement: a list of hosts, also of other jobs; default: the first that no job has taken
    """

    workers: Annotated[int, Field(ge=1, le=1_000_000)]
    placement: list[Host] | None = None
    start: Seconds = 0.0
    job: Job
    exchange: Exchange


class Output(Part):
    """What the results folder of a run contains.

    timeline: first iterations drawn message by message, if they have no more than 200,000
    report: whether to draw the figures and write report.html
    """

    timeline: Annotated[int, Field(ge=0, le=1000)] = 3
    report: bool = True


class Config(Part):
    """A job on a network, under several policies.

    name: default: the name of the file
    exchanges: required, unless job.sharding determines what is sent
    policies: default: one for each exchange, and an oracle if there are no other jobs and no strategy
    other_jobs: jobs that share the network; they run beside every policy
    memory: a run that needs more is refused
    """

    name: FileName | None = None
    description: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    workers: Annotated[int, Field(ge=1, le=1_000_000)]
    network: Network
    job: Job
    exchanges: dict[Label, Exchange] = Field(default={}, json_schema_extra={"type": ["object", "string"]})
    policies: dict[Label, SerializeAsAny[Policy]] = Field(default={})
    other_jobs: dict[Label, OtherJob] | None = None
    output: Output = Output()
    memory: PositiveSize = 8 * 2.0**30

    @property
    def jobs(self) -> list[Job]:
        """The main job and the other jobs that share its network."""
        return [self.job, *(other.job for other in (self.other_jobs or {}).values())]

    @property
    def choices(self) -> list[str]:
        """Labels of the exchanges or shardings between which policies choose."""
        return list(self.job.shardings or self.exchanges)
