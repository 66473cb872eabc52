"""Mutation testing: put small bugs into the code, one at a time, and count how many the tests see.

    python benchmarks/mutation.py [--area NAME ...] [--sample N] [--seed S] [--minutes M] [--quick] [--file PATH ...]
    python benchmarks/mutation.py --changed [REVISION]

Mutants are those of Cosmic Ray's operators, and of three more (`mutating.operators`), in the files of each area
(`mutating.areas`). A mutant is put into a copy of the repository, under ``build/mutants``, and the tests that run its
line are run there, the nearest first, until one fails, or takes several times as long as without it. Which tests run
which lines is found by running each file of tests once under Coverage.py, when it is first needed.

``--sample`` takes so many mutants of each area, by a seed that is printed; without it all are tried, which takes days.
Results are kept: a run that ends early, or is stopped, goes on where it was when it is started again. ``--quick`` runs
the tests of ``make test`` alone, and keeps what comes of it apart. ``--changed`` takes the files that differ from a
revision, the last commit by default.

The exit code is 1 if tests see too few mutants of an area for certain: the whole 95 % interval of its score, Wilson's,
is below `LEAST_SCORE`. Mutants that no test can see, as they change nothing, count as survivors.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from mutating.areas import AREAS, LEAST_SCORE, files
from mutating.children import prepare
from mutating.copies import working_copy
from mutating.operators import mutants_of
from mutating.trying import Trials
from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parents[1]

QUICK = "not long and not slow and not extras and not browser"
"""Marks of the tests that ``make test`` runs."""


def changed_since(revision: str) -> set[str]:
    """Return the files that differ from a revision, new ones included."""
    commands = [["diff", "--name-only", revision], ["ls-files", "--others", "--exclude-standard"]]
    told = [
        subprocess.run(["git", *one], cwd=ROOT, check=True, capture_output=True, text=True).stdout for one in commands
    ]
    return {line for text in told for line in text.splitlines()}


def main() -> int:
    """Try mutants, and print what becomes of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--area", nargs="+", choices=AREAS, default=list(AREAS), help="areas; all by default")
    parser.add_argument("--sample", type=int, help="mutants of each area; all by default")
    parser.add_argument("--seed", type=int, help="of the sample; by default another one each day")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after so long no mutant is begun")
    parser.add_argument("--changed", nargs="?", const="HEAD", help="only files that differ from this revision")
    parser.add_argument("--file", nargs="+", help="only these files")
    parser.add_argument("--each", type=float, default=120.0, help="processor time of the tests of a file [s]")
    parser.add_argument("--quick", action="store_true", help="only tests that are no long ones")
    parser.add_argument("--files", type=int, default=10**6, help="files of tests for a mutant, the nearest first")
    given = parser.parse_args()
    seed = int(time.time() // 86400) if given.seed is None else given.seed
    end = time.monotonic() + 60 * given.minutes
    areas = files(ROOT)
    wanted = changed_since(given.changed) if given.changed else {one for every in areas.values() for one in every}
    wanted &= set(given.file or wanted)
    faults = []
    print(f"seed {seed}", flush=True)
    folder = ROOT / "build" / "mutants"
    kept = folder / "quick" if given.quick else folder
    kept.mkdir(parents=True, exist_ok=True)
    if given.quick:
        os.environ["PYTEST_ADDOPTS"] = f"-m '{QUICK}'"
    with working_copy(ROOT, folder) as copy:
        prepare(copy)
        trials = Trials(copy, kept, sorted(one for every in areas.values() for one in every), given.each, given.files)
        for area in given.area:
            mutants = [one for file in areas[area] if file in wanted for one in mutants_of(file, _text(copy, file))]
            random.Random(seed).shuffle(mutants)
            tried = seen = 0
            for mutant in mutants[: given.sample]:
                if time.monotonic() > end:
                    break
                one = trials.tried(mutant, area)
                tried, seen = tried + 1, seen + (not one.survived)
                if one.survived:
                    print(f"  {one.status} {mutant.file}:{mutant.line}: {one.old} -> {one.new}", flush=True)
            if not tried:
                continue
            low, high = binomtest(seen, tried).proportion_ci(method="wilson")
            said = f"{area}: {tried} of {len(mutants)} mutants tried, {seen} seen; score {seen / tried:.0%}"
            print(f"{said} ({low:.0%} to {high:.0%} at 95 %)", flush=True)
            if high < LEAST_SCORE:
                faults.append(f"{area}: fewer than {LEAST_SCORE:.0%} of the mutants are seen")
    print(*faults, sep="\n")
    return 1 if faults else 0


def _text(copy: Path, file: str) -> str:
    return (copy / file).read_text()


if __name__ == "__main__":
    os.nice(10)
    sys.exit(main())
