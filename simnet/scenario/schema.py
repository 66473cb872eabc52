"""What a scenario may say: one class per part, in the order in which people read it.

Where there is a choice of kinds, the kind is the key: ``topology: {star: {...}}``. Written out again, every default is
spelled out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, TypeVar

from annotated_types import Gt
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    SerializeAsAny,
    Tag,
    WithJsonSchema,
    model_validator,
)

import topologies
from simnet.base import plugins
from simnet.base.errors import nearest
from simnet.base.quantities import (
    TIME,
    Bandwidth,
    Count,
    Density,
    Duration,
    Factor,
    Host,
    Rate,
    Seconds,
    Share,
    Size,
    Slowdown,
    Spread,
)
from simnet.interchange import read_network
from simnet.network import EngineName, OnOutage, Routing
from simnet.policies import Aggregate, moo
from simnet.policies.moo import DENSITIES, Mode, Search
from simnet.scenario.fields import File, FileName, Iterations, Label
from simnet.scenario.parts import (
    OneOf,
    Part,
    Target,
    configures,
    either,
    exactly_one,
    field_names,
    kinds,
    part_of,
)

Q = TypeVar("Q", bound=float)


@configures(topologies.wan)
class Wan(Part):
    """Workers at several sites; `latency` and `bandwidth` are one value, or a matrix with a row per site of origin."""

    # Lock files have these two first.
    sites: Any
    workers_per_site: Any


class OnHosts(OneOf):
    """A topology, with one host per worker where nobody says how many."""

    registry = "topologies"

    @classmethod
    def derived(cls, target: Target, name: str | None = None) -> type[Part]:
        """Return the part of a family, given its builder."""
        return part_of(target, name, (("hosts", "one per worker"),))


_FAMILIES = {name: one for name, one in topologies.FAMILIES.items() if not name.startswith("wan")}


@kinds(**_FAMILIES)
class Cluster(OnHosts):
    """The topology of a site."""

    @model_validator(mode="after")
    def _hosts_given(self) -> Self:
        kind, part = self.choice
        if getattr(part, "hosts", 1) is None:
            raise ValueError(f"needs {kind}.hosts: only a topology without sites has one for each worker by default")
        return self


@configures(topologies.wan_of_clusters)
class WanOfClusters(Part):
    """Sites that are clusters, joined by border routers; `latency` and `bandwidth` are as of wan."""

    sites: Annotated[dict[str, SerializeAsAny[Cluster]], Field(min_length=1)] = Field(
        description="topologies by the names of sites"
    )


@configures(read_network, kind="format")
class TopologyFile(Part):
    """A topology from a file: SimGrid platform with its weather, NCCL topology, node-link JSON, calibrated fabric."""


class Registered(Part):
    """A topology of another package, with its own parameters: the same as its name as the key, without `registered`."""

    model_config = ConfigDict(extra="allow")

    name: str


@kinds(
    **_FAMILIES,
    wan=Wan,
    wan_of_clusters=WanOfClusters,
    file=Annotated[
        Annotated[File, Tag("<name>")] | Annotated[TopologyFile, Tag("<mapping>")],
        either(scalar="<name>", mapping="<mapping>"),
    ],
    registered=Registered,
)
class Topology(OnHosts):
    """Hosts, switches and links."""

    @model_validator(mode="wrap")
    @classmethod
    def _by_name(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        given = value.get("registered") if isinstance(value, dict) else None
        if isinstance(given, dict) and isinstance(given.get("name"), str):
            family = given["name"]
            if family not in topologies.names() and plugins.entry("topologies", family) is None:
                raise ValueError(f"there is no topology {family!r}; {nearest(family, topologies.names())}")
            return handler({family: {name: one for name, one in given.items() if name != "name"}})
        return handler(value)


class Levels(Part, Generic[Q]):
    """Some values: `factors` multiply the link's own value, `values` replace it."""

    values: Annotated[list[Q], Field(min_length=1)] | None = None
    factors: Annotated[list[Factor], Field(min_length=1)] | None = None

    @property
    def levels(self) -> Sequence[float]:
        """Whichever is given."""
        return self.values or self.factors or []

    @model_validator(mode="after")
    def _values_or_factors(self) -> Self:
        exactly_one(self, ("values", "factors"))
        return self


class Steps(Levels[Q], Generic[Q]):
    """A value from each time on; `factors` multiply the link's own value, `values` replace it."""

    at: list[Seconds] = Field(description="ascending, the first 0 s")
    period: Seconds | None = Field(
        default=None, description="after which the steps repeat; default: the last one holds"
    )

    @model_validator(mode="after")
    def _one_value_each(self) -> Self:
        if len(self.levels) != len(self.at):
            raise ValueError(f"needs as many values as times, got {len(self.levels)} for {len(self.at)}")
        return self


class Markov(Levels[Q], Generic[Q]):
    """Levels that last exponential times; `factors` multiply the link's own value, `values` replace it."""

    dwell: list[Duration] = Field(description="mean time in each level")
    transition: list[list[Share]] | None = Field(
        default=None, description="from row to column; default: all others alike"
    )
    start: Annotated[int, Field(ge=0)] | None = Field(default=None, description="level at time 0; default: drawn")

    @model_validator(mode="after")
    def _one_dwell_each(self) -> Self:
        if len(self.levels) != len(self.dwell):
            raise ValueError(f"needs as many dwell times as levels, got {len(self.dwell)} for {len(self.levels)}")
        return self


class Noise(Part):
    """Noise with memory (Ornstein-Uhlenbeck in the logarithm): a factor around 1."""

    sigma: Spread
    tau: Duration = Field(description="correlation time")
    every: Duration = Field(default=1.0, description="for which a value holds")


class Diurnal(Part):
    """A daily course: a factor 1 + amplitude sin(2 pi (t + phase) / period)."""

    amplitude: Share
    period: Duration = 86400.0
    phase: Seconds = 0.0
    every: Duration | None = Field(default=None, description="default: a 96th of the period")


class Span(Part):
    """From when, and for how long."""

    at: Seconds
    lasts: Seconds


class Outages(Part):
    """The link is down from time to time, at random (`up` and `down`: mean times) or as listed."""

    up: Duration | None = None
    down: Duration | None = None
    spans: list[Span] | None = None

    @model_validator(mode="after")
    def _random_or_listed(self) -> Self:
        given = [name for name in field_names(type(self)) if getattr(self, name) is not None]
        if given not in (["up", "down"], ["spans"]):
            raise ValueError("takes either up and down, or spans")
        return self


class Mahimahi(Part):
    """A Mahimahi trace of packet opportunities."""

    file: File
    packet: Annotated[Size, Gt(0)] = 1500.0
    every: Duration = Field(default=0.1, description="bin, whole milliseconds")


class Signal(Part, Generic[Q]):
    """How a bandwidth or latency moves: what is given multiplies. At most one part of it may be absolute."""

    constant: Q | None = None
    factor: Factor | None = None
    steps: Steps[Q] | None = None
    markov: Markov[Q] | None = None
    noise: Noise | None = None
    diurnal: Diurnal | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not list(self.kinds()):
            raise ValueError(f"needs at least one of {', '.join(field_names(type(self)))}")
        return self

    def kinds(self) -> Iterator[tuple[str, Any]]:
        """Yield what is given: its kind and its parameters."""
        for kind in field_names(type(self)):
            if getattr(self, kind) is not None:
                yield kind, getattr(self, kind)


class BandwidthSignal(Signal[Rate]):
    """How a bandwidth moves: what is given multiplies. At most one part of it may be absolute."""

    outages: Outages | None = None
    mahimahi: Mahimahi | None = None


class LatencySignal(Signal[Seconds]):
    """How a latency moves: what is given multiplies. At most one part of it may be absolute."""


class Trace(Part):
    """A CSV file with columns such as ``time_s,bandwidth_Mbit_s,latency_ms``."""

    file: File
    at_end: Literal["hold", "repeat"] = "hold"
    period: Duration | None = None


class Epoch(OneOf):
    """How long an epoch lasts: a time, or a number of iterations of the job."""

    time: Duration | None = None
    iterations: Count | None = None


def _read_epoch(value: object) -> object:
    number, _, unit = value.partition(" ") if isinstance(value, str) else ("", "", "")
    if unit.strip() in ("iteration", "iterations") and number.isascii() and number.isdigit():
        return {"iterations": int(number[:18])}
    return value if isinstance(value, Epoch) else {"time": value}


def _written_epoch(epoch: Epoch) -> str:
    return f"{epoch.iterations} iterations" if epoch.time is None else TIME.write(epoch.time)


class Profile(Part):
    """A published schedule of latency and bandwidth from host to host, by training epoch."""

    name: str = Field(description="C1, C2, C1-resnet50 or C2-resnet50")
    epoch: (
        Annotated[
            Epoch,
            BeforeValidator(_read_epoch),
            PlainSerializer(_written_epoch),
            WithJsonSchema(
                {"anyOf": [{"type": "string"}, {"const": 0}], "examples": ["60 s", "20 iterations"]},
            ),
        ]
        | None
    ) = Field(default=None, description="length of an epoch: a time, or iterations; default: job.epoch")


class Weather(Part):
    """What moves on which links. Several entries that meet on a link multiply."""

    links: str = Field(description="all, a kind (wan, host, ...), a node (host:3, site:Tokyo), A->B or A<->B")
    shared: bool = Field(default=False, description="one course for all links of the entry, instead of one each")
    bandwidth: BandwidthSignal | None = None
    latency: LatencySignal | None = None
    trace: Trace | None = None
    profile: Profile | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not any((self.bandwidth, self.latency, self.trace, self.profile)):
            raise ValueError("needs at least one of bandwidth, latency, trace, profile")
        return self


class Outage(Part):
    """From when a link is down, and for how long."""

    at: Seconds
    lasts: Seconds | None = Field(default=None, description="default: for ever")


class Fault(Part):
    """Links that are down for a time or for good (`down`), or slow (`slow`, `at`, `lasts`)."""

    links: str = Field(description="as of weather: A->B is one direction of a cable, A<->B both")
    down: (
        Annotated[
            Annotated[Outage, Tag("<mapping>")] | Annotated[list[Outage], Field(min_length=1), Tag("<list>")],
            either(mapping="<mapping>", list="<list>"),
        ]
        | None
    ) = Field(default=None, description="one time or a list of several")
    slow: Annotated[Share, Gt(0)] | None = Field(default=None, description="what is left of the bandwidth")
    at: Seconds | None = Field(default=None, description="from when it is slow; default: from the start")
    lasts: Seconds | None = Field(default=None, description="for how long it is slow; default: for ever")

    @model_validator(mode="after")
    def _down_or_slow(self) -> Self:
        exactly_one(self, ("down", "slow"))
        if self.down is not None:
            for name in ("at", "lasts"):
                if getattr(self, name) is not None:
                    raise ValueError(f"takes {name} beside slow only; beside down it stands inside: down: {{at: 10 s}}")
        return self


class Load(Part):
    """Traffic of others that takes a constant rate from links and does not give way."""

    links: str
    rate: Rate


class OnOff(Part):
    """When a flow is on: at random (`busy` and `idle`: mean times) or as listed."""

    busy: Duration | None = None
    idle: Duration | None = None
    spans: list[Span] | None = None

    @model_validator(mode="after")
    def _random_or_listed(self) -> Self:
        given = [name for name in field_names(type(self)) if getattr(self, name) is not None]
        if given not in (["busy", "idle"], ["spans"]):
            raise ValueError("takes either busy and idle, or spans")
        return self


class Flow(Part):
    """Traffic of others that shares links fairly, as a long TCP transfer would."""

    src: Host = Field(alias="from")
    dst: Host = Field(alias="to")
    limit: Bandwidth | None = None
    when: OnOff | None = Field(default=None, description="default: always")


class Background(OneOf):
    """Traffic of others."""

    load: Load | None = None
    flow: Flow | None = None


class Loss(Part):
    """Packets that get lost on links. Several entries that meet on a link lose independently of each other."""

    links: str = Field(description="as of weather")
    probability: Annotated[Share, Field(lt=1)] = Field(description="that a packet is lost on the link")


class Mathis(Part):
    """TCP by the square-root law of Mathis et al., without time-outs."""

    segment: Annotated[Size, Gt(0)] = Field(default=1460.0, description="payload of a packet")
    acked: Count = Field(default=2, description="packets per acknowledgement: 2 delayed, 1 not")
    connections: Count = Field(default=1, description="over which each transfer is spread")


class Pftk(Mathis):
    """TCP Reno with time-outs by the formula of Padhye et al."""

    timeout: Duration = Field(default=0.2, description="retransmission time-out")


class Retransmit(Part):
    """Only what is lost is sent again, and nothing slows down for it, as selective repeat of RDMA does."""


class GoBackN(Part):
    """A loss makes the sender repeat all packets of a round trip."""

    window: Count = Field(description="packets in a round trip")


class Transport(OneOf):
    """What transfers make of packet loss."""

    pftk: Pftk | None = None
    mathis: Mathis | None = None
    retransmit: Retransmit | None = None
    go_back_n: GoBackN | None = None


class Timeouts(Part):
    """Incast by time-outs behind a shallow buffer; see `simnet.network.transport.Incast`."""

    buffer: Size = Field(default=131072.0, description="of a port of the switch")
    window: Annotated[Size, Gt(0)] = Field(default=14600.0, description="in flight per sender at the start")
    timeout: Seconds = Field(default=0.2, description="least retransmission time-out")
    rtt: Seconds = Field(default=100e-6, description="round trip without queues")
    block: Annotated[Size, Gt(0)] = Field(default=262144.0, description="that each sender sends at a time")
    links: str | None = Field(default=None, description="from switches; default: those into hosts")


class Measured(Part):
    """Incast as measured: the factor on a link's capacity from so many senders on."""

    senders: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=1)] = Field(description="ascending")
    factors: list[Annotated[Share, Gt(0)]] = Field(description="never rising, one for each number of senders")
    links: str | None = Field(default=None, description="from switches; default: those into hosts")


class Incast(OneOf):
    """Goodput collapse where many send to one host at once."""

    timeouts: Timeouts | None = None
    measured: Measured | None = None


class Overhead(Part):
    """Time per message before it leaves and after it arrived."""

    send: Seconds = 0.0
    receive: Seconds = 0.0


class Exponential(Part):
    """Exponential, of this mean."""

    mean: Seconds


class Uniform(Part):
    """Uniform between two times."""

    low: Seconds = 0.0
    high: Seconds


class Lognormal(Part):
    """Log-normal: heavy-tailed, as on the open Internet."""

    median: Seconds
    sigma: Spread


class Jitter(OneOf):
    """The extra latency of each message."""

    exponential: Exponential | None = None
    uniform: Uniform | None = None
    lognormal: Lognormal | None = None


class Network(Part):
    """The network, its weather, and who else uses it."""

    topology: SerializeAsAny[Topology]
    placement: Annotated[
        Annotated[Literal["packed", "spread", "random"], Tag("<name>")] | Annotated[list[Host], Tag("<list>")],
        either(scalar="<name>", list="<list>"),
    ] = Field(
        default="packed", description="worker r on host r; in turn over sites or switches; at random; a list of hosts"
    )
    weather: list[Weather] = Field(default=[])
    background: list[Background] = Field(default=[])
    faults: list[Fault] = Field(default=[])
    on_outage: OnOutage = Field(default="wait", description="what transfers do when a link of their route is down")
    routing: Routing = Field(
        default="hash",
        description="among equal routes: one per pair (ECMP), always the first, one per message, or the least loaded",
    )
    loss: list[Loss] = Field(default=[])
    transport: Transport | None = Field(default=None, description="that answers packet loss; default: pftk")
    incast: Incast | None = Field(default=None, description="default: links are shared without loss, however many send")
    overhead: Overhead = Overhead()
    jitter: Jitter | None = None
    engine: EngineName = Field(default="auto", description="how messages are timed; auto picks the cheapest exact way")


class Ramp(Part):
    """A stretch of iterations at one density, or over which it goes from one to another."""

    iterations: Iterations | None = Field(default=None, description="the last stretch may do without and never ends")
    at: Density | None = None
    start: Density | None = Field(default=None, alias="from")
    end: Density | None = Field(default=None, alias="to")

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


class Straggle(Part):
    """A worker is slow for an iteration now and then."""

    probability: Share
    slowdown: Slowdown = Field(description="factor by which its iteration takes longer")


class Compute(Part):
    """How long the forward and backward pass take on each worker."""

    mean: Seconds | None = Field(default=None, description="of an iteration; default: that of the model's profile")
    spread: Spread = Field(default=0.0, description="drawn anew for each worker and iteration")
    slow: dict[str, Slowdown] = Field(default={}, description="workers always slower, and by which factor")
    straggle: Straggle | None = None


class Overlap(Part):
    """Exchange buckets of layers during back-propagation."""

    bucket: Annotated[Size, Gt(0)] = Field(default=25 * 2.0**20, description="dense bytes from which a bucket closes")
    backward: Share | None = Field(
        default=None, description="share of the compute time that is back-propagation; default: that of the model"
    )


class Synthetic(Part):
    """Made-up gradients with the statistics of recorded ones: heavy-tailed, correlated between workers and in time."""

    like: File = Field(default="digits", description="a recorded trace that comes with simnet, or a file of parameters")
    training: Count | None = Field(default=None, description="iterations from start to end; default: the job's")


class Recorded(Part):
    """Gradients of a real training run, which brings its own layers."""

    trace: File = Field(description="a trace that comes with simnet, or the folder of one")
    training: Count | None = Field(default=None, description="iterations from start to end; default: the job's")


def _read_recorded(value: object) -> object:
    return {"trace": value} if isinstance(value, str) else value


class Logistic(Part):
    """Multinomial logistic regression."""


class Mlp(Part):
    """Fully connected layers with ReLU between them."""

    hidden: Annotated[list[Count], Field(min_length=1, max_length=8)] = Field(
        default=[64], description="units of the layers between"
    )


class Conv(Part):
    """Three convolutions and two fully connected layers, for images; needs PyTorch."""


class Char(Part):
    """An embedding of characters and two fully connected layers, for text; needs PyTorch."""


class TrainedModel(OneOf):
    """What is trained."""

    logistic: Logistic | None = None
    mlp: Mlp | None = None
    conv: Conv | None = None
    char: Char | None = None


class Digits(Part):
    """Handwritten digits of 8 x 8 pixels, which come with scikit-learn."""


class Classification(Part):
    """Made-up points of several classes, each of three Gaussian clouds."""

    samples: Annotated[int, Field(ge=10, le=10**8)] = 10_000
    features: Annotated[int, Field(ge=1, le=10**6)] = 64
    classes: Annotated[int, Field(ge=2, le=10**5)] = 10
    noise: Annotated[float, Field(ge=0, le=1e6)] = Field(
        default=2.5, description="standard deviation of a cloud over that of the centres"
    )


class Docstrings(Part):
    """Which character is next in the documentation strings of Python's standard library."""

    context: Annotated[int, Field(ge=1, le=256)] = Field(default=8, description="characters before it that are given")
    characters: Annotated[int, Field(ge=1000, le=10**7)] = Field(default=200_000, description="length of the text")


class TrainingData(OneOf):
    """What it is trained on."""

    digits: Digits | None = None
    classification: Classification | None = None
    docstrings: Docstrings | None = None


class Dirichlet(Part):
    """Shards that differ in their classes; the smaller the parameter, the more."""

    dirichlet: Annotated[float, Field(gt=0, le=1e6)]


def _read_kind(value: object) -> object:
    return {value: {}} if isinstance(value, str) else value


class Train(Part):
    """Gradients of a model that is really trained, with the updates of the scheme; every policy trains its own."""

    model: Annotated[
        TrainedModel,
        BeforeValidator(_read_kind, json_schema_input_type=Literal["logistic", "mlp", "conv", "char"] | TrainedModel),
    ] = TrainedModel(mlp=Mlp())
    data: Annotated[
        TrainingData,
        BeforeValidator(
            _read_kind, json_schema_input_type=Literal["digits", "classification", "docstrings"] | TrainingData
        ),
    ] = TrainingData(digits=Digits())
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where PyTorch computes")
    shards: Annotated[
        Annotated[Literal["iid"], Tag("<name>")] | Annotated[Dirichlet, Tag("<mapping>")],
        either(scalar="<name>", mapping="<mapping>"),
    ] = Field(default="iid", description="how the data is dealt out to the workers: at random, or by classes")
    batch: Annotated[int, Field(ge=1, le=10**6)] = Field(default=16, description="examples per worker and iteration")
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = Field(
        default=0.1, description="for the mean gradient of all workers"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.9, description="applied after the exchange")
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    warm_up: Annotated[int, Field(ge=0)] = Field(
        default=0, description="iterations in which the learning rate rises from a P-th, P being the workers"
    )
    drops: list[Count] = Field(default=[], description="iterations from which on the learning rate is lower")
    drop: Annotated[float, Field(gt=0, le=1)] = Field(default=0.1, description="factor of each drop")
    evaluate: Count = Field(
        default=10, description="iterations after which loss and accuracy are measured, outside the simulated time"
    )
    target: Annotated[Share, Gt(0)] | None = Field(
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


class Continue(Part):
    """The others go on without the dead."""

    after: Seconds = Field(description="until they notice, as by a time-out, counted from when everything has stopped")


class OnDeath(Part):
    """What the others do."""

    go_on: Continue = Field(alias="continue")


class Job(Part):
    """What is trained, for how long, and how much of the gradient is sent."""

    model: str | None = Field(default=None, description="a model profile: layers, and time of an iteration")
    parameters: Count | None = Field(default=None, description="of a model that has no profile")
    gradients: Gradients = Gradients(synthetic=Synthetic(like="digits"))
    scale: Annotated[float, Field(ge=1, le=1e9)] = Field(
        default=1.0, description="run the logic on a sample, one entry in this many; bytes and times count as for all"
    )
    iterations: Iterations
    epoch: Count | None = Field(default=None, description="iterations of an epoch, to count in epochs")
    density: Densities | None = None
    compression_ratio: Densities | None = Field(default=None, description="another name for density: the fraction kept")
    compute: Compute = Compute()
    device: File = Field(default="v100", description="a device profile, or the file of one: what selecting costs")
    overlap: Overlap | None = Field(
        default=None, description="default: the whole gradient is exchanged when it is complete"
    )
    update: Seconds = Field(default=0.0, description="time to apply an update")
    deaths: Annotated[list[Death], Field(min_length=1)] | None = Field(
        default=None, description="workers that die, and when"
    )
    on_death: (
        Annotated[
            Annotated[Literal["stop"], Tag("<name>")] | Annotated[OnDeath, Tag("<mapping>")],
            either(scalar="<name>", mapping="<mapping>"),
        ]
        | None
    ) = Field(default=None, description="default: stop, the job ends; or continue: the others go on without the dead")

    @model_validator(mode="after")
    def _one_density(self) -> Self:
        if (self.density is None) == (self.compression_ratio is None):
            found = "neither" if self.density is None else "both"
            raise ValueError(f"needs density or compression_ratio, which mean the same, got {found}")
        return self

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        given = [name for name in ("model", "parameters") if getattr(self, name) is not None]
        if self.gradients.recorded is not None and given:
            raise ValueError(f"takes no {given[0]} with recorded gradients, which have layers of their own")
        if self.gradients.train is not None and given:
            raise ValueError(f"takes no {given[0]} beside gradients.train, which says what is trained")
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


class Flexible(Part):
    """The arg-min of the closed-form costs at the latency and bandwidth last probed."""

    among: Annotated[list[Label], Field(min_length=1)] | None = Field(
        default=None, description="default: every exchange of the scenario"
    )
    probe_every: Seconds = Field(default=10.0, description="0 s: before each iteration")
    noise: Spread = Field(default=0.0, description="error of a probe")
    change: Factor = Field(default=0.1, description="relative change of a probe from which the choice is made anew")
    aggregate: Aggregate = Field(default="worst", description="of the probed pairs")


class Weights(Part):
    """How much each objective counts in the weighted choice."""

    gain: Factor = 1.0
    compression: Factor = 1.0
    communication: Factor = 1.0

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not any((self.gain, self.compression, self.communication)):
            raise ValueError("must not all be 0")
        return self


class Moo(Part):
    """Density and exchange by gain, compression and communication time, explored and searched as the job runs."""

    among: Annotated[list[Label], Field(min_length=1)] | None = Field(
        default=None, description="default: every exchange of the scenario"
    )
    mode: Mode = Field(default="grid", description="published: the objective and the rules of the released code")
    densities: Annotated[list[Density], Field(min_length=1, max_length=100)] = Field(
        default=list(DENSITIES), description="candidates; published: at least 4, between whose extremes is searched"
    )
    tries: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=10, description="iterations for which each candidate is explored"
    )
    weights: Weights | None = Field(default=None, description="default: the knee of the Pareto front; not of published")
    gain_change: Annotated[Factor, Gt(0)] = Field(
        default=0.1, description="relative change of the gain from which candidates are explored again"
    )
    warm_up: Iterations | None = Field(
        default=None,
        description="iterations or epochs over which the density falls from 1 to the highest candidate; "
        "default: none, published: 5 epochs",
    )
    probe_every: Seconds | None = Field(
        default=None, description="0 s: before each iteration; default: 10 s, published: 0 s"
    )
    noise: Spread = Field(default=0.0, description="error of a probe")
    change: Factor | None = Field(
        default=None,
        description="relative change of a probe from which is searched again; default: 10 %, published: 0",
    )
    aggregate: Aggregate = Field(default="worst", description="of the probed pairs")

    @model_validator(mode="after")
    def _fits_mode(self) -> Self:
        self.search(0)
        return self

    def search(self, warm_up: int) -> Search:
        """Return how to search, with a warm-up of so many iterations."""
        given = self.weights
        weights = None if given is None else moo.Weights(given.gain, given.compression, given.communication)
        return Search(self.mode, tuple(self.densities), self.tries, weights, self.gain_change, warm_up)


class Clairvoyant(Part):
    """The one-step oracle: the exchange that is fastest on the true weather, against which regret is measured."""

    among: Annotated[list[Label], Field(min_length=1)] | None = Field(
        default=None, description="default: every exchange of the scenario"
    )


class Policy(OneOf):
    """Which exchange next."""

    fixed: Label | None = None
    flexible: Flexible | None = None
    moo: Moo | None = None
    clairvoyant: Clairvoyant | None = None


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
        default=3, description="first iterations drawn message by message"
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
    exchanges: Annotated[dict[Label, Exchange], Field(min_length=1)]
    policies: dict[Label, Policy] = Field(
        default={}, description="default: each exchange for itself, and a clairvoyant if there are no other jobs"
    )
    other_jobs: dict[Label, OtherJob] | None = Field(
        default=None, description="jobs that share the network; they run beside every policy"
    )
    output: Output = Output()
    memory: Annotated[Size, Gt(0)] = Field(default=8 * 2.0**30, description="refuse to run what needs more")
