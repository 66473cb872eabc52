"""Small training jobs on a network, with made-up gradients, for the tests of what happens to jobs."""

import numpy as np
import pytest

from simnet import topologies
from simnet.base.rng import stream
from simnet.cost_models.costs.devices import load_device
from simnet.network import Network
from simnet.policies import Candidate, Ramp
from simnet.training.job.job import Compute, Job

LATENCY, BANDWIDTH = 1e-3, 1e6
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

    def gradients(self, iteration, out=None):
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
        "device": load_device(device) if isinstance(device, str) else device,
        "seed": 7,
    }
    return Job(**(fields | changes))


def star(hosts=4, **options):
    """Return a network of hosts round one switch."""
    return Network(topologies.star(hosts, LATENCY, BANDWIDTH), **options)


def check_split(result):
    """Check that the split of every worker adds up to its iterations."""
    each = result.workers
    took = result.iterations.set_index("iteration")["iteration_s"]
    assert (each[SPLIT].to_numpy() >= -1e-12).all()
    assert each[SPLIT].sum(axis=1).to_numpy() == pytest.approx(took.loc[each["iteration"]].to_numpy(), abs=1e-9)


def check_spans(result):
    """Check that the spans of all iterations tell the same as the split."""
    spans = result.spans.assign(seconds=result.spans["finish_s"] - result.spans["start_s"])
    told = spans.pivot_table(index=["iteration", "worker"], columns="what", values="seconds", aggfunc="sum").fillna(0.0)
    each = result.workers.set_index(["iteration", "worker"])
    for what in ("compute", "select", "communicate", "wait"):
        if what in told:
            assert told[what].to_numpy() == pytest.approx(each[f"{what}_s"].to_numpy(), abs=1e-9)
