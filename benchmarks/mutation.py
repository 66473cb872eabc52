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

Survivors that are explained stand in ``benchmarks/mutating/explained.toml``. The exit code is 1 if an entry there is
stale (there is no such mutant any more, or a test sees it), or if an area has too few mutants that are seen, for
certain: the whole 95 % interval of its score is below the target.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mutating.areas import AREAS, files
from mutating.children import prepare
from mutating.copies import working_copy
from mutating.explained import explained, lines_of, stale
from mutating.operators import Mutant, mutants_of
from mutating.trying import Trials, Tried
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


def score(tried: Sequence[Tried], known: set[tuple[str, str, str]]) -> tuple[int, int, int, float, float]:
    """Return how many mutants were seen, are explained, and survived, and between what the score is, at 95 %.

    Explained ones do not count. The interval is Wilson's.
    """
    survivors = [one for one in tried if one.survived]
    told = sum((one.mutant.file, one.old, one.new) in known for one in survivors)
    seen, count = len(tried) - len(survivors), len(tried) - told
    if not count:
        return 0, told, 0, 0.0, 1.0
    low, high = binomtest(seen, count).proportion_ci(method="wilson")
    return seen, told, count - seen, float(low), float(high)


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
    entries = explained()
    known = lines_of(entries)
    faults = [
        f"{one.file}: explained, but there is no such mutant: {one.old} -> {one.new}" for one in stale(entries, ROOT)
    ]
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
            tried = []
            for mutant in mutants[: given.sample]:
                if time.monotonic() > end:
                    break
                tried.append(trials.tried(mutant, area))
                faults += _told(mutant, tried[-1], known)
            seen, told, survived, low, high = score(tried, known)
            share = seen / (seen + survived) if seen + survived else 1.0
            print(
                f"{area}: {len(tried)} of {len(mutants)} mutants tried, {seen} seen, {told} explained, {survived} not; "
                f"score {share:.0%} ({low:.0%} to {high:.0%} at 95 %)",
                flush=True,
            )
            if high < AREAS[area].target:
                faults.append(f"{area}: fewer than {AREAS[area].target:.0%} of the mutants are seen")
    print(*faults, sep="\n")
    return 1 if faults else 0


def _text(copy: Path, file: str) -> str:
    return (copy / file).read_text()


def _told(mutant: Mutant, tried: Tried, known: set[tuple[str, str, str]]) -> list[str]:
    """Print a survivor that is not explained; return what is wrong if one is that did not survive."""
    is_known = (mutant.file, tried.old, tried.new) in known
    if tried.survived and not is_known:
        print(f"  {tried.status} {mutant.file}:{mutant.line}: {tried.old} -> {tried.new}", flush=True)
    if not tried.survived and is_known:
        return [f"{mutant.file}: explained, but {tried.by} sees it: {tried.old} -> {tried.new}"]
    return []


if __name__ == "__main__":
    os.nice(10)
    sys.exit(main())
