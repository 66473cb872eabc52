"""What transport protocols make of trouble: of packets that get lost, and of many that send to one host at once.

Max-min shares say what links can carry. A transport that takes a lost packet for a sign of congestion carries less, and
a switch whose buffer many senders fill at once (incast) leaves the link behind it idle while they wait for time-outs.
Both are put here as plain numbers that a network applies: a limit to the rate of a transfer, and a factor on the
capacity of a link. Without packet loss and with one sender at a time they change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from annotated_types import Ge, MinLen
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.checks import is_number, positive, whole
from simnet.base.errors import nearest
from simnet.base.quantities import Count, Duration, PositiveShare, PositiveSize, Seconds, Size, Written, bounded
from simnet.topologies.graphs import Link

Law: TypeAlias = Literal["mathis", "pftk", "retransmit", "go_back_n"]

Links: TypeAlias = Annotated[Sequence[Link], Written(str)]
"""Links; in a scenario what `simnet.topologies.select_links` takes."""

MOST_SENDERS = 100_000
"""The longest table of factors."""


class Limits(NamedTuple):
    """What packet loss does to transfers; arrays of one shape, or numbers.

    A transfer carries ``nbytes / share`` bytes, at most at ``segment / (a * rtt + b)`` bytes per second, where `rtt` is
    the round-trip time [s]; without limit where ``a * rtt + b`` is 0.

    Parameters
    ----------
    a : ndarray or float
        Without dimension.
    b : ndarray or float
        Seconds.
    share : ndarray or float
        Part of the bytes on the wire that are not sent in vain, in (0, 1].
    """

    a: Any
    b: Any
    share: Any

    def rate(self, rtt: ArrayLike, segment: float) -> Floats:
        """Return the bytes per second at a round-trip time [s]; arrays broadcast.

        Examples
        --------
        >>> Limits(0.01, 0.0, 1.0).rate([0.1, 0.0], segment=1500.0)
        array([1500000.,      inf])
        """
        seconds = np.asarray(self.a * np.asarray(rtt, dtype=np.float64) + self.b)
        with np.errstate(over="ignore"):
            rates: Floats = np.divide(segment, seconds, out=np.full(seconds.shape, np.inf), where=seconds > 0)
        return rates


@dataclass(frozen=True)
class Transport:
    """A transport protocol, as far as it answers packet loss.

    ``mathis``
        The square-root law of TCP's congestion avoidance, without time-outs: a = sqrt(2 b p / 3), b packets being
        acknowledged at a time [1]_. An upper bound; good for p well below 1 %.
    ``pftk``
        TCP Reno with time-outs T0: besides, seconds = T0 min(1, 3 sqrt(3 b p / 8)) p (1 + 32 p**2) [2]_. It is the
        equation by which TFRC keeps its rate (RFC 5348, with the minimum left out), and which RFC 3819, section 8.5,
        recommends for estimates.
    ``retransmit``
        Nothing takes loss for congestion, and only what is lost is sent again (selective repeat, as in RDMA network
        cards of this kind [3]_): 1 / (1 - p) times the bytes, without limit.
    ``go_back_n``
        Likewise, but a loss makes the sender repeat the whole round trip of W packets: the useful share is
        (1 - p) / (1 - p + W p) [4]_.

    The laws of TCP hold for long transfers with losses that are independent of the rate. They know neither slow start
    nor the window of the receiver, and newer congestion control (CUBIC, BBR) does better on long fat networks.

    Parameters
    ----------
    law : {"pftk", "mathis", "retransmit", "go_back_n"}
        See above.
    segment : float
        Payload of a packet [byte]. 1,460 is what TCP over IPv4 has in an Ethernet frame of 1,500 bytes.
    acked : int
        b, packets per acknowledgement: 2 for delayed acknowledgements (RFC 5681), 1 without.
    timeout : float
        Retransmission time-out T0 [s] of ``pftk``. Linux waits no less than 200 ms; RFC 6298 asks for 1 s.
    window : int, optional
        W of ``go_back_n``: packets in a round trip, bandwidth * rtt / segment.
    connections : int
        TCP connections that a transfer is spread over, each with a limit of its own.

    Raises
    ------
    ValueError
        If there is no such law, or a parameter is out of range.

    References
    ----------
    .. [1] M. Mathis, J. Semke, J. Mahdavi, T. Ott, "The Macroscopic Behavior of the TCP Congestion Avoidance
       Algorithm", ACM SIGCOMM Computer Communication Review 27(3), 1997.
    .. [2] J. Padhye, V. Firoiu, D. Towsley, J. Kurose, "Modeling TCP Throughput: A Simple Model and its Empirical
       Validation", ACM SIGCOMM 1998.
    .. [3] R. Mittal et al., "Revisiting Network Support for RDMA", ACM SIGCOMM 2018.
    .. [4] C. H. C. Leung, Y. Kikumoto, S. A. Sorensen, "The throughput efficiency of the go-back-N ARQ scheme under
       Markov and related error structures", IEEE Transactions on Communications 36(2), 1988: the formula p / (p +
       m (1 - p)) for independent errors, p there being the probability of success.

    Examples
    --------
    Without time-outs, 10 Gbit/s over 100 ms allow one loss in five billion packets (RFC 3649):

    >>> tcp = Transport("mathis", segment=1500, acked=1)
    >>> float(tcp.goodput(2e-10, rtt=0.1)) * 8e-9
    10.39...
    """

    law: Law = "pftk"
    segment: PositiveSize = 1460.0
    acked: Count = 2
    timeout: Duration = 0.2
    window: Count | None = None
    connections: Count = 1

    def __post_init__(self) -> None:
        if self.law not in get_args(Law):
            raise ValueError(f"there is no law of loss {self.law!r}: {nearest(str(self.law), get_args(Law))}")
        positive(self.segment, "segment")
        whole(self.acked, "acked", 1)
        positive(self.timeout, "timeout")
        whole(self.connections, "connections", 1)
        if (self.window is None) == (self.law == "go_back_n"):
            raise ValueError(f"window belongs to go_back_n and to nothing else, got {self.window!r} with {self.law}")
        if self.window is not None:
            whole(self.window, "window", 1)

    def limits(self, probability: ArrayLike) -> Limits:
        """Return what loss with this probability per packet does; arrays of the shape of `probability`.

        Raises
        ------
        ValueError
            If a probability is not in 0 <= p < 1.
        """
        p = np.asarray(probability, dtype=np.float64)
        if not ((p >= 0) & (p < 1)).all():
            raise ValueError(f"a probability of loss must be in 0 <= p < 1, got {probability!r:.80}")
        a, b, share = np.zeros(p.shape), np.zeros(p.shape), np.ones(p.shape)
        if self.law in ("mathis", "pftk"):
            a = np.sqrt(2 * self.acked * p / 3) / self.connections
        if self.law == "pftk":
            waits = np.minimum(1.0, 3 * np.sqrt(3 * self.acked * p / 8))
            b = self.timeout * waits * p * (1 + 32 * p**2) / self.connections
        if self.law == "retransmit":
            share = 1 - p
        if self.law == "go_back_n":
            assert self.window is not None
            share = (1 - p) / (1 - p + self.window * p)
        return Limits(a, b, share)

    def goodput(self, probability: ArrayLike, rtt: ArrayLike) -> Floats:
        """Return the bytes per second that a transfer gets at most, given loss and round-trip time [s]."""
        return self.limits(probability).rate(rtt, self.segment)


@dataclass(frozen=True)
class Loss:
    """Packets get lost on some links.

    Links lose packets independently of each other, of their load and of time, so that a route loses
    1 - (1 - p1) (1 - p2) ... of them.

    Parameters
    ----------
    probability : mapping of link (u, v) to float
        Probability that a packet is lost on the link, 0 <= p < 1; 0 on links not named.
    transport : Transport
        What transfers make of it.

    Raises
    ------
    ValueError
        If a probability is out of range.

    Examples
    --------
    >>> loss = Loss({("site:a", "site:b"): 0.001})
    >>> round(float(loss.transport.goodput(0.001, rtt=0.04)) * 8e-6, 1)  # Mbit/s
    7.9
    """

    probability: Mapping[Link, float]
    transport: Transport = field(default_factory=Transport)

    def __post_init__(self) -> None:
        for link, p in self.probability.items():
            if not is_number(p) or not 0 <= p < 1:
                raise ValueError(f"the probability of loss on the link {link!r} must be in 0 <= p < 1, got {p!r}")


@dataclass(frozen=True)
class Incast:
    """Goodput collapse of many senders to one host, by time-outs behind a shallow buffer.

    All start at once [5]_, each with a window of packets in flight. The switch has room for the windows of

        m0 = floor((buffer + bandwidth * rtt) / window)

    senders, in its buffer and on the wire. The next m0 lose their windows whole, get no acknowledgement that could
    trigger a fast retransmission, and are silent until their retransmission time-out; of these again m0 get through,
    and so on. As all wait for the last, m senders of a block each come to R = ceil(m / m0) - 1 time-outs in a row, and
    the link carries

        factor(m) = L / (L + R * timeout),    L = m * block / bandwidth

    of what it could. The form L / (L + R r) is that of Chen et al. [1]_, who count the time-outs R in measurements; the
    count by windows that fit is simnet's own, along the account of whole windows lost that Zhang et al. give [2]_. A
    factor is the least for up to m senders, so that one more never helps.

    Assumptions: TCP with tail drop; senders in step; a block ends for all before the next begins; a time-out does not
    grow when it strikes again. Congestion control by marks (DCTCP), pauses (PFC) or credits exists to avoid all this:
    do without this option there. A block is what a host waits for at a time: for long messages a larger `block` is in
    place, up to the message.

    The defaults are those of a shallow-buffered switch and of Linux. With them a 1 Gbit/s link falls to 9 % of its
    capacity at 10 senders. That has the magnitude of what was measured: "up to 90 %" of the throughput lost [3]_, and
    time-outs per sender that grow up to 10 senders and then no more, on a switch with this buffer [1]_. It has not been
    compared with measurements point by point, and leaves out that goodput recovers in part with still more senders
    [1]_. Where there are measurements of the network, give these (`MeasuredIncast`).

    Parameters
    ----------
    buffer : float
        What a port of the switch can hold [byte]. 128 KiB is the most that a port may draw in [1]_ (Nortel 5500).
    window : float
        What a sender has in flight at the start [byte]: 10 segments of 1,460 bytes (RFC 6928).
    timeout : float
        Least retransmission time-out [s]: 200 ms in Linux.
    rtt : float
        Round-trip time without queues [s]: 100 us is the least that [4]_ report in a storage network.
    block : float
        What each sender sends at a time [byte]: the fragment of 256 KiB of [1]_.
    links : sequence of link (u, v), optional
        Links from a switch where it can happen; those into hosts when omitted (into a node, if it has several GPUs).

    Raises
    ------
    ValueError
        If a parameter is out of range.

    References
    ----------
    .. [1] Y. Chen, R. Griffith, J. Liu, R. H. Katz, A. D. Joseph, "Understanding TCP Incast Throughput Collapse in
       Datacenter Networks", ACM WREN 2009.
    .. [2] J. Zhang, F. Ren, C. Lin, "Modeling and Understanding TCP Incast in Data Center Networks", IEEE INFOCOM
       2011.
    .. [3] V. Vasudevan et al., "Safe and Effective Fine-grained TCP Retransmissions for Datacenter Communication",
       ACM SIGCOMM 2009.
    .. [4] V. Vasudevan et al., "A (In)Cast of Thousands: Scaling Datacenter TCP to Kiloservers and Gigabits",
       CMU-PDL-09-101, 2009.
    .. [5] A. Phanishayee et al., "Measurement and Analysis of TCP Throughput Collapse in Cluster-based Storage
       Systems", USENIX FAST 2008.

    Examples
    --------
    >>> incast = Incast()
    >>> incast.senders_that_fit(bandwidth=1.25e8)
    9
    >>> incast.shares(12, bandwidth=1.25e8).round(2)
    array([1.  , 1.  , 1.  , 1.  , 1.  , 1.  , 1.  , 1.  , 1.  , 1.  , 0.09,
           0.09, 0.09])
    """

    buffer: Size = 131072.0
    window: PositiveSize = 14600.0
    timeout: Seconds = 0.2
    rtt: Seconds = 100e-6
    block: PositiveSize = 262144.0
    links: Links | None = None

    def __post_init__(self) -> None:
        for name in ("window", "block"):
            positive(getattr(self, name), name)
        for name in ("buffer", "timeout", "rtt"):
            bounded(getattr(self, name), Size if name == "buffer" else Seconds, name)

    def senders_that_fit(self, bandwidth: float) -> int:
        """Return how many senders' windows there is room for, at least 1, before a link of this bandwidth [byte/s]."""
        return max(1, int(min((self.buffer + bandwidth * self.rtt) / self.window, MOST_SENDERS)))

    def shares(self, most: int, bandwidth: float) -> Floats:
        """Return the factor on the capacity of a link of this bandwidth for 0 .. `most` transfers, shape (most + 1,).

        Raises
        ------
        ValueError
            If `most` is no whole number up to 100,000, or the bandwidth is not positive.
        """
        senders = np.arange(1, whole(most, "most", 0, MOST_SENDERS) + 1)
        ideal = senders * (self.block / positive(bandwidth, "bandwidth"))
        waits = (senders - 1) // self.senders_that_fit(bandwidth) * self.timeout
        return np.minimum.accumulate(np.append(1.0, ideal / (ideal + waits)))


@dataclass(frozen=True)
class MeasuredIncast:
    """Goodput of many senders to one host as somebody measured it.

    Parameters
    ----------
    senders : sequence of int
        Numbers of senders, ascending from 2 or more.
    factors : sequence of float
        Part of the link's capacity that is left from so many senders on, in (0, 1], never rising.
    links : sequence of link (u, v), optional
        Links from a switch where it can happen; those into hosts when omitted (into a node, if it has several GPUs).

    Raises
    ------
    ValueError
        If the numbers are not such numbers.

    Examples
    --------
    >>> MeasuredIncast([4, 8], [0.9, 0.1]).shares(9, bandwidth=1.25e8)
    array([1. , 1. , 1. , 1. , 0.9, 0.9, 0.9, 0.9, 0.1, 0.1])
    """

    senders: Annotated[Sequence[Annotated[int, Ge(2)]], MinLen(1)]
    factors: Sequence[PositiveShare]
    links: Links | None = None

    def __post_init__(self) -> None:
        if not self.senders or len(self.senders) != len(self.factors):
            raise ValueError(
                f"needs as many factors as numbers of senders, at least one, got {len(self.factors)} for "
                f"{len(self.senders)}"
            )
        least = 2
        for number in self.senders:
            least = whole(number, "senders, ascending,", least, MOST_SENDERS) + 1
        most = 1.0
        for factor in self.factors:
            if not is_number(factor) or not 0 < factor <= most:
                raise ValueError(f"factors must be > 0 and never rise from 1, got {factor!r} after {most!r}")
            most = float(factor)

    def shares(self, most: int, bandwidth: float) -> Floats:
        """Return the factor on the capacity of a link for 0 .. `most` transfers, shape (most + 1,)."""
        counts = np.arange(whole(most, "most", 0, MOST_SENDERS) + 1)
        steps = np.array([1.0, *self.factors])
        return steps[np.searchsorted(np.asarray(self.senders), counts, side="right")]
