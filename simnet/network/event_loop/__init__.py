"""The inner loop of the network: ranks in their rounds, messages in their latency, flows at max-min fair shares.

Between two events every rate is constant, so a flow's end is one division away. Events are: a rank enters, or has
computed; a message has its latency behind it, or has arrived; a flow ends; a link changes; background traffic comes or
goes; a rank fails. What is due at one instant is worked off as one batch; then rates are settled: see `sharing.settle`.

Things are rows of tables with named fields: `records`. Letters are rows: f a flow or message under way, u its use of a
link, l a link, r a route, b background traffic, e a run (a schedule under way), g one of its ranks, m one of its
messages. `simnet.network.engine` fills the tables. The functions that others call are those imported here.
"""

from simnet.network.event_loop import (
    agenda,
    arrivals,
    loop,
    messages,
    ports,
    protocols,
    ranks,
    records,
    sharing,
    states,
    streams,
    timelines,
)
from simnet.network.event_loop.agenda import next_due, push, take_off
from simnet.network.event_loop.loop import advance, changes
from simnet.network.event_loop.messages import address, assign, limit_of, weight_of
from simnet.network.event_loop.ports import carry, count_sent, end_of, hand_over, leaves_at, queue_up
from simnet.network.event_loop.ranks import forget, start_run, stop
from simnet.network.event_loop.sharing import (
    detach,
    free_all,
    free_flow,
    mark_dirty,
    set_rate,
    settle,
    start_flow,
    take_flow,
)  # fmt: skip
from simnet.network.event_loop.streams import through_at
from simnet.network.event_loop.timelines import latency_of, look_up_all

__all__ = [
    "MODULES", "address", "advance", "assign", "carry", "changes", "count_sent", "detach", "end_of", "forget",
    "free_all", "free_flow", "hand_over", "latency_of", "leaves_at", "limit_of", "look_up_all", "mark_dirty",
    "next_due", "push", "queue_up", "set_rate", "settle", "start_flow", "start_run", "stop", "take_flow", "take_off",
    "through_at", "weight_of",
]  # fmt: skip

# What is compiled together.
MODULES = (records, agenda, arrivals, timelines, sharing, messages, ports, streams, states, protocols, ranks, loop)
