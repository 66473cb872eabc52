"""Estimate constants of the calibration without the site that they are judged on.

    python benchmarks/constants.py --measured FOLDER [--only WORD] [--without NAME...] [--out benchmarks/constants.csv]

Constants of `simnet.cost_models.calibration` were chosen with the public sets of measurements in view. Here each is
halved and doubled, one at a time, and what is left out of every set predicted anew. The table has the errors by set;
the page of `benchmarks/validation.py` says from it what the errors would be if, for each site, the value had been taken
that is best on all others. The ways in which ranks are predicted and steps counted are the usual ones, not chosen set
by set: that would take hours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
from validating.running import Set, sets

from simnet.cost_models.calibration import crossval, predictor, rank_scaling
from simnet.cost_models.calibration.crossval import (
    FOLD_COUNT,
    could_be_nccl,
    leave_sizes_out,
    mixture_weights,
    size_folds,
    without_ranks,
)
from simnet.cost_models.calibration.curves import MIXED_MODELS, Curve, curves_of, split_systems
from simnet.cost_models.calibration.predictor import Predictor, fit_predictor
from simnet.cost_models.calibration.summary import read_rows
from simnet.validate.evaluation import kept_without

CONSTANTS: dict[str, tuple[ModuleType, tuple[str, ...]]] = {
    "sizes": (crossval, ("_POWER", "_SHARED")),
    "ranks": (rank_scaling, ("_INSIDE", "_RIDGE", "_NEAR", "_FASTEST_MESSAGE")),
    "collectives": (predictor, ("_MOST_BY_RULE", "_BANDWIDTH", "_MISFIT")),
}
"""Constants by what is left out where they matter."""

FACTORS = (0.5, 2.0)
"""By which each is multiplied."""


@contextmanager
def changed(module: ModuleType, name: str, factor: float) -> Iterator[None]:
    """Have a constant of a module multiplied by a factor."""
    before = getattr(module, name)
    setattr(module, name, before * factor)
    try:
        yield
    finally:
        setattr(module, name, before)


def variants(split: str) -> Iterator[tuple[str, float]]:
    """Yield constants and factors, first all as they are."""
    yield "", 1.0
    for name in CONSTANTS[split][1]:
        for factor in FACTORS:
            yield name, factor


def of_sizes(curves: Sequence[Curve]) -> Iterator[tuple[str, float, np.ndarray]]:
    """Yield errors of sizes left out, by constant and factor."""
    for fold in range(FOLD_COUNT):
        split = [(one, size_folds(one)[fold]) for one in curves if fold < len(size_folds(one))]
        if not split:
            continue
        kept = [one.at(~mask) for one, mask in split]
        held = {name: leave_sizes_out(kept, name) for name in MIXED_MODELS}
        for name, factor in variants("sizes"):
            with changed(crossval, name or "_POWER", factor):
                weights = mixture_weights(kept, held)
            model = fit_predictor(kept, weights=weights, with_steps=False)
            yield from ((name, factor, off(model, one.at(mask))) for one, mask in split)


def of_ranks(curves: Sequence[Curve]) -> Iterator[tuple[str, float, np.ndarray]]:
    """Yield errors of numbers of ranks left out, by constant and factor."""
    for ranks in sorted({one.setting.ranks for one in curves}):
        kept, held = without_ranks(curves, ranks)
        if held:
            yield from _changed("ranks", fit_predictor(kept, nccl=could_be_nccl(curves)), held)


def of_collectives(curves: Sequence[Curve]) -> Iterator[tuple[str, float, np.ndarray]]:
    """Yield errors of collectives left out, by constant and factor."""
    for collective in sorted({one.setting.collective for one in curves}):
        kept = kept_without(curves, collective)
        if kept:
            held = [one for one in curves if one.setting.collective == collective]
            yield from _changed("collectives", fit_predictor(kept, nccl=could_be_nccl(curves)), held)


def _changed(split: str, model: Predictor, held: Sequence[Curve]) -> Iterator[tuple[str, float, np.ndarray]]:
    module, names = CONSTANTS[split]
    for name, factor in variants(split):
        with changed(module, name or names[0], factor):
            yield from ((name, factor, off(model, one)) for one in held)


def off(model: Predictor, held: Curve) -> np.ndarray:
    """Return absolute relative errors; none where the model says nothing."""
    said = model.at(held.setting, held.sizes)
    return np.array([]) if said is None else np.abs(said / held.seconds - 1)


def of_set(one: Set) -> pd.DataFrame:
    """Return the median and the 90 % quantile of errors of a set, by what is left out, constant and factor."""
    found: dict[tuple[str, str, float], list[np.ndarray]] = {}
    for part in split_systems(read_rows(one.source, {})[0]).values():
        curves = curves_of(part)
        for split, way in (("sizes", of_sizes), ("ranks", of_ranks), ("collectives", of_collectives)):
            for name, factor, errors in way(curves):
                found.setdefault((split, name, factor), []).append(errors)
    rows = []
    for (split, name, factor), each in found.items():
        errors = np.concatenate(each)
        if len(errors):
            rows.append((one.name, split, name, factor, len(errors), *np.quantile(errors, [0.5, 0.9]).round(6)))
    return pd.DataFrame(rows, columns=["set", "split", "constant", "factor", "count", "median", "p90"])


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, metavar="FOLDER", help="further sets, each a folder with a data.csv")
    parser.add_argument("--only", default="", metavar="WORD", help="sets with this in their name")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="sets that are left out")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("constants.csv"), metavar="FILE")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="sets at a time")
    given = parser.parse_args()
    found = sets(given.measured)[0]
    wanted = [one for one in found if given.only in one.name and one.name not in given.without]
    tables = []
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        for one, table in zip(wanted, pool.map(of_set, wanted), strict=True):
            tables.append(table)
            print(f"{one.name}: {len(table)} rows", file=sys.stderr, flush=True)
            pd.concat(tables).to_csv(given.out, index=False)


if __name__ == "__main__":
    main()
