"""Gradient exchange under PyTorch's DistributedDataParallel (DDP), by the schemes that simnet simulates.

`Hook` is a communication hook: dense, half precision, AG-Topk, AR-Topk, Ok-Topk or ExDyna, fixed or chosen by a table
of ``simnet choose --export policy.json``, on gloo and NCCL. Its update and its messages are those of
`simnet.sparsifier_models` on the same gradients. `Trainer` runs iterations and logs their times.

PyTorch is imported when a hook is made: ``pip install 'simnet-sparse[train]'``.
"""

from simnet.cluster.hooks.hook import Hook, Trainer
from simnet.cluster.hooks.log import COLUMNS
from simnet.cluster.hooks.messages import shifted

__all__ = ["COLUMNS", "Hook", "Trainer", "shifted"]
