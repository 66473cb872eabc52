"""Network schedules C1 and C2 of a published experiment: a link's latency and bandwidth by training epoch.

References
----------
S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE BigData
2023, section 3-E and Fig. 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from simnet.base.errors import check_choice, check_int, check_positive
from simnet.network.weather.processes import steps
from simnet.network.weather.signal import Weather

_MILLISECOND = 1e-3
_GBIT_PER_S = 1.25e8


class EpochState(NamedTuple):
    """Network latency and bandwidth in a published training experiment, from epoch `first_epoch` on.

    `latency` [s] is from host to host, the paper's alpha: half of it on each link of a star. `bandwidth` [byte/s] is
    that of one host, the paper's 1/beta.
    """

    first_epoch: int
    latency: float
    bandwidth: float


class EpochProfile(NamedTuple):
    """Network states over a published training experiment: `states` by epoch, number of `epochs`, and `source`."""

    states: tuple[EpochState, ...]
    epochs: int
    source: str


def profile_state(name: str, epoch: int) -> EpochState:
    """Return network latency and bandwidth in one training epoch of a published experiment.

    Parameters
    ----------
    name : str
        A key of `PROFILES`: ``"C1"``, ``"C2"`` (50 epochs), ``"C1-resnet50"``, ``"C2-resnet50"`` (100 epochs).
    epoch : int
        From 0 to ``PROFILES[name].epochs - 1``; schedules have one epoch more than is trained.

    Raises
    ------
    ValueError
        If there is no such schedule or epoch.

    Examples
    --------
    >>> profile_state("C1", 30)
    EpochState(first_epoch=25, latency=0.05, bandwidth=125000000.0)
    """
    schedule = _find_profile(name)
    check_int(epoch, f"epoch of {name}", 0, schedule.epochs - 1)
    return next(state for state in reversed(schedule.states) if state.first_epoch <= epoch)


def profile(name: str, epoch_seconds: float) -> Weather:
    """Return latency and bandwidth over time as in a published experiment, with epochs of `epoch_seconds`.

    Parameters
    ----------
    name : str
        ``"C1"``, ``"C2"``, ``"C1-resnet50"`` or ``"C2-resnet50"``.
    epoch_seconds : float
        Seconds per epoch, > 0 and finite.

    Returns
    -------
    Weather
        Bandwidth [byte/s] and latency [s] from host to host; on a star use ``latency * 0.5`` per link.

    Raises
    ------
    ValueError
        If there is no such schedule, or `epoch_seconds` is not positive.

    Examples
    --------
    >>> weather = profile("C1", epoch_seconds=60)
    >>> weather.bandwidth.window(0, 3000)
    (array([   0.,  780., 2220.]), array([3.125e+09, 1.250e+08, 3.125e+09]))
    >>> weather.latency.next_change(0)
    1500.0
    """
    check_positive(epoch_seconds, "epoch_seconds")
    states = _find_profile(name).states
    times = [state.first_epoch * epoch_seconds for state in states]
    return Weather(
        bandwidth=steps(times, [state.bandwidth for state in states]),
        latency=steps(times, [state.latency for state in states]),
    )


def _find_profile(name: str) -> EpochProfile:
    check_choice(name, "network schedule", PROFILES)
    return PROFILES[name]


def _build_schedule(rows: Sequence[tuple[int, float, float]], epochs: int, source: str) -> EpochProfile:
    """Return a network schedule from rows of first epoch, latency [ms] and bandwidth [Gbit/s]."""
    states = tuple(EpochState(epoch, alpha * _MILLISECOND, rate * _GBIT_PER_S) for epoch, alpha, rate in rows)
    return EpochProfile(states, epochs, source)


_C2 = ((1, 25), (2, 20), (4, 15), (8, 10), (16, 5), (32, 1), (32, 1), (16, 5), (8, 10), (4, 15), (2, 20), (1, 25))

PROFILES: Mapping[str, EpochProfile] = MappingProxyType(
    {
        "C1": _build_schedule(((0, 1, 25), (13, 1, 1), (25, 50, 1), (37, 50, 25)), 51, "Fig. 6a"),
        "C2": _build_schedule([(4 * block, *state) for block, state in enumerate(_C2)], 51, "Fig. 6b"),
        "C1-resnet50": _build_schedule(
            ((0, 1, 25), (25, 1, 1), (49, 50, 1), (73, 50, 25)),
            101,
            "section 3-E1 prints the first boundary; the others are those of C1 with the segments doubled",
        ),
        "C2-resnet50": _build_schedule(
            [(8 * block, *state) for block, state in enumerate(_C2)], 101, "the authors' released code"
        ),
    }
)
"""The published schedules by name."""
