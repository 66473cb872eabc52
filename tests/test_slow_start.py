"""Slow start: exchanges on connections that were silent take as much longer as on real links."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simnet.collectives import allreduce_ring
from simnet.network import Network
from simnet.network.stack import SEGMENT, STACKS
from simnet.network.weather import Weather, steps
from simnet.schedule import Round, Schedule
from simnet.topologies import star

TABLE = Path(__file__).parents[1] / "benchmarks" / "sharing_links" / "cold_connections.csv"


def delay(nbytes, round_trip=0.08, rate=12.5e6, silence=60.0, stack="tcp", pieces=1):
    network = Network(star(2, round_trip / 2, rate), stack=stack)
    schedule = Schedule(2, [Round([0], [1], [nbytes / pieces])] * pieces)
    return network.time(schedule, silence=silence).finish - network.time(schedule).finish


@pytest.mark.parametrize(("silence", "median", "p90"), [(1.0, 0.04, 0.15), (4.0, 0.03, 0.10), (10.0, 0.03, 0.10)])
def test_transfers_after_silence_are_those_measured(silence, median, p90):
    """Windows were as long as the path and its buffer hold: 8 MiB were sent before."""
    rows = pd.read_csv(TABLE)
    each = ["congestion", "bandwidth", "round_trip", "nbytes"]
    warm = rows[rows["silence"] == 0].set_index(each)["seconds"]
    errors = []
    for row in rows[rows["silence"] == silence].itertuples():
        network = Network(star(2, row.round_trip / 2, row.bandwidth), stack="tcp")
        long = Schedule(2, [Round([0], [1], [row.nbytes]), Round([0], [1], [8 << 20])])
        cold, hot = (network.time(long, silence=one, messages=True).messages.arrived[0] for one in (silence, 0.0))
        errors.append(abs((warm[tuple(getattr(row, name) for name in each)] + cold - hot) / row.seconds - 1))
    assert len(errors) == 36
    assert np.median(errors) <= median
    assert np.quantile(errors, 0.9) <= p90


def test_a_window_doubles_in_each_round_trip_until_the_path_is_full():
    payload = 12.5e6 * SEGMENT / (SEGMENT + 90)
    windows = 10 * SEGMENT * 2 ** np.arange(20)
    waits = np.maximum(0.08 - windows / payload, 0.0)
    for nbytes in (100, 10 * SEGMENT, 10 * SEGMENT + 1, 70 * SEGMENT, 71 * SEGMENT, 5e6):
        sent_before = np.cumsum(windows) - windows
        # The last window carries what is left, and nobody waits after it.
        expected = waits[:-1][sent_before[1:] < nbytes].sum()
        assert delay(nbytes) == pytest.approx(expected, abs=1e-9)
    assert delay(5e6, round_trip=10 * SEGMENT / payload) == 0.0


def test_warm_connections_and_other_stacks_wait_for_nothing():
    assert [delay(1e6, silence=one) for one in (0.0, 0.28, 0.56)] == [0.0, 0.0, 0.0]
    assert delay(1e6, silence=0.85) > 0.0
    assert delay(1e6, silence=2.9) > 0.4
    assert [delay(1e6, stack=one) for one in ("ideal", "nccl")] == [0.0, 0.0]
    assert all(delay(1e6, stack=one) > 0.4 for one in ("gloo", "openmpi", "mpich"))


def test_windows_grow_by_the_links_of_their_time():
    graph, sent = star(2, 0.02, 12.5e6), Schedule(2, [Round([0], [1], [1e6])])
    moves = {(0, "switch"): Weather(steps([0.0, 50.0], [1.25e6, 12.5e6]), steps([0.0, 50.0], [0.1, 0.01]))}
    for entry in ({"start": 100.0}, {"start": 0.0, "origin": 100.0}):
        later = Network(graph, moves, stack="tcp").time(sent, silence=60.0, **entry)
        assert later.duration == pytest.approx(Network(graph, stack="tcp").time(sent, silence=60.0).duration, rel=1e-9)


@pytest.mark.parametrize("stack", sorted({*STACKS} - {"ideal", "nccl"}))
def test_each_connection_starts_slowly_once(stack):
    """A ring uses P connections, each for 2 (P - 1) messages."""
    network = Network(star(4, 0.02, 12.5e6), stack=stack)
    took = [network.time(allreduce_ring(4, 4e6), silence=one).finish for one in (0.0, 60.0)]
    single = Network(star(2, 0.02, 12.5e6), stack=stack)
    first = Schedule(2, [Round([0], [1], [1e6])])
    alone = [single.time(first, silence=one).finish for one in (0.0, 60.0)]
    assert took[1] - took[0] == pytest.approx(alone[1] - alone[0], rel=0.2)
