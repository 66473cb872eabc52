"""Weather and faults of a scenario: how links vary over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, TypeVar

from pydantic import Field, SerializeAsAny

from simnet.base.quantities import Duration, Factor, PositiveShare, Rate, Seconds
from simnet.network import weather
from simnet.scenario import parts
from simnet.scenario.fields import File
from simnet.scenario.parts import STREAM, Kinds, Part, configures, exactly_one, field_names, given_fields, kinds

Q = TypeVar("Q", bound=float)


class Levels(Part, Generic[Q]):
    """Listed levels of a link's bandwidth or latency: `factors` multiply the link's own value, `values` replace it."""

    values: Annotated[list[Q], Field(min_length=1)] | None = None
    factors: Annotated[list[Factor], Field(min_length=1)] | None = None

    @property
    def levels(self) -> Sequence[float]:
        """The listed values or factors, whichever the part has."""
        return self.values or self.factors or []

    @property
    def is_absolute(self) -> bool:
        """Whether the levels replace the link's own value instead of multiplying it."""
        return self.values is not None

    def _check(self) -> None:
        exactly_one(self, ("values", "factors"))


@configures(weather.steps, times="at", values="levels")
class Steps(Levels[Q], Generic[Q]):
    """Steps to new levels at given times; `factors` multiply the link's own value, `values` replace it."""

    def _check(self) -> None:
        super()._check()
        if len(self.levels) != len(self.at):
            raise ValueError(f"needs as many values as times, got {len(self.levels)} for {len(self.at)}")


@configures(weather.markov, omit=STREAM, mean_dwell="dwell")
class Markov(Levels[Q], Generic[Q]):
    """Random jumps between levels (Markov chain); `factors` scale a link's bandwidth or latency, `values` set it."""

    def _check(self) -> None:
        super()._check()
        if isinstance(self.dwell, list) and len(self.levels) != len(self.dwell):
            raise ValueError(f"needs as many dwell times as levels, got {len(self.dwell)} for {len(self.levels)}")


@configures(weather.ornstein_uhlenbeck, omit=("mean", *STREAM))
class Noise(Part):
    """Correlated noise (Ornstein-Uhlenbeck in the logarithm): a random factor around 1."""


class Span(Part):
    """A time interval: when it starts, and how long it lasts."""

    at: Seconds
    lasts: Seconds


class RandomOrListed(Part):
    """Base of parts that give periods of time at random, by two mean times, or as a list of spans."""

    spans: list[Span] | None = None

    def _check(self) -> None:
        means = [name for name in field_names(type(self)) if name != "spans"]
        if given_fields(self) not in (means, ["spans"]):
            raise ValueError(f"takes either {' and '.join(means)}, or spans")


@configures(weather.outages, omit=STREAM, mean_up="up", mean_down="down")
class Outages(RandomOrListed):
    """Outages of a link: random (`up` and `down` are mean times) or listed."""

    @property
    def at(self) -> list[tuple[float, float]] | None:
        """Start and duration of each listed outage [s]; None for random outages."""
        return None if self.spans is None else [(span.at, span.lasts) for span in self.spans]


@configures(weather.mahimahi, path="file", packet_bytes="packet")
class Mahimahi(Part):
    """Bandwidth by a Mahimahi trace, which lists the times at which a packet can be sent."""


class Signal(Kinds, Generic[Q]):
    """Variation of a bandwidth or latency over time: the product of the parts. At most one part may be absolute."""

    registry = "weather"

    constant: Q | None = None
    factor: Factor | None = None
    steps: Steps[Q] | None = None
    markov: Markov[Q] | None = None

    def _check(self) -> None:
        if not given_fields(self):
            raise ValueError(f"needs at least one of {', '.join(field_names(type(self)))}")


@kinds(noise=Noise, diurnal=weather.diurnal, outages=Outages, mahimahi=Mahimahi)
class BandwidthSignal(Signal[Rate]):
    """Variation of a bandwidth over time: the product of the given parts. At most one part may be absolute."""


@kinds(noise=Noise, diurnal=weather.diurnal)
class LatencySignal(Signal[Seconds]):
    """Variation of a latency over time: the product of the given parts. At most one part may be absolute."""


@configures(weather.trace_csv, path="file")
class Trace(Part):
    """Links' bandwidth and latency over time, from a CSV file with columns such as ``time_s,bandwidth_Mbit_s``."""

    file: File


@configures(weather.profile, only=("name",))
class Profile(Part):
    """A published schedule of latency and bandwidth from host to host, by training epoch.

    epoch: how long one lasts; default: job.epoch iterations
    """

    name: str
    epoch: Duration | None = None


class Weather(Part):
    """Variation of some links over time. Several entries for one link multiply.

    links: all, a kind (wan, host, ...), a node (host:3, site:Tokyo), A->B or A<->B
    shared: one course for all links of the entry, instead of one each
    """

    links: str
    shared: bool = False
    bandwidth: SerializeAsAny[BandwidthSignal] | None = None
    latency: SerializeAsAny[LatencySignal] | None = None
    trace: Trace | None = None
    profile: Profile | None = None

    def _check(self) -> None:
        if not any((self.bandwidth, self.latency, self.trace, self.profile)):
            raise ValueError("needs at least one of bandwidth, latency, trace, profile")


class Outage(Part):
    """An outage of a link: when it starts, and how long it lasts.

    lasts: default: for ever
    """

    at: Seconds
    lasts: Seconds | None = None


class Fault(Part):
    """Links that fail for a time or for good (`down`), or that keep only a share of their bandwidth (`slow`).

    links: as of weather: A->B is one direction of a cable, A<->B both
    down: one time or a list of several
    slow: what is left of the bandwidth
    at: from when it is slow; default: from the start
    lasts: for how long it is slow; default: for ever
    """

    links: str
    down: parts.ValueOrList[Outage, Annotated[list[Outage], Field(min_length=1)]] | None = None
    slow: PositiveShare | None = None
    at: Seconds | None = None
    lasts: Seconds | None = None

    def _check(self) -> None:
        exactly_one(self, ("down", "slow"))
        if self.down is not None:
            for name in ("at", "lasts"):
                if getattr(self, name) is not None:
                    raise ValueError(f"takes {name} beside slow only; beside down it stands inside: down: {{at: 10 s}}")
