"""A network in motion: links, weather, routes and schedules as tables of the event loop, and what comes of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.network.event_loop.records import (
    BACKGROUND,
    FAIL,
    FLOWING,
    HELD,
    NOTHING,
    ON_ITS_WAY,
    QUEUED,
    TRANSFER,
    VANISHED,
)
from simnet.network.links import Links, TimelineCache, Timelines, moments_around
from simnet.network.program import Program
from simnet.network.sharing import MAX_MIN, Sharing
from simnet.network.stack import IDEAL, LetGo, Stack
from simnet.network.tables import Store, Table, loop_is_loaded
from simnet.schedule import Round
from topologies.routes import as_table

# Messages from which on loading the compiled event loop takes less time than it saves.
_MANY = 50_000

_NO_RANKS = np.zeros(0, dtype=np.int64)

# Links on a detour around links that are down, at most.
_DETOUR = 256


class Handle(NamedTuple):
    """Where a run stands in the tables.

    Parameters
    ----------
    run, ranks : int
        Its row, and that of its first rank.
    n_ranks, slots, n_messages : int
        Ranks, messages that can be under way at once, and all messages.
    taken : list of (Table, int, int)
        All rows that it has: table, first, and how many.
    """

    run: int
    ranks: int
    n_ranks: int
    slots: int
    n_messages: int
    taken: list[tuple[Table, int, int]]


class Engine(Store):
    """A network in motion.

    Its times are in seconds since its `origin`, so that they keep their digits however late that is; the weather is
    counted from there when it is laid into tables.

    Parameters
    ----------
    links : Links
        What messages use.
    overheads : (float, float)
        Seconds per message before it leaves the sender and after its last byte arrived.
    stack : Stack
        How messages are sent.
    sharing : Sharing
        How flows share links.
    multipath : bool
        Whether messages have all routes of equal cost to choose from, or one.
    adaptive : bool
        Whether they choose by load.
    watching : bool
        Whether `advance` of the event loop returns when a link goes down or comes up.
    compiled : bool
        Whether to use the compiled event loop, if there is one.
    """

    def __init__(
        self,
        links: Links,
        overheads: tuple[float, float] = (0.0, 0.0),
        stack: Stack = IDEAL,
        sharing: Sharing = MAX_MIN,
        *,
        multipath: bool = False,
        adaptive: bool = False,
        watching: bool = False,
        compiled: bool = False,
    ) -> None:
        count = len(links.routes.links)
        super().__init__(compiled, count, min(_DETOUR, count) if watching else 0)
        self._links, self._stack, self._multipath = links, stack, multipath
        self._on = TimelineCache([one.on for one in links.flows], {})
        self._known: tuple[Timelines, ...] = ()
        self.origin = self._counted_from = 0.0
        self._handles: list[Handle] = []
        self._n_transfers = 0
        self._routes_of: dict[tuple[int, int], tuple[int, int]] = {}
        self._original: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        s = self.state
        s.send_overhead, s.receive_overhead = overheads
        s.segment = links.segment
        s.lets_go, s.queues = get_args(LetGo).index(stack.lets_go), stack.own_link == "queue"
        s.posts_ahead = stack.posts_ahead
        s.runs_ahead, s.eager_limit, s.buffer = stack.rounds > 1 or stack.posts_ahead, stack.eager_limit, stack.buffer
        s.frame, s.word = (stack.segment + stack.beside) * (stack.segment > 0), float(stack.framed(stack.word))
        s.before, s.after = stack.before, stack.after
        s.by_turns = stack.by_turns
        s.before_byte, s.after_byte = stack.before_byte, stack.after_byte
        s.weighted, s.exponent = sharing.law == "rtt", sharing.power
        s.counted, s.queueing = sharing.most, sharing.wait
        s.in_order = s.queues and not s.weighted
        s.adaptive, s.watching, s.latency_changes = adaptive, watching, links.latency_changes
        self._lay_links()
        self._lay_background()

    def grow(self) -> None:
        """Make room for more messages under way, and arrivals before their round; see `records.GROW`."""
        if self.state.n_free < self.state.most_sends:
            self.make_room(flows=max(self.state.most_sends, self.flows.size // 2))
        if self.state.n_early < 4:
            early = self.tables["early"]
            count = max(256, 2 * self.state.n_early)
            first = early.take(count)
            early.write(first, count, next=np.append(np.arange(first + 1, first + count), self.state.free_early))
            self.state.free_early = first
            self.state.n_early += count

    # Links, their weather, and background traffic.

    def _lay_links(self) -> None:
        links, count = self._links, self.n_links
        if links.constant:
            self.links.write(0, count, capacity=links.constant_capacity)
        else:
            # Timelines of the bandwidths of all links, of their latencies, and of whether background traffic is on.
            self.tables["timelines"].take(2 * count + len(links.flows))
            self.links.write(0, count, bandwidths=np.arange(count), latencies=np.arange(count, 2 * count))
        if links.crowding is not None:
            factors, rows = links.crowding
            at = self.tables["crowd_factors"].put(factors.ravel())
            self.links.write(0, count, crowd=np.where(rows < 0, -1, at + rows * factors.shape[1]))
            self.state.n_crowd = factors.shape[1]

    def _lay_background(self) -> None:
        flows, background = self._links.flows, self.tables["background"]
        count = self.state.n_background = len(flows)
        background.take(count)
        background.write(
            0,
            count,
            limit=np.array([one.limit for one in flows]),
            route=self._routes_between(np.array([one.src for one in flows]), np.array([one.dst for one in flows]))[0],
            timeline=2 * self.n_links + np.arange(count),
        )
        if self.state.weighted:
            # These flows are left out while there is nobody to share with, so theirs are the latencies of one time.
            routes = [self.route_of(r) for r in background.read("route", 0, count)]
            latencies = [sum(self._links.latency(link, 0.0) for link in route) for route in routes]
            background.write(0, count, weight=[self.loop.weight_of(self.state, latency) for latency in latencies])
        self.make_room(flows=count + 1)

    def look_ahead(self, until: float = 0.0, *, rewind: bool = False) -> None:
        """Have the weather, and when background traffic comes and goes, until later than a time [s].

        See `records.EXTEND`. With `rewind`, time may have gone back.
        """
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
        """Return the first moment [s] that a double can tell to be after `t` [s since the origin]."""
        return moments_around(self.origin, t, t)[1]

    def _ask(self, t: float) -> None:
        """Ask everything for its value at a time; what has none raises the error that says why."""
        for link in range(self.n_links):
            self._links.capacity(link, t)
            self._links.latency(link, t)
        for traffic in self._links.flows:
            traffic.on.at(t)

    def begin(self, origin: float, now: float) -> None:
        """Clear the network of everything, and set from when on time counts [s], and the time since then."""
        s = self.state
        s.n_due = s.n_asked = s.n_quiet = s.n_ends = s.n_moving = s.n_new = s.n_dirty = s.n_notices = 0
        s.background_on = False
        # The last caller may have ended with an error.
        for handle in self._handles[:]:
            self.over(handle)
        while self._n_transfers:
            self.arrived()
        s.free_flow, s.n_free = -1, 0
        self.loop.free_all(s, 0, self.flows.size)
        self.links.write(0, self.n_links, users=0, first_use=-1, assigned=0, is_dirty=False)
        self.links.write(0, self.n_links, port_rank=-1, port_flow=-1, port_first=-1, port_rest=0.0, port_free=-math.inf)
        self.tables["background"].write(0, s.n_background, flow=-1, until=-math.inf)
        # Latencies have been looked up that much later.
        rewind = now < s.now + s.send_overhead
        self.origin, s.now, s.hope = origin, now, -math.inf
        if not self._links.constant:
            self.links.write(0, self.n_links, until=-math.inf)
            self.look_ahead(rewind=rewind)
        if s.watching:
            # It is to be on the agenda when links change, whether they are in use or not.
            self.loop.look_up_all(s, self.n_links, now)
            self.reroute()

    # Routes.

    def _routes_between(self, src: Ranks, dst: Ranks) -> tuple[Ranks, Ranks]:
        """Return the first of the candidate routes from each of hosts `src` to each of `dst`, and how many; (m,)."""
        hosts = self._links.routes.n_hosts
        numbers, which = np.unique(src * hosts + dst, return_inverse=True)
        pairs = list(zip((numbers // hosts).tolist(), (numbers % hosts).tolist(), strict=True))
        new = [pair for pair in pairs if pair not in self._routes_of]
        if new:
            self._add_pairs(new)
        found = np.array([self._routes_of[pair] for pair in pairs], dtype=np.int64).reshape(-1, 2)[which]
        return found[:, 0], found[:, 1]

    def _add_pairs(self, pairs: list[tuple[int, int]]) -> None:
        routes = self._links.routes
        if self._multipath:
            candidates = [routes.candidates(*pair) for pair in pairs]
            counts = [len(one) for one in candidates]
            table = as_table([route for one in candidates for route in one])
        else:
            counts = [1] * len(pairs)
            table = routes.table(*(np.array(one) for one in zip(*pairs, strict=True)))
        self.make_room(hops=table.shape[1])
        r = self.add_routes(table)
        self._describe(r, table)
        rows = iter(table)
        for pair, count in zip(pairs, counts, strict=True):
            self._routes_of[pair] = r, count
            if self.state.watching:
                for one, row in zip(range(r, r + count), rows, strict=False):
                    self._original[one] = *pair, tuple(row[row >= 0].tolist())
            r += count
        if self.state.watching:
            self.reroute()

    def _describe(self, first: int, table: NDArray[np.int64]) -> None:
        """Write the own link and the latency of routes, and what loss does, given the links of each."""
        self.routes.write(first, len(table), own=self._links.own_of(table))
        if not self.state.latency_changes:
            self.routes.write(first, len(table), latency=self._links.constant_latency_of(table))
        if not self._links.lossless:
            slope, fixed, payload = self._links.limits_of(table)
            self.routes.write(first, len(table), slope=slope, fixed=fixed, payload=payload)

    def route(self, f: int) -> list[int]:
        """Return the links of a message under way, as indices into the links of the routes."""
        return self.route_of(self.state.flows[f].route)

    def _down(self) -> list[int]:
        """Return the links that are down."""
        return [int(link) for link in np.flatnonzero(self.links.read("capacity") <= 0)]

    def reroute(self) -> None:
        """Let every route go around the links that are down; what is under way on it follows at once.

        A pair of hosts without another route keeps its own, and waits. When a link is up again, so is the old route.
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
        moved = [f for f in self._in_state(ON_ITS_WAY, HELD, FLOWING, VANISHED, QUEUED) if s.flows[f].route in wanted]
        for f in moved:
            flow = s.flows[f]
            if flow.state == FLOWING:
                self.loop.set_rate(s, f, 0.0, NOTHING, s.now)
                self.loop.detach(s, f)
            # Payload, without what has to be sent again.
            flow.remaining *= s.routes[flow.route].payload
            flow.residue *= s.routes[flow.route].payload
            if s.adaptive and flow.owner != BACKGROUND:
                self.loop.assign(s, flow.route, -1)
        for r, around in wanted.items():
            self.change_route(r, around)
            self._describe(r, as_table([around]))
        for f in moved:
            flow = s.flows[f]
            flow.remaining /= s.routes[flow.route].payload
            flow.residue /= s.routes[flow.route].payload
            if flow.owner != BACKGROUND:
                latency = self.loop.latency_of(s, flow.route, s.now)
                flow.limit = self.loop.limit_of(s, flow.route, latency)
                if s.weighted:
                    flow.weight = self.loop.weight_of(s, latency)
                if s.adaptive:
                    self.loop.assign(s, flow.route, 1)
            if flow.state == FLOWING:
                self.loop.start_flow(s, f, s.now)
        for link in np.flatnonzero(self.links.read("far_first") >= 0).tolist():
            self.loop.let_in_at(s, link)

    # What runs.

    def transfer(self, src: int, dst: int, nbytes: float, delay: float, pick: int, token: int) -> None:
        """Let a message leave now, on candidate number `pick`; its arrival is noticed with the token."""
        s = self.state
        self._n_transfers += 1
        self.make_room(flows=1)
        if self.loop.changes(s):
            self.reroute()
        if (src, dst) not in self._routes_of:
            self._add_pairs([(src, dst)])
        if not s.n_free:
            self.grow()
        f = self.loop.address(s, TRANSFER, *self._routes_of[src, dst], pick, float(self._stack.framed(nbytes)), delay)
        s.flows[f].message = token
        self.loop.hand_over(s, f)

    def arrived(self) -> None:
        """Take note that a transfer is over."""
        self._n_transfers -= 1
        self.give_room(flows=1)

    def run(self, program: Program, keep: bool) -> Handle:
        """Let the ranks of schedules enter; `keep` says whether to keep start and finish of every message."""
        P, schedule = program.hosts.size, program.schedule
        taken: list[tuple[Table, int, int]] = []

        def take(table: Table, count: int) -> int:
            at = table.take(count)
            taken.append((table, at, count))
            return at

        distinct = list({id(one): one for one in schedule.rounds}.values())
        sends = np.array([np.bincount(one.src, minlength=P) for one in distinct]).reshape(-1, P)
        receives = np.array([np.bincount(one.dst, minlength=P) for one in distinct]).reshape(-1, P)
        slots = int(sends.max(axis=0, initial=0).sum())
        self.make_room(flows=slots, ranks=P)
        most = 2 * int((sends + receives).max(initial=0)) + self.state.n_background + 4
        self.state.most_sends = max(self.state.most_sends, most)
        runs, ranks, rounds = (self.tables[name] for name in ("runs", "ranks", "rounds"))
        e, g = take(runs, 1), take(ranks, P)
        ranks.write(
            g, P, start=program.start, since=program.accounted, finish=program.start, run=e, number=np.arange(P)
        )
        tasks = self._lay_tasks(distinct, sends, receives, g, program.hosts, take)
        n_rounds, n_messages = len(schedule.rounds), schedule.n_messages
        i = take(rounds, n_rounds + 1)
        rounds.write(i, n_rounds, tasks=np.array([tasks[id(one)] for one in schedule.rounds], dtype=np.int64))
        rounds.write(i + 1, n_rounds, offset=np.cumsum([len(one) for one in schedule.rounds], dtype=np.int64))
        ahead = np.array(self._stack.ahead(program.schedule.rounds), dtype=np.int64)
        phases = [one.phase for one in program.schedule.rounds]
        continues = np.array([False, *map(operator.eq, phases, phases[1:])][:n_rounds])
        rounds.write(i, n_rounds, ahead=ahead, continues=continues)
        for index, gate in program.gates().items():
            rounds.write(i + index, 1, gates=self.tables["gates"].put(gate, take))
        for index, one in enumerate(schedule.rounds if keep else ()):
            if np.any(one.compute):
                rounds.write(i + index, 1, worked=self.tables["worked"].put(np.full(P, np.nan), take))
        unknown = np.full(n_messages if keep or program.failures else 0, np.nan)
        columns = {"delays": program.delays.all(), "picks": program.picks, "sent": unknown, "arrived": unknown}
        places = {name: self.tables[name].put(column, take) for name, column in columns.items()}
        runs.write(e, 1, n_ranks=P, n_rounds=n_rounds, running=P, ranks=g, rounds=i, **places)
        # Asked for first, so that at one instant a failure comes before everything else.
        for rank, time in sorted(program.failures.items()):
            self.loop.push(self.state, max(time - self.origin, self.state.now), FAIL, g + rank)
        self.loop.start_run(self.state, e)
        handle = Handle(e, g, P, slots, n_messages, taken)
        self._handles.append(handle)
        return handle

    def _lay_tasks(
        self,
        distinct: list[Round],
        sends: Ranks,
        receives: Ranks,
        ranks: int,
        hosts: Ranks,
        take: Callable[[Table, int], int],
    ) -> dict[int, int]:
        """Write what each rank has to do in each round, and the messages; return the first task of a round by its id.

        Parameters
        ----------
        distinct : list of Round
            The rounds, each once.
        sends : ndarray of int, shape (number of rounds, P)
            How many messages each rank sends in each.
        receives : ndarray of int, shape (number of rounds, P)
            How many it receives.
        ranks : int
            The first rank.
        hosts : ndarray, shape (P,)
            Host of each rank.
        take : callable
            Returns the first of so many rows of a table.
        """
        P, messages, tasks = hosts.size, self.tables["messages"], self.tables["tasks"]
        # Messages are in the order of rounds, and in these of their senders.
        orders = [np.argsort(one.src, kind="stable") for one in distinct]
        ordered = list(zip(distinct, orders, strict=True))
        src = np.concatenate([_NO_RANKS, *(one.src[order] for one, order in ordered)])
        dst = np.concatenate([_NO_RANKS, *(one.dst[order] for one, order in ordered)])
        route, candidates = self._routes_between(hosts[src], hosts[dst])
        pairs, connection = np.unique(src * P + dst, return_inverse=True)
        connections = take(self.tables["connections"], pairs.size)
        m = take(messages, src.size)
        messages.write(
            m,
            src.size,
            n_bytes=np.concatenate([np.zeros(0), *(self._stack.wire(one, P)[order] for one, order in ordered)]),
            payload=np.concatenate([np.zeros(0), *(one.nbytes[order] for one, order in ordered)]),
            src=ranks + src,
            dst=ranks + dst,
            route=route,
            candidates=candidates,
            number=np.concatenate([_NO_RANKS, *orders]),
            connection=connections + connection,
        )
        if self._stack.lets_go not in ("left", "taken"):
            messages.write(m, src.size, back=self._routes_between(hosts[dst], hosts[src])[0])
        numbers = np.repeat(np.arange(len(distinct)), [len(one) for one in distinct])
        incoming = self.tables["incoming"].put(m + np.lexsort((np.arange(src.size), dst, numbers)), take)
        first = take(tasks, sends.size)
        tasks.write(
            first,
            sends.size,
            seconds=np.concatenate([np.zeros(0), *(np.broadcast_to(one.compute, P) for one in distinct)]),
            messages=m + np.cumsum(np.append(0, sends.ravel()))[:-1],
            sends=sends.ravel(),
            incoming=incoming + np.cumsum(np.append(0, receives.ravel()))[:-1],
            receives=receives.ravel(),
        )
        return {id(one): first + P * place for place, one in enumerate(distinct)}

    def over(self, handle: Handle) -> None:
        """Forget a run, whether it is done or not."""
        self._handles.remove(handle)
        self.loop.forget(self.state, handle.run)
        self.give_room(flows=handle.slots, ranks=handle.n_ranks)
        for table, at, count in handle.taken:
            table.give_back(at, count)

    def of_ranks(self, handle: Handle, field: str) -> NDArray[Any]:
        """Return a field of all ranks of a run; shape (P,)."""
        return self.tables["ranks"].read(field, handle.ranks, handle.n_ranks)

    def of_messages(self, handle: Handle, field: str) -> Floats:
        """Return when all messages of a run were `sent`, or `arrived` [s]; NaN if they were not."""
        return self.tables[field].numbers(getattr(self.state.runs[handle.run], field), handle.n_messages)

    def began_to_work(self, handle: Handle, number: int) -> Floats:
        """Return when each rank began to compute before a round [s], shape (P,); NaN if that was not kept."""
        s = self.state
        worked = s.rounds[s.runs[handle.run].rounds + number].worked
        if worked < 0:
            return np.full(handle.n_ranks, np.nan)
        return self.tables["worked"].numbers(worked, handle.n_ranks)

    # What is under way.

    def notices(self) -> list[tuple[int, int]]:
        """Return what `advance` has left notice of, kind and item, and forget it."""
        count = self.state.n_notices
        self.state.n_notices = 0
        return [(int(one.kind), int(one.row)) for one in self.state.notices[:count]]

    def _in_state(self, *states: int) -> list[int]:
        """Return all flows in one of these states."""
        return [int(f) for f in np.flatnonzero(np.isin(self.flows.read("state"), states))]

    def under_way(self) -> list[int]:
        """Return all messages under way."""
        return [f for f in self._in_state(ON_ITS_WAY, HELD, FLOWING) if self.state.flows[f].owner != BACKGROUND]

    def is_blocked(self, f: int) -> bool:
        """Return whether a message makes no progress."""
        flow = self.state.flows[f]
        return bool(flow.state == FLOWING and flow.place < 0)

    def owner(self, f: int) -> tuple[int, int]:
        """Return whose a message is: its run and 0, or `records.TRANSFER` and the token."""
        flow = self.state.flows[f]
        return int(flow.owner), int(flow.message) if flow.owner == TRANSFER else 0

    def place(self, f: int) -> tuple[int, int]:
        """Return the round of a message of a run, and its position in it."""
        flow = self.state.flows[f]
        return int(flow.round_index), int(self.state.messages[flow.message].number)

    def clear(self) -> None:
        """Take all messages off the network, of which none is before or behind its flow."""
        s = self.state
        for f in self.under_way():
            if s.flows[f].state == FLOWING:
                self.loop.detach(s, f)
            if s.adaptive:
                self.loop.assign(s, s.flows[f].route, -1)
            self.loop.free_flow(s, f)
        s.n_moving = 0

    def next_link_up(self) -> float:
        """Return when the first of the links that are down is up again; infinity if none ever is."""
        return self.next_up([(link,) for link in self._down()])

    def next_up(self, routes: Iterable[Sequence[int]]) -> float:
        """Return the first time after now at which all links of one of some routes have capacity; infinity if none."""
        now = self.state.now
        up = min((self._links.next_up(route, self.moment(now)) for route in routes), default=math.inf)
        return max(up - self.origin, math.nextafter(now, math.inf))


class Engines:
    """The engine of a network: on lists at first, compiled once there have been many messages.

    Parameters
    ----------
    links : Links
        What messages use.
    overheads, stack, sharing, options
        As for `Engine`.
    """

    def __init__(
        self, links: Links, overheads: tuple[float, float], stack: Stack, sharing: Sharing, **options: bool
    ) -> None:
        self.links = links
        self._overheads, self._stack, self._sharing, self._options = overheads, stack, sharing, options
        self._carried = 0
        self._engine: Engine | None = None
        self._compiled = False

    def take(self, n_messages: int) -> Engine:
        """Return the engine to use for so many messages more."""
        self._carried += n_messages
        compiled = self._carried >= _MANY or loop_is_loaded()
        if self._engine is None or compiled > self._compiled:
            self._compiled = compiled
            self._engine = Engine(
                self.links, self._overheads, self._stack, self._sharing, compiled=compiled, **self._options
            )
        return self._engine
