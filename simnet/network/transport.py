"""Transport protocols under packet loss and under incast, where many hosts send to one.

Both act on max-min shares: loss limits the rate of a transfer, incast reduces the capacity of a link. Without loss and
with one sender at a time they change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from annotated_types import Ge, MinLen
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.errors import check_choice, check_int, check_positive, is_number
from simnet.base.quantities import Count, Duration, PositiveShare, PositiveSize, Seconds, Size, Written, check_bounds
from simnet.topologies.graphs import Link

Law: TypeAlias = Literal["mathis", "pftk", "retransmit", "go_back_n"]

Links: TypeAlias = Annotated[Sequence[Link], Written(str)]
"""Links; in a scenario a selector of `simnet.topologies.select_links`."""

MOST_SENDERS = 100_000
"""Maximum length of a table of factors."""


class Limits(NamedTuple):
    """Coefficients by which packet loss limits the rate of a transfer and the useful share of its bytes.

    A transfer carries ``nbytes / share`` bytes, at most at ``segment / (a * rtt + b)`` bytes per second for a
    round-trip time `rtt` [s]; unlimited if ``a * rtt + b`` is 0.

    Parameters
    ----------
    a : ndarray or float
        Dimensionless.
    b : ndarray or float
        Seconds.
    share : ndarray or float
        Useful part of the bytes on the wire, in (0, 1].
    """

    a: Any
    b: Any
    share: Any

    def rate(self, rtt: ArrayLike, segment: float) -> Floats:
        """Return the maximum rate [byte/s] under packet loss, given round-trip times [s] and the bytes of a segment.

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
    """How a transport protocol responds to packet loss: it limits its rate, and sends some bytes again.

    ``mathis``
        Square-root law of TCP congestion avoidance, without time-outs: a = sqrt(2 b p / 3), b packets per
        acknowledgement [1]_. An upper bound; good for p well below 1 %.
    ``pftk``
        TCP Reno with time-outs T0: additionally b = T0 min(1, 3 sqrt(3 b p / 8)) p (1 + 32 p**2) [2]_. TFRC uses this
        equation (RFC 5348, without the minimum), and RFC 3819, section 8.5, recommends it.
    ``retransmit``
        Loss is no sign of congestion, and only lost packets are resent (selective repeat, as in some RDMA NICs [3]_):
        1 / (1 - p) times the bytes, no limit.
    ``go_back_n``
        As above, but a loss repeats a round trip of W packets: the useful share is (1 - p) / (1 - p + W p) [4]_.

    The TCP laws hold for long transfers and loss independent of the rate, without slow start and receiver window; CUBIC
    and BBR do better on long fat networks.

    Parameters
    ----------
    law : {"pftk", "mathis", "retransmit", "go_back_n"}
        See above.
    segment : float
        Payload of a packet [byte]; 1,460 for TCP over IPv4 in an Ethernet frame of 1,500 bytes.
    acked : int
        b, packets per acknowledgement: 2 with delayed acknowledgements (RFC 5681), else 1.
    timeout : float
        Retransmission time-out T0 of ``pftk`` [s]: at least 200 ms in Linux; 1 s in RFC 6298.
    window : int, optional
        W of ``go_back_n``: packets in a round trip, bandwidth * rtt / segment.
    connections : int
        TCP connections per transfer, each with its own limit.

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
       Markov and related error structures", IEEE Transactions on Communications 36(2), 1988: p / (p + m (1 - p)) for
       independent errors, where p is the probability of success.

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
        check_choice(self.law, "law of loss", get_args(Law))
        check_positive(self.segment, "segment")
        check_int(self.acked, "acked", 1)
        check_positive(self.timeout, "timeout")
        check_int(self.connections, "connections", 1)
        if (self.window is None) == (self.law == "go_back_n"):
            raise ValueError(f"window belongs to go_back_n and to nothing else, got {self.window!r} with {self.law}")
        if self.window is not None:
            check_int(self.window, "window", 1)

    def limits(self, probability: ArrayLike) -> Limits:
        """Return the effect of packet loss on transfers, given the probability that a packet is lost (number or array).

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
        """Return the maximum rate of useful bytes [byte/s], given a packet's loss probability and round trip [s]."""
        return self.limits(probability).rate(rtt, self.segment)


@dataclass(frozen=True)
class Loss:
    """Packet loss on links, independent of load and time. A packet passes a route if no link loses it.

    Parameters
    ----------
    probability : mapping of link (u, v) to float
        Loss probability of a packet, 0 <= p < 1; 0 on other links.
    transport : Transport
        The response of transfers.

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
    """Collapse of goodput when many hosts send to one host, by time-outs behind a shallow buffer.

    All start at once [5]_, each with a window in flight. Buffer and wire have room for the windows of

        m0 = floor((buffer + bandwidth * rtt) / window)

    senders. The others lose their whole window, which triggers no fast retransmission, and are silent until their
    time-out; then again m0 get through. So m senders of a block each see R = ceil(m / m0) - 1 time-outs in a row, and
    the link carries

        factor(m) = L / (L + R * timeout),    L = m * block / bandwidth

    of its capacity. The form L / (L + R r) is from Chen et al. [1]_, who measure R; counting windows that fit is
    simnet's own, after the whole-window losses of Zhang et al. [2]_. A factor is the least for up to m senders.

    Assumptions: TCP with tail drop, senders in step, blocks one after another, constant time-out. DCTCP, PFC and
    credits avoid all this: do not use it there. For long messages use a larger `block`, up to the message.

    The defaults are a shallow-buffered switch and Linux: a 1 Gbit/s link falls to 9 % at 10 senders. That is the
    magnitude of measurements: "up to 90 %" lost [3]_, time-outs per sender that grow up to 10 senders [1]_. It has not
    been compared point by point, and omits the partial recovery with more senders [1]_. Prefer measurements
    (`MeasuredIncast`).

    Parameters
    ----------
    buffer : float
        Buffer of a switch port [byte]; 128 KiB is the most that a port may draw in [1]_ (Nortel 5500).
    window : float
        Initial window of a sender [byte]: 10 segments of 1,460 bytes (RFC 6928).
    timeout : float
        Minimum retransmission time-out [s]: 200 ms in Linux.
    rtt : float
        Round-trip time without queues [s]: 100 us is the least of [4]_.
    block : float
        Bytes each sender sends at a time: the 256 KiB fragment of [1]_.
    links : sequence of link (u, v), optional
        Links from a switch where it happens; by default those into hosts (into nodes of several GPUs).

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
            check_positive(getattr(self, name), name)
        for name in ("buffer", "timeout", "rtt"):
            check_bounds(getattr(self, name), Size if name == "buffer" else Seconds, name)

    def senders_that_fit(self, bandwidth: float) -> int:
        """Return how many senders' TCP windows, in flight at once, fit a link [byte/s] and its buffer; at least 1."""
        return max(1, int(min((self.buffer + bandwidth * self.rtt) / self.window, MOST_SENDERS)))

    def shares(self, most: int, bandwidth: float) -> Floats:
        """Return the fraction of a link's `bandwidth` [byte/s] usable by 0 to `most` transfers together; (most + 1,).

        Raises
        ------
        ValueError
            If `most` is not an integer up to 100,000, or the bandwidth is not positive.
        """
        senders = np.arange(1, check_int(most, "most", 0, MOST_SENDERS) + 1)
        ideal = senders * (self.block / check_positive(bandwidth, "bandwidth"))
        waits = (senders - 1) // self.senders_that_fit(bandwidth) * self.timeout
        return np.minimum.accumulate(np.append(1.0, ideal / (ideal + waits)))


@dataclass(frozen=True)
class MeasuredIncast:
    """Measured goodput of a link while many hosts send to one host.

    Parameters
    ----------
    senders : sequence of int
        Numbers of senders, ascending from 2 or more.
    factors : sequence of float
        Capacity factor from that many senders on, in (0, 1], never rising.
    links : sequence of link (u, v), optional
        Links from a switch where it happens; by default those into hosts (into nodes of several GPUs).

    Raises
    ------
    ValueError
        If the numbers are invalid.

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
            least = check_int(number, "senders, ascending,", least, MOST_SENDERS) + 1
        most = 1.0
        for factor in self.factors:
            if not is_number(factor) or not 0 < factor <= most:
                raise ValueError(f"factors must be > 0 and never rise from 1, got {factor!r} after {most!r}")
            most = float(factor)

    def shares(self, most: int, bandwidth: float) -> Floats:
        """Return the usable share of a link's bandwidth for 0 to `most` concurrent transfers, shape (most + 1,)."""
        counts = np.arange(check_int(most, "most", 0, MOST_SENDERS) + 1)
        steps = np.array([1.0, *self.factors])
        return steps[np.searchsorted(np.asarray(self.senders), counts, side="right")]
