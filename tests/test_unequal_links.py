"""Links of a shaped network that differ between hosts: predictions by hand, tables there and back, bad settings."""

import math

import numpy as np
import pandas as pd
import pytest
from shaped import workload

import needs
from simnet.base.errors import InputError
from simnet.cost_models.calibration.readers import read_measurements, write_tidy
from simnet.network.stack import IDEAL, STACKS, Stack
from simnet.validate.shapednet import experiment as shapednet
from simnet.validate.shapednet.experiment import ShapedSetting
from simnet.validate.shapednet.libraries import from_links, schedule_of
from simnet.validate.shapednet.links import COLUMNS, Change, of_each, predict
from simnet.validate.shapednet.namespaces import unavailable

why_not = unavailable()
with_namespaces = pytest.mark.skipif(why_not is not None, reason=needs.reason("network namespaces", why_not))

LATENCY, BANDWIDTH = (2e-3, 2e-3, 60e-3, 20e-3), (12.5e6, 12.5e6, 2.5e6, 5e6)
MIXED = Change(0.0, LATENCY, BANDWIDTH)


def ring_by_hand(rounds, nbytes, latency, bandwidth):
    """Return when the last rank of a ring is done, each round after what it gets is there and its own has left."""
    hosts = len(latency)
    entered = [0.0] * hosts
    for _ in range(rounds):
        arrives = [
            entered[r - 1] + (latency[r - 1] + latency[r]) / 2 + nbytes / min(bandwidth[r - 1], bandwidth[r])
            for r in range(hosts)
        ]
        entered = [max(arrives[r], entered[r] + nbytes / bandwidth[r]) for r in range(hosts)]
    return max(entered)


@pytest.mark.parametrize(
    ("schedule", "rounds", "nbytes", "milliseconds"),
    [
        (schedule_of("all_reduce", "ring", 4, 500_000), 6, 125_000, 404.6),
        (schedule_of("all_reduce", "ring", 4, 4000), 6, 1000, 157.0),
        (schedule_of("all_gather", "ring", 4, 125_000), 3, 125_000, 230.3),
    ],
)
def test_rings_over_unequal_links_are_what_a_recursion_by_hand_gives(schedule, rounds, nbytes, milliseconds):
    (found,) = predict(schedule, [MIXED], IDEAL)
    assert found == pytest.approx(ring_by_hand(rounds, nbytes, LATENCY, BANDWIDTH), rel=1e-12)
    # With the bytes that Ethernet adds, the figures of the one who did it by hand.
    framed = Stack(segment=1448, beside=90).framed(nbytes).item()
    assert ring_by_hand(rounds, framed, LATENCY, BANDWIDTH) == pytest.approx(milliseconds * 1e-3, rel=0.002)


def test_each_host_has_its_own_link():
    alone = schedule_of("broadcast", "binomial", 2, 14_480)
    for hosts in ((0.01, 0.03), (0.03, 0.01)):
        (found,) = predict(alone, [Change(0.0, hosts, (1e6, 4e6))], IDEAL)
        assert found == pytest.approx(0.02 + 14_480 / 1e6, rel=1e-12)
    # The slower of uplink and downlink.
    assert predict(alone, [Change(0.0, 0.0, (4e6, 1e6))], IDEAL)[0] == pytest.approx(14_480 / 1e6, rel=1e-12)


def test_links_of_hosts_that_are_alike_are_links_of_all():
    schedule = schedule_of("all_gather", "direct", 4, 50_000)
    alike = Change(0.0, (0.01,) * 4, (5e6,) * 4)
    assert predict(schedule, [alike], STACKS["tcp"]) == predict(schedule, [Change(0.0, 0.01, 5e6)], STACKS["tcp"])
    assert alike.columns(4) == {"link_latency": 0.01, "link_bandwidth": 5e6}


def test_each_link_changes_for_itself():
    alone = schedule_of("broadcast", "binomial", 2, 1_000_000)
    links = [Change(0.0, 0.0, (1e6, 1e6)), Change(0.5, 0.0, (1e6, 0.25e6))]
    assert predict(alone, links, IDEAL)[0] == pytest.approx(0.5 + 0.5e6 / 0.25e6, rel=1e-12)
    other = [Change(0.0, 0.0, (1e6, 1e6)), Change(0.5, 0.0, (1e6, 4e6))]
    assert predict(alone, other, IDEAL)[0] == pytest.approx(1.0, rel=1e-12)


def test_tables_have_links_and_contributions_of_each_host(tmp_path):
    sizes = (250_000, 20_000, 60_000, 125_000)
    work = workload("all_gatherv", "ring", 4, sizes)
    (seconds,) = predict(work.schedule, [MIXED], STACKS["tcp"].with_software(1e-4))
    (idle,) = predict(
        schedule_of("broadcast", "binomial", 2, 1000), [Change(0.0, 1e-4, 12.5e6)], STACKS["tcp"].with_software(1e-4)
    )
    quick = workload("broadcast", "binomial", 2, 1000).facts | {"ranks": 2, "seconds": idle}
    quick |= Change(0.0, 1e-4, 12.5e6).columns(2)
    unequal = work.facts | {"ranks": 4, "seconds": seconds} | MIXED.columns(4)
    path = tmp_path / "links.csv"
    write_tidy(pd.DataFrame([quick, unequal]).assign(tool="tcp"), path)
    found = read_measurements(path)
    assert found.problems == ()
    assert of_each(found.rows, "link_latency") == [1e-4, LATENCY]
    assert of_each(found.rows, "link_bandwidth") == [12.5e6, BANDWIDTH]
    (one,) = from_links(found.rows).to_dict("records")
    assert one["links"] == MIXED
    assert one["sizes"] == sizes
    assert one["ours"] == pytest.approx(seconds, rel=1e-6)
    assert math.isnan(one["link_latency"])


def test_a_column_of_one_host_stands_in_place_of_that_of_all():
    rows = pd.DataFrame({"ranks": [3, 2], "link_latency": [1e-3, 1e-3], "link_latency_1": [0.08, np.nan]})
    assert of_each(rows, "link_latency") == [(1e-3, 0.08, 1e-3), 1e-3]
    assert math.isnan(of_each(pd.DataFrame({"ranks": [2], "link_bandwidth_0": [1e6]}), "link_bandwidth")[0])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("link_latency_2", "soon", "must be a finite number >= 0, got .soon."),
        ("link_bandwidth_1", -1.0, "must be a finite number >= 0, got -1"),
        ("link_latency_4", 0.01, "is of no rank, got 0.01 with 4 ranks"),
    ],
)
def test_links_of_a_host_that_make_no_sense_are_refused_with_file_and_line(tmp_path, column, value, message):
    path = tmp_path / "links.csv"
    row = workload("all_gather", "ring", 4, 1000).facts | {"ranks": 4, "seconds": 1.0} | dict.fromkeys(COLUMNS, 1e3)
    write_tidy(pd.DataFrame([row | {column: value}]), path)
    with pytest.raises(InputError, match=message) as told:
        from_links(read_measurements(path).rows)
    assert told.value.line == 2
    assert told.value.field == column


def test_settings_that_cannot_be_made_are_refused_before_anything_is_measured():
    work = (workload("all_gather", "ring", 4, 1000),)
    for links, message in (
        (Change(0.0, (1e-3, 1e-3), 1e6), "2 hosts, but there are 4"),
        (Change(0.0, 1e-3, (1e6, 1e6, 1e6, 10.0)), "host 3: latency must be"),
        (Change(0.0, (1e-3, 11.0, 1e-3, 1e-3), 1e6), "host 1: latency must be"),
    ):
        with pytest.raises(InputError, match=message):
            shapednet.experiment([ShapedSetting((links,), work)], overhead=0)
    with pytest.raises(ValueError, match="not known what all_reduce by 'direct' sends"):
        workload("all_reduce", "direct", 4, 1000)


def experiment(path, links, repetitions, *work):
    """Return what was measured, as it is read again from a table."""
    setting = ShapedSetting(links, tuple(workload(*one) for one in work))
    rows = shapednet.experiment([setting], overhead=1e-4, repetitions=repetitions, predicted_to=path / "before.csv")
    write_tidy(rows, path / "rows.csv")
    return read_measurements(path / "rows.csv").rows


@with_namespaces
def test_unequal_links_are_measured(tmp_path):
    link = Change(0.0, (2e-3, 20e-3, 2e-3), (2.5e6, 2.5e6, 1e6))
    varying = ("all_gatherv", "ring", 3, (4000, 20_000, 9000))
    rows = experiment(tmp_path, (link,), 4, ("all_gather", "direct", 3, 10_000), varying)
    assert set(of_each(rows, "link_latency")) == {link.latency}
    assert (rows.groupby("workload")["seconds"].max() > 0.9 * rows.groupby("workload")["predicted"].max()).all()


@pytest.mark.slow
@with_namespaces
def test_unequal_links_that_change_are_measured(tmp_path):
    links = (
        Change(0.0, (2e-3, 20e-3, 2e-3), (2.5e6, 2.5e6, 1e6)),
        Change(0.4, (20e-3, 2e-3, 60e-3), (2.5e6, 1e6, 2.5e6)),
    )
    rows = experiment(tmp_path, links, 200, ("all_gather", "ring", 3, 20_000))
    assert set(of_each(rows, "link_bandwidth")) == {one.bandwidth for one in links}
    assert (rows["since_change"] <= rows["began"]).all()
    assert abs(rows["predicted"] / rows["seconds"] - 1).median() < 0.5
