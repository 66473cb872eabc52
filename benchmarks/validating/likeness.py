"""How close synthetic gradients come to recorded ones that they were not fitted to, by what schemes make of both."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

TABLE = Path(__file__).parents[1] / "likeness.csv"
"""What `benchmarks/likeness.py` wrote."""

EVERY_STEP = TABLE.with_name("likeness_every_step.csv")
"""The same over whole runs."""

FIGURES = ("bytes", "selected", "union", "threshold")
"""What is compared."""

LIMIT = 0.1
"""How far apart the mean of a figure may be."""

COMPARED = {
    "every": "every step of other runs",
    "run": "another run",
    "steps": "steps left out",
    "nothing": "the run itself",
    "workers": "other workers",
}
"""What is compared, by what was not fitted."""

NAMES = {"topk": "Top-k", "oktopk": "Ok-Topk", "spardl": "SparDL", "exdyna": "ExDyna"}

WORDS = """\
## Synthetic gradients

Synthetic over recorded, at a density of 1 %: means over the exchanges of a run, and in brackets the third of the run,
early, middle or late, that is furthest off. Schemes keep their residuals. `docs/data.md` says
what was recorded. What is compared is *another run*, with other weights, shards and batches, to which nothing was
fitted; or *steps left out* of what was fitted, every third recorded one; or *other workers*, with other
shards, than the half that was fitted; or *the run itself*, which was fitted, for how much of the difference is the
generator's. *Run to run* is the same figure of the run that was fitted over that of the other one: how far apart two
runs are. Recorded steps are met once each, and synthetic ones of the same steps; figures are means over two seeds. Made
by `python benchmarks/likeness.py --out benchmarks/likeness.csv`, from the traces alone, in five minutes of a processor.

*Every step of other runs* is what a job meets, and what the rest cannot show: all 133 steps, each with gradients of
its own. Figures are means over two runs of each family. They were recorded and are not kept, as each takes 25 MB
(`make_family_traces.py convolutional-again convolutional-third transformer-again transformer-third --every-step`). How
what workers share turns back was measured on two more such runs of each family, and what to model was chosen by those.
The two that are compared are apart by up to 7 % in thresholds and 3 % in bytes; of either alone the one mean that is
not within 10 % is that of ExDyna's bytes in one run of the transformer, 0.89. In what leaves *steps* out, step 1 is had
from steps 0 and 22.

| Trace | Workers | Compared | Scheme | Bytes of a worker | Entries selected | Of all together | Threshold |
|---|---|---|---|---|---|---|---|
"""


def section(*paths: Path) -> str:
    """Return the section of the page.

    Parameters
    ----------
    *paths : Path
        What `benchmarks/likeness.py` wrote.
    """
    found = pd.concat([pd.read_csv(path) for path in paths])
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
            within += [near] if held != "nothing" and any(value != 1 for value in thirds) else []
            cells.append(f"{off[one]:.2f} ({worst:.2f}){runs}" if near else f"**{off[one]:.2f}** ({worst:.2f}){runs}")
        cells += ["none"] * (len(FIGURES) - len(cells))
        rows.append(f"| `{trace}` | {workers} | {COMPARED[held]} | {NAMES[scheme]} | {' | '.join(cells)} |\n")
    told = f"Of {len(within)} means of what was not fitted that do not follow from k alone, {sum(within)} are within"
    told += f" {100 * LIMIT:.0f} %"
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
