"""Schedules measured on a shaped network, beside what was predicted for them before.

Predictions are made, and written down, from the settings of the links; then the same schedules run on a real star of
these settings. The one thing measured beforehand is the time that software takes for a message, on an idle link.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from simnet.base.errors import InputError
from simnet.calibration.readers import read_tidy, write_tidy
from simnet.interchange import write_messages
from simnet.network.stack import SEGMENT, STACKS, Stack
from simnet.schedule import Round, Schedule
from validate.replay import Workload
from validate.shapednet.links import Change, predict
from validate.shapednet.namespaces import Star, star

Backend: TypeAlias = Literal["tcp", "gloo"]

MAX_SECONDS = 600.0
"""The longest that an experiment may take by its own prediction [s]."""

MAX_PACKETS = 2e7
"""The most packets that an experiment may send by its own prediction."""

_IDLE = Change(0.0, 0.0, 125e6)
_PATIENCE = 60.0
_PROBE = 1e-3


@dataclass(frozen=True)
class Setting:
    """What to measure on links of one setting, or of several one after the other.

    Parameters
    ----------
    links : tuple of Change
        Latency and bandwidth of all links; with several, they change while it runs.
    work : tuple of Workload
        What is replayed.
    """

    links: tuple[Change, ...]
    work: tuple[Workload, ...]


def message_overhead(hosts: int, backend: Backend = "tcp", rounds: int = 10) -> float:
    """Return the seconds that software takes for a short message, measured on idle links without latency.

    All ranks send a byte to the next one, round after round, as they will later; what is predicted for that is made to
    agree with what is measured. Of many runs the fastest counts, as others slow the machine down.

    Parameters
    ----------
    hosts : int
        How many.
    backend : str
        The library.
    rounds : int
        Messages of each rank that follow one another.
    """
    each = np.arange(hosts)
    ring = Schedule(hosts, [Round(each, (each + 1) % hosts, 1)] * rounds)
    work = Workload(ring, {"collective": "exchange", "nbytes": 1, "size_convention": "message"})
    with star(hosts, _IDLE.latency, _IDLE.bandwidth) as net:
        rows = _run(net, backend, (work,), repetitions=100, warmup=10, limit=2 * _PATIENCE)
    wire, longer = (float(predict(ring, [_IDLE], _stack(backend, cost))[0]) for cost in (0.0, _PROBE))
    return max(0.0, float(rows["seconds"].min()) - wire) * _PROBE / (longer - wire)


def experiment(
    settings: Sequence[Setting],
    *,
    backend: Backend = "tcp",
    overhead: float | None = None,
    repetitions: int = 5,
    warmup: int = 3,
    predicted_to: str | Path | None = None,
) -> pd.DataFrame:
    """Predict, then measure.

    Parameters
    ----------
    settings : sequence of Setting
        What to measure; all with the same number of ranks.
    backend : {"tcp", "gloo"}
        What carries the messages: plain sockets, or torch.distributed.
    overhead : float, optional
        Seconds per message; measured when omitted.
    repetitions, warmup : int
        Runs of each workload that count, and runs before them.
    predicted_to : str or Path, optional
        A file for the predictions, written before anything of them is measured.

    Returns
    -------
    DataFrame
        Measurements as `simnet.calibration.readers` has them, with ``link_latency``, ``link_bandwidth`` and
        ``predicted`` [s]. On links that change, all three are those of the moment when the repetition began; it is the
        one thing that the prediction takes from the run. ``since`` is that moment, ``overhead`` the time per message,
        ``drops`` and ``switch_lateness`` what the switch says of itself.

    Raises
    ------
    InputError
        If the machine does not let a shaped network be made, or the experiment would be too long or too large.
    """
    ranks = {work.schedule.n_ranks for setting in settings for work in setting.work}
    if len(ranks) != 1:
        raise InputError(f"all schedules must have the same ranks, got {sorted(ranks)}", file="shaped network")
    cost = message_overhead(min(ranks), backend) if overhead is None else overhead
    before = [_predictions(index, setting, cost, backend) for index, setting in enumerate(settings)]
    table = pd.concat(before, ignore_index=True)
    runs = repetitions + warmup
    _refuse_excess(runs * float(table["seconds"].sum()), runs * _packets(settings))
    if predicted_to is not None:
        write_tidy(table, predicted_to)
    found = []
    with star(ranks.pop(), settings[0].links[0].latency, settings[0].links[0].bandwidth) as net:
        for setting, guesses in zip(settings, before, strict=True):
            rows = _setting(net, setting, guesses, cost, backend, repetitions, warmup)
            traffic = net.traffic()
            found.append(rows.assign(drops=traffic.drops, switch_lateness=traffic.mean_lateness, overhead=cost))
    return pd.concat(found, ignore_index=True)


def errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the relative error of the prediction for each workload and setting, by the median over repetitions.

    Examples
    --------
    >>> rows = pd.DataFrame({"setting": 0, "workload": 0, "seconds": [1.0, 1.5, 9.0], "predicted": 1.2})
    >>> errors(rows)["error"].round(3).tolist()
    [-0.2]
    """
    grouped = rows.groupby(["setting", "workload"], sort=True)[["seconds", "predicted"]].median()
    return grouped.assign(error=grouped["predicted"] / grouped["seconds"] - 1).reset_index()


def _stack(backend: Backend, overhead: float) -> Stack:
    """Return how a backend sends a schedule message by message, with so many seconds of software for each."""
    # The switch of this network puts no segments together, and a replay cuts no rings.
    bare = dataclasses.replace(STACKS[backend], acknowledged=2 * SEGMENT, rounds=1, pieces=1)
    return bare.with_software(overhead, 0.0)


def _predictions(index: int, setting: Setting, overhead: float, backend: Backend) -> pd.DataFrame:
    rows = []
    for number, work in enumerate(setting.work):
        seconds = float(predict(work.schedule, setting.links[:1], _stack(backend, overhead))[0])
        place = {"setting": index, "workload": number, "ranks": work.schedule.n_ranks}
        link = {"link_latency": setting.links[0].latency, "link_bandwidth": setting.links[0].bandwidth}
        rows.append(work.facts | place | link | {"seconds": seconds, "tool": "prediction"})
    return pd.DataFrame(rows)


def _packets(settings: Sequence[Setting]) -> float:
    return sum(work.schedule.nbytes / 1000 + work.schedule.n_messages for one in settings for work in one.work)


def _refuse_excess(seconds: float, packets: float) -> None:
    if seconds > MAX_SECONDS:
        raise InputError(f"would take {seconds:.0f} s; at most {MAX_SECONDS:.0f} s are run", file="shaped network")
    if packets > MAX_PACKETS:
        raise InputError(f"would send {packets:.2g} packets; at most {MAX_PACKETS:.2g} are", file="shaped network")


def _setting(
    net: Star, setting: Setting, guesses: pd.DataFrame, overhead: float, backend: Backend, repetitions: int, warmup: int
) -> pd.DataFrame:
    first = setting.links[0]
    net.set(first.latency, first.bandwidth)
    limit = _PATIENCE + 4 * (repetitions + warmup) * float(guesses["seconds"].sum()) + setting.links[-1].at
    origin = time.perf_counter() + _PATIENCE / 10
    rows = _run(net, backend, setting.work, repetitions, warmup, limit, setting.links[1:], origin)
    rows["setting"] = guesses["setting"].iloc[0]
    rows["workload"] = np.repeat(np.arange(len(setting.work)), repetitions)
    since = np.maximum(rows["began"].to_numpy() - origin, 0.0)
    at = np.searchsorted([one.at for one in setting.links], since, side="right") - 1
    rows["link_latency"] = [setting.links[index].latency for index in at]
    rows["link_bandwidth"] = [setting.links[index].bandwidth for index in at]
    rows["predicted"] = np.nan
    for number, work in enumerate(setting.work):
        own = (rows["workload"] == number).to_numpy()
        if len(setting.links) == 1:
            rows.loc[own, "predicted"] = guesses["seconds"].iloc[number]
        else:
            starts = since[own].tolist()
            rows.loc[own, "predicted"] = predict(work.schedule, setting.links, _stack(backend, overhead), starts)
    return rows.drop(columns="began").assign(since=since)


def _run(
    net: Star,
    backend: Backend,
    work: Sequence[Workload],
    repetitions: int,
    warmup: int,
    limit: float,
    changes: Sequence[Change] = (),
    origin: float = 0.0,
) -> pd.DataFrame:
    """Run workloads on all hosts, change the links meanwhile, and return the times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listed = []
        for number, one in enumerate(work):
            path = folder / f"{number}.csv"
            write_messages(one.schedule, path)
            plan = {"repetitions": repetitions, "warmup": warmup}
            listed.append({"schedule": str(path), "facts": one.facts} | plan)
        job = {
            "backend": backend,
            "addresses": net.addresses[: work[0].schedule.n_ranks],
            "control": str(folder / "control"),
            "out": str(folder / "out.csv"),
            "work": listed,
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(len(net.addresses)):
                command = [sys.executable, "-m", "validate.shapednet.worker", str(folder / "job.json"), str(rank)]
                ranks.append(net.start(rank, command, os.environ | {"OMP_NUM_THREADS": "1"}))
            _attend(net, ranks, limit, changes, origin)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        return read_tidy(folder / "out.csv").rows


def _attend(
    net: Star, ranks: Sequence[subprocess.Popen[bytes]], limit: float, changes: Sequence[Change], origin: float
) -> None:
    """Change the links when it is time, until all ranks are done."""
    stop, due = time.perf_counter() + limit, list(changes)
    while any(process.poll() is None for process in ranks):
        if any(process.poll() for process in ranks):
            break
        now = time.perf_counter()
        if now > stop:
            raise InputError(f"the ranks were not done after {limit:.0f} s", file="shaped network")
        if due and now >= origin + due[0].at:
            change = due.pop(0)
            net.set(change.latency, change.bandwidth)
        ahead = origin + due[0].at - now if due else 0.05
        time.sleep(min(0.05, max(0.0, ahead)))
    if any(process.wait() for process in ranks):
        raise InputError("a rank has failed; what it said is above", file="shaped network")
