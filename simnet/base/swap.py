"""Files that belong together take the place of older ones together: nobody ever finds some of these and some of those.

They are written into a folder that has no name of interest. When all are whole and on the disk, that folder is renamed,
from when on they cannot be lost. Then the older ones go, and the new ones get their places, the one that people and
programs open last. Who is killed in between leaves some of one kind only, and the file `INCOMPLETE`; `completed` does
the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from simnet.base.errors import InputError
from simnet.base.writing import INCOMPLETE, explained, synced, temporary, write_files

_MOVING = """\
The process ended while new files took the place of older ones, of which some are gone. The same command goes on here.
"""


class Files(NamedTuple):
    """The files that belong together.

    Parameters
    ----------
    kind : str
        What they are, a word.
    names : tuple of str
        Patterns of their paths in the folder, as of `Path.glob`. What fits none stays when they are replaced.
    last : str
        The path of the one that gets its place last.
    """

    kind: str
    names: tuple[str, ...]
    last: str

    def inside(self, prefix: str) -> tuple[str, ...]:
        """Return the patterns of such files in folders of a pattern."""
        return tuple(f"{prefix}/{name}" for name in self.names)


@contextmanager
def swapped(folder: Path, files: Files) -> Iterator[Path]:
    """Give an empty folder in which to write files that then take the place of those in a folder.

    If something goes wrong, those stay as they were. What is missing among the new ones `mark_incomplete` says there.

    Parameters
    ----------
    folder : Path
        The folder, which is there.
    files : Files
        Which of those in it go.

    Raises
    ------
    InputError
        If something cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     folder = Path(home)
    ...     _ = (folder / "old.csv").write_text("0"), (folder / "mine.txt").write_text("1")
    ...     with swapped(folder, Files("table", ("*.csv",), "new.csv")) as stage:
    ...         _ = (stage / "new.csv").write_text("2")
    ...     sorted(one.name for one in folder.iterdir())
    ['mine.txt', 'new.csv']
    """
    completed(folder, files)
    begun = temporary(folder / files.kind)
    with explained(folder):
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
            for one in _paths(begun):
                synced(one)
            begun.rename(_whole(folder, files))
        finally:
            shutil.rmtree(begun, ignore_errors=True)
    completed(folder, files)


def completed(folder: Path, files: Files) -> None:
    """Do what is left to do where somebody was killed while files took their places.

    Parameters
    ----------
    folder, files
        As of `swapped`. Nobody else may be at work there.

    Raises
    ------
    InputError
        If something cannot be written.
    """
    whole, moving = _whole(folder, files), _moving(folder, files)
    with explained(folder):
        if whole.is_dir():
            write_files(folder, {INCOMPLETE: _MOVING.encode()})
            old = [one for name in files.names for one in folder.glob(name) if one.is_file() or one.is_symlink()]
            # The one that tells of the others goes first.
            for one in sorted(set(old), key=lambda one: (one != folder / files.last, one)):
                one.unlink(missing_ok=True)
                _without_empty(one.parent, folder)
            whole.rename(moving)
        if moving.is_dir():
            new = [one for one in _paths(moving) if one != moving / INCOMPLETE]
            for one in sorted(new, key=lambda one: (one == moving / files.last, one)):
                place = folder / one.relative_to(moving)
                place.parent.mkdir(parents=True, exist_ok=True)
                one.replace(place)
            if (moving / INCOMPLETE).exists():
                (moving / INCOMPLETE).replace(folder / INCOMPLETE)
            else:
                (folder / INCOMPLETE).unlink(missing_ok=True)
            synced(folder)
            shutil.rmtree(moving, ignore_errors=True)


def refuse_halfway(folder: Path, kinds: Sequence[Files]) -> None:
    """Raise InputError if somebody was killed in a folder while files took their places: it has some of them only."""
    for files in kinds:
        if _whole(folder, files).exists() or _moving(folder, files).exists():
            raise InputError(
                f"a {files.kind} ended here while its files took their places; the same command goes on from there",
                file=str(folder),
            )


def _whole(folder: Path, files: Files) -> Path:
    return folder / f".{files.kind}.whole"


def _moving(folder: Path, files: Files) -> Path:
    return folder / f".{files.kind}.moving"


def _paths(folder: Path) -> list[Path]:
    return sorted(one for one in folder.rglob("*") if one.is_file())


def _without_empty(place: Path, folder: Path) -> None:
    """Take away folders in a folder in which nothing is left."""
    with suppress(OSError):
        while place != folder:
            place.rmdir()
            place = place.parent
