"""Predicts times of collectives from a platform's specification: devices, links, network cards, library.

For NCCL and RCCL every algorithm takes, in each of its protocols, a base latency, its steps inside and between nodes
with the latencies of NCCL's tuning model, and size by the bandwidths of links. For MPI and gloo, steps and bytes come
from the schedules of `simnet.collectives`, for Open MPI of the algorithm that it chooses. On two nodes the geometric
mean of ring and tree is predicted, as a specification does not say which runs.
"""

# References: NVIDIA, NCCL, ``src/graph/tuning.cc`` (latencies, efficiency of protocols) and ``src/graph/topo.h``
# (links). Z. Hu et al., "Demystifying NCCL", arXiv:2507.04786, 2025. P. Sanders, J. Speck, J. L. Träff, Parallel
# Computing 35(12), 2009. Open MPI, ``ompi/mca/coll/tuned/coll_tuned_decision_fixed.c``, and ``ompi/mca/coll/base/``:
# <https://github.com/open-mpi/ompi>, read in <https://github.com/HLC-Lab/ompi> at fc5712e (2025) and
# <https://github.com/BullSequana/OpenMPI5> at c3318e2 (5.0); the fork of 4.1 is
# <https://github.com/kunpengcompute/hmpi> at 0e41238.

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simnet.base.arrays import Floats
from simnet.base.file_io import read_shipped_rows
from simnet.cost_models.calibration.curves import Setting
from simnet.cost_models.calibration.node_links import InsideRates
from simnet.cost_models.calibration.platform import GENERATIONS, TRANSPORTS, Platform, StepCounting
from simnet.cost_models.calibration.predictor import BoundedTimes
from simnet.cost_models.calibration.step_model import PARAMETERS, StepModel, count_like_nccl, count_steps
from simnet.cost_models.evidence.intervals import SCORE_95

HELD_OUT_COUNTS: Mapping[StepCounting, int] = {"as NCCL does": 4085, "through the schedule": 691}
"""Number of public measurements, each of a held-out platform, that interval widths are from."""

_HALF_WIDTHS: Mapping[StepCounting, tuple[tuple[float, float], ...]] = {
    "as NCCL does": ((0.75, 1.1), (0.65, 1.4), (0.55, 1.15), (0.5, 0.8)),
    "through the schedule": ((2.2, 1.5), (1.7, 1.3), (0.8, 1.1), (0.35, 1.15)),
}
# The same where devices send over links of their own, and over InfiniBand: there what is left of a line rate is known.
_HALF_WIDTHS_KNOWN = ((0.35, 0.85), (0.4, 1.3), (0.4, 0.55), (0.3, 0.35))
_HALF_WIDTHS_HOLD = 0.9

SPECIFIED_COLLECTIVES = ("all_gather", "all_reduce", "alltoall", "broadcast", "reduce", "reduce_scatter", "sendrecv")
"""Collectives that a specification can predict."""


class _NcclProtocol(NamedTuple):
    """An NCCL protocol: usable share of bandwidth, base latency [s], and latency per step on each kind of link [s]."""

    share: float
    base: float
    ring: Mapping[str, float]
    tree: Mapping[str, float]


# Constants of NCCL's tuning model, those of ring and tree put together where they are alike.
_LL_INSIDE = {"nvlink": 0.6e-6, "pcie": 1.0e-6}
_PROTOCOLS = {
    "ll": _NcclProtocol(0.5, 6.7e-6, _LL_INSIDE | {"net": 2.7e-6}, _LL_INSIDE | {"net": 5.0e-6}),
    "ll128": _NcclProtocol(0.92, 14e-6, {"nvlink": 1.9e-6, "net": 4.0e-6}, {"nvlink": 1.25e-6, "net": 8.5e-6}),
    "simple": _NcclProtocol(
        1.0, 8.4e-6, {"nvlink": 3.4e-6, "pcie": 5.7e-6, "net": 14e-6}, {"nvlink": 4.0e-6, "pcie": 4.0e-6, "net": 14e-6}
    ),
}
_SWITCH_LATENCY = {"inner": 25e-6, "outer": 21e-6}
_COLLNET_LATENCY = 35e-6
_COLLNET_SHARE = 0.9
_LL_BETWEEN = (39e9, 20.4e9)
# Log2 of the size, and the share of bandwidth that it reaches: a little less than NCCL's tuning model leaves of trees.
_REACHED = ((12.0, 16.0, 18.0, 20.0, 24.0, 28.0), (1.0, 0.5, 0.35, 0.42, 0.75, 1.0))
# Switches that reduce reach these shares on eight H100, ranks times byte/s: the more devices there are, the less each
# reduces, and the faster they are, the sooner it has gone. From 16 MiB to 2 GiB on 4 and 8 H100 and 8 GB200, times are
# off by 4.4 % in the mean, with the shares of rings by 6.5 %.
_REACHED_BY_SWITCH = ((12.0, 16.0, 18.0, 20.0, 24.0, 26.0, 28.0, 30.0), (1.0, 0.5, 0.35, 0.42, 0.65, 0.8, 0.92, 1.0))
_SWITCH_FILLED = 8 * 360e9
# Latencies that were measured, over those of NCCL's tuning model, which is of all-reduces. Of five values each, with
# three curves of the bandwidth reached, the same are the best with any one of 19 sites left out but for three, for
# which neighbours are. Without, 81 and 70 % of the sizes below 64 KiB and 1 MiB are within a factor of 2, with them 88
# and 81 %.
_MEASURED_LATENCY = {"all_reduce": 1.2, "alltoall": 1.3, "sendrecv": 1.0}
_MEASURED_LATENCY_OF_OTHERS = 2.0
_TREE_SHARE = 0.92
_PEER_SHARE = 0.7
# Of MPI: one way over InfiniBand, through memory; what an eager message costs more in bytes and one by rendezvous in
# latency; what a core reduces, and what a rank of several on a node receives through memory, per byte of the size.
_HOST_LATENCY = 1e-6
_MEMORY_LATENCY = 0.5e-6
_EAGER = {"latency": 2.0, "bytes": 2.0}
_REDUCED_PER_SECOND = 3.5e9
_RECEIVED = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "broadcast": 1.0}


@dataclass(frozen=True)
class SpecifiedStepModel(StepModel):
    """Costs of collectives per launch, step and byte (a step model), derived from a platform's specification."""

    platform: Platform | None = None

    def at(self, setting: Setting, sizes: ArrayLike) -> Floats | None:
        """Return a collective's times [s] at sizes [byte] on the platform; None if it has no known algorithm."""
        assert self.platform is not None
        return specified_times(self.platform, setting, sizes)


def specified_step_model(platform: Platform) -> SpecifiedStepModel:
    """Return a platform's costs per launch, step and byte (a step model), from its specification."""
    return SpecifiedStepModel(platform.counted == "as NCCL does", (), platform=platform)


def specified_parameters(platform: Platform) -> dict[str, tuple[float, float]]:
    """Return costs per launch, step and byte on full nodes, by name, each with the standard error of its logarithm.

    `specified_times` distinguishes links, protocols and algorithms further.
    """
    nccl = platform.counted == "as NCCL does"
    link, far = _link_kind(platform), _extra_latency(platform)
    low, middle, high = (_PROTOCOLS[name] for name in ("ll", "ll128", "simple"))
    full = platform.devices_per_node
    node = platform.outer_rate(full) if platform.outer is not None else platform.inner_rate() * full
    outer_latency = low.ring["net"] + far
    found = {
        "launch": (high.base if nccl else _HOST_LATENCY, 0.7),
        "inner_latency": (low.ring[link] if nccl else _MEMORY_LATENCY, 0.7),
        "outer_latency": (outer_latency if nccl else _HOST_LATENCY + far, 0.7),
        "inner_seconds_per_byte": (1 / platform.inner_rate(), 0.2),
        "outer_seconds_per_byte": ((full if nccl else 1) / node, 0.35),
        "gamma": (5e-14 if nccl else 1 / _REDUCED_PER_SECOND, 0.5),
        "ll128_latency_factor": (middle.ring["net"] / low.ring["net"], 0.5),
        "simple_latency_factor": ((high.ring["net"] + far) / outer_latency if nccl else _EAGER["latency"], 0.5),
        "ll_byte_factor": (1 / low.share if nccl else _EAGER["bytes"], 0.5),
        "ll128_byte_factor": (1 / middle.share, 0.05),
        "tree_latency_factor": ((high.tree["net"] + far) / (high.ring["net"] + far), 0.5),
        "tree_byte_factor": (1 / _TREE_SHARE, 0.2),
        "peer_latency": (high.ring["net"] / 2, 0.7),
        "peer_byte_factor": (1.0, 0.3),
        "pair_byte_factor": (1 / _PEER_SHARE, 0.4),
        "switch_byte_factor": (1 / (GENERATIONS[platform.generation].switch or 1.0), 0.1),
    }
    return {name: found[name] for name in PARAMETERS}


def parameter_rows(platform: Platform) -> list[tuple[str, float, float, str]]:
    """Return name, value, 90 % uncertainty factor and meaning of each specified cost per launch, step or byte."""
    found = specified_parameters(platform)
    return [(name, value, math.exp(SCORE_95 * error), PARAMETERS[name]) for name, (value, error) in found.items()]


def specified_half_widths(platform: Platform, coverage: float) -> list[tuple[float, float]]:
    """Return interval half-widths in log(measured / predicted), below and above, for each size bin.

    The widths are quantiles of held-out public measurements, with equal weight for each platform; see
    ``docs/calibration.md``. With the `coverage`, in (0, 1), they grow as those of a normal distribution.
    """
    scale = NormalDist().inv_cdf(0.5 + coverage / 2) / NormalDist().inv_cdf(0.5 + _HALF_WIDTHS_HOLD / 2)
    outer = platform.outer
    direct = outer is None or (outer.transport == "infiniband" and outer.device_direct)
    known = direct and platform.inner.link != "pcie" and platform.counted == "as NCCL does"
    widths = _HALF_WIDTHS_KNOWN if known else _HALF_WIDTHS[platform.counted]
    return [(scale * below, scale * above) for below, above in widths]


def specified_times(platform: Platform, setting: Setting, sizes: ArrayLike) -> Floats | None:
    """Return a collective's times [s] on a platform at sizes [byte] as in nccl-tests; None for no known algorithm.

    With 0 nodes, the ranks fill as few nodes as possible.
    """
    found = specified_bounds(platform, setting, sizes)
    return None if found is None else found.seconds


def specified_bounds(platform: Platform, setting: Setting, sizes: ArrayLike) -> BoundedTimes | None:
    """Return a collective's times [s] on a platform, with bounds, at sizes [byte]; None for no known algorithm.

    Where the links between devices depend on which ones of a node take part, the bounds are of the first ones and of
    the best ones, and the time is in the middle.
    """
    asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
    if setting.ranks < 2:
        alone = np.full(len(asked), _PROTOCOLS["ll"].base if platform.counted == "as NCCL does" else _HOST_LATENCY)
        return BoundedTimes(alone, alone, alone, np.zeros(len(asked)))
    nodes = min(platform.nodes(setting.ranks, setting.nodes), setting.ranks)
    floor = _least_slope(platform, setting, nodes) * asked
    if platform.counted == "through the schedule":
        found = _through_schedules(platform, setting, nodes, asked)
        return None if found is None else BoundedTimes(found, found, found, np.minimum(found, floor))
    first, best = platform.inside(math.ceil(setting.ranks / nodes))
    times = [_nccl_times(platform, setting, nodes, one, asked) for one in (first, best)]
    if times[0] is None:
        return None
    both = np.array(times, dtype=np.float64)
    seconds = np.sqrt(both[0] * both[1])
    return BoundedTimes(seconds, both.min(axis=0), both.max(axis=0), np.minimum(seconds, floor))


def _least_slope(platform: Platform, setting: Setting, nodes: int) -> float:
    """Return the least time per byte of a collective [s/byte], at the line rates of the links between its ranks."""
    ranks, outer = setting.ranks, platform.outer
    if nodes > 1 and outer is not None:
        # What leaves a node, over all of its cards.
        away = 1 - 1 / nodes
        shares = {"all_gather": away, "reduce_scatter": away, "alltoall": away / nodes, "sendrecv": 0.0}
        return shares.get(setting.collective, 1.0) / (outer.nics * outer.rate)
    rates = platform.inside(ranks, line=True)[1]
    if setting.collective == "sendrecv":
        return 1 / rates.next
    if setting.collective in ("broadcast", "reduce"):
        return 1 / rates.least
    if setting.collective == "all_reduce" and not platform.inner.switch_reduction:
        return max(1 / rates.least, 2 * (ranks - 1) / ranks / rates.mean)
    return (1.0 if setting.collective == "all_reduce" else (ranks - 1) / ranks) / rates.least


def _nccl_times(platform: Platform, setting: Setting, nodes: int, inside: InsideRates, asked: Floats) -> Floats | None:
    """Return times [s] of the pinned algorithm; without one, of the fastest, on two nodes averaged with the ring."""
    ways = _like_nccl(platform, setting, nodes, inside)
    if not ways:
        return None
    pinned = setting.algorithm.casefold().rpartition("_")[2]
    wanted = [pinned] if pinned in ways else list(ways)
    factor = _MEASURED_LATENCY.get(setting.collective, _MEASURED_LATENCY_OF_OTHERS)
    found = {}
    for name in wanted:
        # What a device reduces of the vector in a switch, by the time that it takes over the link.
        filled = _SWITCH_FILLED / (setting.ranks * platform.inner_rate()) if name == "nvls" else 1.0
        moved = asked / np.interp(np.log2(asked * filled), *(_REACHED_BY_SWITCH if name == "nvls" else _REACHED))
        found[name] = np.min([factor * low + slope * moved for low, slope in ways[name]], axis=0)
    fastest: Floats = np.min(list(found.values()), axis=0)
    if nodes == 2 and len(found) > 1:
        return np.asarray(np.sqrt(fastest * found["ring"]))
    return fastest


def _like_nccl(
    platform: Platform, setting: Setting, nodes: int, inside: InsideRates
) -> dict[str, list[tuple[float, float]]]:
    """Return, by algorithm, the latency [s] and the seconds per byte of each protocol, by NCCL's tuning formulas."""
    if setting.collective in ("alltoall", "sendrecv"):
        return {"peers": [_peer_cost(platform, setting, nodes, inside)]}
    if setting.collective not in SPECIFIED_COLLECTIVES:
        return {}
    # Over one card all bytes of a node are counted.
    ring, *trees = count_like_nccl(setting.collective, "", setting.ranks, nodes, cards=1)
    per_node = setting.ranks / nodes
    # Between nodes a ring is a chain inside of each.
    inner = inside.ring if nodes == 1 else max(inside.ring, inside.tree)
    outer = platform.outer_rate(per_node) if nodes > 1 else math.inf
    link, far = _link_kind(platform), _extra_latency(platform)
    protocols = _possible_protocols(platform, setting, nodes)

    def latency(steps: Mapping[str, float], base: float, near: float, outside: float) -> float:
        return base + near * steps[link] + outside * (steps["net"] + far)

    # Of an all-gather or reduce-scatter NCCL's tuning model has one step between nodes less.
    between = ring.outer if trees else min(ring.outer, nodes - 1)
    within, moved = ring.inner + ring.outer - between, ring.inner_bytes + ring.outer_bytes
    ways = {
        "ring": [
            (latency(one.ring, one.base, within, between), moved / min(one.share * min(inner, outer), most))
            for one, most in protocols
        ]
    }
    chained = 1 / inside.tree if per_node > 1 else 0.0
    for tree in trees:
        sent = 1.0 if nodes == 2 else 2.0
        slope = max(chained, sent / outer) / _TREE_SHARE
        ways["tree"] = [
            (latency(one.tree, one.base, tree.inner, tree.outer), max(slope / one.share, 2.0 / most))
            for one, most in protocols
        ]
        if setting.protocol.casefold() not in ("", "simple"):
            continue
        if platform.outer is not None and platform.outer.switch_reduction and nodes > 1:
            # The vector leaves a node once and comes back once, in one step of the network.
            ways["collnet"] = [(_COLLNET_LATENCY, max(chained, 1.0 / outer) / _COLLNET_SHARE)]
        switch = GENERATIONS[platform.generation].switch
        if platform.inner.switch_reduction and switch and per_node > 1:
            first = _SWITCH_LATENCY["inner"] + tree.outer * (_SWITCH_LATENCY["outer"] + far)
            # On one node a device sends the vector to be reduced, and its share of what has been.
            passes = 1 / (platform.inner_rate() * switch)
            if nodes == 1:
                ways["nvls"] = [(first, (1 + 1 / per_node) * passes)]
            else:
                ways["nvlstree"] = [(first, max(passes, sent / outer))]
    return ways


def _possible_protocols(platform: Platform, setting: Setting, nodes: int) -> list[tuple[_NcclProtocol, float]]:
    """Return the NCCL protocols that a setting may use, each with its maximum bandwidth [byte/s]."""
    most = {"ll": GENERATIONS[platform.generation].ll if nodes == 1 else _LL_BETWEEN[0 if nodes == 2 else 1]}
    reaches = nodes == 1 or (platform.outer is not None and platform.outer.ordered)
    names = [name for name in _PROTOCOLS if name != "ll128" or (_link_kind(platform) == "nvlink" and reaches)]
    pinned = setting.protocol.casefold()
    return [(_PROTOCOLS[name], most.get(name, math.inf)) for name in ([pinned] if pinned in names else names)]


def _peer_cost(platform: Platform, setting: Setting, nodes: int, inside: InsideRates) -> tuple[float, float]:
    """Return the latency [s] and the seconds per byte of an all-to-all or a send-receive on a platform."""
    simple, per_node = _PROTOCOLS["simple"], setting.ranks / nodes
    near = simple.ring[_link_kind(platform)]
    if setting.collective == "sendrecv":
        if nodes == 1:
            return simple.base + near, 1 / inside.next
        # One rank of a node sends to the next node, and has its own share of the cards for it.
        rate = _PEER_SHARE * min(platform.inner_rate(), platform.outer_rate(1.0))
        return simple.base + simple.ring["net"] + _extra_latency(platform), 1 / rate
    latency = simple.base + (setting.ranks - 1) * (near if nodes == 1 else simple.ring["net"] / 2)
    away = per_node * (1 - 1 / nodes) / platform.outer_rate(per_node)
    return latency, max((per_node - 1) / setting.ranks / inside.peers, away)


def _link_kind(platform: Platform) -> str:
    return "pcie" if platform.inner.link in ("pcie", "memory") else "nvlink"


def _extra_latency(platform: Platform) -> float:
    return 0.0 if platform.outer is None else TRANSPORTS[platform.outer.transport].latency


def _through_schedules(platform: Platform, setting: Setting, nodes: int, sizes: Floats) -> Floats | None:
    """Return times [s] by the fastest algorithm of a CPU library, with eager or rendezvous messages."""
    if platform.library == "openmpi" and not setting.algorithm and setting.collective in OPEN_MPI:
        return _autotuned_times(platform, setting, nodes, sizes)
    asked = Setting(setting.collective, setting.ranks, nodes, setting.algorithm)
    counted = count_steps(asked, nccl=False)
    if not counted:
        return None
    far = _HOST_LATENCY + _extra_latency(platform)
    within = 0.0 if setting.ranks == nodes else _RECEIVED.get(setting.collective, 0.0)
    inner_byte = 1 / platform.inner_rate()
    outer_byte = 1 / platform.outer_rate(setting.ranks / nodes)
    ways = []
    for one in counted:
        latency = one.inner * _MEMORY_LATENCY + one.outer * far
        moved = max(one.inner_bytes * inner_byte + one.outer_bytes * outer_byte, within * inner_byte)
        for slow, long in ((1.0, _EAGER["bytes"]), (_EAGER["latency"], 1.0)):
            ways.append(slow * latency + (long * moved + one.reduced / _REDUCED_PER_SECOND) * sizes)
    return np.asarray(_HOST_LATENCY + np.min(ways, axis=0), dtype=np.float64)


def _autotuned_times(platform: Platform, setting: Setting, nodes: int, sizes: Floats) -> Floats | None:
    """Return times [s] of the algorithm that Open MPI selects at each size."""
    names = np.array([autotuned_algorithm(setting.collective, setting.ranks, size) for size in sizes.tolist()])
    found = np.empty(len(sizes))
    for name in np.unique(names).tolist():
        seconds = _through_schedules(platform, replace(setting, algorithm=name), nodes, sizes[names == name])
        if seconds is None:
            return None
        found[names == name] = seconds
    return found


OPEN_MPI: dict[str, dict[int, str]] = {}
for _row in read_shipped_rows("data/open_mpi.csv"):
    OPEN_MPI.setdefault(_row["collective"], {})[int(_row["ranks"])] = _row["algorithms"]
"""What Open MPI's component ``tuned`` takes in 5.0 with a single communicator and commutative reductions, by collective
and from which number of ranks on: names, and between them the size [byte] from
which on the next holds, of an all-gather that of the contribution of a rank. Where an algorithm gives way to another
that suits the number of ranks, or has elements of 4 bytes for every rank, the other one stands. Of a reduce-scatter of
few bytes, which the library makes of a reduction and a scatter, that of the next size does.
All-to-all and broadcast are missing: measurements contradict one table, and the other names algorithms without a
schedule here."""


def autotuned_algorithm(collective: str, ranks: int, nbytes: float) -> str:
    """Return the algorithm Open MPI selects for a total size [byte] as in nccl-tests; "" if unknown."""
    known = OPEN_MPI.get(collective, {})
    if ranks < 2 or not known:
        return ""
    of_ranks = sorted(known)
    words = known[of_ranks[bisect_right(of_ranks, ranks) - 1]].split()
    names, limits = words[::2], [float(word) for word in words[1::2]]
    name = names[bisect_right(limits, nbytes / ranks if collective == "all_gather" else nbytes)]
    if collective == "all_gather" and name == "recursive_doubling" and ranks & (ranks - 1):
        return "bruck"
    return "ring" if name == "neighbor" and ranks % 2 else name
