"""Flows in progress as tests drive them: the kernel's flows, without messages and ranks around them."""

import math

from simnet.network import event_loop as k
from simnet.network.memory import Store
from topologies.routes import as_table


class Sharing:
    """Flows over links whose ``capacity(link, t)`` is the bytes per second at t, and until when they hold."""

    def __init__(self, capacity, links=16, hops=16, compiled=False):
        self._capacity, self._hops = capacity, hops
        self._store = Store(compiled, links, hops)
        self._store.links("x", k.LINK_CAPACITY, [capacity(link, 0.0)[0] for link in range(links)])
        self._until = [capacity(link, 0.0)[1] for link in range(links)]
        self._flows = {}

    def _link(self, link):
        return self._store.first_link + link * k.LINK_SIZE

    def join(self, flow, route, nbytes, limit, now):
        store = self._store
        store.make_room(flows=1)
        way = store.take(store.way_size())
        store.lay_ways(way, as_table([route]))
        f = self._flows[flow] = store.kernel.take_flow(store.memory)
        x, n = store.memory.x, store.memory.n
        n[f + k.FLOW_WAY], n[f + k.FLOW_MESSAGE], n[f + k.FLOW_OWNER] = way, flow, k.TRANSFER
        x[f + k.FLOW_REMAINING], x[f + k.FLOW_RESIDUE], x[f + k.FLOW_LIMIT] = nbytes, 1e-14 * nbytes, limit
        if not math.isfinite(nbytes):
            x[f + k.FLOW_RESIDUE] = 0.0
        store.kernel.start_flow(store.memory, f, now)

    def leave(self, flow, now):
        store, f = self._store, self._flows.pop(flow)
        store.kernel.detach(store.memory, f)
        store.kernel.free_flow(store.memory, f)

    def settle(self, now):
        """Work off what is due by `now`; return the flows that ended."""
        store, ended = self._store, []
        x, n = store.memory.x, store.memory.n
        for link, until in enumerate(self._until):
            if until <= now:
                x[self._link(link) + k.LINK_CAPACITY], self._until[link] = self._capacity(link, now)
                if n[self._link(link) + k.LINK_USERS]:
                    store.kernel.soil(store.memory, self._link(link))
        while n[k.N_ENDS] and x[n[n[k.ENDS]] + k.FLOW_END] <= now:
            ended.append(int(n[n[n[k.ENDS]] + k.FLOW_MESSAGE]))
            self.leave(ended[-1], now)
        store.kernel.settle(store.memory, now)
        return ended

    def next_event(self):
        store = self._store
        changes = [until for link, until in enumerate(self._until) if store.memory.n[self._link(link) + k.LINK_USERS]]
        return min([*changes, float(store.kernel.next_due(store.memory))], default=math.inf)

    def rate(self, flow):
        return float(self._store.memory.x[self._flows[flow] + k.FLOW_RATE])
