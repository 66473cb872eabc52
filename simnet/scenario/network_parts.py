"""The network part of a scenario: topology, background traffic, loss, and transport."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Lt
from pydantic import AfterValidator, ConfigDict, Field, SerializeAsAny, WithJsonSchema

from simnet.base.quantities import SHARE, Duration, Host
from simnet.network import STACKS, ConstantLoad, OnOffFlow, jitter, network, sharing, stack, transport
from simnet.network.sharing import SharingLaw
from simnet.scenario.parts import Named, NameOr, OneOf, Part, Target, ValueOrList, configures, kinds
from simnet.scenario.topology_parts import Topology
from simnet.scenario.weather_parts import Fault, RandomOrListed, Weather


@configures(ConstantLoad, only=("rate",))
class Load(Part):
    """Background traffic at a constant rate, which does not yield to transfers."""

    links: str


class OnOff(RandomOrListed):
    """Times at which a background flow sends: random (`busy` and `idle` are mean times) or listed."""

    busy: Duration | None = None
    idle: Duration | None = None


@configures(OnOffFlow, omit=("on",), optional={"limit": "none"})
class Flow(Part):
    """Background traffic that shares links fairly, as a long TCP transfer does.

    when: default: always
    """

    src: Any = Field(alias="from")
    dst: Any = Field(alias="to")
    when: OnOff | None = None


class Background(OneOf):
    """Background traffic of other users of the network."""

    load: Load | None = None
    flow: Flow | None = None


class Loss(Part):
    """Packet loss on links; several entries for one link lose packets independently.

    links: as of weather
    probability: that a packet is lost on the link
    """

    links: str
    probability: Annotated[float, Ge(0), Lt(1), SHARE]


@configures(transport.Transport, only=("segment", "acked", "connections"))
class Mathis(Part):
    """TCP throughput by the square-root law of Mathis et al., without time-outs."""


@configures(transport.Transport, only=("timeout",))
class Pftk(Mathis):
    """TCP Reno throughput by the formula of Padhye et al., which includes time-outs."""


class Retransmit(Part):
    """Transport that sends only lost packets again, at full rate, as RDMA with selective repeat does."""


@configures(transport.Transport, only=("window",), required=("window",))
class GoBackN(Part):
    """Transport that, after a loss, repeats all packets of a round trip (go-back-N)."""


@kinds(pftk=Pftk, mathis=Mathis, retransmit=Retransmit, go_back_n=GoBackN)
class Transport(OneOf):
    """The transport protocol, which decides how packet loss slows transfers."""


@kinds(timeouts=transport.Incast, measured=transport.MeasuredIncast)
class Incast(OneOf):
    """Collapse of a link's useful throughput when many hosts send to one host at once."""


@configures(
    network.Network, only=("send_overhead", "receive_overhead"), send_overhead="send", receive_overhead="receive"
)
class Overhead(Part):
    """Software time per message, before it leaves and after it arrives."""


@kinds(exponential=jitter.exponential, uniform=jitter.uniform, lognormal=jitter.lognormal)
class Jitter(OneOf):
    """Random extra latency of each message."""


def _stack_name(name: str) -> str:
    stack.stack_of(name)
    return name


_SOFTWARE = {"before", "after", "before_byte", "after_byte"}

StackName: TypeAlias = Annotated[
    str, AfterValidator(_stack_name), WithJsonSchema({"type": "string", "enum": list(STACKS)})
]


@configures(stack.Stack, optional=dict.fromkeys((one.name for one in dataclasses.fields(stack.Stack)), "that of like"))
class Stack(Named):
    """A custom transport stack: a named stack, and properties that differ from it.

    like: the stack that has the properties that are not given
    """

    named, text_pattern = "like", ":"
    like: StackName = "ideal"

    def build(self, target: Target | None = None, **more: Any) -> stack.Stack:
        """Return the named stack with the given properties; given CPU times are marked as coming from the scenario."""
        given = self.arguments() | more
        if given.keys() & _SOFTWARE:
            given.setdefault("measured", "given by the scenario")
        return dataclasses.replace(STACKS[self.like], **given)

    def _check(self) -> None:
        self.build()


@configures(
    sharing.Sharing,
    optional={"exponent": "that measured for the congestion control", "buffer": "not known"},
)
class Sharing(Part):
    """How concurrent flows share a link: congestion control, exponent of the round-trip time, and buffer size."""

    def _check(self) -> None:
        self.build()


@configures(network.Network, only=("engine", "stack", "sharing", "routing", "on_outage"))
class Network(Part):
    """The network: topology, weather, faults, background traffic and transport.

    placement: worker r on host r; in turn over sites or switches; at random; a list of hosts
    transport: the transport protocol, which reacts to packet loss; default: pftk
    incast: loss where many send to one; default: links are shared without loss
    jitter: the extra latency of each message
    stack: how messages are sent, and when a send lets its rank go, by name or properties; default: that of a
        calibrated fabric, with its curves, else ideal
    sharing: how messages share links: max-min fair, or weighted by round trips
    """

    model_config = ConfigDict(json_schema_extra={"type": ["object", "string"]})

    topology: SerializeAsAny[Topology]
    placement: ValueOrList[Literal["packed", "spread", "random"], list[Host]] = "packed"
    weather: list[Weather] = Field(default=[])
    background: list[Background] = Field(default=[])
    faults: list[Fault] = Field(default=[])
    loss: list[Loss] = Field(default=[])
    transport: Transport | None = None
    incast: Incast | None = None
    overhead: Overhead = Overhead.model_validate({})
    jitter: Jitter | None = None
    stack: NameOr[StackName, Stack] | None = None
    sharing: NameOr[SharingLaw, Sharing] = "max_min"
