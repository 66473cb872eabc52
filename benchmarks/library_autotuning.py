"""What an MPI library takes by itself: measured beside named algorithms, against what its tables say it takes.

::

    python benchmarks/library_autotuning.py FOLDER [FOLDER ...]

Folders are sets of measurements as `benchmarks/validation.py` reads them, in which the library's own choice is called
``default_ompi`` and named algorithms end in ``_ompi``. At each size where both were measured, on the same ranks of the
same system, the time of the own choice is compared with that of the algorithm that `autotuned_algorithm` names, with
that of the fastest one, and with that of the one nearest to it, which is as well as any table could do. Where the
platform of a set is of Open MPI, its own choice is predicted from the specification too, by the tables and by the
fastest algorithm.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
from validating.platforms import cases_of, predicted

from simnet.cost_models.calibration.curves import curves_of, split_systems
from simnet.cost_models.calibration.specification import autotuned_algorithm
from simnet.cost_models.calibration.summary import read_rows

OWN, SUFFIX = "default_ompi", "_ompi"
CLOSE = 0.1
"""Times that differ by less are taken for those of the same algorithm."""


def compared(source: str) -> pd.DataFrame:
    """Return how far each of the three is from the own choice, by collective, as relative differences of times."""
    found = []
    for part in split_systems(read_rows(source, {})[0]).values():
        curves = curves_of(part)
        for one in curves:
            if one.setting.algorithm != OWN:
                continue
            where = one.setting.collective, one.setting.ranks, one.setting.nodes
            others = [
                other
                for other in curves
                if (other.setting.collective, other.setting.ranks, other.setting.nodes) == where
                and other.setting.algorithm.endswith(SUFFIX)
                and other is not one
            ]
            for size, seconds in zip(one.sizes.tolist(), one.seconds.tolist(), strict=True):
                named = {
                    other.setting.algorithm: float(other.seconds[other.sizes == size][0] / seconds - 1)
                    for other in others
                    if size in other.sizes
                }
                taken = autotuned_algorithm(*where[:2], size) + SUFFIX
                if taken in named and len(named) > 1:
                    ways = {
                        "table": named[taken],
                        "fastest": min(named.values()),
                        "nearest": min(named.values(), key=abs),
                    }
                    found.append({"collective": where[0], **ways})
    return pd.DataFrame(found)


def specified(source: str) -> None:
    """Print how far off the own choice is predicted from the specification, by the tables and by the fastest."""
    rows, _ = read_rows(source, {})
    for case in cases_of(Path(source).name):
        for library in ("openmpi", "mpi"):
            platform = case.platform.model_copy(update={"library": library})
            found = predicted(dataclasses.replace(case, platform=platform), rows)
            off = [np.abs(said / true - 1) for setting, _, said, true in found if setting.algorithm == OWN]
            if off and case.platform.library == "openmpi":
                middle, high = np.quantile(np.concatenate(off), [0.5, 0.9])
                print(
                    f"{case} as {library}: own choice {middle:.0%} off in the median, {high:.0%} at the 90 % quantile"
                )


def main() -> None:
    """Print what specifications say of the own choice, and by collective how often the three are as fast."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+")
    folders = parser.parse_args().folders
    for folder in folders:
        specified(folder)
    table = pd.concat([compared(folder) for folder in folders], ignore_index=True)
    for collective, part in table.groupby("collective"):
        off = part[["table", "fastest", "nearest"]].abs()
        said = [f"{name} {np.mean(off[name] < CLOSE):.0%} ({off[name].median():.1%} off)" for name in off]
        print(f"{collective}: {len(part)} sizes; within {CLOSE:.0%}: {', '.join(said)}")


if __name__ == "__main__":
    main()
