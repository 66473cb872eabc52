"""The inner loop of the network: it advances ranks, messages, and flows at max-min fair rates, event by event.

Rates are constant between two events, so the end of a flow is one division away. Events: a rank enters or has computed;
a message has passed its latency or arrived; a flow ends; a link changes; background traffic toggles; a rank fails.
Events at one instant are processed as a batch, then rates are settled (`sharing.settle_rates`).

Everything is a row of a table with named fields (`records`). Letters are rows: f a flow or message, u a membership on a
link, l a link, r a route, b background traffic, e a run (a schedule in flight), g one of its ranks, m one of its
messages. `simnet.network.engine` fills the tables.
"""

from types import ModuleType

from simnet.network.event_loop import (
    accounting,
    codes,
    egress_queue,
    event_queue,
    loop,
    messages,
    protocols,
    ranks,
    receive_queue,
    records,
    sharing,
    streams,
    timelines,
)

MODULES = (
    codes, records, event_queue, receive_queue, timelines, sharing, messages, egress_queue, streams, accounting,
    protocols, ranks, loop,
)  # fmt: skip
"""Modules that are compiled together."""

interpreted = ModuleType(__name__)
"""All functions of the event loop, as Python runs them."""
for _module in MODULES:
    interpreted.__dict__.update(vars(_module))
