"""Record the gradients of a small network that learns scikit-learn's digits.

    python digits.py trace                                    # one process, eight batches a step, each as a worker
    torchrun --nproc-per-node 4 digits.py trace               # four processes under DistributedDataParallel

The three lines that record are marked. What the recorder took of the time is printed at the end.
"""

from __future__ import annotations

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch import nn

import simnet.traces


def network() -> nn.Module:
    """Return two convolutions and two fully connected layers: 55,018 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 96),
        nn.ReLU(),
        nn.Linear(96, 10),
    )


def main() -> None:
    """Train, and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the trace shall lie")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16, help="images per worker")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--dtype", default="fp32")
    given = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    labels = torch.tensor(digits)
    model = network()
    distributed = "RANK" in os.environ
    if distributed:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    rank, passes = (torch.distributed.get_rank(), 1) if distributed else (0, 8)
    generator = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

    recording = simnet.traces.record(  # the first line
        model, given.folder, every=given.every, fraction=given.fraction, dtype=given.dtype,
        microbatches=passes, accumulates=passes > 1, data="scikit-learn's digits", how="SGD with momentum",
    )  # fmt: skip
    with recording:  # the second, or recording.close() at the end
        for _ in range(given.steps):
            optimizer.zero_grad()
            for _ in range(passes):
                batch = torch.randint(len(images), (given.batch,), generator=generator)
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                (loss / passes).backward()
                if not distributed:
                    recording.step(loss)  # the third; under DistributedDataParallel the hook does it
            optimizer.step()
    if rank == 0:
        seconds = recording.recorder.own_seconds
        print(
            f"loss {loss.item():.3f}; the recorder took {1e3 * seconds:.0f} ms, {100 * recording.overhead:.1f} % more",
            flush=True,
        )
    if distributed:
        torch.distributed.barrier()
        # DDP keeps the threads of gloo even after destroy_process_group. One that is still busy with the hook when the
        # interpreter ends aborts the process.
        os._exit(0)


if __name__ == "__main__":
    main()
