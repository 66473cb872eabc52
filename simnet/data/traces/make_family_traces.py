"""Make the recorded traces of two families of networks: a residual convolutional network, and a transformer.

P workers train in one process, each on a shard of its own. Recorded are either the gradients of each worker before the
exchange, whose mean is applied (synchronous SGD), or its pseudo-gradients: what its parameters have lost in H local
steps, whose mean goes to an outer optimiser (DiLoCo). `RUNS` has all that is different between traces.

It needs torch, and simnet with its own requirements:

    python make_family_traces.py                                   # lists the traces
    python make_family_traces.py convolutional transformer-local   # makes these, beside this script
    python make_family_traces.py --all --into FOLDER

Nothing is downloaded. The images are characters in the typefaces that matplotlib brings, the text is the documentation
in the sources of Python's standard library. The same versions on the same machine give the same gradients. Other
machines add in another order, and after some dozen steps of training the gradients differ in every digit, though not in
their statistics.
"""

from __future__ import annotations

import argparse
import platform
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from itertools import pairwise
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from torch import nn
from torch.nn import functional

import simnet
from simnet.traces import Recorder
from simnet.traces.live.data import shards
from simnet.traces.metadata import read_description
from simnet.traces.recorded import DESCRIPTION, TraceInfo

SIDE, FINE = 16, 48
"""Pixels of a side of an image, and of the character it is made of."""

FACES = (
    *(f"DejaVuSans{kind}" for kind in ("", "-Bold", "-Oblique", "-BoldOblique", "Mono", "Mono-Bold")),
    *(f"DejaVuSerif{kind}" for kind in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{kind}" for kind in ("", "Bol", "Italic", "BolIta")),
)
CHARACTERS = ascii_letters + digits

VOCABULARY, CONTEXT, TOPICS, WIDTH, BLOCKS, HEADS = 4096, 64, 10, 128, 4, 4
QUOTED = re.compile(r'"""(.*?)"""', re.DOTALL)
WORD = re.compile(r"[A-Za-z_]+|\d|\n|[^\sA-Za-z_\d]")

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
        How unlike the shards are, as `simnet.traces.live.data.shards` takes it; None for IID.
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


class Residual(nn.Module):  # type: ignore[misc]
    """Two 3 x 3 convolutions, each with a norm behind it, added to what comes in."""

    def __init__(self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = norm(after)
        self.downsample = (
            nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))
            if before != after
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def convolutional(
    widths: Sequence[int] = (40, 80, 160),
    classes: int = len(CHARACTERS),
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
) -> nn.Module:
    """Return a residual network for images with one channel.

    Parameters
    ----------
    widths : sequence of int
        Channels of the stages, of two blocks each.
    classes : int
        Of the images.
    norm : callable
        Makes the norm of so many channels.
    """
    blocks = [
        Residual(widths[max(stage - (not block), 0)], width, 2 if stage and not block else 1, norm)
        for stage, width in enumerate(widths)
        for block in range(2)
    ]
    stem = [nn.Conv2d(1, widths[0], 3, 1, 1, bias=False), norm(widths[0]), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


class Block(nn.Module):  # type: ignore[misc]
    """Causal attention and a perceptron, each behind a layer norm and added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations."""
        shape = (*x.shape[:2], self.heads, x.shape[2] // self.heads)
        q, k, v = (one.view(shape).transpose(1, 2) for one in self.c_attn(self.ln_1(x)).split(x.shape[2], dim=2))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).reshape(x.shape))
        return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x))))


class Transformer(nn.Module):  # type: ignore[misc]
    """A decoder like GPT-2: embeddings of words and places, blocks, and an output layer that shares `wte`.

    Parameters
    ----------
    words, places : int
        Rows of the embeddings.
    width, blocks, heads : int
        Of the network.
    """

    def __init__(
        self,
        words: int = VOCABULARY,
        places: int = CONTEXT,
        width: int = WIDTH,
        blocks: int = BLOCKS,
        heads: int = HEADS,
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(places, width)
        self.h = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.ln_f = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                # As GPT-2: what is added to the residual stream is smaller, the more blocks there are.
                nn.init.normal_(parameter, std=0.02 / (2 * blocks) ** 0.5 if name.endswith("proj.weight") else 0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of the word after each."""
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1]))
        return self.ln_f(self.h(x)) @ self.wte.weight.T


@cache
def glyphs() -> tuple[torch.Tensor, np.ndarray]:
    """Return the characters in all typefaces as images (N, 1, FINE, FINE) from 0 to 1, and which each is."""
    from matplotlib.path import Path as Outline

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    axis = (np.arange(FINE) + 0.5) / FINE
    points = np.stack(np.meshgrid(axis, axis[::-1]), axis=2).reshape(-1, 2)
    images = []
    for face in FACES:
        font = FontProperties(fname=str(folder / f"{face}.ttf"))
        for character in CHARACTERS:
            path = TextPath((0, 0), character, size=0.8, prop=font)
            low, high = path.get_extents().get_points()
            outline = Outline(path.vertices + 0.5 - (low + high) / 2, path.codes)
            # Holes are inside two outlines.
            inside = sum(one.contains_points(points).astype(int) for one in _closed(outline)) % 2
            images.append(inside.reshape(FINE, FINE))
    kinds = np.tile(np.arange(len(CHARACTERS)), len(FACES))
    return torch.tensor(np.array(images), dtype=torch.float32)[:, None], kinds


def _closed(path: Any) -> Iterator[Any]:
    starts = [*np.flatnonzero(path.codes == path.MOVETO), len(path.codes)]
    for start, end in pairwise(starts):
        yield type(path)(path.vertices[start:end], path.codes[start:end])


def seen(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return images of SIDE pixels, each turned, moved, larger or smaller, and with noise: none is met twice."""
    turn, size, right, down = (torch.rand(4, len(images), generator=generator) - 0.5).unbind()
    sine, cosine, size = torch.sin(0.6 * turn), torch.cos(0.6 * turn), 1.1 + 0.4 * size
    rows = torch.stack([size * cosine, -size * sine, 0.3 * right, size * sine, size * cosine, 0.3 * down], dim=1)
    grid = functional.affine_grid(rows.view(-1, 2, 3), [len(images), 1, FINE, FINE], align_corners=False)
    small = functional.avg_pool2d(functional.grid_sample(images, grid, align_corners=False), FINE // SIDE)
    return small + 0.15 * torch.randn(small.shape, generator=generator)


@cache
def prose() -> tuple[torch.Tensor, np.ndarray]:
    """Return stretches of words, int64 of shape (N, CONTEXT + 1), and the topic of each: where it is from."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py"))
    texts = [path.read_text("utf-8", "replace") for path in files if not {"site-packages", "test"} & {*path.parts}]
    words = [word for text in texts for quoted in QUOTED.findall(text) for word in WORD.findall(quoted)]
    numbers = {word: number for number, (word, _) in enumerate(Counter(words).most_common(VOCABULARY - 1), start=1)}
    flat = np.array([numbers.get(word, 0) for word in words])
    count = len(flat) // CONTEXT - 1
    stretches = np.lib.stride_tricks.sliding_window_view(flat, CONTEXT + 1)[::CONTEXT][:count]
    return torch.tensor(stretches.copy()), np.arange(count) * TOPICS // count


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
        convolutional, lambda: _with_kinds(*glyphs()), 8, STEPS, _told,
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
        Transformer, lambda: _without_kinds(*prose()), 4, STEPS, _foretold,
        lambda parameters: torch.optim.AdamW(parameters, 1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        lambda share: min(share / 0.1 + 0.05, 1.0) * (0.55 + 0.45 * np.cos(np.pi * share)),
    ),
}  # fmt: skip


def _with_kinds(images: torch.Tensor, kinds: np.ndarray) -> tuple[Any, np.ndarray]:
    return (images, torch.tensor(kinds)), kinds


def _without_kinds(words: torch.Tensor, topics: np.ndarray) -> tuple[Any, np.ndarray]:
    return (words,), topics


def batches(shard: np.ndarray, size: int, seed: int) -> Iterator[np.ndarray]:
    """Yield batches of a shard without end: once through in random order, then in another."""
    draws = np.random.default_rng(seed)
    left = np.zeros(0, dtype=np.intp)
    while True:
        while len(left) < size:
            left = np.concatenate([left, draws.permutation(shard)])
        yield left[:size]
        left = left[size:]


def record(name: str, folder: Path) -> None:
    """Make a trace.

    Parameters
    ----------
    name : str
        One of `RUNS`.
    folder : Path
        Where it shall lie; it must not be there.
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
    own = [there[one] for one in shards(kinds[there], run.workers, int(kinds.max()) + 1, run.dirichlet, run.seed)]
    drawn = [batches(one, family.batch, 1000 * run.seed + worker) for worker, one in enumerate(own)]
    random = [torch.Generator().manual_seed(1000 * run.seed + worker) for worker in range(run.workers)]

    def loss(network: nn.Module, worker: int) -> torch.Tensor:
        chosen = next(drawn[worker])
        return family.loss(network, [tensor[chosen] for tensor in tensors], random[worker])

    size = sum(parameter.numel() for parameter in network.parameters())
    shapes = {one: tuple(parameter.shape) for one, parameter in network.named_parameters()}
    every, together = (1, 1) if run.local else (EVERY, TOGETHER)
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
    parser.add_argument("--into", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    given = parser.parse_args()
    if unknown := set(given.names) - set(RUNS):
        parser.error(f"there is no trace {min(unknown)!r}; there are {', '.join(RUNS)}")
    names = list(RUNS) if given.all else given.names
    if not names:
        print(*RUNS, sep="\n")
    for name in names:
        start = time.process_time()
        record(name, given.into / name)
        print(f"{name}: {time.process_time() - start:.0f} processor seconds", flush=True)


if __name__ == "__main__":
    main()
