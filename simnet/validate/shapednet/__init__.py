"""Ground truth on one machine: a real network of known latency and bandwidth, measured after predicting.

`shaped_star` makes it, out of network namespaces and a switch in user space; `predict` says what a schedule takes
on it: what `simnet.network.Network` says, with the settings of its links and a transport stack; `experiment` measures
both. It takes Linux, root and a C compiler; `unavailable` says what is missing. `libraries` predicts measurements of
others on such links.
"""

from simnet.validate.shapednet.experiment import ShapedSetting, experiment, message_overhead, prediction_errors
from simnet.validate.shapednet.links import Change, predict
from simnet.validate.shapednet.namespaces import Star, shaped_star, unavailable

__all__ = [
    "Change",
    "ShapedSetting",
    "Star",
    "experiment",
    "message_overhead",
    "predict",
    "prediction_errors",
    "shaped_star",
    "unavailable",
]
