"""The algorithm that Open MPI chooses when none is named, by number of ranks and size.

The component ``tuned`` of Open MPI decides by tables since version 4.1, averaged over several clusters. `OPEN_MPI`
restates those of three collectives, for a single communicator and commutative reductions, as 5.0 has them; a fork of
4.1 has the same all-gathers, and the same all-reduces up to 4,095 ranks. ``benchmarks/library_autotuning.py`` compares
them with measurements of 4.1.5 and 4.1.6 (figures in ``docs/calibration.md``). All-to-all and broadcast are missing:
measurements contradict the table of one, and the other names algorithms without a schedule here. So are versions before
4.1 and limits of MPICH, which nothing measured confirms.

References
----------
Open MPI, ``ompi/mca/coll/tuned/coll_tuned_decision_fixed.c``, and ``ompi/mca/coll/base/`` for what an algorithm gives
way to where it does not go: <https://github.com/open-mpi/ompi>, read in <https://github.com/HLC-Lab/ompi> at fc5712e
(2025) and <https://github.com/BullSequana/OpenMPI5> at c3318e2 (5.0); the fork of 4.1 is
<https://github.com/kunpengcompute/hmpi> at 0e41238.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from types import MappingProxyType

OPEN_MPI: MappingProxyType[str, Mapping[int, str]] = MappingProxyType(
    {
        "all_gather": {
            2: "recursive_doubling",
            32: "recursive_doubling 1024 neighbor 65536 ring",
            64: "recursive_doubling 512 neighbor 65536 ring",
            128: "recursive_doubling 512 neighbor 131072 ring 524288 neighbor 1048576 ring",
            256: "recursive_doubling 32 bruck 128 recursive_doubling 1024 neighbor 131072 ring "
            "524288 neighbor 1048576 ring",
            512: "recursive_doubling 64 bruck 256 recursive_doubling 2048 neighbor",
            1024: "recursive_doubling 4 bruck 8 recursive_doubling 16 bruck 32 "
            "recursive_doubling 256 bruck 512 recursive_doubling 4096 neighbor",
            2048: "bruck 32 recursive_doubling 128 bruck 512 recursive_doubling 4096 neighbor",
            4096: "recursive_doubling 2 bruck 8 recursive_doubling 16 bruck 512 recursive_doubling 4096 neighbor",
        },
        "all_reduce": {
            2: "recursive_doubling 4096 ring 8192 recursive_doubling 16384 ring 262144 rabenseifner",
            4: "recursive_doubling 8192 rabenseifner",
            16: "recursive_doubling 4096 rabenseifner",
            32: "recursive_doubling 128 rabenseifner",
            64: "recursive_doubling 262144 rabenseifner",
            128: "nonoverlapping 131072 recursive_doubling 262144 rabenseifner",
            256: "nonoverlapping 4096 rabenseifner",
            512: "nonoverlapping 2048 recursive_doubling 16384 rabenseifner",
            4096: "nonoverlapping 2048 recursive_doubling 32768 rabenseifner",
        },
        "reduce_scatter": {
            2: "ring 65536 butterfly 131072 ring",
            4: "recursive_halving 262144 ring",
            32: "recursive_halving 2048 butterfly 524288 ring",
            64: "recursive_halving 512 butterfly 2048 recursive_halving 4096 butterfly",
            128: "recursive_halving 512 butterfly",
            256: "recursive_halving 1024 butterfly",
            512: "recursive_halving 2048 butterfly 8192 recursive_halving 16384 butterfly",
            1024: "recursive_halving 4096 butterfly 16384 recursive_halving 32768 butterfly",
            2048: "recursive_halving 4096 butterfly",
            4096: "recursive_halving 8192 butterfly",
        },
    }
)
"""What Open MPI takes, by collective and from which number of ranks on: names, and between them the size [byte] from
which on the next holds, of an all-gather that of the contribution of a rank. Where an algorithm gives way to another
that suits the number of ranks, or has elements of 4 bytes for every rank, the other one stands. Of a reduce-scatter of
few bytes, which the library makes of a reduction and a scatter, that of the next size does."""

_PER_RANK = ("all_gather",)


def autotuned_algorithm(collective: str, ranks: int, nbytes: float) -> str:
    """Return the algorithm that Open MPI chooses for a total size [byte] of nccl-tests; empty where not known.

    Examples
    --------
    >>> [autotuned_algorithm("all_gather", 512, size) for size in (2**20 - 1, 2**20)]
    ['recursive_doubling', 'neighbor']
    """
    known = OPEN_MPI.get(collective, {})
    if ranks < 2 or not known:
        return ""
    of_ranks = sorted(known)
    names, limits = _read_row(known[of_ranks[bisect_right(of_ranks, ranks) - 1]])
    name = names[bisect_right(limits, nbytes / ranks if collective in _PER_RANK else nbytes)]
    if collective == "all_gather" and name == "recursive_doubling" and ranks & (ranks - 1):
        return "bruck"
    return "ring" if name == "neighbor" and ranks % 2 else name


def _read_row(row: str) -> tuple[list[str], list[float]]:
    """Return the names of a row of a table, and the sizes from which on each next one holds."""
    words = row.split()
    return words[::2], [float(word) for word in words[1::2]]
