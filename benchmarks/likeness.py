"""Hold synthetic gradients against recorded ones that they were not fitted to, by what schemes make of both.

    python benchmarks/likeness.py [--only WORD] [--out benchmarks/likeness.csv]
    python benchmarks/likeness.py --every-step FOLDER [--out benchmarks/likeness_every_step.csv]

Of two traces of a family the one is fitted, and the other, of a run with other weights, shards and batches, is what
synthetic gradients are compared with. Of each trace two thirds of the recorded steps are fitted, too, and the rest is
compared. Of traces of pseudo-gradients one half of the workers is fitted as well, and the other compared. A trace of
each family is compared with itself, for how much of the difference is the generator's. Schemes exchange recorded
gradients and synthetic ones of the same steps, each once, with their residuals.

With ``--every-step`` whole runs are compared, in which every step has gradients of its own. FOLDER has what
``make_family_traces.py --every-step --into FOLDER`` recorded of ``-again`` and ``-third`` of both families; the
parameters that come with simnet were fitted to another run.

The page of `benchmarks/validation.py` has the table, which `validating.likeness` makes from the file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from simnet import sparsifier_models
from simnet.traces import SyntheticParameters, fit, recorded
from simnet.traces.comparing import synthetic_twin
from simnet.traces.metadata import load_parameters
from simnet.traces.recorded import RecordedSource, folder_of

FAMILIES = ("convolutional", "transformer")
HELD_OUT = Path(__file__).parent / "held_out"
"""Where traces lie that nothing is fitted to."""

SCHEMES: dict[str, dict[str, str]] = {"topk": {}, "oktopk": {}, "spardl": {}, "exdyna": {"start": "exact"}}
"""Schemes, with options; ExDyna begins with exact thresholds, as its formula is for gradients of another size."""

DENSITY, SEEDS = 0.01, 2
"""Density, and seeds of synthetic gradients."""


class Case(NamedTuple):
    """Gradients to compare with, and what synthetic ones are fitted to.

    Parameters
    ----------
    name : str
        Of the trace.
    held : str
        What was not fitted: another ``run``, or ``every`` step of it, some ``steps``, half of the ``workers``, or
        ``nothing``, so that all was.
    fitted, compared : RecordedSource
        What is fitted, and compared with.
    """

    name: str
    held: str
    fitted: RecordedSource
    compared: RecordedSource


def cases() -> Iterator[Case]:
    """Yield all comparisons."""
    for family in FAMILIES:
        yield Case(family, "run", recorded(family), recorded(HELD_OUT / f"{family}-again"))
    for what in ("", "-dirichlet", "-local", "-local-dirichlet"):
        for family in FAMILIES:
            whole = recorded(f"{family}{what}")
            places = np.arange(len(whole.info.points))
            left_out = places % 3 == 1
            yield Case(whole.info.name, "steps", part(whole, places[~left_out]), part(whole, places[left_out]))
    for family in FAMILIES:
        yield Case(family, "nothing", recorded(family), recorded(family))
    for family in FAMILIES:
        name = f"{family}-local"
        odd = np.arange(recorded(name).workers) % 2 == 1
        others, some = (recorded(name, workers=np.flatnonzero(which).tolist()) for which in (~odd, odd))
        yield Case(name, "workers", others, some)


def whole_runs(folder: Path) -> Iterator[Case]:
    """Yield comparisons with every step of other runs.

    Parameters
    ----------
    folder : Path
        Has the traces.
    """
    for family in FAMILIES:
        for which in ("again", "third"):
            yield Case(family, "every", recorded(family), recorded(folder / f"{family}-{which}"))


def part(source: RecordedSource, places: np.ndarray) -> RecordedSource:
    """Return a trace with some of its recorded steps.

    Parameters
    ----------
    source : RecordedSource
        The trace, by name.
    places : ndarray of int
        Which of its `info.points`.
    """
    info = source.info.model_copy(update={"points": tuple(source.info.points[place] for place in places)})
    return RecordedSource(folder_of(info.name), info, range(info.workers), None, 1.0, 0)


def stretches(steps: Sequence[int]) -> list[list[int]]:
    """Return the places of recorded steps in thirds of the run: early, middle, late."""
    return [[int(place) for place in one] for one in np.array_split(np.arange(len(steps)), 3)]


def figures(scheme: str, source: RecordedSource, gradients: Callable[[int], np.ndarray]) -> pd.DataFrame:
    """Return what a scheme makes of gradients, a row per stretch: means over its exchanges.

    Parameters
    ----------
    scheme : str
        One of `SCHEMES`.
    source : RecordedSource
        Has the layers and steps.
    gradients : callable
        Returns the gradients of a place among the recorded steps, float32 of shape (P, n).

    Returns
    -------
    DataFrame
        Columns ``bytes`` sent by a worker, ``selected`` entries of a worker, entries of the ``union``, ``threshold``,
        which is NaN of SparDL: it has none, as it selects block by block.
    """
    model = sparsifier_models.create(
        scheme, workers=source.workers, parameters=source.parameters, density=DENSITY, **SCHEMES[scheme]
    )
    found = []
    for places in stretches(source.info.points):
        rows = []
        for place in places:
            exchange = model.exchange(gradients(place))
            threshold = float(np.mean(exchange.stats.get("threshold", np.nan)))
            rows.append((exchange.schedule.bytes_sent().mean(), exchange.selected.mean(), exchange.union, threshold))
        found.append(np.mean(rows, axis=0))
    return pd.DataFrame(found, columns=["bytes", "selected", "union", "threshold"])


def compared(case: Case, parameters: SyntheticParameters) -> Iterator[pd.DataFrame]:
    """Yield recorded figures beside synthetic ones, a table per scheme with a row per stretch."""
    source = case.compared
    steps = [point.step for point in source.info.points]
    real = [source.recorded(place) for place in range(len(steps))]
    fitted = case.fitted
    other = [] if case.held == "every" else [fitted.recorded(place) for place in range(len(fitted.info.points))]
    made = []
    for seed in range(SEEDS):
        like = synthetic_twin(source, parameters, seed)
        made.append([like.gradients(step) for step in steps])
    for scheme in SCHEMES:
        tables = {"recorded": figures(scheme, source, real.__getitem__)}
        tables["synthetic"] = sum(figures(scheme, source, one.__getitem__) for one in made) / SEEDS
        if other:
            tables["fitted"] = figures(scheme, fitted, other.__getitem__)
        yield pd.concat([one.add_suffix(f"_{what}") for what, one in tables.items()], axis=1).assign(
            trace=case.name, held=case.held, workers=source.workers, scheme=scheme, stretch=range(3)
        )


def main() -> None:
    """Compare, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="traces with this in their name")
    parser.add_argument("--every-step", type=Path, metavar="FOLDER", help="of traces of whole runs")
    parser.add_argument("--out", type=Path, metavar="FILE")
    given = parser.parse_args()
    found, fits = [], {}
    for case in cases() if given.every_step is None else whole_runs(given.every_step):
        if given.only not in case.name:
            continue
        start = time.process_time()
        # What is fitted whole is so once.
        whole = case.name if case.held in ("run", "nothing", "every") else ""
        if whole and whole not in fits:
            fits[whole] = load_parameters(whole, []) if case.held == "every" else fit(case.fitted)
        parts = list(compared(case, fits[whole] if whole else fit(case.fitted)))
        found += parts
        table = pd.concat(parts)
        ratios = {
            name: table[f"{name}_synthetic"].groupby(table["scheme"], sort=False).mean()
            / table[f"{name}_recorded"].groupby(table["scheme"], sort=False).mean()
            for name in ("bytes", "selected", "union", "threshold")
        }
        print(f"{case.name}, {case.held} held out, {time.process_time() - start:.0f} processor seconds")
        print(pd.DataFrame(ratios).round(3))
        sys.stdout.flush()
        if given.out is not None:
            columns = ["trace", "held", "workers", "scheme", "stretch"]
            table = pd.concat(found)
            table = table[[*columns, *(one for one in table if one not in columns)]]
            table.to_csv(given.out, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
