"""Measured curves of time versus size, the input of calibration, and models of a curve.

A *curve* has the times of one collective for several sizes, with algorithm, protocol, ranks and nodes fixed. A *system*
is what one calibrated cost model describes: curves measured on the same hardware, with the same configuration.

Models of a curve go from simple to complex, fitted to relative errors; `CURVE_FITS` lists them. Between two sizes in
different protocols, `piecewise` and `adjacent` take the faster of the two: a library that chooses well switches where
the lines cross. `five_anchors` is for comparison alone.
"""

# References: R. W. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing
# 20, 1994. F. N. Fritsch, R. E. Carlson, "Monotone piecewise cubic interpolation", SIAM J. Numer. Anal. 17, 1980. J.
# M. Bates, C. W. J. Granger, "The combination of forecasts", Operational Research Quarterly 20, 1969.

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd
from annotated_types import Ge, Le, MaxLen
from numpy.typing import ArrayLike, NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from simnet.base import units
from simnet.base.arrays import Floats
from simnet.base.errors import InputError, check_choice, read_number, suggest_names
from simnet.cost_models.calibration.platform import one_of
from simnet.cost_models.calibration.readers import total_bytes

CONDITION_COLUMNS = ("variant", "platform", "link_latency", "link_bandwidth", "dtype", "tool")
"""Columns whose values tell one system from another; so do those of the links and contributions of single hosts."""

# Wider than any machine, and narrow enough that no product of some of them overflows.
Positive: TypeAlias = Annotated[float, Ge(1e-30), Le(1e30)]
NotNegative: TypeAlias = Annotated[float, Ge(0), Le(1e30)]
ShortText: TypeAlias = Annotated[str, MaxLen(200)]

FILE_PART: Any = {"extra": "forbid", "revalidate_instances": "always"}
"""How pydantic reads and writes a dataclass as a part of a fabric file."""

_OF_HOST = re.compile(r"(link_latency|link_bandwidth|contribution)_\d+")


@dataclass(frozen=True, order=True)
class Setting:
    """Conditions of a measured curve: collective (as in nccl-tests), ranks, nodes, pinned algorithm and protocol.

    `nodes` is 0 if their number is unknown.
    """

    collective: ShortText
    ranks: Annotated[int, Ge(1), Le(10**7)]
    nodes: Annotated[int, Ge(0), Le(10**7)] = 0
    algorithm: ShortText = ""
    protocol: ShortText = ""

    def __str__(self) -> str:
        what = ", ".join(part for part in (self.collective, self.algorithm, self.protocol) if part)
        nodes = f" on {self.nodes} node{'s' if self.nodes > 1 else ''}" if self.nodes else ""
        return f"{what}, {self.ranks} ranks{nodes}"

    @property
    def family(self) -> tuple[str, str, str]:
        """Collective, algorithm and protocol; curves of a family differ only in ranks and nodes."""
        return self.collective, self.algorithm, self.protocol


@dataclass(frozen=True, eq=False)
class Curve:
    """A measured curve of one setting: median times [s] at ascending total sizes [byte] as in nccl-tests, shape (n,).

    `cards` are the network cards of a node; 0 if not known.
    """

    setting: Setting
    sizes: Floats
    seconds: Floats
    cards: int = 0

    def at(self, chosen: NDArray[np.bool_]) -> Curve:
        """Return the curve restricted to the sizes at which the mask `chosen` is true."""
        return Curve(self.setting, self.sizes[chosen], self.seconds[chosen], self.cards)


def curves_of(rows: pd.DataFrame) -> list[Curve]:
    """Return time versus size for each setting measured on one system, sorted; times are medians over repetitions."""
    found = []
    for setting, part in setting_groups(rows_on_curves(rows)):
        medians = part.groupby("size")["seconds"].median()
        cards = int(part["network_cards"].fillna(0).max()) if "network_cards" in part else 0
        found.append(Curve(setting, medians.index.to_numpy(dtype=float), medians.to_numpy(dtype=float), cards))
    return found


def setting_groups(rows: pd.DataFrame) -> Iterator[tuple[Setting, pd.DataFrame]]:
    """Yield each setting (collective, ranks, ...) and its rows, sorted; column ``size`` [byte] is as in nccl-tests."""
    keys = [rows["collective"].astype(str), *(rows[name].fillna(0).astype(int) for name in ("ranks", "nodes"))]
    keys += [rows[name].fillna("").astype(str) for name in ("algorithm", "protocol")]
    for key, part in rows.assign(size=total_bytes(rows)).groupby(keys, sort=True):
        collective, ranks, nodes, algorithm, protocol = map(str, key)
        yield Setting(collective, int(ranks), int(nodes), algorithm, protocol), part


def rows_on_curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the measurements usable for calibration: those of more than 0 bytes and more than one rank."""
    return rows[(total_bytes(rows) > 0) & (rows["ranks"].fillna(0) > 1)]


def split_systems(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split measurements by system; names list "column=value" where systems differ, and are "" for a single system."""
    sides = rows["in_place"].fillna(False).astype(str)
    keys = {name: one for name, one in (_condition_columns(rows) | {"in_place": sides}).items() if one.nunique() > 1}
    if not keys:
        return {"": rows}
    grouped = [
        (dict(zip(keys, found, strict=True)), one) for found, one in rows.groupby(list(keys.values()), sort=False)
    ]
    return {", ".join(f"{name}={value}" for name, value in found.items() if value): one for found, one in grouped}


def _condition_columns(rows: pd.DataFrame) -> dict[str, pd.Series[str]]:
    """Return the columns that tell measured systems apart, with values as text and "" for missing values."""
    names = [name for name in CONDITION_COLUMNS if name in rows]
    names += sorted(name for name in map(str, rows) if _OF_HOST.fullmatch(name))
    return {name: rows[name].map(lambda value: "" if pd.isna(value) else str(value)) for name in names}


def chosen_rows(rows: pd.DataFrame, where: Mapping[str, str], in_place: bool = False) -> pd.DataFrame:
    """Return the rows whose columns have the values in `where`: in-place rows if `in_place`, else out-of-place rows.

    Where only one of the two was measured, that one is taken. The value of a numeric column is a number or a quantity
    with a unit. Raises InputError if there is no such column or value.
    """
    for name, value in where.items():
        check_choice(name, "column", rows.columns.tolist(), file="--where")
        column, number = rows[name], _read_quantity(value)
        texts = column.astype(str).where(column.notna(), "")
        if is_numeric_dtype(column) and not is_bool_dtype(column) and not math.isnan(number):
            taken = np.isclose(column.to_numpy(np.float64, na_value=math.nan), number, rtol=1e-9, atol=0.0)
        else:
            taken = (texts == value).to_numpy()
        if not taken.any():
            allowed = suggest_names(value, sorted(texts.unique())[:30])
            raise InputError(f"no row has {name} = {value!r}; {allowed}", file="--where")
        rows = rows[taken]
    side = rows["in_place"].fillna(False) == in_place
    return rows[side] if side.any() else rows


def _read_quantity(text: str) -> float:
    """Return the value of a text such as ``10`` or ``10 us`` in SI units; NaN for any other text."""
    for read in (read_number, units.seconds, units.bandwidth, units.size):
        with suppress(ValueError):
            if not math.isnan(number := read(text)):
                return number
    return math.nan


def differing_columns(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Return the columns that distinguish systems and have several values in the rows, with their sorted values.

    The tool is no such column if each collective has its own, such as ping for latency and iperf3 for bandwidth.
    """
    columns = _condition_columns(rows)
    if "tool" in columns and columns["tool"].groupby(rows["collective"]).nunique().max() == 1:
        del columns["tool"]
    values = {name: sorted(one.unique()) for name, one in columns.items()}
    return {name: found for name, found in values.items() if len(found) > 1}


MAX_SEGMENTS = 12
"""Maximum number of segments of a piecewise alpha-beta model."""

_MAX_HINGES = 40
_MAX_BREAKS = 512
_NOISE = 1e-3
_STEEPEST = 2.0
_JUST_ABOVE = 1 + 1e-9


@dataclass(frozen=True)
class CurveModel:
    """A fitted function of time versus size, with its name in `CURVE_FITS` and its weight in a mixture of models.

    `segments` are start [byte], latency [s] and seconds per byte, ascending from 0; in their place `points` are sizes
    and times, joined straight in log-log. `corrections` are sizes and logarithms of measured over modelled times: a
    monotone cubic over the logarithm of the size, constant beyond.
    """

    __pydantic_config__ = FILE_PART

    model: CurveModelName = ""
    weight: Annotated[float, Ge(0), Le(1)] = 1.0
    segments: tuple[tuple[NotNegative, NotNegative, NotNegative], ...] = ()
    points: tuple[tuple[Positive, Positive], ...] = ()
    corrections: tuple[tuple[Positive, Annotated[float, Ge(-50), Le(50)]], ...] = ()

    def at(self, sizes: ArrayLike) -> Floats:
        """Return the modelled times [s] at `sizes` [byte]."""
        asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
        if self.segments:
            starts, latency, slope = np.array(self.segments).T
            place = np.clip(np.searchsorted(starts, asked, side="right") - 1, 0, None)
            seconds = latency[place] + slope[place] * asked
        else:
            seconds = _interpolate_points(np.array(self.points), asked)
        if not self.corrections:
            return np.asarray(seconds, dtype=np.float64)
        return np.asarray(seconds * np.exp(log_correction(self.corrections, asked)), dtype=np.float64)


def log_correction(corrections: tuple[tuple[float, float], ...], sizes: Floats) -> Floats:
    """Return log(measured / modelled time) at sizes [byte], interpolated in `corrections` and constant outside."""
    from scipy.interpolate import PchipInterpolator

    known, values = np.array(corrections).T
    if len(known) == 1:
        return np.full(len(sizes), values[0])
    logs = np.log(known)
    asked = np.clip(np.log(np.maximum(sizes, known[0])), logs[0], logs[-1])
    return np.asarray(PchipInterpolator(logs, values)(asked), dtype=np.float64)


def fit_line(sizes: Floats, seconds: Floats) -> CurveModel:
    """Fit time = latency + size / bandwidth by robust least squares on logarithms of times."""
    from scipy.optimize import least_squares

    if len(sizes) == 1:
        return CurveModel(segments=((0.0, 0.0, (seconds / sizes).item()),))
    start = np.log([seconds.min(), seconds[-1] / sizes[-1]])

    def log_errors(logs: Floats) -> Floats:
        return np.asarray(np.log((np.exp(logs[0]) + np.exp(logs[1]) * sizes) / seconds))

    def slopes(logs: Floats) -> Floats:
        share = 1 / (1 + np.exp(logs[1] - logs[0]) * sizes)
        return np.column_stack([share, 1 - share])

    found = least_squares(log_errors, start, slopes, loss="soft_l1", f_scale=0.1, bounds=(start - 20, start + 20)).x
    return CurveModel(segments=((0.0, float(np.exp(found[0])), float(np.exp(found[1]))),))


def fit_three_segments(sizes: Floats, seconds: Floats) -> CurveModel:
    """Fit a continuous three-segment line in log-log by least squares over all pairs of breakpoints."""
    count = len(sizes)
    if count < 5:
        return fit_five_anchors(sizes, seconds)
    x, y = np.log(sizes), np.log(seconds)
    inner = np.unique(np.linspace(1, count - 2, _MAX_HINGES).round().astype(int))
    pairs = np.array(list(itertools.combinations(inner, 2)))
    joints = np.column_stack([np.full(len(pairs), x[0]), x[pairs], np.full(len(pairs), x[-1])])
    # Hats of height 1 at each joint, which fall to 0 at its neighbours.
    share = np.clip((x[None, :, None] - joints[:, None, :-1]) / np.diff(joints)[:, None, :], 0, 1)
    rising = np.concatenate([np.ones((*share.shape[:2], 1)), share], axis=2)
    basis = rising - np.concatenate([share, np.zeros((*share.shape[:2], 1))], axis=2)
    turned = basis.transpose(0, 2, 1)
    values = np.linalg.solve(turned @ basis, turned @ y[:, None])
    best = int(np.argmin(((basis @ values - y[:, None]) ** 2).sum(axis=(1, 2))))
    return CurveModel(points=_point_pairs(np.exp(joints[best]), np.exp(values[best].ravel())))


def fit_five_anchors(sizes: Floats, seconds: Floats) -> CurveModel:
    """Interpolate in log-log between five measured points: the first, the last, and three at evenly spaced indices."""
    chosen = np.unique(np.linspace(0, len(sizes) - 1, 5).round().astype(int))
    return CurveModel(points=_point_pairs(sizes[chosen], seconds[chosen]))


def fit_log_log(sizes: Floats, seconds: Floats) -> CurveModel:
    """Interpolate linearly in log-log between all measured sizes."""
    return CurveModel(points=_point_pairs(sizes, seconds))


def fit_piecewise(sizes: Floats, seconds: Floats) -> CurveModel:
    """Fit piecewise alpha-beta lines; the number and positions of breakpoints are estimated.

    Breakpoints are found by dynamic programming (R. Bellman, R. Roth, J. Amer. Stat. Assoc. 64, 1969), their number by
    Bayes' information criterion, which takes errors of 3 % for noise. Between two stretches the faster line holds.
    """
    count = len(sizes)
    if count < 6:
        return fit_line(sizes, seconds)
    places = np.unique(np.linspace(0, count, _MAX_BREAKS + 1).round().astype(int))
    costs, latencies, slopes = _fit_segments(sizes, seconds, places)
    reached = np.full(len(places), np.inf)
    reached[0] = 0.0
    befores: list[NDArray[np.int_]] = []
    best, starts = math.inf, [0]
    for number in range(1, MAX_SEGMENTS + 1):
        ways = reached[:, None] + costs
        befores.append(ways.argmin(axis=0))
        reached = ways.min(axis=0)
        criterion = count * math.log(max(reached[-1] / count, _NOISE)) + 3 * number * math.log(count)
        if criterion < best:
            best, starts, end = criterion, [], len(places) - 1
            for reached_from in reversed(befores):
                end = int(reached_from[end])
                starts.insert(0, end)
    lines = [(float(latencies[at]), float(slopes[at])) for at in itertools.pairwise([*starts, len(places) - 1])]
    segments = [(0.0, *lines[0])]
    for start, before, after in zip(places[starts[1:]], lines, lines[1:], strict=False):
        segments.append((_crossover_size(before, after, float(sizes[start - 1]), float(sizes[start])), *after))
    return CurveModel(segments=tuple(segments))


def fit_adjacent(sizes: Floats, seconds: Floats) -> CurveModel:
    """Return alpha-beta segments through each pair of adjacent measured points.

    Where a segment would have a negative latency or bandwidth, the segment before it is extended, or the one after it,
    whichever predicts the shorter time.
    """
    count = len(sizes)
    if count < 2:
        return fit_line(sizes, seconds)
    slopes = np.diff(seconds) / np.diff(sizes)
    latencies = seconds[:-1] - slopes * sizes[:-1]
    possible = (slopes >= 0) & (latencies >= 0)
    steepest = seconds / sizes
    # The fit_line that ends at each size, and the one that begins there, where they are not through two sizes.
    ending = np.clip(np.concatenate([[0.0], slopes]), 0.0, steepest)
    beginning = np.clip(np.concatenate([slopes, steepest[-1:]]), 0.0, steepest)
    segments: list[tuple[float, float, float]] = []
    for place, (low, high) in enumerate(itertools.pairwise(sizes.tolist())):
        start = low if place else 0.0
        if possible[place]:
            segments.append((start, float(latencies[place]), float(slopes[place])))
            continue
        before, after = (
            (float(max(seconds[at] - slope * sizes[at], 0.0)), float(slope))
            for at, slope in ((place, ending[place]), (place + 1, beginning[place + 1]))
        )
        segments.append((start, *before))
        change = _crossover_size(before, after, low, high)
        if change < high:
            segments.append((change, *after))
    last = float(ending[-1])
    segments.append((float(sizes[-1]), max(float(seconds[-1] - last * sizes[-1]), 0.0), last))
    return CurveModel(segments=tuple(segments))


def fit_interpolated(sizes: Floats, seconds: Floats) -> CurveModel:
    """Return the alpha-beta line with corrections that make it pass through every measured point."""
    base = fit_line(sizes, seconds)
    return CurveModel(segments=base.segments, corrections=_point_pairs(sizes, np.log(seconds / base.at(sizes))))


_FITS = (fit_line, fit_three_segments, fit_five_anchors, fit_log_log, fit_piecewise, fit_adjacent, fit_interpolated)
CURVE_FITS: Mapping[str, Callable[[Floats, Floats], CurveModel]] = {
    fit.__name__.removeprefix("fit_"): fit for fit in _FITS
}
"""Fit function of each curve model; arguments are sizes [byte], ascending, and times [s]."""

CurveModelName: TypeAlias = Annotated[str, one_of("model", CURVE_FITS)]

MIXED_MODELS = ("line", "three_segments", "piecewise", "adjacent", "interpolated", "log_log")
"""Curve models in the mixture, from simple to complex."""


def fit_mixture(sizes: Floats, seconds: Floats, weights: Mapping[str, float]) -> tuple[CurveModel, ...]:
    """Fit each model of time versus size named in `weights` (>= 0, not all 0); return the models with their weights."""
    fits = {name: CURVE_FITS[name](sizes, seconds) for name in weights}
    total = sum(weights.values())
    return tuple(replace(fit, model=name, weight=weights[name] / total) for name, fit in fits.items())


def _point_pairs(first: Floats, second: Floats) -> tuple[tuple[float, float], ...]:
    return tuple(zip(first.tolist(), second.tolist(), strict=True))


def _fit_segments(sizes: Floats, seconds: Floats, places: NDArray[np.int_]) -> tuple[Floats, Floats, Floats]:
    """Fit a line between each pair of p breakpoints; return squared error, latency and slope (>= 0), each (p, p)."""
    weight = 1 / seconds
    columns = (weight**2, weight**2 * sizes, (weight * sizes) ** 2, weight, weight * sizes, np.ones(len(sizes)))
    upto = [np.concatenate([[0.0], np.cumsum(column)])[places] for column in columns]
    a, b, c, d, e, count = (one[None, :] - one[:, None] for one in upto)

    def error(latency: Floats, slope: Floats) -> Floats:
        found = latency * (latency * a + 2 * slope * b - 2 * d) + slope * (slope * c - 2 * e) + count
        return np.asarray(np.maximum(found, 0.0))

    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = a * c - b * b
        both = (c * d - b * e) / determinant, (a * e - b * d) / determinant
        flat, steep = d / a, e / c
        none = np.zeros_like(a)
        flat_is_better = error(flat, none) <= error(none, steep)
        free = (determinant > 1e-12 * a * c) & (both[0] >= 0) & (both[1] >= 0)
        latency = np.where(free, both[0], np.where(flat_is_better, flat, 0.0))
        slope = np.where(free, both[1], np.where(flat_is_better, 0.0, steep))
        costs = np.where(count > 0, error(latency, slope), np.inf)
    return costs, latency, slope


def _crossover_size(before: tuple[float, float], after: tuple[float, float], low: float, high: float) -> float:
    """Return the size in (low, high] from which the line `after` replaces `before`; both are (latency, slope)."""
    if before[1] != after[1]:
        crossing = (after[0] - before[0]) / (before[1] - after[1])
        if low < crossing < high:
            return crossing
    middle = math.sqrt(low * high)
    return high if before[0] + before[1] * middle <= after[0] + after[1] * middle else low * _JUST_ABOVE


def _interpolate_points(points: Floats, asked: Floats) -> Floats:
    """Return times at sizes `asked`, interpolated in log-log and extrapolated with the (non-negative) end slopes."""
    x, y = np.log(points).T
    if len(x) == 1:
        return np.full(len(asked), points[0, 1])
    at = np.log(np.maximum(asked, 1e-9))
    ends = np.clip((np.diff(y) / np.diff(x))[[0, -1]], 0.0, _STEEPEST)
    beyond = ends[0] * np.minimum(at - x[0], 0.0) + ends[1] * np.maximum(at - x[-1], 0.0)
    return np.asarray(np.exp(np.interp(at, x, y) + beyond), dtype=np.float64)
