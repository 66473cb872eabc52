"""Make the recorded trace `digits`: eight workers train a small convolutional network on scikit-learn's digits.

Synchronous data-parallel SGD with dense exchange. Each worker has its own eighth of the training images and draws its
own batches from it; the mean of the eight gradients is applied. At the steps of `POINTS` the gradients of all workers
are written down before they are averaged. Most of the points are pairs of consecutive steps, for what gradients have in
common from one step to the next.

It needs torch and scikit-learn, which simnet does not:

    python -m venv /tmp/trace && /tmp/trace/bin/pip install torch scikit-learn safetensors
    /tmp/trace/bin/python benchmarks/make_digits_trace.py digits

The same versions on the same machine give the same bytes. Other machines add in another order, and after some hundred
steps of training the gradients differ in every digit, though not in their statistics.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections import OrderedDict
from pathlib import Path
from typing import Any

WORKERS, BATCH, STEPS, SEED = 8, 16, 400, 1
POINTS = (0, 1, 20, 21, 60, 100, 101, 200, 201, 300, 398, 399)
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.02, 0.9, 5e-4
SHIFT, NOISE = 1, 0.2
TRAINING_IMAGES = 1440


def network() -> Any:
    """Return three convolutions with batch norm and two fully connected layers: 18,586 parameters in 13 tensors."""
    from torch import nn

    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(32),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            conv3=nn.Conv2d(32, 32, 3, padding=1, bias=False),
            bn3=nn.BatchNorm2d(32),
            relu3=nn.ReLU(),
            pool3=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(128, 32),
            relu4=nn.ReLU(),
            fc2=nn.Linear(32, 10),
        )
    )


def augmented(images: Any, generator: Any) -> Any:
    """Return the images, each shifted by up to a pixel either way, with noise, so that none is seen twice."""
    import torch

    padded = torch.nn.functional.pad(images, (SHIFT,) * 4)
    corners = torch.randint(0, 2 * SHIFT + 1, (len(images), 2), generator=generator).tolist()
    shifted = torch.stack([padded[i, :, y : y + 8, x : x + 8] for i, (y, x) in enumerate(corners)])
    return shifted + NOISE * torch.randn(shifted.shape, generator=generator)


def main() -> None:
    """Train, and write a safetensors file per point and `trace.json` into a folder."""
    import sklearn
    import torch
    from safetensors.numpy import save
    from sklearn.datasets import load_digits

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    pixels, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)[order]
    labels = torch.tensor(digits)[order]
    net = network()
    parameters = dict(net.named_parameters())
    optimizer = torch.optim.SGD(net.parameters(), LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    shards = [torch.arange(worker, TRAINING_IMAGES, WORKERS) for worker in range(WORKERS)]
    generators = [torch.Generator().manual_seed(1000 * SEED + worker) for worker in range(WORKERS)]
    batches: list[Any] = [[] for _ in range(WORKERS)]

    points = []
    for step in range(STEPS):
        accuracy = None
        if step in POINTS:
            net.eval()
            with torch.no_grad():
                guess = net(images[TRAINING_IMAGES:]).argmax(1)
            accuracy = round((guess == labels[TRAINING_IMAGES:]).double().mean().item(), 4)
            net.train()
        gradients: dict[str, list[Any]] = {name: [] for name in parameters}
        losses = []
        for worker, (shard, generator) in enumerate(zip(shards, generators, strict=True)):
            if not batches[worker]:
                whole = len(shard) // BATCH * BATCH
                batches[worker] = list(shard[torch.randperm(len(shard), generator=generator)][:whole].split(BATCH))
            batch = batches[worker].pop()
            net.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(augmented(images[batch], generator)), labels[batch])
            loss.backward()
            losses.append(loss.item())
            for name, parameter in parameters.items():
                gradients[name].append(parameter.grad.clone())
        stacked = {name: torch.stack(of_workers) for name, of_workers in gradients.items()}
        if step in POINTS:
            content = save({name: tensor.numpy() for name, tensor in stacked.items()})
            (folder / f"{step:06d}.safetensors").write_bytes(content)
            points.append({"step": step, "loss": round(sum(losses) / WORKERS, 6), "accuracy": accuracy})
        for name, parameter in parameters.items():
            parameter.grad = stacked[name].mean(0)
        optimizer.step()

    description = {
        "version": 1,
        "name": "digits",
        "model": "three 3x3 convolutions with batch norm (16, 32, 32 channels) and two fully connected layers (32, 10)",
        "data": f"scikit-learn's digits: {TRAINING_IMAGES} images, shifted by up to {SHIFT} pixel, with noise {NOISE}, "
        f"for training, {len(labels) - TRAINING_IMAGES} for the accuracy",
        "how": f"synchronous SGD with dense exchange, batch {BATCH} per worker, learning rate {LEARNING_RATE}, "
        f"momentum {MOMENTUM}, weight decay {WEIGHT_DECAY}; loss: mean over workers; made by make_digits_trace.py",
        "license": "Apache-2.0",
        "date": datetime.date.today().isoformat(),
        "software": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "scikit-learn": sklearn.__version__,
        },
        "seed": SEED,
        "workers": WORKERS,
        "steps": STEPS,
        "layers": [{"name": name, "shape": list(parameter.shape)} for name, parameter in parameters.items()],
        "points": points,
    }
    (folder / "trace.json").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
