"""The step model: a collective's time is a sum of costs of its launch, steps, bytes sent and bytes reduced.

Steps and bytes of collectives are counted from schedules or by NCCL's formulas, apart inside a node and between nodes.
Of NCCL, a *ring* passes chunks around; a *tree*, for all-reduce, is a chain inside each node and a double binary tree
between nodes; *peers*, for all-to-all, are messages from each rank to each other; a *pair*, for send-receive, is one
from each rank to the next; the *switch* reduces inside an NVLink domain.

For every algorithm and protocol of a collective, the time is launch + steps * latency + peers * peer latency + bytes *
seconds per byte + reduced * gamma, and the library takes the fastest; the minimum is smooth, so that it can be fitted.
Of NCCL's protocols, *LL* sends a flag with every 4 bytes, *LL128* with every 120, *Simple* waits at each step; MPI's
eager and rendezvous messages stand for LL and Simple. A pinned one counts alone.
"""

# References: A. Alexandrov et al., "LogGP: Incorporating long messages into the LogP model", SPAA 1995. Z. Hu et al.,
# "Demystifying NCCL", arXiv:2507.04786, 2025. NVIDIA, NCCL, ``src/graph/tuning.cc``. <https://github.com/NVIDIA/nccl>
# References: NVIDIA, NCCL, ``src/graph/tuning.cc``; P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full
# bandwidth broadcast, reduction and scan", Parallel Computing 35, 2009; R. Thakur et al., IJHPCA 19, 2005.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simnet.base import plugins
from simnet.base.arrays import Floats
from simnet.base.file_io import read_shipped_rows
from simnet.collectives import registry
from simnet.cost_models.calibration.curves import Curve, Setting
from simnet.schedule import Round

CARD_PER_RANK = math.inf
"""Number of cards that stands for one card per rank."""

MAX_RANKS = 4096
"""The most ranks whose schedule is made; beyond, and for NCCL, closed forms count the steps."""


AlgorithmKind: TypeAlias = Literal["ring", "tree", "peers", "pair", "switch"]
"""Communication pattern of an algorithm; latency and bandwidth of a step differ by pattern."""


class StepCount(NamedTuple):
    """How many steps an algorithm takes, and how many bytes it moves, in a collective of one byte in total.

    Steps and bytes on the critical path `inner`, inside a node, and `outer`, out of the busiest node or over one of its
    cards; bytes `reduced` by a rank; `peers` of a rank; `kind`, the shape of the algorithm.
    """

    inner: float
    outer: float
    inner_bytes: float
    outer_bytes: float
    reduced: float = 0.0
    peers: float = 0.0
    kind: AlgorithmKind = "ring"


# Algorithms of MPI libraries that count where they are named alone, and as what they count: one after the other.
_COUNTED_LIKE: Mapping[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("all_gather", "recursive_doubling"): (("all_gather", "bruck"),),
    ("all_reduce", "nonoverlapping"): (("reduce", "binomial"), ("broadcast", "binomial")),
    ("reduce_scatter", "butterfly"): (("reduce_scatter", "recursive_halving"),),
}


def known_algorithms() -> tuple[str, ...]:
    """Return the names of algorithms whose steps can be counted: NCCL's, then those counted from schedules."""
    names = {one.algorithm for one in registry.all_collectives() if one.calibrated}
    return ("ring", "tree", *sorted(names - {"ring", "tree"}))


def _known_algorithms(collective: str) -> dict[str, registry.Collective]:
    """Return, by name, a collective's algorithms whose steps and bytes can be counted in their schedules."""
    return _registered_algorithms(collective, plugins.plugins_allowed())


# Fitting asks for each setting; looking through packages takes time.
@cache
def _registered_algorithms(collective: str, _allowed: bool) -> dict[str, registry.Collective]:
    return {one.algorithm: one for one in registry.all_collectives() if one.calibrated and one.operation == collective}


def counted_algorithms(collective: str, algorithm: str) -> tuple[str, ...]:
    """Return the algorithms of a collective whose steps can be counted; `algorithm` may restrict them by name."""
    known = _known_algorithms(collective)
    alone = [name for of, name in (("all_gather", "neighbor"), *_COUNTED_LIKE) if of == collective]
    word = algorithm.casefold()
    named = tuple(name for name in (*known, *alone) if name in word)
    return named or tuple(known)


@cache
def count_schedule(collective: str, algorithm: str, ranks: int, nodes: int) -> StepCount:
    """Return an algorithm's step count from its schedule; rounds that cross nodes count as steps between nodes.

    Ranks (2 .. `MAX_RANKS`) fill nodes in blocks; 0 nodes means one for each rank.
    """
    rounds: Iterable[Round] = ()
    for of, name in _COUNTED_LIKE.get((collective, algorithm), ((collective, algorithm),)):
        rounds = (*rounds, *(_neighbour_rounds(ranks) if name == "neighbor" else _unit_rounds(of, name, ranks)))
    node = np.arange(ranks) * (nodes or ranks) // ranks
    counted: dict[int, tuple[float, float, float, float, float]] = {}
    total = np.zeros(5)
    for one in rounds:
        if id(one) not in counted:
            counted[id(one)] = _count_round(one, node)
        total += counted[id(one)]
    inner, outer, inner_bytes, outer_bytes, reduced = (float(value) for value in total)
    return StepCount(inner, outer, inner_bytes, outer_bytes, reduced)


def _unit_rounds(collective: str, algorithm: str, ranks: int) -> Iterable[Round]:
    """Return the rounds of an algorithm for a total size of one byte."""
    found = _known_algorithms(collective)[algorithm]
    work = {"gamma": 1.0} if "gamma" in found.options else {}
    return found.schedule_of_vector(ranks, 1.0, **work).rounds


def _neighbour_rounds(ranks: int) -> Iterable[Round]:
    """Return the rounds of a neighbour-exchange all-gather (Chen et al., 2005), or of a ring if `ranks` is odd."""
    if ranks % 2:
        return _unit_rounds("all_gather", "ring", ranks)
    rank = np.arange(ranks)
    first, even, odd = (
        Round(rank, (rank + np.where((rank + side) % 2, -1, 1)) % ranks, many / ranks)
        for side, many in ((0, 1), (0, 2), (1, 2))
    )
    return [first, *(odd if number % 2 else even for number in range(1, ranks // 2))]


def count_like_nccl(
    collective: str, algorithm: str, ranks: int, nodes: int, switch: bool = False, cards: float = math.inf
) -> tuple[StepCount, ...]:
    """Return step counts by NCCL's formulas, of `algorithm` or, if NCCL has none of that name, of all it may choose.

    A chunk crosses the network once per node; trees are pipelined. Between two nodes each half of the vector crosses
    once each way. 0 `nodes` are a node for each rank; with `switch`, switches inside a node reduce; each of the `cards`
    of a node has a ring of its own, infinite for one per rank.
    """
    many = nodes or ranks
    each = ranks / many
    rails = min(each, cards)
    share, alone = (ranks - 1) / ranks, many == 1
    if collective == "sendrecv":
        return (StepCount(float(alone), float(not alone), float(alone), float(not alone), kind="pair"),)
    if collective == "alltoall":
        away, peers = 0.0 if alone else (1 - 1 / many) * each / rails, ranks - (1.0 if alone else each)
        return (StepCount(float(alone), float(not alone), (each - 1) / ranks, away, 0.0, peers, "peers"),)
    passes = 2 if collective == "all_reduce" else 1
    steps = passes * (ranks - 1)
    crossing = 0 if alone else min(passes * many, steps)
    factor = {"all_reduce": 2 * share, "broadcast": 1.0, "reduce": 1.0}.get(collective, share)
    reduced = share if collective in ("all_reduce", "reduce_scatter") else 1.0 if collective == "reduce" else 0.0
    ring = StepCount(steps - crossing, crossing, factor if alone else 0.0, 0.0 if alone else factor / rails, reduced)
    if collective != "all_reduce":
        return (ring,)
    depth = 0 if alone else 2 * math.ceil(math.log2(many))
    sent = 0.0 if alone else (1.0 if many == 2 else 2.0) / rails
    tree = StepCount(2 * (each - 1), depth, 2.0 if alone else 0.0, sent, 1.0, kind="tree")
    ways = {"ring": (ring,), "tree": (tree,)}
    inside = (StepCount(2, 0, 1 + 1 / ranks, 0.0, kind="switch"),) if switch and alone else ()
    if algorithm.casefold().startswith("nvls") and inside:
        return inside
    return ways.get(algorithm.casefold()[:4], (ring, tree, *inside))


def count_steps(setting: Setting, nccl: bool, switch: bool = False, cards: float = math.inf) -> tuple[StepCount, ...]:
    """Return the step count of each algorithm a setting may use; empty if no algorithm is known."""
    alone, nodes = setting.collective == "sendrecv", min(setting.nodes, setting.ranks)
    if setting.ranks < 2 or not (alone or _known_algorithms(setting.collective)):
        return ()
    if nccl:
        return count_like_nccl(setting.collective, setting.algorithm, setting.ranks, nodes, switch, cards)
    if alone:
        return count_like_nccl(setting.collective, "", setting.ranks, nodes)
    if setting.ranks > MAX_RANKS:
        return ()
    names = counted_algorithms(setting.collective, setting.algorithm)
    return tuple(count_schedule(setting.collective, name, setting.ranks, nodes) for name in names)


def _count_round(one: Round, node: np.ndarray) -> tuple[float, float, float, float, float]:
    """Return a round's steps inside nodes and between nodes, bytes inside and between nodes, and reduced bytes."""
    reduced = float(np.max(one.compute))
    if not len(one):
        return 0.0, 0.0, 0.0, 0.0, reduced
    crosses = node[one.src] != node[one.dst]
    if crosses.any():
        away = one.nbytes[crosses]
        busiest = max(np.bincount(node[ends][crosses], weights=away).max() for ends in (one.src, one.dst))
        return 0.0, 1.0, 0.0, float(busiest), reduced
    busiest = max(np.bincount(ends, weights=one.nbytes).max() for ends in (one.src, one.dst))
    return 1.0, 0.0, float(busiest), 0.0, reduced


_PARAMETERS = read_shipped_rows("data/step_parameters.csv")
PARAMETERS = {row["parameter"]: row["meaning"] for row in _PARAMETERS}
"""The parameters and their units; of the file, typical values and the spreads of their logarithms over systems.

Typical on the public sets of docs/calibration.md; where there is none, it is scaled to the data.
"""

PROTOCOLS = ("LL", "LL128", "Simple")
"""The protocols, in order of latency."""

_NAMES = tuple(PARAMETERS)
# How much each constant matters is said as median errors of other collectives, predicted from all-reduce and
# send-receive alone, on eight public sets.

# s: the most that a call typically costs; a longer time is not taken for launch. With half, 16 % become 23 % on one
# set; twice as much changes nothing.
_LAUNCH = 3e-5
# Both are a message through proxy and network, but peers need not wait for one another. With half or twice as much,
# 31 % become 44 and 39 % on Polaris, 24 % become 29 and 31 % on Sirius, which have all-to-alls.
_PEER_OVER_STEP = 0.6
# Two ways that are equally fast count as one that is faster by 8 %. From 4 to 16, errors change by at most 4 points. At
# 2 they are several times as large on four sets; a sharp minimum has no slope in ways that are not the fastest.
_SHARPNESS = 8.0
# A parameter that is one spread from typical costs as much as errors of 2 % everywhere. Half of that changes errors by
# at most 5 points, and a tenth nearly doubles those of Polaris and Sirius; with twice as much, 17 % become 56 % on
# AWS p4d.
_PRIOR = 0.02
_LITTLE = 0.7  # Of its variance half is left.
# Sizes of a curve that are fitted, evenly spread, for speed; 10 or 40 change errors by at most 2 points.
_MAX_SIZES = 20
_AT_LEAST_ONE = ("ll128_latency_factor", "simple_latency_factor", "ll_byte_factor", "ll128_byte_factor")
# Bounded by a factor of exp(1.5), 4.5, either way.
_NEAR_ONE = ("tree_latency_factor", "tree_byte_factor", "peer_byte_factor", "pair_byte_factor", "switch_byte_factor")
# byte/s in one direction, of Hopper and Blackwell, and what of it only switches that reduce reach.
_NVLINK = (450e9, 900e9)
_ABOVE_A_RING = (0.9, 1.2)

# byte/s of a device inside its node, where nothing was measured there: PCIe 4.0, the mean of the shipped platforms, and
# the fastest of them.
_UNMEASURED_INSIDE = (0.53 * 31.5e9, 290e9, 720e9)
# Standard error of the logarithm of a rate that is given, as that of a specification.
_GIVEN_ERROR = 0.2

_TERMS = ("launch", "inner", "outer", "inner_bytes", "outer_bytes", "reduced", "peers")
_Ways = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class StepModel:
    """Costs per launch, step and byte, fitted to measurements: `values` of `PARAMETERS`, errors of their logarithms.

    With `nccl`, steps are counted as NCCL does. `switch`: switches reduce inside nodes. Nodes have `cards` cards.
    """

    nccl: bool
    values: tuple[float, ...]
    errors: tuple[float, ...] = ()
    switch: bool = False
    cards: float = CARD_PER_RANK

    def at(self, setting: Setting, sizes: ArrayLike) -> Floats | None:
        """Return a collective's times [s] at sizes [byte]; None if no algorithm of the collective is known."""
        found = self.by_algorithm(setting, sizes)
        return None if found is None else _soft_minimum(found)[0]

    def by_algorithm(self, setting: Setting, sizes: ArrayLike) -> Floats | None:
        """Return a collective's times [s] at n sizes [byte] by algorithm and protocol, (n, pairs); None if unknown."""
        ways = count_steps(setting, self.nccl, self.switch, self.cards)
        asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
        if not ways:
            return None
        terms = _term_times(np.log(self.values), *_way_table(ways, self.nccl, setting.protocol), asked)
        return np.asarray(terms.sum(axis=2))

    def as_if(self, cards: float, each: float) -> StepModel:
        """Return the costs for `cards` network cards per node, given that measured nodes had `each` ranks."""
        place = _NAMES.index("outer_seconds_per_byte")
        values = list(self.values)
        values[place] *= min(each, cards) / min(each, self.cards)
        return replace(self, values=tuple(values), cards=cards)

    @property
    def measured_inside(self) -> bool:
        """Whether the bandwidth inside nodes is known, from measurements or from the user; always true without NCCL."""
        return not self.nccl or "inner_seconds_per_byte" not in undetermined_parameters(self)

    def with_inner_rate(self, rate: float, error: float = _GIVEN_ERROR) -> StepModel:
        """Return the costs for a bandwidth `rate` of devices inside a node [byte/s], with its relative error."""
        place = _NAMES.index("inner_seconds_per_byte")
        values, errors = list(self.values), list(self.errors)
        values[place], errors[place] = 1 / rate, error
        return replace(self, values=tuple(values), errors=tuple(errors))

    def inside(self) -> tuple[StepModel, StepModel, StepModel]:
        """Return the costs for the slowest, usual and fastest bandwidth inside nodes; all equal if it was measured."""
        if self.measured_inside:
            return self, self, self
        slow, usual, fast = (self.with_inner_rate(rate, math.inf) for rate in _UNMEASURED_INSIDE)
        return slow, usual, fast


def fit_step_model(curves: Sequence[Curve], nccl: bool, cards: float = CARD_PER_RANK) -> StepModel | None:
    """Fit costs per launch, step and byte to all curves of a system; None if no curve has a known algorithm.

    Relative errors count, large ones less (soft L1); what the data do not determine stays near typical values.
    """
    from scipy.optimize import least_squares

    switch = nccl and has_switch_reduction(curves)
    parts, measured = [], []
    for curve in curves:
        if ways := count_steps(curve.setting, nccl, switch, cards):
            count = len(curve.sizes)
            chosen = np.unique(np.linspace(0, count - 1, min(count, _MAX_SIZES)).round().astype(int))
            parts.append((*_way_table(ways, nccl, curve.setting.protocol), curve.sizes[chosen]))
            measured.append(curve.seconds[chosen])
    if not parts:
        return None
    seconds = np.concatenate(measured)
    start, spread = _start_values(parts, seconds, nccl)
    typical = np.eye(len(_NAMES))
    if any(counts[:, _TERMS.index("outer")].any() for counts, *_ in parts):
        # Between nodes, what a peer costs goes with what a step costs.
        peer, step = _NAMES.index("peer_latency"), _NAMES.index("outer_latency")
        typical[peer, step] = -1.0
        start[peer] = start[step] + np.log(_PEER_OVER_STEP)
    typical /= spread[:, None]
    weight = _PRIOR * np.sqrt(len(seconds))

    def log_errors(logs: Floats) -> Floats:
        times = [_soft_minimum(_term_times(logs, *one).sum(axis=2))[0] for one in parts]
        return np.concatenate([np.log(np.concatenate(times) / seconds), weight * (typical @ (logs - start))])

    def slopes(logs: Floats) -> Floats:
        return np.concatenate([*(_log_slopes(logs, *one) for one in parts), weight * typical])

    low, high = start - 12, start + 12
    low[[_NAMES.index(name) for name in _AT_LEAST_ONE]] = 0.0
    near = [_NAMES.index(name) for name in _NEAR_ONE]
    low[near], high[near] = -1.5, 1.5
    found = least_squares(log_errors, start, slopes, loss="soft_l1", f_scale=0.1, bounds=(low, high), max_nfev=100)
    noise = max(float(np.median(np.abs(found.fun[: len(seconds)]))) / 0.6745, 1e-6)
    # What the data tell, by the Jacobian at the optimum, beside what is typical: the spread of that is no measurement,
    # and so not the smaller the less the data scatter.
    jacobian = np.asarray(found.jac, dtype=np.float64)[: len(seconds)] / noise
    errors = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian + typical.T @ typical)))
    return StepModel(nccl, tuple(np.exp(found.x).tolist()), tuple(errors.tolist()), switch, cards)


def undetermined_parameters(steps: StepModel) -> tuple[str, ...]:
    """Return the names of parameters that the data hardly constrain, so that they are near typical values.

    Their standard error is more than 0.7 of the spread of typical values.
    """
    if not steps.errors:
        return ()
    _, spread = _typical_parameters(steps.nccl)
    return tuple(name for name, error, one in zip(_NAMES, steps.errors, spread, strict=True) if error > _LITTLE * one)


def has_switch_reduction(curves: Sequence[Curve]) -> bool:
    """Return whether measured bandwidths show in-switch reduction (NVLink SHARP) inside nodes.

    The bus bandwidth of an all-reduce on one node is then 0.9 to 1.2 times that of the NVLink of a Hopper or Blackwell
    GPU (450, 900 GB/s in one direction); a ring reaches some 0.8 of it.
    """
    inside = [one for one in curves if (one.setting.collective, one.setting.nodes) == ("all_reduce", 1)]
    bus = [2 * (1 - 1 / one.setting.ranks) * float((one.sizes / one.seconds).max()) for one in inside]
    return any(_ABOVE_A_RING[0] * link <= one <= _ABOVE_A_RING[1] * link for one in bus for link in _NVLINK)


def _allowed_protocols(cost: StepCount, nccl: bool, pinned: str) -> tuple[str, ...]:
    """Return the protocols of an algorithm: the pinned protocol if the algorithm has it, else all."""
    if not nccl:
        return "LL", "Simple"
    if cost.kind == "switch":
        return ("Simple",)
    known = ("LL128", "Simple") if cost.kind == "peers" else PROTOCOLS
    named = tuple(name for name in known if name.casefold() == pinned.casefold())
    return named or known


def _way_table(ways: Sequence[StepCount], nccl: bool, pinned: str) -> _Ways:
    """Return counts of launches, steps and bytes for each algorithm and protocol, and for each its `_term_powers`."""
    each = [(one, protocol) for one in ways for protocol in _allowed_protocols(one, nccl, pinned)]
    counts = [[1.0, *(getattr(one, term) for term in _TERMS[1:])] for one, _ in each]
    return np.array(counts), np.array([_term_powers(one.kind, protocol) for one, protocol in each])


def _term_powers(kind: str, protocol: str) -> Floats:
    """Return the exponents, 0 or 1, of parameters whose product is the cost of a term; shape (terms, parameters)."""
    word = protocol.casefold()
    latency = [] if protocol == "LL" or kind == "peers" else [f"{word}_latency_factor"]
    nbytes = [] if protocol == "Simple" else [f"{word}_byte_factor"]
    along = "" if kind == "ring" else f"{kind.removesuffix('s')}_byte_factor"
    of = {
        "launch": ["launch"],
        "inner": ["inner_latency", *latency],
        "outer": ["outer_latency", *latency, f"{kind}_latency_factor"],
        "inner_bytes": ["inner_seconds_per_byte", *nbytes, along if kind != "peers" else ""],
        "outer_bytes": ["outer_seconds_per_byte", *nbytes, along],
        "reduced": ["gamma"],
        "peers": ["peer_latency"],
    }
    return np.array([[float(name in of[term]) for name in _NAMES] for term in _TERMS])


def _term_times(logs: Floats, counts: Floats, powers: Floats, sizes: Floats) -> Floats:
    """Return the time [s] of each cost term, shape (sizes, ways, terms); a way is an algorithm with a protocol."""
    grows = np.array([term in ("inner_bytes", "outer_bytes", "reduced") for term in _TERMS])
    each = counts * np.exp(powers @ logs)
    return np.asarray(each[None] * np.where(grows, sizes[:, None, None], 1.0), dtype=np.float64)


def _soft_minimum(ways: Floats) -> tuple[Floats, Floats]:
    """Return the smooth minimum of the times `ways` over the last axis, and d log(minimum) / d log(each time)."""
    fastest = ways.min(axis=1)
    share = (ways / fastest[:, None]) ** -_SHARPNESS
    total = share.sum(axis=1)
    return fastest * total ** (-1 / _SHARPNESS), share / total[:, None]


def _log_slopes(logs: Floats, counts: Floats, powers: Floats, sizes: Floats) -> Floats:
    """Return the derivatives of modelled times, d log(time) / d log(parameter), shape (sizes, parameters)."""
    terms = _term_times(logs, counts, powers, sizes)
    ways = terms.sum(axis=2)
    _, share = _soft_minimum(ways)
    return np.asarray(np.einsum("sw,swt,wtp->sp", share / ways, terms, powers), dtype=np.float64)


def _start_values(parts: Sequence[tuple[Floats, Floats, Floats]], seconds: Floats, nccl: bool) -> tuple[Floats, Floats]:
    """Return initial logarithms of parameters (typical values scaled to the data) and their standard deviations."""
    typical, spread = _typical_parameters(nccl)
    moved = [counts[:, 3:5].sum(axis=1).min() * sizes for counts, _, sizes in parts]
    per_byte = float(np.quantile(seconds / np.concatenate(moved), 0.1))
    scaled = {"inner_seconds_per_byte": per_byte, "outer_seconds_per_byte": per_byte}
    if nccl:
        least = float(seconds.min())
        latency = [typical[_NAMES.index(name)] for name in ("inner_latency", "outer_latency")]
        steps = min(float((counts[:, 1:3] @ latency).min()) for counts, *_ in parts)
        scaled["launch"] = min(max(least - steps, 0.3 * least), _LAUNCH)
    else:
        ends = np.cumsum([len(sizes) for *_, sizes in parts])
        first = seconds[np.concatenate([[0], ends[:-1]])]
        fewest = np.array([counts[:, 1:3].sum(axis=1).min() for counts, *_ in parts])
        scaled["outer_latency"] = float(np.median(first / (1 + fewest)))
        scaled["launch"] = min(scaled["outer_latency"] / 2, _LAUNCH)
    return np.log([scaled.get(name, value) for name, value in zip(_NAMES, typical.tolist(), strict=True)]), spread


def _typical_parameters(nccl: bool) -> tuple[Floats, Floats]:
    """Return typical parameter values and the standard deviations of their logarithms."""
    name = "nccl" if nccl else "mpi"
    found = np.array([[float(row[one] or np.nan) for one in (name, f"{name}_spread")] for row in _PARAMETERS])
    return found[:, 0], found[:, 1]
