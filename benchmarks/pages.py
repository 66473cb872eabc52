"""How large pages are, and how long a browser takes to open them.

    python benchmarks/pages.py                        # fluctuating_wan as it is, with 10,000 iterations, and a map
    python benchmarks/pages.py runs/mine/report.html  # pages that are there

Needs the extra `browser` and Chromium. A page is open when its scripts have drawn it: its load event has ended. The
median of several openings counts, each in a window of its own of a browser that has started. Beside it stands what the
thread of the page works, which says more where other processes run.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

OPENINGS = 5

MADE = {
    "report.html": ("run", "fluctuating_wan"),
    "long/report.html": ("run", "fluctuating_wan", "--set", "job.iterations=10000"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="pages; by default those of MADE")
    given = parser.parse_args(arguments)
    print(f"{'page':40} {'MB':>6} {'opens in [s]':>13} {'works [CPU s]':>14}")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        own = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=own, args=["--no-sandbox", "--disable-gpu"])
        for path in given.pages or made(Path(folder)):
            took, worked = opens(browser, path)
            print(f"{path!s:40} {path.stat().st_size / 1e6:6.2f} {took:13.2f} {worked:14.2f}", flush=True)
        browser.close()


def made(folder: Path) -> Iterator[Path]:
    """Make the pages of `MADE`, one after the other."""
    for name, (verb, *rest) in MADE.items():
        path = folder / name
        out = path.parent / verb
        out.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "simnet.cli", verb, *rest, "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True)
        yield out / path.name


def opens(browser: Browser, path: Path) -> tuple[float, float]:
    """Return how long a page takes to open, and how long its thread works for that [s]."""
    found = []
    for _ in range(OPENINGS):
        page = browser.new_page()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(path.absolute().as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        took = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1e3
        metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        found.append((took, metrics["TaskDuration"]))
        page.close()
    elapsed, worked = map(statistics.median, zip(*found, strict=True))
    return elapsed, worked


if __name__ == "__main__":
    main()
