"""Tables of published values, and the shares of collectives in Fig. 8 of the AR-Topk paper.

References
----------
S. Tyagi, M. Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", IEEE BigData
2023, pp. 925-935, arXiv 2312.02493.
"""

from __future__ import annotations

import io
from importlib.resources import files

import numpy as np
import pandas as pd

from simnet.cost_models import costs
from simnet.network.weather import PROFILES, profile_state

PARAMETERS = {"ResNet18": 11_689_512, "ResNet50": 25_557_032, "AlexNet": 61_100_840, "ViT": 132_863_336}
"""Parameters that reproduce the tables. The paper's ViT has the size of torchvision's VGG-11, not of its ViT-L/16."""

STEPS = 195
"""Iterations of an epoch: 50,000 images of CIFAR-100 in batches of 8 x 32."""


def schedule_shares(config: str, warmup_epochs: int = 2) -> dict[str, int]:
    """Return, by collective, the number of training steps in which it is cheapest while network settings change.

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
