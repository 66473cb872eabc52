"""The first iterations as a timeline for Perfetto or chrome://tracing: a track per resource of a rank, and per link.

Trace Event Format: a process per policy. What a resource of a rank does (its compute stream: compute, select, wait; its
network: communicate, or what is overlapped by computing) are complete events on its track, where events must nest or be
disjoint; what overlaps by more than rounding goes to a second track. What a link carries are pairs of asynchronous
begin and end events, since transfers that share a link overlap in any way.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

LinkNames: TypeAlias = Callable[[int, int], Sequence[str]]
"""Names of the links on the route from one rank to another."""

_NS = 1_000_000_000
# Track numbers are unique in the file, since viewers may take two threads of one number for one thread.
_TRACKS_PER_POLICY = 1_000_000


class Kept(NamedTuple):
    """The spans and messages of a policy that are drawn."""

    spans: pd.DataFrame
    messages: pd.DataFrame


def write_timeline(
    stream: BinaryIO,
    spans: pd.DataFrame,
    messages: pd.DataFrame,
    *,
    links: LinkNames | None = None,
    max_events: int = 50_000,
) -> int:
    """Write a timeline; return the number of events in it, names of tracks not counted.

    Parameters
    ----------
    stream : binary file
        Where the JSON goes.
    spans : DataFrame
        Columns `policy`, `iteration`, `worker`, `resource`, `what`, `start_s`, `finish_s`.
    messages : DataFrame
        Columns `policy`, `iteration`, `round`, `phase`, `src`, `dst`, `nbytes_B`, `start_s`, `finish_s`.
    links : callable, optional
        ``links(src, dst)`` names the links that a message occupies; one link per pair of ranks when omitted.
    max_events : int
        No more events than this, shared equally between the policies; each policy gets as many of its first
        iterations as fit, or the beginning of the first one.

    Examples
    --------
    >>> import io
    >>> spans = pd.DataFrame([("AG", 0, 0, "compute", "select", 0.0, 0.5)],
    ...     columns=["policy", "iteration", "worker", "resource", "what", "start_s", "finish_s"])
    >>> messages = pd.DataFrame([("AG", 0, 0, "allgather", 0, 1, 1e6, 0.5, 0.75)],
    ...     columns=["policy", "iteration", "round", "phase", "src", "dst", "nbytes_B", "start_s", "finish_s"])
    >>> stream = io.BytesIO()
    >>> write_timeline(stream, spans, messages)
    3
    >>> [event["ph"] for event in json.loads(stream.getvalue())["traceEvents"]]
    ['M', 'M', 'M', 'M', 'M', 'M', 'X', 'b', 'e']
    """

    @cache
    def route(src: int, dst: int) -> Sequence[str]:
        return (f"{src} to {dst}",) if links is None else links(int(src), int(dst))

    policies = list(dict.fromkeys([*spans["policy"], *messages["policy"]]))
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    numbers = itertools.count(1)
    for pid, policy in enumerate(policies, start=1):
        own = Kept(spans[spans["policy"] == policy], messages[messages["policy"] == policy])
        kept = within(own, route, max_events // len(policies))
        tracks = _Tracks(pid, str(policy))
        events += _rank_events(kept.spans, tracks)
        events += _link_events(kept.messages, tracks, route, numbers)
        names += tracks.names
    events.sort(key=lambda event: event["ts"])
    stream.write(b'{"displayTimeUnit":"ms","traceEvents":[')
    separator = b"\n"
    for event in (*names, *events):
        stream.write(separator + json.dumps(event, separators=(",", ":"), sort_keys=True).encode())
        separator = b",\n"
    stream.write(b"\n]}\n")
    return len(events)


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


def _rank_events(spans: pd.DataFrame, tracks: _Tracks) -> Iterator[dict[str, Any]]:
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
        yield {
            "ph": "X",
            "cat": "rank",
            "name": what,
            "pid": tracks.pid,
            "tid": tracks[f"rank {worker} {resource}" + (f" ({lane + 1})" if lane else "")],
            "ts": start / 1000,
            "dur": (finish - start) / 1000,
            "args": {"iteration": iteration},
        }


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


def within(own: Kept, route: LinkNames, budget: int) -> Kept:
    """Return the first iterations that fit into the budget of events, or the beginning of the first one.

    Parameters
    ----------
    own : Kept
        Of one policy.
    route : callable
        Names of the links between two ranks; a message is two events on each.
    budget : int
        Events that there may be.
    """
    cost = 2 * np.array([len(route(*pair)) for pair in zip(own.messages["src"], own.messages["dst"], strict=True)], int)
    per_iteration = pd.concat(
        [
            pd.Series(1, index=own.spans["iteration"].to_numpy()),
            pd.Series(cost, index=own.messages["iteration"].to_numpy()),
        ]
    )
    total = per_iteration.groupby(level=0).sum().cumsum()
    fitting = total.index[total <= budget]
    if len(total) and not len(fitting):
        first = own.messages["iteration"] == total.index[0]
        spans = own.spans[own.spans["iteration"] == total.index[0]].sort_values("start_s", kind="stable")
        messages = own.messages[first].assign(cost=cost[first]).sort_values("start_s", kind="stable")
        spans = spans.head(budget // 2)
        return Kept(spans, messages[messages["cost"].cumsum() <= budget - len(spans)])
    return Kept(own.spans[own.spans["iteration"].isin(fitting)], own.messages[own.messages["iteration"].isin(fitting)])


def _ns(seconds: pd.Series[Any]) -> NDArray[np.float64]:
    """Return times in whole nanoseconds; as floats, since 300 years have no int64."""
    whole: NDArray[np.float64] = np.rint(seconds.to_numpy(dtype=np.float64) * _NS)
    return whole
