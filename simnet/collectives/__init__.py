"""Dense and variable-size collectives as schedules.

Each function here returns a `Schedule`: who sends how many bytes to whom, in which order. Behind each stands a
program of the same name in `simnet.collectives.programs`, which also executes on arrays; messages and results thus
come from one description of the algorithm.

=================================  ============================  ======================================
collective                         rounds                        bytes a rank sends
=================================  ============================  ======================================
`allreduce_ring`                   2 (P - 1)                     2 (P - 1) / P M
`allreduce_tree`                   2 ceil(log2 P)                2 (P - 1) M, all ranks together
`allreduce_recursive_doubling`     log2 P                        M log2 P
`allreduce_rabenseifner`           2 log2 P                      2 (P - 1) / P M
`parameter_server`                 2                             2 (P - 1) M, all ranks together
`hierarchical`                     2 ceil(log2 g) + 2 (L - 1)    (g a group, L leaders)
`reduce_scatter_ring`              P - 1                         (P - 1) / P M
`reduce_binomial`, `reduce_tree`   ceil(log2 P)                  (P - 1) M, all ranks together
`broadcast_binomial`, `_tree`      ceil(log2 P)                  (P - 1) M, all ranks together
`allgather_ring`, `_v_`            P - 1                         (P - 1) m
`allgather_recursive_doubling`     log2 P                        (P - 1) m
`allgather_bruck`                  ceil(log2 P)                  (P - 1) m
`alltoall_pairwise`, `_v_`         P - 1                         (P - 1) m
=================================  ============================  ======================================

M is the whole vector, m the contribution of one rank (for all-to-all: to one other). Rows with log2 P hold for powers
of two; other P add a fold before and after. One rank has nothing to send: no rounds.
"""

from simnet.collectives.schedules import (
    allgather_bruck,
    allgather_recursive_doubling,
    allgather_ring,
    allgatherv_bruck,
    allgatherv_recursive_doubling,
    allgatherv_ring,
    allreduce_rabenseifner,
    allreduce_recursive_doubling,
    allreduce_ring,
    allreduce_tree,
    alltoall_pairwise,
    alltoallv_pairwise,
    broadcast_binomial,
    broadcast_tree,
    hierarchical,
    parameter_server,
    reduce_binomial,
    reduce_scatter_ring,
    reduce_tree,
)

__all__ = [
    "allgather_bruck",
    "allgather_recursive_doubling",
    "allgather_ring",
    "allgatherv_bruck",
    "allgatherv_recursive_doubling",
    "allgatherv_ring",
    "allreduce_rabenseifner",
    "allreduce_recursive_doubling",
    "allreduce_ring",
    "allreduce_tree",
    "alltoall_pairwise",
    "alltoallv_pairwise",
    "broadcast_binomial",
    "broadcast_tree",
    "hierarchical",
    "parameter_server",
    "reduce_binomial",
    "reduce_scatter_ring",
    "reduce_tree",
]
