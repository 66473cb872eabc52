"""Small training jobs on a network, with made-up gradients, for the tests of what happens to jobs."""

import numpy as np

from simnet.base.rng import stream
from simnet.costs.devices import load_device
from simnet.job import Compute, Job
from simnet.policies import Candidate, Ramp

AG = Candidate("AG", "topk")
RING = Candidate("ART-ring", "artopk", {"collective": "ring"})
TREE = Candidate("ART-tree", "artopk", {"collective": "tree"})
DENSE = Candidate("dense", "dense")
SPLIT = ["compute_s", "select_s", "communicate_s", "wait_s"]
"""Columns whose sum is the time of an iteration."""


class Source:
    """Independent normal gradients of three layers; each entry stands for `scale` of the model."""

    def __init__(self, workers=4, sizes=(60, 100, 40), scale=1.0):
        self.workers, self.scale = workers, scale
        self.layers = tuple((f"layer{index}", size) for index, size in enumerate(sizes))
        self.parameters = sum(sizes)
        self.true_parameters = round(self.parameters * scale)

    def gradients(self, iteration):
        draws = stream(1, "test gradients", iteration).standard_normal((self.workers, self.parameters))
        return draws.astype(np.float32)


def job_on(network, workers=4, iterations=8, *, device="ideal", **changes):
    """Return a job whose fields may be changed."""
    fields = {
        "source": Source(workers),
        "iterations": iterations,
        "stages": [(0, network)],
        "density": [Ramp(1, 0.1, 0.1)],
        "compute": Compute(0.01),
        "device": load_device(device),
        "seed": 7,
    }
    return Job(**(fields | changes))
