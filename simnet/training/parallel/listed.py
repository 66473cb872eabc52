"""A model given as a list of units: their parameters, and the time of their passes.

Each unit is one tensor, which is gathered and reduced in one call. Its time, in seconds or operations, does not follow
from its entries, as it does in known models.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.checks import check_int
from simnet.cost_models.costs.layers import Layer
from simnet.cost_models.costs.models import ComputeTime, ModelProfile

# Names of blocks end at the first part that is a number: a dot or _ in a name would let it end too early.
UNIT_NAME = r"[A-Za-z][A-Za-z0-9-]{0,39}"
"""What the name of a unit may be, as a regular expression."""


def unit_name(name: str) -> str:
    """Return the name of a unit; raise ValueError if it is not allowed."""
    if not re.fullmatch(UNIT_NAME, name):
        raise ValueError(f"must be a letter and up to 39 letters, digits or - behind it, got {name!r}")
    return name


class ListedUnit(NamedTuple):
    """A unit of a model: name, entries (>= 1), work of both passes of a microbatch, and how many follow each other.

    The work is in seconds or operations, like that of the other units, >= 0.
    """

    name: str
    parameters: int
    work: float
    times: int = 1


def profile_of_units(units: Sequence[ListedUnit], seconds: float | None = None) -> ModelProfile:
    """Return the profile of a model from its units in the order of the forward pass.

    Both passes take `seconds` [s], or the work of all units. Raises ValueError if there is no unit, two have one name,
    a value is not allowed, or no unit takes any time.

    Examples
    --------
    >>> found = profile_of_units([ListedUnit("embedding", 4000, 1e-3), ListedUnit("block", 1000, 2e-3, times=2)])
    >>> [layer.name for layer in found.layers], found.parameters, found.compute
    (['embedding.0.weight', 'block.0.weight', 'block.1.weight'], 6000, 0.005)
    """
    if not units:
        raise ValueError("a model needs at least one unit")
    layers, work, known = [], [], set()
    for one in units:
        try:
            unit_name(one.name)
        except ValueError as error:
            raise ValueError(f"the name of a unit {error}") from None
        if one.name in known:
            raise ValueError(f"there are two units {one.name!r}; times says how many follow each other")
        known.add(one.name)
        check_int(one.parameters, f"parameters of unit {one.name!r}", 1)
        if not (np.isfinite(one.work) and one.work >= 0):
            raise ValueError(f"what unit {one.name!r} takes must be >= 0, got {one.work}")
        for number in range(check_int(one.times, f"times of unit {one.name!r}", 1)):
            layers.append(Layer(f"{one.name}.{number}.weight", (one.parameters,)))
            work.append(float(one.work))
    if not sum(work) > 0:
        raise ValueError("no unit takes any time")
    told = math.fsum(work) if seconds is None else seconds
    times = (ComputeTime(told, 1, "its units", measured=False),)
    return ModelProfile("a model of units", tuple(layers), times, "a list of units", work=tuple(work))


class PassShares:
    """Shares of a pass by entries, for tensors of given `sizes` and `work` in the order of the forward pass."""

    def __init__(self, sizes: Sequence[int], work: Sequence[float]) -> None:
        self._ends: Floats = np.cumsum([0.0, *sizes])
        self._done: Floats = np.cumsum([0.0, *work]) / sum(work)

    def share(self, passed: int, elements: int, *, backward: bool) -> float:
        """Return the share of a pass of `elements` entries after the entries that it has passed.

        A backward pass goes from the last entry to the first.

        Examples
        --------
        >>> work = PassShares([10, 30], [3.0, 1.0])
        >>> work.share(0, 10, backward=False), work.share(0, 30, backward=True), work.share(5, 20, backward=False)
        (0.75, 0.25, 0.5)
        """
        ends = np.array([passed, passed + elements], dtype=np.float64)
        if backward:
            ends = self._ends[-1] - ends[::-1]
        first, last = np.interp(ends, self._ends, self._done)
        return float(last - first)
