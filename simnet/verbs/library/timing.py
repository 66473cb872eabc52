"""`simnet.time`: how long a schedule, or a collective, takes on a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.table import Table

from simnet.base import units
from simnet.base.errors import InputError
from simnet.base.units import format_seconds
from simnet.interchange import read_schedule
from simnet.network import Timing
from simnet.report.drawing import PHASE_COLOURS, SECONDS, Plot, plot, style, unit
from simnet.report.tables import ReprHtml, empty_table
from simnet.schedule import Schedule
from simnet.studies import exporting, options, timing
from simnet.studies.target import Target
from simnet.studies.timing import Figures
from simnet.verbs.library.asking import Fields, overrides, quantity, verb


@dataclass(frozen=True, eq=False, repr=False)
class TimedSchedule(ReprHtml):
    """A schedule and its times on a network.

    Parameters
    ----------
    timed : Timed
        The schedule, the network, the times.
    """

    timed: timing.Timed

    @property
    def schedule(self) -> Schedule:
        """What is sent."""
        return self.timed.schedule

    @property
    def timing(self) -> Timing:
        """When each rank entered and was done; `Timing.messages` if they were asked for."""
        return self.timed.timing

    @property
    def seconds(self) -> float:
        """From the first rank's start to the last one's finish [s]."""
        return self.timing.duration

    def __repr__(self) -> str:
        return f"TimedSchedule({self.schedule.n_ranks:,} ranks, {format_seconds(self.seconds)})"

    def figures(self) -> Figures:
        """Return what ``simnet time --json`` prints; names end in their units."""
        return timing.figures(self.timed)

    def to_pandas(self) -> pd.DataFrame:
        """Return when each rank began and was done, and what it did meanwhile [s], a row per rank."""
        return self.timing.to_pandas()

    def plot(self) -> Plot:
        """Return the figure: what each rank did until it was done."""
        rows = self.to_pandas()
        name, factor = unit(self.seconds, SECONDS)
        title = f"{self.schedule.n_ranks:,} ranks, {format_seconds(self.seconds)}"
        with style():
            figure = Figure(figsize=(7.5, 3.6), layout="constrained")
            axes = figure.subplots()
            low = np.zeros(len(rows))
            for phase in ("compute", "communicate", "wait"):
                did = rows[f"{phase}_s"].to_numpy() / factor
                axes.fill_between(
                    np.append(rows["rank"], len(rows)) - 0.5, np.append(low, low[-1:]),
                    np.append(low + did, (low + did)[-1:]), step="post", color=PHASE_COLOURS[phase], label=phase, lw=0,
                )  # fmt: skip
                low = low + did
            axes.set(xlabel="rank", ylabel=f"time [{name}]", ylim=(0, None), xlim=(-0.5, len(rows) - 0.5))
            axes.set_title(title, loc="left")
            axes.legend(loc="lower right")
        return plot("time", title, "What each rank did until it was done.", figure)

    def table(self) -> Table:
        """Return the times as lines of a table."""
        found = empty_table("", ("", "value"), ["", "value"])
        for line in timing.sentences(self.timed):
            found.add_row(line[:12].rstrip(), line[12:].lstrip())
        return found

    def sentences(self) -> list[str]:
        """Return nothing: the table says it all."""
        return []


@verb
def time(
    schedule: Schedule | str | Path | None = None,
    *,
    collective: str | None = None,
    workers: int | None = None,
    size: float | str | None = None,
    option: Mapping[str, float] | None = None,
    scenario: str | Path | None = None,
    topology: str | None = None,
    platform: str | Path | None = None,
    hosts: int | None = None,
    latency: float | str | None = None,
    bandwidth: float | str | None = None,
    set: Fields = (),
    stack: str | None = None,
    seed: int | None = None,
    iteration: int = 0,
    start: float | str = 0.0,
    loose: bool = False,
    ranks: int | None = None,
    messages: bool = False,
) -> TimedSchedule:
    """Time a schedule or a collective on a network, as `simnet time` does.

    Parameters
    ----------
    schedule : Schedule, str or Path, optional
        A schedule, or a file with one: GOAL, Chakra, MSCCL, a table of messages.
    collective : str, optional
        A collective by name in its place, such as ``allreduce_ring``; with `workers`, `size` and perhaps `option`.
    workers : int, optional
        Ranks of the collective.
    size : float or str, optional
        Bytes of the whole vector, or ``"64 MiB"``; of an MSCCL algorithm, too.
    option : mapping of str to float, optional
        Parameters of the collective, as ``{"group_size": 4}``.
    scenario, topology, platform : str, optional
        The network, one of them: that of a scenario, a family (``star``, ``fat_tree``), or a file.
    hosts : int, optional
        Of `topology`; one per rank when omitted.
    latency, bandwidth : float or str, optional
        Of `topology`: ``"1 ms"`` or seconds, ``"10 Gbit/s"`` or bytes per second.
    set, stack, seed
        As of `simnet.run`, of the scenario, topology or platform.
    iteration : int
        Of the scenario, for its jitter and stages.
    start : float or str
        When all ranks enter, as weather changes.
    loose : bool
        Whether to accept GOAL and Chakra that rounds express only as an upper bound.
    ranks : int, optional
        Ranks of a table of messages.
    messages : bool
        Whether to keep when each message went.

    Raises
    ------
    SimnetError
        If arguments do not fit each other, something is wrong with a file, or the schedule can never end.

    Examples
    --------
    >>> from simnet import time
    >>> on = {"topology": "star", "latency": "1 ms", "bandwidth": "1 GB/s"}
    >>> time(collective="allreduce_ring", workers=4, size="4 MB", **on)
    TimedSchedule(4 ranks, 12 ms)
    """
    if (schedule is None) == (collective is None):
        raise InputError("needs either a schedule or collective=", file="time()")
    options.only("--collective", collective is not None, {"--workers": workers, "--option": option})
    in_file = collective is None and not isinstance(schedule, Schedule)
    options.only("a file", in_file, {"--loose": loose, "--ranks": ranks})
    options.only("--collective and a file", collective is not None or in_file, {"--size": size})
    where = Target(
        scenario, topology, None if platform is None else str(platform), hosts, quantity(latency, "s"),
        quantity(bandwidth, "B/s"), overrides(set) or None, stack, seed, iteration,
    )  # fmt: skip
    where.refuse_unused()
    written = quantity(size, "B")
    if collective is not None:
        given = [f"{name}={value}" for name, value in (option or {}).items()]
        schedule = exporting.collective_asked(collective, workers, written, given).schedule
    elif not isinstance(schedule, Schedule):
        nbytes = options.quantity(written, "--size", units.size)
        schedule = read_schedule(str(schedule), nbytes=nbytes, strict=not loose, n_ranks=ranks)[1]
    assert isinstance(schedule, Schedule)
    begin = options.quantity(quantity(start, "s"), "--start", units.seconds) or 0.0
    return TimedSchedule(
        timing.time_schedule(schedule, timing.place_of(where, schedule.n_ranks), begin, messages=messages)
    )
