"""Links as functions of time: bandwidth minus constant background load, latency, packet loss, and routes."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.quantities import Bandwidth, Host, Rate, check_bounds
from simnet.network.transport import Incast, Limits, Loss, MeasuredIncast
from simnet.network.weather import Signal, Weather
from simnet.topologies import Routes
from simnet.topologies.graphs import Graph, Link

# Changes of links that are looked through for a moment at which a whole route has capacity.
_PATIENCE = 200_000

# Transfers at once into one host that tables of factors tell apart.
_MOST_TRANSFERS = 1024

_NO_LOSS = Limits(0.0, 0.0, 1.0)

# Times beyond this would leave no room for sums.
_FURTHEST = 1e300

# Segments that a link's timeline is known by at first, and segments of all links that are held at a time.
_FIRST, _HELD = 64, 1 << 25


@dataclass(frozen=True)
class ConstantLoad:
    """Background traffic at a constant rate, which does not yield to other traffic.

    Parameters
    ----------
    link : (u, v)
        The directed link.
    rate : float
        Its rate [byte/s], >= 0. What exceeds the link's bandwidth is lost.
    """

    link: Link
    rate: Rate


@dataclass(frozen=True)
class OnOffFlow:
    """On-off background traffic, which shares links fairly while it is on, like a long TCP transfer.

    Parameters
    ----------
    src, dst : int
        Hosts.
    on : Signal
        Greater than 0 while it is on.
    limit : float
        Maximum rate [byte/s].
    """

    src: Host
    dst: Host
    on: Signal
    limit: Bandwidth = math.inf


class IncastDerating(NamedTuple):
    """Factors, at most 1, on each link's capacity by the number of transfers that enter the link at once (incast).

    Parameters
    ----------
    factors : ndarray, shape (k, m + 1), float64
        Factor for 0, 1, ... m transfers; the last one holds for more. Those for 0 and 1 are exactly 1.
    rows : ndarray, shape (L,), int64
        Row of each link in `factors`; -1 for links without incast.
    """

    factors: NDArray[np.float64]
    rows: NDArray[np.int64]


class Timelines(NamedTuple):
    """Bandwidths or latencies of all links as piecewise-constant functions of time, in flat arrays.

    Link i has segments ``first[i] .. last[i] - 1``: ``values[j]`` from ``times[j]`` until ``times[j + 1]``. The last
    one, of value -1, starts where the timeline is unknown, at infinity if it is known for ever. ``times[last[i]]`` is
    infinity, so that searches end by themselves. Links with equal timelines share segments.

    Parameters
    ----------
    first, last : ndarray of int64, shape (L,)
        First and past-the-end segment of each link.
    times : ndarray of float64, shape (n,)
        Seconds.
    values : ndarray of float64, shape (n,)
        Bandwidth after constant load [byte/s], or latency [s]; -1 if unknown.
    since, until : float
        All links are known in [since, until) [s].
    """

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]
    since: float
    until: float

    def counted_from(self, origin: float) -> NDArray[np.float64]:
        """Return `times` [s] relative to `origin` [s]."""
        return self.times - origin if origin else self.times

    def at(self, t: float | NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the index of each link's segment at `t` [s], a single time or one per link; `t` >= `since`."""
        low, high = self.first, self.last
        while (high - low > 1).any():
            middle = (low + high) // 2
            begun = self.times[middle] <= t
            low, high = np.where(begun, middle, low), np.where(begun, high, middle)
        return low.copy()


def moments_around(origin: float, start: float, until: float) -> tuple[float, float]:
    """Return absolute times of `start` and `until`, which count from `origin`, rounded so that the span only grows."""
    return max(0.0, math.nextafter(origin + start, -math.inf)), math.nextafter(origin + until, math.inf)


class TimelineCache:
    """Cache of the `Timelines` of all links' bandwidths or latencies, extended on demand.

    Parameters
    ----------
    values : sequence of Signal or float, length L
        The quantity of each link.
    load : mapping of int to float
        Background load to subtract, by link.
    """

    def __init__(self, values: Sequence[Signal | float], load: Mapping[int, float]) -> None:
        # Links of the same signal, or constant, and load share a slot; those of signals come first.
        distinct: dict[tuple[bool, Any, float], int] = {}
        slots = np.empty(len(values), dtype=np.int64)
        for signals in (True, False):
            for link, value in enumerate(values):
                if signals == isinstance(value, Signal):
                    key = signals, id(value) if signals else value, load.get(link, 0.0)
                    slots[link] = distinct.setdefault(key, len(distinct))
        some = np.unique(slots, return_index=True)[1].tolist()
        self._slots = slots
        self._signals = [value for value in map(values.__getitem__, some) if isinstance(value, Signal)]
        self._constants = [values[link] for link in some[len(self._signals) :]]
        self._loads = np.array([load.get(link, 0.0) for link in some])
        self._known: Timelines | None = None

    def timelines(self, start: float, until: float, likely: float = 0.0) -> Timelines:
        """Return every link's value over time, from `start` to `until` [s] or as far as its signal can be generated.

        A caller that resumes at their end gets several times as much; if that is too much to hold, the same amount, and
        the past is dropped. `likely` is the expected end of the simulation [s], 0 if unknown.
        """
        known = self._known
        if known is None or not known.since <= start or not until < known.until:
            far = math.nextafter(until, math.inf)
            if known is not None and known.since <= start and (likely or start <= known.until):
                span = known.until - known.since
                longer = min(max(likely - known.since, 2 * span), 64 * span) if likely else 4 * span
                longer = min(longer, span * (_HELD / known.times.size))
                if longer >= 2 * span:
                    start, span = known.since, longer
                # What is asked for twice with no progress between must become more as well.
                far = max(start + span, until + (until - start), far)
            known = self._known = self._taken(start, min(far, _FURTHEST))
        return known

    def _taken(self, start: float, until: float) -> Timelines:
        flat, levels, tail, unknown = array("d"), array("d"), array("d", [0.0, math.inf]), array("d", [-1.0, -1.0])
        last, ends = [], []
        for value in self._signals:
            begin, behind, end = value.ahead(start, until, _FIRST)
            value.write(begin, behind, flat, levels)
            # Every timeline is followed by when it is not known any further, and by infinity.
            flat.extend(tail)
            levels.extend(unknown)
            last.append(len(flat) - 1)
            ends.append(end)
        for one in self._constants:
            flat.extend((0.0, math.inf, math.inf))
            levels.extend((one, -1.0, -1.0))
            last.append(len(flat) - 1)
            ends.append(math.inf)
        times, values = np.frombuffer(flat), np.frombuffer(levels)
        stop = np.array(last, dtype=np.int64)
        first = np.append(0, stop[:-1] + 1)
        times[stop - 1] = ends
        if self._loads.any():
            np.maximum(values - np.repeat(self._loads, stop + 1 - first), 0.0, out=values)
            values[stop - 1] = values[stop] = -1.0
        return Timelines(first[self._slots], stop[self._slots], times, values, start, min(ends, default=math.inf))


class Links:
    """The links of a network and the routes over them, as functions of time.

    Parameters
    ----------
    graph, weather, background, seed
        As for `simnet.network.Network`.
    routing : {"hash", "single"}
        Route choice of `Routes`.
    loss : Loss, optional
        Packet loss by link, and the transport's response.
    incast : Incast or MeasuredIncast, optional
        Goodput collapse when many senders target one host.

    Attributes
    ----------
    routes : Routes
        Routes as tuples of indices into ``routes.links``.
    flows : list of OnOffFlow
        Background traffic that shares fairly.
    incast_derating : IncastDerating or None
        Capacity factors under incast.
    into_one : ndarray, shape (L,), bool
        Whether a link is the only one into a host and has no incast.
    segment : float
        Payload of a packet [byte], for `limits`.

    Raises
    ------
    ValueError
        If a link or host is not in the graph, or an argument has the wrong type.
    """

    def __init__(
        self,
        graph: Graph,
        weather: Mapping[Link, Weather],
        background: Sequence[ConstantLoad | OnOffFlow],
        seed: int,
        *,
        routing: Literal["hash", "single"] = "hash",
        loss: Loss | None = None,
        incast: Incast | MeasuredIncast | None = None,
    ) -> None:
        self.routes = Routes(graph, seed=seed, routing=routing)
        self.flows: list[OnOffFlow] = []
        # The entry at the end is that of -1, which tables of routes have after the last link.
        self._is_free = np.array([*(kind == "free" for kind in self.routes.kinds), False])
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
                check_bounds(traffic.rate, Rate, "background load")
                index = self._index(traffic.link, "background traffic")
                self._load[index] = self._load.get(index, 0.0) + traffic.rate
            else:
                if not traffic.limit > 0:
                    raise ValueError(f"the limit of a background flow must be > 0, got {traffic.limit}")
                if traffic.limit < math.inf:
                    check_bounds(traffic.limit, Bandwidth, "the limit of a background flow")
                if not self.routes.route(traffic.src, traffic.dst):
                    raise ValueError(f"a background flow needs two hosts, got {traffic.src} and {traffic.dst}")
                self.flows.append(traffic)
        self._set_loss(loss)
        self.incast_derating = None if incast is None else self._incast_derating(graph, incast)
        # Links into hosts that have one, on which few of them do not collapse.
        leads_to = Counter(v for _, v in self.routes.links)
        self.into_one = np.array([isinstance(v, int) and leads_to[v] == 1 for _, v in self.routes.links])
        if self.incast_derating is not None:
            self.into_one &= self.incast_derating.rows < 0

    def _set_loss(self, loss: Loss | None) -> None:
        if loss is not None and not isinstance(loss, Loss):
            raise ValueError(f"loss must be a Loss, got {loss!r}")
        self._loss = loss
        self.segment = 1.0 if loss is None else float(loss.transport.segment)
        # Logarithms of what each link lets through: they add up along a route, and keep small losses to full precision.
        # The entry at the end is that of -1, which tables of routes have after the last link.
        self._kept = np.zeros(len(self.routes.links) + 1)
        for link, p in {} if loss is None else loss.probability.items():
            self._kept[self._index(link, "loss")] = np.log1p(-p)

    def _incast_derating(self, graph: Graph, incast: Incast | MeasuredIncast) -> IncastDerating:
        if not isinstance(incast, Incast | MeasuredIncast):
            raise ValueError(f"incast must be an Incast or a MeasuredIncast, got {incast!r}")
        crowded = _last_hops(graph) if incast.links is None else incast.links
        where = np.array([self._index(link, "incast") for link in crowded], dtype=np.int64)
        # Links of one bandwidth share a table.
        bandwidths, rows = np.unique(self.routes.bandwidth[where], return_inverse=True)
        of_link = np.full(len(self.routes.links), -1, dtype=np.int64)
        of_link[where] = rows
        factors = np.ones((bandwidths.size, _MOST_TRANSFERS + 1))
        for row, bandwidth in enumerate(bandwidths.tolist()):
            factors[row] = incast.shares(_MOST_TRANSFERS, bandwidth)
        return IncastDerating(factors, of_link)

    def _index(self, link: Link, what: str) -> int:
        try:
            return int(self.routes.index[link])
        except KeyError:
            raise ValueError(f"{what} names the link {link!r}, which the graph has not") from None

    @cached_property
    def constant(self) -> bool:
        """Whether capacities and latencies never change and there is no on-off background traffic."""
        return not self.flows and all(
            isinstance(value, float) for values in (self._bandwidth, self._latency) for value in values
        )

    @cached_property
    def latency_changes(self) -> bool:
        """Whether the latency of any link can change."""
        return not all(isinstance(value, float) for value in self._latency)

    @cached_property
    def constant_latency(self) -> NDArray[np.float64]:
        """Latency of each link [s], if no latency changes."""
        return np.array(self._latency, dtype=np.float64)

    @cached_property
    def constant_capacity(self) -> NDArray[np.float64]:
        """Capacity of each link that flows can use [byte/s], if `constant` is true."""
        return np.array([self.capacity(link, 0.0)[0] for link in range(len(self._bandwidth))])

    def latency(self, link: int, t: float) -> float:
        """Return the latency [s] at time `t` [s] of a link, given its index in `routes.links`."""
        value = self._latency[link]
        return value if isinstance(value, float) else value.at(t)

    def capacity(self, link: int, t: float) -> tuple[float, float]:
        """Return the capacity of a link for flows at time `t` [byte/s], and the time at which it changes next [s]."""
        value = self._bandwidth[link]
        load = self._load.get(link, 0.0)
        if isinstance(value, float):
            return max(0.0, value - load), math.inf
        return max(0.0, value.at(t) - load), value.next_change(t)

    def changes(self, links: Iterable[int], t: float, nbytes: float) -> float:
        """Return the expected number of changes of `links` while a host sends `nbytes` bytes from time `t` [s] on.

        It assumes the capacity of the fastest link and the rate of changes at `t`.
        """
        some = list(links)
        values = (one for link in some for one in (self._bandwidth[link], self._latency[link]))
        changing = [one for one in values if isinstance(one, Signal)]
        fastest = max((self.capacity(one, t)[0] for one in some), default=0.0) if changing else 0.0
        return sum(value.change_rate(t) for value in changing) * nbytes / fastest if fastest else 0.0

    def capacities(self, link: int, start: float, end: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the times [s] and capacities [byte/s] of a link's segments in the window [`start`, `end`)."""
        value = self._bandwidth[link]
        times, levels = (np.array([start]), np.array([value])) if isinstance(value, float) else value.window(start, end)
        return times, np.maximum(levels - self._load.get(link, 0.0), 0.0)

    def constant_latency_of(self, routes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the latency of each route [s], given their links as rows padded with -1; latencies must be constant.

        Summed link by link in route order, as where latencies change.
        """
        total = np.zeros(len(routes))
        for column in routes.T:
            total += np.where(column >= 0, self.constant_latency[column], 0.0)
        return total

    def own_of(self, routes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first link of each route (the sender's own link), given rows of links padded with -1; -1 if none.

        That is the first link that is not a junction (``kind`` "free") of graphs from other tools.
        """
        wide = np.append(routes, np.full((len(routes), 1), -1), axis=1)
        first = np.argmin(self._is_free[wide], axis=1)
        own = wide[np.arange(len(wide)), first]
        return np.where(own < 0, wide[:, 0], own)

    @property
    def lossless(self) -> bool:
        """Whether no link loses packets."""
        return not self._kept.any()

    def limits(self, route: Sequence[int]) -> Limits:
        """Return a route's rate limit under packet loss, and the payload's share of bytes, given the route's links."""
        if self._loss is None:
            return _NO_LOSS
        limits = self.limits_of(np.array(route, dtype=np.int64).reshape(1, -1))
        return Limits(*(float(column[0]) for column in limits))

    def limits_of(self, routes: NDArray[np.int64]) -> Limits:
        """Return each route's rate limit and payload share under packet loss; routes are rows of links (-1: none)."""
        kept = np.zeros(len(routes))
        if self._loss is None:
            return Limits(kept, kept, np.ones(len(routes)))
        for column in routes.T:
            kept += self._kept[column]
        return self._loss.transport.limits(_loss_probability(kept))

    @cached_property
    def bandwidths(self) -> TimelineCache:
        """Timelines of the capacity that each link has for flows [byte/s]."""
        return TimelineCache(self._bandwidth, self._load)

    @cached_property
    def latencies(self) -> TimelineCache:
        """Timelines of the latency of each link [s]."""
        return TimelineCache(self._latency, {})

    def next_up(self, route: Sequence[int], t: float) -> float:
        """Return when all links of a route are first up at the same time, from `t` on [s]; infinity if never.

        Gives up after 200,000 changes of the links.
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
        """Return latency [s] and bottleneck bandwidth [byte/s] of the route between two hosts at time `t` [s]."""
        route = self.routes.route(src, dst)
        latency = sum((self.latency(link, t) for link in route), 0.0)
        bandwidth = min((self.capacity(link, t)[0] for link in route), default=math.inf)
        limits = self.limits(route)
        if limits == _NO_LOSS:
            return latency, bandwidth
        return latency, min(bandwidth, float(limits.rate(2 * latency, self.segment))) * limits.share


def _last_hops(graph: Graph) -> list[Link]:
    """Return the links from a switch into a host, or into a node of several GPUs."""

    def ends(u: object, v: object, kind: object) -> bool:
        if not isinstance(u, str) or kind == "intra":
            return False
        return isinstance(v, int) or (kind == "nic" and any(isinstance(beyond, int) for beyond in graph.successors(v)))

    return [(u, v) for u, v, link in graph.edges(data=True) if ends(u, v, link.get("kind"))]


def _loss_probability(kept: ArrayLike) -> NDArray[np.float64]:
    """Return the packet loss probability, below 1, given the logarithm of the probability that a packet arrives."""
    return np.minimum(-np.expm1(kept), np.nextafter(1.0, 0.0))
