"""What a worker does to its own gradient: the kernels of the schemes on tensors.

On a processor they are those of `simnet.sparsifier_models.selection`, which `simnet calibrate device --library numpy`
measures; on a GPU those of torch, whose top-k takes any of equal magnitudes, while simnet's takes the first ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simnet.sparsifier_models import selection

if TYPE_CHECKING:
    from torch import Tensor


def top_k(values: Tensor, k: int) -> Tensor:
    """Return where the k entries of largest magnitude stand, ascending.

    Parameters
    ----------
    values : Tensor of float32, shape (n,)
    k : int
        Entries to select, >= 0; all if `k` >= n.

    Returns
    -------
    Tensor of int64, shape (min(k, n),)
    """
    import torch

    if not values.is_cuda:
        return torch.from_numpy(selection.top_k(values.numpy(), k))
    return torch.topk(values.abs(), min(k, values.numel()), sorted=False).indices.sort().values


def above(values: Tensor, threshold: float, *, strict: bool = True) -> Tensor:
    """Return where magnitudes exceed the threshold, ascending, as `simnet.sparsifier_models.selection.above`.

    Parameters
    ----------
    values : Tensor of float32, shape (n,)
    threshold : float
        Compared in float32.
    strict : bool
        Whether an entry as large as the threshold stays out.

    Returns
    -------
    Tensor of int64
    """
    import torch

    if not values.is_cuda:
        return torch.from_numpy(selection.above(values.numpy(), threshold, strict=strict))
    limit = torch.tensor(threshold, dtype=torch.float32, device=values.device)
    magnitude = values.abs()
    return (magnitude > limit if strict else magnitude >= limit).nonzero().flatten()


def kth_magnitude(values: Tensor, k: int) -> float:
    """Return the k-th largest magnitude of a tensor of float32, shape (n,), k in 1 .. n."""
    import torch

    if not values.is_cuda:
        return selection.kth_magnitude(values.numpy(), k)
    return float(torch.topk(values.abs(), k, sorted=False).values.min().item())


def squared_norm(values: Tensor) -> Tensor:
    """Return the sum of squares of a tensor of float32, added up in double precision; one entry of float32."""
    import torch

    if not values.is_cuda:
        return torch.tensor([selection.squared_norm(values.numpy())], dtype=torch.float32)
    return values.double().square().sum().float().reshape(1)
