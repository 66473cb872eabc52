"""The residuals of a worker, by bucket.

DDP rebuilds its buckets after the first iteration; residuals then follow their parameters.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class Residuals:
    """Residuals of one worker: a tensor per bucket, with views by parameter."""

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[tuple[int, ...], Tensor]] = {}
        # By the identity of the parameters, which DDP keeps alive.
        self._pieces: dict[int, Tensor] = {}

    def of(self, parameter: Any) -> Tensor | None:
        """Return the residual of a parameter, one-dimensional; None if it has none."""
        return self._pieces.get(id(parameter))

    def kept(self, bucket: Any) -> Tensor | None:
        """Return the residual of a bucket, shape (n,), as a view to modify in place; None if it has none."""
        parameters = bucket.parameters()
        key, held = tuple(map(id, parameters)), self._buckets.get(bucket.index())
        if held is not None and held[0] == key:
            return held[1]
        if not any(one in self._pieces for one in key):
            return None
        fresh = bucket.buffer().new_zeros(bucket.buffer().numel())
        ends = itertools.accumulate(one.numel() for one in parameters)
        for one, parameter, end in zip(key, parameters, ends, strict=True):
            if one in self._pieces:
                fresh[end - parameter.numel() : end] = self._pieces[one]
        self.keep(bucket, fresh)
        return fresh

    def keep(self, bucket: Any, values: Tensor) -> None:
        """Store a tensor, shape (n,), as the residual of a bucket."""
        parameters = bucket.parameters()
        sizes = [one.numel() for one in parameters]
        self._buckets[bucket.index()] = tuple(map(id, parameters)), values
        self._pieces.update(zip(map(id, parameters), values.split(sizes), strict=True))

    def drop(self, bucket: Any) -> None:
        """Delete the residual of a bucket."""
        self._buckets.pop(bucket.index(), None)
        for one in bucket.parameters():
            self._pieces.pop(id(one), None)
