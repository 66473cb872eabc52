"""Files and folders that appear under their names when they are complete, or not at all.

What the system says against writing becomes an `InputError`; `whole` alone lets the `OSError` through.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
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


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder in their order, each as `atomic_write` does, and the folders in it that they need."""
    for name, data in files.items():
        with explained(folder / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / name) as stream:
            stream.write(data)


@contextmanager
def staged(targets: Sequence[Path], force: bool, suffixes: Sequence[str] = ()) -> Iterator[Path]:
    """Give a folder in which to write files and folders that then appear as `targets`, unless something goes wrong.

    Parameters
    ----------
    targets : sequence of Path
        Beside each other. What is written has their names.
    force : bool
        Whether they may be there already.
    suffixes : sequence of str
        A folder that is replaced holds files that end like this and nothing else.

    Raises
    ------
    InputError
        If one is there already and may not be replaced, or something cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     with staged([Path(home, "a.txt")], force=False) as folder:
    ...         _ = (folder / "a.txt").write_text("42")
    ...     Path(home, "a.txt").read_text(), len(list(Path(home).iterdir()))
    ('42', 1)
    """
    refuse_existing(targets, force, suffixes)
    folder = temporary(targets[0])
    with explained(targets[0], advice=""):
        try:
            folder.mkdir()
            yield folder
            refuse_existing(targets, force, suffixes)
            with _put_aside([one for one in targets if len(targets) > 1 or one.is_dir()], folder):
                # The first is what people open: it appears when all it needs is there.
                for target in reversed(targets):
                    (folder / target.name).replace(target)
        finally:
            with suppress(OSError):
                shutil.rmtree(folder)


@contextmanager
def _put_aside(targets: Sequence[Path], folder: Path) -> Iterator[None]:
    """Have what is at some targets in a folder before anything new is at one of them; back again if that fails."""
    waiting = [target for target in targets if target.exists() or target.is_symlink()]
    moved: list[Path] = []
    try:
        while waiting:
            waiting[0].rename(folder / f".{waiting[0].name}.old")
            moved.append(waiting.pop(0))
        yield
    except OSError:
        for target in targets:
            if target.is_dir() and target not in waiting and not target.is_symlink():
                shutil.rmtree(target)
            elif target not in waiting:
                target.unlink(missing_ok=True)
        for target in moved:
            (folder / f".{target.name}.old").replace(target)
        raise


def write_new(files: Mapping[Path, bytes | str], force: bool) -> None:
    """Write files that are beside each other, all of them or none, where none is, unless by `force`; see `staged`."""
    with staged(list(files), force) as folder:
        for path, data in files.items():
            (folder / path.name).write_bytes(data.encode() if isinstance(data, str) else data)


def refuse_existing(targets: Sequence[Path], force: bool, suffixes: Sequence[str] = ()) -> None:
    """Raise InputError for what is there and may not be replaced: worth asking before work that takes long.

    Parameters
    ----------
    targets, force, suffixes
        As for `staged`.
    """
    for target in targets:
        with explained(target, advice=""):
            if not (target.exists() or target.is_symlink()):
                continue
            if target.exists() and not (target.is_file() or target.is_dir()):
                raise InputError("is neither a file nor a folder, and is not replaced", file=str(target))
            if not force:
                raise InputError("is there already; --force replaces it, or take another name", file=str(target))
            if target.is_dir() and any(one.suffix not in suffixes for one in target.iterdir()):
                raise InputError("is a folder with other files in it, which is not replaced", file=str(target))


def mark_incomplete(folder: Path, said: str) -> None:
    """Leave a file in a folder of results that says what is missing there; take it away if nothing is said."""
    if said:
        write_files(folder, {INCOMPLETE: f"{said}\n".encode()})
    else:
        (folder / INCOMPLETE).unlink(missing_ok=True)


def synced(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder, if the system can tell."""
    with suppress(OSError):
        held = os.open(path, os.O_RDONLY)
        try:
            os.fsync(held)
        finally:
            os.close(held)


@contextmanager
def explained(path: Path, advice: str = "; choose another folder with --out") -> Iterator[None]:
    """Turn what the system says against writing into an error for people, with advice at its end."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        # What is written aside has the name that it is going to have.
        shown = path.parent.with_name(path.name) if _BEGUN.fullmatch(path.parent.name) else path
        raise InputError(f"cannot be written: {reason}{advice}", file=str(shown)) from error


@contextmanager
def alone(folder: Path, what: str, below: Sequence[str] = ()) -> Iterator[None]:
    """Keep others out of a folder, and take away what one that was killed had begun to write there.

    On a file system that has no locks neither is done.

    Parameters
    ----------
    folder : Path
        The folder, which is there.
    what : str
        What people call what works there.
    below : sequence of str
        The folders in it in which this is at work, too.

    Raises
    ------
    InputError
        If another one is at work there.
    """
    # The system lets go of it when this process ends, however that happens.
    with explained(folder):
        held = os.open(folder, os.O_RDONLY) if _locks is not None else None
    try:
        if held is not None and _locked(held, folder, what):
            for one in (folder, *(folder / name for name in below)):
                tidy(one)
        yield
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
