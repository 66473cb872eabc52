"""Runs of neighbouring layers, which synthetic gradients process one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RUN = 1 << 16
"""Entries of a run at most."""


class LayerRun(NamedTuple):
    """Neighbouring layers, or parts of them, that are all ordered or all not, small enough for the cache."""

    # Entries of the gradient, and layers.
    entries: slice
    layers: slice
    # Entries of each layer.
    sizes: list[int]
    # If true, their magnitudes are given.
    ordered: bool


def cut_into_runs(sizes: Sequence[int], ordered: NDArray[np.bool_]) -> list[LayerRun]:
    """Cut a gradient into runs, given the entries of each layer and which layers have their magnitudes given."""
    found: list[LayerRun] = []
    place = 0
    for layer, (size, kind) in enumerate(zip(sizes, ordered.tolist(), strict=True)):
        left = size
        while left:
            last = found[-1] if found else None
            room = RUN - (last.entries.stop - last.entries.start) if last is not None else 0
            if last is None or not room or last.ordered != kind:
                found.append(LayerRun(slice(place, place), slice(layer, layer), [], kind))
                continue
            taken = min(left, room)
            found[-1] = LayerRun(
                slice(last.entries.start, place + taken),
                slice(last.layers.start, layer + 1),
                [*last.sizes, taken],
                kind,
            )
            place, left = place + taken, left - taken
    return found
