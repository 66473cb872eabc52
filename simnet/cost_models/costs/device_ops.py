"""Kernel launches on the workers' devices, which schemes report for each exchange."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class DeviceOp(NamedTuple):
    """Launches of one kernel on a device: the method of its cost, entries, and segments per launch.

    Entries are the same at every worker or one number each, shape (P,); a worker without any launches nothing. `before`
    is the round of the schedule that a worker enters afterwards, 0 for work before the first message. Passes `instead`
    replace the kernel where a device profile lacks it. Of a hook's stage `priced` are the expected, least and most
    seconds, as `simnet.cost_models.costs.hooks` counts them.
    """

    method: str
    entries: float | NDArray[np.floating[Any]] | NDArray[np.integer[Any]]
    launches: int = 1
    before: int = 0
    segments: int = 1
    instead: tuple[DeviceOp, ...] = ()
    priced: tuple[float, float, float] | None = None

    @property
    def passes(self) -> tuple[DeviceOp, ...]:
        """The kernels in `instead`, which replace this one; the kernel itself if there are none."""
        return tuple(one._replace(before=self.before) for one in self.instead) or (self,)

    def scaled(self, factor: float) -> DeviceOp:
        """Return the operation over `factor` times as many entries."""
        return self._replace(entries=self.entries * factor, instead=tuple(one.scaled(factor) for one in self.instead))


Kernel = DeviceOp
"""The name of `DeviceOp` in schemes that others wrote."""
