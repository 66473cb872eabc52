"""A whole schedule timed in one compiled call: all rounds in one block, and how each rank spent its time.

For short schedules that recur, calling compiled loops round by round costs more than the loops. The functions run
interpreted or compiled by numba, to the same bits, like those of `simnet.network.recurrence`, which they call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats, Ranks
from simnet.network.recurrence import COMPLETED, Cursors, Forecast, Progress, RouteState, Traffic, run_round

# Up to so many numbers numpy sums in eight running sums, and beyond them by halves.
MOST_SUMMED = 128


class BatchedSchedule(NamedTuple):
    """The rounds of a schedule on their routes, one after another; consecutive repeats are stored once.

    - `src`, `dst`, `nbytes`, `links`, `own`: as in `simnet.network.recurrence.Traffic`, for the messages of all rounds.
    - `compute` (number of rounds with work * P,): seconds each rank works before those rounds.
    - `single`, `exclusive` (rounds,): as in `Traffic`.
    - `repeats` (rounds,): number of consecutive occurrences.
    - `message`, `sent`, `work`, `worked` (rounds + 1,): offset of each round in the messages, the messages with
      repeats, `compute`, and the work times with repeats.
    """

    src: Ranks
    dst: Ranks
    nbytes: Floats
    links: NDArray[np.int64]
    own: Ranks
    compute: Floats
    single: NDArray[np.bool_]
    exclusive: NDArray[np.bool_]
    repeats: Ranks
    message: Ranks
    sent: Ranks
    work: Ranks
    worked: Ranks


class SegmentRange(NamedTuple):
    """First and past-the-end segment of each link, as in `Timelines`, and a moment [s]."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    moment: float


class RankIntervals(NamedTuple):
    """Intervals in which each rank communicates or works.

    - `interval` (n,): of rank 0, of rank 1, ...: m messages as sender, then m as receiver, then times of work.
    - `first` (P + 1,): offset of each rank.
    """

    interval: Ranks
    first: Ranks


def run_rounds(
    batch: BatchedSchedule,
    routes: RouteState,
    forecast: Forecast | None,
    extents: tuple[SegmentRange, SegmentRange] | None,
    progress: Progress,
    overheads: tuple[float, float],
    begin: int,
    steady: bool,
) -> tuple[int, int, float]:
    """Run all rounds from `begin` on; return the last round, its outcome and a time [s], as `run_round` does.

    - `batch`: the rounds.
    - `routes`: routes of the messages of all rounds.
    - `forecast`: as in `run_round`; its segments are looked up here.
    - `extents`: of bandwidths and latencies; None if links never change.
    - `progress`: of all rounds; `place` is that of the current round.
    - `overheads`, `steady`: as in `run_round`.
    - `begin`: the round to start or resume.
    """
    P, place = len(progress.done), progress.place
    if forecast is not None and extents is not None:
        _find(forecast.bandwidth, extents[0])
        _find(forecast.latency, extents[1])
    for one in range(begin, len(batch.repeats)):
        a, b = batch.message[one], batch.message[one + 1]
        s, e = batch.sent[one], batch.sent[one + 1]
        w, v = batch.worked[one], batch.worked[one + 1]
        traffic = Traffic(
            batch.src[a:b],
            batch.dst[a:b],
            batch.nbytes[a:b],
            batch.compute[batch.work[one] : batch.work[one + 1]],
            batch.links[a:b],
            batch.own[a:b],
            batch.single[one],
            batch.exclusive[one],
        )
        # What no work comes before is entered at once, and that is not kept.
        f, g = (w, v) if v > w else (len(progress.entered) - P, len(progress.entered))
        own = Progress(
            progress.begun[w:v],
            progress.entered[f:g],
            progress.done,
            progress.busy,
            progress.pair,
            progress.pair_end,
            progress.port_free,
            progress.sent[s:e],
            progress.arrived[s:e],
            place,
        )
        state = RouteState(
            routes.latency[a:b],
            routes.latency_since[a:b],
            routes.latency_until[a:b],
            routes.seconds[a:b],
            routes.own[a:b],
            routes.rate_since[a:b],
            routes.rate_until[a:b],
        )
        outcome, when = run_round(
            traffic, state, forecast, own, progress.sent[:0], overheads, batch.repeats[one], steady
        )
        if outcome != COMPLETED:
            return one, outcome, when
        place[0], place[1] = 0, -1
    return len(batch.repeats), COMPLETED, 0.0


def _find(cursors: Cursors, extent: SegmentRange) -> None:
    """Find the segment of each link at a moment."""
    for link in range(len(cursors.segment)):
        low, high = extent.first[link], extent.last[link]
        while high - low > 1:
            middle = (low + high) // 2
            if cursors.times[middle] <= extent.moment:
                low = middle
            else:
                high = middle
        cursors.segment[link] = low


def split_time(
    everything: RankIntervals,
    working: RankIntervals,
    progress: Progress,
    accounted: Floats,
    scratch: tuple[Floats, Floats],
    split: tuple[Floats, Floats, Floats],
) -> None:
    """Write the seconds that each rank communicates, computes and waits into `split`, from `accounted` to its end.

    - `everything`, `working`: all intervals, and those of work.
    - `progress`: of all rounds, at the end.
    - `accounted` (P,): start of accounting [s].
    - `scratch` (n,) each: buffers for the intervals of one rank.
    - `split` (P,) each: output.
    """
    for rank in range(len(progress.done)):
        communicating, computing, waiting = split
        works = _covered(rank, working, progress, accounted[rank], scratch)
        communicates = _covered(rank, everything, progress, accounted[rank], scratch) - works
        communicating[rank], computing[rank] = communicates, works
        through = max(progress.done[rank] - accounted[rank], 0.0)
        waiting[rank] = max(through - communicates - works, 0.0)


def _covered(
    rank: int, shares: RankIntervals, progress: Progress, accounted: float, scratch: tuple[Floats, Floats]
) -> float:
    """Return the length of the union of a rank's intervals [s], summed as `max_plus.covered_seconds` does."""
    begins, ends = scratch
    finish, m = progress.done[rank], len(progress.sent)
    first, count = shares.first[rank], shares.first[rank + 1] - shares.first[rank]
    if count == 0:
        return 0.0
    for one in range(count):
        interval = shares.interval[first + one]
        if interval < 2 * m:
            begin, end = progress.sent[interval % m], progress.arrived[interval % m]
        else:
            begin, end = progress.begun[interval - 2 * m], progress.entered[interval - 2 * m]
        begin = max(begin, accounted)
        end = max(min(end, finish), begin)
        # They are sorted by their begin; those that begin at once stay in order.
        place = one
        while place > 0 and begins[place - 1] > begin:
            begins[place], ends[place] = begins[place - 1], ends[place - 1]
            place -= 1
        begins[place], ends[place] = begin, end
    total, reached = float(ends[0] - begins[0]), float(ends[0])
    # What an interval adds begins where those before it have ended.
    for one in range(1, count):
        end = max(reached, float(ends[one]))
        begins[one - 1] = max(end - max(begins[one], reached), 0.0)
        reached = end
    return total + _sum(begins, count - 1)


def _sum(values: Floats, count: int) -> float:
    """Return the sum of the first `count` <= `MOST_SUMMED` numbers, added in numpy's order."""
    total = 0.0
    done = 0
    if count >= 8:
        done = count - count % 8
        a, b, c, d = values[0], values[1], values[2], values[3]
        e, f, g, h = values[4], values[5], values[6], values[7]
        for one in range(8, done, 8):
            a, b, c, d = a + values[one], b + values[one + 1], c + values[one + 2], d + values[one + 3]
            e, f, g, h = e + values[one + 4], f + values[one + 5], g + values[one + 6], h + values[one + 7]
        total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for one in range(done, count):
        total += values[one]
    return total
