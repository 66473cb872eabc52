"""Measured collectives of MPI and gloo, predicted from the settings of the links that they ran on.

A table of measurements that has ``link_latency`` [s] and ``link_bandwidth`` [byte/s] says all that a prediction needs
but one thing: what software adds to a message. That is taken from one idle link of the table for each library: the one
of shortest latency, among these the fastest, there with the fewest ranks. The smallest size tells the time per message,
the largest of at most 1 MiB that per byte, for each algorithm that was measured there, and by the median for others.
Processors that are short show most on idle links: so the lower quartile of the repetitions tells, no algorithm's time
per message differs from the median by more than `UNLIKE`, and that per byte is at most `SLOWEST`. Where it is not known
what the sends of a library wait for, the smallest size on the link of the longest latency tells it. These settings are
not predicted.

What is known of libraries, as `LIBRARIES`:

- Open MPI is eager as long as its limit is not exceeded; above it a message takes a rendezvous. Tables that say
  ``eager`` in their column ``profile``, or have no such column, raised the limit above every message.
- gloo waits for the receiver to be ready (``NOTIFY_RECV_READY`` in its ``transport/tcp/pair.h``). Its rings send
  halves, of which one is on its way while the other waits (``allreduce.cc``, ``allgather.cc``). A rank's word that it
  is ready for the next half goes over the same uplink as the halves that it sends, and behind them: where a half takes
  longer than the latency, halves do not overlap.
- MPICH over UCX is eager; over libfabric's provider for TCP a send waits until it is acknowledged. Its all-gather of
  varying sizes, which its ring all-reduce ends with, goes in pieces of 32 KiB, each a round
  (``MPIR_CVAR_ALLGATHERV_PIPELINE_MSG_SIZE``).

All-gathers of AG-Topk carry values and indices, twice the size of a row. AR-Topk is a broadcast of indices, then an
all-reduce of values. A *tree* is a Bruck all-gather, or a binomial reduction and broadcast.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, get_args

import numpy as np
import pandas as pd

import topologies
from simnet import collectives
from simnet.collectives import registry
from simnet.network import Network
from simnet.network.stack import BESIDE, SEGMENT, STACKS, LetGo, Stack
from simnet.schedule import Round, Schedule
from validate.shapednet.links import Change, predict

MAX_RANKS, MAX_SIZE = 64, 2**30
"""The most ranks, and the longest messages [byte], that are predicted."""

LARGE = 2**20
"""The largest message that tells what software takes for a byte; of larger ones, processors may be the limit."""

SLOWEST = 2e-9
"""The most that software takes for a byte [s]: copies and sums are quicker, and what takes longer is not software."""

UNLIKE = 2.0
"""By how much the time per message of one algorithm may differ from the median of all of a library.

What differs by more was held up: a single setting tells, and other work on the machine may have met it.
"""


class Library(NamedTuple):
    """What is known of how a library sends over TCP.

    Parameters
    ----------
    stacks : tuple of Stack
        How it may send; which of them, the measurements say.
    piece : float
        Bytes of a piece in which its all-gather of varying sizes goes round a ring.
    """

    stacks: tuple[Stack, ...]
    piece: float = math.inf


PLAIN = Library(tuple(dataclasses.replace(STACKS["mpich"], lets_go=one) for one in get_args(LetGo) if one != "left"))
"""One of which nothing is known: any sends, steps as they are."""

LIBRARIES: Mapping[str, Library] = MappingProxyType(
    {
        "openmpi": Library((STACKS["openmpi"],)),
        "mpich": Library(
            (STACKS["mpich"], dataclasses.replace(STACKS["mpich"], lets_go="acknowledged")), piece=32 * 1024
        ),
        "gloo": Library((STACKS["gloo"],)),
        "tcp": Library((STACKS["tcp"],)),
    }
)
"""Libraries by the beginning of the name of the tool."""


class _Case(NamedTuple):
    """One setting, or one iteration, of a table."""

    tool: str
    profile: str
    collective: str
    algorithm: str
    ranks: int
    size: float
    latency: float
    bandwidth: float
    seconds: float

    def takes(self, stack: Stack, links: Sequence[Change] | None = None) -> float:
        """Return the seconds on its own link, or on others."""
        known = library(self.tool)
        schedule = schedule_of(self.collective, self.algorithm, self.ranks, self.size, known)
        assert schedule is not None
        return float(predict(schedule, links or [self.link()], stack)[0])

    def link(self) -> Change:
        return Change(0.0, self.latency, self.bandwidth)


_KEYS = ["tool", "profile", "collective", "algorithm", "ranks", "size", "link_latency", "link_bandwidth"]
_STEPS = 4
# Idle links are where processors that are short show most.
_UNDISTURBED = 0.25
_FRAMING = (SEGMENT + BESIDE) / SEGMENT


def library(tool: str) -> Library:
    """Return what is known of a library; of one that is not in `LIBRARIES`, nothing.

    Examples
    --------
    >>> [one.lets_go for one in library("mine").stacks]
    ['taken', 'acknowledged', 'ready', 'request']
    """
    return next((one for name, one in LIBRARIES.items() if tool.startswith(name)), PLAIN)


# Settings that differ in their links alone have the same.
@lru_cache(maxsize=64)
def schedule_of(
    collective: str, algorithm: str, ranks: int, nbytes: float, sent_by: Library = PLAIN
) -> Schedule | None:
    """Return what a collective sends; None where that is not known.

    Parameters
    ----------
    collective, algorithm : str
        As in tables of measurements; ``ag_topk`` and ``ar_topk`` among them.
    ranks : int
        P.
    nbytes : float
        As simnet counts: the vector, or what a rank contributes to a gather; for ``ag_topk`` and ``ar_topk`` the values
        of a rank.
    sent_by : Library
        Whose messages.

    Examples
    --------
    >>> schedule_of("ar_topk", "tree", 4, 1000)
    Schedule(4 ranks, 6 rounds, 9 messages)
    >>> schedule_of("all_reduce", "ring", 3, 300_000, library("mpich"))
    Schedule(3 ranks, 10 rounds, 30 messages)
    >>> schedule_of("all_reduce", "magic", 3, 100) is None
    True
    """
    if collective == "ag_topk":
        kind = {"ring": "ring", "tree": "bruck", "bruck": "bruck"}.get(algorithm)
        if kind == "ring":
            return _in_pieces(collectives.allgather_ring(ranks, 2 * nbytes), sent_by.piece)
        return None if kind is None else collectives.allgather_bruck(ranks, 2 * nbytes)
    if collective == "ar_topk":
        values = schedule_of("all_reduce", algorithm, ranks, nbytes, sent_by)
        return None if values is None else collectives.broadcast_binomial(ranks, nbytes).concat(values)
    if (collective, algorithm) == ("all_reduce", "ring"):
        gathered = _in_pieces(collectives.allgather_ring(ranks, nbytes / ranks), sent_by.piece)
        return collectives.reduce_scatter_ring(ranks, nbytes).concat(gathered)
    found = registry.known("all_gather" if collective == "all_gatherv" else collective, algorithm)
    if found is None or found.needs:
        return None
    made = found.schedule(ranks, nbytes)
    return _in_pieces(made, sent_by.piece) if (collective, algorithm) == ("all_gatherv", "ring") else made


def _in_pieces(schedule: Schedule, longest: float) -> Schedule:
    """Return a schedule whose rounds are cut into pieces, each a round of its own."""
    rounds: list[Round] = []
    for one in schedule.rounds:
        count = max(1, math.ceil(float(one.nbytes.max(initial=0.0)) / longest))
        rounds += [Round(one.src, one.dst, one.nbytes / count, one.compute, one.phase)] * count
    return Schedule(schedule.n_ranks, rounds)


def predictable(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the settings of a table that can be predicted, one per row, with the median of their times.

    Parameters
    ----------
    rows : DataFrame
        As `simnet.calibration.readers` has them, with ``link_latency`` and ``link_bandwidth``.

    Returns
    -------
    DataFrame
        Of at most `MAX_RANKS` and `MAX_SIZE`.
        Columns ``tool``, ``profile``, ``collective``, ``algorithm``, ``ranks``, ``size`` (as simnet counts),
        ``link_latency``, ``link_bandwidth``, ``seconds``, and ``undisturbed``, the lower quartile of their times, which
        tells software. Empty where nothing can be.
    """
    table = _keyed(rows)
    repetitions = table.groupby(_KEYS, sort=True)["seconds"]
    found = repetitions.median().reset_index()
    found["undisturbed"] = repetitions.quantile(_UNDISTURBED).to_numpy()
    return found[_known(found)].reset_index(drop=True)


def from_links(rows: pd.DataFrame) -> pd.DataFrame:
    """Predict measured times from the settings of the links.

    Parameters
    ----------
    rows : DataFrame
        As of `predictable`. Where links change while it runs, and rows have ``since_change``, each is predicted, with
        the links of its beginning, or, where it has ``began`` [s], with those that come while it lasts.

    Returns
    -------
    DataFrame
        As of `predictable`, with ``ours`` and ``closed_form`` (alpha-beta with framing, no software) [s], and
        ``software``, the part of ours that is software. Without the settings that software was measured at.
    """
    settings = predictable(rows)
    if not len(settings):
        return settings.assign(ours=[], closed_form=[], software=[])
    stacks: dict[tuple[str, str], Mapping[tuple[str, str], Stack]] = {}
    used: list[int] = []
    for (tool, profile), part in settings.groupby(["tool", "profile"]):
        stacks[str(tool), str(profile)], at = calibrated(part, str(tool), str(profile))
        used += at
    if "since_change" in rows:
        table = _keyed(rows)
        table = table[_known(table)]
        first = settings.loc[used, _KEYS]
        table = table[~pd.MultiIndex.from_frame(table[_KEYS]).isin(pd.MultiIndex.from_frame(first))]
    else:
        table = settings.drop(index=used)
    known: dict[_Case, tuple[float, float, float]] = {}
    found = []
    for one in _cases(table):
        key = one._replace(seconds=0.0)
        if key not in known:
            known[key] = _three(key, _stack(one, stacks))
        found.append(known[key])
    ours, bare, plain = np.array(found).reshape(-1, 3).T
    table = table.assign(ours=ours, closed_form=plain, software=ours - bare)
    return _across_changes(table, stacks) if "began" in table else table


def calibrated(
    settings: pd.DataFrame, tool: str, profile: str = ""
) -> tuple[Mapping[tuple[str, str], Stack], list[int]]:
    """Return how a library sends, with its software as measured on an idle link, and the settings that told it.

    Parameters
    ----------
    settings : DataFrame
        As `predictable` gives them, of one tool.
    tool, profile : str
        Its name, and what the table says of its limits.

    Returns
    -------
    mapping of (str, str) to Stack
        By collective and algorithm, as measured on the idle link; by two empty texts the medians over these, for what
        was not.
    list of int
        Labels of rows of `settings`.
    """
    known = library(tool)
    idle = _corner(settings, far=False)
    idle = idle.assign(seconds=idle["undisturbed"])
    small = idle[idle["size"] == idle["size"].min()]
    large = idle[(idle["size"] == idle["size"][idle["size"] <= LARGE].max()) & (idle["size"] > small["size"].max())]
    candidates = []
    for one in known.stacks:
        bare = one.with_software(0.0, 0.0)
        raised = bare.eager_limit and (not profile or "eager" in profile)
        candidates.append(
            _with_software(dataclasses.replace(bare, eager_limit=math.inf) if raised else bare, small, large)
        )
    used = sorted({*small.index, *large.index})
    if len(candidates) > 1:
        far = _corner(settings, far=True)
        far = far[far["size"] == far["size"].min()]
        used += [index for index in far.index if index not in used]
        off = [
            float(np.mean([abs(one.takes(stack["", ""]) / one.seconds - 1) for one in _cases(far)]))
            for stack in candidates
        ]
        return candidates[int(np.argmin(off))], used
    return candidates[0], used


def _with_software(bare: Stack, small: pd.DataFrame, large: pd.DataFrame) -> Mapping[tuple[str, str], Stack]:
    """Return a stack with the software that explains what was measured on an idle link."""
    measured = {(one.collective, one.algorithm): _software(one, bare, "message", 1e-4) for one in _cases(small)}
    overhead = float(np.median(list(measured.values())))
    found = {
        key: bare.with_software(message=min(max(own, overhead / UNLIKE), overhead * UNLIKE))
        for key, own in measured.items()
    }
    for one in _cases(large):
        key = (one.collective, one.algorithm)
        quick = found.get(key, bare.with_software(message=overhead))
        found[key] = quick.with_software(byte=min(_software(one, quick, "byte", 1e-9), SLOWEST))
    copying = float(np.median([2 * each.before_byte for each in found.values()]))
    found["", ""] = bare.with_software(overhead, copying)
    return found


def _stack(one: _Case, stacks: Mapping[tuple[str, str], Mapping[tuple[str, str], Stack]]) -> Stack:
    known = stacks[one.tool, one.profile]
    return known.get((one.collective, one.algorithm), known["", ""])


def _corner(settings: pd.DataFrame, *, far: bool) -> pd.DataFrame:
    """Return the settings of the shortest or longest latency, there of the fastest link, there of the fewest ranks."""
    part = settings
    for name, largest in (("link_latency", far), ("link_bandwidth", True), ("ranks", False)):
        part = part[part[name] == (part[name].max() if largest else part[name].min())]
    return part


def _software(one: _Case, stack: Stack, name: str, probe: float) -> float:
    """Return the seconds of software, per message or per byte, that explain what was measured."""

    def at(value: float) -> float:
        return one.takes(stack.with_software(**{name: value}))

    # Time is piecewise linear in software, as the path that takes longest changes.
    value = 0.0
    for _ in range(_STEPS):
        here = at(value)
        value = max(0.0, value + (one.seconds - here) * probe / (at(value + probe) - here))
    return value


def _three(one: _Case, stack: Stack) -> tuple[float, float, float]:
    """Return what is predicted, what of it remains without software, and the closed form."""
    link = one.link()
    ours, bare = one.takes(stack), one.takes(stack.with_software(0.0, 0.0))
    star = topologies.star(one.ranks, latency=link.latency, bandwidth=link.bandwidth / _FRAMING)
    plain = schedule_of(one.collective, one.algorithm, one.ranks, one.size)
    assert plain is not None
    return ours, bare, float(Network(star).time(plain).finish)


def _cases(table: pd.DataFrame) -> list[_Case]:
    texts = [table[name].tolist() for name in _KEYS[:4]]
    numbers = [table[name].tolist() for name in (*_KEYS[5:], "seconds")]
    return [
        _Case(tool, profile, collective, algorithm, int(ranks), *rest)
        for tool, profile, collective, algorithm, ranks, *rest in zip(
            *texts, table["ranks"].tolist(), *numbers, strict=True
        )
    ]


def _known(table: pd.DataFrame) -> list[bool]:
    """Return for each row whether what it sends is known."""
    found: dict[tuple[str, str, int], bool] = {}
    for one in _cases(table):
        key = (one.collective, one.algorithm, one.ranks)
        if key not in found:
            found[key] = schedule_of(*key, 1.0) is not None
    return [found[one.collective, one.algorithm, one.ranks] for one in _cases(table)]


def _across_changes(
    table: pd.DataFrame, stacks: Mapping[tuple[str, str], Mapping[tuple[str, str], Stack]]
) -> pd.DataFrame:
    """Predict again what begins on some links and ends on others."""
    ours = table["ours"].copy()
    for _, each in table.groupby(["tool", "profile", "collective", "algorithm", "ranks", "size"]):
        part = each.sort_values("began")
        links = part[["link_latency", "link_bandwidth"]]
        new = (links != links.shift()).any(axis=1)
        at = (part["began"] - part["since_change"].fillna(0))[new].to_numpy()
        changes = [
            Change(*each) for each in zip(at.tolist(), *(links[new][name].tolist() for name in links), strict=True)
        ]
        began = part["began"].to_numpy()
        last = np.maximum(np.searchsorted(at, began, side="right") - 1, 0)
        ahead = np.append(at, math.inf)[last + 1]
        for place in np.flatnonzero(began + part["ours"].to_numpy() > ahead).tolist():
            start = float(began[place])
            coming = [changes[last[place]]._replace(at=start), *changes[last[place] + 1 :]]
            one = _cases(part.iloc[[place]])[0]
            moved = [each._replace(at=each.at - start) for each in coming]
            ours[part.index[place]] = one.takes(_stack(one, stacks), moved)
    return table.assign(ours=ours)


def _keyed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that say on which links they were measured, with the columns that tell settings apart."""
    empty = pd.Series("", index=rows.index)
    ranks = rows["ranks"].astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
    size = rows["nbytes"].astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
    gathered = rows["collective"].isin(["all_gather", "all_gatherv"]).to_numpy()
    whole = gathered & (rows["size_convention"] != "per_rank").to_numpy()
    table = pd.DataFrame(
        {
            "tool": rows["tool"].fillna("").astype(str),
            "profile": rows.get("profile", empty).fillna("").astype(str),
            "collective": rows["collective"].astype(str),
            "algorithm": rows["algorithm"].fillna("").astype(str),
            "ranks": ranks,
            "size": np.where(whole, size / ranks, size),
            "link_latency": pd.to_numeric(rows["link_latency"], errors="coerce"),
            "link_bandwidth": pd.to_numeric(rows["link_bandwidth"], errors="coerce"),
            "seconds": rows["seconds"],
        }
    )
    for name in ("since_change", "began"):
        if name in rows:
            table[name] = pd.to_numeric(rows[name], errors="coerce")
    usable = table["ranks"].between(2, MAX_RANKS) & (table["size"] > 0) & (table["size"] <= MAX_SIZE)
    usable &= (table["link_latency"] >= 0) & (table["link_bandwidth"] > 0)
    return table[usable]
