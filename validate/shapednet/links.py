"""The links of a shaped network, and how long a schedule takes on simnet's network of the same settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import topologies
from simnet.base.arrays import Floats
from simnet.network import Network
from simnet.network.stack import Stack
from simnet.network.weather import Weather, steps
from simnet.schedule import Schedule


class Change(NamedTuple):
    """From when on all links have this latency [s] and bandwidth [byte/s]; times in seconds from the first, at 0."""

    at: float
    latency: float
    bandwidth: float


def predict(schedule: Schedule, links: Sequence[Change], stack: Stack, starts: Sequence[float] = (0.0,)) -> Floats:
    """Return how long a schedule takes on a star [s], for each moment at which it may start.

    Connections are taken to be warm: their windows have grown to what a message needs. Windows that still grow, losses,
    and processors that are short are not in it.

    Parameters
    ----------
    schedule : Schedule
        What is sent.
    links : sequence of Change
        What the links are like, from when on; the first at 0. One for links that do not change.
    stack : Stack
        How it is sent.
    starts : sequence of float
        Seconds, >= 0.

    Examples
    --------
    >>> from simnet.network.stack import STACKS
    >>> from simnet.schedule import Round
    >>> bare = Schedule(2, [Round([0], [1], 14480)])
    >>> predict(bare, [Change(0, 1e-3, 1e6)], STACKS["tcp"]).round(6)
    array([0.017918])
    """
    graph = topologies.star(schedule.n_ranks, links[0].latency, links[0].bandwidth)
    weather = {}
    if len(links) > 1:
        at = [one.at for one in links]
        bandwidth, half = steps(at, [one.bandwidth for one in links]), steps(at, [one.latency / 2 for one in links])
        weather = dict.fromkeys(graph.edges, Weather(bandwidth=bandwidth, latency=half))
    network = Network(graph, weather, stack=stack)
    return np.array([network.time(schedule, start).duration for start in starts])
