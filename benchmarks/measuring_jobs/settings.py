"""The settings of the measured jobs: a model, links, and how gradients are exchanged; and their scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd

from simnet.validate.shapednet.links import Change

MS, MBIT = 1e-3, 125e3

CORES = 2
"""Processors of the machine that the shipped jobs were measured on."""

SEED = 2026
LEARNING_RATE, MOMENTUM, BATCH = 0.05, 0.9, 32

PROBE: Mapping[str, int] = MappingProxyType({"nbytes": 2**17, "times": 2})
"""How a flexible policy measures the links: parameters of `simnet.cluster.hooks.shifted`."""

EXCHANGES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "dense": {"scheme": "dense", "error_feedback": False},
        "fp16": {"scheme": "fp16", "accumulation": "half", "error_feedback": False},
        "AG-Topk": {"scheme": "topk"},
        "AR-Topk STAR": {"scheme": "artopk"},
        "AR-Topk VAR": {"scheme": "artopk", "selection": "var"},
        "Ok-Topk": {"scheme": "oktopk"},
        "ExDyna": {"scheme": "exdyna", "initial_threshold": 0.003},
    }
)
"""Every scheme of the hook, with the options that it has there."""

ALGORITHMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "topk": {"allgather": "ring"},
        "artopk": {"collective": "ring", "allgather": "ring"},
        "oktopk": {"hooked": True, "allgather": "ring"},
    }
)
"""What hook and gloo make of the collectives of a scheme, for the scenario; nobody chooses it."""


WORKED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {**EXCHANGES, "ExDyna": {"scheme": "exdyna", "start": "exact"}}
)
"""With these options work between messages is measured: as many entries are sent as the density says, at once."""

MODELS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"small": (64,), "mlp": (800, 800), "deep": (512, 512, 512), "conv": ()}
)
"""Models by name: units of the layers between, of perceptrons for the digits; none for the convolutional network."""


@dataclass(frozen=True)
class Setting:
    """A job on links of one setting, or of several one after the other.

    Parameters
    ----------
    name : str
        What it is called.
    model : str
        One of `MODELS`.
    links : tuple of Change
        Latency and bandwidth of all links, or of the links of each host; with several, they change while it runs.
    ranks : int
        How many workers.
    density : float
        Share of the entries that is kept.
    bucket : float, optional
        Bytes of a bucket; one bucket when omitted.
    exchanges : tuple of str
        Of `EXCHANGES`, one job after another.
    iterations : int
        Iterations of each job.
    flexible : int, optional
        Iterations from probe to probe of one more job, which picks among the exchanges that keep what they do not send.
    """

    name: str
    model: str
    links: tuple[Change, ...]
    ranks: int
    density: float
    bucket: float | None = None
    exchanges: tuple[str, ...] = tuple(EXCHANGES)
    iterations: int = 7
    flexible: int | None = None

    @property
    def share(self) -> int:
        """Workers that take turns on a processor."""
        return -(-self.ranks // CORES)


def links(latency: float | tuple[float, ...], bandwidth: float | tuple[float, ...], at: float = 0.0) -> Change:
    """Return links."""
    scaled = (
        tuple(factor * one for one in given) if isinstance(given, tuple) else factor * given
        for given, factor in ((latency, MS), (bandwidth, MBIT))
    )
    return Change(at, *scaled)


# Four hosts of which one is far, two are slow; and one with little of both.
_MIXED = ((2, 2, 40, 20), (100, 100, 40, 40))
_STRAGGLER = ((1, 1, 1, 50), (50, 50, 50, 10))
_SWINGING = (links(1, 50), links(30, 50, at=3.0), links(1, 10, at=8.0), links(30, 50, at=14.0))
_FALLING = (links(2, 80), links(20, 80, at=3.0), links(20, 20, at=7.0), links(2, 80, at=12.0))

SEEN = (
    Setting("two_near", "mlp", (links(0.2, 100),), 2, 0.01),
    Setting("two_far", "mlp", (links(50, 100),), 2, 0.1),
    Setting("two_slow", "conv", (links(5, 10),), 2, 0.01, iterations=5),
    Setting("two_dense", "deep", (links(1, 50),), 2, 0.3),
    Setting("two_buckets", "deep", (links(5, 50),), 2, 0.01, bucket=2**20),
    Setting("three_mid", "mlp", (links(10, 50),), 3, 0.03),
    Setting("three_buckets", "deep", (links(1, 100),), 3, 0.1, bucket=2**20),
    Setting("four_near", "mlp", (links(0.2, 100),), 4, 0.01),
    Setting("four_mid", "mlp", (links(5, 100),), 4, 0.01),
    Setting("four_mid_sparse", "mlp", (links(5, 100),), 4, 0.001),
    Setting("four_mid_dense", "mlp", (links(5, 100),), 4, 0.3),
    Setting("four_far", "mlp", (links(50, 100),), 4, 0.01),
    Setting("four_slow", "deep", (links(1, 10),), 4, 0.01, iterations=5),
    Setting("four_far_slow", "conv", (links(50, 20),), 4, 0.1, iterations=5),
    Setting("four_conv", "conv", (links(1, 100),), 4, 0.03),
    Setting("four_buckets", "deep", (links(1, 100),), 4, 0.01, bucket=2**20),
    Setting("four_buckets_far", "deep", (links(20, 100),), 4, 0.01, bucket=2**20),
    Setting("four_buckets_slow", "deep", (links(5, 20),), 4, 0.1, bucket=2**20, iterations=5),
    Setting("four_mixed", "mlp", (links(*_MIXED),), 4, 0.01),
    Setting("four_mixed_dense", "mlp", (links(*_MIXED),), 4, 0.1),
    Setting("four_straggler", "deep", (links(*_STRAGGLER),), 4, 0.01, iterations=5),
    Setting("six_mid", "mlp", (links(5, 50),), 6, 0.01),
    Setting("eight_mid", "mlp", (links(5, 100),), 8, 0.01),
    Setting("eight_far", "deep", (links(50, 100),), 8, 0.001),
    Setting("eight_conv", "conv", (links(20, 50),), 8, 0.03, iterations=5),
    Setting("four_falling", "mlp", _FALLING, 4, 0.05, exchanges=("AG-Topk", "AR-Topk STAR"), iterations=80, flexible=5),
    Setting("four_fixed_falling", "deep", _FALLING, 4, 0.01, exchanges=("dense", "AG-Topk", "Ok-Topk"), iterations=30),
)
"""Settings that the model of an iteration was made with."""

UNSEEN = (
    Setting("two_mid", "mlp", (links(2, 20),), 2, 0.03),
    Setting("two_conv", "conv", (links(20, 100),), 2, 0.003),
    Setting("three_far", "deep", (links(30, 50),), 3, 0.01),
    Setting("three_mixed", "mlp", (links((1, 10, 30), (100, 50, 20)),), 3, 0.05),
    Setting("four_sparse", "mlp", (links(1, 50),), 4, 0.003),
    Setting("four_conv_buckets", "conv", (links(5, 50),), 4, 0.01, bucket=2**21),
    Setting("five_mid", "deep", (links(10, 100),), 5, 0.02),
    Setting("six_buckets", "deep", (links(2, 50),), 6, 0.01, bucket=2**20, iterations=5),
    Setting("eight_near", "mlp", (links(0.5, 100),), 8, 0.003),
    Setting(
        "four_swinging", "deep", _SWINGING, 4, 0.02, exchanges=("AG-Topk", "AR-Topk STAR"), iterations=80, flexible=5
    ),
)
"""Settings that were predicted, and then measured, when that was done."""

SETTINGS = (*SEEN, *UNSEEN)
"""What is measured; jobs with the same number of ranks are run by the same processes."""

TELLING = frozenset(one.name for one in SEEN[::2])
"""Settings that tell by how much parts of iterations differ in a job; intervals are judged by the others."""


def table_of_settings() -> pd.DataFrame:
    """Return what is shipped of the settings, beside the jobs."""
    rows = []
    for one in SETTINGS:
        latency, rate = (
            " / ".join(f"{each:g}" for each in sorted({round(value / unit, 6) for value in values}))
            for unit, values in zip((MS, MBIT), zip(*one.links[0].of_hosts(one.ranks), strict=True), strict=True)
        )
        where = {"setting": one.name, "seen": one in SEEN, "telling": one.name in TELLING, "workers": one.ranks}
        links = {"latency_ms": latency, "rate_mbit_s": rate, "changes": len(one.links) > 1}
        buckets = "one" if one.bucket is None else "several"
        rows.append(where | links | {"model": one.model, "density": one.density, "buckets": buckets})
    return pd.DataFrame(rows)
