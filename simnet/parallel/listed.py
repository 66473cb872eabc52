"""A model that is told as a list of units: their parameters, and what their passes take.

Each unit is one tensor, which is gathered and reduced in one call and split between ranks with hardly any padding. What
its passes take, in seconds or operations, is told apart from its entries, with which it goes in known models.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.checks import whole
from simnet.costs.layers import Layer
from simnet.costs.models import ComputeTime, ModelProfile

# Names of blocks end at the first part that is a number: a dot or _ in a name would let it end too early.
UNIT_NAME = r"[A-Za-z][A-Za-z0-9-]{0,39}"
"""What the name of a unit may be, as a regular expression."""


def unit_name(name: str) -> str:
    """Return the name of a unit.

    Raises
    ------
    ValueError
        If it is none.
    """
    if not re.fullmatch(UNIT_NAME, name):
        raise ValueError(f"must be a letter and up to 39 letters, digits or - behind it, got {name!r}")
    return name


class ListedUnit(NamedTuple):
    """A unit of a model, or several that are alike and follow each other.

    Parameters
    ----------
    name : str
        Its name, of letters, digits and ``-``.
    parameters : int
        Its entries, >= 1.
    work : float
        What both of its passes of a microbatch take, in seconds or operations as those of the other units, >= 0.
    times : int
        How many follow each other, >= 1.
    """

    name: str
    parameters: int
    work: float
    times: int = 1


def profile_of_units(units: Sequence[ListedUnit], seconds: float | None = None) -> ModelProfile:
    """Return the profile of a model that is told as a list of units, in the order of the forward pass.

    Parameters
    ----------
    units : sequence of ListedUnit
        The units.
    seconds : float, optional
        What both passes through the whole model take [s]; the work of all units when omitted.

    Raises
    ------
    ValueError
        If there is no unit, two have one name, a number or a name is not allowed, or no unit takes any time.

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
        whole(one.parameters, f"parameters of unit {one.name!r}", 1)
        if not (np.isfinite(one.work) and one.work >= 0):
            raise ValueError(f"what unit {one.name!r} takes must be >= 0, got {one.work}")
        for number in range(whole(one.times, f"times of unit {one.name!r}", 1)):
            layers.append(Layer(f"{one.name}.{number}.weight", (one.parameters,)))
            work.append(float(one.work))
    if not sum(work) > 0:
        raise ValueError("no unit takes any time")
    told = math.fsum(work) if seconds is None else seconds
    times = (ComputeTime(told, 1, "its units", measured=False),)
    return ModelProfile("a model of units", tuple(layers), times, "a list of units", work=tuple(work))


class PassShares:
    """What parts of a pass take of it, by the entries that they go through.

    Parameters
    ----------
    sizes : sequence of int
        Entries of each tensor, in the order of the forward pass.
    work : sequence of float
        What the passes of each take, in proportion, >= 0.
    """

    def __init__(self, sizes: Sequence[int], work: Sequence[float]) -> None:
        self._ends: Floats = np.cumsum([0.0, *sizes])
        self._done: Floats = np.cumsum([0.0, *work]) / sum(work)

    def share(self, passed: int, elements: int, *, backward: bool) -> float:
        """Return the share of a pass of so many entries behind those that it has passed.

        Parameters
        ----------
        passed, elements : int
            Entries that the pass has gone through before, and goes through.
        backward : bool
            Whether it goes from the last entry to the first.

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
