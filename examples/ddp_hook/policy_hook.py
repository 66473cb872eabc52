"""Gradient exchange of PyTorch DDP, chosen from a table of `simnet choose --export policy.json` as the network changes.

model = DistributedDataParallel(model)
model.register_comm_hook(Policy("policy.json"), policy_hook)
"""

import json
import math
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

Probe = Callable[[torch.device], tuple[float, float]]


class Policy:
    """The table, and probe() that returns latency [s] and bandwidth [byte/s]; it is asked every so many iterations."""

    def __init__(self, path: str | Path, probe: Probe | None = None, every: int = 100) -> None:
        table = json.loads(Path(path).read_text())
        self.choices, self.matrix, edges = table["choices"], table["matrix"], table["edges"]
        for one in self.choices:
            if one["scheme"] not in ("dense", "fp16", "topk", "artopk") or one["options"].get("selection") == "var":
                raise ValueError(f"this hook does not do {one['label']}")
        self.latency, self.bandwidth = edges["latency_s"][1:-1], edges["bandwidth_B_per_s"][1:-1]
        self.probe, self.every, self.iteration, self.choice = probe or shifted, every, -1, self.choices[0]
        self.residual: dict[torch.Tensor, torch.Tensor] = {}


def shifted(device: torch.device | str = "cpu", nbytes: int = 2**22, times: int = 5) -> tuple[float, float]:
    """Return latency and bandwidth from this worker to the next, while every worker sends to the next."""
    rank, size, seconds = dist.get_rank(), dist.get_world_size(), []
    for entries in (1, nbytes // 4):
        a, b, took = torch.zeros(entries, device=device), torch.zeros(entries, device=device), []
        for _ in range(times):
            begin = time.perf_counter()
            ways = dist.P2POp(dist.isend, a, (rank + 1) % size), dist.P2POp(dist.irecv, b, (rank - 1) % size)
            for work in dist.batch_isend_irecv(list(ways)):
                work.wait()
            b[0].item()  # Waits for a GPU, too.
            took.append(time.perf_counter() - begin)
        seconds.append(min(took))
    return seconds[0], nbytes / max(seconds[1] - seconds[0], 1e-9)


def policy_hook(state: Policy, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Exchange a bucket. What is not sent stays with its parameter, and is added the next time."""
    flat, size = bucket.buffer(), dist.get_world_size()
    if bucket.index() == 0:
        state.iteration += 1
        if state.iteration % state.every == 0:
            latency, bandwidth = state.probe(flat.device)
            slowest = torch.tensor([latency, 1 / bandwidth], dtype=torch.float64, device=flat.device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)  # All workers must take the same choice.
            row = bisect_right(state.latency, slowest[0].item())
            state.choice = state.choices[state.matrix[row][bisect_right(state.bandwidth, 1 / slowest[1].item())]]
    parts = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
    for parameter, gradient in parts:
        if parameter in state.residual:
            gradient.add_(state.residual.pop(parameter))
    scheme = state.choice["scheme"]
    if scheme in ("dense", "fp16"):
        sent = (flat.half() if scheme == "fp16" else flat).div_(size)
        work = dist.all_reduce(sent, async_op=True)
        return work.get_future().then(lambda done: flat.copy_(done.value()[0]))
    k = math.ceil(state.choice["density"] * len(flat))
    indices = torch.topk(flat.abs(), k, sorted=False).indices.int()
    if scheme == "artopk":  # One worker's indices for all, values by all-reduce.
        dist.broadcast(indices, state.iteration % size)
    values = flat[indices.long()]
    flat[indices.long()] = 0
    for parameter, gradient in parts:
        state.residual[parameter] = gradient.clone()
    if scheme == "artopk":
        dist.all_reduce(values)
    else:
        own, indices, values = (indices, values), indices.new_empty(size * k), values.new_empty(size * k)
        dist.all_gather(list(indices.chunk(size)), own[0])
        dist.all_gather(list(values.chunk(size)), own[1])
    future = torch.futures.Future(devices=[flat.device] if flat.is_cuda else [])
    future.set_result(flat.zero_().index_add_(0, indices.long(), values.div_(size)))
    return future
