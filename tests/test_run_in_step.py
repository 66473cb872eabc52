"""Policies that run in step: each comes to what it comes to alone, and the gradients of an iteration are made once."""

import numpy as np
import pytest

from jobs import AG, DENSE, RING, TREE, Source
from simnet.base.errors import SimnetError
from simnet.policies import Fixed, OneStepOracle
from simnet.scenario import load
from simnet.traces.source import CachedSource, cached_source
from simnet.training.job.checkpoint import Checkpoint
from simnet.training.job.job import Overlap
from simnet.training.job.running import run_in_step, run_policy
from test_checkpoints import KilledError, assert_same, flexible, job, learning, moo

POLICIES = {
    "AG": lambda: Fixed(AG),
    "flexible": flexible,
    "moo": moo,
    "ring": lambda: Fixed(RING),
    "oracle": lambda: OneStepOracle((AG, RING, TREE)),
}
JOBS = {
    "plain": job,
    "buckets": lambda: job(overlap=Overlap(bucket=200.0)),
    "failures": lambda: job(failures={1: 0.06, 2: 0.3}, patience=0.02),
    "no barrier": lambda: job(barrier=False),
    "training": learning,
}


def in_step(one, names=tuple(POLICIES), **options):
    return dict(run_in_step(one, {name: POLICIES[name]() for name in names}, timeline=2, **options))


@pytest.mark.parametrize("kind", JOBS)
def test_every_policy_comes_to_what_it_comes_to_alone(kind):
    found = in_step(JOBS[kind]())
    assert sorted(found) == sorted(POLICIES)
    for name, result in found.items():
        assert_same(result, run_policy(JOBS[kind](), name, POLICIES[name](), timeline=2))


def test_the_order_of_the_policies_does_not_matter():
    found, other = in_step(job()), in_step(job(), tuple(reversed(POLICIES)))
    for name in POLICIES:
        assert_same(found[name], other[name])


def test_gradients_are_made_once_for_all_policies():
    # More than are kept.
    one = job(iterations=20)
    in_step(one)
    assert one.source.asked == 20


def test_trainings_have_gradients_of_their_own():
    source = learning().source
    assert cached_source(source) is source


def test_what_is_shared_cannot_be_written_to_and_copies_can():
    source = CachedSource(Source())
    gradients, out = source.gradients(1), np.empty((4, 200), dtype=np.float32)
    with pytest.raises(ValueError, match="read-only"):
        gradients[0, 0] = 1
    assert source.gradients(1, out) is out
    out[:] = 0
    assert (source.gradients(1) == Source().gradients(1)).all()


def test_killed_at_different_iterations_all_go_on_and_catch_up(tmp_path):
    names, first = ("AG", "ring", "oracle"), job()
    places = {name: tmp_path / f"{name}.npz" for name in names}

    def kept():
        return {name: Checkpoint(path, name, every=0) for name, path in places.items()}

    def progress(name, done):
        if (name, done) == ("ring", 4):
            raise KilledError

    with pytest.raises(KilledError):
        in_step(first, names, checkpoints=kept(), progress=progress)
    assert first.source.asked == 5
    places["oracle"].unlink()
    again = job()
    for name, result in in_step(again, names, checkpoints=kept()).items():
        assert_same(result, run_policy(job(), name, POLICIES[name](), timeline=2))
    # The oracle begins anew, and the others wait for it; but for what they had asked for already.
    assert again.source.asked <= again.iterations + 2


def test_an_error_of_one_ends_no_other():
    def shortlist(context):
        if context.iteration == 3:
            raise SimnetError("no more")
        return [DENSE]

    broken = Fixed(DENSE)
    broken.shortlist = shortlist
    found = dict(run_in_step(job(), {"AG": Fixed(AG), "broken": broken, "ring": Fixed(RING)}))
    assert str(found["broken"]) == "no more"
    assert_same(found["ring"], run_policy(job(), "ring", Fixed(RING)))


def test_checkpoints_of_policies_in_step_take_together_the_share_of_one(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    for beside, again in ((1, 40.0), (4, 160.0)):
        one = Checkpoint(tmp_path / "a.npz", "it", every=1.0, beside=beside)
        clock[0] += 1.0
        assert one.due()
        # It took two seconds to write.
        clock[0] += 2.0
        one.write({}, 1)
        begun = clock[0]
        clock[0] = begun + again - 0.1
        assert not one.due()
        clock[0] = begun + again
        assert one.due()


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
def test_policies_are_split_into_about_as_many_lists_as_asked_for(parts):
    run = load("fluctuating_wan").build()
    lists = run.in_step(parts)
    assert sorted(name for names in lists for name in names) == sorted(run.policies)
    assert len(lists) == min(parts, len(run.policies))


def test_policies_that_would_not_fit_the_memory_together_run_one_after_the_other():
    fields = ["job.scale=64"]
    assert len(load("fluctuating_wan", fields).build().in_step(1)) == 1
    run = load("fluctuating_wan", [*fields, "memory=600 MB"]).build()
    lists = run.in_step(1)
    assert len(lists) > 1
    assert sorted(name for names in lists for name in names) == sorted(run.policies)
    # Two processes have half of it each.
    assert len(run.in_step(1, processes=2)) > len(lists)


def test_policies_that_train_run_one_after_the_other():
    run = load("time_to_accuracy_wan", ["job.gradients.train.data=classification"]).build()
    assert run.in_step(1) == [[name] for name in run.policies]
