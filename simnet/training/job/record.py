"""Records of a job: tables by iteration and by worker, messages, timeline spans, and interruptions."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.network import Messages, Timing
from simnet.policies import Decision
from simnet.strategies.replicas import NOBODY
from simnet.training.job.checkpoint import RowTable, State
from simnet.training.job.spans import worker_spans

if TYPE_CHECKING:
    import pandas as pd
    from pydantic import TypeAdapter

    from simnet.cost_models.costs.devices import DeviceProfile
    from simnet.sparsifier_models import Exchange
    from simnet.traces.source import Score
    from simnet.training.job.exchange import TimedExchange
    from simnet.training.job.job import Job

TRAIN, EXPLORE = "train", "explore"
"""Purposes of an iteration: training, or exploration of a candidate."""


@dataclass
class Iteration:
    """State of an iteration until its exchange completes; it trains the model, or only tries an exchange for a policy.

    `active` are the workers, shape (P',). Of each, `begin` is its start after the first worker's, `probing` and
    `compute` its time for probes and passes, `complete` when it has its gradients, `behind` the computing until then
    [s]. `failures` are workers that stop, and when [s]. Workers `late` miss the exchange; the others wait for them
    until `waits`. `slowed` is the slowdown of passes by collectives. `selections` has start and duration of each
    selection, several after interruptions.
    """

    number: int
    now: float
    decision: Decision
    density: float
    active: NDArray[np.intp]
    placement: list[int]
    begins: Floats
    probing: Floats
    compute: Floats
    latency: float
    bandwidth: float
    keeps_messages: bool
    stream: tuple[str | int, ...]
    failures: Mapping[int, float]
    probes: Timing | None = None
    late: NDArray[np.intp] = field(default_factory=NOBODY.copy)
    waits: float = 0.0
    selections: list[tuple[Floats, Floats]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slowed = np.zeros(self.active.size)
        self.set_compute(self.compute)

    def set_compute(self, compute: Floats) -> None:
        """Set the compute seconds of each worker in the iteration."""
        self.compute = self.behind = compute
        self.complete = self.begins + self.probing + compute

    @property
    def trains(self) -> bool:
        """Whether the iteration trains the model; if not, the policy tries an exchange in it (exploration)."""
        return self.decision.attempt is None

    @property
    def purpose(self) -> str:
        """Purpose of the iteration as a column value: `TRAIN` or `EXPLORE`."""
        return TRAIN if self.trains else EXPLORE

    @property
    def batch(self) -> int:
        """Index of the gradient batch. When a policy tries several exchanges, each try uses the next batch."""
        return self.number + (self.decision.attempt or 0)

    @property
    def select(self) -> Floats:
        """Seconds of selection on each worker; shape (P,)."""
        return sum((seconds for _, seconds in self.selections[1:]), self.selections[0][1])

    @property
    def lost(self) -> Floats:
        """Seconds that each worker waited for a deadline, or lost in an interrupted exchange; shape (P,)."""
        between = [later - (begin + seconds) for (begin, seconds), (later, _) in itertools.pairwise(self.selections)]
        return sum(between, np.zeros(self.active.size))

    def add_selection(self, select: Floats, slowed: Floats, held: Floats | float) -> None:
        """Record each worker's extra time of the backward pass, wait for the deadline, and selection time [s]."""
        self.slowed = self.slowed + slowed
        entered = self.complete + slowed
        if self.waits:
            self.selections.append((entered, np.zeros(entered.size)))
            entered = entered + held
        self.selections.append((entered, select))

    def remove_workers(self, gone: NDArray[np.bool_]) -> None:
        """Remove the workers in the mask `gone` from the iteration."""
        self.placement = [host for host, left in zip(self.placement, (~gone).tolist(), strict=True) if left]
        self.selections = [(begin[~gone], seconds[~gone]) for begin, seconds in self.selections]
        for name in ("active", "begins", "probing", "compute", "slowed", "complete", "behind"):
            setattr(self, name, getattr(self, name)[~gone])
        self.probes = None


SPLIT = ("compute_s", "select_s", "communicate_s", "wait_s", "bytes_sent_B", "bytes_received_B", "merge_in_select_s")
"""Columns recorded for each worker and iteration."""

MAIN = "job"
"""Name of a scenario's main job, in contrast to co-located jobs."""

DRAWN = 200_000
"""Maximum messages of an iteration whose messages and spans are recorded, a limit of timeline viewers."""


class BlockedWorker(NamedTuple):
    """Worker blocked for ever in an exchange: its round, the phase of that round, and the workers it waits for."""

    worker: int
    round: int
    phase: str
    workers: tuple[int, ...]


class Interruption(NamedTuple):
    """An iteration that failed workers interrupted at time `stopped` [s]; `failed` has the time of each failure [s].

    The `left` workers resumed it at `resumed` [s], None if the job ended; `blocked` says who waited for whom.
    """

    job: str
    iteration: int
    stopped: float
    failed: dict[int, float]
    blocked: tuple[BlockedWorker, ...]
    resumed: float | None
    left: int


class JobShare(NamedTuple):
    """Slowdown of a job by other jobs on its network; `alone_s` is the job's iteration time without the others."""

    job: str
    workers: int
    iterations: int
    planned: int
    mean_iteration_s: float
    alone_s: float
    slowdown: float


class PolicyResult:
    """Result of a job under one policy. Names of columns end in their unit.

    `iterations` and `workers` have a row per iteration, and per iteration and worker. `messages` and `spans` are those
    of the first iterations, with the iteration's number. `local_stages` has for each exchange the seconds of a worker's
    local operations by stage of its hook, or by kernel, in the last iteration; means over workers.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.iteration_rows = RowTable(_ITERATIONS, policy=policy)
        self.worker_rows = RowTable(("iteration", "purpose", "worker", *SPLIT), policy=policy)
        self.recorded_messages: list[tuple[int, Messages]] = []
        self.recorded_spans: list[tuple[int, int, str, str, float, float]] = []
        self.interruptions: list[Interruption] = []
        self.job_shares: list[JobShare] = []
        self.local_stages: dict[str, dict[str, float]] = {}

    @cached_property
    def iterations(self) -> pd.DataFrame:
        """Table of iterations: start, duration, and the parts of the duration, which are means over workers.

        The `purpose` is ``train``, or ``explore`` for attempts before the iteration of that number.
        """
        return self.iteration_rows.frame()

    @cached_property
    def messages(self) -> pd.DataFrame:
        """Table of the messages of the first iterations."""
        import pandas as pd

        found = [
            pd.DataFrame(
                {"policy": self.policy, "iteration": iteration}
                | {column: getattr(one, name) for column, name in _MESSAGES.items()}
            )
            for iteration, one in self.recorded_messages
        ]
        columns = ["policy", "iteration", *_MESSAGES]
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=columns)

    @cached_property
    def spans(self) -> pd.DataFrame:
        """Table of the periods in which the resources of each worker are in use, in the first iterations."""
        import pandas as pd

        columns = ["iteration", "worker", "resource", "what", "start_s", "finish_s"]
        found = pd.DataFrame(self.recorded_spans, columns=columns)
        found.insert(0, "policy", self.policy)
        return found

    @cached_property
    def workers(self) -> pd.DataFrame:
        """Table by iteration and worker. The column ``merge_in_select_s`` is part of ``select_s``."""
        return self.worker_rows.frame()


class JobRecord(PolicyResult):
    """Result of a policy while the job runs. Each iteration appends its rows."""

    def __init__(self, policy: str, job: str = MAIN) -> None:
        super().__init__(policy)
        self.job = job
        # Seconds that co-located jobs cost.
        self.held_up = 0.0
        self.done = 0
        """Number of finished iterations, without exploration."""

    @property
    def whose(self) -> str:
        """Name of the job and the policy, for error messages."""
        return self.policy if self.job == MAIN else f"{self.job}, beside {self.policy}"

    @property
    def durations(self) -> list[float]:
        """Seconds of each finished iteration, including iterations of exploration."""
        return self.iteration_rows.between()["iteration_s"].tolist() if len(self.iteration_rows) else []

    def add(
        self, job: Job, iteration: Iteration, step: TimedExchange, start: float, seconds: float, score: Score | None
    ) -> None:
        """Record an iteration with each worker's seconds, split into compute, select, communicate and wait."""
        timing, exchanges, active = step.result, step.exchanges, iteration.active
        assert isinstance(timing, Timing)
        until = timing.left.max() if job.barrier else timing.left
        columns = (
            iteration.compute + job.update,
            # What an exchange computes is what its messages bring: it is merged, cut, and unpacked.
            iteration.select + timing.rank_compute,
            # Computing that collectives slow down waits for them.
            timing.rank_communicate + iteration.probing + iteration.slowed,
            timing.rank_wait + (until - timing.left) + iteration.lost,
            _sum_statistic(exchanges, "bytes_sent"),
            _sum_statistic(exchanges, "bytes_received"),
            timing.rank_compute,
        )
        split = np.stack([np.broadcast_to(column, active.size) for column in columns], axis=1)
        own = {"iteration": iteration.number, "purpose": iteration.purpose, "worker": active}
        self.worker_rows.append(own | dict(zip(SPLIT, split.T, strict=True)))
        self.done += iteration.trains
        means = split.mean(axis=0).tolist()
        low, high = job.device.within([one for each in exchanges for one in each.kernels], active.size)
        self.iteration_rows.append(
            {
                "iteration": iteration.number,
                "start_s": start,
                "iteration_s": seconds,
                "compute_s": means[0],
                "select_s": means[1],
                "select_low_s": low * means[1],
                "select_high_s": high * means[1],
                "communicate_s": means[2],
                "wait_s": means[3],
                "bytes_sent_B": float(split[:, 4].sum()),
                "purpose": iteration.purpose,
                "choice": step.candidate.label,
                # A policy may say 1, or what numpy has.
                "density": float(iteration.density),
                **iteration_statistics(exchanges),
                "latency_s": iteration.latency,
                "bandwidth_Bps": iteration.bandwidth,
                **({} if score is None else score._asdict()),
            }
        )
        label = step.candidate.label
        if label not in self.local_stages or iteration.number == job.iterations - 1:
            self.local_stages[label] = _stage_seconds(job.device, exchanges, active.size)
        if len(step.spans) <= DRAWN:
            self.recorded_spans += [(iteration.number, *span) for span in step.spans]
        if iteration.keeps_messages and timing.messages is not None:
            named = replace(timing.messages, src=active[timing.messages.src], dst=active[timing.messages.dst])
            self.recorded_messages.append((iteration.number, named))
            spans = worker_spans(job, iteration, seconds, timing)
            self.recorded_spans += [(iteration.number, *span) for span in spans]

    def save(self) -> State:
        """Return all rows in the form that a checkpoint stores."""
        return {
            "iterations": self.iteration_rows.save(),
            "workers": self.worker_rows.save(),
            "messages": [{"iteration": number, **vars(one)} for number, one in self.recorded_messages],
            "spans": [np.array(column) for column in zip(*self.recorded_spans, strict=True)],
            "interruptions": _interruption_list().dump_json(self.interruptions).decode(),
            "job_shares": self.job_shares,
            "local_stages": json.dumps(self.local_stages),
        }

    def restore(self, state: State) -> None:
        """Restore the rows from a state returned by `save`."""
        self.recorded_messages = [(one.pop("iteration"), Messages(**one)) for one in map(dict, state["messages"])]
        self.interruptions = _interruption_list().validate_json(state["interruptions"])
        self.job_shares = [JobShare(*one) for one in state["job_shares"]]
        self.local_stages = json.loads(state["local_stages"])
        self.recorded_spans = list(zip(*(column.tolist() for column in state["spans"]), strict=True))
        self.iteration_rows.restore(state["iterations"])
        self.worker_rows.restore(state["workers"])
        self.done = int((self.iteration_rows.between()["purpose"] == TRAIN).sum()) if len(self.iteration_rows) else 0


def _interruption_list() -> TypeAdapter[list[Interruption]]:
    # It takes time to load, and only checkpoints need it.
    from pydantic import TypeAdapter

    return TypeAdapter(list[Interruption])


def compression_gains(exchanges: Sequence[Exchange]) -> tuple[float, Floats]:
    """Return the compression gain (squared norm sent / squared norm given) of an iteration, and of each worker."""
    sent, given = (_sum_statistic(exchanges, name, 2) for name in ("sent_norm", "given_norm"))
    each = np.divide(sent, given, out=np.ones_like(given), where=given > 0)
    return (float(sent.sum()) / float(given.sum()) if given.any() else 1.0), each


def _stage_seconds(device: DeviceProfile, exchanges: Sequence[Exchange], workers: int) -> dict[str, float]:
    """Return the seconds, as a mean over workers, of each kernel or hook stage by name, summed over buckets."""
    found: defaultdict[str, float] = defaultdict(float)
    for kernel in (one for exchange in exchanges for one in exchange.kernels):
        found[kernel.method.removeprefix("hook_")] += float(device.seconds([kernel], workers).mean())
    return {stage: seconds for stage, seconds in found.items() if seconds}


def _sum_statistic(exchanges: Sequence[Exchange], name: str, power: int = 1) -> Floats:
    return functools.reduce(np.add, [np.asarray(one.stats[name]) ** power for one in exchanges])


def _mean_statistic(exchanges: Sequence[Exchange], name: str) -> float:
    """Return the mean of a statistic over workers and entries of all buckets; NaN if a bucket does not have it."""
    entries = [exchange.update.size for exchange in exchanges]
    means = [float(np.mean(exchange.stats.get(name, math.nan))) for exchange in exchanges]
    return float(np.average(means, weights=entries)) if any(entries) else math.nan


def iteration_statistics(exchanges: Sequence[Exchange]) -> dict[str, float]:
    """Return the statistics of an iteration's exchanges over all buckets, by name."""
    union = sum(exchange.union for exchange in exchanges)
    entries = sum(exchange.update.size for exchange in exchanges)
    selected = np.asarray(sum(exchange.selected for exchange in exchanges))
    target = sum(exchange.union / exchange.stats["build_up"] for exchange in exchanges if exchange.union)
    return {
        "selected": float(selected.mean()),
        **{name: _mean_statistic(exchanges, name) for name in ("density_ratio", "threshold", "blocks_moved")},
        "period": max((exchange.period for exchange in exchanges), default=1),
        "actual_density": union / entries if entries else math.nan,
        "build_up": float(union / target) if union else 1.0,
        "imbalance": float(selected.size * selected.max() / selected.sum()) if selected.any() else 1.0,
        "gain": compression_gains(exchanges)[0],
        "global_error": float(np.sqrt(_sum_statistic(exchanges, "residual_norm", 2)).mean()),
    }


_ITERATIONS = (
    *("iteration", "start_s", "iteration_s", "compute_s", "select_s", "select_low_s", "select_high_s", "communicate_s"),
    *("wait_s", "bytes_sent_B", "purpose", "choice", "density", "selected", "density_ratio", "period"),
    *("actual_density", "build_up", "threshold", "blocks_moved", "imbalance", "gain", "global_error"),
    *("latency_s", "bandwidth_Bps"),
)
# Columns of the table of messages, and what `Messages` calls them.
_MESSAGES = {name: name for name in ("round", "phase", "src", "dst")} | {
    "nbytes_B": "nbytes",
    "start_s": "start",
    "finish_s": "finish",
}
