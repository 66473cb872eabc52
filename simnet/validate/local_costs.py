"""Comparison of measured times of gradient reducers and DDP hooks with times predicted from their operations.

Logs of Gradient-Compression have the stages of a reduce, with the device synchronised before and after each, on three
GPUs. The two prices of the host are fitted to the stages of the other GPUs, none to a scheme, and predict those of the
one left out. Hooks on a processor are predicted by the prices of tiny tensors.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from simnet.base.arrays import Floats
from simnet.collectives import allreduce_ring
from simnet.cost_models.costs.devices import DeviceProfile, HostPrices, KernelMethod, load_device
from simnet.cost_models.costs.hooks import Hook, HookedTensors, StageCost, hook_of, stage_costs
from simnet.cost_models.costs.models import load_model
from simnet.network import Network
from simnet.topologies import star
from simnet.training.job.local_costs import hooked_shapes
from simnet.training.parallel.pytorch import BUCKET_MIB, FIRST_BUCKET_MIB, cut
from simnet.validate.published import read_published

BANDWIDTHS = {"V100": 804e9, "K80": 104e9, "other": 400e9, "cpu": 28e9}
"""Memory bandwidth of the devices [byte/s]; of the K80 and the unnamed GPU as their quantisers stream."""


# Between machines of a cloud in one zone.
_LATENCY, _BANDWIDTH = 50e-6, 1.25e9


def local_cost_errors() -> pd.DataFrame:
    """Return a row per measured stage or whole reduction: time, prediction with interval [s], and error.

    Messages are left out. The error is that of the prediction, relative to the measurement.
    """
    rows, predicted = _measured(), []
    for device, own in rows.groupby("device", sort=False):
        host = None if device == "cpu" else _fitted_prices(str(device))
        predicted += [(index, *_predicted(row, host)) for index, row in own.iterrows()]
    found = pd.DataFrame(predicted, columns=["index", "predicted", "low", "high"]).set_index("index")
    rows = rows.join(found).assign(error=lambda one: one.predicted / one.seconds - 1)
    return rows.assign(inside=(rows.low <= rows.seconds) & (rows.seconds <= rows.high))


def _measured() -> pd.DataFrame:
    return read_published("local_costs.csv").fillna({"rank": 1, "density": 1.0, "when": ""})


def _fitted_prices(device: str) -> HostPrices:
    """Fit the host's time per operation and per tensor view [s] to exchange stages on GPUs other than `device`."""
    stages = _measured()
    stages = stages[~stages.device.isin([device, "cpu"]) & (stages.stage != "all")]
    start = HostPrices(22e-6, 4e-6, 20e-6, "start", 0.75, 1.35)

    def off(logs: Floats) -> float:
        host = replace(start, operation=math.exp(logs[0]), view=math.exp(logs[1]))
        ratios = [_predicted(row, host)[0] / row.seconds for _, row in kinds.iterrows()]
        return float(np.abs(np.log(ratios)).sum())

    # Stages of one kind on one device weigh as their median.
    kind = [name for name in stages if name not in ("source", "where", "date", "seconds")]
    kinds = stages.groupby(kind, as_index=False)["seconds"].median()
    best = minimize(off, np.log([start.operation, start.view]), method="Nelder-Mead").x
    return replace(start, operation=math.exp(best[0]), view=math.exp(best[1]))


def _predicted(row: pd.Series, host: HostPrices | None) -> tuple[float, float, float]:
    """Return the predicted time [s] of the stage or whole reduction in `row`, and the ends of its interval."""
    hook, device = _hook(row), _device(row.device, host)
    parts = _parts(row.model, int(row["rank"]), row.density, hook.overlap != "after")
    found = [one for part in parts for one in stage_costs(hook, part, device) if _counts(row, one)]
    return sum(one.seconds for one in found), sum(one.low for one in found), sum(one.high for one in found)


def _hook(row: pd.Series) -> Hook:
    hook = hook_of(row.implementation, row.scheme)
    assert hook is not None
    return hook


def _counts(row: pd.Series, one: StageCost) -> bool:
    """Return whether a measured time includes a stage's cost. On GPUs, the total time excludes entry selection."""
    if row.stage != "all":
        return (one.stage, one.when) == (row.stage, row.when)
    return row.device == "cpu" or one.stage != "select"


def _device(name: str, host: HostPrices | None) -> DeviceProfile:
    if name == "cpu":
        return replace(load_device("cpu-torch2.13"), memory_bandwidth=BANDWIDTHS[name])
    return DeviceProfile(name, name, "logs", BANDWIDTHS[name], {"none": KernelMethod(0, 0, "none")}, host=host)


@cache
def _parts(model: str, rank: int, density: float, bucketed: bool) -> list[HookedTensors]:
    """Return the tensors that a hook receives in each call: those of a DDP bucket, or all tensors of a model."""
    shapes = _shapes(model)
    parts = [slice(None)]
    if bucketed:
        parts = cut([*map(math.prod, shapes)], 4.0, FIRST_BUCKET_MIB * 2.0**20, BUCKET_MIB * 2.0**20)
    found = (hooked_shapes(shapes[one], rank) for one in parts)
    return [one._replace(kept=density * one.kept) for one in found]


def _shapes(model: str) -> list[tuple[int, ...]]:
    """Return the shapes of a model's tensors; ``resnet50-cifar`` and ``vgg16-cifar`` are variants for CIFAR-10."""
    shapes = [one.shape for one in load_model(model.removesuffix("-cifar")).layers]
    if model == "resnet50-cifar":
        return [*shapes[:-2], (10, 2048), (10,)]
    if model == "vgg16-cifar":
        convolutions = [one for one in shapes if len(one) == 4]
        return [one for shape in convolutions for one in (shape, *3 * [shape[:1]])] + [(10, 512), (10,)]
    return shapes


def reducer_jobs() -> pd.DataFrame:
    """Return measured and predicted seconds of gradient reductions, messages included, on two V100 machines.

    `iteration_error` is the relative error of measured computing plus predicted reduction. A reduction exchanges one
    vector by a ring; meanwhile the host launches the operations after it.
    """
    rows = read_published("reducer_jobs.csv").fillna({"density": 1.0})
    host, network = _fitted_prices("V100"), Network(star(2, _LATENCY, _BANDWIDTH), stack="nccl")
    seconds = []
    for _, row in rows.iterrows():
        found = stage_costs(_hook(row), _parts(row.model, 1, row.density, False)[0], _device(row.device, host))
        sent = network.time(allreduce_ring(row.workers, row.message_B)).finish
        before, after = (sum(one.seconds for one in found if (one.when == "after") == late) for late in (False, True))
        # The log of the dense reduce has one stage for both, the others wait in between.
        seconds.append(before + (max(sent, after) if row.scheme == "dense" else sent + after))
    rows = rows.assign(predicted=seconds)
    error = rows.predicted / rows.reduce_s - 1
    whole = (rows.predicted + rows.computing_s) / (rows.reduce_s + rows.computing_s) - 1
    return rows.assign(error=error, iteration_error=whole)
