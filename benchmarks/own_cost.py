"""Draw where compression stops paying because of its own cost: efficiency over bandwidth, for two hosts.

    python benchmarks/own_cost.py docs/images/own_cost.svg

Eight V100 train ResNet-50 with a batch of 21, 61 ms of computing: dense, and PowerSGD of rank 1 as kernels alone, on a
host of 2020 (PyTorch 1.10) and on one of 2026 (PyTorch 2). The band is the 90 % interval of local costs and links.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from simnet import step

COMPUTING = 61e-3
ASKED = {"workers": 8, "model": "resnet50", "compute": f"{COMPUTING} s", "latency": "30 us", "stack": "nccl", "seed": 1}
LINES = {
    "dense": ("dense", "fused"),
    "PowerSGD, kernels alone": ("powersgd:rank=1", "fused"),
    "PowerSGD, PyTorch 2 (estimated host)": ("powersgd:rank=1", "torch"),
    "PowerSGD, PyTorch 1.10": ("powersgd:rank=1", "torch-1.10"),
}
BANDWIDTHS = np.geomspace(1, 100, 9)


def efficiencies(scheme: str, implementation: str) -> np.ndarray:
    """Return computing over iteration at each bandwidth, expected and at both ends, shape (3, n)."""
    found = []
    for rate in BANDWIDTHS:
        fields = [f"job.implementation={implementation}", "job.iterations=4"]
        asked = ASKED | {"schemes": scheme, "bandwidth": f"{rate:g} Gbit/s"}
        row = step(set=fields, **asked).rows[0]
        # What collectives slow down computes for longer, and no more.
        found.append([COMPUTING / row[name] for name in ("total_s", "total_high_s", "total_low_s")])
    return np.array(found).T


def main() -> None:
    """Draw the figure into the file of the first argument."""
    figure, axes = plt.subplots(figsize=(6.4, 4))
    for place, (label, (scheme, implementation)) in enumerate(LINES.items()):
        expected, low, high = efficiencies(scheme, implementation)
        print(label, dict(zip(BANDWIDTHS.round(1).tolist(), expected.round(3).tolist(), strict=True)))
        axes.plot(BANDWIDTHS, expected, label=label, color=f"C{place}")
        axes.fill_between(BANDWIDTHS, low, high, color=f"C{place}", alpha=0.1, linewidth=0)
    axes.set(xscale="log", xlabel="bandwidth of a worker [Gbit/s]", ylabel="computing / iteration", ylim=(0, 1.02))
    axes.legend(loc="lower right")
    figure.savefig(Path(sys.argv[1]), bbox_inches="tight")


if __name__ == "__main__":
    main()
