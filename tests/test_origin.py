"""Times count from when an exchange begins: whatever the absolute time, it takes as long, to the last digit."""

import math

import numpy as np
import pytest
import simpy

from jobs import AG, DENSE, job_on
from simnet import collectives, topologies
from simnet.base.errors import SimnetError
from simnet.network import Network
from simnet.network.weather import markov, outages, steps
from simnet.policies import Fixed
from simnet.training.job.job import Compute
from simnet.training.job.loop import JobLoop, RunOptions
from simnet.training.job.record import JobRecord
from simnet.training.job.running import _answered, _time_alone

RING = collectives.allreduce_ring(8, 1000.0)
FAST = topologies.star(8, 1e-6, 12.5e9)


@pytest.mark.parametrize("engine", ["vectorised", "fluid"])
@pytest.mark.parametrize("start", [60.0, 86400.3, 1e9, 1e12])
def test_an_exchange_takes_as_long_at_any_time(engine, start):
    network = Network(FAST, engine=engine, jitter=lambda draws, n: draws.exponential(1e-7, n))
    soon, late = (network.time(RING, at, messages=True) for at in (0.0, start))
    assert late.duration == soon.duration > 14e-6
    assert (late.entered == soon.entered).all()
    assert (late.left == soon.left).all()
    assert (late.messages.arrived == soon.messages.arrived).all()
    assert late.finish == start + soon.finish
    assert all(np.array_equal(one, other) for one, other in zip(late.split, soon.split, strict=True))
    for stack in ("tcp", "gloo", "openmpi", "mpich"):
        network = Network(FAST, stack=stack, engine=engine)
        assert network.time(RING, start).duration == network.time(RING).duration


@pytest.mark.parametrize("exchange", [AG, DENSE])
def test_iterations_of_a_job_take_as_long_late_as_early(exchange):
    job = job_on(Network(FAST), workers=8, iterations=50, compute=Compute(1e-5), update=1e-6)

    def went(start):
        record = JobRecord("p")
        list(_answered(JobLoop(job, Fixed(exchange), record, RunOptions(3), start).run(), _time_alone))
        return record

    soon, late = went(0.0), went(1e9)
    for column in ("iteration_s", "compute_s", "select_s", "communicate_s", "wait_s"):
        assert (late.iterations[column] == soon.iterations[column]).all(), column
    # What one addition loses, the next one makes up for: else this would be some 1e-8 s each.
    off = (late.iterations["start_s"] - 1e9) - soon.iterations["start_s"]
    assert np.abs(off).max() <= math.ulp(1e9)


def test_runs_in_a_simulation_that_is_late_are_as_exact_as_alone():
    env = simpy.Environment(initial_time=1e9)
    network = Network(FAST, env=env)
    expected, timings = Network(FAST).time(RING).duration, []

    def job():
        for gap in (0.0, 0.3, 5.0, 1e5):
            yield env.timeout(gap)
            timings.append((yield network.run(RING)))

    env.process(job())
    env.run()
    assert [timing.duration for timing in timings] == pytest.approx([expected] * 4, rel=1e-9, abs=0)
    begun = 1e9 + np.cumsum([0.0, 0.3, 5.0, 1e5]) + expected * np.arange(4)
    assert [timing.start for timing in timings] == pytest.approx(begun, rel=4e-16, abs=0)


@pytest.mark.parametrize("late", [True, False])
def test_what_the_clock_of_a_simulation_cannot_tell_is_refused(late):
    for begin in (lambda network: network.run(RING), lambda network: network.transfer(0, 1, 1e3)):
        env = simpy.Environment(initial_time=1e12 if late else 1e9)
        event = begin(Network(FAST, env=env))
        if late:
            with pytest.raises(SimnetError, match=r"takes \S+ s cannot be told at 1e\+12 s, .* are 0\.00012 s apart"):
                env.run(event)
        else:
            env.run(event)


@pytest.mark.parametrize(
    "late",
    [
        lambda: steps([0.0, 1e-3], [1.0, 2.0], period=1e5).at(1e12),
        lambda: markov([1.0, 0.0], [1e5, 1e-3], seed=1).at(1e12),
        lambda: outages(at=[(1e12, 1e-6)]),
        lambda: steps([0.0, 1e12, 1e12 + 1e-6], [1.0, 2.0, 3.0]),
    ],
)
def test_changes_that_doubles_cannot_tell_apart_are_refused_with_the_reason(late):
    with pytest.raises((SimnetError, ValueError), match=r"numbers (there )?are \S+ s apart"):
        late()
