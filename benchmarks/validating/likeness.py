"""How close synthetic gradients come to recorded ones that they were not fitted to, by what schemes make of both."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

TABLE = Path(__file__).parents[1] / "likeness.csv"
"""What `benchmarks/likeness.py` wrote."""

FIGURES = ("bytes", "selected", "union", "threshold")
"""What is compared."""

LIMIT = 0.1
"""How far apart the mean of a figure may be."""

NAMES = {"topk": "Top-k", "oktopk": "Ok-Topk", "spardl": "SparDL", "exdyna": "ExDyna"}

WORDS = """\
## Synthetic gradients

Synthetic over recorded, at a density of 1 %: means over the exchanges of a run, and in brackets the third of the run,
early, middle or late, that is furthest off. Schemes keep their residuals. [Traces](traces.md#families-of-models) says
what was recorded. Nothing was fitted to what is compared: of `convolutional` and `transformer` it is a trace of another
run, with other weights, shards and batches (*another run*), and of the other traces every third recorded step (*steps
left out*). *Run to run* is the same figure of the run that was fitted over that of the other one: how far apart two
runs are. A third of the recorded steps is gone through ten times, as there are no more; synthetic ones are of the same
steps, and figures are means over two seeds. Made by `python
benchmarks/likeness.py --out benchmarks/likeness.csv`, from the traces alone, in three minutes of a processor.

| Trace | Workers | Compared | Scheme | Bytes of a worker | Entries selected | Of all together | Threshold |
|---|---|---|---|---|---|---|---|
"""


def section(path: Path) -> str:
    """Return the section of the page.

    Parameters
    ----------
    path : Path
        What `benchmarks/likeness.py` wrote.
    """
    found = pd.read_csv(path)
    rows, within = [], []
    for (trace, held, workers, scheme), part in found.groupby(["trace", "held", "workers", "scheme"], sort=False):
        mean = part.mean(numeric_only=True)
        off = {one: ratio(mean, one, "synthetic") for one in FIGURES if mean[f"{one}_recorded"] > 0}
        cells = []
        for one in off:
            thirds = [ratio(row, one, "synthetic") for _, row in part.iterrows()]
            worst = max(thirds, key=lambda value: abs(value - 1))
            runs = f"; run to run {ratio(mean, one, 'fitted'):.2f}" if held == "run" else ""
            near = abs(off[one] - 1) <= LIMIT
            # What is the same to the last digit follows from k.
            within += [near] if any(value != 1 for value in thirds) else []
            cells.append(f"{off[one]:.2f} ({worst:.2f}){runs}" if near else f"**{off[one]:.2f}** ({worst:.2f}){runs}")
        left_out = "another run" if held == "run" else "steps left out"
        cells += ["none"] * (len(FIGURES) - len(cells))
        rows.append(f"| `{trace}` | {workers} | {left_out} | {NAMES[scheme]} | {' | '.join(cells)} |\n")
    told = f"Of {len(within)} means that do not follow from k alone, {sum(within)} are within {LIMIT:.0%}".replace(
        "%", " %"
    )
    return f"{WORDS}{''.join(rows)}\n{told}; the others are bold.\n"


def ratio(row: pd.Series[float], figure: str, what: str) -> float:
    """Return a figure of gradients over that of the recorded ones that are compared with.

    Parameters
    ----------
    row : Series
        Of the table.
    figure : str
        One of `FIGURES`.
    what : str
        ``synthetic``, or ``fitted``: the recorded gradients that are fitted.
    """
    return float(row[f"{figure}_{what}"] / row[f"{figure}_recorded"])
