"""Which buckets of a gradient to compress: on the timeline of an iteration, from the last layer's down.

A bucket is worth compressing where that makes the iteration shorter, not where its messages alone save more than its
kernels take: beside the backward pass and the messages of others much of either is hidden. So the iteration is
simulated as `simnet run` has it, with this bucket dense and with it compressed, one bucket after the other in the order
in which they become ready, starting from all dense, from all compressed, and from what pays for each bucket alone. What
each bucket sends and runs does not depend on the others, so that exchanges are made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.job import Job, gradient_buckets, run_policy
from simnet.job.exchange import ExchangeProcess, IterationContext, SparsifierSet
from simnet.job.streams import KernelTimes, kernel_times
from simnet.network.compiled_loop import load_kept_loop
from simnet.policies import Candidate, Fixed, density_at
from simnet.schedule import Schedule
from simnet.sparsifier_models import Exchange
from simnet.traces.source import FixedTraining, Trainable

# Iterations that are simulated, of all buckets together and at most; how often all buckets are gone through, and from
# how many on that starts only from what is the fastest.
_ITERATIONS, _MOST_ITERATIONS, _PASSES, _MANY = 64, 8, 2, 32


class Alone(NamedTuple):
    """What a bucket takes if nothing goes beside it [s]: messages dense and compressed, and kernels around these."""

    dense: float
    compressed: float
    encode: float
    decode: float

    @property
    def pays(self) -> bool:
        """Whether compressing it saves more of the messages than its kernels take."""
        return self.dense - self.compressed > self.encode + self.decode


class BucketRow(NamedTuple):
    """A bucket, and whether it is to be compressed.

    Parameters
    ----------
    layers : tuple of str
        Its layers.
    entries : int
        Entries of the model in it.
    dense, compressed : float
        What its messages take alone, dense and compressed [s].
    encode, decode : float
        Of the compressed: kernels before its first message, and those between and after, of the slowest worker [s].
    exposed : float
        By how much the iteration would be shorter without this bucket, as it was decided [s].
    slack : float
        What is hidden of its messages and kernels, beside the backward pass or others [s].
    compress : bool
        Whether it is to be compressed.
    """

    layers: tuple[str, ...]
    entries: int
    dense: float
    compressed: float
    encode: float
    decode: float
    exposed: float
    slack: float
    compress: bool

    @property
    def alone(self) -> bool:
        """Whether compressing it pays if nothing goes beside it."""
        return Alone(self.dense, self.compressed, self.encode, self.decode).pays


class Tensors(NamedTuple):
    """Which buckets to compress by an exchange.

    Parameters
    ----------
    candidate : Candidate
        The exchange.
    rows : tuple of BucketRow
        The buckets, in the order in which they become ready.
    all_dense, all_compressed, chosen : float
        What an iteration takes, mean of those simulated, with all buckets dense, all compressed, and as decided [s].
    iterations : int
        How many were simulated: the first ones of the job.
    """

    candidate: Candidate
    rows: tuple[BucketRow, ...]
    all_dense: float
    all_compressed: float
    chosen: float
    iterations: int

    @property
    def dense_below(self) -> int | None:
        """The `Overlap.dense_below` that says the same; None if there is none."""
        dense = [row.entries for row in self.rows if not row.compress]
        least = max(dense, default=0) + 1 if dense else 0
        return least if all(row.entries >= least for row in self.rows if row.compress) else None

    @property
    def dense(self) -> tuple[str, ...]:
        """The `Overlap.dense` that says the same: the first layer of each bucket that stays dense."""
        return tuple(row.layers[0] for row in self.rows if not row.compress)


class Timeline:
    """The iterations of a job with some buckets dense and some compressed, as `simnet run` has them.

    Parameters
    ----------
    job : Job
        The job; what it says of dense buckets does not count.
    candidate : Candidate
        By what the others are exchanged.
    iterations : int, optional
        How many of its first iterations; by default as many as there is time for.

    Raises
    ------
    InputError
        If the job has no overlap, or gradients depend on what was exchanged.
    """

    def __init__(self, job: Job, candidate: Candidate, iterations: int | None = None) -> None:
        if job.overlap is None:
            way = "say the buckets, as --set 'job.overlap={bucket: 1 MiB}'; with 1 B every layer is one"
            raise InputError(f"without it the gradient is exchanged as a whole: {way}", field="job.overlap")
        if isinstance(job.source, Trainable):
            raise InputError("has gradients that depend on what was sent before", field="job.gradients.train")
        overlap = replace(job.overlap, dense=(), dense_below=0, exchanges="all")
        self.job = replace(job, overlap=overlap, failures={}, patience=None)
        self.candidate = candidate
        self.buckets = gradient_buckets(job.source, overlap)
        wanted = max(min(_ITERATIONS // len(self.buckets), _MOST_ITERATIONS), 1) if iterations is None else iterations
        self.iterations = min(wanted, job.iterations)
        dense = Candidate("dense", "dense", {"algorithm": overlap.dense_algorithm})
        self.dense, self.compressed = (self._made(one) for one in (dense, candidate))
        made = [one for each in (*self.dense, *self.compressed) for one in each]
        # By the identity of the exchange, which is kept.
        self.work = {id(one): kernel_times(one.schedule, one.kernels, job.device) for one in made}
        self._known: dict[tuple[bool | None, ...], float] = {}

    def _made(self, candidate: Candidate) -> list[list[Exchange]]:
        """Return the exchange of each bucket in each iteration."""
        job = self.job
        maker, everybody = SparsifierSet(job, [candidate]), np.arange(job.source.workers)
        hosts = list(range(job.source.workers)) if job.placement is None else list(job.placement)
        none = np.zeros(everybody.size)
        found = []
        for number in track_progress(range(self.iterations), 0.1):
            density = density_at(job.density, number)
            where = IterationContext(
                number, 0.0, number, density, everybody, hosts, none, none, messages=False, stream=()
            )
            found.append(maker.exchanged(candidate, maker.training.gradients(number, everybody), where))
        return found

    def seconds(self, compress: Sequence[bool | None]) -> float:
        """Return what an iteration takes in the mean [s].

        Parameters
        ----------
        compress : sequence of bool or None
            For each bucket, whether it is compressed; None if it is left out.
        """
        key = tuple(compress)
        if key not in self._known:
            job = replace(self.job, iterations=self.iterations)
            made = _Chosen(job, self, key)
            result = run_policy(job, self.candidate.label, Fixed(self.candidate), sparsifiers=made)
            self._known[key] = float(result.iterations["iteration_s"].mean())
        return self._known[key]

    def alone(self, number: int) -> Alone:
        """Return what a bucket takes alone.

        Parameters
        ----------
        number : int
            Which bucket, in the first iteration.
        """
        job = self.job
        hosts = None if job.placement is None else list(job.placement)
        network = job.network(0)

        def messages(exchange: Exchange) -> float:
            return network.time(exchange.schedule, 0.0, placement=hosts, stream=("alone", number)).duration

        dense, compressed = self.dense[0][number], self.compressed[0][number]
        encode, between = job.device.work(compressed.kernels, job.source.workers)
        decode = np.sum([np.broadcast_to(one, job.source.workers) for one in between.values()], axis=0)
        return Alone(messages(dense), messages(compressed), float(np.max(encode)), float(np.max(decode, initial=0.0)))


class _Chosen(SparsifierSet):
    """Exchanges of a timeline, some dense and some compressed, again."""

    def __init__(self, job: Job, timeline: Timeline, compress: Sequence[bool | None]) -> None:
        super().__init__(job, (), training=FixedTraining(job.source))
        self._timeline, self._compress = timeline, compress

    def step(self, where: IterationContext, shortlist: Sequence[Candidate]) -> ExchangeProcess:
        """Time the exchanges of an iteration."""
        both = zip(self._timeline.dense[where.iteration], self._timeline.compressed[where.iteration], strict=True)
        chosen = [
            _nothing(dense) if compress is None else compressed if compress else dense
            for compress, (dense, compressed) in zip(self._compress, both, strict=True)
        ]
        return (yield from self._timed(shortlist[0], chosen, where))

    def _work(self, exchange: Exchange) -> KernelTimes | None:
        return self._timeline.work.get(id(exchange))

    def apply(self, exchanges: Sequence[Exchange]) -> None:
        """Do nothing: gradients do not depend on it."""


def _nothing(like: Exchange) -> Exchange:
    """Return an exchange in which nothing is sent."""
    schedule, none = Schedule(like.schedule.n_ranks), np.zeros_like(like.selected)
    return replace(like, schedule=schedule, kernels=(), selected=none)


def choose_tensors(job: Job, candidate: Candidate, iterations: int | None = None) -> Tensors:
    """Decide which buckets of a job to compress by an exchange, and which stay dense.

    Parameters
    ----------
    job : Job
        The job, with overlap, whose bucket says what is decided about.
    candidate : Candidate
        The exchange.
    iterations : int, optional
        How many of its first iterations are simulated; by default as many as there is time for, at most 8.

    Raises
    ------
    InputError
        If the job has no overlap, or gradients depend on what was exchanged.
    """
    load_kept_loop()
    timeline = Timeline(job, candidate, iterations)
    count = len(timeline.buckets)
    ends = {compress: timeline.seconds([compress] * count) for compress in (False, True)}
    alone = [timeline.alone(number) for number in range(count)]
    starts = [[False] * count, [True] * count, [one.pays for one in alone]]
    if count > _MANY:
        starts = [min(starts, key=timeline.seconds)]
    chosen = min((greedy(timeline, one) for one in starts), key=timeline.seconds)
    best = timeline.seconds(chosen)
    names = [name for name, _ in job.source.layers]
    rows = []
    for number, bucket in track_progress(list(enumerate(timeline.buckets)), 0.8):
        dense, compressed, encode, decode = alone[number]
        exposed = best - timeline.seconds([None if at == number else one for at, one in enumerate(chosen)])
        own = compressed + encode + decode if chosen[number] else dense
        entries = round((bucket.entries.stop - bucket.entries.start) * job.source.scale)
        rows.append(
            BucketRow(
                tuple(names[bucket.layers]), entries, dense, compressed, encode, decode,
                exposed, max(own - exposed, 0.0), chosen[number],
            )
        )  # fmt: skip
    return Tensors(candidate, tuple(rows), ends[False], ends[True], best, timeline.iterations)


def greedy(timeline: Timeline, first: Sequence[bool]) -> list[bool]:
    """Return which buckets to compress: each as makes the iteration shorter, from the last layer's down, and again.

    It is never longer than with what it starts from.

    Parameters
    ----------
    timeline : Timeline
        The iterations.
    first : sequence of bool
        What it starts from.
    """
    chosen = list(first)
    best = timeline.seconds(chosen)
    for _ in range(_PASSES):
        before = list(chosen)
        for number in track_progress(range(len(chosen)), 0.5):
            other = [not one if at == number else one for at, one in enumerate(chosen)]
            if (seconds := timeline.seconds(other)) < best * (1 - 1e-12):
                chosen, best = other, seconds
        if chosen == before:
            break
    return chosen
