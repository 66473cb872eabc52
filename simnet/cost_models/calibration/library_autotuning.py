"""Open MPI's default algorithm selection, by number of ranks and size.

The component ``tuned`` of Open MPI decides by tables since version 4.1. `OPEN_MPI` restates those of three collectives
as 5.0 has them, for a single communicator and commutative reductions. All-to-all and broadcast are missing, as
measurements contradict one table and the other names algorithms without a schedule here.
"""

# References: Open MPI, ``ompi/mca/coll/tuned/coll_tuned_decision_fixed.c``, and ``ompi/mca/coll/base/``:
# <https://github.com/open-mpi/ompi>, read in <https://github.com/HLC-Lab/ompi> at fc5712e (2025) and
# <https://github.com/BullSequana/OpenMPI5> at c3318e2 (5.0); the fork of 4.1 is
# <https://github.com/kunpengcompute/hmpi> at 0e41238.

from __future__ import annotations

from bisect import bisect_right

from simnet.base.reading import read_shipped_rows

OPEN_MPI: dict[str, dict[int, str]] = {}
for _row in read_shipped_rows("data/open_mpi.csv"):
    OPEN_MPI.setdefault(_row["collective"], {})[int(_row["ranks"])] = _row["algorithms"]
"""What Open MPI takes, by collective and from which number of ranks on: names, and between them the size [byte] from
which on the next holds, of an all-gather that of the contribution of a rank. Where an algorithm gives way to another
that suits the number of ranks, or has elements of 4 bytes for every rank, the other one stands. Of a reduce-scatter of
few bytes, which the library makes of a reduction and a scatter, that of the next size does."""

_PER_RANK = ("all_gather",)


def autotuned_algorithm(collective: str, ranks: int, nbytes: float) -> str:
    """Return the algorithm Open MPI selects for a total size [byte] as in nccl-tests; "" if unknown."""
    known = OPEN_MPI.get(collective, {})
    if ranks < 2 or not known:
        return ""
    of_ranks = sorted(known)
    words = known[of_ranks[bisect_right(of_ranks, ranks) - 1]].split()
    names, limits = words[::2], [float(word) for word in words[1::2]]
    name = names[bisect_right(limits, nbytes / ranks if collective in _PER_RANK else nbytes)]
    if collective == "all_gather" and name == "recursive_doubling" and ranks & (ranks - 1):
        return "bruck"
    return "ring" if name == "neighbor" and ranks % 2 else name
