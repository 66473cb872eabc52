"""Workers in shards: the same results to the bit; lost shards are told, and what cannot be sharded is refused."""

import multiprocessing
import os
import pickle
import signal
from dataclasses import replace

import numpy as np
import pytest

from commands import contents, did, refused
from simnet.base.errors import InputError, SimnetError
from simnet.base.rows import Shard, Shards
from simnet.base.shards import open_shards
from simnet.policies import Fixed
from simnet.scenario import load
from simnet.sparsifier_models import SCHEMES, create
from simnet.traces import synthetic
from simnet.traces.source import ShardedSource
from simnet.training.job.checkpoint import Checkpoint
from test_checkpoints import FEEDBACK, JOBS, assert_same, job, killed_after, run

SEPARABLE = sorted(name for name, scheme in SCHEMES.items() if scheme.traits.separable)


class Here:
    """A shard in this process, which gets and gives copies only."""

    def __init__(self, *begun):
        self.shard = Shard(*begun)
        self.sent = []

    def __call__(self, *given):
        self.answer = pickle.dumps(self.shard.answer(*pickle.loads(pickle.dumps(given))))
        self.sent.append(len(self.answer))
        answer = self.answer
        return type("Answer", (), {"result": lambda _: pickle.loads(answer)})()


def here(source, count):
    return Shards(source, [Here(source, first, count) for first in range(count)])


def source(workers=4, **options):
    return synthetic([("a", (12, 5)), ("b", (100,)), ("c", (8, 5))], workers, iterations=9, seed=2, **options)


@pytest.fixture(scope="module", params=[1, 2, 3])
def processes(request):
    with open_shards(source(), f"processes:{request.param}") as shards:
        yield shards


@pytest.mark.parametrize("workers", [[0], [3], [0, 1, 2, 3], [1, 3], [0, 2]])
def test_the_gradients_of_some_workers_are_those_among_all(workers):
    one, other = (synthetic([("a", (40, 500)), ("b", (700,))], 4, seed=2) for _ in range(2))
    for iteration in (0, 5):
        assert (one.gradients_of(workers, iteration) == other.gradients(iteration)[workers]).all()


@pytest.mark.parametrize("name", [name for name in JOBS if "training" not in name and name != "adviser, failures"])
def test_a_job_in_shards_has_the_same_results(name, processes):
    make, policy = JOBS[name]
    whole = replace(make(), source=source())
    assert_same(run(replace(whole, source=ShardedSource(whole.source, processes)), policy()), run(whole, policy()))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"compat": "released"}, {"error_feedback": False}, {"values": "bfloat16"}])
@pytest.mark.parametrize("scheme", SEPARABLE)
def test_every_separable_scheme_exchanges_the_same_in_shards(scheme, options, count):
    one = source(5)
    shards = here(one, count)
    model, other = (create(scheme, 5, one.parameters, 0.1, layers=one.layers, **options) for _ in range(2))
    for iteration in range(4):
        exchange = model.exchange(one.gradients(iteration), overwrite=iteration > 1)
        elsewhere = other.exchange(shards.gradients(iteration), overwrite=iteration > 1)
        assert exchange.update.tobytes() == elsewhere.update.tobytes()
        assert exchange.stats.keys() == elsewhere.stats.keys()
        for name, value in exchange.stats.items():
            np.testing.assert_array_equal(value, elsewhere.stats[name], err_msg=name)
        assert (exchange.schedule.bytes_sent() == elsewhere.schedule.bytes_sent()).all()
        assert [str(kernel) for kernel in exchange.kernels] == [str(kernel) for kernel in elsewhere.kernels]
        assert (model.residual == np.stack(list(other.residual))).all()


def test_what_this_machine_has_is_no_limit_to_what_lives_elsewhere():
    large = ["workers=64", "job.model=gpt2-xl", "job.scale=1", "memory=9 TiB"]
    scenario = load("resnet50_100g", large)
    with pytest.raises(InputError, match="more than"):
        scenario.build()
    assert replace(scenario, elsewhere=True).build().job.source.parameters > 1.5e9
    with pytest.raises(InputError, match="more than"):
        replace(load("resnet50_100g", [*large[:3], "memory=99 GiB"]), elsewhere=True).build()


@pytest.mark.parametrize("scheme", ["topk", "artopk", "uniontopk", "gaussiank"])
def test_what_comes_back_is_what_was_selected(scheme):
    one = synthetic(100_000, 4, seed=2)
    shards = here(one, 2)
    model = create(scheme, 4, one.parameters, 0.01)
    model.exchange(shards.gradients(0), overwrite=True)
    # An index of 8 bytes, a value of 4, and some hundred bytes of what each is; thresholds let a few more through.
    assert max(size for ask in shards._asks for size in ask.sent) < 12 * 1.5 * model.k + 1000


def test_a_part_of_rows_is_the_same_part_of_each_and_no_other_is_taken():
    one = source(3)
    rows, whole = here(one, 2).gradients(0), one.gradients(0)
    assert (np.stack(list(rows[:, 5:9][:, 1:])) == whole[:, 6:9]).all()
    for part in ((slice(0, 2), slice(5, 9)), (slice(None), slice(5, 9, 2))):
        with pytest.raises(IndexError, match="shards"):
            rows[part]


def test_an_entry_that_is_not_finite_is_told_as_without_shards():
    class Broken:
        workers, parameters = 3, 4

        def gradients_of(self, workers, iteration, out=None):
            rows = np.ones((3, 4), dtype=np.float32)
            rows[1, 2] = np.inf
            return rows[list(workers)]

    model = create("topk", 3, 4, 0.5)
    with pytest.raises(ValueError, match="gradient of worker 1 is inf at index 2; it must be finite"):
        model.exchange(Shards(Broken(), [Here(Broken(), first, 2) for first in range(2)]).gradients(0))


def test_a_scheme_that_is_not_separable_takes_no_rows():
    with pytest.raises(ValueError, match="gtopk takes gradients that are here together, not those of shards"):
        create("gtopk", 4, 200).exchange(here(source(), 2).gradients(0))


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (None, 2), (2, None)])
def test_a_job_goes_on_with_another_number_of_shards(before, after, tmp_path):
    path, policy = tmp_path / "a.npz", lambda: Fixed(FEEDBACK[0])

    def placed(count):
        one = job(source=source())
        return one if count is None else replace(one, source=ShardedSource(one.source, here(one.source, count)))

    assert killed_after(3, path, placed(before), policy())
    assert_same(run(placed(after), policy(), checkpoint=Checkpoint(path, "it")), run(placed(None), policy()))


WRONG = ["", "dask:", "tcp://10.0.0.1:8786", "processes", *(f"processes:{one}" for one in (0, -1, "two", 5000 * "9"))]
SHORT = ["--set", "job.iterations=4", "--set", "output.report=false"]
RUN = ["run", "quickstart", "--policies", "AG,ART-ring", "--quiet", *SHORT]


def test_a_run_has_the_same_files_with_its_workers_in_processes(tmp_path):
    did(*RUN, "--out", tmp_path / "here")
    did(*RUN, "--out", tmp_path / "there", "--on", "processes:2")
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


@pytest.mark.parametrize("asked", [0, 3])
def test_a_shard_that_is_killed_ends_what_is_asked_of_it(asked):
    with open_shards(source(), "processes:2") as shards:
        rows = shards.gradients(0)
        results = rows.each(np.max)
        for _ in range(asked):
            next(results)
        process = shards._asks[1].args[0].args[0].process
        os.kill(process.pid, signal.SIGKILL)
        said = "the process of workers 1, 3 was ended by SIGKILL; it may have run out of memory: have more processes"
        with pytest.raises(SimnetError, match=said):
            list(rows.each(np.max))
        with pytest.raises(SimnetError, match=said):
            shards.gradients(1)


def test_a_run_whose_shard_is_killed_is_refused_and_leaves_nobody_behind(tmp_path, monkeypatch):
    redraw, others = Shards.redraw, set(multiprocessing.active_children())

    def killing(shards, rows, iteration):
        if iteration == 2:
            os.kill(shards._asks[0].args[0].args[0].process.pid, signal.SIGKILL)
        redraw(shards, rows, iteration)

    monkeypatch.setattr(Shards, "redraw", killing)
    said = refused(*RUN, "--out", tmp_path / "out", "--on", "processes:2")
    assert "the process of workers 0, 2 was ended by SIGKILL" in said
    assert set(multiprocessing.active_children()) <= others
    monkeypatch.undo()
    did(*RUN, "--out", tmp_path / "out")
    did(*RUN, "--out", tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("where", WRONG)
def test_where_workers_live_is_checked(where, tmp_path):
    said = refused(*RUN, "--out", tmp_path, "--on", where)
    assert f"got {repr(where)[:40]}" in said
    assert "must be processes:N or dask:tcp://HOST:PORT" in said
    assert len(said) < 2000


def test_a_cluster_that_does_not_answer_is_named(tmp_path):
    assert "Dask" in refused(*RUN, "--out", tmp_path, "--on", "dask:tcp://127.0.0.1:1")


def test_what_cannot_be_sharded_is_refused_by_name(tmp_path):
    gtopk = ["--set", "exchanges.AG={scheme: gtopk}", "--out", tmp_path, "--on", "processes:2"]
    said = refused(*RUN, *gtopk)
    assert "--on processes:2: policy 'AG' exchanges by gtopk, which takes the gradients of all workers" in said
    assert f"allowed: {', '.join(SEPARABLE)}" in said
    several = refused(*RUN, "--out", tmp_path, "--on", "processes:2", "--jobs", 2)
    assert "--on processes:2: runs one policy after the other" in several
    learning = ["run", "time_to_accuracy_wan", "--quiet", "--out", tmp_path, "--on", "processes:2"]
    assert "gradients of a model that is trained come of all workers at once" in refused(*learning)


@pytest.mark.extras
def test_a_run_has_the_same_files_with_its_workers_on_dask(tmp_path):
    import distributed

    did(*RUN, "--out", tmp_path / "here")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        where = f"dask:{cluster.scheduler_address}"
        did(*RUN, "--out", tmp_path / "there", "--on", where)
        assert contents(tmp_path / "here") == contents(tmp_path / "there")


@pytest.mark.extras
def test_a_dask_worker_that_is_killed_ends_what_is_asked_of_it(tmp_path):
    import distributed

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        open_shards(source(), f"dask:{cluster.scheduler_address}") as shards,
    ):
        rows = shards.gradients(0)
        place = shards._asks[1].args[0].args[1]
        os.kill(next(one.pid for one in cluster.workers.values() if one.worker_address == place), signal.SIGKILL)
        with pytest.raises(SimnetError, match=f"the Dask worker {place} did not answer"):
            list(rows.each(np.max))
