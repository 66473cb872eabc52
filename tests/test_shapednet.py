"""The shaped network: its prediction by closed forms, and the real thing where namespaces are permitted."""

import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.collectives import allgather_ring
from simnet.errors import InputError
from simnet.schedule import Round, Schedule
from validate import shapednet
from validate.replay import Workload, of_collective
from validate.shapednet import Change, Setting, framed, predict
from validate.shapednet.namespaces import star, unavailable
from validate.shapednet.prediction import BESIDE, SEGMENT, on_the_wire

possible = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


@given(st.integers(1, 10**7))
def test_framing_of_full_segments_is_that_of_ethernet(nbytes):
    wire = on_the_wire(np.array([float(nbytes)]))[0]
    assert wire >= nbytes * (SEGMENT + BESIDE) / SEGMENT
    assert wire - nbytes <= BESIDE * (nbytes // SEGMENT + 1)


@given(st.integers(1, 10**6), st.floats(0, 0.1), st.floats(1e5, 1e8), st.floats(0, 1e-3))
def test_a_message_alone_takes_latency_overhead_its_frames_and_the_last_one_again(nbytes, latency, rate, overhead):
    bare = Schedule(2, [Round([0], [1], nbytes)])
    wire = on_the_wire(np.array([float(nbytes)]))[0]
    expected = latency + overhead + (wire + min(wire, SEGMENT + BESIDE)) / rate
    assert predict(bare, [Change(0, latency, rate)], overhead)[0] == pytest.approx(expected, rel=1e-9)


def test_acknowledgements_cost_only_where_their_link_has_data_of_its_own():
    alone = framed(Schedule(2, [Round([0], [1], 100 * SEGMENT)])).rounds[0].nbytes[0]
    both = framed(Schedule(2, [Round([0, 1], [1, 0], 100 * SEGMENT)])).rounds[0].nbytes
    assert (both == alone + 50 * BESIDE).all()


def test_a_rendezvous_costs_a_latency_and_two_short_frames_more():
    bare, link = Schedule(2, [Round([0], [1], 10 * SEGMENT, compute=0.25)]), Change(0, 1e-2, 1e6)
    eager, waiting = (predict(bare, [link], 0, rendezvous=flag)[0] for flag in (False, True))
    assert waiting - eager == pytest.approx(1e-2 + 2 * (48 + BESIDE) / 1e6)


def test_links_that_change_are_predicted_by_the_moment():
    bare = Schedule(2, [Round([0], [1], 10 * SEGMENT)])
    slow, quick = Change(0, 1e-3, 1e6), Change(5.0, 1e-4, 1e7)
    seconds = predict(bare, [slow, quick], 0, [0.0, 6.0])
    assert seconds[0] == predict(bare, [slow], 0)[0]
    assert seconds[1] == pytest.approx(predict(bare, [quick._replace(at=0.0)], 0)[0])


def test_experiments_without_measure_are_refused():
    work = of_collective("allgather_ring", 4, 1e9)
    with pytest.raises(InputError, match="at most"):
        shapednet.experiment([Setting((Change(0, 1e-3, 1e6),), (work,))], overhead=0)
    mixed = Setting((Change(0, 1e-3, 1e6),), (Workload(allgather_ring(2, 8), {}), Workload(allgather_ring(3, 8), {})))
    with pytest.raises(InputError, match="same ranks"):
        shapednet.experiment([mixed], overhead=0)


def test_no_network_where_it_is_not_permitted(monkeypatch):
    monkeypatch.setattr("validate.shapednet.namespaces.os.geteuid", lambda: 1000)
    assert "root" in unavailable()
    with pytest.raises(InputError, match="root"), star(2, 1e-3, 1e6):
        pass


def namespaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


@possible
def test_everything_is_taken_away_after_an_error():
    def fail():
        with star(2, 1e-3, 1e6) as net:
            assert set(net.namespaces) <= set(namespaces().split())
            net.set(1e-3, 0)

    before = namespaces()
    with pytest.raises(ValueError, match="bandwidth"):
        fail()
    assert namespaces() == before


@possible
def test_no_way_out_of_the_namespaces():
    with star(2, 0, 1e7) as net:
        routes = subprocess.run(
            ["ip", "-n", net.namespaces[0], "route"], capture_output=True, text=True, check=True
        ).stdout
    assert [line.split()[0] for line in routes.splitlines()] == ["10.9.0.0/24"]


@possible
def test_measured_times_are_those_predicted_and_never_far_below(tmp_path):
    links = Change(0, 10e-3, 2.5e6)
    work = tuple(of_collective(name, 4, 40_000) for name in ("allreduce_ring", "broadcast_binomial"))
    rows = shapednet.experiment(
        [Setting((links,), work)], overhead=1e-4, repetitions=3, predicted_to=tmp_path / "before.csv"
    )
    assert (tmp_path / "before.csv").exists()
    assert rows["drops"].max() == 0
    # The links bound what is measured from below; other work on the machine may make it longer.
    assert (rows["seconds"] > 0.9 * rows["predicted"]).all()
    assert shapednet.errors(rows)["error"].abs().max() < 0.5
