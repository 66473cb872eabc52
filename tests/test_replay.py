"""Schedules executed for real: by threads, over gloo and MPI on loopback where they are installed."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import killing
from commands import on_ranks
from rank_threads import run_ranks
from simnet.base.errors import InputError
from simnet.collectives import allgather_ring, allreduce_ring, allreduce_tree, alltoallv_pairwise
from simnet.cost_models.calibration.readers import read_measurements, write_tidy
from simnet.interchange.messages_csv import write_messages
from simnet.schedule import Round, Schedule
from simnet.validate import replay

ROOT = Path(__file__).parents[1]


@st.composite
def schedules(draw):
    ranks = draw(st.integers(2, 5))
    pairs = st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1), st.floats(0, 300))
    rounds = draw(st.lists(st.lists(pairs, max_size=6), max_size=5))
    kept = [[one for one in messages if one[0] != one[1]] for messages in rounds]
    return Schedule(ranks, [Round(*map(list, zip(*one, strict=True))) if one else Round([], [], []) for one in kept])


@given(schedules())
def test_every_message_is_sent_once_and_received_once_and_pairs_agree_on_their_order(schedule):
    plans = [replay.steps_of_rank(schedule, rank) for rank in range(schedule.n_ranks)]
    columns = schedule.columns()
    sent, received = {}, {}
    for rank, one in enumerate(plans):
        for step in one:
            for part in step.sends:
                sent.setdefault((rank, part.peer), []).append((part.number, part.last - part.first))
            for part in step.receives:
                received.setdefault((part.peer, rank), []).append((part.number, part.last - part.first))
    assert sent == received
    numbers = sorted(number for messages in sent.values() for number, _ in messages)
    assert numbers == list(range(schedule.n_messages))
    for (src, dst), messages in sent.items():
        for number, nbytes in messages:
            assert (columns["src"][number], columns["dst"][number]) == (src, dst)
            assert nbytes == max(1, round(columns["nbytes"][number]))


@settings(max_examples=10, deadline=None)
@given(schedules())
def test_any_schedule_runs_to_its_end_and_every_message_arrives(schedule):
    results = run_ranks(schedule.n_ranks, lambda one: replay.measure_replay(schedule, one, repetitions=2, warmup=1))
    for done in results:
        assert len(done) == 2
        assert all((one.seconds > 0).all() and one.seconds.shape == (schedule.n_ranks,) for one in done)
    for a, b in zip(results[0], results[-1], strict=True):
        np.testing.assert_array_equal(a.seconds, b.seconds)


def test_compute_is_waited_for_only_if_asked(monkeypatch):
    waits, wait = [], replay._wait_until
    monkeypatch.setattr(replay, "_wait_until", lambda moment: (waits.append(moment), wait(moment)))
    schedule = Schedule(2, [Round([0], [1], 8, compute=[0.05, 0.0])])
    counts = []
    for compute in (False, True):
        waits.clear()
        done = run_ranks(
            2,
            lambda one, compute=compute: replay.measure_replay(schedule, one, repetitions=1, warmup=2, compute=compute),
        )
        counts.append(len(waits))
    assert done[0][0].seconds.min() >= 0.05
    # Both ranks wait for each other before every repetition, and one of them computes.
    assert counts == [2 * 3, 2 * 3 + 3]


def test_ranks_with_different_schedules_are_told_apart():
    def work(one):
        return replay.measure_replay(allreduce_ring(2, 100 + one.rank), one)

    with pytest.raises(InputError, match="do not have the same schedule"):
        run_ranks(2, work)


def test_what_arrives_wrong_is_noticed(monkeypatch):
    def work(one):
        if one.rank == 1:
            one.put = lambda buffer, content: buffer.fill(7)
        return replay.measure_replay(allgather_ring(3, 100), one)

    with pytest.raises(RuntimeError, match="2 messages did not arrive"):
        run_ranks(3, work)


def test_job_of_another_size_and_buffers_without_measure_are_refused():
    with pytest.raises(InputError, match="4 ranks, the job 2"):
        run_ranks(2, lambda one: replay.measure_replay(allreduce_ring(4, 8), one))
    with pytest.raises(InputError, match="needs buffers of"):
        run_ranks(2, lambda one: replay.measure_replay(allreduce_ring(2, 2**50), one))


def test_output_is_read_back_as_measurements(tmp_path):
    work = replay.of_collective("allgather_ring", 3, 1000)
    done = run_ranks(3, lambda one: replay.measure_replay(work.schedule, one, repetitions=4))[0]
    rows = replay.table(work, done, "replay-threads")
    write_tidy(rows, tmp_path / "out.csv")
    back = read_measurements(tmp_path / "out.csv")
    assert not back.problems
    assert back.rows["seconds"].tolist() == rows["seconds"].tolist()
    assert back.rows[["collective", "ranks", "nbytes", "size_convention"]].drop_duplicates().values.tolist() == [
        ["all_gather", 3, 1000, "per_rank"]
    ]
    assert (back.rows["elapsed"] >= back.rows["seconds_min"]).all()
    assert len(replay.table(work, done, "x", per_rank=True)) == 12


def replayed(folder, backend, start):
    """Replay a ring and a file of unequal messages with four ranks of a real library, which are started with words."""
    write_messages(
        alltoallv_pairwise(np.arange(16).reshape(4, 4) * 1000).concat(allreduce_tree(4, 5e4)), folder / "x.csv"
    )
    out = folder / "out.csv"
    command = ["-m", "simnet.validate.replay", "--backend", backend, "--repetitions", "2", "--out", str(out)]
    work = ["--collective", "allreduce_ring", "--size", "64 KiB", str(folder / "x.csv")]
    done = start(*command, *work)
    assert done.returncode == 0, done.stderr
    rows = read_measurements(out).rows
    assert rows[["collective", "ranks", "tool"]].drop_duplicates().values.tolist() == [
        ["all_reduce", 4, f"replay-{backend}"],
        ["exchange", 4, f"replay-{backend}"],
    ]
    assert len(rows) == 4
    assert (rows["seconds"] > 0).all()


@pytest.mark.extras
def test_gloo_on_loopback(tmp_path):
    replayed(tmp_path, "gloo", partial(on_ranks, 4, folder=ROOT))


@pytest.mark.extras
def test_mpi_on_loopback(tmp_path):
    launcher = [Path(sys.executable).with_name("mpiexec"), "-n", "4", sys.executable]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": killing.PATIENCE}
    replayed(tmp_path, "mpi", lambda *words: subprocess.run([*launcher, *words], **options))
