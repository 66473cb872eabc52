"""Predictions of collectives measured with MPI and gloo, from the latency and bandwidth of links.

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

- The tools ``replay-tcp``, ``replay-gloo`` and ``replay-mpich`` are those of `simnet.validate.replay`: schedules that
  go message by message through the library.

What is sent is told by `simnet.validate.shapednet.libraries`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import starmap
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, get_args

import numpy as np
import pandas as pd

from simnet import collectives
from simnet.collectives import registry
from simnet.cost_models.calibration.software import raises_eager_limit
from simnet.network.stack import BESIDE, IDEAL, SEGMENT, STACKS, SendCompletion, Stack
from simnet.schedule import Round, Schedule
from simnet.validate.shapednet.links import COLUMNS, Change, of_each, predict

CONTRIBUTION = "contribution"
"""Prefix of the columns ``contribution_0``, ``contribution_1``, ... with each rank's contribution [byte]."""

Sizes: TypeAlias = float | tuple[float, ...]
"""A size for all ranks, or what each rank contributes [byte]."""


# Settings that differ in their links alone have the same.
@lru_cache(maxsize=64)
def schedule_of(
    collective: str, algorithm: str, ranks: int, nbytes: Sizes, longest: float = math.inf
) -> Schedule | None:
    """Return the schedule of a collective, None if unknown; ring all-gathers send at most `longest` bytes at once."""
    if isinstance(nbytes, tuple):
        found = registry.find_collective("all_gather", algorithm) if collective == "all_gatherv" else None
        known = found is not None and found.varying is not None and len(nbytes) == ranks
        return found.schedule_of_sizes(nbytes) if found and known else None
    if algorithm == "direct":
        return _direct_exchange(collective, ranks, nbytes)
    if collective == "ag_topk":
        kind = {"ring": "ring", "tree": "bruck", "bruck": "bruck"}.get(algorithm)
        if kind == "ring":
            return _in_pieces(collectives.allgather_ring(ranks, 2 * nbytes), longest)
        return None if kind is None else collectives.allgather_bruck(ranks, 2 * nbytes)
    if collective == "ar_topk":
        values = schedule_of("all_reduce", algorithm, ranks, nbytes, longest)
        return None if values is None else collectives.broadcast_binomial(ranks, nbytes).concat(values)
    if (collective, algorithm) == ("all_reduce", "ring") and longest < math.inf:
        gathered = _in_pieces(collectives.allgather_ring(ranks, nbytes / ranks), longest)
        return collectives.reduce_scatter_ring(ranks, nbytes).concat(gathered)
    found = registry.find_collective("all_gather" if collective == "all_gatherv" else collective, algorithm)
    if found is None or found.needs or not found.ranks.among(ranks):
        return None
    made = found.schedule(ranks, nbytes)
    return _in_pieces(made, longest) if (collective, algorithm) == ("all_gatherv", "ring") else made


def _direct_exchange(collective: str, ranks: int, nbytes: float) -> Schedule | None:
    """Return a collective in which each rank sends all its messages at once, as one round; None if unknown."""
    others = np.arange(1, ranks)
    root = np.zeros_like(others)
    if collective in ("all_gather", "alltoall"):
        src = np.repeat(np.arange(ranks), ranks - 1)
        return Schedule(ranks, [Round(src, (src + np.tile(others, ranks)) % ranks, nbytes)])
    if collective == "broadcast":
        return Schedule(ranks, [Round(root, others, nbytes)])
    if collective == "gather":
        return Schedule(ranks, [Round(others, root, nbytes)])
    return None


def _in_pieces(schedule: Schedule, longest: float) -> Schedule:
    """Return a schedule whose rounds are split so that no message exceeds `longest` bytes."""
    rounds: list[Round] = []
    for one in schedule.rounds:
        count = max(1, math.ceil(float(one.nbytes.max(initial=0.0)) / longest))
        rounds += [Round(one.src, one.dst, one.nbytes / count, one.compute, one.phase)] * count
    return Schedule(schedule.n_ranks, rounds)


MAX_RANKS, MAX_SIZE = 64, 2**30
"""Maximum number of ranks, and maximum message size [byte], of predicted settings."""

LARGE = 2**20
"""Largest message from which the software time per byte is fitted [byte]; larger ones may be processor-bound."""

SLOWEST = 2e-9
"""Maximum software time per byte [s]: copies and sums are faster, so a longer time has another cause."""

UNLIKE = 2.0
"""Maximum factor between an algorithm's time per message and the median of its library.

A larger factor is a disturbance: the time comes from a single setting, which other work on the machine may delay.
"""


class Library(NamedTuple):
    """TCP transport of a library: the stacks it may use, and the message size at which ring all-gathers are cut."""

    # How it may send; which of them, the measurements say.
    stacks: tuple[Stack, ...]
    # Bytes of a piece in which its all-gather of varying sizes goes round a ring.
    piece: float = math.inf


PLAIN = Library(
    tuple(
        dataclasses.replace(STACKS["mpich"], send_completion=one) for one in get_args(SendCompletion) if one != "left"
    )
)
"""The transport of an unknown library: any kind of send completion, and schedules without pipelining."""


def bare_stack(name: str) -> Stack:
    """Return a library's transport stack for replays, which send single messages rather than collectives.

    The switch of `simnet.validate.shapednet.namespaces` does not merge segments, so every second one is acknowledged.
    """
    return dataclasses.replace(
        STACKS[name],
        acknowledged=2 * SEGMENT,
        rounds=1,
        pieces=1,
        posts_ahead=False,
        gathers_send_first=False,
        collectives="textbook",
    )


LIBRARIES: Mapping[str, Library] = MappingProxyType(
    {
        "openmpi": Library((STACKS["openmpi"],)),
        "mpich": Library(
            (STACKS["mpich"], dataclasses.replace(STACKS["mpich"], send_completion="acknowledged")), piece=32 * 1024
        ),
        "gloo": Library((STACKS["gloo"],)),
        "tcp": Library((STACKS["tcp"],)),
        "replay-tcp": Library((bare_stack("tcp"),)),
        "replay-gloo": Library((bare_stack("gloo"),)),
        "replay-mpich": Library((bare_stack("mpich"),)),
    }
)
"""Libraries by the prefix of the tool's name."""


class Case(NamedTuple):
    """Measured exchange in one setting, or in one iteration of a setting: its sizes [byte], links and time [s]."""

    tool: str
    profile: str
    collective: str
    algorithm: str
    ranks: int
    sizes: Sizes
    links: Change
    seconds: float

    def takes(self, stack: Stack, links: Sequence[Change] | None = None) -> float:
        """Return the predicted time [s] on the links of the measurement, or on other links."""
        schedule = self.schedule(library(self.tool).piece)
        return float(predict(schedule, links or [self.links], stack)[0])

    def schedule(self, longest: float = math.inf) -> Schedule:
        """Return the measured collective's schedule; all-gathers are cut into pieces of at most `longest` bytes."""
        found = schedule_of(self.collective, self.algorithm, self.ranks, self.sizes, longest)
        assert found is not None
        return found


_KEYS = ["tool", "profile", "collective", "algorithm", "ranks", "sizes", "links"]
_STEPS = 4
# Idle links are where processors that are short show most.
_UNDISTURBED = 0.25
_FRAMING = (SEGMENT + BESIDE) / SEGMENT
_PER_RANK = ("all_gather", "all_gatherv", "gather", "alltoall")


def library(tool: str) -> Library:
    """Return the transport of the library that a tool measures; `PLAIN` for an unknown tool."""
    return next((one for name, one in LIBRARIES.items() if tool.startswith(name)), PLAIN)


def predictable(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per measured setting that can be predicted, with median and lower quartile of its times.

    Returns
    -------
    DataFrame
        Settings with at most `MAX_RANKS` ranks and `MAX_SIZE` bytes. Columns ``tool``, ``profile``, ``collective``,
        ``algorithm``, ``ranks``, ``sizes`` (as simnet counts, of all ranks or of each), ``links`` (a `Change`),
        ``seconds``, and ``undisturbed``, the lower quartile of their times, to which software is fitted. ``size`` is
        the mean of the sizes; ``link_latency`` and ``link_bandwidth`` are missing if hosts differ in them. Empty if
        nothing can be predicted.
    """
    found = (
        _keyed_rows(rows)
        .groupby(_KEYS, sort=False)
        .agg(
            seconds=("seconds", "median"),
            undisturbed=("seconds", lambda each: each.quantile(_UNDISTURBED)),
            **{name: (name, "first") for name in ("size", *COLUMNS)},
        )
        .reset_index()
    )
    return found[_known_rows(found)].reset_index(drop=True)


def repetitions(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per measurement, repetitions included, of the settings that can be predicted."""
    table = _keyed_rows(rows)
    return table[_known_rows(table)]


def from_links(rows: pd.DataFrame) -> pd.DataFrame:
    """Return measured rows with times predicted from link settings, and times by the alpha-beta closed form.

    Returns
    -------
    DataFrame
        The columns of `predictable`, ``ours`` and ``closed_form`` (alpha-beta with framing, no software) [s], and
        ``software``, the part of ours that is software. Settings at which software was measured are left out.
    """
    settings = predictable(rows)
    if not len(settings):
        return settings.assign(ours=[], closed_form=[], software=[])
    stacks: dict[tuple[str, str], Mapping[tuple[str, str], Stack]] = {}
    used: list[int] = []
    for (tool, profile), part in settings.groupby(["tool", "profile"]):
        # Software is known from links that are alike.
        if part[list(COLUMNS)].notna().all(axis=1).any():
            stacks[str(tool), str(profile)], at = calibrated(part, str(tool), str(profile))
            used += at
    if "since_change" in rows:
        table = repetitions(rows)
        first = settings.loc[used, _KEYS]
        table = table[~pd.MultiIndex.from_frame(table[_KEYS]).isin(pd.MultiIndex.from_frame(first))]
    else:
        table = settings.drop(index=used)
    table = table[np.array([key in stacks for key in zip(table["tool"], table["profile"], strict=True)], dtype=bool)]
    predicted = cache(lambda one: _three_predictions(one, _candidate_stack(one, stacks)))
    found = [predicted(one._replace(seconds=0.0)) for one in cases(table)]
    ours, bare, plain = np.array(found).reshape(-1, 3).T
    table = table.assign(ours=ours, closed_form=plain, software=ours - bare)
    return _across_changes(table, stacks) if "began" in table else table


def calibrated(
    settings: pd.DataFrame, tool: str, profile: str = ""
) -> tuple[Mapping[tuple[str, str], Stack], list[int]]:
    """Fit a library's software overheads on idle links; return its stacks by (collective, algorithm), and rows used."""
    known = library(tool)
    idle = _corner_settings(settings, far=False)
    idle = idle.assign(seconds=idle["undisturbed"])
    small = idle[idle["size"] == idle["size"].min()]
    large = idle[(idle["size"] == idle["size"][idle["size"] <= LARGE].max()) & (idle["size"] > small["size"].max())]
    candidates = []
    for one in known.stacks:
        bare = one.with_software(0.0, 0.0)
        above = bare.eager_limit and raises_eager_limit(profile)
        candidates.append(
            _with_software(dataclasses.replace(bare, eager_limit=math.inf) if above else bare, small, large)
        )
    used = sorted({*small.index, *large.index})
    if len(candidates) > 1:
        far = _corner_settings(settings, far=True)
        far = far[far["size"] == far["size"].min()]
        used += [index for index in far.index if index not in used]
        off = [
            float(np.mean([abs(one.takes(stack["", ""]) / one.seconds - 1) for one in cases(far)]))
            for stack in candidates
        ]
        return candidates[int(np.argmin(off))], used
    return candidates[0], used


def _with_software(bare: Stack, small: pd.DataFrame, large: pd.DataFrame) -> Mapping[tuple[str, str], Stack]:
    """Return `bare` with software overheads by (collective, algorithm), fitted to times on idle links."""
    measured = {(one.collective, one.algorithm): _fit_software(one, bare, "message", 1e-4) for one in cases(small)}
    overhead = float(np.median(list(measured.values())))
    found = {
        key: bare.with_software(message=min(max(own, overhead / UNLIKE), overhead * UNLIKE))
        for key, own in measured.items()
    }
    for one in cases(large):
        key = (one.collective, one.algorithm)
        quick = found.get(key, bare.with_software(message=overhead))
        found[key] = quick.with_software(byte=min(_fit_software(one, quick, "byte", 1e-9), SLOWEST))
    copying = float(np.median([2 * each.before_byte for each in found.values()]))
    found["", ""] = bare.with_software(overhead, copying)
    return found


def _candidate_stack(one: Case, stacks: Mapping[tuple[str, str], Mapping[tuple[str, str], Stack]]) -> Stack:
    known = stacks[one.tool, one.profile]
    return known.get((one.collective, one.algorithm), known["", ""])


def _corner_settings(settings: pd.DataFrame, *, far: bool) -> pd.DataFrame:
    """Return the settings of lowest (if `far`, highest) latency, then of highest bandwidth, then of fewest ranks."""
    part = settings
    for name, largest in (("link_latency", far), ("link_bandwidth", True), ("ranks", False)):
        part = part[part[name] == (part[name].max() if largest else part[name].min())]
    return part


def _fit_software(one: Case, stack: Stack, name: str, probe: float) -> float:
    """Return the overhead `name` [s] that makes predicted and measured time equal; `probe` is the search step [s]."""

    def at(value: float) -> float:
        return one.takes(stack.with_software(**{name: value}))

    # Time is piecewise linear in software, as the path that takes longest changes.
    value = 0.0
    for _ in range(_STEPS):
        here = at(value)
        value = max(0.0, value + (one.seconds - here) * probe / (at(value + probe) - here))
    return value


def _three_predictions(one: Case, stack: Stack) -> tuple[float, float, float]:
    """Return the predicted time [s] with software overhead, without it, and by the alpha-beta closed form."""
    ours, silent = one.takes(stack), one.takes(stack.with_software(0.0, 0.0))
    latencies, bandwidths = zip(*one.links.of_hosts(one.ranks), strict=True)
    # Alpha-beta has one latency and one rate: those of the two hosts that are farthest apart, and of the slowest.
    slowest = Change(0.0, sum(sorted(latencies)[-2:]) / 2, min(bandwidths) / _FRAMING)
    return ours, silent, float(predict(one.schedule(), [slowest], IDEAL)[0])


def cases(table: pd.DataFrame) -> list[Case]:
    """Return the rows of a table of settings as a list of `Case`."""
    return [Case(*each) for each in zip(*(table[name].tolist() for name in (*_KEYS, "seconds")), strict=True)]


def _known_rows(table: pd.DataFrame) -> list[bool]:
    """Return, for each row of a table of settings, whether the schedule of its collective is known."""
    found = cache(lambda *setting: schedule_of(*setting) is not None)
    return [
        found(one.collective, one.algorithm, one.ranks, one.sizes if isinstance(one.sizes, tuple) else 1.0)
        for one in cases(table)
    ]


def _across_changes(
    table: pd.DataFrame, stacks: Mapping[tuple[str, str], Mapping[tuple[str, str], Stack]]
) -> pd.DataFrame:
    """Predict again the times [s] of iterations during which link settings change; return the whole table."""
    ours = table["ours"].copy()
    for _, each in table.groupby(["run", "tool", "profile", "collective", "algorithm", "ranks", "sizes"], sort=False):
        part = each.sort_values("began")
        new = (part["links"] != part["links"].shift()).to_numpy()
        at = (part["began"] - part["since_change"].fillna(0))[new].to_numpy()
        changes = [one._replace(at=when) for one, when in zip(part["links"][new], at.tolist(), strict=True)]
        began = part["began"].to_numpy()
        last = np.maximum(np.searchsorted(at, began, side="right") - 1, 0)
        ahead = np.append(at, math.inf)[last + 1]
        for place in np.flatnonzero(began + part["ours"].to_numpy() > ahead).tolist():
            start = float(began[place])
            coming = [changes[last[place]]._replace(at=start), *changes[last[place] + 1 :]]
            one = cases(part.iloc[[place]])[0]
            moved = [each._replace(at=each.at - start) for each in coming]
            ours[part.index[place]] = one.takes(_candidate_stack(one, stacks), moved)
    return table.assign(ours=ours)


def _keyed_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the measurements with known links and valid sizes, with columns that identify their setting."""
    ranks = rows["ranks"].astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
    rows = rows[(ranks >= 2) & (ranks <= MAX_RANKS)]
    empty = pd.Series("", index=rows.index)
    per_pair = rows["size_convention"].isin(["per_rank", "per_pair"])
    whole = (rows["collective"].isin(_PER_RANK) & ~per_pair).to_numpy()
    nbytes = rows["nbytes"].astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
    size = np.where(whole, nbytes / rows["ranks"].to_numpy(dtype=float), nbytes)
    contributed = of_each(rows, CONTRIBUTION)
    sizes = [each if isinstance(each, tuple) else one for each, one in zip(contributed, size.tolist(), strict=True)]
    latency, bandwidth = (of_each(rows, name) for name in COLUMNS)
    table = pd.DataFrame(
        {
            "tool": rows["tool"].fillna("").astype(str),
            "profile": rows.get("profile", empty).fillna("").astype(str),
            "run": rows["run"].fillna("").astype(str),
            "collective": rows["collective"].astype(str),
            "algorithm": rows["algorithm"].fillna("").astype(str),
            "ranks": rows["ranks"].astype(int),
            "sizes": pd.Series(sizes, index=rows.index, dtype=object),
            "links": pd.Series(
                list(starmap(partial(Change, 0.0), zip(latency, bandwidth, strict=True))),
                index=rows.index,
                dtype=object,
            ),
            "seconds": rows["seconds"],
            "size": size,
        }
    )
    for name, given in zip(COLUMNS, (latency, bandwidth), strict=True):
        table[name] = [math.nan if isinstance(each, tuple) else each for each in given]
    for name in ("since_change", "began"):
        if name in rows:
            table[name] = pd.to_numeric(rows[name], errors="coerce")
    least = [[np.min(each) for each in given] for given in (latency, bandwidth)]
    usable = (table["size"] > 0) & (table["size"] <= MAX_SIZE)
    usable &= (np.array(least[0], dtype=float) >= 0) & (np.array(least[1], dtype=float) > 0)
    return table[usable]
