"""The event loop's tables of links and routes, with time-varying bandwidth and latency, and background traffic."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Container, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Ranks, unique_places
from simnet.network.event_loop import codes
from simnet.network.links import Links, TimelineCache, Timelines, moments_around
from simnet.network.sharing import limiting_links
from simnet.network.tables import Store, Table
from simnet.topologies.routes import route_table

# Links on a detour around links that are down, at most.
_DETOUR = 256
# Pairs of hosts whose routes are added at a time, so that temporary tables stay small.
_AT_ONCE = 1 << 17
# Messages of a schedule, and of them on each route, from which on links that cannot limit flows are left out.
_MANY, _MANY_PER_ROUTE = 1000, 8


class LinkTables(Store):
    """Links and routes in the tables of the event loop, whose times are seconds after an `origin`.

    - `links`: links and routes.
    - `multipath`: if true, a message may take any equal-cost route.
    - `watching`: if true, messages are rerouted around failed links.
    - `compiled`: if true, use the compiled event loop if available.
    """

    def __init__(self, links: Links, multipath: bool, watching: bool, compiled: bool) -> None:
        count = len(links.routes.links)
        super().__init__(compiled, count, min(_DETOUR, count) if watching else 0)
        self._links, self._multipath = links, multipath
        self._on = TimelineCache([one.on for one in links.flows], {})
        self._known: tuple[Timelines, ...] = ()
        self.origin = self._counted_from = 0.0
        # Pairs of hosts whose routes are laid, by ascending number, the first of their candidates, and how many.
        self._pairs = np.zeros(0, dtype=np.int64)
        self._first, self._counts = (np.zeros(0, dtype=np.int32) for _ in range(2))
        self._original: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        self.state.segment = links.segment
        self.state.watching, self.state.latency_changes = watching, links.latency_changes

    def write_links(self) -> None:
        """Write links, background traffic and queues to the tables. Set the sharing law in `state` before."""
        self._write_links()
        self._write_background()
        self._write_queues()

    def _write_links(self) -> None:
        links, count = self._links, self.n_links
        if links.constant:
            self.links.write(0, count, capacity=links.constant_capacity)
        else:
            # Timelines of the bandwidths of all links, of their latencies, and of whether background traffic is on.
            self.tables["timelines"].take(2 * count + len(links.flows))
            self.links.write(0, count, bandwidths=np.arange(count), latencies=np.arange(count, 2 * count))
        if links.incast_derating is not None:
            factors, rows = links.incast_derating
            at = self.tables["derating_factors"].put(factors.ravel())
            self.links.write(0, count, incast_derating=np.where(rows < 0, -1, at + rows * factors.shape[1]))
            self.state.n_derating = factors.shape[1]

    def _write_background(self) -> None:
        flows, background = self._links.flows, self.tables["background"]
        count = self.state.n_background = len(flows)
        background.take(count)
        background.write(
            0,
            count,
            limit=np.array([one.limit for one in flows]),
            route=self.routes_between(np.array([one.src for one in flows]), np.array([one.dst for one in flows]))[0],
            timeline=2 * self.n_links + np.arange(count),
        )
        if self.state.weighted:
            # Background flows exist only while messages flow, so their weights use the latencies of time 0.
            routes = [self.route_of(r) for r in background.read("route", 0, count)]
            latencies = [sum(self._links.latency(link, 0.0) for link in route) for route in routes]
            background.write(0, count, weight=[self.loop.weight_of(self.state, latency) for latency in latencies])
        self.make_room(flows=count + 1)

    def _write_queues(self) -> None:
        """Mark the links into hosts that have a receive queue; links with background traffic have none."""
        queues = self._links.into_one.copy()
        for r in self.tables["background"].read("route", 0, self.state.n_background).tolist():
            queues[self.route_of(r)] = False
        self.links.write(0, self.n_links, queues=queues)

    def look_ahead(self, until: float = 0.0, *, rewind: bool = False) -> None:
        """Load link variations and background traffic to beyond `until` [s]; set `rewind` after time was set back."""
        links, s = self._links, self.state
        if links.constant:
            return
        # Latencies are those at the time of departure.
        until = max(until, s.now) + s.send_overhead
        known = tuple(
            one.timelines(*moments_around(self.origin, s.now, until))
            for one in (links.bandwidths, links.latencies, self._on)
        )
        again = (
            self.origin == self._counted_from
            and len(known) == len(self._known)
            and all(map(operator.is_, known, self._known))
        )
        if not again:
            self._known, self._counted_from = known, self.origin
            s.times = np.concatenate([one.counted_from(self.origin) for one in known])
            s.values = np.concatenate([one.values for one in known])
            s.horizon = min(one.until for one in known) - self.origin
            if s.horizon <= until:
                self._ask(self.moment(until))
        if not again or rewind:
            begins = np.cumsum([0, *(one.times.size for one in known[:-1])])
            here = np.concatenate([one.first + begin for one, begin in zip(known, begins, strict=True)])
            last = np.concatenate([one.last - 1 + begin for one, begin in zip(known, begins, strict=True)])
            self.tables["timelines"].write(0, here.size, here=here, last=last)

    def moment(self, t: float) -> float:
        """Return `t`, a time [s] after the tables' origin, as an absolute time [s], rounded to no earlier float."""
        return moments_around(self.origin, t, t)[1]

    def _ask(self, t: float) -> None:
        """Query all links and background traffic at time `t` [s], so that a failing signal raises its own error."""
        for link in range(self.n_links):
            self._links.capacity(link, t)
            self._links.latency(link, t)
        for traffic in self._links.flows:
            traffic.on.at(t)

    def routes_between(self, src: Ranks, dst: Ranks) -> tuple[Ranks, Ranks]:
        """Return for each pair of hosts the row of its first candidate route, and the number of candidates."""
        n_hosts = self._links.routes.n_hosts
        numbers, places = unique_places(src * n_hosts + dst, n_hosts * n_hosts)
        at, known = self._known_pairs(numbers)
        if not known.all():
            self._add_pairs(numbers[~known])
            at, _ = self._known_pairs(numbers)
        return self._first[at][places].astype(np.int64), self._counts[at][places].astype(np.int64)

    def _known_pairs(self, numbers: Ranks) -> tuple[Ranks, NDArray[np.bool_]]:
        """Return each host pair's position among the sorted known pairs, and whether the pair itself is known."""
        at = np.searchsorted(self._pairs, numbers)
        known = at < self._pairs.size
        known[known] = self._pairs[at[known]] == numbers[known]
        return at, known

    def _add_pairs(self, numbers: Ranks) -> None:
        """Add routes of new host pairs, given ascending `numbers`; the number of a pair is src * n_hosts + dst."""
        n_routes = self.routes.size
        first, counts = [self._first], [self._counts]
        for begin in range(0, numbers.size, _AT_ONCE):
            src, dst = np.divmod(numbers[begin : begin + _AT_ONCE], self._links.routes.n_hosts)
            table, candidates = self._candidates(src, dst)
            self.make_room(hops=table.shape[1])
            r = self.add_routes(table)
            self._describe(r, table)
            counts.append(candidates.astype(np.int32))
            first.append((r + np.cumsum(candidates) - candidates).astype(np.int32))
            if self.state.watching:
                ends = zip(np.repeat(src, candidates).tolist(), np.repeat(dst, candidates).tolist(), strict=True)
                for one, (pair, row) in enumerate(zip(ends, table, strict=True), r):
                    self._original[one] = *pair, tuple(row[row >= 0].tolist())
        order = np.argsort(np.concatenate([self._pairs, numbers]), kind="stable")
        self._pairs = np.concatenate([self._pairs, numbers])[order]
        self._first, self._counts = np.concatenate(first)[order], np.concatenate(counts)[order]
        if self.state.watching and self.routes.size > n_routes:
            self.reroute()

    def _candidates(self, src: Ranks, dst: Ranks) -> tuple[NDArray[np.int64], Ranks]:
        """Return the candidate routes of host pairs as rows of links, and the number of candidates of each pair."""
        routes = self._links.routes
        if not self._multipath:
            return routes.table(src, dst), np.ones(src.size, dtype=np.int64)
        candidates = [routes.candidates(*pair) for pair in zip(src.tolist(), dst.tolist(), strict=True)]
        return route_table([route for one in candidates for route in one]), np.array([len(one) for one in candidates])

    def limiting_routes(self, routes: Ranks, n_messages: int, take: Callable[[Table, int], int]) -> Ranks:
        """Return copies of `routes` on which flows share only links that can limit them, if no others are in use.

        That saves time if `n_messages`, with repeated rounds, are many for each route; otherwise `routes` are returned.
        """
        used, places = unique_places(routes, self.routes.size)
        if n_messages < max(_MANY, _MANY_PER_ROUTE * used.size):
            return routes
        rows = {name: self.routes.read(name)[used] for name in ("begin", "end", "own", "latency", "loss")}
        at, links = rows["begin"][:, np.newaxis] + np.arange(self.state.hops), self.tables["route_links"]
        table = np.where(at < rows["end"][:, np.newaxis], links.numbers(0, links.size)[at % links.size], -1)
        limiting = limiting_links(table, self._links.constant_capacity)
        first = links.put(limiting.ravel(), take) + limiting.shape[1] * np.arange(used.size)
        r = take(self.routes, used.size)
        self.routes.write(r, used.size, **rows, first=first, stop=first + (limiting >= 0).sum(axis=1))
        return r + places

    def _describe(self, first: int, table: NDArray[np.int64]) -> None:
        """Write first link, constant latency and loss of the routes in `table`, one per row, from row `first` on."""
        self.routes.write(first, len(table), own=self._links.own_of(table))
        if not self.state.latency_changes:
            self.routes.write(first, len(table), latency=self._links.constant_latency_of(table))
        if not self._links.lossless:
            # A rerouted route keeps its loss record.
            losses, row = self.tables["losses"], int(self.state.routes[first].loss)
            if row < 0:
                row = losses.take(len(table))
                self.routes.write(first, len(table), loss=row + np.arange(len(table)))
            slope, fixed, payload = self._links.limits_of(table)
            losses.write(row, len(table), slope=slope, fixed=fixed, payload=payload)

    def route(self, f: int) -> list[int]:
        """Return the links that message f must still pass: only the last if it is entirely in the receive queue."""
        return self.route_of(self.state.flows[f].route)[-1 if self._passes(f) else 0 :]

    def _down(self) -> list[int]:
        """Return the indices of failed links: those with capacity 0."""
        return [int(link) for link in np.flatnonzero(self.links.read("capacity") <= 0)]

    def reroute(self) -> None:
        """Route messages, also those in flight, around failed links; restore the routes when links recover.

        A pair of hosts without a detour keeps its route and waits.
        """
        s = self.state
        down = frozenset(self._down())
        wanted = {}
        for r, (src, dst, route) in self._original.items():
            around = None if down.isdisjoint(route) else self._links.routes.around(src, dst, down)
            if around is None or len(around) > _DETOUR:
                around = route
            if self.route_of(r) != list(around):
                wanted[r] = around
        sending = self._stop_sending(wanted)
        gone = codes.VANISHED, codes.DRAINED
        alive = codes.ON_ITS_WAY, codes.BLOCKED, codes.FLOWING, codes.QUEUED
        under_way = [f for f in self.in_state(*alive, *gone) if s.flows[f].route in wanted]
        moved = [f for f in under_way if not self._passes(f)]
        loads = [f for f in under_way if s.flows[f].owner != codes.BACKGROUND and s.flows[f].state not in gone]
        for f in loads:
            self.loop.count_assigned(s, f, -1)
        for f in moved:
            flow = s.flows[f]
            if flow.state == codes.FLOWING:
                self.loop.detach_flow(s, f)
                self.loop.set_rate(s, f, 0.0, codes.NOTHING, s.now)
            self._scale(f, self._payload(flow.route))
        for r, around in wanted.items():
            self.change_route(r, around)
            self._describe(r, route_table([around]))
        for f in loads:
            self.loop.count_assigned(s, f, 1)
        for f in moved:
            flow = s.flows[f]
            self._scale(f, 1 / self._payload(flow.route))
            if flow.owner != codes.BACKGROUND:
                latency = self.loop.latency_of(s, flow.route, s.now)
                flow.limit = self.loop.limit_of(s, flow.route, latency)
                if flow.passed:
                    flow.limit = min(flow.limit, flow.whole / flow.lasts)
                if s.weighted:
                    flow.weight = self.loop.weight_of(s, latency)
            if flow.state == codes.FLOWING:
                self.loop.start_flow(s, f, s.now)
        self._send_anew(sending)
        self._queue_anew()

    def _stop_sending(self, routes: Container[int]) -> list[tuple[int, int, list[int]]]:
        """Stop ranks whose unsent messages use `routes`; return (rank, link it sends over, unsent messages) of each."""
        s = self.state
        found = []
        for first in [int(one.row) for one in s.event_queue[: s.n_events] if one.kind == codes.LEFT]:
            messages = [first]
            while (f := int(s.flows[messages[-1]].next)) >= 0:
                messages.append(f)
            found.append((int(s.messages[s.flows[first].message].src), messages))
        turning = {g for g, messages in found if any(s.flows[f].route in routes for f in messages)}
        stopped = []
        for g, messages in found:
            if g not in turning:
                continue
            first, *behind = messages
            own = int(s.routes[s.flows[first].route].own)
            if s.links[own].port_flow == first:
                s.links[own].port_flow = codes.NONE
            if self.loop.transmission_end(s, first) <= s.now:
                # The message departs at this instant; the event is already queued.
                s.flows[first].next, s.flows[first].counted, s.flows[first].pace = codes.NONE, s.now, math.inf
                stopped.append((g, own, behind))
                continue
            self.loop.count_sent(s, first)
            if self.loop.remove_event(s, codes.LEFT, first) < math.inf:
                s.ranks[g].leaving -= 1
            s.ranks[g].missing -= 1
            stopped.append((g, own, messages))
        return stopped

    def _send_anew(self, stopped: list[tuple[int, int, list[int]]]) -> None:
        """Resume stopped sends on the first links of their new routes; messages whose link is unchanged go first."""
        s = self.state
        queues: dict[tuple[int, int], list[int]] = {}
        turning = []
        for g, own, messages in stopped:
            for f in messages:
                if (link := int(s.routes[s.flows[f].route].own)) == own:
                    queues.setdefault((g, own), []).append(f)
                else:
                    turning.append((int(s.flows[f].message), g, link, f))
        for _, g, link, f in sorted(turning):
            queues.setdefault((g, link), []).append(f)
        for (g, _), messages in queues.items():
            for f, behind in itertools.pairwise([*messages, codes.NONE]):
                s.flows[f].next = behind
            s.ranks[g].missing += 1
            end = self.loop.transmit_at(s, messages[0], max(s.now, s.flows[messages[0]].counted))
            self.loop.schedule_departure(s, messages[0], end)

    def _payload(self, r: int) -> float:
        """Return the payload's share of the bytes on route r; the rest is retransmission after packet loss."""
        loss = self.state.routes[r].loss
        return 1.0 if loss < 0 else float(self.state.losses[loss].payload)

    def _scale(self, f: int, factor: float) -> None:
        """Multiply all byte counts of message f by `factor`, to include retransmissions or to leave them out."""
        flow = self.state.flows[f]
        flow.unsent *= factor
        flow.remaining *= factor
        flow.residue *= factor
        flow.whole *= factor

    def _passes(self, f: int) -> bool:
        """Return whether all bytes of message f have entered its receive queue."""
        flow = self.state.flows[f]
        return bool(flow.port >= 0 and not flow.comes)

    def _queue_anew(self) -> None:
        """Move queued messages whose new route begins with another link to the egress queue of that link."""
        s = self.state
        for link in np.flatnonzero(self.links.read("port_first") >= 0).tolist():
            for f in self._take_rerouted(link):
                own = int(s.routes[s.flows[f].route].own)
                port = s.links[own]
                if port.port_first < 0 and port.port_rest <= 0 and port.port_free < math.inf:
                    self.loop.push_event(s, max(s.now, port.port_free), codes.DEQUEUE, own)
                s.n_queued -= 1
                self.loop.join_egress_queue(s, f, own)

    def _take_rerouted(self, link: int) -> list[int]:
        """Remove and return the messages in a link's egress queue whose route begins with another link."""
        s = self.state
        waiting, f = [], int(s.links[link].port_first)
        while f >= 0:
            waiting.append(f)
            f = int(s.flows[f].next)
        gone = [f for f in waiting if s.flows[f].state == codes.QUEUED and s.routes[s.flows[f].route].own != link]
        kept = [f for f in waiting if f not in gone]
        for f, behind in itertools.pairwise([*kept, codes.NONE]):
            s.flows[f].next = behind
        s.links[link].port_first, s.links[link].port_last = [*kept, codes.NONE][0], [codes.NONE, *kept][-1]
        return gone

    def in_state(self, *states: int) -> list[int]:
        """Return the rows of all flows whose state, such as `codes.BLOCKED`, is one of `states`."""
        return [int(f) for f in np.flatnonzero(np.isin(self.flows.read("state"), states))]

    def next_link_up(self) -> float:
        """Return when the first failed link recovers [s]; infinity if no failed link ever does."""
        return self.next_up([(link,) for link in self._down()])

    def next_up(self, routes: Iterable[Sequence[int]]) -> float:
        """Return when all links of one of `routes` first have capacity again [s]; infinity if that never happens."""
        now = self.state.now
        up = min((self._links.next_up(route, self.moment(now)) for route in routes), default=math.inf)
        return max(up - self.origin, math.nextafter(now, math.inf))
