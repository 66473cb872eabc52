"""Compare the results of two versions of simnet, byte for byte.

`record` runs every shipped scenario for a few iterations, and ``simnet reproduce``, with one version and keeps
what they write; `compare` holds two such folders against each other. Run it before and after a change that must not
move a result::

    git worktree add ../before HEAD && make -C ../before .venv/.dev
    python benchmarks/same_results.py record ../before/.venv/bin/simnet before
    python benchmarks/same_results.py record .venv/bin/simnet after
    python benchmarks/same_results.py compare before after
"""

from __future__ import annotations

import argparse
import filecmp
import subprocess
import sys
from pathlib import Path

COMPARED = ("summary.json", "iterations.csv", "timeline.json")
ITERATIONS = 20


def scenarios() -> list[Path]:
    """Return the files of the shipped scenarios, relative to the repository."""
    root = Path(__file__).parents[1]
    return sorted(path.relative_to(root) for path in (root / "simnet" / "scenarios").rglob("*.yaml"))


def record(simnet: Path, folder: Path, only: list[str]) -> None:
    """Run all scenarios, and the fast reproductions, and keep in `folder` what is compared."""
    root = Path(__file__).parents[1]
    for scenario in scenarios():
        if only and scenario.stem not in only:
            continue
        out = folder / scenario.with_suffix("")
        done = out / COMPARED[0]
        if done.exists():
            continue
        fields = ["--set", f"job.iterations={ITERATIONS}"]
        command = [str(simnet), "run", str(scenario), *fields, "--seed", "7", "--quiet", "--force", "--out", str(out)]
        print(scenario, flush=True)
        subprocess.run(command, check=True, cwd=root)
        for extra in out.rglob("*"):
            if extra.is_file() and extra.name not in COMPARED:
                extra.unlink()
    if only and "reproduce" not in only:
        return
    print("reproduce --fast", flush=True)
    table = folder / "reproduce.csv"
    subprocess.run([str(simnet), "reproduce", "--quiet", "--force", "--out", str(table)], check=True, cwd=root)


def compare(before: Path, after: Path) -> list[str]:
    """Return which files differ, or are in one of the folders only."""
    names = {path.relative_to(root) for root in (before, after) for path in root.rglob("*") if path.is_file()}
    wrong = []
    for name in sorted(names):
        one, other = before / name, after / name
        if not (one.exists() and other.exists()):
            wrong.append(f"{name}: only in {before if one.exists() else after}")
        elif not filecmp.cmp(one, other, shallow=False):
            wrong.append(f"{name}: differs")
    print(f"{len(names)} files, {len(wrong)} of them not the same")
    return wrong


def main() -> None:
    """Record or compare, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("record")
    one.add_argument("simnet", type=Path, help="the command of the version")
    one.add_argument("folder", type=Path, help="where to keep what it writes")
    one.add_argument("--only", nargs="*", default=[], help="names of scenarios, or reproduce")
    two = verbs.add_parser("compare")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.verb == "record":
        record(given.simnet.absolute(), given.folder.absolute(), given.only)
        return
    wrong = compare(given.before, given.after)
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
