"""Links that are down or slow for a time: transfers wait as the closed form says, and errors name the field."""

from pathlib import Path

import pytest

from simnet.base.errors import InputError, StalledError
from simnet.scenario import load
from simnet.schedule import Round, Schedule

SCENARIO = """\
name: small
workers: 4
network:
  topology:
    star: {hosts: 4, latency: 2 ms, bandwidth: 1 MB/s}
  faults: FAULTS
job: {parameters: 2000, iterations: 2, density: 0.01, compute: {mean: 10 ms}}
exchanges: {AG: {scheme: topk}}
policies: {AG: {fixed: AG}}
output: {report: false}
"""


def network(tmp_path: Path, faults: str, *overrides: str):
    path = tmp_path / "a.yaml"
    path.write_text(SCENARIO.replace("FAULTS", faults))
    return load(path, overrides).build().job.network(0)


def finish(network, nbytes=1e6, src=0, dst=1, start=0.0):
    return network.time(Schedule(4, [Round([src], [dst], [nbytes])]), start=start).finish


ALONE = 1.002  # 1 MB at 1 MB/s after 2 ms


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ("[]", ALONE),
        # Down from 0.5 s on for 2 s, at the sender, at the receiver, or at both; or only in the other direction.
        ("[{links: host:0, down: {at: 500 ms, lasts: 2 s}}]", ALONE + 2),
        ("[{links: switch->host:1, down: {at: 500 ms, lasts: 2 s}}]", ALONE + 2),
        ("[{links: switch<->host:1, down: {at: 500 ms, lasts: 2 s}}]", ALONE + 2),
        ("[{links: host:1->switch, down: {at: 500 ms, lasts: 2 s}}]", ALONE),
        ("[{links: host:3, down: {at: 0}}]", ALONE),
        # After it, while it is on its way only, and several times, on one link or on two.
        ("[{links: all, down: {at: 2 s}}]", ALONE),
        ("[{links: all, down: [{at: 0, lasts: 1 s}, {at: 1500 ms, lasts: 1 s}]}]", 1 + 0.5 + 1 + 0.502 - 0.002),
        ("[{links: host:0, down: {at: 100 ms, lasts: 1 s}}, {links: host:1, down: {at: 600 ms, lasts: 1 s}}]", 2.502),
        # Slow: half of the megabyte at a fifth of the bandwidth; for ever; for a time; two that multiply.
        ("[{links: host:0, slow: 20 %, at: 502 ms}]", 0.502 + 0.5 / 0.2),
        ("[{links: host:0, slow: 20 %}]", 0.002 + 1 / 0.2),
        ("[{links: host:0, slow: 20 %, at: 502 ms, lasts: 1 s}]", ALONE + 0.8),
        ("[{links: host:0, slow: 50 %}, {links: host:0, slow: 40 %}]", 0.002 + 1 / 0.2),
        ("[{links: host:0, slow: 50 %}, {links: host:0, down: {at: 1002 ms, lasts: 3 s}}]", 0.002 + 2 + 3),
    ],
)
def test_transfers_take_what_the_closed_form_says(tmp_path: Path, faults, expected):
    assert finish(network(tmp_path, faults)) == pytest.approx(expected, rel=1e-12)


def test_faults_multiply_with_the_weather_of_the_link(tmp_path: Path):
    faults = "[{links: host:0, slow: 50 %, at: 1002 ms}]"
    weather = "network.weather=[{links: all, bandwidth: {constant: 500 kB/s}}]"
    # 500 kB in the first second at the weather's half megabyte per second, the rest at half of that.
    assert finish(network(tmp_path, faults, weather)) == pytest.approx(0.002 + 1 + 2, rel=1e-12)


def test_a_transfer_that_leaves_later_meets_the_fault_at_the_time_of_the_clock(tmp_path: Path):
    found = network(tmp_path, "[{links: host:0, down: {at: 10 s, lasts: 5 s}}]")
    assert finish(found, start=9.5) == pytest.approx(9.5 + ALONE + 5, rel=1e-12)
    assert finish(found, start=20.0) == pytest.approx(20 + ALONE, rel=1e-12)


def test_a_link_that_stays_down_is_named(tmp_path: Path):
    with pytest.raises(StalledError, match=r"rank 1 waits .* \(no capacity on switch->1\)"):
        finish(network(tmp_path, "[{links: host:1, down: {at: 500 ms}}]"))


@pytest.mark.parametrize(
    ("fault", "messages"),
    [
        ("{links: all}", ["a.yaml:6: network.faults[0]: needs one of down, slow"]),
        ("{links: all, down: {at: 0}, slow: 20 %}", ["network.faults[0]: takes only one of down, slow"]),
        ("{links: hots:1, slow: 20 %}", ["a.yaml:6: network.faults[0].links: 'hots:1' names no links", "'host:1'"]),
        ("{links: all, slow: 0 %}", ["network.faults[0].slow"]),
        ("{links: all, slow: 120 %}", ["network.faults[0].slow: must be <= 1"]),
        ("{links: all, down: {at: 10 s}, lasts: 5 s}", ["takes lasts beside slow only", "stands inside"]),
        ("{links: all, down: {lasts: 5 s}}", ["network.faults[0].down.at: is missing"]),
        ("{links: all, down: {at: 5}}", ["network.faults[0].down.at", "no unit"]),
        ("{links: all, down: [{at: 5 s, last: 1 s}]}", ["network.faults[0].down[0].last", "did you mean 'lasts'"]),
        ("{links: all, down: []}", ["network.faults[0].down"]),
        ("{links: all, down: 10 s}", ["network.faults[0].down"]),
    ],
)
def test_wrong_faults_are_refused_with_line_and_field(tmp_path: Path, fault, messages):
    with pytest.raises(InputError) as refused:
        network(tmp_path, f"[{fault}]")
    for message in messages:
        assert message in str(refused.value)


def test_options_reach_the_network(tmp_path: Path):
    plain = network(tmp_path, "[]")
    assert (plain.routing, plain.on_outage) == ("hash", "wait")
    other = network(tmp_path, "[]", "network.routing=adaptive", "network.on_outage=reroute")
    assert (other.routing, other.on_outage) == ("adaptive", "reroute")


def test_the_scenario_that_comes_with_simnet_meets_its_faults():
    found = load("link_faults").build().job.network(0)
    whole = 25e9 / 8
    both_ways = [("edge:2.0", "agg:2.1"), ("agg:2.1", "edge:2.0")]
    for link, t, share in [
        *((link, t, share) for link in both_ways for t, share in ((0.9, 1), (1.1, 0), (1.4, 1), (2.1, 0), (2.2, 1))),
        *(
            (link, t, share)
            for link in ((5, "edge:1.0"), ("edge:1.0", 5))
            for t, share in ((2.4, 1), (3, 0.02), (4, 1))
        ),
        ((4, "edge:1.0"), 3.0, 1),
    ]:
        capacity, _ = found.links.capacity(found.routes.index[link], t)
        assert capacity == pytest.approx(share * whole, rel=1e-12)
