"""The event loop of the network: it advances ranks, messages and flows, event by event.

As in SimPy, a queue has what is due, and the loop takes the earliest event. Other than in SimPy, an event is no object
with callbacks but a kind and a row of a table, so that numba compiles the same functions (`records`). Rates are
constant between two events, so the end of a flow is one division away; these ends have a heap of their own.

Read the modules in this order:

1. `loop`: what is due at one instant is processed as a batch, then rates are settled. `codes`: kinds and states.
2. `ranks`: a rank enters a round, works, sends, and resumes when what it waits for is there.
3. `protocols`: what a rank posts in a round, and control messages of stacks. The stack ``ideal`` has none.
4. `egress_queue`, `messages`, `receive_queue`: a message leaves its host, passes its latency, flows, and arrives.
5. `sharing`: max-min fair rates of flows, solved again only where they change.
6. `streams`, `accounting`, `timelines`, `event_queue`: compute streams, each rank's time, the weather, and the heaps.

Letters are rows: f a flow or message, u a membership on a link, l a link, r a route, b background traffic, e a run (a
schedule in flight), g one of its ranks, m one of its messages. `simnet.network.engine` fills the tables.
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
