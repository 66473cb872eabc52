"""A process group of the hook's own, whose threads can be ended.

The threads of a gloo group release the tensors of a call after it has returned, for which they take the lock of the
interpreter; one that does so while the interpreter ends aborts the process. DDP never lets go of its group, so that
destroying that leaves its threads as they are: only a group that nobody else holds ends with its threads.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def like(group: Any, backend: str | None = None) -> Any:
    """Return a new group of the workers of another; all of them must call.

    Parameters
    ----------
    group : ProcessGroup, optional
        The workers, and what carries their messages; all when omitted.
    backend : str, optional
        What carries messages instead.

    Returns
    -------
    ProcessGroup
    """
    import torch.distributed as dist

    if group is None:
        return dist.new_group(backend=backend)
    ranks = dist.get_process_group_ranks(group)
    return dist.new_group(ranks, backend=backend or dist.get_backend(group), use_local_synchronization=True)


def number(group: Any, rank: int) -> int:
    """Return the number of a worker of a group, of all when None, among all processes."""
    import torch.distributed as dist

    return rank if group is None else int(dist.get_global_rank(group, rank))


def destroy(group: Any) -> None:
    """Destroy a group, unless that has been done with all groups; its threads end once nothing refers to it."""
    import torch.distributed as dist

    with suppress(ValueError):
        dist.destroy_process_group(group)
