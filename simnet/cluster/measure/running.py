"""The measurement loop: all ranks of a job time the planned collectives together, and each rank receives all times.

In a repetition the slowest rank counts. Repetitions of all sizes of a curve take turns, so a disturbance affects all
sizes alike. Ranks outside of the present group wait. All decisions (number of calls, repetitions, sizes left out) use
figures that all ranks share. A repetition is so many calls in a row that the clock does not matter; repetitions follow
until their median is precise enough or the time is up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base import units
from simnet.base.errors import InputError
from simnet.cluster.measure.communicators import Communicator, first_line
from simnet.cluster.measure.plan import ELEMENT, OF_PAIRS, Group, PlannedCurve
from simnet.cost_models.calibration.readers import bus_factor
from simnet.cost_models.calibration.readers.conventions import nccl_convention
from simnet.cost_models.evidence.intervals import median_half_width

Numbers = NDArray[np.float32]

WINDOW = 64
"""Maximum messages per call of ``p2p_bw`` before the receiver answers; at most 4 MiB, at least four messages."""

_IN_WINDOW, _FEWEST = 4 * 2**20, 4

# After how many ranks, and after how many elements, contents repeat. A sum over P ranks is at most 133 P, which single
# precision has exactly up to 126,000 ranks.
_RANKS, _WAVE = 127, 7


class PreparedCall(NamedTuple):
    """A collective call at one rank: a function that takes the number of the call, and the send and receive buffers."""

    call: Callable[[int], None]
    out: Any
    into: Any


def operations_per_call(collective: str, nbytes: int) -> int:
    """Return the number of operations in a timed call: several messages for ``p2p_bw``, 2 for a round trip, else 1."""
    if collective == "p2p_bw":
        return max(_FEWEST, min(WINDOW, _IN_WINDOW // nbytes))
    return 2 if collective == "p2p_latency" else 1


def prepare_call(communicator: Communicator, collective: str, group: Group, handle: Any, nbytes: int) -> PreparedCall:
    """Return a collective call of `nbytes` bytes, with zeroed buffers. All members of the group call this."""
    length, ranks = nbytes // ELEMENT, len(group.ranks)
    gathers, scatters = collective == "all_gather", collective == "reduce_scatter"
    out = communicator.vector(length // ranks if gathers else length)
    in_place = collective in ("all_reduce", "broadcast")
    into = out if in_place else communicator.vector(length // ranks if scatters else length)
    if collective in ("sendrecv", "p2p_latency", "p2p_bw"):
        return _group_messages(communicator, collective, group, out, into, nbytes)

    def call(number: int) -> None:
        communicator.collective(collective, out, into, handle, -number % ranks)

    return PreparedCall(call, out, into)


def _group_messages(
    communicator: Communicator, collective: str, group: Group, out: Any, into: Any, nbytes: int
) -> PreparedCall:
    place, ranks = group.ranks.index(communicator.rank), len(group.ranks)
    following, before = group.ranks[(place + 1) % ranks], group.ranks[place - 1]
    send, receive = [(following, out)], [(before, into)]
    if collective == "sendrecv":
        return PreparedCall(lambda number: communicator.exchange(send, receive), out, into)
    if collective == "p2p_latency":

        def there_and_back(number: int) -> None:
            for outward in (place == 0, place != 0):
                communicator.exchange(send if outward else [], [] if outward else receive)

        return PreparedCall(there_and_back, out, into)
    window, answer = operations_per_call(collective, nbytes), communicator.vector(1)

    def one_way(number: int) -> None:
        communicator.exchange(send * window if place == 0 else [], receive * window if place else [])
        communicator.exchange([(before, answer)] if place else [], [] if place else [(following, answer)])

    return PreparedCall(one_way, out, into)


def wrong_elements(communicator: Communicator, collective: str, group: Group, handle: Any, nbytes: int) -> int:
    """Run a collective on test data; return how many elements of this rank's result differ from the correct result."""
    made = prepare_call(communicator, collective, group, handle, nbytes)
    place, ranks = group.ranks.index(communicator.rank), len(group.ranks)
    communicator.put(made.out, rank_content(place, len(made.out)))
    made.call(0)
    communicator.finish()
    due = expected_result(collective, place, ranks, nbytes // ELEMENT)
    return 0 if due is None else int((communicator.get(made.into) != due).sum())


def rank_content(place: int, length: int) -> Numbers:
    """Return the test data of the rank at `place` in its group: small integers as float32, whose sums are exact."""
    return _wave_elements(place % _RANKS + 1, 1, 0, length)


def _wave_elements(first: float, step: float, start: int, length: int) -> Numbers:
    """Return `length` elements ``first + step * (i % 7)`` as float32, for i from `start` on."""
    once = (first + step * ((start + np.arange(_WAVE)) % _WAVE)).astype(np.float32)
    return np.tile(once, -(-length // _WAVE))[:length]


def expected_result(collective: str, place: int, ranks: int, length: int) -> Numbers | None:
    """Return the correct result at the rank with index `place` when all ranks send test data; None if it gets nothing.

    `length` is the number of elements of the full vector over all ranks.
    """
    part = length // ranks
    if collective in ("all_gather", "alltoall"):
        begins = (np.arange(ranks) % _RANKS + 1).astype(np.float32)
        return np.add.outer(
            begins, _wave_elements(0, 1, 0 if collective == "all_gather" else place * part, part)
        ).ravel()
    if collective == "broadcast":
        return rank_content(0, length)
    if collective in ("all_reduce", "reduce_scatter"):
        rounds, rest = divmod(ranks, _RANKS)
        begins_sum = (rounds * _RANKS * (_RANKS + 1) + rest * (rest + 1)) // 2
        whole = collective == "all_reduce"
        return _wave_elements(begins_sum, ranks, 0 if whole else place * part, length if whole else part)
    if collective == "p2p_bw" and place == 0:
        return None
    return rank_content((place - 1) % ranks, length)


Say = Callable[[str], None]

_REDUCED = ("all_reduce", "reduce_scatter")


@dataclass
class MeasuredRows:
    """Rows of measured times (columns `TABLE_COLUMNS` of calibration), and remarks on tests and sizes left out."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def measure_curves(
    communicator: Communicator, wanted: Sequence[PlannedCurve], seconds: float, say: Say
) -> MeasuredRows:
    """Time the planned tests within `seconds` [s]; every rank of the job calls this with the same tests."""
    found = MeasuredRows()
    origin = time.perf_counter()
    group: tuple[int, ...] = ()
    handle: Any = None
    try:
        for number, curve in enumerate(wanted, 1):
            if curve.group.ranks != group and curve.collective not in OF_PAIRS:
                _release_group(communicator, group, handle)
                group = curve.group.ranks
                handle = communicator.group(group)
            before, left = len(found.rows), len(wanted) - number
            elapsed = _measure_curve(_CurveTimer(communicator, curve, handle, origin), seconds, left + 1, found)
            done = found.rows[before:]
            shown = f"{curve.collective}, {curve.group}: {_time_range(done)}"
            rest = units.format_seconds(max(0.0, seconds - elapsed))
            say(f"{number} of {len(wanted)}: {shown}{f'; at most {rest} left' if left else ''}")
        _release_group(communicator, group, handle)
    except RuntimeError as error:
        raise InputError(f"the job broke off: {first_line(error)}", file="simnet measure") from error
    return found


def _release_group(communicator: Communicator, group: Sequence[int], handle: Any) -> None:
    if communicator.rank in group:
        communicator.release(handle)


@dataclass
class _CurveTimer:
    """Times a test (one collective at several sizes) at one rank, together with all other ranks."""

    communicator: Communicator
    curve: PlannedCurve
    handle: Any
    origin: float

    def __post_init__(self) -> None:
        self.member = self.communicator.rank in self.curve.group.ranks
        self._calls = 0

    def shared(self, value: float) -> tuple[list[float], float]:
        """Gather every rank's `value`; return those of the tested ranks, and the time since the start on rank 0 [s]."""
        table = self.communicator.gather(np.array([value, time.perf_counter() - self.origin]))
        return table[list(self.curve.group.ranks), 0].tolist(), float(table[0, 1])

    def attempt(self) -> tuple[int, str]:
        """Try a call of the smallest size; return the number of wrong elements, and the reason if every rank failed."""
        count, reason = math.nan, ""
        if self.member:
            curve = self.curve
            try:
                count = wrong_elements(self.communicator, curve.collective, curve.group, self.handle, curve.sizes[0])
            except (RuntimeError, NotImplementedError, ValueError) as error:
                reason = first_line(error)
        counts, _ = self.shared(count)
        failed = sum(math.isnan(one) for one in counts)
        if 0 < failed < len(counts):
            text = f"{self.curve.collective} failed at {failed} of {self.curve.group}"
            raise InputError(f"{text}{f': {reason}' if reason else ''}", file="simnet measure")
        return (0, reason or "it fails") if failed else (int(sum(counts)), "")

    def prepare(self, nbytes: int) -> PreparedCall | None:
        """Return a prepared call of `nbytes` bytes; None at ranks outside the group."""
        if not self.member:
            return None
        return prepare_call(self.communicator, self.curve.collective, self.curve.group, self.handle, nbytes)

    def repetition(self, made: PreparedCall | None, count: int) -> tuple[float, float]:
        """Time `count` calls in a row; return seconds per call at the slowest rank, and the seconds since the start."""
        # An uncounted call comes first, so ranks start as they do where calls follow each other; after a barrier they
        # start as far apart as its last messages take.
        took = math.nan
        if made is not None:
            made.call(self._calls)
            self.communicator.finish()
            began = time.perf_counter()
            for number in range(self._calls + 1, self._calls + 1 + count):
                made.call(number)
            self.communicator.finish()
            took = (time.perf_counter() - began) / count
        self._calls += 1 + count
        seconds, elapsed = self.shared(took)
        return max(seconds), elapsed


def _measure_curve(timer: _CurveTimer, seconds: float, left: int, found: MeasuredRows) -> float:
    """Measure a curve in 1/`left` of the time that is left of `seconds` [s]; return the time since the start [s]."""
    curve = timer.curve
    mistakes, reason = timer.attempt()
    _, elapsed = timer.shared(0.0)
    if reason:
        found.left_out.append(f"{curve.collective}, {curve.group}: {reason}")
        return elapsed
    end = elapsed + max(0.0, seconds - elapsed) / left
    points, elapsed = _first_calls(timer, end, elapsed)
    if len(points) < len(curve.sizes):
        rest = f"{curve.sizes[len(points)]:,} B{' and more' if len(points) < len(curve.sizes) - 1 else ''}"
        text = f"{rest} would take longer than is left; a longer --budget has them"
        found.left_out.append(f"{curve.collective}, {curve.group}: {text}")
    while unsettled := [one for one in points if not one.done(elapsed < end)]:
        for one in unsettled:
            seconds, elapsed = timer.repetition(one.made, one.count)
            one.seconds.append(seconds)
    found.rows += [_curve_row(curve, one, mistakes) for one in points]
    return elapsed


@dataclass
class _CurvePoint:
    """One size of a test: bytes, prepared call, calls per repetition, and seconds per call in each repetition."""

    nbytes: int
    made: PreparedCall | None
    count: int
    seconds: list[float] = field(default_factory=list)

    def done(self, time_left: bool) -> bool:
        """Return whether this size has enough repetitions; without time left, the minimum number is enough."""
        return len(self.seconds) >= LEAST and (not time_left or len(self.seconds) >= MOST or is_settled(self.seconds))


def _first_calls(timer: _CurveTimer, end: float, elapsed: float) -> tuple[list[_CurvePoint], float]:
    """Time a call per size while another fits before `end` [s]; return the timed sizes and the elapsed time [s]."""
    curve = timer.curve
    share = max(0.0, end - elapsed) / len(curve.sizes)
    points: list[_CurvePoint] = []
    calls: list[tuple[int, float]] = []
    ahead = repetitions = 0.0
    for at, nbytes in enumerate(curve.sizes):
        # Two calls now, of which the first may open connections, and two in each repetition at least.
        if at and 2 * ahead + LEAST * (repetitions + 2 * ahead) > end - elapsed:
            break
        made = timer.prepare(nbytes)
        call, elapsed = timer.repetition(made, 1)
        points.append(_CurvePoint(nbytes, made, calls_in_a_row(call, share)))
        repetitions += (1 + points[-1].count) * call
        calls.append((nbytes * operations_per_call(curve.collective, nbytes), call))
        following = curve.sizes[min(at + 1, len(curve.sizes) - 1)]
        ahead = _expected_time(calls[-2:], following * operations_per_call(curve.collective, following))
    return points, elapsed


def _expected_time(calls: Sequence[tuple[int, float]], nbytes: int) -> float:
    """Return the expected time [s] of a call of `nbytes` bytes, extrapolated linearly from the last two calls."""
    (first, before), (last, seconds) = calls[0], calls[-1]
    if last <= first:
        return seconds
    return seconds + max(0.0, seconds - before) / (last - first) * max(0, nbytes - last)


def _curve_row(curve: PlannedCurve, point: _CurvePoint, mistakes: int) -> dict[str, Any]:
    """Return the table row of one size of a test: statistics of times, bandwidths, and wrong elements."""
    ranks, nbytes, inside = len(curve.group.ranks), point.nbytes, operations_per_call(curve.collective, point.nbytes)
    spread = spread_columns([one / inside for one in point.seconds])
    bandwidth, factor = nbytes / spread["seconds"], bus_factor(curve.collective, ranks)
    return {
        "collective": curve.collective,
        "ranks": ranks,
        "nodes": curve.group.nodes,
        "nbytes": nbytes,
        "size_convention": nccl_convention(curve.collective),
        "dtype": "float",
        "reduction": "sum" if curve.collective in _REDUCED else "",
        **spread,
        "statistic": "max",
        "algbw": round_digits(bandwidth),
        "busbw": None if factor is None else round_digits(factor * bandwidth),
        "wrong": mistakes,
        "iterations": point.count * inside * len(point.seconds),
        "repetitions": len(point.seconds),
        "first_rank": curve.group.ranks[0],
        "second_rank": curve.group.ranks[1],
    }


def _time_range(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "left out"
    return " to ".join(
        f"{units.format_bytes(one['nbytes'])} in {units.format_seconds(one['seconds'])}"
        for one in (rows[0], rows[-1])[: len(rows)]
    )


WITHIN = 0.02
"""Relative half-width of a median's interval at which repetitions may stop."""

LEAST, MOST = 5, 200
"""Minimum and maximum number of repetitions."""

REPETITION = 0.05
"""Target time of a repetition of short calls [s]."""

# Calls of a repetition at most, and into how many repetitions the time of a point is divided.
_CALLS, _REPETITIONS = 2000, 20


def calls_in_a_row(seconds: float, share: float) -> int:
    """Return how many calls a repetition has if a call takes `seconds` and all repetitions may take `share` [s]."""
    return max(1, min(_CALLS, round(min(REPETITION, share / _REPETITIONS) / seconds)))


def is_settled(seconds: Sequence[float]) -> bool:
    """Return whether the median repetition time is known to within the relative half-width `WITHIN`."""
    if len(seconds) < LEAST:
        return False
    return median_half_width(np.array(seconds)) <= WITHIN * float(np.median(seconds))


def spread_columns(seconds: Sequence[float]) -> dict[str, float]:
    """Return the table columns that summarise repetition times: median, quantiles, minimum and maximum [s]."""
    ends = {"_min": 0.0, "_p10": 0.1, "_p50": 0.5, "_p90": 0.9, "_max": 1.0, "": 0.5}
    return {f"seconds{name}": round_digits(float(np.quantile(seconds, at))) for name, at in ends.items()}


def round_digits(value: float) -> float:
    """Return a number rounded to six significant digits."""
    return float(f"{value:.6g}")
