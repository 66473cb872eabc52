"""Training iterations with a hook, and a log of their stage times."""

from __future__ import annotations

import time
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any

from simnet.cluster.hooks.hook import Hook
from simnet.cluster.hooks.log import IterationLog

if TYPE_CHECKING:
    from torch import Tensor


class Trainer:
    """Runs training iterations of a DDP model with a hook, and logs their stage times.

    Parameters
    ----------
    model, optimizer, hook : DistributedDataParallel, torch.optim.Optimizer, Hook
        The model, the optimizer of its parameters, and the exchange.
    log : str or Path, optional
        Folder of the log, ``rank_<r>.csv`` with `simnet.cluster.hooks.log.COLUMNS`; InputError if it has a log already.
    """

    def __init__(self, model: Any, optimizer: Any, hook: Hook, log: str | PathLike[str] | None = None) -> None:
        self.model, self.optimizer, self.hook = model, optimizer, hook.attach(model)
        self._clock = hook.clock(next(model.parameters()).device)
        self._log = None if log is None else IterationLog(log, hook.rank, self._clock)
        self._first: float | None = None

    def step(self, loss: Callable[[], Tensor]) -> Tensor:
        """Run one iteration, and return the loss; SimnetError if a gradient is not finite."""
        mark, now = self._clock.mark, time.perf_counter()
        if self._first is None:
            self._first = now
        began = mark()
        found = loss()
        try:
            found.backward()
        except Exception:
            self.hook.check()
            raise
        self.hook.check()
        updating = mark()
        self.optimizer.step()
        self.optimizer.zero_grad()
        ended = mark()
        if self._log is not None:
            assert self.hook.marks is not None, "DDP has handed over no bucket"
            self._log.add(self.hook.marks, now - self._first, began, updating, ended)
        return found

    def close(self) -> None:
        """Close the hook, and write the rest of the log."""
        self.hook.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
