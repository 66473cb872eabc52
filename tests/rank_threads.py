"""A communicator whose ranks are threads of this process, with messages, groups and collectives of its own."""

import queue
import threading

import numpy as np

import killing
from simnet.cluster.measure.communicators import Communicator


class Threads(Communicator):
    """Every pair of ranks has a queue, every group a gate and a table."""

    library = "gloo"
    tool = "replay-threads"

    def __init__(self, size):
        self.size = size
        self.queues = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
        self.groups, self.lock = {}, threading.Lock()
        self.world = self._group(tuple(range(size)))

    def _group(self, ranks):
        with self.lock:
            if ranks not in self.groups:
                gate = threading.Barrier(len(ranks), timeout=killing.PATIENCE)
                self.groups[ranks] = (ranks, gate, [None] * len(ranks))
            return self.groups[ranks]

    def of(self, rank):
        one = object.__new__(type(self))
        one.__dict__ |= self.__dict__ | {"rank": rank, "released": []}
        return one

    def abort(self, why=""):
        for _, gate, _ in self.groups.values():
            gate.abort()

    def exchange(self, sends, receives):
        for peer, part in sends:
            self.queues[self.rank, peer].put(part.copy())
        for peer, part in receives:
            part[:] = self.queues[peer, self.rank].get(timeout=killing.PATIENCE)

    def gather(self, values):
        return self._together(np.array(values, dtype=float), self.world)

    def group(self, ranks):
        return self._group(tuple(ranks))

    def release(self, group):
        assert self.rank in group[0]
        self.released.append(group[0])

    def collective(self, name, out, into, group, root=0):
        place = group[0].index(self.rank)
        every = self._together(out, group)
        part = len(out) // len(every)
        own = slice(place * part, (place + 1) * part)
        if name == "all_reduce":
            out[:] = every.sum(axis=0)
        elif name == "broadcast":
            out[:] = every[root]
        elif name == "all_gather":
            into[:] = every.ravel()
        elif name == "reduce_scatter":
            into[:] = every.sum(axis=0)[own]
        else:
            into[:] = every[:, own].ravel()

    def _together(self, values, group):
        ranks, gate, table = group
        table[ranks.index(self.rank)] = values.copy()
        gate.wait()
        together = np.stack(table)
        gate.wait()
        return together


def run_ranks(size, work, kind=Threads):
    """Run `work(communicator)` at every rank, each in a thread; returns what they return, or raises the first error."""
    shared, results, errors = kind(size), [None] * size, []

    def one(rank):
        try:
            results[rank] = work(shared.of(rank))
        except BaseException as error:
            errors.append(error)
            shared.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
