"""`simnet.choose`: which exchange is fastest, by how much, how sure, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.table import Table

from simnet.report.drawing import COLOURS, SECONDS, Plot, plot, scale, style, unit
from simnet.report.tables import ReprHtml
from simnet.studies.choosing.answer import ChooseAnswer, answer
from simnet.studies.choosing.request import ChooseRequest
from simnet.verbs.library.asking import Fields, Share, overrides, quantity, telling, verb, words
from simnet.verbs.run import grid_texts


@dataclass(frozen=True, eq=False, repr=False)
class Choice(ReprHtml):
    """A decision between exchanges.

    Parameters
    ----------
    answer : ChooseAnswer
        At one operating point, on the whole job of a scenario, or on the jobs of a grid.
    """

    answer: ChooseAnswer

    @property
    def chances(self) -> dict[str, float]:
        """How likely each exchange is the fastest, within 0..1, the fastest one first."""
        return self.answer.chances

    @property
    def best(self) -> str:
        """The exchange that is expected to be the fastest."""
        return next(iter(self.chances))

    def __repr__(self) -> str:
        return f"Choice({self.best}, {100 * self.chances[self.best]:.0f} % of {len(self.chances)} exchanges)"

    def figures(self) -> dict[str, Any]:
        """Return all of it as plain values: what ``simnet choose --json`` prints."""
        return self.answer.figures

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per exchange, the fastest first, with intervals, chances and parts [s]."""
        return pd.DataFrame(self.figures()["ranking"])

    def plot(self) -> Plot:
        """Return the figure: the time of each exchange, or of an iteration with it where 90 % of them are."""
        bars, title = self.answer.bars, str(self.figures()["question"]["title"])
        labels = [label for label, *_ in bars][::-1]
        seconds, low, high = (np.array([one[place] for one in bars][::-1]) for place in (1, 2, 3))
        name, factor = unit(float(seconds.max()), SECONDS)
        with style():
            figure = Figure(figsize=(7.5, 1.2 + 0.28 * len(labels)), layout="constrained")
            axes = figure.subplots()
            off = np.nan_to_num(np.clip([seconds - low, high - seconds], 0.0, None), posinf=0.0) / factor
            axes.errorbar(seconds / factor, labels, xerr=off, fmt="o", color=COLOURS[0], markersize=4, elinewidth=1.0)
            scale(axes.xaxis, seconds / factor)
            axes.set_xlabel(f"{self.answer.weighed} [{name}]")
            axes.set_title(title, loc="left")
        return plot("choose", title, "", figure)

    def table(self) -> Table:
        """Return the ranking."""
        return self.answer.ranking

    def sentences(self) -> list[str]:
        """Return the decision in words: what, by how much, how sure, and what would change it."""
        return self.answer.sentences


@verb
def choose(
    scenario: str | Path | None = None,
    *,
    workers: int | None = None,
    model: str | None = None,
    parameters: int | str | None = None,
    density: float | str | None = None,
    compute: float | str | None = None,
    batch: int | None = None,
    latency: float | str | None = None,
    bandwidth: float | str | None = None,
    gpus_per_node: int | None = None,
    inner_latency: float | str | None = None,
    inner_bandwidth: float | str | None = None,
    fabric: str | Path | None = None,
    device: str | None = None,
    all: bool = False,
    schemes: Sequence[str] | str | None = None,
    simulate: bool = False,
    topology: str | None = None,
    param: Mapping[str, str | Sequence[object]] | Sequence[str] = (),
    set: Fields = (),
    stack: str | None = None,
    error: float | None = None,
    misjudged: float | None = None,
    memory: float | str | None = None,
    seed: int | None = None,
    progress: Share | None = None,
) -> Choice:
    """Choose between exchanges, dense and sparse, as `simnet choose` does.

    Parameters
    ----------
    scenario : str or Path, optional
        A scenario whose whole job is asked about; ``base`` when omitted.
    workers : int, optional
        How many; 8 without a scenario.
    model, parameters : str, int, optional
        A model of `simnet list models` or the path of its ``config.json``, resnet50 by default, or its number of
        parameters, as ``"7B"``; without `compute` the exchange alone is ranked then.
    density : float or str, optional
        Fraction kept, as ``0.01``, the default, or ``"1 %"``.
    compute, batch
        As of `simnet.run`.
    latency, bandwidth : float or str, optional
        Of a worker's link, or a node's: ``"1 ms"`` or seconds, ``"10 Gbit/s"`` or bytes per second.
    gpus_per_node, inner_latency, inner_bandwidth : int, float or str, optional
        Workers that share a node, and the links inside it.
    fabric : path, optional
        A calibrated cluster in place of latency and bandwidth.
    device : str, optional
        What selecting costs, and how long a model computes: a device's name, or the file of a profile.
    all : bool
        Whether to weigh every scheme that has a closed form.
    schemes : sequence of str, optional
        Weigh these, as ``artopk:collective=tree``, and no others.
    simulate : bool
        Whether to simulate all iterations of a job; of an exchange by itself, its messages.
    topology : str, optional
        ``star``, when omitted, ``fat_tree``, ...
    param : sequence of str or mapping, optional
        Fields of the scenario with values, as of `simnet.sweep`: jobs to choose among, such as
        ``{"job.strategy.period": [10, 100]}``.
    set, stack, seed, progress
        As of `simnet.run`.
    error : float, optional
        Relative error of closed forms, of which intervals and chances are made; as measured when omitted.
    misjudged : float, optional
        By which factor latency and bandwidth may be misjudged; 2 when omitted.
    memory : float or str, optional
        What a worker's device holds, as ``"16 GB"`` or bytes, or ``"device"`` for what its profile says: exchanges that
        need more are ruled out.

    Raises
    ------
    SimnetError
        If arguments do not fit each other or are out of range, or something is wrong with a file.

    Examples
    --------
    >>> from simnet import choose
    >>> found = choose(workers=8, model="resnet50", latency="1 ms", bandwidth="10 Gbit/s")
    >>> found.best, len(found.to_pandas()) == len(found.chances)
    ('AG-Topk', True)
    """
    request = ChooseRequest(
        scenario=scenario,
        workers=workers,
        model=model,
        parameters=parameters,
        density=None if density is None else str(density),
        compute=quantity(compute, "s"),
        batch=batch,
        latency=quantity(latency, "s"),
        bandwidth=quantity(bandwidth, "B/s"),
        gpus_per_node=gpus_per_node,
        inner_latency=quantity(inner_latency, "s"),
        inner_bandwidth=quantity(inner_bandwidth, "B/s"),
        fabric=None if fabric is None else Path(fabric),
        device=device,
        every=all,
        schemes=words(schemes),
        simulate=simulate,
        topology=topology,
        param=grid_texts(param) or None,
        set_=overrides(set) or None,
        stack=stack,
        error=error,
        misjudged=misjudged,
        memory=quantity(memory, "B"),
        seed=seed,
    )
    if request.param:
        return Choice(answer(request, progress=(lambda done: None) if progress is None else progress))
    with telling(progress):
        return Choice(answer(request))
