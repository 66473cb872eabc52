"""PyTorch as modules that load at first use, so that this package can be imported where PyTorch is not installed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
else:

    class _LazyModule:
        """A module that is imported at the first use of one of its names."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            # Tools look for such names wherever they find a module, as doctest does for __wrapped__.
            if name.startswith("__") and name != "__version__":
                raise AttributeError(name)
            return getattr(import_module(self._name), name)

    torch, dist = _LazyModule("torch"), _LazyModule("torch.distributed")

__all__ = ["dist", "torch"]
