"""Runs of neighbouring layers, of which synthetic gradients are made one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RUN = 1 << 16
"""Entries of a run at most."""


class Run(NamedTuple):
    """Neighbouring layers, or parts of them, that are ordered or not: few enough entries to stay in cache.

    Parameters
    ----------
    entries : slice
        Where they are in the gradient.
    layers : slice
        Which layers.
    sizes : list of int
        Entries of each.
    ordered : bool
        Whether their magnitudes are given.
    """

    entries: slice
    layers: slice
    sizes: list[int]
    ordered: bool


def runs(sizes: Sequence[int], ordered: NDArray[np.bool_]) -> list[Run]:
    """Cut a gradient into runs.

    Parameters
    ----------
    sizes : sequence of int
        Entries of each layer.
    ordered : ndarray of bool
        Which layers have their magnitudes given.

    Examples
    --------
    >>> [(run.entries, run.layers) for run in runs([2, 3, 4], np.array([False, False, True]))]
    [(slice(0, 5, None), slice(0, 2, None)), (slice(5, 9, None), slice(2, 3, None))]
    """
    found: list[Run] = []
    place = 0
    for layer, (size, kind) in enumerate(zip(sizes, ordered.tolist(), strict=True)):
        left = size
        while left:
            last = found[-1] if found else None
            room = RUN - (last.entries.stop - last.entries.start) if last is not None else 0
            if last is None or not room or last.ordered != kind:
                found.append(Run(slice(place, place), slice(layer, layer), [], kind))
                continue
            taken = min(left, room)
            found[-1] = Run(
                slice(last.entries.start, place + taken),
                slice(last.layers.start, layer + 1),
                [*last.sizes, taken],
                kind,
            )
            place, left = place + taken, left - taken
    return found
