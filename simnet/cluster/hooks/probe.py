"""The state of the network as a policy table takes it: measured latency and bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

from simnet.cluster.hooks import group as groups

Probe: TypeAlias = Callable[[Any], tuple[float, float]]
"""Given the device of the gradients, returns latency [s] and bandwidth [byte/s]; all workers call it at a time."""

NBYTES = 2**22
"""Length of the longer message of `shifted` [byte]."""


def shifted(device: Any = "cpu", nbytes: int = NBYTES, times: int = 5, group: Any = None) -> tuple[float, float]:
    """Return latency [s] and bandwidth [byte/s] while every worker sends to the next one.

    Parameters ---------- device, group : torch.device or str, ProcessGroup Device of the messages, and the workers; all
    when omitted. nbytes, times : int Length of the longer message, the shorter has four bytes; and messages of each
    length, of which the fastest counts.
    """
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    ahead, behind = (groups.global_rank(group, (rank + step) % size) for step in (1, -1))
    seconds = []
    for entries in (1, nbytes // 4):
        sent, received, took = torch.zeros(entries, device=device), torch.zeros(entries, device=device), []
        for _ in range(times):
            begin = time.perf_counter()
            ways = dist.P2POp(dist.isend, sent, ahead, group), dist.P2POp(dist.irecv, received, behind, group)
            for work in dist.batch_isend_irecv(list(ways)):
                work.wait()
            received[0].item()  # Waits for a GPU, too.
            took.append(time.perf_counter() - begin)
        seconds.append(min(took))
    return seconds[0], nbytes / max(seconds[1] - seconds[0], 1e-9)
