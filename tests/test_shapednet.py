"""The shaped network: what is refused, and the real thing where namespaces are permitted."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from sharing_links.contention import Bottleneck, durations, rates

import killing
import needs
from simnet.base.errors import InputError
from simnet.collectives import allgather_ring
from simnet.validate.replay import Workload, of_collective
from simnet.validate.shapednet import experiment as shapednet
from simnet.validate.shapednet.experiment import ShapedSetting
from simnet.validate.shapednet.links import Change
from simnet.validate.shapednet.namespaces import Star, shaped_star, unavailable
from simnet.validate.shapednet.rank import PRIORITY

why_not = unavailable()
with_namespaces = pytest.mark.skipif(why_not is not None, reason=needs.reason("network namespaces", why_not))


def test_experiments_without_measure_are_refused():
    work = of_collective("allgather_ring", 4, 1e9)
    with pytest.raises(InputError, match="at most"):
        shapednet.experiment([ShapedSetting((Change(0, 1e-3, 1e6),), (work,))], overhead=0)
    mixed = ShapedSetting(
        (Change(0, 1e-3, 1e6),), (Workload(allgather_ring(2, 8), {}), Workload(allgather_ring(3, 8), {}))
    )
    with pytest.raises(InputError, match="same ranks"):
        shapednet.experiment([mixed], overhead=0)


def test_no_network_where_it_is_not_permitted(monkeypatch):
    monkeypatch.setattr("simnet.validate.shapednet.namespaces.os.geteuid", lambda: 1000)
    assert "root" in unavailable()
    with pytest.raises(InputError, match="root"), shaped_star(2, 1e-3, 1e6):
        pass


def namespaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


@with_namespaces
def test_everything_is_taken_away_after_an_error():
    def fail():
        with shaped_star(2, 1e-3, 1e6) as net:
            assert set(net.namespaces) <= set(namespaces().split())
            net.set(1e-3, 0)

    before = namespaces()
    with pytest.raises(ValueError, match="bandwidth"):
        fail()
    assert namespaces() == before


@with_namespaces
def test_no_way_out_of_the_namespaces():
    with shaped_star(2, 0, 1e7) as net:
        routes = subprocess.run(
            ["ip", "-n", net.namespaces[0], "route"], capture_output=True, text=True, check=True
        ).stdout
    assert [line.split()[0] for line in routes.splitlines()] == ["10.9.0.0/24"]


def measured(tmp_path, backend="tcp"):
    links = Change(0, 10e-3, 2.5e6)
    work = tuple(of_collective(name, 4, 40_000) for name in ("allreduce_ring", "broadcast_binomial"))
    return shapednet.experiment(
        [ShapedSetting((links,), work)],
        backend=backend,
        overhead=1e-4,
        repetitions=3,
        predicted_to=tmp_path / "before.csv",
    )


@with_namespaces
@pytest.mark.parametrize(
    "backend", ["tcp", *(pytest.param(one, marks=pytest.mark.extras) for one in ("gloo", "mpich"))]
)
def test_measured_times_are_not_far_below_those_predicted(tmp_path, backend):
    rows = measured(tmp_path, backend)
    assert (tmp_path / "before.csv").exists()
    # The links bound what is measured from below. Other work on the machine makes it longer, but for repetitions in
    # which a rank is held up at the start, and finds there what it waits for.
    assert (rows.groupby("workload")["seconds"].max() > 0.9 * rows.groupby("workload")["predicted"].max()).all()


@pytest.mark.slow
@with_namespaces
def test_measured_times_are_those_predicted_where_nothing_else_runs(tmp_path):
    rows = measured(tmp_path)
    assert rows["drops"].max() == 0
    assert (rows["seconds"] > 0.9 * rows["predicted"]).all()
    assert shapednet.prediction_errors(rows)["error"].abs().max() < 0.5


@with_namespaces
@pytest.mark.parametrize("congestion", ["reno", "cubic"])
def test_flows_fill_the_link_they_share_and_what_its_buffer_cannot_hold_is_lost(congestion):
    # Payload of 1,448 bytes takes 1,538 on the wire.
    link = Bottleneck(congestion, bandwidth=1e6, buffer=15_000, round_trips=(5e-3, 10e-3))
    with shaped_star(3, 0, 1e7) as net:
        goodput = rates(net, link, starts=(0.0, 0.2), ends=(1.0, 2.0, 3.0))
        drops = net.traffic().drops
        taken = durations(net, link, (100_000, 50_000), rounds=2)
    assert goodput.shape == taken.shape == (2, 2)
    assert (goodput > 0).all()
    assert 0.7 < goodput.sum(axis=1).mean() * 1538 / 1448 / link.bandwidth < 1.02
    assert drops > 0
    # All bytes cross the link; only what a reader finds late makes it longer.
    assert (taken.max(axis=1) > 150_000 * 1538 / 1448 / link.bandwidth).all()
    assert np.isfinite(taken).all()


@with_namespaces
def test_a_congestion_control_that_is_not_there_is_refused():
    with shaped_star(2, 0, 1e7) as net, pytest.raises(InputError, match="no congestion control 'swift'"):
        rates(net, Bottleneck("swift", 1e6, 15_000, (1e-3,)), starts=(0.0,), ends=(0.1, 0.2))


@with_namespaces
def test_a_buffer_below_one_packet_is_refused():
    with shaped_star(2, 0, 1e7) as net, pytest.raises(ValueError, match="buffer must be 1500"):
        net.set(0, 1e7, buffer=1000)


RANK = "import os; from simnet.validate.shapednet.rank import begin; begin({owner}, {limit}); {then}"
BUSY = "os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))\nwhile True: pass"


def rank(owner, limit, then):
    return [sys.executable, "-c", RANK.format(owner=owner, limit=limit, then=then)]


@needs.linux
def test_a_rank_has_a_limit_to_its_processor_time():
    busy = subprocess.run(rank(os.getpid(), 1.0, BUSY), timeout=60)
    assert -busy.returncode in (signal.SIGXCPU, signal.SIGKILL)


@needs.linux
def test_a_rank_does_not_begin_without_the_experiment_it_belongs_to():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = subprocess.run(rank(gone.pid, 60, "print('began')"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "has ended" in done.stderr


@needs.linux
def test_a_rank_ends_with_the_process_that_started_it():
    then = "print(os.getpid(), flush=True); import time; time.sleep(60)"
    starts = f"import subprocess; subprocess.run({rank('os.getppid()', 60, then)!r})"
    with subprocess.Popen([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True) as parent:
        started = int(parent.stdout.readline())
        parent.kill()
    assert killing.is_gone(started)


@with_namespaces
def test_what_changes_links_comes_before_ranks_that_poll(monkeypatch):
    module = sys.modules["simnet.validate.shapednet.experiment"]
    real, seen = Star.change, []

    def noted(*given):
        seen.append(os.sched_getparam(0).sched_priority)
        real(*given)

    monkeypatch.setattr(Star, "change", noted)
    # The first links are those of the first two seconds, in which ranks start.
    monkeypatch.setattr(module, "_PATIENCE", 20.0)
    before = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    links = (Change(0, 1e-4, 1e7), Change(0.001, 1e-4, 2e7))
    shapednet.experiment(
        [ShapedSetting(links, (of_collective("allgather_ring", 2, 100),))], overhead=0, repetitions=9000
    )
    assert seen[0] == before[1]
    assert seen[1:] == [PRIORITY + 1]
    assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == before
