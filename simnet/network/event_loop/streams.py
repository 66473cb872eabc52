"""Compute streams of ranks: slices of the backward pass, and kernels of the exchange that queue behind them.

Nothing of a stream is on the agenda. What runs on it when follows from what its own rank asks of it, and a rank that
waits for it asks for nothing else. So a stream is brought up to date when its rank comes to it; see
`simnet.network.compute_stream` for its rules. What comes at an instant queues before a slice begins at that instant.
"""

from __future__ import annotations

import math

from simnet.network.event_loop.records import Portion, State, Stream


def go_on(s: State, row: int, until: float, place: float, part: int) -> None:
    """Let a stream go on until a time, until a place in its queue is served, or until a part has been selected.

    Parameters
    ----------
    s : State
        It has the streams.
    row : int
        Which one.
    until, place : float
        The time and the place; infinity for none.
    part : int
        The part; -1 for none.
    """
    x = s.streams[row]
    while x.reached < until:
        if x.served >= place or (
            part >= 0 and x.slices > part and x.served >= s.portions[x.portions + part].selects_to
        ):
            return
        waits = x.served < x.queued
        if not x.runs and x.slices < x.parts and (x.aside or not waits):
            x.runs = True
            portion = s.portions[x.portions + x.slices]
            x.left, portion.slice_begun = portion.seconds, x.reached
        serves = waits and (x.aside or not x.runs)
        if serves and not x.serves:
            x.since = x.reached
        x.serves = serves
        if not (x.runs or serves):
            if until < math.inf:
                x.reached = until
            return
        slice_factor = x.beside * (x.slower_slices if serves else 1.0)
        kernel_factor = x.slower_kernels if x.runs else 1.0
        stop = min(next_end(s, x), place)
        slice_end = x.reached + x.left * slice_factor if x.runs else math.inf
        kernels_end = x.reached + (stop - x.served) * kernel_factor if serves else math.inf
        end = min(slice_end, kernels_end, until)
        passed = end - x.reached
        x.reached = end
        if serves:
            if x.computed < math.inf:
                x.busy += passed
            if end == kernels_end:
                x.served = stop
                end_kernels(s, x)
            else:
                x.served = min(x.served + passed / kernel_factor, stop)
        if slice_end < math.inf:
            x.sliced += passed
            if end == slice_end:
                end_slice(s.portions[x.portions + x.slices], x)
            else:
                x.left = max(x.left - passed / slice_factor, 0.0)
        through = x.slices == x.parts and x.served >= s.portions[x.portions + x.parts - 1].selects_to
        if through and x.computed == math.inf:
            x.computed = x.reached


def next_end(s: State, x: Stream) -> float:
    """Return the place in the queue at which what is served, or comes next, ends."""
    stop = x.queued
    if x.selected < x.slices:
        stop = min(stop, s.portions[x.portions + x.selected].selects_to)
    if x.unpacked < x.posted:
        stop = min(stop, s.portions[x.portions + x.unpacked].unpacks_to)
    return stop


def end_slice(portion: Portion, x: Stream) -> None:
    """Let kernels queue behind a slice that is done."""
    portion.slice_ended = x.reached
    x.queued += portion.select
    portion.selects_to = x.queued
    x.slices += 1
    x.runs = False


def end_kernels(s: State, x: Stream) -> None:
    """Note when what has been served began and ended."""
    skip_selected(s, x, -math.inf)
    if x.selected < x.slices and s.portions[x.portions + x.selected].selects_to <= x.served:
        portion = s.portions[x.portions + x.selected]
        portion.select_begun, portion.select_ended = x.since, x.reached
    elif x.unpacked < x.posted and s.portions[x.portions + x.unpacked].unpacks_to <= x.served:
        portion = s.portions[x.portions + x.unpacked]
        portion.unpack_begun, portion.unpack_ended = x.since, x.reached
    skip_selected(s, x, x.served)
    skip_unpacked(s, x)
    x.began, x.since = x.since, x.reached


def skip_selected(s: State, x: Stream, served: float) -> None:
    """Go on to the next part of which something is left to select, given up to which place kernels are served."""
    while x.selected < x.slices:
        portion = s.portions[x.portions + x.selected]
        if portion.select > 0.0 and portion.selects_to > served:
            return
        x.selected += 1


def skip_unpacked(s: State, x: Stream) -> None:
    """Go on to the next part of which something is left to unpack."""
    while x.unpacked < x.posted:
        place = s.portions[x.portions + x.unpacked].unpacks_to
        if x.served < place < math.inf:
            return
        x.unpacked += 1


def queue_kernels(s: State, row: int, seconds: float) -> float:
    """Let kernels queue that their rank waits for, and return when they end."""
    x = s.streams[row]
    x.queued += seconds
    x.began = x.reached
    go_on(s, row, math.inf, x.queued, -1)
    return x.reached


def post_kernels(s: State, row: int, part: int, seconds: float) -> None:
    """Let the kernels queue that unpack a part, for which the rank does not wait."""
    x = s.streams[row]
    x.queued += seconds
    s.portions[x.portions + part].unpacks_to = x.queued
    x.posted = part + 1
    skip_unpacked(s, x)


def selected_at(s: State, row: int, part: int) -> float:
    """Return when a part has been selected, given that nothing else comes before."""
    go_on(s, row, math.inf, math.inf, part)
    return s.streams[row].reached


def through_at(s: State, row: int) -> float:
    """Return when a stream has nothing left to do, given that nothing else comes."""
    go_on(s, row, math.inf, math.inf, -1)
    return s.streams[row].reached
