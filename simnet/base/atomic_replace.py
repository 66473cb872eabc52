"""Atomic replacement of a set of files: readers see all new files or all old ones.

New files are written to a hidden folder and synced, then the folder is renamed, after which they cannot be lost. Old
files are removed and new ones moved into place, the main one last. If the process is killed in between, `INCOMPLETE`
marks the folder, and `finish_replacement` completes the move.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from simnet.base.errors import InputError
from simnet.base.writing import INCOMPLETE, explain_write_errors, sync_to_disk, temporary_name, write_files

_MOVING = """\
The process ended while new files took the place of older ones, of which some are gone. The same command goes on here.
"""


class FileSet(NamedTuple):
    """Files that are replaced together: a noun for messages, glob patterns in a folder, and the file moved last."""

    kind: str
    names: tuple[str, ...]
    last: str

    def inside(self, prefix: str) -> tuple[str, ...]:
        """Return the glob patterns of the set's files in folders that match `prefix`."""
        return tuple(f"{prefix}/{name}" for name in self.names)


@contextmanager
def replace_files(folder: Path, files: FileSet) -> Iterator[Path]:
    """Provide an empty folder whose files then replace those of a set in `folder`; on an error, nothing changes.

    Raises InputError if something cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     folder = Path(home)
    ...     _ = (folder / "old.csv").write_text("0"), (folder / "mine.txt").write_text("1")
    ...     with replace_files(folder, FileSet("table", ("*.csv",), "new.csv")) as stage:
    ...         _ = (stage / "new.csv").write_text("2")
    ...     sorted(one.name for one in folder.iterdir())
    ['mine.txt', 'new.csv']
    """
    finish_replacement(folder, files)
    begun = temporary_name(folder / files.kind)
    with explain_write_errors(folder):
        try:
            begun.mkdir()
            try:
                yield begun
            except InputError as error:
                # People know the folder, and nothing of one that is gone.
                if error.file is None or begun not in Path(error.file).parents:
                    raise
                place = folder / Path(error.file).relative_to(begun)
                raise InputError(error.message, file=str(place), line=error.line, field=error.field) from error
            for one in _journal_paths(begun):
                sync_to_disk(one)
            begun.rename(_is_complete(folder, files))
        finally:
            shutil.rmtree(begun, ignore_errors=True)
    finish_replacement(folder, files)


def finish_replacement(folder: Path, files: FileSet) -> None:
    """Complete an interrupted replacement; no other process may work in the folder. InputError if a write fails."""
    whole, moving = _is_complete(folder, files), _moving_files(folder, files)
    with explain_write_errors(folder):
        if whole.is_dir():
            write_files(folder, {INCOMPLETE: _MOVING.encode()})
            old = [one for name in files.names for one in folder.glob(name) if one.is_file() or one.is_symlink()]
            # The one that tells of the others goes first.
            for one in sorted(set(old), key=lambda one: (one != folder / files.last, one)):
                one.unlink(missing_ok=True)
                _without_empty(one.parent, folder)
            whole.rename(moving)
        if moving.is_dir():
            new = [one for one in _journal_paths(moving) if one != moving / INCOMPLETE]
            for one in sorted(new, key=lambda one: (one == moving / files.last, one)):
                place = folder / one.relative_to(moving)
                place.parent.mkdir(parents=True, exist_ok=True)
                one.replace(place)
            if (moving / INCOMPLETE).exists():
                (moving / INCOMPLETE).replace(folder / INCOMPLETE)
            else:
                (folder / INCOMPLETE).unlink(missing_ok=True)
            sync_to_disk(folder)
            shutil.rmtree(moving, ignore_errors=True)


def refuse_incomplete_replacement(folder: Path, kinds: Sequence[FileSet]) -> None:
    """Raise InputError if a replacement of one of the file sets `kinds` in a folder was interrupted."""
    for files in kinds:
        if _is_complete(folder, files).exists() or _moving_files(folder, files).exists():
            raise InputError(
                f"a {files.kind} ended here while its files took their places; the same command goes on from there",
                file=str(folder),
            )


def _is_complete(folder: Path, files: FileSet) -> Path:
    return folder / f".{files.kind}.whole"


def _moving_files(folder: Path, files: FileSet) -> Path:
    return folder / f".{files.kind}.moving"


def _journal_paths(folder: Path) -> list[Path]:
    return sorted(one for one in folder.rglob("*") if one.is_file())


def _without_empty(place: Path, folder: Path) -> None:
    """Delete `place` and its parents below `folder`, up to the first folder that is not empty."""
    with suppress(OSError):
        while place != folder:
            place.rmdir()
            place = place.parent
