"""Measure how what workers' gradients share turns back, from recordings of every step.

::

    python benchmarks/turning.py FOLDER [FOLDER ...] [--out benchmarks/turning.csv]

A folder has a trace of one run, as ``make_family_traces.py convolutional-fourth --every-step --into ...`` makes it. Of
each layer of a hundred entries and more, but embeddings, what two workers have in common at two steps is the mean
product of their signs of an entry, as `simnet.traces.signs` counts it; of all layers it is the mean over their entries.
The correlation over k steps is that mean over all pairs of steps so far apart, over the mean of what is had in common
at one step. Of a run there are four rows: from step 2 on, as the first two have more in common than all others, and
three stretches.

`simnet.traces.signs.TURNING` is from the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from simnet.traces.recorded import RecordedSource, recorded
from simnet.traces.signs import sign_products

LAGS, LEAST = 16, 100
"""Steps that are looked at, and entries of the smallest layer."""

STRETCHES = (2, None), (2, 30), (30, 80), (80, None)
"""The whole run, its start, its middle, and its end: first step, and the one after the last."""

EMBEDDINGS = ("wte.", "wpe.")
"""How names of embeddings start: most of their small entries keep their sign for the whole run."""


def shared(source: RecordedSource) -> np.ndarray:
    """Return what two workers have in common at two steps, shape (T, T): mean products of signs."""
    signs = [np.sign(source.recorded(place)).astype(np.int8) for place in range(len(source.info.points))]
    found = sign_products(np.stack(signs), [size for _, size in source.layers])
    told = [size >= LEAST and not name.startswith(EMBEDDINGS) for name, size in source.layers]
    return np.average(found.other[told], axis=0, weights=found.entries[told])


def correlations(common: np.ndarray) -> list[float]:
    """Return the correlations over 1 to `LAGS` steps of what is had in common at T steps, shape (T, T).

    Examples
    --------
    >>> [round(one, 3) for one in correlations(np.fromfunction(lambda t, u: 0.5 ** abs(t - u), (20, 20)))[:3]]
    [0.5, 0.25, 0.125]
    """
    return [float(np.diag(common, lag).mean() / np.diag(common).mean()) for lag in range(1, LAGS + 1)]


def measured(source: RecordedSource) -> pd.DataFrame:
    """Return the rows of a run.

    Parameters
    ----------
    source : RecordedSource
        A trace of every step.

    Returns
    -------
    DataFrame
        Columns ``family``, ``seed``, ``first`` and ``last`` step, ``alike``, what two workers have in common in a step,
        and ``1`` to ``16``: correlations over so many steps.
    """
    steps = [point.step for point in source.info.points]
    if steps != list(range(source.info.steps)):
        raise ValueError(f"{source.info.name} has {len(steps)} of {source.info.steps} steps; record every one")
    whole, rows = shared(source), []
    for first, end in STRETCHES:
        part = whole[first:end, first:end]
        named = {"family": source.info.name.partition("-")[0], "seed": source.info.seed, "first": first}
        found = {str(lag): one for lag, one in enumerate(correlations(part), 1)}
        rows.append({**named, "last": first + len(part) - 1, "alike": np.diag(part).mean(), **found})
    return pd.DataFrame(rows)


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FILE")
    given = parser.parse_args()
    table = pd.concat([measured(recorded(folder)) for folder in given.folders], ignore_index=True)
    print(table.round(2).to_string(index=False))
    if given.out is not None:
        table.to_csv(given.out, index=False, float_format="%.3g")


if __name__ == "__main__":
    main()
