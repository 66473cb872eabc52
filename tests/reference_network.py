"""The reference implementation of `simnet.network.Network`: what it means, in plain Python, as slow as it may be.

It is written from the documentation alone, and shares no code with the clocks that tests hold against it. It takes one
event after the other, asks all links for their values anew at each of them, and solves all shares anew by the
textbook's loop. `ReferenceNetwork` carries messages, `ReferenceRun` takes ranks through the rounds of schedules:

- A message pays the sender's overhead, then the latency that its route has when it departs, and its jitter; then its
  bytes flow at the max-min fair share of all links of the route; then it pays the receiver's overhead.
- Shares may be weighted, by a power of the round trip: twice that latency and the wait of a buffer; with BBR twice the
  latency, or the wait of the buffer where that is less; 1 us at least. That of traffic of others is that of time 0.
- With framing, all links of the route but the slowest take the time of one frame first, or of the message where that is
  shorter: each switch forwards a frame once it is there as a whole.
- A rank enters a round once those of the round before that it receives have arrived, those that it sends have left
  its host's own link, the gate of the schedule is open for it, and it has worked for the round's `compute`.
- Messages that a rank sends over its own link in a round leave one after another, at the link's full bandwidth. A
  message to a rank that has failed never does. Where messages go around links that are down, what has not left yet of
  one that begins with another link now leaves over that, behind what the rank sends there, in the order of sending.
- Messages from one rank to another that take the same route arrive in order: the bytes of one flow once those of the
  one before it are there.
- Where messages leave a host one after another, and shares have no weights, the link into a host that has no other one
  is a queue, unless incast or traffic of others is on it. Messages come to it over the other links of their routes, as
  fast as these allow, and it carries their bytes in the order in which they come. A message is there once the backlog
  that there is when its last byte comes has been carried. One that meets others of its host on its own link, which did
  not change while it was at the message, has that link behind it, and flows no faster than it left. Bytes of a message
  that vanishes stay in the queue, as long as others are in it or come.
- Where messages go around links that are down, those that wait for their host's own link, and have another one there
  now, wait at that one, behind those that do already. The own link stays busy with the message that it is at.
- A rank that fails takes the messages with it that are under way from it and to it.

Ranks whose transport stack lets them go by another rule than their host's own link are a
`reference_protocols.StackRun`.

All of it works in numbers of one type, `float` or `decimal.Decimal`.
"""

import bisect
import collections
import heapq
import itertools
import math

import numpy as np

from reference_stack import ahead, cut, first_of_calls, on_wires, sent_first
from reference_streams import streams_of
from simnet.network.sharing import MAX_MIN
from simnet.network.stack import IDEAL


class Steps:
    """A piecewise-constant function of time: the value ``values[i]`` from ``times[i]`` on; ``times[0]`` is 0."""

    def __init__(self, times, values, number=float):
        self.times, self.values = [number(float(t)) for t in times], [number(float(v)) for v in values]

    def at(self, t):
        return self.values[bisect.bisect_right(self.times, t) - 1]

    def next_change(self, t):
        after = bisect.bisect_right(self.times, t)
        return self.times[after] if after < len(self.times) else math.inf


def max_min(routes, capacity, limits, weights):
    """Return max-min fair rates: raise all together, and settle those whose link, or limit, is reached first.

    All rise by their weights.
    """
    rates, unsettled, rest = {}, set(range(len(routes))), dict(capacity)
    while unsettled:
        users = {}
        for flow in unsettled:
            for link in routes[flow]:
                users[link] = users.get(link, 0) + weights[flow]
        levels = ((max(rest[link], 0 * rest[link]) / weight, link) for link, weight in users.items())
        level, bottleneck = min(levels, default=(math.inf, None))
        least = min(unsettled, key=lambda flow: limits[flow] / weights[flow])
        if bottleneck is None or limits[least] <= level * weights[least]:
            settled = {least: limits[least]}
        else:
            settled = {flow: level * weights[flow] for flow in unsettled if bottleneck in routes[flow]}
        for flow, rate in settled.items():
            rates[flow] = rate
            unsettled.discard(flow)
            for link in routes[flow]:
                rest[link] -= rate
    return [rates[flow] for flow in range(len(routes))]


class Message:
    """A message under way: its candidate among equal routes, the route that it takes, and bytes left of all.

    A message is `late` until its latency is behind it, and a `word` of those that arrive in order, or None. It `begins`
    to leave its host then at the earliest, and has so many bytes `unsent`.
    """

    def __init__(self, src, dst, delay, arrived, word):
        self.src, self.dst, self.delay, self.arrived, self.word = src, dst, delay, arrived, word
        self.late, self.ended, self.before, self.joined, self.vanished = True, False, None, None, False
        self.passed, self.lasts, self.port, self.has_come = 0, None, None, False
        self.begins, self.unsent = 0, 0

    @property
    def flowing(self):
        return not (self.late or self.has_come) and (self.before is None or self.before.has_come)

    @property
    def used(self):
        """The links that it shares: with `passed` 1, not its host's own, and not one whose queue it comes to."""
        return self.route[self.passed : len(self.route) - (self.port is not None)]


class Port:
    """A host's own link that messages leave one after another: those that wait, the first of them in service."""

    def __init__(self):
        self.waiting, self.busy = collections.deque(), False


class ReferenceNetwork:
    """Links that carry messages.

    `routes` has the routes of pairs of hosts, as `simnet.topologies.Routes` does. `bandwidth` and `latency` are a
    `Steps` for each link; `load` is a rate taken off links, `others` flows that share them: (src, dst, Steps that is on
    where > 0, limit). `loss` is the probability that a packet is lost by link, and the transport that answers it;
    `crowd` the factors on a link's capacity while 0, 1, 2, ... flows are on it. `routing`, `reroute`, `stack` and
    `sharing` are as of `Network`. Inputs are floats, which become `number`s.
    """

    def __init__(
        self, routes, bandwidth, latency, *, overheads=(0.0, 0.0), load=None, others=(), loss=({}, None), crowd=None,
        routing="hash", reroute=False, now=0.0, stack=IDEAL, sharing=MAX_MIN, number=float,
    ):  # fmt: skip
        self.number, self.stack, self.sharing = lambda value: number(float(value)), stack, sharing
        self.in_order = stack.own_link == "queue" and sharing.law == "max_min"
        self.routes = routes
        self.bandwidth, self.latency = (
            [Steps(one.times, one.values, number) for one in s] for s in (bandwidth, latency)
        )
        self.overheads = [self.number(seconds) for seconds in overheads]
        self.load = {link: self.number(rate) for link, rate in (load or {}).items()}
        self.others = [
            (src, dst, Steps(on.times, on.values, number), self.number(limit)) for src, dst, on, limit in others
        ]
        self.crowd = {link: [self.number(factor) for factor in factors] for link, factors in (crowd or {}).items()}
        self.probability, self.transport = loss
        self.routing, self.rerouting, self.now = routing, reroute, self.number(now)
        self.never = self.number(math.inf)
        self.ports = collections.defaultdict(Port)
        into = collections.Counter(end for _, end in routes.links)
        self.queues = {
            link for link, (_, end) in enumerate(routes.links)
            if self.in_order and isinstance(end, int) and into[end] == 1 and link not in self.crowd
            and not any(link in self.candidates(src, dst)[0] for src, dst, _, _ in self.others)
        }  # fmt: skip
        self.backlog = collections.defaultdict(lambda: self.number(0))
        self.words = collections.defaultdict(lambda: -math.inf)
        # What rounding leaves of a message does not wait.
        self.residue = self.number(1e-13 if number is float else 1e-30)
        self.agenda, self.order = [], itertools.count()
        self.messages, self.runs, self.down = [], [], frozenset()

    def at(self, t, act, rank=1):
        """Do something at time `t`; of what is due at one time, first what has the least rank, then what came first."""
        heapq.heappush(self.agenda, (t, rank, next(self.order), act))

    # Links and routes.

    def capacity(self, link):
        return self.capacity_at(link, self.now)

    def capacity_at(self, link, t):
        return max(self.number(0), self.bandwidth[link].at(t) - self.load.get(link, 0))

    def latency_of(self, route, t):
        return sum(self.latency[link].at(t) for link in route)

    def through(self, link, t, nbytes, limit):
        """Return when a link that has nothing else to do is through with so many bytes, given to it at time `t`."""
        while True:
            rate, until = min(self.capacity_at(link, t), limit), self.bandwidth[link].next_change(t)
            if rate > 0 and t + nbytes / rate <= until:
                return t + nbytes / rate
            if until == math.inf:
                return self.never
            nbytes -= rate * (until - t)
            t = until

    def carried(self, link, begin, end, limit):
        """Return how many bytes a link that has nothing else to do carries from one time to another."""
        nbytes, t = self.number(0), begin
        while t < end:
            until = min(self.bandwidth[link].next_change(t), end)
            nbytes += min(self.capacity_at(link, t), limit) * (until - t)
            t = until
        return nbytes

    def candidates(self, src, dst):
        if src == dst:
            return [()]
        if self.routing in ("flow", "adaptive"):
            return self.routes.candidates(src, dst)
        return [self.routes.route(src, dst)]

    def around(self, route, src, dst):
        """Return the route that stands for a candidate while links are down."""
        if not self.rerouting or self.down.isdisjoint(route):
            return route
        other = self.routes.around(src, dst, self.down)
        return route if other is None else other

    def lossy(self, route, latency):
        """Return the rate that loss leaves to a message, and the useful share of its bytes."""
        p = 1 - math.prod(1 - self.probability.get(link, 0.0) for link in route)
        if p == 0:
            return self.never, self.number(1)
        limits = self.transport.limits(p)
        return self.number(limits.rate(2 * float(latency), self.transport.segment)), self.number(limits.share)

    def weight(self, latency):
        """Return the weight in sharing links of a message whose route has this latency."""
        sharing, round_trip = self.sharing, 2 * latency
        if sharing.buffer is not None:
            buffer = self.number(sharing.buffer)
            round_trip = min(round_trip, buffer) if sharing.congestion == "bbr" else round_trip + buffer
        return max(round_trip, self.number(1e-6)) ** self.number(-sharing.power)

    def crowding(self, route):
        """Return the load of the most loaded link of a route, with one message more."""
        most = 0.0
        for link in route:
            under_way = sum(link in message.route for message in self.messages)
            capacity = self.capacity(link)
            most = max(most, (under_way + 1) / capacity if capacity > 0 else math.inf)
        return most

    def reroute(self):
        down = frozenset(link for link in range(len(self.bandwidth)) if self.capacity(link) <= 0)
        if down == self.down:
            return
        self.down = down
        leaving = [m for run in self.runs for m in run.not_left()]
        for m in {*self.messages, *leaving}:
            route = self.around(m.candidate, m.src, m.dst)
            if route != m.route:
                share, m.route = m.share, route
                latency = self.latency_of(route, self.now)
                m.limit, m.share = self.lossy(route, latency)
                m.weight = self.weight(latency)
                m.unsent *= share / m.share
                if not m.has_come:
                    m.left, m.whole = (part * share / m.share for part in (m.left, m.whole))
        for run in self.runs:
            run.leave_anew()
        for link in sorted(self.ports):
            waiting = self.ports[link].waiting
            gone = [(t, m) for t, m in waiting if not m.vanished and m.route[0] != link]
            self.ports[link].waiting = collections.deque(one for one in waiting if one not in gone)
            for one in gone:
                port = self.ports[one[1].route[0]]
                port.waiting.append(one)
                if not port.busy:
                    port.busy = True
                    self.at(self.now, lambda port=port: self.serve(port))

    # Messages.

    def send(self, src, dst, nbytes, delay, pick, arrived, before=None):
        """Send a message now; parameters as of `address`."""
        m = self.address(src, dst, nbytes, delay, pick, arrived, before)
        self.depart(m, self.now + self.overheads[0])
        return m

    def address(self, src, dst, nbytes, delay, pick, arrived, before=None, word=None):
        """Return a message from host `src` to host `dst` that has its route; `arrived` is called when it is there.

        Its bytes flow after those of the message `before` it on its connection, if that takes the same route. A word
        takes the first of equal routes.
        """
        m = Message(src, dst, delay, arrived, word)
        candidates = self.candidates(src, dst)[: 1 if word else None]
        m.candidate = candidates[pick % len(candidates)]
        if self.routing == "adaptive":
            m.candidate = min(candidates, key=lambda route: self.crowding(self.around(route, src, dst)))
        m.route = self.around(m.candidate, src, dst)
        m.limit, m.share = self.lossy(m.route, self.latency_of(m.route, self.now))
        m.left = m.whole = nbytes / m.share
        if m.left > 0 and m.route and before is not None and before.candidate == m.candidate:
            m.before = before
        self.messages.append(m)
        return m

    def hand_over(self, m):
        """Let a message leave its host; where they queue, once those handed over before have passed the own link.

        Each passes it at the link's full bandwidth, whatever comes behind it on the route.
        """
        begin = self.now + self.overheads[0]
        if self.stack.own_link == "shared" or not m.route or not m.left:
            self.depart(m, begin)
            return
        port = self.ports[m.route[0]]
        port.waiting.append((begin, m))
        if not port.busy:
            self.serve(port)

    def serve(self, port):
        """Let the next message that waits for a host's own link leave, at the earliest when its overhead is paid."""
        port.busy = False
        while port.waiting and port.waiting[0][1].vanished:
            port.waiting.popleft()
        if not port.waiting:
            return
        begin, m = port.waiting[0]
        port.busy = True
        if begin > self.now:
            self.at(begin, lambda: self.serve(port))
            return
        port.waiting.popleft()
        end = self.through(m.route[0], self.now, m.left, self.never)
        if end <= self.bandwidth[m.route[0]].next_change(self.now) and end < math.inf:
            m.lasts = m.left / self.capacity(m.route[0])
        self.depart(m, self.now)
        if end < math.inf:
            self.at(end, lambda: self.serve(port))

    def depart(self, m, t):
        """Let a message leave its host at a time, with the latency that its route has then."""
        latency = self.latency_of(m.route, t)
        m.limit, _ = self.lossy(m.route, latency)
        m.weight = self.weight(latency)
        joins = t + (latency + m.delay) + self.forwarding(m, t)
        if m.left > 0 and m.route:
            self.at(joins, lambda: self.join(m))
        else:
            self.at(joins + self.overheads[1], lambda: self.arrive(m))

    def forwarding(self, m, t):
        """Return how long the links of a route take for one frame, but for the slowest, whose time is in the flow."""
        if not self.stack.segment:
            return 0
        frame = min(m.left, self.number(self.stack.segment) + self.number(self.stack.beside))
        times = [frame / self.capacity_at(link, t) for link in m.route if self.capacity_at(link, t) > 0]
        return sum(times) - max(times, default=0)

    def join(self, m):
        """Let the bytes of a message flow; those of a word only where a link of its route is down.

        Else a word takes the slowest link for its bytes, and on each link behind its host's own one it waits for what
        has come to that link before it and has not been carried yet: the backlog of a queue, and of messages that share
        a link what has come at the rate that their own links have now.
        """
        if m.vanished:
            return
        m.late, m.joined = False, self.now
        m.whole = m.left
        if not m.word:
            m.comes_in = self.in_order and len(m.route) > 1
            if m.comes_in and (m.before is None or m.before.has_come):
                self.come_in(m)
            return
        if any(self.capacity(link) <= 0 for link in m.route):
            return
        wait = m.left / min(map(self.capacity, m.route))
        for link in m.route[1:]:
            capacity = self.capacity(link)
            if self.in_queue(link):
                wait += self.backlog[link] / capacity
            for other in self.messages:
                if other.flowing and other is not m and link in other.used:
                    begin = max(other.joined, getattr(other.before, "came", other.joined))
                    come = min(other.whole, self.capacity(other.route[0]) * (self.now - begin))
                    wait += max(0, come - (other.whole - other.left)) / capacity
        m.late = True
        there = self.words[m.word] = max(self.now + wait, self.words[m.word])
        self.at(there + self.overheads[1], lambda: self.arrive(m))

    def come_in(self, m):
        """Let a message come to the queue of its last link, if that has one, behind those of its host."""
        others = [
            one for one in self.messages
            if one is not m and one.flowing and not one.word and m.route[0] in one.used
        ]  # fmt: skip
        alien = any(m.route[0] in self.around(self.candidates(src, dst)[0], src, dst)
                    for src, dst, on, _ in self.others if on.at(self.now) > 0)  # fmt: skip
        if m.lasts is not None and others and not alien and all(one.route[0] == m.route[0] for one in others):
            m.passed = 1
        if m.route[-1] in self.queues:
            if not self.in_queue(m.route[-1]):
                self.backlog[m.route[-1]] = self.number(0)
            m.port = m.route[-1]

    def in_queue(self, link):
        """Return the messages that are in the queue of a link, or come to it."""
        return [m for m in self.messages if m.port == link and not m.ended]

    def arrive(self, m):
        if m in self.messages:
            self.messages.remove(m)
            m.arrived(self.now)

    def vanish(self, m):
        self.messages = [one for one in self.messages if one is not m]
        m.ended = m.has_come = m.vanished = True
        m.came = self.now

    def rates(self, flows):
        """Return the max-min fair rates of messages, beside the flows of others."""
        others = [
            (self.candidates(src, dst)[0], src, dst, limit)
            for src, dst, on, limit in self.others
            if on.at(self.now) > 0
        ]
        routes = [m.used for m in flows] + [self.around(route, src, dst) for route, src, dst, _ in others]
        weights = [m.weight for m in flows] + [self.weight(self.latency_of(route, 0)) for route, *_ in others]
        capacity = {}
        for link in {link for route in routes for link in route}:
            factors = self.crowd.get(link, [1])
            users = sum(link in route for route in routes)
            capacity[link] = self.capacity(link) * factors[min(users, len(factors) - 1)]
        limits = [min(m.limit, m.whole / m.lasts) if m.passed else m.limit for m in flows]
        limits += [limit for *_, limit in others]
        return max_min(routes, capacity, limits, weights)[: len(flows)]

    # Time.

    def work_off(self):
        """Do everything that is due at this instant."""
        busy = True
        while busy:
            busy = False
            while self.agenda and self.agenda[0][0] <= self.now:
                heapq.heappop(self.agenda)[3]()
                busy = True
            for m in [m for m in self.messages if m.flowing and m.left <= self.residue * m.whole]:
                busy, m.has_come, m.came = True, True, self.now
                m.left = self.backlog[m.port] if m.port is not None else self.number(0)
                for one in self.messages:
                    if one.before is m and not one.late and one.comes_in:
                        self.come_in(one)
            for m in [m for m in self.messages if m.has_come and not m.ended and m.left <= self.residue * m.whole]:
                m.ended, busy = True, True
                if self.overheads[1] > 0:
                    self.at(self.now + self.overheads[1], lambda m=m: self.arrive(m))
                else:
                    self.arrive(m)
            for run in self.runs:
                run.look_after()

    def simulate(self):
        """Go on until nothing is left to happen."""
        changing = [*self.bandwidth, *(on for _, _, on, _ in self.others)]
        while True:
            if self.rerouting:
                self.reroute()
            self.work_off()
            flows = [m for m in self.messages if m.flowing]
            rates = self.rates(flows) if flows else []
            passing = [m for m in self.messages if m.has_come and not m.ended]
            moving = [*zip(flows, rates, strict=True), *((m, self.capacity(m.port)) for m in passing)]
            ends = [self.now + m.left / rate if rate > 0 else self.never for m, rate in moving]
            then = min([entry[0] for entry in self.agenda[:1]] + ends, default=math.inf)
            changes = min(one.next_change(self.now) for one in changing)
            if min(then, changes) == math.inf or not (self.agenda or moving):
                return
            then = min(then, changes)
            for link in self.queues:
                coming = sum((rate for m, rate in moving[: len(flows)] if m.port == link), self.number(0))
                more = (coming - self.capacity(link)) * (then - self.now)
                self.backlog[link] = max(self.number(0), self.backlog[link] + more)
            for (m, rate), end in zip(moving, ends, strict=True):
                m.left = self.number(0) if end <= then else m.left - rate * (then - self.now)
            self.now = then


class ReferenceRun:
    """Ranks on their way through schedules, in a network.

    `parts` are schedules in a row, each with when ranks may enter it; `start` is when they enter the first, and `hosts`
    where they are. Messages have extra latencies `delays` and draw `picks` among routes, both in their order, or none.
    `failures` says which ranks fail, and when. With `computing`, ranks compute beside the parts on streams, as
    `reference_streams` has it: a part waits for its selection, work before rounds queues as a kernel, and what comes
    after the last message of a part is not waited for before the end.
    Messages are `longer`, relative, by that at most, or shorter: it tells
    what hangs on which of them is there first.

    Afterwards `finish` has when each rank was done, if it is `done`; `sent` and `arrived` have the times of messages,
    NaN for never; `failed` the ranks that failed before they were done, and `stalled` when nothing more could happen.
    """

    def __init__(
        self, network, parts, start, hosts, delays=(), picks=(), failures=None, computing=None, longer=0.0
    ):  # fmt: skip
        self.network, self.hosts, self.delays, self.picks = network, list(hosts), delays, picks
        self.longer = longer
        n_ranks, number = len(self.hosts), network.number
        self.rounds, self.gates, self.opens, self.unpacks = [], {}, {}, set()
        self.sends_first, self.begins = [], set()
        for part, (schedule, ready) in enumerate(parts):
            before = self.gates.get(len(self.rounds), [0] * n_ranks)
            self.opens[len(self.rounds)] = part
            self.gates[len(self.rounds)] = list(map(max, before, map(number, ready)))
            self.begins |= {len(self.rounds)} | {
                len(self.rounds) + at for at in first_of_calls(network.stack, schedule)
            }
            self.rounds += cut(network.stack, schedule)
            self.sends_first += sent_first(network.stack, schedule)
            if schedule.rounds and not len(schedule.rounds[-1]):
                self.unpacks.add(len(self.rounds) - 1)
        self.sizes = {id(one): on_wires(network.stack, one, number) for one in self.rounds}
        self.ahead = [0 if at in self.begins else most for at, most in enumerate(ahead(network.stack, self.rounds))]
        self.first = list(itertools.accumulate(map(len, self.rounds), initial=0))
        self.sent, self.arrived = [math.nan] * self.first[-1], [math.nan] * self.first[-1]
        self.occupied = []
        # Rounds that repeat are one object, so what is left of them is counted round by round.
        self.left = [[0] * n_ranks for _ in self.rounds]
        for left, one in zip(self.left, self.rounds, strict=True):
            for rank in one.dst:
                left[rank] += 1
        self.unsent = [[0] * n_ranks for _ in self.rounds]
        self.let_go = [-network.never] * n_ranks
        self.ports = [{} for _ in range(n_ranks)]
        self.at, self.entered, self.leaving = [-1] * n_ranks, [False] * n_ranks, [False] * n_ranks
        self.finish, self.done, self.failed = list(map(number, start)), [False] * n_ranks, [False] * n_ranks
        self.pending, self.in_flight, self.stalled, self.last = set(), {}, None, {}
        self.over, self.streams = False, None
        if computing is not None:
            self.streams = streams_of(network, self.finish, parts, computing)
            self.beside = [number(factor) for factor in np.broadcast_to(computing.beside, len(parts))]
        for rank, t in (failures or {}).items():
            network.at(max(number(t), network.now), lambda rank=rank: self.fail(rank), 0)
        for rank, t in enumerate(self.finish):
            self.later(t, rank, self.next_round)
        network.runs.append(self)

    def later(self, t, rank, act):
        def wake():
            if not self.failed[rank]:
                self.pending.discard(rank)
                act(rank)

        self.pending.add(rank)
        self.network.at(t, wake)

    def next_round(self, rank):
        self.at[rank] += 1
        self.entered[rank] = False
        if self.streams is not None:
            self.come_to(rank)
            return
        gate = self.gates.get(self.at[rank])
        if gate is not None and gate[rank] > self.network.now:
            self.later(gate[rank], rank, self.work)
        else:
            self.work(rank)

    def come_to(self, rank):
        """Wait for the selection of a part if the round opens one, and at the end for all that is computed."""
        index, stream = self.at[rank], self.streams[rank]
        part = self.opens.get(index)
        if index == len(self.rounds):
            stream.slow(1)
            stream.when(lambda: stream.is_idle, self.alive(rank, self.work))
        elif part is not None:

            def begin(rank):
                stream.slow(self.beside[part])
                self.work(rank)

            stream.slow(1)
            stream.when(lambda: stream.selected[part], self.alive(rank, begin))
        else:
            self.work(rank)

    def alive(self, rank, act):
        """Return what acts for a rank unless that has failed, and is pending until then."""

        def wake():
            if not self.failed[rank]:
                self.pending.discard(rank)
                act(rank)

        self.pending.add(rank)
        return wake

    def work(self, rank):
        if self.at[rank] == len(self.rounds):
            self.done[rank], self.finish[rank] = True, self.network.now
            return
        compute = self.rounds[self.at[rank]].compute
        seconds = self.network.number(compute if isinstance(compute, float) else compute[rank])
        if self.streams is not None and self.at[rank] in self.unpacks:
            self.streams[rank].slow(1)
            self.streams[rank].queue(seconds, lambda: None)
            self.enter(rank)
        elif self.streams is not None and seconds > 0:
            self.streams[rank].queue(seconds, self.alive(rank, self.enter))
        elif seconds > 0:
            self.later(self.network.now + seconds, rank, self.enter)
        else:
            self.enter(rank)

    def enter(self, rank):
        index = self.at[rank]
        self.entered[rank] = True
        self.ports[rank] = {}
        begin = self.network.now + self.network.overheads[0]
        for number in self.sent_by(rank, index):
            if self.failed[self.ends(number)[1]]:
                self.unsent[index][rank] += 1
                continue
            message = self.address(number)
            self.network.depart(message, begin)
            self.let_go[rank] = max(self.let_go[rank], begin)
            if message.route and message.whole:
                message.begins, message.unsent, message.number = begin, message.whole, number
                self.ports[rank].setdefault(message.route[0], []).append(message)
        self.let_go[rank] = max(self.let_go[rank], self.leaves(rank))
        self.leave_if_done(rank)

    def leaves(self, rank):
        """Return when the last of what a rank sends has left its host's own links."""
        last = -self.network.never
        for link, messages in self.ports[rank].items():
            t = self.network.now
            for m in messages:
                t = self.network.through(link, max(t, m.begins), m.unsent, m.limit)
            last = max(last, t)
        return last

    def not_left(self):
        """Return the messages of all ranks that have not left, and count what has left of them since they began."""
        for ports in self.ports:
            for link, messages in ports.items():
                while messages:
                    m = messages[0]
                    end = self.network.through(link, m.begins, m.unsent, m.limit)
                    if end > self.network.now:
                        break
                    messages.pop(0)
                    for behind in messages:
                        behind.begins = max(behind.begins, end)
                if messages and m.begins < self.network.now:
                    m.unsent -= self.network.carried(link, m.begins, self.network.now, m.limit)
                    m.begins = self.network.now
        return [m for ports in self.ports for messages in ports.values() for m in messages]

    def leave_anew(self):
        """Let what has not left do so over the links with which its messages begin now."""
        for rank, ports in enumerate(self.ports):
            if not any(ports.values()):
                continue
            gone = [m for link, messages in ports.items() for m in messages if m.route[0] != link]
            for link, messages in ports.items():
                ports[link] = [m for m in messages if m not in gone]
            for m in sorted(gone, key=lambda m: m.number):
                ports.setdefault(m.route[0], []).append(m)
            for m in itertools.chain(*ports.values()):
                m.begins = max(m.begins, self.network.now)
            self.let_go[rank], self.leaving[rank] = self.leaves(rank), False
            self.network.at(self.network.now, lambda rank=rank: self.leave_if_done(rank))

    def sent_by(self, rank, index):
        """Return the messages that a rank sends in a round, by their numbers in the run."""
        return [self.first[index] + position for position in np.flatnonzero(self.rounds[index].src == rank).tolist()]

    def ends(self, number):
        """Return from which rank to which a message goes, and in which round."""
        index = bisect.bisect_right(self.first, number) - 1
        one, position = self.rounds[index], number - self.first[index]
        return int(one.src[position]), int(one.dst[position]), index

    def address(self, number):
        """Return a message that is sent now."""
        src, dst, index = self.ends(number)
        nbytes = self.sizes[id(self.rounds[index])][number - self.first[index]]
        nbytes *= 1 + self.network.number(self.longer * math.cos(number))
        self.sent[number] = self.network.now
        delay = self.network.number(self.delays[number] if len(self.delays) else 0)
        pick = int(self.picks[number]) if len(self.picks) else 0
        message = self.network.address(
            self.hosts[src], self.hosts[dst], nbytes, delay, pick,
            lambda t: self.deliver(t, number), self.last.get((src, dst)),
        )  # fmt: skip
        self.in_flight[number] = src, dst, message
        if nbytes > 0:
            self.last[src, dst] = message
        return message

    def leave_if_done(self, rank):
        """Leave the round if all that the rank waits for is there, but for rounds that may be under way in the next."""
        following = self.at[rank] + 1
        if not self.entered[rank] or self.failed[rank] or self.leaving[rank]:
            return
        before = range(following - self.ahead[following])
        if any(self.left[index][rank] for index in before):
            return
        if not self.posts_ahead(rank, following) and any(self.unsent[index][rank] for index in before):
            return
        if self.let_go[rank] <= self.network.now:
            self.next_round(rank)
        elif self.let_go[rank] < math.inf:
            self.leaving[rank] = True
            self.network.at(self.let_go[rank], lambda: self.leave_late(rank))

    def posts_ahead(self, rank, index):
        """Whether a rank enters a round before its sends of rounds before it in the phase are let go: it only sends."""
        if not self.network.stack.posts_ahead or index == len(self.rounds) or index in self.begins:
            return False
        one = self.rounds[index]
        return one.phase == self.rounds[index - 1].phase and rank not in one.dst

    def leave_late(self, rank):
        if self.leaving[rank]:
            self.leaving[rank] = False
            self.leave_if_done(rank)

    def deliver(self, t, number):
        _, dst, index = self.ends(number)
        self.arrived[number] = t
        del self.in_flight[number]
        self.left[index][dst] -= 1
        self.leave_if_done(dst)

    def fail(self, rank):
        if self.done[rank] or self.over:
            return
        self.failed[rank] = True
        self.pending.discard(rank)
        self.leaving[rank] = False
        for number, (src, dst, message) in list(self.in_flight.items()):
            if rank in (src, dst):
                self.network.vanish(message)
                del self.in_flight[number]

    def look_after(self):
        if not self.over and not all(self.done) and not self.pending and not any(self.leaving) and not self.in_flight:
            self.over = True
        if self.over and self.stalled is None:
            busy = [one for one, failed in zip(self.streams or [], self.failed, strict=False) if not failed]
            if all(one.is_idle for one in busy):
                self.stalled = self.network.now
