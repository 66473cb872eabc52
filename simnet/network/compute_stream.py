"""Compute streams: each rank's queue, on its device, of backward-pass slices and compression kernels.

A worker has one compute stream, first come first served, without preemption. When the slice that produces a part of
the gradient is done, its selection kernels queue, then the part may be exchanged; work before rounds queues too. All
queued kernels run before the next slice, so a kernel waits for at most one slice and delays all later ones. With a
side stream, kernels run concurrently with the backward pass, and both slow down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.schedule import Schedule


@dataclass(frozen=True)
class Computing:
    """Compression kernel times, and slowdowns, of an exchange in parts that overlaps with the backward pass.

    Parameters
    ----------
    select : array_like, shape (n_parts, P)
        Seconds of the kernels of each rank before the first message of each part, >= 0.
    side_stream : (float, float), optional
        Slowdown of slices and kernels while both run, each on its own stream; None: they share one.
    beside : array_like, shape (n_parts,) or scalar
        Slowdown of slices while messages of a part are in flight.

    Raises
    ------
    ValueError
        If seconds are negative or not finite, or a factor is not > 0.
    """

    select: ArrayLike
    side_stream: tuple[float, float] | None = None
    beside: ArrayLike = 1.0

    def __post_init__(self) -> None:
        select = np.asarray(self.select, dtype=np.float64)
        if select.ndim != 2 or not (np.isfinite(select).all() and (select >= 0).all()):
            raise ValueError("select must be seconds >= 0, of shape (n_parts, P)")
        factors = [*np.ravel(self.beside).tolist(), *(self.side_stream or ())]
        if not all(0 < factor < math.inf for factor in factors):
            raise ValueError(f"factors of side_stream and beside must be > 0, got {factors}")


@dataclass(frozen=True)
class Streams:
    """Work on all ranks' compute streams: seconds of backward-pass slices and of kernels, and their slowdowns.

    Parameters
    ----------
    slices, select : ndarray, shape (n_parts, P)
        Seconds of the slice before each part, and of its kernels.
    beside : ndarray, shape (n_parts,)
        Slowdown of slices while messages of a part are in flight.
    side_stream : (float, float) or None
        Slowdown of slices and kernels while both run on separate streams.
    software : tuple of (float or ndarray of shape (P,))
        Library software in the work before each round, which needs no stream.
    """

    slices: Floats
    select: Floats
    beside: Floats
    side_stream: tuple[float, float] | None
    software: tuple[float | Floats, ...]


@dataclass(frozen=True)
class Computed:
    """Times at which each rank's compute stream ran backward-pass slices and compression kernels during an exchange.

    Parameters
    ----------
    done : ndarray, shape (P,)
        When each rank finished all slices and kernels [s since the origin].
    slices : ndarray, shape (P,)
        Seconds that its slices took.
    begun, ended : dict of str to ndarray, shape (n_parts, P)
        Start and end of each ``slice``, ``select`` and ``unpack`` [s since the origin]; NaN for none.
    aside : bool
        Whether kernels had a separate stream.
    """

    done: Floats
    slices: Floats
    begun: dict[str, Floats]
    ended: dict[str, Floats]
    aside: bool = False

    def later(self, seconds: float) -> Computed:
        """Return a copy with all times shifted by `seconds`."""
        begun, ended = ({what: one + seconds for what, one in times.items()} for times in (self.begun, self.ended))
        return Computed(self.done + seconds, self.slices, begun, ended, self.aside)


def check_slices(start: Floats, ready: Sequence[Floats], computing: Computing) -> tuple[Floats, Floats]:
    """Return, after checks, the times at which gradient parts are ready, and kernel times before each part's exchange.

    Raises
    ------
    ValueError
        If shapes differ, or ready times decrease or precede the start.
    """
    when, select = np.stack(ready), np.asarray(computing.select, dtype=np.float64)
    if select.shape != when.shape or (np.ndim(computing.beside) and np.shape(computing.beside) != when.shape[:1]):
        raise ValueError(
            f"{when.shape[0]} schedules of {when.shape[1]} ranks need seconds of kernels of shape {when.shape}, and "
            f"a factor for each schedule or for all, got {select.shape} and {np.shape(computing.beside)}"
        )
    if (when[0] < start).any() or (when[1:] < when[:-1]).any():
        raise ValueError("no schedule may be ready before the one before it, nor the first before ranks start")
    return when, select


def queue_in_turn(start: Floats, ready: Floats, select: Floats) -> tuple[Floats, Computed]:
    """Time slices and kernels that alternate on one stream; return when each part may be sent, and all times.

    Examples
    --------
    >>> gates, computed = queue_in_turn(np.zeros(1), np.array([[2.0], [3.0]]), np.array([[0.5], [0.25]]))
    >>> gates[:, 0], computed.begun["slice"][:, 0], computed.slices
    (array([2.5 , 3.75]), array([0. , 2.5]), array([3.]))
    """
    opens = ready + (np.cumsum(select, axis=0) if len(select) > 1 else select)
    before = np.concatenate([start[np.newaxis], opens[:-1]])
    behind = opens - select
    computed = Computed(
        opens[-1],
        ready[-1] - start,
        {"slice": before, "select": behind},
        {"slice": behind, "select": opens},
    )
    return opens, computed


def runs_in_turn(parts: Sequence[Schedule], computing: Computing) -> bool:
    """Return whether slices and selection kernels alternate, without slowdown, side stream or other work."""
    between = any(np.any(one.compute) for schedule in parts[:-1] for one in schedule.rounds)
    beside = np.broadcast_to(np.asarray(computing.beside), len(parts))[:-1]
    aside = computing.side_stream is not None and np.any(np.asarray(computing.select)[:-1])
    return not (between or aside or (beside != 1.0).any())
