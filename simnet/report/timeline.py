"""The first iterations message by message: for the page, and as a timeline for Perfetto or chrome://tracing.

The timeline is in Trace Event Format: a process per policy, and one for the network, with a track per resource of a
rank, and per link. What a resource of a rank does (its compute stream: compute, select, wait; its network: communicate,
or what is overlapped by computing) are complete events on its track, where events must nest or be disjoint; what
overlaps by more than rounding goes to a second track. What a link carries are pairs of asynchronous begin and end
events, since transfers that share a link overlap in any way. Flow events are the arrows from who sends a message to who
receives it.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Event: TypeAlias = dict[str, Any]

LinkNames: TypeAlias = Callable[[int, int], Sequence[str]]
"""Names of the links on the route from one rank to another."""

EVENTS = 12_000
"""Events of the page: a span is one, a message two; shared equally between the policies."""

# Track numbers are unique in the file, since viewers may take two threads of one number for one thread.
_TRACKS_PER_POLICY = 1_000_000
_ARGUMENTS = ("iteration", "round", "phase", "src", "dst", "nbytes_B")


class Recorded(NamedTuple):
    """What was kept message by message: spans, messages and names of links as for `write_timeline`."""

    spans: pd.DataFrame
    messages: pd.DataFrame
    links: LinkNames | None = None


class _TimelineSlice(NamedTuple):
    """What a resource of a rank does, from when to when [ns], and its track."""

    worker: int
    resource: str
    start: float
    finish: float
    tid: int


class _Message(NamedTuple):
    """A message: arguments of its events, its links, and from when to when it is under way [ns]."""

    arguments: Event
    links: Sequence[str]
    start: float
    finish: float


def write_timeline(
    stream: BinaryIO,
    spans: pd.DataFrame,
    messages: pd.DataFrame,
    *,
    links: LinkNames | None = None,
    iterations: Mapping[str, int] | None = None,
    max_events: int = 50_000,
) -> int:
    """Write a timeline; return the number of events in it, names of tracks not counted.

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
    6
    >>> made = json.loads(stream.getvalue())
    >>> "".join(event["ph"] for event in made["traceEvents"] if event["ph"] != "M")
    'XbsXfe'
    >>> made["otherData"]
    {'iterations': {'AG': '0 of 300'}}
    """

    @cache
    def route(src: int, dst: int) -> Sequence[str]:
        return (f"{src} to {dst}",) if links is None else links(int(src), int(dst))

    policies = list(dict.fromkeys([*spans["policy"], *messages["policy"]]))
    names: list[Event] = []
    events: list[Event] = []
    numbers = (f"{number:#x}" for number in itertools.count(1))
    said: dict[str, Any] = {"iterations": {}}
    for pid, policy in enumerate(policies, start=1):
        own = Recorded(spans[spans["policy"] == policy], messages[messages["policy"] == policy])
        pairs = zip(own.messages["src"], own.messages["dst"], strict=True)
        # Begin and end on each link, and both ends of an arrow.
        costs = np.array([2 * len(route(*pair)) + 2 for pair in pairs], dtype=np.int64)
        fitting = trim_to_budget(own, costs, max_events // len(policies))
        shown = sorted({*fitting.spans["iteration"].tolist(), *fitting.messages["iteration"].tolist()})
        said["iterations"][str(policy)] = here = _range_text(shown) + (
            f" of {iterations[policy]:,}" if iterations else ""
        )
        tracks = _PolicyTracks(pid, f"{policy}: iterations {here}" if shown else str(policy))
        rank_events, slices = _rank_events(fitting.spans, tracks)
        moved = _messages(fitting.messages, route)
        events += [*rank_events, *_link_events(moved, tracks, numbers), *_message_arrows(moved, slices, pid, numbers)]
        names += tracks.names
    events.sort(key=lambda event: event["ts"])
    stream.write(b'{"displayTimeUnit":"ms","otherData":' + json.dumps(said, separators=(",", ":")).encode())
    stream.write(b',"traceEvents":[')
    separator = b"\n"
    for event in (*names, *events):
        stream.write(separator + json.dumps(event, separators=(",", ":"), sort_keys=True).encode())
        separator = b",\n"
    stream.write(b"\n]}\n")
    return len(events)


def _range_text(numbers: Sequence[int]) -> str:
    """Return ascending whole numbers as people write them.

    >>> _range_text([0, 1, 2, 5, 7, 8])
    '0 to 2, 5, 7 to 8'
    """
    runs = itertools.groupby(enumerate(numbers), key=lambda one: one[1] - one[0])
    ends = ([number for _, number in run] for _, run in runs)
    return ", ".join(" to ".join(dict.fromkeys((f"{one[0]:,}", f"{one[-1]:,}"))) for one in ends) or "none"


class _PolicyTracks:
    """The tracks of one policy, numbered in the order in which they are first asked for."""

    def __init__(self, pid: int, policy: str) -> None:
        self.pid = pid
        self.names: list[Event] = []
        self._numbers: dict[str, int] = {}
        self._describe(0, "process", policy, pid)

    def __getitem__(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self.pid * _TRACKS_PER_POLICY + len(self._numbers) + 1
            self._describe(number, "thread", name, len(self._numbers))
        return number

    def _describe(self, tid: int, what: str, name: str, position: int) -> None:
        common = {"ph": "M", "pid": self.pid, "tid": tid, "ts": 0}
        named = (("name", name), ("sort_index", position))
        self.names += [common | {"name": f"{what}_{key}", "args": {key: value}} for key, value in named]


def _times(frame: pd.DataFrame) -> Iterator[tuple[float, float]]:
    """Yield start and finish of each row in whole nanoseconds; as floats, since 300 years have no int64."""
    whole = (np.rint(frame[name].to_numpy(dtype=np.float64) * 1e9).tolist() for name in ("start_s", "finish_s"))
    return zip(*whole, strict=True)


def _messages(messages: pd.DataFrame, route: LinkNames) -> list[_Message]:
    each = zip(*(messages[name].tolist() for name in _ARGUMENTS), strict=True)
    arguments = [dict(zip(_ARGUMENTS, values, strict=True)) for values in each]
    return [
        _Message(one, route(one["src"], one["dst"]), *times)
        for one, times in zip(arguments, _times(messages), strict=True)
    ]


def _rank_events(spans: pd.DataFrame, tracks: _PolicyTracks) -> tuple[list[Event], list[_TimelineSlice]]:
    """Return what resources of ranks do as events and as slices; what overlaps goes to a further track."""
    events, slices = [], []
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
            tid = tracks[f"rank {worker} {resource}" + (f" ({lane + 1})" if lane else "")]
            event = {"ph": "X", "cat": "rank", "name": what, "pid": tracks.pid, "tid": tid, "ts": start / 1000}
            events.append(event | {"dur": (finish - start) / 1000, "args": {"iteration": iteration}})
            slices.append(_TimelineSlice(worker, resource, start, finish, tid))
    return events, slices


def _link_events(messages: Iterable[_Message], tracks: _PolicyTracks, numbers: Iterator[str]) -> Iterator[Event]:
    for one in messages:
        for link in one.links:
            name = f"link {link}"
            # Viewers draw asynchronous events of one name on one track.
            common = {"cat": "link", "name": name, "id": next(numbers), "pid": tracks.pid, "tid": tracks[name]}
            yield {"ph": "b", "ts": one.start / 1000, "args": one.arguments, **common}
            yield {"ph": "e", "ts": max(one.start, one.finish) / 1000, **common}


def _message_arrows(
    messages: Iterable[_Message], slices: Iterable[_TimelineSlice], pid: int, numbers: Iterator[str]
) -> Iterator[Event]:
    """Yield an arrow for each message, from the slice of its sender to the slice of its receiver.

    A rank that does nothing then, as far as that is drawn, has no place for an arrow, and that message has none.
    """
    rows: dict[int, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    # What the network of a rank does comes first.
    for one in sorted(slices, key=lambda one: one.resource != "network"):
        rows[one.worker][one.tid].append((one.start, one.finish))
    tracks = {worker: [(tid, np.array(own).T) for tid, own in own.items()] for worker, own in rows.items()}

    def place(worker: int, time: float, *, ends: bool) -> tuple[int, float] | None:
        for tid, (starts, finishes) in tracks.get(worker, ()):
            at = int(np.searchsorted(starts, time, "left" if ends else "right")) - 1
            if at >= 0 and (time < finishes[at] or (ends and time == finishes[at])):
                # An arrow ends within a slice, not at its end.
                return tid, max(float(starts[at]), time - 1) if ends else time
        return None

    for message in messages:
        begin = place(message.arguments["src"], message.start, ends=False)
        end = place(message.arguments["dst"], message.finish, ends=True)
        if begin is not None and end is not None and begin[1] <= end[1]:
            common = {"cat": "message", "name": "message", "id": next(numbers), "pid": pid}
            yield {"ph": "s", "tid": begin[0], "ts": begin[1] / 1000, **common}
            yield {"ph": "f", "bp": "e", "tid": end[0], "ts": end[1] / 1000, **common}


def trim_to_budget(own: Recorded, costs: NDArray[np.int64], budget: int) -> Recorded:
    """Return the first iterations that fit into the budget of events, or the beginning of the first one."""
    spans, messages = own.spans, own.messages.assign(cost=costs)
    total = spans.groupby("iteration").size().add(messages.groupby("iteration")["cost"].sum(), fill_value=0).cumsum()
    fitting = total.index[total <= budget]
    if len(total) and not len(fitting):
        spans, messages = (
            frame[frame["iteration"] == total.index[0]].sort_values("start_s", kind="stable")
            for frame in (spans, messages)
        )
        spans = spans.head(budget // 2)
        return Recorded(spans, messages[messages["cost"].cumsum() <= budget - len(spans)])
    spans, messages = (frame[frame["iteration"].isin(fitting)] for frame in (spans, messages))
    return Recorded(spans, messages)


def message_sample(recorded: Recorded, events: int = EVENTS) -> dict[str, Any]:
    """Return the first iterations of each policy that fit, or the beginning of the first one.

    Examples
    --------
    >>> spans = pd.DataFrame([("AG", 0, 0, "compute", "select", 1.0, 1.5)],
    ...     columns=["policy", "iteration", "worker", "resource", "what", "start_s", "finish_s"])
    >>> messages = pd.DataFrame([("AG", 0, 0, "allgather", 0, 1, 1e6, 1.5, 1.75)],
    ...     columns=["policy", "iteration", "round", "phase", "src", "dst", "nbytes_B", "start_s", "finish_s"])
    >>> found = message_sample(Recorded(spans, messages, lambda src, dst: ("0->switch", "switch->1")))
    >>> found["policies"]["AG"]["0"]["messages"], found["links"], found["routes"]
    ([[0, 1, 1000000.0, 0.5, 0.75, 'allgather']], [['0', 'switch'], ['switch', '1']], {'0,1': [0, 1]})
    """
    names = list(dict.fromkeys([*recorded.spans["policy"], *recorded.messages["policy"]]))
    policies: dict[str, Any] = {}
    pairs: dict[tuple[int, int], None] = {}
    for name in names:
        own = Recorded(*(frame[frame["policy"] == name] for frame in recorded[:2]))
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
