"""What a scenario may say: one class per part, in the order in which people read it.

Times, sizes and rates are texts with a unit and arrive here in seconds, bytes and bytes per second. Where there is a
choice of kinds, the kind is the key: ``topology: {star: {...}}``. Written out again, every default is spelled out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from simnet import units
from simnet.policies import Aggregate


def _written(value: float, read: Callable[[units.Quantity], float], scales: Iterable[tuple[str, float]]) -> str:
    """Return a quantity as text that reads back as exactly the same number."""
    for unit, scale in scales:
        text = f"{value / scale:.12g} {unit}"
        if 1 <= value / scale < 1000 and "e" not in text and read(text) == value:
            return text
    return f"{value!r} {next(iter(scales))[0]}"


_TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))
_SIZES = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9))
_RATES = (("B/s", 1.0), ("Gbit/s", 1.25e8), ("Mbit/s", 1.25e5), ("kbit/s", 125.0), ("Tbit/s", 1.25e11))


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
Host: TypeAlias = Annotated[int, Field(ge=0)]
Label: TypeAlias = Annotated[str, AfterValidator(_label)]
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
    def _exactly_one(self) -> Self:
        _exactly_one(self, field_names(type(self)))
        return self


def field_names(part: type[BaseModel]) -> list[str]:
    """Return the fields of a part as people write them."""
    return [field.alias or name for name, field in part.model_fields.items()]


def _exactly_one(part: BaseModel, names: Sequence[str]) -> None:
    found = [name for name in names if name in part.model_fields_set]
    if not found:
        raise ValueError(f"needs one of {', '.join(names)}")
    if len(found) > 1:
        raise ValueError(f"takes only one of {', '.join(names)}, got {' and '.join(found)}")


class Star(Part):
    """Every host on one ideal switch; `latency` is from host to host."""

    hosts: Count | None = Field(None, description="default: one per worker")
    latency: Seconds
    bandwidth: Annotated[Rate, POSITIVE]


class Ring(Star):
    """Every host wired to its two neighbours; `latency` and `bandwidth` are of each link."""


class Tree(Star):
    """Hosts as the leaves of a tree of switches; `latency` is of each link, `bandwidth` of a host's."""

    arity: Annotated[int, Field(ge=2)] = Field(description="children of a switch")
    taper: Annotated[float, POSITIVE] = Field(1.0, description="bandwidth of a link over that one level below")


class FatTree(Part):
    """The k-ary fat-tree of k**3 / 4 hosts; `latency` is of each link, `bandwidth` of a host's."""

    k: Annotated[int, Field(ge=2, multiple_of=2)] = Field(description="ports of a switch, even")
    latency: Seconds
    bandwidth: Annotated[Rate, POSITIVE]
    oversubscription: Annotated[float, Field(ge=1)] = 1.0


class Wan(Part):
    """Workers at several sites; rows of `latency` and `bandwidth` are from, columns to. The diagonal is ignored."""

    sites: Annotated[list[str], Field(min_length=1)]
    workers_per_site: int | list[int]
    latency: list[list[Seconds]]
    bandwidth: list[list[Rate]] = Field(description="0 for no link")
    local_latency: Seconds = Field(100e-6, description="from host to host inside a site")
    local_bandwidth: Annotated[Rate, POSITIVE] = Field(1.25e9, description="of each host's link")


class MultiGpuNodes(Part):
    """Nodes of several GPUs, fast inside, one network card out of each."""

    nodes: Count
    gpus_per_node: Count
    intra_latency: Seconds
    intra_bandwidth: Annotated[Rate, POSITIVE]
    nic_latency: Seconds
    nic_bandwidth: Annotated[Rate, POSITIVE]


class Topology(OneOf):
    """Hosts, switches and links."""

    star: Star | None = None
    ring: Ring | None = None
    tree: Tree | None = None
    fat_tree: FatTree | None = None
    wan: Wan | None = None
    multi_gpu_nodes: MultiGpuNodes | None = None


class Steps(Part, Generic[Q]):
    """A value from each time on; `factors` multiply the link's own value, `values` replace it."""

    at: Annotated[list[Seconds], Field(min_length=1)] = Field(description="ascending, the first 0 s")
    values: list[Q] | None = None
    factors: list[Factor] | None = None
    period: Seconds | None = Field(None, description="after which the steps repeat; default: the last one holds")

    @model_validator(mode="after")
    def _one_value_each(self) -> Self:
        _exactly_one(self, ("values", "factors"))
        given = self.values or self.factors or []
        if len(given) != len(self.at):
            raise ValueError(f"needs as many values as times, got {len(given)} for {len(self.at)}")
        return self


class Markov(Part, Generic[Q]):
    """Levels that last exponential times; `factors` multiply the link's own value, `values` replace it."""

    values: Annotated[list[Q], Field(min_length=1)] | None = None
    factors: Annotated[list[Factor], Field(min_length=1)] | None = None
    dwell: list[Annotated[Seconds, POSITIVE]] = Field(description="mean time in each level")
    transition: list[list[Share]] | None = Field(None, description="from row to column; default: all others alike")
    start: Annotated[int, Field(ge=0)] | None = Field(None, description="level at time 0; default: drawn")

    @model_validator(mode="after")
    def _one_dwell_each(self) -> Self:
        _exactly_one(self, ("values", "factors"))
        given = self.values or self.factors or []
        if len(given) != len(self.dwell):
            raise ValueError(f"needs as many dwell times as levels, got {len(self.dwell)} for {len(given)}")
        return self


class Noise(Part):
    """Noise with memory (Ornstein-Uhlenbeck in the logarithm): a factor around 1."""

    sigma: Factor = Field(description="standard deviation of the logarithm; 0.1 is about 10 %")
    tau: Annotated[Seconds, POSITIVE] = Field(description="correlation time")
    every: Annotated[Seconds, POSITIVE] = Field(1.0, description="for which a value holds")


class Diurnal(Part):
    """A daily course: a factor 1 + amplitude sin(2 pi (t + phase) / period)."""

    amplitude: Share
    period: Annotated[Seconds, POSITIVE] = 86400.0
    phase: Seconds = 0.0
    every: Annotated[Seconds, POSITIVE] | None = Field(None, description="default: a 96th of the period")


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
        given = self.model_fields_set
        if given != {"up", "down"} and given != {"spans"}:
            raise ValueError("takes either up and down, or spans")
        return self


class Recording(Part):
    """A file beside the scenario."""

    file: File
    sha256: str | None = Field(None, description="refuse the file if its content is another")


class Mahimahi(Recording):
    """A Mahimahi trace of packet opportunities."""

    packet: Annotated[Size, POSITIVE] = 1500.0
    every: Annotated[Seconds, POSITIVE] = Field(0.1, description="bin, whole milliseconds")


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
        if not self.model_fields_set:
            raise ValueError(f"needs at least one of {', '.join(field_names(type(self)))}")
        return self


class BandwidthSignal(Signal[Rate]):
    """How a bandwidth moves: what is given multiplies. At most one part of it may be absolute."""

    outages: Outages | None = None
    mahimahi: Mahimahi | None = None


class LatencySignal(Signal[Seconds]):
    """How a latency moves: what is given multiplies. At most one part of it may be absolute."""


class Trace(Recording):
    """A CSV file with columns such as ``time_s,bandwidth_Mbit_s,latency_ms``."""

    at_end: Literal["hold", "repeat"] = "hold"
    period: Annotated[Seconds, POSITIVE] | None = None


def _epoch(value: object) -> object:
    """Read an epoch that is counted in iterations, or else lasts a time."""
    if isinstance(value, str):
        number, _, unit = value.strip().partition(" ")
        if unit.strip() in ("iteration", "iterations"):
            return {"iterations": int(number) if number.isascii() and number.isdigit() and len(number) < 10 else number}
    return value if isinstance(value, dict) else {"time": value}


class Epoch(OneOf):
    """How long an epoch lasts."""

    iterations: Count | None = None
    time: Annotated[Seconds, POSITIVE] | None = None


class Profile(Part):
    """A published schedule of latency and bandwidth from host to host, by training epoch."""

    name: str
    epoch: Annotated[
        Epoch,
        BeforeValidator(_epoch),
        PlainSerializer(lambda epoch: _written_epoch(epoch)),
        _schema("length of an epoch", "20 iterations", "60 s"),
    ]


def _written_epoch(epoch: Epoch) -> str:
    if epoch.iterations is not None:
        return f"{epoch.iterations} iterations"
    assert epoch.time is not None
    return _written(epoch.time, units.seconds, _TIMES)


class Weather(Part):
    """What moves on which links. Several entries that meet on a link multiply."""

    links: str = Field(description="all, a kind (wan, host, ...), a node (host:3, site:Tokyo), A->B or A<->B")
    shared: bool = Field(False, description="one course for all links of the entry, instead of one each")
    bandwidth: BandwidthSignal | None = None
    latency: LatencySignal | None = None
    trace: Trace | None = None
    profile: Profile | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set & {"bandwidth", "latency", "trace", "profile"}:
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
        given = self.model_fields_set
        if given != {"on", "off"} and given != {"spans"}:
            raise ValueError("takes either on and off, or spans")
        return self


class Flow(Part):
    """Traffic of others that shares links fairly, as a long TCP transfer would."""

    src: Host = Field(alias="from")
    dst: Host = Field(alias="to")
    limit: Annotated[Rate, POSITIVE] | None = None
    when: OnOff | None = Field(None, description="default: always")


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
    placement: Literal["packed", "spread", "random"] | list[Host] = Field(
        "packed", description="worker r on host r; round robin over switches or sites; at random; or a list of hosts"
    )
    weather: list[Weather] = []
    background: list[Background] = []
    overhead: Overhead = Overhead()
    jitter: Jitter | None = None
