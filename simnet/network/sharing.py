"""How flows share links: max-min fair, or weighted by round-trip time as under TCP congestion control.

``max_min``
    All flows on a link get the same, except those limited elsewhere [1]_. With stacks whose messages queue, messages
    that meet on their receiver's link pass it in order of arrival instead.
``rtt``
    Weighted max-min: rates on a shared link go as ``rtt ** -exponent``. Reno and CUBIC respond to loss at a full
    buffer, whose wait is part of their round trips; additive increase with synchronised halving gives Reno the exponent
    2 [2]_. BBR keeps two round trips without queueing in flight [3]_, so longer ones get more, up to the buffer. This
    holds for long transfers. Where a full buffer delays packets by more than the longest round trip (Reno and CUBIC),
    and for short transfers with BBR, max-min is closer to measurements: `docs/topologies.md`.

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

from simnet.base.arrays import Floats, Ranks
from simnet.base.errors import check_choice, make_dataclass
from simnet.base.quantities import Seconds, check_bounds

SharingLaw: TypeAlias = Literal["max_min", "rtt"]
Congestion: TypeAlias = Literal["reno", "cubic", "bbr"]
Exponent: TypeAlias = Annotated[float, Ge(-4), Le(4)]

SHORTEST = 1e-6
"""Minimum round trip for weights [s], so that a flow without latency has a finite weight."""


class Measured(NamedTuple):
    """Measured exponents x of bandwidth shares RTT ** -x: one if the link's buffer size is given, one if it is not."""

    with_buffer: float
    without: float


# What `sharing_links.shares.fitted` finds in the shipped measurements; tests hold it to that.
EXPONENTS: Mapping[str, Measured] = MappingProxyType(
    {"reno": Measured(1.95, 0.8), "cubic": Measured(1.3, 0.4), "bbr": Measured(-0.8, -0.6)}
)
"""Exponents measured on Linux 6.18; `docs/topologies.md` has their intervals and errors."""


@dataclass(frozen=True)
class Sharing:
    """The law by which flows share the bandwidth of links.

    Parameters
    ----------
    law : {"max_min", "rtt"}
        See `simnet.network.sharing`.
    congestion : {"reno", "cubic", "bbr"}
        Congestion control of all flows.
    exponent : float, optional
        How much less a flow gets for a longer round trip (below 0: more); 0 is max-min. Default: as measured for the
        congestion control.
    buffer : float, optional
        Drain time of a full buffer before a shared link [s]; the law is less accurate if it is unknown.

    Raises
    ------
    ValueError
        If a name is unknown, a number out of range, or another option is given with ``max_min``.

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
        check_choice(self.law, "law", get_args(SharingLaw))
        check_choice(self.congestion, "congestion", get_args(Congestion))
        if self.exponent is not None:
            check_bounds(self.exponent, Exponent, "exponent")
        if self.buffer is not None:
            check_bounds(self.buffer, Seconds, "buffer")
        if self.law == "max_min":
            for name in ("congestion", "exponent", "buffer"):
                if getattr(self, name) != getattr(Sharing, name):
                    raise ValueError(f"{name} counts with the law rtt only")

    @property
    def power(self) -> float:
        """Exponent of the round-trip time in the weights of flows; 0 for max-min fairness."""
        if self.law == "max_min":
            return 0.0
        measured = EXPONENTS[self.congestion]
        if self.exponent is None:
            return measured.without if self.buffer is None else measured.with_buffer
        return self.exponent

    @property
    def wait(self) -> float:
        """Queueing delay at a full buffer, added to every flow's round-trip time before its weight is set [s]."""
        return 0.0 if self.buffer is None or self.congestion == "bbr" else self.buffer

    @property
    def most(self) -> float:
        """Cap on round-trip times in flows' weights [s]: a known buffer's drain time for BBR, otherwise infinity."""
        return math.inf if self.buffer is None or self.congestion != "bbr" else self.buffer

    def weights(self, round_trips: ArrayLike) -> Floats:
        """Return each flow's weight in sharing a link, given the flows' round-trip times without queueing [s]."""
        given = np.asarray(round_trips, dtype=np.float64)
        weights: Floats = np.maximum(np.minimum(given, self.most) + self.wait, SHORTEST) ** -self.power
        return weights


MAX_MIN = Sharing("max_min")
"""Equal shares."""


def limiting_links(routes: Ranks, capacity: Floats) -> Ranks:
    """Return routes without links that cannot limit a flow, if all flows use one of these routes.

    A link cannot if the link before or behind it is the same on all routes through it, and has at most its capacity.

    Parameters
    ----------
    routes : ndarray, shape (R, H), int64
        Links of each route, in order, padded with -1.
    capacity : ndarray, shape (L,)
        Capacity of each link, a constant [byte/s].

    Examples
    --------
    >>> limiting_links(np.array([[1, 0, 2], [3, 0, 4]]), np.array([3.0, 4.0, 1.0, 4.0, 5.0]))
    array([[ 0,  2],
           [ 0, -1]])
    """
    while True:
        users = np.bincount(routes[routes >= 0], minlength=capacity.size)
        neighbours, shared = np.unique(
            (routes[:, :-1] * capacity.size + routes[:, 1:])[routes[:, 1:] >= 0], return_counts=True
        )
        link, beyond = np.divmod(neighbours, capacity.size)
        before = (shared == users[link]) & (capacity[link] >= capacity[beyond])
        # Of two links with the same routes and capacity, the first is left out.
        behind = (shared == users[beyond]) & (capacity[beyond] >= capacity[link]) & ~before
        left_out = np.append(np.zeros(capacity.size, dtype=np.bool_), True)
        left_out[link[before]] = left_out[beyond[behind]] = True
        if not left_out[:-1].any():
            return routes
        gone = left_out[routes]
        order = np.argsort(gone, axis=1, kind="stable")[:, : int((~gone).sum(axis=1).max())]
        routes = np.where(np.take_along_axis(gone, order, 1), -1, np.take_along_axis(routes, order, 1))


def sharing_of(given: str | Sharing | Mapping[str, object]) -> Sharing:
    """Return how flows share a link, given the name of a law such as ``rtt``, a mapping of properties, or a `Sharing`.

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
        return make_dataclass(Sharing, given, "sharing")
    return Sharing(given)  # type: ignore[arg-type]
