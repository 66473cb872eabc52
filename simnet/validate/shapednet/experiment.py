"""Experiments on a shaped network: times of schedules are predicted first, then measured.

Predictions are made, and written down, from the settings of the links; then the same schedules run on a real star of
these settings. The one thing measured beforehand is the time that software takes for a message, on an idle link.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from simnet.base.errors import InputError, to_install
from simnet.cost_models.calibration.readers import read_tidy, write_tidy
from simnet.interchange.messages_csv import write_messages
from simnet.schedule import Round, Schedule
from simnet.validate.replay import Workload
from simnet.validate.shapednet.libraries import bare_stack
from simnet.validate.shapednet.links import Change, predict
from simnet.validate.shapednet.namespaces import IDLE, Star, check_shaped_link, shaped_star
from simnet.validate.shapednet.rank import PRIORITY

Backend: TypeAlias = Literal["tcp", "gloo", "mpich"]

MAX_SECONDS = 600.0
"""Maximum predicted duration of an experiment [s]."""

MAX_PACKETS = 2e7
"""Maximum predicted number of packets in an experiment."""

# TCP through the namespaces alone; who polls in vain lets others have the processor.
_MPICH = {
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "lnk0",
    "MPIR_CVAR_CH4_NETMOD": "ucx",
    "MPIR_CVAR_POLLS_BEFORE_YIELD": "1",
}
_PATIENCE = 60.0
_PROBE = 1e-3
# Messages of each rank that follow one another while that is measured.
_ROUNDS = 10


@dataclass(frozen=True)
class ShapedSetting:
    """Workloads to measure on a star network, and the latency and bandwidth of its links over time."""

    # Latency and bandwidth of all links, or of the links of each host; with several, they change while it runs.
    links: tuple[Change, ...]
    # What is replayed.
    work: tuple[Workload, ...]


def message_overhead(hosts: int, backend: Backend = "tcp") -> float:
    """Return the time that software adds to a short message [s], measured on idle links without latency.

    All ranks send a byte to the next one, round after round; the overhead is the value at which prediction and
    measurement agree. The fastest of many runs counts, since other processes slow the machine down.
    """
    each = np.arange(hosts)
    ring = Schedule(hosts, [Round(each, (each + 1) % hosts, 1)] * _ROUNDS)
    work = Workload(ring, {"collective": "exchange", "nbytes": 1, "size_convention": "message"})
    with shaped_star(hosts, *IDLE) as net:
        rows = _run_workloads(net, backend, (work,), repetitions=100, warmup=10, limit=2 * _PATIENCE)
    wire, longer = (
        float(predict(ring, [Change(0.0, *IDLE)], bare_stack(backend).with_software(cost))[0]) for cost in (0.0, _PROBE)
    )
    return max(0.0, float(rows["seconds"].min()) - wire) * _PROBE / (longer - wire)


def experiment(
    settings: Sequence[ShapedSetting],
    *,
    backend: Backend = "tcp",
    overhead: float | None = None,
    repetitions: int = 5,
    warmup: int = 3,
    predicted_to: str | Path | None = None,
) -> pd.DataFrame:
    """Predict the times of workloads, then measure them on shaped links, and return both as a table.

    Returns
    -------
    DataFrame
        Measurements as `simnet.cost_models.calibration.readers` has them, with ``link_latency``, ``link_bandwidth``
        (those of each host, as ``link_latency_3``, where they differ) and ``predicted`` [s]. On links that change, all
        three are those of the moment when the repetition began; it is the one thing that the prediction takes from the
        run. ``began`` is that moment since the links were first set, ``since_change`` since they last changed;
        ``overhead`` is the time per message, ``drops`` and ``switch_lateness`` what the switch says of itself.
    """
    ranks = {work.schedule.n_ranks for setting in settings for work in setting.work}
    if len(ranks) != 1:
        raise InputError(f"all schedules must have the same ranks, got {sorted(ranks)}", file="shaped network")
    for number, setting in enumerate(settings):
        _refuse_links(number, setting, min(ranks))
    cost = message_overhead(min(ranks), backend) if overhead is None else overhead
    before = [_setting_predictions(index, setting, cost, backend) for index, setting in enumerate(settings)]
    table = pd.concat(before, ignore_index=True)
    runs = repetitions + warmup
    if (seconds := runs * float(table["seconds"].sum())) > MAX_SECONDS:
        raise InputError(f"would take {seconds:.0f} s; at most {MAX_SECONDS:.0f} s are run", file="shaped network")
    each = (work.schedule.nbytes / 1000 + work.schedule.n_messages for one in settings for work in one.work)
    if (packets := runs * sum(each)) > MAX_PACKETS:
        raise InputError(f"would send {packets:.2g} packets; at most {MAX_PACKETS:.2g} are", file="shaped network")
    if predicted_to is not None:
        write_tidy(table, predicted_to)
    found = []
    with shaped_star(ranks.pop(), *IDLE) as net:
        for setting, guesses in zip(settings, before, strict=True):
            rows = _measure_setting(net, setting, guesses, cost, backend, repetitions, warmup)
            traffic = net.traffic()
            found.append(rows.assign(drops=traffic.drops, switch_lateness=traffic.mean_lateness, overhead=cost))
    return pd.concat(found, ignore_index=True)


def prediction_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the relative error of predictions per setting and workload, from medians over repetitions."""
    grouped = rows.groupby(["setting", "workload"], sort=True)[["seconds", "predicted"]].median()
    return grouped.assign(error=grouped["predicted"] / grouped["seconds"] - 1).reset_index()


def _refuse_links(number: int, setting: ShapedSetting, hosts: int) -> None:
    for link in setting.links:
        for host, (latency, bandwidth) in enumerate(link.of_hosts(hosts)):
            try:
                check_shaped_link(latency, bandwidth)
            except ValueError as error:
                where = f"setting {number}, from {link.at:g} s on, host {host}"
                raise InputError(str(error), file="shaped network", field=where) from None


def _setting_predictions(index: int, setting: ShapedSetting, overhead: float, backend: Backend) -> pd.DataFrame:
    rows = []
    for number, work in enumerate(setting.work):
        seconds = float(predict(work.schedule, setting.links[:1], bare_stack(backend).with_software(overhead))[0])
        place = {"setting": index, "workload": number, "ranks": work.schedule.n_ranks}
        link = setting.links[0].columns(work.schedule.n_ranks)
        rows.append(work.facts | place | link | {"seconds": seconds, "tool": "prediction"})
    return pd.DataFrame(rows)


def _measure_setting(
    net: Star,
    setting: ShapedSetting,
    guesses: pd.DataFrame,
    overhead: float,
    backend: Backend,
    repetitions: int,
    warmup: int,
) -> pd.DataFrame:
    net.change(setting.links[0])
    limit = _PATIENCE + 4 * (repetitions + warmup) * float(guesses["seconds"].sum()) + setting.links[-1].at
    origin = time.perf_counter() + _PATIENCE / 10
    rows = _run_workloads(net, backend, setting.work, repetitions, warmup, limit, setting.links[1:], origin)
    rows["setting"] = guesses["setting"].iloc[0]
    rows["workload"] = np.repeat(np.arange(len(setting.work)), repetitions)
    since = np.maximum(rows["began"].to_numpy() - origin, 0.0)
    at = np.searchsorted([one.at for one in setting.links], since, side="right") - 1
    links = pd.DataFrame([setting.links[index].columns(len(net.addresses)) for index in at], index=rows.index)
    rows = pd.concat([rows.drop(columns="began"), links], axis=1).assign(predicted=np.nan, began=since)
    stack = bare_stack(backend).with_software(overhead)
    for number, work in enumerate(setting.work):
        own = (rows["workload"] == number).to_numpy()
        if len(setting.links) == 1:
            rows.loc[own, "predicted"] = guesses["seconds"].iloc[number]
        else:
            starts = since[own].tolist()
            rows.loc[own, "predicted"] = predict(work.schedule, setting.links, stack, starts)
    if len(setting.links) > 1:
        rows["since_change"] = since - np.array([one.at for one in setting.links])[at]
    return rows


def _run_workloads(
    net: Star,
    backend: Backend,
    work: Sequence[Workload],
    repetitions: int,
    warmup: int,
    limit: float,
    changes: Sequence[Change] = (),
    origin: float = 0.0,
) -> pd.DataFrame:
    """Run workloads on all hosts while links change as planned, and return the measured times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listed = []
        for number, one in enumerate(work):
            path = folder / f"{number}.csv"
            write_messages(one.schedule, path)
            listed.append({"schedule": str(path), "facts": one.facts, "repetitions": repetitions, "warmup": warmup})
        job = {
            "backend": backend,
            "addresses": net.addresses[: work[0].schedule.n_ranks],
            "control": str(folder / "control"),
            "out": str(folder / "out.csv"),
            "work": listed,
            "owner": os.getpid(),
            "limit": limit,
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            worker = [sys.executable, "-m", "simnet.validate.shapednet.worker", str(folder / "job.json")]
            alone = os.environ | {"OMP_NUM_THREADS": "1"}
            if backend == "mpich":
                ranks.append(net.start(0, [*_mpi_command(net, folder), *worker], alone | _MPICH))
            else:
                ranks += [net.start(rank, [*worker, str(rank)], alone) for rank in range(len(net.addresses))]
            _attend_ranks(net, ranks, limit, changes, origin)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        return read_tidy(folder / "out.csv").rows


def _mpi_command(net: Star, folder: Path) -> list[str]:
    """Return the mpiexec command that starts a process per host, in its network namespace."""
    launcher = folder / "launch"
    stem = net.namespaces[0].rpartition("-")[0]
    # Hydra calls it with options, the address of a host and the command there.
    launcher.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1\nshift\n'
        f'exec ip netns exec "{stem}-${{host##*.}}" sh -c "$*"\n'
    )
    launcher.chmod(0o700)
    own = Path(sys.executable).with_name("mpiexec")
    program = str(own) if own.exists() else shutil.which("mpiexec")
    if program is None:
        raise InputError(f"needs MPICH, whose mpiexec is not found: {to_install('mpi')} mpich", file="mpich")
    hosts = ",".join(net.addresses)
    count = str(len(net.addresses))
    started = ["-launcher", "ssh", "-launcher-exec", str(launcher), "-iface", "lnk0", "-hosts", hosts, "-n", count]
    return [program, *started]


def _attend_ranks(
    net: Star, ranks: Sequence[subprocess.Popen[bytes]], limit: float, changes: Sequence[Change], origin: float
) -> None:
    """Wait for all ranks and change links on time; InputError if a rank fails or time runs out."""
    stop, due = time.perf_counter() + limit, list(changes)
    with _before_ranks():
        while any(process.poll() is None for process in ranks):
            if any(process.poll() for process in ranks):
                break
            now = time.perf_counter()
            if now > stop:
                raise InputError(f"the ranks were not done after {limit:.0f} s", file="shaped network")
            if due and now >= origin + due[0].at:
                net.change(due.pop(0))
            ahead = origin + due[0].at - now if due else 0.05
            time.sleep(min(0.05, max(0.0, ahead)))
    if any(process.wait() for process in ranks):
        raise InputError("a rank has failed; what it said is above", file="shaped network")


@contextmanager
def _before_ranks() -> Iterator[None]:
    """Give this process real-time priority over ranks, whose polling would delay changes of links."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY + 1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)
