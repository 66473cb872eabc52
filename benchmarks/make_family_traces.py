"""Make the recorded traces of two families of networks: a residual convolutional network, and a transformer.

P workers train in one process, each on a shard of its own. Recorded are either the gradients of each worker before the
exchange, whose mean is applied (synchronous SGD), or its pseudo-gradients: what its parameters have lost in H local
steps, whose mean goes to an outer optimiser (DiLoCo). `RUNS` has all that is different between traces.

It needs torch, and simnet with its own requirements:

    python benchmarks/make_family_traces.py                        # lists the traces
    python benchmarks/make_family_traces.py convolutional transformer-local   # makes these, where they ship
    python benchmarks/make_family_traces.py --all --into FOLDER
    python benchmarks/make_family_traces.py transformer-again --every-step --into FOLDER   # ten times as large

Nothing is downloaded. The images are characters in the typefaces that matplotlib brings, the text is the documentation
in the sources of Python's standard library. The same versions on the same machine give the same gradients. Other
machines add in another order, and after some dozen steps of training the gradients differ in every digit, though not in
their statistics.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from family_images import CHARACTERS, FACES, FINE, SIDE, convolutional, draw_glyphs
from torch import nn
from torch.nn import functional

import simnet
from simnet.traces import Recorder
from simnet.traces.live.data import TOPICS, deal_shards, read_prose
from simnet.traces.live.models import BLOCKS, WIDTH
from simnet.traces.live.networks import Transformer
from simnet.traces.metadata import DESCRIPTION, SHIPPED, TraceInfo, read_description

VOCABULARY, CONTEXT, HEADS = 4096, 64, 4
CHANNELS = (40, 80, 160)

FRACTION, DTYPE, SAMPLING = 1 / 100, "fp16", 0
STEPS, EVERY, TOGETHER, HELD_OUT = 133, 22, 2, 256


class Run(NamedTuple):
    """What a trace is of.

    Parameters
    ----------
    family : str
        Which of `FAMILIES`.
    workers : int
        P.
    seed : int
        Of weights, shards and batches.
    dirichlet : float or None
        How unlike the shards are, as `simnet.traces.live.data.deal_shards` takes it; None for IID.
    local : int
        Local steps H between exchanges; 0 where gradients are exchanged in every step.
    """

    family: str
    workers: int = 8
    seed: int = 1
    dirichlet: float | None = None
    local: int = 0


RUNS = {
    f"{family}{what}": run
    for family in ("convolutional", "transformer")
    for what, run in {
        "": Run(family),
        "-again": Run(family, seed=2),
        "-third": Run(family, seed=8),
        "-fourth": Run(family, seed=6),
        "-fifth": Run(family, seed=7),
        "-dirichlet": Run(family, seed=3, dirichlet=0.3),
        "-local": Run(family, seed=4, local=10),
        "-local-dirichlet": Run(family, workers=4, seed=5, dirichlet=0.3, local=10),
    }.items()
}


class Family(NamedTuple):
    """A network, what it learns, and how.

    Parameters
    ----------
    model, data, how : str
        For the description.
    network : callable
        Makes it.
    examples : callable
        Returns examples, and the class of each, by which shards may differ.
    batch : int
        Examples of a worker in a step.
    steps : int
        Of the run.
    loss : callable
        Of a network on examples, with a generator for what is random in them.
    optimiser : callable
        Of parameters.
    rate : callable
        Factor of the learning rate at a share of the run.
    """

    model: str
    data: str
    how: str
    network: Callable[[], nn.Module]
    examples: Callable[[], tuple[Any, np.ndarray]]
    batch: int
    steps: int
    loss: Callable[[nn.Module, Any, torch.Generator], torch.Tensor]
    optimiser: Callable[[Any], torch.optim.Optimizer]
    rate: Callable[[float], float]


def seen(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return images of SIDE pixels, each turned, moved, larger or smaller, and with noise: none is met twice."""
    turn, size, right, down = (torch.rand(4, len(images), generator=generator) - 0.5).unbind()
    sine, cosine, size = torch.sin(0.6 * turn), torch.cos(0.6 * turn), 1.1 + 0.4 * size
    rows = torch.stack([size * cosine, -size * sine, 0.3 * right, size * sine, size * cosine, 0.3 * down], dim=1)
    grid = functional.affine_grid(rows.view(-1, 2, 3), [len(images), 1, FINE, FINE], align_corners=False)
    small = functional.avg_pool2d(functional.grid_sample(images, grid, align_corners=False), FINE // SIDE)
    return small + 0.15 * torch.randn(small.shape, generator=generator)


def _told(network: nn.Module, batch: Any, generator: torch.Generator) -> torch.Tensor:
    images, kinds = batch
    return functional.cross_entropy(network(seen(images, generator)), kinds)


def _foretold(network: nn.Module, batch: Any, generator: torch.Generator) -> torch.Tensor:
    (words,) = batch
    return functional.cross_entropy(network(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


FAMILIES = {
    "convolutional": Family(
        "residual network with batch norm: three stages of two blocks of two 3x3 convolutions, 40, 80 and 160 channels",
        f"{len(CHARACTERS)} letters and digits in {len(FACES)} typefaces that matplotlib brings, drawn with {SIDE} x "
        f"{SIDE} pixels, each time turned, moved, larger or smaller, and with noise",
        "SGD with learning rate 0.1, a tenth of that after 70 % of the run, momentum 0.9, weight decay 5e-4",
        lambda: convolutional(CHANNELS, len(CHARACTERS), nn.BatchNorm2d),
        lambda: _with_kinds(*draw_glyphs()), 8, STEPS, _told,
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=5e-4),
        lambda share: 1.0 if share < 0.7 else 0.1,
    ),
    "transformer": Family(
        f"decoder like GPT-2: {BLOCKS} blocks of width {WIDTH}, {HEADS} heads, {VOCABULARY} words, {CONTEXT} places, "
        "output layer shared with the embedding",
        f"documentation in the sources of Python's standard library, as words, in stretches of {CONTEXT}; topics, by "
        f"which shards may differ, are {TOPICS} equal parts of it in the order of the files",
        "AdamW with learning rate 1e-3, risen to over a tenth of the run and falling to a tenth by a cosine, betas 0.9 "
        "and 0.95, weight decay 0.1",
        lambda: Transformer(VOCABULARY, CONTEXT, WIDTH, BLOCKS, HEADS),
        lambda: _without_kinds(*read_prose(VOCABULARY, CONTEXT)), 4, STEPS, _foretold,
        lambda parameters: torch.optim.AdamW(parameters, 1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        lambda share: min(share / 0.1 + 0.05, 1.0) * (0.55 + 0.45 * np.cos(np.pi * share)),
    ),
}  # fmt: skip


def _with_kinds(images: np.ndarray, kinds: np.ndarray) -> tuple[Any, np.ndarray]:
    return (torch.tensor(images)[:, None], torch.tensor(kinds)), kinds


def _without_kinds(words: np.ndarray, topics: np.ndarray) -> tuple[Any, np.ndarray]:
    return (torch.tensor(words),), topics


def batches(shard: np.ndarray, size: int, seed: int) -> Iterator[np.ndarray]:
    """Yield batches of a shard without end: once through in random order, then in another."""
    draws = np.random.default_rng(seed)
    left = np.zeros(0, dtype=np.intp)
    while True:
        while len(left) < size:
            left = np.concatenate([left, draws.permutation(shard)])
        yield left[:size]
        left = left[size:]


def record(name: str, folder: Path, every_step: bool = False) -> None:
    """Make a trace.

    Parameters
    ----------
    name : str
        One of `RUNS`.
    folder : Path
        Where it shall lie; it must not be there.
    every_step : bool
        Whether all steps are recorded.
    """
    run = RUNS[name]
    family = FAMILIES[run.family]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(run.seed)
    network = family.network()
    tensors, kinds = family.examples()
    there = np.random.default_rng(0).permutation(len(kinds))
    held, there = there[:HELD_OUT], np.sort(there[HELD_OUT:])
    own = [there[one] for one in deal_shards(kinds[there], run.workers, int(kinds.max()) + 1, run.dirichlet, run.seed)]
    drawn = [batches(one, family.batch, 1000 * run.seed + worker) for worker, one in enumerate(own)]
    random = [torch.Generator().manual_seed(1000 * run.seed + worker) for worker in range(run.workers)]

    def loss(network: nn.Module, worker: int) -> torch.Tensor:
        chosen = next(drawn[worker])
        return family.loss(network, [tensor[chosen] for tensor in tensors], random[worker])

    size = sum(parameter.numel() for parameter in network.parameters())
    shapes = {one: tuple(parameter.shape) for one, parameter in network.named_parameters()}
    every, together = (1, 1) if run.local or every_step else (EVERY, TOGETHER)
    recorder = Recorder(
        folder, shapes, workers=run.workers, every=every, consecutive=together, fraction=FRACTION, dtype=DTYPE,
        seed=SAMPLING, name=name, model=f"{family.model}: {size:,} parameters",
        data=family.data, software={"python": platform.python_version(), "torch": torch.__version__,
                                    "matplotlib": matplotlib.__version__, "simnet": simnet.__version__},
    )  # fmt: skip
    train = _locally if run.local else _in_step
    with recorder:
        train(network, family, run, loss, recorder)
    held_loss = _held_loss(network, family, [tensor[held] for tensor in tensors])
    _describe(folder, name, run, family, held_loss)


Loss = Callable[[nn.Module, int], torch.Tensor]
"""Loss of a network on the next batch of a worker."""


def _in_step(network: nn.Module, family: Family, run: Run, loss: Loss, recorder: Recorder) -> None:
    """Train by synchronous SGD, and record gradients."""
    parameters = dict(network.named_parameters())
    optimiser = family.optimiser(network.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: family.rate(step / family.steps))
    for _ in range(family.steps):
        total = {name: torch.zeros_like(one) for name, one in parameters.items()}
        losses = []
        for worker in range(run.workers):
            optimiser.zero_grad()
            found = loss(network, worker)
            found.backward()
            losses.append(found.item())
            gradients = {name: one.grad for name, one in parameters.items()}
            recorder.take({name: one.numpy() for name, one in gradients.items()}, worker)
            for name, one in gradients.items():
                total[name] += one
        for name, one in parameters.items():
            one.grad = total[name] / run.workers
        optimiser.step()
        schedule.step()
        recorder.end_step(sum(losses) / run.workers)


def _locally(network: nn.Module, family: Family, run: Run, loss: Loss, recorder: Recorder) -> None:
    """Train by DiLoCo, and record pseudo-gradients."""
    outer = torch.optim.SGD(network.parameters(), 0.7, momentum=0.9, nesterov=True)
    replicas = [deepcopy(network) for _ in range(run.workers)]
    inner = [family.optimiser(one.parameters()) for one in replicas]
    rates = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: family.rate(step / family.steps)) for one in inner]
    parameters = dict(network.named_parameters())
    for _ in range(family.steps // run.local):
        total = {name: torch.zeros_like(one) for name, one in parameters.items()}
        losses = []
        for worker, (replica, optimiser, rate) in enumerate(zip(replicas, inner, rates, strict=True)):
            with torch.no_grad():
                for one, common in zip(replica.parameters(), network.parameters(), strict=True):
                    one.copy_(common)
            for _ in range(run.local):
                optimiser.zero_grad()
                found = loss(replica, worker)
                found.backward()
                losses.append(found.item())
                optimiser.step()
                rate.step()
            moved = {name: parameters[name].detach() - one.detach() for name, one in replica.named_parameters()}
            recorder.take({name: one.numpy() for name, one in moved.items()}, worker)
            for name, one in moved.items():
                total[name] += one
        for name, one in parameters.items():
            one.grad = total[name] / run.workers
        outer.step()
        recorder.end_step(sum(losses) / len(losses))
    # Means and variances of batch norm are each worker's own; those of the first serve for the score.
    network.load_state_dict({**replicas[0].state_dict(), **{name: one.detach() for name, one in parameters.items()}})


def _held_loss(network: nn.Module, family: Family, batch: Any) -> float:
    network.eval()
    with torch.no_grad():
        return float(family.loss(network, batch, torch.Generator().manual_seed(0)))


def _describe(folder: Path, name: str, run: Run, family: Family, held_loss: float) -> None:
    """Say in the description what the recorder does not know."""
    info = read_description(TraceInfo, folder / DESCRIPTION)
    dealt = "IID" if run.dirichlet is None else f"Dirichlet ({run.dirichlet})"
    what = (
        f"pseudo-gradients of {run.local} local steps, a recorded step being a round; outer SGD 0.7, momentum 0.9, "
        "Nesterov (DiLoCo); within a round each worker steps by"
        if run.local
        else "gradients of synchronous training with dense exchange by"
    )
    how = (
        f"{what} {family.how}; {run.workers} workers, {dealt} shards, batch {family.batch} per worker; loss: mean over "
        f"workers, at the end {held_loss:.3f} on {HELD_OUT} examples held out; recorded: of each layer one entry in "
        f"{round(1 / FRACTION)}, at least one, the same at all steps and workers (entries.safetensors), in {DTYPE}; "
        f"made by python make_family_traces.py {name}"
    )
    info = info.model_copy(update={"how": how, "license": "Apache-2.0", "seed": run.seed})
    (folder / DESCRIPTION).write_text(info.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")


def main() -> None:
    """Make the traces that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true", help="make all")
    parser.add_argument("--every-step", action="store_true", help="record all steps of a run")
    parser.add_argument("--into", type=Path, default=SHIPPED, metavar="FOLDER")
    given = parser.parse_args()
    if unknown := set(given.names) - set(RUNS):
        parser.error(f"there is no trace {min(unknown)!r}; there are {', '.join(RUNS)}")
    names = list(RUNS) if given.all else given.names
    if not names:
        print(*RUNS, sep="\n")
    for name in names:
        start = time.process_time()
        record(name, given.into / name, given.every_step)
        print(f"{name}: {time.process_time() - start:.0f} processor seconds", flush=True)


if __name__ == "__main__":
    main()
