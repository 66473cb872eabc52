"""What the page of a run draws of single iterations: spans of workers, messages, and the links that these take."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simnet.report.timeline import Kept, LinkNames, within

EVENTS = 12_000
"""Events of the page: a span is one, a message two; shared equally between the policies."""


class Recorded(NamedTuple):
    """What was kept message by message: spans, messages and names of links as for `write_timeline`."""

    spans: pd.DataFrame
    messages: pd.DataFrame
    links: LinkNames | None = None


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
    links = recorded.links
    names = list(dict.fromkeys([*recorded.spans["policy"], *recorded.messages["policy"]]))
    policies: dict[str, Any] = {}
    pairs: dict[tuple[int, int], None] = {}
    for name in names:
        own = Kept(*(frame[frame["policy"] == name] for frame in (recorded.spans, recorded.messages)))
        shown = within(own, np.full(len(own.messages), 2), events // len(names))
        iterations = {}
        for iteration in dict.fromkeys([*shown.spans["iteration"], *shown.messages["iteration"]]):
            spans, messages = (frame[frame["iteration"] == iteration] for frame in shown)
            there = sum(int((frame["iteration"] == iteration).sum()) for frame in own)
            origin = min(float(frame["start_s"].min()) for frame in (spans, messages) if len(frame))
            pairs |= dict.fromkeys(zip(messages["src"].astype(int), messages["dst"].astype(int), strict=True))
            iterations[str(iteration)] = {
                "spans": _rows(spans, ("worker", "resource", "what", "start_s", "finish_s"), origin),
                "messages": _rows(messages, ("src", "dst", "nbytes_B", "start_s", "finish_s", "phase"), origin),
                "whole": len(spans) + len(messages) == there,
            }
        policies[str(name)] = iterations
    numbers: dict[str, int] = {}
    routes = {}
    if links is not None:
        for src, dst in pairs:
            routes[f"{src},{dst}"] = [numbers.setdefault(link, len(numbers)) for link in links(src, dst)]
    return {"policies": policies, "routes": routes, "links": [list(link.partition("->")[::2]) for link in numbers]}


def _rows(frame: pd.DataFrame, columns: tuple[str, ...], origin: float) -> list[list[Any]]:
    since = frame.assign(start_s=frame["start_s"] - origin, finish_s=frame["finish_s"] - origin)
    return [list(row) for row in zip(*(since[name].tolist() for name in columns), strict=True)]
