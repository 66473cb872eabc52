"""Reading of untrusted files: only regular files of limited size, and only texts in UTF-8."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO

from simnet.base.errors import InputError

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
    """Provide a function that, given n, returns up to n more bytes of a file; parameters are those of `read_bytes`.

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
