"""An adviser of a job that runs: it learns from what iterations take which exchange is the fastest, and says why.

`Estimator` learns the latency and bandwidth of links, and by which factors exchanges and kernels depart from their
closed forms and from the device profile. `Adviser` decides on what it has learnt. `Advised` is its policy in simulated
jobs, and `simnet.cluster.hooks.Hook.advised` drives the same in real ones.
"""

from simnet.training.advise.adviser import PINGS, WORD, Advice, Adviser, PredictedTime, probe_bytes
from simnet.training.advise.estimator import Estimator, WeightedTimes
from simnet.training.advise.exchanges import ExchangeCost, exchange_cost
from simnet.training.advise.policy import Advised

__all__ = [
    "PINGS",
    "WORD",
    "Advice",
    "Advised",
    "Adviser",
    "Estimator",
    "ExchangeCost",
    "PredictedTime",
    "WeightedTimes",
    "exchange_cost",
    "probe_bytes",
]
