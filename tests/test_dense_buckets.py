"""Buckets that stay dense: which they are, how they are exchanged, and which of them are weighed side by side."""

import json

import pytest

from commands import NO_PAGE, did
from jobs import AG, DENSE, Source, job_on, star
from simnet.training.job.job import Compute, Overlap, create_sparsifier, gradient_buckets
from simnet.training.job.memory import exchange_memory

FIELDS = (
    *("--set", "job.overlap={bucket: 2 MB, backward: 60 %, dense_algorithm: recursive_doubling}"),
    *("--set", "network.topology.star.latency=20 us", "--set", "job.iterations=2", "--set", "job.scale=400"),
)


def test_a_bucket_stays_dense_by_its_entries_or_the_name_of_a_layer():
    source = Source(4, (60, 100, 40), 10.0)

    def dense(**how):
        return [one.dense for one in gradient_buckets(source, Overlap(bucket=1.0, **how))]

    assert dense() == [False, False, False]
    assert dense(dense_below=600) == [True, False, False]
    assert dense(dense_below=601) == [True, False, True]
    assert dense(dense=("layer1",)) == [False, True, False]
    assert dense(dense=("layer0",), dense_below=500) == [True, False, True]


def test_a_dense_bucket_is_exchanged_by_the_all_reduce_that_is_said_and_keeps_nothing():
    overlap = Overlap(bucket=1.0, backward=0.5, dense_algorithm="recursive_doubling", dense=("layer1",))
    source = Source(4, (60, 100), 1.0)
    job = job_on(star(4), 4, 2, device="ideal", source=source, overlap=overlap, compute=Compute(0.05))
    first, last = (create_sparsifier(AG, one, job) for one in gradient_buckets(job.source, job.overlap))
    assert (first.name, last.name) == ("dense", "topk")
    assert first.options.algorithm == "recursive_doubling"
    assert exchange_memory(job, AG).residual == 4.0 * 60
    # What is dense anyway keeps its own algorithm.
    assert create_sparsifier(DENSE, gradient_buckets(job.source, job.overlap)[0], job).options.algorithm == "ring"


def test_an_all_reduce_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="there is no all_reduce 'rings'"):
        Overlap(dense_algorithm="rings")


def test_the_report_tells_what_stays_dense(tmp_path):
    fields = (*FIELDS, "--set", "job.overlap.dense_below=600000")
    did("run", "quickstart", "--policies", "AG", *fields, "--out", tmp_path)
    assert "5 of 10 buckets" in (tmp_path / "report.html").read_text()


def test_a_grid_weighs_which_buckets_stay_dense_and_a_run_takes_as_long(tmp_path):
    grid = ("--schemes", "topk", "--grid", "job.overlap.dense_below=1,600000,100000000")

    def times(scheme, *words):
        rows = json.loads(did("choose", "quickstart", *FIELDS, *words, "--exact", "--json").stdout)["rows"]
        return {row["dense_below"]: row["times_s"][scheme] for row in rows}

    took = times("topk", *grid)
    assert len(set(took.values())) == 3
    fields = (*FIELDS, "--set", "job.overlap.dense_below=600000", "--policies", "AG", *NO_PAGE)
    did("run", "quickstart", *fields, "--out", tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    one = summary["policies"]["AG"]
    assert one["simulated_s"] / one["iterations"] == pytest.approx(took[600000], rel=1e-9)
    # With every bucket dense the scheme makes no difference.
    assert times("ef21", "--schemes", "ef21", *grid[2:])[100_000_000] == took[100_000_000]
