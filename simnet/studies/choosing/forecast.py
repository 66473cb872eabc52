"""Forecasts of a job's duration under each exchange, from all iterations or a sample."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.collectives import registry
from simnet.policies import Candidate
from simnet.report.paired import NO_RANGES, StartRanges, fastest
from simnet.sparsifier_models.options import option_values
from simnet.sparsifier_models.two_level import PREFIX
from simnet.training.job.sampling import total_time

Kind: TypeAlias = Literal["dense", "half", "sparse"]
"""Kind of an exchange: whole gradient in float32, whole gradient in float16, or selected entries."""

_KINDS: Mapping[str, Kind] = {"dense": "dense", "fp16": "half"}
# Entries of a sparsifier of which only its kind matters.
_ANY = 256


def exchange_kind(one: Candidate) -> Kind:
    """Return the kind of an exchange: dense, half (fp16) or sparse."""
    return _KINDS.get(one.scheme, "sparse")


def usual_exchanges(per_node: int = 1) -> list[Candidate]:
    """Return the exchanges that are candidates by default, with two-level exchanges if workers share nodes.

    Examples
    --------
    >>> [one.label for one in usual_exchanges()][:5]
    ['dense ring', 'dense tree', 'fp16 ring', 'fp16 tree', 'AG-Topk']
    >>> usual_exchanges(4)[-1].label
    'two-level ART-tree VAR'
    """
    found = list(_flat_exchanges(per_node))
    for one in _flat_exchanges(1) if per_node > 1 else ():
        options = {**one.options, "ranks_per_node": per_node}
        found.append(Candidate(f"two-level {one.label}", f"{PREFIX}{one.scheme}", options))
    return found


def _flat_exchanges(per_node: int) -> Iterator[Candidate]:
    reduces, gathers = (registry.usual_collectives(one, on_nodes=per_node > 1) for one in ("all_reduce", "all_gather"))
    for scheme in ("dense", "fp16"):
        for one in reduces:
            # Groups are the nodes.
            options = {"algorithm": one.algorithm} | dict.fromkeys(one.needs, per_node)
            yield Candidate(f"{scheme} {one.algorithm}", scheme, options)
    for gather in gathers:
        label = "AG-Topk" if gather is gathers[0] else f"AG-Topk {gather.algorithm}"
        yield Candidate(label, "topk", {"allgather": gather.algorithm})
    for selection, ending in (("star", ""), ("var", " VAR")):
        for one in reduces:
            if not one.needs:
                options = {"collective": one.algorithm, "selection": selection}
                yield Candidate(f"ART-{one.algorithm}{ending}", "artopk", options)


def same_exchange(candidate: Candidate) -> tuple[str, str]:
    """Return a key of an exchange's scheme and options. Keys are equal if only labels differ."""
    scheme = sparsifier_models.scheme(candidate.scheme)
    return str(scheme), repr(option_values(scheme.option_type, candidate.options))


def follows_gradients(candidate: Candidate) -> bool:
    """Return whether the bytes that an exchange sends depend on the gradients; False if its options are invalid."""
    try:
        made = sparsifier_models.create(candidate.scheme, 4, _ANY, 0.1, layers=[("", _ANY)], **candidate.options)
    except ValueError:
        return False
    return not made.traits.fixed_volume


PAIRED = 32
"""Minimum sample size for a comparison of two rows at equal times."""


@dataclass(frozen=True)
class JobForecast:
    """Predicted duration of a job under one exchange or policy, from a sample of its iterations.

    The columns of `sample` have a value per simulated iteration: the number of iterations that it represents
    ``stands_for``, their mean ``iteration_s``, their total ``expected_s`` from the links, up to a factor [s], and
    columns of `simnet.training.job.record.PolicyResult`. `sent` is bytes per worker and iteration.
    """

    candidate: Candidate
    sample: Mapping[str, NDArray[Any]]
    iterations: int
    sent: float
    unsettled: str = ""

    @property
    def label(self) -> str:
        """Label of the exchange or policy in tables and figures."""
        return self.candidate.label

    @property
    def kind(self) -> Kind:
        """Kind of the exchange: dense (float32), half (dense in float16) or sparse; policies count as sparse."""
        return exchange_kind(self.candidate)

    @property
    def simulated(self) -> int:
        """Number of simulated iterations."""
        return len(self.sample["iteration_s"])

    @property
    def complete(self) -> bool:
        """Whether all iterations were simulated."""
        return self.simulated == self.iterations

    @property
    def seconds(self) -> float:
        """Time of the whole job [s]."""
        return total_time(self.column("iteration_s"), self.column("stands_for"))[0]

    @property
    def error(self) -> float:
        """Standard error of the job's duration due to sampling [s]; 0 if all iterations were simulated."""
        return total_time(*map(self.column, ("iteration_s", "stands_for", "expected_s")))[1]

    def column(self, name: str) -> Floats:
        """Return a column of the table of simulated iterations."""
        return np.asarray(self.sample[name], dtype=np.float64)

    def mean(self, name: str) -> float:
        """Return the mean of a column over all iterations of the job."""
        return float((self.column(name) * self.column("stands_for")).sum()) / self.iterations

    def spread(self) -> tuple[float, float]:
        """Return the 5th and 95th percentile of the iteration times of the job [s]."""
        seconds = self.column("iteration_s")
        order = np.argsort(seconds)
        upto = np.cumsum(self.column("stands_for")[order]) / self.iterations
        low, high = (seconds[order[int(np.searchsorted(upto, share - 1e-9))]] for share in (0.05, 0.95))
        return float(low), float(high)

    def shares(self) -> dict[str, float]:
        """Return the share of iterations that used each exchange, the largest first."""
        times = Counter[str]()
        for choice, count in zip(self.sample["choice"], self.column("stands_for").tolist(), strict=True):
            times[choice] += count
        return {choice: count / self.iterations for choice, count in times.most_common()}


class Gain(NamedTuple):
    """Time that a policy saves, from forecasts of the policy and of the best fixed exchange for the same iterations."""

    policy: JobForecast
    fixed: JobForecast

    @property
    def saved(self) -> float:
        """Fraction of the fixed exchange's time that the policy saves; negative if the policy is slower."""
        return 1 - self.policy.seconds / self.fixed.seconds if self.fixed.seconds > 0 else 0.0


@dataclass(frozen=True)
class WholeJob:
    """Ranking of exchanges for a job, the fastest first, with the time that adaptive policies save.

    `per_stretch` takes the fastest exchange of each iteration; `flexible` are the scenario's policies, or a usual one.
    `alike` has the labels of left-out identical rows, by the label of the row that is shown; `aside` has rows without a
    steady part.
    """

    rows: tuple[JobForecast, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    per_stretch: Gain | None = None
    flexible: tuple[Gain, ...] = ()
    usual: bool = False
    alike: Mapping[str, Sequence[str]] = field(default_factory=dict)
    starts: StartRanges = NO_RANGES
    aside: tuple[JobForecast, ...] = ()

    @property
    def best(self) -> JobForecast:
        """Forecast under the fastest exchange."""
        return self.rows[0]

    def tied(self, row: JobForecast) -> bool:
        """Return whether a forecast is tied with the fastest, because of sampling errors or of equal times."""
        left_open = row.seconds - self.best.seconds <= 2 * error_between(row, self.best)
        seconds = {one.label: one.seconds for one in self.rows}
        return row is not self.best and (left_open or row.label in fastest(seconds, self.starts.around(seconds)))

    @property
    def tied_with(self) -> list[str]:
        """Labels of exchanges as fast as the fastest one, exactly or within the uncertainty of the simulations."""
        return [*self.alike.get(self.best.label, ()), *(row.label for row in self.rows if self.tied(row))]

    def gain_over_dense(self) -> float:
        """Return the speedup of the fastest compressed exchange over the fastest dense exchange.

        NaN if either kind has no row.
        """
        whole = [row.seconds for row in self.rows if row.kind != "sparse"]
        sparse = [row.seconds for row in self.rows if row.kind == "sparse"]
        return min(whole) / min(sparse) if whole and sparse and min(sparse) > 0 else math.nan


def error_between(row: JobForecast, best: JobForecast) -> float:
    """Return the standard error [s] of the difference between two predicted job durations.

    Link variation cancels between rows that are sampled at the same times, or weighted by expected link times.
    """
    alone = math.hypot(row.error, best.error)
    if min(row.simulated, best.simulated) < PAIRED:
        return alone
    lengths, speeds = _speeds_together((row, best))
    # A change of the gap comes somewhere within the blocks on both of its sides.
    changes = np.diff(speeds[1] - speeds[0]) * np.maximum(lengths[1:], lengths[:-1])
    return min(math.sqrt(float((changes**2).sum()) / 2) * best.seconds / best.iterations, alone)


def leading_iterations(rows: Sequence[JobForecast]) -> dict[str, float]:
    """Return, by label, the number of iterations during which each forecast's exchange is the fastest."""
    lengths, speeds = _speeds_together(rows)
    done, first = lengths * speeds.max(axis=0), speeds.argmax(axis=0)
    return {row.label: float(done[first == number].sum()) for number, row in enumerate(rows)}


def _speeds_together(rows: Sequence[JobForecast]) -> tuple[Floats, Floats]:
    """Return lengths [s] of intervals in which all forecasts have constant speeds, and these speeds [iterations/s]."""
    blocks = [np.maximum(row.column("iteration_s"), 1e-300) for row in rows]
    each = [np.cumsum(seconds * row.column("stands_for")) for row, seconds in zip(rows, blocks, strict=True)]
    ends = np.unique(np.concatenate(each))
    ends = ends[ends <= min(own[-1] for own in each)]
    lengths = np.diff(ends, prepend=0.0)
    places = [np.searchsorted(own, ends - lengths / 2) for own in each]
    return lengths, np.array([1 / seconds[place] for seconds, place in zip(blocks, places, strict=True)])
