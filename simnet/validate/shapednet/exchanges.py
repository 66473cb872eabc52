"""Schedules of measured exchanges, by their names in measurement tables.

Beside the collectives of `simnet.collectives` stand those of sparsified gradients (``ag_topk``, ``ar_topk``) and
``direct`` exchanges, in which a rank hands all its messages over at once, so that several of them share a link. Of
``all_gatherv`` each rank may contribute another size.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from simnet import collectives
from simnet.collectives import registry
from simnet.cost_models.calibration.readers.conventions import mpi_convention
from simnet.schedule import Round, Schedule
from simnet.validate.replay import Workload

CONTRIBUTION = "contribution"
"""Prefix of the columns ``contribution_0``, ``contribution_1``, ... with each rank's contribution [byte]."""

Sizes: TypeAlias = float | tuple[float, ...]
"""A size for all ranks, or what each rank contributes [byte]."""


# Settings that differ in their links alone have the same.
@lru_cache(maxsize=64)
def schedule_of(
    collective: str, algorithm: str, ranks: int, nbytes: Sizes, longest: float = math.inf
) -> Schedule | None:
    """Return the schedule of a collective, None if unknown; ring all-gathers are cut to `longest` bytes."""
    if isinstance(nbytes, tuple):
        found = registry.find_collective("all_gather", algorithm) if collective == "all_gatherv" else None
        known = found is not None and found.varying is not None and len(nbytes) == ranks
        return found.schedule_of_sizes(nbytes) if found and known else None
    if algorithm == "direct":
        return _direct_exchange(collective, ranks, nbytes)
    if collective == "ag_topk":
        kind = {"ring": "ring", "tree": "bruck", "bruck": "bruck"}.get(algorithm)
        if kind == "ring":
            return _in_pieces(collectives.allgather_ring(ranks, 2 * nbytes), longest)
        return None if kind is None else collectives.allgather_bruck(ranks, 2 * nbytes)
    if collective == "ar_topk":
        values = schedule_of("all_reduce", algorithm, ranks, nbytes, longest)
        return None if values is None else collectives.broadcast_binomial(ranks, nbytes).concat(values)
    if (collective, algorithm) == ("all_reduce", "ring"):
        gathered = _in_pieces(collectives.allgather_ring(ranks, nbytes / ranks), longest)
        return collectives.reduce_scatter_ring(ranks, nbytes).concat(gathered)
    found = registry.find_collective("all_gather" if collective == "all_gatherv" else collective, algorithm)
    if found is None or found.needs or not found.ranks.among(ranks):
        return None
    made = found.schedule(ranks, nbytes)
    return _in_pieces(made, longest) if (collective, algorithm) == ("all_gatherv", "ring") else made


def of_exchange(collective: str, algorithm: str, ranks: int, nbytes: Sizes) -> Workload:
    """Return the workload of an exchange, with the columns of measurement tables."""
    schedule = schedule_of(collective, algorithm, ranks, nbytes)
    if schedule is None:
        raise ValueError(f"it is not known what {collective} by {algorithm!r} sends between {ranks} ranks")
    each = nbytes if isinstance(nbytes, tuple) else (nbytes,)
    facts: dict[str, object] = {
        "collective": collective,
        "algorithm": algorithm,
        "nbytes": round(math.fsum(each) / len(each)),
        "size_convention": mpi_convention(collective),
    }
    if len(each) > 1:
        facts |= {f"{CONTRIBUTION}_{rank}": round(one) for rank, one in enumerate(each)}
    return Workload(schedule, facts)


def _direct_exchange(collective: str, ranks: int, nbytes: float) -> Schedule | None:
    """Return a collective as one round in which each rank sends all its messages at once; None if unknown."""
    others = np.arange(1, ranks)
    root = np.zeros_like(others)
    if collective in ("all_gather", "alltoall"):
        src = np.repeat(np.arange(ranks), ranks - 1)
        return Schedule(ranks, [Round(src, (src + np.tile(others, ranks)) % ranks, nbytes)])
    if collective == "broadcast":
        return Schedule(ranks, [Round(root, others, nbytes)])
    if collective == "gather":
        return Schedule(ranks, [Round(others, root, nbytes)])
    return None


def _in_pieces(schedule: Schedule, longest: float) -> Schedule:
    """Return a schedule whose rounds are split so that no message exceeds `longest` bytes."""
    rounds: list[Round] = []
    for one in schedule.rounds:
        count = max(1, math.ceil(float(one.nbytes.max(initial=0.0)) / longest))
        rounds += [Round(one.src, one.dst, one.nbytes / count, one.compute, one.phase)] * count
    return Schedule(schedule.n_ranks, rounds)
