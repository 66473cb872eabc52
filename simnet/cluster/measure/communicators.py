"""Communication between ranks of a real job, with one interface for torch.distributed (NCCL or gloo) and MPI.

`simnet.cluster.measure.running` times their collectives, `simnet.validate.replay` runs schedules on them. Libraries are
imported when a communicator is made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from simnet.base.arrays import Floats
from simnet.base.errors import InputError, check_choice, import_extra, to_install
from simnet.cluster.lazy_torch import dist, torch

Backend: TypeAlias = Literal["gloo", "nccl", "mpi"]
Bytes: TypeAlias = NDArray[np.uint8]
Message: TypeAlias = tuple[int, Any]
"""A message: the peer rank, and a buffer or a slice of a buffer."""

BACKENDS: tuple[Backend, ...] = ("gloo", "nccl", "mpi")

_SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}

_MPI_LIBRARIES = {"MPICH": "mpich", "Open MPI": "openmpi"}


class Communicator:
    """One rank's access to its job. Buffers are NumPy arrays unless the communication library needs other types."""

    # The carrier of messages, and its name in `simnet.validate.replay`.
    library: str
    tool: str
    # This rank, and the number of ranks.
    rank: int
    size: int

    def buffer(self, nbytes: int) -> Any:
        """Return a buffer of `nbytes` zeros that can be sliced."""
        return np.zeros(nbytes, dtype=np.uint8)

    def vector(self, length: int) -> Any:
        """Return a buffer of `length` zeros in single precision."""
        return np.zeros(length, dtype=np.float32)

    def put(self, buffer: Any, content: NDArray[Any]) -> None:
        """Copy `content`, which has the buffer's length and type, into a buffer."""
        buffer[:] = content

    def get(self, buffer: Any) -> NDArray[Any]:
        """Return a copy of a buffer's content."""
        copy: NDArray[Any] = buffer.copy()
        return copy

    def group(self, ranks: Sequence[int]) -> Any:
        """Return a handle of a group of ranks, for `collective`; all ranks of the job call this."""
        raise NotImplementedError

    def release(self, group: Any) -> None:
        """Free a group; all its members call this."""
        raise NotImplementedError

    def collective(self, name: str, out: Any, into: Any, group: Any, root: int = 0) -> None:
        """Call the collective `name` at all members of a group; on a GPU the call returns before the collective ends.

        It is all_reduce or broadcast, which leave the result in `out`, all_gather, reduce_scatter or alltoall. `root`
        is the place in the group of the rank that broadcasts.
        """
        raise NotImplementedError

    def versions(self) -> dict[str, str]:
        """Return the versions of the communication libraries, by name."""
        return {}

    def abort(self, why: str) -> None:
        """End all ranks of the job after an error, so that no rank waits for ever."""

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Start all messages at once and wait for them; on a GPU the CUDA stream waits, not the caller."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait until all started work has ended, including messages that `exchange` started on a GPU."""

    def barrier(self) -> None:
        """Wait until all ranks of the job have called this."""
        self.gather(np.zeros(1))

    def gather(self, values: Floats) -> Floats:
        """Return the `values` of all ranks, shape (P, k); every rank calls this with k values."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the job; does nothing for libraries that, like MPI, leave it when Python exits."""


def connect_ranks(backend: str, patience: float | None = None) -> Communicator:
    """Join this process to its job by `backend`: gloo, nccl or mpi. Wait for other ranks for at most `patience` [s].

    gloo and nccl need RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the environment, as ``torchrun`` sets them. Under
    Slurm the first two follow from its variables. InputError if there is no such backend, its library is not installed,
    or the environment is incomplete.
    """
    check_choice(backend, "backend", BACKENDS, file="--backend")
    return MpiCommunicator() if backend == "mpi" else TorchCommunicator(backend, patience)


class TorchCommunicator(Communicator):
    """Access to a job by torch.distributed; with NCCL each rank uses GPU number LOCAL_RANK modulo the GPU count."""

    def __init__(self, backend: str, patience: float | None = None) -> None:
        import_extra("torch", "replay", "needs torch, which is not installed", backend)
        if not dist.is_available() or (backend == "nccl" and not dist.is_nccl_available()):
            raise InputError("is not in this build of torch", file=backend)
        for name, value in torch_environment(os.environ).items():
            os.environ.setdefault(name, value)
        if backend == "nccl":
            if not torch.cuda.is_available():
                raise InputError("needs a GPU, and torch finds none", file=backend)
            # Where Slurm gives each rank its own GPU, each of them is number 0.
            number = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
            self._device = torch.device("cuda", number)
            torch.cuda.set_device(self._device)
        else:
            self._device = torch.device("cpu")
        self._options: dict[str, Any] = {} if patience is None else {"timeout": timedelta(seconds=patience)}
        try:
            dist.init_process_group(backend, **self._options)
        except RuntimeError as error:
            raise InputError(f"the ranks do not meet: {first_line(error)}", file=backend) from None
        # By the names that later versions have for them.
        self._two_buffers = {
            "all_gather": getattr(dist, "all_gather_single", dist.all_gather_into_tensor),
            "reduce_scatter": getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor),
            "alltoall": dist.all_to_all_single,
        }
        self.library, self.tool = backend, f"replay-{backend}"
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # NCCL wants every rank in the first call of a group.
        self.gather(np.zeros(1))

    def buffer(self, nbytes: int) -> Any:
        """Return a buffer of `nbytes` zeros that can be sliced."""
        return torch.zeros(nbytes, dtype=torch.uint8, device=self._device)

    def vector(self, length: int) -> Any:
        """Return a buffer of `length` zeros in single precision."""
        return torch.zeros(length, device=self._device)

    def put(self, buffer: Any, content: NDArray[Any]) -> None:
        """Copy `content` into a buffer."""
        buffer.copy_(torch.from_numpy(content))

    def get(self, buffer: Any) -> NDArray[Any]:
        """Return a copy of a buffer's content on the host."""
        copy: NDArray[Any] = buffer.cpu().numpy().copy()
        return copy

    def group(self, ranks: Sequence[int]) -> Any:
        """Return a process group of some ranks."""
        if len(ranks) == self.size:
            return dist.group.WORLD
        return dist.new_group(list(ranks), **self._options)

    def release(self, group: Any) -> None:
        """Destroy a process group."""
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)

    def collective(self, name: str, out: Any, into: Any, group: Any, root: int = 0) -> None:
        """Call the torch.distributed collective `name` on flat tensors from `out` to `into`, or in place in `out`."""
        if name == "all_reduce":
            dist.all_reduce(out, group=group)
        elif name == "broadcast":
            dist.broadcast(out, src=dist.get_global_rank(group, root), group=group)
        else:
            self._two_buffers[name](into, out, group=group)

    def versions(self) -> dict[str, str]:
        """Return the versions of torch, CUDA and NCCL."""
        found = {"torch": str(torch.__version__)}
        if self._device.type == "cuda":
            found |= {"CUDA": str(torch.version.cuda), "NCCL": ".".join(map(str, torch.cuda.nccl.version()))}
            found["GPU"] = torch.cuda.get_device_name()
        return found

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Start all messages at once and wait for them; with NCCL the CUDA stream waits, not the caller."""
        operations = [dist.P2POp(dist.irecv, part, peer) for peer, part in receives]
        operations += [dist.P2POp(dist.isend, part, peer) for peer, part in sends]
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()

    def finish(self) -> None:
        """Wait until all started work is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def barrier(self) -> None:
        """Wait until all ranks of the job have called this."""
        dist.barrier()
        self.finish()

    def gather(self, values: Floats) -> Floats:
        """Return the `values` of all ranks, shape (P, k); every rank calls this with k values."""
        own = torch.as_tensor(values, dtype=torch.float64, device=self._device)
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own)
        return np.stack([part.cpu().numpy() for part in parts])

    def close(self) -> None:
        """Destroy the process group, and leave the job."""
        dist.destroy_process_group()


class MpiCommunicator(Communicator):
    """Access to a job by mpi4py, with all ranks of MPI_COMM_WORLD; InputError if mpi4py or MPI is missing."""

    def __init__(self) -> None:
        try:
            from mpi4py import MPI, __version__
        except (ImportError, RuntimeError) as error:
            message = f"needs mpi4py and an MPI library, which do not load ({error}): {to_install('mpi')}"
            raise InputError(message, file="mpi") from None
        self._mpi, self._world = MPI, MPI.COMM_WORLD
        named = MPI.Get_library_version()
        self.library = next((name for mark, name in _MPI_LIBRARIES.items() if named.startswith(mark)), "mpi")
        self.tool, self._binding = "replay-mpi", str(__version__)
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Start all messages at once, and wait for them."""
        world = self._world
        requests = [world.Irecv([part, self._mpi.BYTE], source=peer) for peer, part in receives]
        requests += [world.Isend([part, self._mpi.BYTE], dest=peer) for peer, part in sends]
        self._mpi.Request.Waitall(requests)

    def barrier(self) -> None:
        """Wait until all ranks of the job have called this."""
        self._world.Barrier()

    def gather(self, values: Floats) -> Floats:
        """Return the `values` of all ranks, shape (P, k); every rank calls this with k values."""
        own = np.ascontiguousarray(values, dtype=np.float64)
        parts = np.empty((self.size, own.size))
        self._world.Allgather(own, parts)
        return parts

    def group(self, ranks: Sequence[int]) -> Any:
        """Return a communicator of some ranks."""
        return self._world.Split(0 if self.rank in ranks else self._mpi.UNDEFINED, self.rank)

    def release(self, group: Any) -> None:
        """Free a communicator."""
        group.Free()

    def collective(self, name: str, out: Any, into: Any, group: Any, root: int = 0) -> None:
        """Call a collective of MPI at all members of a communicator."""
        if name == "all_reduce":
            group.Allreduce(self._mpi.IN_PLACE, out)
        elif name == "broadcast":
            group.Bcast(out, root=root)
        else:
            calls = {"all_gather": "Allgather", "reduce_scatter": "Reduce_scatter_block", "alltoall": "Alltoall"}
            getattr(group, calls[name])(out, into)

    def versions(self) -> dict[str, str]:
        """Return the versions of mpi4py and of the MPI library."""
        # What follows names the machine that the library was built on.
        named = self._mpi.Get_library_version().partition("\n")[0].partition(",")[0]
        return {"mpi4py": self._binding, "MPI": " ".join(named.split())}

    def abort(self, why: str) -> None:
        """End all ranks of the job after an error, as the others would wait for ever."""
        sys.stderr.write(f"error: {why}\n")
        sys.stderr.flush()
        self._world.Abort(2)


def torch_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return torch.distributed's variables that `given` lacks, from Slurm's variables; InputError if there are none."""
    found = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name in given:
            continue
        if given.get(_SLURM.get(name, "")):
            found[name] = given[_SLURM[name]]
        elif name != "LOCAL_RANK":
            message = f"{name} is not in the environment; start the job with torchrun or srun, see examples"
            raise InputError(message, file="torch.distributed")
    return found


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error message, cut to 200 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
