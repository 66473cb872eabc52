"""Long jobs: beside their rows, what a job holds does not grow with its iterations."""

import gc
import itertools
import math
import sys

import pytest

from jobs import AG, DENSE, RING, Source, job_on, star
from simnet.policies import Fixed, Flexible, Monitor
from simnet.strategies import SGD
from simnet.training.advise import adviser as advice
from simnet.training.advise.adviser import Advised
from simnet.training.job.checkpoint import Checkpoint
from simnet.training.job.job import Churn, Compute, LocalSteps
from simnet.training.job.running import run_policy

COMING_AND_GOING = {
    "churn": Churn(stay=0.05, away=0.02),
    "strategy": LocalSteps("dataparallel", {"inner": SGD(0.1)}, 1, math.inf),
}
JOBS = {
    "fixed": ({}, lambda: Fixed(AG)),
    "probes in the job": ({}, lambda: Flexible([AG, RING], Monitor(every=0.0), probe_bytes=100.0)),
    "advised": ({}, lambda: Advised([AG, DENSE])),
    "workers come and go": (COMING_AND_GOING, lambda: Fixed(DENSE)),
}
WINDOW = 100


@pytest.fixture(autouse=True)
def _full_soon(monkeypatch):
    """Have an adviser remember little."""
    monkeypatch.setattr(advice, "_REMEMBERED", 4)


def run(name, iterations, path, every, progress):
    changes, policy = JOBS[name]
    job = job_on(star(2), 2, iterations, source=Source(2, (10,)), compute=Compute(0.01, spread=0.1), **changes)
    run_policy(job, "p", policy(), checkpoint=Checkpoint(path, "it", every=every), progress=progress)


# Advised jobs have objects that are no containers become more until about the 500th iteration, and none after that.
@pytest.mark.parametrize("name", [name for name in JOBS if name != "advised"])
def test_a_job_holds_no_more_objects_from_iteration_to_iteration(name, tmp_path):
    objects = []

    def progress(done):
        # Before that, Python and numpy keep what they have come across for the first time.
        if done >= 300 and done % WINDOW == 0:
            gc.collect()
            objects.append(sys.getallocatedblocks())

    run(name, 501, tmp_path / "a", 1e9, progress)
    more = [later - earlier for earlier, later in itertools.pairwise(objects)]
    assert len(more) == 2
    # In one of the windows something may be loaded. In both there were a window more if each iteration left an object.
    assert min(more) < 0.75 * WINDOW
