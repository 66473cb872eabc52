"""Iterations of each scheme to the accuracy that dense reaches, by density, model and momentum, in real training.

    python benchmarks/iterations_to_accuracy.py [--csv simnet/data/iterations_to_accuracy.csv] [--seeds 3]
    python benchmarks/iterations_to_accuracy.py --orders [--figure docs/images/iterations_to_accuracy.svg]

Trains the scenario ``iterations_to_accuracy`` in each setting of `SETTINGS`, which is a ``--grid`` of ``simnet run``,
and counts as that does, but ends a run at its target and times no messages. Needs scikit-learn and PyTorch, and some 40
CPU minutes with one thread. A row is written after each run; rows that are there are not run again.

With ``--orders``: how well two models foretell the order of the schemes for the third, as Kendall's tau-b, from the
shipped file; each run that did not reach the target is as in `simnet.cost_models.evidence.relative_iterations`.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import itertools
import math
import time
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy.stats import kendalltau

from simnet.base.errors import DivergedError
from simnet.cost_models.evidence.relative_iterations import WITHOUT_DENSITY as WITHOUT_ANY
from simnet.cost_models.evidence.relative_iterations import mean_logarithms, measured_ratios, relative_iterations
from simnet.report.drawing import style
from simnet.scenario import load
from simnet.studies.sweeping.grid import moving_together
from simnet.training.job.job import create_sparsifier, gradient_buckets

TRAIN = "job.gradients.train"
SETTINGS = f"""
{TRAIN}.model=mlp,mlp,conv,conv,{{transformer: {{width: 32, blocks: 1}}}},{{transformer: {{width: 32, blocks: 1}}}};
{TRAIN}.data=digits,digits,digits,digits,{{words: {{vocabulary: 256, context: 8, held_out: 1%}}}},{{words: {{vocabulary: 256, context: 8, held_out: 1%}}}};
{TRAIN}.momentum=0,0.9,0,0.9,0,0.9;
{TRAIN}.learning_rate=0.3,0.05,0.05,0.005,0.3,0.2;
{TRAIN}.batch=2,2,2,2,8,8;
{TRAIN}.target=91,91,92,92,27.5,27.5%;
{TRAIN}.evaluate=1,1,2,2,5,5;
job.iterations=240,240,380,350,940,700
"""  # noqa: E501
KEY = ("model", "momentum", "scheme", "density", "seed")
DENSITIES = (0.001, 0.01, 0.1)
FEWEST = 4  # different ratios of an order
TEXTS = {"artopk-var": "artopk:selection=var", "powersgd-1": "powersgd:rank=1", "powersgd-4": "powersgd:rank=4"}
"""Schemes and options of exchanges whose label is another."""

WITHOUT_DENSITY = ("dense", "int8ring", "powersgd-1", "powersgd-4")
COLUMNS = (
    "model", "data", "momentum", "learning_rate", "target", "scheme", "density", "seed", "iterations", "reached",
    "accuracy", "sent", "cpu_s", "date",
)  # fmt: skip


def settings() -> list[list[str]]:
    """Return the overrides of each setting."""
    axes = moving_together(SETTINGS.replace("\n", " "))
    return [[f"{one.name.strip()}={one.values[number]}" for one in axes] for number in range(len(axes[0].values))]


def count_iterations(overrides: list[str], label: str, density: float, seed: int) -> list[object]:
    """Return the row of a run: of one exchange, until its accuracy reaches the target or the job ends."""
    loaded = load("iterations_to_accuracy", [*overrides, f"job.density={density}", f"seed={seed}"])
    built, train = loaded.build(), loaded.config.job.gradients.train
    job, training = built.job, built.job.source.begin()
    model = create_sparsifier(built.candidates[label], gradient_buckets(job.source, None)[0], job)
    model.density, begun, accuracy, sent = density, time.process_time(), 0.0, 0.0
    try:
        for number in range(job.iterations):
            model.iteration = number
            exchange = model.exchange(training.gradients(number))
            sent += exchange.union / job.source.parameters
            training.apply(exchange.update)
            score = training.score(number).accuracy
            accuracy = accuracy if math.isnan(score) else score
            if accuracy >= train.target:
                break
    except DivergedError:
        # It never reaches the target, however long it goes on.
        number, accuracy = job.iterations - 1, 0.0
    kind, data, m, rate, _, target, *_ = (one.partition("=")[2] for one in overrides)
    names = [one.strip("{").partition(":")[0] for one in (kind, data)]
    return [
        *names, m, rate, target.replace(" ", ""), TEXTS.get(label, label),
        density if label not in WITHOUT_DENSITY else "", seed, number + 1,
        accuracy >= train.target, round(accuracy, 4), round(sent / (number + 1), 5),
        round(time.process_time() - begun, 2), datetime.date.today(),
    ]  # fmt: skip


def orders() -> pd.DataFrame:
    """Return Kendall's tau of the foretold and the measured order of schemes, by model left out, momentum, densities.

    The order over all densities also has the schemes without any; `inside` counts those in the 90 % interval.
    """
    rows, every = [], [(scheme, at, one) for scheme, known in measured_ratios().items() for at, one in known.items()]
    densities = [*({at: f"{100 * at:g} %"} for at in DENSITIES), dict.fromkeys((*DENSITIES, WITHOUT_ANY), "all")]
    for setting, among in itertools.product(itertools.product(("mlp", "conv", "transformer"), (0.0, 0.9)), densities):
        model, momentum = setting
        found = []
        for scheme, at, ratios in every:
            foretold = relative_iterations(scheme, at, momentum, without=model)
            if scheme != "dense" and at in among and setting in ratios and foretold:
                (own,) = map(math.exp, mean_logarithms({setting: ratios[setting]}))
                said = relative_iterations(scheme, at, without=model)
                found.append((foretold.estimate, own, said.low <= own <= said.high))
        if found:
            foretold, own, inside = zip(*found, strict=True)
            tau = kendalltau(foretold, own).statistic if len({*own}) >= FEWEST else math.nan
            rows.append((*setting, next(iter(among.values())), len(found), tau, sum(inside)))
    return pd.DataFrame(rows, columns=["left_out", "momentum", "density", "schemes", "tau", "inside"])


def draw(path: Path) -> None:
    """Draw the ratios of all settings by scheme, a panel for each density; open circles did not reach the target."""
    marks = {"mlp": "o", "conv": "s", "transformer": "^"}
    with style():
        figure, axes = plt.subplots(1, 3, sharey=True, figsize=(9, 3.4), layout="constrained")
        for axis, density in zip(axes, DENSITIES, strict=True):
            known = {name: one[density] for name, one in measured_ratios().items() if density in one}
            for row, runs in enumerate(known.values()):
                for (model, momentum), ratios in runs.items():
                    value = math.exp(mean_logarithms({(model, momentum): ratios})[0])
                    colour, full = f"C{int(momentum > 0)}", all(reached for _, reached in ratios)
                    axis.plot(value, row, marks[model], color=colour, fillstyle="full" if full else "none")
            axis.set(xscale="log", title=f"density {100 * density:g} %", xlim=(0.5, 8), xlabel="iterations, dense = 1")
            axis.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
            axis.minorticks_off()
            axis.axvline(1, color="grey", lw=0.8)
            axis.set_yticks(range(len(known)), list(known))
        shown = [Line2D([], [], marker=mark, color="grey", ls="", label=model) for model, mark in marks.items()]
        shown += [Patch(color=f"C{number}", label=f"momentum {m}") for number, m in enumerate((0, 0.9))]
        figure.legend(handles=shown, loc="outside lower center", ncols=5)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Run what is not in the file, and add it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--csv", type=Path, default=Path("simnet/data/iterations_to_accuracy.csv"))
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--orders", action="store_true")
    options.add_argument("--figure", type=Path)
    given = options.parse_args()
    if given.orders:
        print(orders().round(2).to_string(index=False))
        if given.figure:
            draw(given.figure)
        return
    labels = list(load("iterations_to_accuracy").config.exchanges)
    if not given.csv.exists():
        given.csv.write_text(",".join(COLUMNS) + "\n")
    with given.csv.open() as rows:
        there = {tuple(row[one] for one in KEY) for row in csv.DictReader(rows)}
    for seed, overrides, label in itertools.product(range(1, given.seeds + 1), settings(), labels):
        model, momentum = (one.partition("=")[2].strip("{").partition(":")[0] for one in overrides[:3:2])
        for density in [1.0] if label in WITHOUT_DENSITY else DENSITIES:
            shown = "" if label in WITHOUT_DENSITY else str(density)
            if (model, momentum, TEXTS.get(label, label), shown, str(seed)) not in there:
                with given.csv.open("a", newline="") as rows:
                    csv.writer(rows).writerow(count_iterations(overrides, label, density, seed))


if __name__ == "__main__":
    main()
