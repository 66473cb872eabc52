"""Network weather: the bandwidth and latency of a link as they vary over time.

A `Signal` is a piecewise-constant function of time with an exact integral; a `Weather` is a link's pair of signals.
Signals are given steps, published schedules, recorded traces, or seeded stochastic processes; they multiply.
"""

from simnet.network.weather.files import mahimahi, trace_csv
from simnet.network.weather.processes import diurnal, markov, ornstein_uhlenbeck, outages, steps
from simnet.network.weather.profiles import PROFILES, EpochProfile, EpochState, profile, profile_state
from simnet.network.weather.signal import MAX_CHANGES, MAX_QUIET, Signal, Weather, constant, product

__all__ = [
    "MAX_CHANGES",
    "MAX_QUIET",
    "PROFILES",
    "EpochProfile",
    "EpochState",
    "Signal",
    "Weather",
    "constant",
    "diurnal",
    "mahimahi",
    "markov",
    "ornstein_uhlenbeck",
    "outages",
    "product",
    "profile",
    "profile_state",
    "steps",
    "trace_csv",
]
