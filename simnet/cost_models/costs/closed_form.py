"""Closed-form times of collectives: the number of rounds times the latency, plus bytes over bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from inspect import Parameter, signature
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats

Real: TypeAlias = ArrayLike
"""A real number, or an array of them."""

Number: TypeAlias = Floats | float
"""A checked argument of a formula."""

Given: TypeAlias = Number | None
"""An argument that stands for a default of the formula if it is None."""

# Arguments of which there is one at least.
_COUNTS = ("N", "P", "aggregators", "bucket", "d", "group_size", "levels", "ranks_per_node", "size", "slots")


@dataclass(frozen=True)
class Traffic:
    """The rounds of a collective and the bytes on its critical path; its time is rounds alpha + nbytes beta."""

    rounds: Floats | float
    nbytes: Floats | float

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.rounds + other.rounds, self.nbytes + other.nbytes)


class ClosedForm:
    """Computes a time from alpha, beta, and the rounds and bytes that the function `traffic` returns for its arguments.

    It returns seconds; `simnet.cost_models.costs` has the symbols. Arguments are checked, and may be arrays.

    Examples
    --------
    >>> @ClosedForm
    ... def ring_allgather(M, N):
    ...     return Traffic(N - 1, (N - 1) * M)
    >>> float(ring_allgather(1e-3, 1e-9, 1e6, 4)), ring_allgather.traffic(1e6, 4)
    (0.006, Traffic(rounds=3, nbytes=3000000.0))
    """

    __name__: str

    def __init__(self, traffic: Callable[..., Traffic]) -> None:
        self.traffic, own = traffic, signature(traffic)
        update_wrapper(self, traffic)
        link = (Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("alpha", "beta"))
        self.__signature__ = own.replace(parameters=[*link, *own.parameters.values()])

    def __call__(self, *given: Any, **named: Any) -> Floats:
        """Return the time [s]; raise ValueError for an argument outside its range."""
        options = self.__signature__.bind(*given, **named).arguments
        checked = {name: _in_range(name, one) for name, one in options.items() if one is not None}
        alpha, beta = checked.pop("alpha"), checked.pop("beta")
        traffic = self.traffic(**checked)
        found: Floats = alpha * traffic.rounds + beta * traffic.nbytes
        return found

    def __reduce__(self) -> str:
        return self.__name__


def check_arguments(**arguments: ArrayLike) -> list[Floats]:
    """Return the arguments as float64 arrays, in order; raise ValueError for an argument outside its range."""
    return [_in_range(name, given) for name, given in arguments.items()]


def _in_range(name: str, given: ArrayLike) -> Floats:
    values = np.asarray(given, dtype=np.float64)
    # Written so that NaN, which compares false with everything, is refused too.
    if name == "c":
        allowed, wanted = (values > 0) & (values <= 1), "in (0, 1]"
    else:
        low = int(name in _COUNTS)
        allowed, wanted = (values >= low) & (values < np.inf), f"finite and >= {low}"
    if not allowed.all():
        raise ValueError(f"{name} must be {wanted}, got {values[~allowed].flat[0]:g}")
    # Arrays without axes become numpy floats, on which formulas give numpy floats again.
    return values[()]
