"""Gradients of a job whose model no scenario can train, computed by one process for all workers, without a network.

Weights move by the mean gradient under every exchange. What an exchange really applies differs from it, but over the
few iterations of a measured job the gradients are nearly the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from measuring_jobs import worker
from measuring_jobs.settings import Setting
from simnet.traces import Recorder, TorchRecording


def record(setting: Setting, folder: Path) -> None:
    """Train the model of a setting, and leave the gradients of all workers as a trace.

    Its layers stand as in the buckets that DDP makes after the first iteration: as they became ready in that.
    """
    import torch

    shutil.rmtree(folder, ignore_errors=True)
    module, optimizer, loss = worker.made(setting.model, setting.ranks)
    parameters = _as_ready(dict(module.named_parameters()), lambda: loss(module, 0, 0).backward())
    recorder = Recorder(
        folder,
        {name: tuple(one.shape) for name, one in parameters.items()},
        workers=setting.ranks,
        every=1,
        model=setting.model,
        data="digits",
        how="python benchmarks/measured_jobs.py, update by the mean gradient",
        software={"torch": str(torch.__version__)},
    )
    with TorchRecording(recorder, module, microbatches=setting.ranks) as recording:
        for iteration in range(setting.iterations):
            means = [torch.zeros_like(one) for one in parameters.values()]
            for rank in range(setting.ranks):
                optimizer.zero_grad()
                found = loss(module, rank, iteration)
                found.backward()
                recording.step(found)
                for mean, one in zip(means, parameters.values(), strict=True):
                    mean.add_(one.grad, alpha=1 / setting.ranks)
            for mean, one in zip(means, parameters.values(), strict=True):
                one.grad = mean
            optimizer.step()


def _as_ready(parameters: Mapping[str, Any], backward: Callable[[], None]) -> dict[str, Any]:
    """Return parameters in the order in which a backward pass has their gradients ready."""
    found: dict[str, Any] = {}
    handles = [
        one.register_post_accumulate_grad_hook(lambda ready, name=name: found.update({name: ready}))
        for name, one in parameters.items()
    ]
    backward()
    for handle in handles:
        handle.remove()
    return found
