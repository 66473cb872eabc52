"""Timelines of the first iterations, with every message, for the HTML report and for Perfetto or chrome://tracing.

The timeline is in Trace Event Format: a process per policy, with a track per resource of a rank, and per link. What a
resource of a rank does (its compute stream: compute, select, wait; its network: communicate, or what is overlapped by
computing) are complete events on its track, where events must nest or be disjoint; what overlaps by more than rounding
goes to a second track. What a link carries are pairs of asynchronous begin and end events, since transfers that share a
link overlap in any way.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Event: TypeAlias = dict[str, Any]

LinkNames: TypeAlias = Callable[[int, int], Sequence[str]]
"""Names of the links on the route from one rank to another."""

EVENTS = 12_000
"""Maximum number of events on the page, shared equally between policies: one per span, two per message."""

# Track numbers are unique in the file, since viewers may take two threads of one number for one thread.
_TRACKS_PER_POLICY = 1_000_000
_ARGUMENTS = ("iteration", "round", "phase", "src", "dst", "nbytes_B")


class RecordedTimeline(NamedTuple):
    """Recorded first iterations: the spans of what ranks did, all messages, and the links of each route."""

    spans: pd.DataFrame
    messages: pd.DataFrame
    links: LinkNames | None = None


def write_timeline(
    stream: BinaryIO,
    spans: pd.DataFrame,
    messages: pd.DataFrame,
    *,
    links: LinkNames | None = None,
    iterations: Mapping[str, int] | None = None,
    max_events: int = 50_000,
) -> int:
    """Write a timeline in Trace Event Format; return the number of events, not counting the names of tracks.

    Examples
    --------
    >>> import io
    >>> rows = [("AG", 0, 0, "compute", "select", 0.0, 0.5), ("AG", 0, 1, "network", "communicate", 0.5, 0.75)]
    >>> spans = pd.DataFrame(rows,
    ...     columns=["policy", "iteration", "worker", "resource", "what", "start_s", "finish_s"])
    >>> messages = pd.DataFrame([("AG", 0, 0, "allgather", 0, 1, 1e6, 0.25, 0.75)],
    ...     columns=["policy", "iteration", "round", "phase", "src", "dst", "nbytes_B", "start_s", "finish_s"])
    >>> stream = io.BytesIO()
    >>> write_timeline(stream, spans, messages, iterations={"AG": 300})
    4
    >>> made = json.loads(stream.getvalue())["traceEvents"]
    >>> made[0]["args"], "".join(event["ph"] for event in made if event["ph"] != "M")
    ({'name': 'AG: iterations 0 of 300'}, 'XbXe')
    """

    @cache
    def route(src: int, dst: int) -> Sequence[str]:
        return (f"{src} to {dst}",) if links is None else links(int(src), int(dst))

    policies = list(dict.fromkeys([*spans["policy"], *messages["policy"]]))
    names: list[Event] = []
    events: list[Event] = []
    numbers = (f"{number:#x}" for number in itertools.count(1))
    for pid, policy in enumerate(policies, start=1):
        own = RecordedTimeline(spans[spans["policy"] == policy], messages[messages["policy"] == policy])
        pairs = zip(own.messages["src"], own.messages["dst"], strict=True)
        # A message begins and ends on each link.
        costs = np.array([2 * len(route(*pair)) for pair in pairs], dtype=np.int64)
        fitting = trim_to_budget(own, costs, max_events // len(policies))
        shown = sorted({*fitting.spans["iteration"].tolist(), *fitting.messages["iteration"].tolist()})
        ends = " to ".join(dict.fromkeys(f"{one:,}" for one in (*shown[:1], *shown[-1:])))
        title = f"{policy}: iterations {ends}" + (f" of {iterations[policy]:,}" if iterations else "")
        tracks: dict[str, int] = {}
        for track, event in (*_rank_events(fitting.spans), *_link_events(fitting.messages, route, numbers)):
            tid = tracks.setdefault(track, pid * _TRACKS_PER_POLICY + len(tracks) + 1)
            events.append(event | {"pid": pid, "tid": tid})
        names += _name_events("process", title if shown else str(policy), pid, 0, pid)
        for place, (track, tid) in enumerate(tracks.items(), start=1):
            names += _name_events("thread", track, pid, tid, place)
    events.sort(key=lambda event: event["ts"])
    lines = (json.dumps(event, separators=(",", ":"), sort_keys=True) for event in (*names, *events))
    stream.write(b'{"displayTimeUnit":"ms","traceEvents":[\n%b\n]}\n' % ",\n".join(lines).encode())
    return len(events)


def _name_events(what: str, name: str, pid: int, tid: int, position: int) -> list[Event]:
    common = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    named = (("name", name), ("sort_index", position))
    return [common | {"name": f"{what}_{key}", "args": {key: value}} for key, value in named]


def _times(frame: pd.DataFrame) -> Iterator[tuple[float, float]]:
    """Yield start and end of each row in whole nanoseconds, as floats, because integers could overflow."""
    whole = (np.rint(frame[name].to_numpy(dtype=np.float64) * 1e9).tolist() for name in ("start_s", "finish_s"))
    return zip(*whole, strict=True)


def _rank_events(spans: pd.DataFrame) -> Iterator[tuple[str, Event]]:
    """Yield (track, event) for each span of work on a resource of a rank; overlapping spans get extra tracks."""
    ends: dict[tuple[int, str], list[float]] = defaultdict(list)
    columns = (spans[name].tolist() for name in ("worker", "resource", "what", "iteration"))
    rows = ((worker, resource, *times, what, at) for (worker, resource, what, at), times in
            zip(zip(*columns, strict=True), _times(spans), strict=True))  # fmt: skip
    for worker, resource, start, finish, what, iteration in sorted(rows, key=lambda row: row[:4]):
        lanes = ends[worker, resource]
        # Times equal but for the last bits may differ by a nanosecond once they are whole.
        lane = next((number for number, end in enumerate(lanes) if end <= start + 1), len(lanes))
        if lane == len(lanes):
            lanes.append(start)
        start = max(start, lanes[lane])
        lanes[lane] = max(finish, start)
        if finish > start:
            event = {"ph": "X", "cat": "rank", "name": what, "ts": start / 1000, "dur": (finish - start) / 1000}
            track = f"rank {worker} {resource}" + (f" ({lane + 1})" if lane else "")
            yield track, event | {"args": {"iteration": iteration}}


def _link_events(messages: pd.DataFrame, route: LinkNames, numbers: Iterator[str]) -> Iterator[tuple[str, Event]]:
    """Yield (track, event) of each message's start and end on each link of its route."""
    rows = messages[[*_ARGUMENTS]].to_dict("records")
    for one, (start, finish) in zip(rows, _times(messages), strict=True):
        for link in route(one["src"], one["dst"]):
            # Viewers draw asynchronous events of one name on one track.
            common = {"cat": "link", "name": f"link {link}", "id": next(numbers)}
            yield common["name"], {"ph": "b", "ts": start / 1000, "args": one, **common}
            yield common["name"], {"ph": "e", "ts": max(start, finish) / 1000, **common}


def trim_to_budget(own: RecordedTimeline, costs: NDArray[np.int64], budget: int) -> RecordedTimeline:
    """Return as many first iterations of a timeline as fit a budget of trace events; message i takes `costs[i]`."""
    spans, messages = own.spans, own.messages.assign(cost=costs)
    total = spans.groupby("iteration").size().add(messages.groupby("iteration")["cost"].sum(), fill_value=0).cumsum()
    fitting = total.index[total <= budget]
    if len(total) and not len(fitting):
        spans, messages = (
            frame[frame["iteration"] == total.index[0]].sort_values("start_s", kind="stable")
            for frame in (spans, messages)
        )
        spans = spans.head(budget // 2)
        return RecordedTimeline(spans, messages[messages["cost"].cumsum() <= budget - len(spans)])
    spans, messages = (frame[frame["iteration"].isin(fitting)] for frame in (spans, messages))
    return RecordedTimeline(spans, messages)


def message_sample(recorded: RecordedTimeline, events: int = EVENTS) -> dict[str, Any]:
    """Return the spans, messages and routes of each policy's first iterations, as data for the HTML timeline.

    Policies share the limit `events` equally. A span counts as one event, a message as two.

    Examples
    --------
    >>> spans = pd.DataFrame([("AG", 0, 0, "compute", "select", 1.0, 1.5)],
    ...     columns=["policy", "iteration", "worker", "resource", "what", "start_s", "finish_s"])
    >>> messages = pd.DataFrame([("AG", 0, 0, "allgather", 0, 1, 1e6, 1.5, 1.75)],
    ...     columns=["policy", "iteration", "round", "phase", "src", "dst", "nbytes_B", "start_s", "finish_s"])
    >>> found = message_sample(RecordedTimeline(spans, messages, lambda src, dst: ("0->switch", "switch->1")))
    >>> found["policies"]["AG"]["0"]["messages"], found["links"], found["routes"]
    ([[0, 1, 1000000.0, 0.5, 0.75, 'allgather']], [['0', 'switch'], ['switch', '1']], {'0,1': [0, 1]})
    """
    names = list(dict.fromkeys([*recorded.spans["policy"], *recorded.messages["policy"]]))
    policies: dict[str, Any] = {}
    pairs: dict[tuple[int, int], None] = {}
    for name in names:
        own = RecordedTimeline(*(frame[frame["policy"] == name] for frame in recorded[:2]))
        shown = trim_to_budget(own, np.full(len(own.messages), 2), events // len(names))
        iterations = {}
        for iteration in dict.fromkeys([*shown.spans["iteration"], *shown.messages["iteration"]]):
            spans, messages = (frame[frame["iteration"] == iteration] for frame in shown[:2])
            there = sum(int((frame["iteration"] == iteration).sum()) for frame in own[:2])
            origin = min(float(frame["start_s"].min()) for frame in (spans, messages) if len(frame))
            pairs |= dict.fromkeys(zip(messages["src"].astype(int), messages["dst"].astype(int), strict=True))
            iterations[str(iteration)] = {
                "spans": _since(spans, ("worker", "resource", "what", "start_s", "finish_s"), origin),
                "messages": _since(messages, ("src", "dst", "nbytes_B", "start_s", "finish_s", "phase"), origin),
                "whole": len(spans) + len(messages) == there,
            }
        policies[str(name)] = iterations
    numbers: dict[str, int] = {}
    routes = {}
    if recorded.links is not None:
        for src, dst in pairs:
            routes[f"{src},{dst}"] = [numbers.setdefault(link, len(numbers)) for link in recorded.links(src, dst)]
    return {"policies": policies, "routes": routes, "links": [list(link.partition("->")[::2]) for link in numbers]}


def _since(frame: pd.DataFrame, columns: tuple[str, ...], origin: float) -> list[list[Any]]:
    since = frame.assign(start_s=frame["start_s"] - origin, finish_s=frame["finish_s"] - origin)
    return [list(row) for row in zip(*(since[name].tolist() for name in columns), strict=True)]
