"""The network: hosts and links that carry messages in simulated time; links vary, are shared, and fail.

Bytes become seconds in `event_loop.sharing`, as max-min fair rates, or in `recurrence` if no messages share a link.
"""

from simnet.network.network import (
    ConstantLoad,
    EngineName,
    Jitter,
    Messages,
    Network,
    OnOffFlow,
    OnOutage,
    Routing,
    Timing,
)
from simnet.network.sharing import MAX_MIN, Sharing
from simnet.network.stack import STACKS, Stack

__all__ = [
    "MAX_MIN",
    "STACKS",
    "ConstantLoad",
    "EngineName",
    "Jitter",
    "Messages",
    "Network",
    "OnOffFlow",
    "OnOutage",
    "Routing",
    "Sharing",
    "Stack",
    "Timing",
]
