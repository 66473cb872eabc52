"""Ranks of a real job that send messages to each other: torch.distributed (NCCL or gloo) and MPI behind one face.

A communicator knows its rank, makes buffers where its library wants them (in the memory of the host, or of the GPU for
NCCL), and exchanges messages with other ranks, many at once. `validate.replay` runs schedules on it. Neither library is
needed before a communicator is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import InputError, nearest

Backend: TypeAlias = Literal["gloo", "nccl", "mpi"]
Bytes: TypeAlias = NDArray[np.uint8]
Message: TypeAlias = tuple[int, Any]
"""The other rank, and a buffer or a part of one."""

BACKENDS: tuple[Backend, ...] = ("gloo", "nccl", "mpi")

_SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


class Communicator:
    """The ranks of a job, as one of them sees them. Buffers are arrays of numpy where a library wants no others."""

    tool: str
    rank: int
    size: int

    def buffer(self, nbytes: int) -> Any:
        """Return a buffer of `nbytes` zeros that can be sliced."""
        return np.zeros(nbytes, dtype=np.uint8)

    def put(self, buffer: Any, content: Bytes) -> None:
        """Copy `content` into a buffer of that length."""
        buffer[:] = content

    def get(self, buffer: Any) -> Bytes:
        """Return a copy of what a buffer holds."""
        copy: Bytes = buffer.copy()
        return copy

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Start all messages at once, and end when they are done.

        On a GPU the call returns earlier: what follows it in the stream waits.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Wait until everything that was started is done, where `exchange` does not."""

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.gather(np.zeros(1))

    def gather(self, values: Floats) -> Floats:
        """Return the `values` of all ranks, shape (P, k); collective."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the job, where Python does not when it ends."""


def connect(backend: str) -> Communicator:
    """Join the job that this process is a rank of.

    Parameters
    ----------
    backend : {"gloo", "nccl", "mpi"}
        For gloo and nccl the environment must say who is who: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as
        ``torchrun`` sets them. Under Slurm the first two are taken from it.

    Raises
    ------
    InputError
        If there is no such backend, its library is not installed, or the environment says too little.
    """
    if backend == "mpi":
        return MpiCommunicator()
    if backend in ("gloo", "nccl"):
        return TorchCommunicator(backend)
    raise InputError(f"there is no backend {backend!r}; {nearest(backend, BACKENDS)}", file="--backend")


class TorchCommunicator(Communicator):
    """Ranks of torch.distributed; messages are batches of isend and irecv.

    Parameters
    ----------
    backend : {"gloo", "nccl"}
        What carries the messages. With nccl each rank has the GPU of its LOCAL_RANK.

    Raises
    ------
    InputError
        If torch or the backend is missing, or the environment does not say who is who.
    """

    def __init__(self, backend: str) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError:
            raise InputError("needs torch, which is not installed: pip install torch", file=backend) from None
        if not dist.is_available() or (backend == "nccl" and not dist.is_nccl_available()):
            raise InputError("is not in this build of torch", file=backend)
        for name, value in environment(os.environ).items():
            os.environ.setdefault(name, value)
        if backend == "nccl":
            if not torch.cuda.is_available():
                raise InputError("needs a GPU, and torch finds none", file=backend)
            self._device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self._device)
        else:
            self._device = torch.device("cpu")
        dist.init_process_group(backend)
        self._torch, self._dist = torch, dist
        self.tool = f"replay-{backend}"
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # NCCL wants every rank in the first call of a group.
        self.gather(np.zeros(1))

    def buffer(self, nbytes: int) -> Any:
        """Return a buffer of `nbytes` zeros that can be sliced."""
        return self._torch.zeros(nbytes, dtype=self._torch.uint8, device=self._device)

    def put(self, buffer: Any, content: Bytes) -> None:
        """Copy `content` into a buffer of that length."""
        buffer.copy_(self._torch.from_numpy(content))

    def get(self, buffer: Any) -> Bytes:
        """Return a copy of what a buffer holds."""
        copy: Bytes = buffer.cpu().numpy().copy()
        return copy

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Start all messages at once, and end when they are done; with nccl, have the stream wait for them."""
        dist = self._dist
        operations = [dist.P2POp(dist.irecv, part, peer) for peer, part in receives]
        operations += [dist.P2POp(dist.isend, part, peer) for peer, part in sends]
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()

    def finish(self) -> None:
        """Wait until everything that was started is done."""
        if self._device.type == "cuda":
            self._torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._dist.barrier()
        self.finish()

    def gather(self, values: Floats) -> Floats:
        """Return the `values` of all ranks, shape (P, k); collective."""
        own = self._torch.as_tensor(values, dtype=self._torch.float64, device=self._device)
        parts = [self._torch.empty_like(own) for _ in range(self.size)]
        self._dist.all_gather(parts, own)
        return np.stack([part.cpu().numpy() for part in parts])

    def close(self) -> None:
        """Leave the job."""
        self._dist.destroy_process_group()


class MpiCommunicator(Communicator):
    """Ranks of MPI_COMM_WORLD by mpi4py; messages are Isend and Irecv.

    Raises
    ------
    InputError
        If mpi4py is missing, or finds no MPI library.
    """

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            message = f"needs mpi4py and an MPI library, which do not load ({error}): pip install mpi4py"
            raise InputError(message, file="mpi") from None
        self._mpi, self._world = MPI, MPI.COMM_WORLD
        self.tool = "replay-mpi"
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Start all messages at once, and end when they are done."""
        world = self._world
        requests = [world.Irecv([part, self._mpi.BYTE], source=peer) for peer, part in receives]
        requests += [world.Isend([part, self._mpi.BYTE], dest=peer) for peer, part in sends]
        self._mpi.Request.Waitall(requests)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._world.Barrier()

    def gather(self, values: Floats) -> Floats:
        """Return the `values` of all ranks, shape (P, k); collective."""
        own = np.ascontiguousarray(values, dtype=np.float64)
        parts = np.empty((self.size, own.size))
        self._world.Allgather(own, parts)
        return parts


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return who is who for torch.distributed, where Slurm says it and ``torchrun`` does not.

    Raises
    ------
    InputError
        If neither says it.

    Examples
    --------
    >>> environment({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"})
    {'RANK': '3', 'WORLD_SIZE': '8'}
    """
    found = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name in given:
            continue
        if given.get(_SLURM.get(name, "")):
            found[name] = given[_SLURM[name]]
        elif name != "LOCAL_RANK":
            message = f"{name} is not in the environment; start the job with torchrun, or see examples/replay"
            raise InputError(message, file="torch.distributed")
    return found
