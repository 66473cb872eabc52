"""Text files from elsewhere: read only if they are files, not too large, and UTF-8."""

from __future__ import annotations

from pathlib import Path

from simnet.base.errors import InputError

_MARKS = {
    b"\x1f\x8b": "compressed by gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\xff\xfe": "UTF-16; convert it to UTF-8 first",
    b"\xfe\xff": "UTF-16; convert it to UTF-8 first",
}


def read_text(path: Path, largest: int, shown: str | None = None) -> str:
    """Return the text of a file, without a byte order mark.

    Parameters
    ----------
    path : Path
        The file.
    largest : int
        Bytes that it may have at most; more are not read.
    shown : str, optional
        What messages call it; its path when omitted.

    Raises
    ------
    InputError
        If it is not there, no file (a pipe would wait for ever), cannot be read, is too large, or not UTF-8.

    Examples
    --------
    >>> read_text(Path("nowhere.yaml"), 100)
    Traceback (most recent call last):
    simnet.base.errors.InputError: nowhere.yaml: there is no such file
    """
    name = str(path) if shown is None else shown
    try:
        if not path.is_file():
            raise InputError("is not a file" if path.exists() else "there is no such file", file=name)
        with path.open("rb") as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise InputError(f"is larger than {largest:,} bytes, the most that are read", file=name)
        for mark, what in _MARKS.items():
            if content.startswith(mark):
                raise InputError(f"is not UTF-8 text: it is {what}", file=name)
        return content.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=name) from None
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise InputError(f"is not UTF-8 text: {wrong}", file=name) from None
