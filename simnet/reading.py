"""Text files from elsewhere: read only if they are files, not too large, and UTF-8."""

from __future__ import annotations

from pathlib import Path

from simnet.errors import InputError


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
    simnet.errors.InputError: nowhere.yaml: there is no such file
    """
    name = str(path) if shown is None else shown
    if not path.is_file():
        raise InputError("is not a file" if path.exists() else "there is no such file", file=name)
    try:
        with path.open("rb") as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise InputError(f"is larger than {largest:,} bytes, the most that are read", file=name)
        return content.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=name) from None
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise InputError(f"is not UTF-8 text: {wrong}", file=name) from None
