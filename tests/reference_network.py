"""The reference implementation of `simnet.network.Network`: what it means, in plain Python, as slow as it may be.

It is written from the documentation alone, and shares no code with the clocks that tests hold against it. It takes one
event after the other, asks all links for their values anew at each of them, and solves all shares anew by the
textbook's loop. `ReferenceNetwork` carries messages, `ReferenceRun` takes ranks through the rounds of schedules:

- A message pays the sender's overhead, then the latency that its route has when it departs, and its jitter; then its
  bytes flow at the max-min fair share of all links of the route; then it pays the receiver's overhead.
- A rank enters a round once those of the round before that it receives have arrived, those that it sends have left
  its host's own link, the gate of the schedule is open for it, and it has worked for the round's `compute`.
- Messages that a rank sends over its own link in a round leave one after another, at the link's full bandwidth. A
  message to a rank that has failed never does.
- Messages from one rank to another that take the same route arrive in order: the bytes of one flow once those of the
  one before it are there.
- A rank that fails takes the messages with it that are under way from it and to it.
"""

import bisect
import heapq
import itertools
import math


class Steps:
    """A piecewise-constant function of time: the value ``values[i]`` from ``times[i]`` on; ``times[0]`` is 0."""

    def __init__(self, times, values):
        self.times, self.values = [float(t) for t in times], [float(v) for v in values]

    def at(self, t):
        return self.values[bisect.bisect_right(self.times, t) - 1]

    def next_change(self, t):
        after = bisect.bisect_right(self.times, t)
        return self.times[after] if after < len(self.times) else math.inf


def max_min(routes, capacity, limits):
    """Return max-min fair rates: raise all together, and settle those whose link, or limit, is reached first."""
    rates, unsettled, rest = {}, set(range(len(routes))), dict(capacity)
    while unsettled:
        users = {}
        for flow in unsettled:
            for link in routes[flow]:
                users[link] = users.get(link, 0) + 1
        share, bottleneck = min((max(rest[link], 0.0) / count, link) for link, count in users.items())
        least = min(unsettled, key=limits.__getitem__)
        if limits[least] <= share:
            settled, rate = [least], limits[least]
        else:
            settled, rate = [flow for flow in unsettled if bottleneck in routes[flow]], share
        for flow in settled:
            rates[flow] = rate
            unsettled.discard(flow)
            for link in routes[flow]:
                rest[link] -= rate
    return [rates[flow] for flow in range(len(routes))]


class Message:
    """A message under way: its candidate among equal routes, the route that it takes, and bytes left of all."""

    def __init__(self, src, dst, arrived):
        self.src, self.dst, self.arrived = src, dst, arrived
        self.late, self.ended, self.before = True, False, None

    @property
    def flowing(self):
        return not self.late and not self.ended and (self.before is None or self.before.ended)


class ReferenceNetwork:
    """Links that carry messages.

    `routes` has the routes of pairs of hosts, as `topologies.Routes` does. `bandwidth` and `latency` are a `Steps` for
    each link; `load` is a rate taken off links, `others` flows that share them: (src, dst, Steps that is on where > 0,
    limit). `loss` is the probability that a packet is lost by link, and the transport that answers it; `crowd` the
    factors on a link's capacity while 0, 1, 2, ... flows are on it. `routing` and `reroute` are as of `Network`.
    """

    def __init__(
        self, routes, bandwidth, latency, *, overheads=(0.0, 0.0), load=None, others=(), loss=({}, None), crowd=None,
        routing="hash", reroute=False, now=0.0,
    ):  # fmt: skip
        self.routes, self.bandwidth, self.latency = routes, bandwidth, latency
        self.overheads, self.load, self.others, self.crowd = overheads, load or {}, others, crowd or {}
        self.probability, self.transport = loss
        self.routing, self.rerouting, self.now = routing, reroute, now
        self.agenda, self.order = [], itertools.count()
        self.messages, self.runs, self.down = [], [], frozenset()

    def at(self, t, act, rank=1):
        """Do something at time `t`; of what is due at one time, first what has the least rank, then what came first."""
        heapq.heappush(self.agenda, (t, rank, next(self.order), act))

    # Links and routes.

    def capacity(self, link):
        return max(0.0, self.bandwidth[link].at(self.now) - self.load.get(link, 0.0))

    def latency_of(self, route, t):
        return sum(self.latency[link].at(t) for link in route)

    def through(self, link, t, nbytes, limit):
        """Return when a link that has nothing else to do is through with so many bytes, given to it at time `t`."""
        while True:
            steps, load = self.bandwidth[link], self.load.get(link, 0.0)
            rate, until = min(max(0.0, steps.at(t) - load), limit), steps.next_change(t)
            if rate > 0 and t + nbytes / rate <= until:
                return t + nbytes / rate
            if until == math.inf:
                return math.inf
            nbytes -= rate * (until - t)
            t = until

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
            return math.inf, 1.0
        limits = self.transport.limits(p)
        return float(limits.rate(2 * latency, self.transport.segment)), float(limits.share)

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
        for m in self.messages:
            route = self.around(m.candidate, m.src, m.dst)
            if route != m.route:
                useful, m.route = m.left * m.share, route
                m.limit, m.share = self.lossy(route, self.latency_of(route, self.now))
                m.left = useful / m.share

    # Messages.

    def send(self, src, dst, nbytes, delay, pick, arrived, before=None):
        """Send a message now from host `src` to host `dst`; call `arrived` with the time when it is there.

        Its bytes flow after those of the message `before` it on its connection, if that takes the same route.
        """
        m = Message(src, dst, arrived)
        candidates = self.candidates(src, dst)
        m.candidate = candidates[pick % len(candidates)]
        if self.routing == "adaptive":
            m.candidate = min(candidates, key=lambda route: self.crowding(self.around(route, src, dst)))
        m.route = self.around(m.candidate, src, dst)
        departs = self.now + self.overheads[0]
        latency = self.latency_of(m.route, departs)
        m.limit, m.share = self.lossy(m.route, latency)
        m.left = m.whole = nbytes / m.share
        self.messages.append(m)
        joins = departs + (latency + delay)
        if nbytes > 0 and m.route:
            m.before = before if before is not None and before.candidate == m.candidate else None
            self.at(joins, lambda: setattr(m, "late", False))
        else:
            self.at(joins + self.overheads[1], lambda: self.arrive(m))
        return m

    def arrive(self, m):
        if m in self.messages:
            self.messages.remove(m)
            m.arrived(self.now)

    def vanish(self, m):
        self.messages.remove(m)
        m.ended = True

    def rates(self, flows):
        """Return the max-min fair rates of messages, beside the flows of others."""
        others = [(src, dst, limit) for src, dst, on, limit in self.others if on.at(self.now) > 0]
        routes = [m.route for m in flows]
        routes += [self.around(self.candidates(src, dst)[0], src, dst) for src, dst, _ in others]
        capacity = {}
        for link in {link for route in routes for link in route}:
            factors = self.crowd.get(link, [1.0])
            users = sum(link in route for route in routes)
            capacity[link] = self.capacity(link) * factors[min(users, len(factors) - 1)]
        return max_min(routes, capacity, [m.limit for m in flows] + [limit for *_, limit in others])[: len(flows)]

    # Time.

    def work_off(self):
        """Do everything that is due at this instant."""
        busy = True
        while busy:
            busy = False
            while self.agenda and self.agenda[0][0] <= self.now:
                heapq.heappop(self.agenda)[3]()
                busy = True
            for m in [m for m in self.messages if m.flowing and m.left <= 1e-13 * m.whole]:
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
            ends = [self.now + m.left / rate if rate > 0 else math.inf for m, rate in zip(flows, rates, strict=True)]
            then = min([entry[0] for entry in self.agenda[:1]] + ends, default=math.inf)
            changes = min(one.next_change(self.now) for one in changing)
            if min(then, changes) == math.inf or not (self.agenda or flows):
                return
            then = min(then, changes)
            for m, rate, end in zip(flows, rates, ends, strict=True):
                m.left = 0.0 if end <= then else m.left - rate * (then - self.now)
            self.now = then


class ReferenceRun:
    """Ranks on their way through schedules, in a network.

    `parts` are schedules in a row, each with when ranks may enter it; `start` is when they enter the first, and `hosts`
    where they are. Messages have extra latencies `delays` and draw `picks` among routes, both in their order, or none.
    `failures` says which ranks fail, and when.

    Afterwards `finish` has when each rank was done, if it is `done`; `sent` and `arrived` have the times of messages,
    NaN for never; `failed` the ranks that failed before they were done, and `stalled` when nothing more could happen.
    """

    def __init__(self, network, parts, start, hosts, delays=(), picks=(), failures=None):
        self.network, self.hosts, self.delays, self.picks = network, list(hosts), delays, picks
        n_ranks = len(self.hosts)
        self.rounds, self.gates = [], {}
        for schedule, ready in parts:
            before = self.gates.get(len(self.rounds), [0.0] * n_ranks)
            self.gates[len(self.rounds)] = list(map(max, before, ready))
            self.rounds += schedule.rounds
        self.first = list(itertools.accumulate(map(len, self.rounds), initial=0))
        self.sent, self.arrived = [math.nan] * self.first[-1], [math.nan] * self.first[-1]
        # Rounds that repeat are one object, so what is left of them is counted round by round.
        self.left = [[0] * n_ranks for _ in self.rounds]
        for left, one in zip(self.left, self.rounds, strict=True):
            for rank in one.dst:
                left[rank] += 1
        self.let_go = [-math.inf] * n_ranks
        self.at, self.entered = [-1] * n_ranks, [False] * n_ranks
        self.finish, self.done, self.failed = list(start), [False] * n_ranks, [False] * n_ranks
        self.pending, self.in_flight, self.stalled, self.last = set(), {}, None, {}
        for rank, t in (failures or {}).items():
            network.at(max(t, network.now), lambda rank=rank: self.fail(rank), 0)
        for rank, t in enumerate(start):
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
        gate = self.gates.get(self.at[rank])
        if gate is not None and gate[rank] > self.network.now:
            self.later(gate[rank], rank, self.work)
        else:
            self.work(rank)

    def work(self, rank):
        if self.at[rank] == len(self.rounds):
            self.done[rank], self.finish[rank] = True, self.network.now
            return
        compute = self.rounds[self.at[rank]].compute
        seconds = compute if isinstance(compute, float) else compute[rank]
        if seconds > 0:
            self.later(self.network.now + seconds, rank, self.enter)
        else:
            self.enter(rank)

    def enter(self, rank):
        index = self.at[rank]
        self.entered[rank] = True
        free = {}
        one = self.rounds[index]
        for position, (src, dst, nbytes) in enumerate(zip(one.src, one.dst, one.nbytes, strict=True)):
            if src != rank:
                continue
            if self.failed[dst]:
                self.let_go[rank] = math.inf
                continue
            number = self.first[index] + position
            self.sent[number] = self.network.now
            delay = self.delays[number] if len(self.delays) else 0.0
            pick = self.picks[number] if len(self.picks) else 0
            self.in_flight[number] = src, dst, self.network.send(
                self.hosts[src], self.hosts[dst], nbytes, delay, pick,
                lambda t, number=number, dst=dst: self.deliver(t, number, index, dst), self.last.get((src, dst)),
            )  # fmt: skip
            message = self.in_flight[number][2]
            if nbytes > 0:
                self.last[src, dst] = message
            begin = self.network.now + self.network.overheads[0]
            link = message.route[0] if message.route and nbytes else None
            if link is not None:
                begin = max(begin, free.get(link, begin))
                begin = free[link] = self.network.through(link, begin, message.whole, message.limit)
            self.let_go[rank] = max(self.let_go[rank], begin)
        self.leave_if_done(rank)

    def leave_if_done(self, rank):
        """Leave the round if all that the rank receives in it has arrived, and what it sends has left."""
        if self.entered[rank] and not self.failed[rank] and not self.left[self.at[rank]][rank]:
            if self.let_go[rank] <= self.network.now:
                self.next_round(rank)
            elif self.let_go[rank] < math.inf:
                self.later(self.let_go[rank], rank, self.next_round)

    def deliver(self, t, number, index, dst):
        self.arrived[number] = t
        del self.in_flight[number]
        self.left[index][dst] -= 1
        if self.at[dst] == index:
            self.leave_if_done(dst)

    def fail(self, rank):
        if self.done[rank] or self.stalled is not None:
            return
        self.failed[rank] = True
        self.pending.discard(rank)
        for number, (src, dst, message) in list(self.in_flight.items()):
            if rank in (src, dst):
                self.network.vanish(message)
                del self.in_flight[number]

    def look_after(self):
        if self.stalled is None and not all(self.done) and not self.pending and not self.in_flight:
            self.stalled = self.network.now
