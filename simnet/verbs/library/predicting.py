"""`simnet.predict` and `simnet.predict_job`: a collective on a cluster, and the iterations of a job, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.table import Table

from simnet.base import units
from simnet.base.errors import InputError
from simnet.cost_models.calibration import Prediction, cost_model_of
from simnet.report.drawing import COLOURS, SECONDS, Plot, plot, style, unit
from simnet.report.tables import ReprHtml, empty_table
from simnet.scenario import load
from simnet.studies import iteration, options
from simnet.verbs.library.asking import Fields, Share, overrides, quantity, telling, verb


@dataclass(frozen=True, eq=False, repr=False)
class CollectivePrediction(ReprHtml):
    """Predicted times of a collective, for one or several sizes.

    Parameters
    ----------
    fabric, collective : str
        The cluster, and the collective as nccl-tests names it.
    ranks : int
        How many.
    coverage : float
        Share of measurements that the intervals shall hold.
    sizes : tuple of float
        Total sizes as nccl-tests counts them [byte].
    predictions : tuple of Prediction
        For each size the time, the ends of its interval, and what it rests on.
    """

    fabric: str
    collective: str
    ranks: int
    coverage: float
    sizes: tuple[float, ...]
    predictions: tuple[Prediction, ...]

    def __repr__(self) -> str:
        times = ", ".join(units.format_seconds(one.seconds) for one in self.predictions[:3])
        more = ", ..." if len(self.sizes) > 3 else ""
        return f"CollectivePrediction({self.fabric}, {self.collective}, {self.ranks} ranks: {times}{more})"

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per size: ``size_B``, ``seconds``, ``low_s``, ``high_s``, and what they rest on.

        Ends of an interval that is not determined by the measurements are missing.
        """
        rows = pd.DataFrame([one._asdict() for one in self.predictions])
        rows.loc[[not one.determined for one in self.predictions], ["low", "high"]] = math.nan
        rows.insert(0, "size_B", self.sizes)
        return rows.rename(columns={"low": "low_s", "high": "high_s"})

    def plot(self) -> Plot:
        """Return the figure: time by size, with its interval."""
        rows = self.to_pandas().sort_values("size_B", kind="stable")
        name, factor = unit(float(rows["seconds"].max()), SECONDS)
        with style():
            figure = Figure(figsize=(7.0, 3.6), layout="constrained")
            axes = figure.subplots()
            x, y = rows["size_B"].to_numpy(), rows["seconds"].to_numpy() / factor
            off = np.clip([y - rows["low_s"] / factor, rows["high_s"] / factor - y], 0.0, None)
            axes.errorbar(x, y, yerr=off, fmt="o-", color=COLOURS[0], markersize=4, elinewidth=1.0)
            if len(rows) > 1:
                axes.set(xscale="log", yscale="log")
            axes.set(xlabel="size [byte]", ylabel=f"time [{name}]")
            axes.set_title(self._title, loc="left")
        return plot("predict", self._title, "", figure)

    @property
    def _title(self) -> str:
        return f"{self.collective} of {self.ranks} ranks on {self.fabric}"

    def table(self) -> Table:
        """Return a row per size."""
        found = empty_table(self._title, ("size", "time", "from", "to", "rests on"), ["rests on"])
        for size, one in zip(self.sizes, self.predictions, strict=True):
            known = one.determined
            ends = map(units.format_seconds, (one.low, one.high)) if known else ("", units.NOT_DETERMINED)
            times = units.format_seconds(one.seconds), *ends
            found.add_row(units.format_bytes(size), *times, f"{'extrapolation; ' if one.extrapolates else ''}{one.why}")
        return found

    def sentences(self) -> list[str]:
        """Return what the intervals are, and what is left out."""
        interval = f"Intervals are meant to hold {100 * self.coverage:.0f} % of measurements."
        return [interval, "device: none; a collective alone, without selecting"]


@verb
def predict(
    fabric: str | Path,
    collective: str,
    *,
    ranks: int,
    size: float | str | Sequence[float | str],
    nodes: int | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    strict: bool = False,
) -> CollectivePrediction:
    """Predict the time of a collective from a calibrated cluster or a platform, as `simnet predict` does.

    Parameters
    ----------
    fabric : str or Path
        A file that `simnet calibrate` wrote, or a platform: its name or file.
    collective : str
        As nccl-tests names it, such as ``all_reduce``.
    ranks : int
        Number of ranks, >= 1.
    size : float, str, or several
        Total size as nccl-tests counts it: ``"25MB"``, or bytes.
    nodes : int, optional
        Nodes that they are on; as measured, or full, when omitted.
    algorithm, protocol : str, optional
        Pinned ones.
    strict : bool
        Whether to refuse to extrapolate.

    Raises
    ------
    SimnetError
        If there is no such cluster or collective, or, with `strict`, it was not measured.

    Examples
    --------
    >>> from simnet import predict
    >>> found = predict("dgx-h100", "all_reduce", ranks=16, size=["1MB", "25MB"])
    >>> first, second = found.predictions
    >>> first.low < first.seconds < first.high < second.high
    True
    """
    several = [size] if isinstance(size, (str, int, float)) else list(size)
    sizes = []
    for one in several:
        nbytes = options.quantity(quantity(one, "B"), "--size", units.size)
        assert nbytes is not None
        sizes.append(nbytes)
    if not sizes or ranks < 1:
        what, told = ("--ranks", f"must be >= 1, got {ranks}") if sizes else ("--size", "must be at least one size")
        raise InputError(told, file=what)
    model = cost_model_of(str(fabric))
    model.refuse_unknown(algorithm, protocol)
    pinned = {"nodes": nodes, "algorithm": algorithm, "protocol": protocol}
    found = [model.predict(collective, ranks, nbytes, strict=strict, **pinned) for nbytes in sizes]  # type: ignore[arg-type]
    predictions = tuple(one.corrected() for one in found)
    return CollectivePrediction(Path(fabric).stem, collective, ranks, model.coverage, tuple(sizes), predictions)


@verb
def predict_job(
    scenario: str | Path,
    *,
    set: Fields = (),
    policies: Sequence[str] | str | None = None,
    progress: Share | None = None,
) -> iteration.JobPrediction:
    """Predict the iterations of a job part by part, with intervals, as `simnet predict job` does.

    Parameters
    ----------
    scenario : str or Path
        A YAML file, or the name of a scenario that comes with simnet.
    policies : sequence of str, optional
        Only these of its policies.
    set, progress
        As of `simnet.run`.

    Raises
    ------
    SimnetError
        If something is wrong with the scenario, or it cannot be predicted part by part.

    Examples
    --------
    >>> from simnet import predict_job
    >>> found = predict_job("quickstart", set={"job.iterations": 2}, policies="AG")
    >>> found
    JobPrediction(quickstart, 1 policy, 2 iterations)
    """
    wanted = policies.split(",") if isinstance(policies, str) else policies
    with telling(progress):
        return iteration.predict_job(load(scenario, overrides(set)), wanted)
