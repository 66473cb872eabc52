"""Predict and measure the jobs of `simnet.validate.jobs.settings`.

    python -m simnet.validate.jobs FOLDER                      # all steps, one after the other
    python -m simnet.validate.jobs FOLDER work                 # computing and kernels of this machine
    python -m simnet.validate.jobs FOLDER predict              # a scenario and its prediction for each setting
    python -m simnet.validate.jobs FOLDER measure --seconds 90 # real jobs; what has a log is left out
    python -m simnet.validate.jobs FOLDER table                # what was measured, as the tables that are shipped

Takes Linux, root, a C compiler and PyTorch, and a machine that does nothing else while it measures: `measure` may be
called several times, and begins with no job that the seconds would not suffice for.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pandas as pd

from simnet.calibration.device import profile_yaml
from simnet.validate.jobs import gradients, running, scenarios, tables
from simnet.validate.jobs.settings import MODELS, SETTINGS, Setting

STEPS = ("work", "predict", "measure", "table")

_STARTING = 12.0
_MARGIN = 2.0


def work(folder: Path) -> None:
    """Measure what ranks do between messages."""
    running.measure_work(list(MODELS), folder / "work")
    (folder / "device.yaml").write_text(profile_yaml(scenarios.device_of(folder / "work")), encoding="utf-8")


def predict(folder: Path) -> None:
    """Write scenarios, predictions, and gradients that they need, before anything is measured."""
    from simnet.scenario import load
    from simnet.studies.iteration import predict_job

    computing = scenarios.computing_of(folder / "work")
    (folder / "predicted").mkdir(exist_ok=True)
    for setting in SETTINGS:
        out = folder / "predicted" / f"{setting.name}.csv"
        if out.exists():
            continue
        if not MODELS[setting.model]:
            gradients.record(setting, folder / scenarios.trace_of(setting))
        loaded = load(scenarios.write(setting, computing, folder))
        if setting.flexible is not None:
            (folder / f"{setting.name}.json").write_text(scenarios.policy_table(loaded), encoding="utf-8")
        predict_job(loaded).iterations.to_csv(out, index=False)


def measure(folder: Path, seconds: float) -> None:
    """Run the jobs that have no log yet, as many as the seconds suffice for."""
    stop = time.monotonic() + seconds
    for _, jobs in groupby(_missing(folder), key=lambda one: one[0].ranks):
        chosen, left = [], stop - time.monotonic() - _STARTING
        for job in jobs:
            left -= _MARGIN + job[3]
            if left < 0:
                break
            chosen.append(job)
        if not chosen:
            return
        running.run([job[:3] for job in chosen])


def _missing(folder: Path) -> Iterator[tuple[Setting, str, Path, float]]:
    """Yield the jobs that have no log: setting, label or policy file, folder of the log, and the seconds predicted."""
    for setting in sorted(SETTINGS, key=lambda one: one.ranks):
        predicted = pd.read_csv(folder / "predicted" / f"{setting.name}.csv")
        for policy, rows in predicted.groupby("policy", sort=False):
            log = folder / "logs" / setting.name / str(policy)
            exchange = str(folder / f"{setting.name}.json") if policy == scenarios.FLEXIBLE else str(policy)
            if not log.exists():
                yield setting, exchange, log, float(rows["total_s"].sum()) * 1.3


def main() -> None:
    """Run the steps that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m simnet.validate.jobs", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", nargs="*", choices=STEPS, metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--seconds", type=float, default=3600.0, help="which measuring may take")
    given = parser.parse_args()
    folder: Path = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    steps: dict[str, Callable[[], None]] = {
        "work": lambda: work(folder),
        "predict": lambda: predict(folder),
        "measure": lambda: measure(folder, given.seconds),
        "table": lambda: tables.write(folder),
    }
    for step in given.steps or STEPS:
        steps[step]()


if __name__ == "__main__":
    main()
