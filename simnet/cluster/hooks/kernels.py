"""Selection kernels on PyTorch tensors, one worker's data for a DDP bucket, and the format of sparse messages.

On a processor kernels are those of `simnet.sparsifier_models.selection`; on a GPU those of torch, whose top-k takes any
of equal magnitudes, while simnet's takes the first ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from simnet.cluster.lazy_torch import torch
from simnet.sparsifier_models import selection


def top_k(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return the ascending indices (int64) of the `k` entries of largest magnitude; all indices if `k` is larger."""
    if not values.is_cuda:
        return torch.from_numpy(selection.top_k(values.numpy(), k))
    return torch.topk(values.abs(), min(k, values.numel()), sorted=False).indices.sort().values


def above(values: torch.Tensor, threshold: float, *, strict: bool = True) -> torch.Tensor:
    """Return the ascending indices (int64) of magnitudes above `threshold`, or at least `threshold` unless `strict`."""
    if not values.is_cuda:
        return torch.from_numpy(selection.above(values.numpy(), threshold, strict=strict))
    limit = torch.tensor(threshold, dtype=torch.float32, device=values.device)
    magnitude = values.abs()
    return (magnitude > limit if strict else magnitude >= limit).nonzero().flatten()


def kth_magnitude(values: torch.Tensor, k: int) -> float:
    """Return the k-th largest absolute value of a tensor, for k from 1 to its number of entries."""
    if not values.is_cuda:
        return selection.kth_magnitude(values.numpy(), k)
    return float(torch.topk(values.abs(), k, sorted=False).values.min().item())


def squared_norm(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares as a float32 tensor of one entry, accumulated in double precision."""
    if not values.is_cuda:
        return torch.tensor([selection.squared_norm(values.numpy())], dtype=torch.float32)
    return values.double().square().sum().float().reshape(1)


class BucketShare(NamedTuple):
    """One worker's data for a DDP bucket: scheme, rank, gradient with residual, and buffer for the update."""

    # The scheme of the bucket.
    model: Any
    rank: int
    # Shape (n,): Gradient with residual; an exchange leaves there what it keeps.
    given: torch.Tensor
    # Shape (n,): Receives the update; `given` itself if nothing is kept.
    update: torch.Tensor


Selected: TypeAlias = tuple[Any, ...]
"""The result of a worker's selection: all it has computed before its first message."""


def pack_entries(indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return k entries as one int32 message of shape (2 k,): the indices, followed by the bits of the values."""
    return torch.cat([indices.int(), values.view(torch.int32)])


def unpack_entries(message: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices and the float32 values of a message that `pack_entries` made."""
    indices, bits = message.chunk(2)
    return indices, bits.view(torch.float32)
