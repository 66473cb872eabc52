"""Ranges of the arguments of the closed forms."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats

Real: TypeAlias = ArrayLike
"""A real number, or an array of them."""

# Arguments of which there is one at least.
_COUNTS = ("N", "P", "aggregators", "bucket", "d", "group_size", "levels", "ranks_per_node", "size", "slots")


def check_arguments(*, fewest: int = 1, **arguments: ArrayLike) -> list[Floats]:
    """Return the arguments as float64 in their order; raise ValueError for one outside the range of its name.

    Examples
    --------
    >>> check_arguments(M=[1, 2], c=0.5, N=8)
    [array([1., 2.]), np.float64(0.5), np.float64(8.0)]
    """
    return [_in_range(name, given, fewest if name == "N" else 1) for name, given in arguments.items()]


def selected_entries(name: str, given: ArrayLike | None, default: Floats) -> Floats:
    """Return the entries given as the argument `name` (in errors), or the `default` if they are None."""
    return default if given is None else _in_range(name, given, 1)


def _in_range(name: str, given: ArrayLike, fewest: int) -> Floats:
    values = np.asarray(given, dtype=np.float64)
    # Written so that NaN, which compares false with everything, is refused too.
    if name == "c":
        allowed, wanted = (values > 0) & (values <= 1), "in (0, 1]"
    else:
        low = fewest if name in _COUNTS else 0
        allowed, wanted = (values >= low) & (values < np.inf), f"finite and >= {low}"
    if not allowed.all():
        raise ValueError(f"{name} must be {wanted}, got {values[~allowed].flat[0]:g}")
    # Arrays without axes become numpy floats, on which formulas give numpy floats again.
    return values[()]
