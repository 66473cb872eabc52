"""Process of a rank on a shaped network: it replays the workloads of a job file, and rank 0 writes the times.

Run by `simnet.validate.shapednet.experiment`: ``python -m simnet.validate.shapednet.worker JOB.json [RANK]``; MPI tells
the rank.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simnet.base.arrays import Floats
from simnet.cluster.measure.communicators import Communicator, Message, MpiCommunicator, TorchCommunicator
from simnet.cost_models.calibration.readers import write_tidy
from simnet.interchange.messages_csv import read_messages
from simnet.validate.replay import Workload, measure_replay, table
from simnet.validate.shapednet.rank import begin, meet_at

_PORT = 29600
_PATIENCE = 60.0


class SocketCommunicator(Communicator):
    """Communicator of ranks by plain TCP sockets; a Unix socket to rank 0 is for control.

    Parameters
    ----------
    rank : int
        Which one this is.
    addresses : sequence of str
        The IPv4 addresses of all ranks.
    control : Path
        Where the Unix socket lies that rank 0 makes; the same for all.
    """

    tool = "replay-tcp"

    def __init__(self, rank: int, addresses: Sequence[str], control: Path) -> None:
        self.rank, self.size = rank, len(addresses)
        self._control = _join_sockets(rank, self.size, control)
        with socket.create_server((addresses[rank], _PORT), backlog=self.size) as server:
            self.barrier()
            self._peers: dict[int, socket.socket] = {}
            for other in range(rank):
                connection = socket.create_connection((addresses[other], _PORT), timeout=_PATIENCE)
                connection.sendall(bytes([rank]))
                self._peers[other] = connection
            server.settimeout(_PATIENCE)
            for _ in range(rank + 1, self.size):
                connection, _address = server.accept()
                self._peers[_read_exactly(connection, 1)[0]] = connection
        for connection in self._peers.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
        self.barrier()

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Start all messages at once and wait for them; TimeoutError if no message makes progress."""
        waiting: dict[int, tuple[int, deque[memoryview], deque[memoryview]]] = {}
        for messages, place in ((sends, 1), (receives, 2)):
            for peer, part in messages:
                if peer not in waiting:
                    waiting[peer] = (peer, deque(), deque())
                waiting[peer][place].append(memoryview(part))  # type: ignore[union-attr]
        by_file = {self._peers[peer].fileno(): entry for peer, entry in waiting.items()}
        poll = select.poll()
        for peer, out, _into in list(by_file.values()):
            _advance(out, self._peers[peer].send)
        for file, (_peer, out, into) in list(by_file.items()):
            if not _listen_for(poll, file, out, into):
                del by_file[file]
        while by_file:
            ready = poll.poll(_PATIENCE * 1000)
            if not ready:
                raise TimeoutError(f"rank {self.rank} has waited {_PATIENCE:g} s for messages")
            for file, event in ready:
                peer, out, into = by_file[file]
                if event & select.POLLOUT and out:
                    _advance(out, self._peers[peer].send)
                if event & (select.POLLIN | select.POLLHUP | select.POLLERR) and into:
                    _advance(into, self._peers[peer].recv_into)
                if not _listen_for(poll, file, out, into):
                    del by_file[file]

    def gather(self, values: Floats) -> Floats:
        """Return the `values` of all ranks, shape (P, k); all ranks must call it."""
        own = np.ascontiguousarray(values, dtype=np.float64)
        if self.rank:
            self._control[0].sendall(own.tobytes())
            return np.frombuffer(_read_exactly(self._control[0], self.size * own.nbytes)).reshape(self.size, -1).copy()
        parts = [own.tobytes()] + [_read_exactly(one, own.nbytes) for one in self._control]
        for one in self._control:
            one.sendall(b"".join(parts))
        return np.frombuffer(b"".join(parts)).reshape(self.size, -1).copy()

    def close(self) -> None:
        """Close all connections to other ranks."""
        for one in (*self._peers.values(), *self._control):
            one.close()


def _join_sockets(rank: int, size: int, control: Path) -> list[socket.socket]:
    """Return the control sockets: on rank 0 the sockets to all other ranks, elsewhere the socket to rank 0."""
    stop = time.monotonic() + _PATIENCE
    if rank == 0:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(control))
            server.listen(size)
            server.settimeout(_PATIENCE)
            found = {}
            for _ in range(size - 1):
                connection, _address = server.accept()
                connection.settimeout(_PATIENCE)
                found[_read_exactly(connection, 1)[0]] = connection
        return [found[other] for other in range(1, size)]
    while True:
        own = socket.socket(socket.AF_UNIX)
        try:
            own.connect(str(control))
        except (FileNotFoundError, ConnectionRefusedError):
            own.close()
            if time.monotonic() > stop:
                raise
            time.sleep(0.02)
            continue
        own.settimeout(_PATIENCE)
        own.sendall(bytes([rank]))
        return [own]


def _listen_for(poll: select.poll, file: int, out: deque[memoryview], into: deque[memoryview]) -> bool:
    """Poll a connection for the events that its buffers need; return False if there are no such events."""
    events = (select.POLLOUT if out else 0) | (select.POLLIN if into else 0)
    if events:
        poll.register(file, events)
        return True
    with suppress(KeyError):
        poll.unregister(file)
    return False


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise ConnectionError("another rank has gone")
        parts += part
    return parts


def _advance(parts: deque[memoryview], pass_on: Callable[[memoryview], int]) -> None:
    """Send or receive buffers by `pass_on` until the socket would block, and remove the completed buffers."""
    while parts:
        try:
            count = pass_on(parts[0])
        except BlockingIOError:
            return
        if count == 0:
            raise ConnectionError("another rank has gone")
        parts[0] = parts[0][count:]
        if not parts[0]:
            parts.popleft()


def main(job_file: str, rank: int = 0) -> None:
    """Run the workloads of a job file on one rank, one after the other."""
    job: dict[str, Any] = json.loads(Path(job_file).read_text(encoding="utf-8"))
    begin(job["owner"], job["limit"])
    communicator = _connect_rank(job, rank)
    tables = []
    for one in job["work"]:
        work = Workload(read_messages(one["schedule"], n_ranks=communicator.size), one["facts"])
        done = measure_replay(
            work.schedule,
            communicator,
            repetitions=one["repetitions"],
            warmup=one["warmup"],
            check=False,
            one_clock=True,
        )
        rows = table(work, done, communicator.tool)
        rows["began"] = [float(each.began.min()) for each in done]
        tables.append(rows)
    if communicator.rank == 0:
        part = Path(f"{job['out']}.part")
        write_tidy(pd.concat(tables, ignore_index=True), part)
        part.replace(job["out"])
    communicator.barrier()
    communicator.close()


def _connect_rank(job: dict[str, Any], rank: int) -> Communicator:
    addresses = job["addresses"]
    if job["backend"] == "tcp":
        return SocketCommunicator(rank, addresses, Path(job["control"]))
    if job["backend"] == "mpich":
        joined = MpiCommunicator()
        joined.tool = "replay-mpich"
        return joined
    meet_at(addresses[0])
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(addresses))}
    return TorchCommunicator("gloo")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
