"""Timeline of each resource of a worker in an iteration, from the timing of the exchange."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from simnet.base.arrays import Floats
from simnet.network import Timing

if TYPE_CHECKING:
    from simnet.training.job.job import Job
    from simnet.training.job.record import Iteration

COMPUTE, SIDE, HOST, NETWORK = "compute", "side stream", "host thread", "network"
"""Resources of a worker: compute stream, stream of kernels beside it, thread of the host that does the software of
messages, network card."""

Span: TypeAlias = tuple[int, str, str, float, float]
"""Span of a timeline: worker, resource, activity, begin and end [s]."""

_Piece: TypeAlias = tuple[str, str, float, float]


def worker_spans(job: Job, iteration: Iteration, seconds: float, timing: Timing) -> Iterator[Span]:
    """Yield the periods in which each worker's resources are busy in an iteration that lasts `seconds`.

    After the selection of its buckets a worker does one thing at a time. Earlier exchanges, and those during other
    work, are `overlapped`, from readiness of a bucket to its last message.
    """
    messages, probes = timing.messages, iteration.probes
    assert messages is not None
    assert timing.software is not None
    software = timing.software.of_ranks(messages)
    if probes is not None and probes.software is not None:
        assert probes.messages is not None
        software = software.and_of(probes.software.of_ranks(probes.messages).later(probes.origin - timing.origin))
    later = timing.origin - iteration.now
    for rank, worker in enumerate(iteration.active.tolist()):
        ends = seconds if job.barrier else float(timing.left[rank]) + later + job.update
        pieces, reached = _earlier_pieces(rank, iteration)
        own, after = _exchange_pieces(rank, timing, len(iteration.selections) == 1)
        if len(iteration.selections) > 1:
            pieces.append((COMPUTE, "wait", reached, float(iteration.selections[-1][0][rank])))
        busy = _times(software.begun, software.ended, software.rank == rank)
        own += [(HOST, "software", *one) for one in merge_intervals(sorted(busy))]
        pieces += [(where, what, begin + later, end + later) for where, what, begin, end in own]
        pieces.append((COMPUTE, "wait", after + later, ends - job.update))
        pieces.append((COMPUTE, "compute", ends - job.update, ends))
        for where, what, begin, end in pieces:
            first, last = iteration.now + begin, iteration.now + end
            # A step of a double there may be rounding.
            if last - first > math.ulp(last):
                yield worker, where, what, first, last


def _times(begun: Floats, ended: Floats, which: Any) -> list[tuple[float, float]]:
    """Return the (begin, end) pairs of the intervals that the index or mask `which` selects."""
    return list(zip(begun[which].tolist(), ended[which].tolist(), strict=True))


def _exchange_pieces(rank: int, timing: Timing, uninterrupted: bool) -> tuple[list[_Piece], float]:
    """Return a worker's spans in the last exchange of an iteration, and their end, as times [s] of `timing`."""
    messages, work_of, computed = timing.messages, timing.work, timing.computed
    assert messages is not None
    assert work_of is not None
    assert computed is not None
    work = _times(work_of.begun, work_of.ended, work_of.rank == rank)
    under_way = _times(messages.sent, messages.arrived, (messages.src == rank) | (messages.dst == rank))
    done, left = float(computed.done[rank]), float(timing.left[rank])
    selects = SIDE if computed.aside else COMPUTE
    # What is computed beside messages, and then these.
    pieces: list[_Piece] = []
    for resource, what, kind in ([(COMPUTE, "compute", "slice")] if uninterrupted else []) + [
        (selects, "select", "select")
    ]:
        times = _times(computed.begun[kind], computed.ended[kind], (slice(None), rank))
        pieces += [(resource, what, begin, end) for begin, end in times if end > begin]
    pieces += [(selects, "select", begin, min(end, done)) for begin, end in work if begin < done]
    exchanging = _exchange_spans(rank, timing)
    hidden = [one for each in exchanging for one in intersect_intervals(each, [(-math.inf, done), *sorted(work)])]
    pieces += [(NETWORK, "overlapped", *one) for one in merge_intervals(hidden)]
    reached = done
    doing = [(begin, end, COMPUTE, "select") for begin, end in work]
    doing += [(*one, NETWORK, "communicate") for message in under_way for one in subtract_intervals(message, work)]
    for begin, end, where, what in sorted(doing):
        end = min(end, left)
        if end > reached:
            pieces.append((COMPUTE, "wait", reached, max(reached, begin)))
            pieces.append((where, what, max(reached, begin), end))
            reached = end
    return pieces, reached


def _earlier_pieces(rank: int, state: Iteration) -> tuple[list[_Piece], float]:
    """Return a worker's spans before its last selection, such as interrupted exchanges, and their end [s]."""
    pieces: list[_Piece] = []
    first = float(state.begins[rank])
    reached = first + float(state.probing[rank])
    pieces.append((NETWORK, "communicate", first, reached))
    if len(state.selections) > 1:
        computed_by = reached + float(state.compute[rank] + state.slowed[rank])
        pieces.append((COMPUTE, "compute", reached, computed_by))
        reached = computed_by
    for begins, seconds in state.selections[:-1]:
        begin = float(begins[rank])
        pieces.append((COMPUTE, "wait", reached, begin))
        reached = begin + float(seconds[rank])
        pieces.append((COMPUTE, "select", begin, reached))
    return pieces, reached


def _exchange_spans(rank: int, timing: Timing) -> Iterator[tuple[float, float]]:
    """Yield the (begin, end) times [s] in which a worker's buckets are sent, without kernels that block messages."""
    messages = timing.messages
    assert messages is not None
    assert timing.work is not None
    assert timing.computed is not None
    begun, ended = timing.computed.begun, timing.computed.ended
    own = (messages.src == rank) | (messages.dst == rank)
    # What unpacks a bucket holds up no message.
    aside = set(begun["unpack"][:, rank].tolist()) if "unpack" in begun else set()
    work = _times(timing.work.begun, timing.work.ended, timing.work.rank == rank)
    held = [one for one in work if one[0] not in aside]
    through = -math.inf
    for part in range(len(ended["slice"])):
        of_part = own & (messages.part == part)
        if not of_part.any():
            continue
        ready = float(np.fmax(ended["slice"][part, rank], ended["select"][part, rank]))
        begin, arrived = max(ready, through), np.sort(messages.arrived[of_part])
        through = max(begin, float(arrived[-1]))
        between = []
        for first, last in held:
            if begin <= first < through:
                before = int(np.searchsorted(arrived, first, side="right"))
                between.append((max(begin, float(arrived[before - 1])) if before else begin, last))
        yield from subtract_intervals((begin, through), list(merge_intervals(sorted(between))))


def merge_intervals(intervals: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield the union of sorted intervals as disjoint intervals."""
    begin, end = -math.inf, -math.inf
    for first, last in intervals:
        if first > end:
            if end > begin:
                yield begin, end
            begin = first
        end = max(end, last)
    if end > begin:
        yield begin, end


def intersect_intervals(
    interval: tuple[float, float], others: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """Yield the parts of an interval that lie inside the sorted intervals `others`."""
    begin, end = interval
    for first, last in others:
        if max(begin, first) < min(end, last):
            yield max(begin, first), min(end, last)
            begin = min(end, last)


def subtract_intervals(
    interval: tuple[float, float], others: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """Yield the parts of an interval that lie outside the sorted intervals `others`."""
    begin, end = interval
    for first, last in others:
        if first < end and last > begin:
            yield begin, first
            begin = last
    yield begin, end
