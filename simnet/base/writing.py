"""Files that appear under their names when they are complete, or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from simnet.base.errors import InputError

_locks: ModuleType | None
try:
    import fcntl

    _locks = fcntl
except ImportError:
    _locks = None

INCOMPLETE = "INCOMPLETE"
"""File in a folder of results of which some are missing: what is there, and what is not."""

_BEGUN = re.compile(r"\..*[0-9a-f]{16}\.tmp")


def temporary(path: Path) -> Path:
    """Return the name, which nobody else uses, of what is written before it gets its own: a file, or its folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def tidy(folder: Path) -> None:
    """Take away the files, and folders, that somebody who was killed had begun to write in a folder."""
    for one in folder.iterdir() if folder.is_dir() else ():
        if _BEGUN.fullmatch(one.name):
            with suppress(OSError):
                if one.is_dir() and not one.is_symlink():
                    shutil.rmtree(one)
                else:
                    one.unlink()


@contextmanager
def whole(path: Path, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a file that appears under its name when it is complete, and not at all when something goes wrong.

    Until then an older file of that name stays. The folder must exist.

    Parameters
    ----------
    path : Path
        Its name.
    sync : bool
        Whether to wait for the disk, so that it outlives a loss of power, too, and not only the process.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    begun = temporary(path)
    try:
        with begun.open("xb") as stream:
            yield stream
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        begun.replace(path)
    finally:
        with suppress(OSError):
            begun.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file as `whole` does, with an error for people.

    Raises
    ------
    InputError
        If it cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answer.txt"
    >>> with atomic_write(path) as stream:
    ...     count = stream.write(b"42")
    >>> path.read_text()
    '42'
    """
    with explained(Path(path)), whole(Path(path)) as stream:
        yield stream


def synced(path: Path) -> None:
    """Wait until the disk has a file, if the system can tell."""
    with suppress(OSError), path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def explained(path: Path, advice: str = "; choose another folder with --out") -> Iterator[None]:
    """Turn what the system says against writing into an error for people, with advice at its end."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be written: {reason}{advice}", file=str(path)) from error


@contextmanager
def alone(folder: Path, what: str) -> Iterator[bool]:
    """Keep others out of a folder, as far as its file system can; yield whether it can.

    Parameters
    ----------
    folder : Path
        The folder, which is there.
    what : str
        What people call what works there.

    Raises
    ------
    InputError
        If another one is at work there.
    """
    # The system lets go of it when this process ends, however that happens.
    with explained(folder):
        held = os.open(folder, os.O_RDONLY) if _locks is not None else None
    try:
        yield held is not None and _locked(held, folder, what)
    finally:
        if held is not None:
            os.close(held)


def _locked(held: int, folder: Path, what: str) -> bool:
    """Lock a folder; say whether its file system can do so."""
    assert _locks is not None
    try:
        _locks.flock(held, _locks.LOCK_EX | _locks.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"another {what} is at work there; wait for it, or choose another folder with --out", file=str(folder)
        ) from None
    except OSError:
        return False
    return True
