"""Where compiled loops are kept, so that one process compiles them and all others read them.

Numba keeps what it compiles beside the source where it can write there, else in the cache of the user. Here two places
are added. What was compiled at installation is read from beside the source by those who cannot write there: that is how
``simnet warm`` serves all users of a machine. And where a user has no folder of that kind, a folder below the one for
temporary files is taken if nobody else can write to it, as reading what is kept means to run it.

A compilation takes seconds: one line tells of the first one of a process, and of code that cannot be kept.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numba.core.caching import CacheImpl, FunctionCache, NullCache

_FIRST: Any = CacheImpl._locator_classes[0]
_BESIDE: Any = CacheImpl._locator_classes[1]
_OF_USER: Any = CacheImpl._locator_classes[2]
_COMPILES = "compiles its loops, which takes some seconds; `simnet warm` does so beforehand, once"
_log = logging.getLogger("simnet")
_told: set[str] = set()
_compiled: list[str] = []
_folders: set[Path] = set()


def private_folder(path: Path) -> Path | None:
    """Return a folder that only this user can read and write, made if it is not there; None if that cannot be had.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = private_folder(Path(folder) / "mine")
    ...     os.chmod(place, 0o777)
    ...     [place.name, private_folder(place)]
    ['mine', None]
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    if not hasattr(os, "getuid"):
        return path
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return path if own else None


class _Installed(_BESIDE):  # type: ignore[misc]
    """Beside the source, where the function is kept already: there it is read by those who cannot write, too."""

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        found = cls(function, file)
        kept = f"*.{function.__qualname__}-{found.get_disambiguator()}.py*.nbi"
        return found if any(Path(found.get_cache_path()).glob(kept)) else None

    def ensure_cache_path(self) -> None:
        """Leave it to writing to find that it cannot be done."""


class _Temporary(_OF_USER):  # type: ignore[misc]
    """In a folder of the user below that for temporary files."""

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        who = os.getuid() if hasattr(os, "getuid") else "user"
        place = private_folder(Path(tempfile.gettempdir()) / f"simnet-compiled-{who}")
        if place is None:
            return None
        found = cls(function, file)
        found._cache_path = str(place / Path(found.get_cache_path()).name)
        return found

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        Path(self.get_cache_path()).mkdir(mode=0o700, exist_ok=True)


class _Places(FunctionCache._impl_class):  # type: ignore[misc]
    """Looks where the user has told numba to, and then in more places than numba does."""

    _locator_classes = (_FIRST, _Installed, *CacheImpl._locator_classes[1:], _Temporary)


def kept_code(function: Any, sources: Sequence[str] = ()) -> KeptCode | NowhereKept:
    """Return where the compiled forms of a function are kept.

    Parameters
    ----------
    function : callable
        The function.
    sources : sequence of str
        Files of the functions that it may call: what they compile to is part of it.
    """
    try:
        return KeptCode(function, sources)
    except RuntimeError:
        return NowhereKept(function.__name__)


class KeptCode(FunctionCache):  # type: ignore[misc]
    """The compiled forms of a function, on disk."""

    _impl_class = _Places

    def __init__(self, function: Any, sources: Sequence[str] = ()) -> None:
        super().__init__(function)
        # By itself, numba takes a form for current as long as the file of the function itself has not changed.
        stamps = [(one.st_mtime, one.st_size) for one in map(os.stat, sources)]
        self._cache_file._source_stamp = (*self._cache_file._source_stamp, *stamps)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the compiled form for these types, or None, whereupon it is compiled."""
        try:
            found = super().load_overload(signature, context)
        except OSError:
            found = None
        if found is None:
            _tell_compiling()
        else:
            _folders.add(Path(self.cache_path))
        return found

    def save_overload(self, signature: Any, made: Any) -> None:
        """Keep a compiled form, if that can be done."""
        _compiled.append(self._py_func.__name__)
        try:
            super().save_overload(signature, made)
            _folders.add(Path(self.cache_path))
        except OSError as error:
            _tell_unkept(f"{self.cache_path}: {error.strerror}")


class NowhereKept(NullCache):  # type: ignore[misc]
    """The compiled forms of a function, where no folder was found for them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def load_overload(self, signature: Any, context: Any) -> None:
        """Return nothing, whereupon it is compiled."""
        _tell_compiling()
        _tell_unkept("no folder of this user was found")

    def save_overload(self, signature: Any, made: Any) -> None:
        """Keep nothing."""
        _compiled.append(self._name)


def expect_compiling() -> None:
    """Tell of no compilation: it is what is wanted."""
    _told.add(_COMPILES)


def done() -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the functions that this process compiled, and the folders in which compiled code is kept."""
    return tuple(_compiled), tuple(sorted(_folders))


def _tell_compiling() -> None:
    _tell(_COMPILES)


def _tell_unkept(why: str) -> None:
    _tell(
        f"cannot keep what it compiles ({why}), so that every process does so again; "
        "set NUMBA_CACHE_DIR to a folder of yours that can be written to"
    )


def _tell(what: str) -> None:
    if what not in _told and multiprocessing.parent_process() is None:
        _told.add(what)
        _log.warning("simnet %s", what)
