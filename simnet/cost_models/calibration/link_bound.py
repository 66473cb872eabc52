"""Lower bound on a schedule's time: at each host and switch, bytes in or out divided by the bandwidth of its links."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simnet.base.arrays import Ranks
from simnet.schedule import Schedule, count_rounds

if TYPE_CHECKING:
    from simnet.network import Network, Timing
    from simnet.network.links import Links

# A bound that is no longer than another, but for rounding, does not replace it.
_SAME = 1e-9


class Bound(NamedTuple):
    """Lower bound on a schedule's time [s], and the busiest host or switch, direction and bytes that set the bound.

    `host` is the first of the hosts behind a switch.
    """

    seconds: float
    host: int
    who: str
    verb: str
    nbytes: float


def link_bound(network: Network, hosts: Sequence[int], schedule: Schedule, timing: Timing) -> Bound:
    """Return the lower bound on the time of a schedule on a network, where rank r is on ``hosts[r]``."""
    places, found, routes = np.array(hosts), Bound(0.0, hosts[0], "", "sends", 0.0), network.routes
    if not routes.links:
        return found
    # The same round often stands many times.
    sent = [(places[one.src], places[one.dst], times * one.nbytes) for one, times in count_rounds(schedule.rounds)]
    every, host_gates = range(routes.n_hosts), [_host_gates(network, out) for out in (True, False)]
    alone = np.array(every), host_gates, [f"host {number}" for number in every]
    for group_of, gates, names in [alone, *_switch_groups(network)]:
        for way, verb in enumerate(("sends", "receives")):
            totals = np.zeros(len(names))
            for *ends, nbytes in sent:
                near, far = group_of[ends[way]], group_of[ends[1 - way]]
                crossing = (near != far) & (near >= 0)
                np.add.at(totals, near[crossing], nbytes[crossing])
            for place in np.flatnonzero(totals).tolist():
                seconds = _gate_seconds(network.links, gates[way][place], float(totals[place]), timing)
                if seconds > found.seconds * (1 + _SAME):
                    first = int((group_of == place).argmax())
                    found = Bound(seconds, first, names[place], verb, float(totals[place]))
    return found


def _switch_groups(network: Network) -> Iterator[tuple[Ranks, list[list[list[int]]], list[str]]]:
    """Yield, per level of switches, each host's group, the links out of and into each group, and switch names."""
    # A level is the group of each host (-1: none), the links out of and into each group, and the names of the switches.
    routes = network.routes
    near: dict[int | str, set[int | str]] = defaultdict(set)
    for u, v in routes.links:
        near[u].add(v)
        near[v].add(u)
    all_hosts = set(range(routes.n_hosts))
    groups: dict[int | str, set[int | str]] = {host: {host} for host in range(routes.n_hosts)}
    while groups:
        behind: dict[int | str, set[int | str]] = defaultdict(set)
        for inside in groups.values():
            outside = {other for one in inside for other in near[one]} - inside
            if len(outside) == 1:
                behind[outside.pop()] |= inside
        behind = {name: inside | {name} for name, inside in behind.items() if isinstance(name, str)}
        groups = {name: one for name, one in behind.items() if len(one) > 2 and not all_hosts <= one}
        place_of = {one: place for place, inside in enumerate(groups.values()) for one in inside}
        ends = np.array([[place_of.get(one, -1) for one in link] for link in routes.links])
        out = ends[:, 0] != ends[:, 1]
        gates = [[np.flatnonzero(out & (side == place)).tolist() for place in range(len(groups))] for side in ends.T]
        yield np.array([place_of.get(host, -1) for host in range(routes.n_hosts)]), gates, [*map(str, groups)]


def _host_gates(network: Network, out: bool) -> list[list[int]]:
    """Return for each host the first links out of it (or into it) that take time; links of kind ``free`` take none."""
    routes = network.routes
    free: dict[int | str, list[int | str]] = defaultdict(list)
    costly: dict[int | str, list[int]] = defaultdict(list)
    for link, ends in enumerate(routes.links):
        u, v = ends if out else ends[::-1]
        if routes.kinds[link] == "free":
            free[u].append(v)
        else:
            costly[u].append(link)
    gates = []
    for host in range(routes.n_hosts):
        reached: list[int | str] = [host]
        for node in reached:
            reached += [other for other in free[node] if other not in reached]
        gates.append(sorted(link for node in reached for link in costly[node]))
    return gates


def _gate_seconds(links: Links, gates: Sequence[int], nbytes: float, timing: Timing) -> float:
    """Return the time [s] in which parallel links (`gates`) carry `nbytes` at full rate, starting at `timing.start`."""
    if links.constant:
        return nbytes / float(links.constant_capacity[gates].sum())
    timelines = [links.capacities(link, timing.start, math.nextafter(timing.finish, math.inf)) for link in gates]
    times = np.unique(np.concatenate([at for at, _ in timelines]))
    rate = np.sum([values[np.searchsorted(at, times, "right") - 1] for at, values in timelines], axis=0)
    since = np.append(times - timing.start, timing.duration)
    # Where nothing is carried, the earliest moment counts.
    carried, first = np.unique(np.append(0.0, np.cumsum(rate * np.diff(since))), return_index=True)
    return float(np.interp(nbytes, carried, since[first]))
