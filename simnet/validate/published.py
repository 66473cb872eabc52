"""Communication times and shares of collectives published in the AR-Topk paper, compared with simnet's.

The printed times scatter about the alpha-beta formulas by up to 12 %, so they test the formulas and the choice between
collectives; they are no measurement of any other engine. Tables III to V of the paper are left out on purpose: they
are the formulas' own values plus a constant per model. `simnet.validate.reproduction` has them, and says so.

References
----------
S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE BigData
2023, pp. 925-935, arXiv 2312.02493.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.resources import files

import numpy as np
import pandas as pd

from simnet.base.arrays import Floats
from simnet.cost_models import costs
from simnet.network.weather import PROFILES, profile_state

PARAMETERS = {"ResNet18": 11_689_512, "ResNet50": 25_557_032, "AlexNet": 61_100_840, "ViT": 132_863_336}
"""Parameters that reproduce the tables. The paper's ViT has the size of torchvision's VGG-11, not of its ViT-L/16."""

STEPS = 195
"""Iterations of an epoch: 50,000 images of CIFAR-100 in batches of 8 x 32."""


_FORMULAS: dict[str, Callable[..., Floats]] = {
    "AG": costs.topk_allgather,
    "ART-ring": costs.artopk_ring,
    "ART-tree": costs.artopk_tree,
    "dense ring": lambda alpha, beta, M, c, N: costs.ring_allreduce(alpha, beta, M, N),
}


def table_vi() -> pd.DataFrame:
    """Return AR-Topk's Table VI, times of AG, ART-ring and ART-tree (8 workers, 1 ms), and times by formula.

    Returns
    -------
    DataFrame
        108 rows. ``model, collective, alpha_ms, bandwidth_Gbps, workers, density``, the printed ``published_ms``,
        ``reference_ms`` (the formula evaluated by others, 3 decimals), ``parameters``, simnet's ``formula_ms`` and
        ``error``, the fraction by which the printed time exceeds it.
    """
    return _beside_formula(read_published("table_vi.csv"))


def table_ii() -> pd.DataFrame:
    """Return AR-Topk's Table II, times of a dense ring all-reduce and of compression plus AG, and times by formula.

    Returns
    -------
    DataFrame
        36 rows; columns as of `table_vi`, without the model. Rows of AG print compression and communication
        together: their ``published_ms - formula_ms`` is the compression time the paper implies.
    """
    return _beside_formula(read_published("table_ii.csv"))


def fig_5() -> pd.DataFrame:
    """Return AR-Topk's Fig. 5, times of AG and ART-ring (2 to 8 workers, 5 ms, 1 Gbit/s), and times by formula.

    Returns
    -------
    DataFrame
        32 rows; columns as of `table_vi`.
    """
    return _beside_formula(read_published("fig_5.csv"))


def fig_8() -> pd.DataFrame:
    """Return AR-Topk's Fig. 8 for ResNet-18: epochs per collective, published and simulated, on schedules C1 and C2.

    Returns
    -------
    DataFrame
        6 rows. ``config, model, collective, published_epochs`` (from the density curves) and ``replayed_steps``,
        ``replayed_epochs`` of `schedule_shares`.
    """
    frame = read_published("fig_8.csv")
    shares = {config: schedule_shares(config) for config in frame["config"].unique()}
    cells = zip(frame["config"], frame["collective"], strict=True)
    frame["replayed_steps"] = [shares[config][collective] for config, collective in cells]
    frame["replayed_epochs"] = frame["replayed_steps"] / STEPS
    return frame


def schedule_shares(config: str, warmup_epochs: int = 2) -> dict[str, int]:
    """Return for how many steps of a network schedule each collective is the cheapest.

    In the warm-up the density falls linearly from 1 to 0.1, both included; it stays at 0.1 until the network next
    changes, and is 0.01 thereafter. Every step takes the arg-min of the three formulas on the network as it is.

    References
    ----------
    Sections 3-E and 3-E1, Figs. 6 and 8.
    """
    states = [profile_state(config, epoch) for epoch in range(PROFILES[config].epochs)]
    latency = np.repeat([state.latency for state in states], STEPS)
    bandwidth = np.repeat([state.bandwidth for state in states], STEPS)

    warmup = warmup_epochs * STEPS
    changes = np.flatnonzero((np.diff(latency) != 0) | (np.diff(bandwidth) != 0)) + 1
    later = changes[changes >= warmup]
    density = np.full(len(latency), 0.01)
    density[: later[0] if len(later) else None] = 0.1
    density[:warmup] = np.linspace(1.0, 0.1, warmup)

    choice = costs.best_collective(latency, 1 / bandwidth, 4 * PARAMETERS["ResNet18"], density, 8).choice
    counts = np.bincount(choice, minlength=len(costs.SPARSE_COLLECTIVES))
    return dict(zip(costs.SPARSE_COLLECTIVES, counts.tolist(), strict=True))


def read_published(name: str) -> pd.DataFrame:
    """Return a shipped table of published values."""
    return pd.read_csv(io.StringIO(read_published_text(name)))


def read_published_text(name: str) -> str:
    """Return the text of a shipped file of published values."""
    return files("simnet.validate").joinpath("published_data", name).read_text(encoding="utf-8")


def read_sections(name: str) -> dict[str, str]:
    """Return the sections of a shipped text by name; each begins with a line ``%% name``."""
    return dict(one.split("\n", 1) for one in read_published_text(name).split("%% ")[1:])


def _beside_formula(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a copy of a table with the time by formula [ms], and the relative error of the published time."""
    if "parameters" not in frame:
        frame = frame.assign(parameters=frame["model"].map(PARAMETERS))
    formula = np.empty(len(frame))
    for collective, cost in _FORMULAS.items():
        rows = (frame["collective"] == collective).to_numpy()
        alpha = frame["alpha_ms"].to_numpy()[rows] * 1e-3
        beta = 1 / (frame["bandwidth_Gbps"].to_numpy()[rows] * 1.25e8)
        M = 4 * frame["parameters"].to_numpy()[rows]
        density, workers = (frame[column].to_numpy()[rows] for column in ("density", "workers"))
        formula[rows] = 1e3 * cost(alpha, beta, M, density, workers)
    return frame.assign(formula_ms=formula, error=frame["published_ms"] / formula - 1)
