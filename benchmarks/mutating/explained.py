"""Survivors that are explained: mutants which no test can see, or need not, each with the reason."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mutating.operators import changed_line, mutants_of

FILE = Path(__file__).with_name("explained.toml")
"""Where they are."""


class Explained(NamedTuple):
    """A survivor that is explained.

    Parameters
    ----------
    file, old, new : str
        Path in the repository, and the line before and after, without indentation.
    why : str
        Why no test sees it.
    """

    file: str
    old: str
    new: str
    why: str


def explained(path: Path = FILE) -> list[Explained]:
    """Return the survivors that are explained."""
    return [Explained(**one) for one in tomllib.loads(path.read_text()).get("survivor", [])]


def stale(entries: Sequence[Explained], root: Path) -> list[Explained]:
    """Return the entries of which there is no such mutant any more.

    Parameters
    ----------
    entries : sequence of Explained
        The entries.
    root : Path
        The repository.
    """
    return [one for one in entries if not _exists(one, root)]


def _exists(entry: Explained, root: Path) -> bool:
    path = root / entry.file
    if not path.exists():
        return False
    source = path.read_text()
    places = [at for at, line in enumerate(source.splitlines(), 1) if line.strip() == entry.old]
    return any(
        changed_line(source, one.text(source))[1:] == (entry.old, entry.new)
        for one in mutants_of(entry.file, source)
        if any(one.span[0] <= at <= max(one.span[1], one.line) for at in places)
    )


def lines_of(entries: Iterable[Explained]) -> set[tuple[str, str, str]]:
    """Return what tells a mutant that is explained: file, and line before and after."""
    return {(one.file, one.old, one.new) for one in entries}
