"""The folder of a sweep: what is there already, what is written when, and by one sweep at a time.

Files appear whole or not at all. What a sweep that was killed had begun to write is taken away by the next one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from simnet.errors import InputError
from simnet.results import atomic_write, prepare_folder
from simnet.sweeping import cell

_locks: ModuleType | None
try:
    import fcntl

    _locks = fcntl
except ImportError:
    _locks = None

CELLS = "cells"
"""The folder of the cells' files."""

INCOMPLETE = "INCOMPLETE"
"""File in the folder of a sweep that is not at its end: at work, killed or interrupted."""

# What `simnet.results` writes before it gives a file its name.
_BEGUN = re.compile(r"\..*[0-9a-f]{16}\.tmp")


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
    # The system lets go of it when this process ends, however that happens.
    held = os.open(folder, os.O_RDONLY) if _locks is not None else None
    try:
        if held is not None and _locked(held, folder):
            _tidy(folder)
        yield
    finally:
        if held is not None:
            os.close(held)


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


def _locked(held: int, folder: Path) -> bool:
    """Lock a folder; say whether its file system can do so."""
    assert _locks is not None
    try:
        _locks.flock(held, _locks.LOCK_EX | _locks.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            "another sweep is at work there; wait for it, or choose another folder with --out", file=str(folder)
        ) from None
    except OSError:
        return False
    return True


def _tidy(folder: Path) -> None:
    for one in (folder, folder / CELLS, folder / "figures", folder / "inputs"):
        for file in one.iterdir() if one.is_dir() else ():
            if _BEGUN.fullmatch(file.name):
                with suppress(OSError):
                    file.unlink()
