"""Flows in progress as tests drive them: the event loop's flows, without messages and ranks around them."""

import math

import numpy as np

from simnet.network.event_loop.codes import TRANSFER
from simnet.network.tables import Store
from simnet.topologies.routes import route_table


def max_min_shares(routes, capacity, limits=None, weights=None):
    """Return the rates of flows over links, by number, that all start at once.

    Limits are infinite if not given, weights 1.
    """
    numbers = {link: number for number, link in enumerate(sorted({link for route in routes for link in route}))}
    most = np.full(len(routes), math.inf) if limits is None else np.array(limits)
    rates, flowing = most.copy(), [flow for flow, route in enumerate(routes) if route]
    table = route_table([[numbers[link] for link in routes[flow]] for flow in flowing])
    store, count = Store(len(flowing) >= 1000, len(numbers), table.shape[1]), len(flowing)
    store.links.write(0, len(numbers), capacity=np.array([capacity[link] for link in numbers]))
    store.make_room(flows=count)
    routes_of = store.add_routes(table) + np.arange(count)
    store.flows.write(0, count, route=routes_of, limit=most[flowing], remaining=math.inf)
    if weights is not None:
        store.state.weighted = True
        store.flows.write(0, count, weight=np.array(weights)[flowing])
    for f in range(count):
        store.loop.start_flow(store.state, f, 0.0)
    store.loop.settle_rates(store.state, 0.0)
    rates[flowing] = store.flows.read("rate", 0, count)
    return rates.tolist()


class Sharing:
    """Flows over links whose ``capacity(link, t)`` is the bytes per second at t, and until when they hold."""

    def __init__(self, capacity, links=16, hops=16, compiled=False, weighted=False):
        self._capacity = capacity
        self._store = Store(compiled, links, hops)
        self._store.state.weighted = weighted
        self._store.links.write(0, links, capacity=[capacity(link, 0.0)[0] for link in range(links)])
        self._until = [capacity(link, 0.0)[1] for link in range(links)]
        self._flows = {}

    def join(self, flow, route, nbytes, limit, now, weight=1.0):
        store = self._store
        store.make_room(flows=1)
        f = self._flows[flow] = store.loop.take_flow(store.state)
        store.flows.write(
            f,
            1,
            route=store.add_routes(route_table([route])),
            message=flow,
            owner=TRANSFER,
            remaining=nbytes,
            residue=1e-14 * nbytes if math.isfinite(nbytes) else 0.0,
            limit=limit,
            weight=weight,
        )
        store.loop.start_flow(store.state, f, now)

    def leave(self, flow, now):
        store, f = self._store, self._flows.pop(flow)
        store.loop.detach_flow(store.state, f)
        store.loop.free_flow(store.state, f)

    def settle(self, now):
        """Work off what is due by `now`; return the flows that ended."""
        store, ended = self._store, []
        s = store.state
        for link, until in enumerate(self._until):
            if until <= now:
                s.links[link].capacity, self._until[link] = self._capacity(link, now)
                if s.links[link].users:
                    store.loop.mark_dirty(s, link)
        while s.n_ends and s.ends[0].key <= now:
            ended.append(int(s.flows[s.ends[0].row].message))
            self.leave(ended[-1], now)
        store.loop.settle_rates(s, now)
        return ended

    def next_event(self):
        s = self._store.state
        changes = [until for link, until in enumerate(self._until) if s.links[link].users]
        return min([*changes, float(self._store.loop.next_event_time(s))], default=math.inf)

    def rate(self, flow):
        return float(self._store.state.flows[self._flows[flow]].rate)
