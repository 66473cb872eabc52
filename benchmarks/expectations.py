"""What `simnet choose --all` expects of every exchange by flags, held against jobs that are simulated in full.

    python benchmarks/expectations.py --csv expectations.csv
    python benchmarks/expectations.py --volumes simnet/cost_models/calibration/measured/volumes.csv

Jobs are on equal idle links, their stack is `ideal`, and the error of links is left out (``--error 0``), so that only
expectations are held against them. Their gradients have other seeds and numbers of entries than those of rehearsals. Of
schemes that follow gradients all iterations count, and the last half in whole periods; jobs of others have a few.

With ``--volumes`` exchanges of further gradients are made to learn how far what they send, and what their kernels take,
is from rehearsals, scheme by scheme: synthetic ones with the layers of other models, half as many entries and eight
times as many, and those of perceptrons that are trained meanwhile on digits, on points of made-up classes, and on text.
Each job counts three times: its first third, its last half, and all of it. Kernels count on all shipped devices. Then
rehearsals of few entries are held against one of more.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simnet import sparsifier_models
from simnet.base.arrays import Floats
from simnet.base.errors import SimnetError
from simnet.cost_models.costs.devices import DEFAULT_DEVICE, DeviceOp, DeviceProfile, device_names, load_device
from simnet.cost_models.costs.models import load_model
from simnet.network.compiled_loop import load_kept_loop
from simnet.policies import Fixed, Ramp
from simnet.schedule import Schedule
from simnet.studies.choosing.choices import Choice, choices
from simnet.studies.choosing.cost_models import network_of
from simnet.studies.choosing.operating_point import OperatingPoint
from simnet.studies.choosing.problem import problem_from_flags
from simnet.studies.choosing.request import ChooseRequest
from simnet.studies.choosing.sampled_exchanges import KEPT_EACH, SampledExchanges
from simnet.traces import GradientSource, synthetic
from simnet.traces.live.source import LiveSource, train
from simnet.traces.source import Values
from simnet.training.job.job import Compute, Job
from simnet.training.job.running import run_in_step
from simnet.training.job.steady import last_half

MODELS = ("resnet50", "bert-base", "resnet18", "vgg16")
"""Whose layers volumes are learnt with."""

DEVICES = tuple(sorted(set(device_names()) - {"ideal"}))
"""On which kernels are timed."""

BY_LAYERS = {"arctopk", "loco", "qgz"}
"""Schemes whose messages go by the layers, of which jobs of other models have others: nothing is learnt of them."""

LINKS = ((1e-4, 1.25e9), (1e-3, 1.25e8))
ITERATIONS = 192
"""Of jobs from which volumes are learnt."""

# Of these, every so many are timed: a step that meets all phases of periods of 32.
_STEP = 3
_REHEARSED, _BANDWIDTH = "resnet50", 1.25e9
# Entries of all workers of a rehearsal, and of two jobs.
_TOGETHER, _FEWER, _MORE = 2**18, 2**17, 2**21
# Entries kept for each worker where they are few, where they are many, and of a worker for all at least.
_FEW, _MANY, _LEAST_KEPT = (0.5, 1.0, 2.0, 4.0), 16.0, 8
# What perceptrons learn, their hidden units, and parameters for each of these, at least.
_TRAINED, _HIDDEN, _INPUTS = ("digits", "classification", "letters"), 128, 64


def job_seconds(
    source: GradientSource,
    among: Sequence[Choice],
    point: OperatingPoint,
    iterations: int,
    device: DeviceProfile,
) -> dict[str, Floats]:
    """Return what each iteration of a job takes, by exchange; of those that can do it."""
    load_kept_loop()
    ramp = Ramp(1, float(point.density), float(point.density))
    job = Job(source, iterations, [(0, network_of(point))], [ramp], Compute(0.0), device, seed=1)
    found = run_in_step(job, {one.label: Fixed(one.candidate) for one in among})
    return {
        label: outcome.iterations["iteration_s"].to_numpy(dtype=float)
        for label, outcome in found
        if not isinstance(outcome, SimnetError)
    }


def compared(
    name: str, workers: int, density: float, link: tuple[float, float], entries: int, most: int
) -> list[dict[str, Any]]:
    """Return what is expected of each exchange at a point, and what jobs of at most so many iterations take."""
    latency, bandwidth = link
    asked = ChooseRequest(workers, name, density=density, latency=latency, bandwidth=bandwidth, every=True, error=0.0)
    problem = problem_from_flags(asked)
    device = load_device(DEFAULT_DEVICE)
    rows = []
    for settled, iterations in ((True, most), (False, min(2 * workers, most))):
        among = [one for one in problem.among if one.follows_gradients == settled]
        # Regions of fewer entries are less even than those of the model.
        enough = max(entries, math.ceil(KEPT_EACH * workers / density))
        scale = max(load_model(name).parameters / enough, 1.0)
        source = synthetic(name, workers, scale=scale, seed=1000 + workers)
        for label, seconds in job_seconds(source, among, problem.point, iterations, device).items():
            choice = next(one for one in among if one.label == label)
            one = problem.cost_model(choice, problem.point)
            # Without the interval of the device.
            ran = one.follows.ran
            ends = {"least": float(one.least + ran[0] * one.select), "most": float(one.most + ran[1] * one.select)}
            last = seconds[last_half(len(seconds), choice.period) :]
            took = {"job": seconds.mean(), "settled": last.mean() if settled else math.nan}
            row = {"model": name, "workers": workers, "density": density, "latency": latency, "exchange": label}
            row |= {"expected": float(one.seconds), **ends, **took}
            rows.append(row)
    return rows


def table(rows: pd.DataFrame) -> str:
    """Return a line per exchange: how far expectations are off, and how often they hold."""
    lines = ["| exchange | points | settled: median, worst | job: median, worst | within 5 % | or covered |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    rows = rows.assign(settled=rows["settled"].fillna(rows["job"])).reset_index(drop=True)
    groups = [*rows.groupby("exchange", sort=False), ("all", rows)]
    for label, part in groups:
        cells = []
        for against in ("settled", "job"):
            off = part["expected"] / part[against] - 1
            middle, worst = off.abs().median(), off.loc[off.abs().idxmax()]
            cells.append(f"{round(100 * middle, 2):.2g}, {round(100 * worst, 2):+.3g} %")
        near, held = (np.mean([one(part, name) for name in ("settled", "job")]) for one in (_near, _held))
        lines.append(f"| {label} | {len(part)} | {' | '.join(cells)} | {100 * near:.0f} % | {100 * held:.0f} % |")
    return "\n".join(lines)


def _near(rows: pd.DataFrame, against: str) -> float:
    return float(((rows["expected"] / rows[against] - 1).abs() <= 0.05).mean())


def _held(rows: pd.DataFrame, against: str) -> float:
    inside = rows[against].between(rows["least"] * (1 - 1e-9), rows["most"] * (1 + 1e-9))
    return float((inside | ((rows["expected"] / rows[against] - 1).abs() <= 0.05)).mean())


class _Timing:
    """What exchanges take at a point: messages without latency, and kernels on each of `DEVICES` [s].

    Parameters
    ----------
    point : OperatingPoint
        The point.
    """

    parts = ("messages", *DEVICES)

    def __init__(self, point: OperatingPoint) -> None:
        self._network, self._workers = network_of(point), int(point.workers)
        self._devices = [load_device(name) for name in DEVICES]

    def __call__(self, schedule: Schedule, kernels: Sequence[DeviceOp]) -> list[float]:
        """Return it, part by part."""
        selects = [float(one.seconds(kernels, self._workers).max()) for one in self._devices]
        return [self._network.time(schedule).finish, *selects]


def volumes(workers: int, density: float, number: int) -> list[dict[str, Any]]:
    """Return what jobs of other gradients take over what a rehearsal does, and that over a rehearsal of fewer entries.

    There is a row for each scheme, part of `_Timing`, job and stretch of it, or number of entries that a worker of the
    smaller rehearsal keeps for each worker.

    Parameters
    ----------
    workers, density : int, float
        The cell.
    number : int
        Of the cell, which decides which models and data it has.
    """
    load_kept_loop()
    point = OperatingPoint(workers, load_model(_REHEARSED).parameters, density, 0.0, _BANDWIDTH)
    among = [one for one in choices(every=True) if one.follows_gradients and one.label not in BY_LAYERS]
    periods = {one.label: one.period for one in among}
    timing, rows = _Timing(point), []

    def rehearsed(kept_each: float, least: int, seed: int) -> dict[str, Floats]:
        entries = max(least, math.ceil(kept_each * workers / density))
        made = SampledExchanges(among, seed, _REHEARSED, (entries, ITERATIONS))
        return {one.label: np.mean([timing(*each) for each in made.of(one, point)], axis=0) for one in among}

    def add(times: Mapping[str, Floats], over: Mapping[str, Floats], job: str, stretch: str, kept_each: float) -> None:
        cell = {"workers": workers, "density": density, "job": job, "stretch": stretch, "kept_each": kept_each}
        rows.extend(
            {"scheme": scheme, "part": part, **cell, "ratio": float(ratio)}
            for scheme, seconds in times.items()
            for part, ratio in zip(timing.parts, seconds / over[scheme], strict=True)
        )

    expected = rehearsed(KEPT_EACH, _TOGETHER // workers, seed=0)
    for job, source, gradients in _jobs(point, number):
        scale = point.parameters / source.parameters
        models = {
            one.label: sparsifier_models.create(
                one.candidate.scheme, workers, source.parameters, density, scale=scale, layers=source.layers
            )
            for one in among
        }
        took: dict[str, list[list[float]]] = {label: [] for label in models}
        for iteration in range(ITERATIONS):
            given = gradients(iteration)
            for label, one in models.items():
                found = one.exchange(given)
                if iteration % _STEP == 0:
                    took[label].append(timing(found.schedule, found.kernels))
        for label, times in took.items():
            last = -(-last_half(ITERATIONS, periods[label]) // _STEP)
            for name, part in {"all": times, "first": times[: len(times) // 3], "last": times[last:]}.items():
                add({label: np.mean(part, axis=0)}, expected, job, name, KEPT_EACH)
    more = rehearsed(_MANY, 0, seed=1 + number)
    for kept_each in _FEW:
        if kept_each * workers >= _LEAST_KEPT:
            add(more, rehearsed(kept_each, 0, seed=0), "rehearsal", "settled", kept_each)
    print(f"{workers} workers, density {density:g}", flush=True)
    return rows


def _jobs(point: OperatingPoint, number: int) -> Iterator[tuple[str, GradientSource, Callable[[int], Values]]]:
    """Yield jobs whose gradients are unlike those of rehearsals: two synthetic ones, two of a training."""
    workers = int(point.workers)
    enough = math.ceil(KEPT_EACH * workers / float(point.density))
    for place, together in enumerate((_FEWER, _MORE)):
        name = MODELS[(number + place) % len(MODELS)]
        scale = load_model(name).parameters / max(together // workers, enough)
        drawn = synthetic(name, workers, scale=scale, seed=1 + number)
        yield f"{name}, {drawn.parameters} entries", drawn, drawn.gradients
    for data in {_TRAINED[number % 3], _TRAINED[(number + 1) % 3]}:
        hidden = max(_HIDDEN, math.ceil(enough / _INPUTS))
        source = train("mlp", data, workers=workers, hidden=(hidden,), learning_rate=0.05, seed=number)
        yield data, source, _trained(source)


def _trained(source: LiveSource) -> Callable[[int], Values]:
    """Return what gives the gradients of a training whose updates are their mean, iteration by iteration."""
    training = source.begin()

    def gradients(iteration: int) -> Values:
        found = training.gradients(iteration)
        training.apply(found.mean(axis=0))
        return found

    return gradients


def learnt(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the quantiles of ratios by scheme, part, and entries that are kept for each worker; devices together."""
    part = rows["part"].where(rows["part"] == "messages", "kernels")
    keys = ["scheme", "part", "kept_each"]
    found = (
        rows.assign(part=part)
        .groupby(keys)
        .agg(
            least=("ratio", lambda one: one.quantile(0.05)),
            middle=("ratio", "median"),
            most=("ratio", lambda one: one.quantile(0.95)),
            cells=("workers", "nunique"),
        )
    )
    return found.round(4).reset_index()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,3,5,8,13,16,27,33", help="each with a density, model and link in turn")
    parser.add_argument("--models", default="resnet50,resnet18")
    parser.add_argument("--densities", default="0.01,0.03,0.003")
    parser.add_argument("--entries", type=int, default=25_000, help="of each worker of a job, at least")
    parser.add_argument("--iterations", type=int, default=300, help="of jobs whose gradients are followed")
    parser.add_argument("--volumes", type=Path, help="learn what jobs send, and write it here")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--csv", type=Path, help="where every comparison is kept")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes, max_tasks_per_child=4) as pool:
        densities = list(map(float, given.densities.split(",")))
        cells = [(int(one), densities[n % len(densities)]) for n, one in enumerate(given.workers.split(","))]
        rows: list[dict[str, Any]] = []
        if given.volumes:
            for task in as_completed([pool.submit(volumes, *cell, number) for number, cell in enumerate(cells)]):
                rows += task.result()
                if given.csv:
                    pd.DataFrame(rows).to_csv(given.csv, index=False)
            learnt(pd.DataFrame(rows)).to_csv(given.volumes, index=False)
            print(learnt(pd.DataFrame(rows)).to_string(index=False))
            return
        models, size = given.models.split(","), (given.entries, given.iterations)
        tasks = [
            pool.submit(compared, models[n % len(models)], *cell, LINKS[n // 2 % len(LINKS)], *size)
            for n, cell in enumerate(cells)
        ]
        for task in as_completed(tasks):
            rows += task.result()
            if given.csv:
                pd.DataFrame(rows).to_csv(given.csv, index=False)
    print(table(pd.DataFrame(rows)))


if __name__ == "__main__":
    main()
