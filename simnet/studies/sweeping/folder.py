"""The folder of a sweep: what is there already, what is written when, and by one sweep at a time.

Files appear whole or not at all. What a sweep that was killed had begun to write is taken away by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simnet.base import writing
from simnet.base.errors import InputError
from simnet.base.writing import INCOMPLETE, atomic_write, tidy
from simnet.report.results import prepare_folder
from simnet.studies.sweeping import cell

CELLS = "cells"
"""The folder of the cells' files."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make the folder, keep other sweeps out of it, and take away what one that was killed had begun to write.

    Raises
    ------
    InputError
        If it cannot be made or written to, or another sweep is at work there.
    """
    prepare_folder(folder)
    try:
        (folder / CELLS).mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", file=str(folder / CELLS)) from None
    with writing.alone(folder, "sweep") as surely:
        if surely:
            for one in (folder, folder / CELLS, folder / "figures", folder / "inputs"):
                tidy(one)
        yield


def stored(folder: Path, identity: str) -> list[dict[str, Any]] | None:
    """Return the rows of a cell whose file is there and whole, else None."""
    path = folder / CELLS / f"{identity}.json"
    try:
        if not path.is_file() or path.stat().st_size > cell.MAX_BYTES:
            return None
        return cell.decoded(path.read_bytes(), identity)
    except OSError:
        return None


def store(folder: Path, identity: str, data: bytes) -> None:
    """Write the file of a cell."""
    with atomic_write(folder / CELLS / f"{identity}.json") as stream:
        stream.write(data)


def mark(folder: Path, missing: int, total: int, why: str) -> None:
    """Leave a file that says that the sweep is not at its end."""
    with atomic_write(folder / INCOMPLETE) as stream:
        stream.write(f"{why}: {missing} of {total} cells missing; the same command goes on from here\n".encode())


def unmark(folder: Path) -> None:
    """Take the file of `mark` away."""
    (folder / INCOMPLETE).unlink(missing_ok=True)
