"""A process group of the hook's own, whose threads can be ended.

The threads of a gloo group release tensors after a call has returned, for which they take the lock of the interpreter;
if the interpreter ends meanwhile, the process aborts. DDP never releases its group, so only a group of our own ends
with its threads.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def new_group_like(group: Any, backend: str | None = None) -> Any:
    """Return a new group of the workers of another, of all if None; all of them must call."""
    import torch.distributed as dist

    if group is None:
        return dist.new_group(backend=backend)
    ranks = dist.get_process_group_ranks(group)
    return dist.new_group(ranks, backend=backend or dist.get_backend(group), use_local_synchronization=True)


def global_rank(group: Any, rank: int) -> int:
    """Return the global rank of a worker of a group, of all if None."""
    import torch.distributed as dist

    return rank if group is None else int(dist.get_global_rank(group, rank))


def destroy_group(group: Any) -> None:
    """Destroy a group, unless all groups are destroyed already; its threads end once nothing refers to it."""
    import torch.distributed as dist

    with suppress(ValueError):
        dist.destroy_process_group(group)
