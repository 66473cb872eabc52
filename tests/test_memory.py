"""What a job holds in memory, and that what it overwrites changes no result."""

import sys
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from simnet.scenario import load
from simnet.scenario.job import fixed_memory, memory
from simnet.scenario.runner import results_of
from simnet.sparsifier_models import create
from simnet.traces.source import FixedTraining
from simnet.training.job.memory import exchange_memory

SMALL = ("job.scale=200", "job.iterations=6")


@pytest.mark.parametrize("policy", ["AG", "ART-ring", "flexible"])
def test_a_policy_alone_gives_what_it_gives_beside_others(policy):
    loaded = load("quickstart", SMALL)
    alone = results_of(loaded.only([policy]).build())[policy]
    beside = results_of(loaded.build())[policy]
    pd.testing.assert_frame_equal(alone.iterations, beside.iterations, check_exact=True)
    pd.testing.assert_frame_equal(alone.workers, beside.workers, check_exact=True)


def test_a_job_with_one_exchange_holds_few_copies_of_its_gradients(monkeypatch):
    monkeypatch.setattr(sys.modules["simnet.traces.synthetic"], "_ASIDE", 1)
    sets = ("workers=16", "job.model=alexnet", "job.scale=150", "job.iterations=4", "job.density=1 %")
    run = load("quickstart", sets).only(["ART-ring"]).build()
    # So that all is imported.
    results_of(run)
    copy = 4 * run.job.source.workers * run.job.source.parameters
    tracemalloc.start()
    results_of(run)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # One copy, as gradients are added to the residual, and of the rows that workers share six.
    assert peak < (1.2 + 6 / 16) * copy


@pytest.mark.parametrize("scheme", ["topk", "artopk", "oktopk", "spardl", "exdyna"])
def test_measuring_a_scheme_takes_no_more_memory_than_a_run_was_said_to(scheme):
    sets = ("workers=8", "job.model=alexnet", "job.scale=200", f"exchanges.AG.scheme={scheme}", "job.density=1 %")
    scenario = load("quickstart", sets).only(["AG"])
    run = scenario.build()
    # So that all is imported.
    exchange_memory(run.job, run.policies["AG"].candidates[0])
    tracemalloc.start()
    exchange_memory(run.job, run.policies["AG"].candidates[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    said = memory(scenario.config) - fixed_memory(scenario.config)
    assert 0.3 * said < peak < said


def test_gradients_that_last_and_turn_are_counted_three_rows_more():
    """A second number that turns, c with what lasts of it, and the normals drawn for that: 4 bytes an entry each."""

    def needed(like):
        sets = ("job.model=alexnet", f"job.gradients.synthetic.like={like}", "memory=100 GB")
        return memory(load("quickstart", sets).only(["ART-ring"]).config)

    entries = load("quickstart", ("job.model=alexnet",)).build().job.source.parameters
    assert needed("transformer") - needed("digits") == pytest.approx(3 * 4 * entries, rel=1e-6)


def test_a_job_takes_the_same_course_where_gradients_are_added_to_residuals(monkeypatch):
    results = [results_of(load("quickstart", SMALL).only(["AG"]).build())["AG"]]
    monkeypatch.setattr(FixedTraining, "adding", lambda *_: None)
    results.append(results_of(load("quickstart", SMALL).only(["AG"]).build())["AG"])
    pd.testing.assert_frame_equal(results[0].iterations, results[1].iterations, check_exact=True)
    pd.testing.assert_frame_equal(results[0].workers, results[1].workers, check_exact=True)


def test_a_residual_that_was_read_is_not_overwritten():
    model = create("topk", workers=2, parameters=1000, density=0.1)
    random = np.random.default_rng(0)
    model.exchange(random.standard_normal((2, 1000)).astype(np.float32), overwrite=True)
    held = model.residual
    before = held.copy()
    model.exchange(random.standard_normal((2, 1000)).astype(np.float32), overwrite=True)
    np.testing.assert_array_equal(held, before)
    assert model.spare() is None
    model.exchange(random.standard_normal((2, 1000)).astype(np.float32), overwrite=True)
    spare = model.spare()
    assert spare is not None
    assert spare.flags.writeable
    assert model.spare() is None


@pytest.mark.parametrize("how", ["part of another", "read-only", "columns first"])
def test_gradients_that_may_not_take_something_else_stay_as_they_are(how):
    model = create("topk", workers=2, parameters=4, density=0.5)
    given = np.ones((3, 4), dtype=np.float32)[:2] if how == "part of another" else np.ones((2, 4), dtype=np.float32)
    if how == "columns first":
        given = np.asfortranarray(given)
    given.flags.writeable = how != "read-only"
    model.exchange(given, overwrite=True)
    assert (given == 1).all()


@pytest.mark.parametrize(
    ("adds", "kept", "told"),
    [
        (False, False, "worker 1 is inf at index 2"),
        (False, True, "worker 1 is infinite, or too large with its residual, at index 2"),
        (True, False, "worker 1 is infinite, or too large with its residual, at index 2"),
    ],
)
def test_an_infinite_gradient_is_refused_where_it_may_be_overwritten(adds, kept, told):
    model = create("topk", workers=2, parameters=4, density=0.5)
    model.exchange(np.ones((2, 4), dtype=np.float32), overwrite=True)
    held = model.residual if kept else None
    wrong = np.array([[0, 0, 0, 0], [0, 0, np.inf, 0]], dtype=np.float32)

    def add(rows):
        rows += wrong

    with pytest.raises(ValueError, match=told):
        model.exchange(add if adds else wrong.copy(), overwrite=True)
    assert held is None or np.isfinite(held).all()
    assert not model.residual.any()


@pytest.mark.parametrize("scheme", ["topk", "artopk"])
def test_schedules_of_fixed_volume_are_made_once_for_each_turn_and_density(scheme):
    gradients = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32)
    model, fresh = (create(scheme, workers=3, parameters=100, density=0.1) for _ in range(2))
    made = []
    for density in (0.1, 0.3, 0.1):
        model.density = density
        made += [model.exchange(gradients) for _ in range(3)]
    assert all(one.schedule is again.schedule for one, again in zip(made[:3], made[6:], strict=True))
    assert all(one.recurs for one in made)
    assert made[3].schedule.nbytes > made[0].schedule.nbytes
    for number, one in enumerate(made[:3]):
        fresh.iteration = number
        alone = fresh.exchange(gradients)
        assert alone.schedule == one.schedule
        assert [kernel.method for kernel in alone.kernels] == [kernel.method for kernel in one.kernels]
