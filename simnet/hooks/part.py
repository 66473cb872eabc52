"""What a worker has of a bucket, and how entries become a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


class Part(NamedTuple):
    """What a worker has of a bucket.

    Parameters
    ----------
    model : Sparsifier
        The scheme as the bucket has it.
    rank : int
        Which worker.
    given : Tensor of float32, shape (n,)
        Its gradient with its residual; an exchange leaves there what it keeps.
    update : Tensor of float32, shape (n,)
        Where the update belongs; `given` itself where nothing is kept.
    """

    model: Any
    rank: int
    given: Tensor
    update: Tensor


Selected: TypeAlias = tuple[Any, ...]
"""What a worker has ready before its first message."""


def packed(indices: Tensor, values: Tensor) -> Tensor:
    """Return entries as one message: indices in four bytes, then the bits of the values.

    Parameters
    ----------
    indices : Tensor of int, shape (k,)
    values : Tensor of float32, shape (k,)

    Returns
    -------
    Tensor of int32, shape (2 k,)
    """
    import torch

    return torch.cat([indices.int(), values.view(torch.int32)])


def unpacked(message: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices, of four bytes each, and the values that `packed` has put into one message."""
    import torch

    indices, bits = message.chunk(2)
    return indices, bits.view(torch.float32)
