"""How bytes of messages come over their host's own link to others that they meet: see `arrivals`.

A message that waits, or has its host's own link behind it, comes from when its latency is behind it, at the rate that
the own link has then. Where that link did not change while it was at the message, it comes as it left, whatever the
link does later; else it follows the link. What has come and is not carried yet is its backlog. A message with backlog
is held back by the links behind the own one alone; one that has run dry flows no faster than it comes.
"""

from __future__ import annotations

import math

from simnet.network.event_loop.agenda import ends_at, never_ends
from simnet.network.event_loop.records import ENDS, RUNS_DRY, State
from simnet.network.event_loop.timelines import look_up


def begin_to_come(s: State, f: int) -> None:
    """Count what comes of a message from now on."""
    flow = s.flows[f]
    flow.come, flow.counted, flow.dry = 0.0, s.now, False
    flow.comes = flow.whole / flow.lasts
    if flow.lasts == math.inf:
        follow(s, f)


def follow(s: State, f: int) -> None:
    """Let a message come as its host's own link is, now and as that changes."""
    flow, own = s.flows[f], s.routes[s.flows[f].route].own
    look_up(s, own, s.now)
    flow.comes = s.links[own].capacity
    flow.beside, s.links[own].first_coming = s.links[own].first_coming, f


def has_come(s: State, f: int) -> float:
    """Return how many bytes have come of a message that is counted."""
    flow = s.flows[f]
    if flow.dry:
        return flow.whole - (flow.remaining - flow.rate * (s.now - flow.since))
    return min(flow.whole, flow.come + flow.comes * (s.now - flow.counted))


def count(s: State, f: int) -> None:
    """Bring what has come of a message up to now."""
    flow = s.flows[f]
    flow.come, flow.counted = has_come(s, f), s.now


def stop_coming(s: State, f: int) -> None:
    """Count no more what comes of a message."""
    flow = s.flows[f]
    if flow.comes < 0:
        return
    if flow.lasts == math.inf:
        link = s.links[s.routes[flow.route].own]
        if link.first_coming == f:
            link.first_coming = flow.beside
        else:
            before = link.first_coming
            while s.flows[before].beside != f:
                before = s.flows[before].beside
            s.flows[before].beside = flow.beside
    flow.comes, flow.dry = -1.0, False


def build_up(s: State, f: int) -> None:
    """Let a message that had run dry have a backlog: others hold it back more than its host's own link does."""
    flow = s.flows[f]
    count(s, f)
    flow.dry, flow.limit = False, flow.allowed


def plan(s: State, f: int) -> None:
    """Note when a flow will end, or run dry before that."""
    flow = s.flows[f]
    end, flow.then = math.inf, ENDS
    if flow.remaining <= flow.residue:
        end = flow.since
    elif flow.rate > 0 and flow.remaining < math.inf:
        end = flow.since + flow.remaining / flow.rate
        if flow.passed and not flow.dry and flow.rate > flow.comes:
            come = flow.come + flow.comes * (flow.since - flow.counted)
            dry = flow.since + max(0.0, come - (flow.whole - flow.remaining)) / (flow.rate - flow.comes)
            if dry < end:
                end, flow.then = dry, RUNS_DRY
    if end < math.inf:
        ends_at(s, f, end)
    else:
        never_ends(s, f)
