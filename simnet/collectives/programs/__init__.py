"""The collectives as programs: each algorithm written once, with chunks in place of bytes.

Every function takes the number of ranks and the options of its namesake in `simnet.collectives`, and returns a
`Program` with ``.schedule(chunk_nbytes)`` and ``.run(buffers)``.

Examples
--------
An all-reduce of 5 floats between 3 ranks: the result, and the schedule of exactly these bytes.

>>> import numpy as np
>>> program = allreduce_ring(3)
>>> program.run([np.arange(5.0)] * 3)[0]
array([ 0.,  3.,  6.,  9., 12.])
>>> chunk_nbytes = np.diff(program.bounds(5)) * 8
>>> chunk_nbytes, program.schedule(chunk_nbytes).bytes_sent()
(array([ 8, 16, 16]), array([56., 48., 56.]))
"""

from simnet.collectives.programs.direct import alltoall_pairwise, parameter_server
from simnet.collectives.programs.doubling import (
    allgather_bruck,
    allgather_recursive_doubling,
    allreduce_rabenseifner,
    allreduce_recursive_doubling,
)
from simnet.collectives.programs.hierarchical import hierarchical
from simnet.collectives.programs.ring import allgather_ring, allreduce_ring, reduce_scatter_ring
from simnet.collectives.programs.tree import (
    allreduce_tree,
    broadcast_binomial,
    broadcast_tree,
    reduce_binomial,
    reduce_tree,
)

__all__ = [
    "allgather_bruck",
    "allgather_recursive_doubling",
    "allgather_ring",
    "allreduce_rabenseifner",
    "allreduce_recursive_doubling",
    "allreduce_ring",
    "allreduce_tree",
    "alltoall_pairwise",
    "broadcast_binomial",
    "broadcast_tree",
    "hierarchical",
    "parameter_server",
    "reduce_binomial",
    "reduce_scatter_ring",
    "reduce_tree",
]
