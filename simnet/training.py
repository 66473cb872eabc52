"""The simulated job: iterations of compute, select, exchange, update on P workers in step.

Each iteration every worker computes its gradient, selects what to send, takes part in the exchange, and waits for the
slowest (synchronous SGD). The gradients and the sparsifier are real; computing and selecting take modelled time; the
exchange is timed on the network as its weather is at that moment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import sparsifier_models
from simnet.devices import DeviceProfile
from simnet.network import Messages, Network, Timing
from simnet.policies import Candidate, Moment, Policy, probe_pairs
from simnet.rng import stream
from simnet.schedule import Floats

if TYPE_CHECKING:
    import pandas as pd

    from simnet.traces import GradientSource
    from sparsifier_models import Exchange, Sparsifier

Progress = Callable[[int], None]
"""Called with the number of iterations done."""


@dataclass(frozen=True)
class Compute:
    """Seconds that forward and backward pass take on each worker.

    Parameters
    ----------
    mean : float
        Mean seconds of an iteration.
    spread : float
        Standard deviation of the logarithm of a worker's time, independent between workers and iterations; the mean
        stays `mean`.
    slow : mapping of int to float
        Workers that are always slower, and by which factor.
    straggle : float
        Probability that a worker is a straggler in an iteration.
    slowdown : float
        Factor by which a straggler is slower.

    Raises
    ------
    ValueError
        If a figure is negative or not finite, `straggle` is no probability, or a factor is not > 0.
    """

    mean: float
    spread: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    straggle: float = 0.0
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        for name in ("mean", "spread"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be >= 0 and finite, got {getattr(self, name)}")
        if not 0 <= self.straggle <= 1:
            raise ValueError(f"straggle is a probability within 0..1, got {self.straggle}")
        if not all(0 < factor < math.inf for factor in (self.slowdown, *self.slow.values())):
            raise ValueError("slow and slowdown are factors > 0")

    def seconds(self, seed: int, iteration: int, workers: int) -> Floats:
        """Return the compute time [s] of each worker in an iteration; shape (P,)."""
        draws = stream(seed, "compute", iteration)
        noise = np.exp(self.spread * draws.standard_normal(workers) - self.spread**2 / 2)
        straggles = draws.random(workers) < self.straggle
        factor = np.ones(workers)
        for worker, slower in self.slow.items():
            factor[worker] = slower
        return self.mean * factor * noise * np.where(straggles, self.slowdown, 1.0)


class Ramp(NamedTuple):
    """A stretch of iterations over which the density goes from `start` to `end`, linearly, both ends included."""

    iterations: int
    start: float
    end: float


def density_at(ramps: Sequence[Ramp], iteration: int) -> float:
    """Return the density of an iteration; after the last ramp its end holds.

    Examples
    --------
    >>> warm_up = [Ramp(3, 1.0, 0.5), Ramp(1, 0.01, 0.01)]
    >>> [density_at(warm_up, iteration) for iteration in range(5)]
    [1.0, 0.75, 0.5, 0.01, 0.01]
    """
    for ramp in ramps:
        if iteration < ramp.iterations:
            share = iteration / (ramp.iterations - 1) if ramp.iterations > 1 else 1.0
            low, high = sorted((ramp.start, ramp.end))
            # Rounding must not carry it past an end, least of all past 1.
            return min(max(ramp.start + share * (ramp.end - ramp.start), low), high)
        iteration -= ramp.iterations
    return ramps[-1].end


@dataclass(frozen=True)
class Overlap:
    """Exchange of buckets while back-propagation goes on, as PyTorch's DistributedDataParallel does.

    Layers become ready from the last to the first. A bucket closes when it reaches `bucket` bytes; it is selected and
    exchanged on its own, after the bucket before it. Of the backward pass each tensor takes an equal share.

    Parameters
    ----------
    bucket : float
        Bytes of dense gradient from which a bucket closes, > 0 (25 MiB in PyTorch).
    backward : float
        Share of the compute time that is back-propagation, within 0..1.

    Raises
    ------
    ValueError
        If one of them is not.
    """

    bucket: float = 25 * 2**20
    backward: float = 2 / 3

    def __post_init__(self) -> None:
        if not 0 < self.bucket < math.inf:
            raise ValueError(f"bucket must be a number of bytes > 0, got {self.bucket}")
        if not 0 <= self.backward <= 1:
            raise ValueError(f"backward is a share within 0..1, got {self.backward}")


@dataclass(frozen=True)
class Job:
    """A training job on a network.

    Parameters
    ----------
    source : GradientSource
        Fresh gradients of all workers, iteration by iteration; fixes P and n.
    iterations : int
        How many.
    stages : sequence of (int, Network)
        The network from each iteration on, the first from 0. Most jobs have one, whose weather is a function of time;
        several give weather by iteration, as the schedules C1 and C2 of the AR-Topk paper do.
    density : sequence of Ramp
        Target density by iteration.
    compute : Compute
        Compute time of the workers.
    device : DeviceProfile
        What selecting costs.
    placement : sequence of int, optional
        Host of each worker; worker r is on host r when omitted.
    overlap : Overlap, optional
        Exchange buckets during back-propagation; without it the whole gradient is exchanged after it.
    update : float
        Seconds to apply the update, for every worker.
    seed : int
        Seed of everything stochastic in the job.

    Raises
    ------
    ValueError
        If there are no iterations, stages or densities, the stages do not start at 0 and ascend, a host or worker that
        is named does not exist, or `update` is negative.
    """

    source: GradientSource
    iterations: int
    stages: Sequence[tuple[int, Network]]
    density: Sequence[Ramp]
    compute: Compute
    device: DeviceProfile
    placement: Sequence[int] | None = None
    overlap: Overlap | None = None
    update: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        workers = self.source.workers
        if self.iterations < 1:
            raise ValueError(f"a job needs at least 1 iteration, got {self.iterations}")
        firsts = [first for first, _ in self.stages]
        if not firsts or firsts[0] != 0 or any(a >= b for a, b in itertools.pairwise(firsts)):
            raise ValueError(f"stages must start with iteration 0 and ascend, got {firsts}")
        if not self.density or not all(
            ramp.iterations >= 1 and 0 < ramp.start <= 1 and 0 < ramp.end <= 1 for ramp in self.density
        ):
            raise ValueError("density needs ramps of at least 1 iteration between fractions > 0 and <= 1")
        if not 0 <= self.update < math.inf:
            raise ValueError(f"update must be >= 0 and finite, got {self.update}")
        if not all(0 <= worker < workers for worker in self.compute.slow):
            raise ValueError(f"slow workers must be within 0..{workers - 1}, got {sorted(self.compute.slow)}")
        hosts = list(range(workers)) if self.placement is None else list(self.placement)
        for _, network in self.stages:
            if len(hosts) != workers or not all(0 <= host < network.routes.n_hosts for host in hosts):
                raise ValueError(
                    f"{workers} workers need as many hosts within 0..{network.routes.n_hosts - 1}, got {hosts}"
                )

    def network(self, iteration: int) -> Network:
        """Return the network in force in an iteration."""
        return next(network for first, network in reversed(self.stages) if first <= iteration)


@dataclass(frozen=True)
class PolicyResult:
    """What a job did under one policy. Every column's name ends in its unit.

    Parameters
    ----------
    iterations : DataFrame
        A row per iteration: when it started, how long it took, how that splits (means over workers, which add up),
        bytes sent by all workers, what was chosen, and the worst latency and bandwidth between neighbours at its start.
    workers : DataFrame
        A row per iteration and worker: the split of the iteration, which adds up to it, and its bytes.
    messages, spans : DataFrame
        Every message, and what each worker did when, of the first iterations.
    """

    iterations: pd.DataFrame
    workers: pd.DataFrame
    messages: pd.DataFrame
    spans: pd.DataFrame


class Bucket(NamedTuple):
    """A stretch of the gradient that is exchanged on its own, and the share of the backward pass after which."""

    entries: slice
    layers: tuple[tuple[str, int], ...]
    ready: float


def buckets(source: GradientSource, overlap: Overlap | None) -> list[Bucket]:
    """Split a gradient into buckets, from the last layer to the first; one bucket without overlap."""
    sizes = [size for _, size in source.layers]
    if overlap is None:
        return [Bucket(slice(0, source.parameters), source.layers, 1.0)]
    ends = np.cumsum(sizes)
    found = []
    last = len(sizes)
    for first in reversed(range(len(sizes))):
        entries = int(ends[last - 1] - ends[first] + sizes[first])
        if entries * source.scale * 4 >= overlap.bucket or first == 0:
            stretch = slice(int(ends[first]) - sizes[first], int(ends[last - 1]))
            found.append(Bucket(stretch, source.layers[first:last], (len(sizes) - first) / len(sizes)))
            last = first
    return found


def run_policy(
    job: Job, name: str, policy: Policy, *, timeline: int = 0, progress: Progress | None = None
) -> PolicyResult:
    """Run a job under one policy.

    Parameters
    ----------
    job : Job
        The job; several policies may run on the same one and see the same gradients, compute times and weather.
    name : str
        Name of the policy in the results.
    policy : Policy
        Decides before each iteration.
    timeline : int
        Keep the messages and spans of this many first iterations.
    progress : callable, optional
        Called with the number of iterations done after each.

    Raises
    ------
    StalledError
        If an exchange can never end.
    """
    workers = job.source.workers
    placement = list(range(workers)) if job.placement is None else list(job.placement)
    models = _Models(job, policy.candidates)
    policy.start()
    record = _Record(name, workers)
    now = 0.0
    for iteration in range(job.iterations):
        network, density = job.network(iteration), density_at(job.density, iteration)
        latency, bandwidth = probe_pairs(network, placement, now)
        moment = Moment(iteration, now, network, placement, 4.0 * job.source.true_parameters, density)
        compute = job.compute.seconds(job.seed, iteration, workers)
        step = models.step(iteration, density, policy.shortlist(moment), now, compute, placement, iteration < timeline)
        finish = step.timing.finish + job.update
        record.add(
            _Iteration(iteration, now, finish, density, float(latency.max()), float(bandwidth.min())),
            step,
            compute,
            job.update,
            keep=iteration < timeline,
        )
        now = finish
        if progress is not None:
            progress(iteration + 1)
    return record.result()


class _Step(NamedTuple):
    """An iteration gone through with one candidate."""

    candidate: Candidate
    exchanges: list[Exchange]
    select: Floats
    timing: Timing


def create_sparsifier(candidate: Candidate, bucket: Bucket, job: Job) -> Sparsifier:
    """Return the sparsifier of an exchange for a bucket.

    Raises
    ------
    ValueError
        If its options do not fit the job.
    """
    return sparsifier_models.create(
        candidate.scheme,
        workers=job.source.workers,
        parameters=bucket.entries.stop - bucket.entries.start,
        layers=bucket.layers,
        scale=job.source.scale,
        seed=job.seed,
        **candidate.options,
    )


def check_feedback(feedback: Mapping[str, bool]) -> None:
    """Refuse to switch between exchanges of which some, by their labels, have error feedback and some have not.

    Raises
    ------
    ValueError
        If so: the residual would be lost.
    """
    if len(set(feedback.values())) > 1:
        with_it = ", ".join(label for label, has in feedback.items() if has)
        without = ", ".join(label for label, has in feedback.items() if not has)
        raise ValueError(
            f"cannot switch between exchanges with error feedback ({with_it}) and without ({without}): the residual of "
            "the former would be lost"
        )


class _Models:
    """The sparsifiers of a job, one per candidate and bucket, and the residual that they hand to each other."""

    def __init__(self, job: Job, candidates: Sequence[Candidate]) -> None:
        self._job = job
        self._buckets = buckets(job.source, job.overlap)
        self._models = {
            candidate.label: [create_sparsifier(candidate, one, job) for one in self._buckets]
            for candidate in candidates
        }
        self._in_force: list[Sparsifier] | None = None

        check_feedback({label: models[0].options.error_feedback for label, models in self._models.items()})

    def step(
        self,
        iteration: int,
        density: float,
        shortlist: Sequence[Candidate],
        now: float,
        compute: Floats,
        placement: Sequence[int],
        messages: bool,
    ) -> _Step:
        """Exchange the gradients of an iteration with each of the shortlist, and keep what the fastest did."""
        gradients = self._job.source.gradients(iteration)
        in_force = self._in_force
        switches = in_force is not None and any(self._models[one.label] is not in_force for one in shortlist)
        before = [model.residual for model in in_force] if in_force is not None and switches else None
        best: _Step | None = None
        for candidate in shortlist:
            models = self._models[candidate.label]
            exchanges = []
            for index, (bucket, model) in enumerate(zip(self._buckets, models, strict=True)):
                model.density, model.iteration = density, iteration
                if before is not None and models is not in_force:
                    model.residual = before[index]
                exchanges.append(model.exchange(gradients[:, bucket.entries]))
            step = self._time(candidate, exchanges, iteration, now, compute, placement, messages)
            if best is None or step.timing.finish < best.timing.finish:
                best = step
        assert best is not None, "a policy returned an empty shortlist"
        self._in_force = self._models[best.candidate.label]
        return best

    def _time(
        self,
        candidate: Candidate,
        exchanges: list[Exchange],
        iteration: int,
        now: float,
        compute: Floats,
        placement: Sequence[int],
        messages: bool,
    ) -> _Step:
        job, workers = self._job, compute.size
        backward = job.overlap.backward if job.overlap is not None else 0.0
        computed = now + compute
        selected = np.zeros(workers)
        parts = []
        for bucket, exchange in zip(self._buckets, exchanges, strict=True):
            ready = computed - (1.0 - bucket.ready) * backward * compute
            selected = np.maximum(selected, ready) + job.device.seconds(exchange.kernels, workers)
            parts.append((exchange.schedule, selected))
        timing = job.network(iteration).time(
            parts,
            start=parts[0][1],
            placement=placement,
            messages=messages,
            stream=("iteration", iteration),
            accounted_from=selected,
        )
        return _Step(candidate, exchanges, selected - computed, timing)


class _Iteration(NamedTuple):
    """When an iteration was, and what the network was like at its start."""

    iteration: int
    start: float
    finish: float
    density: float
    latency: float
    bandwidth: float


class _Record:
    """The rows of a policy's result, as they come."""

    def __init__(self, policy: str, workers: int) -> None:
        self._policy = policy
        self._workers = workers
        self._iterations: list[dict[str, Any]] = []
        self._split: list[NDArray[np.float64]] = []
        self._messages: list[tuple[int, Messages]] = []
        self._spans: list[tuple[int, int, str, float, float]] = []

    def add(self, at: _Iteration, step: _Step, compute: Floats, update: float, *, keep: bool) -> None:
        """Book an iteration: every worker's time from its start to its end goes under one of four headings."""
        timing = step.timing
        rank_compute = compute + timing.rank_compute + update
        rank_wait = timing.rank_wait + (timing.finish - timing.rank_finish)
        sent, received = (
            sum(np.asarray(exchange.stats[name]) for exchange in step.exchanges)
            for name in ("bytes_sent", "bytes_received")
        )
        split = np.column_stack([rank_compute, step.select, timing.rank_communicate, rank_wait, sent, received])
        self._split.append(split)
        means = split.mean(axis=0)
        self._iterations.append(
            {
                "policy": self._policy,
                "iteration": at.iteration,
                "start_s": at.start,
                "iteration_s": at.finish - at.start,
                "compute_s": means[0],
                "select_s": means[1],
                "communicate_s": means[2],
                "wait_s": means[3],
                "bytes_sent_B": float(split[:, 4].sum()),
                "choice": step.candidate.label,
                "density": at.density,
                "selected": float(np.mean(sum(exchange.selected for exchange in step.exchanges))),
                **_statistics(step.exchanges),
                "latency_s": at.latency,
                "bandwidth_Bps": at.bandwidth,
            }
        )
        if keep and timing.messages is not None:
            self._messages.append((at.iteration, timing.messages))
            for worker in range(self._workers):
                spans = _spans(
                    at.start, at.finish, float(compute[worker]), float(step.select[worker]), update, timing, worker
                )
                self._spans += [(at.iteration, worker, *span) for span in spans]

    def result(self) -> PolicyResult:
        """Return the rows as data frames."""
        import pandas as pd

        count = len(self._iterations)
        split = np.concatenate(self._split) if self._split else np.zeros((0, 6))
        workers = pd.DataFrame(
            {
                "policy": self._policy,
                "iteration": np.repeat(np.arange(count), self._workers),
                "worker": np.tile(np.arange(self._workers), count),
                **dict(zip(_SPLIT, split.T, strict=True)),
            }
        )
        messages = [
            pd.DataFrame(
                {
                    "policy": self._policy,
                    "iteration": iteration,
                    "round": one.round,
                    "phase": one.phase,
                    "src": one.src,
                    "dst": one.dst,
                    "nbytes_B": one.nbytes,
                    "start_s": one.start,
                    "finish_s": one.finish,
                }
            )
            for iteration, one in self._messages
        ]
        spans = pd.DataFrame(self._spans, columns=["iteration", "worker", "what", "start_s", "finish_s"])
        spans.insert(0, "policy", self._policy)
        return PolicyResult(
            iterations=pd.DataFrame(self._iterations),
            workers=workers,
            messages=pd.concat(messages, ignore_index=True) if messages else pd.DataFrame(columns=list(_MESSAGES)),
            spans=spans,
        )


def _statistics(exchanges: Sequence[Exchange]) -> dict[str, float]:
    """Return the statistics of an iteration over all its buckets; see `sparsifier_models.Exchange`."""

    def squares(name: str) -> Floats:
        return np.asarray(sum(np.square(exchange.stats[name]) for exchange in exchanges))

    union = sum(exchange.union for exchange in exchanges)
    entries = sum(exchange.update.size for exchange in exchanges)
    selected = np.asarray(sum(exchange.selected for exchange in exchanges))
    target = sum(exchange.union / exchange.stats["build_up"] for exchange in exchanges if exchange.union)
    given = float(squares("given_norm").sum())
    return {
        "actual_density": union / entries,
        "build_up": float(union / target) if union else 1.0,
        "imbalance": float(selected.size * selected.max() / selected.sum()) if selected.any() else 1.0,
        "gain": float(squares("sent_norm").sum()) / given if given else 1.0,
        "global_error": float(np.sqrt(squares("residual_norm")).mean()),
    }


_SPLIT = ("compute_s", "select_s", "communicate_s", "wait_s", "bytes_sent_B", "bytes_received_B")
_MESSAGES = ("policy", "iteration", "round", "phase", "src", "dst", "nbytes_B", "start_s", "finish_s")


def _spans(
    start: float, finish: float, compute: float, select: float, update: float, timing: Timing, worker: int
) -> Iterator[tuple[str, float, float]]:
    """Yield what a worker did from the start to the end of an iteration, one thing after another."""
    assert timing.messages is not None
    computed = start + compute
    entered = computed + select
    pieces = [("compute", start, computed), ("select", computed, entered)]
    own = (timing.messages.src == worker) | (timing.messages.dst == worker)
    left = float(timing.rank_finish[worker])
    reached = entered
    for begin, end in sorted(
        zip(timing.messages.start[own].tolist(), timing.messages.finish[own].tolist(), strict=True)
    ):
        if end <= reached:
            continue
        pieces.append(("wait", reached, max(reached, begin)))
        pieces.append(("communicate", max(reached, begin), end))
        reached = end
    pieces.append(("wait", max(reached, left), finish - update))
    pieces.append(("compute", finish - update, finish))
    for what, begin, end in pieces:
        if end > begin:
            yield what, begin, end
