"""Cross-validation of calibrated cost models: relative errors of predicted times on held-out measurements.

Three splits: every fourth size of a curve is left out, a number of ranks is left out, a collective is left out. What is
left out is predicted by a calibration of the rest alone: models are chosen and intervals made by a cross-validation
inside the rest. If all-reduce was measured, a left-out all-gather, reduce-scatter or all-to-all is predicted from
all-reduce and point-to-point alone. For comparison there are the rules of `simnet.validate.rivals`, and, for sizes and
ranks, the single line, three segments and five anchors, interpolated over the logarithm of the ranks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import InputError
from simnet.base.progress import track_progress
from simnet.cost_models.calibration.cost_model import DEFAULT_COVERAGE, CalibratedCostModel, calibrate
from simnet.cost_models.calibration.cost_model_file import cost_model_of
from simnet.cost_models.calibration.crossval import FOLD_COUNT, MIN_SIZES, choose_models, size_folds, without_ranks
from simnet.cost_models.calibration.curves import CURVE_FITS, Curve, curves_of, split_systems
from simnet.cost_models.calibration.predictor import fit_predictor
from simnet.cost_models.calibration.readers.tables import LogFacts
from simnet.cost_models.calibration.summary import error_quantiles, problem_lines, read_rows
from simnet.cost_models.evidence.intervals import BIN_NAMES, Basis, bin_of, half_widths
from simnet.report.drawing import COLOURS, canvas, plot, scale
from simnet.report.summary import Plot
from simnet.validate.links import CLOSED_FORM, held_by_links, winners
from simnet.validate.links import TITLES as LINK_TITLES
from simnet.validate.rivals import RIVALS, FitRivals, rival_times

TITLES = {
    "sizes": "sizes left out",
    "halves": "every second size left out",
    "ranks": "ranks left out",
    "collectives": "collectives left out",
    **LINK_TITLES,
    "known": "inside what was fitted",
    "beyond": "extrapolations",
}
"""Titles of splits; the last two are for comparisons with a fabric file."""

PLAIN = ("line", "three_segments", "five_anchors")
"""Simple models of single curves, used as baselines."""

WORSE = 1.1
"""Factor by which a median or 90 % quantile may exceed the recorded one, since machines round differently."""

PLACES = ("inside", "one doubling outside", "further outside")
"""Position of a held-out number of ranks relative to the measured ones."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Held-out measurements of a dataset and their predictions, with the size of the dataset and remarks."""

    # The dataset.
    name: str
    # One row per measurement left out: ``split``, ``place`` (of a number of ranks: one of `PLACES`), ``system``,
    # ``setting``, ``size`` [byte], ``measured``, ``ours``, ``low``, ``high`` and what each other model says [s]; NaN
    # where a model says nothing.
    held: pd.DataFrame
    # Median of the absolute relative difference of repetitions from their median; NaN without repetitions.
    spread: float
    # How many there are.
    systems: int
    curves: int
    rows: int
    # What is wrong in it or was left out of it, each with file and line.
    problems: tuple[str, ...] = ()
    # Share of measurements that the intervals shall hold.
    coverage: float = DEFAULT_COVERAGE

    def figures(self) -> dict[str, Any]:
        """Return relative errors of predicted times by split, model and size, and coverage of intervals, for JSON."""
        found: dict[str, Any] = {}
        for split in TITLES:
            part = self.held[self.held["split"] == split]
            if len(part):
                found[split] = _split_figures(part)
        return {
            "dataset": self.name,
            "rows": self.rows,
            "systems": self.systems,
            "curves": self.curves,
            "problems": len(self.problems),
            "remarks": list(self.problems),
            "spread_of_repetitions": None if math.isnan(self.spread) else self.spread,
            "splits": found,
        }

    def notes(self) -> list[str]:
        """Return text lines: size of the dataset, remarks on its logs, and correct predictions of the faster scheme."""
        spread = "" if math.isnan(self.spread) else f"; repetitions differ by {100 * self.spread:.1f} % in the median"
        lines = [f"{self.name}: {self.rows:,} rows, {self.systems} systems, {self.curves} curves{spread}."]
        lines += problem_lines(self.problems)
        for split, found in self.figures()["splits"].items():
            if won := found.get("winners"):
                lines.append(
                    f"{TITLES[split]}: the faster of AG-Topk and AR-Topk is as predicted in {won['right']} of "
                    f"{won['settings']}, where they differ by more than 5 %; by the closed form in {won[CLOSED_FORM]}."
                )
        return lines


def worse_figures(figures: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    """Return messages on splits of the data that now have fewer predictions or larger errors than recorded."""
    said = []
    for split, before in recorded.items():
        one = figures["splits"].get(split)
        title = TITLES.get(split, split)
        if one is None:
            said.append(f"{figures['dataset']}, {title}: nothing was predicted")
            continue
        now = one["models"]["ours"]["all"]
        if now["count"] < before["count"]:
            said.append(f"{figures['dataset']}, {title}: {now['count']} predictions, recorded are {before['count']}")
        said += [
            f"{figures['dataset']}, {title}: {key} is {100 * now[key]:.2f} %, recorded is {100 * before[key]:.2f} %"
            for key in ("median", "p90")
            if now[key] > before[key] * WORSE + 1e-4
        ]
    return said


def recorded_figures(name: str, splits: Collection[str]) -> dict[str, Any]:
    """Return the recorded relative errors of simnet's predictions for a shipped dataset, by split."""
    recorded = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
    return {key: one for key, one in recorded.get(name, {}).items() if key.partition("_")[0] in splits}


def draw_evaluation(evaluation: Evaluation) -> Plot:
    """Return a figure of predicted against measured times of held-out measurements, one panel per split."""
    held = evaluation.held
    present = [split for split in TITLES if (held["split"] == split).any()]
    panels = max(len(present), 1)
    with canvas(4.2 * panels, 4.2, 1, panels, squeeze=False) as (figure, (axes,)):
        for one, split in zip(axes, present, strict=False):
            part = held[held["split"] == split]
            for number, (collective, rows) in enumerate(part.groupby(part["setting"].str.partition(",")[0])):
                colour = COLOURS[number % len(COLOURS)]
                one.plot(rows["measured"], rows["ours"], ".", color=colour, label=str(collective), markersize=4)
            ends = [part[["measured", "ours"]].min().min(), part[["measured", "ours"]].max().max()]
            one.plot(ends, ends, "-", color="#333333", linewidth=0.8)
            one.set(title=TITLES[split], xlabel="measured (s)", ylabel="predicted (s)")
            for axis in (one.xaxis, one.yaxis):
                scale(axis, part[["measured", "ours"]].to_numpy(dtype=float).ravel())
            one.legend(loc="upper left")
    explanation = "Each dot is a measurement that the calibration had not seen; on the line, prediction is exact."
    return plot("predicted", f"Predicted against measured: {evaluation.name}", explanation, figure)


def _split_figures(part: pd.DataFrame) -> dict[str, Any]:
    """Return relative errors of predicted times in one split, by model and size, and the coverage of intervals."""
    models: dict[str, Any] = {}
    bins = bin_of(part["size"].to_numpy(dtype=float))
    places = [one for one in PLACES if (part["place"] == one).any()]
    for model in part.columns.drop(["split", "place", "system", "setting", "size", "measured", "low", "high"]):
        off = (part[model].astype(float) / part["measured"].astype(float) - 1).abs().to_numpy()
        if np.isnan(off).all():
            continue
        models[model] = {"all": _error_quantiles(off)}
        models[model] |= {name: _error_quantiles(off[bins == number]) for number, name in enumerate(BIN_NAMES)}
        models[model] |= {f"ranks {one}": _error_quantiles(off[(part["place"] == one).to_numpy()]) for one in places}
    inside = (part["low"] <= part["measured"]) & (part["measured"] <= part["high"])
    found: dict[str, Any] = {"models": models, "coverage": float(inside.mean())}
    won = winners(part)
    return found | ({"winners": won} if won else {})


def _error_quantiles(off: NDArray[Any]) -> dict[str, float] | None:
    known = off[~np.isnan(off)]
    return error_quantiles(known) if len(known) else None


SPLITS: tuple[str, ...] = ("sizes", "ranks", "collectives", "links")
"""The held-out quantity of each split; ``links`` holds out all but the software time per message."""

HALVES: Literal["halves"] = "halves"
"""A split only by request: every second size at once, as is common in the literature."""

BASE = ("all_reduce", "sendrecv", "p2p_bw", "p2p_latency")
"""The collectives from which those in `FROM_BASE` are predicted, if all-reduce was measured."""

FROM_BASE = ("all_gather", "reduce_scatter", "alltoall")
"""The collectives that are predicted from those in `BASE`."""

_DOUBLING = 1.1

_SAID = ("split", "place", "system", "setting", "size", "measured", "ours", "low", "high")
_COLUMNS = [*_SAID, *RIVALS, *PLAIN, CLOSED_FORM]


def evaluate(
    source: str,
    facts: LogFacts | Mapping[str, Any] | None = None,
    splits: Sequence[str] = SPLITS,
    *,
    fit: FitRivals | None = None,
) -> Evaluation:
    """Compare cost models with held-out measurements of a shipped dataset or a log; `fit` adds baseline models.

    Examples
    --------
    >>> found = evaluate("shaped_gloo", splits=["sizes"])
    >>> sorted(found.figures()["splits"]["sizes"]["models"])
    ['five_anchors', 'line', 'log_log', 'ours', 'three_segments']
    """
    rows, problems = read_rows(source, facts or {})
    held: list[pd.DataFrame] = []
    count = 0
    for name, part in track_progress(split_systems(rows).items()):
        curves = curves_of(part)
        count += len(curves)
        known = [_SPLITTERS[split] for split in splits if split != "links"]
        held += [table.assign(system=name) for splitter in track_progress(known) for table in splitter(curves, fit)]
    if "links" in splits and len(one := held_by_links(rows)):
        held.append(one)
    return _make_evaluation(source, held, count, rows, problems)


def compare_measurements(
    cost_model: str | Path, source: str, facts: LogFacts | Mapping[str, Any] | None = None
) -> Evaluation:
    """Compare measurements with the predictions of a cluster file, without fitting the file to these measurements."""
    loaded = cost_model_of(str(cost_model))
    rows, problems = read_rows(source, facts or {})
    found = []
    count = 0
    for system, part in track_progress(split_systems(rows).items()):
        for one in curves_of(part):
            count += 1
            setting = one.setting
            predicted = [
                loaded.predict(
                    setting.collective,
                    setting.ranks,
                    float(size),
                    nodes=setting.nodes or None,
                    algorithm=setting.algorithm or None,
                    protocol=setting.protocol or None,
                )
                for size in one.sizes
            ]
            estimate = {"ours": "seconds", "low": "low", "high": "high"}
            columns = {column: [getattr(each, name) for each in predicted] for column, name in estimate.items()}
            split = ["beyond" if each.extrapolates else "known" for each in predicted]
            found.append(_curve_rows(one, split=split, place="", system=system, **columns))
    return _make_evaluation(source, found, count, rows, problems, loaded.coverage)


def _leave_sizes(curves: Sequence[Curve], fit: FitRivals | None) -> list[pd.DataFrame]:
    """Predict times at each quarter of the sizes from the other sizes; the quarters are the same in all collectives."""
    found = []
    for fold in track_progress(range(FOLD_COUNT)):
        split = [(one, size_folds(one)[fold]) for one in curves if fold < len(size_folds(one))]
        found += _at_sizes("sizes", split, fit)
    return found


def _leave_halves(curves: Sequence[Curve], fit: FitRivals | None) -> list[pd.DataFrame]:
    """Predict measured times at every second size from the others, where the others suffice to choose a model."""
    usable = [one for one in curves if len(one.sizes) >= 2 * MIN_SIZES]
    return _at_sizes(HALVES, [(one, np.arange(len(one.sizes)) % 2 == 1) for one in usable], fit)


def _at_sizes(
    name: Basis | Literal["halves"], split: Sequence[tuple[Curve, NDArray[np.bool_]]], fit: FitRivals | None
) -> list[pd.DataFrame]:
    """Predict the times of collectives at sizes that masks hold out, by a cost model fitted to the other sizes."""
    if not split:
        return []
    kept, held = [one.at(~mask) for one, mask in split], [one.at(mask) for one, mask in split]
    chosen = choose_models(kept, plain=False, wide=False)
    curves = fit_predictor(kept, chosen.curve_model, weights=chosen.weights, with_steps=False)
    model = CalibratedCostModel(curves, {"sizes": half_widths(chosen.held["sizes"], DEFAULT_COVERAGE)}, {}, {})
    found = []
    for one, rest, rivals in zip(held, kept, rival_times("sizes", kept, held, fit), strict=True):
        plain = {other: CURVE_FITS[other](rest.sizes, rest.seconds).at(one.sizes) for other in PLAIN}
        found.append(_predict_rows(name, "", model, one, rivals | plain))
    return [one for one in found if one is not None]


def _leave_ranks(curves: Sequence[Curve], fit: FitRivals | None) -> list[pd.DataFrame]:
    """Predict the times measured on each number of ranks from times measured on other numbers of ranks."""
    found = []
    for ranks in track_progress(sorted({one.setting.ranks for one in curves})):
        kept, held = without_ranks(curves, ranks)
        if not held:
            continue
        model = calibrate(kept, chosen=choose_models(kept, plain=False))
        fitted = {name: fit_predictor(kept, name, with_steps=False) for name in PLAIN}
        plain = {name: replace(one, ranks_by="interpolation") for name, one in fitted.items()}
        for one, rivals in zip(held, rival_times("ranks", kept, held, fit), strict=True):
            family = [known.setting.ranks for known in kept if known.setting.family == one.setting.family]
            place = rank_place(ranks, family)
            others = {name: _held_share(other.at(one.setting, one.sizes), one) for name, other in plain.items()}
            found.append(_predict_rows("ranks", place, model, one, rivals | others))
    return [one for one in found if one is not None]


def rank_place(ranks: int, measured: Sequence[int]) -> str:
    """Return a class of `PLACES` that says how far a number of ranks is from the measured numbers."""
    if min(measured) <= ranks <= max(measured):
        return PLACES[0]
    doublings = min(abs(math.log2(ranks / one)) for one in measured)
    return PLACES[1] if doublings <= _DOUBLING else PLACES[2]


def _leave_collectives(curves: Sequence[Curve], fit: FitRivals | None) -> list[pd.DataFrame]:
    """Predict the measured times of each collective from those of other collectives, where possible."""
    found = []
    for collective in track_progress(sorted({one.setting.collective for one in curves})):
        kept = kept_without(curves, collective)
        held = [one for one in curves if one.setting.collective == collective]
        if not kept:
            continue
        model = calibrate(kept, chosen=choose_models(kept, plain=False))
        if model.model.steps is None:
            continue
        rivals = rival_times("collectives", kept, held, fit)
        found += [_predict_rows("collectives", "", model, one, said) for one, said in zip(held, rivals, strict=True)]
    return [one for one in found if one is not None]


def kept_without(curves: Sequence[Curve], collective: str) -> list[Curve]:
    """Return the measured curves (time as a function of size) from which to predict a held-out `collective`."""
    kept = [one for one in curves if one.setting.collective != collective]
    base = [one for one in kept if one.setting.collective in BASE]
    measured = any(one.setting.collective == "all_reduce" for one in base)
    return base if collective in FROM_BASE and measured else kept


_SPLITTERS = {"sizes": _leave_sizes, HALVES: _leave_halves, "ranks": _leave_ranks, "collectives": _leave_collectives}


def _predict_rows(
    split: Basis | Literal["halves"],
    place: str,
    model: CalibratedCostModel,
    held: Curve,
    others: Mapping[str, Floats],
) -> pd.DataFrame | None:
    found = model.times(held.setting, held.sizes)
    if found is None:
        return None
    ours, low, high, _ = found
    return _curve_rows(held, split=split, place=place, ours=ours, low=low, high=high, **others)


def _curve_rows(held: Curve, **columns: object) -> pd.DataFrame:
    """Return a table row per size of a measured curve (time versus size), with the given columns added."""
    measured = {"setting": str(held.setting), "size": held.sizes, "measured": held.seconds}
    return pd.DataFrame(measured | columns)


def _make_evaluation(
    source: str,
    held: Sequence[pd.DataFrame],
    curves: int,
    rows: pd.DataFrame,
    problems: tuple[str, ...],
    coverage: float = DEFAULT_COVERAGE,
) -> Evaluation:
    """Return an evaluation of held-out predictions; InputError if there is nothing to predict."""
    if not curves and not held:
        message = "no row has a size above 0 and a number of ranks; --fact ranks=16 says what a log does not"
        raise InputError(message, file=source)
    table = pd.concat(held, ignore_index=True) if held else pd.DataFrame()
    table = table.reindex(columns=list(dict.fromkeys([*_COLUMNS, *table.columns])))
    parts = split_systems(rows)
    return Evaluation(source, table, _repetition_spread(rows, parts), len(parts), curves, len(rows), problems, coverage)


def _held_share(seconds: Floats | None, held: Curve) -> Floats:
    return np.full(len(held.sizes), math.nan) if seconds is None else seconds


def _repetition_spread(rows: pd.DataFrame, parts: Mapping[str, pd.DataFrame]) -> float:
    """Return the median relative deviation of repeated measurements from their median; NaN without repetitions."""
    found = []
    keys = ["collective", "algorithm", "protocol", "ranks", "nodes", "nbytes"]
    for part in parts.values():
        grouped = part.groupby(keys, dropna=False)["seconds"]
        off = (part["seconds"] / grouped.transform("median") - 1).abs()
        found.append(off[grouped.transform("size") > 1])
    joined = pd.concat(found) if found else pd.Series(dtype=float)
    return float(joined.median()) if len(joined) else math.nan
