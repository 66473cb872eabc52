"""Prediction intervals for times on calibrated clusters, and for times predicted from link parameters.

Errors of held-out predictions of one kind bound the error of the next (conformal prediction). Each side has a quantile
of its own, by size of the message, as short messages scatter more. How far such intervals were off on other clusters
corrects them (`corrected`); ``residuals.csv`` has the errors there.
"""

# References: G. J. Hahn, W. Q. Meeker, "Statistical Intervals", Wiley 1991, chapter 4 (prediction intervals for a
# further observation of a normal distribution). V. Vovk, A. Gammerman, G. Shafer, "Algorithmic Learning in a Random
# World", Springer 2005.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from simnet.base.arrays import Floats
from simnet.base.file_io import read_shipped_rows
from simnet.base.student_t import student_quantile
from simnet.cost_models.costs.devices import IntervalEnd

Basis: TypeAlias = Literal["sizes", "ranks", "beyond", "collectives"]
"""The basis of a prediction: the curve itself, fewer and more ranks, ranks on one side alone, other collectives."""

BINS = (0.0, 64 * 2.0**10, 2.0**20, 64 * 2.0**20)
"""Lower edges of the size bins [byte]."""

BIN_NAMES = ("< 64 KiB", "64 KiB-1 MiB", "1-64 MiB", "> 64 MiB")
"""Names of the size bins."""

FEWEST = 20
"""Minimum held-out predictions in a bin; a bin with fewer uses those of all bins."""

UNKNOWN = math.log(3.0)
"""Half-width, as a logarithm, without held-out predictions: a factor of 3."""

TYPICAL: Mapping[Basis, tuple[float, ...]] = {
    "ranks": (0.35, 0.9, 0.8, 0.5),
    "beyond": (0.85, 1.3, 1.1, 0.8),
    "collectives": (1.1, 1.0, 0.8, 0.9),
}
"""Half-widths by bin that hold 90 % of other ranks on two systems of three, of other collectives on three of four.

Quantiles over the public measurements of ``benchmarks/validation.py`` that have several numbers of ranks, or several
collectives, of which fewer can be held out: Alps, Polaris, Sirius, MareNostrum 5, Leonardo, Snellius, H100 clusters and
others.
"""

GROUPS = 2.0
"""Numbers of ranks, or collectives, that typical widths count as beside those held out on the system itself."""


class HeldOut(NamedTuple):
    """Held-out predictions in one setting: sizes [byte], predicted and measured times [s], each of shape (n,).

    `outside` says whether its ranks are outside those predicted from, `widening` by which factor its interval is wider.
    """

    setting: Any
    sizes: Floats
    predicted: Floats
    measured: Floats
    outside: bool = False
    widening: float = 1.0

    @property
    def log_errors(self) -> Floats:
        """Logarithms of predicted over measured time, shape (n,)."""
        return np.asarray(np.log(self.predicted / self.measured))


def bin_of(sizes: Floats) -> np.ndarray:
    """Return the index of the size range in `BINS` to which each size [byte] belongs."""
    return np.asarray(np.searchsorted(BINS, sizes, side="right") - 1)


def half_widths(held: Sequence[HeldOut], coverage: float) -> list[tuple[float, float]]:
    """Return half-widths of log(measured / predicted) below and above the prediction, >= 0, for each size bin.

    `coverage` is the share of measurements that an interval should contain, in (0, 1). The widths do not include
    `HeldOut.widening`.
    """
    if not held:
        return [(UNKNOWN, UNKNOWN)] * len(BINS)
    sizes = np.concatenate([one.sizes for one in held])
    log_errors = -np.concatenate([one.log_errors / one.widening for one in held])
    inside = [log_errors[bin_of(sizes) == number] for number in range(len(BINS))]
    return [conformal(one if len(one) >= FEWEST else log_errors, coverage) for one in inside]


def widest(held: Sequence[HeldOut], coverage: float) -> list[tuple[float, float]]:
    """Return by size bin the largest half-widths of prediction intervals (below, above) over all collectives."""
    names = {one.setting.collective for one in held}
    groups = [[one for one in held if one.setting.collective == name] for name in names]
    each = np.array([half_widths(group, coverage) for group in groups] or [half_widths([], coverage)])
    return [(float(below), float(above)) for below, above in each.max(axis=0)]


def intervals(held: Mapping[Basis, Sequence[HeldOut]], coverage: float) -> dict[Basis, list[tuple[float, float]]]:
    """Return half-widths (below, above) of log(measured / predicted) for each basis of prediction and message-size bin.

    On one system few numbers of ranks, or collectives, can be held out, so their widths are averaged with `TYPICAL`
    ones. For "collectives" they are the largest of any collective.
    """
    found = {}
    for basis, one in held.items():
        own = (widest if basis == "collectives" else half_widths)(one, coverage)
        if basis in TYPICAL:
            groups = {each.setting.collective if basis == "collectives" else each.setting.ranks for each in one}
            share = len(groups) / (len(groups) + GROUPS)
            typical = (1 - share) * np.array(TYPICAL[basis]) * math.log(1 - coverage) / math.log(0.1)
            own = [(below, above) for below, above in (share * np.array(own) + typical[:, np.newaxis]).tolist()]
        found[basis] = own
    return found


def conformal(log_errors: Floats, coverage: float) -> tuple[float, float]:
    """Return half-widths (below, above) of the conformal interval around 0 that holds a share `coverage` of log errors.

    Of n sorted `log_errors` (measured over predicted) each side is the one of rank (n + 1) q, rounded up. With too few
    of them, the largest is stretched as if errors had an exponential tail.
    """
    count = len(log_errors)
    if count < 3:
        return UNKNOWN, UNKNOWN
    outside = (1 - coverage) / 2
    stretched = max(-math.log(outside) / math.log(count + 1), 1.0)
    place = min(math.ceil((count + 1) * (1 - outside)), count) - 1
    below, above = (max(float(np.sort(one)[place]) * stretched, 0.0) for one in (-log_errors, log_errors))
    return below, above


DRAWS = 2**14
"""Number of joint draws; the standard error of a probability is at most 0.4 percentage points."""

SCORES = np.arange(-12, 13) / 4
"""Normal scores at which error quantiles are tabulated."""

COLUMNS = ("kind", "site", "shared", "below_message_s", "below_share", "above_message_s", "above_share")
"""Columns of ``residuals.csv``, before a column of quantiles for each of `SCORES`."""

NAMED = "named"
"""Kind of times predicted from links with a measured stack: one error model, half-widths by stack."""

UNNAMED = "ideal"
"""Kind of times predicted from links with an unnamed transport stack."""

GIVEN = "given"
"""Kind of times with a user-given error: log-normal, independent between choices."""

CROSS_VALIDATED = ("sizes", "ranks", "beyond", "collectives")
"""Kinds with intervals from a cluster's own held-out measurements; see `corrected`."""

SCORE_95 = NormalDist().inv_cdf(0.95)
"""The 95 % quantile of the normal distribution."""


def median_half_width(values: Floats, count: int | None = None) -> float:
    """Return the half-width of the 95 % interval of the median of `count` values (default: as many as `values`).

    It is 1.57 interquartile ranges over the root of their number: R. McGill, J. W. Tukey, W. A. Larsen, "Variations of
    box plots", The American Statistician 32, 1978.
    """
    low, high = np.quantile(values, (0.25, 0.75)).tolist()
    return float(1.57 * (high - low) / math.sqrt(len(values) if count is None else count))


class ErrorModel(NamedTuple):
    """Error quantiles of one kind of prediction, a row for each measured system, in units of the interval half-width.

    `shared` is the correlation, in normal scores, of the errors of two choices on the same system, within [0, 1);
    `quantiles` are at the normal scores `SCORES`, shape (systems, 25).
    """

    shared: float
    quantiles: Floats


@cache
def error_models() -> MappingProxyType[str, ErrorModel]:
    """Return the shipped error models by kind of prediction.

    A calibrated cluster has ``sizes``, ``ranks``, ``beyond`` and ``collectives``, a platform ``specified``. Times
    predicted from links have the name of the transport stack, ``ideal`` without software, or ``named`` for any.
    ``select`` is the time of kernels, ``iteration`` that of iterations of jobs. `GIVEN` is among them.
    """
    found = {GIVEN: ErrorModel(0.0, SCORES[np.newaxis] / SCORE_95)}
    known = [row for row in _rows() if row["site"]]
    for kind in sorted({row["kind"] for row in known}):
        own = [row for row in known if row["kind"] == kind]
        quantiles = np.array([[float(row[f"{score:g}"]) for score in SCORES.tolist()] for row in own])
        found[kind] = ErrorModel(float(own[0]["shared"]), quantiles)
    found |= dict.fromkeys(set(_half_width_rows()) - {UNNAMED}, found[NAMED])
    return MappingProxyType(found)


@cache
def _rows() -> list[dict[str, str]]:
    return read_shipped_rows("cost_models/calibration/measured/residuals.csv")


@cache
def _half_width_rows() -> dict[str, dict[str, str]]:
    """Return interval half-widths of times predicted from link latency and bandwidth: table rows by transport stack."""
    return {row["kind"]: row for row in _rows() if row["above_share"]}


def stacks() -> list[str]:
    """Return the transport stacks on which times predicted from link latency and bandwidth were validated."""
    return sorted(set(_half_width_rows()) - {UNNAMED})


def kind_of_stack(stack: str) -> str:
    """Return the key in `error_models` for a transport stack: its name, or "ideal" if the stack was not measured."""
    return stack if stack in _half_width_rows() else UNNAMED


def interval(stack: str, messages: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Return the 90 % interval [s] of the times `seconds`, which were predicted from link latency and bandwidth.

    Errors are so many seconds for each of the successive `messages` of a worker, and a share of the time, by stack.
    """
    row = _half_width_rows()[kind_of_stack(stack)]
    messages, seconds = np.broadcast_arrays(np.asarray(messages, dtype=float), np.asarray(seconds, dtype=float))
    each = np.divide(messages, seconds, out=np.zeros(seconds.shape), where=seconds > 0)
    below, above = (float(row[f"{side}_message_s"]) * each + float(row[f"{side}_share"]) for side in ("below", "above"))
    return seconds * np.exp(-below), seconds * np.exp(above)


def corrected(
    kind: str, seconds: Floats, low: Floats, high: Floats, models: Mapping[str, ErrorModel] | None = None
) -> tuple[Floats, Floats]:
    """Rescale intervals `low` to `high` [s] of the times `seconds` to hold 90 % of measurements on other systems.

    Intervals of `CROSS_VALIDATED` end where one error in twenty of the measured sites was below, and one above. All are
    wider by `factor_for_another`, as sites are few. `models` are the shipped ones by default.
    """
    factors = _shipped_factors(kind) if models is None else coverage_factors(kind, models[kind])
    return widened(np.asarray(seconds, dtype=float), low, high, *factors)


def widened(seconds: Floats, low: Floats, high: Floats, below: float, above: float) -> tuple[Floats, Floats]:
    """Return an interval [s] whose logarithmic half-widths are multiplied by `below` and `above`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = seconds * (low / seconds) ** below, seconds * (high / seconds) ** above
    return np.where(seconds > 0, ends[0], low), np.where(seconds > 0, ends[1], high)


def factor_for_another(sites: int) -> float:
    """Return the factor to widen a 90 % interval, measured on `sites` systems, so that it holds on a new system.

    It is ``t sqrt(1 + 1/sites) / z``, 95 % quantiles of Student's and the normal distribution; 1 for one site.
    """
    return 1.0 if sites < 2 else student_quantile(sites - 1, 0.95) * math.sqrt(1 + 1 / sites) / SCORE_95


@cache
def _shipped_factors(kind: str) -> tuple[float, float]:
    return coverage_factors(kind, error_models()[kind])


def coverage_factors(kind: str, model: ErrorModel) -> tuple[float, float]:
    """Return the factors of lower and upper half-widths that cover 90 % of errors, with equal weight per system."""
    wider = factor_for_another(len(model.quantiles))
    if kind not in CROSS_VALIDATED:
        return wider, wider
    errors = np.sort([np.interp(normal_strata(), SCORES, each) for each in model.quantiles], axis=None)
    low, high = np.quantile(errors, [0.05, 0.95]).tolist()
    return max(-low, 0.0) * wider, max(high, 0.0) * wider


@cache
def normal_strata() -> Floats:
    """Return the midpoint quantiles of `DRAWS` equal-probability strata of the standard normal."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((place + 0.5) / DRAWS) for place in range(DRAWS)])


PartOfIteration: TypeAlias = Literal["compute", "select", "messages", "merge", "update"]
"""What was measured of iterations in jobs, by the columns of their logs."""

ERROR_COLUMNS = ("kind", "name", "workers_per_device", "end", "message_s", "share", "most")
"""Of the table: ``message_s`` [s] and ``share`` of links, up to the factor ``most``, which is all that parts have."""


@cache
def iteration_errors() -> list[dict[str, str]]:
    """Return the shipped bounds on errors of predicted parts of iterations, as rows; each covers 95 % of measurements.

    Rows of ``links`` say how far a call takes less (``low``) or longer (``high``): seconds a message and a share of the
    call, by stack and by the workers that take turns on a processor. Rows of ``part`` are factors by which computing,
    selecting, merging and updating differ in a job from a process by itself. ``python benchmarks/measured_jobs.py
    FOLDER errors`` makes it.
    """
    return read_shipped_rows("cost_models/calibration/measured/jobs/errors.csv")


def measured_stacks() -> list[str]:
    """Return the transport stacks on which collective calls were measured inside training jobs."""
    return sorted({row["name"] for row in iteration_errors() if row["kind"] == "links"})


def off_of_calls(end: IntervalEnd, stack: str, workers_per_device: int, messages: Floats, seconds: Floats) -> Floats:
    """Return how much less (``low``) or more (``high``) time [s] collective calls in a job may take than predicted.

    `workers_per_device` take turns on a processor; `messages` are those of a worker in all calls, which take `seconds`.
    """
    rows = [row for row in iteration_errors() if (row["kind"], row["end"]) == ("links", end)]
    rows = [row for row in rows if row["name"] == stack] or rows
    found = []
    for name in {row["name"] for row in rows}:
        own = [[float(row[column]) for column in ERROR_COLUMNS[4:]] for row in rows if row["name"] == name]
        at = [float(row["workers_per_device"]) for row in rows if row["name"] == name]
        message, share, most = (np.interp(workers_per_device, at, one) for one in zip(*own, strict=True))
        found.append(np.minimum(message * messages + share * seconds, abs(most - 1) * seconds))
    return np.asarray(np.max(found, axis=0))


def factor_in_job(end: IntervalEnd, part: PartOfIteration) -> float:
    """Return the low or high (`end`) ratio of an iteration part's time in a job to its time alone; 1 if unknown."""
    wanted = ("part", part, end)
    rows = (row for row in iteration_errors() if (row["kind"], row["name"], row["end"]) == wanted)
    return next((float(row["most"]) for row in rows), 1.0)
