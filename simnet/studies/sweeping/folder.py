"""The folder of a sweep: the files of its cells, written as they are done, by one sweep at a time.

Files appear whole or not at all. What a sweep that was killed had begun to write is taken away by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simnet.base import writing
from simnet.report.results import prepare_folder
from simnet.studies.sweeping import cell

CELLS = "cells"
"""The folder of the cells' files."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make and lock the folder; InputError if another sweep is at work there."""
    prepare_folder(folder)
    with writing.explain_write_errors(folder / CELLS):
        (folder / CELLS).mkdir(exist_ok=True)
    with writing.lock_folder(folder, "sweep", (CELLS,)):
        yield


def stored(folder: Path, identity: str) -> list[dict[str, Any]] | None:
    """Return the rows of a cell whose file is complete, else None."""
    path = folder / CELLS / f"{identity}.json"
    try:
        if not path.is_file() or path.stat().st_size > cell.MAX_BYTES:
            return None
        return cell.decoded(path.read_bytes(), identity)
    except OSError:
        return None
