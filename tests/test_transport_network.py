"""Packet loss and incast on a whole network: closed forms, sharing, engines that agree, and nothing changed without."""

import math

import pytest

from simnet import topologies
from simnet.collectives import allgather_bruck, allreduce_ring, parameter_server
from simnet.network import Network, OnOffFlow
from simnet.network.transport import Incast, Loss, MeasuredIncast, Transport
from simnet.network.weather import Weather, constant, steps
from simnet.scenario import load
from simnet.schedule import Round, Schedule

ALPHA, RATE = 0.01, 1e6
ENGINES = ["auto", "fluid", "vectorised"]
HALF = MeasuredIncast([2], [0.5])


def lossy(limit, *links):
    """A transport that leaves `limit` bytes per second at a loss of 1.5 % and a round trip of 2 alpha."""
    return Loss(dict.fromkeys(links, 0.015), Transport("mathis", segment=limit * 2 * ALPHA * 0.1, acked=1))


def star(hosts, **options):
    return Network(topologies.star(hosts, ALPHA, RATE), **options)


def messages(hosts, *triples):
    src, dst, nbytes = zip(*triples, strict=True)
    return Schedule(hosts, [Round(src, dst, nbytes)])


def to_first(senders, nbytes):
    return messages(senders + 1, *[(rank, 0, nbytes) for rank in range(1, senders + 1)])


# Packet loss


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("limit", "nbytes"), [(2e5, 0.0), (2e5, 1.0), (2e5, 1e6), (2 * RATE, 1e6)])
def test_a_transfer_takes_latency_and_its_bytes_at_the_limit(engine, limit, nbytes):
    network = star(2, loss=lossy(limit, (0, "switch")), engine=engine)
    least = ALPHA + nbytes / min(limit, RATE)
    assert network.time(messages(2, (0, 1, nbytes))).finish == pytest.approx(least, rel=1e-9)
    assert network.time(messages(2, (1, 0, nbytes))).finish == pytest.approx(ALPHA + nbytes / RATE, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("transport", "share"), [(Transport("retransmit"), 0.9), (Transport("go_back_n", window=9), 0.5)]
)
def test_bytes_that_are_sent_again_take_time(engine, transport, share):
    network = star(2, loss=Loss({(0, "switch"): 0.1}, transport), engine=engine)
    assert network.time(messages(2, (0, 1, 1e6))).finish == pytest.approx(ALPHA + 1 / share, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_route_whose_loss_rounds_to_all_packets_still_delivers(engine):
    lost = 1 - 1e-9
    loss = Loss({(0, "switch"): lost, ("switch", 1): lost}, Transport("retransmit"))
    assert 1e15 < star(2, loss=loss, engine=engine).time(messages(2, (0, 1, 1e6))).finish < math.inf


AGAIN = Loss({(1, "switch"): 0.1}, Transport("go_back_n", window=9))
LATE = {(2, "switch"): Weather(bandwidth=steps([0.0, 3 + ALPHA], [0.0, RATE]))}
FAINT = {("switch", 0): Weather(bandwidth=steps([0.0, 2 + ALPHA], [RATE, RATE / 2]))}


@pytest.mark.parametrize(
    ("options", "sent", "finish"),
    [
        # Both have half the link; the lossy one carries twice its bytes and ends last.
        ({"loss": AGAIN}, (1e6, 1e6), (3.0, 2.0)),
        # The clean one has 0.8 MB/s for a second, and then all of the link.
        ({"loss": lossy(2e5, (1, "switch"))}, (2e5, 1.6e6), (1.0, 1.8)),
        # A limit above the fair share binds once the other is gone.
        ({"loss": lossy(8e5, (1, "switch"))}, (1.3e6, 5e5), (2.0, 1.0)),
        # Half the link for two until the shorter ends after 4 s, all of it for the rest.
        ({"incast": HALF}, (1e6, 2e6), (4.0, 5.0)),
        # A limited flow of 0.1 MB/s leaves the other what incast leaves of the link but for that.
        ({"incast": HALF, "loss": lossy(1e5, (1, "switch"))}, (1e5, 8e5), (1.0, 1.4)),
        # Half the link, and a quarter from 2 s on.
        ({"incast": HALF, "weather": FAINT}, (7.5e5, 7.5e5), (4.0, 4.0)),
        # Half the link while the other waits for its own, which is down for 3 s.
        ({"incast": HALF, "weather": LATE}, (1e6, 5e5), (2.0, 3.5)),
    ],
)
def test_two_that_meet_share_what_limits_and_incast_leave(options, sent, finish):
    timing = star(3, **options).time(messages(3, (1, 0, sent[0]), (2, 0, sent[1])), messages=True)
    assert timing.messages.finish - ALPHA == pytest.approx(finish, rel=1e-9)


@pytest.mark.parametrize("engine", ["auto", "fluid"])
def test_the_round_trip_is_that_at_departure(engine):
    weather = {(0, "switch"): Weather(latency=steps([0.0, 10.0], [ALPHA / 2, 4.5 * ALPHA]))}
    network = star(2, weather=weather, loss=lossy(2e5, (0, "switch")), engine=engine)
    schedule = messages(2, (0, 1, 4e6))
    assert network.time(schedule).finish == pytest.approx(ALPHA + 20.0, rel=1e-9)
    assert network.time(schedule, 10.0).finish == pytest.approx(10 + 5 * ALPHA + 100.0, rel=1e-9)


@pytest.mark.parametrize("engine", ["auto", "fluid"])
def test_bandwidth_that_moves_binds_while_it_is_below_the_limit(engine):
    weather = {(0, "switch"): Weather(bandwidth=steps([0.0, 1 + ALPHA, 2 + ALPHA], [1e6, 1e5, 5e5]))}
    network = star(2, weather=weather, loss=lossy(4e5, (0, "switch")), engine=engine)
    assert network.time(messages(2, (0, 1, 9e5))).finish == pytest.approx(ALPHA + 3.0, rel=1e-9)


@pytest.mark.parametrize("engine", ["auto", "fluid"])
@pytest.mark.parametrize("schedule", [allreduce_ring(4, 3.3e6), allgather_bruck(4, 1.0), parameter_server(4, 5e5)])
def test_no_loss_and_room_for_all_change_nothing(schedule, engine):
    troubles = {"loss": Loss(dict.fromkeys(star(4).graph.edges, 0.0)), "incast": Incast(buffer=1e9)}
    plain, same = (star(4, engine=engine, **more).time(schedule) for more in ({}, troubles))
    assert same.rank_finish.tolist() == plain.rank_finish.tolist()


# Incast


@pytest.mark.parametrize("senders", [1, 9, 10, 27])
def test_many_to_one_takes_what_incast_leaves_of_the_link(senders):
    bandwidth, nbytes = 1.25e8, 262144.0
    network = Network(topologies.star(senders + 1, 50e-6, bandwidth), incast=Incast())
    factor = Incast().shares(senders, bandwidth)[-1]
    finish = network.time(to_first(senders, nbytes)).finish
    assert finish == pytest.approx(50e-6 + senders * nbytes / (bandwidth * factor), rel=1e-9)


def test_background_flows_are_in_the_crowd():
    alone = star(3, incast=HALF, background=[OnOffFlow(2, 0, constant(1.0))]).time(messages(3, (1, 0, 1e6))).finish
    assert alone == pytest.approx(ALPHA + 4.0, rel=1e-9)


def test_the_scenario_that_comes_with_simnet_meets_its_incast():
    job = load("incast").build().job
    schedule = parameter_server(16, 1.46e6)
    alone, after = (
        load("incast", fields).build().job.network(0).time(schedule).finish
        for fields in (["network.incast=null"], ["network.incast.timeouts.buffer=4MiB"])
    )
    # All to one and one to all, each at the bandwidth of a link.
    assert alone == after == pytest.approx(2 * (100e-6 + 15 * 1.46e6 / 1.25e8), rel=1e-9)
    # Ten senders or more find no room for the windows of one, and their link stands idle once in each block of ten.
    once = 10 * 1.46e6 / 1.25e8
    slowed = 2 * 100e-6 + 15 * 1.46e6 / 1.25e8 * ((once + 0.2) / once + 1)
    assert job.network(0).time(schedule).finish == pytest.approx(slowed, rel=1e-9)


def test_messages_that_a_rank_sends_together_leave_each_at_the_rate_that_loss_allows_it():
    graph, loss = topologies.star(3, 1e-3, 1e6), Loss({("switch", 2): 0.05})
    weather = {(0, "switch"): Weather(bandwidth=steps([0.0, 0.02], [1e6, 5e5]))}
    network = Network(graph, weather, loss=loss)
    _, slow = network.path(0, 2, 1.0)
    assert slow < 4e5
    done = network.time(Schedule(3, [Round([0, 0], [1, 2], [4e4, 4e4])])).left[0]
    # The first message is through with half of its bytes when the link changes; the other one leaves behind it.
    assert done == pytest.approx(0.02 + 2e4 / 5e5 + 4e4 / slow)
