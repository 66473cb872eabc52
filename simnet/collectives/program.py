"""Chunk programs: for each round of a collective, which chunks ranks send, and whether the receiver reduces them.

Every rank holds a buffer of the same chunks, numbered round a circle: after the last comes the first again, so that
the pieces a ring or Bruck's algorithm moves are plain ranges. From one `ChunkProgram` follow the `Schedule` (how many
bytes travel, for any chunk sizes) and the execution on real arrays (what the ranks hold afterwards).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.base.errors import check_int
from simnet.schedule import Call, Round, Schedule

Array: TypeAlias = NDArray[Any]


class ChunkStep:
    """One round of a collective, or several rounds that differ only in the chunks they move.

    Parameters
    ----------
    src, dst : array_like of int, shape (m,)
        Sending and receiving rank of each message.
    first : array_like of int, shape (m,) or scalar
        First chunk of each message, modulo the number of chunks.
    count : array_like of int, shape (m,) or scalar
        Chunks of each message: ``first, first + 1, ...`` round the circle. They go to the same places at `dst`.
    reduce : array_like of bool, shape (m,) or scalar
        Whether the receiver reduces the message into what it has (else it stores the message over it).
    times : int
        Number of rounds.
    stride : int
        Chunks by which `first` moves on from each of these rounds to the next.
    phase : str
        As of `Round`.

    Examples
    --------
    The reduce-scatter of a ring of 3: in round s rank r passes chunk r - 1 - s on to its right.

    >>> ChunkStep([0, 1, 2], [1, 2, 0], first=[-1, 0, 1], reduce=True, times=2, stride=-1)
    ChunkStep(3 messages x 2 rounds, phase='')
    """

    __slots__ = ("count", "dst", "first", "phase", "reduce", "src", "stride", "times")

    def __init__(
        self,
        src: ArrayLike,
        dst: ArrayLike,
        first: ArrayLike = 0,
        count: ArrayLike = 1,
        *,
        reduce: ArrayLike = False,
        times: int = 1,
        stride: int = 0,
        phase: str = "",
    ) -> None:
        self.src: Ranks = np.asarray(src, dtype=np.int64)
        self.dst: Ranks = np.asarray(dst, dtype=np.int64)
        self.first: Ranks = np.broadcast_to(np.asarray(first, dtype=np.int64), self.src.shape)
        self.count: Ranks = np.broadcast_to(np.asarray(count, dtype=np.int64), self.src.shape)
        self.reduce: NDArray[np.bool_] = np.broadcast_to(np.asarray(reduce, dtype=np.bool_), self.src.shape)
        self.times, self.stride, self.phase = times, stride, phase

    def __len__(self) -> int:
        return int(self.src.size)

    def __repr__(self) -> str:
        return f"ChunkStep({len(self)} messages x {self.times} rounds, phase={self.phase!r})"

    def between(self, ranks: Ranks) -> ChunkStep:
        """Return a copy of the step between other ranks: ``ranks[r]`` takes the place of rank r."""
        moved = copy(self)
        moved.src, moved.dst = ranks[self.src], ranks[self.dst]
        return moved


class ChunkProgram:
    """A collective between `n_ranks` ranks on a buffer of `n_chunks` chunks.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, >= 1.
    n_chunks : int
        Chunks each rank's buffer is cut into, >= 1.
    steps : iterable of Step
        In order. Steps without messages or rounds are left out.
    operation, algorithm : str
        The collective of which its schedules are a call, as named in `simnet.collectives.registry`; empty for none.

    Raises
    ------
    ValueError
        If `n_ranks` or `n_chunks` is < 1, or a step has an invalid rank or number of chunks.

    Examples
    --------
    Rank 0 sends to rank 1, which adds; what follows is the schedule for chunks of 8 bytes, and the execution.

    >>> program = ChunkProgram(2, 1, [ChunkStep([0], [1], reduce=True)])
    >>> program.schedule(8).columns()["nbytes"]
    array([8.])
    >>> program.run([np.array([1, 2]), np.array([10, 20])])
    [array([1, 2]), array([11, 22])]
    """

    __slots__ = ("algorithm", "n_chunks", "n_ranks", "operation", "steps")

    def __init__(
        self, n_ranks: int, n_chunks: int, steps: Iterable[ChunkStep] = (), operation: str = "", algorithm: str = ""
    ) -> None:
        self.operation, self.algorithm = operation, algorithm
        self.n_ranks = check_int(n_ranks, "n_ranks", 1)
        self.n_chunks = check_int(n_chunks, "n_chunks", 1)
        self.steps: tuple[ChunkStep, ...] = tuple(step for step in steps if len(step) and step.times > 0)
        for step in self.steps:
            if min(step.src.min(), step.dst.min()) < 0 or max(step.src.max(), step.dst.max()) >= n_ranks:
                raise ValueError(f"a step names a rank outside 0..{n_ranks - 1}")
            if step.count.min() < 0 or step.count.max() > n_chunks:
                raise ValueError(f"a step moves a number of chunks outside 0..{n_chunks}")

    def __repr__(self) -> str:
        return f"Program({self.n_ranks} ranks, {self.n_chunks} chunks, {self.n_rounds} rounds)"

    @property
    def n_rounds(self) -> int:
        """Number of rounds."""
        return sum(step.times for step in self.steps)

    def bounds(self, n: int) -> NDArray[np.int64]:
        """Return the boundaries of the program's chunks in an array of `n` elements; the lengths are nearly equal.

        Returns
        -------
        ndarray of int64, shape (n_chunks + 1,)
            Chunk i is elements ``bounds[i] : bounds[i + 1]``.
        """
        return np.arange(self.n_chunks + 1, dtype=np.int64) * check_int(n, "n", 0) // self.n_chunks

    def schedule(self, chunk_nbytes: ArrayLike, *, gamma: float = 0.0) -> Schedule:
        """Return the collective as a schedule of messages, given the size of its chunks [byte].

        Where all chunks are equal, the rounds of a repeated step are one `Round` object.

        Parameters
        ----------
        chunk_nbytes : float or array_like of float, shape (n_chunks,)
            Bytes of every chunk, or of each, >= 0.
        gamma : float
            Seconds per byte reduced. A rank reduces what a round brought it before it enters the next; after the
            last round it does so in a round without messages.

        Raises
        ------
        ValueError
            If the sizes are negative, not finite or not one per chunk, or `gamma` is negative or not finite.
        """
        sizes = np.asarray(chunk_nbytes, dtype=np.float64)
        if sizes.ndim and sizes.shape != (self.n_chunks,):
            raise ValueError(f"chunk_nbytes must be one size or {self.n_chunks}, got shape {sizes.shape}")
        if not np.isfinite(sizes).all() or sizes.min() < 0:
            raise ValueError("bytes must be finite and >= 0")
        if not np.isfinite(gamma) or gamma < 0:
            raise ValueError(f"gamma must be finite and >= 0, got {gamma}")
        size = float(sizes.flat[0])
        equal = bool((sizes == size).all())
        laid_out = None if equal else np.concatenate([[0.0], np.cumsum(np.tile(sizes, 2))])

        rounds: list[Round] = []
        work: float | Floats = 0.0
        for step in self.steps:
            # With equal chunks the repetitions differ at most in the work the round before left, and so only the first.
            distinct = step.times if laid_out is not None else min(step.times, 2 if gamma else 1)
            for repetition in range(distinct):
                nbytes: Floats
                if laid_out is None:
                    nbytes = step.count * np.float64(size)
                else:
                    first = (step.first + repetition * step.stride) % self.n_chunks
                    nbytes = laid_out[first + step.count] - laid_out[first]
                rounds.append(Round(step.src, step.dst, nbytes, work, step.phase))
                work = self._reduction(step, nbytes, gamma)
            rounds += [rounds[-1]] * (step.times - distinct)
        if np.any(work):
            rounds.append(Round((), (), (), work, self.steps[-1].phase))
        if not rounds or not self.operation:
            return Schedule(self.n_ranks, rounds)
        total = float(size * self.n_chunks if equal else sizes.sum())
        # What nccl-tests counts of an all-to-all is what one rank has for all.
        counted = total / self.n_ranks if self.operation == "alltoall" else total
        call = Call(0, len(rounds), self.operation, self.algorithm, counted, None if equal else sizes)
        return Schedule(self.n_ranks, rounds, [call])

    def of_vector(self, nbytes: float, gamma: float = 0.0) -> Schedule:
        """Return the schedule for a vector of `nbytes` bytes in equal chunks; `gamma` is the time to reduce a byte."""
        return self.schedule(one_size(nbytes) / self.n_chunks, gamma=gamma)

    def of_each(self, nbytes: float) -> Schedule:
        """Return the schedule for chunks of `nbytes` bytes each."""
        return self.schedule(one_size(nbytes))

    def _reduction(self, step: ChunkStep, nbytes: Floats, gamma: float) -> float | Floats:
        """Return the time each rank takes to reduce the chunks it received [s]; a scalar if all times are equal."""
        if not gamma or not step.reduce.any():
            return 0.0
        received = np.bincount(step.dst[step.reduce], weights=nbytes[step.reduce], minlength=self.n_ranks)
        seconds: Floats = np.multiply(gamma, received)
        return float(seconds[0]) if (seconds == seconds[0]).all() else seconds

    def run(
        self,
        buffers: Sequence[Array],
        *,
        op: Callable[[Array, Array], Array] = np.add,
        bounds: ArrayLike | None = None,
        observe: Callable[[int, int, int, int], None] | None = None,
    ) -> list[Array]:
        """Execute the collective on real arrays, one per rank; return each rank's array afterwards.

        The messages of a round all read what was there before the round. The buffers given are not modified.

        Parameters
        ----------
        buffers : sequence of ndarray, length n_ranks
            What each rank holds, chunks one behind the other along the first axis; all of one shape and dtype.
        op : callable
            The reduction, e.g. ``np.add``, called as ``op(own, received)``. Ranks end alike only if it commutes.
        bounds : array_like of int, shape (n_chunks + 1,), optional
            Where chunks begin and end; `ChunkProgram.bounds` of the arrays' length if not given.
        observe : callable, optional
            Called as ``observe(round, src, dst, nbytes)`` for every message, with the bytes really copied.

        Returns
        -------
        list of ndarray
            What each rank holds afterwards.

        Raises
        ------
        ValueError
            If the buffers are not `n_ranks` arrays of one shape and dtype, or the bounds do not cut them up.
        """
        if len(buffers) != self.n_ranks:
            raise ValueError(f"{self.n_ranks} ranks need as many buffers, got {len(buffers)}")
        held = [np.array(one) for one in buffers]
        if any(one.shape != held[0].shape or one.dtype != held[0].dtype or not one.ndim for one in held):
            raise ValueError("buffers must be arrays of one shape and dtype")
        n = len(held[0])
        cuts = self.bounds(n) if bounds is None else np.asarray(bounds, dtype=np.int64)
        if cuts.shape != (self.n_chunks + 1,) or cuts[0] != 0 or cuts[-1] != n or (np.diff(cuts) < 0).any():
            raise ValueError(f"bounds must rise from 0 to {n} in {self.n_chunks} chunks")

        for index, (step, first) in enumerate(self._rounds()):
            columns = (one.tolist() for one in (step.src, step.dst, first, step.count, step.reduce))
            arrivals = []
            for src, dst, start, count, reduce in zip(*columns, strict=True):
                places = _chunk_elements(cuts, start, count)
                arrivals += [(dst, place, held[src][place].copy(), reduce) for place in places]
                if observe is not None:
                    observe(index, src, dst, sum(held[src][place].nbytes for place in places))
            for dst, place, values, reduce in arrivals:
                held[dst][place] = op(held[dst][place], values) if reduce else values
        return held

    def _rounds(self) -> Iterator[tuple[ChunkStep, Ranks]]:
        """Yield for every round its step, and the index of the first chunk of each of its messages."""
        for step in self.steps:
            for repetition in range(step.times):
                yield step, (step.first + repetition * step.stride) % self.n_chunks


def _chunk_elements(cuts: NDArray[np.int64], first: int, count: int) -> list[slice]:
    """Return the elements of `count` chunks from chunk `first` on: one slice, or two if the range wraps around."""
    last, n_chunks = first + count, len(cuts) - 1
    if last <= n_chunks:
        return [slice(int(cuts[first]), int(cuts[last]))]
    return [slice(int(cuts[first]), int(cuts[-1])), slice(0, int(cuts[last - n_chunks]))]


def gathered(program: Callable[[int], ChunkProgram], sizes: ArrayLike, padded: bool) -> Schedule:
    """Return the schedule of an all-gather to which rank r contributes ``sizes[r]`` bytes, or the maximum if `padded`.

    Parameters
    ----------
    program : callable
        The all-gather, by the number of ranks.
    sizes, padded
        As of `simnet.collectives.allgatherv_ring`.
    """
    given = np.asarray(sizes, dtype=np.float64)
    if given.ndim != 1 or not given.size:
        raise ValueError(f"sizes must be one number for each rank, got shape {given.shape}")
    return program(len(given)).schedule(np.full_like(given, given.max()) if padded else given)


def one_size(nbytes: float) -> float:
    """Return `nbytes` as a float; ValueError if it is an array instead of a single number."""
    if np.ndim(nbytes):
        raise ValueError(
            f"nbytes must be one number, got shape {np.shape(nbytes)}; for unequal sizes see the v variants"
        )
    return float(nbytes)
