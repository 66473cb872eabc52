"""Chooses the scheme of a DDP hook: workers share iteration times, and worker 0 picks the scheme that all use next.

They communicate in a thread of their own, over a separate gloo group, so training does not wait: the choice for an
iteration uses the measurements up to two iterations before.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

from simnet import sparsifier_models
from simnet.base.errors import InputError, refuse_values
from simnet.cluster.hooks.log import LoggedIteration, StageClock, open_log
from simnet.cluster.hooks.messages import destroy_group, global_rank, new_group_like
from simnet.cluster.lazy_torch import dist, torch
from simnet.cost_models.costs.devices import DeviceProfile
from simnet.policies import Candidate, TimingOutcome
from simnet.studies.choosing.policy_file import TableEntry
from simnet.training.advise.adviser import PINGS, WORD, Adviser, ExchangeCost, exchange_cost, probe_bytes

FILE = "adviser.jsonl"
"""The file of worker 0 next to its log: a JSON line per decision, fields of `simnet.training.advise.Advice`."""

# The algorithms of gloo, by option: they are what the closed forms of choices are taken of.
_GLOO = {"algorithm": "ring", "collective": "ring", "allgather": "ring"}


class _AgreedDecision(NamedTuple):
    """Worker 0's decision: index of the next scheme, whether to probe, and whether that scheme's time is known."""

    choice: int
    probes: bool
    knows: bool


class _ProbeTimes(NamedTuple):
    """Durations of a network probe [s]: round trips of a short and a long message, and the whole; 0 without a probe."""

    word: float = 0.0
    long: float = 0.0
    lasts: float = 0.0


class Advising:
    """Gathers iteration times of all workers, lets worker 0 choose the next scheme, and sends the choice to all."""

    def __init__(
        self,
        entries: Sequence[TableEntry],
        device: DeviceProfile,
        group: Any,
        *,
        every: int,
        probes: bool,
        log: str | PathLike[str] | None,
        **options: Any,
    ) -> None:

        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._entries, self._device, self._every = tuple(entries), device, every
        self._may_probe = probes and min(self.size, len(self._entries)) > 1
        self._options = {"every": every, **options}
        self._known_costs: dict[tuple[int, ...], dict[str, ExchangeCost]] = {}
        self._candidates = {one.label: _gloo_candidate(one) for one in self._entries}
        densities = {one.density for one in self._entries if one.kind == "sparse"}
        if len(densities) > 1:
            raise InputError(
                f"an adviser goes by time: all choices that select need one density, got {sorted(densities)}",
                file="simnet.cluster.hooks",
            )
        with refuse_values(file="simnet.cluster.hooks"):
            self._costs((1,))
        self._file: IO[str] | None = None
        if log is not None and self.rank == 0:
            self._file = open_log(Path(log) / FILE, buffering=1)
        self._group = new_group_like(group, "gloo")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="simnet-adviser")
        self._pending: Future[_AgreedDecision] | None = None
        self._choice, self._knows = 0, False
        # What the last probe found; nothing when workers have agreed on it.
        self._probed = _ProbeTimes()
        self._iterations: list[tuple[LoggedIteration, tuple[int, ...]]] = []
        # Of worker 0.
        self._adviser: Adviser | None = None
        self._sizes: tuple[int, ...] = ()

    def start(self, entries: int) -> None:
        """If allowed, probe the network and choose the first scheme for `entries` values, in the background."""
        if self._may_probe:
            self._sizes = (entries,)
            self._pending = self._pool.submit(self._first)

    def begin(
        self, number: int, before: LoggedIteration | None, sizes: tuple[int, ...], clock: StageClock
    ) -> TableEntry:
        """Return the scheme of iteration `number`; `before` logs the previous one, whose buckets have `sizes` entries.

        Every worker calls this when DDP hands over the first bucket.
        """
        if before is not None:
            self._iterations.append((before, sizes))
        probe = False
        if self._pending is not None:
            agreed, self._pending = self._pending.result(), None
            self._choice, probe, self._knows = agreed
        if probe:
            self._ping()
        if (number + 1) % self._every == 0 or not self._knows:
            told, self._iterations = self._iterations, []
            self._pending = self._pool.submit(self._agree, number + 1, told, clock)
        return self._entries[self._choice]

    def close(self) -> None:
        """End the background thread, close the file of decisions, and destroy the process group."""
        self._pool.shutdown()
        if self._file is not None:
            self._file.close()
        destroy_group(self._group)

    def _first(self) -> _AgreedDecision:
        """Probe the network and return the decision for the first iteration. This runs on the background thread."""
        self._ping(probe_bytes(self._costs(self._sizes)))
        return self._agree(0, [], None)

    def _ping(self, more: float = 0.0) -> None:
        """Time round trips to the next worker: `PINGS` short messages, then one of `more` bytes unless `more` is 0."""
        ahead, behind = (global_rank(self._group, (self.rank + step) % self.size) for step in (1, -1))
        begin, took, entries = time.perf_counter(), [], [round(one / WORD) for one in (WORD,) * PINGS + (more,) if one]
        for number, length in enumerate(entries):
            given, came, word = torch.zeros(length), torch.zeros(length), torch.zeros(2)
            began = time.perf_counter()
            # The tags tell messages from answers where the next worker is the one before as well.
            answer = dist.irecv(word[:1], ahead, group=self._group, tag=2 * number + 1)
            asked = dist.irecv(came, behind, group=self._group, tag=2 * number)
            sent = [dist.isend(given, ahead, group=self._group, tag=2 * number)]
            asked.wait()
            sent.append(dist.isend(word[1:], behind, group=self._group, tag=2 * number + 1))
            answer.wait()
            took.append(time.perf_counter() - began)
            for one in sent:
                one.wait()
        long = took[PINGS] if took[PINGS:] else 0.0
        self._probed = _ProbeTimes(min(took[:PINGS]), long, time.perf_counter() - begin)

    def _agree(
        self, number: int, told: list[tuple[LoggedIteration, tuple[int, ...]]], clock: StageClock | None
    ) -> _AgreedDecision:
        """Share iteration times; return worker 0's decision for iteration `number`. Runs on the background thread."""
        rows = [_iteration_times(one, clock) for one, _ in told if clock is not None]
        # Of messages the least, which waited for nobody; of the rest the slowest worker.
        numbers = [
            *self._probed,
            *(sign * one for row in rows for sign, one in zip((-1, 1, 1, 1), row, strict=True)),
        ]
        self._probed = _ProbeTimes()
        said = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(said, dist.ReduceOp.MAX, group=self._group)
        answer = torch.zeros(3, dtype=torch.int64)
        if self.rank == 0:
            answer = torch.tensor(self._decided(number, told, said))
        dist.broadcast(answer, global_rank(self._group, 0), group=self._group)
        choice, probes, knows = answer.tolist()
        return _AgreedDecision(choice, bool(probes), bool(knows))

    def _decided(
        self, number: int, told: list[tuple[LoggedIteration, tuple[int, ...]]], said: torch.Tensor
    ) -> _AgreedDecision:
        probed, rest = _ProbeTimes(*said.tolist()[:3]), said.tolist()[3:]
        if not self._sizes and not told:
            return _AgreedDecision(0, False, False)  # What buckets there are is known after the first iteration.
        if self._adviser is None:
            self._sizes = self._sizes or told[0][1]
            within = {name: (one.low, one.high) for name, one in self._device.methods.items()}
            self._adviser = Adviser(self._costs(self._sizes), self._entries[0].label, within, **self._options)
        if probed.lasts:
            self._adviser.probes(probed.lasts)
            self._adviser.learn_round_trip(probed.word)
            self._adviser.learn_round_trip(probed.long, probe_bytes(self._costs(self._sizes)))
        for place, (one, sizes) in enumerate(told):
            if sizes != self._sizes:
                self._sizes = sizes
                self._adviser.costs_are(self._costs(sizes), len(sizes))
            least, *others = rest[4 * place : 4 * place + 4]
            self._adviser.learn(one.exchange, self._costs(sizes)[one.exchange], TimingOutcome(-least, *others))
        advice = self._adviser.decide(number)
        if self._file is not None:
            self._file.write(json.dumps(advice.record()) + "\n")
        labels = [one.label for one in self._entries]
        return _AgreedDecision(
            labels.index(advice.took), self._may_probe and self._adviser.wants_probe(), self._adviser.knows
        )

    def _costs(self, sizes: tuple[int, ...]) -> dict[str, ExchangeCost]:
        if sizes not in self._known_costs:
            self._known_costs[sizes] = {
                one.label: exchange_cost(self._candidates[one.label], self.size, sizes, one.density, self._device)
                for one in self._entries
            }
        return self._known_costs[sizes]


def _gloo_candidate(entry: TableEntry) -> Candidate:
    """Return a scheme and its options, with the collective algorithms of gloo, to estimate its exchange time."""
    scheme = sparsifier_models.scheme(entry.scheme)
    known = {one.name for one in dataclasses.fields(scheme.option_type)}
    options = {name: value for name, value in entry.options.items() if name != "accumulation"}
    return Candidate(entry.label, entry.scheme, options | {name: one for name, one in _GLOO.items() if name in known})


def _iteration_times(one: LoggedIteration, clock: StageClock) -> TimingOutcome:
    """Wait until an iteration's stages have completed on this worker, and return the times of the stages."""
    spans = [*one.selecting, *one.exchanging]
    while not all(clock.passed(span.ended) for span in spans):
        time.sleep(1e-4)
    select, communicate, merge = one.parts(clock)
    backward, count = 0.0, len(select)
    if count > 1:
        between = clock.seconds(one.selecting[0].began, one.selecting[-1].began) - sum(select[:-1])
        backward = between * count / (count - 1)
    return TimingOutcome(communicate, sum(select), max(merge, 0.0), max(backward, 0.0))
