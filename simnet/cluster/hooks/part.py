"""A worker's share of a bucket, and the format of sparse messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


class BucketShare(NamedTuple):
    """A worker's share of a bucket."""

    # The scheme of the bucket.
    model: Any
    rank: int
    # Shape (n,): Gradient with residual; an exchange leaves there what it keeps.
    given: Tensor
    # Shape (n,): Receives the update; `given` itself if nothing is kept.
    update: Tensor


Selected: TypeAlias = tuple[Any, ...]
"""What a worker has ready before its first message."""


def pack_entries(indices: Tensor, values: Tensor) -> Tensor:
    """Return entries as one message, int32 of shape (2 k,): the indices, then the bits of the values."""
    import torch

    return torch.cat([indices.int(), values.view(torch.int32)])


def unpack_entries(message: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices and values of a message of `pack_entries`."""
    import torch

    indices, bits = message.chunk(2)
    return indices, bits.view(torch.float32)
