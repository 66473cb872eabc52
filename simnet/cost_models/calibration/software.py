"""Software overhead of a calibrated system: the time of a collective minus that of its messages on idle links.

A call that the cost model knows keeps its messages; the rest of its predicted time is software, spread evenly over its
rounds. Alone on an idle network a call takes its predicted time. Messages that take longer than the call are shortened.
If they do even without bytes, those of the algorithm with the least latency stand for them, on links with reduced
latencies. Chunks of unequal size get the software, and the share of bytes, of equal ones. A round outside all calls is
a send-receive of its largest message.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simnet.base.arrays import Floats, Ranks
from simnet.base.errors import InputError
from simnet.collectives import registry
from simnet.cost_models.calibration.cost_model import CalibratedCostModel, Prediction
from simnet.network import STACKS, Network, Stack
from simnet.schedule import Call, Round, Schedule
from simnet.topologies.graphs import Graph

if TYPE_CHECKING:
    import pandas as pd

_LIBRARIES = {"nccl-tests": "nccl", "rccl-tests": "nccl"}

# Maximum number of cached call fits; a ring of ranks has one per size.
_KEPT = 4096

# How close shares of bytes are found, and what of a time is a rounding.
_CLOSE, _ROUNDING = 1e-6, 1e-12
# Latencies that pass until a message has arrived, where words between libraries go before it.
_TRIPS = {"ready": 2, "request": 3}


class CallPrediction(NamedTuple):
    """A collective call, or ``sendrecv`` for messages outside calls, with its predicted time [s], None if unknown."""

    operation: str
    algorithm: str
    ranks: int
    nodes: int
    nbytes: float
    prediction: Prediction | None


class _MessageFit(NamedTuple):
    """Changes that give a call its predicted time: another algorithm, the share of bytes sent, and added times [s]."""

    algorithm: str | None = None
    share: float = 1.0
    each: float = 0.0
    first: float = 0.0


class CalibratedSoftware:
    """Adds software overhead to schedules, so that calls take their calibrated times on idle links.

    `graph` is the network of the `model` with the simulated number of nodes, `file` the name of the model's file.
    """

    def __init__(self, model: CalibratedCostModel, graph: Graph, file: str = "the calibration") -> None:
        self.model, self.file = model, file
        network = model.network or {}
        self._per_node = int(network.get("multi_gpu_nodes", {}).get("gpus_per_node", 0))
        self.stack = calibrated_stack(model)
        self.graph = self._with_lower_latency(graph)
        self._fits: dict[tuple[object, ...], _MessageFit] = {}

    def __call__(self, schedule: Schedule, hosts: Ranks) -> Schedule:
        """Return a schedule with software overhead added to collective calls and to messages outside calls."""
        rounds: list[Round] = []
        calls: list[Call] = []
        changed: dict[int, Round] = {}
        for call, part in _parts_of(schedule):
            if call is None:
                rounds += [self._lone_round(one, schedule.n_ranks, hosts, changed) for one in part]
            else:
                own = self._call_rounds(call, part, schedule.n_ranks, hosts)
                calls.append(call._replace(first=len(rounds), rounds=len(own)))
                rounds += own
        return Schedule(schedule.n_ranks, rounds, calls)

    def known(self, schedule: Schedule, hosts: Ranks) -> list[CallPrediction]:
        """Return predicted times of a schedule's calls, and of messages outside calls; rank r is on ``hosts[r]``."""
        asked = []
        for call, part in _parts_of(schedule):
            if call is None:
                asked += [("sendrecv", "", [one], float(one.nbytes.max())) for one in part if len(one)]
            else:
                asked.append((call.operation, call.algorithm, list(part), call.nbytes))
        return [self._known(what, by, hosts[_participating_ranks(part)], size) for what, by, part, size in asked]

    def _known(self, operation: str, algorithm: str, places: Ranks, nbytes: float) -> CallPrediction:
        nodes = len(set((places // self._per_node).tolist())) if self._per_node else None
        try:
            prediction = self.model.fastest(operation, algorithm, places.size, nbytes, nodes=nodes)
        except InputError:
            prediction = None
        return CallPrediction(operation, algorithm, places.size, nodes or 0, nbytes, prediction)

    @cached_property
    def _idle(self) -> Network:
        """The calibrated network without other traffic."""
        return Network(self.graph, stack=self.stack)

    def _seconds(self, schedule: Schedule, hosts: Ranks) -> float:
        return self._idle.time(schedule, placement=hosts).duration

    def _call_rounds(self, call: Call, rounds: Sequence[Round], n_ranks: int, hosts: Ranks) -> list[Round]:
        """Return the rounds of a call, with the software overhead of a calibrated system added."""
        ranks = _participating_ranks(rounds)
        # Calls that differ in their root alone differ in their first round.
        root = rounds[0].src.tobytes() + rounds[0].dst.tobytes()
        key = call.operation, call.algorithm, call.nbytes, call.sizes is None, root, hosts[ranks].tobytes()
        fit = self._fit_of(key, lambda: self._fitted(call, rounds, ranks, n_ranks, hosts))
        if fit.algorithm is not None:
            # What ranks do beside sending they do before the messages that stand for theirs.
            work = Schedule(n_ranks, rounds).compute()
            rounds = self._rounds_by(call, fit.algorithm, ranks, n_ranks)
            rounds = [_change_round(rounds[0], n_ranks, ranks, 1.0, 0.0, work), *rounds[1:]]
        return _spread_software(rounds, n_ranks, ranks, fit)

    def _fitted(self, call: Call, rounds: Sequence[Round], ranks: Ranks, n_ranks: int, hosts: Ranks) -> _MessageFit:
        """Return the changes to messages and overhead that give a call its predicted time on idle links."""
        prediction = self._known(call.operation, call.algorithm, hosts[ranks], call.nbytes).prediction
        if prediction is None:
            return _MessageFit()
        even = call._replace(sizes=None)
        own = [Round(one.src, one.dst, one.nbytes, 0.0, one.phase) for one in rounds]
        if call.sizes is not None:
            own = self._rounds_by(even, call.algorithm, ranks, n_ranks)
        target = prediction.seconds
        other = None
        if self._scaled(own, n_ranks, hosts) > target:
            by_name = {name: self._rounds_by(even, name, ranks, n_ranks) for name in self._others(call, ranks.size)}
            other = min(by_name, key=lambda name: self._scaled(by_name[name], n_ranks, hosts), default=None)
            own = own if other is None else by_name[other]
        share = self._share(own, n_ranks, hosts, target)

        def missing(each: float) -> float:
            spread = _spread_software(own, n_ranks, ranks, _MessageFit(None, share, each))
            return target - self._seconds(Schedule(n_ranks, spread), hosts)

        left = missing(0.0)
        if left <= _ROUNDING * target:
            return _MessageFit(other, share)
        each = left / len(own)
        rest = missing(each)
        # Where messages of several rounds meet, they may do so the more the further they are apart.
        if each <= _ROUNDING * target or rest < -_ROUNDING * target:
            return _MessageFit(other, share, 0.0, left)
        return _MessageFit(other, share, each, rest if rest > _ROUNDING * target else 0.0)

    def _share(self, rounds: Sequence[Round], n_ranks: int, hosts: Ranks, target: float) -> float:
        """Return the largest share of bytes, up to 1, at which the messages of `rounds` take at most `target` [s]."""

        def excess(share: float) -> float:
            return self._scaled(rounds, n_ranks, hosts, share) - target

        if excess(1.0) <= 0:
            return 1.0
        if excess(0.0) >= 0:
            return 0.0
        # Few calls come to this, and it takes long to import.
        from scipy.optimize import brentq

        # Times are straight in bytes, but for where a message is no longer eager.
        found = float(brentq(excess, 0.0, 1.0, xtol=_CLOSE))
        return found if excess(found) <= _ROUNDING * target else max(found - 2 * _CLOSE, 0.0)

    def _scaled(self, rounds: Sequence[Round], n_ranks: int, hosts: Ranks, share: float = 0.0) -> float:
        """Return how long rounds take on idle links [s] if all messages are scaled to `share` of their bytes."""
        scaled = _spread_software(rounds, n_ranks, np.arange(n_ranks), _MessageFit(None, share))
        return self._seconds(Schedule(n_ranks, scaled), hosts)

    def _rounds_by(self, call: Call, algorithm: str, ranks: Ranks, n_ranks: int) -> list[Round]:
        """Return a call's rounds by another algorithm, with the call's sizes, or equal sizes if the call has none."""
        found = registry.find_collective(call.operation, algorithm)
        if found is None:
            raise ValueError(f"there is no {call.operation} by {algorithm}")
        P = ranks.size
        if call.sizes is not None:
            sizes = call.sizes.reshape(P, P) if call.operation == "alltoall" else call.sizes
            schedule = found.schedule_of_sizes(sizes)
        else:
            schedule = found.schedule_of_vector(P, call.nbytes)
        return list((schedule if n_ranks == P else schedule.embed(ranks, n_ranks)).rounds)

    def _others(self, call: Call, n_ranks: int) -> list[str]:
        """Return the algorithms that may replace a call's algorithm; empty for operations with a root."""
        if call.operation in ("broadcast", "reduce"):
            return []
        found = _library_algorithms(call.operation, n_ranks)
        return [one.algorithm for one in found if call.sizes is None or one.varying is not None]

    def _lone_round(self, one: Round, n_ranks: int, hosts: Ranks, changed: dict[int, Round]) -> Round:
        """Return a round outside collective calls, with the software overhead of its largest message added."""
        if not len(one):
            return one
        if id(one) not in changed:
            ranks, largest = _participating_ranks([one]), int(np.argmax(one.nbytes))
            among = ranks
            ends, nbytes = (int(one.src[largest]), int(one.dst[largest])), float(one.nbytes[largest])
            if self._per_node:
                node = hosts // self._per_node
                if (node[one.src] == node[one.dst]).all():
                    # Nodes that exchange nothing do the same at once.
                    among = ranks[node[ranks] == node[ends[0]]]
            key = nbytes, among.size, *((ends, hosts[among].tobytes()) if self._per_node else ())

            def rest() -> _MessageFit:
                prediction = self._known("sendrecv", "", hosts[among], nbytes).prediction
                takes = self._seconds(Schedule(n_ranks, [Round([ends[0]], [ends[1]], nbytes)]), hosts)
                return _MessageFit(each=0.0 if prediction is None else max(prediction.seconds - takes, 0.0))

            changed[id(one)] = _change_round(one, n_ranks, ranks, 1.0, self._fit_of(key, rest).each)
        return changed[id(one)]

    def _fit_of(self, key: tuple[object, ...], make: Callable[[], _MessageFit]) -> _MessageFit:
        """Return the cached fit for `key`, computed by `make` if it is new; the cache has at most `_KEPT` fits."""
        if key not in self._fits:
            if len(self._fits) >= _KEPT:
                self._fits.clear()
            self._fits[key] = make()
        return self._fits[key]

    def _with_lower_latency(self, graph: Graph) -> Graph:
        """Return `graph`, or a copy with lower latencies if all library algorithms would exceed a measured time."""
        share, bare, each = 1.0, Network(graph), self._per_node or 1
        for one in self.model.model.known:
            # Ranks fill nodes in blocks.
            slots = -(-one.ranks // (one.nodes or -(-one.ranks // each))) if each > 1 else 1
            last = (one.ranks - 1) // slots * each + (one.ranks - 1) % slots
            found = _library_algorithms(one.collective, one.ranks)
            costs = [float(known.cost(1.0, 0.0, 0.0, one.ranks)) for known in found if known.cost is not None]
            if one.ranks < 2 or slots > each or last >= graph.graph["hosts"] or not costs:
                continue
            steps = min(costs) * bare.path(0, last)[0] * _TRIPS.get(self.stack.send_completion, 1)
            if steps > 0:
                share = min(share, one.at(one.smallest).item() / steps)
        if share == 1.0:
            return graph
        drawn = graph.copy()
        for *_, link in drawn.edges(data=True):
            link["latency"] *= share
        return drawn


def stack_measured(rows: pd.DataFrame) -> str:
    """Return the transport stack of the measured library; "" if the rows name no library or several.

    Benchmarks of NCCL, RCCL and simnet tell it; those of MPI do not.
    """
    tools = set(rows["tool"].fillna("").astype(str))
    found = {_LIBRARIES.get(tool, tool) for tool in tools}
    return found.pop() if len(found) == 1 and found <= STACKS.keys() else ""


def raises_eager_limit(profile: str) -> bool:
    """Return whether messages of any size count as eager: by default (`profile` "") or in an "eager" profile."""
    return not profile or "eager" in profile


def eager_measured(rows: pd.DataFrame) -> bool:
    """Return whether the library in measurements sent even the largest messages eagerly, without a handshake."""
    named = STACKS[stack_measured(rows) or "ideal"]
    profiles = set(rows["profile"].fillna("")) if "profile" in rows else {""}
    return bool(named.eager_limit) and all(map(raises_eager_limit, profiles))


def calibrated_stack(model: CalibratedCostModel) -> Stack:
    """Return the transport stack of a calibrated system, without the overheads that measured times include."""
    named = STACKS[model.stack or "ideal"]
    if named == STACKS["ideal"]:
        return named
    included = ("segment", "beside", "acknowledged", "before", "after", "before_byte", "after_byte")
    limit = math.inf if model.eager else named.eager_limit
    changes: dict[str, Any] = {"eager_limit": limit, "measured": "in the curves of the calibration"}
    return dataclasses.replace(named, **dict.fromkeys(included, 0.0) | changes)


def _participating_ranks(rounds: Sequence[Round]) -> Ranks:
    """Return the ranks that send or receive in rounds, ascending."""
    distinct = {id(one): one for one in rounds}.values()
    return np.unique(np.concatenate([ends for one in distinct for ends in (one.src, one.dst)]))


def _parts_of(schedule: Schedule) -> Iterator[tuple[Call | None, Sequence[Round]]]:
    """Yield (call, its rounds), and (None, rounds) for rounds between calls, in the order of the schedule."""
    at = 0
    for call in schedule.calls:
        yield None, schedule.rounds[at : call.first]
        at = call.first + call.rounds
        yield call, schedule.rounds[call.first : at]
    yield None, schedule.rounds[at:]


def _library_algorithms(operation: str, n_ranks: int) -> list[registry.Collective]:
    """Return the algorithms of an operation that a library may choose for `n_ranks` ranks."""
    found = [one for one in registry.all_collectives() if one.operation == operation and not one.needs]
    return [one for one in found if (one.calibrated or one.nccl) and one.ranks.among(n_ranks)]


def _spread_software(rounds: Sequence[Round], n_ranks: int, ranks: Ranks, fit: _MessageFit) -> list[Round]:
    """Return rounds with bytes and software overhead [s] changed by `fit`; a repeated round stays one object."""
    distinct = {id(one): one for one in rounds}.items()
    made = {key: _change_round(one, n_ranks, ranks, fit.share, fit.each) for key, one in distinct}
    # A round of its own, as a stack may cut others.
    before = [Round((), (), (), 0.0, rounds[0].phase)] if fit.first else []
    before = [_change_round(one, n_ranks, ranks, 1.0, fit.first) for one in before]
    return before + [made[id(one)] for one in rounds]


def _change_round(
    one: Round, n_ranks: int, ranks: Ranks, share: float, seconds: float, work: Floats | None = None
) -> Round:
    """Return a round with its bytes times `share`, and `seconds` of compute time added before the round at `ranks`."""
    compute: float | Floats = one.compute
    if seconds and ranks.size == n_ranks:
        compute = compute + seconds
    elif seconds:
        compute = np.zeros(n_ranks) + compute
        compute[ranks] += seconds
    if work is not None and work.any():
        compute = compute + work
    nbytes = one.nbytes if share == 1.0 else one.nbytes * share
    return Round(one.src, one.dst, nbytes, compute, one.phase)
