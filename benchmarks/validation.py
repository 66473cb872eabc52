"""Validate predictions on measurements, and write the page that says with which error.

    python benchmarks/validation.py [--measured FOLDER] [--json FILE] [--markdown FILE] [--figures FOLDER]
    python benchmarks/validation.py --from FILE --summary benchmarks/validated.csv
    python benchmarks/validation.py --from FILE --residuals simnet/cost_models/calibration/measured/residuals.csv

Evaluates all shipped measurements and, with ``--measured``, every folder in FOLDER that has a ``data.csv``: what is
left out of a set is predicted from the rest of it, platforms from their specification, shaped networks from their
links. ``--json`` is written after every set, and a run that finds sets in it does the others alone.
``--markdown`` writes the page, which the site has as `evidence/validation.md`, ``--summary`` its first table, and
``--residuals`` the errors that chances are from.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from validating import chances, held_out, recorded, residuals
from validating.drawing import predicted
from validating.page import WHAT, frame, page, summary
from validating.running import load, run, save, sets

import simnet
from simnet.base.errors import InputError


def machine() -> dict[str, str]:
    """Return what figures may depend on: versions, since nothing here is timed."""
    packages = {name: importlib.metadata.version(name) for name in ("numpy", "scipy", "pandas")}
    return {"Python": platform.python_version(), "simnet": simnet.__version__, **packages}


def measured(folder: Path | None, only: str, json: Path | None, again: bool, processes: int) -> dict[str, Any]:
    """Evaluate all sets that are asked for, and write what is there after each."""
    wanted, left_out = sets(folder)
    wanted = [one for one in wanted if only in one.name]
    before = load(json)["sets"] if json is not None and json.is_file() and not again else {}
    results: dict[str, Any] = {
        "machine": machine(),
        "left_out": left_out,
        "sets": {name: one for name, one in before.items() if "error" not in one},
    }
    for entry in run(wanted, results["sets"], processes):
        results["sets"][entry["name"]] = entry
        results["sets"] = dict(sorted(results["sets"].items(), key=lambda item: (not item[1]["shipped"], item[0])))
        said = entry.get("error") or f"{len(entry['held']['split']):,} predictions"
        print(f"{entry['name']:32}{entry['seconds']:8.1f} s  {said}", flush=True)
        if json is not None:
            save(results, json)
    return results


def main() -> None:
    """Run what is asked for, and write the files that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, metavar="FOLDER", help="further sets, each a folder with a data.csv")
    parser.add_argument("--only", default="", metavar="WORD", help="sets with this in their name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep results here, and begin with those that it has")
    parser.add_argument("--again", action="store_true", help="do all sets, also those that --json has")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="results to make the page from; no run"
    )
    parser.add_argument(
        "--processes", type=int, default=min(os.cpu_count() or 1, 8), metavar="N", help="sets at a time"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="write the figures of the page")
    parser.add_argument("--residuals", type=Path, metavar="FILE", help="write what predictions are off by")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the summary as CSV")
    given = parser.parse_args()
    try:
        if given.source is not None:
            results = load(given.source)
        else:
            results = measured(given.measured, given.only, given.json, given.again, max(given.processes, 1))
    except InputError as error:
        sys.exit(f"error: {error}")
    table = frame(results)
    clusters = residuals.of_clusters(table)
    if given.residuals is not None:
        given.residuals.write_text(residuals.table(clusters), encoding="utf-8")
    wanted = [one for one in (given.figures, given.markdown, given.summary) if one is not None]
    judged = chances.everything(clusters) if wanted else {}
    drawn: dict[str, str] = {}
    if given.figures is not None:
        plots = {split: predicted(table, split) for split in WHAT if (table["split"] == split).any()}
        for name, one in (plots | {"chances": chances.drawn(judged)}).items():
            path = given.figures / f"{one.name}.svg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(one.svg)
            drawn[name] = os.path.relpath(path, given.markdown.parent) if given.markdown else str(path)
    if given.summary is not None:
        recorded.write(given.summary, summary(results, judged))
    if given.markdown is not None:
        given.markdown.write_text(page(results, drawn, judged, held_out.everything(clusters)), encoding="utf-8")


if __name__ == "__main__":
    main()
