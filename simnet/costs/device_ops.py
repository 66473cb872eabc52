"""What workers run on their devices, as schemes report it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class DeviceOp(NamedTuple):
    """An operation of a device: launches of one kernel.

    Parameters
    ----------
    method : str
        What it does; a method of the device profile.
    entries : float or ndarray, shape (P,)
        Entries one launch goes through: the same at every worker, or one number each. A worker with no entries does
        not launch it.
    launches : int
        Number of equal launches.
    before : int
        Number of the round of the exchange's schedule that a worker enters after it: 0 for what it runs before the
        first message, the number of rounds for what it runs after the last one.
    segments : int
        Number of segments of so many entries that one launch goes through.
    instead : tuple of DeviceOp
        Passes that stand for it where a device profile has no such method, in order; they run before the same round.

    Examples
    --------
    >>> DeviceOp("scan", 1000, launches=25)
    DeviceOp(method='scan', entries=1000, launches=25, before=0, segments=1, instead=())
    """

    method: str
    entries: float | NDArray[np.floating[Any]] | NDArray[np.integer[Any]]
    launches: int = 1
    before: int = 0
    segments: int = 1
    instead: tuple[DeviceOp, ...] = ()

    @property
    def passes(self) -> tuple[DeviceOp, ...]:
        """What stands for it, or itself.

        Examples
        --------
        >>> encode = DeviceOp("encode_8bit", 9, instead=(DeviceOp("norm", 9), DeviceOp("cast", 9)))
        >>> [one.method for one in encode.passes]
        ['norm', 'cast']
        """
        return tuple(one._replace(before=self.before) for one in self.instead) or (self,)

    def scaled(self, factor: float) -> DeviceOp:
        """Return the operation over `factor` times as many entries.

        Examples
        --------
        >>> DeviceOp("topk", 100).scaled(4).entries
        400
        """
        return self._replace(entries=self.entries * factor, instead=tuple(one.scaled(factor) for one in self.instead))


Kernel = DeviceOp
"""The name of `DeviceOp` in schemes that others wrote."""
