"""The network: hosts and links that carry messages in simulated time, under weather, contention and faults."""

from simnet.network.component import (
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

__all__ = ["ConstantLoad", "EngineName", "Jitter", "Messages", "Network", "OnOffFlow", "OnOutage", "Routing", "Timing"]
