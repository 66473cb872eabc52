"""Packet loss and incast: the formulas against published numbers and brute force, and what links and scenarios hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet import scenario, topologies
from simnet.base import rng
from simnet.base.errors import InputError
from simnet.network.links import Links
from simnet.network.transport import Incast, Limits, Loss, MeasuredIncast, Transport

GIGABIT = 1.25e8

probabilities = st.floats(0.0, 0.999)
trips = st.floats(0.0, 10.0)
transports = st.builds(
    Transport,
    law=st.sampled_from(["mathis", "pftk", "retransmit"]),
    segment=st.sampled_from([536.0, 1460.0, 8960.0]),
    acked=st.sampled_from([1, 2]),
    timeout=st.sampled_from([0.001, 0.2, 1.0]),
    connections=st.sampled_from([1, 4]),
) | st.builds(Transport, law=st.just("go_back_n"), window=st.sampled_from([1, 10, 1000]))


def useful(transport: Transport, p: float, rtt: float, capacity: float) -> float:
    """Payload per second of a transfer alone on a link of this capacity."""
    limits = transport.limits(p)
    return float(min(capacity, limits.rate(rtt, transport.segment)) * limits.share)


# Packet loss: published numbers


@pytest.mark.parametrize(
    ("p", "f"),
    [
        (0.0001, 0.008172),
        (0.0002, 0.011567),
        (0.002, 0.037172),
        (0.004, 0.053499),
        (0.01, 0.089021),
        (0.02, 0.136520),
        (0.05, 0.271305),
        (0.1, 0.564939),
    ],
)
def test_pftk_is_the_tfrc_table_of_linux(p: float, f: float) -> None:
    """Rows of net/dccp/ccids/lib/tfrc_equation.c, which tabulates rate = segment / (R f(p)) for b = 1, t_RTO = 4 R.

    The minimum that TFRC leaves out is not active below p = 8 / 27.
    """
    rtt = 0.05
    transport = Transport("pftk", segment=1000.0, acked=1, timeout=4 * rtt)
    assert 1000.0 / (rtt * float(transport.goodput(p, rtt))) == pytest.approx(f, abs=1.01e-6)


@pytest.mark.parametrize("p", [1e-5, 1e-3, 0.02, 0.1])
def test_pftk_with_delayed_acknowledgements_is_the_formula_of_rfc_3819(p: float) -> None:
    """Section 8.5: MSS / (RTT sqrt(1.33 p) + RTO p (1 + 32 p^2) min(1, 3 sqrt(0.75 p)))."""
    rtt, rto = 0.08, 0.3
    seconds = rtt * math.sqrt(1.33 * p) + rto * p * (1 + 32 * p**2) * min(1, 3 * math.sqrt(0.75 * p))
    assert float(Transport("pftk", timeout=rto).goodput(p, rtt)) == pytest.approx(1460 / seconds, rel=2e-3)


def test_the_square_root_law_gives_the_example_of_rfc_3649() -> None:
    """10 Gbit/s over 100 ms with 1,500-byte packets: 83,333 segments in flight, one loss in 5,000,000,000 packets."""
    transport = Transport("mathis", segment=1500, acked=1)
    p = 1.5 / 83_333**2
    assert float(transport.goodput(p, 0.1)) * 8 == pytest.approx(1e10, rel=1e-5)
    assert round(1 / p, -9) == 5e9


def test_go_back_n_wastes_a_window_for_each_loss() -> None:
    p, window, delivered = 0.02, 30, 200_000
    losses = rng.stream(1, "go back n").geometric(1 - p, delivered) - 1
    slots = delivered + window * losses.sum()
    assert float(Transport("go_back_n", window=window).limits(p).share) == pytest.approx(delivered / slots, rel=0.02)


@given(transports, trips)
def test_without_loss_nothing_changes(transport: Transport, rtt: float) -> None:
    limits = transport.limits(0.0)
    assert (limits.a, limits.b, limits.share) == (0, 0, 1)
    assert limits.rate(rtt, transport.segment) == math.inf


# Packet loss: laws


@given(transports, st.tuples(probabilities, probabilities), st.tuples(trips, trips))
def test_more_loss_and_longer_trips_are_never_faster(
    transport: Transport, p: tuple[float, float], rtt: tuple[float, float]
) -> None:
    less, more = (useful(transport, one, trip, 1e9) for one, trip in zip(sorted(p), sorted(rtt), strict=True))
    assert 0 < more <= less * (1 + 1e-12)


@given(probabilities, trips, st.sampled_from([1, 2]))
def test_time_outs_only_slow_down_and_connections_add_up(p: float, rtt: float, acked: int) -> None:
    mathis, pftk = (Transport(law, acked=acked).goodput(p, rtt) for law in ("mathis", "pftk"))
    assert pftk <= mathis
    assert Transport(acked=acked, connections=8).goodput(p, rtt) == pytest.approx(8 * pftk, rel=1e-12)


@given(probabilities, st.integers(1, 10_000))
def test_selective_repeat_is_never_worse_than_go_back_n(p: float, window: int) -> None:
    selective = Transport("retransmit").limits(p).share
    assert selective == 1 - p
    assert Transport("go_back_n", window=window).limits(p).share <= selective * (1 + 1e-12)
    assert Transport("go_back_n", window=1).limits(p).share == pytest.approx(1 - p)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"law": "reno"}, "there is no law of loss 'reno'"),
        ({"law": "pftkk"}, "did you mean 'pftk'"),
        ({"segment": 0}, "segment must be a number > 0"),
        ({"acked": 0}, "acked must be a whole number >= 1"),
        ({"timeout": math.inf}, "timeout must be"),
        ({"connections": 1.5}, "connections must be"),
        ({"window": 3}, "window belongs to go_back_n"),
        ({"law": "go_back_n"}, "window belongs to go_back_n"),
        ({"law": "go_back_n", "window": 0}, "window must be"),
    ],
)
def test_what_is_no_transport_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transport(**arguments)  # type: ignore[arg-type]


# Incast


incasts = st.builds(
    Incast,
    buffer=st.sampled_from([0.0, 32768.0, 131072.0, 1e7]),
    window=st.sampled_from([2920.0, 14600.0]),
    timeout=st.sampled_from([0.0, 200e-6, 0.2]),
    rtt=st.sampled_from([0.0, 100e-6]),
    block=st.sampled_from([1e3, 262144.0, 1e8]),
)
bandwidths = st.sampled_from([GIGABIT, 10 * GIGABIT, 100 * GIGABIT])


@given(incasts, bandwidths, st.integers(1, 300))
def test_the_factor_is_that_of_senders_who_wait_in_turn(incast: Incast, bandwidth: float, senders: int) -> None:
    least = 1.0
    for m in range(1, senders + 1):
        waiting, seconds = m, m * incast.block / bandwidth
        while waiting > incast.senders_that_fit(bandwidth):
            waiting -= incast.senders_that_fit(bandwidth)
            seconds += incast.timeout
        least = min(least, m * incast.block / bandwidth / seconds)
    assert incast.shares(senders, bandwidth)[-1] == pytest.approx(least, rel=1e-9)


def test_a_shallow_switch_collapses_by_the_published_order_of_magnitude() -> None:
    """Up to 90 % of the throughput is lost (Vasudevan et al. 2009), and max-min is wrong by a factor of 8 and more."""
    for bandwidth, senders in ((GIGABIT, 10), (10 * GIGABIT, 20)):
        factors = Incast().shares(64, bandwidth)
        assert (factors[:8] == 1).all()
        assert 0.01 < factors[senders] < 1 / 8
        assert 0.01 < factors[64] < 1 / 8


def test_what_the_measures_against_incast_do() -> None:
    """Time-outs of 200 us, as Vasudevan et al. propose, or a deep buffer, avoid the collapse."""
    assert Incast(buffer=0.0, rtt=0.0).senders_that_fit(1e6) == 1
    assert Incast(timeout=200e-6).shares(64, GIGABIT)[-1] > 0.95
    assert (Incast(buffer=9e6).shares(64, GIGABIT) == 1).all()


def test_measured_factors_hold_from_their_number_of_senders_on() -> None:
    measured = MeasuredIncast([3, 5], [0.5, 0.25])
    assert measured.shares(6, GIGABIT).tolist() == [1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    assert measured.shares(1, GIGABIT).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Transport().limits(-0.5), "must be in 0 <= p < 1"),
        (lambda: Loss({(0, 1): -0.5}), r"loss on the link \(0, 1\) must be in 0 <= p < 1, got -0.5"),
        (lambda: Incast(window=0), "window must be a number > 0"),
        (lambda: Incast(buffer=-1), "buffer must be a finite number >= 0"),
        (lambda: Incast(timeout=math.nan), "timeout must be"),
        (lambda: Incast().shares(10**9, 1.0), "most must be a whole number"),
        (lambda: Incast().shares(10, 0.0), "bandwidth must be"),
        (lambda: MeasuredIncast([], []), "at least one"),
        (lambda: MeasuredIncast([2, 3], [0.5]), "got 1 for 2"),
        (lambda: MeasuredIncast([1], [0.5]), "ascending"),
        (lambda: MeasuredIncast([4, 4], [0.5, 0.4]), "ascending"),
        (lambda: MeasuredIncast([4, 5], [0.5, 0.6]), "never rise"),
        (lambda: MeasuredIncast([4], [0.0]), "must be > 0"),
    ],
)
def test_what_is_no_incast_is_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


# Links


def links_of(graph: object, **troubles: object) -> Links:
    return Links(graph, {}, (), 0, **troubles)  # type: ignore[arg-type]


def test_losses_of_a_route_are_independent() -> None:
    transport = Transport("retransmit")
    links = links_of(topologies.star(3, 1e-3, 1e6), loss=Loss({(0, "switch"): 0.1, ("switch", 1): 0.2}, transport))
    shares = {pair: links.limits(links.routes.route(*pair)).share for pair in [(0, 1), (0, 2), (2, 1), (1, 2), (1, 1)]}
    assert shares == pytest.approx({(0, 1): 0.72, (0, 2): 0.9, (2, 1): 0.8, (1, 2): 1.0, (1, 1): 1.0})
    assert not links.lossless


def test_small_losses_keep_their_precision() -> None:
    links = links_of(topologies.star(2, 1e-3, 1e6), loss=Loss({(0, "switch"): 1e-15}, Transport("mathis", acked=1)))
    assert links.limits(links.routes.route(0, 1)).a == pytest.approx(math.sqrt(2e-15 / 3), rel=1e-12)


@given(
    transports,
    st.dictionaries(st.sampled_from(sorted(topologies.fat_tree(4, 1e-6, 1e9).edges, key=str)), probabilities),
)
def test_a_table_of_routes_has_the_limits_of_each(transport: Transport, losses: dict[object, float]) -> None:
    links = links_of(topologies.fat_tree(4, 1e-6, 1e9), loss=Loss(losses, transport))  # type: ignore[arg-type]
    src, dst = np.repeat(np.arange(16), 16), np.tile(np.arange(16), 16)
    together = links.limits_of(links.routes.table(src, dst))
    for index, pair in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        assert tuple(column[index] for column in together) == links.limits(links.routes.route(*pair))


def test_without_loss_links_have_no_limits() -> None:
    graph = topologies.star(2, 1e-3, 1e6)
    for links in (links_of(graph), links_of(graph, loss=Loss({})), links_of(graph, loss=Loss({(0, "switch"): 0.0}))):
        assert links.lossless
        assert links.limits(links.routes.route(0, 1)) == Limits(0, 0, 1)
        assert [column.tolist() for column in links.limits_of(links.routes.table([0, 1], [1, 1]))] == [
            [0, 0],
            [0, 0],
            [1, 1],
        ]
        assert links.path(0, 1) == (1e-3, 1e6)
        assert links.incast_derating is None


def test_the_bandwidth_of_a_path_is_what_loss_leaves() -> None:
    graph, lossy = topologies.star(2, 1e-3, 1e6), {(0, "switch"): 0.05}
    mathis = Transport("mathis")
    assert links_of(graph, loss=Loss(lossy, mathis)).path(0, 1)[1] == pytest.approx(
        min(1e6, mathis.goodput(0.05, 2e-3))
    )
    slow = Transport("mathis", segment=10.0)
    assert links_of(graph, loss=Loss(lossy, slow)).path(0, 1)[1] == pytest.approx(slow.goodput(0.05, 2e-3))
    assert links_of(graph, loss=Loss(lossy, Transport("retransmit"))).path(0, 1) == (1e-3, pytest.approx(0.95e6))


def crowded(graph: object, **options: object) -> set[object]:
    links = links_of(graph, incast=MeasuredIncast([2], [0.5], **options))  # type: ignore[arg-type]
    assert links.incast_derating is not None
    return {links.routes.links[index] for index in np.flatnonzero(links.incast_derating.rows >= 0)}


def test_incast_befalls_the_links_from_switches_into_hosts() -> None:
    assert crowded(topologies.star(3, 1e-3, 1e6)) == {("switch", host) for host in range(3)}
    assert len(crowded(topologies.fat_tree(4, 1e-6, 1e9))) == 16
    assert crowded(topologies.ring(4, 1e-3, 1e6)) == set()
    cards = {"intra_latency": 1e-6, "intra_bandwidth": 3e11, "nic_latency": 5e-6, "nic_bandwidth": 2.5e10}
    nodes = topologies.multi_gpu_nodes(2, 4, **cards)
    assert crowded(nodes) == {("fabric", "node:0"), ("fabric", "node:1")}
    rails = topologies.multi_gpu_nodes(2, 2, rails=True, **cards)
    assert crowded(rails) == {(f"rail:{host % 2}", host) for host in range(4)}
    assert crowded(topologies.star(3, 1e-3, 1e6), links=[("switch", 1)]) == {("switch", 1)}


# Scenarios


SCENARIO = """\
name: small
seed: 3
workers: 4
network:
  topology: {wan: {sites: [a, b], workers_per_site: 2, latency: 40 ms, bandwidth: 1 Gbit/s}}
job: {parameters: 2000, iterations: 4, density: 0.01, compute: {mean: 10 ms}}
exchanges: {AG: {scheme: topk}}
policies: {AG: {fixed: AG}}
output: {report: false}
"""


@pytest.fixture
def troubles(tmp_path, monkeypatch):
    """Return what a scenario with some overrides hands to its network as loss and incast."""
    import simnet.scenario.network as module

    network, given = module.Network, {}

    def recorded(*positional, **named):
        given.update(loss=named.pop("loss", None), incast=named.pop("incast", None))
        return network(*positional, **named)

    monkeypatch.setattr(module, "Network", recorded)

    def built(*overrides):
        path = tmp_path / "a.yaml"
        path.write_text(SCENARIO, encoding="utf-8")
        scenario.load(path, [f"network.{one}" for one in overrides]).build()
        return given["loss"], given["incast"]

    return built


def test_a_scenario_says_where_packets_get_lost(troubles) -> None:
    loss, incast = troubles("loss=[{links: wan, probability: 0.1 %}, {links: a->b, probability: 1 %}]")
    assert incast is None
    assert loss.transport == Transport()
    expected = {("site:a", "site:b"): 1 - 0.999 * 0.99, ("site:b", "site:a"): 0.001}
    assert loss.probability == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{pftk: }", Transport()),
        ("{pftk: {timeout: 1 s, connections: 4}}", Transport(timeout=1.0, connections=4)),
        ("{mathis: {segment: 8960 B, acked: 1}}", Transport("mathis", segment=8960.0, acked=1)),
        ("{retransmit: }", Transport("retransmit")),
        ("{go_back_n: {window: 64}}", Transport("go_back_n", window=64)),
    ],
)
def test_a_scenario_says_what_transfers_make_of_loss(troubles, given: str, expected: Transport) -> None:
    loss, _ = troubles("loss=[{links: wan, probability: 0.1 %}]", f"transport={given}")
    assert loss.transport == expected


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss=[{links: wan, probability: 100 %}]", "must be < 1"),
        ("loss=[{links: nowhere, probability: 1 %}]", "names no links"),
        ("transport={mathis: }", "network.loss gives none"),
        ("transport={retransmit: {window: 3}}", "window: there is no such field; Allowed: none"),
        ("incast={timeouts: {window: 0 B}}", "must be > 0, got .0 B"),
        ("incast={timeouts: {links: nowhere}}", "names no links"),
        ("incast={timeouts: {links: host:0->site:a}}", "no link from a switch"),
        ("incast={measured: {senders: [8, 4], factors: [0.5, 0.1]}}", "ascending"),
        ("incast={measured: {senders: [4, 8], factors: [0.1, 0.5]}}", "never rise"),
        ("incast={}", "needs one of"),
    ],
)
def test_a_scenario_with_impossible_troubles_is_refused(troubles, override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        troubles(override)
