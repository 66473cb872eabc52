"""A job whose iterations are steps of a replicated or sharded model, as in `simnet.training.parallel`.

Each step is timed on the network at its start. No gradient is made: the tensors of the model decide the sizes of
messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.network import Timing
from simnet.network.timing import Split
from simnet.policies import Candidate
from simnet.schedule import Schedule
from simnet.sparsifier_models import Exchange
from simnet.sparsifier_models.base import Stats
from simnet.traces.source import Values, WithoutLearning
from simnet.training.job.checkpoint import State
from simnet.training.job.exchange import ExchangeProcess, TimedExchange
from simnet.training.job.iteration import Iteration
from simnet.training.job.job import Job
from simnet.training.job.spans import COMPUTE, NETWORK, Span, intersect_intervals, merge_intervals, subtract_intervals
from simnet.training.parallel import CollectiveCall, PlacedStep, StepTiming

# Steps on networks that are kept: those of the first iterations, and of the stages of a network.
_MOST_PLACED = 16


class NoGradients:
    """A source without gradients: P workers, and the entries of their model (1 if unknown)."""

    parameters = 1
    layers: tuple[tuple[str, int], ...] = (("model", 1),)

    def __init__(self, workers: int, true_parameters: int) -> None:
        self.workers, self.true_parameters, self.scale = workers, true_parameters, float(true_parameters)

    def gradients(self, iteration: int, out: Values | None = None) -> NoReturn:
        """Raise ValueError: steps of sharded models have no gradients."""
        raise ValueError("a job of sharded steps makes no gradients")


class StepSet:
    """The steps of a job with a single candidate; raise ValueError for several, or for an unknown algorithm."""

    def __init__(self, job: Job, candidates: Sequence[Candidate]) -> None:
        if len(candidates) != 1:
            raise ValueError("in a job of sharded steps a policy keeps to one way of sharding")
        assert job.steps is not None
        (self._candidate,) = candidates
        self._job, self._steps = job, job.steps[self._candidate.label]
        self._placed: list[tuple[PlacedStep, Exchange]] = []
        self.training = WithoutLearning()

    def step(self, where: Iteration, shortlist: Sequence[Candidate]) -> ExchangeProcess:
        """Time the step of an iteration; raise StalledError if a collective can never end."""
        computes = self._job.computes(where.batch, where.active)
        exchange, step = self._timed(where.number, where.now, computes)
        left, computing, communicating = step.ended.max(axis=0, initial=0.0), step.computing, step.communicating
        waiting = np.maximum(left - computing - communicating, 0.0)
        result = Timing(
            where.now, np.zeros(left.size), left, lambda: Split(communicating, np.zeros(left.size), waiting)
        )
        spans = list(_step_spans(step, where.now)) if where.keeps_messages else []
        # What is under way beside computing is no request to the network of its own.
        yield from ()
        return TimedExchange(
            self._candidate,
            [exchange],
            np.zeros(left.size),
            computing - computes,
            result,
            where.now,
            spans,
        )

    def first(self) -> StepTiming:
        """Return the step from which on all are alike, at the start of the job, where workers compute alike."""
        job = self._job
        number = max(job.iterations - 1, 0)
        return self._timed(number, 0.0, np.full(job.source.workers, job.compute.mean))[1]

    def _timed(self, iteration: int, begun: float, computes: Floats) -> tuple[Exchange, StepTiming]:
        step, network = self._steps.step(iteration), self._job.network(iteration)
        known = (one for one in self._placed if one[0].graph is step.graph and one[0].network is network)
        if (found := next(known, None)) is None:
            placed = PlacedStep(step.graph, network, self._steps.algorithms, self._job.placement, self._steps.slowdown)
            found = placed, _collective_exchange(*placed.nbytes())
            self._placed = [*self._placed[1 - _MOST_PLACED :], found]
        placed, exchange = found
        return exchange, placed.time(step.seconds(computes), begun, iteration)

    def explore(self, where: Iteration) -> NoReturn:
        """Refuse: there is one way to go."""
        raise ValueError("in a job of sharded steps no policy explores")

    def without(self, gone: NDArray[np.bool_]) -> NoReturn:
        """Refuse: without some of the workers nobody has all parameters."""
        raise ValueError("a job of sharded steps does not go on without some of its workers")

    def apply(self, exchanges: Sequence[Exchange]) -> None:
        """Do nothing: nothing is trained."""

    def save(self) -> State:
        """Return nothing: an iteration depends on its number and on when it begins."""
        return {}

    def restore(self, state: State) -> None:
        """Take nothing."""


def _collective_exchange(sent: Floats, received: Floats) -> Exchange:
    """Return what is known of the collectives of a step as of an exchange."""
    unknown = dict.fromkeys(("sent_norm", "given_norm", "residual_norm"), np.full(sent.size, math.nan))
    stats: Stats = {"bytes_sent": sent, "bytes_received": received, **unknown}
    selected = np.zeros(sent.size, dtype=np.int64)
    return Exchange(np.zeros(0, dtype=np.float32), Schedule(sent.size), selected, (), 0, np.zeros(sent.size), stats)


def _step_spans(step: StepTiming, begun: float) -> Iterator[Span]:
    """Yield what each worker did from when to when: computing, collectives beside it and alone, and neither."""
    computes = np.array([not isinstance(node.does, CollectiveCall) for node in step.graph.nodes], dtype=np.bool_)
    for worker in range(step.graph.workers):
        times = np.stack([step.begun[:, worker], step.ended[:, worker]], axis=1)
        own = sorted(map(tuple, times[computes].tolist()))
        calls = list(merge_intervals(sorted(map(tuple, times[~computes].tolist()))))
        busy = list(merge_intervals(sorted([*own, *calls])))
        whole = (0.0, float(times.max(initial=0.0)))
        pieces = [(COMPUTE, "compute", *one) for one in own]
        pieces += [(NETWORK, "overlapped", *one) for call in calls for one in intersect_intervals(call, own)]
        pieces += [(NETWORK, "communicate", *one) for call in calls for one in subtract_intervals(call, own)]
        pieces += [(COMPUTE, "wait", *one) for one in subtract_intervals(whole, busy)]
        for resource, what, first, last in pieces:
            if last > first:
                yield worker, resource, what, begun + first, begun + last
