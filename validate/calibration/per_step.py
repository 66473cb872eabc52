"""The model of steps: launch cost, latency of a step, seconds per byte, seconds per byte reduced.

For every algorithm that a collective may use, and for two protocols, the time is

    launch + steps * latency + bytes * seconds per byte + reduced * gamma,

each counted inside nodes and between nodes, and the library takes the fastest; the minimum is a smooth one, so that it
can be fitted. The *short* protocol has the latency as it is and pays more per byte (NCCL's LL and LL128; MPI's eager
messages), the *long* one pays more per step (NCCL's Simple; MPI's rendezvous). With `nccl`, steps are counted as NCCL
does; without, through the schedules of `simnet.collectives`.

References
----------
A. Alexandrov et al., "LogGP: Incorporating long messages into the LogP model", SPAA 1995. Z. Hu et al., "Demystifying
NCCL: An in-depth analysis of GPU communication protocols and algorithms", arXiv:2507.04786, 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from validate.calibration.curves import Curve, Floats, Setting
from validate.calibration.steps import costs

PARAMETERS: MappingProxyType[str, str] = MappingProxyType(
    {
        "launch": "s: cost of a call",
        "inner_latency": "s: a step inside a node, short protocol",
        "outer_latency": "s: a step between nodes, short protocol",
        "inner_seconds_per_byte": "s/byte: inside a node, long protocol",
        "outer_seconds_per_byte": "s/byte: out of a node, long protocol",
        "gamma": "s/byte: reducing",
        "long_latency_factor": "latency of the long protocol over that of the short one, >= 1",
        "short_byte_factor": "seconds per byte of the short protocol over those of the long one, >= 1",
        "tree_byte_factor": "seconds per byte along a tree over those along a ring",
    }
)
"""The parameters and their units."""

_TYPICAL = np.array([1e-5, 1e-6, 5e-6, 1e-11, 1e-10, 1e-12, 3.0, 2.5, 1.1])
_SPREAD = np.array([2.0, 2.0, 2.5, 3.0, 3.0, 2.0, 1.0, 1.0, 0.3])
_SHARPNESS = 8.0
_PRIOR = 0.02
_MAX_SIZES = 24
_MOST = 3
_NEVER = np.array([[np.inf, np.inf, np.inf, np.inf, 0.0, 0.0]])


@dataclass(frozen=True)
class Steps:
    """A fitted model of steps.

    Parameters
    ----------
    nccl : bool
        Whether steps are counted as NCCL does.
    values : tuple of float
        The parameters, in the order of `PARAMETERS`.
    errors : tuple of float
        Their relative standard errors, from the Jacobian at the optimum; large where the data do not tell.
    """

    nccl: bool
    values: tuple[float, ...]
    errors: tuple[float, ...] = ()

    def at(self, setting: Setting, sizes: ArrayLike) -> Floats | None:
        """Return times [s] of sizes [byte], or None for a collective without a known algorithm."""
        ways = costs(setting, self.nccl)
        asked = np.atleast_1d(np.asarray(sizes, dtype=np.float64))
        if not ways:
            return None
        table = np.array([[*one[:5], float(one.tree)] for one in ways])
        return _times(np.array(self.values), np.repeat(table[None], len(asked), axis=0), asked)


def fit_steps(curves: Sequence[Curve], nccl: bool) -> Steps | None:
    """Fit a model of steps to all curves of a system at once.

    Relative errors count, large ones less (soft L1); what the data do not determine stays near typical values.

    Returns
    -------
    Steps or None
        None if no algorithm is known for any of the curves.

    Examples
    --------
    >>> truth = Steps(False, (1e-5, 1e-6, 2e-5, 1e-11, 1e-9, 1e-12, 3.0, 2.5, 1.1))
    >>> sizes = 2.0 ** np.arange(10, 27, 2)
    >>> rings = [Setting("all_reduce", ranks, ranks, "ring") for ranks in (4, 8)]
    >>> fitted = fit_steps([Curve(one, sizes, truth.at(one, sizes)) for one in rings], nccl=False)
    >>> other = Setting("all_gather", 16, 16, "ring")
    >>> bool(np.abs(np.log(fitted.at(other, sizes) / truth.at(other, sizes))).max() < 0.2)
    True
    """
    tables, sizes, seconds = [], [], []
    for curve in curves:
        ways = costs(curve.setting, nccl)
        if not ways:
            continue
        chosen = np.unique(np.linspace(0, len(curve.sizes) - 1, min(len(curve.sizes), _MAX_SIZES)).round().astype(int))
        table = np.array([[*one[:5], float(one.tree)] for one in ways])
        padded = np.concatenate([table, np.repeat(_NEVER, _MOST - len(ways), axis=0)])
        tables.append(np.repeat(padded[None], len(chosen), axis=0))
        sizes.append(curve.sizes[chosen])
        seconds.append(curve.seconds[chosen])
    if not tables:
        return None
    table, size, second = np.concatenate(tables), np.concatenate(sizes), np.concatenate(seconds)
    start = _start(table, size, second)
    weight = _PRIOR * np.sqrt(len(size)) / _SPREAD

    def off(logs: Floats) -> Floats:
        return np.concatenate([np.log(_times(np.exp(logs), table, size) / second), weight * (logs - start)])

    low, high = start - 12, start + 12
    low[6:8] = 0.0
    low[8], high[8] = -1.0, 1.0
    found = least_squares(off, np.clip(start, low, high), loss="soft_l1", f_scale=0.1, bounds=(low, high), max_nfev=200)
    spread = float(np.median(np.abs(found.fun[: len(size)]))) / 0.6745
    jacobian = np.asarray(found.jac, dtype=np.float64)
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * max(spread, 1e-6) ** 2
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return Steps(nccl, tuple(np.exp(found.x).tolist()), tuple(errors.tolist()))


def _times(values: Floats, table: Floats, sizes: Floats) -> Floats:
    """Return times [s]; `table` has shape (sizes, algorithms, 6): `Cost` as numbers."""
    launch, inner, outer, inner_byte, outer_byte, gamma, latency_factor, byte_factor, tree_factor = values
    steps = table[..., 0] * inner + table[..., 1] * outer
    moved = (table[..., 2] * inner_byte + table[..., 3] * outer_byte) * sizes[:, None]
    moved = moved * np.where(table[..., 5] > 0, tree_factor, 1.0)
    work = table[..., 4] * gamma * sizes[:, None]
    short = steps + byte_factor * moved + work
    long = latency_factor * steps + moved + work
    ways = np.maximum(np.concatenate([short, long], axis=1), 1e-15)
    fastest = ways.min(axis=1)
    several = ((ways / fastest[:, None]) ** -_SHARPNESS).sum(axis=1) ** (-1 / _SHARPNESS)
    return np.asarray(launch + fastest * several, dtype=np.float64)


def _start(table: Floats, sizes: Floats, seconds: Floats) -> Floats:
    """Return typical values, scaled to the data: the least time, and the least seconds per byte."""
    values = _TYPICAL.copy()
    moved = np.maximum(table[..., 2:4].sum(axis=2).min(axis=1), 1e-9)
    per_byte = float(np.quantile(seconds / (sizes * moved), 0.1))
    steps = np.maximum(table[..., :2].sum(axis=2).min(axis=1), 1.0)
    values[3:5] = per_byte
    values[2] = float(np.quantile(seconds / steps, 0.1)) / 2
    values[1] = values[2] / 3
    values[0] = float(seconds.min()) / 3
    values[5] = per_byte / 20
    return np.asarray(np.log(values), dtype=np.float64)
