"""What a worker holds: measured from what exchanges, against closed forms."""

import json
from dataclasses import replace

import numpy as np
import pytest

from commands import did
from jobs import AG, DENSE, RING, Source, job_on, star
from simnet import collectives
from simnet.cost_models.costs.devices import DeviceOp, load_device
from simnet.cost_models.costs.models import Layer
from simnet.policies import Candidate
from simnet.report import cost_summary as told
from simnet.sparsifier_models import create, names
from simnet.sparsifier_models.wire import under_way
from simnet.strategies import SGD, AdamW
from simnet.strategies.diloco import INNER
from simnet.studies.choosing.ranking import held_on_job
from simnet.training.job.job import LocalSteps, create_sparsifier, gradient_buckets
from simnet.training.job.memory import (
    WorkerMemory,
    candidates_memory,
    combine_memory,
    exchange_memory,
    scheme_memory,
    with_shared_gradients,
)
from simnet.training.parallel.pytorch import fsdp2
from simnet.training.parallel.units import wrap_units
from step_times import time_step

WORKERS, DENSITY = 8, 0.1
SCALE = 10.0


def job_of(sizes=(600, 1000, 400), scale=SCALE, **changes):
    return job_on(star(WORKERS), WORKERS, source=Source(WORKERS, sizes, scale), **changes)


JOB = job_of()
N = 4.0 * JOB.source.true_parameters
"""Bytes of the gradient."""
K = DENSITY * N / 4
"""Entries that are kept."""


# Closed forms


def test_top_k_keeps_one_residual_and_receives_p_messages():
    found = exchange_memory(JOB, Candidate("topka", "topka"))
    assert found.residual == N
    assert found.state == 0
    assert found.received == pytest.approx(WORKERS * 8 * K)


def test_a_dense_ring_holds_two_chunks():
    found = exchange_memory(JOB, DENSE)
    assert (found.residual, found.state) == (0, 0)
    assert found.received == pytest.approx(2 * N / WORKERS)


def test_ar_topk_holds_indices_values_and_two_chunks_of_these():
    found = exchange_memory(JOB, RING)
    assert found.residual == N
    assert found.received == pytest.approx(4 * K + 4 * K + 2 * 4 * K / WORKERS)


def test_ok_topk_receives_less_than_top_k_and_at_least_the_regions_of_all():
    found = exchange_memory(JOB, Candidate("oktopk", "oktopk"))
    assert found.residual == N
    # In the end all have the k entries that count; each of them has a value and an index.
    assert 8 * K < found.received < exchange_memory(JOB, AG).received


def test_ef21_holds_a_tracker_and_the_mean_of_all_trackers():
    found = exchange_memory(JOB, Candidate("ef21", "ef21"))
    assert (found.residual, found.state) == (0, 2 * N)
    assert exchange_memory(JOB, Candidate("plain", "ef21", {"error_feedback": False})).state == 0


def test_one_bit_adam_has_the_moments_itself_and_a_part_of_the_servers_memory():
    found = exchange_memory(JOB, Candidate("onebit", "onebitadam"))
    padded = 4 * create("onebitadam", WORKERS, JOB.source.parameters).server_error.size * SCALE
    assert found.optimizer == 2 * N
    assert found.state == pytest.approx(padded + padded / WORKERS)


@pytest.mark.parametrize("scheme", ["dgc"])
def test_momentum_of_a_scheme_takes_the_place_of_the_optimisers(scheme):
    plain, corrected = (
        exchange_memory(replace(JOB, optimizer="sgd"), Candidate(scheme, scheme, {"momentum": one}))
        for one in (0.0, 0.9)
    )
    assert (plain.optimizer, corrected.optimizer) == (0, N)
    assert plain.state == corrected.state == 0


def _under(name, candidate=DENSE, steps=1, **options):
    return exchange_memory(replace(JOB, strategy=LocalSteps(name, options, steps)), candidate)


def test_diloco_holds_the_anchor_and_the_outer_momentum():
    found = _under("diloco", steps=5, period=5)
    assert found.outer == 2 * N
    assert found.optimizer == pytest.approx(2 * N, abs=8)
    assert _under("diloco", steps=5, period=5, outer=SGD(0.7)).outer == N
    assert isinstance(INNER, AdamW)


def test_compressed_diloco_also_holds_the_residual_of_its_scheme():
    found = _under("diloco", AG, steps=5, period=5)
    assert (found.outer, found.residual) == (2 * N, N)
    assert found.received == pytest.approx(WORKERS * 8 * K)


def test_what_streams_is_held_until_it_arrives():
    assert _under("streaming", steps=6, period=6, fragments=3, delay=1, inner=AdamW()).in_flight == N


def test_masks_of_sparta_take_a_byte_an_entry():
    assert _under("sparta", inner=SGD(0.1)).masks == N / 4


def test_accumulated_gradients_take_the_place_of_gradients():
    assert _under("accumulation", steps=2, period=2, inner=SGD(0.1)).peak == pytest.approx(2 * N + N / 4, rel=0.2)


def test_fsdp2_holds_shards_and_no_more_than_three_units_at_a_time():
    layers = [Layer(f"h.{number}.weight", (64, 64)) for number in range(4)]
    found = time_step(fsdp2(wrap_units(layers), 4), star(4), forward=0.1, backward=0.2).memory()
    whole = 4 * 4 * 64 * 64
    assert (found.parameters, found.gradients, found.optimizer) == (whole / 4, whole / 4, 2 * whole / 4)
    assert found.gathered <= whole


# What has to hold


@pytest.mark.parametrize("scheme", names())
def test_state_counts_for_the_whole_model_whatever_the_sample(scheme):
    options = {"threshold": 0.5} if scheme == "hardthreshold" else {}
    small, large = (
        exchange_memory(job_of(sizes, scale), Candidate(scheme, scheme, options))
        for sizes, scale in (((600, 1000, 400), 16.0), ((2400, 4000, 1600), 4.0))
    )
    assert small.residual == large.residual
    assert small.optimizer == large.optimizer
    # What is not as long as the gradient is no more than a few numbers per worker or layer.
    assert small.state == pytest.approx(large.state, rel=0.2, abs=64 * WORKERS)


CASES = [
    *((name, {"threshold": 0.5} if name == "hardthreshold" else {}) for name in names()),
    *(("topk", {"indices": code}) for code in ("bitmap", "delta", "auto")),
    ("topk", {"values": "4bit"}),
    *(("artopk", {"selection": "var", "collective": one}) for one in ("ring", "tree")),
    *((f"two_level/{name}", {"ranks_per_node": 3}) for name in ("topk", "artopk", "oktopk")),
]


def memory_of_all(job, candidate):
    (bucket,) = gradient_buckets(job.source, None)
    model = create_sparsifier(candidate, bucket, job)
    model.density = DENSITY
    held = scheme_memory(model, job.source.gradients(0))
    return combine_memory(4.0 * job.source.true_parameters, "adam", [held])


@pytest.mark.parametrize(("scheme", "options"), CASES)
@pytest.mark.parametrize("workers", [3, 6])
def test_what_is_measured_is_what_the_first_gradients_of_the_job_take(scheme, options, workers):
    job = job_on(star(workers), workers, source=Source(workers, (600, 1000, 400), SCALE))
    candidate = Candidate(scheme, scheme, options)
    assert exchange_memory(job, candidate) == memory_of_all(job, candidate)


@pytest.mark.parametrize("scheme", ["topk", "oktopk", "exdyna", "powersgd", "ef21", "thc"])
def test_a_sample_of_a_long_gradient_says_what_all_of_it_takes(scheme):
    job = job_on(star(2), 2, source=Source(2, (1_000_000, 4, 1_500_000), 2.0))
    candidate = Candidate(scheme, scheme)
    assert exchange_memory(job, candidate) == pytest.approx(memory_of_all(job, candidate), rel=0.02, abs=100)


@pytest.mark.parametrize("scheme", names())
def test_a_worker_never_holds_more_messages_than_come_and_what_it_gives(scheme):
    model = create(scheme, WORKERS, 4096, DENSITY, layers=[("a", (32, 64)), ("b", (64, 32))])
    rows = np.random.default_rng(0).standard_normal((WORKERS, 4096)).astype(np.float32)
    made = model.exchange(rows)
    given = sum(call.nbytes for call in made.schedule.calls)
    most = under_way(made.schedule, made.kernels, 4.0 * 4096)
    assert (most <= made.schedule.bytes_received() + given + 1e-9).all()
    if made.schedule.rounds:
        assert (most >= max(np.bincount(one.dst, one.nbytes, WORKERS).max() for one in made.schedule.rounds)).any()


def test_what_is_added_up_makes_room():
    gathers = collectives.allgather_ring(4, 8.0)
    both = gathers.concat(gathers)
    kept = under_way(both, [DeviceOp("scatter", 1, before=6)], 1e9)
    released = under_way(both, [DeviceOp("scatter", 1, before=3), DeviceOp("scatter", 1, before=6)], 1e9)
    assert kept.tolist() == [64.0] * 4
    assert released.tolist() == [32.0] * 4


def test_who_may_switch_needs_what_the_largest_needs():
    known = {}
    assert candidates_memory(JOB, [DENSE, AG, RING], known) == known["AG"]
    assert set(known) == {"dense", "AG", "ART-ring"}


# What is said


def test_what_does_not_fit_is_said_with_its_parts():
    found = exchange_memory(JOB, AG)
    said = told.memory_refusal(found, 1000.0)
    assert "messages 128 kB" in said
    assert "of the 1 kB of a device" in said
    assert not told.memory_summary(found, 1000.0)["fits"]
    assert told.memory_summary(found, found.peak)["fits"]
    assert sum(value for name, value in told.memory_summary(found).items() if name != "peak_B") == round(found.peak)


@pytest.mark.parametrize(("optimizer", "words"), [(None, "assumed is Adam"), ("momentum", "SGD with momentum")])
def test_what_is_assumed_is_named(optimizer, words):
    said = told.memory_assumed(replace(JOB, optimizer=optimizer))
    assert words in said
    assert "activations" in said


def test_devices_say_what_they_hold():
    assert load_device("v100").memory == 16e9
    assert load_device("ideal").memory == 0


def test_a_run_tells_what_workers_hold(tmp_path):
    out = tmp_path / "run"
    fields = ("--set", "job.iterations=2", "--set", "job.device_memory=245 MB")
    said = did("run", "quickstart", *fields, "--out", out).stdout
    assert "Too large for the 245 MB of a device: AG needs 252 MB" in " ".join(said.split())
    assert "ART-ring needs" not in said
    summary = json.loads((out / "summary.json").read_text())
    one = summary["policies"]["AG"]["memory"]
    assert (one.pop("fits"), summary["memory"]["limit_B"]) == (False, 245_000_000)
    assert one.pop("peak_B") == pytest.approx(sum(one.values()), abs=5)
    assert "A worker holds up to" in (out / "report.html").read_text()


def test_schemes_side_by_side_tell_what_workers_hold(tmp_path):
    fields = ("--workers", 2, "--set", "job.iterations=2", "--schemes", "topk,ef21", "--memory", "300 MB")
    found = json.loads(did("run", "compare", *fields, "--out", tmp_path, "--json").stdout)
    assert "Too large for the 300 MB of a device: ef21 needs " in found["answer"]
    assert "topk needs" not in found["answer"]
    for row in found["rows"]:
        parts = found["policies"][row["policy"]]["memory"]
        assert row["memory_B"] == parts.pop("peak_B")
        assert parts.pop("fits") == (row["policy"] == "topk")
        assert len(parts) == len(WorkerMemory._fields)
        assert row["memory_B"] == pytest.approx(sum(parts.values()), abs=5)


# What is chosen


def test_a_choice_that_does_not_fit_is_no_choice():
    asked = ("choose", "--workers", "64", "--model", "1000000", "--schemes", "topk,artopk", "--json")
    free, bound = (json.loads(did(*asked, *more).stdout) for more in ((), ("--memory", "20.5 MB")))
    assert {row["exchange"] for row in free["rows"]} == {"topk", "artopk"}
    assert [row["exchange"] for row in bound["rows"]] == ["artopk"]
    over = json.loads(did(*asked, "--grid", "memory=20.5MB,1GB", "--jobs", "1").stdout)
    assert [row["exchange"] for row in over["rows"]] == [one["rows"][0]["exchange"] for one in (bound, free)]
    assert "needs 25.1 MB of the 20.5 MB" in bound["memory"]["ruled_out"]["topk"]
    assert [*held_on_job(JOB, [Candidate("teams", "spardl", {"teams": 3}), AG]).each] == [AG.label]
    assert bound["rows"][0]["memory"]["peak_B"] <= bound["memory"]["limit_B"] == 20_500_000


def test_jobs_of_a_grid_that_do_not_fit_are_refused():
    fields = ("--set", "job.iterations=1", "--set", "job.scale=200000", "--memory", "3.6 GB")
    found = json.loads(did("choose", "local_steps_wan", "--grid", "job.strategy.period=5", *fields, "--json").stdout)
    rarer = [row for row in found["rows"] if row["exchange"].startswith("diloco:period=5, ")]
    assert rarer
    assert all(row["memory"]["peak_B"] <= 3_600_000_000 for row in found["rows"])
    ruled_out = [one for one in found["notes"] if one.startswith("diloco:period=5, ") and "of the 3.6 GB" in one]
    assert ruled_out


def test_a_run_makes_the_gradients_of_a_job_once_where_what_is_sent_follows_them():
    made = []

    class Counted(Source):
        def gradients(self, iteration, out=None):
            made.append(iteration)
            return super().gradients(iteration, out)

    job = with_shared_gradients(replace(JOB, source=Counted(WORKERS, (600, 1000, 400), SCALE)))
    for one in (AG, DENSE, RING):
        exchange_memory(job, one)
    assert made == []
    for scheme in ("oktopk", "ef21"):
        exchange_memory(job, Candidate(scheme, scheme))
    assert made == [0]
