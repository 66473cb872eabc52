"""What the links are like at a moment: routes, weather, and what background traffic leaves of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.weather import Signal, Weather
from topologies import Routes
from topologies.graphs import Link

if TYPE_CHECKING:
    import networkx as nx

_Pieces: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]

# Changes of links that are looked through for a moment at which a whole route has capacity.
_PATIENCE = 200_000


@dataclass(frozen=True)
class ConstantLoad:
    """Background traffic that takes a constant rate from a link and does not give way.

    Parameters
    ----------
    link : (u, v)
        The directed link.
    rate : float
        Bytes per second, >= 0. What exceeds the link's bandwidth is lost, not carried over.
    """

    link: Link
    rate: float


@dataclass(frozen=True)
class OnOffFlow:
    """Background traffic that shares fairly, as a long TCP transfer would, while it is on.

    Parameters
    ----------
    src, dst : int
        Hosts between which it flows.
    on : Signal
        Greater than 0 while it is on.
    limit : float
        Bytes per second that it takes at most.
    """

    src: int
    dst: int
    on: Signal
    limit: float = math.inf


class Links:
    """The links of a network and the routes over them, as functions of time.

    Parameters
    ----------
    graph, weather, background, seed
        As for `simnet.network.Network`.

    Attributes
    ----------
    routes : Routes
        Routes as tuples of links; a link is its index in ``routes.links``.
    flows : list of OnOffFlow
        The background traffic that shares fairly.

    Raises
    ------
    ValueError
        If weather or background traffic names a link or host that the graph has not, or is no such thing.
    """

    def __init__(
        self,
        graph: nx.DiGraph[Any],
        weather: Mapping[Link, Weather],
        background: Sequence[ConstantLoad | OnOffFlow],
        seed: int,
    ) -> None:
        self.routes = Routes(graph, seed=seed)
        self.flows: list[OnOffFlow] = []
        self._bandwidth: list[Signal | float] = self.routes.bandwidth.tolist()
        self._latency: list[Signal | float] = self.routes.latency.tolist()
        self._load: dict[int, float] = {}
        for link, one in weather.items():
            index = self._index(link, "weather")
            if not isinstance(one, Weather):
                raise ValueError(f"weather of the link {link!r} must be a Weather, got {one!r}")
            if one.bandwidth is not None:
                self._bandwidth[index] = one.bandwidth
            if one.latency is not None:
                self._latency[index] = one.latency
        for traffic in background:
            if not isinstance(traffic, ConstantLoad | OnOffFlow):
                raise ValueError(f"background traffic must be ConstantLoad or OnOffFlow, got {traffic!r}")
            if isinstance(traffic, ConstantLoad):
                if not 0 <= traffic.rate < math.inf:
                    raise ValueError(f"background load must be >= 0 and finite, got {traffic.rate}")
                index = self._index(traffic.link, "background traffic")
                self._load[index] = self._load.get(index, 0.0) + traffic.rate
            else:
                if not traffic.limit > 0:
                    raise ValueError(f"the limit of a background flow must be > 0, got {traffic.limit}")
                if not self.routes.route(traffic.src, traffic.dst):
                    raise ValueError(f"a background flow needs two hosts, got {traffic.src} and {traffic.dst}")
                self.flows.append(traffic)

    def _index(self, link: Link, what: str) -> int:
        try:
            return int(self.routes.index[link])
        except KeyError:
            raise ValueError(f"{what} names the link {link!r}, which the graph has not") from None

    @cached_property
    def constant(self) -> bool:
        """Whether nothing about the links ever changes: neither weather nor background flows."""
        return not self.flows and all(
            isinstance(value, float) for values in (self._bandwidth, self._latency) for value in values
        )

    @cached_property
    def constant_latency(self) -> NDArray[np.float64]:
        """Seconds of latency of each link, if they are `constant`."""
        return np.array(self._latency, dtype=np.float64)

    @cached_property
    def constant_capacity(self) -> NDArray[np.float64]:
        """Bytes per second that each link leaves to flows, if they are `constant`."""
        return np.array([self.capacity(link, 0.0)[0] for link in range(len(self._bandwidth))])

    def latency(self, link: int, t: float) -> float:
        """Seconds of latency of a link, by its index in `routes.links`, at time `t`."""
        value = self._latency[link]
        return value if isinstance(value, float) else value.at(t)

    def capacity(self, link: int, t: float) -> tuple[float, float]:
        """Bytes per second that a link leaves to flows at time `t`, and until when (infinity when for ever)."""
        value = self._bandwidth[link]
        load = self._load.get(link, 0.0)
        if isinstance(value, float):
            return max(0.0, value - load), math.inf
        return max(0.0, value.at(t) - load), value.next_change(t)

    def pieces(self, link: int, start: float, end: float) -> tuple[_Pieces, _Pieces]:
        """Return from when on a link leaves which bandwidth [byte/s], and has which latency [s], in [start, end)."""
        load = self._load.get(link, 0.0)
        bandwidth, latency = (
            (np.array([start]), np.array([value])) if isinstance(value, float) else value.window(start, end)
            for value in (self._bandwidth[link], self._latency[link])
        )
        return (bandwidth[0], np.maximum(bandwidth[1] - load, 0.0)), latency

    def opens(self, route: Sequence[int], t: float) -> float:
        """Return the first time from `t` on at which every link of a route has capacity; infinity if there is none.

        It counts as none, too, if it lies further than 200,000 changes of the links away.
        """
        for _ in range(_PATIENCE):
            for link in route:
                capacity, until = self.capacity(link, t)
                if capacity <= 0:
                    t = until
                    break
            else:
                return t
            if t == math.inf:
                break
        return math.inf

    def path(self, src: int, dst: int, t: float = 0.0) -> tuple[float, float]:
        """Return latency [s] and bottleneck bandwidth [byte/s] of the route from `src` to `dst` as it is at `t`.

        Constant background load is taken off the bandwidth; flows are not.
        """
        route = self.routes.route(src, dst)
        latency = sum((self.latency(link, t) for link in route), 0.0)
        return latency, min((self.capacity(link, t)[0] for link in route), default=math.inf)
