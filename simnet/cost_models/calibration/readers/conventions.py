"""Conventions of benchmarks for the size of a collective, and bus bandwidths under these conventions.

==========  ============================================================================================
convention  the size is
==========  ============================================================================================
vector      the vector that is reduced or broadcast, which every rank has
total       the whole array: what all ranks contribute together, as nccl-tests counts it
per_rank    what one rank contributes to an all-gather or gather, or gets from a scatter
per_pair    what one rank sends to one other in an all-to-all
message     one message between two ranks
==========  ============================================================================================

*Algorithm bandwidth* is size over time, in the convention of nccl-tests; *bus bandwidth* is that times a factor of the
collective and the number of ranks, comparable with the speed of a link.
"""

# References: NVIDIA, nccl-tests, ``doc/PERFORMANCE.md``, and the functions ``*GetBw`` of its sources. Intel MPI
# Benchmarks User Guide, pages Allgather, Alltoall, Reduce_scatter. OSU Micro-Benchmarks, sources of
# ``mpi/collective``.

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd

from simnet.base.file_io import read_shipped_rows

SIZE_CONVENTIONS = ("vector", "total", "per_rank", "per_pair", "message")
"""Conventions for the size of a collective."""

_KNOWN = {row["collective"]: row for row in read_shipped_rows("data/collectives.csv")}

COLLECTIVES = tuple(_KNOWN)
"""Names that the readers give, those of nccl-tests where it has one."""

PARTED_COLLECTIVES = tuple(name for name, row in _KNOWN.items() if row["parts"] == "equal")
"""Collectives of an array of which every rank has an equal part."""

_COUNTED_TWICE = ("gather", "gatherv", "scatter", "scatterv", "alltoall", "alltoallv")

NON_BLOCKING = "non-blocking"
"""What the column ``variant`` says of calls that return before they are done, and are waited for."""

SEVERAL_PAIRS = "several pairs"
"""What the column ``variant`` says of messages of an unknown number of simultaneous pairs of ranks."""

_VARIANTS = {"": "", "non-blocking": NON_BLOCKING, "persistent": "persistent", "i": NON_BLOCKING}
_SPELLINGS = {word: name for name, row in _KNOWN.items() for word in (name.replace("_", ""), *row["spellings"].split())}

NAME_PATTERN = re.compile(
    r"(?<![a-z])(all[-_ ]?reduce|all[-_ ]?gatherv?|reduce[-_ ]?scatter|broadcast|bcast|all[-_ ]?to[-_ ]?allv?"
    r"|send[-_ ]?recv|hypercube|gatherv?|scatterv?|reduce)(?![a-z])"
)
"""A collective's name in a text."""


def collective_name(name: str) -> str | None:
    """Return a collective's name as in nccl-tests; None for an unknown name."""
    word = re.sub(r"[^a-z0-9]", "", name[:80].casefold().removeprefix("mpi_").removesuffix("_perf"))
    return _SPELLINGS.get(word)


def named_benchmark(text: str) -> tuple[str | None, str]:
    """Return collective and variant from the name of an MPI or RDMA benchmark; (None, name) for no collective."""
    words = text.casefold().removesuffix("_pure").replace("post list ", "")
    for word in (words, words.removesuffix(" latency")):
        for prefix, variant in _VARIANTS.items():
            if word.startswith(prefix) and (found := collective_name(word.removeprefix(prefix))):
                return found, SEVERAL_PAIRS if word.startswith(("multi", "mbw")) else variant
    return None, words


@cache
def misspelt_collective(name: str) -> str:
    """Return the closest collective for a misspelt name; "" for a correct name or if none is similar."""
    if name in COLLECTIVES:
        return ""
    close = difflib.get_close_matches(name, COLLECTIVES, n=1, cutoff=0.85)
    return collective_name(name) or next(iter(close), "")


def named_collective(text: str) -> str | None:
    """Return the collective mentioned in a text, if exactly one is."""
    found = {collective_name(word) for word in NAME_PATTERN.findall(text[:4096].casefold())}
    return found.pop() if len(found) == 1 else None


def nccl_convention(name: str) -> str:
    """Return the size convention of nccl-tests for a collective, such as "per_rank"; "" if unknown."""
    return _KNOWN[name]["nccl"] if name in _KNOWN else ""


def mpi_convention(name: str) -> str:
    """Return the size convention of OSU and Intel MPI benchmarks for a collective; "" if unknown."""
    return _KNOWN[name]["mpi"] if name in _KNOWN else ""


def total_size(nbytes: float, convention: str, ranks: int | None) -> float | None:
    """Return a size [byte] in the convention of nccl-tests; None if the conversion needs unknown `ranks`."""
    if convention in ("per_rank", "per_pair"):
        return None if ranks is None else nbytes * ranks
    return nbytes


def total_bytes(rows: pd.DataFrame) -> pd.Series[float]:
    """Return each row's size [byte] in the convention of nccl-tests; NaN if the conversion needs unknown ranks."""
    size = rows["nbytes"].astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
    ranks = rows["ranks"].astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
    shared = rows["size_convention"].isin(["per_rank", "per_pair"]).to_numpy()
    return pd.Series(np.where(shared, size * ranks, size), index=rows.index)


def bus_factor(name: str, ranks: int) -> float | None:
    """Return the ratio of bus to algorithm bandwidth of a collective on P ranks; None if undefined."""
    crossing = (ranks - 1) / ranks
    factors = {"2": 2 * crossing, "parts": crossing, "1": 1.0}
    return factors.get(_KNOWN[name]["bus"]) if name in _KNOWN else None


def bandwidth_factors(name: str, ranks: int | None) -> tuple[tuple[float, float | None], ...]:
    """Return, for each convention of benchmark tools, the ratios algbw / (size / time) and busbw / algbw (bandwidths).

    The gather of older rccl-tests, and hypercube everywhere, count only what crosses between ranks.
    """
    if ranks is None or ranks < 1:
        return ((1.0, None),)
    crossing = (ranks - 1) / ranks
    if name == "hypercube":
        return ((crossing, 1.0),)
    usual = (1.0, bus_factor(name, ranks))
    return (usual, (crossing, 1.0)) if name in _COUNTED_TWICE else (usual,)


def fill_nodes(facts: Mapping[str, object]) -> dict[str, object]:
    """Return the missing one of ``nodes`` and ``ranks_per_node``, from the other and ``ranks``; {} if impossible."""
    ranks, nodes, each = (facts.get(name) for name in ("ranks", "nodes", "ranks_per_node"))
    if isinstance(ranks, int) and isinstance(nodes, int) and each is None and nodes > 0 and ranks % nodes == 0:
        return {"ranks_per_node": ranks // nodes}
    if isinstance(ranks, int) and isinstance(each, int) and nodes is None and each > 0 and ranks % each == 0:
        return {"nodes": ranks // each}
    return {}
