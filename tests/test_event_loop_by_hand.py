"""The event loop, function by function: heaps beside sorted lists, and messages, queues and own links by hand."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simnet.network.event_loop import agenda, arrivals, messages, ports, timelines
from simnet.network.event_loop.records import (
    ANSWERS,
    ASKS,
    BACKGROUND,
    CHANGE,
    DATA,
    DELIVER,
    FAIL,
    FREE,
    HELD,
    IS_READY,
    JOIN,
    LEFT,
    ON_ITS_WAY,
    QUEUED,
    SERVE,
    TOGGLE,
    TRANSFER,
    VANISHED,
    Background,
    Connection,
    Due,
    End,
    Flow,
    Link,
    Loss,
    Message,
    Rank,
    Route,
    Run,
    State,
    Timeline,
    Use,
)
from simnet.network.sharing import SHORTEST


def state(links=(), routes=(), flows=(), **about):
    """A network of links, routes over them, whose first link is the sender's own, and flows."""
    made, stood = [], []
    for route in routes:
        made.append(Route(begin=len(stood), end=len(stood) + len(route), own=route[0] if route else -1))
        stood += route
    s = State(links=list(links), routes=made, route_links=stood, flows=list(flows), **about)
    s.agenda, s.ends = [Due() for _ in range(64)], [End() for _ in range(64)]
    return s


def due(s):
    """What is on the agenda, in order: time, kind and row."""
    return [(one.time, one.kind, one.row) for one in sorted(s.agenda[: s.n_due], key=lambda one: (one.time, one.order))]


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, 2.0, math.inf]) | st.floats(0, 3),
            st.sampled_from([CHANGE, FAIL, LEFT, JOIN, TOGGLE]),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
def test_the_agenda_is_a_sorted_list(steps):
    s, twin = state(), []
    for number, (time, kind, action) in enumerate(steps):
        if action < 6 or not twin:
            agenda.push(s, time, kind, number)
            twin.append((time, {CHANGE: 0, FAIL: 1}.get(kind, 2), number, kind))
            twin.sort()
        elif action < 8:
            agenda.drop_first(s)
            _, _, _, kind = twin.pop(0)
            # Who drops what is due counts it himself.
            s.n_quiet -= kind in (CHANGE, TOGGLE)
        else:
            gone = twin.pop(number % len(twin))
            assert agenda.take_off(s, gone[3], gone[2]) == gone[0]
        assert s.n_due == len(twin)
        if twin:
            first = s.agenda[0]
            assert (first.time, first.row, first.kind) == (twin[0][0], twin[0][2], twin[0][3])
        assert agenda.next_due(s) == (twin[0][0] if twin else math.inf)
    for _, _, row, _ in twin:
        assert s.agenda[0].row == row
        agenda.drop_first(s)


def test_what_changes_without_moving_anything_is_counted():
    s = state()
    kinds = [(1.0, CHANGE), (1.0, TOGGLE), (math.inf, LEFT), (1.0, LEFT), (math.inf, JOIN), (1.0, FAIL)]
    quiet = []
    for row, (time, kind) in enumerate(kinds):
        agenda.push(s, time, kind, row)
        quiet.append(s.n_quiet)
    assert quiet == [1, 2, 3, 3, 3, 3]
    for row, (_, kind) in enumerate(kinds):
        agenda.take_off(s, kind, row)
        quiet.append(s.n_quiet)
    assert quiet[6:] == [2, 1, 0, 0, 0, 0]
    assert s.n_due == 0


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from([-1.0, 1.0, 2.0]) | st.floats(0, 9)), max_size=80))
def test_ends_of_flows_are_a_sorted_list(steps):
    s, twin = state(flows=[Flow() for _ in range(12)]), {}
    for f, time in steps:
        if time < 0:
            agenda.never_ends(s, f)
            twin.pop(f, None)
        else:
            agenda.ends_at(s, f, time)
            twin[f] = time
        heap = s.ends[: s.n_ends]
        assert {one.flow: one.time for one in heap} == twin
        assert agenda.next_due(s) == min(twin.values(), default=math.inf)
        assert all(heap[(at - 1) // 4].time <= one.time for at, one in enumerate(heap) if at)
        assert all((s.flows[f].place >= 0) == (f in twin) for f in range(12))
        assert all(heap[s.flows[f].place].flow == f for f in twin)


def test_what_is_due_next_is_an_end_or_on_the_agenda():
    s = state(flows=[Flow()])
    agenda.push(s, 3.0, JOIN, 0)
    agenda.ends_at(s, 0, 2.0)
    assert agenda.next_due(s) == 2.0
    agenda.ends_at(s, 0, 4.0)
    assert agenda.next_due(s) == 3.0


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30))
@settings(max_examples=25)
def test_values_of_a_timeline_are_found_from_wherever_one_was_before(asked):
    starts = np.array([0.0, 3.0, 3.5, 10.0, 11.0, 12.0, 40.0, math.inf])
    values = np.array([5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, -1.0])
    s = state(timelines=[Timeline(here=0, last=7)], times=starts, values=values)
    for t in asked:
        here = int(np.searchsorted(starts, t, side="right")) - 1
        assert timelines.value_at(s, 0, float(t)) == values[here]
        assert s.timelines[0].here == here
        assert timelines.changes_at(s, 0) == starts[here + 1]


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_new_message_takes_nothing_from_the_one_before_in_its_row(adaptive):
    used = Flow(what=ASKS, behind=3, waits=True, holds=True, passed=2, port=4, comes=True, lasts=3.0, next=-1)
    s = state([Link(capacity=5.0), Link(capacity=6.0, assigned=0)], [[0], [0], [1]], [used], free_flow=0, n_free=1)
    s.adaptive = adaptive
    s.routes[2].loss, s.losses = 0, [Loss(payload=0.5)]
    assert messages.address(s, 7, 1, 2, 3, 100.0, 0.25) == 0
    wanted = {"state": ON_ITS_WAY, "owner": 7, "route": 2, "what": DATA, "behind": -1, "waits": False, "holds": False}
    wanted |= {"passed": 0, "remaining": 200.0, "residue": 2e-12, "delay": 0.25, "lasts": math.inf, "port": -1}
    found = dataclasses.asdict(s.flows[0])
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert found["comes"] is False
    assert (s.links[0].assigned, s.links[1].assigned) == (0, int(adaptive))


@pytest.mark.parametrize("remaining", [0.0, 30.0])
@pytest.mark.parametrize("route", [0, 1])
def test_a_message_leaves_for_its_flow_or_where_there_is_none_to_its_receiver(remaining, route):
    flow = Flow(route=route, remaining=remaining, delay=0.5)
    s = state([Link(capacity=4.0), Link(capacity=2.0)], [[0, 1], []], [flow], receive_overhead=3.0, frame=10.0)
    s.routes[0].latency, s.routes[1].latency = 2.0, 7.0
    messages.depart(s, 0, 1.0)
    if route:
        assert due(s) == [(11.5, DELIVER, 0)]
    else:
        assert due(s) == ([(6.0, JOIN, 0)] if remaining else [(6.5, DELIVER, 0)])
    assert flow.limit == math.inf
    assert flow.weight == 1.0


def test_one_frame_is_forwarded_by_all_links_but_the_slowest():
    links = [Link(capacity=4.0), Link(capacity=2.0), Link(capacity=0.0), Link(capacity=9.0, bandwidths=0)]
    s = state(links, [[0, 1, 2, 3]], [Flow(route=0, remaining=30.0), Flow(route=0, remaining=7.0)], frame=10.0)
    s.times, s.values = np.array([0.0, 5.0, math.inf]), np.array([9.0, 8.0, -1.0])
    s.timelines = [Timeline(here=0, last=2)]
    assert messages.forwarding(s, 0, 6.0) == pytest.approx((1 / 4 + 1 / 8) * 10)
    assert messages.forwarding(s, 1, 6.0) == pytest.approx((1 / 4 + 1 / 8) * 7)


def test_rates_that_loss_leaves_and_weights():
    s = state(routes=[[], [], []], losses=[Loss(slope=2.0, fixed=3.0), Loss()], segment=100.0)
    s.routes[0].loss, s.routes[1].loss = 0, 1
    assert [messages.limit_of(s, r, 0.25) for r in range(3)] == [25.0, math.inf, math.inf]
    s.losses[0] = Loss(slope=0.0, fixed=0.5)
    assert messages.limit_of(s, 0, 0.25) == 200.0
    s.counted, s.queueing, s.exponent = 1.0, 1.5, 2.0
    assert messages.weight_of(s, 0.25) == pytest.approx(0.25)
    assert messages.weight_of(s, 2.0) == pytest.approx(2.5**-2)
    s.queueing = 0.0
    assert messages.weight_of(s, 0.0) == pytest.approx(SHORTEST**-2)


def test_the_least_loaded_of_candidate_routes_is_the_first_whose_busiest_link_has_fewest():
    links = [Link(capacity=c, assigned=n) for c, n in [(4.0, 3), (2.0, 0), (2.0, 1), (0.0, 0), (1.0, 0)]]
    s = state(links, [[0], [1, 0], [1, 2], [1], [1, 3], [3], [3], [3, 1]])
    loads = [1.0, 1.0, 1.0, 0.5, math.inf, math.inf, math.inf, math.inf]
    for first in range(len(loads)):
        for count in range(1, len(loads) + 1 - first):
            some = loads[first : first + count]
            assert messages.least_loaded(s, first, count) == first + some.index(min(some))
    messages.assign(s, 2, 1)
    messages.assign(s, 1, -1)
    assert [link.assigned for link in links] == [2, 0, 2, 0, 0]


def in_a_row(*flows):
    s = state([Link(capacity=2.0)], [[0], [0]], flows)
    s.connections, s.messages = [Connection()], [Message(connection=0)]
    return s


def test_messages_of_a_connection_take_turns_on_their_route():
    s = in_a_row(*(Flow(route=r, remaining=n) for r, n in [(0, 1.0), (0, 0.0), (0, 2.0), (1, 1.0), (1, 1.0)]))
    for f in range(5):
        messages.keep_in_order(s, f, 0)
    assert [flow.behind for flow in s.flows] == [2, -1, -1, 4, -1]
    assert [flow.waits for flow in s.flows] == [False, False, True, False, True]
    assert s.connections[0].last == 4
    messages.join(s, 2)
    assert s.flows[2].state == HELD
    # The one behind goes on; where it has not come yet, it will not wait.
    messages.let_next(s, 3, 0)
    assert (s.flows[3].behind, s.flows[4].waits, s.flows[4].state, s.connections[0].last) == (-1, False, FREE, 4)
    messages.let_next(s, 4, 0)
    assert s.connections[0].last == -1
    assert s.n_moving == 0


@pytest.mark.parametrize("kind", [ASKS, IS_READY, ANSWERS])
def test_words_arrive_in_the_order_of_their_kind(kind):
    s = in_a_row(Flow(what=kind, message=0))
    times = [messages.behind_others(s, 0, time) for time in (2.0, 1.0, 3.0)]
    assert times == [2.0, 2.0, 3.0]
    one = s.connections[0]
    assert (one.asked, one.told) == ((3.0, -math.inf) if kind == ASKS else (-math.inf, 3.0))


def waited(others=(), **links):
    """How long a word of 12 bytes takes over three links, with flows on the last, at 10 s."""
    s = state([Link(capacity=c) for c in (3.0, 6.0, 4.0)], [[0, 1, 2], [0, 2], [1, 2]], [Flow(route=0, remaining=12.0)])
    s.now = 10.0
    for f, other in enumerate(others, 1):
        s.flows.append(other)
        s.uses.append(Use(flow=f, behind=f if f < len(others) else -1))
    s.links[2].first_use = 0 if others else -1
    for number, about in links.items():
        for name, value in about.items():
            setattr(s.links[int(number[1:])], name, value)
    return messages.queueing(s, 0)


def test_a_word_takes_the_slowest_link_and_waits_for_what_has_come_before():
    assert waited() == 4.0
    assert waited(l1={"capacity": 0.0}) == math.inf
    assert waited(l1={"capacity": 2.0}) == 6.0
    # A backlog of 8 bytes at 9 s, to which 5 byte/s come and 4 go; also when all has come, and not where nothing does.
    assert waited(l2={"backlog": 8.0, "coming": 5.0, "counted": 9.0, "n_coming": 1}) == 4.0 + 9 / 4
    assert waited(l2={"backlog": 8.0, "counted": 9.0, "first_passing": 0}) == 4.0 + 4 / 4
    assert waited(l2={"backlog": 8.0, "counted": 9.0}) == 4.0
    assert waited(l0={"backlog": 8.0, "counted": 9.0, "n_coming": 1}) == 4.0


def test_a_word_waits_for_what_others_have_sent_and_a_shared_link_has_not_carried():
    # Sent at 3 byte/s for 4 s; 20 bytes of 30 were left 2 s ago, and 2 byte/s are carried since.
    other = {"route": 1, "whole": 30.0, "remaining": 20.0, "rate": 2.0, "since": 8.0, "joined": 6.0}
    assert waited([Flow(**{**other, "remaining": 24.0})]) == 4.0 + (12 - 10) / 4
    assert waited([Flow(**other)]) == 4.0
    assert waited([Flow(**{**other, "remaining": 24.0}), Flow(**{**other, "remaining": 28.0})]) == 4.0 + (2 + 6) / 4
    assert waited([Flow(**{**other, "owner": BACKGROUND, "remaining": 24.0})]) == 4.0
    assert waited([Flow(**{**other, "whole": 11.0, "remaining": 5.0, "rate": 0.0})]) == 4.0 + 5 / 4


def queue(**about):
    """A queue of 6 byte/s before the last of three links, at 10 s, and three messages over it that end on it."""
    link = Link(capacity=6.0, **{"queues": True, "counted": 8.0, "backlog": 5.0, "coming": 7.0, **about})
    flows = [Flow(route=0, remaining=8.0, whole=9.0, residue=1e-9) for _ in range(3)]
    s = state([Link(capacity=3.0), Link(capacity=3.0), link], [[0, 1, 2], [2], [1, 0, 2]], flows)
    s.now = 10.0
    return s, link, flows


def test_a_queue_is_empty_when_the_first_message_comes():
    s, link, flows = queue()
    arrivals.come(s, 0)
    assert (link.backlog, link.coming, link.counted, link.n_coming) == (0.0, 0.0, 10.0, 1)
    assert (flows[0].port, flows[0].comes, flows[0].passed, flows[0].limit) == (2, True, 0, 0.0)
    for about in ({"n_coming": 1}, {"first_passing": 1}):
        s, link, _ = queue(**about)
        arrivals.come(s, 0)
        assert (link.backlog, link.coming, link.counted) == (5.0, 7.0, 8.0)
        assert link.n_coming == 1 + about.get("n_coming", 0)


def test_no_queue_where_a_link_is_shared_or_the_hosts_own():
    s, link, flows = queue(queues=False)
    arrivals.come(s, 0)
    s.routes[0].own = -1
    link.queues = True
    arrivals.come(s, 0)
    flows[1].route = 1
    arrivals.come(s, 1)
    assert (flows[0].port, flows[1].port, link.n_coming) == (-1, -1, 0)


@pytest.mark.parametrize(("route", "own", "passed"), [(0, 0, 1), (0, 1, 2), (2, 1, 1)])
def test_who_meets_others_on_its_own_link_has_that_behind_it(route, own, passed):
    s, _, flows = queue()
    s.routes[route].own = own
    s.links[own].first_use, s.uses = 0, [Use(flow=1)]
    flows[1].route = route
    flows[0].route, flows[0].lasts, flows[0].limit = route, 3.0, 5.0
    arrivals.come(s, 0)
    assert (flows[0].passed, flows[0].limit) == (passed, 3.0)
    flows[2].route, flows[2].limit = route, 5.0
    arrivals.come(s, 2)
    assert (flows[2].passed, flows[2].limit) == (0, 5.0)


def test_words_alone_and_background_traffic_are_not_met():
    s, _, flows = queue()
    s.links[0].first_use, s.uses = 0, [Use(flow=1, behind=1), Use(flow=2)]
    meets = {}
    for kinds in [(DATA, DATA), (ASKS, DATA), (DATA, ASKS), (ASKS, ASKS)]:
        flows[1].what, flows[2].what = kinds
        meets[kinds] = arrivals.meets_on_own_link(s, 0)
    assert list(meets.values()) == [True, True, True, False]
    flows[1].what = flows[2].what = DATA
    flows[2].owner = BACKGROUND
    assert arrivals.meets_on_own_link(s, 0) is False
    flows[2].owner, s.routes[1].own, flows[2].route = TRANSFER, 2, 1
    assert arrivals.meets_on_own_link(s, 0) is False
    s.links[0].first_use = -1
    assert arrivals.meets_on_own_link(s, 0) is False


def test_a_queue_grows_by_what_comes_and_shrinks_by_what_is_carried():
    s, link, flows = queue(n_coming=2)
    flows[0].port, flows[0].rate, flows[0].comes = 2, 4.0, True
    arrivals.comes_at(s, 0, 1.5)
    assert (link.backlog, link.counted, link.coming) == (7.0, 10.0, 4.5)
    s.now = 20.0
    arrivals.count(s, 2)
    assert (link.backlog, link.counted) == (0.0, 20.0)


def test_what_has_come_passes_the_link_behind_the_backlog():
    s, link, flows = queue(n_coming=2)
    for f, coming in ((0, 3.0), (1, 0.0)):
        flows[f].port, flows[f].rate, flows[f].comes, flows[f].first, flows[f].stop = 2, 4.0, True, 1, 3
        assert arrivals.has_come(s, f) is True
        assert (flows[f].remaining, flows[f].since, flows[f].rate, flows[f].comes) == (7.0, 10.0, 6.0, False)
        assert (flows[f].stop, link.coming, link.n_coming) == (1, coming, 1 - f)
    assert (link.first_passing, flows[1].next, flows[0].next) == (1, 0, -1)
    assert {s.ends[at].flow: s.ends[at].time for at in range(2)} == {0: 10 + 7 / 6, 1: 10 + 7 / 6}
    # The link changes: what is left passes at the bandwidth that it has now, or never.
    s.now, link.capacity = 10.5, 2.0
    arrivals.pass_otherwise(s, 2)
    assert [(flow.remaining, flow.since, flow.rate) for flow in flows[:2]] == [(4.0, 10.5, 2.0)] * 2
    assert {s.ends[at].time for at in range(s.n_ends)} == {12.5}
    link.capacity = 0.0
    arrivals.pass_otherwise(s, 2)
    assert s.n_ends == 0


def test_what_has_come_and_finds_nothing_before_it_is_there():
    s, link, flows = queue(n_coming=1, backlog=1.0, coming=4.0)
    flows[0].port, flows[0].rate, flows[0].comes = 2, 4.0, True
    assert arrivals.has_come(s, 0) is False
    assert (flows[0].port, flows[0].comes, link.n_coming, link.first_passing, link.coming) == (-1, False, 0, -1, 0.0)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_who_leaves_a_queue_leaves_the_others_in_it(gone):
    s, link, flows = queue(first_passing=2)
    for f, flow in enumerate(flows):
        flow.port, flow.next = 2, f - 1
    arrivals.leave_queue(s, gone)
    left, f = [], link.first_passing
    while f >= 0:
        left.append(f)
        f = flows[f].next
    assert left == [f for f in (2, 1, 0) if f != gone]
    assert flows[gone].port == -1


def test_who_leaves_a_queue_while_it_comes_comes_no_more():
    s, link, flows = queue(n_coming=2)
    flows[0].port, flows[0].rate, flows[0].comes = 2, 4.0, True
    arrivals.leave_queue(s, 0)
    assert (link.backlog, link.counted, link.coming, link.n_coming) == (7.0, 10.0, 3.0, 1)
    assert (flows[0].port, flows[0].comes) == (-1, False)


def host(capacity=2.0, sizes=(8.0,), **about):
    """A host whose own link, at 10 s, leaves so many bytes a second, and messages over it; sending takes 0.5 s."""
    flows = [Flow(route=0, remaining=n, limit=math.inf, state=ON_ITS_WAY) for n in sizes]
    s = state([Link(capacity=capacity, **about), Link(capacity=9.0)], [[0, 1]], flows, queues=True, send_overhead=0.5)
    s.now, s.ranks, s.messages = 10.0, [Rank(), Rank()], [Message(src=1)]
    return s, s.links[0], flows


def test_messages_that_share_their_own_link_leave_when_that_is_through_with_them():
    s, link, flows = host(sizes=(8.0, 6.0, 0.0, 4.0))
    for f in (0, 1, 2):
        ports.send_off(s, 1, f)
    assert (s.ranks[1].let_go, link.port_free, link.port_rank, link.port_flow) == (17.5, 17.5, 1, -1)
    assert [flow.unsent for flow in flows] == [0.0] * 4
    # Those of another rank do not wait for them.
    ports.send_off(s, 0, 3)
    assert (s.ranks[0].let_go, link.port_free, link.port_rank) == (12.5, 12.5, 0)
    assert (s.ranks[0].missing, s.ranks[1].missing, s.n_due) == (0, 0, 0)


def test_a_message_without_bytes_waits_for_no_link():
    s, link, _ = host(0.0, sizes=(0.0,))
    ports.send_off(s, 1, 0)
    assert (s.ranks[1].let_go, s.ranks[1].missing, link.port_rank, s.n_due) == (10.5, 0, -1, 0)
    ports.hand_over(s, 0)
    assert due(s) == [(10.5, DELIVER, 0)]
    assert s.n_queued == 0


def test_a_message_slower_than_its_own_link_leaves_that_no_faster():
    s, link, flows = host()
    flows[0].limit = 0.5
    ports.send_off(s, 1, 0)
    assert link.port_free == 10.5 + 16.0


def test_what_its_own_links_next_change_decides_waits_for_it():
    s, link, flows = host(sizes=(8.0, 6.0), until=12.0)
    ports.send_off(s, 1, 0)
    ports.send_off(s, 1, 1)
    assert (link.port_flow, flows[0].next, flows[1].next, flows[1].unsent, flows[1].counted) == (0, 1, -1, 6.0, 10.5)
    assert (s.ranks[1].missing, s.ranks[1].leaving, s.ranks[1].let_go) == (1, 1, 10.5)
    assert due(s) == [(12.0, LEFT, 0)]
    s.now = 12.0
    link.capacity, link.until = 5.0, math.inf
    assert ports.go_on_sending(s, 0) is True
    # 5 bytes are left of the first, and 6 of the second.
    assert (s.ranks[1].let_go, link.port_free, link.port_flow) == (pytest.approx(14.2), pytest.approx(14.2), -1)


@pytest.mark.parametrize(
    ("capacity", "until", "time"), [(0.0, 12.0, 12.0), (0.0, math.inf, math.inf), (2.0, 9.0, 10.5)]
)
def test_a_link_that_is_down_or_about_to_change_is_looked_at_when_it_changes(capacity, until, time):
    s, link, flows = host(capacity)
    flows[0].unsent = 8.0
    end = ports.carry(s, 0, 10.5)
    assert end == (14.5 if capacity else math.inf)
    link.until = until
    ports.leaves_at(s, 0, end)
    assert due(s) == [(time, LEFT, 0)]
    assert s.ranks[1].leaving == (time < math.inf)


def test_what_has_not_left_is_counted_from_when_it_leaves():
    s, _, flows = host()
    flows[0].unsent, flows[0].counted, flows[0].pace, flows[0].residue = 8.0, 8.5, 2.0, 0.25
    ports.count_sent(s, 0)
    assert flows[0].unsent == 5.0
    flows[0].counted = 11.0
    ports.count_sent(s, 0)
    assert flows[0].unsent == 5.0
    flows[0].counted = 1.0
    ports.count_sent(s, 0)
    assert flows[0].unsent == 0.25


def test_messages_that_leave_one_after_another_are_known_to_do_so():
    s, link, flows = host(sizes=(8.0, 6.0))
    s.routes[0].latency = 1.0
    ports.hand_over(s, 0)
    ports.hand_over(s, 1)
    assert (link.port_free, flows[0].lasts, flows[1].lasts) == (17.5, 4.0, 3.0)
    assert due(s) == [(11.5, JOIN, 0), (15.5, JOIN, 1)]
    assert s.n_queued == 0


@pytest.mark.parametrize("about", [{"until": 14.0}, {"until": 10.5}, {"capacity": 0.0, "until": 30.0}])
def test_messages_queue_where_their_own_links_change_comes_before_they_have_left(about):
    s, link, flows = host(sizes=(8.0, 6.0), **about)
    ports.hand_over(s, 0)
    ports.hand_over(s, 1)
    assert (link.port_first, link.port_last, flows[0].next, flows[1].next, s.n_queued) == (0, 1, 1, -1, 2)
    assert [flow.state for flow in flows] == [QUEUED, QUEUED]
    assert [flow.since for flow in flows] == [10.5, 10.5]
    assert due(s) == [(10.5, SERVE, 0)]
    assert link.port_free == 0.0


@pytest.mark.parametrize("about", [{"watching": True}, {"horizon": 10.5}, {"runs": [Run(fails=True)]}])
def test_messages_queue_where_what_comes_first_is_not_known(about):
    s, _, flows = host()
    for name, value in about.items():
        setattr(s, name, value)
    flows[0].owner = 0 if s.runs else TRANSFER
    ports.hand_over(s, 0)
    assert s.n_queued == 1
    s, _, flows = host()
    s.runs, flows[0].owner = [Run()], 0
    ports.hand_over(s, 0)
    assert s.n_queued == 0


def test_a_host_goes_on_with_the_first_message_that_has_not_vanished():
    s, link, flows = host(sizes=(8.0, 6.0, 4.0))
    for f in range(3):
        ports.queue_up(s, f, 0)
        flows[f].since = 10.0
    flows[0].state = VANISHED
    link.until = 12.0
    ports.serve(s, 0)
    # Two seconds of the second message leave before the link changes.
    assert (link.port_first, link.port_rest, link.port_free, s.n_queued) == (2, 2.0, 12.0, 1)
    assert (flows[0].state, s.free_flow, s.n_free, flows[1].lasts) == (FREE, 0, 1, math.inf)
    assert due(s) == [(10.0, JOIN, 1), (12.0, SERVE, 0)]
    s.now, link.until, link.capacity = 11.0, math.inf, 4.0
    ports.serve(s, 0)
    assert s.n_due == 2
    s.now = 12.0
    ports.serve(s, 0)
    assert (link.port_rest, link.port_free) == (0.0, 12.5)
    assert due(s)[2:] == [(12.5, SERVE, 0)]
    s.now = 12.5
    ports.serve(s, 0)
    assert (link.port_first, link.port_rest, link.port_free, flows[2].lasts, s.n_queued) == (-1, 0.0, 13.5, 1.0, 0)
    assert s.n_due == 4
    s.now = 13.5
    ports.serve(s, 0)
    assert (s.n_due, link.port_free) == (4, 13.5)


def test_a_host_waits_for_a_message_that_is_not_handed_over_yet():
    s, link, flows = host()
    ports.queue_up(s, 0, 0)
    flows[0].since = 10.5
    ports.serve(s, 0)
    assert due(s) == [(10.5, SERVE, 0)]
    assert (link.port_first, s.n_queued) == (0, 1)


def test_a_host_whose_link_is_down_looks_again_when_that_changes():
    s, link, flows = host(0.0, until=15.0)
    ports.queue_up(s, 0, 0)
    flows[0].since = 10.0
    ports.serve(s, 0)
    assert (link.port_rest, link.port_free, flows[0].lasts) == (8.0, 15.0, math.inf)
    assert due(s) == [(10.0, JOIN, 0), (15.0, SERVE, 0)]


def test_background_traffic_is_turned_on_and_off_with_its_timeline():
    one = Background(limit=3.0, weight=2.0, route=0, timeline=0)
    s = state([Link(capacity=4.0)], [[0]], [Flow(port=3, residue=1.0, passed=2, next=-1)], free_flow=0, n_free=1)
    s.background, s.n_background, s.timelines = [one], 1, [Timeline(here=0, last=2)]
    s.times, s.values = np.array([0.0, 5.0, math.inf]), np.array([0.0, 1.0, -1.0])
    messages.toggle(s, 0)
    assert (one.on, one.until, one.flow) == (0.0, 5.0, -1)
    assert due(s) == [(5.0, TOGGLE, 0)]
    messages.toggle(s, 0)
    assert s.n_due == 1
