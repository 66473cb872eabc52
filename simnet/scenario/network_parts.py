"""The network part of a scenario: topology, background traffic, loss, and transport."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, TypeAlias, get_args

from annotated_types import Ge, Lt
from pydantic import AfterValidator, ConfigDict, Field, SerializeAsAny, WithJsonSchema

from simnet.base.quantities import SHARE, Duration, Host
from simnet.network import STACKS, ConstantLoad, OnOffFlow, jitter, network, sharing, stack, transport
from simnet.scenario.parts import Named, NameOr, OneOf, Part, Target, ValueOrList, configures, given_fields, kinds
from simnet.scenario.topology_parts import Topology
from simnet.scenario.weather_parts import Fault, Span, Weather


@configures(ConstantLoad, only=("rate",))
class Load(Part):
    """Traffic of others that takes a constant rate from links and does not give way."""

    links: str


class OnOff(Part):
    """When a flow is on: at random (`busy` and `idle`: mean times) or as listed."""

    busy: Duration | None = None
    idle: Duration | None = None
    spans: list[Span] | None = None

    def _check(self) -> None:
        if given_fields(self) not in (["busy", "idle"], ["spans"]):
            raise ValueError("takes either busy and idle, or spans")


@configures(OnOffFlow, omit=("on",), optional={"limit": "none"})
class Flow(Part):
    """Traffic of others that shares links fairly, as a long TCP transfer would.

    when: default: always
    """

    src: Any = Field(alias="from")
    dst: Any = Field(alias="to")
    when: OnOff | None = None


class Background(OneOf):
    """Traffic of others."""

    load: Load | None = None
    flow: Flow | None = None


class Loss(Part):
    """Packets that get lost on links. Several entries that meet on a link lose independently of each other.

    links: as of weather
    probability: that a packet is lost on the link
    """

    links: str
    probability: Annotated[float, Ge(0), Lt(1), SHARE]


@configures(transport.Transport, only=("segment", "acked", "connections"))
class Mathis(Part):
    """TCP by the square-root law of Mathis et al., without time-outs."""


@configures(transport.Transport, only=("timeout",))
class Pftk(Mathis):
    """TCP Reno with time-outs by the formula of Padhye et al."""


class Retransmit(Part):
    """Only what is lost is sent again, and nothing slows down for it, as selective repeat of RDMA does."""


@configures(transport.Transport, only=("window",), required=("window",))
class GoBackN(Part):
    """A loss makes the sender repeat all packets of a round trip."""


@kinds(pftk=Pftk, mathis=Mathis, retransmit=Retransmit, go_back_n=GoBackN)
class Transport(OneOf):
    """What transfers make of packet loss."""


@kinds(timeouts=transport.Incast, measured=transport.MeasuredIncast)
class Incast(OneOf):
    """Goodput collapse where many send to one host at once."""


@configures(
    network.Network, only=("send_overhead", "receive_overhead"), send_overhead="send", receive_overhead="receive"
)
class Overhead(Part):
    """Time per message before it leaves and after it arrived."""


@kinds(exponential=jitter.exponential, uniform=jitter.uniform, lognormal=jitter.lognormal)
class Jitter(OneOf):
    """The extra latency of each message."""


def _stack_name(name: str) -> str:
    stack.stack_of(name)
    return name


_SOFTWARE = {"before", "after", "before_byte", "after_byte"}

StackName: TypeAlias = Annotated[
    str, AfterValidator(_stack_name), WithJsonSchema({"type": "string", "enum": list(STACKS)})
]


@configures(stack.Stack, optional=dict.fromkeys((one.name for one in dataclasses.fields(stack.Stack)), "that of like"))
class Stack(Named):
    """A transport stack of one's own: another one, and what differs from it.

    like: the stack that has the properties that are not given
    """

    named, text_pattern = "like", ":"
    like: StackName = "ideal"

    def build(self, target: Target | None = None, **more: Any) -> stack.Stack:
        """Return the stack; custom software overheads drop the measured conditions of the `like` stack."""
        given = self.arguments() | more
        if given.keys() & _SOFTWARE:
            given.setdefault("measured", "given by the scenario")
        return dataclasses.replace(STACKS[self.like], **given)

    def _check(self) -> None:
        self.build()


def _named_law(name: str) -> str:
    sharing.sharing_of(name)
    return name


SharingName: TypeAlias = Annotated[
    str, AfterValidator(_named_law), WithJsonSchema({"type": "string", "enum": list(get_args(sharing.SharingLaw))})
]


@configures(
    sharing.Sharing,
    optional={"exponent": "that measured for the congestion control", "buffer": "not known"},
)
class Sharing(Part):
    """How flows share links, by properties."""

    def _check(self) -> None:
        self.build()


@configures(network.Network, only=("engine", "stack", "sharing", "routing", "on_outage"))
class Network(Part):
    """The network, its weather, and who else uses it.

    placement: worker r on host r; in turn over sites or switches; at random; a list of hosts
    transport: that answers packet loss; default: pftk
    incast: default: links are shared without loss, however many send
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
    sharing: NameOr[SharingName, Sharing] = "max_min"
