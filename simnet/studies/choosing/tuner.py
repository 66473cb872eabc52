"""Dense decisions for NCCL: which algorithm and protocol at which size, as the CSV of NCCL's example tuner plugin.

Steps and bytes are counted as NCCL counts them: its trees are double binary trees in which chunks follow each other, so
that their bytes do not grow with their depth, as those of the binomial tree of AR-Topk do. What the protocols differ by
is NCCL's own: LL sends a flag with every 4 bytes and halves the bandwidth, LL128 a flag with every 120 bytes, Simple
waits for a fence at every step.

What is not known is said in comments: of each range the time with its interval, how much slower the next way is, and on
which parameters that no measurement determines both rest; of each collective what it was not compared with, and why it
has no rows, if it has none.

References
----------
NVIDIA, NCCL, ``plugins/tuner/example`` (the CSV and how it is read) and ``src/graph/tuning.cc`` (latencies and
bandwidth of protocols). <https://github.com/NVIDIA/nccl>
Z. Hu et al., "Demystifying NCCL: An in-depth analysis of GPU communication protocols and algorithms",
arXiv:2507.04786, 2025.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from simnet.base.errors import InputError
from simnet.base.units import format_seconds
from simnet.studies.choosing.operating_point import OperatingPoint

if TYPE_CHECKING:
    from simnet.calibration.step_model import StepModel

HEADER = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
"""Columns of the file."""

LARGEST = 2**64 - 1
"""The largest size of a range [byte]: sizes are of 64 bits there."""

COLLECTIVES: MappingProxyType[str, str] = MappingProxyType(
    {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reducescatter": "reduce_scatter",
        "broadcast": "broadcast",
        "reduce": "reduce",
    }
)
"""Collectives of the file, and what nccl-tests calls them. Both count the same bytes as the size."""

ALGORITHMS: MappingProxyType[str, str] = MappingProxyType(
    {
        "ring": "ring",
        "tree": "tree",
        "switch": "nvls",
        "nvls": "nvls",
        "nvlstree": "nvls_tree",
        "collnetdirect": "collnet_direct",
        "collnetchain": "collnet_chain",
        "pat": "pat",
    }
)
"""Algorithms of the file by how their names end elsewhere, in lower case and without underscores."""

REACH = 2**33
"""Beyond this size [byte] nothing is looked at."""

MOST_COMMENT = 250
"""The longest comment: the plugin reads lines of at most 255 characters."""

# Latency of a step beyond that of LL, between nodes and inside them; seconds per byte over those of Simple.
_LL128, _SIMPLE = 1.3e-6, 11.3e-6
_BYTES = MappingProxyType({"ll_byte_factor": 2.0, "ll128_byte_factor": 128 / 120, "tree_byte_factor": 1 / 0.92})
_LEAST = 1e-9
# Sizes that are looked at; between two of them the change is found to the byte.
_OCTAVES, _PER_OCTAVE = 62, 8
# So large that what does not grow with the size is nothing beside it, but for rounding.
_HUGE = 1e15


class Way(NamedTuple):
    """An algorithm and a protocol, as the file names them."""

    algorithm: str
    protocol: str


class Range(NamedTuple):
    """Sizes from `first` to `last`, both included [byte], at which a way is the fastest."""

    first: int
    last: int
    way: Way


Times: TypeAlias = Callable[[int], dict[Way, float]]
"""Seconds of each way at a size [byte]."""


class Known(NamedTuple):
    """What is known of the time of a way at a size.

    Parameters
    ----------
    low, high : float
        Its interval [s].
    typical : tuple of str
        Parameters that carry a tenth of the time or more, and for which typical values stand: the measurements do not
        determine them.
    """

    low: float
    high: float
    typical: tuple[str, ...] = ()


Knowledge: TypeAlias = Callable[[int, Way], Known]
"""What is known of a way at a size [byte]."""


class Row(NamedTuple):
    """A range of the file at one size.

    Parameters
    ----------
    nbytes : int
        The size [byte].
    seconds, known : float, Known or None
        The time of its way [s], and what is known of that.
    following, behind, beside : Way or None, float or None, Known or None
        The next way, its time [s], and what is known of that; None if there is none.
    """

    nbytes: int
    seconds: float
    known: Known | None
    following: Way | None
    behind: float | None
    beside: Known | None

    @property
    def overlaps(self) -> bool:
        """Whether the interval of the next way overlaps."""
        return self.known is not None and self.beside is not None and self.beside.low <= self.known.high

    @property
    def typical(self) -> tuple[str, ...]:
        """Parameters that carry either time, and for which typical values stand."""
        return tuple(sorted({name for one in (self.known, self.beside) if one is not None for name in one.typical}))

    def said(self) -> str:
        """Return it in words."""
        words = f"at {self.nbytes} B: {format_seconds(self.seconds)}"
        if self.known is not None:
            words += f" ({format_seconds(self.known.low)} to {format_seconds(self.known.high)})"
        if self.following is not None and self.behind is not None:
            more = 100 * (self.behind / self.seconds - 1)
            words += f", {self.following.algorithm} {self.following.protocol} +{more:.3g} %"
        if self.overlaps:
            words += ", intervals overlap"
        if self.typical:
            words += f"; typical, not measured: {', '.join(self.typical)}"
        return words


@dataclass(frozen=True)
class Tuning:
    """Which way is the fastest, collective by collective.

    Parameters
    ----------
    title : str
        What it is for.
    method : str
        Where the times are from.
    ranks, nodes : int
        For which communicators; 0 nodes if not known.
    times : dict of str to callable
        By collective of the file.
    known : dict of str to callable
        By collective, where times have intervals.
    notes : tuple of str
        What is not in the file, and why.
    """

    title: str
    method: str
    ranks: int
    nodes: int
    times: dict[str, Times]
    known: dict[str, Knowledge] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def best(self, collective: str, nbytes: int) -> Way:
        """Return the fastest way at a size; of equals the first."""
        found = self.times[collective](max(nbytes, 1))
        return min(found, key=lambda way: found[way])

    def ranges(self, collective: str) -> Iterator[Range]:
        """Yield ranges of sizes from 0 to `LARGEST`, without gaps."""
        sizes = np.unique(np.geomspace(1, 2**_OCTAVES, _OCTAVES * _PER_OCTAVE + 1).astype(np.int64)).tolist()
        first, way = 0, self.best(collective, 0)
        for size in sizes:
            # Between two sizes there may be more than one change.
            while size > first and self.best(collective, size) != way:
                same, other = first, size
                while other - same > 1:
                    middle = (same + other) // 2
                    same, other = (middle, other) if self.best(collective, middle) == way else (same, middle)
                yield Range(first, same, way)
                first, way = other, self.best(collective, other)
        yield Range(first, LARGEST, way)

    def row(self, collective: str, one: Range) -> Row:
        """Return what is known of a range, in its middle as a factor; from `REACH` up, at that size."""
        size = round(math.sqrt(max(one.first, 1) * max(min(one.last, REACH), one.first, 1)))
        times = self.times[collective](size)
        rest = [way for way in times if way != one.way]
        following = min(rest, key=lambda way: times[way], default=None)
        if collective not in self.known:
            return Row(size, times[one.way], None, following, times.get(following) if following else None, None)
        ask = self.known[collective]
        beside = None if following is None else ask(size, following)
        return Row(size, times[one.way], ask(size, one.way), following, following and times[following], beside)

    def undetermined(self) -> dict[str, list[str]]:
        """Return, by collective, the parameters on which a choice rests and for which typical values stand."""
        found = {}
        for collective in self.known:
            rows = [self.row(collective, one) for one in self.ranges(collective)]
            if names := sorted({name for row in rows for name in row.typical}):
                found[collective] = names
        return found

    def csv(self) -> str:
        """Return the file."""
        said = f"{self.title}: {self.ranks} ranks"
        comments = [said + (f" on {self.nodes} nodes" if self.nodes else ""), f"by {self.method}", *self.notes]
        comments += [*(self._compared(one) for one in self.times), HEADER]
        lines = [_comment(text) for text in comments]
        for collective in self.times:
            for one in self.ranges(collective):
                place = f"-1,{self.nodes or -1},{self.ranks},-1,-1"
                lines.append(_comment(f"{collective} {self.row(collective, one).said()}"))
                lines.append(f"{collective},{one.first},{one.last},{one.way.algorithm},{one.way.protocol},{place}")
        return "\n".join(lines) + "\n"

    def _compared(self, collective: str) -> str:
        """Return which algorithms of NCCL were compared, and which were not."""
        compared = {way.algorithm for way in self.times[collective](1)}
        missing = [name for name in dict.fromkeys(ALGORITHMS.values()) if name not in compared]
        return f"{collective}: {', '.join(sorted(compared))} compared; nothing is known here of {', '.join(missing)}"


def _comment(text: str) -> str:
    return "# " + "".join(one if one.isprintable() else "?" for one in text)[:MOST_COMMENT]


def by_links(point: OperatingPoint, title: str) -> Tuning:
    """Return what to use on links of a latency and a bandwidth.

    The latency counts as that of a step of the LL protocol; steps of the others take as much longer as in NCCL's own
    model. Cards of a node are shared by its ranks. LL128 needs 128 bytes to arrive as one, and in order, which a
    latency and a bandwidth do not promise: it is left to a single node.

    Examples
    --------
    >>> tuning = by_links(OperatingPoint(16, 1, 1.0, 1e-5, 1.25e9), "an example")
    >>> [tuning.best("allreduce", size) for size in (1, 10**9)]
    [Way(algorithm='tree', protocol='ll'), Way(algorithm='ring', protocol='simple')]
    """
    # What stands here is needed for this alone, and takes time to import.
    from simnet.calibration.step_model import PARAMETERS, StepModel

    ranks = int(point.workers)
    each = min(point.per_node, ranks)
    nodes = -(-ranks // each)
    outer = max(float(point.latency), _LEAST)
    inner = max(float(point.inner_latency), _LEAST)
    main = outer if nodes > 1 else inner
    values = dict.fromkeys(PARAMETERS, 1.0) | _BYTES
    values |= {
        # No algorithm is without a call, so that its cost decides nothing.
        "launch": _LEAST,
        "gamma": 1e-18,
        "inner_latency": inner,
        "outer_latency": outer,
        "inner_seconds_per_byte": max(point.inner_beta, 1e-18),
        "outer_seconds_per_byte": each / float(point.bandwidth),
        "ll128_latency_factor": 1 + _LL128 / main,
        "simple_latency_factor": 1 + _SIMPLE / main,
    }
    model = StepModel(True, tuple(values.values()))
    made = by_steps(model, title, "the latency and bandwidth of its links", ranks, nodes, ordered=nodes == 1)
    said = "no time has an interval: latency and bandwidth were given, and what protocols differ by is NCCL's own"
    return replace(made, notes=(said, *made.notes))


def by_steps(steps: StepModel, title: str, method: str, ranks: int, nodes: int, *, ordered: bool = True) -> Tuning:
    """Return what a step model says."""
    from simnet.calibration.curves import Setting

    if ranks < 2:
        raise InputError(f"must be at least 2 for a tuner, got {ranks}", file="--workers")

    def of(collective: str) -> Times:
        found = steps.by_algorithm(Setting(collective, ranks, nodes), [0.0, _HUGE]) or {}
        lines = {way_of(name): (float(start), float(end - start) / _HUGE) for name, (start, end) in found.items()}
        allowed = {way: line for way, line in lines.items() if ordered or way.protocol != "ll128"}
        return lambda nbytes: {way: start + slope * nbytes for way, (start, slope) in allowed.items()}

    times = {name: of(known) for name, known in COLLECTIVES.items()}
    empty = [name for name, one in times.items() if not one(1)]
    notes = tuple(f"{name}: no rows, as NCCL's steps are not known for {ranks} ranks" for name in empty)
    return Tuning(title, method, ranks, nodes, {name: times[name] for name in times if name not in empty}, notes=notes)


def way_of(name: str) -> Way:
    """Return what a step model calls ``ring, LL128``."""
    kind, protocol = name.split(", ")
    return Way(ALGORITHMS[kind], protocol.casefold())
