"""Ground truth on one machine: a real network of known latency and bandwidth, and what was predicted for it before.

`star` makes it, out of network namespaces and a switch in user space; `prediction` says how long a schedule should
take on it, from the settings of its links and a stated model of TCP; `experiment` measures both. It takes Linux, root
and a C compiler; `unavailable` says what is missing. `libraries` predicts measurements of others on such links.
"""

from validate.shapednet.clock import Change, Stack
from validate.shapednet.experiment import Setting, errors, experiment, message_overhead
from validate.shapednet.namespaces import Star, star, unavailable
from validate.shapednet.prediction import framed, predict

__all__ = [
    "Change",
    "Setting",
    "Stack",
    "Star",
    "errors",
    "experiment",
    "framed",
    "message_overhead",
    "predict",
    "star",
    "unavailable",
]
