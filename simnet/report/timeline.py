"""The first iterations as a timeline for Perfetto or chrome://tracing: a track per resource of a rank, and per link.

Trace Event Format: a process per policy, and one for the network. What a resource of a rank does (its compute stream:
compute, select, wait; its network: communicate, or what is overlapped by computing) are complete events on its track,
where events must nest or be disjoint; what overlaps by more than rounding goes to a second track. What a link carries
are pairs of asynchronous begin and end events, since transfers that share a link overlap in any way. Flow events are
the arrows from who sends a message to who receives it; counters are messages under way on a link, and its bandwidth.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

LinkNames: TypeAlias = Callable[[int, int], Sequence[str]]
"""Names of the links on the route from one rank to another."""

Bandwidths: TypeAlias = Callable[[str, float, float], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""From when on [s] a link, by its name, has which bandwidth [byte/s], from one time [s] to before another."""

_NS = 1_000_000_000
# Track numbers are unique in the file, since viewers may take two threads of one number for one thread.
_TRACKS_PER_POLICY = 1_000_000
# Part of the events that bandwidths may be.
_BANDWIDTHS = 10


class Kept(NamedTuple):
    """The spans and messages of a policy that are drawn."""

    spans: pd.DataFrame
    messages: pd.DataFrame

    @property
    def iterations(self) -> list[int]:
        """The iterations in the timeline."""
        return sorted({*self.spans["iteration"].tolist(), *self.messages["iteration"].tolist()})


class _Slice(NamedTuple):
    """What a resource of a rank does, from when to when [ns], and its track."""

    worker: int
    resource: str
    start: float
    finish: float
    tid: int


def write_timeline(
    stream: BinaryIO,
    spans: pd.DataFrame,
    messages: pd.DataFrame,
    *,
    links: LinkNames | None = None,
    bandwidths: Bandwidths | None = None,
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
    8
    >>> made = json.loads(stream.getvalue())
    >>> "".join(event["ph"] for event in made["traceEvents"] if event["ph"] != "M")
    'XbsCXfeC'
    >>> made["otherData"]
    {'iterations': {'AG': '0 of 300'}}
    """

    @cache
    def route(src: int, dst: int) -> Sequence[str]:
        return (f"{src} to {dst}",) if links is None else links(int(src), int(dst))

    policies = list(dict.fromkeys([*spans["policy"], *messages["policy"]]))
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    numbers = itertools.count(1)
    kept_of: dict[str, Kept] = {}
    for_bandwidths = 0 if bandwidths is None else max_events // _BANDWIDTHS
    said: dict[str, Any] = {"iterations": {}}
    for pid, policy in enumerate(policies, start=1):
        own = Kept(spans[spans["policy"] == policy], messages[messages["policy"] == policy])
        pairs = zip(own.messages["src"], own.messages["dst"], strict=True)
        # Begin, end and two counts on each link, and both ends of an arrow.
        costs = np.array([4 * len(route(*pair)) + 2 for pair in pairs], dtype=np.int64)
        kept = kept_of[policy] = within(own, costs, (max_events - for_bandwidths) // len(policies))
        of = "" if iterations is None else f" of {iterations[policy]:,}"
        said["iterations"][str(policy)] = here = _ranges(kept.iterations) + of
        tracks = _Tracks(pid, f"{policy}: iterations {here}" if kept.iterations else str(policy))
        slices = []
        for event, slice_ in _rank_events(kept.spans, tracks):
            events.append(event)
            slices.append(slice_)
        events += _link_events(kept.messages, tracks, route, numbers)
        events += _arrows(kept.messages, slices, pid, numbers)
        events += _under_way(kept.messages, tracks, route)
        names += tracks.names
    if bandwidths is not None:
        tracks = _Tracks(len(policies) + 1, "network")
        found, every = _bandwidth_events(kept_of.values(), tracks, route, bandwidths, for_bandwidths)
        if found:
            names += tracks.names
            said["bandwidths"] = "all changes" if every == 1 else f"of the changes of a link one in {every}"
        events += found
    events.sort(key=lambda event: event["ts"])
    stream.write(b'{"displayTimeUnit":"ms","otherData":' + json.dumps(said, separators=(",", ":")).encode())
    stream.write(b',"traceEvents":[')
    separator = b"\n"
    for event in (*names, *events):
        stream.write(separator + json.dumps(event, separators=(",", ":"), sort_keys=True).encode())
        separator = b",\n"
    stream.write(b"\n]}\n")
    return len(events)


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending whole numbers as people write them.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0 to 2, 5, 7 to 8'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    return ", ".join(" to ".join(f"{end:,}" for end in one) for one in ranges) or "none"


class _Tracks:
    """The tracks of one policy, numbered in the order in which they are first asked for."""

    def __init__(self, pid: int, policy: str) -> None:
        self.pid = pid
        self.names: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}
        self._describe(0, "process", policy, pid)

    def __getitem__(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self.pid * _TRACKS_PER_POLICY + len(self._numbers) + 1
            self._describe(number, "thread", name, len(self._numbers))
        return number

    def _describe(self, tid: int, what: str, name: str, position: int) -> None:
        for key, value in (("name", name), ("sort_index", position)):
            self.names.append(
                {"ph": "M", "name": f"{what}_{key}", "pid": self.pid, "tid": tid, "ts": 0, "args": {key: value}}
            )


def _rank_events(spans: pd.DataFrame, tracks: _Tracks) -> Iterator[tuple[dict[str, Any], _Slice]]:
    ordered = spans.assign(start=_ns(spans["start_s"]), finish=_ns(spans["finish_s"])).sort_values(
        ["worker", "resource", "start", "finish"], kind="stable"
    )
    ends: dict[tuple[int, str], list[float]] = defaultdict(list)
    columns = (ordered[name].tolist() for name in ("worker", "resource", "start", "finish", "what", "iteration"))
    for worker, resource, start, finish, what, iteration in zip(*columns, strict=True):
        lanes = ends[worker, resource]
        # Times equal but for the last bits may differ by a nanosecond once they are whole.
        lane = next((number for number, end in enumerate(lanes) if end <= start + 1), len(lanes))
        if lane == len(lanes):
            lanes.append(start)
        start = max(start, lanes[lane])
        lanes[lane] = max(finish, start)
        if finish <= start:
            continue
        tid = tracks[f"rank {worker} {resource}" + (f" ({lane + 1})" if lane else "")]
        event = {
            "ph": "X",
            "cat": "rank",
            "name": what,
            "pid": tracks.pid,
            "tid": tid,
            "ts": start / 1000,
            "dur": (finish - start) / 1000,
            "args": {"iteration": iteration},
        }
        yield event, _Slice(worker, resource, start, finish, tid)


def _link_events(
    messages: pd.DataFrame, tracks: _Tracks, route: LinkNames, numbers: Iterator[int]
) -> Iterator[dict[str, Any]]:
    fields = ("iteration", "round", "phase", "src", "dst", "nbytes_B")
    columns = (messages[name].tolist() for name in fields)
    times = (_ns(messages["start_s"]).tolist(), _ns(messages["finish_s"]).tolist())
    for start, finish, *values in zip(*times, *columns, strict=True):
        arguments = dict(zip(fields, values, strict=True))
        for link in route(arguments["src"], arguments["dst"]):
            name = f"link {link}"
            # Viewers draw asynchronous events of one name on one track.
            common = {"cat": "link", "name": name, "id": f"{next(numbers):#x}", "pid": tracks.pid, "tid": tracks[name]}
            yield {"ph": "b", "ts": start / 1000, "args": arguments, **common}
            yield {"ph": "e", "ts": max(start, finish) / 1000, **common}


def _arrows(
    messages: pd.DataFrame, slices: Sequence[_Slice], pid: int, numbers: Iterator[int]
) -> Iterator[dict[str, Any]]:
    """Yield an arrow for each message, from the slice of its sender to the slice of its receiver.

    A rank that does nothing then, as far as that is drawn, has no place for an arrow, and that message has none.
    """
    rows: dict[int, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    # What the network of a rank does comes first.
    for one in sorted(slices, key=lambda one: one.resource != "network"):
        rows[one.worker][one.tid].append((one.start, one.finish))
    tracks = {worker: [(tid, np.array(own).T) for tid, own in own.items()] for worker, own in rows.items()}

    def place(worker: int, time: float, side: Literal["left", "right"]) -> tuple[int, float] | None:
        for tid, (starts, finishes) in tracks.get(worker, ()):
            at = int(np.searchsorted(starts, time, side)) - 1
            if at >= 0 and (time < finishes[at] or (side == "left" and time == finishes[at])):
                # An arrow ends within a slice, not at its end.
                return tid, max(float(starts[at]), time - 1) if side == "left" else time
        return None

    columns = (messages[name].tolist() for name in ("src", "dst"))
    times = (_ns(messages["start_s"]).tolist(), _ns(messages["finish_s"]).tolist())
    for src, dst, start, finish in zip(*columns, *times, strict=True):
        begin, end = place(src, start, "right"), place(dst, finish, "left")
        if begin is None or end is None or begin[1] > end[1]:
            continue
        common = {"cat": "message", "name": "message", "id": f"{next(numbers):#x}", "pid": pid}
        yield {"ph": "s", "tid": begin[0], "ts": begin[1] / 1000, **common}
        yield {"ph": "f", "bp": "e", "tid": end[0], "ts": end[1] / 1000, **common}


def _under_way(messages: pd.DataFrame, tracks: _Tracks, route: LinkNames) -> Iterator[dict[str, Any]]:
    """Yield how many messages are under way on each link, whenever that changes."""
    changes: dict[str, dict[float, int]] = defaultdict(lambda: defaultdict(int))
    columns = (messages[name].tolist() for name in ("src", "dst"))
    times = (_ns(messages["start_s"]).tolist(), _ns(messages["finish_s"]).tolist())
    for src, dst, start, finish in zip(*columns, *times, strict=True):
        for link in route(src, dst):
            changes[link][start] += 1
            changes[link][max(start, finish)] -= 1
    for link, own in changes.items():
        count, name = 0, f"link {link}: messages under way"
        for time in sorted(own):
            count += own[time]
            yield {"ph": "C", "name": name, "pid": tracks.pid, "ts": time / 1000, "args": {"messages": count}}


def _bandwidth_events(
    kept: Iterable[Kept], tracks: _Tracks, route: LinkNames, bandwidths: Bandwidths, room: int
) -> tuple[list[dict[str, Any]], int]:
    """Return the bandwidths of the links that messages take while these are under way, and which part of all changes.

    Of each link that is every change, or one in so many, if there are more than have room.
    """
    frames = [one.messages for one in kept if len(one.messages)]
    if not frames:
        return [], 1
    pairs = dict.fromkeys(pair for one in frames for pair in zip(one["src"], one["dst"], strict=True))
    links = list(dict.fromkeys(link for pair in pairs for link in route(*pair)))
    start, end = (min(one["start_s"].min() for one in frames), max(one["finish_s"].max() for one in frames))
    found = [bandwidths(link, float(start), float(end)) for link in links]
    every = 1
    while sum(-(-times.size // every) for times, _ in found) > room:
        if every > max(times.size for times, _ in found):
            return [], 1
        every *= 2
    events = [
        {"ph": "C", "name": f"link {link}: bandwidth", "pid": tracks.pid, "ts": time, "args": {"Mbit/s": 8e-6 * value}}
        for link, (times, values) in zip(links, found, strict=True)
        for time, value in zip((1e6 * times[::every]).tolist(), values[::every].tolist(), strict=True)
    ]
    return events, every


def within(own: Kept, costs: NDArray[np.int64], budget: int) -> Kept:
    """Return the first iterations that fit into the budget of events, or the beginning of the first one."""
    per_iteration = pd.concat(
        [
            pd.Series(1, index=own.spans["iteration"].to_numpy()),
            pd.Series(costs, index=own.messages["iteration"].to_numpy()),
        ]
    )
    total = per_iteration.groupby(level=0).sum().cumsum()
    fitting = total.index[total <= budget]
    if len(total) and not len(fitting):
        first = own.messages["iteration"] == total.index[0]
        spans = own.spans[own.spans["iteration"] == total.index[0]].sort_values("start_s", kind="stable")
        messages = own.messages[first].assign(cost=costs[first]).sort_values("start_s", kind="stable")
        spans = spans.head(budget // 2)
        return Kept(spans, messages[messages["cost"].cumsum() <= budget - len(spans)])
    return Kept(own.spans[own.spans["iteration"].isin(fitting)], own.messages[own.messages["iteration"].isin(fitting)])


def _ns(seconds: pd.Series[Any]) -> NDArray[np.float64]:
    """Return times in whole nanoseconds; as floats, since 300 years have no int64."""
    whole: NDArray[np.float64] = np.rint(seconds.to_numpy(dtype=np.float64) * _NS)
    return whole
