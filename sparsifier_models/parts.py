"""Exchanges of several parts of a gradient side by side, each between ranks of its own, as one of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.costs.devices import DeviceOp
from simnet.schedule import Round, Schedule


def beside(schedules: Sequence[Schedule], ranks: Sequence[NDArray[np.int64]], n_ranks: int) -> Schedule:
    """Return schedules between different ranks as one, which they go through side by side.

    It is a call of a collective where one is: of several at once, nothing that looks at calls knows the ranks.

    Parameters
    ----------
    schedules : sequence of Schedule
        One for each set of ranks.
    ranks : sequence of ndarray of int
        Which rank of all each of its ranks is.
    n_ranks : int
        Ranks of all.
    """
    rounds: list[Round] = []
    known: dict[tuple[int, ...], Round] = {}
    for number in range(max(len(one.rounds) for one in schedules)):
        left = [(one, places) for one, places in zip(schedules, ranks, strict=True) if number < len(one.rounds)]
        there = [(one.rounds[number], places) for one, places in left]
        key = tuple(id(one) for one, _ in there)
        # Where some have no round left, the same rounds could be those of others.
        if len(there) < len(schedules) or key not in known:
            known[key] = _round(there, n_ranks)
        rounds.append(known[key])
    return Schedule(n_ranks, rounds, schedules[0].calls if len(schedules) == 1 else ())


def _round(there: Sequence[tuple[Round, NDArray[np.int64]]], n_ranks: int) -> Round:
    src = np.concatenate([places[one.src] for one, places in there])
    dst = np.concatenate([places[one.dst] for one, places in there])
    work: float | Floats = 0.0
    if any(np.any(one.compute) for one, _ in there):
        work = np.zeros(n_ranks)
        for one, places in there:
            work[places] = one.compute
    return Round(src, dst, np.concatenate([one.nbytes for one, _ in there]), work, there[0][0].phase)


def kernels_beside(
    parts: Sequence[tuple[tuple[DeviceOp, ...], NDArray[np.int64]]], workers: int, behind: int
) -> list[DeviceOp]:
    """Return the kernels of all parts, so many rounds later; those that all parts have alike are one.

    Parameters
    ----------
    parts : sequence of (tuple of DeviceOp, ndarray of int)
        The kernels of each part, and its ranks.
    workers : int
        Ranks of all.
    behind : int
        Rounds before those of the parts.
    """
    kinds = [[(one.method, one.launches, one.before, one.segments) for one in kernels] for kernels, _ in parts]
    alike = all(one == kinds[0] for one in kinds)
    found = []
    for number, kernel in enumerate(parts[0][0]) if alike else ():
        found.append((kernel, [(kernels[number], owners) for kernels, owners in parts]))
    for kernels, owners in () if alike else parts:
        found += [(kernel, [(kernel, owners)]) for kernel in kernels]
    merged = []
    for kernel, own in found:
        entries = np.zeros(workers)
        for one, owners in own:
            entries[owners] = one.entries
        merged.append(kernel._replace(entries=entries, before=kernel.before + behind))
    return merged
