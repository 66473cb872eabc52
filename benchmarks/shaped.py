"""Measure exchanges on shaped links that are unequal, that change, or that several messages share.

    python benchmarks/shaped.py unequal --backend tcp --out rows.csv --predicted before.csv
    python benchmarks/shaped.py changing --backend gloo --out rows.csv --predicted before.csv

Takes root, as `simnet.validate.shapednet` does, and a machine that does nothing else meanwhile. Predictions are written
before anything is measured. The rows are those that `simnet.cost_models.calibration.measured` ships as
``shaped_unequal`` and ``shaped_changing``; ``setting`` names the links.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pandas as pd

from simnet.cost_models.calibration.readers import write_tidy
from simnet.cost_models.calibration.readers.conventions import mpi_convention
from simnet.validate.replay import Workload
from simnet.validate.shapednet.experiment import Backend, ShapedSetting, experiment, prediction_errors
from simnet.validate.shapednet.libraries import CONTRIBUTION, Sizes, schedule_of
from simnet.validate.shapednet.links import Change

MS, MBIT = 1e-3, 125e3

Exchange = tuple[str, str, Sizes]

IDLE: Sequence[Exchange] = (
    *(("all_reduce", name, size) for name in ("ring", "recursive_doubling", "tree") for size in (1000, 200_000)),
    *(("all_gather", name, size) for name in ("ring", "direct") for size in (1000, 200_000)),
    *(("broadcast", name, size) for name in ("binomial", "direct") for size in (1000, 200_000)),
)
"""What tells software: on an idle link of 0.1 ms and 100 Mbit/s for all."""

UNEQUAL: dict[str, tuple[tuple[float, ...], tuple[float, ...], Sequence[Exchange]]] = {
    "idle": ((0.1,) * 4, (100,) * 4, IDLE),
    "mixed": (
        (2, 2, 60, 20),
        (100, 100, 20, 40),
        (
            ("all_reduce", "ring", 500_000),
            ("all_reduce", "ring", 4000),
            ("all_gather", "ring", 125_000),
            ("all_gatherv", "ring", (250_000, 20_000, 60_000, 125_000)),
            ("broadcast", "binomial", 125_000),
            ("all_reduce", "tree", 125_000),
            ("all_reduce", "recursive_doubling", 50_000),
        ),
    ),
    "straggler": (
        (1, 1, 1, 80),
        (50, 50, 50, 4),
        (
            ("all_reduce", "ring", 160_000),
            ("all_gather", "ring", 30_000),
            ("all_gather", "bruck", 30_000),
            ("broadcast", "binomial", 50_000),
            ("all_reduce", "recursive_doubling", 40_000),
        ),
    ),
    "five": (
        (5, 10, 20, 40, 15),
        (20, 80, 40, 100, 10),
        (
            ("all_reduce", "ring", 200_000),
            ("all_reduce", "ring", 2000),
            ("all_gather", "ring", 40_000),
            ("all_gather", "bruck", 40_000),
            ("all_gatherv", "ring", (10_000, 80_000, 20_000, 50_000, 5000)),
            ("broadcast", "binomial", 60_000),
        ),
    ),
    "three": (
        (30, 1, 10),
        (10, 50, 100),
        (
            ("all_reduce", "ring", 120_000),
            ("all_gather", "ring", 60_000),
            ("broadcast", "binomial", 100_000),
            ("all_reduce", "tree", 60_000),
        ),
    ),
    "rates": (
        (1, 1, 1, 1),
        (20, 100, 40, 10),
        (
            ("all_reduce", "recursive_doubling", 50_000),
            ("all_reduce", "recursive_doubling", 10_000),
            ("all_reduce", "rabenseifner", 200_000),
            ("all_gather", "recursive_doubling", 50_000),
            ("all_reduce", "ring", 200_000),
            ("alltoall", "pairwise", 50_000),
        ),
    ),
    "lopsided": (
        (25, 4, 1, 12),
        (60, 8, 30, 100),
        (
            ("all_reduce", "ring", 150_000),
            ("all_reduce", "recursive_doubling", 60_000),
            ("all_gather", "bruck", 40_000),
            ("broadcast", "binomial", 80_000),
            ("all_reduce", "tree", 50_000),
            ("all_gather", "direct", 30_000),
        ),
    ),
    "shared": (
        (2, 10, 30, 5),
        (40, 100, 20, 60),
        (
            ("all_gather", "direct", 60_000),
            ("alltoall", "direct", 20_000),
            ("all_reduce", "parameter_server", 100_000),
            ("broadcast", "direct", 100_000),
            ("gather", "direct", 100_000),
            ("alltoall", "pairwise", 60_000),
        ),
    ),
    "shared_equal": (
        (10, 10, 10, 10),
        (40, 40, 40, 40),
        (
            ("all_gather", "direct", 60_000),
            ("all_reduce", "parameter_server", 100_000),
            ("broadcast", "direct", 100_000),
            ("gather", "direct", 100_000),
        ),
    ),
}
"""Links by name: one-way latencies [ms] and rates [Mbit/s] of each host, and what is sent."""

CHANGING: tuple[tuple[float, tuple[float, ...], tuple[float, ...]], ...] = (
    (0.0, (2, 2, 30, 10), (100, 100, 20, 40)),
    (1.3, (20, 2, 5, 10), (10, 50, 100, 40)),
    (2.6, (5, 5, 5, 5), (40, 40, 40, 40)),
    (3.9, (2, 40, 2, 10), (60, 20, 60, 8)),
)
"""Links that change: from when on [s], one-way latencies [ms] and rates [Mbit/s] of each host; again and again."""

ROUNDS = 4
"""How often these links come in turn."""

WHILE_CHANGING: dict[str, Exchange] = {
    "ring": ("all_reduce", "ring", 300_000),
    "broadcast": ("broadcast", "binomial", 150_000),
    "recursive doubling": ("all_reduce", "recursive_doubling", 100_000),
    "direct": ("all_gather", "direct", 80_000),
}
"""What is sent meanwhile, each in a run of its own."""


def links(latencies: Sequence[float], rates: Sequence[float], at: float = 0.0) -> Change:
    """Return links of one-way latencies [ms] and rates [Mbit/s] of each host."""
    return Change(at, tuple(one * MS for one in latencies), tuple(one * MBIT for one in rates))


def workload(collective: str, algorithm: str, ranks: int, nbytes: Sizes) -> Workload:
    """Return the workload of a collective with columns for measurement tables; ValueError for an unknown collective."""
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


def unequal(name: str) -> ShapedSetting:
    """Return one of `UNEQUAL`."""
    latencies, rates, exchanges = UNEQUAL[name]
    return ShapedSetting((links(latencies, rates),), tuple(workload(a, b, len(rates), c) for a, b, c in exchanges))


def changing(name: str) -> ShapedSetting:
    """Return one of `WHILE_CHANGING`, on links that change."""
    period = CHANGING[-1][0] + CHANGING[1][0]
    coming = [links(ms, mbit, at + turn * period) for turn in range(ROUNDS) for at, ms, mbit in CHANGING]
    return ShapedSetting(tuple(coming), (workload(*WHILE_CHANGING[name][:2], 4, WHILE_CHANGING[name][2]),))


def main() -> None:
    """Measure what is asked for, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["unequal", "changing"])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the links, or of what is sent while they change")
    parser.add_argument("--backend", choices=get_args(Backend), default="tcp")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--overhead", type=float, metavar="SECONDS", help="software per message; default: measured")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the measurements")
    parser.add_argument("--predicted", type=Path, required=True, metavar="FILE", help="predictions, before these")
    given = parser.parse_args()
    known = {"unequal": (UNEQUAL, unequal), "changing": (WHILE_CHANGING, changing)}[given.what]
    names = given.only or list(known[0])
    found = []
    for ranks in sorted({len(UNEQUAL[name][0]) if given.what == "unequal" else 4 for name in names}):
        part = [name for name in names if given.what == "changing" or len(UNEQUAL[name][0]) == ranks]
        rows = experiment(
            [known[1](name) for name in part],
            backend=given.backend,
            overhead=given.overhead,
            repetitions=given.repetitions,
            warmup=given.warmup,
            predicted_to=given.predicted.with_stem(f"{given.predicted.stem}_{ranks}"),
        )
        for one in prediction_errors(rows).itertuples():
            own = rows[(rows["setting"] == one.setting) & (rows["workload"] == one.workload)]
            what = f"{own['collective'].iloc[0]} {own['algorithm'].iloc[0]} {own['nbytes'].iloc[0]}"
            skew, spread = own["start_skew"].median(), own["seconds"].std() / one.seconds
            print(
                f"{part[one.setting]:14}{what:40}{1e3 * one.seconds:9.2f} ms, predicted {1e3 * one.predicted:9.2f}, "
                f"{100 * one.error:+6.1f} %, spread {100 * spread:.1f} %, skew {1e3 * skew:.2f} ms",
                flush=True,
            )
        print(
            f"{ranks} ranks: {1e6 * rows['overhead'].iloc[0]:.0f} us a message, {rows['drops'].max():.0f} packets lost"
        )
        found.append(rows.assign(run=rows["setting"].map(dict(enumerate(part)))))
    write_tidy(pd.concat(found, ignore_index=True), given.out)


if __name__ == "__main__":
    main()
