"""Measure again how flows of unequal round trips share a link, run by run of what simnet ships.

    python benchmarks/shared_links.py rates --runs 0-71 --out rates.csv
    python benchmarks/shared_links.py durations --out durations.csv

Takes root, as `simnet.validate.shapednet` does. Settings are those of the shipped tables, and so are the columns of the
rows; a run of `rates` takes 24 or 84 s, one of `durations` a few.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from sharing_links.contention import Bottleneck, durations, rates
from sharing_links.shares import measured

from simnet.validate.shapednet.namespaces import Star, shaped_star

WARM = 6.0
"""When the first window begins [s]."""


def again(net: Star, run: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a run with what is measured now."""
    flows = run.drop_duplicates("flow")
    first = flows.iloc[0]
    link = Bottleneck(first["congestion"], float(first["bandwidth"]), int(first["buffer"]), tuple(flows["round_trip"]))
    net.traffic()
    if "goodput" in run:
        found = rates(net, link, flows["start"].tolist(), [WARM, *run["until"].unique()])
        rows = run.assign(goodput=np.rint(found.ravel()).astype(int))
    else:
        found = durations(net, link, flows["nbytes"].tolist(), run["round"].nunique())
        rows = run.assign(seconds=found.ravel().round(4))
    traffic = net.traffic()
    return rows.assign(drops=traffic.drops, lateness=float(f"{traffic.mean_lateness:.3g}"))


def chosen(table: pd.DataFrame, runs: str | None) -> Iterator[pd.DataFrame]:
    """Yield the rows of each run within ``first-last``, or of all."""
    first, _, last = (runs or f"0-{table['run'].max()}").partition("-")
    for _, rows in table[table["run"].between(int(first), int(last or first))].groupby("run"):
        yield rows


def main() -> None:
    """Measure, and write the rows after every run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["rates", "durations"])
    parser.add_argument("--runs", metavar="FIRST-LAST", help="default: all")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    done: list[pd.DataFrame] = []
    with shaped_star(5, 0.0, 1e7) as net:
        for run in chosen(measured(f"shared_{given.kind}"), given.runs):
            done.append(again(net, run))
            pd.concat(done).to_csv(given.out, index=False)


if __name__ == "__main__":
    main()
