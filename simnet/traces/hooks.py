"""Records gradients of PyTorch models, as a communication hook of DistributedDataParallel or in a single process.

PyTorch is imported when a recording begins.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simnet.base.errors import check_int, import_extra
from simnet.traces.recording import Recorder

Hook = Callable[[Any, Any], Any]
"""A communication hook of DDP: takes its state and a bucket, returns a future of the bucket's reduced gradients."""


class TorchRecording:
    """A recording of a PyTorch model's gradients, which `record` creates; a ``with`` block closes it at its end.

    `microbatches` backward passes of a step are each recorded as a worker; their gradients add up if it `accumulates`.
    """

    def __init__(self, recorder: Recorder, module: Any, microbatches: int = 1, accumulates: bool = False) -> None:
        self.recorder = recorder
        self._parameters = {name: one for name, one in module.named_parameters() if one.requires_grad}
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._microbatches, self._accumulates = microbatches, accumulates
        self._passes = 0
        self._before: dict[str, NDArray[np.float32]] = {}
        self._entries: dict[tuple[str, Any], Any] = {}
        self._removed: list[Any] = []
        self._loss: float | None = None

    @property
    def overhead(self) -> float:
        """Time spent in the recorder, divided by the time of the rest of the run."""
        return self.recorder.overhead

    def step(self, loss: Any = None) -> None:
        """Record the current gradients of all parameters, if the current step is to be recorded.

        In a process without DDP, call it after each backward pass and before the optimizer's step. The `loss` of the
        batch is written into the description.
        """
        if self.recorder.wanted:
            self._take((name, one.grad) for name, one in self._parameters.items() if one.grad is not None)
            if loss is not None:
                number = float(loss.detach() if hasattr(loss, "detach") else loss)
                self._loss = (self._loss or 0.0) + number / self._microbatches
        self._passes += 1
        if self._passes == self._microbatches:
            self._passes, self._before = 0, {}
            self.recorder.end_step(self._loss)
            self._loss = None

    def bucket(self, bucket: Any) -> bool:
        """Record a gradient bucket of DDP and return True; the last bucket ends the step."""
        if self.recorder.wanted:
            names = (self._names[id(parameter)] for parameter in bucket.parameters())
            self._take(zip(names, bucket.gradients(), strict=True))
        if bucket.is_last():
            self.recorder.end_step()
        return True

    def hook(self, inner: Hook | None = None, state: Any = None) -> Hook:
        """Return a DDP communication hook that records each bucket and then reduces it by the `inner` hook.

        `inner` reduces, with `state` as its state; by default the mean over all workers.
        """
        reduce: Any = inner
        if reduce is None:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            reduce = allreduce_hook

        # Without annotations, which DDP compares with types of its own.
        return lambda _, bucket: self.bucket(bucket) and reduce(state, bucket)

    def close(self) -> None:
        """Finish the recording; all processes of a job must call it."""
        for hook in self._removed:
            hook.remove()
        self._removed = []
        if not self.recorder.step:
            warnings.warn(
                "no step was recorded: give an optimizer to record, call step() after each backward pass, or put the "
                "model into DistributedDataParallel before",
                stacklevel=2,
            )
        self.recorder.close()

    def __enter__(self) -> TorchRecording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, gradients: Iterable[tuple[str, Any]]) -> None:
        """Record the gradients of a backward pass; if gradients accumulate, first subtract those of earlier passes."""
        with self.recorder.timed():
            found = {name: self._fetched(name, gradient) for name, gradient in gradients}
            if self._accumulates:
                fresh = {name: values - self._before.get(name, 0) for name, values in found.items()}
                found, self._before = fresh, found
            self.recorder.take(found, self._passes, chosen=True)

    def _fetched(self, name: str, gradient: Any) -> NDArray[np.float32]:
        """Return the recorded entries of a gradient as float32 on the CPU."""
        import torch

        flat = gradient.detach()
        flat = (flat.to_dense() if flat.is_sparse else flat).reshape(-1)
        part = self.recorder.entries[name]
        if part is not None:
            key = (name, flat.device)
            if key not in self._entries:
                self._entries[key] = torch.from_numpy(part).to(flat.device)
            flat = flat.index_select(0, self._entries[key])
        found: NDArray[np.float32] = flat.float().cpu().numpy()
        return found.copy() if self._accumulates else found


def record(
    model: Any,
    folder: str | PathLike[str],
    *,
    optimizer: Any = None,
    microbatches: int = 1,
    accumulates: bool = False,
    inner: Hook | None = None,
    state: Any = None,
    register: bool = True,
    about: str = "",
    **options: Any,
) -> TorchRecording:
    """Record gradients of a PyTorch model while it trains, as a trace that `simnet.traces.recorded` reads.

    A model in DistributedDataParallel is recorded by a communication hook, which this registers: every process calls it
    with the same folder, and each bucket is recorded before it is reduced. Another model is recorded at each step of
    `optimizer`, or, without one, when `TorchRecording.step` is called after a backward pass.

    Parameters
    ----------
    model : torch.nn.Module
        The model, in DistributedDataParallel or not.
    folder : str or Path
        Folder of the trace; a shared one if the processes are on several machines.
    optimizer : torch.optim.Optimizer, optional
        In one process, its steps are those of the run.
    microbatches : int
        In one process, backward passes of a step, each recorded as a worker; `TorchRecording.step` follows each.
    accumulates : bool
        If true, gradients of these passes add up, as they are not zeroed in between.
    inner, state : optional
        With DDP, another communication hook and its state, which reduces the buckets.
    register : bool
        With DDP, register the hook here; if not, the script registers `TorchRecording.hook`.
    about : str
        Description of the model.
    **options
        Options of `simnet.traces.recording.Recorder`.

    Raises
    ------
    ValueError
        If a parameter is out of range, or has no meaning for this model.
    InputError
        If the folder holds a trace already or cannot be made, or PyTorch is not installed.
    """
    torch = import_extra("torch", "train", "recording needs PyTorch", "simnet.traces.record")
    from torch.nn.parallel import DistributedDataParallel

    check_int(microbatches, "microbatches", 1)
    if optimizer is not None and not hasattr(optimizer, "register_step_pre_hook"):
        raise ValueError(f"optimizer must be one of torch.optim, got {type(optimizer).__name__}")
    distributed = isinstance(model, DistributedDataParallel)
    if distributed and (optimizer is not None or microbatches != 1 or accumulates):
        raise ValueError("optimizer, microbatches and accumulates are for models that are not in DDP")
    if not distributed and (inner is not None or state is not None):
        raise ValueError("inner and state are for models in DDP")
    if optimizer is not None and microbatches != 1:
        raise ValueError("with microbatches call step() after each backward pass, without optimizer")
    if accumulates and microbatches == 1:
        raise ValueError("accumulates is for microbatches > 1")
    module = model.module if distributed else model
    shapes = {one: tuple(parameter.shape) for one, parameter in module.named_parameters() if parameter.requires_grad}
    group = model.process_group if distributed else None
    recorder = Recorder(
        folder,
        shapes,
        workers=torch.distributed.get_world_size(group) if distributed else microbatches,
        worker=torch.distributed.get_rank(group) if distributed else None,
        model=about or type(module).__name__,
        software={"torch": str(torch.__version__)},
        **options,
    )
    recording = TorchRecording(recorder, module, microbatches, accumulates)
    if distributed and register:
        model.register_comm_hook(None, recording.hook(inner, state))
    if optimizer is not None:
        recording._removed.append(optimizer.register_step_pre_hook(lambda *_: recording.step()))
    return recording
