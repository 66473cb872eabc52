"""The inner loop of the network: ranks in rounds, messages in their latency, flows at max-min fair rates.

Rates are constant between two events, so the end of a flow is one division away. Events: a rank enters or has computed;
a message has passed its latency or arrived; a flow ends; a link changes; background traffic toggles; a rank fails.
Events at one instant are processed as a batch, then rates are settled (`sharing.settle_rates`).

Everything is a row of a table with named fields (`records`). Letters are rows: f a flow or message, u a membership on a
link, l a link, r a route, b background traffic, e a run (a schedule in flight), g one of its ranks, m one of its
messages. `simnet.network.engine` fills the tables.
"""

from simnet.network.event_loop import (
    accounting,
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
from simnet.network.event_loop.egress_queue import (
    count_sent,
    inject,
    join_egress_queue,
    schedule_departure,
    transmission_end,
    transmit_at,
)
from simnet.network.event_loop.event_queue import next_event_time, push_event, remove_event
from simnet.network.event_loop.loop import advance, change_links
from simnet.network.event_loop.messages import count_assigned, create_message, limit_of, weight_of
from simnet.network.event_loop.ranks import forget_run, start_run, stop_message
from simnet.network.event_loop.sharing import (
    detach_flow,
    free_all,
    free_flow,
    mark_dirty,
    set_rate,
    settle_rates,
    start_flow,
    take_flow,
)  # fmt: skip
from simnet.network.event_loop.streams import stream_done_at
from simnet.network.event_loop.timelines import latency_of, update_links

__all__ = [
    "MODULES", "advance", "change_links", "count_assigned", "count_sent", "create_message", "detach_flow",
    "forget_run", "free_all", "free_flow", "inject", "join_egress_queue", "latency_of", "limit_of",
    "mark_dirty", "next_event_time", "push_event", "remove_event", "schedule_departure", "set_rate",
    "settle_rates", "start_flow", "start_run", "stop_message", "stream_done_at", "take_flow",
    "transmission_end", "transmit_at", "update_links", "weight_of",
]  # fmt: skip

# Modules that are compiled together.
MODULES = (
    records, event_queue, receive_queue, timelines, sharing, messages, egress_queue, streams, accounting, protocols,
    ranks, loop,
)  # fmt: skip
