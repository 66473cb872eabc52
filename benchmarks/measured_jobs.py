"""Predict and measure training jobs of PyTorch's DDP with `simnet.cluster.hooks`, on a shaped network.

    python benchmarks/measured_jobs.py FOLDER                      # all steps, one after the other
    python benchmarks/measured_jobs.py FOLDER work                 # computing and kernels of this machine
    python benchmarks/measured_jobs.py FOLDER predict              # a scenario and its prediction for each setting
    python benchmarks/measured_jobs.py FOLDER measure --seconds 90 # real jobs; what has a log is left out
    python benchmarks/measured_jobs.py FOLDER table                # what was measured, as the tables that are shipped
    python benchmarks/measured_jobs.py FOLDER errors               # what predictions of shipped jobs are off by

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
from measuring_jobs import errors, gradients, running, scenarios
from measuring_jobs.settings import MODELS, SETTINGS, Setting, table_of_settings

from simnet.cost_models.calibration.device import profile_yaml
from simnet.scenario import load
from simnet.studies.iteration import predict_job
from simnet.validate.jobs.tables import PARTS, over_ranks, read_job_logs

STEPS = ("work", "predict", "measure", "table", "errors")

_STARTING = 12.0
_MARGIN = 2.0


def work(folder: Path) -> None:
    """Measure what ranks do between messages."""
    running.measure_work(list(MODELS), folder / "work")
    (folder / "device.yaml").write_text(profile_yaml(scenarios.device_of(folder / "work")), encoding="utf-8")


def predict(folder: Path) -> None:
    """Write scenarios, predictions, and gradients that they need, before anything is measured."""
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


def write(folder: Path) -> None:
    """Write what was measured and predicted in a folder as the tables that are shipped.

    Predictions that were ``first``, beside those that are now ``predicted``, are kept as ``before_s``.
    """
    measured, predicted = [], []
    for setting in SETTINGS:
        logs = folder / "logs" / setting.name
        if not logs.is_dir():
            continue
        measured.append(over_ranks(read_job_logs(logs)).assign(setting=setting.name))
        own = pd.read_csv(folder / "predicted" / f"{setting.name}.csv").assign(setting=setting.name)
        first = folder / "first" / f"{setting.name}.csv"
        keys = ["policy", "iteration"]
        before = (pd.read_csv(first) if first.exists() else own)[[*keys, "total_s"]]
        predicted.append(own.merge(before.rename(columns={"total_s": "before_s"}), on=keys, how="left"))
    ends = [f"{part}_{end}_s" for part in ("messages", "total") for end in ("low", "high")]
    columns = ["setting", "policy", "iteration", "exchange", *(one for one in PARTS), *ends, "before_s"]
    rows = pd.concat(measured, ignore_index=True)
    rows.insert(0, "setting", rows.pop("setting"))
    rows.to_csv(folder / "measured.csv", index=False, float_format="%.6g")
    pd.concat(predicted, ignore_index=True)[columns].to_csv(folder / "predicted.csv", index=False, float_format="%.6g")
    table_of_settings().to_csv(folder / "settings.csv", index=False)


def main() -> None:
    """Run the steps that are asked for."""
    parser = argparse.ArgumentParser(prog="python benchmarks/measured_jobs.py", description=__doc__)
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
        "table": lambda: write(folder),
        "errors": lambda: print(errors.table(), end=""),
    }
    for step in given.steps or STEPS:
        steps[step]()


if __name__ == "__main__":
    main()
