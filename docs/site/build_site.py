"""Build the site of the documentation: pages of `docs`, those made of the code, evidence, and notebooks as they run.

    python docs/site/build_site.py build            # ten minutes and more: all evidence is computed
    python docs/site/build_site.py build --quick    # the same pages, with a small part of the evidence

copies `docs` to ``build/docs``, writes the generated pages beside the others, runs the notebooks, and lets Zensical
make ``build/site`` of it all. Warnings, dead links among them, are errors.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import api_pages
import columns_page
import command_page
import fidelity_page
import scenario_page

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent


def changelog() -> str:
    """Return the changelog, whose links start from the root of the repository."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")


PAGES = {
    "changelog.md": changelog,
    "evidence/schemes.md": fidelity_page.page,
    "reference/commands.md": command_page.page,
    "reference/columns.md": columns_page.page,
    "reference/scenario.md": scenario_page.page,
    **{f"reference/{name}.md": page for name, page in api_pages.PAGES.items()},
}
"""The pages that are made of the code, by what makes each."""

EVIDENCE = {
    "evidence/papers/index.md": (
        "-m simnet.cli reproduce {} --figures --force --out {folder}",
        "--all",
        "artopk-fig-1b artopk-table-vi-best",
    ),
    "evidence/validation.md": (
        "benchmarks/validation.py {} --json {out}/validation.json --figures {out}/docs/evidence --markdown {page}",
        "",
        "--only dgxh100",
    ),
}
"""The pages of evidence: the command that writes each, and what it takes for all of it and for a small part."""


def prepare(out: Path, *, quick: bool = False) -> None:
    """Write into ``out/docs`` all that the site is made of, and its configuration beside it."""
    docs = out / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    shutil.copytree(DOCS, docs, ignore=shutil.ignore_patterns("site", "notebooks", "__pycache__"))
    for name, page in PAGES.items():
        path = docs / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(page(), encoding="utf-8")
    for name, (command, whole, part) in EVIDENCE.items():
        (docs / name).parent.mkdir(exist_ok=True)
        places = {"page": docs / name, "folder": (docs / name).parent, "out": out}
        words = command.format(part if quick else whole, **{key: shlex.quote(str(one)) for key, one in places.items()})
        subprocess.run([sys.executable, *shlex.split(words)], cwd=ROOT, check=True)
    run_notebooks(docs / "notebooks")
    for path in docs.rglob("*.md"):
        path.write_text(moved(path.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.copy(ROOT / "mkdocs.yml", out)


def moved(text: str) -> str:
    """Return a page with links as they are on the site: notebooks are pages, files of the repository are only named.

    Examples
    --------
    >>> moved("[one](notebooks/one.ipynb), [changes](../CHANGELOG.md), [train.py](../examples/train.py)")
    '[one](notebooks/one.md), [changes](changelog.md), `examples/train.py`'
    """
    text = text.replace("![png](", "![What the cell above draws](")
    text = re.sub(r"\]\(([\w/]+)\.ipynb\)", r"](\1.md)", text).replace("](../CHANGELOG.md)", "](changelog.md)")
    return re.sub(r"\[[^\]]*\]\(\.\./((?:examples|scenarios|benchmarks)/[\w./-]+)\)", r"`\1`", text)


def run_notebooks(out: Path) -> None:
    """Run the notebooks, and write them as pages with what they put out."""
    notebooks = sorted((DOCS / "notebooks").glob("*.ipynb"))
    command = [sys.executable, "-m", "nbconvert", "--to", "markdown", "--execute"]
    # On a busy machine a kernel takes a while to begin.
    command += ["--ExecutePreprocessor.startup_timeout=300", "--log-level", "ERROR"]
    subprocess.run([*command, "--output-dir", out, *notebooks], check=True)


def build(out: Path) -> None:
    """Make the site in ``out/site`` of what is in ``out/docs``.

    Raises
    ------
    CalledProcessError
        If there is something to warn of.
    """
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file"]
    subprocess.run([*command, out / "mkdocs.yml"], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder in which docs and site are written")
    parser.add_argument("--quick", action="store_true", help="compute a small part of the evidence")
    given = parser.parse_args()
    prepare(given.out.resolve(), quick=given.quick)
    build(given.out.resolve())
