"""Kernels of several parts of a gradient that are exchanged side by side, each between ranks of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simnet.costs.devices import DeviceOp


def kernels_beside(
    parts: Sequence[tuple[tuple[DeviceOp, ...], NDArray[np.int64]]], workers: int, behind: int
) -> list[DeviceOp]:
    """Return the kernels of all parts, `behind` rounds later; equal kernels of all parts become one."""
    kinds = [[(one.method, one.launches, one.before, one.segments) for one in kernels] for kernels, _ in parts]
    alike = all(one == kinds[0] for one in kinds)
    found = []
    for number, kernel in enumerate(parts[0][0]) if alike else ():
        found.append((kernel, [(kernels[number], owners) for kernels, owners in parts]))
    for kernels, owners in () if alike else parts:
        found += [(kernel, [(kernel, owners)]) for kernel in kernels]
    merged = []
    for kernel, own in found:
        merged.append(_merged(kernel, own, workers)._replace(before=kernel.before + behind))
    return merged


def _merged(kernel: DeviceOp, own: Sequence[tuple[DeviceOp, NDArray[np.int64]]], workers: int) -> DeviceOp:
    """Return a kernel that all parts have alike with the entries of each."""
    entries = np.zeros(workers)
    for one, owners in own:
        entries[owners] = one.entries
    instead = [
        _merged(one, [(other.instead[number], owners) for other, owners in own], workers)
        for number, one in enumerate(kernel.instead)
    ]
    return kernel._replace(entries=entries, instead=tuple(instead))
