"""How flows of unequal round trips shared a link, as measured, and how far max-min and weighted shares are off.

`shared_rates.csv` has the goodput of flows that never end, `shared_durations.csv` how long transfers took that started
together, again and again over the same connections. `sharing_links.contention` measured both on 22 November
2026 on a star of network namespaces of one machine with 2 cores, Linux 6.18, flows without pacing but for BBR, drop
tail. Columns, beside those of settings (`bandwidth` [byte/s] and `buffer` [byte] of the shared link, `round_trip` of
the flow without waiting [s], when it `start` [s], `nbytes`): `goodput` [byte/s] in the window up to `until` [s] after
the start, which begins where the one before ends, the first at 6 s; `seconds` of a transfer; packets lost in the run
(`drops`), and how late the switch delivered packets, the mean (`lateness`) [s].

Exponents are fitted to the runs of two flows at 20 Mbit/s that are marked ``fit``. Errors are those of the runs that
are held out: two to four flows, other bandwidths, round trips and buffers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from sharing_links.contention import FASTER
from simnet import topologies
from simnet.base.arrays import Floats
from simnet.network import MAX_MIN, STACKS, Network, Sharing
from simnet.network.sharing import Congestion, sharing_of
from simnet.network.stack import SEGMENT
from simnet.schedule import Round, Schedule

_GRID = np.arange(-30, 61) / 20
_DRAWS = 1000


class Fit(NamedTuple):
    """An exponent, and between which it is in 90 % of runs drawn anew from those it is fitted to."""

    exponent: float
    low: float
    high: float


LAWS = ("max_min", "with_buffer", "without")
"""Max-min, and weights by round trips with and without knowledge of the buffer."""


class Error(NamedTuple):
    """Absolute errors relative to what was measured: median, and what 90 % stay below."""

    median: float
    p90: float


Errors: TypeAlias = dict[str, dict[str, Error]]
"""Errors by congestion control and law."""


def measured(name: str) -> pd.DataFrame:
    """Return a table of measurements, ``shared_rates`` or ``shared_durations``.

    Examples
    --------
    >>> sorted(measured("shared_rates")["part"].unique())
    ['fit', 'held_out', 'long']
    """
    with Path(__file__).with_name(f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the `share` of each flow of each run in what all of them got, with the settings, ordered by run."""
    settings = ["run", "flow", "congestion", "bandwidth", "buffer", "round_trip", "part"]
    found = rows.groupby(settings)["goodput"].mean().reset_index()
    return found.assign(share=found["goodput"] / found.groupby("run")["goodput"].transform("sum"))


def unequal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of runs whose flows have unequal round trips."""
    return rows[rows.groupby("run")["round_trip"].transform("nunique") > 1].reset_index(drop=True)


def predicted(found: pd.DataFrame, known: bool, exponent: float | None = None) -> Floats:
    """Return the shares that weights by round trips give to flows; shape (flows,)."""
    weights = np.empty(len(found))
    for _, flows in found.groupby("run"):
        weights[flows.index] = _law(flows, known, exponent).weights(flows["round_trip"])
    every: Floats = weights / pd.Series(weights).groupby(found["run"]).transform("sum").to_numpy()
    return every


@cache
def fitted(congestion: Congestion, known: bool) -> Fit:
    """Return the exponent with the least mean absolute logarithm of predicted over measured shares.

    Congestion control is that of the flows; `known` says whether the buffer is.
    """
    rows = measured("shared_rates")
    found = unequal(shares(rows[(rows["part"] == "fit") & (rows["congestion"] == congestion)]))
    off = [np.abs(np.log(predicted(found, known, float(one)) / found["share"].to_numpy())) for one in _GRID]
    by_run = np.array([pd.Series(one).groupby(found["run"]).sum() for one in off])
    draws = np.random.default_rng(0).integers(by_run.shape[1], size=(_DRAWS, by_run.shape[1]))
    again = _GRID[by_run[:, draws].sum(axis=2).argmin(axis=0)]
    low, high = np.quantile(again, [0.05, 0.95])
    return Fit(float(_GRID[by_run.sum(axis=1).argmin()]), float(low), float(high))


def errors(part: str = "held_out", after: float = 0.0, deep: bool | None = None) -> Errors:
    """Return how far shares are off, of max-min, and weighted with and without knowledge of the buffer."""
    rows = measured("shared_rates")
    found = unequal(shares(rows[(rows["part"] == part) & (rows["until"] >= after)]))
    if deep is not None:
        longest = found.groupby("run")["round_trip"].transform("max")
        # A buffer is whole bytes.
        found = found[(found["buffer"] / found["bandwidth"] > 1.01 * longest) == deep].reset_index(drop=True)
    evenly = 1 / found.groupby("run")["flow"].transform("size").to_numpy()
    told = {"max_min": evenly, "with_buffer": predicted(found, True), "without": predicted(found, False)}
    return _errors(found.assign(**told), "share")


def durations() -> pd.DataFrame:
    """Return how long transfers took that started together, median over repetitions, and what `Network.time` says.

    The first of all repetitions, in which windows still grow, is left out. Columns: those of settings, `seconds`, and
    `max_min`, `with_buffer`, `without` and `in_order` [s]; the last is the stack `tcp` alone, with which messages flow
    on their receiver's link in the order in which they come.
    """
    rows = measured("shared_durations")
    settings = ["run", "flow", "congestion", "bandwidth", "buffer", "round_trip", "nbytes"]
    found = rows[rows["round"] > 0].groupby(settings)["seconds"].median().reset_index()
    told: dict[str, list[float]] = {law: [] for law in (*LAWS, "in_order")}
    for _, flows in found.groupby("run", sort=False):
        bandwidth = float(flows["bandwidth"].iloc[0])
        laws = (Sharing(exponent=0.0), _law(flows, True), _law(flows, False), MAX_MIN)
        for name, law in zip((*LAWS, "in_order"), laws, strict=True):
            told[name] += _times(bandwidth, flows["round_trip"].tolist(), flows["nbytes"].tolist(), law)
    return found.assign(**told)


def duration_errors() -> Errors:
    """Return how far the predicted times of transfers are off; see `durations`."""
    return _errors(unequal(durations()), "seconds", (*LAWS, "in_order"))


def _law(flows: pd.DataFrame, known: bool, exponent: float | None = None) -> Sharing:
    """Return the law for the flows of a run."""
    first = flows.iloc[0]
    given = {"congestion": first["congestion"], "exponent": exponent}
    return sharing_of(given | ({"buffer": float(first["buffer"] / first["bandwidth"])} if known else {}))


def _times(bandwidth: float, round_trips: Sequence[float], nbytes: Sequence[float], law: Sharing) -> list[float]:
    """Return how long simnet's network takes for transfers that start together [s]."""
    count = len(round_trips)
    graph = topologies.star(count + 1, 0.0, bandwidth)
    for host, round_trip in enumerate(round_trips, 1):
        for link in (*graph.out_edges(host), *graph.in_edges(host)):
            graph.edges[link].update(latency=round_trip / 2, bandwidth=FASTER * bandwidth)
    sends = Round(np.arange(1, count + 1), np.zeros(count, dtype=np.int64), nbytes)
    # The switch puts no segments together.
    stack = dataclasses.replace(STACKS["tcp"], acknowledged=2 * SEGMENT).with_software(0.0, 0.0)
    messages = Network(graph, stack=stack, sharing=law).time(Schedule(count + 1, [sends]), messages=True).messages
    assert messages is not None
    taken: list[float] = (messages.finish - messages.start).tolist()
    return taken


def _errors(found: pd.DataFrame, quantity: str, laws: Sequence[str] = LAWS) -> Errors:
    """Return the errors of columns named by laws against what was measured of a quantity."""
    made: Errors = {}
    for congestion, rows in found.groupby("congestion"):
        off = {law: (rows[law] / rows[quantity] - 1).abs() for law in laws}
        made[str(congestion)] = {law: Error(float(one.median()), float(one.quantile(0.9))) for law, one in off.items()}
    return made
