"""What a scenario may say: one class per part, in the order in which people read it.

Times, sizes and rates are texts with a unit and arrive here in seconds, bytes and bytes per second. Where there is a
choice of kinds, the kind is the key: ``topology: {star: {...}}``. Written out again, every default is spelled out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    WithJsonSchema,
    model_validator,
)

from simnet import units
from simnet.policies import Aggregate

MAX_ITERATIONS = 10_000_000
"""The longest job."""

_TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))
_SIZES = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9))
_RATES = (("B/s", 1.0), ("Gbit/s", 1.25e8), ("Mbit/s", 1.25e5), ("kbit/s", 125.0), ("Tbit/s", 1.25e11))


def _written(value: float, read: Callable[[units.Quantity], float], scales: Sequence[tuple[str, float]]) -> str:
    """Return a quantity as text that reads back as exactly the same number."""
    if value == 0:
        return f"0 {scales[0][0]}"
    for unit, scale in scales:
        text = f"{value / scale:.12g} {unit}"
        if 1 <= value / scale < 1000 and read(text) == value:
            return text
    return f"{value!r} {scales[0][0]}"


def _schema(description: str, *examples: str, **more: float | str) -> WithJsonSchema:
    """Describe a quantity; with bounds (``minimum``, ...) also plain numbers are allowed."""
    kind: str | list[str] = ["string", "number"] if more else "string"
    return WithJsonSchema({"type": kind, "description": description, "examples": list(examples), **more})


def _fraction(value: object) -> object:
    """Read ``10 %`` as 0.1; leave numbers alone."""
    if not isinstance(value, str):
        return value
    number, percent, rest = value.partition("%")
    try:
        if percent and not rest.strip():
            # Division, unlike multiplication by 0.01, gives the float nearest to the decimal number meant.
            return float(number) / 100
    except ValueError:
        pass
    raise ValueError(f"must be a number or a percentage such as '10 %', got {value!r}")


def _file(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("must be the name of a file")
    return value


def _label(value: str) -> str:
    if not 0 < len(value) <= 40 or not value.isprintable() or value != value.strip():
        raise ValueError(f"must be a name of 1 to 40 characters, got {value[:45]!r}")
    return value


def _file_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9 ._+-]{0,39}", value) or value != value.strip():
        raise ValueError(f"must be 1 to 40 letters, digits, blanks or ._+-, got {value[:45]!r}")
    return value


def _iterations(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})? epochs?", value.strip()):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ITERATIONS:
        return value
    raise ValueError(
        f"must be a whole number from 1 to {MAX_ITERATIONS:,}, or epochs such as '2 epochs', got {value!r:.60}"
    )


Seconds: TypeAlias = Annotated[
    float,
    BeforeValidator(units.seconds),
    PlainSerializer(lambda value: _written(value, units.seconds, _TIMES)),
    _schema("time with unit", "10 ms", "50 us", "1.5 h"),
]
Size: TypeAlias = Annotated[
    float,
    BeforeValidator(units.size),
    PlainSerializer(lambda value: _written(value, units.size, _SIZES)),
    _schema("amount of data with unit", "64 MiB", "1500 B"),
]
Rate: TypeAlias = Annotated[
    float,
    BeforeValidator(units.bandwidth),
    PlainSerializer(lambda value: _written(value, units.bandwidth, _RATES)),
    _schema("bandwidth with unit", "25 Gbit/s", "100 MB/s"),
]
Factor: TypeAlias = Annotated[float, BeforeValidator(_fraction), Field(ge=0), _schema("factor", "50 %", minimum=0)]
Share: TypeAlias = Annotated[
    float, BeforeValidator(_fraction), Field(ge=0, le=1), _schema("probability or share", "2 %", minimum=0, maximum=1)
]
Density: TypeAlias = Annotated[
    float,
    BeforeValidator(_fraction),
    Field(gt=0, le=1),
    _schema("fraction of the entries kept", "1 %", exclusiveMinimum=0, maximum=1),
]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Iterations: TypeAlias = Annotated[
    int | str,
    BeforeValidator(_iterations),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "examples": [300, "2 epochs"]}),
]
"""A number, or a text such as ``2 epochs``, which a resolved scenario does not have any more."""
Host: TypeAlias = Annotated[int, Field(ge=0)]
Label: TypeAlias = Annotated[str, AfterValidator(_label)]
FileName: TypeAlias = Annotated[str, AfterValidator(_file_name)]
File: TypeAlias = Annotated[str, AfterValidator(_file)]

POSITIVE = Field(gt=0)

Q = TypeVar("Q", bound=float)


class Part(BaseModel):
    """A mapping with fixed fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, populate_by_name=True)


class OneOf(Part):
    """A mapping with exactly one of its fields: the key says of what kind the part is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: object) -> object:
        """Let a kind without parameters stand alone, as in ``gradients: {synthetic: }``."""
        return {key: {} if one is None else one for key, one in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _only_one(self) -> Self:
        _exactly_one(self, field_names(type(self)))
        return self

    @property
    def choice(self) -> tuple[str, Any]:
        """The kind and its parameters."""
        return next((kind, part) for kind, part in self if part is not None)


def field_names(part: type[BaseModel]) -> list[str]:
    """Return the fields of a part as people write them."""
    return [field.alias or name for name, field in part.model_fields.items()]


def _either(**kinds: str) -> Discriminator:
    """Choose between kinds of values by the type of what is given: `scalar`, `list` or `mapping` to a tag.

    Tags are written in angle brackets, so that no error takes them for fields.
    """

    def tag(value: object) -> str:
        kind = "list" if isinstance(value, list) else "mapping" if isinstance(value, dict | BaseModel) else "scalar"
        return kinds.get(kind) or next(iter(kinds.values()))

    return Discriminator(tag)


def _exactly_one(part: BaseModel, names: Sequence[str]) -> None:
    found = [name for name in names if getattr(part, name) is not None]
    if not found:
        raise ValueError(f"needs one of {', '.join(names)}")
    if len(found) > 1:
        raise ValueError(f"takes only one of {', '.join(names)}, got {' and '.join(found)}")


class Star(Part):
    """Every host on one ideal switch; `latency` is from host to host."""

    hosts: Count | None = Field(default=None, description="default: one per worker")
    latency: Seconds
    bandwidth: Annotated[Rate, POSITIVE]


class Ring(Star):
    """Every host wired to its two neighbours; `latency` and `bandwidth` are of each link."""


class Tree(Star):
    """Hosts as the leaves of a tree of switches; `latency` is of each link, `bandwidth` of a host's."""

    arity: Annotated[int, Field(ge=2)] = Field(description="children of a switch")
    taper: Annotated[float, POSITIVE] = Field(default=1.0, description="bandwidth of a link over that one level below")


class FatTree(Part):
    """The k-ary fat-tree of k**3 / 4 hosts; `latency` is of each link, `bandwidth` of a host's."""

    k: Annotated[int, Field(ge=2, multiple_of=2)] = Field(description="ports of a switch, even")
    latency: Seconds
    bandwidth: Annotated[Rate, POSITIVE]
    oversubscription: Annotated[float, Field(ge=1)] = 1.0


class Wan(Part):
    """Workers at several sites; rows of `latency` and `bandwidth` are from, columns to. The diagonal is ignored."""

    sites: Annotated[list[str], Field(min_length=1)]
    workers_per_site: Annotated[
        Annotated[int, Tag("<number>")] | Annotated[list[int], Tag("<list>")],
        _either(scalar="<number>", list="<list>"),
    ]
    latency: list[list[Seconds]]
    bandwidth: list[list[Rate]] = Field(description="0 for no link")
    local_latency: Seconds = Field(default=100e-6, description="from host to host inside a site")
    local_bandwidth: Annotated[Rate, POSITIVE] = Field(default=1.25e9, description="of each host's link")


class MultiGpuNodes(Part):
    """Nodes of several GPUs, fast inside, one network card out of each."""

    nodes: Count
    gpus_per_node: Count
    intra_latency: Seconds
    intra_bandwidth: Annotated[Rate, POSITIVE]
    nic_latency: Seconds
    nic_bandwidth: Annotated[Rate, POSITIVE]


class Registered(Part):
    """A topology of another package (entry-point group ``simnet.topologies``), with its own parameters."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Any]

    name: str

    def parameters(self) -> dict[str, Any]:
        """Return the parameters, those whose names end in latency or bandwidth in SI units."""
        readers = {"latency": units.seconds, "bandwidth": units.bandwidth}
        return {
            name: readers.get(name.rpartition("_")[2], lambda value: value)(value)
            for name, value in self.__pydantic_extra__.items()
        }


class Topology(OneOf):
    """Hosts, switches and links."""

    star: Star | None = None
    ring: Ring | None = None
    tree: Tree | None = None
    fat_tree: FatTree | None = None
    wan: Wan | None = None
    multi_gpu_nodes: MultiGpuNodes | None = None
    registered: Registered | None = None


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
        _exactly_one(self, ("values", "factors"))
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

    dwell: list[Annotated[Seconds, POSITIVE]] = Field(description="mean time in each level")
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

    sigma: Factor = Field(description="standard deviation of the logarithm; 0.1 is about 10 %")
    tau: Annotated[Seconds, POSITIVE] = Field(description="correlation time")
    every: Annotated[Seconds, POSITIVE] = Field(default=1.0, description="for which a value holds")


class Diurnal(Part):
    """A daily course: a factor 1 + amplitude sin(2 pi (t + phase) / period)."""

    amplitude: Share
    period: Annotated[Seconds, POSITIVE] = 86400.0
    phase: Seconds = 0.0
    every: Annotated[Seconds, POSITIVE] | None = Field(default=None, description="default: a 96th of the period")


class Span(Part):
    """From when, and for how long."""

    at: Seconds
    lasts: Seconds


class Outages(Part):
    """The link is down from time to time, at random (`up` and `down`: mean times) or as listed."""

    up: Annotated[Seconds, POSITIVE] | None = None
    down: Annotated[Seconds, POSITIVE] | None = None
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
    packet: Annotated[Size, POSITIVE] = 1500.0
    every: Annotated[Seconds, POSITIVE] = Field(default=0.1, description="bin, whole milliseconds")


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
    period: Annotated[Seconds, POSITIVE] | None = None


class Epoch(OneOf):
    """How long an epoch lasts: a time, or a number of iterations of the job."""

    time: Annotated[Seconds, POSITIVE] | None = None
    iterations: Count | None = None


def _read_epoch(value: object) -> object:
    number, _, unit = value.partition(" ") if isinstance(value, str) else ("", "", "")
    if unit.strip() in ("iteration", "iterations") and number.isascii() and number.isdigit():
        return {"iterations": int(number[:18])}
    return value if isinstance(value, Epoch) else {"time": value}


def _written_epoch(epoch: Epoch) -> str:
    return f"{epoch.iterations} iterations" if epoch.time is None else _written(epoch.time, units.seconds, _TIMES)


class Profile(Part):
    """A published schedule of latency and bandwidth from host to host, by training epoch."""

    name: str = Field(description="C1, C2, C1-resnet50 or C2-resnet50")
    epoch: (
        Annotated[
            Epoch,
            BeforeValidator(_read_epoch),
            PlainSerializer(_written_epoch),
            _schema("length of an epoch: a time, or iterations; default: job.epoch", "60 s", "20 iterations"),
        ]
        | None
    ) = None


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


class Load(Part):
    """Traffic of others that takes a constant rate from links and does not give way."""

    links: str
    rate: Rate


class OnOff(Part):
    """When a flow is on: at random (`on` and `off`: mean times) or as listed."""

    on: Annotated[Seconds, POSITIVE] | None = None
    off: Annotated[Seconds, POSITIVE] | None = None
    spans: list[Span] | None = None

    @model_validator(mode="after")
    def _random_or_listed(self) -> Self:
        given = [name for name in field_names(type(self)) if getattr(self, name) is not None]
        if given not in (["on", "off"], ["spans"]):
            raise ValueError("takes either on and off, or spans")
        return self


class Flow(Part):
    """Traffic of others that shares links fairly, as a long TCP transfer would."""

    src: Host = Field(alias="from")
    dst: Host = Field(alias="to")
    limit: Annotated[Rate, POSITIVE] | None = None
    when: OnOff | None = Field(default=None, description="default: always")


class Background(OneOf):
    """Traffic of others."""

    load: Load | None = None
    flow: Flow | None = None


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
    sigma: Factor


class Jitter(OneOf):
    """The extra latency of each message."""

    exponential: Exponential | None = None
    uniform: Uniform | None = None
    lognormal: Lognormal | None = None


class Network(Part):
    """The network, its weather, and who else uses it."""

    topology: Topology
    placement: Annotated[
        Annotated[Literal["packed", "spread", "random"], Tag("<name>")] | Annotated[list[Host], Tag("<list>")],
        _either(scalar="<name>", list="<list>"),
    ] = Field(
        default="packed", description="worker r on host r; in turn over sites or switches; at random; a list of hosts"
    )
    weather: list[Weather] = []
    background: list[Background] = []
    overhead: Overhead = Overhead()
    jitter: Jitter | None = None


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
    _either(scalar="<number>", list="<list>"),
]


class Straggle(Part):
    """A worker is slow for an iteration now and then."""

    probability: Share
    slowdown: Annotated[float, POSITIVE] = Field(description="factor by which its iteration takes longer")


class Compute(Part):
    """How long the forward and backward pass take on each worker."""

    mean: Seconds | None = Field(default=None, description="of an iteration; default: that of the model's profile")
    spread: Factor = Field(
        default=0.0, description="standard deviation of the logarithm, new for each worker and iteration"
    )
    slow: dict[str, Annotated[float, POSITIVE]] = Field(
        default={}, description="workers always slower, and by which factor"
    )
    straggle: Straggle | None = None


class Overlap(Part):
    """Exchange buckets of layers during back-propagation."""

    bucket: Annotated[Size, POSITIVE] = Field(
        default=25 * 2.0**20, description="dense bytes from which a bucket closes"
    )
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


class Gradients(OneOf):
    """Where the gradients come from."""

    synthetic: Synthetic | None = None
    recorded: Annotated[Recorded, BeforeValidator(_read_recorded, json_schema_input_type=str | Recorded)] | None = None


class Job(Part):
    """What is trained, for how long, and how much of the gradient is sent."""

    model: str | None = Field(default=None, description="a model profile: layers, and time of an iteration")
    parameters: Count | None = Field(default=None, description="of a model that has no profile")
    gradients: Gradients = Gradients(synthetic=Synthetic(like="digits"))
    scale: Annotated[float, Field(ge=1)] = Field(
        1.0, description="run the logic on a sample, one entry in this many; bytes and times count as for all"
    )
    iterations: Iterations
    epoch: Count | None = Field(default=None, description="iterations of an epoch, to count in epochs")
    density: Densities | None = None
    compression_ratio: Densities | None = Field(default=None, description="another name for density: the fraction kept")
    compute: Compute = Compute()
    device: str = Field(default="v100", description="a device profile, or the file of one: what selecting costs")
    overlap: Overlap | None = Field(
        default=None, description="default: the whole gradient is exchanged when it is complete"
    )
    update: Seconds = Field(default=0.0, description="time to apply an update")

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
    noise: Factor = Field(default=0.0, description="standard deviation of the logarithm of a probe's error")
    change: Factor = Field(default=0.1, description="relative change of a probe from which the choice is made anew")
    aggregate: Aggregate = Field(default="worst", description="of the probed pairs")


class Clairvoyant(Part):
    """The exchange that is fastest on the true weather: the bound against which regret is measured."""

    among: Annotated[list[Label], Field(min_length=1)] | None = Field(
        default=None, description="default: every exchange of the scenario"
    )


class Policy(OneOf):
    """Which exchange next."""

    fixed: Label | None = None
    flexible: Flexible | None = None
    clairvoyant: Clairvoyant | None = None


class Output(Part):
    """What the run folder holds."""

    timeline: Annotated[int, Field(ge=0)] = Field(default=3, description="first iterations drawn message by message")
    report: bool = Field(default=True, description="whether to draw the figures and write report.html")


class Config(Part):
    """A job on a network, under several policies."""

    name: FileName | None = Field(default=None, description="default: the name of the file")
    description: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    workers: Count
    network: Network
    job: Job
    exchanges: Annotated[dict[Label, Exchange], Field(min_length=1)]
    policies: dict[Label, Policy] = Field(
        default={}, description="default: each exchange for itself, and a clairvoyant"
    )
    output: Output = Output()
    memory: Annotated[Size, POSITIVE] = Field(default=8 * 2.0**30, description="refuse to run what needs more")
