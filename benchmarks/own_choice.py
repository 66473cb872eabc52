"""What an MPI library takes by itself: measured beside named algorithms, against what its tables say it takes.

::

    python benchmarks/own_choice.py FOLDER [FOLDER ...]

Folders are sets of measurements as `benchmarks/validation.py` reads them, in which the library's own choice is called
``default_ompi`` and named algorithms end in ``_ompi``. At each size where both were measured, on the same ranks of the
same system, the time of the own choice is compared with that of the algorithm that `own_choice` names, with that of the
fastest one, and with that of the one nearest to it, which is as well as any table could do.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from simnet.calibration import curves_of
from simnet.calibration.curves import systems
from simnet.calibration.own_choice import own_choice
from simnet.calibration.summary import rows_of

OWN, SUFFIX = "default_ompi", "_ompi"
CLOSE = 0.1
"""Times that differ by less are taken for those of the same algorithm."""


def compared(source: str) -> pd.DataFrame:
    """Return how far each of the three is from the own choice, by collective, as relative differences of times."""
    found = []
    for part in systems(rows_of(source, {})[0]).values():
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
                taken = own_choice(*where[:2], size) + SUFFIX
                if taken in named and len(named) > 1:
                    ways = {
                        "table": named[taken],
                        "fastest": min(named.values()),
                        "nearest": min(named.values(), key=abs),
                    }
                    found.append({"collective": where[0], **ways})
    return pd.DataFrame(found)


def main() -> None:
    """Print for each collective how often the three are as fast as the own choice."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+")
    table = pd.concat([compared(folder) for folder in parser.parse_args().folders], ignore_index=True)
    for collective, part in table.groupby("collective"):
        off = part[["table", "fastest", "nearest"]].abs()
        said = [f"{name} {np.mean(off[name] < CLOSE):.0%} ({off[name].median():.1%} off)" for name in off]
        print(f"{collective}: {len(part)} sizes; within {CLOSE:.0%}: {', '.join(said)}")


if __name__ == "__main__":
    main()
