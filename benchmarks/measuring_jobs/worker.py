"""A rank of a measured job: joins the others on its host of the shaped network, and trains with one hook after another.

Ranks are forked from a server that has imported PyTorch already, so that starting eight of them takes no longer than
one. Between two jobs they wait at a gate, where the links are set.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from measuring_jobs.settings import (
    BATCH,
    EXCHANGES,
    LEARNING_RATE,
    MODELS,
    MOMENTUM,
    PROBE,
    SEED,
    WORKED,
    Setting,
)
from simnet.cluster.hooks.log import StageClock
from simnet.cluster.hooks.messages import GroupMessages
from simnet.traces import live
from simnet.validate.shapednet.namespaces import inside
from simnet.validate.shapednet.rank import begin, meet_at

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from simnet.cluster.hooks import Hook

_IMAGE = 16
_PAUSE, _SWEPT, _LARGEST = 0.01, 8_000_000, 1_000_000
_OWN = ("topk", "topk_layer", "scan", "count", "norm")

# More than is under way on any of the links.
_WINDOW = 2**21

REPETITIONS = 12
"""Iterations of which it is told what a process does between messages."""

WORKED_DENSITIES = (0.01, 0.1)
"""Densities at which it is told."""


class Place(NamedTuple):
    """Where a rank is.

    Parameters
    ----------
    rank : int
        Which of the ranks.
    namespace : str
        Name of its host.
    address : str
        Of rank 0, where ranks meet.
    ranks : int
        How many there are.
    owner : int
        The process that runs the experiment.
    limit : float
        Seconds of processor time that it may take.
    """

    rank: int
    namespace: str
    address: str
    ranks: int
    owner: int
    limit: float


def train(place: Place, gate: Barrier, jobs: list[tuple[Setting, str, str]]) -> None:
    """Run jobs, each with one exchange, and leave their logs in folders."""
    _as_rank(place, lambda: _train(place, gate, jobs))


def work(place: Place, gate: Barrier, models: list[str], folder: str) -> None:
    """Measure what ranks do between messages: computing and updating of models, and the kernels of the schemes."""
    _as_rank(place, lambda: _work(place, gate, models, Path(folder) / f"{place.rank}"))


def _as_rank(place: Place, does: Callable[[], None]) -> None:
    begin(place.owner, place.limit)
    try:
        with inside(place.namespace):
            import torch
            import torch.distributed as dist

            torch.set_num_threads(1)
            meet_at(place.address)
            dist.init_process_group("gloo", rank=place.rank, world_size=place.ranks)
            does()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # DDP keeps the threads of gloo.
    os._exit(0)


def _train(place: Place, gate: Barrier, jobs: list[tuple[Setting, str, str]]) -> None:
    import torch.distributed as dist

    from simnet.cluster.hooks import Hook, Trainer, shifted

    for setting, exchange, log in jobs:
        model, optimizer, loss = distributed(setting.model, place, setting.bucket)
        if exchange in EXCHANGES:
            options = dict(EXCHANGES[exchange])
            hook = Hook(options.pop("scheme"), setting.density, label=exchange, **options)
        else:
            # A message of gloo waits for a word of its receiver: there are two latencies in its time.
            def probe(device: Any) -> tuple[float, float]:
                seconds, bandwidth = shifted(device, **PROBE)
                return seconds / 2, bandwidth

            hook = Hook.of_policy(exchange, probe=probe, every=setting.flexible or 1)
        for _ in range(2):
            gate.wait()
        _use_connections(hook)
        gate.wait()
        dist.barrier()
        gate.wait()
        with Trainer(model, optimizer, hook, log=log) as trainer:
            for iteration in range(setting.iterations):
                trainer.step(partial(loss, iteration))
        dist.barrier()
    gate.wait()


def _use_connections(hook: Hook) -> None:
    """Open the window of each connection, as a job that runs for long does: one that is open stays so."""
    import torch

    messages = GroupMessages(hook.group, StageClock())
    others = [one for one in range(messages.size) if one != messages.rank]
    sent = torch.zeros(_WINDOW // 4)
    messages.swap(dict.fromkeys(others, sent), {one: torch.empty_like(sent) for one in others})


def _work(place: Place, gate: Barrier, models: list[str], folder: Path) -> None:
    import torch

    from simnet.cluster.hooks import Hook, Trainer
    from simnet.cost_models.calibration.device import measure_device, profile_yaml

    folder.mkdir(parents=True)
    swept = torch.zeros(_SWEPT)
    rows = []
    for name, exchange, density in worked(models):
        model, optimizer, loss = distributed(name, place, None)
        options = dict(WORKED[exchange])
        hook = Hook(options.pop("scheme"), density, label=exchange, **options)
        times: list[float] = []

        def timed(iteration: int, loss: Any = loss, times: list[float] = times) -> Any:
            began = time.perf_counter()
            found = loss(iteration)
            times.append(time.perf_counter() - began)
            return found

        gate.wait()
        with Trainer(model, optimizer, hook, log=folder / name / exchange / f"{density:g}") as trainer:
            for iteration in range(REPETITIONS):
                trainer.step(partial(timed, iteration))
                # What messages bring goes through the caches between two iterations.
                swept.add_(1)
                time.sleep(_PAUSE)
        rows += [(name, exchange, density, iteration, seconds) for iteration, seconds in enumerate(times)]
    gate.wait()
    columns = ["model", "exchange", "density", "iteration", "forward_s"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "forward.csv", index=False)
    # Hooks select by simnet's own kernels on a processor; all else is PyTorch's.
    own, others = (measure_device("processor", one, density=0.01, largest=_LARGEST) for one in ("numpy", "torch"))
    methods = {**others.methods, **{name: own.methods[name] for name in _OWN}}
    profile = replace(own, device=f"{own.device}; {others.device}", methods=methods)
    (folder / "device.yaml").write_text(profile_yaml(profile), encoding="utf-8")
    gate.wait()


def worked(models: Sequence[str]) -> list[tuple[str, str, float]]:
    """Return what processes are measured with between messages: model, label of the exchange, and density."""
    return [
        (model, exchange, density)
        for model in models
        for exchange in WORKED
        for density in (WORKED_DENSITIES if exchange not in ("dense", "fp16") else WORKED_DENSITIES[:1])
    ]


def distributed(name: str, place: Place, bucket: float | None) -> tuple[Any, Any, Callable[[int], Any]]:
    """Return a model in DDP, its optimizer, and its loss in an iteration."""
    from torch.nn.parallel import DistributedDataParallel

    module, optimizer, loss = made(name, place.ranks)
    model = DistributedDataParallel(module, bucket_cap_mb=bucket / 2**20 if bucket else 1000, init_sync=False)
    return model, optimizer, partial(loss, model, place.rank)


def made(name: str, ranks: int) -> tuple[Any, Any, Callable[[Any, int, int], Any]]:
    """Return a model of `MODELS`, its optimizer, and what gives its loss, in DDP or not, for one of so many ranks."""
    import torch

    hidden = MODELS[name]
    source = live.train("mlp", "digits", workers=ranks, batch=BATCH, hidden=hidden or (1,), seed=SEED)
    module = perceptron(source) if hidden else convolutional()
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def loss(model: Any, rank: int, iteration: int) -> Any:
        inputs, targets = source.batches(iteration, np.array([rank]))
        given = torch.from_numpy(inputs[0].astype(np.float32))
        if not hidden:
            given = torch.nn.functional.interpolate(given.view(-1, 1, 8, 8), size=(_IMAGE, _IMAGE))
        return torch.nn.functional.cross_entropy(model(given), torch.from_numpy(targets[0]))

    return module, optimizer, loss


def perceptron(source: live.LiveSource) -> Any:
    """Return the perceptron of a source as a module of PyTorch, with the same first weights."""
    import torch

    parts: list[Any] = []
    weights, sizes = torch.from_numpy(source.initial().copy()), [size for _, size in source.layers]
    pieces = weights.split(sizes)
    for number in range(0, len(sizes), 2):
        units = sizes[number + 1]
        layer = torch.nn.Linear(sizes[number] // units, units)
        with torch.no_grad():
            layer.weight.copy_(pieces[number].view(units, -1))
            layer.bias.copy_(pieces[number + 1])
        parts += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def convolutional() -> Any:
    """Return a convolutional network of 1.1 million parameters for images of 16 by 16."""
    import torch

    torch.manual_seed(SEED)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 64, 3, padding=1, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(1024, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 10),
    )
