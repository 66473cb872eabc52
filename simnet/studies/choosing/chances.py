"""Chances: how likely each choice is the fastest, and what it is expected to cost to take it.

A predicted time is off by a factor. How far such factors go was learnt from predictions of what had been left out, as
`residuals.csv` beside the shipped measurements has it: for each *kind* of prediction the quantiles of the measured
errors, in parts of the half-width of the 90 % interval that a prediction carries. What two choices are off by together
does not decide between them, so the file also has the correlation of the errors of two choices at the same point.

The errors of all choices are drawn together by a Gaussian copula [1]_ with one factor: that of a choice is the quantile
at ``sqrt(shared) a + sqrt(1 - shared) b``, in standard deviations of the normal distribution, where ``a`` is the same
for all choices and ``b`` is the choice's own. So errors keep their tails as measured. A time that is a sum, such as
messages and selecting, has a draw for each of its parts. The chance of a choice is the share of `DRAWS` in which it is
the fastest. Each choice has its own stream of random numbers, by its name: neither the order of choices nor a further
choice changes its draws, and choices of one name are off alike.

`python benchmarks/validation.py --residuals FILE` makes the file, and `docs/validation.md` says how often chances come
true.

References
----------
.. [1] R. B. Nelsen, "An Introduction to Copulas", 2nd ed., Springer 2006, section 2.
"""

from __future__ import annotations

import io
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from statistics import NormalDist
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd

from simnet.base.arrays import Floats
from simnet.base.rng import stream
from simnet.costs.devices import End
from simnet.studies.iteration_errors import factor_in_job

DRAWS = 2**14
"""Joint draws; a chance is off by at most 0.4 points for it, as a standard deviation, and by less near 0 and 1."""

SURE = 0.95
"""From which chance on a choice is called sure."""

SCORES = np.arange(-12, 13) / 4
"""Standard deviations of the normal distribution at which quantiles of errors are known."""

COLUMNS = ("kind", "shared", "below_message_s", "below_share", "above_message_s", "above_share")
"""Of the file, before one column of quantiles for each of `SCORES`."""

UNNAMED = "ideal"
"""The kind of links whose software nobody named."""

GIVEN = "given"
"""The kind of times whose error was given, in place of learnt: its logarithm is normal, and no two share any."""


class ErrorModel(NamedTuple):
    """The errors of one kind of prediction.

    Parameters
    ----------
    shared : float
        Correlation of the errors of two choices at the same point, in normal scores, within [0, 1).
    quantiles : ndarray, shape (25,)
        Errors at `SCORES`, in half-widths of the interval on their side, ascending.
    """

    shared: float
    quantiles: Floats


class Part(NamedTuple):
    """A part of the times of all choices, and how far it is known.

    Parameters
    ----------
    seconds, low, high : ndarray, shape (choices,)
        Predicted times, and their 90 % intervals [s].
    kinds : sequence of str
        The kind of each prediction, a name of `error_models`.
    """

    seconds: Floats
    low: Floats
    high: Floats
    kinds: Sequence[str]


class Chances(NamedTuple):
    """What is likely, choice by choice.

    Parameters
    ----------
    fastest : ndarray, shape (choices,)
        Chance to be the fastest, within 0..1; they add up to 1.
    regret : ndarray, shape (choices,)
        By which fraction it is expected to take longer than the fastest.
    """

    fastest: Floats
    regret: Floats


@cache
def error_models() -> MappingProxyType[str, ErrorModel]:
    """Return the shipped models of errors, by kind.

    ``sizes``, ``ranks``, ``beyond`` and ``collectives`` are what a calibrated cluster predicts from: the measured
    curve itself, other numbers of ranks inside and outside those measured, other collectives. ``specified`` is what a
    platform says of which nothing was measured. Names of transport stacks are times that follow from links, ``ideal``
    those without software, whatever stack there is. ``select`` is the time of kernels, and ``iteration`` that of whole
    iterations of jobs. `GIVEN` is among them.

    Examples
    --------
    >>> sorted(error_models())[:4]
    ['beyond', 'collectives', 'given', 'gloo']
    """
    learnt = {kind: _model(row) for kind, row in _rows().items()}
    return MappingProxyType(learnt | {GIVEN: ErrorModel(0.0, SCORES / NormalDist().inv_cdf(0.95))})


def _model(row: Mapping[Hashable, Any]) -> ErrorModel:
    return ErrorModel(float(row["shared"]), np.array([row[f"{score:g}"] for score in SCORES.tolist()], dtype=float))


@cache
def _rows() -> dict[str, dict[Hashable, Any]]:
    path = files("simnet.calibration.measured") / "residuals.csv"
    rows = pd.read_csv(io.StringIO(path.read_text(encoding="utf-8")))
    return {str(row["kind"]): row for row in rows.to_dict("records")}


def kind_of_stack(stack: str) -> str:
    """Return the kind of times that follow from links with a transport stack; the unnamed one if it was not measured.

    Examples
    --------
    >>> kind_of_stack("gloo"), kind_of_stack("nccl")
    ('gloo', 'ideal')
    """
    row = _rows().get(stack)
    return stack if row is not None and not math.isnan(row["above_share"]) else UNNAMED


def in_job(kernels: Part) -> Part:
    """Return what kernels take in a job, whose intervals are wider than those of a process by itself."""
    low, high = (factor_in_job(end, "select") for end in get_args(End))
    return kernels._replace(low=kernels.low * low, high=kernels.high * high)


def interval(stack: str, messages: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Return the 90 % interval of times that follow from links [s], of the shape of `seconds`.

    Errors of a time are so many seconds a message, and a share of it, learnt for each stack.

    Parameters
    ----------
    stack : str
        Name of the transport stack.
    messages : ndarray
        Messages that a worker sends one after another.
    seconds : ndarray
        What they are predicted to take [s].

    Examples
    --------
    >>> low, high = interval("gloo", np.array(4.0), np.array(0.1))
    >>> bool(0.09 < low < 0.1 < high < 0.13)
    True
    """
    row = _rows()[kind_of_stack(stack)]
    messages, seconds = np.asarray(messages, dtype=float), np.asarray(seconds, dtype=float)
    each = np.divide(messages, seconds, out=np.zeros(np.broadcast_shapes(messages.shape, seconds.shape)),
                     where=seconds > 0)  # fmt: skip
    below, above = (float(row[f"{side}_message_s"]) * each + float(row[f"{side}_share"]) for side in ("below", "above"))
    return seconds * np.exp(-below), seconds * np.exp(above)


def chances(
    names: Sequence[str],
    parts: Sequence[Part],
    models: Mapping[str, ErrorModel] | None = None,
    left_open: Floats | None = None,
) -> Chances:
    """Return how likely each choice is the fastest, and by how much it is expected to be slower than that.

    Parameters
    ----------
    names : sequence of str
        The choices, as streams of random numbers are named; see
        `simnet.studies.choosing.likely.off_alike`.
    parts : sequence of Part
        Their times are the sum of these, whose errors are independent of each other.
    models : mapping of str to ErrorModel, optional
        By kind; by default the shipped ones.
    left_open : ndarray, shape (choices,), optional
        Standard errors of the logarithms of the times, normal, and each choice's own: what a sample leaves open.

    Examples
    --------
    >>> times, kinds = np.array([0.9, 1.0, 2.0]), ["sizes"] * 3
    >>> found = chances(["a", "b", "c"], [Part(times, times / 1.1, times * 1.1, kinds)])
    >>> bool(found.fastest[0] > found.fastest[1] > found.fastest[2]), float(found.fastest.sum().round(6))
    (True, 1.0)
    """
    known = error_models() if models is None else models
    drawn = np.zeros((len(names), DRAWS))
    for number, part in enumerate(parts):
        for place, (name, kind) in enumerate(zip(names, part.kinds, strict=True)):
            seconds, low, high = (float(one[place]) for one in part[:3])
            if seconds <= 0 or low == high:
                drawn[place] += seconds
                continue
            shared = known[kind].shared
            scores = np.sqrt(shared) * _normal(number, "all", kind) + np.sqrt(1 - shared) * _normal(number, "own", name)
            drawn[place] += seconds * factors(known[kind], scores, seconds / low, high / seconds)
    for place, (name, error) in enumerate(zip(names, [] if left_open is None else left_open.tolist(), strict=False)):
        drawn[place] *= np.exp(error * _normal(0, "sample", name))
    least = drawn.min(axis=0)
    fastest = drawn == least
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = np.where(fastest, 0.0, drawn / least - 1)
    return Chances((fastest / fastest.sum(axis=0)).mean(axis=1), lost.mean(axis=1))


def factors(model: ErrorModel, scores: Floats, below: Floats | float, above: Floats | float) -> Floats:
    """Return measured over predicted times at normal scores.

    Parameters
    ----------
    model : ErrorModel
        Of the kind of prediction.
    scores : ndarray
        In standard deviations.
    below, above : float or ndarray
        Predicted time over the lower end of its interval, and the upper end over it, >= 1; they broadcast with
        `scores`.
    """
    errors = np.interp(scores, SCORES, model.quantiles)
    found: Floats = np.exp(errors * np.where(errors < 0, np.log(below), np.log(above)))
    return found


@cache
def _strata() -> Floats:
    """Return the middles of `DRAWS` equally likely parts of a normal distribution."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((place + 0.5) / DRAWS) for place in range(DRAWS)])


@lru_cache(256)
def _normal(part: int, whose: str, name: str) -> Floats:
    """Return normal numbers, each stratum once, shape (draws,)."""
    drawn = stream(0, "chances", part, whose, name).permutation(_strata())
    drawn.flags.writeable = False
    return drawn
