"""What ranks compute beside an exchange of several parts: the backward pass in slices, and kernels that queue behind.

A worker has one compute stream, which does one thing after another and interrupts none. When the slice of the backward
pass that makes a part's gradient is done, the kernels that select from it queue; then the part may be exchanged. Work
before rounds of the exchange queues there, too. Kernels go in the order in which they came, and all that have come
before the next slice. So a kernel waits for no more than one slice, and each kernel delays the slices to come.

With a side stream, kernels run beside the backward pass in place of that, and both are slower meanwhile.
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
    """What ranks compute beside the backward pass whose slices make the parts of an exchange ready.

    Parameters
    ----------
    select : array_like, shape (n_parts, P)
        Seconds of the kernels of each rank that come before the first message of each part, >= 0.
    side_stream : (float, float), optional
        By which factors slices and kernels are slower while both run, each on a stream of its own; without it they
        share one.
    beside : array_like, shape (n_parts,) or scalar
        By which factor slices are slower while messages of a part are under way, from when a rank may begin with it
        until it is through with the last of them.

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
    """What ranks compute on streams, with all that decides when.

    Parameters
    ----------
    slices, select : ndarray, shape (n_parts, P)
        Seconds of the slice before each part, and of the kernels behind it.
    beside : ndarray, shape (n_parts,)
        Factor on slices while messages of a part are under way.
    side_stream : (float, float) or None
        Factors on slices and kernels while both run, each on a stream of its own.
    software : tuple of (float or ndarray of shape (P,))
        Of what ranks compute before each round, the software of the library that communicates, which needs no stream.
    """

    slices: Floats
    select: Floats
    beside: Floats
    side_stream: tuple[float, float] | None
    software: tuple[float | Floats, ...]


@dataclass(frozen=True)
class Computed:
    """What ranks have computed beside an exchange.

    Parameters
    ----------
    done : ndarray, shape (P,)
        When each rank was through with all slices and the kernels behind them [s since the origin].
    slices : ndarray, shape (P,)
        Seconds that its slices took.
    begun, ended : dict of str to ndarray, shape (n_parts, P)
        When each ``slice`` and the ``select`` behind it began, and ended [s since the origin]; also ``unpack``, what a
        rank works after the last message of a part, where it did not wait for that; NaN where there was nothing.
    aside : bool
        Whether kernels had a stream of their own.
    """

    done: Floats
    slices: Floats
    begun: dict[str, Floats]
    ended: dict[str, Floats]
    aside: bool = False

    def later(self, seconds: float) -> Computed:
        """Return the same with times that count from an origin so many seconds before [s]."""
        begun, ended = ({what: one + seconds for what, one in times.items()} for times in (self.begun, self.ended))
        return Computed(self.done + seconds, self.slices, begun, ended, self.aside)


def check_slices(start: Floats, ready: Sequence[Floats], computing: Computing) -> tuple[Floats, Floats]:
    """Return when slices alone would be done, and seconds of the kernels behind each, shape (n_parts, P) both.

    Parameters
    ----------
    start : ndarray, shape (P,)
        When each rank begins to compute [s].
    ready : sequence of ndarray of shape (P,)
        When slices alone would be done [s].
    computing : Computing
        The kernels.

    Raises
    ------
    ValueError
        If shapes differ, or slices would end before they begin.
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
    """Return when parts may be exchanged if nothing but slices and the kernels behind them runs; shape (n_parts, P).

    Parameters
    ----------
    start : ndarray, shape (P,)
        When each rank begins to compute [s].
    ready : ndarray, shape (n_parts, P)
        When slices alone would be done [s].
    select : ndarray, shape (n_parts, P)
        Seconds of the kernels behind each.

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
    """Return whether nothing can come between slices and the kernels behind them, or slow them down.

    Parameters
    ----------
    parts : sequence of Schedule
        What is exchanged; work before rounds of the last comes after all slices.
    computing : Computing
        What is computed beside it.
    """
    if len(parts) == 1:
        return True
    between = any(np.any(one.compute) for schedule in parts[:-1] for one in schedule.rounds)
    check_slices = np.broadcast_to(np.asarray(computing.beside), len(parts))[:-1]
    aside = computing.side_stream is not None and np.any(np.asarray(computing.select)[:-1])
    return not (between or aside or (check_slices != 1.0).any())
