"""What `simnet choose --all` expects of every exchange by flags, held against jobs that are simulated in full.

    python benchmarks/expectations.py --csv expectations.csv
    python benchmarks/expectations.py --volumes simnet/calibration/measured/volumes.csv

Jobs are on equal idle links, their stack is `ideal`, and the error of links is left out (``--error 0``), so that only
expectations are held against them. Their gradients have other seeds and numbers of entries than those of rehearsals. Of
schemes that follow gradients all iterations are compared, and the last third; jobs of others have a few.

With ``--volumes`` exchanges of further gradients are made to learn how far what they send is from rehearsals, scheme by
scheme: synthetic ones with the layers of other models, and those of perceptrons that are trained meanwhile on digits,
on points of made-up classes, and on text. Each job counts three times: its first third, its last third, and all of it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import sparsifier_models
from simnet.base.arrays import Floats
from simnet.base.errors import SimnetError
from simnet.costs.devices import DEFAULT, DeviceProfile, load_device
from simnet.costs.models import model
from simnet.job import Compute, Job, run_in_step
from simnet.network.tables import load_kept_loop
from simnet.policies import Fixed, Ramp
from simnet.studies.choosing import Choice, OperatingPoint, by_simulation, choices
from simnet.studies.choosing.cost_models import network_of
from simnet.studies.choosing.inputs import Given, from_flags
from simnet.studies.choosing.rehearsals import Rehearsals
from simnet.traces import GradientSource, synthetic
from simnet.traces.live.source import LiveSource, train
from simnet.traces.source import Values

MODELS = ("resnet50", "bert-base", "resnet18", "vgg16")
"""Whose layers volumes are learnt with."""

LINKS = ((1e-4, 1.25e9), (1e-3, 1.25e8))
ITERATIONS = 192
"""Of jobs from which volumes are learnt."""

# Of these, every so many are timed: a step that meets all phases of periods of 32.
_STEP = 3
_REHEARSED, _ENTRIES, _HIDDEN, _BANDWIDTH = "resnet50", 2**17, 128, 1.25e9
_TRAINED = ("digits", "classification", "docstrings")


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
    asked = Given(workers, name, density=density, latency=latency, bandwidth=bandwidth, every=True, error=0.0)
    question = from_flags(asked)
    device = load_device(DEFAULT)
    rows = []
    for settled, iterations in ((True, most), (False, min(2 * workers, most))):
        among = [one for one in question.among if one.settled == settled]
        scale = max(model(name).parameters / entries, 1.0)
        source = synthetic(name, workers, iterations=iterations, scale=scale, seed=1000 + workers)
        for label, seconds in job_seconds(source, among, question.point, iterations, device).items():
            choice = next(one for one in among if one.label == label)
            one = question.cost_model(choice, question.point)
            ends = {"least": float(one.least + one.select), "most": float(one.most + one.select)}
            took = {"job": seconds.mean(), "settled": seconds[-len(seconds) // 3 :].mean() if settled else math.nan}
            row = {"model": name, "workers": workers, "density": density, "latency": latency, "exchange": label}
            row |= {"expected": float(one.seconds), **ends, **took}
            rows.append(row)
    return rows


def table(rows: pd.DataFrame) -> str:
    """Return a line per exchange: how far expectations are off, and how often they hold."""
    lines = ["| exchange | points | settled: median, worst | job: median, worst | within 5 % | or covered |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    rows = rows.assign(settled=rows["settled"].fillna(rows["job"]))
    groups = [*rows.groupby("exchange", sort=False), ("all", rows)]
    for label, part in groups:
        cells = []
        for against in ("settled", "job"):
            off = part["expected"] / part[against] - 1
            cells.append(f"{100 * off.abs().median():.2g}, {100 * off[off.abs().idxmax()]:+.3g} %")
        near, held = (np.mean([one(part, name) for name in ("settled", "job")]) for one in (_near, _held))
        lines.append(f"| {label} | {len(part)} | {' | '.join(cells)} | {100 * near:.0f} % | {100 * held:.0f} % |")
    return "\n".join(lines)


def _near(rows: pd.DataFrame, against: str) -> float:
    return float(((rows["expected"] / rows[against] - 1).abs() <= 0.05).mean())


def _held(rows: pd.DataFrame, against: str) -> float:
    inside = rows[against].between(rows["least"] * (1 - 1e-9), rows["most"] * (1 + 1e-9))
    return float((inside | ((rows["expected"] / rows[against] - 1).abs() <= 0.05)).mean())


def volumes(workers: int, density: float, number: int) -> list[dict[str, float]]:
    """Return what jobs of other gradients send over what a rehearsal does, by scheme: a row per job and part of it."""
    load_kept_loop()
    point = OperatingPoint(workers, model(_REHEARSED).parameters, density, 0.0, _BANDWIDTH)
    network = network_of(point)
    among = [one for one in choices(every=True) if one.settled]
    expects = by_simulation([(network, 0.0)], load_device("ideal"), rehearsals=Rehearsals(among, shape=_REHEARSED))
    expected = {one.label: float(expects(one, point).communicate) for one in among}
    entries = _ENTRIES / workers
    name = MODELS[number % len(MODELS)]
    jobs: dict[str, tuple[GradientSource, Callable[[int], Values]]] = {}
    drawn = synthetic(name, workers, iterations=ITERATIONS, scale=model(name).parameters / entries, seed=1 + number)
    jobs[name] = drawn, drawn.gradients
    for data in _TRAINED[number % 3 :][:1] + _TRAINED[(number + 1) % 3 :][:1]:
        source = train("mlp", data, workers=workers, hidden=(_HIDDEN,), learning_rate=0.05, seed=number)
        jobs[data] = source, _trained(source)
    rows = []
    for job, (source, gradients) in jobs.items():
        scale = point.parameters / source.parameters
        models = {
            one.label: sparsifier_models.create(
                one.candidate.scheme, workers, source.parameters, density, scale=scale, layers=source.layers
            )
            for one in among
        }
        took: dict[str, list[float]] = {label: [] for label in models}
        for iteration in range(ITERATIONS):
            given = gradients(iteration)
            for label, one in models.items():
                schedule = one.exchange(given).schedule
                if iteration % _STEP == 0:
                    took[label].append(network.time(schedule).finish)
        third = len(range(0, ITERATIONS, _STEP)) // 3
        for part in (slice(None), slice(third), slice(-third, None)):
            ratios = {label: float(np.mean(times[part])) / expected[label] for label, times in took.items()}
            rows.append({"job": job, "workers": workers, "density": density, "part": str(part)} | ratios)
    print(f"{workers} workers, density {density:g}: {', '.join(jobs)}", flush=True)
    return rows


def _trained(source: LiveSource) -> Callable[[int], Values]:
    """Return what gives the gradients of a training whose updates are their mean, iteration by iteration."""
    training = source.begin()

    def gradients(iteration: int) -> Values:
        found = training.gradients(iteration)
        training.apply(found.mean(axis=0))
        return found

    return gradients


def learnt(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the quantiles of what jobs send over what rehearsals do, by scheme."""
    ratios = rows.drop(columns=["job", "workers", "density", "part"])
    return pd.DataFrame(
        {
            "scheme": ratios.columns,
            "least": ratios.quantile(0.05).round(3).to_numpy(),
            "most": ratios.quantile(0.95).round(3).to_numpy(),
            "jobs": len(rows) // 3,
        }
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,3,5,8,13,16,27,33", help="each with a density, model and link in turn")
    parser.add_argument("--models", default="resnet50,resnet18")
    parser.add_argument("--densities", default="0.01,0.03,0.003")
    parser.add_argument("--entries", type=int, default=25_000, help="of each worker of a job that is simulated")
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
