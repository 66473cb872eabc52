"""Collectives as schedules: who sends how many bytes to whom, in which order.

Each function here returns a `Schedule`. It stands beside its program, which also executes on arrays, in a module for
each family: ring, tree, doubling, direct, two_levels. Messages and results thus come from one description of the
algorithm. `simnet.collectives.registry` knows them all, with their closed forms and names, and those of other packages.

`n_ranks` is the number of ranks P, >= 1; one rank has nothing to send: no rounds. `nbytes` are the bytes of the whole
vector, of the contribution of one rank to an all-gather, or of what a rank sends to one other in an all-to-all, >= 0.
A parameter outside its range raises ValueError.

Examples
--------
An all-reduce of 5 floats between 3 ranks: the result, and the schedule of exactly these bytes.

>>> import numpy as np
>>> from simnet.collectives import registry
>>> program = registry.collective_by_name("allreduce_ring").program(3)
>>> program.run([np.arange(5.0)] * 3)[0]
array([ 0.,  3.,  6.,  9., 12.])
>>> chunk_nbytes = np.diff(program.bounds(5)) * 8
>>> chunk_nbytes, program.schedule(chunk_nbytes).bytes_sent()
(array([ 8, 16, 16]), array([56., 48., 56.]))
"""

from simnet.collectives.direct import alltoall_pairwise, alltoallv_pairwise, parameter_server
from simnet.collectives.doubling import (
    allgather_auto,
    allgather_bruck,
    allgather_recursive_doubling,
    allgatherv_auto,
    allgatherv_bruck,
    allgatherv_recursive_doubling,
    allreduce_rabenseifner,
    allreduce_recursive_doubling,
    alltoall_bruck,
    reduce_scatter_recursive_halving,
)
from simnet.collectives.ring import allgather_ring, allgatherv_ring, allreduce_ring, reduce_scatter_ring
from simnet.collectives.tree import allreduce_tree, broadcast_binomial, broadcast_tree, reduce_binomial, reduce_tree
from simnet.collectives.two_levels import hierarchical

__all__ = [
    "allgather_auto",
    "allgather_bruck",
    "allgather_recursive_doubling",
    "allgather_ring",
    "allgatherv_auto",
    "allgatherv_bruck",
    "allgatherv_recursive_doubling",
    "allgatherv_ring",
    "allreduce_rabenseifner",
    "allreduce_recursive_doubling",
    "allreduce_ring",
    "allreduce_tree",
    "alltoall_bruck",
    "alltoall_pairwise",
    "alltoallv_pairwise",
    "broadcast_binomial",
    "broadcast_tree",
    "hierarchical",
    "parameter_server",
    "reduce_binomial",
    "reduce_scatter_recursive_halving",
    "reduce_scatter_ring",
    "reduce_tree",
]
