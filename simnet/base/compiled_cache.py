"""On-disk cache of compiled loops: one process compiles, all others load.

Numba caches next to the source if that is writable, else in the user's cache. One location is added: a read-only cache
next to the source, by which ``simnet.compile`` serves all users. The first compilation of a process, which takes
seconds, is reported in one line.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba.core.caching import CacheImpl, FunctionCache, NullCache

_BESIDE: Any = CacheImpl._locator_classes[1]
_COMPILES = "compiles its loops, which takes some seconds; `python -m simnet.compile` does so beforehand, once"
# What an index raises that an earlier version wrote, whose classes had other names or places.
_STALE = (AttributeError, ImportError)
_log = logging.getLogger("simnet")
_told: set[str] = set()
_compiled: list[str] = []
_folders: set[Path] = set()


class _InstalledCache(_BESIDE):  # type: ignore[misc]
    """The cache folder next to the source file, used if it already has the function; needs no write access."""

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        found = cls(function, file)
        kept = f"*.{function.__qualname__}-{found.get_disambiguator()}.py*.nbi"
        return found if any(Path(found.get_cache_path()).glob(kept)) else None

    def ensure_cache_path(self) -> None:
        """Skip numba's check that the folder is writable."""


class _CacheLocator(FunctionCache._impl_class):  # type: ignore[misc]
    """Numba's list of cache folders, with `_InstalledCache` as the second."""

    _locator_classes = (CacheImpl._locator_classes[0], _InstalledCache, *CacheImpl._locator_classes[1:])


def find_cache(function: Any, sources: Sequence[str] = ()) -> Any:
    """Return the on-disk cache of a function; `sources` are files of other functions compiled into it."""
    try:
        return DiskCache(function, sources)
    except RuntimeError:
        _compiled.append(function.__name__)
        _report_once(_COMPILES)
        _tell_unkept("no folder of this user was found")
        return NullCache()


class DiskCache(FunctionCache):  # type: ignore[misc]
    """Compiled versions of a function, on disk."""

    _impl_class = _CacheLocator

    def __init__(self, function: Any, sources: Sequence[str] = ()) -> None:
        super().__init__(function)
        # By itself, numba takes a form for current as long as the file of the function itself has not changed.
        stamps = [(one.st_mtime, one.st_size) for one in map(os.stat, sources)]
        self._cache_file._source_stamp = (*self._cache_file._source_stamp, *stamps)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the compiled version for these types; None if it has to be compiled."""
        try:
            found = super().load_overload(signature, context)
        except OSError:
            found = None
        except _STALE:
            found = None
            with suppress(OSError):
                self.flush()
        # Processes that compile at the same time may write different versions under one name.
        if found is not None and tuple(found.signature.args) != tuple(getattr(signature, "args", signature)):
            found = None
        if found is None:
            _report_once(_COMPILES)
        else:
            _folders.add(Path(self.cache_path))
        return found

    def save_overload(self, signature: Any, made: Any) -> None:
        """Store a compiled version if possible."""
        _compiled.append(self._py_func.__name__)
        try:
            super().save_overload(signature, made)
            _folders.add(Path(self.cache_path))
        except (OSError, *_STALE) as error:
            _tell_unkept(f"{self.cache_path}: {getattr(error, 'strerror', None) or error}")


def silence_compiling() -> None:
    """Suppress the one-time warning that loops are compiled."""
    _told.add(_COMPILES)


def cache_summary() -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the functions compiled by this process, and the cache folders in use."""
    return tuple(_compiled), tuple(sorted(_folders))


def _tell_unkept(why: str) -> None:
    _report_once(
        f"cannot keep what it compiles ({why}), so that every process does so again; "
        "set NUMBA_CACHE_DIR to a folder of yours that can be written to"
    )


def _report_once(what: str) -> None:
    if what not in _told and multiprocessing.parent_process() is None:
        _told.add(what)
        _log.warning("simnet %s", what)
