"""A copy of the repository in which files are mutated, so that nobody who works in the repository meets a mutant."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path


@contextmanager
def working_copy(root: Path, folder: Path) -> Iterator[Path]:
    """Make a copy of what git knows of a repository, or bring one up to date that no other process uses.

    Parameters
    ----------
    root : Path
        The repository.
    folder : Path
        Where copies are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in count():
        with (folder / f"copy-{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            copy = folder / f"copy-{number}" / root.name
            _update(root, copy)
            yield copy
            return


def _update(root: Path, copy: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    names = {name for name in listed.split("\0") if name and (root / name).is_file()}
    for path in filter(Path.is_symlink, (root / name for name in listed.split("\0") if name)):
        link = copy / path.relative_to(root)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(path.readlink())
    for name in names:
        source, target = root / name, copy / name
        if not target.exists() or _stamp(source) != _stamp(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for path in copy.rglob("*.py"):
        if path.relative_to(copy).as_posix() not in names:
            path.unlink()
    shared, beside = root.parent / "shared", copy.parent / "shared"
    if shared.is_dir() and not beside.exists():
        beside.symlink_to(shared)


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


@contextmanager
def mutated(path: Path, text: str) -> Iterator[None]:
    """Have a file hold another text for a while.

    What Python and numba have compiled of a file counts as long as its time, in whole seconds, and size are the same;
    so each text has a time of its own.

    Parameters
    ----------
    path : Path
        The file.
    text : str
        The text.
    """
    before, times = path.read_text(), path.stat()
    try:
        path.write_text(text)
        _latest[0] = max(_latest[0], int(times.st_mtime)) + 1
        os.utime(path, (_latest[0], _latest[0]))
        yield
    finally:
        path.write_text(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


_latest = [0]
