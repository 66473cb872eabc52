"""How flows share links: max-min fair, or weighted by their round trips, as congestion control of TCP does.

``max_min``
    Every flow gets the same on a link, but for those that other links hold back further [1]_. With stacks whose
    messages queue, those that meet on their receiver's link pass it in the order in which their bytes come instead.
``rtt``
    Weighted max-min: on a link that they share, rates go as ``rtt ** -exponent``. Reno and CUBIC find their rate when a
    full buffer loses packets, so its wait is part of their round trips; windows that grow by a segment in each round
    trip, and are halved at the same time, give Reno the exponent 2 [2]_. BBR keeps in flight what it had in two round
    trips without waiting [3]_, so a longer one gets more, up to what the buffer holds. That is of long transfers. Where
    a full buffer waits longer than the longest round trip (Reno and CUBIC), and for short transfers with BBR, max-min
    was nearer to what was measured: `docs/transport.md`.

References
----------
.. [1] D. Bertsekas, R. Gallager, "Data Networks", 2nd ed., section 6.5.2.
.. [2] T. V. Lakshman, U. Madhow, "The Performance of TCP/IP for Networks with High Bandwidth-Delay Products and Random
   Loss", IEEE/ACM Transactions on Networking 5(3), 1997.
.. [3] M. Hock, R. Bless, M. Zitterbart, "Experimental Evaluation of BBR Congestion Control", IEEE ICNP 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.checks import named, with_properties
from simnet.base.quantities import Seconds, bounded

SharingLaw: TypeAlias = Literal["max_min", "rtt"]
Congestion: TypeAlias = Literal["reno", "cubic", "bbr"]
Exponent: TypeAlias = Annotated[float, Ge(-4), Le(4)]

SHORTEST = 1e-6
"""What a round trip counts at least [s], lest a flow between hosts without latency weigh infinitely more."""


class Measured(NamedTuple):
    """Exponents of a congestion control, where the buffer before the shared link is known and where it is not."""

    with_buffer: float
    without: float


# What `simnet.validate.shapednet.shares.fitted` finds in the shipped measurements; tests hold it to that.
EXPONENTS: Mapping[str, Measured] = MappingProxyType(
    {"reno": Measured(1.95, 0.8), "cubic": Measured(1.3, 0.4), "bbr": Measured(-0.8, -0.6)}
)
"""Exponents measured on Linux 6.18, by congestion control; `docs/transport.md` has their intervals and errors."""


@dataclass(frozen=True)
class Sharing:
    """How flows share links.

    Parameters
    ----------
    law : {"max_min", "rtt"}
        See `simnet.network.sharing`.
    congestion : {"reno", "cubic", "bbr"}
        Congestion control of all flows.
    exponent : float, optional
        How much less a flow gets for a longer round trip, below 0 how much more; 0 is max-min with every stack. That
        measured for the congestion control when omitted.
    buffer : float, optional
        How long a full buffer before a shared link takes to empty [s]; not known when omitted, and the law is further
        off then.

    Raises
    ------
    ValueError
        If there is no such law or congestion control, a number is out of range, or something else is given with
        ``max_min``.

    Examples
    --------
    >>> Sharing(congestion="reno", exponent=2, buffer=0.02).weights([0.01, 0.04]) / 0.03**-2
    array([1.  , 0.25])
    """

    law: SharingLaw = "rtt"
    congestion: Congestion = "cubic"
    exponent: Exponent | None = None
    buffer: Seconds | None = None

    def __post_init__(self) -> None:
        named(self.law, "law", get_args(SharingLaw))
        named(self.congestion, "congestion", get_args(Congestion))
        if self.exponent is not None:
            bounded(self.exponent, Exponent, "exponent")
        if self.buffer is not None:
            bounded(self.buffer, Seconds, "buffer")
        if self.law == "max_min":
            for name in ("congestion", "exponent", "buffer"):
                if getattr(self, name) != getattr(Sharing, name):
                    raise ValueError(f"{name} counts with the law rtt only")

    @property
    def power(self) -> float:
        """Return the exponent that holds; 0 with max_min."""
        if self.law == "max_min":
            return 0.0
        measured = EXPONENTS[self.congestion]
        if self.exponent is None:
            return measured.without if self.buffer is None else measured.with_buffer
        return self.exponent

    @property
    def wait(self) -> float:
        """Return what is added to every round trip [s]."""
        return 0.0 if self.buffer is None or self.congestion == "bbr" else self.buffer

    @property
    def most(self) -> float:
        """Return what counts of a round trip at most [s]."""
        return math.inf if self.buffer is None or self.congestion != "bbr" else self.buffer

    def weights(self, round_trips: ArrayLike) -> Floats:
        """Return the weights of flows by their round trips without waiting [s], of the same shape."""
        given = np.asarray(round_trips, dtype=np.float64)
        weights: Floats = np.maximum(np.minimum(given, self.most) + self.wait, SHORTEST) ** -self.power
        return weights


MAX_MIN = Sharing("max_min")
"""The same for every flow."""


def sharing_of(given: str | Sharing | Mapping[str, object]) -> Sharing:
    """Return how flows share links, given the name of a law, or properties, or itself.

    Raises
    ------
    ValueError
        If there is no such law or property.

    Examples
    --------
    >>> sharing_of("rtt").congestion, sharing_of({"exponent": 2}).law
    ('cubic', 'rtt')
    """
    if isinstance(given, Sharing):
        return given
    if isinstance(given, Mapping):
        return with_properties(Sharing, given, "sharing")
    return Sharing(given)  # type: ignore[arg-type]
