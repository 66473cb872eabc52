"""File input and output: limits for untrusted files that are read, and atomic writing.

Only regular files of limited size are read, and only texts in UTF-8. Files and folders that are written appear under
their names when complete, or not at all; write errors become `InputError`, and only `open_atomic` lets the `OSError`
through. `replace_files` replaces several files: readers see all new files or all old ones. New files are written to a
hidden folder and synced, then the folder is renamed, after which they cannot be lost. Old files are removed and new
ones moved into place, the main one last. If the process is killed in between, `INCOMPLETE` marks the folder, and
`finish_replacement` completes the move.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, NamedTuple

from simnet.base.errors import InputError

if sys.platform != "win32":
    import fcntl

_GZIP = b"\x1f\x8b"
_MARKS = {
    _GZIP: "compressed by gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\xff\xfe": "UTF-16; convert it to UTF-8 first",
    b"\xfe\xff": "UTF-16; convert it to UTF-8 first",
}


def open_unpacked(file: BinaryIO) -> BinaryIO | gzip.GzipFile:
    """Return a file object that decompresses gzip content; the same object if the content is not gzip.

    Reading a damaged file raises `OSError`, `EOFError` or `zlib.error`.

    Examples
    --------
    >>> from io import BytesIO
    >>> open_unpacked(BytesIO(gzip.compress(b"a log"))).read(4), open_unpacked(BytesIO(b"a log")).read(4)
    (b'a lo', b'a lo')
    """
    packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if packed else file


def read_bytes(path: Path, largest: int, *, unpack: bool = True) -> bytes:
    """Return the content of a file of at most `largest` bytes; if `unpack`, gzip content is unpacked.

    Raises InputError if it is missing, not a regular file, unreadable, or too large.

    Examples
    --------
    >>> read_bytes(Path("nowhere.et"), 100)
    Traceback (most recent call last):
    simnet.base.errors.InputError: nowhere.et: there is no such file
    """
    with open_reading(path, largest, unpack=unpack) as more:
        return more(largest + 1)


@contextmanager
def open_reading(path: Path, largest: int, *, unpack: bool = True) -> Iterator[Callable[[int], bytes]]:
    """Provide a function that, given n, returns the next n bytes of a file or fewer; `unpack` unpacks gzip content.

    InputError if the file cannot be read, or has more than `largest` bytes when unpacked.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("abcde")
    ...     with open_reading(Path(folder, "a.txt"), 100) as more:
    ...         more(3), more(3), more(3)
    (b'abc', b'de', b'')
    """
    name = str(path)
    try:
        if not path.is_file():
            raise InputError("is not a file" if path.exists() else "there is no such file", file=name)
        with path.open("rb") as file:
            inside = open_unpacked(file) if unpack else file
            left, when = largest, "" if inside is file else " when unpacked"
            too_large = InputError(f"is larger than {largest:,} bytes{when}, the most that are read", file=name)

            def more(count: int) -> bytes:
                nonlocal left
                content = inside.read(count)
                left -= len(content)
                if left < 0:
                    raise too_large
                return content

            if inside is file and path.stat().st_size > largest:
                raise too_large
            yield more
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"cannot be unpacked: {error}", file=name) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=name) from None


def read_text(path: Path, largest: int, *, unpack: bool = False) -> str:
    """Return the text of a file, without a byte order mark; gzip is refused unless `unpack`.

    Raises InputError as `read_bytes`, and if it is not UTF-8.

    Examples
    --------
    >>> read_text(Path("nowhere.yaml"), 100)
    Traceback (most recent call last):
    simnet.base.errors.InputError: nowhere.yaml: there is no such file
    """
    content, name = read_bytes(path, largest, unpack=unpack), str(path)
    for mark, what in _MARKS.items():
        if content.startswith(mark):
            raise InputError(f"is not UTF-8 text: it is {what}", file=name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise InputError(f"is not UTF-8 text: {wrong}", file=name) from None


def read_shipped_rows(path: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of the package, as dicts of texts, without loading pandas."""
    return list(csv.DictReader((files("simnet") / path).read_text(encoding="utf-8").splitlines()))


def csv_rows(lines: Iterable[str], file: str) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of each line of a CSV that is neither empty nor a comment; InputError if it is not CSV."""
    for at, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                yield at, next(csv.reader([line], strict=True))
            except csv.Error as error:
                raise InputError(f"is not CSV: {error}", file=file, line=at) from None


INCOMPLETE = "INCOMPLETE"
"""File in an incomplete result folder that says what is missing."""

_BEGUN = re.compile(r"\..*[0-9a-f]{16}\.tmp")


def temporary_name(path: Path) -> Path:
    """Return a unique file name in the folder of `path`, for a file that is renamed to `path` when complete."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders that killed processes left in a folder."""
    for one in folder.iterdir() if folder.is_dir() else ():
        if _BEGUN.fullmatch(one.name):
            with suppress(OSError):
                if one.is_dir() and not one.is_symlink():
                    shutil.rmtree(one)
                else:
                    one.unlink()


@contextmanager
def open_atomic(path: Path, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when complete; after an error it does not appear.

    An older file stays until then. `sync` waits for the disk, so that it survives a power loss. Raises OSError.
    """
    begun = temporary_name(path)
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
    """Open a binary file for writing that appears under `path` only if the block succeeds; InputError if writing fails.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answer.txt"
    >>> with atomic_write(path) as stream:
    ...     count = stream.write(b"42")
    >>> path.read_text()
    '42'
    """
    with explain_write_errors(Path(path)), open_atomic(Path(path)) as stream:
        yield stream


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, and the folders they need, in the given order; each file appears complete or not at all."""
    for name, data in files.items():
        with explain_write_errors(folder / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / name) as stream:
            stream.write(data)


@contextmanager
def stage_files(targets: Sequence[Path], force: bool, suffixes: Sequence[str] = ()) -> Iterator[Path]:
    """Provide an empty folder; if the block succeeds, its files are moved to `targets`, which must share one folder.

    With `force` existing targets are replaced, folders only if all their files end in one of `suffixes`. Raises
    InputError if a target may not be replaced, or something cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     with stage_files([Path(home, "a.txt")], force=False) as folder:
    ...         _ = (folder / "a.txt").write_text("42")
    ...     Path(home, "a.txt").read_text(), len(list(Path(home).iterdir()))
    ('42', 1)
    """
    refuse_existing(targets, force, suffixes)
    folder = temporary_name(targets[0])
    with explain_write_errors(targets[0], advice=""):
        try:
            folder.mkdir()
            yield folder
            refuse_existing(targets, force, suffixes)
            with ExitStack() as undo:
                for target in targets if len(targets) > 1 else filter(Path.is_dir, targets):
                    if target.exists() or target.is_symlink():
                        undo.callback(target.rename(folder / f".{target.name}.old").replace, target)
                # The first is what people open: it appears when all it needs is there.
                for target in reversed(targets):
                    undo.callback((folder / target.name).replace(target).replace, folder / target.name)
                undo.pop_all()
        finally:
            with suppress(OSError):
                shutil.rmtree(folder)


def write_new(files: Mapping[Path, bytes | str], force: bool) -> None:
    """Write files in one folder, all or none; existing files are replaced only with `force`."""
    with stage_files(list(files), force) as folder:
        for path, data in files.items():
            (folder / path.name).write_bytes(data.encode() if isinstance(data, str) else data)


def refuse_existing(targets: Sequence[Path], force: bool, suffixes: Sequence[str] = ()) -> None:
    """Raise InputError if a target exists; `force` permits files, and folders in which all files end in `suffixes`."""
    for target in targets:
        with explain_write_errors(target, advice=""):
            if not (target.exists() or target.is_symlink()):
                continue
            if target.exists() and not (target.is_file() or target.is_dir()):
                raise InputError("is neither a file nor a folder, and is not replaced", file=str(target))
            if not force:
                raise InputError("is there already; --force replaces it, or take another name", file=str(target))
            if target.is_dir() and any(one.suffix not in suffixes for one in target.iterdir()):
                raise InputError("is a folder with other files in it, which is not replaced", file=str(target))


def mark_incomplete(folder: Path, said: str) -> None:
    """Write `said` to the file that marks a results folder as incomplete; if `said` is "", remove that file."""
    if said:
        write_files(folder, {INCOMPLETE: f"{said}\n".encode()})
    else:
        (folder / INCOMPLETE).unlink(missing_ok=True)


def sync_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on disk, where the system supports it."""
    with suppress(OSError):
        held = os.open(path, os.O_RDONLY)
        try:
            os.fsync(held)
        finally:
            os.close(held)


@contextmanager
def explain_write_errors(path: Path, advice: str = "; choose another folder with --out") -> Iterator[None]:
    """Convert write errors in the block into InputError, with `advice` at the end of the message."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        # What is written aside has the name that it is going to have.
        shown = path.parent.with_name(path.name) if _BEGUN.fullmatch(path.parent.name) else path
        raise InputError(f"cannot be written: {reason}{advice}", file=str(shown)) from error


@contextmanager
def lock_folder(folder: Path, what: str, below: Sequence[str] = ()) -> Iterator[None]:
    """Lock an existing folder; remove temporary files that killed processes left there and in its subfolders `below`.

    Raises InputError if another process, which the message calls `what`, holds the lock. On a file system without locks
    nothing is locked.
    """
    if sys.platform == "win32":
        yield
        return
    # The system lets go of it when this process ends, however that happens.
    with explain_write_errors(folder):
        held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            why = f"another {what} is at work there; wait for it, or choose another folder with --out"
            raise InputError(why, file=str(folder)) from None
        except OSError:
            pass  # a file system without locks
        else:
            for one in (folder, *(folder / name for name in below)):
                remove_leftovers(one)
        yield
    finally:
        os.close(held)


_MOVING = """\
The process ended while new files took the place of older ones, of which some are gone. The same command goes on here.
"""


class FileSet(NamedTuple):
    """Files that are replaced together: a name for messages, glob patterns, and the file that is put in place last."""

    kind: str
    names: tuple[str, ...]
    last: str

    def inside(self, prefix: str) -> tuple[str, ...]:
        """Return the glob patterns for the same files in a folder: ``{prefix}/{name}`` for each of `names`."""
        return tuple(f"{prefix}/{name}" for name in self.names)


@contextmanager
def replace_files(folder: Path, files: FileSet) -> Iterator[Path]:
    """Provide an empty folder; its files then replace the set's files in `folder`. An error changes nothing.

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
    for one in kinds:
        if _is_complete(folder, one).exists() or _moving_files(folder, one).exists():
            raise InputError(
                f"a {one.kind} ended here while its files took their places; the same command goes on from there",
                file=str(folder),
            )


def _is_complete(folder: Path, files: FileSet) -> Path:
    return folder / f".{files.kind}.whole"


def _moving_files(folder: Path, files: FileSet) -> Path:
    return folder / f".{files.kind}.moving"


def _journal_paths(folder: Path) -> list[Path]:
    return sorted(one for one in folder.rglob("*") if one.is_file())


def _without_empty(place: Path, folder: Path) -> None:
    """Delete the folder `place` and its parents below `folder`, up to the first folder that is not empty."""
    with suppress(OSError):
        while place != folder:
            place.rmdir()
            place = place.parent
