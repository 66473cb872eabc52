"""A network in motion: links, weather, ways and schedules before the kernel, and what comes of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.network import event_loop as k
from simnet.network.links import Links, Record, Timelines
from simnet.network.memory import Store, kernel_is_loaded
from simnet.schedule import Round, Schedule
from topologies.routes import as_table

# Messages from which on loading the compiled kernel takes less time than it saves.
_MANY = 50_000

_NO_RANKS = np.zeros(0, dtype=np.int64)

# Links on a way around links that are down, at most.
_DETOUR = 256


class Program(NamedTuple):
    """Schedules in a row that are to run.

    Parameters
    ----------
    rounds : list of Round
        Of all schedules, in order.
    gates : dict of int to ndarray, shape (P,)
        Before which rounds ranks wait, and until when [s]. The round after the last is the end.
    start, accounted : ndarray, shape (P,)
        When each rank enters, and from when on its time is accounted [s].
    delays : ndarray, shape (number of messages,)
        Extra latency of each message [s]; empty for none.
    picks : ndarray of int, shape (number of messages,)
        Number by which a message chooses between its ways; empty for the first.
    """

    rounds: list[Round]
    gates: dict[int, Floats]
    start: Floats
    accounted: Floats
    delays: Floats
    picks: Ranks

    @property
    def n_messages(self) -> int:
        """Number of messages."""
        return sum(map(len, self.rounds))

    @classmethod
    def of(
        cls, parts: Sequence[tuple[Schedule, Floats]], start: Floats, accounted: Floats, delays: Floats, picks: Ranks
    ) -> Program:
        """Return schedules in a row, given when each rank may enter each [s]."""
        rounds: list[Round] = []
        gates: dict[int, Floats] = {}
        for schedule, ready in parts:
            # An empty schedule shares its gate with the next, or holds up the end.
            gates[len(rounds)] = np.maximum(ready, gates.get(len(rounds), 0.0))
            rounds.extend(schedule.rounds)
        return cls(rounds, gates, start, accounted, delays, picks)


class Seat(NamedTuple):
    """Where a run stands in the memory.

    Parameters
    ----------
    run, ranks : int
        Its record, and that of its first rank.
    n_ranks, slots, n_messages : int
        Ranks, messages that can be under way at once, and all messages.
    blocks : list of (int, int)
        Where all of it begins, and how long it is.
    """

    run: int
    ranks: int
    n_ranks: int
    slots: int
    n_messages: int
    blocks: list[tuple[int, int]]


class Engine(Store):
    """A network in motion.

    Parameters
    ----------
    links : Links
        What messages use.
    overheads : (float, float)
        Seconds per message before it leaves the sender and after its last byte arrived.
    fans : bool
        Whether messages have all routes of equal cost to choose from, or one.
    adaptive : bool
        Whether they choose by load.
    watching : bool
        Whether `advance` of the kernel returns when a link goes down or comes up.
    compiled : bool
        Whether to use the compiled kernel, if there is one.
    """

    def __init__(
        self,
        links: Links,
        overheads: tuple[float, float] = (0.0, 0.0),
        *,
        fans: bool = False,
        adaptive: bool = False,
        watching: bool = False,
        compiled: bool = False,
    ) -> None:
        count = len(links.routes.links)
        super().__init__(compiled, count, min(_DETOUR, count) if watching else 0)
        self._links, self._fans = links, fans
        self._on = Record([one.on for one in links.flows], {})
        self._known: tuple[Timelines, ...] = ()
        self._seats: list[Seat] = []
        self._n_transfers = 0
        self._fan_of: dict[tuple[int, int], int] = {}
        self._route_of: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        x, n = self.memory.x, self.memory.n
        x[k.SEND_OVERHEAD], x[k.RECEIVE_OVERHEAD], x[k.SEGMENT] = *overheads, links.segment
        n[k.ADAPTIVE], n[k.WATCHING] = int(adaptive), int(watching)
        n[k.CHANGING] = int(links.latency_changes)
        self._lay_links()
        self._lay_others()

    def grow(self) -> None:
        """Make room for more arrivals at ranks that have not come to their round yet; see `kernel.GROW`."""
        count = max(256, 2 * int(self.memory.n[k.N_EARLY]))
        begin = self.take(count * k.EARLY_SIZE)
        handles = np.arange(begin, begin + count * k.EARLY_SIZE, k.EARLY_SIZE)
        after = np.append(handles[1:], self.memory.n[k.FREE_EARLY])
        self.write("n", begin + k.EARLY_NEXT, count, after, k.EARLY_SIZE)
        self.memory.n[k.FREE_EARLY] = begin
        self.memory.n[k.N_EARLY] += count

    # Links, their weather, and traffic of others.

    def _lay_links(self) -> None:
        links, count = self._links, self.n_links
        if links.constant:
            self.links("x", k.LINK_CAPACITY, links.constant_capacity)
        else:
            self._courses = {name: self.take(count * k.COURSE_SIZE) for name in ("bandwidths", "latencies")}
            self._courses["on"] = self.take(len(links.flows) * k.COURSE_SIZE)
            for name, field in (("bandwidths", k.LINK_BANDWIDTHS), ("latencies", k.LINK_LATENCIES)):
                self.links("n", field, self._courses[name] + k.COURSE_SIZE * np.arange(count))
        if links.crowding is not None:
            factors, rows = links.crowding
            at = self.block("x", factors.ravel())
            self.links("n", k.LINK_CROWD, np.where(rows < 0, 0, at + rows * factors.shape[1]))
            self.memory.n[k.N_CROWD] = factors.shape[1]

    def _lay_others(self) -> None:
        flows = self._links.flows
        fans = self._fans_of(np.array([one.src for one in flows]), np.array([one.dst for one in flows]))
        at = self.take(len(flows) * k.OTHER_SIZE)
        self.write("x", at + k.OTHER_LIMIT, len(flows), np.array([one.limit for one in flows]), k.OTHER_SIZE)
        self.write("n", at + k.OTHER_FAN, len(flows), fans, k.OTHER_SIZE)
        if flows:
            courses = self._courses["on"] + k.COURSE_SIZE * np.arange(len(flows))
            self.write("n", at + k.OTHER_COURSE, len(flows), courses, k.OTHER_SIZE)
        self.memory.n[k.OTHERS], self.memory.n[k.N_OTHERS] = at, len(flows)
        self.make_room(flows=len(flows) + 1)

    def look_ahead(self, until: float = 0.0, *, rewind: bool = False) -> None:
        """Put the weather, and when others come and go, before the kernel until later than a time [s].

        See `kernel.EXTEND`. With `rewind`, time may have gone back.
        """
        links, now = self._links, float(self.memory.x[k.NOW])
        if links.constant:
            return
        # Latencies are those at the time of departure.
        until = max(until, now) + float(self.memory.x[k.SEND_OVERHEAD])
        records = {"bandwidths": links.bandwidths, "latencies": links.latencies, "on": self._on}
        known = tuple(one.timelines(now, until) for one in records.values())
        again = len(known) == len(self._known) and all(map(operator.is_, known, self._known))
        if not again:
            self._known = known
            times, values = (np.concatenate([one[part] for one in known]) for part in (2, 3))
            self.memory = self.memory._replace(times=times, values=values)
            self.memory.x[k.HORIZON] = min(one.until for one in known)
            if self.memory.x[k.HORIZON] <= until:
                self._ask(until)
        if not again or rewind:
            at = 0
            for name, one in zip(records, known, strict=True):
                for field, column in ((k.COURSE_HERE, one.first), (k.COURSE_LAST, one.last - 1)):
                    self.write("n", self._courses[name] + field, column.size, column + at, k.COURSE_SIZE)
                at += one.times.size

    def _ask(self, t: float) -> None:
        """Ask everything for its value at a time; what has none raises the error that says why."""
        for link in range(self.n_links):
            self._links.capacity(link, t)
            self._links.latency(link, t)
        for traffic in self._links.flows:
            traffic.on.at(t)

    def begin(self, now: float) -> None:
        """Clear the network of everything, and set its time [s]."""
        x, n = self.memory.x, self.memory.n
        for size in (k.N_DUE, k.N_ASKED, k.N_QUIET, k.N_ENDS, k.N_MOVING, k.N_NEW, k.N_DIRTY, k.N_NOTICES, k.OTHERS_ON):
            n[size] = 0
        # Whoever used it before may have ended with an error.
        for seat in self._seats[:]:
            self.over(seat)
        while self._n_transfers:
            self.arrived()
        self.free_all_flows()
        for field in (k.LINK_USERS, k.LINK_FIRST, k.LINK_ASSIGNED, k.LINK_DIRTY):
            self.links("n", field, 0)
        others = int(n[k.OTHERS]), int(n[k.N_OTHERS])
        self.write("n", others[0] + k.OTHER_FLOW, others[1], 0, k.OTHER_SIZE)
        self.write("x", others[0] + k.OTHER_DUE, others[1], -math.inf, k.OTHER_SIZE)
        # Latencies have been looked up that much later.
        rewind = now < x[k.NOW] + x[k.SEND_OVERHEAD]
        x[k.NOW], x[k.HOPE] = now, -math.inf
        if not self._links.constant:
            self.links("x", k.LINK_UNTIL, -math.inf)
            self.look_ahead(rewind=bool(rewind))
        if n[k.WATCHING]:
            # It is to be on the agenda when links change, whether they are in use or not.
            self.kernel.look_up_all(self.memory, self.first_link, self.n_links, now)
            self.reroute()

    # Ways.

    def _fans_of(self, src: Ranks, dst: Ranks) -> Ranks:
        """Return the ways from each of hosts `src` to each of `dst`, shape (m,)."""
        hosts = self._links.routes.n_hosts
        numbers, which = np.unique(src * hosts + dst, return_inverse=True)
        pairs = list(zip((numbers // hosts).tolist(), (numbers % hosts).tolist(), strict=True))
        new = [pair for pair in pairs if pair not in self._fan_of]
        if new:
            self._add_ways(new)
        return np.array([self._fan_of[pair] for pair in pairs], dtype=np.int64)[which]

    def _add_ways(self, pairs: list[tuple[int, int]]) -> None:
        routes = self._links.routes
        if self._fans:
            ways = [routes.candidates(*pair) for pair in pairs]
            counts = np.array([len(one) for one in ways])
            table = as_table([route for one in ways for route in one])
        else:
            counts = np.ones(len(pairs), dtype=np.int64)
            table = routes.table(*(np.array(one) for one in zip(*pairs, strict=True)))
        self.make_room(hops=table.shape[1])
        size = self.way_size()
        way = self.take(len(table) * size)
        self._lay(way, table)
        fan = self.take(len(table) + k.FAN_WAYS * len(pairs))
        rows = iter(table)
        for pair, count in zip(pairs, counts.tolist(), strict=True):
            self._fan_of[pair] = fan
            self.memory.n[fan + k.FAN_COUNT] = count
            for place in range(fan + k.FAN_WAYS, fan + k.FAN_WAYS + count):
                self.memory.n[place] = way
                row = next(rows)
                if self.memory.n[k.WATCHING]:
                    self._route_of[way] = *pair, tuple(row[row >= 0].tolist())
                way += size
            fan += k.FAN_WAYS + count
        if self.memory.n[k.WATCHING]:
            self.reroute()

    def _lay(self, first: int, table: NDArray[np.int64]) -> None:
        """Write the records of ways from `first` on, with their latency and what loss does, given the links of each."""
        self.lay_ways(first, table)
        size = self.way_size()
        if not self.memory.n[k.CHANGING]:
            self.write("x", first + k.WAY_LATENCY, len(table), self._links.constant_latency_of(table), size)
        if not self._links.lossless:
            limits = self._links.limits_of(table)
            for field, column in zip((k.WAY_SLOPE, k.WAY_BASE, k.WAY_SHARE), limits, strict=True):
                self.write("x", first + field, len(table), column, size)

    def route(self, f: int) -> tuple[int, ...]:
        """Return the links of a message under way, as indices into the links of the routes."""
        return self._links_of(int(self.memory.n[f + k.FLOW_WAY]))

    def _links_of(self, way: int) -> tuple[int, ...]:
        handles = self.read("n", way + k.WAY_LINKS, int(self.memory.n[way + k.WAY_LENGTH]))
        return tuple(((handles - self.first_link) // k.LINK_SIZE).tolist())

    def _down(self) -> list[int]:
        """Return the links that are down."""
        capacity = self.read("x", self.first_link + k.LINK_CAPACITY, self.n_links, k.LINK_SIZE)
        return [int(link) for link in np.flatnonzero(capacity <= 0)]

    def reroute(self) -> None:
        """Let every way go around the links that are down; what is under way on it follows at once.

        A pair of hosts without another route keeps its own, and waits. When a link is up again, so is the old route.
        """
        x, n = self.memory.x, self.memory.n
        down = frozenset(self._down())
        wanted = {}
        for way, (src, dst, route) in self._route_of.items():
            around = None if down.isdisjoint(route) else self._links.routes.around(src, dst, down)
            if around is None or len(around) > _DETOUR:
                around = route
            if self._links_of(way) != around:
                wanted[way] = around
        moved = [f for f in self.flows if n[f + k.FLOW_STATE] != k.FREE and n[f + k.FLOW_WAY] in wanted]
        now = float(x[k.NOW])
        for f in moved:
            if n[f + k.FLOW_STATE] == k.FLOWING:
                self.kernel.give(self.memory, f, 0.0, k.NOTHING, now)
                self.kernel.detach(self.memory, f)
            # Payload, without what has to be sent again.
            for field in (k.FLOW_REMAINING, k.FLOW_RESIDUE):
                x[f + field] *= x[n[f + k.FLOW_WAY] + k.WAY_SHARE]
            if n[k.ADAPTIVE] and n[f + k.FLOW_OWNER] != k.BACKGROUND:
                self.kernel.assign(self.memory, n[f + k.FLOW_WAY], -1)
        for way, around in wanted.items():
            self._lay(way, as_table([around]))
        for f in moved:
            w = n[f + k.FLOW_WAY]
            for field in (k.FLOW_REMAINING, k.FLOW_RESIDUE):
                x[f + field] /= x[w + k.WAY_SHARE]
            if n[f + k.FLOW_OWNER] != k.BACKGROUND:
                x[f + k.FLOW_LIMIT] = self.kernel.limit_of(self.memory, w, self.kernel.latency_of(self.memory, w, now))
                if n[k.ADAPTIVE]:
                    self.kernel.assign(self.memory, w, 1)
            if n[f + k.FLOW_STATE] == k.FLOWING:
                self.kernel.start_flow(self.memory, f, now)

    # What runs.

    def transfer(self, src: int, dst: int, nbytes: float, delay: float, pick: int, token: int) -> None:
        """Let a message leave now, on way number `pick` if it has several; its arrival is noticed with the token."""
        self._n_transfers += 1
        self.make_room(flows=1)
        if self.kernel.changes(self.memory):
            self.reroute()
        fan = int(self._fans_of(np.array([src]), np.array([dst]))[0])
        f = self.kernel.depart(self.memory, k.TRANSFER, fan, pick, nbytes, delay, self.memory.x[k.NOW])
        self.memory.n[f + k.FLOW_MESSAGE] = token

    def arrived(self) -> None:
        """Take note that a transfer is over."""
        self._n_transfers -= 1
        self.give_room(flows=1)

    def run(self, given: Program, hosts: Ranks, deaths: Mapping[int, float], keep: bool) -> Seat:
        """Let the ranks of schedules enter, each on its host.

        Parameters
        ----------
        given : Program
            The schedules.
        hosts : ndarray, shape (P,)
            Host of each rank.
        deaths : mapping of int to float
            Ranks that die, and when [s].
        keep : bool
            Whether to keep start and finish of every message.
        """
        P = given.start.size
        blocks: list[tuple[int, int]] = []

        def take(size: int) -> int:
            at = self.take(size)
            blocks.append((at, size))
            return at

        distinct = list({id(one): one for one in given.rounds}.values())
        sends = np.array([np.bincount(one.src, minlength=P) for one in distinct]).reshape(-1, P)
        slots = int(sends.max(axis=0, initial=0).sum())
        self.make_room(flows=slots, ranks=P)
        e = take(k.RUN_SIZE)
        ranks = take(P * k.RANK_SIZE)
        for part, field, column in (
            ("x", k.RANK_START, given.start),
            ("x", k.RANK_SINCE, given.accounted),
            ("x", k.RANK_FINISH, given.start),
            ("n", k.RANK_RUN, e),
            ("n", k.RANK_NUMBER, np.arange(P)),
            ("n", k.RANK_AT, -1),
        ):
            self.write(part, ranks + field, P, column, k.RANK_SIZE)
        plans = self._lay_plans(distinct, sends, ranks, hosts, take)
        n_rounds, n_messages = len(given.rounds), given.n_messages
        rounds = take((n_rounds + 1) * k.ROUND_SIZE)
        handles = np.array([plans[id(one)] for one in given.rounds], dtype=np.int64)
        offsets = np.cumsum(np.array([len(one) for one in given.rounds], dtype=np.int64))
        self.write("n", rounds + k.ROUND_PLAN, n_rounds, handles, k.ROUND_SIZE)
        self.write("n", rounds + k.ROUND_OFFSET + k.ROUND_SIZE, n_rounds, offsets, k.ROUND_SIZE)
        for index, gate in given.gates.items():
            at = self.block("x", gate, take)
            self.memory.n[rounds + index * k.ROUND_SIZE + k.ROUND_GATES] = at
        unknown = np.full(n_messages if keep or deaths else 0, np.nan)
        fields = {
            k.RUN_RANKS: P,
            k.RUN_ROUNDS: n_rounds,
            k.RUN_RUNNING: P,
            k.RUN_FIRST_RANK: ranks,
            k.RUN_FIRST_ROUND: rounds,
            k.RUN_DELAYS: self.block("x", given.delays, take),
            k.RUN_PICKS: self.block("n", given.picks, take),
            k.RUN_SENT: self.block("x", unknown, take),
            k.RUN_ARRIVED: self.block("x", unknown, take),
        }
        for field, value in fields.items():
            self.memory.n[e + field] = value
        # Asked for first, so that at one instant a death comes before everything else.
        for rank, time in sorted(deaths.items()):
            self.kernel.push(self.memory, max(time, self.memory.x[k.NOW]), k.DIE, ranks + rank * k.RANK_SIZE)
        self.kernel.start_run(self.memory, e)
        seat = Seat(e, ranks, P, slots, n_messages, blocks)
        self._seats.append(seat)
        return seat

    def _lay_plans(
        self, distinct: list[Round], sends: Ranks, ranks: int, hosts: Ranks, take: Callable[[int], int]
    ) -> dict[int, int]:
        """Write the plans of rounds, their messages, and what each rank has to do; return the plan of each by its id.

        Parameters
        ----------
        distinct : list of Round
            The rounds, each once.
        sends : ndarray of int, shape (number of rounds, P)
            How many messages each rank sends in each.
        ranks : int
            The record of the first rank.
        hosts : ndarray, shape (P,)
            Host of each rank.
        take : callable
            Returns a stretch of the memory.
        """
        P = hosts.size
        # Messages are in the order of plans, and in these of their senders.
        orders = [np.argsort(one.src, kind="stable") for one in distinct]
        ordered = list(zip(distinct, orders, strict=True))
        src = np.concatenate([_NO_RANKS, *(one.src[order] for one, order in ordered)])
        dst = np.concatenate([_NO_RANKS, *(one.dst[order] for one, order in ordered)])
        messages = take(src.size * k.MESSAGE_SIZE)
        for part, field, column in (
            ("x", k.MESSAGE_NBYTES, np.concatenate([np.zeros(0), *(one.nbytes[order] for one, order in ordered)])),
            ("n", k.MESSAGE_SRC, ranks + src * k.RANK_SIZE),
            ("n", k.MESSAGE_DST, ranks + dst * k.RANK_SIZE),
            ("n", k.MESSAGE_FAN, self._fans_of(hosts[src], hosts[dst])),
            ("n", k.MESSAGE_NUMBER, np.concatenate([_NO_RANKS, *orders])),
        ):
            self.write(part, messages + field, src.size, column, k.MESSAGE_SIZE)
        receives = np.array([np.bincount(one.dst, minlength=P) for one in distinct]).reshape(-1, P)
        shares = take(len(distinct) * P * k.SHARE_SIZE)
        first = np.cumsum(np.append(0, sends.ravel()))[:-1]
        for field, column in (
            (k.SHARE_FIRST, messages + first * k.MESSAGE_SIZE),
            (k.SHARE_SENDS, sends.ravel()),
            (k.SHARE_DEGREE, (sends + receives).ravel()),
        ):
            self.write("n", shares + field, len(distinct) * P, column, k.SHARE_SIZE)
        plan = take(len(distinct) * k.PLAN_SIZE)
        plans = {}
        for one in distinct:
            work = np.broadcast_to(np.asarray(one.compute, dtype=np.float64), P)
            seconds = self.block("x", work, take) if np.any(work) else 0
            self.memory.n[plan + k.PLAN_SECONDS], self.memory.n[plan + k.PLAN_SHARES] = seconds, shares
            plans[id(one)] = plan
            plan, shares = plan + k.PLAN_SIZE, shares + P * k.SHARE_SIZE
        return plans

    def over(self, seat: Seat) -> None:
        """Forget a run, whether it is done or not."""
        self._seats.remove(seat)
        self.kernel.forget(self.memory, seat.run)
        self.give_room(flows=seat.slots, ranks=seat.n_ranks)
        for at, size in seat.blocks:
            self.give_back(at, size)

    def of_ranks(self, seat: Seat, part: str, field: int) -> NDArray[Any]:
        """Return a field of all ranks of a run; shape (P,)."""
        return self.read(part, seat.ranks + field, seat.n_ranks, k.RANK_SIZE)

    def of_messages(self, seat: Seat, field: int) -> Floats:
        """Return `kernel.RUN_SENT` or `kernel.RUN_ARRIVED` of all messages of a run [s], NaN if they did not."""
        return self.read("x", int(self.memory.n[seat.run + field]), seat.n_messages)

    # What is under way.

    def notices(self) -> list[tuple[int, int]]:
        """Return what `advance` has left notice of, kind and item, and forget it."""
        n = self.memory.n
        count = int(n[k.N_NOTICES])
        kinds, items = (
            self.read("n", int(n[k.NOTICE]) + field, count, k.NOTICE_SIZE) for field in (k.NOTICE_KIND, k.NOTICE_ITEM)
        )
        n[k.N_NOTICES] = 0
        return list(zip(kinds.tolist(), items.tolist(), strict=True))

    def under_way(self) -> list[int]:
        """Return all messages under way."""
        n = self.memory.n
        moving = (k.ON_ITS_WAY, k.FLOWING)
        return [f for f in self.flows if n[f + k.FLOW_STATE] in moving and n[f + k.FLOW_OWNER] != k.BACKGROUND]

    def is_blocked(self, f: int) -> bool:
        """Return whether a message makes no progress."""
        return bool(self.memory.n[f + k.FLOW_STATE] == k.FLOWING and self.memory.n[f + k.FLOW_PLACE] < 0)

    def owner(self, f: int) -> tuple[int, int]:
        """Return whose a message is: its run and 0, or `kernel.TRANSFER` and the token."""
        n = self.memory.n
        run = int(n[f + k.FLOW_OWNER])
        return run, int(n[f + k.FLOW_MESSAGE]) if run == k.TRANSFER else 0

    def place(self, f: int) -> tuple[int, int]:
        """Return the round of a message of a run, and its position in it."""
        n = self.memory.n
        return int(n[f + k.FLOW_ROUND]), int(n[n[f + k.FLOW_MESSAGE] + k.MESSAGE_NUMBER])

    def clear(self) -> None:
        """Take all messages off the network, of which none is before or behind its flow."""
        n = self.memory.n
        for f in self.under_way():
            self.kernel.detach(self.memory, f)
            if n[k.ADAPTIVE]:
                self.kernel.assign(self.memory, n[f + k.FLOW_WAY], -1)
            self.kernel.free_flow(self.memory, f)
        n[k.N_MOVING] = 0

    def reopens(self) -> float:
        """Return when the first of the links that are down is up again; infinity if none ever is."""
        now = float(self.memory.x[k.NOW])
        return min((self._links.opens((link,), now) for link in self._down()), default=math.inf)


class Engines:
    """The engine of a network: on lists at first, compiled once there have been many messages.

    Parameters
    ----------
    links : Links
        What messages use.
    overheads, options
        As for `Engine`.
    """

    def __init__(self, links: Links, overheads: tuple[float, float], **options: bool) -> None:
        self.links = links
        self._overheads, self._options = overheads, options
        self._carried = 0
        self._engine: Engine | None = None
        self._compiled = False

    def take(self, n_messages: int) -> Engine:
        """Return the engine to use for so many messages more."""
        self._carried += n_messages
        compiled = self._carried >= _MANY or kernel_is_loaded()
        if self._engine is None or compiled > self._compiled:
            self._compiled = compiled
            self._engine = Engine(self.links, self._overheads, compiled=compiled, **self._options)
        return self._engine
