"""Dense decisions for NCCL: which algorithm and protocol at which size, as the CSV of NCCL's example tuner plugin.

Steps and bytes are counted as NCCL counts them: its trees are double binary trees in which chunks follow each other, so
that their bytes do not grow with their depth, as those of the binomial tree of AR-Topk do. What the protocols differ by
is NCCL's own: LL sends a flag with every 4 bytes and halves the bandwidth, LL128 a flag with every 120 bytes, Simple
waits for a fence at every step.

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
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from simnet.base.errors import InputError
from simnet.studies.choosing.operating_point import OperatingPoint

if TYPE_CHECKING:
    from simnet.calibration import CalibratedCostModel
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
    """

    title: str
    method: str
    ranks: int
    nodes: int
    times: dict[str, Times]

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

    def csv(self) -> str:
        """Return the file."""
        said = f"{self.title}: {self.ranks} ranks"
        comments = [said + (f" on {self.nodes} nodes" if self.nodes else ""), f"by {self.method}", HEADER]
        lines = ["# " + "".join(one if one.isprintable() else "?" for one in text)[:MOST_COMMENT] for text in comments]
        for collective in self.times:
            for one in self.ranges(collective):
                place = f"-1,{self.nodes or -1},{self.ranks},-1,-1"
                lines.append(f"{collective},{one.first},{one.last},{one.way.algorithm},{one.way.protocol},{place}")
        return "\n".join(lines) + "\n"


def by_links(point: OperatingPoint, title: str) -> Tuning:
    """Return what to use on links of a latency and a bandwidth.

    The latency counts as that of a step of the LL protocol; steps of the others take as much longer as in NCCL's own
    model. Cards of a node are shared by its ranks. LL128 needs 128 bytes to arrive as one, and in order, which a
    latency and a bandwidth do not promise: it is left to a single node.

    Raises
    ------
    InputError
        If there is one worker only.

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
    return _tuning(model, title, "the latency and bandwidth of its links", ranks, nodes, ordered=nodes == 1)


def by_fabric(fabric: CalibratedCostModel, ranks: int, title: str) -> Tuning:
    """Return what to use on a calibrated cluster, or on a platform.

    Where several algorithms were measured, each pinned, they are compared; else its step model compares those of
    NCCL. Of an algorithm whose protocol was not pinned, the step model says it.

    Parameters
    ----------
    fabric : CalibratedCostModel
        The cluster.
    ranks : int
        Of the communicator.
    title : str
        What it is for.

    Raises
    ------
    InputError
        If the fabric is not one of NCCL.
    """
    if ranks < 2:
        raise InputError(f"must be at least 2 for a tuner, got {ranks}", file="--workers")
    nodes = _nodes(fabric, ranks)
    steps, platform = fabric.model.steps, fabric.platform
    nccl = steps is not None and steps.nccl
    times: dict[str, Times] = {}
    if platform is not None and nccl:
        nodes = nodes or platform.nodes(ranks)
        times = {name: _specified(fabric, known, ranks) for name, known in COLLECTIVES.items()}
        return Tuning(title, f"the specification of {platform.name}", ranks, nodes, times)
    if nccl:
        assert steps is not None
        times = _tuning(steps, title, "", ranks, nodes).times
    for name, known in COLLECTIVES.items():
        pinned = _pinned(fabric, known)
        if len({way for way, *_ in pinned}) > 1:
            times[name] = _measured(fabric, known, ranks, pinned, times.get(name))
    if not times:
        raise InputError("says nothing of algorithms of NCCL: neither were any pinned, nor are its steps NCCL's",
                         file="--fabric")  # fmt: skip
    return Tuning(title, "the calibrated fabric", ranks, nodes, times)


def _tuning(steps: StepModel, title: str, method: str, ranks: int, nodes: int, *, ordered: bool = True) -> Tuning:
    """Return what a step model says; LL128 only where bytes arrive in order."""
    from simnet.calibration.curves import Setting

    if ranks < 2:
        raise InputError(f"must be at least 2 for a tuner, got {ranks}", file="--workers")

    def of(collective: str) -> Times:
        found = steps.by_algorithm(Setting(collective, ranks, nodes), [0.0, _HUGE]) or {}
        lines = {_way(name): (float(start), float(end - start) / _HUGE) for name, (start, end) in found.items()}
        allowed = {way: line for way, line in lines.items() if ordered or way.protocol != "ll128"}
        return lambda nbytes: {way: start + slope * nbytes for way, (start, slope) in allowed.items()}

    return Tuning(title, method, ranks, nodes, {name: of(known) for name, known in COLLECTIVES.items()})


def _way(name: str) -> Way:
    """Return what a step model calls ``ring, LL128``."""
    kind, protocol = name.split(", ")
    return Way(ALGORITHMS[kind], protocol.casefold())


def _nodes(fabric: CalibratedCostModel, ranks: int) -> int:
    """Return the nodes of so many ranks; 0 if not known."""
    known = [one.setting for one in fabric.model.known if one.setting.nodes]
    if not known:
        return 0
    same = [one.nodes for one in known if one.ranks == ranks]
    close = min(known, key=lambda one: abs(math.log(one.ranks / ranks)))
    return max(same) if same else max(1, round(ranks * close.nodes / close.ranks))


def _pinned(fabric: CalibratedCostModel, collective: str) -> list[tuple[str, str, str]]:
    """Return the algorithms of NCCL that were measured: as the file names them, as the fabric does, the protocol."""
    known = {
        (one.setting.algorithm, one.setting.protocol)
        for one in fabric.model.known
        if one.setting.collective == collective
    }
    words = [(_algorithm(name), name, protocol) for name, protocol in sorted(known)]
    return [one for one in words if one[0]]


def _algorithm(name: str) -> str:
    """Return what the file calls an algorithm, "" if it is none of NCCL; what stands before its name does not matter.

    Examples
    --------
    >>> _algorithm("NVLSTree"), _algorithm("allreduce_nccl_ring"), _algorithm("recursive_doubling")
    ('nvls_tree', 'ring', '')
    """
    word = name.casefold().replace("_", "")
    return ALGORITHMS[max(fits, key=len)] if (fits := [one for one in ALGORITHMS if word.endswith(one)]) else ""


def _measured(
    fabric: CalibratedCostModel, collective: str, ranks: int, pinned: list[tuple[str, str, str]], steps: Times | None
) -> Times:
    def times(nbytes: int) -> dict[Way, float]:
        modelled = {} if steps is None else steps(nbytes)
        found: dict[Way, float] = {}
        for algorithm, name, protocol in pinned:
            given = fabric.predict(collective, ranks, float(nbytes), algorithm=name, protocol=protocol)
            same = {way.protocol: seconds for way, seconds in modelled.items() if way.algorithm == algorithm}
            word = protocol.casefold() or min(same, key=lambda one: same[one], default="simple")
            way = Way(algorithm, word)
            found[way] = min(found.get(way, math.inf), given.seconds)
        return found

    return times


def _specified(fabric: CalibratedCostModel, collective: str, ranks: int) -> Times:
    # Where a platform cannot use LL128, what it is asked of it is the fastest of the others: they go first.
    pairs = [
        Way(one, protocol)
        for one in (("ring", "tree") if collective == "all_reduce" else ("ring",))
        for protocol in ("ll", "simple", "ll128")
    ]

    def times(nbytes: int) -> dict[Way, float]:
        return {
            way: fabric.predict(
                collective, ranks, float(nbytes), algorithm=way.algorithm, protocol=way.protocol
            ).seconds
            for way in pairs
        }

    return times
