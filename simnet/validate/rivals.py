"""Baseline predictions of held-out measurements from the other measured curves, by simple rules.

A rival takes the curves that are kept and the sizes and setting of one that is left out. No choice in them depends on
the set of measurements. The *five-line rules* are what anybody writes first:

- another size: the straight line between neighbouring sizes in logarithms (`log_log`);
- another number of ranks: the curve of the nearest number (`nearest`), the same times the ratio of bus factors
  (`nearest_by_bus_factor`), and a straight line between neighbouring numbers in logarithms (`log_log`), extended beyond
  the last;
- another collective: the all-reduce on the same ranks, else the nearest, by the ratio of bus factors
  (`rule_of_bus_factor`).

Between sizes, each takes the line in logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from simnet.base.arrays import Floats
from simnet.cost_models.calibration.curves import Curve, Setting, fit_log_log
from simnet.cost_models.calibration.readers import bus_factor

NEIGHBOURS = "log_log"
"""Baseline: log-log interpolation between neighbouring sizes or numbers of ranks."""

NEAREST = "nearest"
"""Baseline: the curve of the nearest number of ranks."""

NEAREST_BY_BUS = "nearest_by_bus_factor"
"""Baseline: the curve of the nearest number of ranks, scaled by the ratio of bus factors."""

RULE = "rule_of_bus_factor"
"""Baseline: the all-reduce curve, scaled by the ratio of bus factors."""

RIVALS = (NEIGHBOURS, NEAREST, NEAREST_BY_BUS, RULE)
"""The names of all baselines."""

Rival: TypeAlias = Callable[[Curve], Floats]
"""A fitted baseline: it predicts the times [s] of a held-out curve, of which it sees the sizes and the setting."""

FitRivals: TypeAlias = Callable[[str, Sequence[Curve]], Mapping[str, Rival]]
"""Function that fits further baselines, by name, to the curves that a split keeps."""


def rival_times(
    split: str, kept: Sequence[Curve], held: Sequence[Curve], fit: FitRivals | None = None
) -> list[dict[str, Floats]]:
    """Return the times [s] that each baseline predicts for each held-out curve of time versus size: a dict per curve.

    Returns
    -------
    list of dict of str to ndarray of float, shape (n,)
        Times [s]; NaN where a rival says nothing.
    """
    rules: dict[str, Rival] = {name: partial(rule, kept) for name, rule in RULES[split].items()}
    rules |= fit(split, kept) if fit is not None and held else {}
    return [{name: rule(one) for name, rule in rules.items()} for one in held]


def _neighbouring_sizes(kept: Sequence[Curve], held: Curve) -> Floats:
    same = [one for one in kept if one.setting == held.setting]
    return fit_log_log(same[0].sizes, same[0].seconds).at(held.sizes)


def _by_ranks(kept: Sequence[Curve], held: Curve) -> dict[int, Floats]:
    """Return, by number of ranks, the mean log times of curves of the collective, algorithm and protocol of `held`."""
    family = [one for one in kept if one.setting.family == held.setting.family]
    return {
        ranks: np.mean([_log_curve(one, held.sizes) for one in family if one.setting.ranks == ranks], axis=0)
        for ranks in sorted({one.setting.ranks for one in family})
    }


def _neighbouring_ranks(kept: Sequence[Curve], held: Curve) -> Floats:
    found = _by_ranks(kept, held)
    ranks, logs, at = np.log(list(found)), np.array(list(found.values())), math.log(held.setting.ranks)
    if len(ranks) == 1:
        return np.asarray(np.exp(logs[0]))
    first = int(np.clip(np.searchsorted(ranks, at) - 1, 0, len(ranks) - 2))
    share = (at - ranks[first]) / (ranks[first + 1] - ranks[first])
    return np.asarray(np.exp(logs[first] + share * (logs[first + 1] - logs[first])))


def _nearest_ranks(kept: Sequence[Curve], held: Curve, *, by_bus: bool = False) -> Floats:
    found, setting = _by_ranks(kept, held), held.setting
    nearest = _nearest(list(found), setting)
    logs = [found[ranks] + (_log_ratio(setting.collective, ranks, setting) if by_bus else 0.0) for ranks in nearest]
    return np.asarray(np.exp(np.mean(logs, axis=0)))


def _rule_of_bus_factor(kept: Sequence[Curve], held: Curve) -> Floats:
    setting = held.setting
    reduced = [one for one in kept if one.setting.collective == "all_reduce"]
    nearest = _nearest([one.setting.ranks for one in reduced], setting)
    reduced = [one for one in reduced if one.setting.ranks in nearest]
    reduced = [one for one in reduced if one.setting.nodes == setting.nodes] or reduced
    reduced = [one for one in reduced if one.setting.family[1:] == setting.family[1:]] or reduced
    logs = [_log_curve(one, held.sizes) + _log_ratio("all_reduce", one.setting.ranks, setting) for one in reduced]
    return np.asarray(np.exp(np.mean(logs, axis=0))) if logs else np.full(len(held.sizes), math.nan)


def _nearest(known: Sequence[int], asked: Setting) -> list[int]:
    """Return the measured number of ranks nearest to the requested number on a log scale, or both on a tie."""
    off = {ranks: abs(math.log(ranks / asked.ranks)) for ranks in known}
    return [ranks for ranks, one in off.items() if one <= min(off.values()) + 1e-9]


def _log_ratio(collective: str, ranks: int, asked: Setting) -> float:
    """Return log(bus factor of the setting `asked` / bus factor of `collective` on `ranks` ranks); NaN if unknown."""
    known, wanted = bus_factor(collective, ranks), bus_factor(asked.collective, asked.ranks)
    return math.log(wanted / known) if known and wanted else math.nan


def _log_curve(curve: Curve, sizes: Floats) -> Floats:
    return np.log(fit_log_log(curve.sizes, curve.seconds).at(sizes))


RULES: dict[str, dict[str, Callable[[Sequence[Curve], Curve], Floats]]] = {
    "sizes": {NEIGHBOURS: _neighbouring_sizes},
    "ranks": {
        NEIGHBOURS: _neighbouring_ranks,
        NEAREST: _nearest_ranks,
        NEAREST_BY_BUS: partial(_nearest_ranks, by_bus=True),
    },
    "collectives": {RULE: _rule_of_bus_factor},
}
"""Five-line rules by split and name."""
