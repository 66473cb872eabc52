"""Compute streams of ranks, which run slices of the backward pass and the kernels of an exchange.

Streams have no events: what runs follows from what the rank has queued, so a stream is advanced when its rank needs it.
Kernels queued at an instant run before a slice that starts then. Rules: `simnet.network.program`.
"""

from __future__ import annotations

import math

from simnet.network.event_loop import codes
from simnet.network.event_loop.records import ComputeSlice, State, StreamRecord


def advance_stream(s: State, row: int, until: float, place: float, part: int) -> None:
    """Simulate a compute stream to time `until` [s], or to an earlier stop at `place` or `part`.

    - s
    - `row`: the stream.
    - `until`, `place`: a time, and total seconds that kernels have run; infinity for none.
    - `part`: the gradient part that its kernels select; -1 for none.
    """
    x = s.streams[row]
    while x.reached < until:
        if x.served >= place or (
            part >= 0 and x.slices > part and x.served >= s.compute_slices[x.compute_slices + part].selects_to
        ):
            return
        waits = x.served < x.queued
        if not x.runs and x.slices < x.parts and (x.aside or not waits):
            x.runs = True
            compute_slice = s.compute_slices[x.compute_slices + x.slices]
            x.left, compute_slice.slice_begun = compute_slice.seconds, x.reached
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
        stop = min(next_kernel_end(s, x), place)
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
                finish_kernels(s, x)
            else:
                x.served = min(x.served + passed / kernel_factor, stop)
        if slice_end < math.inf:
            x.sliced += passed
            if end == slice_end:
                finish_slice(s.compute_slices[x.compute_slices + x.slices], x)
            else:
                x.left = max(x.left - passed / slice_factor, 0.0)
        through = x.slices == x.parts and x.served >= s.compute_slices[x.compute_slices + x.parts - 1].selects_to
        if through and x.computed == math.inf:
            x.computed = x.reached


def next_kernel_end(s: State, x: StreamRecord) -> float:
    """Return the stream's total kernel time since its start [s] when its current or next group of kernels ends."""
    stop = x.queued
    if x.selected < x.slices:
        stop = min(stop, s.compute_slices[x.compute_slices + x.selected].selects_to)
    if x.unpacked < x.posted:
        stop = min(stop, s.compute_slices[x.compute_slices + x.unpacked].unpacks_to)
    return stop


def finish_slice(compute_slice: ComputeSlice, x: StreamRecord) -> None:
    """Record the end of a backward-pass slice, and queue the kernels that select from the gradients it computed."""
    compute_slice.slice_ended = x.reached
    x.queued += compute_slice.select
    compute_slice.selects_to = x.queued
    x.slices += 1
    x.runs = False


def finish_kernels(s: State, x: StreamRecord) -> None:
    """Record the start and end of kernels that just finished, which selected or unpacked a part of the gradient."""
    skip_selected(s, x, -math.inf)
    if x.selected < x.slices and s.compute_slices[x.compute_slices + x.selected].selects_to <= x.served:
        compute_slice = s.compute_slices[x.compute_slices + x.selected]
        compute_slice.select_begun, compute_slice.select_ended = x.since, x.reached
    elif x.unpacked < x.posted and s.compute_slices[x.compute_slices + x.unpacked].unpacks_to <= x.served:
        compute_slice = s.compute_slices[x.compute_slices + x.unpacked]
        compute_slice.unpack_begun, compute_slice.unpack_ended = x.since, x.reached
    skip_selected(s, x, x.served)
    skip_unpacked(s, x)
    x.began, x.since = x.since, x.reached


def skip_selected(s: State, x: StreamRecord, served: float) -> None:
    """Count gradient parts as selected if they need no kernels, or these end by `served` seconds of kernel time."""
    while x.selected < x.slices:
        compute_slice = s.compute_slices[x.compute_slices + x.selected]
        if compute_slice.select > 0.0 and compute_slice.selects_to > served:
            return
        x.selected += 1


def skip_unpacked(s: State, x: StreamRecord) -> None:
    """Count gradient parts as unpacked if their unpacking kernels have finished, or if there are none."""
    while x.unpacked < x.posted:
        place = s.compute_slices[x.compute_slices + x.unpacked].unpacks_to
        if x.served < place < math.inf:
            return
        x.unpacked += 1


def queue_kernels(s: State, row: int, seconds: float) -> float:
    """Queue kernels of `seconds` seconds and advance the stream to their end; return the time of the end [s]."""
    x = s.streams[row]
    x.queued += seconds
    x.began = x.reached
    advance_stream(s, row, math.inf, x.queued, codes.NONE)
    return x.reached


def post_kernels(s: State, row: int, part: int, seconds: float) -> None:
    """Queue kernels of `seconds` seconds that unpack a part, without advancing the stream."""
    x = s.streams[row]
    x.queued += seconds
    s.compute_slices[x.compute_slices + part].unpacks_to = x.queued
    x.posted = part + 1
    skip_unpacked(s, x)


def selected_at(s: State, row: int, part: int) -> float:
    """Advance the stream to the end of a part's selection kernels; return the time of the end [s]."""
    advance_stream(s, row, math.inf, math.inf, part)
    return s.streams[row].reached


def stream_done_at(s: State, row: int) -> float:
    """Advance the stream until it is idle; return when that is [s]."""
    advance_stream(s, row, math.inf, math.inf, codes.NONE)
    return s.streams[row].reached
