"""Ground truth on one machine: a real network of known latency and bandwidth, and what was predicted for it before.

`star` makes it, out of network namespaces and a switch in user space; `predict` says how long a schedule should take
on it: what `simnet.network.Network` says, with the settings of its links and a transport stack; `experiment` measures
both. It takes Linux, root and a C compiler; `unavailable` says what is missing. `libraries` predicts measurements of
others on such links.
"""

from simnet.validate.shapednet.experiment import Setting, errors, experiment, message_overhead
from simnet.validate.shapednet.links import Change, predict
from simnet.validate.shapednet.namespaces import Star, star, unavailable

__all__ = [
    "Change",
    "Setting",
    "Star",
    "errors",
    "experiment",
    "message_overhead",
    "predict",
    "star",
    "unavailable",
]
