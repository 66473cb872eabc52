"""Description of a training job: compute times, densities, gradient buckets, and workers that fail or leave."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from simnet import sparsifier_models
from simnet.base.arrays import FLOAT_BYTES, Floats
from simnet.base.quantities import Duration, Iterations, PositiveSize, Seconds, Share, Size, Slowdown, Spread
from simnet.base.rng import stream
from simnet.collectives import broadcast_binomial, registry
from simnet.cost_models.costs.devices import DeviceProfile
from simnet.network import Network
from simnet.network.ring_order import RingOrder, pair_seconds, ring_order
from simnet.policies import Candidate, Ramp
from simnet.schedule import Round, Schedule
from simnet.sparsifier_models import Sparsifier
from simnet.sparsifier_models.options import option_values
from simnet.sparsifier_models.two_level import AUTO, BOTTLENECK, PREFIX, sizes_of
from simnet.traces.source import GradientSource, tensor_options
from simnet.training.job.local_costs import scheme_hook
from simnet.training.parallel.pytorch import BUCKET_MIB, FIRST_BUCKET_MIB, cut

if TYPE_CHECKING:
    from simnet.training.parallel.plan import TrainingSteps

Optimizer: TypeAlias = Literal["adam", "momentum", "sgd"]
"""Optimiser of the parameters: Adam, or stochastic gradient descent with or without momentum."""

# What a bucket is exchanged by that stays dense.
_DENSE = "dense"
# Bytes of the order of a tensor in the buckets that PyTorch's DistributedDataParallel agrees on.
_INDEX = 4.0


@dataclass(frozen=True)
class Compute:
    """Seconds that the forward and backward pass take on each worker.

    Parameters
    ----------
    mean : float
        Mean time of an iteration [s].
    spread : float
        Standard deviation of the logarithm of a worker's time, independent between workers and iterations; the mean
        stays `mean`.
    slow : mapping of int to float
        Workers that are always slower, and by which factor.
    straggle : float
        Probability that a worker is a straggler in an iteration.
    slowdown : float
        Factor by which a straggler is slower.
    """

    mean: Seconds
    spread: Spread = 0.0
    slow: Mapping[int, Slowdown] = field(default_factory=dict)
    straggle: Share = 0.0
    slowdown: Slowdown = 1.0

    def seconds(self, seed: int, iteration: int, workers: int) -> Floats:
        """Return the compute time [s] of each worker in an iteration; shape (P,)."""
        factor = np.ones(workers)
        for worker, slower in self.slow.items():
            factor[worker] = slower
        seconds = self.mean * factor
        if self.spread or self.straggle:
            draws = stream(seed, "compute", iteration)
            seconds *= np.exp(self.spread * draws.standard_normal(workers) - self.spread**2 / 2)
            if self.straggle:
                seconds *= np.where(draws.random(workers) < self.straggle, self.slowdown, 1.0)
        return seconds


@dataclass(frozen=True)
class Overlap:
    """Exchange of gradient buckets during back-propagation, as PyTorch's DistributedDataParallel does.

    Layers become ready from the last to the first. A bucket closes when it reaches `bucket` bytes; it is selected and
    exchanged on its own, after the bucket before it. Of the backward pass each tensor takes an equal share.

    Parameters
    ----------
    bucket : float
        Dense gradient from which a bucket closes [byte], > 0 (25 MiB in PyTorch).
    backward : float
        Share of the compute time that is back-propagation, within 0..1.
    dense_below : int
        A bucket of fewer entries of the model than this stays dense, whatever the exchange; >= 0.
    dense : sequence of str
        Layers whose buckets stay dense, too.
    dense_algorithm : str
        By which all-reduce these are exchanged.
    first : float, optional
        The same of the first bucket [byte] (1 MiB in PyTorch unless a size is given); default: as `bucket`.
    exchanges : {"all", "able"}
        Whether all exchanges go beside the backward pass, or those whose implementation can, as
        `simnet.sparsifier_models.Traits.overlaps` says.
    """

    bucket: PositiveSize = BUCKET_MIB * 2.0**20
    backward: Share = 2 / 3
    dense_below: int = 0
    dense: Sequence[str] = ()
    dense_algorithm: str = "ring"
    first: PositiveSize | None = None
    exchanges: Literal["all", "able"] = "all"

    def __post_init__(self) -> None:
        registry.collective_by_algorithm("all_reduce", self.dense_algorithm)


DDP_OVERLAP = Overlap(first=FIRST_BUCKET_MIB * 2.0**20, exchanges="able")
"""Default overlap of PyTorch's DistributedDataParallel, for exchanges whose implementation supports it."""


@dataclass(frozen=True)
class LocalSteps:
    """Settings of a training strategy: inner `steps` per iteration, and the share of parameters in each exchange."""

    name: str
    options: Mapping[str, Any]
    steps: int
    bucket: float | None = None
    shares: Sequence[float] = (1.0,)


@dataclass(frozen=True)
class Job:
    """A training job on a network: gradients, compute times, densities, placement of workers, and failures.

    `source` has the fresh gradients of all workers; it fixes P and n. Each of `stages` is an iteration and the network
    from it on, the first from 0; most jobs have one. `density` has the target density by iteration. `compute` is the
    compute time of workers, `device` the cost of kernels, `placement` the host of each worker (worker r on host r if
    None). `overlap` exchanges buckets during back-propagation; without it the whole gradient goes after it. `seed` is
    that of everything stochastic. Workers of `failures` fail for good at a time [s]; the others notice after the
    `patience` [s] and resume, or the job ends. A `strategy`, or `steps` of a replicated or sharded model by labels of
    candidates, take the place of an exchange of gradients in every iteration; `compute` is then of an inner step, or of
    the passes of a microbatch (a factor on traces). Under a strategy workers may be away (`absences`, or at random by
    `churn`), and an exchange waits for late workers until the `deadline` [s]. For memory: `optimizer` moves the
    parameters (Adam if None), `device_memory` is that of a worker's device [byte]. A scenario checks all of this.

    Parameters
    ----------
    iterations : int
        How long the job is.
    update : float
        Time to apply the update, for every worker.
    barrier : bool
        If true, workers begin an iteration together, when the last of them has finished the one before. Otherwise each
        begins when it has finished, as in PyTorch's DistributedDataParallel, and the first iteration after a broadcast
        of worker 0, which agrees on the buckets.
    """

    source: GradientSource
    iterations: Iterations
    stages: Sequence[tuple[int, Network]]
    density: Sequence[Ramp]
    compute: Compute
    device: DeviceProfile
    placement: Sequence[int] | None = None
    overlap: Overlap | None = None
    update: Seconds = 0.0
    barrier: bool = True
    seed: int = 0
    failures: Mapping[int, Seconds] = field(default_factory=dict)
    patience: Seconds | None = None
    strategy: LocalSteps | None = None
    steps: Mapping[str, TrainingSteps] | None = None
    absences: Sequence[Absence] = ()
    churn: Churn | None = None
    deadline: Duration | None = None
    optimizer: Optimizer | None = None
    device_memory: Size | None = None

    def __post_init__(self) -> None:
        workers = self.source.workers
        hosts, last = self.hosts.tolist(), min(network.routes.n_hosts for _, network in self.stages) - 1
        if len(hosts) != workers or not all(0 <= host <= last for host in hosts):
            raise ValueError(f"{workers} workers need as many hosts within 0..{last}, got {hosts}")

    @cached_property
    def hosts(self) -> NDArray[np.intp]:
        """Host of each worker; shape (P,)."""
        return np.arange(self.source.workers) if self.placement is None else np.asarray(self.placement)

    @property
    def largest_density(self) -> float:
        """Maximum target density over all iterations."""
        return max(max(ramp.start, ramp.end) for ramp in self.density)

    @property
    def has_ramps(self) -> bool:
        """Whether the target density changes over the iterations."""
        return len(self.density) > 1 or self.density[0].start != self.density[0].end

    @property
    def elastic(self) -> bool:
        """Whether exchanges may run without workers that have left (churn) or missed the deadline."""
        return bool(self.absences) or self.churn is not None or self.deadline is not None

    def computes(self, iteration: int, workers: NDArray[np.intp]) -> Floats:
        """Return the compute seconds of each of the given workers in an iteration."""
        if self.strategy is not None:
            return np.asarray(self.inner_computes(iteration, workers).sum(axis=0))
        return self.compute.seconds(self.seed, iteration, self.source.workers)[workers]

    def inner_computes(self, iteration: int, workers: NDArray[np.intp]) -> Floats:
        """Return the compute seconds of each inner step, shape (steps, workers), including updates between steps."""
        steps = 1 if self.strategy is None else self.strategy.steps
        numbers = range(iteration * steps, (iteration + 1) * steps)
        each = np.stack([self.compute.seconds(self.seed, number, self.source.workers) for number in numbers])
        each[:-1] += self.update
        return np.asarray(each[:, workers])

    def begins(self, now: float) -> Floats:
        """Return the delay [s] of each worker's start after the first worker's, shape (P,); zeros with a barrier."""
        if self.barrier:
            return np.zeros(self.source.workers)
        order = broadcast_binomial(self.source.workers, _INDEX * len(self.source.layers))
        left: Floats = self.network(0).time(order, now, placement=self.placement, stream=("buckets",)).left
        return np.asarray(left - left.min())

    def network(self, iteration: int) -> Network:
        """Return the network that the job uses in an iteration."""
        return next(network for first, network in reversed(self.stages) if first <= iteration)


class Bucket(NamedTuple):
    """Contiguous range of gradient entries, exchanged when the share `ready` of the backward pass is done."""

    entries: slice
    layers: slice
    ready: float
    dense: bool = False


def job_overlap(job: Job, exchanges: Iterable[Candidate]) -> Overlap | None:
    """Return how buckets overlap the backward pass under a policy's `exchanges`; None if an exchange cannot overlap.

    For a scheme with a counted implementation, that decides; for others, the traits of the scheme do.
    """
    overlap = job.overlap
    if overlap is None:
        return None
    for one in exchanges:
        hook = scheme_hook(job.device, one.scheme)
        able = sparsifier_models.scheme(one.scheme).traits.overlaps if hook is None else hook.overlap != "after"
        if not able and (hook is not None or overlap.exchanges == "able"):
            return None
    return overlap


def job_buckets(job: Job, exchanges: Iterable[Candidate]) -> list[Bucket]:
    """Return the gradient buckets under a policy's `exchanges`; one bucket if an exchange cannot overlap."""
    return gradient_buckets(job.source, job_overlap(job, exchanges))


def gradient_buckets(source: GradientSource, overlap: Overlap | None) -> list[Bucket]:
    """Return the buckets of a gradient, from the last layer to the first; a single bucket without overlap."""
    sizes = [size for _, size in source.layers]
    if overlap is None:
        return [Bucket(slice(0, source.parameters), slice(0, len(sizes)), 1.0)]
    ends = np.cumsum([0, *sizes])
    found: list[Bucket] = []
    for layers in cut(sizes, 4 * source.scale, overlap.first or overlap.bucket, overlap.bucket):
        entries = slice(int(ends[layers.start]), int(ends[layers.stop]))
        named = not set(overlap.dense).isdisjoint(name for name, _ in source.layers[layers])
        dense = named or (entries.stop - entries.start) * source.scale < overlap.dense_below
        found.append(Bucket(entries, layers, (len(sizes) - layers.start) / len(sizes), dense))
    return found


def create_sparsifier(candidate: Candidate, bucket: Bucket, job: Job, workers: int | None = None) -> Sparsifier:
    """Return a candidate's sparsifier for a bucket. Options with the value `auto` get values that fit the network."""
    candidate = fit_to_network(candidate, job)
    scheme, options = candidate.scheme, candidate.options
    if bucket.dense and scheme != _DENSE:
        assert job.overlap is not None
        scheme, options = _DENSE, {"algorithm": job.overlap.dense_algorithm}
    return sparsifier_models.create(
        scheme,
        workers=job.source.workers if workers is None else workers,
        parameters=bucket.entries.stop - bucket.entries.start,
        scale=job.source.scale,
        seed=job.seed,
        **tensor_options(job.source, bucket.layers),
        **options,
    )


def node_sizes(network: Network, hosts: Sequence[int], nbytes: float) -> tuple[int, ...]:
    """Return the sizes of nodes, groups of consecutive ranks that are close in the network; the innermost level first.

    The distance of two ranks is the time of a message of `nbytes`. A size counts only if several groups exist and all
    have that size.
    """
    pairs = [network.path(src, dst, 0.0) for src, dst in itertools.pairwise(hosts)]
    seconds = np.array([latency + (nbytes / bandwidth if bandwidth else np.inf) for latency, bandwidth in pairs])
    found = []
    for limit in np.unique(seconds)[:-1].tolist():
        # What differs by rounding alone is as near.
        ends = np.flatnonzero(seconds > limit * (1 + 1e-9)) + 1
        sizes = np.diff([0, *ends, len(hosts)])
        if len(sizes) > 1 and sizes[0] > 1 and (sizes == sizes[0]).all() and int(sizes[0]) not in found:
            found.append(int(sizes[0]))
    return tuple(found)


@lru_cache(maxsize=16)
def _ring_order(network: Network, hosts: tuple[int, ...], nbytes: float) -> RingOrder:
    return ring_order(pair_seconds(network, list(hosts), nbytes))


def job_node_sizes(job: Job) -> tuple[int, ...]:
    """Return how many workers share a node, at each level; nodes are inferred from the times of dense-ring messages."""
    return node_sizes(job.network(0), job.hosts.tolist(), _chunk_bytes(job))


def _chunk_bytes(job: Job) -> float:
    return 4.0 * job.source.true_parameters / job.source.workers


def fit_to_network(candidate: Candidate, job: Job) -> Candidate:
    """Return a candidate whose `auto` options, ranks per node and node order, get values that fit the job's network."""
    if not candidate.scheme.startswith(PREFIX):
        return candidate
    given: Any = option_values(sparsifier_models.scheme(candidate.scheme).option_type, candidate.options)
    found = dict(candidate.options)
    if given.ranks_per_node == AUTO:
        sizes = job_node_sizes(job)
        if not sizes:
            raise ValueError(
                f"ranks_per_node auto: among {job.source.workers} workers no groups of equally many, one behind the "
                "other, are nearer to each other than to the next; give a number"
            )
        found["ranks_per_node"] = sizes[0]
    if given.node_order == BOTTLENECK:
        heads = job.hosts[:: math.prod(sizes_of(found["ranks_per_node"]))].tolist()
        found["node_order"] = list(_ring_order(job.network(0), tuple(heads), _chunk_bytes(job)).order)
    return replace(candidate, options=found)


# Iterations whose computing a quantile is of, at most.
_DRAWN = 200
_Time: TypeAlias = Annotated[Duration, Ge(1e-3)]


class Absence(NamedTuple):
    """Period [s] in which a worker is away. A worker that leaves with `notice` first finishes its iteration."""

    worker: int
    begin: float
    end: float = math.inf
    notice: bool = True


@dataclass(frozen=True)
class Churn:
    """Workers that leave and return at random and independently, after exponentially distributed times.

    Parameters
    ----------
    stay, away : float
        How long one is there, and away, on average [s], >= 1 ms.
    notice : bool
        Whether it finishes the iteration that is under way.
    """

    stay: _Time
    away: _Time
    notice: bool = True

    def absences(self, seed: int, worker: int) -> Iterator[Absence]:
        """Yield an endless sequence of a worker's absences, from a random stream of that worker alone."""
        draws, now = stream(seed, "churn", worker), 0.0
        while True:
            begin = now + draws.exponential(self.stay)
            now = begin + draws.exponential(self.away)
            yield Absence(worker, begin, now, self.notice)


class WorkerPresence:
    """Which workers of an elastic job are present at each simulated time."""

    def __init__(self, job: Job) -> None:
        workers = range(job.source.workers)
        self._of: list[list[Absence]] = [[] for _ in workers]
        for one in sorted(job.absences, key=lambda one: one.begin):
            self._of[one.worker].append(one)
        self._more = [None if job.churn is None else job.churn.absences(job.seed, worker) for worker in workers]

    def _absences(self, worker: int, now: float) -> list[Absence]:
        """Return a worker's absences up to the first that begins after `now`; past absences are dropped."""
        own, more = self._of[worker], self._more[worker]
        while more is not None and (not own or own[-1].begin <= now):
            # Of those that are past the last tells when the worker came back.
            past = [place for place, one in enumerate(own) if one.end <= now]
            del own[: max(len(past) - 1, 0)]
            own.append(next(more))
        return own

    def present(self, workers: NDArray[np.intp], now: float) -> NDArray[np.bool_]:
        """Return a mask of the given workers: true if the worker is present at time `now`."""
        away = [any(one.begin <= now < one.end for one in self._absences(worker, now)) for worker in workers.tolist()]
        return ~np.array(away, dtype=np.bool_)

    def returned(self, worker: int, now: float) -> float:
        """Return the time [s] at which a present worker last returned; `now` if it was never away."""
        return max((one.end for one in self._absences(worker, now) if one.end <= now), default=now)

    def returns(self, workers: NDArray[np.intp], now: float) -> float:
        """Return the time [s] at which the first absent worker among `workers` returns; infinite if none returns."""
        away = [one for worker in workers.tolist() for one in self._absences(worker, now)]
        return min((one.end for one in away if one.begin <= now < one.end), default=math.inf)

    def leaves(self, workers: NDArray[np.intp], now: float) -> dict[int, float]:
        """Return the time [s] of each worker's next departure without notice, if the worker has one."""
        found = {}
        for worker in workers.tolist():
            soon = [one.begin for one in self._absences(worker, now) if one.begin > now and not one.notice]
            if soon:
                found[worker] = soon[0]
        return found


def parameters_sent(
    job: Job, iteration: int, now: float, source: int, target: int, stream: tuple[str | int, ...]
) -> float:
    """Return the seconds that sending the model from worker `source` to `target` takes; `stream` names random draws."""
    order = Schedule(2, [Round([0], [1], [FLOAT_BYTES * job.source.true_parameters], phase="parameters")])
    placement, named = job.hosts[[source, target]], (*stream, target)
    timing = job.network(iteration).time(order, placement=placement, stream=named, origin=now)
    return float(timing.left[1])


def deadline_at(job: Job, quantile: float) -> float:
    """Return a quantile of workers' compute lag behind the fastest worker [s] over 200 iterations, as a deadline."""
    everybody = np.arange(job.source.workers)
    each = np.array([job.computes(number, everybody) for number in range(_DRAWN)])
    return float(np.quantile(each - each.min(axis=1, keepdims=True), quantile))
